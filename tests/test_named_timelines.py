"""The named timelines on the reference collectors.

The old way loses what was out at a save; the new way nothing, but for legacy checkpoints, which
are the old way.
"""

from __future__ import annotations

import pytest
from losses import LEGACY, OLD_WAY

from pytest_resume_audit import (
    FrontierCollector,
    FuturesCollector,
    LiveCursorCollector,
    run,
)
from pytest_resume_audit.catalogue import NAMED, matrix

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
