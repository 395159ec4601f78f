"""No false alarm: right designs in styles of their own lose nothing, and are not blamed.

By default one timeline in so many is played; ``RESUME_AUDIT_EVERY=1`` plays the whole matrix.
"""

from __future__ import annotations

import os

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

from pytest_resume_audit import Collector, run
from pytest_resume_audit.catalogue import NAMED, matrix
from pytest_resume_audit.verdict import AuditReport

EVERY = int(os.environ.get("RESUME_AUDIT_EVERY", "41"))
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
    for timeline in NIGHTLY[::EVERY]:
        report = run(collector, timeline)
        assert is_right(report), report


@pytest.mark.parametrize("collector", RIGHT)
def test_a_right_way_comes_to_what_the_timelines_are_for(collector: type[Collector]) -> None:
    """One that is skipped everywhere would be right as well."""
    reports = [run(collector, name) for name in NAMED]
    assert sum(report.unreached is None for report in reports) >= 10
    states = frozenset[str]().union(*(report.states for report in reports))
    assert {"saved with prompts in flight", "resumed", "resumed without the buffer"} <= states
