"""What a person reads of a run: its headline, and the whole text below it."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from by_hand import ByHand, new_way, old_way, the_case

from pytest_resume_audit import AuditReport, Collector, LiveCursorCollector, Setup, run
from pytest_resume_audit.reports.drawing import drawing
from pytest_resume_audit.reports.text import headline, listed, render
from pytest_resume_audit.verdict import Finding, Missed, Reason, Reference


def twice() -> ByHand:
    """The old way, which also trains 1 and 2 again."""
    run = old_way()
    run.trains("1 2")
    return run


def said(report: AuditReport, width: int = 88) -> list[str]:
    """The lines of a report below its drawing."""
    text = render(report, width=width)
    picture = drawing(report, width=width)
    return text.partition(f"{picture}\n\n")[2].splitlines()


# --- lists of ordinals --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ordinals", "words"),
    [
        ([], ""),
        ([3], "3"),
        ([5, 8, 9, 11], "5, 8, 9, 11"),
        ([0, 1, 2, 4, 5, 9, 10, 11, 12], "0-2, 4, 5, 9-12"),
        ([2, 1, 0], "0-2"),
        (range(2400), "0-2399"),
        (
            [5, *range(8, 41), *range(44, 1300, 2)],
            "5, 8-40, 44, 46, 48, 50, 52, 54, 56, 58, 60, 62, 64, 66, 68, ... (615 more)",
        ),
    ],
)
def test_ordinals_are_listed(ordinals: list[int], words: str) -> None:
    assert listed(ordinals) == words


def test_a_list_names_one_range_at_least() -> None:
    assert listed([*range(100), 200], room=1) == "0-99, ... (1 more)"
    assert listed([1, 3, 5], room=4, beyond=7) == "1, 3, ... (8 more)"
    assert listed([1, 3], beyond=7) == "1, 3, ... (7 more)"


# --- the headline -------------------------------------------------------------------------------


def test_the_headline_of_a_loss_names_what_was_lost() -> None:
    assert headline(old_way().report()) == "4 of 16 prompts skipped: 5, 8, 9, 11"


def test_the_headline_names_losses_and_repeats() -> None:
    assert headline(twice().report()) == (
        "4 of 16 prompts skipped: 5, 8, 9, 11; 2 trained more than once: 1, 2"
    )


def test_a_long_headline_is_cut() -> None:
    run = ByHand(Setup(prompts=2400))
    run.life()
    lost = {5, *range(8, 41), *range(44, 1326, 2)}
    run.trains(" ".join(str(ordinal) for ordinal in range(2400) if ordinal not in lost))
    assert headline(run.report()) == (
        "675 of 2400 prompts skipped: 5, 8-40, 44, 46, 48, 50, 52, 54, 56, 58, 60, 62, 64, 66, 68, "
        "... (628 more)"
    )


def test_what_a_finding_explains_comes_behind_its_ordinals() -> None:
    run = ByHand(Setup(prompts=4))
    run.life()
    run.trains("0-2")
    run.ready("3")
    assert headline(run.report()) == (
        "1 of 4 prompts starved: 3 (buffered at the end, and no step took it)"
    )


@pytest.mark.parametrize(
    ("played", "words"),
    [
        ({"error": ValueError("no disk\nnone at all")}, "error in life 2: ValueError: no disk"),
        ({"error": AssertionError()}, "error in life 2: AssertionError"),
        ({"refusal": ValueError("too old")}, "refused to resume: ValueError: too old"),
        ({"hang": "save does not return; in flight: 5"}, "hang in life 2: save does not return"),
        ({}, "undetermined: the run has no final weights"),
    ],
)
def test_the_headline_of_a_run_that_came_to_no_end(played: dict[str, Any], words: str) -> None:
    run = the_case()
    run.life(1, place=12)
    assert headline(run.report(counts=None, **played)) == words


def test_the_headline_of_a_finding_without_ordinals_is_its_sentence() -> None:
    run = new_way()
    run.record.start_counts = (0,) * 16
    report = run.report()
    assert report.verdict == "lossy"
    assert headline(report) == ("weights not restored: those of life 2 are not those of save 1")


def test_a_silent_restart_has_a_headline() -> None:
    run = the_case()
    run.history.save(1).weight_version = 1
    run.life()
    run.record.wanted = 1
    run.trains("0-15")
    assert headline(run.report()) == (
        "silent restart: life 2 began afresh, with weights of step 0, "
        "though save 1 with step 1 was published"
    )


def test_the_headline_of_a_lossless_run_counts() -> None:
    assert headline(new_way().report()) == "lossless: 16 of 16 prompts trained once"


def test_the_headline_of_a_lossless_run_counts_what_was_not_trained() -> None:
    class Partly(Collector):
        structural = True

    run = ByHand()
    run.life()
    run.trains("0-11")
    run.out("12 13")
    run.does("failed", "12")
    run.does("dropped", "13")
    reference = Reference(run.history.rows, frozenset(range(14)), frozenset(), frozenset())
    assert headline(run.report(reference=reference, collector=Partly)) == (
        "lossless: 12 of 16 prompts trained once, 1 failed, 1 dropped, "
        "2 missed by an uninterrupted run too"
    )


def test_the_headline_of_a_lossless_run_counts_what_was_excused() -> None:
    run = old_way()
    run.history.save(1).legacy = True
    run.record.warned = True
    assert headline(run.report(demand="legacy")) == (
        "lossless: 12 of 16 prompts trained once, 4 excused"
    )


# --- the whole text -----------------------------------------------------------------------------


def test_the_whole_text_of_the_old_way() -> None:
    expected = """
        4 of 16 prompts skipped: 5, 8, 9, 11

        ordinal                0         10
                               0123456789012345
        life 1, at save 1      TTTTbfbbffbf....
          restart from save 1              ^
        life 2, at its end     ttttT.TT..T.TTTT
        result                 -----S--SS-S----

        T trained   t trained before (restored weights)   b buffered   f in flight
        . not handed out   ^ where the loader restarts   - trained once   S SKIPPED

        5, 8, 9, 11: in flight at save 1, and life 2 restarted the loader at 12, behind it

        collector: Collector
        timeline:  hand_out 12; finish 0-3; train; finish 4 6 7 10; save; crash; restart; drain
    """
    assert render(old_way().report(), width=88) == dedent(expected).strip()


def test_reasons_come_with_totals_and_the_most_frequent_first() -> None:
    run = the_case()
    run.life(1, place=12, load_buffer=False)
    run.trains("12-15")
    run.trains("1 2")
    assert said(run.report())[:7] == [
        "reasons: 4 buffered at a save, buffer not loaded; 4 in flight at a save; 2 trained",
        "    before a save and again",
        "4, 6, 7, 10: buffered at save 1, and the buffer was not loaded: life 2 restarted the",
        "    loader at 12, behind it",
        "5, 8, 9, 11: in flight at save 1, and life 2 restarted the loader at 12, behind it",
        "1, 2: trained before save 1 and again in life 2",
        "",
    ]


def test_many_reasons_are_cut() -> None:
    report = old_way().report()
    reasons = {ordinal: Reason(f"kind {ordinal}", f"sentence {ordinal}") for ordinal in range(12)}
    reasons[12] = reasons[11]
    lines = said(replace(report, reasons=reasons))
    assert "11, 12: sentence 11" in lines
    assert "6: sentence 6" in lines
    assert "7: sentence 7" not in lines
    assert "... 4 more reasons, for 4 prompts" in lines


def test_an_excused_skip_is_said_to_be_allowed() -> None:
    run = old_way()
    run.history.save(1).legacy = True
    run.record.warned = True
    lines = said(run.report(demand="legacy", name="legacy"))
    assert lines == [
        "5, 8, 9, 11: in flight at save 1, and life 2 restarted the loader at 12, behind it",
        "    (allowed here)",
        "",
        "skipped or repeated as is allowed here: 5, 8, 9, 11",
        "",
        "collector: Collector",
        "timeline:  hand_out 12; finish 0-3; train; finish 4 6 7 10; save; crash; restart; drain"
        "  (legacy)",
        "demand:    legacy",
    ]


def test_everything_that_a_reader_has_to_know_is_said() -> None:
    run = ByHand(Setup(prompts=8))
    run.life()
    run.out("0-3")
    run.does("failed", "1")
    run.does("dropped", "2")
    run.answered("0 3")
    run.does("trained", "0")
    run.saves()
    run.does("trained", "3")
    run.ends()
    run.record.left_behind = ("thread 'pump' is in get (pump.py:7)",)
    run.life(1, place=4)
    run.does("dispatched", "3")
    run.answered("3")
    run.does("trained", "3")
    run.trains("4-7")
    report = run.report(
        may_reach=("saved past a straggler",),
        missed=(
            Missed("finish 9", "prompt 9 has not been handed out", throttled=True),
            Missed("train", "step 1 of 1 has not enough: 0 buffered", throttled=False),
        ),
        gated=False,
        rest="frames",
    )
    assert said(report) == [
        "not done: finish 9: prompt 9 has not been handed out (the collector's own way of",
        "    working)",
        "not done: train: step 1 of 1 has not enough: 0 buffered",
        "failed for good: 1",
        "dropped by the collector: 2",
        "rolled back by a restart, so to be trained again: 3",
        "answered again though an answer was saved (regenerated): 3",
        "left behind by life 1: thread 'pump' is in get (pump.py:7)",
        "the loader's gate was left open: a thread that waited at it held up everything else, so",
        "    the collector decided itself how much was handed out",
        "at rest was found out by frames: the same run may go differently next time",
        "unreached: this collector never came to: saved past a straggler",
        "",
        "collector: Collector",
        "timeline:  hand_out 12; finish 0-3; train; finish 4 6 7 10; save; crash; restart; drain",
        "setup:     Setup(prompts=8)",
    ]


def test_findings_beyond_the_headline_follow() -> None:
    report = twice().report()
    more = Finding("lossy", "answered by weights older than the restored ones", (3, 4))
    structural = Finding("lossy", "not trained by an uninterrupted run", (9,))
    lines = said(replace(report, findings=(*report.findings, more, structural)))
    assert "2 of 16 prompts answered by weights older than the restored ones: 3, 4" in lines
    assert "1 of 16 prompts not trained by an uninterrupted run: 9" in lines
    assert not any("skipped: 5" in line for line in lines)


def test_what_a_finding_lists_is_not_listed_again() -> None:
    class Clean(Collector):
        pass

    run = ByHand(Setup(prompts=4))
    run.life()
    run.trains("0-2")
    reference = Reference(run.history.rows, frozenset(range(3)), frozenset(), frozenset())
    report = run.report(reference=reference, collector=Clean, demand="clean")
    assert headline(report) == "1 of 4 prompts not trained by an uninterrupted run: 3"
    assert "not trained by an uninterrupted run either: 3" not in said(report)


def test_a_hang_tells_where_everything_stands() -> None:
    run = the_case()
    hang = (
        "save does not return (life 1, the loader at 12); in flight: 5, 8, 9, 11; "
        "buffered: 4, 6, 7, 10; thread 'pool_0' is in _worker (thread.py:81); "
        "thread 'pool_1' is in _worker (thread.py:81); thread 'pump' stands at the loader's gate"
    )
    lines = said(run.report(counts=None, hang=hang))
    assert lines[:4] == [
        "in flight: 5, 8, 9, 11",
        "buffered: 4, 6, 7, 10",
        "thread 'pool_0' (and 1 like it) is in _worker (thread.py:81)",
        "thread 'pump' stands at the loader's gate",
    ]


def test_an_error_ends_with_its_traceback_from_the_users_code_on() -> None:
    class NoDisk(LiveCursorCollector):
        def save(self, root: Path, step: int) -> None:
            raise ValueError("no disk")

    lines = said(run(NoDisk, "hand_out 4; save; crash; restart"))
    first = lines.index("Traceback (most recent call last):")
    assert lines[first - 1] == ""
    assert re.fullmatch(r'  File ".*test_report_text\.py", line \d+, in save', lines[first + 1])
    assert lines[-1] == "ValueError: no disk"
    assert sum(line.startswith("  File ") for line in lines) == 1


def test_an_error_of_the_audits_own_making_has_no_frames() -> None:
    class Elsewhere(LiveCursorCollector):
        @classmethod
        def latest(cls, root: Path) -> Path:
            return root / "nowhere"

    lines = said(run(Elsewhere, "hand_out 4; save; crash; restart"))
    assert not any(line.startswith("  File ") for line in lines)
    assert lines[-1].startswith("LookupError: latest chose 'nowhere'")


def test_nothing_played_is_said_without_a_drawing() -> None:
    assert render(ByHand().report()).splitlines() == [
        "undetermined: nothing was played",
        "",
        "collector: Collector",
        "timeline:  hand_out 12; finish 0-3; train; finish 4 6 7 10; save; crash; restart; drain",
    ]


# --- what holds for every text ------------------------------------------------------------------


def test_a_report_as_a_string_is_its_text() -> None:
    report = old_way().report()
    assert str(report) == render(report)


def test_only_the_drawing_is_coloured_and_only_when_asked() -> None:
    report = twice().report()
    plain, coloured = render(report), render(report, color=True)
    assert "\033" not in plain
    assert re.sub(r"\033\[[\d;]*m", "", coloured) == plain
    assert "\033[1;31m22\033[0m" in coloured


@pytest.mark.parametrize("width", [60, 80, 120])
def test_lines_keep_the_width(width: int) -> None:
    for report in (old_way().report(), twice().report(), new_way(load_buffer=False).report()):
        lines = render(report, width=width).splitlines()
        assert max(len(line) for line in lines[1:] if not line.startswith("timeline:")) <= width


def test_the_text_of_a_real_run_is_that_of_the_run_by_hand() -> None:
    real = run(LiveCursorCollector, "mid-flight")
    assert headline(real) == headline(old_way().report())
    assert drawing(real) == drawing(old_way().report())
