"""Training scripts that do one odd thing each: ``python odd.py NAME OUT``."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import ClassVar

from pytest_resume_audit import recorder


class Training:
    """Trains 16 prompts, four a step, in order, and saves behind every step.

    Nothing is ahead of the trainer, so it can lose nothing by itself.
    """

    def __init__(self, out: Path) -> None:
        self.out = out
        self.place = 0

    def run(self) -> None:
        newest = self.newest()
        if newest is not None:
            self.restore(newest)
        while self.place < 16:
            self.step(list(range(self.place, self.place + 4)))
            self.save(self.out / f"{self.place}.json")

    def newest(self) -> Path | None:
        return max(self.out.glob("*.json"), default=None, key=lambda path: int(path.stem))

    def restore(self, checkpoint: Path) -> None:
        self.place = json.loads(checkpoint.read_text())
        recorder.restored(checkpoint)

    def step(self, rows: list[int]) -> None:
        recorder.handed_out(rows)
        recorder.trained(rows)
        self.place += len(rows)

    def save(self, checkpoint: Path) -> None:
        recorder.saving(checkpoint)
        checkpoint.write_text(json.dumps(self.place))
        recorder.saved(checkpoint)


class Exits(Training):
    def step(self, rows: list[int]) -> None:
        super().step(rows)
        print("out of luck", file=sys.stderr)
        sys.exit(3)


class Crashes(Training):
    def step(self, rows: list[int]) -> None:
        super().step(rows)
        ctypes.string_at(0)


class Silent(Training):
    """Never reports, and ends."""

    def run(self) -> None:
        print("nothing to say")


class Waits(Training):
    """Never reports, and does not end."""

    def run(self) -> None:
        print("waiting", flush=True)
        time.sleep(600)


class Stuck(Training):
    """Stands still after its first step."""

    def save(self, checkpoint: Path) -> None:
        threading.Event().wait()


class Talks(Training):
    """Prints more than any pipe holds."""

    def step(self, rows: list[int]) -> None:
        print("x" * 10_000_000)
        super().step(rows)


class SaysHalf(Training):
    """Dies in the middle of a message."""

    def step(self, rows: list[int]) -> None:
        super().step(rows)
        if self.place == 8 and not (self.out / "4.json").with_suffix(".seen").exists():
            line = recorder._audit._line
            os.write(line._connection.fileno(), b"\x00\x00\x10\x00half")
            os.kill(os.getpid(), signal.SIGKILL)


class LeavesProcesses(Training):
    """Starts processes in sessions of their own, one below the other."""

    def run(self) -> None:
        code = (
            "import subprocess, sys; inner = subprocess.Popen(['sleep', '600'], "
            "start_new_session=True); print('started', inner.pid, flush=True); inner.wait()"
        )
        outer = subprocess.Popen(
            [sys.executable, "-c", code], start_new_session=True, stdout=subprocess.PIPE, text=True
        )
        assert outer.stdout is not None
        print("started", outer.pid, "\n" + outer.stdout.readline(), flush=True)
        super().run()


class IgnoresTerm(Training):
    def run(self) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        super().run()


class NeverStops(Stuck):
    """Ignores that it should stop, and does not come to an end."""

    def run(self) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        super().run()


class SavesWhenTold(Training):
    """Saves when it is told to stop, and at no other time: after the step that goes on."""

    def run(self) -> None:
        self.told = False
        signal.signal(signal.SIGTERM, self.tell)
        super().run()

    def tell(self, number: int, frame: object) -> None:
        self.told = True

    def save(self, checkpoint: Path) -> None:
        if self.told:
            super().save(checkpoint)
            sys.exit(0)


class RaisesWhenTold(Training):
    """Breaks off the step that it is in when it is told to stop, and saves what is behind it."""

    def run(self) -> None:
        signal.signal(signal.SIGTERM, self.tell)
        try:
            super().run()
        except KeyboardInterrupt:
            super().save(self.out / f"{self.place}.json")

    def tell(self, number: int, frame: object) -> None:
        raise KeyboardInterrupt

    def save(self, checkpoint: Path) -> None:
        pass


class SavesInItsHandler(Training):
    """Saves in the handler of the signal that tells it to stop, and is gone at once."""

    def run(self) -> None:
        signal.signal(signal.SIGTERM, self.tell)
        super().run()

    def tell(self, number: int, frame: object) -> None:
        super().save(self.out / f"{self.place}.json")
        os._exit(0)

    def save(self, checkpoint: Path) -> None:
        pass


class ReportsInAHandler(Training):
    """Reports in a signal's handler, in the middle of whatever report."""

    def run(self) -> None:
        signal.signal(signal.SIGALRM, lambda number, frame: recorder.handed_out(()))
        send, self.handling = Connection.send, False

        def interrupted(connection: Connection, words: tuple[object, ...]) -> None:
            if not self.handling:
                self.handling = True
                signal.raise_signal(signal.SIGALRM)
                self.handling = False
            send(connection, words)

        Connection.send = interrupted
        super().run()


class SavesBehindItsBack(Training):
    """A thread writes the checkpoint, while training goes on."""

    thread = threading.Thread()

    def save(self, checkpoint: Path) -> None:
        if self.thread.ident is not None:
            self.thread.join()
        recorder.saving(checkpoint)
        self.thread = threading.Thread(target=self.write, args=(checkpoint, self.place))
        self.thread.start()

    def write(self, checkpoint: Path, place: int) -> None:
        staged = checkpoint.with_suffix(".tmp")
        staged.write_text(json.dumps(place))
        staged.rename(checkpoint)
        recorder.saved(checkpoint)


class SeesLaterThatItSaved(Training):
    """Looks at each step whether the save behind the last one is complete."""

    staged: tuple[Path, int] | None = None

    def run(self) -> None:
        super().run()
        self.look()

    def step(self, rows: list[int]) -> None:
        super().step(rows)
        self.look()

    def look(self) -> None:
        if self.staged is not None:
            checkpoint, place = self.staged
            checkpoint.write_text(json.dumps(place))
            recorder.saved(checkpoint)
            self.staged = None

    def save(self, checkpoint: Path) -> None:
        if self.place % 8 == 0:
            recorder.saving(checkpoint)
            self.staged = checkpoint, self.place


class AForkSaves(Training):
    """A fork writes the checkpoint and is waited for; how it ended nobody asks."""

    def save(self, checkpoint: Path) -> None:
        recorder.saving(checkpoint)
        self.in_a_fork(self.write, checkpoint)
        recorder.saved(checkpoint)

    def in_a_fork(self, act: Callable[[Path], None], checkpoint: Path) -> None:
        pid = os.fork()
        if pid == 0:
            act(checkpoint)
            os._exit(0)
        os.waitpid(pid, 0)

    def write(self, checkpoint: Path) -> None:
        staged = checkpoint.with_suffix(".tmp")
        staged.write_text(json.dumps(self.place))
        staged.rename(checkpoint)


class AForkReports(AForkSaves):
    """The same, and the fork reports it too."""

    def save(self, checkpoint: Path) -> None:
        self.in_a_fork(super(AForkSaves, self).save, checkpoint)


class ByALink(Training):
    """Each checkpoint is a directory, and a link leads to the newest."""

    def newest(self) -> Path | None:
        return self.out / "latest" if (self.out / "latest").exists() else None

    def restore(self, checkpoint: Path) -> None:
        self.place = json.loads((checkpoint / "place").read_text())
        recorder.restored(checkpoint)

    def save(self, checkpoint: Path) -> None:
        directory = self.out / f"step-{self.place}"
        recorder.saving(directory)
        directory.mkdir()
        (directory / "place").write_text(json.dumps(self.place))
        staged = self.out / "staged"
        staged.symlink_to(directory.name)
        staged.rename(self.out / "latest")
        recorder.saved(directory)


class ByAFile(ByALink):
    """Says which file of a checkpoint it has restored."""

    def restore(self, checkpoint: Path) -> None:
        file = checkpoint.resolve() / "place"
        self.place = json.loads(file.read_text())
        recorder.restored(file)


class FromItsDirectory(Training):
    """Is at home where its checkpoints are, and names them as they are named there."""

    def run(self) -> None:
        os.chdir(self.out)
        self.out = Path()
        super().run()


class CountsAnew(Training):
    """Its step numbers begin anew with every checkpoint."""

    def step(self, rows: list[int]) -> None:
        recorder.handed_out(rows)
        recorder.trained(rows, step=1)
        self.place += len(rows)


class Connects(Training):
    """Connects to the audit by itself, and says nothing, before a fork trains."""

    def run(self) -> None:
        address, _ = os.environ[recorder.AUDIT].rsplit(" ", 1)
        self.silent = socket.socket(socket.AF_UNIX)
        self.silent.connect(address)
        super().run()

    def step(self, rows: list[int]) -> None:
        if os.fork() == 0:
            super().step(rows)
            os._exit(0)
        os.wait()
        self.place += len(rows)


class ClosesAll(Training):
    """Closes what it has not opened, as a daemon does."""

    def save(self, checkpoint: Path) -> None:
        super().save(checkpoint)
        os.closerange(3, 256)


class Reports(Training):
    """Reports something that is wrong, and takes no notice of what comes of it."""

    wrong: ClassVar[dict[str, Callable[[Training], object]]] = {
        "mask": lambda self: recorder.trained([True, False]),
        "word": lambda self: recorder.trained("01"),
        "one": lambda self: recorder.handed_out(3),
        "step": lambda self: recorder.trained([0], step="1"),
        "too-few": lambda self: recorder.trained([0, 1], generations=[0]),
        "generation": lambda self: recorder.buffered(0, generation=5),
        "no-reason": lambda self: recorder.dropped(0, ""),
        "saved-alone": lambda self: recorder.saved(self.out / "1"),
        "saves-at-once": lambda self: [recorder.saving(self.out / name) for name in "12"],
        "far-hold": lambda self: recorder.hold(99),
        "odd-hold": lambda self: recorder.hold("a"),  # type: ignore[arg-type]
        "no-name": lambda self: recorder.saving(None),  # type: ignore[arg-type]
        "odd-reason": lambda self: recorder.dropped(0, 5),  # type: ignore[arg-type]
        "goes-back": lambda self: recorder.restored(self.out / "0.json"),
    }

    def step(self, rows: list[int]) -> None:
        super().step(rows)
        with contextlib.suppress(Exception):
            self.wrong[sys.argv[3]](self)


class GoesOnAsADaemon(Training):
    """Trains on in a fork once the first step is done, and has ended for whoever waits for it."""

    def step(self, rows: list[int]) -> None:
        super().step(rows)
        if self.place == 4:
            if os.fork():
                os._exit(0)
            os.setsid()


class GoesAStepBack(Training):
    """Restores the weights, and begins a step before them."""

    def restore(self, checkpoint: Path) -> None:
        super().restore(checkpoint)
        self.place -= 4


class SavesAhead(Training):
    """Saves the place of a loader that is a batch ahead of the trainer."""

    def save(self, checkpoint: Path) -> None:
        self.place += 4
        super().save(checkpoint)
        self.place -= 4


class RestoresTwo(Training):
    """Loads the oldest checkpoint and then the newest, and says both."""

    def restore(self, checkpoint: Path) -> None:
        super().restore(min(self.out.glob("*.json"), key=lambda path: int(path.stem)))
        super().restore(checkpoint)


class Refuses(Training):
    """Does not resume what it knows nothing of."""

    def restore(self, checkpoint: Path) -> None:
        sys.exit("checkpoint of another world: start afresh")


class SaysAnother(Training):
    """Says that it has restored what nobody has saved."""

    def restore(self, checkpoint: Path) -> None:
        recorder.restored(self.out / "77.json")


class ForgetsToSay(Training):
    """Restores its weights, and does not say so."""

    def restore(self, checkpoint: Path) -> None:
        self.place = json.loads(checkpoint.read_text())


class TooFar(Training):
    def step(self, rows: list[int]) -> None:
        super().step([row + 100 for row in rows])


class Drops(Training):
    """Fails one prompt and drops one, before its second step."""

    def step(self, rows: list[int]) -> None:
        if self.place == 4:
            recorder.handed_out(rows)
            recorder.failed(rows[0])
            recorder.dropped(rows[0], "its generation failed")
            recorder.dropped(rows[1], "too long")
            recorder.trained(rows[2:])
            self.place += len(rows)
        else:
            super().step(rows)


class Ranks(Training):
    """Two ranks train a half of every step each; the first one saves."""

    def run(self) -> None:
        rank = os.environ.get("RANK")
        if rank is None:
            self.launch()
            return
        self.rank = int(rank)
        super().run()

    def launch(self) -> None:
        """As a launcher does: a process each, in a session of its own."""
        words = [sys.executable, *sys.argv]
        pipes = [os.pipe(), os.pipe()]
        ranks = [
            subprocess.Popen(
                words,
                env={
                    **os.environ,
                    "RANK": str(rank),
                    "MEET": f"{pipes[rank][0]} {pipes[1 - rank][1]}",
                },
                pass_fds=[end for pipe in pipes for end in pipe],
                start_new_session=True,
            )
            for rank in range(2)
        ]
        sys.exit(max(rank.wait() for rank in ranks))

    def step(self, rows: list[int]) -> None:
        mine = rows[self.rank :: 2]
        recorder.handed_out(mine)
        recorder.trained(mine, step=self.place // 4)
        # Each needs the gradients of the other.
        read, write = map(int, os.environ["MEET"].split())
        os.write(write, b"x")
        os.read(read, 1)
        self.place += len(rows)

    def save(self, checkpoint: Path) -> None:
        if self.rank == 0:
            super().save(checkpoint)


class Words(Training):
    """Is told where to go back to, and tells what it was told."""

    def newest(self) -> Path | None:
        print("told:", *sys.argv[3:], flush=True)
        return Path(sys.argv[sys.argv.index("--resume") + 1]) if "--resume" in sys.argv else None


class InTorch(Training):
    """Its weights carry the counts."""

    restores_weights = True

    def run(self) -> None:
        import torch

        self.model = torch.nn.Linear(1, 1)
        recorder.attach(self.model)
        super().run()

    def restore(self, checkpoint: Path) -> None:
        import torch

        state = torch.load(checkpoint)
        if self.restores_weights:
            self.model.load_state_dict(state["model"])
        self.place = state["place"]
        recorder.restored(checkpoint)

    def save(self, checkpoint: Path) -> None:
        import torch

        recorder.saving(checkpoint)
        torch.save({"model": self.model.state_dict(), "place": self.place}, checkpoint)
        recorder.saved(checkpoint)


class LosesWeights(InTorch):
    restores_weights = False


if __name__ == "__main__":
    globals()[sys.argv[1]](Path(sys.argv[2])).run()
