"""What runs in the process of a life: the collector, and a thread that makes the calls into it."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import pickle
import signal
import socket
import threading
import warnings
from collections.abc import Callable
from typing import Any

from pytest_resume_audit.control import Control
from pytest_resume_audit.lives.inquiry import Inquiry
from pytest_resume_audit.lives.kinds import not_importable
from pytest_resume_audit.lives.local import Call, aside_of, helper_of
from pytest_resume_audit.lives.overheard import Overheard
from pytest_resume_audit.numbering import Numbering
from pytest_resume_audit.remote import Address, Line, RemoteRig, line_to, portable
from pytest_resume_audit.rest import interpreter_lock
from pytest_resume_audit.setup import Setup

STOP = 0
"""The number of the call that a SIGTERM makes."""


def live(
    address: Address, key: bytes, setup: Setup, make: bytes, loop: bool, everything: bool
) -> None:
    """Be a life, until it is stopped or killed.

    Args:
        address: of the server of its rig.
        key: that it asks for.
        setup: the sizes.
        make: pickled: makes a collector from a rig.
        loop: whether the collector's methods are coroutines.
        everything: whether to hear logging and output too.
    """
    line = line_to(address, key)
    with _Heard(line, everything=everything):
        _Life(line, setup, make, loop=loop).run()


class _Life:
    """The life: commands come over the line, and are done one after the other."""

    def __init__(self, line: Line, setup: Setup, make: bytes, *, loop: bool) -> None:
        self._line = line
        self._make = make
        self._rig = RemoteRig(line, setup)
        # It makes calls, and nothing else: no gate of it is ever used.
        self._control = Control(setup, Numbering())
        self._helper = helper_of(self._control, loop=loop)
        self._collector: Any = None
        self._inquiry = Inquiry(line, self._ours, self._weights)

    def run(self) -> None:
        """Do what is said, in the main thread, until it is stopped."""
        self._hear_of_signals()
        if signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._terminated)
        if hasattr(os, "register_at_fork"):
            _leave_forks_alone(self._terminated, self._said)
        self._line.on_command = self._command
        self._line.tell("begun", os.getpid(), interpreter_lock())
        self._helper.run()

    def _hear_of_signals(self) -> None:
        """Have the main thread see to each signal, the collector's own too.

        The system gives it to any thread, where Python takes note of it, and leaves a main thread
        asleep that waits for a lock.
        """
        heard, said = socket.socketpair()
        said.setblocking(False)
        self._said = said.detach()
        self._tell_of_signals()

        def wake() -> None:
            while heard.recv(4096):
                self._helper.wake()

        threading.Thread(target=wake, name="resume-audit signals", daemon=True).start()

    def _tell_of_signals(self) -> None:
        """Have Python write of each signal, unless it does for the collector.

        An event loop of the collector's that has heard of a signal leaves nobody to be told.
        """
        if threading.current_thread() is threading.main_thread():
            before = signal.set_wakeup_fd(self._said, warn_on_full_buffer=False)
            if before not in (-1, self._said):
                signal.set_wakeup_fd(before)

    def _terminated(self, number: int, frame: object) -> None:
        # Not here: the handler may have come in the middle of what it would wait for.
        threading.Thread(target=self._stop, name="resume-audit stop").start()

    def _stop(self) -> None:
        def stopped(call: Call) -> None:
            self._return_to(STOP)(call)
            self._helper.close()

        self._post("stop", self._method("stop", (), {}), stopped)

    def _command(self, words: tuple[Any, ...]) -> None:
        """In the thread that reads the line: what takes no time is done at once."""
        what, number, *rest = words
        if what == "make":
            self._post("the collector's __init__", self._made, self._return_to(number))
        elif what == "call":
            method, args, kwargs = rest
            function = self._method(method, args, kwargs)
            if self._inquiry.points is not None:
                function = self._inquiry.points.inside(function)
            self._post(method, function, self._return_to(number))
        else:
            self._inquiry.answer(what, number, *rest)

    # -- calls into the collector --------------------------------------------------------------

    def _post(self, what: str, function: Callable[[], Any], done: Callable[[Call], None]) -> None:
        call = Call(what, function, self._control, done)
        aside_of(self._helper, self._control).post(call.make)

    def _return_to(self, number: int) -> Callable[[Call], None]:
        def told(call: Call) -> None:
            self._tell_of_signals()
            error = call.error
            if error is None:
                try:
                    self._line.tell("returned", number, True, _needed(call))
                    return
                except OSError:
                    raise  # of the line
                except Exception as nonsense:
                    error = nonsense
            self._line.tell("returned", number, False, portable(error))

        return told

    def _made(self) -> type[Any]:
        self._collector = pickle.loads(self._make)(self._rig)
        kind = type(self._collector)
        if (why := not_importable(kind)) is not None:
            raise TypeError(why)
        return kind

    def _method(
        self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Callable[[], Any]:
        return lambda: getattr(self._collector, method)(*args, **kwargs)

    # -- what is asked of it -------------------------------------------------------------------

    def _weights(self) -> tuple[int, tuple[int, ...]] | None:
        """Version and counts, where they are counted in this process."""
        trainer = self._rig.trainer
        version = trainer.attached_version()
        return None if version is None else (version, tuple(trainer.counts()))

    def _ours(self) -> set[threading.Thread]:
        """The audit's own thread, while it makes no call."""
        return set() if self._helper.busy else {self._helper.thread}


def _needed(call: Call) -> Any:
    """What a call comes to, as far as anybody asks: anything else may not be able to travel."""
    if call.what == "pull":
        return bool(call.result)
    if call.what == "latest":
        return None if call.result is None else os.fspath(call.result)
    return call.result if isinstance(call.result, type) else None


def _leave_forks_alone(handler: Callable[[int, Any], None], said: int) -> None:
    """Have forks that the collector makes, such as workers of a pool, end by a SIGTERM as any does.

    One that comes as a fork begins would be lost: Python forgets what its parent has not handled.
    So the fork begins with the signal blocked, and lets it in when it is not ours any more.
    """
    masks: dict[int, Any] = {}

    def before() -> None:
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        masks[threading.get_ident()] = blocked

    def behind() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, masks.pop(threading.get_ident()))

    def in_the_fork() -> None:
        if (others := signal.set_wakeup_fd(-1)) != said:
            signal.set_wakeup_fd(others)
        if signal.getsignal(signal.SIGTERM) == handler:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        behind()

    os.register_at_fork(before=before, after_in_parent=behind, after_in_child=in_the_fork)


class _Heard(Overheard):
    """Hears what goes on outside of calls, and tells of it."""

    def __init__(self, line: Line, *, everything: bool) -> None:
        super().__init__(everything=everything)
        self._line = line
        self.errors = _Telling(lambda error: line.tell("raised", portable(error)))
        self._warnings = _Telling(self._tell_warning)

    def hear(self, text: str) -> bool:
        """Tell of every text: what is looked for is known elsewhere."""
        with contextlib.suppress(Exception):
            self._line.tell("said", text)
        return False

    def _tell_warning(self, message: warnings.WarningMessage) -> None:
        text, category = str(message.message), message.category
        if not _is_importable(category):
            text, category = f"{category.__name__}: {text}", UserWarning
        with contextlib.suppress(Exception):
            self._line.tell("warned", text, category, message.filename, message.lineno)


def _is_importable(kind: type[Any]) -> bool:
    with contextlib.suppress(Exception):
        return pickle.loads(pickle.dumps(kind)) is kind
    return False


class _Telling(list[Any]):
    """A list that tells of what is put into it."""

    def __init__(self, tell: Callable[[Any], None]) -> None:
        super().__init__()
        self._tell = tell

    def append(self, item: Any) -> None:
        self._tell(item)


faulthandler.enable()
