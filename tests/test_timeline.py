"""Timelines: what their text says, what they refuse, and how they say so."""

from __future__ import annotations

import copy
import doctest
import pickle
import random
import subprocess
import sys
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any, Literal

import pytest

from pytest_resume_audit import timeline as module
from pytest_resume_audit.timeline import (
    Crash,
    Death,
    Downgrade,
    Drain,
    Fail,
    Finish,
    HandOut,
    Ordinals,
    Position,
    Race,
    Restart,
    Save,
    Step,
    Stop,
    Target,
    Timeline,
    TimelineError,
    Train,
)

THE_CASE = "hand_out 12; finish 0-3; train; finish 4 6 7 10; save; crash; restart; drain"


def ordinals(*numbers: int) -> Ordinals:
    return Ordinals(tuple(Target(number) for number in numbers))


# --- steps and their text -----------------------------------------------------------------------

STEPS = [
    ("hand_out", HandOut()),
    ("hand_out 12", HandOut(12)),
    ("hand_out end", HandOut("end")),
    ("finish 4", Finish(ordinals(4))),
    ("finish 4 6 7 10", Finish(ordinals(4, 6, 7, 10))),
    ("finish 0 1", Finish(ordinals(0, 1))),
    ("finish 0-2", Finish(ordinals(0, 1, 2))),
    ("finish 0-3", Finish(ordinals(0, 1, 2, 3))),
    ("finish 3 2 1 0", Finish(ordinals(3, 2, 1, 0))),
    ("finish 9 0-2 5 6 11-14", Finish(ordinals(9, 0, 1, 2, 5, 6, 11, 12, 13, 14))),
    ("finish 5:0", Finish(Ordinals((Target(5, 0),)))),
    ("finish 5:1 5:0", Finish(Ordinals((Target(5, 1), Target(5, 0))))),
    (
        "finish 3 4 5:0 6-8",
        Finish(Ordinals((Target(3), Target(4), Target(5, 0), Target(6), Target(7), Target(8)))),
    ),
    ("finish oldest 2", Finish(Position("oldest", 2))),
    ("finish newest 1", Finish(Position("newest", 1))),
    ("finish every 2", Finish(Position("every", 2))),
    ("finish oldest hand_out", Finish(Position("oldest", "hand_out"))),
    ("finish newest hand_out", Finish(Position("newest", "hand_out"))),
    ("finish all", Finish(Position("all"))),
    ("fail 5", Fail(ordinals(5))),
    ("fail 5:1", Fail(Ordinals((Target(5, 1),)))),
    ("fail newest 1", Fail(Position("newest", 1))),
    ("train", Train()),
    ("train 3", Train(3)),
    ("save", Save()),
    (
        "save racing (finish 8-11; hand_out 16) at 2",
        Save(Race((Finish(ordinals(8, 9, 10, 11)), HandOut(16)), at=2)),
    ),
    ("save racing (fail 5) at 1", Save(Race((Fail(ordinals(5)),), at=1))),
    ("drain", Drain()),
]


@pytest.mark.parametrize(("text", "step"), STEPS)
def test_a_step_is_read_and_printed(text: str, step: Step) -> None:
    assert Timeline.parse(text).steps[0] == step
    assert step.text == text


ENDS = [
    ("save; crash; restart", Crash(), Restart()),
    ("save; stop; restart", Stop(), Restart()),
    ("save; crash in save at 2; restart", Crash(Death(2)), Restart()),
    ("save; crash; restart no_buffer", Crash(), Restart(buffer=False)),
    ("save; crash; restart from 0", Crash(), Restart(0)),
    ("save; crash; restart from 0 no_buffer", Crash(), Restart(0, buffer=False)),
    ("save; crash; restart afresh", Crash(), Restart("afresh")),
    (
        "save; crash; restart with batch_size 8 prompts 20",
        Crash(),
        Restart(changes=(("batch_size", 8), ("prompts", 20))),
    ),
    (
        "save; crash; restart from 0 no_buffer with data_set 1",
        Crash(),
        Restart(0, buffer=False, changes=(("data_set", 1),)),
    ),
    (
        "save; crash in save; restart afresh with group_size 2",
        Crash(Death()),
        Restart("afresh", changes=(("group_size", 2),)),
    ),
    ("save; crash in save at 2 torn half; restart", Crash(Death(2, "half")), Restart()),
    ("save; crash in save torn each; restart", Crash(Death(torn="each")), Restart()),
]


@pytest.mark.parametrize(("text", "end", "restart"), ENDS)
def test_the_end_of_a_life_and_the_next_are_read_and_printed(
    text: str, end: Step, restart: Step
) -> None:
    script = Timeline([Save(), end, restart])
    assert Timeline.parse(text) == script
    assert script.text == f"{text}; drain"


def test_a_downgrade_is_read_and_printed() -> None:
    script = Timeline([Save(), Downgrade(), Crash(), Restart()])
    assert Timeline.parse("save; downgrade; crash; restart") == script
    assert script.text == "save; downgrade; crash; restart; drain"


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("finish 0-1", "finish 0 1"),
        ("finish 4-4", "finish 4"),
        ("finish 0 1 2", "finish 0-2"),
        ("finish 0-2 3 4-6", "finish 0-6"),
        ("finish 007", "finish 7"),
        ("train 1", "train"),
        ("hand_out  12 ", "hand_out 12"),
        ("save racing(finish 8)at 2", "save racing (finish 8) at 2"),
        ("save racing (;finish 8;; hand_out;) at 2", "save racing (finish 8; hand_out) at 2"),
    ],
)
def test_other_spellings_are_printed_in_one_way(text: str, printed: str) -> None:
    assert Timeline.parse(text).text == f"{printed}; drain"


@pytest.mark.parametrize(
    "text",
    [
        "hand_out 4;save",
        " hand_out 4 ;  save ; ",
        ";;hand_out 4;;save;;",
        "hand_out 4\nsave",
        "hand_out 4\r\nsave\r\n",
        "\n\n\thand_out 4\n\n\tsave\n",
        "# before\nhand_out 4  # four; save\nsave# behind",
        "hand_out 4; # and then\nsave; drain # done",
    ],
)
def test_separators_and_comments(text: str) -> None:
    assert Timeline.parse(text) == Timeline([HandOut(4), Save()])


def test_a_race_may_be_written_on_several_lines() -> None:
    text = """
        save racing (
            finish 8    # while it is written
            hand_out 16
        ) at 2
    """
    assert Timeline.parse(text).text == "save racing (finish 8; hand_out 16) at 2; drain"


# --- timelines ----------------------------------------------------------------------------------


def test_the_case_that_names_the_project() -> None:
    script = Timeline(
        [
            HandOut(12),
            Finish(ordinals(0, 1, 2, 3)),
            Train(),
            Finish(ordinals(4, 6, 7, 10)),
            Save(),
            Crash(),
            Restart(),
            Drain(),
        ]
    )
    assert script == Timeline.parse(THE_CASE)
    assert script.text == str(script) == THE_CASE
    assert (script.lives, script.saves, script.legacy) == (2, 1, False)
    assert script.uninterrupted().text == ("hand_out 12; finish 0-3; train; finish 4 6 7 10; drain")


def test_a_drain_is_appended_unless_there_is_one() -> None:
    said, unsaid = Timeline([Train(), Drain()]), Timeline([Train()])
    assert said == unsaid == Timeline.parse("train") == Timeline.parse("train; drain")
    assert hash(said) == hash(unsaid)
    assert unsaid.steps == (Train(), Drain())
    assert Timeline.parse("drain; train").text == "drain; train; drain"
    assert Timeline([Drain()]).text == "drain"


def test_steps_may_come_from_any_iterable() -> None:
    assert Timeline(step for step in (HandOut(4), Train())) == Timeline([HandOut(4), Train()])


def test_different_timelines_differ() -> None:
    assert Timeline.parse("train") != Timeline.parse("train 2")
    assert Timeline.parse("finish 1 0") != Timeline.parse("finish 0 1")
    assert Timeline.parse("finish 1") != Timeline.parse("fail 1")


@pytest.mark.parametrize(
    ("text", "lives", "saves", "legacy"),
    [
        ("drain", 1, 0, False),
        ("save; save", 1, 2, False),
        ("crash; restart", 2, 0, False),
        ("save; crash in save at 1; restart; save; stop; restart", 3, 2, False),
        ("save racing (finish 1) at 1; downgrade; crash; restart", 2, 1, True),
        ("save; downgrade; save; stop; restart from 0", 2, 2, True),
    ],
)
def test_lives_saves_and_legacy(text: str, lives: int, saves: int, legacy: bool) -> None:
    script = Timeline.parse(text)
    assert (script.lives, script.saves, script.legacy) == (lives, saves, legacy)


@pytest.mark.parametrize(
    "text",
    [
        "drain; save; crash; restart; drain",
        "crash; restart",
        "crash in save at 1; restart",
        "save; save; crash; restart from 1; save; crash; restart from 2",
        "save; crash; restart from 0; crash; restart from 0",
        "save; crash; restart afresh; stop; restart from 0",
        "save; downgrade; save; downgrade; crash; restart",
    ],
)
def test_orders_that_are_allowed(text: str) -> None:
    assert Timeline.parse(text).lives == text.count("restart") + 1


@pytest.mark.parametrize(
    ("text", "uninterrupted"),
    [
        ("save", "drain"),
        ("hand_out 4; save; downgrade; stop; restart; finish 0-3", "hand_out 4; finish 0-3; drain"),
        (
            "hand_out 4; save racing (finish 2; fail 1; hand_out 8) at 1; finish 0; crash; restart",
            "hand_out 4; finish 2; fail 1; hand_out 8; finish 0; drain",
        ),
        ("drain; save; crash; restart; train", "drain; train; drain"),
        ("hand_out; crash in save at 3; restart afresh; fail all", "hand_out; fail all; drain"),
    ],
)
def test_uninterrupted(text: str, uninterrupted: str) -> None:
    assert Timeline.parse(text).uninterrupted() == Timeline.parse(uninterrupted)
    assert Timeline.parse(text).uninterrupted().text == uninterrupted


def test_steps_and_timelines_cannot_be_changed() -> None:
    step: Any = Train()
    script: Any = Timeline([step])
    with pytest.raises(FrozenInstanceError):
        step.steps = 2
    with pytest.raises(FrozenInstanceError):
        script.steps = ()
    assert not hasattr(step, "__dict__")
    assert not hasattr(script, "__dict__")


def test_a_timeline_travels_to_other_processes() -> None:
    script = Timeline.parse("save racing (finish 8-11; hand_out 16) at 2; stop; restart from 0")
    assert pickle.loads(pickle.dumps(script)) == script
    assert copy.deepcopy(script) == script
    assert eval(repr(script)) == script


# --- errors in a text ---------------------------------------------------------------------------

# The text, with the wrong word between < and >; what the message says; what the hint says.
WRONG_TEXTS = [
    # words
    ("<finnish> 3", ["`finnish`", "expected", "`hand_out`", "`drain`"], "mean `finish`?"),
    ("<SAVE>; crash", ["`SAVE`", "expected"], "mean `save`?"),
    ("hand_out 4; <trane>", ["`trane`"], "mean `train`?"),
    ("hand_out 4\nfinish 0-3\n  <xyzzy> 3\nsave", ["`xyzzy`", "expected"], ""),
    ("<)>", ["`)`", "expected"], ""),
    ("train; <(>save)", ["`(`", "expected"], ""),
    # too much
    ("train 3 <4>", ["`4` is too much", "`train 3`", "`;`", "the end"], ""),
    ("train 2 <save>", ["`save` is too much", "`train 2`"], "put `;` before `save`"),
    ("drain <3>", ["`3` is too much", "`drain`"], ""),
    ("hand_out end <4>", ["`4` is too much", "`hand_out end`"], ""),
    ("finish all <3>", ["`3` is too much", "`finish all`"], ""),
    ("finish oldest 2 <3>", ["`3` is too much", "`finish oldest 2`"], ""),
    ("save <(>finish 8) at 2", ["`(` is too much", "`save`"], ""),
    ("crash in save at 2 torn half <3>", ["`3` is too much"], ""),
    ("crash in save at 2 <tron> half", ["`tron`", "`torn`"], "mean `torn`?"),
    ("crash in save torn <whole>; restart", ["`whole`", "`empty`", "`each`"], ""),
    ("stop <now>", ["`now` is too much", "`stop`"], ""),
    ("save; crash; restart afresh <no_buffer>", ["`no_buffer` is too much"], ""),
    ("save; crash; restart no_buffer <from> 0", ["`from` is too much"], ""),
    # numbers
    ("hand_out <0>", ["place of `hand_out`", "from 1", "`end`", "`0`"], ""),
    ("hand_out <-4>", ["`-4`", "whole number", "`end`"], ""),
    ("hand_out <edn>", ["`edn`", "whole number", "`end`"], "mean `end`?"),
    ("train <0>", ["steps of `train`", "from 1", "`0`"], ""),
    ("train <1.5>", ["`1.5`", "whole number"], ""),
    ("train <٣>", ["`٣`", "whole number"], ""),
    ("train <²>", ["`²`", "whole number"], ""),
    ("train <1000000000>", ["`1000000000`", "up to 999999999"], ""),
    # finish and fail
    ("<finish>", ["`finish` needs ordinals", "`all`"], ""),
    ("<fail>; save", ["`fail` needs ordinals"], ""),
    ("finish <-1>", ["`-1`", "from 0", "`0-3`", "`5:0`", "`oldest`", "`all`"], ""),
    ("finish <4,6>", ["`4,6`", "`4 6 7`"], ""),
    ("finish <1234567890>", ["`1234567890`", "to 999999999"], ""),
    ("finish 4 <x>", ["`x`", "`0-3`"], ""),
    ("finish 4 <all>", ["`all`", "`0-3`"], ""),
    ("finish 4 <save>", ["`save`"], "put `;` before `save`"),
    ("finish <0-3:1>", ["`0-3:1`", "`5:0`"], ""),
    ("finish <5:>", ["`5:`", "`5:0`"], ""),
    ("finish 0 <3-1>", ["`3-1` goes down"], "one by one"),
    ("finish <0-999999999>", ["`0-999999999`", "more than 10000"], ""),
    ("finish 0-9000 9001-9999 <10000-10009> 10010", ["more than 10000"], ""),
    ("finish 4 6 <4>", ["ordinal 4", "twice"], ""),
    ("finish 3 4 <2-5>", ["ordinal 3", "twice"], ""),
    ("fail 5:0 <5:0>", ["ordinal 5:0", "twice"], ""),
    ("fail 5:0 <5>", ["ordinal 5", "twice"], ""),
    ("fail 5 <5:0>", ["ordinal 5:0", "twice"], ""),
    ("finish <oldst> 2", ["`oldst`", "`oldest`"], "mean `oldest`?"),
    ("finish <oldest>", ["`oldest` needs a number or `hand_out`"], ""),
    ("finish <every>", ["`every` needs a number after"], ""),
    ("finish oldest <two>", ["`two`", "whole number", "`hand_out`"], ""),
    ("finish newest <0>", ["count of `newest`", "from 1", "`hand_out`", "`0`"], ""),
    ("finish every <0>", ["count of `every`", "from 1", "`0`"], ""),
    ("finish every <hand_out>", ["count of `every`", "whole number", "`hand_out`"], ""),
    # save and crash in save
    ("save <racng> (finish 8) at 2", ["`racng`", "`racing`"], "mean `racing`?"),
    ("save <racing>", ["`racing` needs `(`"], ""),
    ("save <racing> finish 8", ["`racing` needs `(`"], ""),
    ("save racing <(>finish 8", ["`(` is never closed", "`)`"], ""),
    ("save racing <(>) at 2", ["at least one"], ""),
    ("save racing (finish 8) <at>", ["`at` needs a number"], ""),
    ("save racing (finish 8) <on> 2", ["`on`", "`at`"], ""),
    ("save racing (finish 8) <at>", ["`at` needs a number"], ""),
    ("save racing (finish 8) at <0>", ["point of a race", "from 1", "`0`"], ""),
    ("save racing (finish 8; <train>) at 2", ["`train` may not race", "`hand_out`", "`fail`"], ""),
    ("save racing (<save> racing (finish 8) at 1) at 2", ["`save` may not race"], ""),
    ("save racing (<finnish> 8) at 2", ["`finnish`", "`fail`"], "mean `finish`?"),
    ("save racing (hand_out 4 <5>) at 2", ["`5` is too much", "`)`"], ""),
    ("save racing (finish 8 <8>) at 2", ["ordinal 8", "twice"], ""),
    ("crash <on> save at 1", ["`on`", "`in`"], ""),
    ("crash <in>", ["`in` needs `save`"], ""),
    ("crash in save <at>", ["`at` needs a number"], ""),
    ("crash in save at <0>", ["file operation", "from 1", "`0`"], ""),
    # restart
    ("crash; restart <no_bufer>", ["`no_bufer`", "`from`", "`afresh`"], "mean `no_buffer`?"),
    ("crash; restart <from>", ["`from` needs", "number of a checkpoint"], ""),
    ("save; crash; restart from <first>", ["`first`", "whole number"], ""),
    ("save; crash; restart with <passes> 2", ["`passes`", "`batch_size`"], ""),
    ("save; crash; restart with batch_size <0>", ["`batch_size`", "from 1"], ""),
    ("save; crash; restart <with>", ["`with` needs"], ""),
    ("save; crash; restart from 0 <afresh>", ["`afresh`", "`no_buffer`"], ""),
    # order
    ("", ["empty", "at least one step"], "`drain`"),
    (" ;\n; # nothing", ["empty"], "`drain`"),
    ("save; <crash>", ["last life is dead", "`crash`"], "`; restart`"),
    ("save; <stop>  # the end", ["last life is dead", "`stop`"], "`; restart`"),
    ("<crash> in save at 2", ["last life is dead", "`crash in save at 2`"], "`; restart`"),
    ("crash; <hand_out> 4", ["`hand_out 4` follows `crash`", "only `restart`"], "put `restart`"),
    ("crash; <crash>; restart", ["`crash` follows `crash`"], "put `restart`"),
    ("stop; <drain>", ["`drain` follows `stop`", "only `restart`"], "put `restart`"),
    ("save; crash; <downgrade>; restart", ["`downgrade` follows `crash`"], "put `restart`"),
    ("<restart>", ["`restart`", "only `crash` or `stop`"], "put `crash` or `stop`"),
    ("save; <restart> no_buffer", ["only `crash` or `stop`"], "put `crash`"),
    ("stop; restart; <restart>", ["only `crash` or `stop`"], "put `crash`"),
    ("crash; restart from <0>", ["`restart from 0`", "more than 0 saves", "are 0"], ""),
    ("save; save; stop; restart from <2> no_buffer", ["more than 2 saves", "are 2"], ""),
    ("save; crash in save at 1; restart from <1>", ["more than 1 saves", "are 1"], ""),
    ("<downgrade>", ["`downgrade`", "only `save`"], "put `save`"),
    ("save; train; <downgrade>", ["only `save`"], "put `save`"),
    ("save; downgrade; <downgrade>", ["only `save`"], "put `save`"),
]


@pytest.mark.parametrize(("marked", "says", "hint"), WRONG_TEXTS)
def test_a_wrong_text_is_refused_with_a_pointer(marked: str, says: list[str], hint: str) -> None:
    text = marked.replace("<", "").replace(">", "")
    with pytest.raises(TimelineError) as caught:
        Timeline.parse(text)
    error = caught.value
    for words in says:
        assert words in str(error)
    assert error.text == text
    assert error.column == max(marked.find("<"), 0)
    assert (hint in error.hint) if hint else not error.hint
    assert error.hint in str(error)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "hand_out 12; train x",
            "`x` is not understood: expected a whole number up to 999999999\n"
            "    hand_out 12; train x\n"
            "                       ^",
        ),
        (
            "hand_out 4\n\tsave racng (finish 8) at 2\ntrain",
            "`racng` is not understood: expected `racing`\n"
            "     save racng (finish 8) at 2\n"
            "          ^^^^^\n"
            "did you mean `racing`?",
        ),
        (
            "drain; " * 10 + "train x y z; " + "drain; " * 10,
            "`x` is not understood: expected a whole number up to 999999999\n"
            "    ...n; drain; drain; drain; train x y z; drain; drain; drain; dra...\n"
            "                                     ^",
        ),
        ("", "the timeline is empty: it needs at least one step\ntry `drain`"),
    ],
)
def test_the_whole_message(text: str, message: str) -> None:
    with pytest.raises(TimelineError) as caught:
        Timeline.parse(text)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    "text",
    [
        "\0\x7f\x1b[31m\ud800" * 1000,
        "a" * 1_000_000,
        "train " + "9" * 1_000_000,
        "finish " + "0" * 1_000_000,
        "finish " + "0-9999 " * 100_000,
        "finish " + "0-999999999 " * 100_000,
        "drain; " * 10_000 + "what",
        "save racing (" * 100_000,
        "(" * 100_000,
        "drain " * 100_000,
        "save; crash; finish " + "7 1 " * 1000,
        "crash; finish " + " ".join(str(number) for number in range(0, 10_000, 2)),
    ],
    ids=range(12),
)
def test_a_long_or_binary_text_is_refused_shortly(text: str) -> None:
    with pytest.raises(TimelineError) as caught:
        Timeline.parse(text)
    message = str(caught.value)
    assert len(message) < 500
    assert all(line.isprintable() for line in message.split("\n"))
    assert max(map(len, message.split("\n"))) < 300


# --- errors in code -----------------------------------------------------------------------------


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError


def untyped(value: Any) -> Any:
    """Keep the type checker from refusing first what the constructors have to refuse."""
    return value


HUGE = 10**5000  # Python refuses to print it

WRONG_CODE = [
    (lambda: HandOut(untyped("x")), ["place of `hand_out`", "from 1", "`end`", "`x`"]),
    (lambda: HandOut(0), ["place of `hand_out`", "`0`"]),
    (lambda: HandOut(HUGE), ["place of `hand_out`", "to 999999999"]),
    (lambda: HandOut(-HUGE), ["place of `hand_out`", "from 1"]),
    (lambda: HandOut(untyped(4.0)), ["place of `hand_out`", "`4.0`"]),
    (lambda: Train(0), ["steps of `train`", "from 1", "`0`"]),
    (lambda: Train(True), ["steps of `train`", "`True`"]),
    (lambda: Train(untyped(None)), ["steps of `train`", "`None`"]),
    (lambda: Train(untyped(Unprintable())), ["steps of `train`", "<Unprintable>"]),
    (lambda: Train(untyped("x" * 999)), ["steps of `train`", "xxx...`"]),
    (lambda: Finish(untyped(3)), ["`finish` takes Ordinals or a Position", "`3`"]),
    (lambda: Fail(untyped("all")), ["`fail` takes Ordinals or a Position", "`all`"]),
    (lambda: Target(-1), ["an ordinal", "from 0", "`-1`"]),
    (lambda: Target(untyped("4")), ["an ordinal", "`4`"]),
    (lambda: Target(4, -1), ["a generation", "from 0", "`-1`"]),
    (lambda: Target(4, False), ["a generation", "`False`"]),
    (lambda: Ordinals(()), ["at least one Target"]),
    (lambda: Ordinals(untyped([Target(4)])), ["tuple of Target"]),
    (lambda: Ordinals((untyped(4),)), ["`4` is not a Target"]),
    (lambda: ordinals(4, 5, 4), ["ordinal 4", "twice"]),
    (lambda: ordinals(*range(10_001)), ["more than 10000"]),
    (lambda: Position(untyped("first"), 2), ["`first`", "oldest, newest, every or all"]),
    (lambda: Position(untyped(["all"])), ["not a position"]),
    (lambda: Position("all", 2), ["`all` takes no count", "`2`"]),
    (lambda: Position("oldest"), ["count of `oldest`", "`hand_out`", "`None`"]),
    (lambda: Position("newest", 0), ["count of `newest`", "from 1", "`0`"]),
    (lambda: Position("every", "hand_out"), ["count of `every`", "`hand_out`"]),
    (lambda: Race((), 1), ["at least one HandOut, Finish or Fail"]),
    (lambda: Race(untyped([HandOut()]), 1), ["tuple of HandOut, Finish or Fail"]),
    (lambda: Race((Train(2),), 1), ["`train 2` may not race"]),
    (lambda: Race((untyped("save"),), 1), ["`save` may not race"]),
    (lambda: Race((HandOut(),), 0), ["point of a race", "from 1", "`0`"]),
    (lambda: Save(untyped((HandOut(),))), ["`save` takes a Race"]),
    (lambda: Death(0), ["file operation", "from 1", "`0`"]),
    (lambda: Death(True), ["file operation", "`True`"]),
    (lambda: Death(1, torn="quarter"), ["`torn`", "`half`", "quarter"]),
    (lambda: Crash(2), ["a Death", "`2`"]),
    (lambda: Restart(changes=["batch_size", 2]), ["a tuple of pairs"]),
    (lambda: Restart(changes=(("passes", 2),)), ["no change", "`batch_size`", "`data_set`"]),
    (lambda: Restart(changes=(("prompts", 0),)), ["`prompts`", "from 1", "`0`"]),
    (
        lambda: Timeline([Save(Race((HandOut(16),))), Crash(Death()), Restart()]),
        ["`crash in save`", "every point", "only one step may"],
    ),
    (lambda: Restart(-1), ["source of `restart`", "from 0", "`latest` or `afresh`", "`-1`"]),
    (lambda: Restart(untyped("first")), ["source of `restart`", "`first`"]),
    (lambda: Restart(False), ["source of `restart`", "`False`"]),
    (lambda: Restart(buffer=untyped(1)), ["buffer of `restart`", "True or False", "`1`"]),
    (lambda: Restart("afresh", buffer=False), ["`restart afresh`", "`no_buffer`"]),
    (lambda: Timeline([]), ["empty"]),
    (lambda: Timeline(untyped("save; drain")), ["not of text", "Timeline.parse"]),
    (lambda: Timeline(untyped(Save())), ["made of steps", "`Save(race=None)`"]),
    (lambda: Timeline([Save(), untyped("drain")]), ["step 2", "`drain`", "not a step"]),
    (lambda: Timeline([Save(), Crash()]), ["last life is dead", "restart"]),
    (lambda: Timeline([Stop(), Train()]), ["`train` follows `stop`"]),
    (lambda: Timeline([Restart()]), ["only `crash` or `stop`"]),
    (lambda: Timeline([Save(), Stop(), Restart(1)]), ["`restart from 1`", "are 1"]),
    (lambda: Timeline([Train(), Downgrade()]), ["only `save`"]),
    (lambda: Timeline.parse(untyped(b"drain")), ["must be a str", "b'drain'"]),
]


@pytest.mark.parametrize(("make", "says"), WRONG_CODE)
def test_a_wrong_step_in_code_is_refused(make: Any, says: list[str]) -> None:
    with pytest.raises(TimelineError) as caught:
        make()
    for words in says:
        assert words in str(caught.value)
    assert (caught.value.text, caught.value.column) == ("", None)
    assert len(str(caught.value)) < 300


def test_an_error_is_a_value_error_and_travels_to_other_processes() -> None:
    assert issubclass(TimelineError, ValueError)
    with pytest.raises(TimelineError) as caught:
        Timeline.parse("train; finnish 3")
    error = pickle.loads(pickle.dumps(caught.value))
    assert str(error) == str(caught.value)
    assert (error.text, error.column) == ("train; finnish 3", 7)
    assert error.hint == "did you mean `finish`?"


# --- properties over many timelines -------------------------------------------------------------


def some_which(rng: random.Random) -> Ordinals | Position:
    if rng.random() < 0.3:
        return rng.choice(
            [
                Position("all"),
                Position("every", rng.randint(1, 4)),
                Position("oldest", rng.randint(1, 9)),
                Position("newest", "hand_out"),
            ]
        )
    targets: list[Target] = []
    for ordinal in rng.sample(range(12), rng.randint(1, 8)):
        if rng.random() < 0.2:
            targets += [Target(ordinal, number) for number in rng.sample(range(3), 2)]
        else:
            targets.append(Target(ordinal))
    if rng.random() < 0.5:
        targets.sort(key=lambda target: target.ordinal)  # else there are hardly any ranges
    return Ordinals(tuple(targets))


def some_racing_step(rng: random.Random) -> Step:
    until: list[int | Literal["end"] | None] = [None, "end", rng.randint(1, 99)]
    steps: list[Step] = [HandOut(rng.choice(until)), Finish(some_which(rng)), Fail(some_which(rng))]
    return rng.choice(steps)


def some_steps(rng: random.Random) -> list[Step]:
    """A valid script of one to four lives."""
    steps: list[Step] = []
    saved = 0
    for life in range(rng.randint(1, 4)):
        if life:
            ends: list[Step] = [
                Crash(),
                Crash(Death(rng.randint(1, 9), rng.choice([None, "half"]))),
                Stop(),
            ]
            steps.append(rng.choice(ends))
            sources = [Restart(), Restart(buffer=False), Restart("afresh")]
            if saved:
                sources.append(Restart(rng.randrange(saved), buffer=rng.random() < 0.5))
            steps.append(rng.choice(sources))
        for _ in range(rng.randint(0, 6)):
            kind = rng.choice(["racing", "train", "save", "drain"])
            if kind == "racing":
                steps.append(some_racing_step(rng))
            elif kind == "train":
                steps.append(Train(rng.randint(1, 3)))
            elif kind == "drain":
                steps.append(Drain())
            else:
                raced = tuple(some_racing_step(rng) for _ in range(rng.randint(0, 3)))
                steps.append(Save(Race(raced, rng.randint(1, 9)) if raced else None))
                saved += 1
                if rng.random() < 0.3:
                    steps.append(Downgrade())
    return steps or [Train()]


SEEDS = range(100)


@pytest.mark.parametrize("seed", SEEDS)
def test_text_and_timeline_are_equal_in_power(seed: int) -> None:
    steps = some_steps(random.Random(seed))
    script = Timeline(steps)
    again = Timeline.parse(script.text)
    assert again == script
    assert hash(again) == hash(script)
    assert again.text == script.text
    assert list(script.steps[: len(steps)]) == steps
    assert script.steps[-1] == Drain()
    # Line by line, with comments, it is the same script.
    assert Timeline.parse("\n".join(f"{step.text}  # {step.text}" for step in steps)) == script


@pytest.mark.parametrize("seed", SEEDS)
def test_uninterrupted_keeps_what_happens_to_prompts(seed: int) -> None:
    script = Timeline(some_steps(random.Random(seed)))
    whole = script.uninterrupted()
    happens: list[Step] = []
    for step in script.steps:
        if isinstance(step, HandOut | Finish | Fail | Train | Drain):
            happens.append(step)
        if isinstance(step, Save) and step.race:
            happens.extend(step.race.steps)
    assert list(whole.steps) == happens
    assert (whole.lives, whole.saves, whole.legacy) == (1, 0, False)
    assert whole.uninterrupted() == whole


@pytest.mark.parametrize("seed", SEEDS)
def test_a_damaged_text_is_read_or_refused_but_nothing_else(seed: int) -> None:
    rng = random.Random(seed)
    text = Timeline(some_steps(rng)).text
    for _ in range(20):
        at, end = sorted(rng.randint(0, len(text)) for _ in range(2))
        bit = rng.choice(["", " ", ";", "(", ")", "#", "\n", "-", ":", "9", "save", "at", "\0"])
        damaged = text[:at] + bit + text[min(end, at + 3) :]
        try:
            script = Timeline.parse(damaged)
        except TimelineError as error:
            assert error.text == damaged
            assert error.column is not None
            assert 0 <= error.column <= len(damaged)
            assert len(str(error)) < 500
        else:
            assert Timeline.parse(script.text) == script


# --- the module ---------------------------------------------------------------------------------


def test_the_examples_in_the_docstrings_run() -> None:
    result = doctest.testmod(module)
    assert result.attempted > 20
    assert result.failed == 0


def test_what_only_an_error_needs_is_not_imported_before() -> None:
    code = (
        "import sys\n"
        "from pytest_resume_audit.timeline import Timeline, TimelineError\n"
        "Timeline.parse('hand_out 4; finish 0-3')\n"
        "assert 'difflib' not in sys.modules\n"
    )
    root = Path(module.__file__).parents[1]
    subprocess.run([sys.executable, "-c", code], check=True, cwd=root)
