"""The rig from another process: the same parts, over a socket.

Every call is answered by the process that audits, which notes what happened before it answers:
whatever becomes of the caller, what it did is known. A handle can be pickled, and works in a child
process as well as in an actor; each process has one connection, whatever number of threads.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import pickle
import queue
import threading
import traceback
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from multiprocessing.connection import Client, Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from pytest_resume_audit.control import LifeEnded
from pytest_resume_audit.fakes.loader import essence
from pytest_resume_audit.fakes.prompts import Prompt, Prompts, Rollout
from pytest_resume_audit.fakes.trainer import count_in, counts_in
from pytest_resume_audit.setup import Setup

if TYPE_CHECKING:
    from torch import nn

Batch = TypeVar("Batch")
Address = str | tuple[str, int]

NAMES = {
    "loader": "Loader",
    "engine": "Engine",
    "buffer": "ReplayBuffer",
    "trainer": "Trainer",
    "rig": "Rig",
    "report": "recorder",
}
"""What calls into each part go by, where a save stops at one."""


class RemoteTraceback(Exception):
    """The traceback that an exception had in the process that raised it."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


class RaisedElsewhere(RuntimeError):
    """An exception of another process that can't travel: its kind and its text."""


_MOST_OF_AN_EXCEPTION = 100_000
"""Bytes of an exception, or characters of its texts, that travel: nobody reads more."""

Portable = tuple[bytes, str, str]
"""An exception pickled, nothing where it can't be; what it says; its traceback."""


def portable(error: BaseException) -> Portable:
    """An exception as it can be sent, whatever code of its own it has."""
    said, text = _said(error), _traceback_of(error)
    # Ray raises what a task or an actor has raised as another class, made at that moment.
    for candidate in (error, getattr(error, "cause", None), _Bare(error)):
        if isinstance(candidate, BaseException | _Bare) and (pickled := _pickled(candidate)):
            return pickled, said, text
    return b"", said, text


class _Bare:
    """An exception of the same class with the same arguments, made without its ``__init__``.

    Many a one with arguments of its own can't be made again from those that it keeps.
    """

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def __reduce__(self) -> tuple[Any, ...]:
        kind = type(self._error)
        return (kind.__new__, (kind, *self._error.args))


def _pickled(error: object) -> bytes:
    with suppress(BaseException):  # its own code runs, and may do anything
        pickled = pickle.dumps(error)
        small = len(pickled) <= _MOST_OF_AN_EXCEPTION
        if small and isinstance(pickle.loads(pickled), BaseException):
            return pickled
    return b""


def _said(error: BaseException) -> str:
    try:
        return _shortened(f"{type(error).__name__}: {error}")
    except BaseException:
        return f"{type(error).__name__}, which has no text: its __str__ raises"


def _traceback_of(error: BaseException) -> str:
    try:
        lines = traceback.format_exception(type(error), error, error.__traceback__)
    except BaseException:
        lines = traceback.format_tb(error.__traceback__)
    return _shortened("".join(lines))


def _shortened(text: str) -> str:
    half = _MOST_OF_AN_EXCEPTION // 2
    if len(text) <= 2 * half:
        return text
    return f"{text[:half]}\n... {len(text) - 2 * half} characters more ...\n{text[-half:]}"


def arrived(pickled: bytes, said: str, text: str) -> BaseException:
    """An exception that was sent, with the traceback that it had there."""
    with suppress(Exception, SystemExit):
        error = pickle.loads(pickled)
        error.__cause__ = RemoteTraceback(text)
        str(error)  # who reports it asks for that
        if isinstance(error, BaseException):
            return error
    other = RaisedElsewhere(said)
    other.__cause__ = RemoteTraceback(text)
    return other


def send(connection: Connection, words: tuple[Any, ...]) -> None:
    """Send words to the other end.

    Not by ``Connection.send``, which makes a view of a ``BytesIO``: in early releases of Python
    3.12 the collection of garbage may tear the two apart, and the process dies.
    """
    connection.send_bytes(pickle.dumps(words))


def receive(connection: Connection) -> Any:
    """What the other end has sent, by :func:`send`."""
    return pickle.loads(connection.recv_bytes())


class _Answer:
    """What a call comes to, once it has been answered."""

    def __init__(self, woken: Callable[[], object]) -> None:
        self.woken = woken
        self.ok = False
        self.value: Any = None

    def outcome(self) -> Any:
        """The value; or what the call raises."""
        if not self.ok:
            raise self.value
        return self.value


class Line:
    """A connection to the process that audits; opened by the first call.

    Args:
        address: of the life's server.
        key: that it asks for.
    """

    def __init__(self, address: Address, key: bytes) -> None:
        self.address = address
        self.key = key
        self.at_call: Callable[[str], None] | None = None
        self.version: Callable[[], int | None] = lambda: None
        self.on_command: Callable[[tuple[Any, ...]], None] | None = None
        # A signal's handler may call, and wait, in the middle of another call of its thread: so
        # that who reads the answers must not need this.
        self._sending = threading.RLock()
        self._waiting: dict[int, _Answer] = {}
        self._woken: set[threading.Lock] = set()
        self._numbers = itertools.count(1)
        self._connection: Connection | None = None
        self._over = False
        self._answers: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._deliverer: threading.Thread | None = None
        self._process = os.getpid()

    def here(self) -> Line:
        """The line of this process: a fork has the object of its parent, and must not use it."""
        return self if os.getpid() == self._process else line_to(self.address, self.key)

    def __reduce__(self) -> tuple[Any, ...]:
        return (line_to, (self.address, self.key))

    def call(self, part: str, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of a part, and wait for its answer.

        Raises:
            LifeEnded: when the life is over.
        """
        signal = threading.Lock()
        signal.acquire()
        line = self.here()

        def wake() -> None:
            line._woken.add(signal)
            signal.release()

        answer = _Answer(wake)
        try:
            line._ask(answer, part, method, args, kwargs)
            signal.acquire()
        except LifeEnded:
            raise
        except BaseException:
            # A signal's handler raises: nobody will hear the answer, nor is anything to be done.
            answer.woken = signal.release
            line.tell("withdraws", threading.get_native_id())
            raise
        finally:
            line._woken.discard(signal)
        return answer.outcome()

    def future(self, part: str, method: str, *args: Any) -> Future[Any]:
        """The same, without waiting: callbacks run in a thread of their own."""
        future: Future[Any] = Future()

        def complete() -> None:
            if not future.cancelled():
                try:
                    future.set_result(answer.outcome())
                except BaseException as error:
                    future.set_exception(error)

        line = self.here()
        answer = _Answer(lambda: line._deliver(complete))
        line._ask(answer, part, method, args, {}, blocks=False)
        return future

    async def acall(self, part: str, method: str, *args: Any) -> Any:
        """The same in a coroutine, whose loop goes on meanwhile."""
        loop = asyncio.get_running_loop()
        there = loop.create_future()

        def woken() -> None:
            if not there.done():
                there.set_result(None)

        def wake() -> None:
            with suppress(RuntimeError):  # the loop has been closed
                loop.call_soon_threadsafe(woken)

        answer = _Answer(wake)
        self.here()._ask(answer, part, method, args, {}, blocks=False)
        await there
        return answer.outcome()

    @property
    def wakes(self) -> bool:
        """Whether any thread has been woken that has not gone on yet."""
        return bool(self._woken)

    def tell(self, *words: Any) -> None:
        """Say something that is not answered."""
        with self._sending:
            send(self._connected(), (0, *words))

    def _ask(
        self,
        answer: _Answer,
        part: str,
        method: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        blocks: bool = True,
    ) -> None:
        if self.at_call is not None:
            self.at_call(f"{NAMES[part]}.{method}")
        thread = threading.get_native_id() if blocks else None
        with self._sending:
            connection = self._connected()
            number = next(self._numbers)
            self._waiting[number] = answer
            # Looked at last: what is waited for by then, the end of the line ends.
            if self._over:
                raise LifeEnded
            request = (number, part, method, args, kwargs, thread, self.version())
            try:
                send(connection, request)
            except OSError:
                self._waiting.pop(number, None)
                raise LifeEnded from None

    def _connected(self) -> Connection:
        if self._connection is None:
            try:
                self._connection = Client(self.address, authkey=self.key)
            except OSError:
                raise LifeEnded from None
            reader = threading.Thread(target=self._read, name="resume-audit line", daemon=True)
            reader.start()
            send(self._connection, (0, "carries", reader.native_id))
        return self._connection

    def _read(self) -> None:
        assert self._connection is not None
        try:
            while True:
                number, *rest = receive(self._connection)
                if number == 0:
                    assert self.on_command is not None
                    self.on_command(tuple(rest))
                    continue
                answer = self._waiting.pop(number)
                answer.ok, answer.value = rest
                if not answer.ok:
                    answer.value = arrived(*answer.value)
                answer.woken()
        except (EOFError, OSError):
            self._end()

    def _end(self) -> None:
        self._over = True
        left = list(self._waiting.values())
        self._waiting.clear()
        for answer in left:
            answer.value = LifeEnded()
            answer.woken()

    def _deliver(self, complete: Callable[[], object]) -> None:
        # Not in the thread that reads: a callback may call the rig, and wait for its answer.
        if self._deliverer is None:
            self._deliverer = threading.Thread(
                target=self._deliver_all, name="resume-audit answers", daemon=True
            )
            self._deliverer.start()
        self._answers.put(complete)

    def _deliver_all(self) -> None:
        while True:
            self._answers.get()()


_lines: dict[tuple[Address, int], Line] = {}


def line_to(address: Address, key: bytes) -> Line:
    """The one line of this process to a life."""
    place = (address, os.getpid())
    if place not in _lines:
        _lines[place] = Line(address, key)
    return _lines[place]


class RemoteRig:
    """The rig of a life that is audited by another process.

    It has what :class:`Rig` has, and can be pickled: to child processes, to actors and to tasks.

    Args:
        line: to the process that audits.
        setup: the sizes.
    """

    def __init__(self, line: Line, setup: Setup) -> None:
        self._line = line
        self.setup = setup
        self.prompts = Prompts(setup.prompts, setup.data_set)
        self.loader = RemoteLoader(line)
        self.engine = RemoteEngine(line)
        self.buffer = RemoteBuffer(line)
        self.trainer = RemoteTrainer(line, setup)

    def __reduce__(self) -> tuple[Any, ...]:
        return (RemoteRig, (self._line, self.setup))

    def watch(
        self, loader: Iterable[Batch], key: Callable[[Batch], Iterable[int]]
    ) -> RemoteWatchedLoader[Batch]:
        """Put a project's own loader in the place of ``rig.loader``."""
        return RemoteWatchedLoader(loader, key, self._line)

    def buffered(self, rollout: Rollout) -> None:
        """Say that a rollout is in the project's own buffer now; after a restart as well."""
        self._line.call("rig", "buffered", rollout)

    def dropped(self, prompt: Prompt, reason: str) -> None:
        """Say that a prompt is given up on purpose, and why."""
        self._line.call("rig", "dropped", prompt, reason)

    def point(self, name: str) -> None:
        """Name a place in the collector where the audit may interleave other work, or crash."""
        self._line.call("rig", "point", name)

    @contextmanager
    def working(self) -> Iterator[None]:
        """While something is done where the audit does not look, such as in a child process."""
        self._line.call("loader", "enter")
        try:
            yield
        finally:
            self._line.call("loader", "leave")

    def saving(self, checkpoint: Path) -> None:
        """Say that a checkpoint begins to be written; for a self-driven collector."""
        self._line.call("rig", "saving", Path(checkpoint))

    def saved(self, checkpoint: Path) -> None:
        """Say that a checkpoint is written; for a self-driven collector."""
        self._line.call("rig", "saved", Path(checkpoint))

    def restored(self, checkpoint: Path) -> None:
        """Say that a checkpoint has been restored; for a self-driven collector."""
        self._line.call("rig", "restored", Path(checkpoint))


class _Part:
    """One part of a rig, over a line."""

    _name = ""

    def __init__(self, line: Line) -> None:
        self._line = line

    def _call(self, method: str, *args: Any) -> Any:
        return self._line.call(self._name, method, *args)


class RemoteLoader(_Part):
    """The loader of a rig elsewhere."""

    _name = "loader"

    @property
    def place(self) -> int:
        """How many prompts it has handed out, over all passes, as far as its state says."""
        return int(self._call("place"))

    def __len__(self) -> int:
        """Batches in a pass."""
        return int(self._call("__len__"))

    def __iter__(self) -> Iterator[list[Prompt]]:
        return self._batches(self._call("begin"))

    def _batches(self, current: int) -> Iterator[list[Prompt]]:
        while (batch := self._call("next", current)) is not None:
            yield batch

    def __aiter__(self) -> AsyncIterator[list[Prompt]]:
        return self._abatches()

    async def _abatches(self) -> AsyncIterator[list[Prompt]]:
        current = await self._line.acall("loader", "begin")
        while (batch := await self._line.acall("loader", "next", current)) is not None:
            yield batch

    def state_dict(self) -> dict[str, int]:
        """The live place: ``epoch`` and the prompts ``yielded`` in it."""
        state: dict[str, int] = self._call("state_dict")
        return state

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go to a place: the next ``iter()`` begins there."""
        self._call("load_state_dict", state)


class RemoteEngine(_Part):
    """The engine of a rig elsewhere."""

    _name = "engine"

    def generate(self, prompt: Prompt, generation: int = 0) -> Rollout:
        """Answer a prompt; blocks until the answer is there."""
        rollout: Rollout = self._call("generate", prompt, generation)
        return rollout

    def submit(self, prompt: Prompt, generation: int = 0) -> Future[Rollout]:
        """Answer a prompt in the background."""
        return self._line.future("engine", "generate", prompt, generation)

    async def agenerate(self, prompt: Prompt, generation: int = 0) -> Rollout:
        """Answer a prompt in a coroutine."""
        rollout: Rollout = await self._line.acall("engine", "generate", prompt, generation)
        return rollout

    @property
    def in_flight(self) -> list[tuple[int, int]]:
        """Row and generation of what is in flight, sorted."""
        flying: list[tuple[int, int]] = self._call("in_flight")
        return flying


class RemoteBuffer(_Part):
    """The replay buffer of a rig elsewhere."""

    _name = "buffer"

    def __len__(self) -> int:
        """Number of complete groups."""
        return int(self._call("__len__"))

    def add(self, rollout: Rollout) -> list[Rollout]:
        """Keep a finished rollout; returns what was evicted to make room."""
        return list(self._call("add", rollout))

    def evict(self, weight_version: int) -> list[Rollout]:
        """Throw out the groups that are too old for the weights of this version."""
        return list(self._call("evict", weight_version))

    def sample(self, groups: int) -> list[Rollout]:
        """Take the lowest complete groups out."""
        return list(self._call("sample", groups))

    def sample_hand_out(self) -> list[Rollout]:
        """Take the complete groups of the lowest hand-out, once none of it is in flight."""
        return list(self._call("sample_hand_out"))

    def state_dict(self) -> dict[str, Any]:
        """What it keeps, as plain lists and numbers."""
        return dict(self._call("state_dict"))

    def load_state_dict(self, state: dict[str, Any]) -> list[Rollout]:
        """Keep what was kept then, instead of what it keeps now."""
        return list(self._call("load_state_dict", state))


class RemoteTrainer(_Part):
    """The trainer of a rig elsewhere.

    Attached to a module, the weights are in this process, and counted here.
    """

    _name = "trainer"

    def __init__(self, line: Line, setup: Setup) -> None:
        super().__init__(line)
        self._setup = setup
        self._model: nn.Module | None = None

    @property
    def weight_version(self) -> int:
        """Steps that the weights have behind them."""
        version = self.attached_version()
        return int(self._call("weight_version")) if version is None else version

    def attached_version(self) -> int | None:
        """The version of weights that are in this process; None where they are not."""
        return None if self._model is None else int(counts_in(self._model)[-1])

    def counts(self) -> list[int]:
        """How often each generation went into the weights: row x ``group_size`` + generation."""
        if self._model is None:
            return list(self._call("counts"))
        return [int(count) for count in counts_in(self._model)[:-1]]

    def step(self) -> list[Rollout] | Literal[False]:
        """Train one step on the groups that are due."""
        return self._trained(self._call("step"))

    def train(self, rollouts: Iterable[Rollout]) -> None:
        """Train one step on these rollouts."""
        rollouts = list(rollouts)
        self._call("train", rollouts)
        self._trained(rollouts)

    def _trained(self, rollouts: list[Rollout] | Literal[False]) -> list[Rollout] | Literal[False]:
        if self._model is not None and rollouts is not False:
            places = self._call("places", rollouts)
            counts = counts_in(self._model)
            for place in places:
                counts[place] += 1
            counts[-1] += 1
        return rollouts

    def attach(self, model: nn.Module) -> None:
        """Let the counts ride in a torch module, in a buffer named ``resume_audit_counts``.

        Raises:
            RuntimeError: in a process other than the collector's: nobody would ask there for the
                counts.
        """
        if self._line.here().on_command is None:
            raise RuntimeError(
                "attach the model in the collector's own process: in an actor or a child process "
                "of it, use rig.trainer.state_dict() and load_state_dict() as the weights"
            )
        count_in(model, [*self.counts(), self.weight_version])
        self._model = model
        self._line.version = self.attached_version

    def state_dict(self) -> dict[str, Any]:
        """The weights: ``version`` and ``counts``."""
        if self._model is None:
            return dict(self._call("state_dict"))
        return {"version": self.weight_version, "counts": self.counts()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go back to saved weights."""
        self._call("load_state_dict", state)
        if self._model is not None:
            counts = counts_in(self._model)
            counts.copy_(counts.new_tensor([*state["counts"], state["version"]]))


class RemoteWatchedLoader(Generic[Batch]):
    """A project's own loader in another process, gated and watched."""

    def __init__(
        self, loader: Iterable[Batch], key: Callable[[Batch], Iterable[int]], line: Line
    ) -> None:
        self._loader = loader
        self._key = key
        self._line = line

    def __iter__(self) -> Iterator[Batch]:
        self._line.call("loader", "enter")
        try:
            source = iter(self._loader)
            self._line.call("loader", "begin_pass")
            return self._batches(source)
        finally:
            self._line.call("loader", "leave")

    def _batches(self, source: Iterator[Batch]) -> Iterator[Batch]:
        while True:
            # Until it leaves it works, in whatever processes, and the life is not at rest.
            self._line.call("loader", "wait_and_enter")
            try:
                batch = next(source)
                self._line.call("loader", "hand_out", [int(row) for row in self._key(batch)])
            except StopIteration:
                self._line.call("loader", "end_pass")
                return
            finally:
                self._line.call("loader", "leave")
            yield batch

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        if name == "_loader":  # it is being unpickled
            raise AttributeError(name)
        return getattr(self._loader, name)

    def state_dict(self) -> Any:
        """The loader's own state."""
        state = self._loader.state_dict()  # type: ignore[attr-defined]
        self._line.call("loader", "has_state", essence(state))
        return state

    def load_state_dict(self, state: Any) -> None:
        """Load the loader's own state."""
        self._loader.load_state_dict(state)  # type: ignore[attr-defined]
        self._line.call("loader", "goes_to_state", essence(state))
