"""The report on a run's ledgers, as text for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from pytest_resume_audit.real_runs.report import Loss, Restart, RunReport, count, number
from pytest_resume_audit.reports.text import listed

_VERDICTS = {"lossless": "bold green", "lossy": "bold red", "undetermined": "bold yellow"}


def as_text(report: RunReport) -> RenderableType:
    """The report for a terminal.

    Args:
        report: of a run.
    """
    parts: list[RenderableType] = [
        Text(report.headline(), style=_VERDICTS[report.verdict]),
        Text(""),
        _totals(report),
    ]
    for what, losses in (
        ("skipped", report.skipped),
        ("trained twice", report.duplicated),
        ("dropped", report.dropped),
    ):
        for loss in losses or ():
            parts += [Text(""), Text(_sentence(what, loss))]
    if report.restarts:
        parts += [Text(""), _restarts(report.restarts)]
    sentences = [*([f"by length: {report.bias}"] if report.bias else [])]
    sentences += [f"undetermined: {doubt}" for doubt in report.doubts]
    sentences += [f"note: {note}" for note in report.notes]
    if sentences:
        parts += [Text(""), *map(Text, sentences)]
    return Group(*parts)


def _totals(report: RunReport) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    for what, value in (
        ("prompts, each pass counted", report.prompts),
        ("trained", report.trained),
        ("skipped", count(report.skipped)),
        ("trained twice", count(report.duplicated)),
        ("dropped with a reason", count(report.dropped)),
        ("failed", report.failed),
        ("still out (open)", report.open),
        ("answers made again", report.answered_again),
        ("trainings rolled back", report.rolled_back),
        ("lives", report.lives or None),
        ("events", report.events),
    ):
        table.add_row(what, Text(number(value), justify="right"))
    return table


def _sentence(what: str, loss: Loss) -> str:
    back = f"; {number(loss.rolled_back)} of them trained in steps that were rolled back"
    named = _named(loss)
    return (
        f"{number(loss.prompts)} {what}: {loss.cause}{back if loss.rolled_back else ''}"
        + f"\n  {named}" * bool(named)
    )


def _named(loss: Loss) -> str:
    if all(isinstance(one, int) for one in loss.named):
        return listed(loss.named) if loss.named else ""
    return ", ".join(map(str, loss.named[:5])) + (", ..." if len(loss.named) > 5 else "")


def _restarts(restarts: Sequence[Restart]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("restart")
    table.add_column("from")
    # What was lost is between the two steps; the loader was at a place, and has gone on at another.
    for name in ("step", "reached", "steps", "trainings", "seconds", "place", "now at"):
        table.add_column(name, justify="right")
    for one in restarts:
        values: list[Any] = [one.step, one.reached, one.steps, one.trainings]
        seconds = None if one.seconds is None else round(one.seconds, 1)
        where = "none: afresh"
        if one.checkpoint is not None:
            where = PurePath(one.checkpoint).name + (
                f" of life {one.of_life}" if one.of_life else ""
            )
        table.add_row(
            f"life {one.life}",
            Text(where, overflow="fold"),
            *("-" if value is None else number(value) for value in values),
            *("-" if value is None else number(value) for value in (seconds, one.place)),
            "-" if one.goes_on_at is None else number(one.goes_on_at),
        )
    return table
