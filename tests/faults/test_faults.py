"""Every planted fault is reported as it must be, and caught by the nightly matrix unasked.

By default the smoke timelines are gone through up to the first that a fault does not pass, and
where it passes them all, the one that is noted as the first to catch it is played.
``RESUME_AUDIT_EVERY=1`` goes through the whole matrix: a minute for a fault that is caught late.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

import pytest

from faults import (
    counters,
    groups,
    identity,
    loaders,
    meetings,
    pipeline,
    place,
    resumed,
    torn_sets,
    unequal,
    unseen,
)
from faults.identity import InOrder
from faults.loaders import OwnLoader
from faults.planted import KINDS, OUT_OF_SCOPE, PLANTED, Planted, numbers
from faults.resumed import InBatches
from faults.small import Rewinding, Small, Threaded
from pytest_resume_audit import Collector, Setup, run
from pytest_resume_audit.catalogue import NamedTimeline, matrix
from pytest_resume_audit.timeline import Timeline
from pytest_resume_audit.verdict import Asked, AuditReport

EVERYTHING = os.environ.get("RESUME_AUDIT_EVERY") == "1"
MODULES = (
    place,
    torn_sets,
    pipeline,
    loaders,
    identity,
    groups,
    counters,
    unseen,
    meetings,
    resumed,
    unequal,
)
FAULTS = [pytest.param(fault, id=fault.row) for fault in PLANTED]
CAUGHT = [pytest.param(fault, id=fault.row) for fault in PLANTED if fault.caught_by]
RIGHT = [pytest.param(fault, id=fault.row) for fault in PLANTED if not fault.caught_by]
NIGHTLY = {timeline.name: timeline for timeline in matrix("nightly")}


def play(fault: Planted, timeline: NamedTimeline | Asked | str) -> AuditReport:
    """Play a timeline on a new class each time: what a fault keeps in its class is of one run."""
    collector = type(fault.collector.__name__, (fault.collector,), {})
    return run(collector, timeline)


def asked(fault: Planted) -> Asked:
    timeline = Timeline.parse(fault.script)
    loud_is_enough = timeline.torn or timeline.changes
    demand = (
        "legacy" if timeline.legacy else "lossless or refused" if loud_is_enough else "lossless"
    )
    return Asked(timeline, fault.setup, demand=fault.demand or demand)


# --- each in its own scenario -------------------------------------------------------------------


@pytest.mark.parametrize("fault", FAULTS)
def test_it_is_reported_as_it_must_be(fault: Planted) -> None:
    report = play(fault, asked(fault))
    assert report.verdict == fault.verdict, f"{fault.because}\n{report}"
    told = {kind: list(getattr(report, kind)) for kind in KINDS}
    assert told == fault.ordinals(), f"{fault.because}\n{report}"
    assert kinds_of_reason(report) == {kind: numbers(which) for kind, which in fault.why.items()}
    assert report.passed == (fault.verdict == "lossless")
    if fault.finding:
        (found,) = (finding for finding in report.findings if fault.finding in finding.text)
        assert list(found.ordinals) == numbers(fault.concerned) or not fault.concerned


def kinds_of_reason(report: AuditReport) -> dict[str, list[int]]:
    kinds: dict[str, list[int]] = {}
    for ordinal, reason in sorted(report.reasons.items()):
        kinds.setdefault(reason.kind, []).append(ordinal)
    return kinds


def test_a_test_with_equal_numbers_is_blind() -> None:
    (fault,) = (fault for fault in PLANTED if fault.row == "F4")
    assert run(fault.collector, fault.script, setup=Setup(group_size=4)).verdict == "lossless"


# --- each in the nightly matrix -----------------------------------------------------------------


@pytest.mark.parametrize("fault", CAUGHT)
def test_the_nightly_matrix_catches_it(fault: Planted, record_property) -> None:
    caught_by = next((t.name for t in to_be_played(fault) if is_caught(play(fault, t))), "")
    record_property("planted_fault", [fault.row, caught_by])
    assert caught_by == fault.caught_by


def to_be_played(fault: Planted) -> Iterator[NamedTimeline]:
    if EVERYTHING:
        yield from NIGHTLY.values()
    else:
        yield from matrix("smoke")
        if fault.caught_by in NIGHTLY:
            yield NIGHTLY[fault.caught_by]


def is_caught(report: AuditReport) -> bool:
    """Whether it is said what is wrong: that nothing was shown is no catch."""
    return not report.passed and report.verdict != "undetermined"


@pytest.mark.parametrize("fault", RIGHT)
@pytest.mark.parametrize("timeline", matrix("smoke"), ids=lambda timeline: timeline.name)
def test_what_is_dropped_with_a_word_is_no_fault(fault: Planted, timeline) -> None:
    assert play(fault, timeline).passed


@pytest.mark.parametrize("collector", [Small, Rewinding, Threaded, InOrder, OwnLoader, InBatches])
def test_what_the_faults_vary_is_right(collector: type[Collector]) -> None:
    """So it is the fault that is caught, and nothing else."""
    every = 1 if EVERYTHING else 29
    for timeline in list(NIGHTLY.values())[::every]:
        report = run(collector, timeline)
        assert report.passed, report


# --- the list -----------------------------------------------------------------------------------


def test_every_fault_is_listed_once_and_told_in_full() -> None:
    rows = [fault.row for fault in PLANTED]
    assert len(set(rows)) == len(rows)
    assert not OUT_OF_SCOPE.keys() & set(rows)
    for fault in PLANTED:
        assert fault.because
        assert fault.collector.__doc__
        assert fault.verdict == "lossless" or fault.caught_by
        told = {n for kind in ("skipped", "duplicated", "starved") for n in fault.ordinals()[kind]}
        assert told == {n for which in fault.why.values() for n in numbers(which)}


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_every_fault_names_where_it_was_seen(module) -> None:
    for fault in PLANTED:
        if fault.collector.__module__ == module.__name__:
            doc = fault.collector.__doc__ or ""
            assert re.search(r"https://github\.com/\S+/(issues|pull)/\d+|Seen", doc), fault.row
