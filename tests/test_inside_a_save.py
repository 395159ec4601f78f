"""What happens inside of a save: races at its points, and deaths before its file operations."""

from __future__ import annotations

import json
import os

import pytest

from pytest_resume_audit import (
    Collector,
    FrontierCollector,
    FuturesCollector,
    LiveCursorCollector,
    SelfDrivenCollector,
    run,
)
from pytest_resume_audit.savepoints import watch_files

RACE = (
    "hand_out 8; finish 0-3; train; finish 4; "
    "save racing (finish 5 6; hand_out 12) at {k}; crash; restart; drain"
)
DEATH = "hand_out 8; finish 0-3; train; save; hand_out 12; finish 4; crash in save at {k}; restart"


@pytest.mark.parametrize(
    ("k", "skipped", "because"),
    [
        # The old way reads weights, buffer and loader, in this order, and then writes files.
        (1, [7, 8, 9, 10, 11], "before the weights: 5 and 6 are buffered, loader at 12"),
        (2, [7, 8, 9, 10, 11], "before the buffer: the same"),
        (3, [5, 6, 7, 8, 9, 10, 11], "torn: the buffer is read without 5 and 6, the loader at 12"),
        (4, [5, 6, 7], "all is read: 4 is buffered, loader at 8"),
    ],
)
def test_the_old_way_is_torn_by_what_comes_between_its_reads(k, skipped, because):
    report = run(LiveCursorCollector, RACE.format(k=k))
    assert report.skipped == skipped, because
    assert report.history.saves[0].raced == ("finish 5 6", "hand_out 12")
    assert "raced inside a save" in report.states


def test_the_new_way_is_whole_at_every_point():
    for k in range(1, 100):
        report = run(FrontierCollector, RACE.format(k=k))
        if report.unreached is not None:
            break
        assert report.verdict == "lossless", report
        save = report.history.saves[0]
        assert {*save.raced, *save.kept_out} == {"finish 5 6", "hand_out 12"}
    assert k > 2
    assert f"the save has only {k - 1} points" in report.unreached


def test_what_a_lock_keeps_out_is_neither_reached_nor_a_hang():
    """The new way reads weights, buffer and frontier under its lock: an answer has to wait."""
    report = run(FrontierCollector, RACE.format(k=1))
    (save,) = report.history.saves
    assert save.kept_out == ("finish 5 6",)
    assert report.verdict == "lossless"
    assert report.missed == ()
    assert report.gated


def test_nothing_comes_between_in_a_single_thread():
    report = run(FuturesCollector, RACE.format(k=1))
    assert report.verdict == "lossless"
    assert report.unreached is not None
    assert "single-threaded" in report.unreached


@pytest.mark.parametrize("collector", [FrontierCollector, FuturesCollector])
def test_the_new_way_falls_back_wherever_its_save_dies(collector):
    died_at = []
    for k in range(1, 100):
        report = run(collector, DEATH.format(k=k))
        if report.unreached is not None:
            break
        assert report.verdict == "lossless", report
        # Save 1 is the newest that was published: nothing else is restarted from.
        assert report.history.lives[1].origin == 1
        died_at.append(report.history.saves[1].died_at)
        assert "died between writes" in report.states
    # Before the directory is made, before each of its five files, before it gets its name.
    assert [what.split()[0] for what in died_at] == ["mkdir", *["open"] * 5, "rename"]


def test_the_old_way_falls_back_too_and_loses_what_was_out_at_the_first_save():
    for k in range(1, 7):
        report = run(LiveCursorCollector, DEATH.format(k=k))
        # At save 1 0-3 are trained, and 4-7 in flight; the loader is at 8.
        assert report.skipped == [4, 5, 6, 7]
    (missed,) = run(LiveCursorCollector, DEATH.format(k=7)).missed
    assert missed.why == "the save has only 6 file operations"


class InPlace(FuturesCollector):
    """Writes its two files one after the other, in place: a fault (weights newer than place)."""

    def save(self, root, step):
        checkpoint = root / "latest1"
        checkpoint.mkdir(exist_ok=True)
        (checkpoint / "weights.json").write_text(json.dumps(self.weights()))
        rest = {"frontier": self.frontier.state_dict(), "buffer": self.rig.buffer.state_dict()}
        (checkpoint / "rest.json").write_text(json.dumps(rest))

    def restore(self, checkpoint, *, load_replay_buffer):
        read = {name: json.loads((checkpoint / f"{name}.json").read_text()) for name in PARTS}
        self._restore(
            {"weights": read["weights"], "frontier": read["rest"]["frontier"],
             "replay_buffer": read["rest"]["buffer"]},
            load_replay_buffer,
        )  # fmt: skip

    @classmethod
    def latest(cls, root):
        return Collector.latest.__func__(cls, root)


PARTS = ("weights", "rest")


def test_a_checkpoint_that_is_overwritten_in_place_is_found_torn():
    script = "hand_out 8; finish 0-3; train; save; finish 4-7; train; crash in save at {k}; restart"
    # Making the directory and opening the weights come first: all is as save 1 left it.
    assert run(InPlace, script.format(k=2)).duplicated == []
    # The weights of both steps, the place of the first: 4-7 are trained again.
    assert run(InPlace, script.format(k=3)).duplicated == [4, 5, 6, 7]


class Looping(SelfDrivenCollector):
    """A loop that answers a batch, trains on it and saves: nothing is out when it does."""

    def run(self, root, *, resume, load_replay_buffer):
        rig = self.rig
        if resume is not None:
            state = json.loads((resume / "state.json").read_text())
            rig.trainer.load_state_dict(state["weights"])
            rig.loader.load_state_dict(state["loader"])
            rig.restored(resume)
        for batch in rig.loader:
            rig.trainer.train([rig.engine.generate(prompt) for prompt in batch])
            checkpoint = root / f"step_{rig.trainer.weight_version}"
            rig.saving(checkpoint)
            checkpoint.mkdir()
            state = {"weights": rig.trainer.state_dict(), "loader": rig.loader.state_dict()}
            (checkpoint / "state.json").write_text(json.dumps(state))
            rig.saved(checkpoint)


ONE_STEP = "hand_out 4; finish 0; finish 1; finish 2; finish 3; "


def test_a_race_inside_the_save_of_a_self_driven_collector():
    script = ONE_STEP + "save racing (hand_out 8) at 1; crash; restart"
    report = run(Looping, script)
    assert report.verdict == "lossless", report
    # The thread that would take the batch is the one that saves.
    assert report.history.saves[0].kept_out == ("hand_out 8",)
    points = run(Looping, script.replace("at 1", "at 9")).unreached
    # mkdir, the state of trainer and loader, the file.
    assert "the save has only 4 points" in points


def test_a_self_driven_collector_that_dies_in_its_save():
    two_steps = ONE_STEP + "save; hand_out 8; finish 4; finish 5; finish 6; finish 7; "
    before = run(Looping, two_steps + "crash in save at 1; restart")
    assert before.verdict == "lossless", before
    assert before.rolled_back == [4, 5, 6, 7]
    # The directory is there and its file is not: it is chosen all the same, though the one
    # before it is complete.
    torn = run(Looping, two_steps + "crash in save at 2; restart")
    assert torn.verdict == "refused"
    assert isinstance(torn.error, FileNotFoundError)


def test_every_kind_of_file_operation_is_seen(tmp_path):
    seen = []
    outside = tmp_path / "outside"
    root = tmp_path / "root"
    for directory in (outside, root):
        directory.mkdir()
    (outside / "file").write_text("")
    with watch_files(root, seen.append):
        (root / "a").mkdir()
        (root / "a" / "b").write_text("1")
        (root / "a" / "b").read_text()
        os.replace(root / "a" / "b", root / "a" / "c")
        os.rename(outside / "file", root / "moved")
        os.symlink("a", root / "link")
        os.link(root / "moved", root / "other")
        with (root / "moved").open("r+") as file:
            os.ftruncate(file.fileno(), 0)
        os.truncate(root / "moved", 0)
        (root / "link").unlink()
        (root / "a" / "c").unlink()
        (root / "a").rmdir()
        (outside / "new").write_text("not below the root")
    assert seen == [
        "mkdir a",
        "open a/b",
        "rename to a/c",
        "rename to moved",
        "symlink link",
        "link other",
        "open moved",
        "truncate moved",
        "truncate moved",
        "remove link",
        "remove a/c",
        "rmdir a",
    ]


def test_what_torch_writes_from_cpp_is_seen(tmp_path):
    torch = pytest.importorskip("torch", reason="torch writes from C++")
    seen = []
    with watch_files(tmp_path, seen.append):
        torch.save({"weights": torch.zeros(2)}, tmp_path / "weights.pt")
        torch.save({}, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    assert seen == ["open weights.pt", "open old.pt"]
    torch.save({}, tmp_path / "weights.pt")
    assert len(seen) == 2, "nothing is watched any more"


def test_what_is_raised_before_an_operation_prevents_it(tmp_path):
    class Stop(Exception):
        pass

    def stop(what):
        raise Stop(what)

    with watch_files(tmp_path, stop), pytest.raises(Stop, match="mkdir a"):
        (tmp_path / "a").mkdir()
    assert not (tmp_path / "a").exists()
