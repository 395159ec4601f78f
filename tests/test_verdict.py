"""Verdicts: each finding from a run written down by hand, with the sentence that says why.

The runs are records and weights, and nothing is played. Unless a test says otherwise there are 16
prompts in steps of 4, and an uninterrupted run trains all of them.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from pytest_resume_audit import Collector, SelfDrivenCollector, Setup, Timeline
from pytest_resume_audit.history import Event, History, LifeRecord, SaveRecord, Standing
from pytest_resume_audit.verdict import (
    WORST_LAST,
    Asked,
    AuditReport,
    Demand,
    Missed,
    Ordinals,
    Played,
    Reference,
    judge,
)

ROWS = tuple(range(16))
ALL = "0-15"


def numbers(text: str) -> list[int]:
    """The numbers of ``"0-3 5 5"``, repeats included."""
    bounds = (word.partition("-") for word in text.split())
    return [n for first, _, last in bounds for n in range(int(first), int(last or first) + 1)]


def weights(trained: str, size: int = 16) -> list[int]:
    """Counts of weights that these entries went into, each as often as it is named."""
    counts = [0] * size
    for index in numbers(trained):
        counts[index] += 1
    return counts


def stands(place: int = 0, **where: str) -> Standing:
    """A standing; what is not named is nowhere."""
    names = [name for name in Standing.__dataclass_fields__ if name != "place"]
    assert set(where) <= set(names)
    return Standing(place=place, **{n: frozenset(numbers(where.get(n, ""))) for n in names})


def events(kind: str, which: str, number: int | None = None, generation: int = 0) -> list[Event]:
    return [Event(kind, ordinal, generation, number) for ordinal in numbers(which)]


def trains(step: int, which: str, generation: int = 0) -> list[Event]:
    return events("trained", which, step, generation)


class Run:
    """A run that is written down."""

    def __init__(self, rows: tuple[int, ...] = ROWS, size: int | None = None) -> None:
        self.history = History(rows=rows)
        self.size = len(set(rows)) if size is None else size

    def life(
        self,
        *happened: list[Event],
        origin: int | None = None,
        wanted: int | None = None,
        start: str | None = None,
        final: Standing | None = None,
        **fields: Any,
    ) -> LifeRecord:
        """A life, with the weights of its origin unless ``start`` names others."""
        counts = weights(start or "", self.size)
        if start is None and origin is not None:
            counts = list(self.history.save(origin).counts)
        fields.setdefault("start_place", 0)
        record = LifeRecord(
            number=len(self.history.lives) + 1,
            origin=origin,
            wanted=origin if wanted is None else wanted,
            events=[event for some in happened for event in some],
            start_counts=tuple(counts),
            final=stands(16) if final is None else final,
            ended="crash",
            **fields,
        )
        self.history.lives.append(record)
        return record

    def save(
        self,
        standing: Standing,
        trained: str = "",
        *,
        version: int = 0,
        position: int | None = None,
        legacy: bool = False,
    ) -> SaveRecord:
        """A checkpoint of the last life, behind all of its events unless a position is given."""
        life = self.history.lives[-1]
        save = SaveRecord(
            number=len(self.history.saves) + 1,
            life=life.number,
            position=len(life.events) if position is None else position,
            standing=standing,
            weight_version=version,
            counts=tuple(weights(trained, self.size)),
            checkpoint=f"step_{version}",
            published=True,
            legacy=legacy,
        )
        self.history.saves.append(save)
        return save

    def judged(
        self,
        trained: str | None,
        *,
        collector: type[Collector] = Collector,
        reference: Reference | None = None,
        setup: Setup | None = None,
        demand: Demand = "lossless",
        must_reach: tuple[str, ...] = (),
        may_reach: tuple[str, ...] = (),
        name: str = "",
        script: str = "save; crash; restart; drain",
        **played: Any,
    ) -> AuditReport:
        """Judge it by the weights that it ends with; None: it did not come to its end."""
        if reference is None:
            reference = expects(f"0-{len(self.history.rows) - 1}", rows=self.history.rows)
        asked = Asked(
            Timeline.parse(script),
            Setup() if setup is None else setup,
            name=name,
            demand=demand,
            must_reach=must_reach,
            may_reach=may_reach,
        )
        counts = None if trained is None else weights(trained, self.size)
        return judge(asked, reference, Played(self.history, counts, **played), collector)


def expects(
    trained: str, *, failed: str = "", dropped: str = "", rows: tuple[int, ...] = ROWS
) -> Reference:
    """What the uninterrupted run does."""
    ordinals = (frozenset(numbers(text)) for text in (trained, failed, dropped))
    return Reference(rows, *ordinals)


def findings(report: AuditReport) -> list[tuple[str, str, list[int]]]:
    return [(f.verdict, f.text, list(f.ordinals)) for f in report.findings]


def only_finding(report: AuditReport) -> str:
    """The sentence of a finding that is the only one, names no prompts, and decides."""
    (finding,) = report.findings
    assert finding.ordinals == ()
    assert report.verdict == finding.verdict
    return finding.text


def one_life(**final: str) -> Run:
    """One life without a save."""
    run = Run()
    run.life(trains(1, ALL), final=stands(16, **final))
    return run


# --- nothing to find ----------------------------------------------------------------------------


def test_everything_trained_once_is_lossless() -> None:
    report = one_life().judged(ALL)
    assert report.verdict == "lossless"
    assert report.passed
    assert report.findings == ()
    assert dict(report.reasons) == {}
    lists = [value for value in vars(report).values() if isinstance(value, Ordinals)]
    assert len(lists) == 11
    assert all(ordinals == [] and ordinals.report is report for ordinals in lists)


def test_the_report_says_what_was_judged() -> None:
    class Mine(Collector):
        pass

    missed = (Missed("train 2", "not enough", throttled=True),)
    report = one_life().judged(
        ALL, collector=Mine, demand="clean", missed=missed, gated=False, rest="slow"
    )
    assert report.collector == Mine.__qualname__
    assert report.demand == "clean"
    assert report.setup == Setup()
    assert report.timeline.text == "save; crash; restart; drain"
    assert (report.missed, report.gated, report.rest) == (missed, False, "slow")


# --- skipped: why -------------------------------------------------------------------------------

BEHIND = "life 2 restarted the loader at 12, behind it"
NOT_TAKEN_UP = "life 2 did not take it up again"

# Prompt 5 is in nobody's weights: where it stood at save 1, where life 2 began, and where it stood
# when life 2 ended.
LOST_BETWEEN = {
    "in-flight": ("in_flight", 12, "in flight at a save", f"in flight at save 1, and {BEHIND}"),
    "in-flight-not-taken-up": (
        "in_flight",
        4,
        "in flight at a save",
        f"in flight at save 1, and {NOT_TAKEN_UP}",
    ),
    # The loader's place is that of the next prompt: at 6 it is just past 5, at 5 it gives it.
    "just-behind-the-place": (
        "in_flight",
        6,
        "in flight at a save",
        "in flight at save 1, and life 2 restarted the loader at 6, behind it",
    ),
    "just-at-the-place": (
        "in_flight",
        5,
        "in flight at a save",
        f"in flight at save 1, and {NOT_TAKEN_UP}",
    ),
    "held": (
        "held",
        12,
        "finished, held by the collector at a save",
        f"finished, held by the collector, at save 1, and {BEHIND}",
    ),
    "handed-out": (
        "handed_out",
        12,
        "handed out, not dispatched at a save",
        f"handed out, not dispatched, at save 1, and {BEHIND}",
    ),
    "evicted": ("evicted", 12, "evicted at a save", f"evicted at save 1, and {BEHIND}"),
    "buffered": (
        "buffered",
        12,
        "buffered at a save, and not restored",
        f"buffered at save 1, and not in the restored buffer: {BEHIND}",
    ),
}


@pytest.mark.parametrize(
    ("where", "start", "kind", "text"), LOST_BETWEEN.values(), ids=LOST_BETWEEN
)
def test_lost_between_a_save_and_the_restart(where: str, start: int, kind: str, text: str) -> None:
    run = Run()
    run.life(trains(1, "0-4"))
    run.save(stands(12, trained="0-4", **{where: "5"}), "0-4", version=1)
    run.life(trains(2, "6-15"), origin=1, start_place=start, final=stands(16, trained="6-15"))
    report = run.judged("0-4 6-15")
    assert findings(report) == [("lossy", "skipped", [5])]
    assert report.verdict == "lossy"
    assert not report.passed
    assert report.skipped == [5]
    assert (report.reasons[5].kind, report.reasons[5].text) == (kind, text)


@pytest.mark.parametrize(
    ("start", "taken"), [(12, BEHIND), (4, NOT_TAKEN_UP)], ids=["behind", "not-taken-up"]
)
def test_buffered_and_the_buffer_was_not_loaded(start: int, taken: str) -> None:
    run = Run()
    run.life(trains(1, "0-4"))
    run.save(stands(12, trained="0-4", buffered="5"), "0-4", version=1)
    run.life(trains(2, "6-15"), origin=1, start_place=start, load_buffer=False)
    reason = run.judged("0-4 6-15").reasons[5]
    assert reason.kind == "buffered at a save, buffer not loaded"
    assert reason.text == f"buffered at save 1, and the buffer was not loaded: {taken}"


# Where prompt 5 stands when the life ends, though it was in flight at the save and came round.
LOST_IN_LIFE = {
    "handed_out": (
        "thrown away on arrival",
        "handed out again in life 2 and thrown away on arrival, though neither trained nor "
        "buffered",
    ),
    "in_flight": ("still in flight", "still in flight when life 2 ended"),
    "held": ("held by the collector", "finished in life 2, and never put in the buffer"),
    "evicted": ("evicted", "evicted from the buffer in life 2, and not dropped"),
    "trained": ("not in the weights", "trained in life 2, but the weights do not show it"),
}


@pytest.mark.parametrize("where", LOST_IN_LIFE)
def test_lost_in_the_last_life(where: str) -> None:
    run = Run()
    run.life(trains(1, "0-4"))
    run.save(stands(12, trained="0-4", in_flight="5"), "0-4", version=1)
    run.life(trains(2, "6-15"), origin=1, start_place=4, final=stands(16, **{where: "5"}))
    report = run.judged("0-4 6-15")
    assert report.skipped == [5]
    assert report.starved == []
    assert (report.reasons[5].kind, report.reasons[5].text) == LOST_IN_LIFE[where]


def test_handed_out_for_the_first_time_and_never_dispatched() -> None:
    # The loader stood at 5 at the save, so 5 does not come round again: it comes.
    run = Run()
    run.life(trains(1, "0-4"))
    run.save(stands(5, trained="0-4"), "0-4", version=1)
    run.life(trains(2, "6-15"), origin=1, start_place=5, final=stands(16, handed_out="5"))
    assert run.judged("0-4 6-15").reasons[5].text == "handed out in life 2 and never dispatched"
    alone = one_life(handed_out="5").judged("0-4 6-15")
    assert alone.reasons[5].kind == "never dispatched"
    assert alone.reasons[5].text == "handed out in life 1 and never dispatched"


def test_thrown_away_goes_by_what_was_out_even_above_the_saved_place() -> None:
    # A loader put back to 4 in life 2 had 4-11 out again before save 2 was taken at its place 8.
    run = Run()
    run.life(trains(1, "0-4"))
    run.save(stands(4, trained="0-4", buffered="7"), "0-4", version=1)
    run.life(trains(2, "7-15"), origin=1, start_place=4, final=stands(16, handed_out="5 6"))
    assert run.judged("0-4 7-15").reasons[6].kind == "thrown away on arrival"


def test_jumped_over_at_the_restart() -> None:
    run = Run()
    run.life(trains(1, "0-4"))
    run.save(stands(5, trained="0-4"), "0-4", version=1)
    run.life(trains(2, "8-15"), origin=1, start_place=8)
    report = run.judged("0-4 8-15")
    assert report.skipped == [5, 6, 7]
    assert {reason.kind for reason in report.reasons.values()} == {"jumped over"}
    assert report.reasons[7].text == (
        "not handed out at save 1, and life 2 restarted the loader at 8, behind it"
    )


def test_never_handed_out() -> None:
    run = Run()
    run.life(trains(1, "0-11"), final=stands(12, trained="0-11"))
    report = run.judged("0-11")
    assert report.skipped == [12, 13, 14, 15]
    assert report.reasons[12].kind == "never handed out"
    assert report.reasons[12].text == "never handed out: the loader ended at 12"


def test_never_handed_out_in_a_life_that_has_no_end() -> None:
    run = Run()
    run.life(trains(1, "0-11")).final = None
    assert run.judged("0-11").reasons[12].text == "never handed out: the run did not end"


def test_never_handed_out_behind_a_restart() -> None:
    """Life 1 has gone on behind the save, to 14; life 2 ends at 12."""
    run = Run()
    run.life(trains(1, "0-7"), final=stands(14, trained="0-7", in_flight="8-13"))
    run.save(stands(8, trained="0-7"), "0-7", version=1)
    final = stands(12, settled="0-7", trained="8-11")
    run.life(trains(2, "8-11"), origin=1, start_place=8, final=final)
    report = run.judged("0-11")
    assert {report.reasons[o].text for o in (12, 13, 14, 15)} == {
        "never handed out: the loader ended at 12"
    }


def test_where_the_loader_goes_on_nothing_is_jumped_over() -> None:
    run = Run()
    run.life(trains(1, "0-11"))
    run.save(stands(12, trained="0-11"), "0-11", version=1)
    run.life(origin=1, start_place=12, final=stands(12, settled="0-11"))
    assert run.judged("0-11").reasons[12].text == "never handed out: the loader ended at 12"


def owed(start: int) -> Run:
    """5 is in flight at save 1, and has not come round again at save 2, of a life from ``start``.

    Life 3 goes on behind it.
    """
    run = Run()
    run.life(trains(1, "0-4 6 7"))
    run.save(stands(8, trained="0-4 6 7", in_flight="5"), "0-4 6 7", version=1)
    run.life(origin=1, start_place=start)
    run.save(stands(start, settled="0-4 6 7", owed="5"), "0-4 6 7", version=1)
    run.life(trains(2, "8-15"), origin=2, start_place=8)
    return run


@pytest.mark.parametrize("start", [4, 5])
def test_not_come_round_again_at_the_next_save(start: int) -> None:
    reason = owed(start).judged("0-4 6-15").reasons[5]
    assert reason.kind == "not come round again at a save"
    assert reason.text == (
        "not come round again at save 2, and life 3 restarted the loader at 8, behind it"
    )


def test_what_could_not_come_round_again_was_lost_before() -> None:
    assert owed(6).judged("0-4 6-15").reasons[5].text == (
        "in flight at save 1, and life 2 restarted the loader at 6, behind it"
    )


def test_trained_before_the_save_and_not_in_the_restored_weights() -> None:
    run = Run()
    run.life(trains(1, "0-5"))
    run.save(stands(12, trained="0-5"), "0-5", version=1)
    run.life(trains(2, "6-15"), origin=1, start="0-4", start_place=6)
    report = run.judged("0-4 6-15")
    assert report.skipped == [5]
    assert report.reasons[5].kind == "weights not restored"
    assert (
        report.reasons[5].text == "trained before save 1, but the weights of life 2 do not show it"
    )
    assert [finding.text for finding in report.findings] == [
        "skipped",
        "weights not restored: those of life 2 are not those of save 1",
    ]


def test_the_first_restart_that_lost_the_weights_is_named() -> None:
    # 5 is trained before save 1; the weights that life 2 starts with have lost it, and so has
    # what it saves of them.
    run = Run()
    run.life(trains(1, "0-5"))
    run.save(stands(6, trained="0-5"), "0-5", version=1)
    run.life(origin=1, start="0-4", start_place=6)
    run.save(stands(6, settled="0-5"), "0-4", version=1)
    run.life(trains(2, "6-15"), origin=2, start_place=6)
    report = run.judged("0-4 6-15")
    assert (
        report.reasons[5].text == "trained before save 1, but the weights of life 2 do not show it"
    )


def test_a_skip_is_followed_back_to_the_restart_that_lost_it() -> None:
    # 5 is in flight at save 1, and life 2 goes on at 12. 13 is in flight at save 2, and life 3
    # goes on at 16. Both restarts have one skip each.
    run = Run()
    run.life(trains(1, "0-4 6-11"))
    run.save(stands(12, trained="0-4 6-11", in_flight="5"), "0-4 6-11", version=1)
    run.life(trains(2, "12"), origin=1, start_place=12)
    run.save(
        stands(16, settled="0-4 6-11", trained="12", in_flight="13", buffered="14 15"),
        "0-4 6-12",
        version=2,
    )
    run.life(trains(3, "14 15"), origin=2, start_place=16)
    report = run.judged("0-4 6-12 14 15")
    assert report.skipped == [5, 13]
    assert report.reasons[5].text == f"in flight at save 1, and {BEHIND}"
    assert report.reasons[13].text == (
        "in flight at save 2, and life 3 restarted the loader at 16, behind it"
    )


def test_taken_up_again_and_lost_by_the_second_restart() -> None:
    # In flight at both saves: life 2 answers it again, life 3 does not.
    run = Run()
    run.life(trains(1, "0-4"))
    run.save(stands(8, trained="0-4", in_flight="5-7"), "0-4", version=1)
    run.life(trains(2, "6 7"), origin=1, start_place=5)
    run.save(stands(8, settled="0-4", trained="6 7", in_flight="5"), "0-4 6 7", version=2)
    run.life(trains(3, "8-15"), origin=2, start_place=8)
    assert run.judged("0-4 6-15").reasons[5].text == (
        "in flight at save 2, and life 3 restarted the loader at 8, behind it"
    )


def test_a_life_that_was_rolled_back_is_no_reason() -> None:
    # Life 2 leaves 5 behind, but life 3 restarts from save 1 as well: only its own restart counts.
    run = Run()
    run.life(trains(1, "0-4"))
    run.save(stands(8, trained="0-4", in_flight="5-7"), "0-4", version=1)
    run.life(origin=1, start_place=12)
    run.life(trains(2, "6-15"), origin=1, start_place=6)
    assert run.judged("0-4 6-15").reasons[5].text == (
        "in flight at save 1, and life 3 restarted the loader at 6, behind it"
    )


def test_what_a_life_that_began_afresh_loses_has_nothing_to_do_with_saves() -> None:
    run = Run()
    run.life(trains(1, "0-4"))
    run.save(stands(8, trained="0-4", in_flight="5"), "0-4", version=1)
    run.life(trains(1, "0-4 6-15"), final=stands(16, in_flight="5"))
    assert run.judged("0-4 6-15").reasons[5].text == "still in flight when life 2 ended"


# --- duplicated ---------------------------------------------------------------------------------


def test_trained_before_a_save_and_again_after_the_restart() -> None:
    run = Run()
    run.life(trains(1, "0-7"))
    run.save(stands(8, trained="0-7"), "0-7", version=2)
    run.life(trains(3, "6-15"), origin=1, start_place=6)
    report = run.judged("0-15 6 7")
    assert findings(report) == [("lossy", "trained more than once", [6, 7])]
    assert report.duplicated == [6, 7]
    assert report.skipped == []
    assert report.reasons[7].kind == "trained before a save and again"
    assert report.reasons[7].text == "trained before save 1 and again in life 2"


def test_the_restart_that_repeated_it_is_named() -> None:
    run = Run()
    run.life(trains(1, "0-3"))
    run.save(stands(4, trained="0-3"), "0-3", version=1)
    run.life(trains(2, "4-7"), origin=1, start_place=4)
    run.save(stands(8, settled="0-3", trained="4-7"), "0-7", version=2)
    run.life(trains(3, "2 4 8-15"), origin=2, start_place=2)
    report = run.judged("0-15 2 4")
    assert report.duplicated == [2, 4]
    assert report.reasons[2].text == "trained before save 2 and again in life 3"
    assert report.reasons[4].text == "trained before save 2 and again in life 3"


def test_trained_before_a_save_that_died_over_another_and_again() -> None:
    # The restart is from the place of save 1, with the weights of save 2.
    run = Run()
    run.life(trains(1, "0-3"), trains(2, "4-7"))
    run.save(stands(4, trained="0-3"), "0-3", version=1, position=4)
    dead = run.save(stands(8, trained="0-7"), "0-7", version=2)
    dead.died_at, dead.overwrote = "rename", "step_1"
    again = trains(3, "4-7"), trains(4, "8-11"), trains(5, "9 12-15")
    run.life(*again, origin=1, start="0-7", start_place=4)
    report = run.judged("0-15 4-7 9")
    assert report.duplicated == [4, 5, 6, 7, 9]
    assert report.reasons[4].kind == "trained before a save and again"
    assert report.reasons[4].text == (
        "trained before save 2, which died while it wrote over save 1, and again in life 2"
    )
    assert report.reasons[9].text == "trained in life 2 in steps 4 and 5"


def test_trained_twice_in_one_life() -> None:
    run = Run()
    run.life(trains(1, ALL), trains(3, "5"))
    report = run.judged("0-15 5")
    assert report.duplicated == [5]
    assert report.reasons[5].kind == "trained twice in one life"
    assert report.reasons[5].text == "trained in life 1 in steps 1 and 3"


def test_trained_twice_in_one_step() -> None:
    run = Run()
    run.life(trains(1, "0-3"), trains(2, "4 5 5 6"), trains(3, "7-15"))
    reason = run.judged("0-15 5").reasons[5]
    assert reason.kind == "trained twice in one life"
    assert reason.text == "trained in life 1 2 times in step 2"


def test_only_the_weights_show_it() -> None:
    run = one_life()
    report = run.judged("0-15 5 5")
    assert report.duplicated == [5]
    assert report.reasons[5].kind == "only the weights show it"
    assert report.reasons[5].text == "the weights count it more often than it was seen trained"


def test_the_generations_of_one_training_are_not_two_trainings() -> None:
    # Group 5 is entries 10 and 11; the weights count 10 twice, but nobody trained it twice.
    run = Run(size=32)
    run.life(trains(1, ALL), trains(2, ALL, generation=1))
    report = run.judged("0-31 10", setup=Setup(group_size=2))
    assert report.duplicated == [5]
    assert report.partial == []
    assert report.reasons[5].kind == "only the weights show it"


def test_what_was_rolled_back_is_no_duplicate() -> None:
    run = Run()
    run.life(trains(1, "0-3"), trains(2, "4-7"))
    run.save(stands(8, trained="0-3", in_flight="4-7"), "0-3", version=1, position=4)
    run.life(trains(2, "4-15"), origin=1, start_place=4)
    report = run.judged(ALL)
    assert report.verdict == "lossless"
    assert report.rolled_back == [4, 5, 6, 7]


# --- other losses -------------------------------------------------------------------------------


def test_trained_though_an_uninterrupted_run_does_not() -> None:
    report = one_life().judged(ALL, reference=expects("0-11"))
    assert findings(report) == [
        ("lossy", "trained, though an uninterrupted run does not", [12, 13, 14, 15])
    ]
    assert report.unexpected == [12, 13, 14, 15]
    assert report.structural == [12, 13, 14, 15]


def test_a_row_that_was_never_in_the_stream() -> None:
    # Rows 0-11 make the stream (drop_last, say), and the weights count row 13.
    run = Run(rows=tuple(range(12)), size=16)
    run.life(trains(1, "0-11"), final=stands(12))
    report = run.judged("0-11 13")
    assert only_finding(report) == "the weights count rows that were never handed out: 13"
    assert report.verdict == "lossy"


def test_part_of_a_group_is_trained() -> None:
    # Groups of 2: prompt 5 is entries 10 and 11, and only 10 is trained.
    run = Run(size=32)
    run.life(trains(1, ALL))
    report = run.judged("0-10 12-31", setup=Setup(group_size=2))
    assert findings(report) == [("lossy", "trained in part: some generations of the group", [5])]
    assert report.partial == [5]
    assert report.skipped == []


def test_starved_is_not_skipped() -> None:
    run = one_life(buffered="14 15")
    report = run.judged("0-13")
    assert findings(report) == [
        ("lossy", "starved: buffered at the end, and no step took it", [14, 15])
    ]
    assert report.starved == [14, 15]
    assert report.skipped == []
    assert report.reasons[14].kind == "starved"
    assert report.reasons[14].text == "buffered when life 1 ended, and no step took it"


def test_what_the_uninterrupted_run_leaves_in_the_buffer_too_is_structural() -> None:
    report = one_life(buffered="14 15").judged("0-13", reference=expects("0-13"))
    assert report.verdict == "lossless"
    assert report.starved == []
    assert report.structural == [14, 15]


# --- failed and dropped -------------------------------------------------------------------------


def test_failed_and_dropped_prompts_are_not_skipped() -> None:
    run = Run()
    run.life(trains(1, "0-4 7-15"), events("failed", "5"), events("dropped", "6"))
    report = run.judged("0-4 7-15", reference=expects("0-4 7-15", failed="5", dropped="6"))
    assert report.verdict == "lossless"
    assert report.failed == [5]
    assert report.dropped == [6]


def test_trained_comes_before_failed_and_failed_before_dropped() -> None:
    run = Run()
    run.life(trains(1, "0-4 6-15"), events("failed", "4 5"), events("dropped", "4 5 6"))
    report = run.judged("0-4 6-15")
    assert report.verdict == "lossless"
    assert report.failed == [5]
    assert report.dropped == []


def test_a_failure_that_is_answered_in_a_later_try_is_none() -> None:
    run = Run()
    run.life(trains(1, "0-4 6-15"), events("failed", "5"), events("finished", "5"))
    report = run.judged("0-4 6-15")
    assert report.failed == []
    assert report.skipped == [5]


def test_one_failed_generation_fails_its_group() -> None:
    run = Run(size=32)
    run.life(
        events("finished", "5", generation=0),
        events("failed", "5", generation=1),
        final=stands(16, failed="5"),
    )
    report = run.judged("0-9 12-31", setup=Setup(group_size=2))
    assert report.failed == [5]
    assert report.verdict == "lossless"


def test_a_failure_before_the_save_is_answered_after_the_restart_and_lost() -> None:
    run = Run()
    run.life(trains(1, "0-4"), events("failed", "5"))
    run.save(stands(8, trained="0-4", failed="5"), "0-4", version=1)
    run.life(
        events("finished", "5"), trains(2, "6-15"), origin=1, start_place=5,
        final=stands(16, held="5"),
    )  # fmt: skip
    report = run.judged("0-4 6-15")
    assert report.failed == []
    assert report.reasons[5].kind == "held by the collector"


def test_a_new_try_that_was_in_flight_at_the_save_is_lost_and_has_not_failed() -> None:
    run = Run()
    again = events("dispatched", "5") + events("failed", "5") + events("dispatched", "5")
    run.life(trains(1, "0-4"), again)
    run.save(stands(8, trained="0-4", in_flight="5"), "0-4", version=1)
    run.life(trains(2, "6-15"), origin=1, start_place=8)
    report = run.judged("0-4 6-15")
    assert (report.skipped, report.failed) == ([5], [])


def test_what_was_in_flight_at_the_save_may_fail_after_it() -> None:
    run = Run()
    run.life(trains(1, "0-4"), events("dispatched", "5"))
    run.save(stands(8, trained="0-4", in_flight="5"), "0-4", version=1)
    run.life(
        [Event("restored", number=1)], events("dispatched", "5"), events("failed", "5"),
        trains(2, "6-15"), origin=1, start_place=5,
    )  # fmt: skip
    report = run.judged("0-4 6-15")
    assert (report.verdict, report.failed) == ("lossless", [5])


def tried_again(*second: Event, legacy: bool = False) -> Run:
    """5 fails before the save; without a restart it is tried again behind it."""
    run = Run()
    run.life(trains(1, "0-3"), events("dispatched", "5"), events("failed", "5"))
    run.save(stands(8, trained="0-3", failed="5"), "0-3", version=1, legacy=legacy)
    run.life(list(second), trains(2, "4 6-15"), origin=1, start_place=8, warned=legacy)
    return run


RETRIES = replace(expects(ALL), retried=frozenset({5}))


def test_a_failure_that_is_tried_again_without_a_restart_is_no_way_out() -> None:
    report = tried_again().judged("0-4 6-15", reference=RETRIES)
    assert (report.skipped, report.failed) == ([5], [])
    assert report.reasons[5].text == (
        "failed at save 1, and life 2 restarted the loader at 8, behind it"
    )


def test_a_try_that_fails_after_the_restart_is_a_failure() -> None:
    report = tried_again(*events("failed", "5")).judged("0-4 6-15", reference=RETRIES)
    assert (report.verdict, report.failed) == ("lossless", [5])


def test_what_is_not_tried_again_without_a_restart_either_has_failed() -> None:
    reference = replace(expects(ALL), retried=frozenset({4}))
    report = tried_again().judged("0-4 6-15", reference=reference)
    assert (report.verdict, report.failed) == ("lossless", [5])


def test_what_was_to_be_tried_again_was_out_at_a_legacy_save() -> None:
    run = tried_again(legacy=True)
    report = run.judged("0-4 6-15", reference=RETRIES, demand="legacy")
    assert (report.verdict, report.excused) == ("lossless", [5])


@pytest.mark.parametrize("kind", ["failed", "dropped"])
def test_what_was_given_up_counts_in_the_lineage_only(kind: str) -> None:
    # It is given up behind the save, in a stretch that the restart rolls back.
    run = Run()
    run.life(trains(1, "0-4"), events(kind, "5"))
    run.save(stands(8, trained="0-4", in_flight="5-7"), "0-4", version=1, position=5)
    run.life(trains(2, "6-15"), origin=1, start_place=8)
    report = run.judged("0-4 6-15")
    assert report.skipped == [5]
    assert report.failed == report.dropped == []
    # And before the save it counts.
    run.history.saves[0].position = 6
    report = run.judged("0-4 6-15")
    assert report.verdict == "lossless"
    assert getattr(report, kind) == [5]


def test_what_fails_in_the_uninterrupted_run_may_be_trained_after_a_restart() -> None:
    # Its failure was rolled back, and the next try goes well.
    report = one_life().judged(ALL, reference=expects("0-4 6-15", failed="5"))
    assert report.verdict == "lossless"
    assert report.unexpected == []


BY_A_RESTART = "dropped after a restart, though no older than what an uninterrupted run trains"


def drops(*again: Event, at: int = 3) -> Run:
    """4-7, asked for after step 1 and saved after step 2, are dropped after step ``at``."""
    run = Run()
    run.life(events("dispatched", "4-7", 1), trains(1, "0-3"))
    run.save(stands(8, trained="0-3", buffered="4-7"), "0-3", version=2)
    dropped = [Event("dropped", ordinal, None, at, "too old") for ordinal in numbers("4-7")]
    run.life(list(again), dropped, trains(at + 1, "8-15"), origin=1, start_place=8)
    return run


def test_an_answer_of_an_age_that_is_trained_else_is_not_dropped_for_its_age() -> None:
    report = drops().judged("0-3 8-15", reference=replace(expects(ALL), oldest=2))
    assert findings(report) == [("lossy", BY_A_RESTART, [4, 5, 6, 7])]
    assert report.dropped == [4, 5, 6, 7]


@pytest.mark.parametrize("oldest", [0, 1])
def test_a_restart_may_make_an_answer_too_old(oldest: int) -> None:
    report = drops().judged("0-3 8-15", reference=replace(expects(ALL), oldest=oldest))
    assert (report.verdict, report.dropped) == ("lossless", [4, 5, 6, 7])


def test_of_a_collector_that_drops_for_other_reasons_none_is_told_by_age() -> None:
    assert drops().judged("0-3 8-15", reference=expects(ALL)).verdict == "lossless"


def test_what_is_asked_for_again_is_dropped_for_reasons_of_its_own() -> None:
    run = drops(*events("dispatched", "4 6", 2))
    report = run.judged("0-3 8-15", reference=replace(expects(ALL), oldest=2))
    assert findings(report) == [("lossy", BY_A_RESTART, [5, 7])]


def test_what_an_uninterrupted_run_gives_up_too_is_not_dropped_by_the_restart() -> None:
    reference = replace(expects("0-4 8-15", dropped="5 6", failed="7"), oldest=2)
    report = drops().judged("0-3 8-15", reference=reference)
    assert findings(report) == [("lossy", BY_A_RESTART, [4])]


def test_what_is_trained_or_fails_after_all_is_not_dropped_by_the_restart() -> None:
    run = drops()
    run.history.lives[1].events.extend(events("failed", "5"))
    report = run.judged("0-4 8-15", reference=replace(expects(ALL), oldest=2))
    assert findings(report) == [("lossy", BY_A_RESTART, [6, 7])]


def test_with_other_sizes_other_answers_are_dropped() -> None:
    report = drops().judged(
        "0-3 8-15",
        reference=replace(expects(ALL), oldest=2),
        script="save; crash; restart with batch_size 8; drain",
    )
    assert (report.verdict, report.dropped) == ("lossless", [4, 5, 6, 7])


def drops_in_a_save(**save: Any) -> Run:
    """4-7 are in flight, and dropped in the save behind step 1."""
    run = Run()
    run.life(
        events("dispatched", "0-7", 0),
        trains(1, "0-3"),
        [Event("dropped", ordinal, None, 1, "a save") for ordinal in numbers("4-7")],
    )
    record = run.save(stands(8, trained="0-3", in_flight="4-7"), "0-3", version=1, position=12)
    record.end = 16
    for field, value in save.items():
        setattr(record, field, value)
    run.life(events("dispatched", "8-15", 1), trains(2, "8-15"), origin=1, start_place=8)
    return run


def test_a_save_is_no_reason_to_drop_an_answer() -> None:
    report = drops_in_a_save().judged("0-3 8-15", reference=replace(expects(ALL), oldest=1))
    in_a_save = "dropped in a save, though no older than what an uninterrupted run trains"
    assert findings(report) == [("lossy", in_a_save, [4, 5, 6, 7])]
    assert report.dropped == [4, 5, 6, 7]


def test_what_happens_between_the_points_of_a_save_is_not_for_the_save() -> None:
    report = drops_in_a_save(raced=("train",)).judged(
        "0-3 8-15", reference=replace(expects(ALL), oldest=1)
    )
    assert (report.verdict, report.dropped) == ("lossless", [4, 5, 6, 7])


def drops_unasked(asked: str) -> Run:
    """4-7 are handed out, and some prompts are asked for, before the save; 6 and 7 are dropped."""
    run = Run()
    run.life(events("handed_out", "0-7"), events("dispatched", asked, 0), trains(1, "0-3"))
    run.save(stands(8, trained="0-3", handed_out="6 7", in_flight="4 5"), "0-3", version=1)
    dropped = [Event("dropped", ordinal, None, 1, "no room") for ordinal in (6, 7)]
    run.life(dropped, trains(2, "4 5 8-15"), origin=1, start_place=8)
    return run


UNASKED = "dropped without having been asked for, though an uninterrupted run trains them"


def test_there_is_no_reason_to_drop_what_was_never_asked_for() -> None:
    assert findings(drops_unasked("0-5").judged("0-5 8-15")) == [("lossy", UNASKED, [6, 7])]
    assert findings(drops_unasked("0-6").judged("0-5 8-15")) == [("lossy", UNASKED, [7])]


def test_unless_an_uninterrupted_run_drops_it_too() -> None:
    report = drops_unasked("0-5").judged("0-5 8-15", reference=expects("0-5 7-15", dropped="6"))
    assert findings(report) == [("lossy", UNASKED, [7])]


def test_where_the_engine_is_not_watched_nothing_is_known_to_be_asked_for() -> None:
    assert drops_unasked("").judged("0-5 8-15").verdict == "lossless"


def test_with_other_sizes_others_may_be_dropped_unasked() -> None:
    report = drops_unasked("0-5").judged(
        "0-5 8-15", script="save; crash; restart with capacity 4; drain"
    )
    assert (report.verdict, report.dropped) == ("lossless", [6, 7])


# --- structural ---------------------------------------------------------------------------------


class LeavesSome(Collector):
    structural = True


@pytest.mark.parametrize(
    ("demand", "collector", "verdict"),
    [
        ("clean", Collector, "lossy"),
        ("clean", LeavesSome, "lossless"),
        ("lossless", Collector, "lossless"),
        ("legacy", Collector, "undetermined"),  # for want of a legacy checkpoint
        ("lossless or refused", Collector, "lossless"),
    ],
)
def test_structural_is_a_fault_only_where_it_is_asked_for(
    demand: Demand, collector: type[Collector], verdict: str
) -> None:
    run = one_life()
    report = run.judged("0-11", reference=expects("0-11"), demand=demand, collector=collector)
    assert report.structural == [12, 13, 14, 15]
    assert report.verdict == verdict
    if verdict == "lossy":
        assert findings(report) == [
            ("lossy", "not trained by an uninterrupted run", [12, 13, 14, 15])
        ]


def test_of_an_uninterrupted_run_without_an_end_nothing_is_structural() -> None:
    run = Run(rows=(), size=16)
    run.life()
    nothing = Reference((), frozenset(), frozenset(), frozenset())
    report = run.judged(None, reference=nothing, demand="clean", error=OSError("disk full"))
    assert findings(report) == [("error", "OSError: disk full", [])]
    assert report.structural == []


def test_more_passes_than_the_setup_has_are_a_fault_where_it_is_asked_for() -> None:
    run = Run(rows=(*ROWS, *ROWS))
    run.life(trains(1, "0-31"))
    report = run.judged("0-15 0-15", demand="clean")
    beyond = list(range(16, 32))
    assert findings(report) == [("lossy", "trained beyond the passes of the setup", beyond)]
    assert run.judged("0-15 0-15").verdict == "lossless"
    twice = Setup(passes=2)
    assert run.judged("0-15 0-15", demand="clean", setup=twice).verdict == "lossless"


def test_what_comes_behind_the_passes_of_the_setup_is_structural_where_it_has_an_end() -> None:
    run = Run(rows=tuple(range(18)), size=18)
    run.life(trains(1, ALL))
    report = run.judged(ALL, reference=expects(ALL, rows=tuple(range(18))))
    assert report.structural == [16, 17]


def test_a_stream_that_ends_early_is_structural() -> None:
    run = Run(rows=tuple(range(12)), size=16)
    run.life(trains(1, "0-11"))
    report = run.judged("0-11", demand="clean")
    assert report.structural == [12, 13, 14, 15]
    assert report.verdict == "lossy"


def test_what_drop_last_leaves_out_is_no_part_of_the_stream() -> None:
    run = Run(rows=tuple(range(16)), size=18)
    run.life(trains(1, ALL))
    report = run.judged(ALL, demand="clean", setup=Setup(prompts=18, drop_last=True))
    assert report.structural == []
    assert report.verdict == "lossless"


# --- several passes -----------------------------------------------------------------------------

TWICE = (0, 1, 2, 3, 0, 1, 2, 3)
"""Two passes over four rows: row 1 has the places 1 and 5."""

TWO_PASSES = Setup(prompts=4, passes=2)


def two_passes() -> Run:
    return Run(rows=TWICE)


def test_every_place_of_a_row_is_trained_once() -> None:
    run = two_passes()
    run.life(trains(1, "0-7"))
    report = run.judged("0-3 0-3", setup=TWO_PASSES)
    assert report.verdict == "lossless"
    assert report.structural == []


def test_the_last_place_of_a_row_is_the_one_that_is_missing() -> None:
    run = two_passes()
    run.life(trains(1, "0-4 6 7"), final=stands(8, in_flight="5"))
    report = run.judged("0-3 0 2 3", setup=TWO_PASSES)
    assert report.skipped == [5]
    assert report.reasons[5].text == "still in flight when life 1 ended"


def test_a_surplus_is_that_of_the_last_place() -> None:
    run = two_passes()
    run.life(trains(1, "0-7"), trains(2, "5"))
    report = run.judged("0-3 0-3 1", setup=TWO_PASSES)
    assert report.duplicated == [5]
    assert report.reasons[5].text == "trained in life 1 in steps 1 and 2"


def test_what_was_lost_in_an_earlier_pass_has_the_reason() -> None:
    # Row 1 is lost at 1, in flight at the save, and trained at 5.
    run = two_passes()
    run.life(trains(1, "0 2 3"))
    run.save(stands(4, trained="0 2 3", in_flight="1"), "0 2 3", version=1)
    run.life(trains(2, "4-7"), origin=1, start_place=4)
    report = run.judged("0 2 3 0-3", setup=TWO_PASSES)
    assert report.skipped == [5]
    assert report.reasons[5].kind == "in flight at a save"
    assert report.reasons[5].text == (
        "its row was lost at 1, in another pass: in flight at save 1, and life 2 restarted the "
        "loader at 4, behind it"
    )


def test_what_was_repeated_in_an_earlier_pass_has_the_reason() -> None:
    run = two_passes()
    run.life(trains(1, "0-3"))
    run.save(stands(4, trained="0-3"), "0-3", version=1)
    run.life(trains(2, "1 4-7"), origin=1, start_place=0)
    report = run.judged("0-3 0-3 1", setup=TWO_PASSES)
    assert report.duplicated == [5]
    assert report.reasons[5].kind == "trained before a save and again"
    assert report.reasons[5].text == (
        "its row was repeated at 1, in another pass: trained before save 1 and again in life 2"
    )


def test_both_places_of_a_row_are_lost() -> None:
    run = two_passes()
    run.life(trains(1, "0 2 3"))
    run.save(stands(4, trained="0 2 3", in_flight="1"), "0 2 3", version=1)
    run.life(trains(2, "4 6 7"), origin=1, start_place=4, final=stands(8, in_flight="5"))
    report = run.judged("0 2 3 0 2 3", setup=TWO_PASSES)
    assert report.skipped == [1, 5]
    assert report.reasons[1].kind == "in flight at a save"
    assert report.reasons[5].kind == "still in flight"


def test_two_of_three_places_are_lost_each_with_its_own_reason() -> None:
    # Row 1 has 1, 3 and 5; it is trained once, at 5. The weights miss the places 3 and 5 then.
    run = Run(rows=(0, 1, 0, 1, 0, 1))
    run.life(trains(1, "0 2 4 5"), final=stands(6, in_flight="1", held="3"))
    report = run.judged("0 0 0 1", setup=Setup(prompts=2, passes=3))
    assert report.skipped == [3, 5]
    assert report.reasons[3].text == "finished in life 1, and never put in the buffer"
    assert report.reasons[5].text == (
        "its row was lost at 1, in another pass: still in flight when life 1 ended"
    )


def test_starved_in_an_earlier_pass() -> None:
    run = two_passes()
    run.life(trains(1, "0 2-7"), final=stands(8, buffered="1"))
    report = run.judged("0-3 0 2 3", setup=TWO_PASSES)
    assert report.starved == [5]
    assert report.skipped == []


@pytest.mark.parametrize("kind", ["failed", "dropped"])
def test_the_place_that_was_given_up_is_the_one_that_is_not_trained(kind: str) -> None:
    # Row 1 failed at 1: its one training is the one of 5.
    run = two_passes()
    run.life(events(kind, "1"), trains(1, "0 2-7"))
    report = run.judged("0-3 0 2 3", setup=TWO_PASSES)
    assert report.verdict == "lossless"
    assert getattr(report, kind) == [1]


def test_a_given_up_place_is_not_where_its_row_was_lost() -> None:
    # Row 1 has 1, 3 and 5: 1 failed, 3 was lost, 5 was trained. The weights count it once.
    run = Run(rows=(0, 1, 0, 1, 0, 1))
    run.life(
        events("failed", "1"), trains(1, "0 2 4 5"), final=stands(6, failed="1", in_flight="3")
    )
    report = run.judged("0 0 0 1", setup=Setup(prompts=2, passes=3))
    assert report.skipped == [5]
    assert report.failed == [1]
    assert report.reasons[5].text == (
        "its row was lost at 3, in another pass: still in flight when life 1 ended"
    )


def test_a_place_that_is_not_expected_takes_no_training_from_one_that_is() -> None:
    # The uninterrupted run leaves place 1 out, and trains row 1 at 5; so does this one.
    run = two_passes()
    run.life(trains(1, "0 2-7"))
    reference = expects("0 2-7", rows=TWICE)
    report = run.judged("0-3 0 2 3", setup=TWO_PASSES, reference=reference)
    assert report.verdict == "lossless"
    assert report.unexpected == report.skipped == []
    assert report.structural == [1]
    # Trained twice, it is the place that was not expected that is one too many.
    report = run.judged("0-3 0-3", setup=TWO_PASSES, reference=reference)
    assert report.unexpected == [1]
    assert report.duplicated == []


def test_passes_in_an_order_of_their_own() -> None:
    # Row 0 has the places 0 and 7, row 3 has 3 and 4: the missing place of row 0 is 7.
    run = Run(rows=(0, 1, 2, 3, 3, 2, 1, 0))
    run.life(trains(1, "0-6"), final=stands(8, held="7"))
    report = run.judged("0-3 1-3", setup=TWO_PASSES)
    assert report.skipped == [7]


def test_what_another_pass_has_trained_does_not_hide_what_was_jumped_over() -> None:
    # Row 0 is trained at 0, and its place 4 lies before the restart.
    run = two_passes()
    run.life(trains(1, "0-3"))
    run.save(stands(4, trained="0-3"), "0-3", version=1)
    run.life(trains(2, "5-7"), origin=1, start_place=5)
    report = run.judged("0-3 1-3", setup=TWO_PASSES)
    assert report.skipped == [4]
    assert report.reasons[4].kind == "jumped over"


# --- endless streams ----------------------------------------------------------------------------


class Endless(Collector):
    stream = "endless"


def endless() -> Run:
    """Six prompts in batches of four: the loader hands out 0-7, where 6 and 7 are rows 0 and 1."""
    return Run(rows=(0, 1, 2, 3, 4, 5, 0, 1))


SIX = Setup(prompts=6)


@pytest.mark.parametrize("trained", ["0-5", "0-5 0", "0-5 0 1"])
def test_what_comes_behind_the_expected_prompts_of_an_endless_stream_is_free(trained: str) -> None:
    run = endless()
    ordinals = {"0-5": "0-5", "0-5 0": "0-6", "0-5 0 1": "0-7"}[trained]
    run.life(trains(1, ordinals), final=stands(8))
    for reference in (expects("0-5", rows=run.history.rows), expects("0-7", rows=run.history.rows)):
        for demand in ("lossless", "clean"):
            report = run.judged(
                trained, collector=Endless, setup=SIX, reference=reference, demand=demand
            )
            assert report.findings == ()
            assert report.structural == []


def test_a_repeat_in_an_endless_stream_does_not_pass_for_the_next_prompt_of_its_row() -> None:
    # Row 0 is trained twice at place 0, and never at 6.
    run = endless()
    run.life(trains(1, "0-5"), trains(2, "0"), final=stands(8))
    report = run.judged("0-5 0", collector=Endless, setup=SIX)
    assert report.duplicated == [0]
    assert report.reasons[0].text == "trained in life 1 in steps 1 and 2"


def test_a_finite_stream_has_an_end() -> None:
    run = endless()
    run.life(trains(1, "0-6"), final=stands(8))
    reference = expects("0-5", rows=run.history.rows)
    assert run.judged("0-5 0", setup=SIX, reference=reference).unexpected == [6]


# --- order --------------------------------------------------------------------------------------


class InOrder(Collector):
    order = "stream"


def test_trained_out_of_the_order_of_the_stream() -> None:
    run = Run()
    run.life(
        events("dispatched", ALL),
        trains(1, "0-3"),
        trains(2, "8-11"),
        trains(3, "4-7"),
        trains(4, "12-15"),
    )
    report = run.judged(ALL, collector=InOrder)
    assert findings(report) == [("lossy", "trained out of the order of the stream", [4, 5, 6, 7])]
    assert run.judged(ALL).verdict == "lossless"


def test_order_goes_on_over_a_restart_and_forgets_what_was_rolled_back() -> None:
    run = Run()
    run.life(trains(1, "0-3"), trains(2, "4-7"))
    run.save(stands(8, trained="0-3", in_flight="4-7"), "0-3", version=1, position=4)
    run.life(trains(2, "4-15"), origin=1, start_place=4)
    assert run.judged(ALL, collector=InOrder).verdict == "lossless"
    # With 8 trained before the save, 4-7 come too late after it.
    run.history.lives[0].events[4:] = trains(2, "8")
    run.history.saves[0].position = 5
    run.history.lives[1].events = trains(3, "4-7 9-15")
    report = run.judged(ALL, collector=InOrder)
    assert [list(f.ordinals) for f in report.findings if "order" in f.text] == [[4, 5, 6, 7]]


def test_a_repeat_is_no_disorder_too() -> None:
    run = Run()
    run.life(trains(1, "0-3"), trains(2, "4-7"), trains(3, "3 8-10"), trains(4, "11-15"))
    report = run.judged("0-15 3", collector=InOrder)
    assert findings(report) == [("lossy", "trained more than once", [3])]
    # Where it ends before its time, whether it has come instead of another pass is not known.
    failed = run.judged(None, collector=InOrder, error=RuntimeError("no more"))
    assert [finding.verdict for finding in failed.findings] == ["error"]


def test_the_generations_of_a_group_are_no_disorder() -> None:
    run = Run(size=32)
    both = [event for o in ROWS for g in (0, 1) for event in trains(1 + o // 4, str(o), g)]
    run.life(both)
    report = run.judged("0-31", collector=InOrder, setup=Setup(group_size=2))
    assert report.verdict == "lossless"


# --- restarts -----------------------------------------------------------------------------------


def published() -> Run:
    """Life 1 publishes save 1 at step 1 and save 2 at step 2."""
    run = Run()
    run.life(trains(1, "0-3"), trains(2, "4-7"))
    run.save(stands(4, trained="0-3"), "0-3", version=1, position=4)
    run.save(stands(8, trained="0-7"), "0-7", version=2)
    return run


def test_a_silent_restart_from_an_older_checkpoint() -> None:
    run = published()
    run.life(trains(2, "4-15"), origin=1, wanted=2, start_place=4)
    report = run.judged(ALL)
    assert only_finding(report) == (
        "silent restart: life 2 began from save 1, with weights of step 1, though save 2 with "
        "step 2 was published"
    )
    assert report.verdict == "lossy"


def test_a_silent_restart_from_nothing() -> None:
    run = published()
    run.life(trains(1, ALL), wanted=2)
    assert only_finding(run.judged(ALL)) == (
        "silent restart: life 2 began afresh, with weights of step 0, though save 2 with step 2 "
        "was published"
    )


@pytest.mark.parametrize(
    ("origin", "wanted"),
    [
        (2, 2),
        (1, 1),  # the script says `restart from 0`
        (None, None),  # the script says `restart afresh`
        (2, 1),  # newer than asked for
        (2, None),
    ],
)
def test_no_silent_restart(origin: int | None, wanted: int | None) -> None:
    run = published()
    run.life(origin=origin).wanted = wanted
    assert not [f for f in run.judged(None).findings if "silent" in f.text]


def test_another_checkpoint_with_weights_as_new_is_no_silent_restart() -> None:
    run = published()
    run.save(stands(12, trained="0-7", in_flight="8-11"), "0-7", version=2)
    run.life(trains(3, "8-15"), origin=2, wanted=3, start_place=8)
    assert run.judged(ALL).verdict == "lossless"


def test_weights_not_restored() -> None:
    # The weights of the new life are empty: everything is there once, and 0-3 only by a repeat.
    run = Run()
    run.life(trains(1, "0-3"))
    run.save(stands(4, trained="0-3"), "0-3", version=1)
    run.life(trains(1, ALL), origin=1, start="", start_place=0)
    assert only_finding(run.judged(ALL)) == (
        "weights not restored: those of life 2 are not those of save 1"
    )


def test_an_answer_older_than_the_restored_weights() -> None:
    run = Run()
    run.life(trains(1, "0-3"))
    run.save(stands(8, trained="0-3", in_flight="4-7"), "0-3", version=1)
    run.life(
        events("dispatched", "4-6", 1), events("dispatched", "7", 0), trains(2, "4-15"),
        origin=1, start_place=4,
    )  # fmt: skip
    report = run.judged(ALL)
    assert findings(report) == [("lossy", "answered by weights older than the restored ones", [7])]


def test_a_restored_answer_may_be_old() -> None:
    # 4-7 were answered by weights 0, and come with the buffer: life 2 dispatches none of them.
    run = Run()
    run.life(events("dispatched", "0-7", 0), trains(1, "0-3"))
    run.save(stands(8, trained="0-3", buffered="4-7"), "0-3", version=1)
    run.life(
        events("buffered", "4-7"), trains(2, "4-7"), events("dispatched", "8-15", 1),
        trains(3, "8-15"), origin=1, start_place=8,
    )  # fmt: skip
    assert run.judged(ALL).verdict == "lossless"


def test_an_old_answer_that_is_not_trained_does_no_harm() -> None:
    run = Run()
    run.life(trains(1, "0-3"))
    run.save(stands(4, trained="0-3"), "0-3", version=1)
    run.life(
        events("dispatched", "4", 0), events("failed", "4"), events("dispatched", "4", 1),
        trains(2, "4-15"), origin=1, start_place=4,
    )  # fmt: skip
    assert run.judged(ALL).verdict == "lossless"


@pytest.mark.parametrize(
    ("limit", "most", "over"), [(4, 4, False), (4, 5, True), (None, 16, False)]
)
def test_over_the_limit_in_flight(limit: int | None, most: int, over: bool) -> None:
    run = Run()
    run.life(trains(1, ALL), most_in_flight=most)
    report = run.judged(ALL, setup=Setup(max_in_flight=limit))
    assert (report.verdict == "lossy") is over
    if over:
        assert only_finding(report) == "life 1 had 5 prompts in flight, over its limit of 4"


def test_regenerated_is_counted_and_no_fault() -> None:
    run = Run()
    run.life(trains(1, "0-3"))
    run.save(stands(8, trained="0-3", buffered="4 5", in_flight="6 7"), "0-3", version=1)
    run.life(
        events("dispatched", "4-15", 1), trains(2, "4-15"),
        origin=1, start_place=4, load_buffer=False,
    )  # fmt: skip
    report = run.judged(ALL)
    assert report.verdict == "lossless"
    assert report.regenerated == [4, 5]


def test_rolled_back_over_several_lives() -> None:
    # Life 1 trains 4-7 behind save 1, life 2 trains 4-11 from there and all of it is lost too:
    # life 3 restarts from save 1. Nothing of life 3 is rolled back.
    run = Run()
    run.life(trains(1, "0-3"), trains(2, "4-7"))
    run.save(stands(4, trained="0-3"), "0-3", version=1, position=4)
    run.life(trains(2, "4-7"), trains(3, "8-11"), origin=1, start_place=4)
    run.life(trains(2, "4-15"), origin=1, start_place=4)
    report = run.judged(ALL)
    assert report.rolled_back == numbers("4-11")
    assert report.verdict == "lossless"


# --- legacy -------------------------------------------------------------------------------------


def legacy(*, warned: bool = True) -> Run:
    """Save 1 is a legacy one, with 5 in flight and 6 buffered; life 2 goes on at 8."""
    run = Run()
    run.life(trains(1, "0-4"))
    run.save(stands(8, trained="0-4", in_flight="5 7", buffered="6"), "0-4", version=1, legacy=True)
    run.life(trains(2, "6 8-15"), origin=1, start_place=8, warned=warned)
    return run


def test_skips_of_what_was_out_at_a_legacy_save_are_excused() -> None:
    report = legacy().judged("0-4 6 8-15", demand="legacy")
    assert report.verdict == "lossless"
    assert report.passed
    assert report.skipped == report.excused == [5, 7]
    assert report.reasons[5].kind == "in flight at a save"


def test_they_are_excused_by_the_demand_only() -> None:
    report = legacy().judged("0-4 6 8-15")
    assert findings(report) == [("lossy", "skipped", [5, 7])]
    assert report.excused == []


def test_other_skips_are_not_excused() -> None:
    report = legacy().judged("0-4 6 8 10-15", demand="legacy")
    assert findings(report) == [("lossy", "skipped", [9])]
    assert report.skipped == [5, 7, 9]
    assert report.excused == [5, 7]


def test_a_legacy_restart_without_a_warning() -> None:
    class Odd(Collector):
        legacy_warning = "old (format|way)"

    report = legacy(warned=False).judged("0-4 6 8-15", demand="legacy", collector=Odd)
    assert only_finding(report) == (
        "life 2 descends from a legacy checkpoint and gave no warning that matches "
        "'old (format|way)'"
    )
    assert report.verdict == "lossy"


@pytest.mark.parametrize("delivery", ["exactly_once", "at_least_once"])
def test_duplicates_are_never_excused_in_a_legacy_run(delivery: Any) -> None:
    collector = type("Declares", (Collector,), {"delivery": delivery})
    run = Run()
    run.life(trains(1, "0 2-4"))
    run.save(stands(8, trained="0 2-4", in_flight="1"), "0 2-4", version=1, legacy=True)
    run.life(trains(2, "1 2 5-15"), origin=1, start_place=1, warned=True)
    report = run.judged("0-15 2", demand="legacy", collector=collector)
    assert findings(report) == [("lossy", "trained more than once", [2])]
    assert report.excused == []


def descendants(*, warned: bool = True, first_is_legacy: bool = True) -> Run:
    """Three lives; 5 is out at save 1 and 9 at save 2, and both are left behind."""
    run = Run()
    run.life(trains(1, "0-4 6 7"))
    run.save(
        stands(8, trained="0-4 6 7", in_flight="5"), "0-4 6 7", version=1, legacy=first_is_legacy
    )
    run.life(trains(2, "8 10"), origin=1, start_place=8, warned=True)
    run.save(
        stands(12, settled="0-4 6 7", trained="8 10", in_flight="9 11"),
        "0-4 6-8 10",
        version=2,
        legacy=not first_is_legacy,
    )
    run.life(trains(3, "11-15"), origin=2, start_place=11, warned=warned)
    return run


LEFT_BEHIND = "0-4 6-8 10-15"


def test_what_descends_from_a_legacy_checkpoint_keeps_the_old_behaviour() -> None:
    report = descendants().judged(LEFT_BEHIND, demand="legacy")
    assert report.verdict == "lossless"
    assert report.excused == [5, 9]


def test_what_descends_from_a_legacy_checkpoint_warns() -> None:
    report = descendants(warned=False).judged(LEFT_BEHIND, demand="legacy")
    assert only_finding(report).startswith("life 3 descends from a legacy checkpoint")


def test_a_loss_before_the_legacy_checkpoint_is_not_excused() -> None:
    # Save 1 has its ordinals: leaving 5 behind there has nothing to do with save 2.
    report = descendants(first_is_legacy=False).judged(LEFT_BEHIND, demand="legacy")
    assert findings(report) == [("lossy", "skipped", [5])]
    assert report.excused == [9]


def test_no_warning_is_asked_for_before_the_legacy_checkpoint() -> None:
    run = descendants(first_is_legacy=False)
    run.history.lives[1].warned = False
    assert not [f for f in run.judged(LEFT_BEHIND, demand="legacy").findings if "warning" in f.text]


def test_a_life_outside_of_the_lineage_need_not_warn() -> None:
    # Life 2 restarts from the legacy save 1, life 3 begins afresh.
    run = legacy(warned=False)
    run.life(trains(1, ALL))
    assert run.judged(ALL).verdict == "lossless"


def test_the_lost_place_of_a_row_is_the_excused_one() -> None:
    # Row 1 is in flight at the legacy save, at place 1; what the weights miss is its last place.
    run = two_passes()
    run.life(trains(1, "0 2 3"))
    run.save(stands(4, trained="0 2 3", in_flight="1"), "0 2 3", version=1, legacy=True)
    run.life(trains(2, "4-7"), origin=1, start_place=4, warned=True)
    report = run.judged("0 2 3 0-3", demand="legacy", setup=TWO_PASSES)
    assert report.verdict == "lossless"
    assert report.excused == [5]


def test_without_a_legacy_checkpoint_nothing_is_shown_about_one() -> None:
    run = legacy()
    run.history.saves[0].legacy = False
    report = run.judged("0-4 6 8-15", demand="legacy")
    assert only_finding(report) == "not reached: resumed from a legacy checkpoint"
    assert report.verdict == "undetermined"
    assert not report.passed
    named = run.judged(
        "0-4 6 8-15", demand="legacy", must_reach=("resumed from a legacy checkpoint",)
    )
    assert only_finding(named) == only_finding(report)
    # A collector that makes none has a reason.
    why = Missed("downgrade", "the collector has no downgrade", throttled=True)
    report = run.judged("0-4 6 8-15", demand="legacy", missed=(why,))
    assert report.verdict == "lossless"
    assert report.unreached == (
        "not reached: resumed from a legacy checkpoint (downgrade: the collector has no downgrade)"
    )


# --- at least once ------------------------------------------------------------------------------


class AtLeastOnce(Collector):
    delivery = "at_least_once"


def repeats(again: str) -> Run:
    """At save 1 all of 0-7 but 2 is trained; life 2 goes on at 2, and repeats some."""
    run = Run()
    run.life(trains(1, "0 1 3-7"))
    run.save(stands(8, trained="0 1 3-7", in_flight="2"), "0 1 3-7", version=1)
    run.life(trains(2, f"2 {again} 8-15"), origin=1, start_place=2)
    return run


def test_a_repeat_above_the_lowest_unsettled_is_allowed() -> None:
    report = repeats("3-7").judged("0-15 3-7", collector=AtLeastOnce)
    assert report.verdict == "lossless"
    assert report.duplicated == report.excused == [3, 4, 5, 6, 7]
    assert report.reasons[3].kind == "trained before a save and again"
    assert repeats("3-7").judged("0-15 3-7").verdict == "lossy"


def test_a_repeat_below_the_lowest_unsettled_is_not() -> None:
    report = repeats("1 3").judged("0-15 1 3", collector=AtLeastOnce)
    assert findings(report) == [("lossy", "trained more than once", [1])]
    assert report.excused == [3]


def test_what_is_to_be_tried_again_is_not_settled_either() -> None:
    run = repeats("1 3")
    run.history.saves[0].standing = stands(8, trained="1 3-7", failed="0", in_flight="2")
    reference = replace(expects(ALL), retried=frozenset({0}))
    report = run.judged("0-15 1 3", collector=AtLeastOnce, reference=reference)
    assert (report.verdict, report.excused) == ("lossless", [1, 3])
    assert run.judged("0-15 1 3", collector=AtLeastOnce).excused == [3]


def test_one_repeat_a_restart_is_allowed() -> None:
    report = repeats("3 3").judged("0-15 3 3", collector=AtLeastOnce)
    assert report.duplicated == [3]
    assert report.excused == []
    assert report.verdict == "lossy"


def test_what_was_not_trained_at_the_save_may_not_be_repeated() -> None:
    # 8 is new to life 2, and 2 was in flight.
    report = repeats("2 8").judged("0-15 2 8", collector=AtLeastOnce)
    assert findings(report) == [("lossy", "trained more than once", [2, 8])]


def test_with_nothing_out_no_repeat_is_allowed() -> None:
    run = Run()
    run.life(trains(1, "0-7"))
    run.save(stands(8, trained="0-7"), "0-7", version=2)
    run.life(trains(3, "7-15"), origin=1, start_place=7)
    assert run.judged("0-15 7", collector=AtLeastOnce).verdict == "lossy"


def test_a_second_restart_allows_a_second_repeat() -> None:
    # 2 is out at both saves, so 3 may be trained again after each.
    run = Run()
    run.life(trains(1, "0 1 3"))
    run.save(stands(4, trained="0 1 3", in_flight="2"), "0 1 3", version=1)
    run.life(trains(2, "3"), origin=1, start_place=2)
    run.save(stands(4, settled="0 1", trained="3", in_flight="2"), "0 1 3 3", version=2)
    run.life(trains(3, "2-15"), origin=2, start_place=2)
    report = run.judged("0-15 3 3", collector=AtLeastOnce)
    assert report.verdict == "lossless"
    assert report.excused == [3]
    assert run.judged("0-15 3 3 3", collector=AtLeastOnce).verdict == "lossy"


def test_the_repeated_place_of_a_row_is_the_allowed_one() -> None:
    # Row 2 is repeated at 2, as is allowed there; the weights give the surplus to its last place.
    run = two_passes()
    run.life(trains(1, "0 2 3"))
    run.save(stands(4, trained="0 2 3", in_flight="1"), "0 2 3", version=1)
    run.life(trains(2, "1-7"), origin=1, start_place=1)
    report = run.judged("0-3 0-3 2 3", setup=TWO_PASSES, collector=AtLeastOnce)
    assert report.verdict == "lossless"
    assert report.duplicated == report.excused == [6, 7]
    assert run.judged("0-3 0-3 0", setup=TWO_PASSES, collector=AtLeastOnce).excused == []


def test_skips_are_never_allowed() -> None:
    report = repeats("3").judged("0 1 3-15 3", collector=AtLeastOnce)
    assert findings(report) == [("lossy", "skipped", [2])]


# --- runs that came to no end -------------------------------------------------------------------


def cut_short() -> Run:
    """The restart from save 1 raised: life 2 never ran."""
    run = published()
    life = run.life(origin=2, final=stands(0))
    life.start_counts = ()
    return run


def test_an_error() -> None:
    error = ValueError("no such file")
    report = cut_short().judged(None, error=error)
    assert only_finding(report) == "ValueError: no such file"
    assert report.verdict == "error"
    assert report.error is error
    assert report.skipped == report.duplicated == report.unexpected == []
    assert dict(report.reasons) == {}


def test_a_hang() -> None:
    report = cut_short().judged(None, hang="save does not return")
    assert only_finding(report) == "save does not return"
    assert report.verdict == "hang"


def test_a_refusal() -> None:
    refusal = RuntimeError("other data")
    report = cut_short().judged(None, refusal=refusal)
    assert only_finding(report) == "refused to resume: RuntimeError: other data"
    assert report.verdict == "refused"
    assert report.error is refusal
    assert not report.passed
    allowed = cut_short().judged(None, refusal=refusal, demand="lossless or refused")
    assert allowed.verdict == "refused"
    assert allowed.passed


def test_no_final_weights_and_nobody_says_why() -> None:
    report = cut_short().judged(None)
    assert only_finding(report) == "the run has no final weights"
    assert report.verdict == "undetermined"


@pytest.mark.parametrize("how", ["error", "refusal"])
def test_a_latest_that_raises_is_no_silent_restart(how: str) -> None:
    # It was asked for save 2 and has chosen nothing: there is no origin, and no life that ran.
    run = cut_short()
    run.history.lives[1].origin = None
    run.history.lives[1].wanted = 2
    report = run.judged(None, **{how: ValueError("torn")})
    assert len(report.findings) == 1
    assert report.verdict == {"error": "error", "refusal": "refused"}[how]


def test_a_legacy_checkpoint_that_is_refused_needs_no_warning() -> None:
    run = cut_short()
    run.history.saves[1].legacy = True
    report = run.judged(None, refusal=ValueError("an old format"), demand="legacy")
    assert [finding.verdict for finding in report.findings] == ["refused"]


def test_a_hang_in_a_legacy_run_is_no_missing_warning() -> None:
    # What a life has said is known at its end only, and this one has none.
    run = legacy(warned=False)
    run.history.lives[-1].final = None
    report = run.judged(None, hang="a call does not return", demand="legacy")
    assert [finding.verdict for finding in report.findings] == ["hang"]


def test_a_silent_restart_is_told_of_a_run_that_hangs_later() -> None:
    run = published()
    run.life(origin=1, wanted=2, start_place=4)
    report = run.judged(None, hang="it stands")
    assert [f.verdict for f in report.findings] == ["lossy", "hang"]
    assert report.verdict == "lossy"


def test_nothing_was_played() -> None:
    report = Run().judged(None)
    assert report.verdict == "undetermined"
    assert "nothing was played" in [finding.text for finding in report.findings]


def test_a_history_without_lives_is_judged_without_a_crash() -> None:
    report = Run().judged("0-14")
    assert report.skipped == [15]
    assert {f.verdict for f in report.findings} == {"lossy", "undetermined"}
    empty = judge(
        Asked(Timeline.parse("drain"), Setup()), expects("0-3"), Played(History(), []), Collector
    )
    assert empty.skipped == [0, 1, 2, 3]
    assert empty.reasons[0].text == "never handed out: nothing was played"
    assert not empty.passed


def test_an_uninterrupted_run_that_trains_nothing_shows_nothing() -> None:
    run = Run()
    run.life(final=stands(16))
    report = run.judged("", reference=expects("", dropped=ALL))
    assert "the uninterrupted run trains nothing, so nothing is shown" in [
        finding.text for finding in report.findings if finding.verdict == "undetermined"
    ]
    assert not report.passed


def test_weights_of_another_size_count_for_what_they_have() -> None:
    run = Run(size=12)
    run.life(trains(1, ALL))
    assert run.judged("0-11").skipped == [12, 13, 14, 15]


# --- worst wins ---------------------------------------------------------------------------------


def test_the_worst_wins_and_all_are_listed_worst_first() -> None:
    run = Run()
    run.life(trains(1, "0-4 6-15"), final=stands(16, in_flight="5"))
    report = run.judged(
        "0-4 6-15 7",
        error=ValueError("a"),
        refusal=ValueError("b"),
        hang="c",
        must_reach=("resumed",),
    )
    assert [f.verdict for f in report.findings] == [
        "lossy",
        "lossy",
        "error",
        "hang",
        "refused",
        "undetermined",
    ]
    assert [f.text for f in report.findings[:2]] == ["skipped", "trained more than once"]
    assert report.verdict == "lossy"


@pytest.mark.parametrize(
    ("played", "verdict"),
    [
        ({"error": ValueError(), "hang": "x", "refusal": ValueError()}, "error"),
        ({"hang": "x", "refusal": ValueError()}, "hang"),
        ({"refusal": ValueError()}, "refused"),
        ({}, "undetermined"),
    ],
    ids=["error", "hang", "refused", "undetermined"],
)
def test_each_verdict_is_worse_than_the_next(played: dict[str, Any], verdict: str) -> None:
    assert cut_short().judged(None, **played).verdict == verdict


DEMANDS: tuple[Demand, ...] = ("lossless", "clean", "legacy", "lossless or refused")


@pytest.mark.parametrize("demand", DEMANDS)
@pytest.mark.parametrize("verdict", WORST_LAST)
def test_what_passes(demand: Demand, verdict: Any) -> None:
    report = replace(one_life().judged(ALL), verdict=verdict, demand=demand)
    passes = verdict == "lossless" or (verdict, demand) == ("refused", "lossless or refused")
    assert report.passed is passes


# --- reached ------------------------------------------------------------------------------------

STATE = "saved with prompts in flight"


def unmet(**played: Any) -> AuditReport:
    """A run that was to save with prompts in flight, and saved with nothing out."""
    run = Run()
    run.life(trains(1, ALL))
    standing = played.pop("standing", stands(16, trained=ALL))
    run.save(standing, ALL, version=4).kept_out = played.pop("kept_out", ())
    return run.judged(ALL, must_reach=("saved", STATE), **played)


def test_a_state_that_was_to_be_reached_is_missed() -> None:
    report = unmet()
    assert only_finding(report) == f"not reached: {STATE}"
    assert report.verdict == "undetermined"
    assert not report.passed
    assert report.unreached is None


def test_the_steps_that_could_not_be_done_are_told() -> None:
    missed = (Missed("finish 9", "it was not handed out", throttled=False),)
    assert only_finding(unmet(missed=missed)) == (
        f"not reached: {STATE} (finish 9: it was not handed out)"
    )


@pytest.mark.parametrize(
    ("played", "why"),
    [
        (
            {"missed": (Missed("hand_out 12", "it does not ask for more", throttled=True),)},
            " (hand_out 12: it does not ask for more)",
        ),
        ({"gated": False}, ", with the loader's gate open"),
        (
            {"standing": stands(16, trained="0-14", held="15")},
            ", with finished prompts held by the collector",
        ),
        (
            {"kept_out": ("finish 4", "hand_out 8")},
            ": race not taken: finish 4, hand_out 8 could not be done before the save's end",
        ),
        ({"collector": SelfDrivenCollector}, ", as it trains and saves by itself"),
    ],
    ids=["throttled", "gate-open", "held", "kept-out", "self-driven"],
)
def test_what_its_own_way_of_working_prevents_is_unreached(
    played: dict[str, Any], why: str
) -> None:
    report = unmet(**played)
    assert report.unreached == f"not reached: {STATE}{why}"
    assert report.verdict == "lossless"


LEFT_OUT = (Missed("train 2", "there was not enough", throttled=False),)


def test_a_script_of_ones_own_has_to_be_done_as_it_stands() -> None:
    report = one_life().judged(ALL, missed=LEFT_OUT)
    assert only_finding(report) == (
        "not reached: every step of the script (train 2: there was not enough)"
    )
    assert report.verdict == "undetermined"


def test_a_loss_says_more_than_a_step_that_was_left_out() -> None:
    report = one_life().judged("0-14", missed=LEFT_OUT)
    assert findings(report) == [("lossy", "skipped", [15])]


@pytest.mark.parametrize(
    "asked", [{"must_reach": ("began",)}, {"may_reach": ("began",)}, {"name": "clean"}]
)
def test_a_timeline_is_judged_by_the_states_that_it_has_to_reach(asked: dict[str, Any]) -> None:
    report = one_life().judged(ALL, missed=LEFT_OUT, **asked)
    assert "every step" not in f"{report.findings} {report.unreached}"


def test_unreached_is_no_excuse_for_a_loss() -> None:
    run = one_life()
    missed = (Missed("hand_out 12", "it does not ask for more", throttled=True),)
    report = run.judged("0-14", must_reach=(STATE,), missed=missed)
    assert report.verdict == "lossy"
    assert report.unreached is not None


def test_a_state_that_depends_on_the_collector() -> None:
    report = one_life().judged(ALL, may_reach=("resumed", STATE))
    assert report.verdict == "lossless"
    assert report.unreached == f"this collector never came to: resumed; {STATE}"


def test_all_is_reached() -> None:
    run = Run()
    run.life(trains(1, "0-3"))
    run.save(stands(8, trained="0-3", in_flight="4-7"), "0-3", version=1)
    run.life(trains(2, "4-15"), origin=1, start_place=4)
    report = run.judged(ALL, must_reach=("saved", "resumed"), may_reach=(STATE,))
    assert report.verdict == "lossless"
    assert report.unreached is None
    assert {"saved", "resumed", STATE} <= report.states


def test_a_run_that_came_to_no_end_need_not_have_reached_anything() -> None:
    report = cut_short().judged(None, error=ValueError("x"), must_reach=(STATE,))
    assert [finding.verdict for finding in report.findings] == ["error"]
    assert report.unreached is None


# --- the case that names the project ------------------------------------------------------------


def the_case(start: int, life: list[Event], **fields: Any) -> Run:
    """0-3 are trained, 4 6 7 10 buffered, 5 8 9 11 in flight, the loader is at 12."""
    run = Run()
    run.life(trains(1, "0-3"))
    run.save(stands(12, trained="0-3", buffered="4 6 7 10", in_flight="5 8 9 11"), "0-3", version=1)
    run.life(life, origin=1, start_place=start, **fields)
    return run


def test_the_old_way() -> None:
    report = the_case(12, trains(2, "4 6 7 10 12-15")).judged("0-4 6 7 10 12-15")
    assert report.skipped == [5, 8, 9, 11]
    assert {reason.text for reason in report.reasons.values()} == {
        f"in flight at save 1, and {BEHIND}"
    }


def test_the_old_way_without_the_buffer() -> None:
    report = the_case(12, trains(2, "12-15"), load_buffer=False).judged("0-3 12-15")
    assert report.skipped == numbers("4-11")
    kinds = [report.reasons[ordinal].kind for ordinal in (4, 5)]
    assert kinds == ["buffered at a save, buffer not loaded", "in flight at a save"]


def test_the_new_way() -> None:
    report = the_case(4, trains(2, "4-15")).judged(ALL)
    assert report.verdict == "lossless"


def test_the_ordinals_of_a_report_are_sorted() -> None:
    assert Ordinals({9, 1, 5}) == [1, 5, 9]
    assert Ordinals(()).report is None


def test_there_are_enough_weights_in_these_tests() -> None:
    # The helper, not the code: a repeat is counted, and a range includes its end.
    assert weights("0-2 2", 4) == [1, 1, 2, 0]
    assert math.prod(weights(ALL)) == 1


# --- groups, data sets and saves that died --------------------------------------------------------


def test_a_place_of_an_endless_stream_that_was_lost_is_known_by_its_generations() -> None:
    # Two passes of three prompts in groups of two: row 1 is lost in the first, and trained in
    # the second.
    run = Run(rows=(0, 1, 2, 0, 1, 2), size=6)
    both = [trains(step, which, g) for step, which in ((1, "0 2"), (2, "3-5")) for g in (0, 1)]
    run.life(*both, final=stands(6))
    setup = Setup(prompts=3, passes=2, group_size=2)
    trained = "0 1 4 5 0-5"
    assert run.judged(trained, collector=Endless, setup=setup).skipped == [1]
    # Without a later place to be taken for it, the last one is missing.
    assert run.judged(trained, setup=setup).skipped == [4]
    # Weights that do not count what was seen are believed, not what was seen.
    assert run.judged("0-5 0 1 2 4 5", collector=Endless, setup=setup).partial == [4]


def test_the_highest_prompt_that_was_out_is_thrown_away_and_not_new() -> None:
    run = Run()
    run.life(trains(1, "0-3"))
    run.save(stands(4, trained="0-3", in_flight="9"), "0-3")
    run.life(trains(2, "4-8"), origin=1, start_place=4, final=stands(16, handed_out="9 10"))
    report = run.judged("0-8 11-15")
    assert report.reasons[9].kind == "thrown away on arrival"
    assert report.reasons[10].kind == "never dispatched"


def test_weights_that_a_restart_lost_are_told_by_row_and_generation() -> None:
    run = Run(rows=(0, 1, 2), size=6)
    run.life(trains(1, "1"), trains(1, "1", 1))
    run.save(stands(2, trained="1", in_flight="0"), "2 3")
    run.life(trains(1, "2"), trains(1, "2", 1), origin=1, start="", start_place=2)
    report = run.judged("4 5", setup=Setup(prompts=3, group_size=2))
    assert {ordinal: reason.kind for ordinal, reason in report.reasons.items()} == {
        0: "in flight at a save",
        1: "weights not restored",
    }


OTHER_DATA = "save; crash; restart with data_set 1; drain"


def test_what_was_trained_in_another_data_set_does_not_count() -> None:
    run = Run()
    run.life(trains(1, "0-3"))
    run.save(stands(4, trained="0-3"), "0-3")
    run.life(trains(2, "0-15"), origin=1, data_set=1)
    run.save(stands(16, trained="0-15"), "0-15 0-3")
    run.life(origin=2, data_set=1)
    report = run.judged("0-15 0-3", script=OTHER_DATA)
    assert report.duplicated == []
    assert report.skipped == []
    assert run.judged("4-15 0-3", script=OTHER_DATA).skipped == [0, 1, 2, 3]
    for life in run.history.lives:
        life.data_set = 0
    assert run.judged("0-15 0-3").duplicated == [0, 1, 2, 3], "in the same one it does"


def test_a_restart_that_goes_on_in_other_data_says_that_it_may_refuse() -> None:
    run = Run()
    run.life(trains(1, "0-3"))
    run.save(stands(4, trained="0-3"), "0-3", version=1)
    run.life(trains(2, "4-15"), origin=1, data_set=1, start_place=4)
    report = run.judged(ALL, script=OTHER_DATA)
    assert report.skipped == [0, 1, 2, 3]
    assert report.reasons[0].kind == "settled in another data set"
    assert report.reasons[0].text == (
        "settled before save 1 in another data set, and life 2 restarted the loader at 4, behind "
        "it (to refuse to resume is right too)"
    )


def test_of_a_group_that_was_smaller_once_any_answer_is_enough() -> None:
    run = Run(rows=(0, 1), size=4)
    run.life(trains(1, "0"))
    run.save(stands(1, trained="0"), "0")
    run.life(trains(2, "1"), trains(2, "1", 1), origin=1, start_place=1)
    setup = Setup(prompts=2)
    grown = run.judged("0 2 3", setup=setup, script="save; crash; restart with group_size 2")
    assert grown.partial == []
    same = run.judged("0 2 3", setup=replace(setup, group_size=2))
    assert same.partial == [0]


def test_a_checkpoint_that_a_dead_save_was_writing_over_has_the_weights_of_either() -> None:
    run = Run()
    run.life(trains(1, "0-3"), trains(2, "4-7"))
    run.save(stands(4, trained="0-3"), "0-3", position=4)
    died = run.save(stands(8, trained="0-7"), "0-7")
    died.died_at, died.overwrote, died.published = "open weights", "step_0", False
    run.life(trains(3, "8-15"), origin=1, start="0-7", start_place=8)
    assert run.judged(ALL).verdict == "lossless"
    died.overwrote = "another"
    assert "weights not restored" in only_finding(run.judged(ALL))


@pytest.mark.parametrize("torn", ["weights cut to half", ""])
def test_past_a_torn_checkpoint_an_older_one_is_right_and_none_is_not(torn: str) -> None:
    for origin, right in ((1, bool(torn)), (None, False)):
        run = Run()
        run.life(trains(1, "0-3"), trains(2, "4-7"))
        run.save(stands(4, trained="0-3"), "0-3", version=1, position=4)
        run.save(stands(8, trained="0-7"), "0-7", version=2).torn = torn
        again = "0-15" if origin is None else "4-15"
        run.life(trains(3, again), origin=origin, wanted=2)
        assert (run.judged(ALL).verdict == "lossless") is right


@pytest.mark.parametrize("torn_later", [False, True])
def test_a_checkpoint_behind_a_torn_one_is_not_passed_over_for_it(torn_later: bool) -> None:
    # Save 2 is torn, and life 2 rightly begins from save 1. Its save 3 is whole.
    run = Run()
    run.life(trains(1, "0-3"), trains(2, "4-7"))
    run.save(stands(4, trained="0-3"), "0-3", version=1, position=4)
    run.save(stands(8, trained="0-7"), "0-7", version=2).torn = "weights cut to half"
    run.life(trains(2, "4-7"), origin=1, wanted=2)
    run.save(stands(8, settled="0-3", trained="4-7"), "0-7", version=2)
    run.life(trains(2, "4-15"), origin=1, wanted=3)
    if torn_later:
        run.save(stands(16, settled="0-3", trained="4-15"), ALL, version=5).torn = "all of it"
    assert only_finding(run.judged(ALL)) == (
        "silent restart: life 3 began from save 1, with weights of step 1, though save 3 with "
        "step 2 was published"
    )


def test_a_collector_without_a_downgrade_is_known_by_the_step_that_it_missed() -> None:
    run = Run()
    run.life(trains(1, "0-15"))
    for step, lacks in (("downgrade", True), ("save", False)):
        missed = (Missed("train", "", throttled=False), Missed(step, "", throttled=True))
        assert run.judged(ALL, missed=missed).lacks_downgrade is lacks


def test_an_answer_that_is_never_asked_for_is_told_of() -> None:
    run = Run(rows=(0, 1), size=4)
    run.life(events("handed_out", "0 1"), events("dispatched", "0 1"), trains(1, "0 1"))
    setup, nothing = Setup(prompts=2, group_size=2), Reference((0, 1), *[frozenset()] * 3)
    report = run.judged("0 2", setup=setup, demand="clean", reference=nothing)
    said = [finding.text for finding in report.findings]
    text = "generation 1 was never asked for, and group_size is 2"
    assert f"not trained by an uninterrupted run: {text}" in said


def test_a_pass_that_is_never_begun_is_told_of() -> None:
    rows = (0, 1, 2, 0, 1, 2)
    run = Run(rows=rows, size=3)
    run.life(events("handed_out", "0-2"), events("dispatched", "0-2"), trains(1, "0-2"))
    setup, reference = Setup(prompts=3, passes=2), expects("0-2", rows=rows)
    report = run.judged("0-2", setup=setup, demand="clean", reference=reference)
    assert [finding.text for finding in report.findings] == [
        "not trained by an uninterrupted run: pass 2 of 2 was never begun"
    ]
    # The same in the midst of a pass.
    setup = Setup(prompts=4)
    run, reference = Run(rows=(0, 1, 2, 3)), expects("0 1", rows=(0, 1, 2, 3))
    run.life(events("handed_out", "0 1"), events("dispatched", "0 1"), trains(1, "0 1"))
    report = run.judged("0 1", setup=setup, demand="clean", reference=reference)
    assert [finding.text for finding in report.findings] == ["not trained by an uninterrupted run"]
    # Of a prompt that was asked for in whole, and trained in part.
    run, reference = Run(rows=(0,), size=2), expects("", rows=(0,))
    asked_for = events("dispatched", "0") + events("dispatched", "0", generation=1)
    run.life(events("handed_out", "0"), asked_for, events("finished", "0"))
    setup = Setup(prompts=1, group_size=2)
    report = run.judged("", setup=setup, demand="clean", reference=reference)
    assert report.findings[0].text == "not trained by an uninterrupted run"
    # And of a prompt that was handed out at its end.
    run, reference = Run(rows=(0, 1)), expects("0", rows=(0, 1))
    run.life(events("handed_out", "0 1"), events("dispatched", "0 1"), trains(1, "0"))
    report = run.judged("0", setup=Setup(prompts=2), demand="clean", reference=reference)
    assert [finding.text for finding in report.findings] == ["not trained by an uninterrupted run"]


# --- what can't be told ---------------------------------------------------------------------------

SHUFFLED = (0, 1, 2, 3, 3, 2, 1, 0)
"""Rows of two passes: row 1 is at 1 and at 6."""

IN_DOUBT = (
    ", as far as can be told: 1, 6 are of the same rows in several passes, were out at once, and "
    "partly done: nobody can tell which was asked for (passes of more prompts than are out at once "
    "keep them apart)"
)


def in_doubt(*happened: list[Event], doubtful: str = "1 6", **fields: Any) -> Run:
    run = Run(rows=SHUFFLED)
    run.life(*happened, doubtful=frozenset(numbers(doubtful)), **fields)
    return run


def test_what_is_not_lost_leaves_no_doubt() -> None:
    assert in_doubt(trains(1, "0-7")).judged("0-3 0-3").verdict == "lossless"


def test_a_row_that_is_missing_in_the_weights_is_lost_in_whichever_pass() -> None:
    run = in_doubt(events("buffered", "0-5 7"), trains(1, "0-5 7"))
    assert findings(run.judged("0-3 0 2 3")) == [("lossy", "skipped", [6])]
    # As is a row that is out in one pass at a time.
    run = in_doubt(trains(1, "0-3 5-7"))
    assert findings(run.judged("0-3 0 1 2")) == [("lossy", "skipped", [4])]


@pytest.mark.parametrize(
    ("trained", "other", "weights"),
    [
        ("0 2-7", events("evicted", "1"), "0-3 0 2 3"),  # a group too many
        ("0-5 7", events("buffered", "6"), "0-3 0 2 3"),  # a part of a group
        ("0 2-5 7", events("failed", "1"), "0 2 3 0 2 3"),  # a generation of each may have failed
    ],
)
def test_what_a_wrong_group_may_be_the_reason_for_is_not_told(
    trained: str, other: list[Event], weights: str
) -> None:
    run = in_doubt(events("buffered", trained), trains(1, trained), other)
    report = run.judged(weights)
    assert report.verdict == "undetermined"
    assert [(f.verdict, f.text) for f in report.findings] == [
        ("undetermined", f"skipped{IN_DOUBT}")
    ]
    assert not report.passed


def test_what_another_row_lost_to_a_wrong_group_is_not_told() -> None:
    run = in_doubt(events("evicted", "4"), trains(1, "0-3 5-7"))
    assert run.judged("0-3 0 1 2").verdict == "undetermined"
    # With nothing in doubt there is no such excuse.
    run = in_doubt(events("evicted", "4"), trains(1, "0-3 5-7"), doubtful="")
    assert run.judged("0-3 0 1 2").verdict == "lossy"


def test_the_order_of_what_may_be_the_one_or_the_other_is_not_told() -> None:
    in_turn = trains(1, "0 2 3 6"), trains(2, "1 4 5 7")
    run = in_doubt(*in_turn)
    text = "trained out of the order of the stream"
    assert findings(run.judged("0-3 0-3", collector=InOrder)) == [
        ("undetermined", text + IN_DOUBT, [1, 4, 5])
    ]
    run = in_doubt(*in_turn, doubtful="3 4")
    assert findings(run.judged("0-3 0-3", collector=InOrder)) == [("lossy", text, [1, 4, 5])]


@pytest.mark.parametrize(
    ("older", "verdict"),
    [
        (6, "undetermined"),  # by its weights it may be the other of its row
        (4, "lossy"),  # nobody can take it for another
        (9, "lossy"),  # beyond the stream, as a row that it does not know is
    ],
)
def test_an_answer_that_is_too_old_is_told_by_its_place(older: int, verdict: str) -> None:
    run = Run(rows=SHUFFLED)
    run.life(trains(1, "0 2"))
    run.save(stands(8, trained="0 2", in_flight="1 3-7"), "0 2", version=1)
    run.life(
        events("dispatched", f"{older}", 0),
        trains(2, f"1 3-7 {older}"),
        origin=1,
        doubtful=frozenset({1, 6}),
    )
    report = run.judged("0-3 0-3")
    assert report.verdict == verdict
    assert [list(finding.ordinals) for finding in report.findings] == [[older]]


def test_how_many_are_in_flight_is_not_told_in_a_life_in_doubt() -> None:
    setup = Setup(max_in_flight=4)
    run = in_doubt(trains(1, "0-7"), most_in_flight=5)
    text = "life 1 had 5 prompts in flight, over its limit of 4"
    assert findings(run.judged("0-3 0-3", setup=setup)) == [("undetermined", text + IN_DOUBT, [])]
    run = in_doubt(trains(1, "0-7"), most_in_flight=5, doubtful="")
    assert findings(run.judged("0-3 0-3", setup=setup)) == [("lossy", text, [])]


def test_a_doubt_of_a_life_that_was_rolled_back_is_its_own() -> None:
    run = in_doubt(trains(1, "0 1"), most_in_flight=5)
    run.life(events("evicted", "6"), trains(1, "0-5 7"))
    report = run.judged("0-3 0 2 3", setup=Setup(max_in_flight=4))
    limit = "life 1 had 5 prompts in flight, over its limit of 4"
    assert findings(report) == [
        ("lossy", "skipped", [6]),
        ("undetermined", limit + IN_DOUBT, []),
    ]
