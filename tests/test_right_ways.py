"""No false alarm: right designs in styles of their own lose nothing, and are not blamed.

By default one timeline in so many is played. ``RESUME_AUDIT_EVERY=1`` plays all of the nightly
matrix, one in 17 of the full one, and one in 289 of that in processes; ``RESUME_AUDIT_TURN`` says
which ones, so that a job that counts it up comes to all of them.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Sequence
from dataclasses import replace

import pytest
from right_ways import (
    ByArrival,
    ConsumedIds,
    DrainsFirst,
    Oversamples,
    PartOfAGroup,
    Retries,
    Tasks,
    Workers,
)

from pytest_resume_audit import Collector, FrontierCollector, run
from pytest_resume_audit.catalogue import NAMED, NamedTimeline, matrix
from pytest_resume_audit.matrices import (
    NO_BUFFER,
    ORDERS,
    PLAIN,
    SAME_SAVE,
    THRICE,
    TIGHT,
    TWICE,
    every_save_point,
    every_two_save_points,
)
from pytest_resume_audit.verdict import AuditReport

EVERY = int(os.environ.get("RESUME_AUDIT_EVERY", "61"))
if EVERY > 1:
    EVERY = max(EVERY, 11)  # they are eight, and a sample is there to be quick
TURN = int(os.environ.get("RESUME_AUDIT_TURN", "0"))
RIGHT = [
    Tasks,
    Workers,
    DrainsFirst,
    ByArrival,
    ConsumedIds,
    Oversamples,
    PartOfAGroup,
    Retries,
]
NIGHTLY = matrix("nightly")
FULL = random.Random(0).sample(matrix("full"), k=len(matrix("full")))
"""The full matrix out of its order, so that one in so many is a bit of everything."""


def out_twice(group_size: int) -> list[NamedTimeline]:
    """Timelines in which a row is out in two passes at once, with a part of a group in each."""
    fields = {**TIGHT.fields, "shuffle": True, "group_size": group_size}
    sizes = replace(TIGHT, fields=fields)
    timelines: list[NamedTimeline] = []
    for order in ORDERS:
        for insert in (PLAIN, NO_BUFFER, TWICE, THRICE, SAME_SAVE):
            timelines += every_save_point(sizes, order, insert)
        timelines += every_two_save_points(sizes, order, third=True)
    return timelines


def sample(timelines: Sequence[NamedTimeline], every: int) -> Sequence[NamedTimeline]:
    """One in so many of these: the first ones in turn 0, the ones after them in turn 1."""
    return timelines[TURN % every :: every]


def is_right(report: AuditReport) -> bool:
    """Lossless; and where a file is torn, or sizes have changed, a refusal is as good."""
    return report.passed and not report.duplicated and set(report.skipped) <= set(report.excused)


@pytest.mark.parametrize("collector", RIGHT)
@pytest.mark.parametrize("name", NAMED)
def test_a_right_way_passes_every_named_timeline(name: str, collector: type[Collector]) -> None:
    report = run(collector, name)
    assert is_right(report), report


@pytest.mark.parametrize("collector", RIGHT)
def test_a_right_way_passes_the_nightly_matrix(collector: type[Collector]) -> None:
    for timeline in sample(NIGHTLY, EVERY):
        report = run(collector, timeline)
        assert is_right(report), report


@pytest.mark.parametrize("collector", RIGHT)
def test_a_right_way_passes_the_full_matrix(collector: type[Collector]) -> None:
    for timeline in sample(FULL, EVERY * 17):
        report = run(collector, timeline)
        assert is_right(report), report


@pytest.mark.parametrize("group_size", [2, 3])
@pytest.mark.parametrize("collector", [*RIGHT, FrontierCollector])
def test_a_right_way_is_not_blamed_where_a_row_is_out_twice(
    collector: type[Collector], group_size: int
) -> None:
    for timeline in sample(out_twice(group_size), EVERY):
        report = run(collector, timeline)
        assert is_right(report), report


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="it is watched through /proc")
@pytest.mark.parametrize("collector", [*RIGHT, FrontierCollector])
def test_a_right_way_passes_the_full_matrix_in_processes(collector: type[Collector]) -> None:
    for timeline in sample(FULL, EVERY * 17 * 17):
        report = run(collector, timeline, life="process")
        assert is_right(report), report


@pytest.mark.parametrize("collector", RIGHT)
def test_a_right_way_comes_to_what_the_timelines_are_for(collector: type[Collector]) -> None:
    """One that is skipped everywhere would be right as well."""
    reports = [run(collector, name) for name in NAMED]
    assert sum(report.unreached is None for report in reports) >= 10
    states = frozenset[str]().union(*(report.states for report in reports))
    assert {"saved with prompts in flight", "resumed", "resumed without the buffer"} <= states
