"""One story, many kinds of collectors: each loses exactly what its way of working loses.

The story is the case that names the project. 16 prompts, 4 at a time: 0-3 are trained; of 4-11
the ones that are finished, 4 6 7 10, wait in the buffer, and 5 8 9 11 are in flight; then save,
crash, restart. What differs is written at each test.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import menagerie
import pytest

from pytest_resume_audit.catalogue import NAMED
from pytest_resume_audit.conductor import run
from pytest_resume_audit.setup import Setup
from pytest_resume_audit.verdict import AuditReport

STORY = "hand_out 12; finish 0-3; train; finish 4 6 7 10; save; crash; restart; drain"

IN_FLIGHT = "in flight at a save"
BUFFERED = "buffered at a save, and not restored"
HELD = "finished, held by the collector at a save"
AGAIN = "trained before a save and again"
TWICE = "trained twice in one life"


def play(collector: Any, script: str = STORY, **sizes: Any) -> AuditReport:
    return run(collector, script, setup=Setup(**sizes), deadline=20)


def at_save(report: AuditReport, number: int = 1) -> dict[str, list[int]]:
    """Where the prompts stood at a save; places where none stood are left out."""
    standing = report.history.save(number).standing
    places = ("trained", "settled", "buffered", "held", "in_flight", "handed_out", "failed")
    found = {place: sorted(getattr(standing, place)) for place in places}
    return {place: ordinals for place, ordinals in found.items() if ordinals}


def whys(report: AuditReport) -> dict[str, list[int]]:
    """The ordinals of each kind of reason."""
    kinds: dict[str, list[int]] = {}
    for ordinal, reason in sorted(report.reasons.items()):
        kinds.setdefault(reason.kind, []).append(ordinal)
    return kinds


@pytest.fixture(autouse=True)
def every_thread_ends() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - before:
        thread.join(20)
        assert not thread.is_alive(), thread


MID_FLIGHT = {"trained": [0, 1, 2, 3], "buffered": [4, 6, 7, 10], "in_flight": [5, 8, 9, 11]}
"""The story's save, where the loader's gate held the collector back."""

ALL_OUT = {
    "trained": [0, 1, 2, 3],
    "buffered": [4, 6, 7, 10],
    "in_flight": [5, 8, 9, 11, 12, 13, 14, 15],
}
"""The same with the gate left open: all that the loader has is out."""


# -- the old way ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "collector",
    [
        menagerie.AsyncIteration,
        menagerie.AsyncPull,
        menagerie.SleepPoller,
        menagerie.EventPoller,
        menagerie.BufferPoller,
        menagerie.AsksItsWorker,
        menagerie.Queues,
        menagerie.BlockingStep,
        menagerie.OneThread,
    ],
)
def test_the_live_place_loses_what_is_in_flight(collector: Any) -> None:
    # Restarted at 12, with 4 6 7 10 from the buffer: nobody answers 5 8 9 11 again.
    report = play(collector)
    assert at_save(report) == MID_FLIGHT
    assert report.verdict == "lossy"
    assert report.skipped == [5, 8, 9, 11]
    assert report.duplicated == []
    assert whys(report) == {IN_FLIGHT: [5, 8, 9, 11]}
    assert report.gated
    assert report.missed == ()
    assert report.history.lives[1].start_place == 12
    assert report.history.lives[1].start_buffer == {4, 6, 7, 10}


def test_a_loop_that_stands_at_the_loader_is_played_again_without_the_gate() -> None:
    # The loop asks for a fourth batch and stands there: 0-3 would finish and never be buffered.
    # With the gate open the loader says everything, and that it has no more: its state is that
    # of the next pass, and the restart hands out all 16 again. 0-3 are in the weights, 4 6 7 10
    # in the buffer: these eight are trained twice.
    report = play(menagerie.SyncPullInLoop)
    assert not report.gated
    assert at_save(report) == ALL_OUT
    assert report.verdict == "lossy"
    assert report.duplicated == [0, 1, 2, 3, 4, 6, 7, 10]
    assert report.skipped == []
    assert whys(report) == {AGAIN: [0, 1, 2, 3], TWICE: [4, 6, 7, 10]}


def test_a_lock_held_at_the_loader_is_played_again_without_the_gate() -> None:
    # Here it is the save that waits for the lock. The rest is as in the loop above.
    report = play(menagerie.OneLock)
    assert not report.gated
    assert at_save(report) == ALL_OUT
    assert report.verdict == "lossy"
    assert report.duplicated == [0, 1, 2, 3, 4, 6, 7, 10]
    assert report.skipped == []


def test_a_batch_barrier_holds_what_is_finished() -> None:
    # No batch of 4-11 is complete: nothing is buffered, and all eight are behind the place 12.
    report = play(menagerie.BatchBarrier)
    assert at_save(report) == {
        "trained": [0, 1, 2, 3],
        "held": [4, 6, 7, 10],
        "in_flight": [5, 8, 9, 11],
    }
    assert report.verdict == "lossy"
    assert report.skipped == [4, 5, 6, 7, 8, 9, 10, 11]
    assert whys(report) == {HELD: [4, 6, 7, 10], IN_FLIGHT: [5, 8, 9, 11]}
    # The gate was not the cause: without it the same are held.
    assert report.gated


def test_one_batch_at_a_time_never_comes_to_the_case() -> None:
    # It asks for 4-7 when 0-3 are trained: at the save the loader stands at 4, nothing is out.
    report = play(menagerie.OneBatchAtATime)
    assert at_save(report) == {"trained": [0, 1, 2, 3]}
    assert report.verdict == "lossless"
    assert [missed.step for missed in report.missed] == ["hand_out 12"] + ["finish 4 6 7 10"] * 4
    assert report.missed[0].throttled


def test_one_batch_at_a_time_leaves_a_named_timeline_unreached() -> None:
    report = run(menagerie.OneBatchAtATime, "mid-flight", deadline=20)
    assert report.verdict == "lossless"
    assert report.unreached is not None
    assert "saved with prompts in flight" in report.unreached


def test_an_own_buffer_that_is_not_saved_is_lost() -> None:
    # Restarted at 12 with nothing: what was in flight is gone, and so is what was buffered.
    report = play(menagerie.OwnParts)
    assert at_save(report) == MID_FLIGHT
    assert report.verdict == "lossy"
    assert report.skipped == [4, 5, 6, 7, 8, 9, 10, 11]
    assert whys(report) == {BUFFERED: [4, 6, 7, 10], IN_FLIGHT: [5, 8, 9, 11]}
    assert report.gated


# -- the right way -------------------------------------------------------------------------------

RIGHT = [
    menagerie.AsyncFrontier,
    menagerie.LoopInThread,
    menagerie.OneLockFrontier,
    menagerie.BackgroundWriter,
]


@pytest.mark.parametrize("timeline", NAMED)
@pytest.mark.parametrize("collector", RIGHT)
def test_the_right_way_is_lossless_in_every_style(collector: Any, timeline: str) -> None:
    report = run(collector, timeline, deadline=20)
    assert report.passed, report
    if collector is menagerie.OneLockFrontier:
        # With the gate open everything is out at once: it never saves with nothing out. Only
        # where the loader has ended, or need not be held, is the gate not in the way.
        assert report.gated == (timeline in ("clean", "end-of-data"))
        assert (report.unreached is None) == (timeline != "idle-save")
    else:
        assert report.gated
        assert report.unreached is None


@pytest.mark.parametrize("collector", [*RIGHT, menagerie.OwnPartsFrontier])
def test_the_right_way_saves_in_the_middle_of_it(collector: Any) -> None:
    report = play(collector)
    assert at_save(report) == (MID_FLIGHT if report.gated else ALL_OUT)
    assert report.verdict == "lossless"
    assert report.skipped == report.duplicated == []
    assert report.reasons == {}
    # The cut is at 4, the oldest that is not trained; what is buffered is not answered again.
    assert report.history.lives[1].start_place == 4
    assert report.regenerated == []


@pytest.mark.parametrize(
    "timeline",
    ["clean", "idle-save", "mid-flight", "mid-flight-no-buffer", "before-first-save",
     "rolled-back", "second-resume", "older-checkpoint", "same-checkpoint-twice", "straggler",
     "end-of-pass", "end-of-data"],
)  # fmt: skip
def test_own_parts_made_right_are_lossless(timeline: str) -> None:
    # It has one pass, groups of one, and tolerates no failure: the other timelines need more.
    sizes = {"prompts": 8, "passes": 1} if timeline == "end-of-pass" else {}
    report = run(menagerie.OwnPartsFrontier, NAMED[timeline].script, setup=Setup(**sizes))
    assert report.passed, report


def test_draining_before_a_save_makes_the_live_place_right() -> None:
    # The save waits: 5 8 9 11 are answered during it, and are in the buffer that it writes.
    report = play(menagerie.Drains)
    assert at_save(report) == MID_FLIGHT
    assert report.verdict == "lossless"
    assert report.gated
    life = report.history.lives[0]
    begun = report.history.save(1).position
    assert life.ordinals("finished", since=begun) == {5, 8, 9, 11}
    assert report.history.lives[1].start_buffer == {4, 5, 6, 7, 8, 9, 10, 11}


def test_draining_is_no_help_when_the_buffer_is_not_loaded() -> None:
    report = play(menagerie.Drains, STORY.replace("restart", "restart no_buffer"))
    assert report.verdict == "lossy"
    assert report.skipped == [4, 5, 6, 7, 8, 9, 10, 11]
    # Those that ended while the save waited were in flight when it began.
    assert set(whys(report)) == {"buffered at a save, buffer not loaded", IN_FLIGHT}


def test_a_blocking_step_gets_the_answers_it_waits_for() -> None:
    # Only 0 and 1 are finished by the script: the step waits, and the oldest are let go for it.
    report = play(menagerie.BlockingStep, "hand_out 8; finish 0 1; train; save; crash; restart")
    assert at_save(report) == {"trained": [0, 1, 2, 3], "in_flight": [4, 5, 6, 7]}
    assert report.skipped == [4, 5, 6, 7]
    assert report.missed == ()


# -- self-driven ---------------------------------------------------------------------------------


def test_self_driven_with_threads_saves_at_its_own_second_step() -> None:
    # The save comes behind step 2, which takes 4 6 7 10; in flight are 5 8 9 11, behind 12.
    report = play(menagerie.SelfDriven)
    assert at_save(report) == {
        "trained": [0, 1, 2, 3, 4, 6, 7, 10],
        "in_flight": [5, 8, 9, 11],
    }
    assert report.verdict == "lossy"
    assert report.skipped == [5, 8, 9, 11]
    assert whys(report) == {IN_FLIGHT: [5, 8, 9, 11]}
    assert report.gated
    assert report.missed == ()


def test_self_driven_made_right_is_lossless() -> None:
    # It saves behind every step: the script's save is its second one.
    report = play(menagerie.SelfDrivenFrontier)
    assert at_save(report, 1) == {"trained": [0, 1, 2, 3], "in_flight": [4, 5, 6, 7, 8, 9, 10, 11]}
    assert at_save(report, 2) == {
        "trained": [0, 1, 2, 3, 4, 6, 7, 10],
        "in_flight": [5, 8, 9, 11],
    }
    assert report.history.lives[1].origin == 2
    assert report.verdict == "lossless"
    assert report.gated


def test_self_driven_in_one_thread_loses_the_batch_it_is_ahead() -> None:
    # Behind step 1 the loader stands at 8, and 4-7 were sent off for the next step. There it
    # waits for 5, which the script doesn't finish: no other save comes.
    report = play(menagerie.OneBatchAhead)
    assert at_save(report) == {"trained": [0, 1, 2, 3], "in_flight": [4, 5, 6, 7]}
    assert report.history.lives[1].origin == 1
    assert report.verdict == "lossy"
    assert report.skipped == [4, 5, 6, 7]
    assert whys(report) == {IN_FLIGHT: [4, 5, 6, 7]}
    assert "save" in [missed.step for missed in report.missed]


def test_self_driven_in_step_has_nothing_out_at_a_save() -> None:
    report = play(menagerie.InStep)
    assert at_save(report) == {"trained": [0, 1, 2, 3]}
    assert report.verdict == "lossless"
    assert report.gated


class EndsByItself(menagerie.SelfDriven):
    """What it has to end itself, it ends in ``crash``."""

    ended: list[int] = []  # noqa: RUF012

    def crash(self) -> None:
        self.ended.append(self.rig.trainer.weight_version)


def test_a_crash_is_called_while_the_loop_of_a_framework_goes_on() -> None:
    EndsByItself.ended.clear()
    report = play(EndsByItself)
    assert report.verdict == "lossy"
    # The uninterrupted run to its end; life 1 with a step before its save and the one of the
    # save; life 2 after the rest.
    assert EndsByItself.ended == [4, 2, 3]


class Downgrades(menagerie.SelfDrivenFrontier):
    """Its legacy checkpoints are those that it writes."""

    downgraded: list[str] = []  # noqa: RUF012

    def downgrade(self, checkpoint: Any) -> None:
        self.downgraded.append(checkpoint.name)


def test_a_downgrade_is_called_while_the_loop_of_a_framework_goes_on() -> None:
    Downgrades.downgraded.clear()
    report = play(Downgrades, STORY.replace("save;", "save; downgrade;"))
    # It saves behind every step; that behind the second is the script's.
    assert [save.legacy for save in report.history.saves] == [False, True, False, False]
    assert Downgrades.downgraded == [report.history.saves[1].checkpoint]
