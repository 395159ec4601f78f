"""When a life is at rest: everything that was let through has happened.

A life is at rest when no thread of it is inside a granted call, and two looks at every thread
find each asleep with an unchanged run count. On Linux the looks are at ``/proc/self/task``: a
thread that waits for the interpreter's lock is told from others by the address that it waits at,
and counts as working. Elsewhere the Python frames are looked at, more slowly, and repeatability
is not promised.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import struct
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from pytest_resume_audit.control import Control
from pytest_resume_audit.frames import places

POLL_HORIZON = 0.1
"""Seconds: a timed wait that ends within it belongs to a poller, which must wake once more
before the life counts as at rest. Longer ones are awaited only before a conclusion."""

STEADY_ROUNDS = 20
"""Times that every poller must wake where that moves other threads of the life each time: what it
hands on to them, one thing a time, may come to something by then."""

_NAP = 0.002
"""Seconds between two looks at the frames of a life."""

_BURST = 0.008
"""Seconds of computing in which others that want to run as well get their turn."""

_TASKS = "/proc/self/task"
_LAST_BORN = "/proc/loadavg"


class NotAtRest(Exception):
    """The deadline passed without the life having come to rest."""


class Look(Protocol):
    """One way of looking at the threads of a life."""

    name: str

    def counts(self) -> dict[int, object]:
        """Something of each thread, by native id, that changes whenever it has run."""

    def asleep(self) -> bool:
        """Whether every one of them is asleep."""

    def timed_wait(self, thread: int) -> float | None:
        """Seconds that a sleeping thread still waits at the most; None without a limit."""

    def works(self, thread: int) -> bool:
        """Whether a thread has woken, or only sleeps until it gets the interpreter."""

    def only_polls(self) -> bool:
        """Whether all that runs only looks for work, where no thread can be asked how it waits."""

    def close(self) -> None:
        """Give back what the look holds open."""


def look_at(ignored: frozenset[int], parked: set[int]) -> Look:
    """The way of looking that this system offers.

    Args:
        ignored: native ids of threads that are not the life's.
        parked: native ids of threads that stand at a gate of ours; kept up to date elsewhere.
    """
    return ProcLook(ignored, parked) if has_proc() else FrameLook(ignored, parked)


def has_proc() -> bool:
    """Whether this system tells of its threads what :class:`ProcLook` looks at."""
    needed = (f"{_TASKS}/{threading.get_native_id()}/schedstat", _LAST_BORN)
    return all(map(os.path.exists, needed))


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
        patience = Patience(self._control, self._deadline)
        while True:
            at = self._at_rest(POLL_HORIZON, STEADY_ROUNDS, patience)
            if at is not None and (
                not conclude or self._at_rest(self._deadline, 0, patience) == at
            ):
                return

    def _at_rest(self, horizon: float, steady_rounds: int, patience: Patience) -> int | None:
        """Let whoever wakes within some seconds do so.

        Returns:
            How much had happened by then; None when anything has happened meanwhile.
        """
        quiet = self._all_asleep(patience)
        activity = self._control.activity
        if quiet is None:
            return activity
        pollers = {thread for thread in quiet if _polls(self._look, thread, horizon)}
        if self._look.counts() != quiet:
            patience.lose()  # one has woken while each was asked how it waits
            return None
        enough = max(steady_rounds, len(pollers))
        if pollers and not self._have_woken(pollers, quiet, horizon, enough, patience):
            return None
        return activity

    def _all_asleep(self, patience: Patience) -> dict[int, object] | None:
        """The run counts, once all are found asleep between two equal counts.

        A thread that ran before it was found asleep has another count afterwards, so nobody
        was awake at the moment in between to wake another.

        Returns:
            None where some are awake, and do no more than look for work.
        """
        before = self._look.counts()
        while True:
            activity = self._control.activity
            asleep = self._look.asleep() and self._nobody_is_inside()
            counts = self._look.counts()
            if asleep and counts == before and activity == self._control.activity:
                return counts
            if not asleep:
                patience.lose()
                polls = patience.waited > POLL_HORIZON and self._look.only_polls()
                if polls and self._nobody_is_inside() and activity == self._control.activity:
                    return None
            before = counts

    def _nobody_is_inside(self) -> bool:
        # Who has the lock may be parked already, and others wait for it to be given back.
        return not self._control.inside and not self._control.lock.locked()

    def _have_woken(
        self,
        pollers: set[int],
        quiet: dict[int, object],
        horizon: float,
        enough: int,
        patience: Patience,
    ) -> bool:
        """Let all pollers wake as often as there are pollers: one may hand on to the next.

        Where there is no time for so many rounds, one has to do: each has woken once in it.

        Returns:
            False when anything has happened meanwhile: then all has to be looked at anew.
        """
        others = quiet.keys() - pollers - self._control.carriers
        rounds = _Rounds(self._look, self._control, pollers, others, quiet, horizon, enough)
        while (over := rounds.look()) is None:
            try:
                patience.lose()
            except NotAtRest:
                if rounds.one_does():
                    return True
                raise
        return over


def _polls(look: Look, thread: int, horizon: float) -> bool:
    """Whether a sleeping thread wakes by itself, and soon enough."""
    left = look.timed_wait(thread)
    return left is not None and left <= horizon


class _Rounds:
    """Counts rounds in which every poller wakes.

    One that has woken may wait for the interpreter, and has done nothing yet. So a round is over
    when each has woken in it and is asleep again.

    What one asks of the rig from another process moves those that carry it there and back.
    A round in which others move, a worker that is asked perhaps, does not count; but when it
    is so in every round, enough of them are enough. So it is with a poller that ends and
    leaves another one behind each time, as a timer does that is set again.

    Args:
        look: at the threads of a life.
        control: the life.
        pollers: its threads that wake by themselves.
        others: those that don't, but for what carries messages.
        quiet: what the counts of all of them were when all were asleep.
        horizon: seconds within which a poller wakes.
        enough: rounds that do where others move in each.
    """

    def __init__(
        self,
        look: Look,
        control: Control,
        pollers: set[int],
        others: set[int],
        quiet: dict[int, object],
        horizon: float,
        enough: int,
    ) -> None:
        self._look = look
        self._control = control
        self._activity = control.activity
        self._pollers = pollers
        self._others = others
        self._seen = quiet
        self._horizon = horizon
        self._enough = enough
        self._rounds = self._steady = 0
        self._counts = quiet
        self._still = False

    def look(self) -> bool | None:
        """Look once.

        Returns:
            Whether there were rounds enough; False when anything has happened, None while they
            go on.
        """
        before = self._look.counts()
        asleep = self._look.asleep()
        self._counts = self._look.counts()
        self._still = asleep and self._counts == before
        if self._control.activity != self._activity or self._others - self._counts.keys():
            return False
        return self._all_still() if self._still else None

    def _all_still(self) -> bool | None:
        counts, seen = self._counts, self._seen
        born = counts.keys() - seen.keys() - self._control.carriers
        gone = self._pollers - counts.keys()
        moved = {thread for thread in self._others if counts[thread] != seen[thread]}
        pollers = (self._pollers - gone) | born
        woken = {thread for thread in pollers if counts[thread] != seen.get(thread)}
        works = any(map(self._look.works, pollers))
        done = woken == pollers and not works
        begun = any(map(self._polls, moved))
        ended = not done and any(self._look.timed_wait(thread) is None for thread in woken)
        others_come = len(born) != len(gone) or not all(map(self._polls, born))
        if self._look.counts() != counts:
            return None  # one has woken while each was asked how it waits
        if begun or ended or (others_come and not works):
            return False
        if not done or others_come:
            return None
        if moved or born:
            self._rounds, self._steady = 0, self._steady + 1
        else:
            self._rounds += 1
        self._pollers, self._seen = pollers, counts
        return True if self._rounds == len(pollers) or self._steady == self._enough else None

    def _polls(self, thread: int) -> bool:
        return _polls(self._look, thread, self._horizon)

    def one_does(self) -> bool:
        """Whether there was one round at least, and nobody is about to do anything."""
        once = self._rounds or self._steady
        return bool(self._still and once and not any(map(self._look.works, self._counts)))


class Patience:
    """Counts down from the last progress, and leaves the processor to whoever works.

    Args:
        control: of the life that makes it.
        deadline: seconds without any.
    """

    def __init__(self, control: Control, deadline: float) -> None:
        self._control = control
        self._deadline = deadline
        self._activity = control.activity
        self._since = time.monotonic()

    @property
    def waited(self) -> float:
        """Seconds since the last progress that was seen."""
        return time.monotonic() - self._since

    def lose(self) -> None:
        """Wait a little.

        Raises:
            NotAtRest: when there has been no progress for too long.
        """
        if self._control.activity != self._activity:
            self._activity, self._since = self._control.activity, time.monotonic()
        waited = self.waited
        if waited > self._deadline:
            raise NotAtRest
        # Short at first, since most of what is let through is done at once.
        time.sleep(0 if waited < 0.002 else min(0.001, waited / 20))


class Task:
    """The files of one thread, kept open."""

    def __init__(self, directory: str) -> None:
        self._files: list[int] = []
        try:
            for name in ("schedstat", "stat", "syscall"):
                self._files.append(os.open(f"{directory}/{name}", os.O_RDONLY))
        except BaseException:  # Ctrl-C too
            self.close()
            raise

    def count(self) -> bytes:
        """Its time on the processor and how often it got there, as the system writes them."""
        return os.pread(self._files[0], 64, 0)

    def asleep(self) -> bool:
        """Whether it sleeps where it can be woken, or is dead: no running, no disk."""
        return self._state() in b"SZX"

    def dead(self) -> bool:
        """Whether it is what a process leaves that has not been waited for."""
        try:
            return self._state() in b"ZX"
        except OSError:
            return False

    def _state(self) -> bytes:
        state = os.pread(self._files[1], 512, 0)
        end = state.rindex(b")")
        return state[end + 2 : end + 3]

    def call(self) -> list[int]:
        """Number and arguments of the system call it sleeps in; nothing while it runs."""
        return _words(os.pread(self._files[2], 256, 0))

    def close(self) -> None:
        """Close its files."""
        for file in self._files:
            os.close(file)


class ProcLook:
    """Looks at ``/proc/self/task``.

    Args:
        ignored: native ids of threads that are not the life's.
        parked: native ids of threads that stand at a gate of ours; kept up to date elsewhere.
        process: that is looked at; None: this one.
        lock_at: the address at which threads of another process wait for its interpreter.
    """

    name = "proc"

    def __init__(
        self,
        ignored: frozenset[int],
        parked: set[int],
        *,
        process: int | None = None,
        lock_at: int | None = None,
    ) -> None:
        self._ignored = ignored
        self._parked = parked
        self._process = f"/proc/{'self' if process is None else process}"
        self._lock_at = interpreter_lock if process is None else lambda: lock_at
        self._root = os.open(f"{self._process}/task", os.O_RDONLY)
        self._last = os.open(_LAST_BORN, os.O_RDONLY)
        self._seen: tuple[int, bytes] | None = None
        self._threads: set[int] = set()
        self._tasks: dict[int, Task] = {}
        self._untimed: dict[int, bytes] = {}

    def counts(self) -> dict[int, object]:
        """Something of each thread, by native id, that changes whenever it has run."""
        counts: dict[int, object] = {}
        for thread, task in self.tasks().items():
            try:
                counts[thread] = task.count()
            except OSError:
                self._forget(thread)
        return counts

    def tasks(self) -> dict[int, Task]:
        """The threads that there are, by native id."""
        born = self._births()
        if born != self._seen:
            self._threads = self._living() - self._ignored
            self._seen = born
        found: dict[int, Task] = {}
        for thread in self._threads - self._parked:
            task = self._tasks.get(thread)
            if task is None:
                try:
                    task = self._tasks[thread] = Task(f"{self._process}/task/{thread}")
                except OSError:
                    self._forget(thread)
                    continue
            found[thread] = task
        return found

    def _living(self) -> set[int]:
        try:
            return {int(task) for task in os.listdir(f"{self._process}/task")}
        except OSError:
            return set()  # the process has ended

    def _births(self) -> tuple[int, bytes]:
        """Changes whenever a thread of this process is born or ends.

        How many there are does not tell: one may end as another is born. So the id that the
        system gave last is looked at too, which is cheaper than listing them each time.
        """
        last = os.pread(self._last, 128, 0).rsplit(None, 1)[-1]
        return os.fstat(self._root).st_nlink, last

    def has(self, thread: int) -> bool:
        """Whether a thread is of this process."""
        return thread in self._threads

    def asleep(self) -> bool:
        """Whether every one of them is asleep."""
        for thread in self._threads - self._parked:
            try:
                if not self._tasks[thread].asleep():
                    return False
            except (OSError, ValueError, KeyError):
                self._forget(thread)
                return False
        return True

    def _forget(self, thread: int) -> None:
        """A thread has ended: who else is there has to be asked anew."""
        self._seen = None
        if thread in self._tasks:
            self._tasks.pop(thread).close()

    def timed_wait(self, thread: int) -> float | None:
        """Seconds that a sleeping thread still waits at the most; None without a limit."""
        try:
            task = self._tasks[thread]
            count = task.count()
            if self._untimed.get(thread) == count:
                return None  # it has not run since it was found in a wait without a limit
            call = task.call()
            works = not call or _for_interpreter(call, self._lock_at())
            waits = None if works else _WAITS.get(call[0])
            left = None if waits is None else waits(_Args(call[1:], f"{self._process}/mem"))
            # Its arguments are in its own memory: read while it woke, they say nothing.
            woken = works or task.count() != count
            if woken and task.dead():
                return None
        except (OSError, KeyError):
            woken = True  # it has ended since, which is a kind of waking
        if woken:
            return 0.0
        if left is None:
            self._untimed[thread] = count
        return left

    def works(self, thread: int) -> bool:
        """Whether a thread has woken, or only sleeps until it gets the interpreter."""
        try:
            call = self._tasks[thread].call()
        except (OSError, KeyError):
            return True
        return not call or _for_interpreter(call, self._lock_at())

    def only_polls(self) -> bool:
        """Not of interest here: each thread is asked how it waits."""
        return False

    def close(self) -> None:
        """Give back what the look holds open."""
        os.close(self._root)
        os.close(self._last)
        for task in self._tasks.values():
            task.close()


def _for_interpreter(call: list[int], lock: int | None) -> bool:
    """Whether a system call is the wait for the interpreter's lock.

    With other threads at work, those of the project's test run too, that wait can be long: its
    thread is asleep, and wakes every few milliseconds to no avail, as a poller does.
    """
    # The lock is a condition of 48 bytes, the address in it, and a mutex of 40; behind it are two
    # more, at which a thread that was asked to give it up waits until another one has taken it.
    return lock is not None and call[0] == _FUTEX and -48 < call[1] - lock < 2 * (48 + 40)


def interpreter_lock() -> int | None:
    """The address at which threads wait for the interpreter; None where it can't be found."""
    # On a busy machine a probe may not get to wait in time: then the next look tries again.
    while not _found and len(_tried) < MOST_PROBES and has_proc():
        _tried.append(True)
        address = _probe()
        if address is not None:
            _found.append(address)
    return _found[0] if _found else None


_found: list[int] = []
_tried: list[bool] = []
MOST_PROBES = 5


def _probe() -> int | None:
    """Let a thread wait for the interpreter, and see where it does."""
    told = threading.Lock()
    told.acquire()
    thread = threading.Thread(target=told.acquire, name="resume-audit probe", daemon=True)
    thread.start()
    # Called through PyDLL, which keeps the interpreter's lock: meanwhile the other waits for it.
    read, buffer = ctypes.PyDLL(None).pread, ctypes.create_string_buffer(256)
    interval = sys.getswitchinterval()
    file = os.open(f"{_TASKS}/{thread.native_id}/syscall", os.O_RDONLY)
    try:
        while not (before := _words(os.pread(file, 256, 0))) or before[0] != _FUTEX:
            if before and before[0] not in _WAITS:
                return None
        sys.setswitchinterval(1)
        told.release()
        end = time.monotonic() + 0.5
        while time.monotonic() < end:
            length = read(file, buffer, 255, ctypes.c_long(0))
            call = _words(buffer.raw[:length])
            if call and call[0] == _FUTEX and call[1] != before[1]:
                return call[1]
        return None
    finally:
        sys.setswitchinterval(interval)
        os.close(file)
        # Whatever came in between, a Ctrl-C too: it must not wait for ever, nor we for it.
        with contextlib.suppress(RuntimeError):
            told.release()
        thread.join()


def _words(line: bytes) -> list[int]:
    """Number and arguments of a system call; nothing for a thread that runs."""
    words = line.split()
    if not words or not words[0].isdigit():
        return []
    return [int(words[0]), *(int(word, 16) for word in words[1:7])]


class _Args(list[int]):
    """The arguments of a system call, and the memory that they may point into."""

    def __init__(self, args: list[int], memory: str) -> None:
        super().__init__(args)
        self._memory = memory

    def seconds_at(self, address: int) -> float:
        """The length of a time that an argument points to."""
        # Read through a file: the thread may go on meanwhile, and a pointer that is no longer
        # valid is an error here, not a crash.
        try:
            with open(self._memory, "rb", buffering=0) as memory:
                memory.seek(address)
                seconds, nanoseconds = struct.unpack("qq", memory.read(16))
        except (OSError, struct.error, OverflowError, ValueError):
            return 0.0
        return float(seconds + nanoseconds * 1e-9)


def _futex(args: _Args) -> float | None:
    operation, pointer = args[1], args[3]
    if not pointer:
        return None
    length = args.seconds_at(pointer)
    if operation & 0x7F == 9:  # FUTEX_WAIT_BITSET takes a point in time
        return length - (time.time() if operation & 0x100 else time.monotonic())
    return length


def _nanosleep(args: _Args) -> float | None:
    length = args.seconds_at(args[2])
    return length - time.monotonic() if args[1] & 1 else length


def _milliseconds(position: int) -> Callable[[_Args], float | None]:
    def read(args: _Args) -> float | None:
        length = args[position] & 0xFFFFFFFF
        return None if length >= 0x80000000 else length / 1000

    return read


def _timespec(position: int) -> Callable[[_Args], float | None]:
    return lambda args: args.seconds_at(args[position]) if args[position] else None


_WAITS: dict[int, Callable[[_Args], float | None]] = {
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
}.get(platform.machine(), {})
"""How long a system call waits, by its number on this machine."""

_FUTEX = {"x86_64": 202, "aarch64": 98}.get(platform.machine(), -1)
"""The number of the call that waits for locks."""


class SeveralLooks:
    """Looks at the threads of several processes, as if they were of one.

    Args:
        looks: one a process.
    """

    name = "proc"

    def __init__(self, looks: Sequence[ProcLook]) -> None:
        self._looks = looks

    def counts(self) -> dict[int, object]:
        """Something of each thread, by native id, that changes whenever it has run."""
        return {thread: count for look in self._looks for thread, count in look.counts().items()}

    def asleep(self) -> bool:
        """Whether every one of them is asleep."""
        return all(look.asleep() for look in self._looks)

    def timed_wait(self, thread: int) -> float | None:
        """Seconds that a sleeping thread still waits at the most; None without a limit."""
        return self._of(thread).timed_wait(thread)

    def works(self, thread: int) -> bool:
        """Whether a thread has woken, or only sleeps until it gets its interpreter."""
        return self._of(thread).works(thread)

    def only_polls(self) -> bool:
        """Not of interest here: each thread is asked how it waits."""
        return False

    def _of(self, thread: int) -> ProcLook:
        return next((look for look in self._looks if look.has(thread)), self._looks[0])

    def close(self) -> None:
        """Give back what the looks hold open."""
        for look in self._looks:
            look.close()


def _kept_waiting() -> float:
    """Seconds that a thread is kept from running while it computes for a while."""
    began, computed = time.monotonic(), time.thread_time()
    while time.thread_time() - computed < _BURST:
        pass
    return time.monotonic() - began - (time.thread_time() - computed)


class FrameLook:
    """Looks at where each thread stands in its Python code, several times.

    Args:
        ignored: native ids of threads that are not the life's.
        parked: native ids of threads that stand at a gate of ours; kept up to date elsewhere.
    """

    name = "frames"

    def __init__(self, ignored: frozenset[int], parked: set[int]) -> None:
        self._ignored = ignored
        self._parked = parked

    def counts(self) -> dict[int, object]:
        """Where each thread stands, by native id."""
        passed_over = self._ignored | self._parked
        return places(t for t in threading.enumerate() if t.native_id not in passed_over)

    def asleep(self) -> bool:
        """Whether none of them moves for a while: many times as long as this thread has to wait,
        and so may each of them, for a processor or for the interpreter.
        """
        places = self.counts()
        began = time.monotonic()
        enough = 10 * max(_NAP, _kept_waiting())
        while time.monotonic() - began < enough:
            time.sleep(_NAP)
            if self.counts() != places:
                return False
        return True

    def timed_wait(self, thread: int) -> float | None:
        """Not known here: the look itself takes as long as pollers sleep."""
        return None

    def works(self, thread: int) -> bool:
        """Not known here either."""
        return False

    def only_polls(self) -> bool:
        """Whether all that runs only looks for work.

        So it is where it computes for less than a quarter of what a single thread could have had,
        for as long as any that polls may take to look again.
        """
        kept = _kept_waiting()
        began, worked = time.monotonic(), self._worked()
        time.sleep(max(1.5 * POLL_HORIZON, 10 * kept))
        most = _BURST / (_BURST + kept) * (time.monotonic() - began) / 4
        return 0 <= self._worked() - worked < most  # less than nothing: it has not answered

    def _worked(self) -> float:
        """Seconds that the process has computed."""
        return time.process_time()

    def close(self) -> None:
        """Nothing is held open."""
