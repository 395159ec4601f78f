"""Serves the rig of a life to other processes.

Nothing here waits: a call that stands at a gate is answered by whoever opens it.
"""

from __future__ import annotations

import itertools
import os
import socket
import tempfile
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import (
    Connection,
    Listener,
    answer_challenge,
    deliver_challenge,
)
from pathlib import Path
from typing import Any

from pytest_resume_audit.control import Control, LifeEnded
from pytest_resume_audit.fakes.prompts import Prompt, Rollout
from pytest_resume_audit.remote import Address, portable, receive, send
from pytest_resume_audit.rig import Rig

Reply = Callable[[Any], None]

LISTENS = "resume-audit line"
"""What threads are called that read what other processes say."""

_ANY: tuple[Address | None, str] = (
    (None, "AF_UNIX") if hasattr(socket, "AF_UNIX") else (("127.0.0.1", 0), "AF_INET")
)
"""An address of this machine alone that is free, and its kind."""


def _listener() -> Listener:
    try:
        return Listener(*_ANY, backlog=64)
    except OSError:
        if _ANY[1] != "AF_UNIX":
            raise
        # The path of a socket has no more than a hundred characters, and TMPDIR may have them.
        return Listener(tempfile.mktemp(prefix="resume-audit-", dir="/tmp"), backlog=64)


AGAIN = object()
"""What a call comes to that has to stand at its gate once more."""


class RigServer:
    """Answers the calls of other processes into a rig.

    Args:
        rig: of the life.
        control: of the same.
        hear: is given what a process says by itself, and the connection; and None when it has
            gone.

    Attributes:
        address: where it listens.
        key: that it asks for.
        point_reached: the point of a save that it last stood at.
        goes_on: whether it may go on from there.
        holds_loader: whether a loader has stood at its gate.
        interrupted: threads that have called, by a signal's handler, while they stood at a gate.
    """

    def __init__(
        self,
        rig: Rig,
        control: Control,
        hear: Callable[[Connection, tuple[Any, ...] | None], None],
    ) -> None:
        self.key = os.urandom(32)
        self._listener = _listener()
        self.address: Address = self._listener.address
        self.point_reached = ""
        self.goes_on = False
        self.holds_loader = False
        self.interrupted: set[int] = set()
        self._rig = rig
        self._control = control
        self._hear = hear
        self._passes: dict[int, Any] = {}
        self._tokens = itertools.count(1)
        self._connections: list[Connection] = []
        self._locks: dict[int, threading.Lock] = {}
        self._threads: dict[int, set[int]] = {}
        self._waits: dict[int, Answer] = {}
        self._over = False
        self._at_once: dict[tuple[str, str], Callable[..., Any]] = {
            ("loader", "place"): lambda: rig.loader.place,
            ("loader", "__len__"): lambda: len(rig.loader),
            ("loader", "begin"): self._begin,
            ("loader", "state_dict"): rig.loader.state_dict,
            ("loader", "load_state_dict"): rig.loader.load_state_dict,
            ("loader", "hand_out"): self._hand_out,
            ("loader", "enter"): lambda: self._works(1),
            ("loader", "leave"): lambda: self._works(-1),
            ("loader", "begin_pass"): lambda: control.note("pass_begun"),
            ("loader", "end_pass"): self._end_pass,
            ("loader", "has_state"): control.has_state,
            ("loader", "goes_to_state"): control.goes_to_state,
            ("engine", "in_flight"): lambda: rig.engine.in_flight,
            ("buffer", "__len__"): lambda: len(rig.buffer),
            ("buffer", "add"): rig.buffer.add,
            ("buffer", "evict"): rig.buffer.evict,
            ("buffer", "sample"): rig.buffer.sample,
            ("buffer", "sample_hand_out"): rig.buffer.sample_hand_out,
            ("buffer", "state_dict"): rig.buffer.state_dict,
            ("buffer", "load_state_dict"): rig.buffer.load_state_dict,
            ("trainer", "weight_version"): lambda: rig.trainer.weight_version,
            ("trainer", "counts"): rig.trainer.counts,
            ("trainer", "places"): rig.trainer.places,
            ("trainer", "state_dict"): rig.trainer.state_dict,
            ("trainer", "load_state_dict"): rig.trainer.load_state_dict,
            ("rig", "buffered"): rig.buffered,
            ("rig", "dropped"): rig.dropped,
            ("rig", "restored"): rig.restored,
            ("rig", "point"): rig.point,
        }
        self._at_gates: dict[tuple[str, str], Callable[..., None]] = {
            ("loader", "next"): self._next,
            ("loader", "wait_and_enter"): self._wait_and_enter,
            ("engine", "generate"): self.generate,
            ("trainer", "step"): self._step,
            ("trainer", "train"): self._train,
            ("rig", "saving"): self.saving,
            ("rig", "saved"): self.saved,
            ("rig", "stand_at_point"): self._stand_at_point,
        }
        accepts = threading.Thread(target=self._accept, name="resume-audit server", daemon=True)
        try:
            accepts.start()
        except BaseException:
            self.close()  # Ctrl-C, as it begins: nobody else knows of it yet
            raise

    def forget_point(self) -> None:
        """Let the next save stand at its point."""
        self.goes_on, self.point_reached = False, ""

    def answers(
        self,
        part: str,
        at_once: Mapping[str, Callable[..., Any]],
        at_gates: Mapping[str, Callable[..., None]],
    ) -> None:
        """Answer the calls into one more part.

        Args:
            part: its name.
            at_once: what answers each method, by its name.
            at_gates: what is given the answer to make later, by the same.
        """
        self._at_once.update({(part, method): act for method, act in at_once.items()})
        self._at_gates.update({(part, method): act for method, act in at_gates.items()})

    def send(self, connection: Connection, *words: Any) -> None:
        """Say something to a process; nobody hears it when that has gone."""
        with suppress(OSError), self._locks[id(connection)]:
            send(connection, words)

    def close(self) -> None:
        """Answer nobody any more."""
        self._over = True
        # Whoever accepts is woken: closing alone does not. It may just have gone by itself, so
        # nothing is waited for.
        with suppress(OSError), socket.socket(getattr(socket, _ANY[1])) as knock:
            knock.connect(self.address)
        for connection in list(self._connections):
            # Each is closed by the thread that reads from it: the number of one that is closed
            # under a reader may be that of another by the time it reads.
            with suppress(OSError), self._locks[id(connection)]:
                same = socket.socket(fileno=connection.fileno())
                try:
                    same.shutdown(socket.SHUT_RDWR)
                finally:
                    same.detach()

    # -- connections ---------------------------------------------------------------------------

    def _accept(self) -> None:
        with self._listener:
            while not self._over:
                with suppress(OSError):
                    self._let_in(self._listener.accept())

    def _let_in(self, connection: Connection) -> None:
        if self._over:
            connection.close()
            return
        self._locks[id(connection)] = threading.Lock()
        self._threads[id(connection)] = set()
        self._connections.append(connection)
        threading.Thread(target=self._serve, args=(connection,), name=LISTENS, daemon=True).start()

    def _serve(self, connection: Connection) -> None:
        self._control.carriers.add(threading.get_native_id())
        try:
            # Here, so that one who connects and says nothing keeps no other out.
            deliver_challenge(connection, self.key)
            answer_challenge(connection, self.key)
            self._read(connection)
        except (EOFError, OSError, AuthenticationError):
            pass
        finally:
            with self._locks[id(connection)]:
                connection.close()

    def _read(self, connection: Connection) -> None:
        try:
            while True:
                try:
                    number, *words = receive(connection)
                except (EOFError, OSError):
                    raise
                except Exception as error:
                    # It can't be answered, as nobody knows which call it was.
                    self._hear(connection, ("raised", portable(error)))
                    continue
                if number == 0 and words[0] == "withdraws":
                    self._withdraw(words[1])
                elif number == 0 and words[0] == "carries":
                    self._control.carriers.add(words[1])
                elif number == 0:
                    self._hear(connection, tuple(words))
                else:
                    self._answer(connection, number, *words)
        except (EOFError, OSError):
            for thread in self._threads.pop(id(connection), ()):
                self._withdraw(thread)
            self._hear(connection, None)

    def _answer(
        self,
        connection: Connection,
        number: int,
        part: str,
        method: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        thread: int | None,
        version: int | None,
    ) -> None:
        if version is not None:
            self._rig.trainer.goes_to(version)

        def reply(value: Any) -> None:
            self.send(connection, number, True, value)

        def fail(error: BaseException) -> None:
            self.send(connection, number, False, portable(error))

        try:
            if thread is not None:
                self._note_interruption(thread)
            if (part, method) in self._at_gates:
                answer = Answer(reply, fail, thread)
                if thread is not None:
                    self._waits[thread] = answer
                    self._threads[id(connection)].add(thread)
                self._at_gates[part, method](answer, *args, **kwargs)
            else:
                reply(self._at_once[part, method](*args, **kwargs))
        except BaseException as error:
            fail(error)

    def _note_interruption(self, thread: int) -> None:
        with self._control.lock:
            if any(waiter.thread == thread for waiter in self._control.waiters):
                self.interrupted.add(thread)
            else:
                self.interrupted.discard(thread)

    def _withdraw(self, thread: int) -> None:
        """A thread that stood at a gate has left it, by a signal or its end: its asking is void."""
        answer = self._waits.pop(thread, None)
        if answer is not None:
            answer.withdrawn = True
        self._control.forget(thread)

    # -- calls that stand at a gate ------------------------------------------------------------

    def when(
        self, gate: str, ready: Callable[[], bool], answer: Answer, act: Callable[[], Any]
    ) -> None:
        """Act and answer once a gate lets through; fail once the life is over.

        What comes to :data:`AGAIN` has found the gate closed by another, and stands there again.
        """

        def go_on() -> None:
            if answer.withdrawn:
                return
            try:
                if self._control.over:
                    raise LifeEnded
                value = act()
                if value is AGAIN:
                    self.when(gate, ready, answer, act)
                else:
                    answer.reply(value)
            except BaseException as error:
                answer.fail(error)

        self._control.when(gate, ready, go_on, answer.thread)

    def _begin(self) -> int:
        token = next(self._tokens)
        self._passes[token] = self._rig.loader.begin()
        return token

    def _next(self, answer: Answer, token: int) -> None:
        control, current = self._control, self._passes[token]
        self.holds_loader = True

        def batch() -> list[Prompt] | None:
            with control.lock:
                return self._rig.loader.next_of(current)

        with control.lock:
            control.numbers.place = current.place
        self.when("loader", control.may_hand_out, answer, batch)

    def _wait_and_enter(self, answer: Answer) -> None:
        self.holds_loader = True
        self.when("loader", self._control.may_hand_out, answer, lambda: self._works(1))

    def _works(self, more: int) -> None:
        with self._control.lock:
            self._control.inside += more

    def _hand_out(self, rows: list[int]) -> None:
        with self._control.lock:
            self._control.hand_out(rows, None)

    def _end_pass(self) -> None:
        with self._control.lock:
            self._control.end_pass()

    def generate(self, answer: Answer, prompt: Prompt, generation: int) -> None:
        """Put a generation in flight, and answer when it ends."""
        future: Future[Rollout] = Future()

        def answered(ended: Future[Rollout]) -> None:
            error = ended.exception()
            if error is None:
                answer.reply(ended.result())
            else:
                answer.fail(error)

        self._control.dispatch(prompt, generation, future)
        future.add_done_callback(answered)

    def _step(self, answer: Answer) -> None:
        self.when("trainer", self.may_train, answer, self._rig.trainer.step)

    def _train(self, answer: Answer, rollouts: list[Rollout]) -> None:
        self.when("trainer", self.may_train, answer, lambda: self._rig.trainer.train(rollouts))

    def may_train(self) -> bool:
        """Whether the gate of the trainer lets another step through."""
        return self._control.steps_taken < self._control.train_limit

    def saving(self, answer: Answer, checkpoint: Path | str) -> None:
        """Stand at the gate before a save."""
        control = self._control

        def begun() -> None:
            control.saves_begun += 1

        self.when("save", lambda: control.saves_begun < control.save_limit, answer, begun)

    def saved(self, answer: Answer, checkpoint: Path | str) -> None:
        """Stand at the gate behind a save that is done."""
        control = self._control
        control.checkpoint, done = Path(checkpoint), control.saves_begun
        self.when("saved", lambda: control.pass_limit >= done, answer, lambda: None)

    def _stand_at_point(self, answer: Answer, what: str) -> None:
        self.point_reached = what
        self.when("point", lambda: self.goes_on, answer, lambda: None)


class Answer:
    """How a call is answered, now or later.

    Args:
        reply: with a value.
        fail: with an exception.
        thread: native id of the thread that waits for it; None for a coroutine or a future.

    Attributes:
        withdrawn: whether nobody waits for it any more.
    """

    def __init__(
        self, reply: Reply, fail: Callable[[BaseException], None], thread: int | None
    ) -> None:
        self.reply = reply
        self.fail = fail
        self.thread = thread
        self.withdrawn = False
