"""Which matrix a test plays: that of its marker, of the command line or of the file."""

from __future__ import annotations

import pytest

SMOKE = ["clean", "mid-flight"]
NIGHTLY = [*SMOKE, "g0", "g1", "g2", "g3", "g4", "g5"]
BY_LINE = ("--resume-audit-matrix=nightly",)
BY_FILE = ("-o", "resume_audit_matrix=nightly")

pytestmark = pytest.mark.usefixtures("nightly")


def marked(timelines: str | None, collector: str = "FrontierCollector") -> str:
    """A test whose marker has these timelines."""
    argument = "" if timelines is None else f", timelines={timelines}"
    return f"""
import pytest
from pytest_resume_audit import FrontierCollector, LiveCursorCollector

@pytest.mark.resume_audit({collector}{argument})
def test_x(resume_audit):
    resume_audit()
"""


@pytest.mark.parametrize(
    ("timelines", "options", "expected"),
    [
        (None, (), SMOKE),
        (None, BY_FILE, NIGHTLY),
        (None, BY_LINE, NIGHTLY),
        (None, (*BY_FILE, "--resume-audit-matrix=smoke"), SMOKE),
        ("'nightly'", (), NIGHTLY),
        # The file says what markers mean that name none; the command line is for all matrices.
        ("'smoke'", BY_FILE, SMOKE),
        ("'smoke'", BY_LINE, NIGHTLY),
        ("'nightly'", ("--resume-audit-matrix=smoke",), SMOKE),
        ("['mid-flight', 'smoke', 'drain']", (), ["mid-flight", "clean", "script-3c867321"]),
        (
            "['smoke', 'drain', 'nightly']",
            ("--resume-audit-matrix=smoke",),
            [*SMOKE, "script-3c867321"],
        ),
        # What a test has by itself is its own.
        ("'mid-flight'", BY_LINE, ["mid-flight"]),
        ("{'mine': 'drain'}", (*BY_LINE, *BY_FILE), ["mine"]),
        ("'nightly'", ("--resume-audit-timeline=straggler", *BY_LINE), ["straggler"]),
    ],
)
def test_precedence(
    timelines: str | None, options: tuple[str, ...], expected: list[str], pytester: pytest.Pytester
) -> None:
    pytester.makepyfile(test_it=marked(timelines))
    result = pytester.runpytest("--collect-only", "-q", "-p", "no:randomly", *options)
    found = [line for line in result.outlines if "::" in line]
    assert found == [f"test_it.py::test_x[{name}]" for name in expected]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            ("--resume-audit-matrix=nigtly",),
            "--resume-audit-matrix: 'nigtly' is no matrix, did you mean 'nightly'? allowed are "
            "smoke, nightly",
        ),
        (("--resume-audit-matrix=mid-flight",), "--resume-audit-matrix: 'mid-flight' is no matrix"),
        (("-o", "resume_audit_matrix=x"), "resume_audit_matrix: 'x' is no matrix: allowed are sm"),
    ],
)
def test_a_wrong_name(options: tuple[str, ...], said: str, pytester: pytest.Pytester) -> None:
    result = pytester.runpytest(*options)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert f"ERROR: {said}" in result.stderr.str()


@pytest.mark.parametrize(
    ("timelines", "options", "expected"),
    [
        (None, BY_LINE, 'pytest --resume-audit-matrix nightly "test_it.py::test_x[g0]"'),
        (None, BY_FILE, 'pytest --resume-audit-matrix nightly "test_it.py::test_x[g0]"'),
        ("'smoke'", BY_LINE, 'pytest --resume-audit-matrix nightly "test_it.py::test_x[g0]"'),
        ("'nightly'", (), 'pytest "test_it.py::test_x[g0]"'),
        ("'nightly'", BY_FILE, 'pytest "test_it.py::test_x[g0]"'),
    ],
)
def test_the_replay_chooses_the_same_matrix(
    timelines: str | None, options: tuple[str, ...], expected: str, pytester: pytest.Pytester
) -> None:
    pytester.makepyfile(test_it=marked(timelines, "LiveCursorCollector"))
    result = pytester.runpytest("-k", "g0", *options)
    result.assert_outcomes(failed=1, deselected=7)
    result.stdout.fnmatch_lines([f"*replay: {expected.replace('[', '[[]')}"])
    program, *words = expected.replace('"', "").split()
    assert program == "pytest"
    more = () if "--resume-audit-matrix" in words else options
    pytester.runpytest(*words, *more).assert_outcomes(failed=1)


def test_the_header_says_which_matrix_was_chosen(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=marked(None))
    assert "resume-audit: matrix nightly" in pytester.runpytest(*BY_LINE).outlines
    assert "resume-audit: " not in pytester.runpytest().stdout.str()
