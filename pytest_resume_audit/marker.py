"""The arguments of the ``resume_audit`` marker, checked when tests are collected."""

from __future__ import annotations

import difflib
import inspect
import math
import re
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import pytest

from pytest_resume_audit.catalogue import NAMED, NamedTimeline, matrix
from pytest_resume_audit.collector import Collector, SelfDrivenCollector
from pytest_resume_audit.rig import Rig
from pytest_resume_audit.setup import Setup
from pytest_resume_audit.timeline import Timeline, TimelineError

AnyCollector = Collector | SelfDrivenCollector
Make = Callable[[Rig], AnyCollector]

MATRICES = ("smoke",)
LIVES = ("local",)
ARGUMENTS = ("collector", "timelines", "setup", "life", "deadline")
STEPS = (
    "hand_out",
    "finish",
    "fail",
    "train",
    "save",
    "crash",
    "stop",
    "restart",
    "downgrade",
    "drain",
)
CUSTOM = "custom"

NO_FIXTURE = (
    "the test has a resume_audit marker, and does not take the fixture: add `resume_audit` to its "
    "arguments, and call it. A method of a unittest.TestCase can't: write a function"
)
NO_MARKER = (
    "the fixture `resume_audit` needs a marker on the test, its class or its module: "
    "@pytest.mark.resume_audit(collector=MyCollector)"
)
MANY_MARKERS = "the test has {count} resume_audit markers, its class and module included: keep one"
SWALLOWED = (
    "is no test any more: pytest takes the only argument of a marker, if it is a class or a "
    "function, for what is marked. Name it: @pytest.mark.resume_audit(collector={name})"
)
NOTHING_LEFT = (
    "no timeline is left: each one needs a legacy checkpoint, and {name} does not override "
    "downgrade, which writes one"
)


class MarkerError(pytest.UsageError, pytest.Collector.CollectError):
    """A marker that can't be: told without a traceback, as there is nothing to see in one."""


class ArgumentError(ValueError):
    """What is wrong with an argument, without the place where it stands."""


@dataclass(frozen=True)
class Case:
    """What one test is to play.

    Args:
        id: of the test, in brackets behind its name.
        timeline: the timeline.
        collector: what makes a collector; None: the test hands it over.
        setup: the sizes, None for the usual ones.
        life: the kind of life.
        deadline: seconds without progress, None for the usual ones.
        overridden: whether the timeline is that of the command line.
    """

    id: str
    timeline: Timeline | NamedTimeline
    collector: Make | None
    setup: Setup | None
    life: str
    deadline: float | None
    overridden: bool


@dataclass(frozen=True)
class Override:
    """What the command line and the configuration file say in the place of markers.

    Args:
        timelines: to play on every marked test, by id; None: those of its marker.
        deadline: for tests whose marker has none.
    """

    timelines: Mapping[str, Timeline | NamedTimeline] | None = None
    deadline: float | None = None


def override(timeline: str | None, deadline: float | None, configured: float | None) -> Override:
    """Check the options.

    Args:
        timeline: of the command line.
        deadline: of the command line.
        configured: the deadline of the configuration file.

    Raises:
        pytest.UsageError: for one that can't be.
    """
    timelines = None
    try:
        if timeline is not None:
            one = _one_timeline(timeline, matrices=())
            timelines = {one.name if isinstance(one, NamedTimeline) else CUSTOM: one}
    except ArgumentError as error:
        raise pytest.UsageError(f"--resume-audit-timeline: {error}") from None
    try:
        checked = _deadline(configured if deadline is None else deadline)
    except ArgumentError as error:
        option = "resume_audit_deadline" if deadline is None else "--resume-audit-deadline"
        raise pytest.UsageError(f"{option}: {error}") from None
    return Override(timelines, checked)


def cases(
    metafunc: pytest.Metafunc, marks: Sequence[pytest.Mark], given: Override | None
) -> list[Case]:
    """Check the marker of a test, and choose what the test is to play.

    Args:
        metafunc: the test.
        marks: every resume_audit marker that it has.
        given: by the command line and the configuration file.

    Returns:
        One case a timeline; never none.

    Raises:
        MarkerError: for a marker that can't be, saying where it is and what can.
    """
    given = given or Override()
    try:
        if len(marks) > 1:
            raise ArgumentError(MANY_MARKERS.format(count=len(marks)))
        if "resume_audit" not in metafunc.fixturenames:
            raise ArgumentError(NO_FIXTURE)
        arguments = _arguments(marks[0])
        collector, life = arguments.get("collector"), _life(arguments.get("life", "local"))
        if collector is not None:
            check_collector(collector, life)
        setup = _setup(arguments.get("setup"))
        deadline = _deadline(arguments.get("deadline"))
        timelines = _timelines(arguments.get("timelines", "smoke"), setup)
        able = [id for id, it in timelines.items() if not (_is_legacy(it, setup) and lacks_downgrade(collector))]
        if not able:
            raise ArgumentError(NOTHING_LEFT.format(name=name_of(collector)))
    except ArgumentError as error:
        raise MarkerError(f"{_where(metafunc.definition)}: {error}") from None
    ...
