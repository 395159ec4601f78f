"""What a timeline that goes through every point of a save comes to: as much as its worst point."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from pytest_resume_audit.verdict import WORST_LAST, Asked, AuditReport, Point


def worst_of(asked: Asked, reports: Iterable[AuditReport]) -> AuditReport:
    """One report for all points.

    Args:
        asked: what was played.
        reports: of its points, in their order; of a timeline that names its point, or has none,
            the only one.

    Returns:
        The report of the worst point, which is the first of those that are equally bad. Where
        the timeline goes through all points it tells of each, and has the states that any of
        them reached: what one could not show another may have.
    """
    each = list(reports)
    worst = max(each, key=_badness)
    if not asked.timeline.walks:
        return worst
    return replace(
        worst,
        states=frozenset().union(*(report.states for report in each)),
        unreached=None if any(report.unreached is None for report in each) else worst.unreached,
        points=tuple(point for report in each if (point := _point(asked, report)) is not None),
    )


def _badness(report: AuditReport) -> tuple[bool, int, bool]:
    return not report.passed, WORST_LAST.index(report.verdict), report.unreached is None


def _point(asked: Asked, report: AuditReport) -> Point | None:
    """What came of one run, as a point of the save; None where the save came to none."""
    raced = next((save for save in report.history.saves if save.raced_at), None)
    died = next((save for save in report.history.saves if save.died_at or save.torn), None)
    if raced is not None:
        where, kept_out = f"before {raced.raced_at}", raced.kept_out
    elif died is not None:
        where = f"before {died.died_at}" if died.died_at else "behind the last operation"
        where, kept_out = where + (f", with {died.torn}" if died.torn else ""), ()
    else:
        return None
    both = zip(asked.timeline.steps, report.timeline.steps, strict=True)
    (step,) = (one.text for walking, one in both if walking != one)
    return Point(step, report.timeline, where, report.verdict, report.passed, kept_out)
