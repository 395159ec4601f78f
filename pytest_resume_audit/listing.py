"""The timelines of a matrix as text: what there is, and what each is for."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby

from pytest_resume_audit.catalogue import NAMED, NamedTimeline, matrix


def listing(name: str, *, every: bool = False) -> Iterator[str]:
    """The timelines of a matrix, in its order.

    Args:
        name: of the matrix.
        every: whether generated timelines that differ in a number alone are told one by one.

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
        more = f", and {len(others):,} more like it" if others else ""
        yield f"{first.name} (demands {first.demand}){more}"
        yield f"    {first.purpose}"
        yield f"    {first.script}"
        if first.seen:
            yield f"    seen: {', '.join(first.seen)}"


def _family(timeline: NamedTimeline) -> str:
    """What generated timelines have in common that differ in the number of an event alone."""
    return timeline.name if timeline.name in NAMED else re.sub(r"\d+", "#", timeline.name)
