"""Lives, and from which save each has gone on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import PurePath


@dataclass
class Process:
    """A process's ledger, in time.

    Args:
        file: its number.
        id: of its ledger.
        parent: id of the ledger of the process that it was forked from.
        first: when it has said something for the first time, and
        last: for the last time, in nanoseconds of the common clock.
    """

    file: int
    id: str
    parent: str | None
    first: int
    last: int


@dataclass
class Save:
    """A checkpoint.

    Args:
        life: number of the life that wrote it.
        name: as it was reported.
        time: when it began to be written: what is trained later is not in it.
        file: of the process that reported it.
        complete: whether that said that it was complete.
        step: that it has, where steps are reported.
    """

    life: int
    name: str
    time: int
    file: int
    complete: bool = False
    step: int | None = None


@dataclass
class Life:
    """From a start or restart to the next.

    Args:
        number: from 1.
        start: of it, and
        stop: when the next one starts.
        files: of its processes.
        restored: the checkpoint that it says it has gone back to.
        cause: the save that it has gone on from; None: from none.
        ended: whether it has said that the training is over.
    """

    number: int
    start: int
    stop: int
    files: list[int]
    restored: str | None = None
    cause: Save | None = None
    saves: list[Save] = field(default_factory=list)
    ended: bool = False


@dataclass(frozen=True)
class Piece:
    """A life as far as it is in a lineage.

    Args:
        life: it.
        until: the save that the next one has gone on from; None: to its end.
    """

    life: Life
    until: Save | None


def gather(processes: Sequence[Process]) -> list[list[Process]]:
    """Which processes were there together: those that overlap, and those forked from one another.

    Example:
        >>> one, two = Process(0, "a", None, 0, 9), Process(1, "b", None, 5, 12)
        >>> [[p.file for p in ps] for ps in gather([Process(2, "c", None, 20, 30), two, one])]
        [[0, 1], [2]]
    """
    last = {process.id: process.last for process in processes}
    # A parent was there at least until it has forked.
    for process in processes:
        if process.parent in last:
            last[process.parent] = max(last[process.parent], process.first)
    groups: list[list[Process]] = []
    end = -1
    for process in sorted(processes, key=lambda one: one.first):
        if not groups or process.first > end:
            groups.append([])
        groups[-1].append(process)
        end = max(end, last[process.id])
    return groups


def find_save(name: str, saves: Sequence[Save]) -> Save | None:
    """The newest of this name; a path may be relative in one place and absolute in another."""
    for same in (
        lambda save: save.name == name,
        lambda save: PurePath(save.name).name == PurePath(name).name,
    ):
        found = [save for save in saves if same(save)]
        if found:
            return max(found, key=lambda save: (save.complete, save.time))
    return None


def lineage(life: Life, lives: Sequence[Life]) -> list[Piece]:
    """The lives, each up to the save that the next has gone on from, that made a life's weights."""
    pieces = [Piece(life, None)]
    while (cause := pieces[0].life.cause) is not None:
        pieces.insert(0, Piece(lives[cause.life - 1], cause))
    return pieces
