"""What a training script reports of its prompts: to an audit that runs it, or to nobody.

Put the calls where the script does what they are named for. Where nobody listens each does nothing,
in well under a microsecond, so that they can stay there for good::

    from pytest_resume_audit import recorder

    recorder.handed_out(rows)  # by the loader
    recorder.finished(row)  # by the rollout engine
    recorder.buffered(row)  # now in the replay buffer
    recorder.trained(rows, step=step)  # at forward and backward, never at dequeue or collate time
    recorder.saving(checkpoint)
    recorder.saved(checkpoint)
    recorder.restored(checkpoint)

A row is a prompt's index in the data set. A :class:`Command` is audited by what its script reports
here; only ``trained``, ``saving``, ``saved`` and ``restored`` are needed, the others say why.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from torch import nn

    from pytest_resume_audit.lives.reporter import Reporter

Loader = TypeVar("Loader")

AUDIT = "RESUME_AUDIT_LIFE"
"""The environment variable by which an audit is found: address and key of the life's server."""


class Listener(Protocol):
    """Who is told."""

    def note(
        self,
        kind: str,
        rows: Iterable[int],
        generations: Sequence[int] | None = None,
        number: int | None = None,
        text: str = "",
    ) -> None:
        """Take note of what happened to prompts, or to a checkpoint."""


_listeners: list[Listener] = []
_audit: Reporter | None = None


def handed_out(rows: Iterable[int]) -> None:
    """The loader has handed out a batch.

    Args:
        rows: of its prompts, in order.
    """
    for listener in _listeners:
        listener.note("handed_out", rows)


def finished(row: int, *, generation: int = 0) -> None:
    """A generation of a prompt has ended, with an answer.

    Args:
        row: of the prompt.
        generation: its place in the group.
    """
    for listener in _listeners:
        listener.note("finished", (row,), (generation,))


def failed(row: int, *, generation: int = 0) -> None:
    """A generation of a prompt has ended without an answer."""
    for listener in _listeners:
        listener.note("failed", (row,), (generation,))


def buffered(row: int, *, generation: int = 0) -> None:
    """An answer is in the replay buffer now; after a restart as well."""
    for listener in _listeners:
        listener.note("buffered", (row,), (generation,))


def dropped(row: int, reason: str) -> None:
    """A prompt is given up on purpose.

    Args:
        row: of the prompt.
        reason: why; a drop without one is a loss.
    """
    for listener in _listeners:
        listener.note("dropped", (row,), text=reason)


def trained(
    rows: Iterable[int], *, step: int | None = None, generations: Sequence[int] | None = None
) -> None:
    """A training step goes through forward and backward with these prompts.

    In an audit it is a gate: the call returns when the timeline lets the step through.

    Args:
        rows: of the prompts whose answers are in the batch, one entry an answer; a row that comes
            once stands for its whole group.
        step: its number. Where several ranks train, each reports its share under the same one.
        generations: the place of each answer in its group, where a batch has parts of groups.
    """
    for listener in _listeners:
        listener.note("trained", rows, generations, step)


def saving(checkpoint: str | os.PathLike[str]) -> None:
    """A checkpoint begins to be written; reported by one rank. In an audit it is a gate.

    Args:
        checkpoint: what it will be found by, below the directory for checkpoints.
    """
    for listener in _listeners:
        listener.note("saving", (), text=os.fspath(checkpoint))


def saved(checkpoint: str | os.PathLike[str]) -> None:
    """A checkpoint is complete, under this name. In an audit it is a gate."""
    for listener in _listeners:
        listener.note("saved", (), text=os.fspath(checkpoint))


def restored(checkpoint: str | os.PathLike[str]) -> None:
    """A checkpoint has been loaded, the weights too, and nothing was handed out yet."""
    for listener in _listeners:
        listener.note("restored", (), text=os.fspath(checkpoint))


# --- in an audit only -----------------------------------------------------------------------------


def watch(loader: Loader, key: Callable[[Any], Iterable[int]]) -> Loader:
    """Let an audit hold the loader, and see what it hands out, so that ``hand_out`` works.

    Args:
        loader: each ``iter()`` of it is a pass.
        key: the rows of a batch, in order.

    Returns:
        What to take batches from: the loader itself, where no audit runs.

    Example:
        >>> watch([[0, 1], [2, 3]], key=list)
        [[0, 1], [2, 3]]
    """
    return loader if _audit is None else _audit.watch(loader, key)


def hold(row: int, *, generation: int = 0) -> None:
    """Let an audit hold an answer, so that ``finish`` and ``fail`` work.

    Call it where the answer is there, before anything is done with it. It returns when the timeline
    lets the generation end, which then counts as finished; where no audit runs, at once.

    Args:
        row: of the prompt.
        generation: its place in the group.

    Raises:
        GenerationFailed: when the timeline says ``fail``.
    """
    if _audit is not None:
        _audit.hold(row, generation)


async def ahold(row: int, *, generation: int = 0) -> None:
    """The same in a coroutine."""
    if _audit is not None:
        await _audit.ahold(row, generation)


def attach(model: nn.Module) -> None:
    """Let the counts of an audit ride in a torch module, and with it in its checkpoints.

    Then weights that were not restored are found out from the checkpoint itself. Without it an
    audit believes what ``restored`` says.

    Args:
        model: gets a buffer ``resume_audit_counts``, before its checkpoint is loaded; where no
            audit runs it is left as it is.
    """
    if _audit is not None:
        _audit.attach(model)


def _find_audit() -> None:
    global _audit
    words = os.environ.get(AUDIT)
    if words:
        from pytest_resume_audit.lives.reporter import Reporter

        address, key = words.rsplit(" ", 1)
        _audit = Reporter(address, bytes.fromhex(key))
        _listeners.append(_audit)


_find_audit()
