"""Loaders: the one that comes with the rig, and the watch around a project's own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Generic, TypeVar

from pytest_resume_audit.control import Control
from pytest_resume_audit.fakes.prompts import Prompt, Prompts
from pytest_resume_audit.setup import Setup

Batch = TypeVar("Batch")


class Loader:
    """Hands out prompts in batches; each ``iter()`` is a pass over the data set.

    Its state works as that of torchdata's ``StatefulDataLoader``
    (https://meta-pytorch.org/data/main/torchdata.stateful_dataloader.html): it is the live
    place, ``load_state_dict`` counts for the next ``iter()``, an ``iter()`` in the middle of a
    pass starts the next pass, and a state taken after the last batch, before the end was
    noticed, leaves an empty rest of the pass.

    Args:
        prompts: the data set.
        control: the life it hands out in.

    Example:
        >>> from pytest_resume_audit import Rig, Setup
        >>> loader = Rig(Setup(prompts=5, batch_size=2)).loader
        >>> [[prompt.row for prompt in batch] for batch in loader]
        [[0, 1], [2, 3], [4]]
    """

    def __init__(self, prompts: Prompts, control: Control) -> None:
        self._prompts = prompts
        self._control = control
        self._pass = _Pass(control.setup, 0, 0)
        self._begun = False

    @property
    def place(self) -> int:
        """How many prompts it has handed out, over all passes, as far as its state says."""
        self._control.check()
        return self._pass.place

    def __len__(self) -> int:
        """Batches in a pass."""
        setup = self._control.setup
        return -(-setup.prompts_per_pass // setup.batch_size)

    def __iter__(self) -> Iterator[list[Prompt]]:
        return self._batches(self.begin())

    def _batches(self, current: _Pass) -> Iterator[list[Prompt]]:
        control = self._control
        while True:
            with control.lock:
                control.numbers.place = current.place
                control.wait("loader", control.may_hand_out)
                batch = self.next_of(current)
            if batch is None:
                return
            yield batch

    def __aiter__(self) -> AsyncIterator[list[Prompt]]:
        return self._abatches(self.begin())

    async def _abatches(self, current: _Pass) -> AsyncIterator[list[Prompt]]:
        control = self._control
        while True:
            with control.lock:
                control.numbers.place = current.place
            await control.await_gate("loader", control.may_hand_out)
            with control.lock:
                batch = self.next_of(current)
            if batch is None:
                return
            yield batch

    def begin(self) -> _Pass:
        """Begin a pass, or the rest of the one that was loaded."""
        self._control.check()
        with self._control.lock:
            if self._begun:
                self._pass = _Pass(self._control.setup, self._pass.epoch + 1, 0)
            self._begun = True
            return self._pass

    def next_of(self, current: _Pass) -> list[Prompt] | None:
        """The next batch of a pass, and None at its end. The lock is held."""
        control = self._control
        rows = current.rest[: control.setup.batch_size]
        if rows:
            ordinals = control.hand_out(rows, current.place)
            current.yielded += len(rows)
            return [
                replace(self._prompts[row], ticket=control.ticket(ordinal))
                for row, ordinal in zip(rows, ordinals, strict=True)
            ]
        if current is self._pass:
            self._pass, self._begun = _Pass(control.setup, current.epoch + 1, 0), False
        control.end_pass(current.epoch + 1)
        return None

    def state_dict(self) -> dict[str, int]:
        """The live place: ``epoch`` and the prompts ``yielded`` in it."""
        self._control.check()
        with self._control.lock:
            return {"epoch": self._pass.epoch, "yielded": self._pass.yielded}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go to a place: the next ``iter()`` begins there; one that exists goes its own way.

        Raises:
            ValueError: for what is not a state of a loader over this data set.
        """
        self._control.check()
        epoch, yielded = _checked(state, self._control.setup.prompts_per_pass)
        with self._control.lock:
            self._pass, self._begun = _Pass(self._control.setup, epoch, yielded), False
            self._control.numbers.place = self._pass.place


class _Pass:
    """One pass over the data, which an iterator goes through."""

    def __init__(self, setup: Setup, epoch: int, yielded: int) -> None:
        self.epoch = epoch
        self.yielded = yielded
        self._rows = setup.order(epoch)

    @property
    def place(self) -> int:
        return self.epoch * len(self._rows) + self.yielded

    @property
    def rest(self) -> Sequence[int]:
        return self._rows[self.yielded :]


def _checked(state: dict[str, int], most: int) -> tuple[int, int]:
    try:
        epoch, yielded = int(state["epoch"]), int(state["yielded"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"not a state of this loader: {state!r}") from error
    if epoch < 0 or not 0 <= yielded <= most:
        raise ValueError(f"a state of a loader over other data: {state!r}, with {most} prompts")
    return epoch, yielded


class WatchedLoader(Generic[Batch]):
    """A project's own loader, gated and watched; made by :meth:`Rig.watch`.

    What it doesn't define itself is the loader's own.

    Args:
        loader: anything iterable; each ``iter()`` is a pass.
        key: the rows of a batch, in order.
        control: the life it hands out in.
    """

    def __init__(
        self,
        loader: Iterable[Batch],
        key: Callable[[Batch], Iterable[int]],
        control: Control,
    ) -> None:
        self._loader = loader
        self._key = key
        self._control = control

    def __iter__(self) -> Iterator[Batch]:
        with self._control.granted():
            source = iter(self._loader)
            self._control.note("pass_begun")
            return self._batches(source)

    def _batches(self, source: Iterator[Batch]) -> Iterator[Batch]:
        control = self._control
        while True:
            with control.lock:
                control.wait("loader", control.may_hand_out)
            with control.granted():
                try:
                    batch = next(source)
                except StopIteration:
                    with control.lock:
                        control.end_pass()
                    return
                rows = [int(row) for row in self._key(batch)]
                with control.lock:
                    control.hand_out(rows, None)
            yield batch

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        if name == "_loader":  # it is being unpickled
            raise AttributeError(name)
        return getattr(self._loader, name)

    def state_dict(self) -> Any:
        """The loader's own state."""
        with self._control.granted():
            state = self._loader.state_dict()  # type: ignore[attr-defined]
            self._control.has_state(essence(state))
            return state

    def load_state_dict(self, state: Any) -> None:
        """Load the loader's own state."""
        with self._control.granted():
            self._loader.load_state_dict(state)  # type: ignore[attr-defined]
            self._control.goes_to_state(essence(state))


def essence(state: Any) -> str:
    """A state as a text that is the same when it has been in a file of a checkpoint."""
    if hasattr(state, "tolist"):
        state = state.tolist()
    if isinstance(state, dict):
        parts = sorted((str(key), essence(value)) for key, value in state.items())
        return repr(parts)
    if isinstance(state, list | tuple):
        return repr([essence(value) for value in state])
    return repr(state)
