"""The picture of a run: where every prompt stood when it mattered, and what became of it.

A row shows one moment of one life: the save that a later life was restored from, or the end. The
last row shows how often the final weights were trained on each prompt, and why not once.
"""

from __future__ import annotations

from typing import NamedTuple

from pytest_resume_audit.history import Standing
from pytest_resume_audit.reports.chart import Row, chart
from pytest_resume_audit.verdict import AuditReport

_MOST_ROWS = 14
_MOST_LINES = 36


class _Symbol(NamedTuple):
    meaning: str
    colour: str = ""


_FAULT, _GOOD, _OUT, _WAITING = "1;31", "32", "33", "36"

_SYMBOLS = {
    "T": _Symbol("trained", _GOOD),
    "t": _Symbol("trained before, in the restored weights", _GOOD),
    "r": _Symbol("trained, rolled back", _GOOD),
    "b": _Symbol("buffered", _WAITING),
    "h": _Symbol("finished, held by the collector", _WAITING),
    "e": _Symbol("evicted from the buffer", _OUT),
    "f": _Symbol("in flight", _OUT),
    "p": _Symbol("in flight, part of its group finished", _OUT),
    "o": _Symbol("handed out, not dispatched", _OUT),
    "x": _Symbol("failed"),
    "d": _Symbol("dropped"),
    ".": _Symbol("not handed out"),
    "^": _Symbol("where the loader restarts"),
    "|": _Symbol("a pass begins"),
    "-": _Symbol("trained once"),
    "S": _Symbol("SKIPPED", _FAULT),
    "B": _Symbol("STARVED, never taken from the buffer", _FAULT),
    "P": _Symbol("TRAINED IN PART", _FAULT),
    "U": _Symbol("TRAINED, THOUGH NOT EXPECTED", _FAULT),
    "2": _Symbol("TRAINED TWICE", _FAULT),
    **{str(times): _Symbol(f"TRAINED {times} TIMES", _FAULT) for times in range(3, 9)},
    "9": _Symbol("TRAINED 9 TIMES OR MORE", _FAULT),
    "s": _Symbol("skipped, which is allowed here"),
    "+": _Symbol("trained again, which is allowed here"),
    "n": _Symbol("not trained by an uninterrupted run either"),
    "?": _Symbol("not known"),
}
"""What each symbol means, in the order of the legend; what speaks against the run is loud."""

_STANDINGS = {
    "trained": "T",
    "buffered": "b",
    "held": "h",
    "evicted": "e",
    "in_flight": "f",
    "handed_out": "o",
    "failed": "x",
    "dropped": "d",
    "partly": "p",
}
"""The symbol of each set of a standing; what comes later overrides."""

_ENDS = {"crash": "at its crash", "stop": "at its stop", "end": "at its end"}


def drawing(report: AuditReport, *, color: bool = False, width: int = 100) -> str:
    """Draw the lives of a run and what came of them, a column an ordinal.

    Args:
        report: of the run.
        color: whether to use ANSI colours; without them it says the same.
        width: of a line.

    Returns:
        Some lines of ASCII, with a legend of the symbols in use; empty when nothing was played.

    Example:
        >>> print(drawing(report))  # doctest: +SKIP
        ordinal                       0         10
                                      0123456789012345
        life 1, at save 1             TTTTbfbbffbf....
          restart from save 1 at 12               ^
        life 2, at its end            ttttT.TT..T.TTTT
        result                        -----S--SS-S----
        <BLANKLINE>
        T trained   t trained before, in the restored weights   b buffered   f in flight
        . not handed out   ^ where the loader restarts   - trained once   S SKIPPED
    """
    if not report.history.lives:
        return ""
    rows, result = _capped(_life_rows(report)), _result(report)
    if result:
        rows.append(Row("result", result))

    def paint(text: str) -> str:
        return _coloured(text) if color else text

    per_pass = report.setup.prompts_per_pass
    lines = chart(
        rows,
        breaks=range(per_pass, report.setup.total, per_pass),
        urgent=[at for at, symbol in enumerate(result) if _SYMBOLS[symbol].colour == _FAULT],
        width=width,
        height=_MOST_LINES,
        paint=paint,
    )
    used = {symbol for row in rows for symbol in row.symbols}
    if any(row.mark is not None for row in rows):
        used.add("^")
    if report.setup.passes > 1:
        used.add("|")
    return "\n".join([*lines, "", *_legend(used, width, paint)])


def stream_length(report: AuditReport) -> int:
    """How many ordinals the run has, over all passes."""
    return max(report.setup.total, len(report.history.rows))


# --- the lives ----------------------------------------------------------------------------------


def _life_rows(report: AuditReport) -> list[Row]:
    history, count = report.history, stream_length(report)
    kept = {life.number: until for life, until in history.lineage()}
    rows = []
    for life in history.lives:
        if life.number > 1:
            rows.append(_restart(life, count))
        start, until, last = _start(history, life, count), kept.get(life.number, 0), ""
        for name, standing, position in _moments(history, life, start):
            symbols = _symbols(standing, start)
            if symbols == last:
                continue
            last = symbols
            label = f"life {life.number}, {name}"
            if life.number not in kept or position > until:
                label += " (rolled back)"
            for ordinal in life.ordinals("trained", since=until, until=position):
                if symbols[ordinal] == "T":
                    symbols = f"{symbols[:ordinal]}r{symbols[ordinal + 1 :]}"
            rows.append(Row(label, symbols))
    return rows


def _moments(
    history: History, life: LifeRecord, start: str
) -> Iterator[tuple[str, Standing, int]]:
    """The moments of a life that a reader must see: their names, standings and positions."""
    origins = {later.origin for later in history.lives}
    used = [save for save in history.saves if save.life == life.number and save.number in origins]
    for save in used:
        legacy = ", legacy" if save.legacy else ""
        yield f"at save {save.number}{legacy}", save.standing, save.position
    if life.final is not None:
        yield _ENDS.get(life.ended, "at its end"), life.final, len(life.events)
    elif not used:
        yield "as far as it came", _replayed(life, start), len(life.events)
