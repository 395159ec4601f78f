"""The summary of a session as Markdown, such as GitHub shows on the page of a job."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pytest_resume_audit.reports.summary_text import cells, titles
from pytest_resume_audit.summary import Row, Summary

_UNFOLDED = 20
"""Rows of a table, and failing tests, that are shown without being asked for."""

_MOST = 200
"""Rows of a table, and failing tests, that are shown at all: a page takes a megabyte."""


def render(summary: Summary) -> str:
    """The summary, with long tables folded, and what is longer still cut off.

    Args:
        summary: of the session.
    """
    return "\n".join(_lines(summary)) + "\n"


def _lines(summary: Summary) -> Iterator[str]:
    yield "## Resume audit"
    yield ""
    for failure in summary.failures:
        yield f"**Failed:** {_shown(failure)}"
        yield ""
    for line in [*summary.settings, *summary.warnings]:
        yield _shown(line)
        yield ""
    if not summary.records:
        yield "Nothing was audited."
        yield ""
        return
    yield from _table(summary)
    yield from _failing([row for row in summary.rows if row.shortest_failing])
    yield from _states(summary)


def _table(summary: Summary) -> Iterator[str]:
    columns = titles(summary)
    # What has failed comes first: it is not what gets cut off.
    rows = sorted(summary.rows, key=lambda row: row.shortest_failing is None)
    lines = [
        f"| test | {' | '.join(columns)} |",
        f"| --- |{' ---: |' * len(columns)}",
        *(
            f"| {_code(row.test)} | {' | '.join(str(cells(row)[title]) for title in columns)} |"
            for row in rows[:_MOST]
        ),
    ]
    if len(rows) > _MOST:
        lines += ["", f"... and {len(rows) - _MOST} more tests"]
    yield from _folded(f"{len(rows)} tests", lines, len(rows) > _UNFOLDED)


def _failing(rows: list[Row]) -> Iterator[str]:
    if not rows:
        return
    lines: list[str] = []
    for row in rows[:_MOST]:
        if failing := row.shortest_failing:
            lines += [
                f"{_code(failing.node_id)}: {_shown(failing.headline)}",
                "",
                "```",
                failing.timeline,
                failing.replay,
                "```",
                "",
            ]
    if len(rows) > _MOST:
        lines += [f"... and {len(rows) - _MOST} more failing tests"]
    yield "### Shortest failing timelines"
    yield ""
    yield from _folded(f"{len(rows)} failing tests", lines, len(rows) > _UNFOLDED)


def _states(summary: Summary) -> Iterator[str]:
    shown = [
        *((state, count) for state, count in summary.states.items() if count),
        *((state, 0) for state in summary.never_reached),
    ]
    lines = ["| state | timelines |", "| --- | ---: |"]
    yield from _folded(
        "States reached", [*lines, *(f"| {state} | {count} |" for state, count in shown)], True
    )


def _folded(title: str, lines: Iterable[str], folded: bool) -> Iterator[str]:
    if folded:
        yield f"<details><summary>{title}</summary>"
        yield ""
    yield from lines
    yield ""
    if folded:
        yield "</details>"
        yield ""


def _code(text: str) -> str:
    """A node id: with parameters, it may have anything in it."""
    return "`" + text.replace("`", "'").replace("|", "\\|") + "`"


def _shown(text: str) -> str:
    """A sentence, with nothing in it that Markdown or HTML takes for its own."""
    return "".join(f"\\{sign}" if sign in "\\`*_[]<>|#" else sign for sign in text)
