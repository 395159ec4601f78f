"""Checks of a report, for tests that run an audit by hand. They need no pytest."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable
from itertools import pairwise

from pytest_resume_audit.verdict import AuditReport, Finding


class AuditFailed(AssertionError):
    """A run is not what was asked for.

    Args:
        message: what was asked for, what came of it, and the drawing of the run.
        report: of the run.
    """

    # Told by its bare name: in a line of pytest's summary there is no room for a module.
    __module__ = "builtins"

    def __init__(self, message: str, report: AuditReport) -> None:
        super().__init__(message, report)
        self.report = report

    def __str__(self) -> str:
        return str(self.args[0])

    def __reduce__(self) -> tuple[object, ...]:
        return _failed, self.args


def assert_lossless(report: AuditReport) -> None:
    """Check that a run met its timeline's demand, without a loss.

    Args:
        report: of the run.

    Raises:
        AuditFailed: when its verdict is anything but ``"lossless"``, or when it did not come to
            what the timeline is for: a refusal is no loss, but nothing was proved by it either.

    Example:
        >>> from pytest_resume_audit import FrontierCollector, assert_lossless, run
        >>> assert_lossless(run(FrontierCollector, "mid-flight"))
    """
    __tracebackhide__ = True
    _check_report(report, "assert_lossless")
    if report.verdict != "lossless" or report.unreached is not None:
        raise _failed(str(report), report)


def assert_no_skips(report: AuditReport) -> None:
    """Check that no prompt was skipped; not even one that the timeline would excuse.

    Args:
        report: of the run.

    Raises:
        AuditFailed: when prompts were skipped, or the run doesn't tell.

    Example:
        >>> from pytest_resume_audit import FrontierCollector, assert_no_skips, run
        >>> assert_no_skips(run(FrontierCollector, "mid-flight"))
    """
    __tracebackhide__ = True
    _check_report(report, "assert_no_skips")
    _check_ordinals(report, "skipped", [])


def assert_no_duplicates(report: AuditReport) -> None:
    """Check that no prompt was trained twice; not even one that the timeline would excuse.

    Args:
        report: of the run.

    Raises:
        AuditFailed: when prompts were trained more than once, or the run doesn't tell.

    Example:
        >>> from pytest_resume_audit import LiveCursorCollector, assert_no_duplicates, run
        >>> assert_no_duplicates(run(LiveCursorCollector, "mid-flight"))
    """
    __tracebackhide__ = True
    _check_report(report, "assert_no_duplicates")
    _check_ordinals(report, "duplicated", [])


def assert_skipped(report: AuditReport, ordinals: Iterable[int]) -> None:
    """Check that exactly these prompts were skipped.

    Args:
        report: of the run.
        ordinals: their places in the stream of an uninterrupted run, in any order.

    Raises:
        AuditFailed: when others were skipped, or not all of these, or the run doesn't tell.
        TypeError: for anything but whole numbers.
        ValueError: for a number below 0, or one given twice.

    Example:
        >>> from pytest_resume_audit import LiveCursorCollector, assert_skipped, run
        >>> assert_skipped(run(LiveCursorCollector, "mid-flight"), [5, 8, 9, 11])
    """
    __tracebackhide__ = True
    _check_report(report, "assert_skipped")
    _check_ordinals(report, "skipped", _ordinals(ordinals))


def _check_report(report: object, asked: str) -> None:
    __tracebackhide__ = True
    if not isinstance(report, AuditReport):
        raise TypeError(
            f"{asked} takes an AuditReport, as run() returns it, not {reprlib.repr(report)}"
        )


def _check_ordinals(report: AuditReport, what: str, expected: list[int]) -> None:
    __tracebackhide__ = True
    unknown = _unknown(report)
    if unknown is not None:
        raise _failed(
            f"it can't be known what was {what}: {unknown.verdict}, {unknown.text}\n\n{report}",
            report,
        )
    found = set(getattr(report, what))
    missing, extra = sorted(set(expected) - found), sorted(found - set(expected))
    if missing or extra:
        lines = [f"{what}: {sorted(found)}, expected: {expected}"]
        lines += [f"missing: {missing}"] * bool(missing) + [f"extra: {extra}"] * bool(extra)
        raise _failed("\n".join([*lines, "", str(report)]), report)


def _unknown(report: AuditReport) -> Finding | None:
    """Why the final weights say nothing: there are none, or the run is not the one asked for.

    Such a run may be lossy as well, so it is looked for in all findings.
    """
    return next((f for f in report.findings if f.verdict not in ("lossless", "lossy")), None)


def _ordinals(ordinals: Iterable[int]) -> list[int]:
    __tracebackhide__ = True
    if isinstance(ordinals, str | bytes) or not isinstance(ordinals, Iterable):
        raise TypeError(
            f"assert_skipped takes ordinals such as [5, 8], not {reprlib.repr(ordinals)}"
        )
    expected = list(ordinals)
    for ordinal in expected:
        # Not isinstance: True is an int to it.
        if type(ordinal) is not int:
            raise TypeError(f"an ordinal is a whole number from 0, not {reprlib.repr(ordinal)}")
        if ordinal < 0:
            raise ValueError(f"an ordinal is a whole number from 0, not {ordinal}")
    expected.sort()
    twice = [one for one, two in pairwise(expected) if one == two]
    if twice:
        raise ValueError(f"ordinal {twice[0]} is given twice: a prompt is skipped once")
    return expected


def _failed(message: str, report: AuditReport) -> AuditFailed:
    return AuditFailed(message, report)
