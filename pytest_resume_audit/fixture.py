"""What a test with the ``resume_audit`` marker is handed: it plays the test's timeline."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import get_args

import pytest

from pytest_resume_audit.adapters.loader import LoaderAudit, collector_of
from pytest_resume_audit.assertions import AuditFailed
from pytest_resume_audit.conductor import DEADLINE, run
from pytest_resume_audit.control import LifeEnded
from pytest_resume_audit.lives.kinds import missing, not_here
from pytest_resume_audit.marker import NO_MARKER, Case, wrong_with
from pytest_resume_audit.replay import replay
from pytest_resume_audit.reports.drawing import drawing
from pytest_resume_audit.reports.text import render
from pytest_resume_audit.rig import Rig
from pytest_resume_audit.setup import Setup
from pytest_resume_audit.style import Make
from pytest_resume_audit.verdict import AuditReport, Ordinals, Verdict

EXPECTABLE = tuple(verdict for verdict in get_args(Verdict) if verdict != "undetermined")
"""Verdicts that a test may expect: undetermined never passes."""

CALLED_TWICE = "resume_audit() was called before in this test: one test is one audit"
NOT_CALLED = "{test} passed and has audited nothing: it has to call resume_audit()"
TWO_COLLECTORS = "the marker has a collector already, so resume_audit() takes none"
NO_COLLECTOR = (
    "no collector: give one to the marker, @pytest.mark.resume_audit(MyCollector), or "
    "to the call, resume_audit(make_collector)"
)
NOT_EXPECTABLE = "resume_audit(expect={expect!r}): allowed are " + ", ".join(EXPECTABLE)

_A_WHILE = 5.0
"""Seconds that a thread gets to end when its life is over: it has only to leave its call."""


class ResumeAudit:
    """Plays the timeline of one test, on the collector of its marker or one handed over.

    It is what the fixture ``resume_audit`` gives to a test.

    Args:
        request: of the test.

    Attributes:
        report: of the run; None before, and again once the session has taken it.
        expect: the verdict that the test expects; None: what the timeline demands.

    Example:
        .. code-block:: python

            @pytest.mark.resume_audit(MyCollector)
            def test_nothing_is_lost(resume_audit: ResumeAudit):
                report = resume_audit()
                assert report.regenerated == []
    """

    def __init__(self, request: pytest.FixtureRequest) -> None:
        case = getattr(request, "param", None)
        if not isinstance(case, Case):
            pytest.fail(NO_MARKER, pytrace=False)
        self._case = case
        self._item: pytest.Item = request.node
        self._called = False
        self.report: AuditReport | None = None
        self.expect: Verdict | None = None

    def __repr__(self) -> str:
        return f"<resume_audit of {self._case.id}>"

    def __call__(
        self, collector: Make | LoaderAudit | None = None, *, expect: Verdict | None = None
    ) -> AuditReport:
        """Play the timeline, and judge the run. Each test does it once.

        Args:
            collector: a class, or anything that makes a collector from a rig, or the audit of a
                loader alone; for a marker without one.
            expect: the verdict that the run has to come to, for a test of a known fault. By
                default the run has to meet the timeline's demand.

        Returns:
            The report.

        Raises:
            AuditFailed: when the run is not as it has to be. The message draws it, and ends in
                the command that plays it again.
        """
        __tracebackhide__ = True
        if self._called:
            pytest.fail(CALLED_TWICE)
        self._called = True
        make = self._maker(collector)
        if expect is not None and expect not in EXPECTABLE:
            pytest.fail(NOT_EXPECTABLE.format(expect=expect))
        self.expect = expect
        case = self._case
        report = self.report = run(
            make,
            case.timeline,
            setup=case.setup,
            deadline=DEADLINE if case.deadline is None else case.deadline,
            life=case.life,
        )
        if not (report.passed if expect is None else report.verdict == expect):
            raise AuditFailed(self._message(report, expect), report)
        if report.unreached is not None and report.verdict == "lossless":
            pytest.skip(report.unreached)
        return report

    def check_called(self) -> None:
        """Fail the test if it has not called this."""
        if not self._called:
            pytest.fail(NOT_CALLED.format(test=self._item.name), pytrace=False)

    def _maker(self, collector: Make | LoaderAudit | None) -> Make:
        __tracebackhide__ = True
        case = self._case
        if collector is not None and case.collector is not None:
            pytest.fail(TWO_COLLECTORS)
        make = case.collector if collector is None else collector_of(collector)
        if make is None:
            pytest.fail(NO_COLLECTOR)
        wrong = not_here(case.life) or missing(case.life) or wrong_with(make, case.life)
        if wrong is not None:
            pytest.fail(wrong)
        return make

    def _message(self, report: AuditReport, expect: Verdict | None) -> str:
        config = self._item.config
        paragraphs = [
            render(report, color=_has_colour(config), width=_width(config)),
            f"replay: {replay(self._item, self._case)}",
        ]
        if expect is not None:
            paragraphs.insert(0, f"expected {expect}, found {report.verdict}")
        return "\n\n".join(paragraphs)


@contextmanager
def rig_of_one_test(setup: Setup | None) -> Iterator[Rig]:
    """A rig whose life ends with a test.

    A thread that stands in a call into the rig then ends, and nothing is said of it. A coroutine
    is left as it is: the loop that it runs in may have other tests to run.

    Args:
        setup: the sizes; None: the usual ones.
    """
    rig = Rig(setup)
    control = rig._control
    report = threading.excepthook

    def report_others(args: threading.ExceptHookArgs) -> None:
        if not issubclass(args.exc_type, LifeEnded):
            report(args)

    threading.excepthook = report_others
    try:
        yield rig
    finally:
        with control.lock:
            control.waiters = [waiter for waiter in control.waiters if waiter.thread is not None]
            control.loops.clear()
            standing = {waiter.thread for waiter in control.waiters}
        control.end()
        for thread in threading.enumerate():
            if thread.native_id in standing:
                thread.join(_A_WHILE)
        threading.excepthook = report


def explained(
    config: pytest.Config,
    operand: object,
    assertion: str,
    explanations: list[Iterable[str]],
) -> list[Iterable[str]]:
    """Explain a failed assert on ordinals of a report by its run, drawn.

    Args:
        config: of pytest.
        operand: one side of the comparison.
        assertion: what was asserted.
        explanations: those of pytest and other plugins, of which pytest takes the first.

    Returns:
        One explanation: what was asserted, and the drawing right below it, as pytest cuts off
        the end of what is long. Its own lines are left out, unless ``-v`` asks for more.
    """
    if not isinstance(operand, Ordinals) or operand.report is None:
        return explanations
    own, *rest = next((found for lines in explanations if (found := [*lines])), [assertion])
    drawn = drawing(operand.report, width=_width(config)).splitlines()
    verbose = config.get_verbosity(config.VERBOSITY_ASSERTIONS) > 0
    return [[own, *drawn, *(rest if verbose or not drawn else [])]]


def _has_colour(config: pytest.Config) -> bool:
    return _has_terminal(config) and config.get_terminal_writer().hasmarkup


def _width(config: pytest.Config) -> int:
    """The columns that pytest leaves to a message."""
    width = config.get_terminal_writer().fullwidth if _has_terminal(config) else 80
    return width - len("E       ")


def _has_terminal(config: pytest.Config) -> bool:
    return config.pluginmanager.has_plugin("terminalreporter")
