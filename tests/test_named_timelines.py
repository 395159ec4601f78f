"""The named timelines on the reference collectors.

What the old way loses is worked out from each script by hand: whatever was in flight, or not
dispatched, at a save that a later life was restored from; with ``no_buffer`` what was buffered
too. The new way loses nothing, but for legacy checkpoints, which are the old way.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest

from pytest_resume_audit import (
    FrontierCollector,
    FuturesCollector,
    LiveCursorCollector,
    run,
)
from pytest_resume_audit.catalogue import NAMED, matrix


class Old(NamedTuple):
    """What the old way loses, and why it is that."""

    skipped: list[int]
    because: str


OLD_WAY = {
    "clean": Old([], "nothing interrupts it"),
    "idle-save": Old([], "0-7 are trained, nothing is out"),
    "mid-flight": Old([5, 8, 9, 11], "0-3 trained, 4 6 7 10 buffered, loader at 12"),
    "mid-flight-no-buffer": Old([4, 5, 6, 7, 8, 9, 10, 11], "nor is the buffer loaded"),
    "before-first-save": Old([], "it begins afresh"),
    "rolled-back": Old([4, 5, 6, 7], "out at the save; their training is rolled back"),
    "second-resume": Old(
        [5, 7, 8, 9, 10, 11, 12, 13, 14],
        "5 and 7-11 are out at save 1; the loader goes on at 12; 12-14 are out at save 4",
    ),
    "older-checkpoint": Old([4, 6, 7, 8, 9, 10, 11], "at save 1 only 5 is buffered, loader at 12"),
    "same-checkpoint-twice": Old([4, 7, 8, 9, 10, 11], "5 and 6 are buffered, loader at 12"),
    "straggler": Old([1, 13, 14, 15], "trained are 0 2-12, the loader is at 16"),
    "failed-generation": Old([7], "4 and 6 are buffered, 5 has failed, loader at 8"),
    "dropped": Old([17, 18, 19], "5 is dropped, the others up to 16 are trained, loader at 20"),
    "gap-fill-tail": Old(
        [5, 6, 7, 8, 9, 10, 11],
        "at save 1 4 is buffered, 5-10 are the six in flight, 11 waits to be dispatched",
    ),
    "half-a-group": Old([5, 6, 7], "4 is buffered, of 5 and 6 one generation has ended"),
    "end-of-pass": Old(
        [13, 15],
        "5 and 7 are out: their rows are trained in the second pass only, so it is their second "
        "training that is missing",
    ),
    "second-pass": Old([9, 11], "the first pass is trained, 8 and 10 are buffered, loader at 12"),
    "end-of-data": Old([14, 15], "0-11 are trained, 12 and 13 buffered, the loader has ended"),
    "uneven": Old(
        [4, 6, 7, 8, 9, 11, 12, 13, 14, 15],
        "at save 1 3 5 10 are buffered, loader at 12; at save 2 12-15 are out, loader at 16",
    ),
}

LEGACY = {
    "legacy-checkpoint": [5, 8, 9, 11],
    # 4-7 are out at save 1, which is downgraded; 9 and 11 at save 2, which descends from it.
    "legacy-lineage": [4, 5, 6, 7, 9, 11],
}

NEW_WAY = [
    pytest.param(FrontierCollector, id="frontier"),
    pytest.param(FuturesCollector, id="futures"),
]


def test_every_named_timeline_is_here():
    assert {*OLD_WAY, *LEGACY} == set(NAMED)
    assert [timeline.name for timeline in matrix("smoke")] == list(NAMED)


@pytest.mark.parametrize("name", OLD_WAY)
def test_the_old_way_loses_what_was_out_at_the_save(name):
    report = run(LiveCursorCollector, name)
    assert report.skipped == OLD_WAY[name].skipped, OLD_WAY[name].because
    assert report.duplicated == []
    assert report.verdict == ("lossy" if report.skipped else "lossless")
    assert report.unreached is None
    assert report.gated


@pytest.mark.parametrize("name", LEGACY)
def test_the_old_way_makes_no_legacy_checkpoints(name):
    report = run(LiveCursorCollector, name)
    assert report.unreached is not None
    assert "downgrade" in report.unreached


@pytest.mark.parametrize("collector", NEW_WAY)
@pytest.mark.parametrize("name", OLD_WAY)
def test_the_new_way_loses_and_repeats_nothing(name, collector):
    report = run(collector, name)
    assert report.skipped == []
    assert report.duplicated == []
    assert report.verdict == "lossless"
    assert report.unreached is None
    assert report.missed == ()
    assert report.failed == ([5] if name == "failed-generation" else [])
    assert report.dropped == ([5] if name == "dropped" else [])
    assert {save.number for save in report.history.saves if save.published} == {
        save.number for save in report.history.saves
    }


@pytest.mark.parametrize("collector", NEW_WAY)
@pytest.mark.parametrize("name", LEGACY)
def test_a_legacy_checkpoint_loses_the_old_way_and_says_so(name, collector):
    report = run(collector, name)
    assert report.skipped == LEGACY[name]
    assert report.excused == LEGACY[name]
    assert report.duplicated == []
    assert report.verdict == "lossless"
    assert all(life.warned for life in report.history.lives if life.origin is not None)


def test_the_seed_case_stands_as_it_is_told():
    """16 prompts, 4 at a time: the standing at the save is the one of the story."""
    for collector in (LiveCursorCollector, FrontierCollector, FuturesCollector):
        report = run(collector, "mid-flight")
        (save,) = report.history.saves
        assert save.standing.trained == {0, 1, 2, 3}
        assert save.standing.buffered == {4, 6, 7, 10}
        assert save.standing.in_flight == {5, 8, 9, 11}
        assert save.standing.place == 12


def test_the_old_way_says_why():
    report = run(LiveCursorCollector, "mid-flight")
    assert {report.reasons[ordinal].text for ordinal in report.skipped} == {
        "in flight at save 1, and life 2 restarted the loader at 12, behind it"
    }
    report = run(LiveCursorCollector, "mid-flight-no-buffer")
    kinds = {ordinal: report.reasons[ordinal].kind for ordinal in report.skipped}
    assert [o for o, kind in kinds.items() if kind == "in flight at a save"] == [5, 8, 9, 11]
    assert [o for o, kind in kinds.items() if "buffer not loaded" in kind] == [4, 6, 7, 10]


@pytest.mark.parametrize("collector", NEW_WAY)
def test_an_answer_made_again_comes_from_the_restored_weights(collector):
    report = run(collector, "mid-flight-no-buffer")
    assert report.regenerated == [4, 6, 7, 10]
    again = [e for e in report.history.lives[1].events if e.kind == "dispatched"]
    # One step was trained before the save, and the weights were restored.
    assert {event.ordinal for event in again} == set(range(4, 16))
    assert min(event.number for event in again) == 1


@pytest.mark.parametrize("collector", NEW_WAY)
def test_the_loader_restarts_at_the_newest_place_before_the_oldest_unsettled_prompt(collector):
    report = run(collector, "mid-flight")
    # 4 waits in the buffer and is not settled: the batch that begins with it comes round again.
    assert report.history.lives[1].start_place == 4
    # What was buffered is not answered again.
    answered = report.history.lives[1].ordinals("dispatched")
    assert answered == {5, 8, 9, 11, 12, 13, 14, 15}
