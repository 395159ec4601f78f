"""What a training script reports, on its way to the audit that runs it."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from pytest_resume_audit.fakes.trainer import count_in, counts_in
from pytest_resume_audit.lives.inquiry import Inquiry
from pytest_resume_audit.remote import RemoteWatchedLoader, line_to
from pytest_resume_audit.rest import interpreter_lock

if TYPE_CHECKING:
    from torch import nn


class Reporter:
    """The end of the line in the script's process.

    Args:
        address: of the life's server.
        key: that it asks for.
    """

    def __init__(self, address: str, key: bytes) -> None:
        self._line = line_to(address, key)
        self._model: nn.Module | None = None
        inquiry = Inquiry(self._line, ours=set, weights=lambda: None)
        self._line.on_command = lambda words: inquiry.answer(*words)
        self._line.tell("begun", os.getpid(), interpreter_lock())

    def note(
        self,
        kind: str,
        rows: Sequence[int],
        generations: Sequence[int] | None = None,
        number: int | None = None,
        text: str = "",
        length: int | None = None,
    ) -> None:
        """Report what happened to prompts, or to a checkpoint; some reports wait at a gate."""
        if kind == "trained":
            places = self._call("trained", rows, generations, number, self._counts(), os.getpid())
            if self._model is not None:
                counts = counts_in(self._model)
                for place in places:
                    counts[place] += 1
                counts[-1] = self._call("version")
        elif kind == "saving":
            # From now on what is asked of a save is asked of this process.
            self._line.here().tell("saves")
            self._call("saving", text, self._counts())
        elif kind == "saved":
            self._call("saved", text)
        elif kind == "restored":
            self._call("restored", text, self._counts())
        else:
            self._call("note", kind, rows, generations, text)

    def _call(self, what: str, *words: Any) -> Any:
        return self._line.call("report", what, *words)

    def _counts(self) -> list[int] | None:
        return None if self._model is None else counts_in(self._model).tolist()

    def watch(self, loader: Any, key: Callable[[Any], Iterable[int]]) -> Any:
        """The loader, held and watched."""
        return RemoteWatchedLoader(loader, key, self._line)

    def hold(self, row: int, generation: int) -> None:
        """Wait until a generation may end."""
        self._call("hold", operator.index(row), generation)

    async def ahold(self, row: int, generation: int) -> None:
        """The same in a coroutine."""
        await self._line.acall("report", "hold", operator.index(row), generation)

    def attach(self, model: nn.Module) -> None:
        """Let the counts ride in a torch module."""
        count_in(model, [*self._line.call("trainer", "counts"), self._call("version")])
        self._model = model
