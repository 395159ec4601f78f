"""Collectors whose process ends by itself, or does not come to an end."""

from __future__ import annotations

import asyncio
import ctypes
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from multiprocessing.shared_memory import SharedMemory

from pytest_resume_audit import Collector, FuturesCollector, LiveCursorCollector


class Exits(FuturesCollector):
    def train_step(self):
        print("about to exit", file=sys.stderr, flush=True)
        os._exit(3)


class Crashes(FuturesCollector):
    def train_step(self):
        ctypes.string_at(0)


class RunsOutOfMemory(FuturesCollector):
    """What the system does to it."""

    def train_step(self):
        os.kill(os.getpid(), signal.SIGKILL)


class ExitsInThread(LiveCursorCollector):
    def _generate(self, prompt, generation, ended):
        os._exit(4)


class ExitsInInit(FuturesCollector):
    def __init__(self, rig):
        os._exit(5)


class ExitsInRestore(FuturesCollector):
    def restore(self, checkpoint, *, load_replay_buffer):
        os._exit(6)


class ExitsInSave(FuturesCollector):
    def save(self, root, step):
        os._exit(0)


class Raises(FuturesCollector):
    def train_step(self):
        raise KeyError("no such step")


class RaisesWhatCantTravel(FuturesCollector):
    def train_step(self):
        class Local(Exception):
            pass

        raise Local("held here")


class Spins(FuturesCollector):
    def train_step(self):
        while True:
            pass


class HoldsTheInterpreter(FuturesCollector):
    def train_step(self):
        ctypes.PyDLL(None).sleep(1000)


class WaitsInSave(FuturesCollector):
    def save(self, root, step):
        threading.Event().wait()


class WaitsInStop(FuturesCollector):
    def stop(self):
        time.sleep(1000)


class LeavesAProcess(FuturesCollector):
    """Starts a process, and never ends it."""

    def start(self):
        super().start()
        self.process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
        print(f"started {self.process.pid}")


class LeavesAnotherProcess(LeavesAProcess):
    """Its uninterrupted run is not kept from another test."""


class Stops(FuturesCollector):
    """Leaves a note when it is stopped; without it, it does not resume."""

    def save(self, root, step):
        self.root = root
        super().save(root, step)

    def stop(self):
        (self.root / "stopped").touch()

    def restore(self, checkpoint, *, load_replay_buffer):
        if not (checkpoint.parent / "stopped").exists():
            raise LookupError("it was not stopped")
        super().restore(checkpoint, load_replay_buffer=load_replay_buffer)


class OfThisProcess(FuturesCollector):
    lives = ("local",)


class ExitsInStop(FuturesCollector):
    def stop(self):
        os._exit(5)


class BecomesAnother(FuturesCollector):
    def start(self):
        os.execv(sys.executable, [sys.executable, "-c", "import time; time.sleep(1000)"])


class LeavesASession(FuturesCollector):
    """Starts a process in a session of its own, as servers of models do."""

    def start(self):
        super().start()
        sleeps = [sys.executable, "-c", "import time; time.sleep(1000)"]
        self.process = subprocess.Popen(sleeps, start_new_session=True)
        print(f"started {self.process.pid}")


class AsksInAFork(FuturesCollector):
    """Uses the rig in a process that it forks."""

    def start(self):
        super().start()
        child = multiprocessing.get_context("fork").Process(target=self.rig.point, args=["there"])
        child.start()
        child.join()
        if child.exitcode:
            raise RuntimeError(f"the fork ended with {child.exitcode}")


class ReturnsWhatCantTravel(FuturesCollector):
    def save(self, root, step):
        super().save(root, step)
        return threading.Lock()


def make_local(rig):
    class Local(FuturesCollector):
        pass

    return Local(rig)


class TellsItsPlace(FuturesCollector):
    def start(self):
        super().start()
        print(f"in {os.getcwd()} with {os.environ.get('RUN')}")


class TellsThatItTrains(FuturesCollector):
    """Writes down who it is, and is never done."""

    def train_step(self):
        with open(os.environ["TELL"], "w") as told:
            print(os.getpid(), file=told)
        threading.Event().wait()


# --- exceptions with code of their own ------------------------------------------------------------


class Lies(Exception):
    """Says that it is a text."""

    def __reduce__(self):
        return (str, ("no exception",))


class HasNoText(Exception):
    def __str__(self):
        raise RuntimeError("nothing to say")


class Exits9(Exception):
    def __str__(self):
        raise SystemExit(9)

    __reduce__ = __str__


class TakesTwo(Exception):
    """Can't be made again from what it keeps, as many of those that have arguments."""

    def __init__(self, what, where):
        super().__init__(f"{what} at {where}")


class RaisesLies(FuturesCollector):
    def train_step(self):
        raise Lies("found out")


class RaisesWhatHasNoText(FuturesCollector):
    def train_step(self):
        raise HasNoText


class RaisesWhatExits(FuturesCollector):
    def train_step(self):
        raise Exits9


class RaisesItself(FuturesCollector):
    def train_step(self):
        error = ValueError("round and round")
        error.args = (error,)
        raise error


class RaisesMuch(FuturesCollector):
    def train_step(self):
        raise ValueError("x" * 50_000_000)


class RaisesInThread(FuturesCollector):
    def train_step(self):
        thread = threading.Thread(target=self.fails)
        thread.start()
        thread.join()
        return super().train_step()

    def fails(self):
        raise HasNoText


class RefusesWithTwo(FuturesCollector):
    refuses = (TakesTwo,)

    def restore(self, checkpoint, *, load_replay_buffer):
        raise TakesTwo("another world", 1)


class ChoosesANumber(FuturesCollector):
    @classmethod
    def latest(cls, root):
        return 5


# --- what it has started --------------------------------------------------------------------------


class BecomesADaemon(FuturesCollector):
    """Goes on in a fork that keeps all connections open."""

    def train_step(self):
        if os.fork():
            os._exit(3)
        os.setsid()
        return super().train_step()


class LeavesAFork(FuturesCollector):
    """Has a fork in a session of its own, which keeps all connections open."""

    def start(self):
        super().start()
        if os.fork() == 0:
            os.setsid()
            time.sleep(1000)


class EndsAWorker(FuturesCollector):
    """Ends a worker that it has forked, as a pool does: by a SIGTERM."""

    def save(self, root, step):
        fork = multiprocessing.get_context("fork")
        worker = fork.Process(target=time.sleep, args=(1000,))
        worker.start()
        worker.terminate()
        worker.join()
        super().save(root, step)


class HearsElsewhere(Stops):
    """Its main thread gets no signal: the system gives each to another one."""

    def __init__(self, rig):
        super().__init__(rig)
        threading.Thread(target=threading.Event().wait, daemon=True).start()
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


class HearsElsewhereAfterALoop(HearsElsewhere):
    """The same, once an event loop of its own has heard of a signal, and has ended."""

    def save(self, root, step):
        asyncio.run(self.hear())
        super().save(root, step)

    async def hear(self):
        loop, heard = asyncio.get_running_loop(), asyncio.Event()
        loop.add_signal_handler(signal.SIGUSR1, heard.set)
        os.kill(os.getpid(), signal.SIGUSR1)
        await heard.wait()


class EndsAsShellsDo(Stops):
    """Has a handler of its own, which ends it as one that a SIGTERM has ended."""

    def __init__(self, rig):
        super().__init__(rig)
        signal.signal(signal.SIGTERM, self.end)

    def end(self, number, frame):
        self.stop()
        sys.exit(128 + number)


class OnlyNotes(Stops):
    """Has a handler of its own, which notes that it is to stop, and nobody looks."""

    noted = False

    def __init__(self, rig):
        super().__init__(rig)
        signal.signal(signal.SIGTERM, self.note)

    def note(self, number, frame):
        self.noted = True


class WaitsForAWorker(LiveCursorCollector):
    """A step waits for another process, which nobody looks at."""

    def train_step(self):
        subprocess.run([sys.executable, "-S", "-c", "import time; time.sleep(0.5)"], check=True)
        return super().train_step()


class SharesMemory(FuturesCollector):
    """Has shared memory of a name of its own, which must not be there when it begins."""

    def __init__(self, rig):
        super().__init__(rig)
        self.memory = SharedMemory(f"shared-{os.getppid()}", create=True, size=1)
        self.lock = multiprocessing.get_context("spawn").Lock()


class KillsWhoBeganIt(FuturesCollector):
    def save(self, root, step):
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(1000)


class LeavesAPipe(FuturesCollector):
    """Has names below its root that are no files, and can't make one again that is there."""

    def save(self, root, step):
        super().save(root, step)
        os.mkfifo(root / "pipe")


class PrintsAnAccent(FuturesCollector):
    def save(self, root, step):
        os.write(1, "d\u00e9j\u00e0 vu".encode())
        super().save(root, step)


# --- faults that a death brings about -------------------------------------------------------------


class InOrder(Collector):
    """Trains what it hands out, in order, and answers nothing ahead of the trainer.

    A checkpoint is one directory, written in place: first the place of the loader, then the
    weights.
    """

    def __init__(self, rig):
        self.rig = rig

    def start(self):
        self.batches = iter(self.rig.loader)

    def pull(self):
        batch = next(self.batches, None)
        for prompt in batch or ():
            answer = self.rig.engine.submit(prompt)
            answer.add_done_callback(lambda answer: self.rig.buffer.add(answer.result()))
        return batch is not None

    def save(self, root, step):
        at = root / "step-1"
        if not at.exists():
            at.mkdir()
        self.write_place(at)
        (at / "weights").write_text(json.dumps(self.rig.trainer.state_dict()))

    def write_place(self, at):
        (at / "place").write_text(json.dumps(self.rig.loader.state_dict()))

    def restore(self, checkpoint, *, load_replay_buffer):
        self.rig.trainer.load_state_dict(json.loads((checkpoint / "weights").read_text()))
        if state := self.read_place(checkpoint):
            self.rig.loader.load_state_dict(state)

    def read_place(self, at):
        return json.loads((at / "place").read_text())


class NeverFlushes(InOrder):
    """Writes places through a buffer, which only a graceful end writes out."""

    file = None

    def write_place(self, at):
        self.file = self.file or (at / "place").open("a")
        print(json.dumps(self.rig.loader.state_dict()), file=self.file)

    def stop(self):
        if self.file is not None:
            self.file.close()

    def read_place(self, at):
        lines = (at / "place").read_text().splitlines()
        return json.loads(lines[-1]) if lines else None


class InAGlobal(InOrder):
    """Keeps the place where only its own process has it."""

    places: list[dict[str, int]] = []  # noqa: RUF012

    def write_place(self, at):
        self.places.append(self.rig.loader.state_dict())

    def read_place(self, at):
        return self.places[-1] if self.places else None
