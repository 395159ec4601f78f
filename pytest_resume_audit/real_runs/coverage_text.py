"""The report on the counts of a checkpoint, as text for a terminal and as JSON.

The form of the JSON has a version, ``schema``. A new field leaves it as it is; a field that goes,
or means something else, makes it one more.

==================  ==================================================================
``schema``          1
``verdict``         ``lossless``, ``lossy`` or ``undetermined``
``why``             sentences
``prompts``         of a pass
``passes``          over the data
``reached``         the first ordinal above all that were handed out, as far as is known
``missing``         skipped or in part, at least
``repeats``         how often a prompt was trained too often, at least
``saturated``       ordinals of which it is not known how often they were trained
``totals``          ordinals by what became of them
``by_pass``         the same for each pass
``ordinals``        for each that is not as it should be: first and last of each run
``at_restarts``     ``restart``, ``place`` and ``untrained``: how many ordinals below the
                    place, untrained by then, are so still
``between``         of two checkpoints, or null: ``verdict``, ``why``, ``trained``,
                    ``repeated``, ``lost``, ``missing``, ``undone``, ``restarts``: the
                    fields of :class:`~pytest_resume_audit.real_runs.judging.Between`,
                    with first and last of each run of ordinals
==================  ==================================================================
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from itertools import islice, pairwise
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from pytest_resume_audit.real_runs.judging import (
    DROPS,
    DUPLICATED,
    IN_PART,
    NAMES,
    OPEN,
    SKIPPED,
    TRAINED,
    UNEXPECTED,
    UNREACHED,
    WAITS,
    Between,
    CoverageReport,
)
from pytest_resume_audit.reports.text import listed

SCHEMA = 1

_WORST = (SKIPPED, IN_PART, DUPLICATED, OPEN, WAITS, UNREACHED, DROPS, UNEXPECTED, TRAINED)
"""Which of the ordinals of one cell is shown: a loss stands out among any number of others."""

_COLOURS = {
    SKIPPED: "bold red",
    IN_PART: "bold red",
    DUPLICATED: "bold red",
    OPEN: "yellow",
    WAITS: "cyan",
    TRAINED: "green",
}
_VERDICTS = {"lossless": "bold green", "lossy": "bold red", "undetermined": "bold yellow"}
_TO_NAME = (SKIPPED, IN_PART, DUPLICATED, OPEN, WAITS)
_LINES = 8
_PASSES = 20
_LISTED = 200


def as_json(report: CoverageReport, between: Between | None) -> dict[str, Any]:
    """The report as a JSON value.

    Args:
        report: on the newest checkpoint.
        between: what happened since another.
    """
    return {
        "schema": SCHEMA,
        "verdict": report.verdict,
        "why": report.why,
        "prompts": report.prompts,
        "passes": report.passes,
        "reached": report.reached,
        "missing": report.missing,
        "repeats": report.repeats,
        "saturated": report.saturated,
        "totals": {name: report.count(mark) for mark, name in NAMES.items()},
        "by_pass": [
            {name: report.count(mark, one) for mark, name in NAMES.items()}
            for one in range(report.passes)
        ],
        "ordinals": {NAMES[mark]: list(report.spans(mark)) for mark in _TO_NAME},
        "at_restarts": [
            dict(zip(("restart", "place", "untrained"), one, strict=True))
            for one in report.at_restarts
        ],
        "between": None
        if between is None
        else {**asdict(between), **{name: _runs(those) for name, those in _named_of(between)}},
    }


def _named_of(between: Between) -> tuple[tuple[str, tuple[int, ...]], ...]:
    return (
        ("lost", between.lost),
        ("repeated", between.repeated),
        ("undone", between.undone),
    )


def _runs(ordinals: tuple[int, ...]) -> list[list[int]]:
    """First and last of each run of ordinals, which are sorted."""
    runs: list[list[int]] = []
    for ordinal in ordinals:
        if runs and ordinal == runs[-1][1] + 1:
            runs[-1][1] = ordinal
        else:
            runs.append([ordinal, ordinal])
    return runs


def as_text(report: CoverageReport, between: Between | None, width: int) -> RenderableType:
    """The report for a terminal.

    Args:
        report: on the newest checkpoint.
        between: what happened since another.
        width: of the terminal.
    """
    parts: list[RenderableType] = []
    if between is not None:
        parts += [*_between(between), Text("\nall of it up to the second checkpoint:")]
    parts.append(Text(headline(report), style=_VERDICTS[report.verdict]))
    for mark in _TO_NAME:
        if report.count(mark):
            parts.append(Text(f"{NAMES[mark]}: {_named(report, mark)}"))
    if report.saturated:
        parts.append(
            Text(f"of {report.saturated} it is not known how often they were trained: 126 or more")
        )
    parts += [Text(""), _table(report), Text("")]
    parts += [Text(line) for line in _legend_of(report)]
    parts[-1:] = [*_strip(report, width), parts[-1]]
    parts.append(Text(""))
    missed = sum(report.count(mark) for mark in (SKIPPED, IN_PART, OPEN))
    at_restarts = sum(untrained for _, _, untrained in report.at_restarts)
    if at_restarts:
        parts.append(
            Text(f"{at_restarts} of {missed} were not trained at a restart, nor after it:")
        )
        for number, place, untrained in report.at_restarts:
            parts.append(Text(f"  restart {number}: {untrained} of those below {place}"))
    parts += [Text(sentence) for sentence in report.why]
    return Group(*parts)


def headline(report: CoverageReport) -> str:
    """The verdict in a line.

    Args:
        report: of a checkpoint.

    Example:
        >>> from pytest_resume_audit.real_runs.counts import Counts
        >>> from pytest_resume_audit.real_runs.judging import judge
        >>> headline(judge(Counts(4, cells=bytearray([1, 0, 1, 2])), complete=True))
        'lossy: 1 of 4 skipped, 1 duplicated'
        >>> headline(judge(Counts(4, cells=bytearray([1, 1, 0, 0]))))
        'lossless so far: 2 of 4 trained as often as they should be'
        >>> headline(judge(Counts(4, cells=bytearray([0, 0, 0, 1])), in_flight=1))
        'lossy: at least 2 of 4 skipped'
    """
    reached = report.reached
    if report.verdict == "undetermined" and not report.count(OPEN):
        return f"undetermined: {report.why[0]}"
    if report.verdict == "undetermined":
        return f"undetermined: {report.count(OPEN)} of {reached} reached are not trained yet"
    if report.verdict == "lossless":
        so_far = " so far" if UNREACHED in report.marks else ""
        trained = report.count(TRAINED)
        return (
            f"lossless{so_far}: {trained} of {len(report.marks)} trained as often as they should be"
        )
    skipped, part = report.count(SKIPPED), report.count(IN_PART)
    words = []
    if report.missing > skipped + part:
        words.append(f"at least {report.missing} of {reached} skipped")
    elif skipped:
        words.append(f"{skipped} of {reached} skipped")
    if part:
        words.append(f"{part} trained in part")
    if report.count(DUPLICATED):
        words.append(f"{report.count(DUPLICATED)} duplicated")
    return f"lossy: {', '.join(words)}"


def _named(report: CoverageReport, mark: int) -> str:
    """The first ordinals of a mark: as many as are looked at by people."""
    first = (ordinal for start, end in report.spans(mark) for ordinal in range(start, end + 1))
    some = list(islice(first, 100_000))
    return listed(some, _LISTED, beyond=report.count(mark) - len(some))


def _table(report: CoverageReport) -> Table:
    table = Table(box=None, pad_edge=False, header_style="")
    columns = [mark for mark in NAMES if mark in _ALWAYS or mark in report.marks]
    for title in ("pass", *(NAMES[mark] for mark in columns)):
        table.add_column(title, justify="right", no_wrap=True)
    shown = range(report.passes)[:_PASSES]
    for one in shown:
        table.add_row(f"{one}", *_cells([report.count(mark, one) for mark in columns], columns))
    if report.passes > 1:
        if report.passes > _PASSES:
            table.add_row("...")
        table.add_row("all", *_cells([report.count(mark) for mark in columns], columns))
    return table


_ALWAYS = (TRAINED, SKIPPED, DUPLICATED)


def _cells(figures: list[int], marks: list[int]) -> Iterator[Text]:
    for figure, mark in zip(figures, marks, strict=True):
        yield Text(f"{figure}", style=_COLOURS.get(mark, "") if figure else "")


def strip(marks: bytes, cells: int) -> bytes:
    """Marks as so many cells, each showing the worst of the ordinals that it stands for.

    Args:
        marks: of some ordinals.
        cells: not more than them.

    Example:
        >>> strip(b"--------S-------....", 5)
        b'--S-.'
    """
    size = len(marks)
    edges = [size * cell // cells for cell in range(cells + 1)]
    return bytes(
        next(mark for mark in _WORST if marks.find(mark, start, end) >= 0)
        for start, end in pairwise(edges)
    )


def _strip(report: CoverageReport, width: int) -> Iterator[Text]:
    size = report.prompts
    shown = min(report.passes, _PASSES)
    room = max(width - len(f"{size * report.passes}") - 2, 10)
    lines = max(_LINES // shown, 1)
    cells = min(size, room * lines)
    each = "each sign is a prompt" if cells == size else f"each sign is about {size / cells:,.0f}"
    yield Text(f"{each}, and shows the worst" if cells < size else each)
    label = len(f"{size * report.passes}")
    for one in range(shown):
        row = strip(report.marks[one * size : (one + 1) * size], cells)
        for start in range(0, cells, room):
            line = Text(f"{one * size + size * start // cells:>{label}}  ")
            for mark in row[start : start + room]:
                line.append(chr(mark), style=_COLOURS.get(mark, ""))
            yield line
    if report.passes > shown:
        yield Text(f"... and {report.passes - shown} more passes")


def _legend_of(report: CoverageReport) -> Iterator[str]:
    yield "   ".join(f"{chr(mark)} {name}" for mark, name in NAMES.items() if mark in report.marks)


def _between(between: Between) -> Iterator[Text]:
    many = between.restarts
    restarts = f", over {many} restart{'s' if many > 1 else ''}" if many else ""
    yield Text(
        f"between the two{restarts}: {between.verdict}: {between.trained} trained for the first "
        f"time, {between.missing} lost, {len(between.repeated)} repeated",
        style=_VERDICTS[between.verdict],
    )
    for name, ordinals in _named_of(between):
        if ordinals:
            yield Text(f"{name}: {listed(ordinals, _LISTED)}")
    yield from map(Text, between.why)
