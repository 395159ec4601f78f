"""The bookkeeping of the new way, its checkpoint files, and what it restores.

Every expected number is worked out by hand, mostly for the case that names the project: 16
prompts, handed out 4 at a time.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_resume_audit import (
    Collector,
    FrontierCollector,
    FuturesCollector,
    Prompt,
    Rig,
    Setup,
    run,
)
from pytest_resume_audit.collectors import checkpoints
from pytest_resume_audit.collectors.checkpoints import ResumeRefused
from pytest_resume_audit.collectors.frontier import Frontier, LegacyCheckpointWarning, Place

# -- the count -------------------------------------------------------------------------------------


def handed_out(frontier: Frontier, *sizes: int) -> list[int]:
    """Hand out batches of these sizes; the ordinals that are to be answered."""
    wanted: list[int] = []
    for size in sizes:
        end = frontier.here.ordinal + size
        wanted += [ordinal for ordinal, _ in frontier.hand_out(["?"] * size, f"at {end}")]
    return wanted


def restarted(frontier: Frontier, buffered: tuple[int, ...] = (), **options: Any) -> Frontier:
    """The frontier after a restart from a checkpoint in a JSON file."""
    again = Frontier.restored(json.loads(json.dumps(frontier.state_dict())), **options)
    again.skip_buffered(buffered)
    return again


@pytest.fixture
def mid_flight() -> Frontier:
    """The case of the project: 12 handed out, 0-3 trained."""
    frontier = Frontier()
    assert handed_out(frontier, 4, 4, 4) == list(range(12))
    frontier.settle(range(4))
    return frontier


def test_cut_is_behind_what_is_trained(mid_flight: Frontier) -> None:
    assert mid_flight.lowest_unsettled == 4
    assert mid_flight.state_dict() == {
        "identity": {},
        "cut": {"ordinal": 4, "epoch": 0, "state": "at 4"},
        "settled": [],
        "horizon": {"ordinal": 12, "epoch": 0, "state": "at 12"},
    }


def test_cut_is_the_newest_place_before_the_oldest_unsettled_prompt(mid_flight: Frontier) -> None:
    mid_flight.settle([8, 9, 10, 11, 4, 5, 7])
    assert (mid_flight.cut, mid_flight.lowest_unsettled) == (Place(4, 0, "at 4"), 6)
    assert mid_flight.state_dict()["settled"] == [4, 5, 7, 8, 9, 10, 11]
    mid_flight.settle([6])
    assert (mid_flight.cut, mid_flight.lowest_unsettled) == (Place(12, 0, "at 12"), 12)
    assert mid_flight.state_dict()["settled"] == []


def test_place_before_the_first_batch_needs_no_state() -> None:
    frontier = Frontier()
    handed_out(frontier, 4)
    frontier.settle([1, 2, 3])
    assert frontier.cut == Place(0, 0, None)


def test_restart_asks_only_for_what_was_in_flight(mid_flight: Frontier) -> None:
    again = restarted(mid_flight, buffered=(4, 6, 7, 10))
    assert again.here == Place(4, 0, "at 4")
    assert handed_out(again, 4, 4) == [5, 8, 9, 11]
    assert handed_out(again, 4) == [12, 13, 14, 15]


def test_restart_without_the_buffer_asks_for_that_too(mid_flight: Frontier) -> None:
    assert handed_out(restarted(mid_flight), 4, 4, 4) == list(range(4, 16))


def test_restart_throws_away_what_is_settled(mid_flight: Frontier) -> None:
    mid_flight.settle([4, 6, 9, 10])
    assert handed_out(restarted(mid_flight), 4, 4, 4) == [5, 7, 8, 11, 12, 13, 14, 15]


def test_filter_ends_at_the_horizon(mid_flight: Frontier) -> None:
    again = restarted(mid_flight, buffered=(4, 11))
    seen = [again.filtering]
    for _ in range(3):
        handed_out(again, 4)
        seen.append(again.filtering)
    assert seen == [True, True, False, False]


def test_saved_while_repeating_keeps_the_horizon(mid_flight: Frontier) -> None:
    again = restarted(mid_flight, buffered=(4, 6, 7, 10))
    handed_out(again, 4)
    assert again.horizon == Place(12, 0, "at 12")
    third = restarted(again, buffered=(4, 6, 7, 10))
    assert handed_out(third, 4, 4) == [5, 8, 9, 11]
    assert handed_out(third, 4) == [12, 13, 14, 15]
    assert third.horizon == Place(16, 0, "at 16")


def test_trained_before_it_comes_round_again(mid_flight: Frontier) -> None:
    again = restarted(mid_flight, buffered=(4, 5, 6, 7))
    again.settle([4, 5, 6, 7])
    # The loader is still before them: that is as far as a checkpoint can go.
    assert (again.lowest_unsettled, again.cut) == (8, Place(4, 0, "at 4"))
    assert again.state_dict()["settled"] == [4, 5, 6, 7]
    assert handed_out(again, 4) == []
    assert again.cut == Place(8, 0, "at 8")


def test_restored_state_is_the_saved_one(mid_flight: Frontier) -> None:
    mid_flight.settle([5, 9])
    assert restarted(mid_flight).state_dict() == mid_flight.state_dict()


@pytest.mark.parametrize(
    ("ordinal", "why"), [(3, "settled already"), (9, "settled already"), (12, "not handed out")]
)
def test_settled_once_and_only_what_was_handed_out(
    mid_flight: Frontier, ordinal: int, why: str
) -> None:
    mid_flight.settle([9])
    with pytest.raises(ValueError, match=f"prompt {ordinal} cannot be settled: it is {why}"):
        mid_flight.settle([ordinal])


# -- the bound of the ring -------------------------------------------------------------------------


def test_full_until_the_frontier_moves() -> None:
    frontier = Frontier(remember=2)
    handed_out(frontier, 3)
    assert not frontier.full
    handed_out(frontier, 3)
    assert frontier.full
    frontier.settle([1, 2, 3, 4, 5])
    assert frontier.full
    frontier.settle([0])
    assert (frontier.full, frontier.cut) == (False, Place(6, 0, "at 6"))


def test_full_and_pulled_all_the_same_keeps_the_cut() -> None:
    frontier = Frontier(remember=2)
    handed_out(frontier, 1, 1, 1, 1)
    assert frontier.cut == Place(0, 0, None)
    # Remembered are 0, 1 and the live place 4; the places 2 and 3 were given up.
    frontier.settle([0, 1, 2])
    assert (frontier.lowest_unsettled, frontier.cut) == (3, Place(1, 0, "at 1"))
    assert frontier.state_dict()["settled"] == [1, 2]
    assert handed_out(restarted(frontier), 1, 1, 1, 1) == [3, 4]


def test_one_place_is_enough_to_go_on() -> None:
    frontier = Frontier(remember=1)
    for ordinal in range(5):
        assert not frontier.full
        handed_out(frontier, 1)
        assert frontier.full
        frontier.settle([ordinal])


def test_no_place_is_not() -> None:
    with pytest.raises(ValueError, match="remember=0"):
        Frontier(remember=0)


def test_memory_is_bounded_by_the_ring() -> None:
    frontier = Frontier(remember=8)
    for ordinal in range(10_000):
        handed_out(frontier, 1)
        if ordinal:
            frontier.settle([ordinal - 1])
    assert (frontier.cut.ordinal, len(frontier.state_dict()["settled"])) == (9_999, 0)


# -- passes ----------------------------------------------------------------------------------------


def two_passes() -> tuple[Frontier, list[tuple[int, str]]]:
    """Rows a b c in batches of 2, each pass in an order of its own: a b c, then c a b."""
    frontier = Frontier()
    wanted = frontier.hand_out("ab", "0:2") + frontier.hand_out("c", "0:3")
    frontier.end_pass("1:0")
    wanted += frontier.hand_out("ca", "1:2") + frontier.hand_out("b", "1:3")
    return frontier, wanted


def test_ordinals_count_on_over_passes() -> None:
    frontier, wanted = two_passes()
    assert wanted == [(0, "a"), (1, "b"), (2, "c"), (3, "c"), (4, "a"), (5, "b")]
    frontier.settle([0, 1, 2])
    assert frontier.cut == Place(3, 1, "1:0")


def test_same_row_is_settled_in_one_pass_and_not_in_the_other() -> None:
    frontier, _ = two_passes()
    frontier.settle([0, 3, 5])
    again = restarted(frontier)
    assert again.here == Place(0, 0, None)
    assert again.hand_out("ab", "0:2") + again.hand_out("c", "0:3") == [(1, "b"), (2, "c")]
    again.end_pass("1:0")
    assert again.hand_out("ca", "1:2") + again.hand_out("b", "1:3") == [(4, "a")]
    assert not again.filtering


def test_place_before_the_end_of_a_pass_was_noticed() -> None:
    frontier = Frontier()
    handed_out(frontier, 2, 1)
    frontier.settle([0, 1, 2])
    again = restarted(frontier)
    assert again.here == Place(3, 0, "at 3")
    # The rest of the pass is empty; the next one is full.
    again.end_pass("next pass")
    assert again.here == Place(3, 1, "next pass")
    assert handed_out(again, 2, 1) == [3, 4, 5]


# -- refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("now", "named"),
    [
        ({"rows": 10, "batch": 4}, "rows was 16 and is 10"),
        ({"rows": 16, "batch": 8}, "batch was 4 and is 8"),
        ({"rows": 16}, "batch was 4 and is None"),
        ({"rows": 16, "batch": 4, "seed": 1}, "seed was None and is 1"),
    ],
)
def test_other_stream_is_refused(now: dict[str, Any], named: str) -> None:
    state = Frontier(identity={"rows": 16, "batch": 4}).state_dict()
    with pytest.raises(ResumeRefused, match=named):
        Frontier.restored(state, identity=now)


@pytest.mark.parametrize("buffered", [(3,), (5,), (12,)])
def test_buffer_of_another_save_is_refused(mid_flight: Frontier, buffered: tuple[int, ...]) -> None:
    mid_flight.settle([5])
    with pytest.raises(ResumeRefused, match="not of the same save"):
        restarted(mid_flight, buffered=(4, *buffered))


# -- checkpoint files ------------------------------------------------------------------------------

PARTS = {"weights": [1, 2], "buffer": {"rollouts": []}}


def test_two_saves_at_one_step_are_two_checkpoints(tmp_path: Path) -> None:
    names = [checkpoints.publish(tmp_path, PARTS, step=7).name for _ in range(2)]
    assert names == ["checkpoint_000001", "checkpoint_000002"]
    manifest = json.loads((tmp_path / names[1] / "manifest.json").read_text())
    assert (manifest["step"], sorted(manifest["files"])) == (7, ["buffer.json", "weights.json"])
    assert checkpoints.newest_complete(tmp_path) == Collector.latest(tmp_path)
    assert checkpoints.read(tmp_path / names[1]) == PARTS


def test_numbers_count_on_past_ninety_nine(tmp_path: Path) -> None:
    (tmp_path / "checkpoint_000099").mkdir()
    assert checkpoints.publish(tmp_path, PARTS, step=1).name == "checkpoint_000100"


def truncate(checkpoint: Path) -> None:
    (checkpoint / "weights.json").write_bytes(b"[1,")


def flip(checkpoint: Path) -> None:
    (checkpoint / "weights.json").write_bytes(b"[1, 3]")


def lose(checkpoint: Path) -> None:
    (checkpoint / "weights.json").unlink()


def lose_manifest(checkpoint: Path) -> None:
    (checkpoint / "manifest.json").unlink()


def tear_manifest(checkpoint: Path) -> None:
    (checkpoint / "manifest.json").write_text('{"step": 1, "fi')


def wrong_manifest(checkpoint: Path) -> None:
    (checkpoint / "manifest.json").write_text("[]")


@pytest.mark.parametrize(
    "tear", [truncate, flip, lose, lose_manifest, tear_manifest, wrong_manifest]
)
def test_torn_checkpoint_is_not_taken(tmp_path: Path, tear: Callable[[Path], None]) -> None:
    older = checkpoints.publish(tmp_path, PARTS, step=1)
    newer = checkpoints.publish(tmp_path, PARTS, step=2)
    assert checkpoints.newest_complete(tmp_path) == newer
    tear(newer)
    assert not checkpoints.complete(newer)
    assert checkpoints.newest_complete(tmp_path) == older
    with pytest.raises(ResumeRefused, match="checkpoint_000002 is torn"):
        checkpoints.read(newer)
    # Its number is not used again.
    assert checkpoints.publish(tmp_path, PARTS, step=2).name == "checkpoint_000003"


def test_torn_checkpoint_is_passed_over_aloud(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    older = checkpoints.publish(tmp_path, PARTS, step=1)
    truncate(checkpoints.publish(tmp_path, PARTS, step=2))
    assert checkpoints.newest_complete(tmp_path) == older
    assert "checkpoint_000002 is torn" in caplog.text


def test_a_run_whose_checkpoints_are_all_torn_does_not_begin_afresh(tmp_path: Path) -> None:
    assert checkpoints.newest_complete(tmp_path) is None
    truncate(checkpoints.publish(tmp_path, PARTS, step=1))
    with pytest.raises(ResumeRefused, match="each of the 1 checkpoints"):
        checkpoints.newest_complete(tmp_path)


def test_save_that_dies_publishes_nothing(tmp_path: Path) -> None:
    def write_or_die(value: Any, path: Path) -> None:
        if path.name == "buffer.json":
            raise KeyboardInterrupt
        path.write_text(json.dumps(value))

    older = checkpoints.publish(tmp_path, PARTS, step=1)
    with pytest.raises(KeyboardInterrupt):
        checkpoints.publish(
            tmp_path, PARTS, step=2, form=checkpoints.JSON._replace(write=write_or_die)
        )
    assert checkpoints.newest_complete(tmp_path) == older
    checkpoints.publish(tmp_path, PARTS, step=2)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["checkpoint_000001", "checkpoint_000002"]


def test_rewritten_checkpoint_is_complete(tmp_path: Path) -> None:
    checkpoint = checkpoints.publish(tmp_path, PARTS, step=5)
    checkpoints.rewrite(checkpoint, {"weights": [3]})
    assert checkpoints.read(checkpoint) == {"weights": [3]}
    assert json.loads((checkpoint / "manifest.json").read_text())["step"] == 5


# -- collectors, by hand ---------------------------------------------------------------------------


class Life:
    """A life of a collector that is driven by hand."""

    collector: type[FuturesCollector] = FuturesCollector

    def __init__(
        self, setup: Setup, checkpoint: Path | None = None, *, load_replay_buffer: bool = True
    ) -> None:
        self.rig = Rig(setup)
        self.it = self.collector(self.rig)
        if checkpoint is not None:
            self.it.restore(checkpoint, load_replay_buffer=load_replay_buffer)
        self.it.start()

    def pull(self, batches: int = 100) -> list[int]:
        """Pull up to so many batches; the rows in flight then, each once."""
        for _ in range(batches):
            if not self.it.pull():
                break
        return self.in_flight

    @property
    def in_flight(self) -> list[int]:
        """The rows in flight, each once."""
        return sorted({row for row, _ in self.rig.engine.in_flight})

    def finish(self, *rows: int) -> None:
        """Their generations end."""
        for row in rows:
            self.rig.engine.finish(row)

    def trained(self) -> list[int]:
        """The rows in the weights."""
        return [row for row, count in enumerate(self.rig.trainer.counts()) if count]


class RemembersTwo(FuturesCollector):
    """Its frontier remembers the places of two batches."""

    remember = 2


class RingLife(Life):
    """A life of it."""

    collector = RemembersTwo


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """The case of the project: 0-3 trained, 4 6 7 10 buffered, 5 8 9 11 in flight."""
    life = Life(Setup())
    assert life.pull(3) == list(range(12))
    life.finish(0, 1, 2, 3)
    assert life.it.train_step()
    life.finish(4, 6, 7, 10)
    life.it.save(tmp_path, 1)
    return tmp_path / "checkpoint_000001"


def test_restart_answers_what_was_in_flight(saved: Path) -> None:
    life = Life(Setup(), saved)
    assert life.pull() == [5, 8, 9, 11, 12, 13, 14, 15]
    assert life.it.train_step()
    assert life.trained() == [0, 1, 2, 3, 4, 6, 7, 10]


def test_restart_without_the_buffer_answers_that_again(saved: Path) -> None:
    assert Life(Setup(), saved, load_replay_buffer=False).pull() == list(range(4, 16))


def test_legacy_restart_loses_what_was_in_flight_and_warns(saved: Path, tmp_path: Path) -> None:
    FuturesCollector(Rig(Setup())).downgrade(saved)
    names = {p.name for p in saved.iterdir()}
    assert names == {"weights.json", "replay_buffer.json", "dataloader.json", "manifest.json"}
    with pytest.warns(LegacyCheckpointWarning, match="legacy"):
        life = Life(Setup(), saved)
    assert life.pull(1) == [12, 13, 14, 15]
    life.finish(13)
    life.it.save(tmp_path, 2)
    # Its descendants stay legacy: no ordinals, and the warning again.
    with pytest.warns(LegacyCheckpointWarning, match="legacy"):
        heir = Life(Setup(), tmp_path / "checkpoint_000002")
    assert heir.pull() == []
    assert heir.it.train_step()
    assert heir.trained() == [0, 1, 2, 3, 4, 6, 7, 10]
    assert heir.it.train_step()
    assert heir.trained() == [0, 1, 2, 3, 4, 6, 7, 10, 13]


def test_restart_with_ordinals_does_not_warn(saved: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Life(Setup(), saved)


def test_legacy_place_is_not_before_what_is_trained(saved: Path, tmp_path: Path) -> None:
    life = Life(Setup(), saved)
    assert life.it.train_step()  # 4 6 7 10, before the loader, still at 4, comes to them
    life.it.save(tmp_path, 2)
    second = tmp_path / "checkpoint_000002"
    assert json.loads((second / "dataloader.json").read_text()) == {
        "epoch": 0,
        "state": {"epoch": 0, "yielded": 12},
    }


@pytest.mark.parametrize(
    ("setup", "named"),
    [
        (Setup(prompts=10), "prompts was 16 and is 10"),
        (Setup(batch_size=8), "batch_size was 4 and is 8"),
        (Setup(group_size=2), "group_size was 1 and is 2"),
        (Setup(shuffle=True), "shuffle was False and is True, seed was None and is 0"),
        (Setup(drop_last=True), "drop_last was False and is True"),
    ],
)
def test_resume_with_other_sizes_is_refused(saved: Path, setup: Setup, named: str) -> None:
    with pytest.raises(ResumeRefused, match=named):
        Life(setup, saved)


@pytest.mark.parametrize(
    "setup",
    [
        Setup(seed=3),
        Setup(passes=1, prompts_per_step=3),
        Setup(max_in_flight=20, capacity=20, max_age=5, max_failures=9),
    ],
    ids=["seed of no shuffle", "steps", "limits"],
)
def test_resume_with_other_limits_loses_nothing(saved: Path, setup: Setup) -> None:
    assert Life(setup, saved).pull() == [5, 8, 9, 11, 12, 13, 14, 15]


def test_torn_checkpoint_is_refused_and_not_the_latest(saved: Path, tmp_path: Path) -> None:
    life = Life(Setup(), saved)
    life.it.save(tmp_path, 1)
    torn = tmp_path / "checkpoint_000002"
    (torn / "replay_buffer.json").write_text("{}")
    assert FuturesCollector.latest(tmp_path) == saved
    with pytest.raises(ResumeRefused, match="torn"):
        Life(Setup(), torn)


def test_half_a_group_is_answered_again_as_a_whole(tmp_path: Path) -> None:
    setup = Setup(prompts=2, batch_size=2, group_size=2, prompts_per_step=2)
    life = Life(setup)
    life.pull()
    life.finish(1)
    life.rig.engine.finish(0, 1)
    assert len(life.rig.buffer) == 1
    life.it.save(tmp_path, 0)
    again = Life(setup, tmp_path / "checkpoint_000001")
    again.pull()
    assert again.rig.engine.in_flight == [(0, 0), (0, 1)]


def test_rest_of_a_batch_is_carried_over_and_comes_back(tmp_path: Path) -> None:
    setup = Setup(prompts=8, max_in_flight=3)
    life = Life(setup)
    assert life.pull() == [0, 1, 2]
    life.finish(1)
    assert life.in_flight == [0, 2, 3]
    life.finish(0)
    assert (life.in_flight, life.pull()) == ([2, 3], [2, 3, 4])
    life.it.save(tmp_path, 0)
    again = Life(setup, tmp_path / "checkpoint_000001")
    # 0 and 1 wait in the buffer, 5-7 were handed out and not dispatched.
    assert again.pull() == [2, 3, 4]
    again.finish(2, 3, 4)
    assert again.in_flight == [5, 6, 7]


def test_no_more_is_dispatched_than_fits_the_buffer(tmp_path: Path) -> None:
    setup = Setup(prompts=12, capacity=5)
    life = Life(setup)
    assert life.pull() == [0, 1, 2, 3, 4]
    life.finish(0, 1, 2, 3)
    assert life.in_flight == [4]
    life.it.save(tmp_path, 0)
    assert life.it.train_step()
    assert life.in_flight == [4, 5, 6, 7]
    # Room for two now: of the four that are buffered, two stay in the buffer.
    small = Setup(prompts=12, capacity=2, prompts_per_step=2)
    smaller = Life(small, tmp_path / "checkpoint_000001")
    assert (len(smaller.rig.buffer), smaller.in_flight) == (2, [])
    assert smaller.it.train_step()
    first = set(smaller.trained())
    asked = set(smaller.pull(1))
    # The other two are asked for again.
    assert first | asked == {0, 1, 2, 3}
    assert not first & asked


def test_too_old_is_dropped_and_settled() -> None:
    life = Life(Setup(prompts=4, batch_size=1, prompts_per_step=1, max_age=1))
    life.pull()
    life.finish(0)
    assert life.it.train_step()
    life.finish(1)
    assert life.it.train_step()
    life.finish(2, 3)
    # Both are answered by weights 0, and the weights are 2: one too old.
    assert not life.it.train_step()
    assert (life.trained(), life.it.frontier.lowest_unsettled) == ([0, 1], 4)


def test_failed_prompt_is_settled_when_none_of_it_is_in_flight(tmp_path: Path) -> None:
    setup = Setup(prompts=2, batch_size=2, group_size=2, prompts_per_step=1)
    life = Life(setup)
    life.pull()
    life.rig.engine.fail(0, 1)
    assert life.it.frontier.lowest_unsettled == 0
    life.rig.engine.finish(0, 0)
    assert (life.it.frontier.lowest_unsettled, len(life.rig.buffer)) == (1, 0)
    life.it.save(tmp_path, 0)
    assert Life(setup, tmp_path / "checkpoint_000001").pull() == [1]


def test_more_failures_than_tolerated_end_the_run(tmp_path: Path) -> None:
    life = Life(Setup(max_failures=1))
    life.pull(2)
    life.rig.engine.fail(0)
    assert not life.it.train_step()
    life.rig.engine.fail(3)
    with pytest.raises(RuntimeError, match=r"2 generations failed, 1 are tolerated.*row 3 failed"):
        life.it.train_step()
    with pytest.raises(RuntimeError, match="2 generations failed"):
        life.it.save(tmp_path, 0)
    assert not life.it.pull()


def test_full_frontier_stops_the_hand_out() -> None:
    life = RingLife(Setup(batch_size=2, prompts_per_step=2))
    assert life.pull() == [0, 1, 2, 3]
    life.finish(1, 2)
    assert life.it.train_step()
    assert life.pull() == [0, 3]
    life.finish(0, 3)
    assert life.it.train_step()
    assert life.pull() == [4, 5, 6, 7]


def test_full_frontier_does_not_starve_the_trainer(tmp_path: Path) -> None:
    setup = Setup(prompts=8, batch_size=2, prompts_per_step=3)
    life = RingLife(setup)
    life.pull()
    life.finish(1, 2, 3)
    assert life.it.train_step()
    life.finish(0)
    # 0 is buffered, nothing is in flight, and a step takes three: only new prompts help.
    assert life.pull() == [4, 5]
    life.it.save(tmp_path, 1)
    assert Life(setup, tmp_path / "checkpoint_000001").pull() == [4, 5, 6, 7]
    life.finish(4, 5)
    assert life.it.train_step()
    assert life.trained() == [0, 1, 2, 3, 4, 5]
    assert life.pull() == [6, 7]


# -- threads ---------------------------------------------------------------------------------------


class LoaderBreaks(FrontierCollector):
    """Its loader fails on the second batch."""

    def make_loader(self) -> Any:
        rig = self.rig

        class Breaking:
            def __iter__(self) -> Iterator[list[Prompt]]:
                yield list(rig.prompts[:4])
                raise OSError("the disk is gone")

            def state_dict(self) -> dict[str, int]:
                return {}

        return rig.watch(Breaking(), key=lambda batch: [prompt.row for prompt in batch])


class BufferBreaks(FrontierCollector):
    """Its buffer fails in the thread of a generation."""

    def generation_ended(self, ordinal: int, answer: Any) -> None:
        raise OSError("the buffer is gone")


@pytest.mark.parametrize(
    ("collector", "what"),
    [(LoaderBreaks, "the disk is gone"), (BufferBreaks, "the buffer is gone")],
)
def test_error_in_a_thread_is_raised_by_the_next_step(
    collector: type[FrontierCollector], what: str
) -> None:
    report = run(collector, "hand_out 8; finish 0; train; drain")
    assert report.verdict == "error"
    assert what in report.findings[0].text
