"""What a training script reports of its prompts: to an audit, to a ledger, or to nobody.

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

With ``RESUME_AUDIT_LEDGER=directory`` in the environment, or by :func:`ledger`, all of it is also
written down, for ``resume-audit ledger`` to read.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from torch import nn

    from pytest_resume_audit.lives.reporter import Reporter
    from pytest_resume_audit.real_runs.ledger import Ledger

Loader = TypeVar("Loader")

AUDIT = "RESUME_AUDIT_LIFE"
"""The environment variable by which an audit is found: address and key of the life's server."""

LEDGER = "RESUME_AUDIT_LEDGER"
"""The environment variable that says in which directory ledgers are written."""


class Listener(Protocol):
    """Who is told."""

    def note(
        self,
        kind: str,
        rows: Sequence[int],
        generations: Sequence[int] | None = None,
        number: int | None = None,
        text: str = "",
        length: int | None = None,
    ) -> None:
        """Take note of what happened to prompts, or to a checkpoint."""


_listeners: list[Listener] = []
_audit: Reporter | None = None
_ledger: Ledger | None = None


def handed_out(rows: Iterable[int]) -> None:
    """The loader has handed out a batch.

    Args:
        rows: of its prompts, in order.
    """
    if _listeners:
        _tell("handed_out", rows)


def finished(row: int, *, generation: int = 0, length: int | None = None) -> None:
    """A generation of a prompt has ended, with an answer.

    Args:
        row: of the prompt.
        generation: its place in the group.
        length: of the answer, in tokens; by it a ledger shows whether it is the long ones that a
            run loses.
    """
    if _listeners:
        _tell("finished", (row,), (generation,), length=length)


def failed(row: int, *, generation: int = 0) -> None:
    """A generation of a prompt has ended without an answer."""
    if _listeners:
        _tell("failed", (row,), (generation,))


def buffered(row: int, *, generation: int = 0) -> None:
    """An answer is in the replay buffer now; after a restart as well."""
    if _listeners:
        _tell("buffered", (row,), (generation,))


def dropped(row: int, reason: str) -> None:
    """A prompt is given up on purpose.

    Args:
        row: of the prompt.
        reason: why; a drop without one is a loss.
    """
    if _listeners:
        _tell("dropped", (row,), text=reason)


def trained(
    rows: Iterable[int], *, step: int | None = None, generations: Sequence[int] | None = None
) -> None:
    """A training step goes through forward and backward with these prompts.

    In an audit it is a gate: the call returns when the timeline lets the step through.

    Args:
        rows: of the prompts whose answers are in the batch, one entry an answer; a row that comes
            once stands for its whole group.
        step: its number. Where several ranks train, each reports its share under the same one. A
            process that comes back to a number has begun another step.
        generations: the place of each answer in its group, where a batch has parts of groups.
    """
    if _listeners:
        _tell("trained", rows, generations, step)


def saving(checkpoint: str | os.PathLike[str]) -> None:
    """A checkpoint begins to be written; reported by one rank. In an audit it is a gate.

    Report it where its state is taken: what is trained afterwards is not in it, though
    :func:`saved` may be reported steps later, where it is written in the background.

    Args:
        checkpoint: what it will be found by, below the directory for checkpoints.
    """
    if _listeners:
        _tell("saving", text=checkpoint)


def saved(checkpoint: str | os.PathLike[str]) -> None:
    """A checkpoint is complete, under this name. In an audit it is a gate."""
    if _listeners:
        _tell("saved", text=checkpoint)


def restored(checkpoint: str | os.PathLike[str]) -> None:
    """A checkpoint has been loaded, the weights too, and nothing was handed out yet.

    Args:
        checkpoint: as :func:`saved` was given it; a file inside of it or a link to it will do.
    """
    if _listeners:
        _tell("restored", text=checkpoint)


def ended() -> None:
    """The training is over: what is still out now is trained by nobody.

    Without it a ledger can't tell a run that has come to its end from one that goes on tomorrow.
    """
    if _listeners:
        _tell("ended")


def _tell(
    kind: str,
    rows: Iterable[int] = (),
    generations: Iterable[int] | None = None,
    number: int | None = None,
    text: str | os.PathLike[str] = "",
    length: int | None = None,
) -> None:
    """Tell all listeners, in plain numbers: a row may be a number of torch or numpy."""
    with _told_if_wrong:
        rows = _whole_numbers("rows", rows)
        if generations is not None:
            generations = _whole_numbers("generations", generations)
            if len(generations) != len(rows):
                raise ValueError(
                    f"generations= has {len(generations)} entries for {len(rows)} rows: give one "
                    "for each"
                )
        if number is not None:
            number = _whole_number("step", number)
        if length is not None:
            length = _whole_number("length", length)
        if not isinstance(text, str):
            text = os.fsdecode(text)
        for listener in _listeners:
            listener.note(kind, rows, generations, number, text, length)


class _ToldIfWrong:
    """An audit is to know of a report that is wrong, whatever the script makes of it.

    Every event goes through it: a generator in its place would cost half as much again as the rest.
    """

    def __enter__(self) -> None:
        """Nothing yet."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: object
    ) -> None:
        if _audit is not None and isinstance(error, TypeError | ValueError):
            _audit.raised(error)


_told_if_wrong = _ToldIfWrong()


def _whole_numbers(what: str, values: Iterable[Any]) -> list[int]:
    try:
        each = list(values)
    except TypeError:
        raise TypeError(
            f"{what} are given as a list, or whatever else can be gone through: not {values!r}"
        ) from None
    return [_whole_number(f"one of the {what}", value) for value in each]


def _whole_number(what: str, value: Any) -> int:
    """An integer of whatever kind, as Python has it; a mask is not one."""
    if type(value) is int:
        return value
    if not (isinstance(value, bool) or "bool" in str(getattr(value, "dtype", ""))):
        with suppress(TypeError):  # torch raises one too
            return operator.index(value)
    raise TypeError(
        f"{what} is {value!r}, and has to be a whole number: a row is a prompt's index in the data "
        "set, a generation its place in the group, a step counts up"
    )


# --- the ledger -----------------------------------------------------------------------------------


def ledger(directory: str | os.PathLike[str], *, run: str = "") -> None:
    """Write all that is reported from now on into a ledger, for ``resume-audit ledger``.

    One file a process, made with its first event; forked children get one of their own. It costs
    some microseconds an event, is whole up to the last line when the process is killed, and
    stops the training for nothing: what can't be written is lost with a warning. It takes the
    place of the ledger that ``RESUME_AUDIT_LEDGER`` has switched on.

    Args:
        directory: for the ledgers of all lives of a run; it is made if it is not there.
        run: a name for the run, the same in all its lives, where several runs share a directory;
            by default what ``RESUME_AUDIT_RUN`` says.
    """
    global _ledger
    from pytest_resume_audit.real_runs.ledger import Ledger

    if _ledger is not None:
        _listeners.remove(_ledger)
    _ledger = Ledger(directory, run)
    _listeners.append(_ledger)


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
        with _told_if_wrong:
            _audit.hold(_whole_number("row", row), _whole_number("generation", generation))


async def ahold(row: int, *, generation: int = 0) -> None:
    """The same in a coroutine."""
    if _audit is not None:
        with _told_if_wrong:
            await _audit.ahold(_whole_number("row", row), _whole_number("generation", generation))


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
if os.environ.get(LEDGER):
    ledger(os.environ[LEDGER])
