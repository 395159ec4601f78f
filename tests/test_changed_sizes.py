"""Restarts with other sizes: a refusal is right, and so is a run that loses nothing."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_resume_audit import (
    FrontierCollector,
    FuturesCollector,
    LiveCursorCollector,
    Rig,
    Setup,
    run,
)

CASE = "hand_out 12; finish 0-3; train; finish 4 6 7 10; save; crash; restart with {changes}; drain"
# Of the five that are buffered the oldest, 4, does not fit any more.
FIVE = CASE.format(changes="capacity 4").replace("7 10", "7 10 5")
CHANGES = ["batch_size 8", "batch_size 3", "group_size 3", "prompts 20", "data_set 1"]


class Anything(FuturesCollector):
    """The new way, resumed under whatever sizes: it never looks at them."""

    def identity(self) -> dict[str, Any]:
        return {}


@pytest.mark.parametrize("collector", [FrontierCollector, FuturesCollector])
@pytest.mark.parametrize("changes", CHANGES)
def test_the_new_way_refuses_what_no_longer_fits(changes, collector):
    report = run(collector, CASE.format(changes=changes))
    assert report.demand == "lossless or refused"
    assert (report.verdict, report.passed) == ("refused", True)
    assert changes.split()[0].removesuffix("_set") in report.findings[0].text


@pytest.mark.parametrize("collector", [FrontierCollector, FuturesCollector])
def test_the_new_way_answers_again_what_no_longer_fits_in_the_buffer(collector):
    report = run(collector, FIVE)
    assert report.verdict == "lossless"
    assert report.regenerated == [4]


def test_the_old_way_loses_what_no_longer_fits_in_the_buffer():
    assert run(LiveCursorCollector, FIVE).skipped == [4, 8, 9, 11]


@pytest.mark.parametrize(
    ("changes", "skipped", "because"),
    [
        ("batch_size 8", [5, 8, 9, 11], "in flight at the save, the loader goes on at 12"),
        ("batch_size 3", [5, 8, 9, 11], "the same"),
        ("prompts 20", [5, 8, 9, 11], "the same; 16-19 are new and come in their turn"),
        ("group_size 3", [4, 5, 6, 7, 8, 9, 10, 11], "one answer of three never is a group"),
        ("capacity 4", [5, 8, 9, 11], "the same: what is buffered just fits"),
        ("data_set 1", list(range(12)), "what was trained or answered is of the other data set"),
    ],
)
def test_the_old_way_loses_what_was_out_and_what_no_longer_counts(changes, skipped, because):
    report = run(LiveCursorCollector, CASE.format(changes=changes))
    assert report.skipped == skipped, because
    assert report.duplicated == []
    assert not report.passed


@pytest.mark.parametrize(
    ("changes", "skipped", "because"),
    [
        ("batch_size 8", [], "its place is a row, whatever the batches"),
        ("batch_size 3", [], "the same"),
        ("prompts 20", [], "the same"),
        ("group_size 3", [4, 6, 7, 10], "what is buffered is one of three, and is not made again"),
        ("data_set 1", [0, 1, 2, 3, 4, 6, 7, 10], "settled or answered in the other data set"),
    ],
)
def test_a_resume_that_looks_at_nothing_is_judged_by_what_it_trains(changes, skipped, because):
    report = run(Anything, CASE.format(changes=changes))
    assert report.skipped == skipped, because
    assert report.duplicated == []
    assert report.passed == (not skipped)


def test_answers_to_another_data_set_train_none_of_this_one():
    script = "hand_out 4; finish 0-3; save; crash; restart with data_set 1; hand_out 8; train"
    report = run(Anything, script)
    # The buffer holds four answers to the prompts of the other one, and asks for no others.
    assert report.skipped == [0, 1, 2, 3]


class InBatches:
    """A loader whose place is a number of batches."""

    def __init__(self, rig: Rig) -> None:
        self.loader = rig.loader
        self.size = rig.setup.batch_size

    def __iter__(self):
        return iter(self.loader)

    def state_dict(self):
        state = self.loader.state_dict()
        return {"epoch": state["epoch"], "batches": state["yielded"] // self.size}

    def load_state_dict(self, state):
        place = {"epoch": state["epoch"], "yielded": state["batches"] * self.size}
        self.loader.load_state_dict(place)


class CountsBatches(LiveCursorCollector):
    """Saves how many batches it has drawn (https://github.com/allenai/OLMo/pull/182)."""

    def make_loader(self):
        return InBatches(self.rig)


def test_a_place_in_batches_skips_where_batches_grow():
    script = "hand_out 8; finish 0-7; train 2; save; crash; restart with batch_size 8"
    # Two batches of four are two of eight: the loader goes on at 16.
    assert run(CountsBatches, script).skipped == list(range(8, 16))


def test_a_place_in_batches_repeats_where_batches_shrink():
    script = "hand_out 8; finish 0-7; train 2; save; crash; restart with batch_size 4"
    # One batch of eight is one of four: the loader goes back to 4.
    report = run(CountsBatches, script, setup=Setup(batch_size=8))
    assert report.duplicated == [4, 5, 6, 7]


def test_a_change_lasts_for_every_later_life():
    script = (
        "hand_out 4; finish 0-3; train; save; crash; restart with prompts 20; hand_out 8; save; "
        "crash; restart; drain"
    )
    report = run(Anything, script)
    assert report.verdict == "lossless"
    assert report.history.lives[2].ordinals("trained") == set(range(4, 20))


def test_sizes_that_make_no_run_are_said_to_be_wrong():
    with pytest.raises(ValueError, match="drop_last"):
        run(Anything, CASE.format(changes="batch_size 20"), setup=Setup(drop_last=True))
