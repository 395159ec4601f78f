"""A life that is a training command: a crash kills it, and everything it has started."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from pytest_resume_audit.command import Command, CommandRefused
from pytest_resume_audit.control import Control
from pytest_resume_audit.lives.local import Call
from pytest_resume_audit.lives.nursery import nursery_of
from pytest_resume_audit.lives.overheard import Overheard
from pytest_resume_audit.lives.process import A_WHILE, LifeDied, ProcessLife, how_it_ended
from pytest_resume_audit.lives.processes import (
    cleans_up,
    content_of,
    is_over,
    kill_all,
    processes_below,
    threads_of,
)
from pytest_resume_audit.lives.reported import AT_SAVES, Reported
from pytest_resume_audit.lives.server import RigServer
from pytest_resume_audit.recorder import AUDIT
from pytest_resume_audit.remote import arrived
from pytest_resume_audit.rest import NotAtRest, Patience, ProcLook, Rest, SeveralLooks
from pytest_resume_audit.rig import Rig
from pytest_resume_audit.style import Make

SILENT = (
    "it has reported nothing: its script has to import pytest_resume_audit.recorder, and say what "
    f"it trains, saves and restores, in processes that have {AUDIT} in their environment"
)

_IN_THE_BACKGROUND = (
    "the command has ended with exit status 0, and a process that it has started goes on with the "
    "training, which is killed with the life: the command has to last as long as the training does "
    "(no daemon, and in a shell no & without wait)"
)


class CommandLife(ProcessLife):
    """The processes of one life of a command.

    It goes on by itself until it stands at a gate of ours, in a training step or at a save, which
    counts as at rest. Where the script lets its loader or its answers be held, every thread of it
    is waited for, as in any life.

    Args:
        command: the command.
        control: the life's gates.
        deadline: seconds without a report that are waited for.
        root: a directory for what it prints.
        overheard: hears what it prints.
    """

    rest_name = "gates"

    def __init__(
        self,
        command: Command,
        control: Control,
        deadline: float,
        root: Path,
        overheard: Overheard,
    ) -> None:
        super().__init__(control, deadline, root, overheard, loop=False, everything=False)
        self._command_line = command
        self._look = _Tree(self._ours, control.parked)
        self._rest = Rest(control, self._look, deadline)
        self._closing.callback(self._look.close)
        self._closed: set[Connection] = set()
        self._silent: LifeDied | None = None
        self._run = Call("the command", lambda: None, control)

    # -- the processes -------------------------------------------------------------------------

    def make(self, make: Make, rig: Rig) -> Call:
        """Be ready to begin; what stands for the command is what the call comes to."""
        self._rig = rig
        self.server = RigServer(rig, self.control, self._hear)
        self._closing.callback(self.server.close)
        self.reported = Reported(self.server, rig, self.control)
        self._nursery = nursery_of()
        call = Call("the command", lambda: self._command_line.kind, self.control)
        call.make()
        return call

    def call(self, method: str, *args: Any, points: object = None, **kwargs: Any) -> Call:
        """Do what a collector's method would do."""
        if method == "run":
            return self._go(*args, **kwargs)
        if method == "latest" and self._command_line.resume is None:
            return self._ask_what_it_restores(*args)
        function = getattr(self._command_line.kind, method)
        call = Call(method, lambda: function(*args, **kwargs), self.control)
        call.make()
        return call

    def _ask_what_it_restores(self, root: Path) -> Call:
        """Begin, and see which checkpoint it has found by itself."""
        self._begin(root, None, load_replay_buffer=self.loads_buffer)
        call = Call("latest", lambda: self.reported.restored, self.control)
        if self._run.error is not None:
            call.error, self._run.error = self._run.error, None
            call.end()
        else:
            call.make()
        return call

    loads_buffer = True
    """Whether a life that finds its checkpoint by itself loads the buffer of it."""

    def _go(self, root: Path, *, resume: Path | None, load_replay_buffer: bool) -> Call:
        """Begin, if it has not begun yet, and go on from what it has restored."""
        if not self._pid:
            told = resume if self._command_line.resume is not None else None
            self._begin(root, told, load_replay_buffer=load_replay_buffer)
        restored = self.reported.restored
        if restored is not None and resume is None:
            self._run.error = LookupError(
                f"the command says that it has restored {restored}, and was to begin afresh"
            )
        self.reported.go_on()
        self.rest()
        return self._run

    def _begin(self, root: Path, checkpoint: Path | None, *, load_replay_buffer: bool) -> None:
        command = self._command_line
        words = command.words(
            root, self.control.setup, checkpoint=checkpoint, load_replay_buffer=load_replay_buffer
        )
        there = {AUDIT: f"{self.server.address} {self.server.key.hex()}"}
        self._pid = self._nursery.run(
            words,
            output=str(self._output),
            directory=os.path.abspath(command.directory or "."),
            environment={**command.variables(), **there},
        )
        self._look.begin(self._pid)
        self.rest()

    def _kill(self) -> None:
        # A launcher may have put its workers into sessions of their own.
        tree = processes_below(self._pid)
        super()._kill()
        kill_all(pid for pid in tree if not cleans_up(pid))

    def _wait(self) -> int:
        if self._ended is None:
            self._kill()
            self._ended = self._nursery.wait(self._pid)
        return self._ended

    # -- what it says --------------------------------------------------------------------------

    def _hear(self, connection: Connection, words: tuple[Any, ...] | None) -> None:
        with self._heard:
            if words is None:
                self._closed.add(connection)
                if self._death is not None and connection is self._connection:
                    # The others die with the one that was killed in its save.
                    self._kill()
                    self._is_gone()
            elif words[0] == "begun":
                _, pid, lock_at = words
                self._look.locks[pid] = lock_at
                self._connection = self._connection or connection
            elif words[0] == "saves":
                self._connection = connection
            elif words[0] == "raised":
                self._overheard.errors.append(arrived(*words[1]))
            elif words[0] == "returned":
                self._returned(*words[1:])
            elif words[0] == "dies":
                _, before, cut = words
                self._death = before, cut
                self._kill()
            self._moves(words)

    def _answers_no_more(self) -> bool:
        return self._gone or self._connection is None or self._connection in self._closed

    # -- at rest, and at its end ---------------------------------------------------------------

    def rest(self, *, conclude: bool = False) -> None:
        """Wait until it has come as far as it is let, or has ended."""
        if not self._pid:
            return
        try:
            if not self._holds():
                self._until_it_stands()
            if self._holds():
                self.rest_name = self._look.name
                self._rest.wait(conclude=conclude)
        except NotAtRest:
            if self.reported.any:
                raise
            self._silent = LifeDied(f"within {self._deadline:g} s {SILENT}{self._said()}")
        self._see_its_end()

    def _holds(self) -> bool:
        return self.reported.holds_answers or self.reported.holds_loader

    def _until_it_stands(self) -> None:
        patience = Patience(self.control, self._deadline)
        while not (self._stands() or self._is_over() or self._holds()):
            patience.lose()
        if self._acts_behind_its_gates():
            # Be it busy, it has come as far as it can be known to.
            with contextlib.suppress(NotAtRest):
                self._rest.wait()

    def _acts_behind_its_gates(self) -> bool:
        """Whether it may go on by itself, though it stands at the gate of its next step.

        A save may be written in the background; and a signal's handler that saves does it while
        the thread that it has interrupted stands.
        """
        with self.control.lock:
            at_save = any(w.gate in AT_SAVES for w in self.control.waiters)
            interrupted = any(w.thread in self.server.interrupted for w in self.control.waiters)
        return not (at_save or self._is_over()) and (bool(self.reported.writes) or interrupted)

    def _stands(self) -> bool:
        """Whether it stands at a gate of ours, as far as it can come.

        Of several ranks each has to stand before its next step, as one may be far behind another.
        At a save the others may well wait for the one that saves.
        """
        with self.control.lock:
            gates = {w.gate for w in self.control.waiters}
            in_steps = {w.thread for w in self.control.waiters if w.gate == "trainer"}
            trainers = list(self.reported.trainers)
        if AT_SAVES & gates:
            return True
        ranks = [threads for pid in trainers if (threads := threads_of(pid))]
        return bool(in_steps) and all(in_steps & threads for threads in ranks)

    def _is_over(self) -> bool:
        return self._gone or is_over(self._pid)

    def _see_its_end(self) -> None:
        if self._run.done or not self._is_over():
            return
        trains_on = self._trains_on()
        self._has_ended = True
        code = self._wait()
        with self._heard:
            # What it said last may not have been read yet, that it dies in its save, say.
            self._heard.wait_for(self._answers_no_more, A_WHILE)
            self._is_gone()
        if not (self.killed or self._ending):
            self._run.error = self._why_it_failed(code)
            if code == 0 and trains_on and not self._stopping:
                self._run.error = LifeDied(_IN_THE_BACKGROUND)

    def _trains_on(self) -> bool:
        """Whether processes of it go on with the training, where the command itself has ended."""
        left = [pid for pid in processes_below(self._nursery.pid) if self._is_ours(pid)]
        if not left or self._gone or self._ending or self._death is not None:
            return False
        # What they do now they would do behind its back.
        self._look.begin(*left)
        with contextlib.suppress(NotAtRest):
            self._rest.wait()
        all_of_them = [pid for root in left for pid in (root, *processes_below(root))]
        threads = set[int]().union(*map(threads_of, all_of_them))
        with self.control.lock:
            return any(waiter.thread in threads for waiter in self.control.waiters)

    def _is_ours(self, pid: int) -> bool:
        """Whether a process was started by the command; it is not the command itself."""
        if pid == self._pid:
            return False
        end = time.monotonic() + A_WHILE
        # While it becomes another program it has no environment.
        while not (environment := content_of(pid, "environ")):
            if is_over(pid) or time.monotonic() > end:
                return False
        return self.server.key.hex().encode() in environment

    def _why_it_failed(self, code: int) -> BaseException | None:
        if self._stopping and code in (0, -signal.SIGTERM, 128 + signal.SIGTERM):
            return None
        if code == 0:
            return None if self.reported.any else LifeDied(f"it has ended, and {SILENT}")
        pattern = self._command_line.refuses
        how = how_it_ended(code)
        if pattern is not None and (found := re.search(pattern, self.printed())):
            return CommandRefused(f"the command refused, with {how}: {found[0]}")
        return LifeDied(f"the command died by itself: {how}{self._said()}")

    def died(self) -> BaseException | None:
        """That it does not report, if so; of a failure the run tells."""
        return self._silent

    def _is_gone(self) -> None:
        super()._is_gone()
        self._run.done = True

    def alive(self) -> bool:
        """Whether anything in it could still act by itself."""
        return not self._is_over()

    def weights(self) -> tuple[int, tuple[int, ...]]:
        """Version and counts of the weights, as the reports say."""
        trainer = self._rig.trainer
        return trainer.steps_behind, tuple(trainer.counts())

    def whereabouts(self) -> list[str]:
        """What each of its threads waits for, sorted by name."""
        if self._connection is None:
            return ["nothing of it has reported yet"]
        return super().whereabouts()

    def stop(self) -> Call:
        """Send all its processes a SIGTERM; the call is done when the command has ended."""
        self._stopping = True
        for pid in (self._pid, *processes_below(self._pid)):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGTERM)
        return self._run

    def settle(self) -> None:
        """Wait until every thread of it is asleep, wherever it stands; but not for ever."""
        with contextlib.suppress(NotAtRest):
            self._rest.wait()
        self._see_its_end()

    def _leave_what_it_has_learnt(self) -> None:
        """Nothing: the next one begins anew."""

    def end(self) -> tuple[str, ...]:
        """Kill it, and whatever it has started."""
        self._overheard.hear(self.printed())
        return super().end()


class _Tree(SeveralLooks):
    """Looks at the threads of a process, of all that it has started, and at those that serve it.

    Args:
        ignored: native ids of threads of this process that were there before.
        parked: native ids of threads that stand at a gate of ours; kept up to date elsewhere.

    Attributes:
        locks: the addresses at which threads of a process wait for its interpreter, by its id.
    """

    def __init__(self, ignored: frozenset[int], parked: set[int]) -> None:
        self._here = ProcLook(ignored, parked)
        super().__init__([self._here])
        self.locks: dict[int, int | None] = {}
        self._parked = parked
        self._roots: tuple[int, ...] = ()
        self._known: dict[tuple[int, int | None], ProcLook] = {}

    def begin(self, *pids: int) -> None:
        """Look at these processes, and at what they start, from now on."""
        self._roots = pids

    def counts(self) -> dict[int, object]:
        """Something of each thread, by native id, that changes whenever it has run."""
        pids = [pid for root in self._roots for pid in (root, *processes_below(root))]
        # Where its interpreter's lock is, a process tells only when it first reports.
        there = {(pid, self.locks.get(pid)) for pid in pids}
        for gone in self._known.keys() - there:
            self._known.pop(gone).close()
        for pid, lock in there - self._known.keys():
            with contextlib.suppress(OSError):
                self._known[pid, lock] = ProcLook(
                    frozenset(), self._parked, process=pid, lock_at=lock
                )
        self._looks = [self._here, *self._known.values()]
        return super().counts()
