"""When a life is at rest: everything that was let through has happened.

A life is at rest when no thread of it is inside a granted call, and two looks at every thread
find each asleep with an unchanged run count. On Linux the looks are at ``/proc/self/task``: a
thread that waits for the interpreter's lock is woken whenever a look lets go of that lock, so it
is seen running. Elsewhere the Python frames are looked at, more slowly, and repeatability is not
promised.
"""

from __future__ import annotations

import contextlib
import os
import struct
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from pytest_resume_audit.control import Control

POLL_HORIZON = 0.1
"""Seconds: a timed wait that ends within it belongs to a poller, which must wake once more
before the life counts as at rest. Longer ones are awaited only before a conclusion."""

_TASKS = "/proc/self/task"


class NotAtRest(Exception):
    """The deadline passed without the life having come to rest."""


class Look(Protocol):
    """One way of looking at the threads of a life."""

    name: str

    def threads(self) -> dict[int, int] | None:
        """The run count of each thread by native id; None when one of them is running."""

    def timed_wait(self, thread: int) -> float | None:
        """Seconds that a sleeping thread still waits at the most; None without a limit."""

    def close(self) -> None:
        """Give back what the look holds open."""


def look_at(ignored: frozenset[int], parked: set[int]) -> Look:
    """The way of looking that this system offers.

    Args:
        ignored: native ids of threads that are not the life's.
        parked: native ids of threads that stand at a gate of ours; kept up to date elsewhere.
    """
    if os.path.exists(f"{_TASKS}/{threading.get_native_id()}/schedstat"):
        return ProcLook(ignored, parked)
    return FrameLook(ignored, parked)


def native_threads() -> frozenset[int]:
    """Native ids of every thread of this process."""
    with contextlib.suppress(OSError):
        return frozenset(int(task) for task in os.listdir(_TASKS))
    return frozenset(t.native_id for t in threading.enumerate() if t.native_id is not None)


class Rest:
    """Waits until a life is at rest.

    Args:
        control: the life.
        look: how its threads are looked at.
        deadline: seconds without any progress after which waiting ends.
    """

    def __init__(self, control: Control, look: Look, deadline: float) -> None:
        self._control = control
        self._look = look
        self._deadline = deadline

    def wait(self, *, conclude: bool = False) -> None:
        """Wait until the life is at rest.

        Args:
            conclude: also let every thread in a timed wait wake once, however long it waits
                (up to the deadline): asked for before something is called impossible, stuck
                or finished.

        Raises:
            NotAtRest: when the deadline passes without progress.
        """
        patience = _Patience(self._control, self._deadline)
        horizon = self._deadline if conclude else POLL_HORIZON
        while True:
            counts = self._all_asleep(patience)
            pollers = {
                thread
                for thread in counts
                if (left := self._look.timed_wait(thread)) is not None and left <= horizon
            }
            if not pollers or self._have_woken(pollers, counts, patience):
                return

    def _all_asleep(self, patience: _Patience) -> dict[int, int]:
        """The run counts once two looks in a row find the same and nobody running."""
        before: dict[int, int] | None = None
        while True:
            activity = self._control.activity
            counts = self._look.threads()
            if counts is None or self._control.inside:
                before = None
                patience.lose()
            elif counts == before and activity == self._control.activity:
                return counts
            else:
                before = counts

    def _have_woken(self, pollers: set[int], asleep: dict[int, int], patience: _Patience) -> bool:
        """Let each poller wake as often as there are pollers: one may hand on to the next.

        Returns:
            False when anything else moved meanwhile: then all has to be looked at anew.
        """
        activity = self._control.activity
        woken = dict.fromkeys(pollers, 0)
        before = asleep
        while True:
            counts = self._look.threads()
            if self._control.activity != activity:
                return False
            if counts is None:
                patience.lose()
                continue
            if counts.keys() != asleep.keys():
                return False
            for thread, count in counts.items():
                if thread in pollers:
                    woken[thread] += count > before[thread]
                elif count != asleep[thread]:
                    return False
            if counts == before and all(times >= len(pollers) for times in woken.values()):
                return True
            if counts == before:
                patience.lose()
            before = counts


class _Patience:
    """Counts down from the last progress, and leaves the processor to whoever works."""

    def __init__(self, control: Control, deadline: float) -> None:
        self._control = control
        self._deadline = deadline
        self._activity = control.activity
        self._since = time.monotonic()

    def lose(self) -> None:
        """Wait a little.

        Raises:
            NotAtRest: when there has been no progress for too long.
        """
        now = time.monotonic()
        if self._control.activity != self._activity:
            self._activity, self._since = self._control.activity, now
        waited = now - self._since
        if waited > self._deadline:
            raise NotAtRest
        # Short at first, since most of what is let through is done at once.
        time.sleep(0 if waited < 0.002 else min(0.001, waited / 20))


@dataclass
class _Task:
    """The files of one thread, kept open."""

    state: int
    schedule: int

    def close(self) -> None:
        os.close(self.state)
        os.close(self.schedule)


@dataclass
class ProcLook:
    """Looks at ``/proc/self/task``."""

    ignored: frozenset[int]
    parked: set[int]
    name: str = "proc"
    _root: int = field(default_factory=lambda: os.open(_TASKS, os.O_RDONLY))
    _links: int = -1
    _known: set[int] = field(default_factory=set)
    _open: dict[int, _Task] = field(default_factory=dict)

    def threads(self) -> dict[int, int] | None:
        """The run count of each thread by native id; None when one of them is running."""
        links = os.fstat(self._root).st_nlink
        if links != self._links:
            self._known = {int(task) for task in os.listdir(_TASKS)} - self.ignored
            self._links = links
        counts: dict[int, int] = {}
        for thread in self._known:
            if thread in self.parked:
                continue
            try:
                task = self._open.get(thread) or self._open_task(thread)
                state = os.pread(task.state, 512, 0)
                if state[state.rindex(b")") + 2 :][:1] != b"S":
                    return None
                counts[thread] = int(os.pread(task.schedule, 64, 0).rsplit(None, 1)[1])
            except (OSError, ValueError, IndexError):
                # It ended while it was looked at.
                self._links = -1
                if thread in self._open:
                    self._open.pop(thread).close()
                return None
        return counts

    def _open_task(self, thread: int) -> _Task:
        state = os.open(f"{_TASKS}/{thread}/stat", os.O_RDONLY)
        try:
            task = _Task(state, os.open(f"{_TASKS}/{thread}/schedstat", os.O_RDONLY))
        except OSError:
            os.close(state)
            raise
        self._open[thread] = task
        return task

    def timed_wait(self, thread: int) -> float | None:
        """Seconds that a sleeping thread still waits at the most; None without a limit."""
        try:
            call = Path(f"{_TASKS}/{thread}/syscall").read_text().split()
        except OSError:
            # Hidden from us, or the thread has ended: unknown counts as about to wake.
            return 0.0
        if not call or not call[0].isdigit():
            return 0.0
        waits = _WAITS.get(os.uname().machine, {}).get(int(call[0]))
        return None if waits is None else waits([int(word, 16) for word in call[1:7]])

    def close(self) -> None:
        """Give back what the look holds open."""
        os.close(self._root)
        for task in self._open.values():
            task.close()


def _futex(args: list[int]) -> float | None:
    operation, pointer = args[1], args[3]
    if not pointer:
        return None
    length = _seconds_at(pointer)
    if operation & 0x7F == 9:  # FUTEX_WAIT_BITSET takes a point in time
        return length - (time.time() if operation & 0x100 else time.monotonic())
    return length


def _nanosleep(args: list[int]) -> float | None:
    length = _seconds_at(args[2])
    return length - time.monotonic() if args[1] & 1 else length


def _milliseconds(position: int) -> Callable[[list[int]], float | None]:
    def read(args: list[int]) -> float | None:
        length = args[position] & 0xFFFFFFFF
        return None if length >= 0x80000000 else length / 1000

    return read


def _timespec(position: int) -> Callable[[list[int]], float | None]:
    return lambda args: _seconds_at(args[position]) if args[position] else None


def _seconds_at(address: int) -> float:
    # Our own memory, read through a file: the thread may go on meanwhile, and a pointer that
    # is no longer valid is an error here, not a crash.
    try:
        with open("/proc/self/mem", "rb", buffering=0) as memory:
            memory.seek(address)
            seconds, nanoseconds = struct.unpack("qq", memory.read(16))
    except (OSError, struct.error, OverflowError, ValueError):
        return 0.0
    return float(seconds + nanoseconds * 1e-9)


_WAITS: dict[str, dict[int, Callable[[list[int]], float | None]]] = {
    "x86_64": {
        202: _futex,
        230: _nanosleep,
        35: _timespec(0),
        232: _milliseconds(3),
        281: _milliseconds(3),
        7: _milliseconds(2),
        271: _timespec(2),
        270: _timespec(4),
    },
    "aarch64": {
        98: _futex,
        115: _nanosleep,
        101: _timespec(0),
        22: _milliseconds(3),
        73: _timespec(2),
        72: _timespec(4),
    },
}
"""How long a system call waits, by machine and number."""


@dataclass
class FrameLook:
    """Looks at where each thread stands in its Python code, several times."""

    ignored: frozenset[int]
    parked: set[int]
    name: str = "frames"

    def threads(self) -> dict[int, int] | None:
        """Where each thread stands, as a number; None when one of them moved."""
        places = self._places()
        for _ in range(10):
            time.sleep(0.002)
            if self._places() != places:
                return None
        return places

    def _places(self) -> dict[int, int]:
        frames = sys._current_frames()
        return {
            thread.native_id: hash((id(frames[thread.ident]), frames[thread.ident].f_lasti))
            for thread in threading.enumerate()
            if thread.native_id is not None
            and thread.native_id not in self.ignored
            and thread.native_id not in self.parked
            and thread.ident in frames
        }

    def timed_wait(self, thread: int) -> float | None:
        """Not known here: the look itself takes as long as pollers sleep."""
        return None

    def close(self) -> None:
        """Nothing is held open."""
