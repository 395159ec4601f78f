"""Collectors whose process ends by itself, or does not come to an end."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time

from pytest_resume_audit import FuturesCollector, LiveCursorCollector


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
