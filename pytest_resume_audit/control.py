"""The gates and the record of one life.

Loader, engine, buffer and trainer of a life share one :class:`Control`. It lets through what the
conductor allows, notes what happened, and ends the life: a left-over thread's next call raises
:class:`LifeEnded`.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import get_ident, get_native_id
from typing import Any, NoReturn

from pytest_resume_audit.fakes.prompts import Prompt, Rollout
from pytest_resume_audit.history import Event
from pytest_resume_audit.numbering import LifeNumbering, Numbering
from pytest_resume_audit.setup import Setup

NO_LIMIT = float("inf")

RUNAWAY = 4
"""Times the prompts, or passes, of the setup: a life that takes more will not end by itself."""

MOST_TRIES = 100
"""Times that one generation may be asked for in a life."""

_ENDLESS = '; a stream that never ends is declared: stream = "endless"'


class LifeEnded(SystemExit):
    """The life that called has ended: the audit crashed, stopped or finished it.

    It is a ``BaseException`` so that ``except Exception`` does not keep a dead life going, and
    a ``SystemExit`` so that an event loop it is raised in ends instead of reporting it.
    """

    def __str__(self) -> str:
        return "the life has ended, and its rig with it"


class GenerationFailed(RuntimeError):
    """A generation ended without an answer, because the timeline said ``fail``."""


class WouldBlock(BaseException):
    """A collector that was taken for single-threaded waits for something: it needs threads."""


@dataclass(eq=False)
class Waiter:
    """A call that stands at a gate.

    Args:
        gate: ``"loader"``, ``"engine"``, ``"trainer"`` or ``"save"``.
        ready: whether the gate lets it through now.
        wake: lets it go on.
        thread: native id of the thread that stands there, None for a coroutine.
    """

    gate: str
    ready: Callable[[], bool]
    wake: Callable[[], None]
    thread: int | None


_tickets = itertools.count(1)
"""No life has one of another: what comes out of a checkpoint is not taken for something of here."""


@dataclass(eq=False)
class Generation:
    """One generation that is in flight.

    Args:
        ordinal: of its prompt.
        prompt: what is answered.
        generation: its place in the group.
        weight_version: of the weights when it began.
        ticket: that the answer will have.
    """

    ordinal: int
    prompt: Prompt
    generation: int
    weight_version: int
    ticket: int
    future: Future[Rollout] | None = None
    ended: bool = False
    failed: bool = False

    def result(self) -> Rollout:
        """The answer, or the failure."""
        if self.failed:
            raise GenerationFailed(
                f"generation {self.generation} of the prompt in row {self.prompt.row} failed"
            )
        return Rollout(self.prompt, self.generation, self.weight_version, ticket=self.ticket)


class Control:
    """What the conductor holds a life by.

    Args:
        setup: the sizes.
        numbering: the stream, for the ordinals of what is recorded.
        settled: ordinals settled in the weights that the life starts from.
        gated: whether the loader waits for a script; a rig used alone is open.
        self_driven: whether training steps and saves wait for a script.
        counted: prompts, and generations of each, that the weights count; by default those of the
            setup. Where sizes change from life to life the weights have the same shape in all.
    """

    def __init__(
        self,
        setup: Setup,
        numbering: Numbering,
        *,
        settled: Sequence[int] | frozenset[int] = (),
        gated: bool = False,
        self_driven: bool = False,
        counted: tuple[int, int] | None = None,
    ) -> None:
        self.setup = setup
        self.counted = counted or (setup.prompts, setup.group_size)
        self.lock = threading.Lock()
        # A loop that runs here belongs to whoever audits, and outlives the life.
        self._made_in = get_ident()
        self.numbers = LifeNumbering(numbering, settled)
        self.place_limit: float = 0 if gated else NO_LIMIT
        self.train_limit: float = 0 if self_driven else NO_LIMIT
        self.save_limit: float = 0 if self_driven else NO_LIMIT
        self.pass_limit: float = 0 if self_driven else NO_LIMIT
        self.saves_begun = 0
        self.checkpoint: Path | None = None
        self.weights: Callable[[], int] = lambda: 0
        self.steps_taken = 0
        self.over = False
        self.inside = 0
        self.activity = 0
        self.batches = 0
        self.first_place: int | None = None
        self.handed_out = 0
        self.runaway = ""
        self.pass_ended = False
        self.passes_ended = 0
        self.data_over = False
        self.records: list[Event] = []
        self.waiters: list[Waiter] = []
        self.in_flight: dict[int, list[Generation]] = {}
        self.tickets: dict[int, int] = {}
        self.most_in_flight = 0
        self.parked: set[int] = set()
        self.carriers: set[int] = set()
        self.callers: set[int] = set()
        self.loops: set[asyncio.AbstractEventLoop] = set()
        self.ended_loops: set[asyncio.AbstractEventLoop] = set()
        self.at_call: Callable[[str], None] | None = None
        self.inline: int | None = None
        self.would_block = False
        self.courier: Callable[[Callable[[], None]], None] | None = None

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "the rig of a local life can't leave its process: a collector that uses it in other "
            "processes, in actors or in tasks has the life 'process', 'ray' or 'ray-driver'"
        )

    # -- what every call goes through ------------------------------------------------------

    def check(self) -> None:
        """Let the call in, unless the life is over."""
        loop = asyncio._get_running_loop()
        if loop is not None and loop not in self.loops and get_ident() != self._made_in:
            self.loops.add(loop)
            _keep_quiet(loop, self)
        if self.over:
            raise LifeEnded
        self.callers.add(get_native_id())
        if self.at_call is not None:
            self.at_call(_name_of_call())

    @contextmanager
    def granted(self) -> Iterator[None]:
        """A stretch in which a call that was let through works: the life is not at rest."""
        self.check()
        with self.lock:
            self.inside += 1
        try:
            yield
        finally:
            with self.lock:
                self.inside -= 1

    def record(
        self,
        kind: str,
        ordinal: int | None = None,
        generation: int | None = None,
        number: int | None = None,
        text: str = "",
    ) -> None:
        """Note an event. The lock is held."""
        if self.over:
            raise LifeEnded
        self.activity += 1
        self.records.append(Event(kind, ordinal, generation, number, text))

    def note(self, kind: str, *, number: int | None = None, text: str = "") -> None:
        """Note an event that belongs to no prompt."""
        with self.lock:
            self.record(kind, number=number, text=text)

    # -- gates -----------------------------------------------------------------------------

    def wait(self, gate: str, ready: Callable[[], bool]) -> None:
        """Stand at a gate until it lets this thread through. The lock is held, before and after."""
        while not self.over and not ready():
            if self.inline == get_ident():
                self.would_block = True
                raise WouldBlock(gate)
            signal = threading.Lock()
            signal.acquire()
            thread = get_native_id()
            self._stand(Waiter(gate, ready, signal.release, thread))
            # It is not looked at until it is woken; but others may still wait for the lock.
            self.parked.add(thread)
            self.lock.release()
            try:
                signal.acquire()
            finally:
                self.lock.acquire()
        if self.over:
            raise LifeEnded

    async def await_gate(self, gate: str, ready: Callable[[], bool]) -> None:
        """Stand at a gate in a coroutine: its loop goes on meanwhile."""
        self.check()
        loop = asyncio.get_running_loop()
        while True:
            with self.lock:
                if self.over:
                    raise LifeEnded
                if ready():
                    return
                go_on = loop.create_future()
                waiter = Waiter(gate, ready, _waker(loop, go_on), None)
                self._stand(waiter)
            try:
                await go_on
            finally:
                with self.lock:
                    if waiter in self.waiters:
                        self.waiters.remove(waiter)

    def when(
        self, gate: str, ready: Callable[[], bool], then: Callable[[], None], thread: int | None
    ) -> None:
        """Go on once a gate lets through, or the life is over: now, or with whoever opens it.

        Args:
            gate: which one.
            ready: whether it lets through now.
            then: what goes on.
            thread: native id of the thread, of another process, that waits for it; None for a
                coroutine there.
        """
        with self.lock:
            if not self.over and not ready():
                again = functools.partial(self.when, gate, ready, then, thread)
                self._stand(Waiter(gate, ready, again, thread))
                return
        then()

    def _stand(self, waiter: Waiter) -> None:
        self.activity += 1
        self.waiters.append(waiter)

    def forget(self, thread: int) -> None:
        """Let nothing come of what a thread, of another process, waits for at a gate."""
        with self.lock:
            self.waiters = [waiter for waiter in self.waiters if waiter.thread != thread]
            self.activity += 1

    def open_gates(self) -> None:
        """Let through every waiter whose gate is open now."""
        with self.lock:
            ready = [w for w in self.waiters if self.over or w.ready()]
            for waiter in ready:
                self.waiters.remove(waiter)
                if waiter.thread is not None:
                    self.parked.discard(waiter.thread)
                self.activity += 1
        for waiter in ready:
            waiter.wake()

    def standing_at(self, gate: str) -> list[Waiter]:
        """The calls that stand at one gate."""
        with self.lock:
            return [w for w in self.waiters if w.gate == gate]

    # -- loader ----------------------------------------------------------------------------

    def may_hand_out(self) -> bool:
        """Whether the loader's gate lets the next batch through."""
        return self.numbers.place < self.place_limit and not self.runaway

    def hand_out(self, rows: Sequence[int], place: int | None) -> list[int]:
        """Note a batch that the loader handed out; returns its ordinals. The lock is held."""
        self.batches += 1
        ordinals = self.numbers.hand_out(rows, place)
        self.handed_out += len(ordinals)
        if self.handed_out > RUNAWAY * self.setup.total and self.place_limit == NO_LIMIT:
            self._run_away(f"it has been handed {self.handed_out} prompts in one life", _ENDLESS)
        if self.first_place is None and ordinals:
            self.first_place = ordinals[0]
        for ordinal in ordinals:
            self.record("handed_out", ordinal)
        self.pass_ended = self.data_over = False
        return ordinals

    def ticket(self, ordinal: int) -> int:
        """A ticket by which a prompt, or an answer to it, is known when it comes back."""
        ticket = next(_tickets)
        self.tickets[ticket] = ordinal
        return ticket

    def end_pass(self, passes_ended: int | None = None) -> None:
        """Note that the loader said it has no more in this pass. The lock is held."""
        self.pass_ended = True
        self.passes_ended = self.passes_ended + 1 if passes_ended is None else passes_ended
        self.record("pass_ended", number=self.passes_ended)
        if self.passes_ended > RUNAWAY * self.setup.passes and self.place_limit == NO_LIMIT:
            what = f"it has come to the end of a pass {self.passes_ended} times"
            self._run_away(what, _ENDLESS)
        if self.passes_ended >= self.setup.passes or self.numbers.place >= self.setup.total:
            self.data_over = True

    def _run_away(self, what: str, hint: str = "") -> None:
        """Note that the collector will never come to an end by itself; no gate opens again."""
        size = f"the setup has {self.setup.total} prompts in {self.setup.passes} passes"
        self.runaway = self.runaway or f"{what}, though {size}{hint}"

    def has_state(self, state: str) -> None:
        """Note the place at which a project's own loader gave this state.

        The state says nothing of its place to us; that it comes back does.
        """
        with self.lock:
            self.numbers.numbering.saved_places.setdefault(state, set()).add(self.numbers.place)

    def goes_to_state(self, state: str) -> None:
        """Note that a project's own loader has gone to a state, and so to a place of it.

        Passes without a shuffle have their states in common. Of the places that this one belongs
        to, none above that of the checkpoint can be meant.
        """
        with self.lock:
            known = self.numbers.numbering.saved_places.get(state, set())
            below = [place for place in known if place <= self.numbers.place]
            self.numbers.place = max(below, default=min(known, default=self.numbers.place))

    # -- engine ----------------------------------------------------------------------------

    def dispatch(
        self, prompt: Prompt, generation: int, future: Future[Rollout] | None = None
    ) -> Generation:
        """Put a generation in flight."""
        self.check()
        with self.lock:
            if self.over:
                raise LifeEnded
            # Its ticket says which hand-out it is; unless one prompt is kept for all of its row.
            ordinal = self.numbers.ask_for(prompt.row, generation, self.tickets.get(prompt.ticket))
            if self.numbers.tries(ordinal, generation) > MOST_TRIES:
                self._run_away(f"prompt {ordinal} has been asked for {MOST_TRIES} times")
            ticket = self.ticket(ordinal)
            begun = Generation(ordinal, prompt, generation, self.weights(), ticket, future)
            self.in_flight.setdefault(ordinal, []).append(begun)
            self.most_in_flight = max(self.most_in_flight, len(self.in_flight))
            self.record("dispatched", ordinal, generation, number=begun.weight_version)
            return begun

    def end_generation(self, generation: Generation, *, failed: bool = False) -> None:
        """Let a generation end: whoever waits for it goes on."""
        with self.lock:
            if self.over:
                raise LifeEnded
            generation.failed = failed
            generation.ended = True
            waiting = self.in_flight[generation.ordinal]
            waiting.remove(generation)
            if not waiting:
                del self.in_flight[generation.ordinal]
            if failed:
                self.numbers.lose(generation.ordinal, generation.generation)
                self.record("failed", generation.ordinal, generation.generation)
            else:
                self.numbers.reach("finished", generation.ordinal, generation.generation)
                self.record("finished", generation.ordinal, generation.generation)
        if generation.future is not None:
            complete = _completer(self, generation)
            if self.courier is None:
                complete()
            else:
                self.courier(complete)
        else:
            self.open_gates()

    # -- buffer, trainer, drops ------------------------------------------------------------

    def reached(self, stage: str, rollout: Rollout, *, number: int | None = None) -> int:
        """Note that a rollout reached a stage; returns its ordinal. The lock is held."""
        # A ticket of this life says exactly which one it is; what comes from a checkpoint has an
        # older one, or none, and is known by its row.
        known = self.tickets.get(rollout.ticket)
        if known is None:
            ordinal = self.numbers.of(stage, rollout.prompt.row, rollout.generation)
        else:
            ordinal = known
            self.numbers.reach(stage, ordinal, rollout.generation)
        self.record(stage, ordinal, rollout.generation, number=number)
        return ordinal

    def dropped(self, prompt: Prompt, reason: str) -> None:
        """Note that the collector gives a prompt up."""
        with self.lock:
            ordinal = self.numbers.drop(prompt.row)
            self.record("dropped", ordinal, number=self.weights(), text=reason)

    # -- saves of a self-driven life ---------------------------------------------------------

    def begin_save(self) -> None:
        """Stand at the gate before a save."""
        with self.lock:
            self.wait("save", lambda: self.saves_begun < self.save_limit)
            self.saves_begun += 1

    def end_save(self, checkpoint: Path) -> None:
        """Stand at the gate behind a save that is done."""
        with self.lock:
            self.checkpoint = checkpoint
            done = self.saves_begun
            self.wait("saved", lambda: self.pass_limit >= done)

    # -- the end ---------------------------------------------------------------------------

    def unseen_errors(self) -> list[BaseException]:
        """Exceptions of tasks in the life's loops that nobody has asked for.

        A loop reports them when it throws the task away: which may be long after the life, and
        never comes while the collector keeps the task.
        """
        ended = [
            task
            for task in _all_tasks()
            if task.get_loop() in self.loops and task.done() and task._log_traceback
        ]
        ended.sort(key=lambda task: (len(task.get_name()), task.get_name()))
        errors = [task.exception() for task in ended]
        return [error for error in errors if error is not None]

    def end(self) -> None:
        """End the life: every call that stands at a gate, and every later one, raises."""
        with self.lock:
            self.over = True
            loops = list(self.loops)
        # First the loops: once they end, their tasks are cancelled. A task that came to raise
        # by itself would break off the ending of its loop, and the other tasks with it.
        for loop in loops:
            self.end_loop(loop)
        self.open_gates()

    def end_loop(self, loop: asyncio.AbstractEventLoop) -> bool:
        """End an event loop of the life; once, since a second time would hit it at its end.

        Returns:
            Whether this was the first time.
        """
        with self.lock:
            if loop in self.ended_loops:
                return False
            self.ended_loops.add(loop)
        _call(loop, _raise_life_ended)
        return True


def _all_tasks() -> list[Any]:
    # asyncio.all_tasks leaves out those that have ended.
    names = ("_all_tasks", "_scheduled_tasks", "_eager_tasks")
    return [task for name in names for task in list(getattr(asyncio.tasks, name, ()))]


def _name_of_call() -> str:
    """The call into the rig that is being let in, such as ``ReplayBuffer.state_dict``."""
    frame = sys._getframe(1)
    while frame.f_globals.get("__name__") in (__name__, "contextlib") and frame.f_back:
        frame = frame.f_back
    owner = frame.f_locals.get("self")
    return f"{type(owner).__name__}.{frame.f_code.co_name}"


def _raise_life_ended() -> None:
    raise LifeEnded


def _keep_quiet(loop: asyncio.AbstractEventLoop, control: Control) -> None:
    """Let a loop not report tasks that ended because their life did, or once it has."""
    former = loop.get_exception_handler()

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if control.over or isinstance(context.get("exception"), LifeEnded):
            return
        if former is None:
            loop.default_exception_handler(context)
        else:
            former(loop, context)

    loop.set_exception_handler(handle)


def _call(loop: asyncio.AbstractEventLoop, callback: Callable[..., Any], *args: Any) -> None:
    # A loop that was closed has nothing left that could wait.
    try:
        loop.call_soon_threadsafe(callback, *args)
    except RuntimeError:
        if not loop.is_closed():
            raise


def _waker(loop: asyncio.AbstractEventLoop, future: asyncio.Future[None]) -> Callable[[], None]:
    def go_on() -> None:
        if not future.done():
            future.set_result(None)

    return lambda: _call(loop, go_on)


def _completer(control: Control, generation: Generation) -> Callable[[], None]:
    future = generation.future
    assert future is not None

    def complete() -> None:
        if control.over or future.cancelled():
            return
        try:
            answer = generation.result()
        except GenerationFailed as failure:
            future.set_exception(failure)
        else:
            future.set_result(answer)

    return complete
