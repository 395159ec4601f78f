"""A life in a process of its own: a crash kills it."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from pytest_resume_audit.control import Control
from pytest_resume_audit.lives.child import STOP
from pytest_resume_audit.lives.local import Call
from pytest_resume_audit.lives.nursery import START, NurseryError, nursery_of
from pytest_resume_audit.lives.overheard import Overheard
from pytest_resume_audit.lives.processes import is_over, kill_group
from pytest_resume_audit.lives.server import RigServer
from pytest_resume_audit.remote import arrived
from pytest_resume_audit.rest import Look, ProcLook, Rest, SeveralLooks, native_threads
from pytest_resume_audit.rig import Rig
from pytest_resume_audit.savepoints import Images, SavePoints
from pytest_resume_audit.style import Make
from pytest_resume_audit.timeline import Death

A_WHILE = 1.0
"""Seconds that a process whose connection has closed gets to be over."""

_LINES = 40
"""Lines of what a life printed last that are told of one that died by itself."""

_CHARACTERS = 10_000
"""Characters of the same, at the most."""


_OWN_HANDLER = (
    "so that the collector's stop() is not called: have a handler end the process, or call the one "
    "that there was when the collector was made"
)


class LifeDied(RuntimeError):
    """The process of a life has ended by itself: how, and what it printed last."""


class ProcessLife:
    """A life in a child process, watched from this one.

    Its rig is here: what the collector does to it is known here before its call returns. The
    process is forked by one that has the collector's module loaded.

    Args:
        control: the life's gates.
        deadline: seconds without progress that its rest is waited for.
        root: a directory for what it prints.
        overheard: is told of what it raises and warns of outside of calls.
        loop: whether the collector's methods are coroutines.
        everything: whether its logging and output are heard too.
    """

    needs_threads = False
    gives_images = False
    rest_name = "proc"

    def __init__(
        self,
        control: Control,
        deadline: float,
        root: Path,
        overheard: Overheard,
        *,
        loop: bool,
        everything: bool,
    ) -> None:
        self.control = control
        self.killed = False
        self._deadline = deadline
        self._overheard = overheard
        self._loop = loop
        self._everything = everything
        self._output = root / f"output-{threading.get_ident()}-{id(self)}"
        self._ours = native_threads()
        self._calls: dict[int, Call] = {}
        self._answers: dict[int, tuple[bool, Any]] = {}
        self._heard = threading.Condition()
        self._last = 0
        self._pid = 0
        self._connection: Connection | None = None
        self._gone = False
        self._ended: int | None = None
        self._ending = self._stopping = self._has_ended = False
        self._death: tuple[str, str | None] | None = None
        self._lock_at: int | None = None
        self._closing = ExitStack()

    # -- the process ---------------------------------------------------------------------------

    def make(self, make: Make, rig: Rig) -> Call:
        """Begin the process, and make the collector in it; its class is what the call comes to."""
        self._rig = rig
        self.server = RigServer(rig, self.control, self._hear)
        self._closing.callback(self.server.close)
        payload = (
            self.server.address,
            self.server.key,
            self.control.setup,
            pickle.dumps(make),
            self._loop,
            self._everything,
        )
        self._begin_process(make, payload)
        self._see_it_begin()
        look = self._new_look()
        self._closing.callback(look.close)
        self._rest = Rest(self.control, look, self._deadline)
        return self._command("the collector's __init__", "make")

    def _begin_process(self, make: Make, payload: tuple[Any, ...]) -> None:
        """Begin the process, which does :func:`pytest_resume_audit.lives.child.live`."""
        more = self._environment()
        self._nursery = nursery_of(*_modules(make), **self._imported_with())
        self._pid = self._nursery.fork(
            *payload, output=str(self._output), env={**os.environ, **more}
        )

    def _see_it_begin(self) -> None:
        """Wait until it says that it has begun.

        Raises:
            NurseryError: when it is over before, or takes too long.
        """
        end = time.monotonic() + START
        while not self._has_begun(0.05):
            over = self._is_over()
            if over or time.monotonic() > end:
                how = how_it_ended(self._wait()) if over else f"{START:g} s are over"
                raise NurseryError(f"its process does not begin: {how}{self._said()}")

    def _has_begun(self, within: float) -> bool:
        """Wait until it says that it has begun, or is gone."""
        with self._heard:
            return self._heard.wait_for(lambda: self._connection is not None or self._gone, within)

    def _environment(self) -> dict[str, str]:
        """What it has in its environment, with what this process has."""
        return {}

    def _imported_with(self) -> dict[str, str]:
        """The same for the time when the collector's module is imported."""
        return {}

    def _new_look(self) -> Look:
        looks = [ProcLook(self._ours, self.control.parked)]
        if self._connection is not None:
            theirs = ProcLook(
                frozenset(), self.control.parked, process=self._pid, lock_at=self._lock_at
            )
            looks.append(theirs)
        return SeveralLooks(looks)

    def call(
        self, method: str, *args: Any, points: SavePoints | None = None, **kwargs: Any
    ) -> Call:
        """Call a method of the collector, and wait until the life is at rest."""
        return self._command(method, "call", method, args, kwargs)

    def _command(self, named: str, what: str, *words: Any) -> Call:
        call = Call(named, lambda: None, self.control)
        with self.control.lock:
            self.control.activity += 1
            self._last += 1
            self._calls[self._last] = call
            if self._gone:
                call.done = True
        self._send(what, self._last, *words)
        self.rest()
        return call

    def _send(self, *words: Any) -> None:
        if self._connection is not None:
            self.server.send(self._connection, 0, *words)

    def ask(self, what: str, *words: Any, within: float | None = None) -> Any:
        """Ask what is answered at once, whatever the collector does meanwhile."""
        self._last += 1
        number = self._last
        self._send(what, number, *words)
        self._wait_for(
            lambda: number in self._answers or self._answers_no_more(), within or self._deadline
        )
        with self._heard:
            ok, value = self._answers.pop(number, (False, None))
        if ok:
            return value
        if value is not None:
            raise arrived(*value)
        raise self.died() or LifeDied("its process does not answer")

    def _wait_for(self, condition: Callable[[], bool], seconds: float) -> None:
        """Wait until a condition holds, or it has ended, or for so long."""
        end = time.monotonic() + seconds
        while True:
            with self._heard:
                left = end - time.monotonic()
                if self._heard.wait_for(condition, min(left, A_WHILE)) or left <= A_WHILE:
                    return
            self._see_its_end()

    def _answers_no_more(self) -> bool:
        return self._gone

    # -- what it says --------------------------------------------------------------------------

    def _hear(self, connection: Connection, words: tuple[Any, ...] | None) -> None:
        """In the thread that reads what comes from it."""
        with self._heard:
            if words is None:
                if connection is self._connection:
                    self._is_gone()
            elif words[0] == "begun":
                _, self._pid, self._lock_at = words
                self._connection = connection
            elif words[0] == "returned":
                self._returned(*words[1:])
            elif words[0] == "dies":
                _, before, cut = words
                self._death = before, cut
                if connection is not self._connection:
                    # One that helps with the save, and waits to die with all others.
                    self._kill()
            elif words[0] == "said":
                self._overheard.hear(words[1])
            elif words[0] == "raised":
                self._overheard.errors.append(arrived(*words[1]))
            elif words[0] == "warned":
                self._warned(*words[1:])
            self._moves(words)

    def _moves(self, words: tuple[Any, ...] | None) -> None:
        """Whoever waits looks again; to be asked, and to answer, is nothing that a life does."""
        if words is None or words[0] != "returned" or words[1] not in self._answers:
            self.control.activity += 1
        self._heard.notify_all()

    def _returned(self, number: int, ok: bool, value: Any) -> None:
        call = self._calls.pop(number, None)
        if call is None:
            self._answers[number] = ok, value
            return
        if ok:
            call.result = value
        else:
            call.error = arrived(*value)
        call.done = True

    def _warned(self, text: str, category: type[Warning], filename: str, lineno: int) -> None:
        if not self._overheard.hear(f"{category.__name__}: {text}"):
            message = warnings.WarningMessage(text, category, filename, lineno)
            self._overheard.hear_warning(message)

    def _see_its_end(self) -> None:
        """Take note that it is over, also where what it has started keeps its connection open."""
        if self._connection is None or self._gone or not self._is_over():
            return
        with self._heard:
            # What it has said last may not have been read yet.
            self._heard.wait_for(lambda: self._gone, A_WHILE)
            self._is_gone()
            self._moves(None)

    def _is_gone(self) -> None:
        self._gone = True
        self.killed = self._death is not None
        for call in self._calls.values():
            call.done = True

    def died(self) -> BaseException | None:
        """How it died by itself, if it did."""
        if not self._gone or self._ending or self.killed:
            return None
        how = self._how_it_ended()
        if how is None:
            return None
        return LifeDied(f"its process died by itself: {how}{self._said()}")

    def _said(self) -> str:
        """What it printed last, as part of a message."""
        # A last line of a gigabyte tells no more than the end of it.
        printed = self.printed()[-_CHARACTERS:].splitlines()[-_LINES:]
        said = "".join(f"\n    {line}" for line in printed)
        return f"; it printed last:{said}" if said else ""

    def _how_it_ended(self) -> str | None:
        """In words; None where it was asked to, and did it well."""
        code = self._wait()
        if self._stopping and code in (0, -signal.SIGTERM, 128 + signal.SIGTERM):
            return None
        if not self._has_ended:
            return "it closed its connection to the audit, or became another program (exec)"
        return how_it_ended(code)

    def _wait(self) -> int:
        if self._ended is None:
            end = time.monotonic() + A_WHILE
            while not self._has_ended and time.monotonic() < end:
                self._has_ended = self._is_over()
            # It is killed in any case: else whoever waits for it might wait for ever.
            self._kill()
            self._ended = self._collected()
        return self._ended

    def _is_over(self) -> bool:
        return is_over(self._pid)

    def _collected(self) -> int:
        """How it has ended, or does: nothing of it is left then."""
        return self._nursery.wait(self._pid)

    def _kill(self) -> None:
        kill_group(self._pid)

    def printed(self) -> str:
        """What it has printed."""
        with contextlib.suppress(OSError):
            return self._output.read_text(encoding="utf-8", errors="replace")
        return ""

    # -- what is asked of it -------------------------------------------------------------------

    def weights(self) -> tuple[int, tuple[int, ...]]:
        """Version and counts of the weights, wherever they are."""
        there: tuple[int, tuple[int, ...]] | None = self.ask("weights")
        trainer = self._rig.trainer
        return (trainer.weight_version, tuple(trainer.counts())) if there is None else there

    def rest(self, *, conclude: bool = False) -> None:
        """Wait until the life is at rest."""
        self._rest.wait(conclude=conclude)
        self._see_its_end()

    def alive(self) -> bool:
        """Whether anything in it could still act by itself."""
        return bool(self._calls) or bool(self.ask("threads"))

    def whereabouts(self) -> list[str]:
        """What each of its threads waits for, sorted by name."""
        standing = {w.thread: w.gate for w in self.control.waiters if w.thread is not None}
        try:
            threads = self.ask("threads")
            own = self.ask("terminates") if STOP in self._calls else None
        except Exception as error:
            return [str(error)]
        told = [f"{own}, {_OWN_HANDLER}"] if own else []
        return told + sorted(
            f"thread {name!r} "
            + (
                f"stands at the {standing[native]}'s gate"
                if native in standing
                else f"is in {where}"
            )
            for native, name, where in threads
        )

    def stop(self) -> Call:
        """Send it a SIGTERM; the call is done when the collector's own stop is, or it has ended."""
        call = Call("stop", lambda: None, self.control)
        with self._heard:
            self._stopping = True
            self._calls[STOP] = call
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGTERM)
        self.rest()
        return call

    def end(self) -> tuple[str, ...]:
        """Kill it, and whatever it has started.

        Returns:
            The threads that it leaves behind: none.
        """
        try:
            if self._pid and not (self._ending or self._gone):
                self._leave_what_it_has_learnt()
            self._end_process()
            # Into the output of this process, as that of any other life.
            _print(self.printed())
        except BaseException:
            self._end_process()  # Ctrl-C may have come before it was ended
            raise
        finally:
            self.control.end()
            self._closing.close()
        return ()

    def _end_process(self) -> None:
        self._ending = True
        if self._pid and self._ended is None:
            self._kill()
            self._wait()

    def _leave_what_it_has_learnt(self) -> None:
        """Have the next lives begin with what this one has imported."""
        if not self._nursery.has_learnt:
            with contextlib.suppress(LifeDied, NurseryError):  # then they begin with less
                self._nursery.learn(self.ask("modules", within=1.0))

    # -- saves ---------------------------------------------------------------------------------

    def points(self, root: Path, at: int, thread: int | None) -> _Points:
        """Where a save stops for a race."""
        return _Points(self, root, at, thread)

    def images(self, root: Path, into: Path, name: str, death: Death) -> _Death:
        """What a save leaves that is killed."""
        return _Death(self, root, into, name, death)

    def kill(self, before: str, cut: str | None) -> None:
        """Kill it here and now, in the middle of a save that has done all it does."""
        with self._heard:
            self._death = before, cut
        self._kill()
        self._wait_for(lambda: self._gone, self._deadline)

    @property
    def death(self) -> tuple[str, str | None] | None:
        """Before which operation it died, and the file that it wrote last."""
        return self._death if self._gone else None


class _Points(SavePoints):
    """The points of a save in another process."""

    def __init__(self, life: ProcessLife, root: Path, at: int, thread: int | None) -> None:
        super().__init__(life.control, root, at, thread=thread)
        self._life = life

    @contextmanager
    def watched(self) -> Iterator[None]:
        """While points are counted."""
        self._life.server.forget_point()
        self._life.ask("watch", self._root, self._at, None, self._thread)
        yield
        self.seen, self.unseen, _ = self._life.ask("unwatch")

    @property
    def stopped_at(self) -> str:
        """What the point is that it stands at, or stood."""
        return self._life.server.point_reached

    def go_on(self) -> None:
        """Let the save go on."""
        self._life.server.goes_on = True
        self._life.control.open_gates()


class _Death(Images):
    """The death of a save in another process."""

    def __init__(self, life: ProcessLife, root: Path, into: Path, name: str, death: Death) -> None:
        super().__init__(root, into, name, death)
        self._life = life

    @contextmanager
    def watched(self) -> Iterator[None]:
        """While operations are counted."""
        life, death = self._life, self._death
        life.ask("watch", self._root, None, death, None)
        yield
        if life.death is None:
            self.seen, self.unseen, cut = life.ask("unwatch")
            behind = len(self.seen) + 1
            if death.torn is None or death.at != behind or not any(self.tears(cut)):
                return
            life.kill("", cut)
        assert life.death is not None
        before, cut = life.death
        assert death.at is not None  # of all deaths each is played by itself
        if death.torn is None:
            self.taken.append(self._copy(death.at, before))
        for torn, length in self.tears(cut):
            self.taken.append(self._copy(death.at, before, torn, cut or "", length))


def _print(text: str) -> None:
    """Print whatever it is, as far as the output of this process takes it."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    with contextlib.suppress(OSError, ValueError):  # that may be closed
        print(text.encode(encoding, "backslashreplace").decode(encoding), end="")


def _modules(make: Make) -> list[str]:
    """The modules that a collector is made from."""
    return [make.__module__] if hasattr(make, "__module__") else []


def how_it_ended(code: int) -> str:
    """An exit status in words; a negative one is a signal."""
    if code >= 0:
        return f"exit status {code}"
    with contextlib.suppress(ValueError):
        return f"killed by {signal.Signals(-code).name}"
    return f"killed by signal {-code}"
