"""The checks of a report: what passes, what fails, and what can't be known."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace

import pytest

from pytest_resume_audit import (
    AuditReport,
    FrontierCollector,
    LiveCursorCollector,
    assert_lossless,
    assert_no_duplicates,
    assert_no_skips,
    assert_skipped,
    run,
)
from pytest_resume_audit.assertions import AuditFailed
from pytest_resume_audit.verdict import WORST_LAST, Finding, Ordinals, Verdict

LOST = [5, 8, 9, 11]
CHART = "result                 -----S--SS-S----"
CHECKS: list[Callable[[AuditReport], None]] = [
    assert_lossless,
    assert_no_skips,
    assert_no_duplicates,
    lambda report: assert_skipped(report, []),
]


@pytest.fixture(scope="module")
def lossless() -> AuditReport:
    return run(FrontierCollector, "mid-flight")


@pytest.fixture(scope="module")
def lossy() -> AuditReport:
    return run(LiveCursorCollector, "mid-flight")


@pytest.mark.parametrize("check", CHECKS)
def test_a_lossless_report_passes_every_check(
    check: Callable[[AuditReport], None], lossless: AuditReport
) -> None:
    check(lossless)


def test_the_checks_of_a_loss_say_what_was_lost(lossy: AuditReport) -> None:
    with pytest.raises(AuditFailed) as lossless:
        assert_lossless(lossy)
    assert str(lossless.value).startswith("4 of 16 prompts skipped: 5, 8, 9, 11\n")
    with pytest.raises(AuditFailed) as skips:
        assert_no_skips(lossy)
    assert str(skips.value).startswith(
        "skipped: [5, 8, 9, 11], expected: []\nextra: [5, 8, 9, 11]\n"
    )
    for failure in (lossless, skips):
        assert CHART in str(failure.value)
        assert failure.value.report is lossy
    assert_no_duplicates(lossy)


@pytest.mark.parametrize("ordinals", [LOST, tuple(LOST), set(LOST), LOST[::-1]])
def test_assert_skipped_takes_the_exact_ordinals_in_any_order(
    ordinals: list[int], lossy: AuditReport
) -> None:
    assert_skipped(lossy, ordinals)


@pytest.mark.parametrize(
    ("ordinals", "said"),
    [
        ([5, 8, 9], "extra: [11]"),
        ([5, 8, 9, 11, 15, 12], "missing: [12, 15]"),
        ([9, 8, 5, 4], "missing: [4]\nextra: [11]"),
        ([], "extra: [5, 8, 9, 11]"),
    ],
)
def test_assert_skipped_says_what_is_missing_and_extra(
    ordinals: list[int], said: str, lossy: AuditReport
) -> None:
    with pytest.raises(AuditFailed) as failure:
        assert_skipped(lossy, ordinals)
    expected = f"skipped: {LOST}, expected: {sorted(ordinals)}\n{said}\n\n"
    assert str(failure.value).startswith(expected)
    assert CHART in str(failure.value)


def test_assert_no_duplicates_says_which(lossless: AuditReport) -> None:
    report = replace(lossless, duplicated=Ordinals([6, 4]))
    with pytest.raises(AuditFailed) as failure:
        assert_no_duplicates(report)
    assert str(failure.value).startswith("duplicated: [4, 6], expected: []\nextra: [4, 6]\n")
    assert_no_skips(report)


def test_what_a_timeline_excuses_is_skipped_all_the_same() -> None:
    report = run(FrontierCollector, "legacy-checkpoint")
    assert report.excused == report.skipped != []
    assert_lossless(report)
    with pytest.raises(AuditFailed):
        assert_no_skips(report)


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("verdict", WORST_LAST[1:-1])
@pytest.mark.parametrize("lossy_too", [False, True])
def test_what_cannot_be_known_never_passes(
    check: Callable[[AuditReport], None], verdict: Verdict, lossy_too: bool, lossless: AuditReport
) -> None:
    findings: tuple[Finding, ...] = (Finding(verdict, "the cause"),)
    if lossy_too:
        findings = (Finding("lossy", "too many in flight"), *findings)
    report = replace(lossless, verdict=findings[0].verdict, findings=findings)
    with pytest.raises(AuditFailed) as failure:
        check(report)
    assert "the cause" in str(failure.value)
    if check is not assert_lossless:
        assert "can't be known" in str(failure.value)


def test_a_refusal_is_not_lossless_though_its_timeline_allows_it(lossless: AuditReport) -> None:
    refused = replace(
        lossless,
        verdict="refused",
        demand="lossless or refused",
        findings=(Finding("refused", "refused to resume: ValueError: other data"),),
    )
    assert refused.passed
    with pytest.raises(AuditFailed):
        assert_lossless(refused)


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("value", [None, [], "lossless", AuditReport, {"skipped": []}])
def test_only_a_report_can_be_checked(check: Callable[[object], None], value: object) -> None:
    with pytest.raises(TypeError, match="takes an AuditReport, as run"):
        check(value)


@pytest.mark.parametrize("value", [5, None, "5 8", b"58", "", ["5"], [5.0], [True], [None], [[5]]])
def test_ordinals_are_whole_numbers(value: object, lossy: AuditReport) -> None:
    with pytest.raises(TypeError, match="ordinal"):
        assert_skipped(lossy, value)  # type: ignore[arg-type]


@pytest.mark.parametrize(("value", "said"), [([5, -1], "not -1"), ([5, 8, 5], "5 is given twice")])
def test_ordinals_are_places_in_the_stream(value: list[int], said: str, lossy: AuditReport) -> None:
    with pytest.raises(ValueError, match=said):
        assert_skipped(lossy, value)


def test_a_long_wrong_value_is_not_shown_whole(lossy: AuditReport) -> None:
    with pytest.raises(TypeError) as error:
        assert_skipped(lossy, "5 " * 1000)  # type: ignore[arg-type]
    assert len(str(error.value)) < 200


def test_a_failure_is_an_assertion_error_told_by_its_bare_name(lossy: AuditReport) -> None:
    failure = AuditFailed("message", lossy)
    assert isinstance(failure, AssertionError)
    assert f"{type(failure).__module__}.{type(failure).__name__}" == "builtins.AuditFailed"


def test_a_failure_survives_being_sent_to_another_process(lossy: AuditReport) -> None:
    again = pickle.loads(pickle.dumps(AuditFailed("message", lossy)))
    assert type(again) is AuditFailed
    assert str(again) == "message"
    assert again.report.skipped == LOST


def test_the_checks_need_no_pytest() -> None:
    script = (
        "import sys\n"
        "from pytest_resume_audit import LiveCursorCollector, assert_skipped, run\n"
        "assert_skipped(run(LiveCursorCollector, 'mid-flight'), [5, 8, 9, 11])\n"
        "sys.exit('pytest' in sys.modules or '_pytest' in sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_the_traceback_ends_in_the_line_of_the_user(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        from pytest_resume_audit import (
            LiveCursorCollector, assert_lossless, assert_no_skips, assert_skipped, run
        )

        report = run(LiveCursorCollector, "mid-flight")

        def test_lossless():
            assert_lossless(report)

        def test_no_skips():
            assert_no_skips(report)

        def test_skipped():
            assert_skipped(report, [5])

        def test_no_report():
            assert_skipped(5, [5])

        def test_no_ordinals():
            assert_skipped(report, ["5"])
        """
    )
    result = pytester.runpytest("--tb=short")
    result.assert_outcomes(failed=5)
    result.stdout.no_fnmatch_line("*assertions.py:*")
    result.stdout.fnmatch_lines_random(
        [
            "    assert_lossless(report)",
            "    assert_no_skips(report)",
            "    assert_skipped(report, [[]5[]])",
            "    assert_skipped(5, [[]5[]])",
            '    assert_skipped(report, [[]"5"[]])',
        ]
    )
