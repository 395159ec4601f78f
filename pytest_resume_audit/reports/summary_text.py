"""The summary of a session, as a person reads it in a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from pytest_resume_audit.summary import OUTCOMES, Row, Summary

_ALWAYS = ("run", "lossless", "lossy")
"""Columns that are there also when all of them are 0."""


def render(summary: Summary, width: int = 80) -> Iterator[str]:
    """The lines of a summary; what failed the session is not in it.

    Args:
        summary: of the session.
        width: of a line; timelines and commands are never broken.

    Returns:
        A row for each test; which states were reached, and how often; the shortest failing
        timeline of each test, with the command that plays it again.
    """
    yield from summary.settings
    if summary.records:
        yield from _table(summary)
        reached = [f"{count} {state}" for state, count in summary.states.items() if count]
        for title, states in (
            ("states reached, by timelines", reached),
            ("never reached", summary.never_reached),
        ):
            if states:
                yield ""
                yield f"{title}:"
                yield from _wrapped("; ".join(states), width)
    for row in summary.rows:
        if failing := row.shortest_failing:
            yield ""
            yield f"shortest failing timeline of {row.test}: {failing.id}"
            yield f"  {failing.timeline}"
            yield from _wrapped(failing.headline, width)
            yield f"  replay: {failing.replay}"


def cells(row: Row) -> dict[str, int]:
    """The figures of a test, by their titles.

    Args:
        row: of the test.
    """
    return {
        "run": row.run,
        **{outcome: row.counts[outcome] for outcome in OUTCOMES},
        "worst skip": row.worst_skip,
        "worst repeat": row.worst_repeat,
    }


def titles(summary: Summary) -> list[str]:
    """The columns that say something: the usual ones, and every one with a figure above 0.

    Args:
        summary: of the session.
    """
    rows = [cells(row) for row in summary.rows]
    return [title for title in rows[0] if title in _ALWAYS or any(row[title] for row in rows)]


def _table(summary: Summary) -> Iterator[str]:
    columns = titles(summary)
    yield "  ".join([*columns, "test"])
    for row in summary.rows:
        figures = cells(row)
        yield "  ".join([*(f"{figures[title]:>{len(title)}}" for title in columns), row.test])


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(
        text,
        width,
        initial_indent="  ",
        subsequent_indent="  ",
        break_long_words=False,
        break_on_hyphens=False,
    )
