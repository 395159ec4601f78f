"""The timelines of a matrix as text: what there is, and what each is for."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from pytest_resume_audit.catalogue import NAMED, NamedTimeline, matrix


def listing(name: str, *, every: bool = False) -> Iterator[str]:
    """The timelines of a matrix, in its order.

    Args:
        name: of the matrix.
        every: whether generated timelines of one purpose are told one by one.

    Returns:
        Lines: of each timeline its name and its demand, what it is for, its script, and where
        such a loss was seen in public.

    Example:
        >>> print(*[*listing("smoke")][:4], sep="\\n")
        smoke: 20 timelines
        <BLANKLINE>
        clean (demands clean)
            an uninterrupted run trains every prompt once
    """
    timelines = matrix(name)
    yield f"{name}: {len(timelines):,} timelines"
    for _, family in groupby(timelines, key=lambda one: one.name if every else _family(one)):
        first, *others = family
        yield ""
        more = f" and {len(others):,} more" if others else ""
        yield f"{first.name}{more} (demands {first.demand})"
        yield f"    {first.purpose}"
        yield f"    {first.script}"
        for reference in getattr(first, "seen", ()):
            yield f"    seen: {reference}"


def _family(timeline: NamedTimeline) -> tuple[str, ...]:
    """What generated timelines of one kind have in common."""
    named = timeline.name if timeline.name in NAMED else ""
    return named, timeline.purpose, timeline.demand
