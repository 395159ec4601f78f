"""A life in this process: a crash throws its objects away and keeps a copy of its files."""

from __future__ import annotations

import abc
import asyncio
import contextlib
import ctypes
import dis
import inspect
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from pytest_resume_audit.control import Control, LifeEnded, WouldBlock
from pytest_resume_audit.frames import current_frames
from pytest_resume_audit.rest import NotAtRest, Rest, look_at, native_threads
from pytest_resume_audit.rig import Rig
from pytest_resume_audit.savepoints import Images, SavePoints
from pytest_resume_audit.style import Make
from pytest_resume_audit.timeline import Death


class Call:
    """A call into the collector, which may not have returned yet.

    Args:
        what: how it is named in reports.
        function: what is called, without arguments.
        control: the life it is made in.
        told: of the call, once it has returned.
    """

    def __init__(
        self,
        what: str,
        function: Callable[[], Any],
        control: Control,
        told: Callable[[Call], None] | None = None,
    ) -> None:
        self.what = what
        self.function = function
        self.control = control
        self._told = told
        self.done = False
        self.result: Any = None
        self.error: BaseException | None = None

    def make(self) -> None:
        """Make the call, and keep what comes of it."""
        try:
            self.result = self.function()
        except WouldBlock:
            raise
        except BaseException as error:
            self.fail(error)
        self.end()

    async def make_in_loop(self) -> None:
        """Make the call, and await what it returns."""
        try:
            self.result = self.function()
            if inspect.isawaitable(self.result):
                self.result = await self.result
        except BaseException as error:
            self.result = None
            self.fail(error)
        self.end()

    def end(self) -> None:
        """Note that it has returned."""
        self.done = True
        if self._told is not None:
            self._told(self)

    def fail(self, error: BaseException) -> None:
        """Keep what the call raised; the end of its life goes on through it, to whoever made it.

        The end of another life is an error as any: the collector calls a rig it had before.
        """
        if isinstance(error, LifeEnded) and self.control.over:
            raise error
        self.error = error


class _InProcess(abc.ABC):
    """A life whose collector is an object of this process."""

    control: Control
    killed = False
    """Whether it has died as it should, in the middle of a save: an object does not."""
    gives_images = True
    """Whether one save gives all deaths."""
    _collector: Any = None

    def make(self, make: Make, rig: Rig) -> Call:
        """Make the collector; its class is what the call comes to."""

        def made() -> type[Any]:
            self._collector = make(rig)
            self._trainer = rig.trainer
            return type(self._collector)

        return self._make("the collector's __init__", made)

    def call(
        self, method: str, *args: Any, points: SavePoints | None = None, **kwargs: Any
    ) -> Call:
        """Call a method of the collector.

        Args:
            method: its name.
            args: by position.
            points: of the save that the call is, where they are counted.
            kwargs: by name.

        Returns:
            The call, which may not have returned yet.
        """

        def called() -> Any:
            return getattr(self._collector, method)(*args, **kwargs)

        return self._make(method, called if points is None else points.inside(called))

    def stop(self) -> Call:
        """End it gracefully."""
        return self.call("stop")

    def points(self, root: Path, at: int, thread: int | None) -> SavePoints:
        """Where a save stops for a race.

        Args:
            root: the checkpoint root.
            at: which point it stops at, from 1.
            thread: native id of the thread that saves, where that is known beforehand.
        """
        return SavePoints(self.control, root, at, thread=thread)

    def images(self, root: Path, into: Path, name: str, death: Death) -> Images:
        """What a save leaves that dies.

        Args:
            root: the checkpoint root.
            into: a directory for what is left.
            name: of the checkpoint root in there.
            death: where it dies.
        """
        return Images(root, into, name, death)

    def died(self) -> BaseException | None:
        """How it died by itself: an object can't."""
        return None

    def weights(self) -> tuple[int, tuple[int, ...]]:
        """Version and counts of the weights."""
        return self._trainer.weight_version, tuple(self._trainer.counts())

    @abc.abstractmethod
    def _make(self, what: str, function: Callable[[], Any]) -> Call: ...


class InlineLife(_InProcess):
    """A life without threads: every call is made at once, and is at rest when it returns.

    Args:
        control: the life's gates.
    """

    rest_name = "calls"

    def __init__(self, control: Control) -> None:
        self.control = control
        self._before = set(threading.enumerate())
        self._thread = threading.get_native_id()
        control.inline = threading.get_ident()

    def _make(self, what: str, function: Callable[[], Any]) -> Call:
        call = Call(what, function, self.control)
        call.make()
        return call

    def rest(self, *, conclude: bool = False) -> None:
        """It is at rest."""

    @property
    def needs_threads(self) -> bool:
        """Whether it waits for something, or has called from another thread."""
        return self.control.would_block or bool(self.control.callers - {self._thread})

    def alive(self) -> bool:
        """Whether anything in it could still act by itself: it acts only when it is called."""
        return False

    def whereabouts(self) -> list[str]:
        """What each of its threads waits for: it has none."""
        return []

    def end(self) -> tuple[str, ...]:
        """End it.

        Returns:
            The threads that it leaves behind: none, or it would not have been played inline.
        """
        self.control.end()
        return ()

    def has_threads(self) -> bool:
        """Whether threads were born in it."""
        return bool(set(threading.enumerate()) - self._before)


class ThreadedLife(_InProcess):
    """A life with threads or an event loop, watched from outside.

    Every call into the collector is made by one helper thread, futures are completed by
    another, so that a call that waits for a lock is seen waiting.

    Args:
        control: the life's gates.
        deadline: seconds without progress that its rest is waited for.
        loop: whether the collector's methods are coroutines: the helper runs a loop.
    """

    def __init__(self, control: Control, deadline: float, *, loop: bool = False) -> None:
        self.control = control
        self._look = look_at(native_threads(), control.parked)
        self._rest = Rest(control, self._look, deadline)
        self._before = set(threading.enumerate())
        self._helper = helper_of(control, loop=loop)
        self._helper.start("loop" if loop else "calls")
        self._helpers = [self._helper]
        self._answers: Helper | None = None
        control.courier = self._deliver

    needs_threads = False

    @property
    def rest_name(self) -> str:
        """How rest is looked for."""
        return self._look.name

    def _make(self, what: str, function: Callable[[], Any]) -> Call:
        call = Call(what, function, self.control)
        helper = aside_of(self._helper, self.control)
        if helper is not self._helper:
            self._helpers.append(helper)
        helper.post(call.make)
        self.rest()
        return call

    def _deliver(self, complete: Callable[[], None]) -> None:
        """Complete a future in a thread of its own: its callbacks are the collector's code."""
        if self._answers is None:
            self._answers = Helper(self.control)
            self._answers.start("answers")
            self._helpers.append(self._answers)
        self._answers.post(complete)

    def rest(self, *, conclude: bool = False) -> None:
        """Wait until the life is at rest."""
        self._rest.wait(conclude=conclude)

    def threads(self) -> list[threading.Thread]:
        """The collector's own threads that are alive."""
        # Those of multiprocessing's queues end with their queue; broken off, they leave whoever
        # closes it waiting.
        others = {helper.thread for helper in self._helpers} | self._before
        return [
            thread
            for thread in threading.enumerate()
            if thread not in others and not thread.name.startswith("QueueFeederThread")
        ]

    def alive(self) -> bool:
        """Whether anything in it could still act by itself."""
        return bool(self.threads()) or self._helper.busy

    def whereabouts(self) -> list[str]:
        """What each of its threads waits for, sorted by name."""
        frames = current_frames()
        standing = {w.thread: w.gate for w in self.control.waiters if w.thread is not None}
        lines = []
        helpers = [h.thread for h in self._helpers if h.busy and h.thread.is_alive()]
        for thread in [*self.threads(), *helpers]:
            gate = standing.get(thread.native_id or 0)
            frame = frames.get(thread.ident or 0)
            where = f"stands at the {gate}'s gate" if gate else f"is in {place_of(frame)}"
            lines.append(f"thread {thread.name!r} {where}")
        return sorted(lines)

    def end(self) -> tuple[str, ...]:
        """End it: every thread of it that can be ended ends.

        Returns:
            The threads that it leaves behind, and where they stand.
        """
        with self.control.lock:
            at_gates = set(self.control.parked)
        self.control.end()
        for helper in self._helpers:
            helper.close()
        for thread in self._mortals():
            if thread.native_id not in at_gates:
                let_go(thread, self.control)
        for _ in range(_TRIES):
            if self._all_ended():
                break
            # What a thread at a gate held back may have gone to wait for something by now.
            for thread in self._mortals():
                let_go(thread, self.control)
        else:
            self._all_ended()
        left = tuple(self.whereabouts()) if self._mortals() else ()
        self._look.close()
        return left

    def _mortals(self) -> list[threading.Thread]:
        return [*self.threads(), *(h.thread for h in self._helpers if h.thread.is_alive())]

    def _all_ended(self) -> bool:
        """Wait until they have: a thread gets as long as it works, and no longer than a second."""
        deadline = time.monotonic() + 0.02
        while time.monotonic() < deadline:
            if not self._mortals():
                return True
            time.sleep(0)
        with contextlib.suppress(NotAtRest):
            Rest(self.control, self._look, deadline=1.0).wait()
        return not self._mortals()


class Helper:
    """Does one job after another, and stands still, seen to do so, in between.

    Args:
        control: the life it works for.
    """

    def __init__(self, control: Control) -> None:
        self._control = control
        self._jobs: deque[Callable[[], None] | None] = deque()
        self._signal = threading.Lock()
        self._signal.acquire()
        self._idle = False
        self.busy = False
        self.thread = threading.current_thread()

    def start(self, name: str) -> None:
        """Do the jobs in a thread of their own."""
        self.thread = threading.Thread(target=self.run, name=f"resume-audit {name}", daemon=True)
        self.thread.start()

    def post(self, job: Callable[[], None] | None) -> None:
        """Hand over a job; None ends the thread."""
        with self._control.lock:
            self._control.activity += 1
            self.busy = True
            self._add(job)

    def wake(self) -> None:
        """Have its thread go on if it stands still, though there is nothing to do."""
        with self._control.lock:
            if self._idle:
                self._add(lambda: None)

    def _add(self, job: Callable[[], None] | None) -> None:
        self._jobs.append(job)
        if self._idle:
            self._idle = False
            if self.thread.native_id is not None:
                self._control.parked.discard(self.thread.native_id)
            self._signal.release()

    def close(self) -> None:
        """Let it end, once its jobs are done."""
        self.post(None)

    def _next(self) -> Callable[[], None] | None:
        with self._control.lock:
            if self._jobs:
                return self._jobs.popleft()
            self.busy = False
            self._idle = True
            self._control.parked.add(threading.get_native_id())
            self._control.activity += 1
        self._signal.acquire()
        return self._jobs.popleft()

    def run(self) -> None:
        """Do the jobs in this thread, until it is closed."""
        while (job := self._next()) is not None:
            try:
                job()
            except LifeEnded:
                continue
        self.busy = False


class LoopHelper(Helper):
    """A helper whose jobs run in an event loop, one after the other; coroutines are awaited."""

    def __init__(self, control: Control) -> None:
        self._loop = asyncio.new_event_loop()
        super().__init__(control)

    def post(self, job: Callable[[], None] | None) -> None:
        with self._control.lock:
            self._control.activity += 1
            self.busy = True
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._begin, job)

    def wake(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(lambda: None)

    def close(self) -> None:
        """Let its loop end."""
        self._control.end_loop(self._loop)

    def _begin(self, job: Callable[[], None] | None) -> None:
        assert job is not None  # it is ended otherwise: by close
        self._loop.create_task(self._do(job))

    async def _do(self, job: Callable[[], None]) -> None:
        call: Call = job.__self__  # type: ignore[attr-defined]
        await call.make_in_loop()
        with self._control.lock:
            self.busy = False
            self._control.activity += 1

    def run(self) -> None:
        """Run the loop in this thread, until it is closed."""
        asyncio.set_event_loop(self._loop)
        try:
            with contextlib.suppress(LifeEnded):
                self._loop.run_forever()
        finally:
            try:
                self._cancel_all()
            finally:
                self._loop.close()
                self.busy = False

    def _cancel_all(self) -> None:
        self._flush()
        while tasks := asyncio.all_tasks(self._loop):
            for task in tasks:
                task.cancel()
            with contextlib.suppress(LifeEnded):
                self._loop.run_until_complete(asyncio.wait(tasks))
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())

    def _flush(self) -> None:
        """Let what is scheduled happen: the end of the life may be among it, once more."""
        flushed = False
        while not flushed:
            self._loop.call_soon(self._loop.stop)
            with contextlib.suppress(LifeEnded):
                self._loop.run_forever()
                flushed = True


def helper_of(control: Control, *, loop: bool) -> Helper:
    """What makes the calls into a collector; in a loop where its methods are coroutines."""
    return LoopHelper(control) if loop else Helper(control)


def aside_of(helper: Helper, control: Control) -> Helper:
    """What makes a call now: the helper, or another one while it is busy with a call.

    A framework's own loop is a call that lasts as long as its life. An event loop makes other
    calls meanwhile.
    """
    if isinstance(helper, LoopHelper) or not helper.busy:
        return helper
    aside = Helper(control)
    aside.start("calls")
    return aside


_TRIES = 2
"""Times that a thread is told once more: a finalizer that it was in may have swallowed it."""


def place_of(frame: FrameType | None) -> str:
    """Where a thread is, in the collector's terms: the innermost frame outside of threading."""
    innermost = frame
    while frame is not None and frame.f_globals.get("__name__") in _WAITING_MODULES:
        frame = frame.f_back
    frame = frame or innermost
    if frame is None:
        return "no Python code"
    code = frame.f_code
    return f"{code.co_name} ({code.co_filename}:{frame.f_lineno})"


_WAITING_MODULES = ("threading", "queue", "concurrent.futures._base", "selectors", "asyncio")


def let_go(thread: threading.Thread, control: Control) -> None:
    """End a thread of a dead life that waits for another thread, by raising LifeEnded in it.

    An exception set from outside is seen when the thread wakes; most waits in Python are in
    ``Condition.wait``, whose own lock wakes it. An idle worker of a pool ends with the pool.
    """
    frame = current_frames().get(thread.ident or 0)
    if frame is None:
        return
    local = frame.f_locals
    if frame.f_code is threading.Condition.wait.__code__:
        _raise_in(thread)
        with contextlib.suppress(RuntimeError):
            local["waiter"].release()
    elif frame.f_globals.get("__name__") == "concurrent.futures.thread":
        executor = local["executor_reference"]() if "executor_reference" in local else None
        if executor is not None:
            executor.shutdown(wait=False, cancel_futures=True)
    elif (loop := _loop_of(frame)) is not None and control.end_loop(loop):
        return
    elif not (_takes_a_lock(frame) or _ends_by_itself(frame)):
        _raise_in(thread)


def _loop_of(frame: FrameType | None) -> asyncio.AbstractEventLoop | None:
    """The event loop that a thread runs."""
    while frame is not None:
        loop = frame.f_locals.get("self") if frame.f_code.co_name == "run_forever" else None
        if isinstance(loop, asyncio.AbstractEventLoop):
            return loop
        frame = frame.f_back
    return None


def _ends_by_itself(frame: FrameType | None) -> bool:
    """Whether a thread is in the code of its loop, or in ours that ends it: not to be broken."""
    while frame is not None:
        module = str(frame.f_globals.get("__name__"))
        package = module.partition(".")[0]
        if package == "asyncio" or package not in sys.stdlib_module_names:
            return package == "asyncio" or module == __name__
        frame = frame.f_back
    return False


def _takes_a_lock(frame: FrameType) -> bool:
    """Whether a thread stands at a ``with lock:``.

    What is raised there is raised when it has the lock, before the block that would release it:
    the lock would stay taken for ever, and with it whoever waits for it.
    """
    if frame.f_code is threading.Condition.__enter__.__code__:
        return True
    return dis.opname[frame.f_code.co_code[frame.f_lasti]] in ("BEFORE_WITH", "SETUP_WITH")


def _raise_in(thread: threading.Thread) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread.ident or 0), ctypes.py_object(LifeEnded)
    )
