"""The picture of a run: where every prompt stood when it mattered, and what became of it.

A row shows one moment of one life: the save that a later life was restored from, or its end. The
last row says how the final weights were trained on each prompt.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from itertools import groupby
from typing import NamedTuple

from pytest_resume_audit.history import History, LifeRecord, Progress, Standing
from pytest_resume_audit.reports.chart import Row, chart
from pytest_resume_audit.verdict import AuditReport, Verdict

_MOST_ROWS = 14
_MOST_LINES = 36
"""Of the chart: with the legend it is still seen without scrolling."""


class _Symbol(NamedTuple):
    meaning: str
    colour: str = ""


_FAULT, _TRAINED, _WAITING, _OUT = "1;31", "32", "36", "33"

_SYMBOLS = {
    "T": _Symbol("trained", _TRAINED),
    "t": _Symbol("trained before (restored weights)", _TRAINED),
    "r": _Symbol("trained, rolled back", _TRAINED),
    "b": _Symbol("buffered", _WAITING),
    "h": _Symbol("finished, held by the collector", _WAITING),
    "f": _Symbol("in flight", _OUT),
    "p": _Symbol("in flight, part of the group finished", _OUT),
    "o": _Symbol("handed out, not dispatched", _OUT),
    "e": _Symbol("evicted from the buffer", _OUT),
    "x": _Symbol("failed"),
    "d": _Symbol("dropped"),
    ".": _Symbol("not handed out"),
    "^": _Symbol("where the loader restarts"),
    "|": _Symbol("a pass begins"),
    "-": _Symbol("trained once"),
    "S": _Symbol("SKIPPED", _FAULT),
    "B": _Symbol("STARVED (left in the buffer)", _FAULT),
    "P": _Symbol("TRAINED IN PART", _FAULT),
    "U": _Symbol("UNEXPECTED", _FAULT),
    "2": _Symbol("TRAINED TWICE", _FAULT),
    **{f"{times}": _Symbol(f"TRAINED {times} TIMES", _FAULT) for times in range(3, 9)},
    "9": _Symbol("TRAINED 9 TIMES OR MORE", _FAULT),
    "s": _Symbol("skipped, allowed here"),
    "+": _Symbol("trained again, allowed here"),
    "n": _Symbol("not trained by an uninterrupted run either"),
}
"""Every symbol, in the order of the legend. What speaks against the run is written large."""

_STANDINGS = {
    "handed_out": "o",
    "in_flight": "f",
    "held": "h",
    "buffered": "b",
    "evicted": "e",
    "trained": "T",
    "failed": "x",
    "dropped": "d",
    "partly": "p",
}
"""The symbol of each set of a standing; ``partly`` overlaps with others, and wins."""

_ENDS = {"crash": "at its crash", "stop": "at its stop", "end": "at its end"}

_CUT_SHORT: dict[Verdict, str] = {
    "error": "when it failed",
    "refused": "when it refused",
    "hang": "where it stands still",
}
"""How a run ended that has no final weights, by the finding that says so."""


def drawing(report: AuditReport, *, color: bool = False, width: int = 100) -> str:
    """Draw the lives of a run and what came of them, a column an ordinal.

    Args:
        report: of the run.
        color: whether to use ANSI colours; without them it says the same.
        width: of a line.

    Returns:
        Lines of ASCII, with a legend of the symbols in use; empty when nothing was played.

    Example:
        >>> from pytest_resume_audit import LiveCursorCollector, run
        >>> print(drawing(run(LiveCursorCollector, "mid-flight"), width=80))
        ordinal                0         10
                               0123456789012345
        life 1, at save 1      TTTTbfbbffbf....
          restart from save 1              ^
        life 2, at its end     ttttT.TT..T.TTTT
        result                 -----S--SS-S----
        <BLANKLINE>
        T trained   t trained before (restored weights)   b buffered   f in flight
        . not handed out   ^ where the loader restarts   - trained once   S SKIPPED
    """
    if not report.history.lives:
        return ""
    rows, result = _capped(_life_rows(report)), _result(report)
    if result:
        rows.append(Row("result", result))

    def paint(text: str) -> str:
        return _coloured(text) if color else text

    setup = report.setup.changed(report.timeline.changes)
    per_pass = setup.prompts_per_pass
    lines = chart(
        rows,
        breaks=range(per_pass, setup.total, per_pass),
        urgent=[at for at, symbol in enumerate(result) if _SYMBOLS[symbol].colour == _FAULT],
        width=width,
        height=_MOST_LINES,
        paint=paint,
    )
    used = {symbol for row in rows for symbol in row.symbols}
    if any(row.mark is not None for row in rows):
        used.add("^")
    if any("|" in line for line in lines):
        used.add("|")
    return "\n".join([*lines, "", *_legend(used, width, paint)])


def stream_length(report: AuditReport) -> int:
    """How many ordinals a run has, over all passes."""
    setup = report.setup.changed(report.timeline.changes)
    return max(setup.total, len(report.history.rows))


def _cut_short(report: AuditReport) -> str | None:
    """How a run ended that has no final weights; None when it has some."""
    verdicts = [finding.verdict for finding in report.findings]
    return next((how for verdict, how in _CUT_SHORT.items() if verdict in verdicts), None)


# --- the lives ----------------------------------------------------------------------------------


def _life_rows(report: AuditReport) -> list[Row]:
    history, count = report.history, stream_length(report)
    kept = {life.number: until for life, until in history.lineage()}
    rows = []
    for life in history.lives:
        if life.number > 1:
            rows.append(_restart(life, count))
        until = kept.get(life.number, 0)
        for name, standing, position in _moments(report, life):
            lost = life.ordinals("trained", since=until, until=position)
            symbols = "".join(
                "r" if symbol == "T" and ordinal in lost else symbol
                for ordinal, symbol in enumerate(_symbols(standing, _start(history, life, count)))
            )
            if life.number not in kept or position > until:
                name += " (rolled back)"
            rows.append(Row(f"life {life.number}, {name}", symbols))
    return rows


def _moments(report: AuditReport, life: LifeRecord) -> Iterator[tuple[str, Standing, int]]:
    """What of a life is drawn: a name, the standing then, and the events before it."""
    history, count = report.history, stream_length(report)
    origins = {later.origin for later in history.lives}
    used = [save for save in history.saves if save.life == life.number and save.number in origins]
    for save in used:
        name = f"at legacy save {save.number}" if save.legacy else f"at save {save.number}"
        yield name, save.standing, save.position
    name = _ENDS.get(life.ended, "at its end")
    if life is history.lives[-1]:
        name = _cut_short(report) or name
    start = _start(history, life, count)
    final = _replayed(life, start, report.setup.group_size) if life.final is None else life.final
    # The end of a life tells nothing new when all stands as it stood at the save.
    if not used or _symbols(final, start) != _symbols(used[-1].standing, start):
        yield name, final, len(life.events)


def _start(history: History, life: LifeRecord, count: int) -> str:
    """What was settled, and how, in the weights that a life began with."""
    if life.origin is None:
        return "." * count
    save = history.save(life.origin)
    before = _start(history, history.lives[save.life - 1], count)
    return _symbols(save.standing, before).replace("T", "t")


def _symbols(standing: Standing, start: str) -> str:
    """A standing as a row of symbols; what is settled looks as it did at the start."""
    symbols = dict.fromkeys(range(len(start)), ".")
    symbols.update((ordinal, start[ordinal]) for ordinal in standing.settled)
    for name, symbol in _STANDINGS.items():
        symbols.update(dict.fromkeys(getattr(standing, name), symbol))
    return "".join(symbols[ordinal] for ordinal in range(len(start)))


def _replayed(life: LifeRecord, start: str, group_size: int) -> Standing:
    """The last standing of a life that was cut off before it was noted."""
    settled = [ordinal for ordinal, symbol in enumerate(start) if symbol in "txd"]
    progress = Progress(group_size, settled)
    for event in life.events:
        progress.apply(event)
    return progress.standing(life.start_place)


def _restart(life: LifeRecord, count: int) -> Row:
    label = "  restart afresh" if life.origin is None else f"  restart from save {life.origin}"
    if not life.load_buffer:
        label += ", no buffer"
    # Without weights it did not come to its start, and its loader has no place yet.
    mark = min(life.start_place, count) if life.start_counts else None
    return Row(label, mark=mark)


def _capped(rows: list[Row]) -> list[Row]:
    """Leave out rows in the middle when there are too many."""
    hidden = len(rows) - _MOST_ROWS
    if hidden <= 0:
        return rows
    head = _MOST_ROWS // 3
    return [*rows[:head], Row(f"  ... {hidden} more rows"), *rows[head + hidden :]]


# --- what came of it ----------------------------------------------------------------------------


def _result(report: AuditReport) -> str:
    """How each ordinal went into the final weights; empty where there are none."""
    if _cut_short(report):
        return ""
    symbols = ["-"] * stream_length(report)
    times = _times_trained(report.history) if report.duplicated else Counter()
    # In the order of weight: what comes later overrides.
    kinds: list[tuple[Collection[int], Callable[[int], str]]] = [
        (report.structural, lambda ordinal: "n"),
        (report.dropped, lambda ordinal: "d"),
        (report.failed, lambda ordinal: "x"),
        (report.duplicated, lambda ordinal: f"{min(max(times[ordinal], 2), 9)}"),
        (report.unexpected, lambda ordinal: "U"),
        (report.partial, lambda ordinal: "P"),
        (report.starved, lambda ordinal: "B"),
        (report.skipped, lambda ordinal: "S"),
        (report.excused, lambda ordinal: "+" if ordinal in report.duplicated else "s"),
    ]
    for ordinals, symbol in kinds:
        for ordinal in ordinals:
            symbols[ordinal] = symbol(ordinal)
    return "".join(symbols)


def _times_trained(history: History) -> Counter[int]:
    """How often each prompt was seen trained in the lineage, its most trained generation."""
    generations = Counter(
        (event.ordinal, event.generation)
        for life, until in history.lineage()
        for event in life.events[:until]
        if event.kind == "trained" and event.ordinal is not None
    )
    times: Counter[int] = Counter()
    for (ordinal, _), count in generations.items():
        times[ordinal] = max(times[ordinal], count)
    return times


# --- legend and colours -------------------------------------------------------------------------


def _legend(used: Collection[str], width: int, paint: Callable[[str], str]) -> list[str]:
    """What the symbols in use mean, as many in a line as fit."""
    lines: list[str] = []
    length = width
    for symbol, (meaning, _) in _SYMBOLS.items():
        if symbol not in used:
            continue
        size = len(f"   {symbol} {meaning}")
        if length + size > width:
            lines.append(f"{paint(symbol)} {meaning}")
            length = size - 3
        else:
            lines[-1] += f"   {paint(symbol)} {meaning}"
            length += size
    return lines


def _coloured(text: str) -> str:
    """Symbols in the colour of what they mean, by ANSI codes."""
    parts = []
    for symbol, run in groupby(text):
        colour = _SYMBOLS[symbol].colour if symbol in _SYMBOLS else ""
        same = "".join(run)
        parts.append(f"\033[{colour}m{same}\033[0m" if colour else same)
    return "".join(parts)
