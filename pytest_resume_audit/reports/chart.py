"""Rows of symbols, a column an ordinal, laid out for a terminal. It knows nothing about audits.

Columns stand one by one while they fit in a line. When they don't, neighbours that look the same
in every row are folded into one wide column that says its range. What is still too wide is
wrapped into blocks.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby

_HEADER = "ordinal"
_LEAST_ROOM = 20


@dataclass(frozen=True)
class Row:
    """One row of a chart.

    Args:
        label: what stands left of it.
        symbols: a character for each ordinal; empty for a row without columns.
        mark: the ordinal under which a ``^`` stands; one past the last one is allowed.
    """

    label: str
    symbols: str = ""
    mark: int | None = None


def chart(
    rows: Sequence[Row],
    *,
    breaks: Collection[int] = (),
    urgent: Collection[int] = (),
    width: int = 100,
    height: int = 40,
    paint: Callable[[str], str] = str,
) -> list[str]:
    """Lay out rows under their ordinals.

    Args:
        rows: those with symbols have equally many.
        breaks: ordinals before which a ``|`` is drawn.
        urgent: ordinals whose blocks are drawn first when not all blocks fit.
        width: of a line.
        height: lines that all blocks together may have; one block is drawn in any case.
        paint: dresses the symbols of a row, such as in colours, after everything is laid out.

    Returns:
        The lines.

    Example:
        >>> print("\\n".join(chart([Row("life 1", "TTTTbfbb"), Row("restart", mark=4)])))
        ordinal  0
                 01234567
        life 1   TTTTbfbb
        restart      ^
    """
    count = max((len(row.symbols) for row in rows), default=0)
    indent = max(len(label) for label in (_HEADER, *(row.label for row in rows))) + 2
    # One column is kept free for a mark behind the last ordinal.
    room = max(width - indent - 1, _LEAST_ROOM)
    # Breaks stand out as long as they have room; then columns are folded across them.
    for columns in (_singles(0, count), _folded(rows, count, breaks), _folded(rows, count, ())):
        blocks = _wrapped(columns, breaks, room)
        if len(blocks) <= 1:
            break

    needed_first = sorted(blocks, key=lambda block: not block.shows(urgent))
    drawn = needed_first[: max(height // (len(rows) + 3), 1)]
    lines: list[str] = []
    for is_drawn, group in groupby(blocks, key=lambda block: block in drawn):
        stretch = list(group)
        if is_drawn:
            for block in stretch:
                lines += ["", *block.lines(rows, count, indent, paint)]
        else:
            lines += ["", f"... {stretch[0].first}-{stretch[-1].last} not drawn"]
    return lines[1:]


@dataclass(frozen=True)
class _Column:
    """An ordinal, or a range of them that looks the same in every row."""

    first: int
    last: int

    @property
    def folded(self) -> bool:
        return self.last > self.first

    @property
    def name(self) -> str:
        return f"{self.first}-{self.last}" if self.folded else f"{self.first}"

    @property
    def width(self) -> int:
        return len(self.name) if self.folded else 1


def _singles(first: int, end: int) -> Iterator[_Column]:
    return (_Column(ordinal, ordinal) for ordinal in range(first, end))


def _folded(rows: Sequence[Row], count: int, breaks: Collection[int]) -> Iterator[_Column]:
    """Fold each run of columns that look the same, where that saves room."""
    begins = sorted([*breaks, *(row.mark for row in rows if row.mark is not None)])
    drawn = [row.symbols for row in rows if row.symbols]

    def look(ordinal: int) -> tuple[object, ...]:
        # A column that is marked, or behind a break, looks like none before it.
        return bisect_right(begins, ordinal), *(symbols[ordinal] for symbols in drawn)

    for _, run in groupby(range(count), key=look):
        ordinals = list(run)
        fold = _Column(ordinals[0], ordinals[-1])
        if len(ordinals) > fold.width + 2:
            yield fold
        else:
            yield from _singles(fold.first, fold.last + 1)


def _wrapped(columns: Iterable[_Column], breaks: Collection[int], room: int) -> list[_Block]:
    """Fill blocks with columns, from left to right."""
    blocks: list[_Block] = []
    for column in columns:
        if not blocks or not blocks[-1].add(column, column.first in breaks):
            blocks.append(_Block(room))
            blocks[-1].add(column)
    return blocks


@dataclass(eq=False)
class _Block:
    """Columns that stand side by side."""

    room: int
    placed: list[tuple[int, _Column]] = field(default_factory=list)
    names: list[tuple[int, str]] = field(default_factory=list)
    bars: list[tuple[int, str]] = field(default_factory=list)
    end: int = 0

    @property
    def first(self) -> int:
        return self.placed[0][1].first

    @property
    def last(self) -> int:
        return self.placed[-1][1].last

    def shows(self, ordinals: Collection[int]) -> bool:
        """Whether any of these ordinals is in it."""
        return any(self.first <= ordinal <= self.last for ordinal in ordinals)

    def add(self, column: _Column, barred: bool = False) -> bool:
        """Put one more column at the right end; False when there is no room for it."""
        before = self.placed[-1][1] if self.placed else None
        # Folds are named, and so is the first column of a stretch; then every tenth that fits.
        named = before is None or before.folded or column.folded
        free = self.names[-1][0] + len(self.names[-1][1]) + 1 if self.names else 0
        x = self.end + (barred or (named and before is not None))
        if named:
            x = max(x, free)
        name_fits = x >= free and x + len(column.name) <= self.room
        if x + column.width > self.room or (named and not name_fits):
            return False
        if named or (column.first % 10 == 0 and name_fits):
            self.names.append((x, column.name))
        if barred:
            self.bars.append((self.end, "|"))
        self.placed.append((x, column))
        self.end = x + column.width
        return True

    def lines(
        self, rows: Sequence[Row], count: int, indent: int, paint: Callable[[str], str]
    ) -> Iterator[str]:
        """Its lines: the ordinals, then the rows; marks that stand elsewhere are left out."""
        yield _HEADER.ljust(indent) + _spread(self.names)
        units = [(x, f"{column.first % 10}") for x, column in self.placed if not column.folded]
        if units:
            yield " " * indent + _spread([*units, *self.bars])
        places = {column.first: x for x, column in self.placed}
        if self.last == count - 1:
            places[count] = self.end
        for row in rows:
            label = row.label.ljust(indent)
            if row.mark is not None:
                if row.mark in places:
                    yield label + " " * places[row.mark] + "^"
            elif row.symbols:
                body = [(x, row.symbols[column.first] * column.width) for x, column in self.placed]
                yield label + paint(_spread([*body, *self.bars]))
            else:
                yield row.label


def _spread(texts: Sequence[tuple[int, str]]) -> str:
    """One line with each text at its place."""
    line = ""
    for x, text in sorted(texts):
        line = line.ljust(x) + text
    return line
