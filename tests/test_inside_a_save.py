"""What happens inside of a save: races at its points, and deaths before its file operations."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import time

import pytest

from pytest_resume_audit import (
    Collector,
    FrontierCollector,
    FuturesCollector,
    LiveCursorCollector,
    SelfDrivenCollector,
    conductor,
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
    with watch_files(root, lambda what, path: seen.append(f"{what} {path}")):
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
    with watch_files(tmp_path, lambda what, path: seen.append(f"{what} {path}")):
        torch.save({"weights": torch.zeros(2)}, tmp_path / "weights.pt")
        torch.save({}, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    assert seen == ["open weights.pt", "open old.pt"]
    torch.save({}, tmp_path / "weights.pt")
    assert len(seen) == 2, "nothing is watched any more"


def test_what_is_raised_before_an_operation_prevents_it(tmp_path):
    class Stop(Exception):
        pass

    def stop(what, path):
        raise Stop(f"{what} {path}")

    with watch_files(tmp_path, stop), pytest.raises(Stop, match="mkdir a"):
        (tmp_path / "a").mkdir()
    assert not (tmp_path / "a").exists()


# --- every point of a save ----------------------------------------------------------------------

EVERY_RACE = RACE.replace(" at {k}", "")
EVERY_DEATH = DEATH.replace(" at {k}", "")
EVERY_TORN = DEATH.replace("at {k}", "torn each")


def test_a_race_without_a_point_is_run_at_every_point():
    report = run(FrontierCollector, EVERY_RACE)
    assert report.verdict == "lossless"
    # Weights and buffer are read under the lock, files are written without it.
    assert [(point.where, point.kept_out) for point in report.points] == [
        ("before Trainer.state_dict", ("finish 5 6",)),
        ("before ReplayBuffer.state_dict", ("finish 5 6",)),
        ("before mkdir .checkpoint_000001.tmp", ()),
        ("before open .checkpoint_000001.tmp/weights.json", ()),
        ("before open .checkpoint_000001.tmp/replay_buffer.json", ()),
        ("before open .checkpoint_000001.tmp/dataloader.json", ()),
        ("before open .checkpoint_000001.tmp/frontier.json", ()),
        ("before open .checkpoint_000001.tmp/manifest.json", ()),
        ("before rename to checkpoint_000001", ()),
    ]
    assert {point.verdict for point in report.points} == {"lossless"}
    assert report.points[2].step == "save racing (finish 5 6; hand_out 12) at 3"
    assert "raced inside a save" in report.states
    assert report.unreached is None


def test_of_every_point_the_worst_is_reported():
    report = run(LiveCursorCollector, EVERY_RACE)
    # As worked out above, point by point: from the fourth on nothing is read any more.
    assert len(report.points) == 9
    assert report.verdict == "lossy"
    assert report.timeline == report.points[0].timeline
    assert [run(LiveCursorCollector, point.timeline).skipped for point in report.points[1:4]] == [
        [7, 8, 9, 10, 11],
        [5, 6, 7, 8, 9, 10, 11],
        [5, 6, 7],
    ]


def test_a_race_that_is_kept_out_at_every_point_is_unreached():
    class Locked(FrontierCollector):
        def save(self, root, step):
            with self.lock:
                super().save(root, step)

    report = run(Locked, EVERY_RACE.replace("; hand_out 12", ""))
    assert report.verdict == "lossless"
    assert all(point.kept_out == ("finish 5 6",) for point in report.points)
    assert "raced inside a save" not in report.states


def test_a_save_without_a_point_is_unreached():
    class SavesNothing(FuturesCollector):
        def save(self, root, step):
            pass

    report = run(SavesNothing, EVERY_DEATH)
    assert report.points == ()
    assert any(missed.why == "the save has no file operation" for missed in report.missed)


@pytest.mark.parametrize("collector", [FrontierCollector, FuturesCollector])
def test_one_save_gives_every_death(collector):
    report = run(collector, EVERY_DEATH)
    assert report.verdict == "lossless"
    # Before the directory is made, before each of its five files, before it gets its name.
    assert [point.where.split()[1] for point in report.points] == ["mkdir", *["open"] * 5, "rename"]
    assert report.points[3].timeline == run(collector, DEATH.format(k=4)).timeline
    assert report.unreached is None


def test_each_death_of_one_save_is_that_of_a_save_of_its_own():
    for point in run(InPlace, IN_PLACE.replace(" at {k}", "")).points:
        alone = run(InPlace, point.timeline)
        assert (alone.verdict, alone.passed) == (point.verdict, point.passed)


IN_PLACE = "hand_out 8; finish 0-3; train; save; finish 4-7; train; crash in save at {k}; restart"


def test_a_file_overwritten_in_place_is_lossy_at_one_death_of_three():
    report = run(InPlace, IN_PLACE.replace(" at {k}", ""))
    # The directory is there; between the two files the weights are new and the place is old.
    assert [(point.where, point.verdict) for point in report.points] == [
        ("before mkdir latest1", "lossless"),
        ("before open latest1/weights.json", "lossless"),
        ("before open latest1/rest.json", "lossy"),
    ]
    assert report.duplicated == [4, 5, 6, 7]


# --- torn files ---------------------------------------------------------------------------------


def test_the_new_way_passes_over_a_torn_checkpoint():
    report = run(FuturesCollector, EVERY_TORN)
    assert report.demand == "lossless or refused"
    assert report.verdict == "lossless"
    # Five files, each torn in two ways before the next operation, the last also behind the end.
    assert len(report.points) == 2 * 6
    assert report.points[-1].where == (
        "behind the last operation, with checkpoint_000002/manifest.json cut to half"
    )
    assert run(FuturesCollector, report.points[-1].timeline).history.lives[1].origin == 1


@pytest.mark.parametrize("collector", [FrontierCollector, FuturesCollector, LiveCursorCollector])
def test_where_the_only_checkpoint_is_torn_a_restart_is_refused(collector):
    script = "hand_out 4; finish 0-3; train; crash in save torn each; restart"
    report = run(collector, script)
    assert report.passed
    *before, empty, half = report.points
    assert {point.verdict for point in before} == {"lossless"}, "nothing was published: all afresh"
    assert (empty.verdict, half.verdict) == ("refused", "refused")


def test_a_torn_file_that_raises_is_refused_loudly_enough():
    report = run(InPlace, IN_PLACE.replace("at {k}", "torn each"))
    torn = [point.verdict for point in report.points if "cut" in point.where]
    # Its JSON can't be read at all: the run stops. It is no way out, but nothing is lost unseen.
    assert torn == ["refused"] * 4
    assert report.passed


class Afresh(InPlace):
    """Begins afresh when its checkpoint can't be read, and says nothing: a fault (B4)."""

    @classmethod
    def latest(cls, root):
        newest = super().latest(root)
        try:
            for name in PARTS if newest else ():
                json.loads((newest / f"{name}.json").read_text())
        except ValueError:
            return None
        return newest


def test_a_run_that_begins_afresh_in_silence_is_lossy():
    report = run(Afresh, "hand_out 4; finish 0-3; train; crash in save torn each; restart")
    assert report.verdict == "lossy"
    assert report.findings[0].text.startswith("silent restart: life 2 began afresh")
    assert [point.verdict for point in report.points] == ["lossless", "lossless", "lossy", "lossy"]


class Rubbish(InPlace):
    """Takes an empty file of weights for weights that are not there yet: a fault."""

    def restore(self, checkpoint, *, load_replay_buffer):
        weights = checkpoint / "weights.json"
        if not weights.read_text():
            weights.write_text(json.dumps(self.weights()))
        super().restore(checkpoint, load_replay_buffer=load_replay_buffer)


def test_a_run_that_goes_on_from_rubbish_is_lossy():
    script = IN_PLACE.replace("crash in save at {k}", "crash in save at 3 torn empty")
    report = run(Rubbish, script)
    # The weights of both steps are gone, the place is that of save 1.
    assert report.skipped == [0, 1, 2, 3]
    assert not report.passed


def test_a_file_that_changes_without_an_operation_is_named(tmp_path):
    class FromOutside(FuturesCollector):
        def save(self, root, step):
            (root / "side").mkdir(exist_ok=True)
            write = f"open({str(root / 'side' / 'file')!r}, 'w').write('1')"
            subprocess.run([sys.executable, "-c", write], check=True)
            super().save(root, step)

    report = run(FromOutside, DEATH.format(k=2))
    assert report.history.saves[1].unseen == ("side/file",)
    assert "no operation was seen for" in str(report)
    assert "side/file" in str(report)


def test_numpy_pickle_and_safetensors_are_seen(tmp_path):
    numpy = pytest.importorskip("numpy")
    safetensors = pytest.importorskip("safetensors.numpy")
    seen = []
    with watch_files(tmp_path, lambda what, path: seen.append(f"{what} {path}")):
        numpy.save(tmp_path / "a.npy", numpy.zeros(2))
        numpy.savez(tmp_path / "b.npz", weights=numpy.zeros(2))
        numpy.zeros(2).tofile(tmp_path / "c")
        with (tmp_path / "d.pkl").open("wb") as file:
            pickle.dump([1], file)
        safetensors.save_file({"weights": numpy.zeros(2)}, tmp_path / "e.safetensors")
        numpy.memmap(tmp_path / "f", mode="w+", shape=(2,)).flush()
    assert seen == [
        "open a.npy",
        "open b.npz",
        "open c",
        "open d.pkl",
        "open e.safetensors",
        "open f",
    ]


class PulledOldWay(LiveCursorCollector):
    """The old way, pulled from by whoever saves; its answers come in threads."""

    def start(self):
        self.batches = iter(self.loader)

    def pull(self):
        batch = next(self.batches, None)
        for prompt in batch or ():
            self._dispatch(prompt)
        return batch is not None


def test_who_saves_does_not_pull_meanwhile():
    script = "hand_out 8; finish 0-3; train; save racing (hand_out 12; finish 5) at 4; crash; "
    report = run(PulledOldWay, script + "restart")
    (save,) = report.history.saves
    assert (save.raced, save.kept_out) == (("finish 5",), ("hand_out 12",))
    # At the save 4-7 are out, and the loader at 8; what ends after the buffer was read is lost.
    assert report.skipped == [4, 5, 6, 7]


class Synced(InPlace):
    """The same files, each on the disk before the next is begun."""

    def save(self, root, step):
        super().save(root, step)
        for name in PARTS:
            with (root / "latest1" / f"{name}.json").open("rb") as file:
                os.fsync(file.fileno())


def test_what_is_synced_to_the_disk_is_not_torn():
    script = "hand_out 4; finish 0-3; train; crash in save torn each; restart"
    behind = [p for p in run(InPlace, script).points if p.where.startswith("behind")]
    assert len(behind) == 2
    # Between its two files it can be torn as before; behind the syncs nothing is left to tear.
    synced = run(Synced, script).points
    assert [p.where for p in synced if p.where.startswith("behind")] == []
    assert len(synced) == len(run(InPlace, script).points) - 2


class Sleepy(LiveCursorCollector):
    """Is asleep for a while between two points of its save."""

    def save(self, root, step):
        self.rig.point("asleep next")
        time.sleep(0.2)
        self.rig.point("awake")
        super().save(root, step)


def test_a_save_that_sleeps_comes_to_its_point_all_the_same():
    script = "hand_out 8; finish 0-3; train; save racing (finish 5; hand_out 12) at 2; crash; "
    report = run(Sleepy, script + "restart")
    (save,) = report.history.saves
    assert save.raced_at == "Rig.point"
    assert save.raced == ("finish 5", "hand_out 12")
    # All of it comes before anything is read: 5 is buffered, the loader stands at 12.
    assert report.skipped == [4, 6, 7, 8, 9, 10, 11]


class Growing(LiveCursorCollector):
    """Each save has one more point than the one before: there is always another."""

    more = 0

    def save(self, root, step):
        type(self).more += 1
        for _ in range(self.more):
            self.rig.point("again")
        super().save(root, step)


def test_a_save_that_grows_is_not_gone_through_for_ever(monkeypatch):
    monkeypatch.setattr(conductor, "MOST_POINTS", 5)
    script = "hand_out 8; finish 0-3; train; save racing (finish 5); crash; restart"
    assert len(run(Growing, script).points) == 5
