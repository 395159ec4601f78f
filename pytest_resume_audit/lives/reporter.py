"""What a training script reports, on its way to the audit that runs it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from pytest_resume_audit.control import LifeEnded
from pytest_resume_audit.fakes.trainer import count_in, counts_in
from pytest_resume_audit.lives.inquiry import Inquiry
from pytest_resume_audit.remote import Line, RemoteWatchedLoader, line_to, portable
from pytest_resume_audit.rest import interpreter_lock

if TYPE_CHECKING:
    from torch import nn

_CLOSED = (
    "the connection to the audit is closed: the audit has ended, or the script has closed files "
    "that it did not open (a program that becomes a daemon does)"
)


class Reporter:
    """The end of the line in the script's process.

    Args:
        address: of the life's server.
        key: that it asks for.
    """

    def __init__(self, address: str, key: bytes) -> None:
        self._model: nn.Module | None = None
        self._connect(line_to(address, key))

    def _connect(self, line: Line) -> None:
        self._line = line
        inquiry = Inquiry(line, ours=set, weights=lambda: None)
        line.on_command = lambda words: inquiry.answer(*words)
        self._tell("begun", os.getpid(), interpreter_lock())

    def _here(self) -> Line:
        """The line of this process: a fork is asked by one of its own."""
        line = self._line.here()
        if line is not self._line:
            self._connect(line)
        return line

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
            self._tell("saves")
            self._call("saving", os.path.abspath(text), self._counts())
        elif kind == "saved":
            self._call("saved", os.path.abspath(text))
        elif kind == "restored":
            self._call("restored", os.path.abspath(text), self._counts(), os.getpid())
        else:
            self._call("note", kind, rows, generations, text)

    def raised(self, error: BaseException) -> None:
        """Say that a report was wrong."""
        self._tell("raised", portable(error))

    def _call(self, what: str, *words: Any) -> Any:
        try:
            return self._here().call("report", what, *words)
        except LifeEnded:
            raise ConnectionError(_CLOSED) from None

    def _tell(self, *words: Any) -> None:
        try:
            self._here().tell(*words)
        except (OSError, LifeEnded):
            raise ConnectionError(_CLOSED) from None

    def _counts(self) -> list[int] | None:
        return None if self._model is None else counts_in(self._model).tolist()

    def watch(self, loader: Any, key: Callable[[Any], Iterable[int]]) -> Any:
        """The loader, held and watched."""
        return RemoteWatchedLoader(loader, key, self._here())

    def hold(self, row: int, generation: int) -> None:
        """Wait until a generation may end."""
        self._call("hold", row, generation)

    async def ahold(self, row: int, generation: int) -> None:
        """The same in a coroutine."""
        await self._here().acall("report", "hold", row, generation)

    def attach(self, model: nn.Module) -> None:
        """Let the counts ride in a torch module."""
        count_in(model, [*self._here().call("trainer", "counts"), self._call("version")])
        self._model = model
