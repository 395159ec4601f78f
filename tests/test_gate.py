"""The gate: a session in which too little was audited fails, whatever the reason."""

from __future__ import annotations

import pytest

from pytest_resume_audit.session import TOO_FEW

SOURCE = """
import pytest
from pytest_resume_audit import FrontierCollector, NamedTimeline

UNREACHED = NamedTimeline(
    name="unreached", purpose="", script="drain", by_position="drain", must_reach=(),
    may_reach=("saved",),
)

def test_other():
    pass

@pytest.mark.resume_audit(FrontierCollector, timelines=["clean", "mid-flight", UNREACHED])
def test_x(resume_audit):
    resume_audit()
"""
LINE = ("--resume-audit-require={}", "--resume-audit-require")
FILE = ("resume_audit_require={}", "resume_audit_require")


def said(option: str, least: int, found: int) -> str:
    return "failed: " + TOO_FEW.format(option=option, least=least, found=found)


@pytest.mark.parametrize("by_line", [True, False])
@pytest.mark.parametrize(
    ("least", "selected", "found"),
    [
        (1, (), 2),
        (2, (), 2),
        # What is unreached proves nothing.
        (3, (), 2),
        (2, ("-k", "mid"), 1),
        # A test that was renamed or taken out does not open the gate.
        (1, ("-k", "other"), 0),
        (1, ("-k", "nothing"), 0),
        (1, ("--ignore=test_it.py",), 0),
    ],
)
def test_fewer_than_required_fail(
    by_line: bool, least: int, selected: tuple[str, ...], found: int, pytester: pytest.Pytester
) -> None:
    pytester.makepyfile(test_it=SOURCE)
    option, name = LINE if by_line else FILE
    options = [option.format(least)] if by_line else ["-o", option.format(least)]
    result = pytester.runpytest(*options, *selected)
    enough = found >= least
    assert result.ret == (pytest.ExitCode.OK if enough else pytest.ExitCode.TESTS_FAILED)
    assert (said(name, least, found) in result.outlines) is not enough


def test_the_command_line_goes_before_the_file(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=SOURCE)
    options = ("--resume-audit-require=1", "-o", "resume_audit_require=50")
    assert pytester.runpytest(*options).ret == pytest.ExitCode.OK


def test_a_loss_counts_as_audited(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=SOURCE.replace("FrontierCollector", "LiveCursorCollector"))
    result = pytester.runpytest("--resume-audit-require=2")
    result.assert_outcomes(passed=2, failed=1, skipped=1)
    assert "failed: " not in result.stdout.str()


def test_what_has_failed_by_itself_keeps_its_status(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it="def test_x(:")
    result = pytester.runpytest("--resume-audit-require=2")
    assert result.ret == pytest.ExitCode.INTERRUPTED
    assert said("--resume-audit-require", 2, 0) in result.outlines


def test_nothing_is_required_where_nothing_is_run(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=SOURCE)
    options = ("--collect-only", "--resume-audit-require=50")
    assert pytester.runpytest(*options).ret == pytest.ExitCode.OK


def test_it_is_closed_without_a_terminal_too(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=SOURCE)
    options = ("-p", "no:terminal", "--resume-audit-require=50")
    assert pytester.runpytest(*options).ret == pytest.ExitCode.TESTS_FAILED


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--resume-audit-require=0",), "--resume-audit-require: 0 is no number of timelines abo"),
        (("--resume-audit-require=-1",), "--resume-audit-require: -1 is no number of timelines"),
        (("--resume-audit-require=x",), "invalid int value: 'x'"),
        (("-o", "resume_audit_require=0"), "resume_audit_require: 0 is no number of timelines"),
        (("-o", "resume_audit_require=x"), "resume_audit_require: invalid literal for int()"),
    ],
)
def test_wrong_options(options: tuple[str, ...], said: str, pytester: pytest.Pytester) -> None:
    result = pytester.runpytest(*options)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert said in result.stderr.str()
    assert "Traceback" not in result.stderr.str() + result.stdout.str()


def test_workers_are_counted_together(pytester: pytest.Pytester) -> None:
    pytest.importorskip("xdist", reason="pytest-xdist is not installed")
    pytester.makepyfile(test_it=SOURCE)
    result = pytester.runpytest_subprocess("-n2", "--resume-audit-require=2")
    assert result.ret == pytest.ExitCode.OK
    result = pytester.runpytest_subprocess("-n2", "-k", "other", "--resume-audit-require=2")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert said("--resume-audit-require", 2, 0) in result.outlines
