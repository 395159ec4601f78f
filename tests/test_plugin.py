"""The plugin in whole pytest runs: what a user sees of an audit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_resume_audit.fixture import (
    CALLED_TWICE,
    EXPECTABLE,
    NO_COLLECTOR,
    NOT_CALLED,
    NOT_EXPECTABLE,
    TWO_COLLECTORS,
)
from pytest_resume_audit.marker import NO_MARKER

HEADLINE = "4 of 16 prompts skipped: 5, 8, 9, 11"
CHART = "result                 -----S--SS-S----"
OLD_WAY = """
import pytest
from pytest_resume_audit import LiveCursorCollector

@pytest.mark.resume_audit(collector=LiveCursorCollector, timelines="mid-flight")
def test_x(resume_audit):
    resume_audit()
"""
RIGHT_WAY = OLD_WAY.replace("LiveCursorCollector", "FrontierCollector")
PACKAGE = "pytest_resume_audit"


def replays(result: pytest.RunResult) -> list[str]:
    """The commands that the failures of a run end with."""
    return [
        line.partition("replay: ")[2]
        for line in result.outlines
        if line.startswith("E ") and "replay: " in line
    ]


# --- the audit ----------------------------------------------------------------------------------


def test_each_named_timeline_is_a_test(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(RIGHT_WAY.replace(', timelines="mid-flight"', ""))
    result = pytester.runpytest_subprocess("-v", "-W", "error")
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines_random(
        ["*::test_x[[]mid-flight[]] PASSED*", "*::test_x[[]legacy-checkpoint[]] PASSED*"]
    )


def test_a_loss_is_drawn_at_the_line_of_the_user(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=OLD_WAY)
    result = pytester.runpytest()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            ">       resume_audit()",
            f"E       AuditFailed: {HEADLINE}",
            f"E       {CHART}",
            'E       replay: pytest "test_it.py::test_x[[]mid-flight[]]"',
            "",
            "test_it.py:6: AuditFailed",
            "FAILED test_it.py::test_x[[]mid-flight[]] - AuditFailed: 4 of 16 prompts*",
        ]
    )
    assert f"{PACKAGE}{os.sep}" not in result.stdout.str()


@pytest.mark.parametrize("style", ["long", "short", "line"])
def test_no_line_of_a_traceback_is_ours(style: str, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=OLD_WAY)
    result = pytester.runpytest(f"--tb={style}", "--showlocals")
    result.assert_outcomes(failed=1)
    assert f"{PACKAGE}{os.sep}" not in result.stdout.str()


def test_the_report_is_returned(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        RIGHT_WAY.replace(
            "    resume_audit()",
            "    report = resume_audit()\n"
            "    assert (report.name, report.verdict) == ('mid-flight', 'lossless')\n"
            "    assert report.skipped == []",
        )
    )
    pytester.runpytest().assert_outcomes(passed=1)


def test_a_failure_has_the_report(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        OLD_WAY.replace(
            "    resume_audit()",
            "    with pytest.raises(AssertionError) as failure:\n"
            "        resume_audit()\n"
            "    assert failure.value.report.skipped == [5, 8, 9, 11]",
        )
    )
    pytester.runpytest().assert_outcomes(passed=1)


def test_sizes_and_deadline_reach_the_audit(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        """
        import pytest
        import pytest_resume_audit.fixture as fixture

        @pytest.fixture(autouse=True)
        def deadline(monkeypatch, request):
            def run(*args, deadline, **kwargs):
                print(f"<{request.node.name} has {deadline:g} s>")
                return audit(*args, deadline=deadline, **kwargs)

            audit = fixture.run
            monkeypatch.setattr(fixture, "run", run)
        """
    )
    pytester.makepyfile(
        """
        import pytest
        from pytest_resume_audit import FrontierCollector, Setup

        @pytest.mark.resume_audit(
            collector=FrontierCollector, timelines="clean", setup=Setup(prompts=24), deadline=7
        )
        def test_own(resume_audit):
            assert resume_audit().setup == Setup(prompts=24)

        @pytest.mark.resume_audit(collector=FrontierCollector, timelines="clean")
        def test_usual(resume_audit):
            assert resume_audit().setup == Setup()
        """
    )
    for options, usual in (
        ((), 30),
        (("-o", "resume_audit_deadline=12.5"), 12.5),
        (("-o", "resume_audit_deadline=12.5", "--resume-audit-deadline=3"), 3),
    ):
        result = pytester.runpytest("-s", *options)
        result.assert_outcomes(passed=2)
        output = result.stdout.str()
        assert "<test_own[clean] has 7 s>" in output
        assert f"<test_usual[clean] has {usual} s>" in output


# --- what is expected ---------------------------------------------------------------------------


def expecting(expect: str, collector: str = "LiveCursorCollector", name: str = "mid-flight") -> str:
    source = OLD_WAY.replace("LiveCursorCollector", collector).replace("mid-flight", name)
    return source.replace("resume_audit()", f"resume_audit(expect={expect})")


@pytest.mark.parametrize(
    ("expect", "collector"),
    [("'lossy'", "LiveCursorCollector"), ("'lossless'", "FrontierCollector")],
)
def test_the_expected_verdict_passes(
    expect: str, collector: str, pytester: pytest.Pytester
) -> None:
    pytester.makepyfile(expecting(expect, collector))
    pytester.runpytest().assert_outcomes(passed=1)


def test_a_loss_that_is_expected_and_does_not_show_fails(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=expecting("'lossy'", name="clean"))
    result = pytester.runpytest()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "E       AuditFailed: expected lossy, found lossless",
            "E       lossless: 16 of 16 prompts trained once",
            "E       result*--*",
            'E       replay: pytest "test_it.py::test_x[[]clean[]]"',
        ]
    )


def test_another_verdict_than_the_expected_one_fails(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(expecting("'refused'"))
    result = pytester.runpytest()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["E       AuditFailed: expected refused, found lossy", f"E       {HEADLINE}"]
    )


@pytest.mark.parametrize("expect", ["undetermined", "loss", "", True])
def test_only_a_verdict_that_proves_something_can_be_expected(
    expect: object, pytester: pytest.Pytester
) -> None:
    assert "undetermined" not in EXPECTABLE
    pytester.makepyfile(expecting(repr(expect)))
    result = pytester.runpytest()
    result.assert_outcomes(failed=1)
    assert f"Failed: {NOT_EXPECTABLE.format(expect=expect)}" in result.stdout.str()


OWN = """
import pytest
from pytest_resume_audit import FrontierCollector, LiveCursorCollector, NamedTimeline

class Careful(FrontierCollector):
    refuses = (RuntimeError,)

    def restore(self, checkpoint, *, load_replay_buffer):
        raise RuntimeError("other data")

class Broken(Careful):
    refuses = ()

def own(script="hand_out 12; finish 0-3; train; save; crash; restart", must_reach=(), **kwargs):
    return NamedTimeline(
        name="own", purpose="", script=script, by_position=script, must_reach=must_reach, **kwargs
    )

@pytest.mark.resume_audit(collector={collector}, timelines={timeline})
def test_x(resume_audit):
    resume_audit({call})
"""


@pytest.mark.parametrize(
    ("collector", "timeline", "call", "outcome", "said"),
    [
        # Unreached: skipped with the reason, when the demand is met.
        ("FrontierCollector", "own('drain', may_reach=('saved',))", "", "skipped", "saved"),
        (
            "FrontierCollector",
            "own('drain', may_reach=('saved',))",
            "expect='lossless'",
            "skipped",
            "saved",
        ),
        (
            "LiveCursorCollector",
            "own(may_reach=('rolled back trained prompts',))",
            "",
            "failed",
            "prompts skipped",
        ),
        (
            "LiveCursorCollector",
            "own(may_reach=('rolled back trained prompts',))",
            "expect='lossy'",
            "passed",
            "",
        ),
        # Undetermined never passes.
        ("FrontierCollector", "own('drain', ('saved',))", "", "failed", "undetermined: "),
        (
            "FrontierCollector",
            "own('drain', ('saved',))",
            "expect='lossless'",
            "failed",
            "expected lossless, found undetermined",
        ),
        # A refusal is as good as no loss only where the timeline says so.
        ("Careful", "own(demand='lossless or refused')", "", "passed", ""),
        ("Careful", "own()", "", "failed", "refused to resume"),
        ("Careful", "own()", "expect='refused'", "passed", ""),
        (
            "Careful",
            "own(demand='lossless or refused')",
            "expect='lossless'",
            "failed",
            "expected lossless, found refused",
        ),
        ("Broken", "own()", "", "failed", "RuntimeError: other data"),
        ("Broken", "own()", "expect='error'", "passed", ""),
    ],
)
def test_outcomes(
    collector: str,
    timeline: str,
    call: str,
    outcome: str,
    said: str,
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(test_it=OWN.format(collector=collector, timeline=timeline, call=call))
    result = pytester.runpytest("-rs")
    result.assert_outcomes(**{outcome: 1})
    assert said in result.stdout.str()
    if outcome == "skipped":
        result.stdout.fnmatch_lines(["SKIPPED [[]1[]] test_it.py:*"])


# --- how it is called ---------------------------------------------------------------------------


def called(pytester: pytest.Pytester, marker: str, *lines: str) -> pytest.RunResult:
    body = "\n    ".join(lines)
    pytester.makepyfile(
        test_it=f"""
import pytest
from pytest_resume_audit import FrontierCollector

class NoDowngrade(FrontierCollector):
    from pytest_resume_audit import Collector
    downgrade = Collector.downgrade

{marker}
def test_x(resume_audit):
    {body}
"""
    )
    return pytester.runpytest("-rs", "-p", "no:randomly")


WITHOUT = '@pytest.mark.resume_audit(timelines="clean")'
WITH = '@pytest.mark.resume_audit(collector=FrontierCollector, timelines="clean")'


@pytest.mark.parametrize(
    "collector",
    ["FrontierCollector", "lambda rig: FrontierCollector(rig)", "collector=NoDowngrade"],
)
def test_a_collector_may_be_handed_over(collector: str, pytester: pytest.Pytester) -> None:
    called(pytester, WITHOUT, f"resume_audit({collector})").assert_outcomes(passed=1)


@pytest.mark.parametrize(
    ("marker", "lines", "said"),
    [
        (WITH, ["resume_audit()", "resume_audit()"], CALLED_TWICE),
        (WITH, ["resume_audit(FrontierCollector)"], TWO_COLLECTORS),
        (WITHOUT, ["resume_audit()"], NO_COLLECTOR),
        (WITHOUT, ["resume_audit(5)"], "5 is no collector: allowed are"),
        (WITHOUT, ["resume_audit(dict)"], "the class dict is no collector"),
        (WITHOUT, ["resume_audit(print, expect='x')"], NOT_EXPECTABLE.format(expect="x")),
        (WITHOUT, ["resume_audit(lambda: None)"], "test_x.<locals>.<lambda> can't be called"),
    ],
)
def test_a_wrong_call_fails_at_the_line_of_the_user(
    marker: str, lines: list[str], said: str, pytester: pytest.Pytester
) -> None:
    result = called(pytester, marker, *lines)
    result.assert_outcomes(failed=1)
    output = result.stdout.str()
    assert f"E       Failed: {said}" in output
    assert f">       {lines[-1]}" in output
    assert f"{PACKAGE}{os.sep}" not in output


def test_a_call_that_failed_was_a_call(pytester: pytest.Pytester) -> None:
    source = OLD_WAY.replace(
        "    resume_audit()",
        "    with pytest.raises(AssertionError):\n        resume_audit()\n    resume_audit()",
    )
    pytester.makepyfile(source)
    result = pytester.runpytest()
    result.assert_outcomes(failed=1)
    assert f"Failed: {CALLED_TWICE}" in result.stdout.str()


def test_no_call_at_all_fails_in_the_test_itself(pytester: pytest.Pytester) -> None:
    result = called(pytester, WITH, "pass")
    result.assert_outcomes(failed=1, errors=0)
    assert result.outlines.count(NOT_CALLED.format(test="test_x[clean]")) == 1
    assert "test_plugin" not in result.stdout.str()


@pytest.mark.parametrize(
    ("line", "outcome"),
    [
        ("pytest.skip('not today')", "skipped"),
        ("pytest.xfail('known')", "xfailed"),
    ],
)
def test_a_test_that_ends_before_its_call_is_left_alone(
    line: str, outcome: str, pytester: pytest.Pytester
) -> None:
    called(pytester, WITH, line).assert_outcomes(**{outcome: 1})


def test_a_test_that_fails_without_a_call_has_its_own_failure(pytester: pytest.Pytester) -> None:
    result = called(pytester, WITH, "assert 1 == 2")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E       assert 1 == 2"])
    assert "audited nothing" not in result.stdout.str()


def test_a_fixture_without_a_marker_is_an_error_of_the_setup(pytester: pytest.Pytester) -> None:
    result = called(pytester, "", "resume_audit()")
    result.assert_outcomes(errors=1)
    assert NO_MARKER in result.outlines
    assert f"{PACKAGE}{os.sep}" not in result.stdout.str()


def test_what_a_factory_makes_may_have_no_legacy_checkpoints(pytester: pytest.Pytester) -> None:
    marker = '@pytest.mark.resume_audit(timelines="legacy-checkpoint")'
    result = called(pytester, marker, "resume_audit(lambda rig: NoDowngrade(rig))")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED * test_it.py:*: *downgrade*"])


# --- playing a failure again --------------------------------------------------------------------


def test_the_replay_plays_the_same_test_again(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_it="""
        import pytest
        from pytest_resume_audit import FrontierCollector, LiveCursorCollector

        class TestOld:
            @pytest.mark.parametrize("word", ["a b", '"', "$HOME", "`id`", "it's", "a\\\\b", "!1"])
            @pytest.mark.resume_audit(timelines=["mid-flight", "straggler"])
            def test_x(self, word, resume_audit):
                resume_audit(LiveCursorCollector)
        """
    )
    commands = replays(pytester.runpytest("-p", "no:randomly"))
    assert len(commands) == 14
    assert commands[0] == 'pytest "test_it.py::TestOld::test_x[a b-mid-flight]"'
    words = [word for command in commands for word in _shell_words(command)[1:]]
    again = pytester.runpytest("-p", "no:randomly", *words)
    again.assert_outcomes(failed=14)
    assert replays(again) == commands


def _shell_words(command: str) -> list[str]:
    script = 'for word in "$@"; do printf "%s\\0" "$word"; done'
    shown = subprocess.run(
        ["sh", "-c", f"set -- {command}; {script}"], check=True, capture_output=True, text=True
    )
    return shown.stdout.split("\0")[:-1]


def test_the_replay_is_for_the_directory_that_pytest_was_started_in(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makeini("[pytest]")
    folder = pytester.mkpydir("checks")
    folder.joinpath("test_it.py").write_text(OLD_WAY)
    assert replays(pytester.runpytest()) == ['pytest "checks/test_it.py::test_x[mid-flight]"']
    monkeypatch.chdir(folder)
    assert replays(pytester.runpytest()) == ['pytest "test_it.py::test_x[mid-flight]"']
    monkeypatch.chdir(pytester.mkdir("elsewhere"))
    expected = 'pytest "../checks/test_it.py::test_x[mid-flight]"'
    assert replays(pytester.runpytest("../checks")) == [expected]


def test_one_timeline_for_every_test(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_it=OLD_WAY.replace("mid-flight", "smoke")
        + RIGHT_WAY.replace("test_x", "test_y").replace("mid-flight", "clean")
    )
    script = "hand_out 8; finish 0-3; train; save; crash; restart"
    result = pytester.runpytest("--resume-audit-timeline", script, "-v")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines_random(
        ["*::test_x[[]custom[]] FAILED*", "*::test_y[[]custom[]] PASSED*"]
    )
    expected = f'pytest --resume-audit-timeline "{script}; drain" "test_it.py::test_x[custom]"'
    assert replays(result) == [expected]
    again = pytester.runpytest(*_shell_words(expected)[1:])
    again.assert_outcomes(failed=1)
    assert replays(again) == [expected]


def test_one_named_timeline_for_every_test(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=OLD_WAY.replace("mid-flight", "clean"))
    result = pytester.runpytest("--resume-audit-timeline=straggler")
    result.assert_outcomes(failed=1)
    assert replays(result) == [
        'pytest --resume-audit-timeline "straggler" "test_it.py::test_x[straggler]"'
    ]


def test_one_legacy_timeline_skips_what_has_none(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        RIGHT_WAY
        + """
from pytest_resume_audit import Collector

class NoDowngrade(FrontierCollector):
    downgrade = Collector.downgrade

@pytest.mark.resume_audit(collector=NoDowngrade)
def test_y(resume_audit):
    resume_audit()
"""
    )
    result = pytester.runpytest("--resume-audit-timeline=legacy-checkpoint")
    result.assert_outcomes(passed=1, skipped=1)


# --- asserts on a report ------------------------------------------------------------------------


def asserting(pytester: pytest.Pytester, assertion: str, *options: str) -> list[str]:
    """The lines that explain a failed assert."""
    pytester.makepyfile(
        f"""
        from pytest_resume_audit import LiveCursorCollector, run

        def test_x():
            report = run(LiveCursorCollector, "mid-flight")
            assert {assertion}
        """
    )
    result = pytester.runpytest(*options)
    result.assert_outcomes(failed=1)
    return [line[8:] for line in result.outlines if line.startswith("E  ")]


@pytest.mark.parametrize(
    ("assertion", "said"),
    [
        ("report.skipped == []", "[5, 8, 9, 11] == []"),
        ("[5] == report.skipped", "[5] == [5, 8, 9, 11]"),
        ("report.skipped != report.skipped", "[5, 8, 9, 11] != [5, 8, 9, 11]"),
        ("5 not in report.skipped", "5 not in [5, 8, 9, 11]"),
    ],
)
def test_an_assert_on_ordinals_shows_the_drawing(
    assertion: str, said: str, pytester: pytest.Pytester
) -> None:
    lines = asserting(pytester, assertion)
    assert lines[0].removeprefix("AssertionError: ") == f"assert {said}"
    assert f"  {CHART}" in lines


def test_an_assert_shows_what_pytest_says_too_when_it_is_asked_for(
    pytester: pytest.Pytester,
) -> None:
    more = "  At index 1 diff: 8 != 9"
    assert more not in asserting(pytester, "report.skipped == [5, 9]")
    lines = asserting(pytester, "report.skipped == [5, 9]", "-vv")
    assert lines.index(f"  {CHART}") < lines.index(more)


def test_other_asserts_are_left_alone(pytester: pytest.Pytester) -> None:
    from_pytest = ["assert [5] == [6]", "  ", "  At index 0 diff: 5 != 6"]
    assert asserting(pytester, "[5] == [6]")[:3] == from_pytest
    assert not any(CHART in line for line in asserting(pytester, "report.verdict == 'lossless'"))


def test_an_explanation_of_the_projects_own_comes_first(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        """
        def pytest_assertrepr_compare(op, left, right):
            return ["no prompts lost, please"]
        """
    )
    lines = asserting(pytester, "report.skipped == []")
    assert lines[0] == "AssertionError: assert no prompts lost, please"
    assert f"  {CHART}" in lines


# --- colours ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "coloured"),
    [
        (("--color=yes",), True),
        (("--color=no",), False),
        (("-p", "no:terminal"), False),
    ],
)
def test_the_drawing_is_coloured_as_the_terminal_is(
    options: tuple[str, ...], coloured: bool, pytester: pytest.Pytester
) -> None:
    pytester.makepyfile(
        OLD_WAY.replace(
            "    resume_audit()",
            "    with pytest.raises(AssertionError) as failure:\n"
            "        resume_audit()\n"
            f"    assert ('\\033[' in str(failure.value)) is {coloured}",
        )
    )
    assert pytester.runpytest(*options).ret == pytest.ExitCode.OK


# --- loading ------------------------------------------------------------------------------------

BY_CONFTEST = 'pytest_plugins = ["pytest_resume_audit.plugin"]'


WAYS = [
    (autoload, conftest, option)
    for autoload in (True, False)
    for conftest in (True, False)
    for option in ("resume_audit", "pytest_resume_audit.plugin", None)
    if autoload or conftest or option
]


@pytest.mark.parametrize(("autoload", "conftest", "option"), WAYS)
def test_every_way_to_load_it_and_all_of_them_at_once(
    autoload: bool,
    conftest: bool,
    option: str | None,
    pytester: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not autoload:
        monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    if conftest:
        pytester.makeconftest(BY_CONFTEST)
    pytester.makepyfile(RIGHT_WAY)
    options = ["-p", option] if option else []
    result = pytester.runpytest_subprocess(
        "--strict-markers", "--resume-audit-deadline=5", "-W", "error", *options
    )
    result.assert_outcomes(passed=1)


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("--help", "--resume-audit-deadline"),
        ("--markers", "@pytest.mark.resume_audit"),
        ("--fixtures", "resume_rig"),
    ],
)
def test_nothing_of_it_is_there_when_it_is_switched_off(
    question: str, answer: str, pytester: pytest.Pytester
) -> None:
    assert answer in pytester.runpytest(question).stdout.str()
    assert answer not in pytester.runpytest(question, "-p", "no:resume_audit").stdout.str()


def test_it_is_listed_among_plugins_options_and_markers(pytester: pytest.Pytester) -> None:
    pytester.runpytest("--markers").stdout.fnmatch_lines(
        ["@pytest.mark.resume_audit(collector=None, [*], timelines='smoke', *): play each*"]
    )
    pytester.runpytest("--help").stdout.fnmatch_lines(
        [
            "resume-audit:",
            "*--resume-audit-deadline=SECONDS",
            "*--resume-audit-timeline=TEXT",
            "*resume_audit_deadline (float):*",
        ]
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--resume-audit-deadline=0",), "ERROR: --resume-audit-deadline: 0.0 is no number of"),
        (("--resume-audit-deadline=soon",), "invalid float value: 'soon'"),
        (("-o", "resume_audit_deadline=-1"), "ERROR: resume_audit_deadline: -1.0 is no number"),
        (("-o", "resume_audit_deadline=soon"), "ERROR: resume_audit_deadline: could not convert"),
        (("--resume-audit-timeline=save; sav",), "    save; sav\n          ^^^"),
        (("--resume-audit-timeline=cleen",), "'cleen' is no name, did you mean 'clean'?"),
    ],
)
def test_a_wrong_option_ends_pytest_before_it_begins(
    options: tuple[str, ...], said: str, pytester: pytest.Pytester
) -> None:
    pytester.makepyfile(RIGHT_WAY)
    result = pytester.runpytest(*options)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert said in result.stderr.str()
    assert "Traceback" not in result.stderr.str() + result.stdout.str()


@pytest.mark.parametrize(
    "options",
    [
        ("--strict-markers", "--strict-config"),
        ("-p", "no:cacheprovider"),
        ("-p", "no:terminal"),
        ("-p", "no:assertion"),
        ("--import-mode=importlib",),
        ("--assert=plain",),
    ],
)
def test_it_gets_on_with_options_of_pytest(
    options: tuple[str, ...], pytester: pytest.Pytester
) -> None:
    pytester.makepyfile(RIGHT_WAY + OLD_WAY.replace("test_x", "test_y"))
    result = pytester.runpytest(*options, "--junitxml=junit.xml")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    junit = Path(pytester.path, "junit.xml").read_text()
    assert 'tests="2"' in junit
    assert 'failures="1"' in junit
    assert HEADLINE in junit


def test_it_gets_on_with_pytest_randomly(pytester: pytest.Pytester) -> None:
    pytest.importorskip("pytest_randomly")
    pytester.makepyfile(RIGHT_WAY.replace('"mid-flight"', '["clean", "idle-save", "mid-flight"]'))
    for seed in (1, 2):
        result = pytester.runpytest_subprocess("-p", "randomly", f"--randomly-seed={seed}")
        result.assert_outcomes(passed=3)


def test_it_gets_on_with_pytest_xdist(pytester: pytest.Pytester) -> None:
    pytest.importorskip("xdist", reason="pytest-xdist is not installed")
    pytester.makeini("[pytest]")
    folder = pytester.mkpydir("checks")
    source = OLD_WAY.replace('"mid-flight"', '["mid-flight", "clean", "drain"]')
    source = source.replace("@pytest", "@pytest.mark.xdist_group('one')\n@pytest", 1)
    folder.joinpath("test_it.py").write_text(source)
    script = "hand_out 8; finish 0-3; train; save; crash; restart"
    result = pytester.runpytest_subprocess("-n", "2", "--dist", "loadgroup")
    result.assert_outcomes(passed=2, failed=1)
    assert replays(result) == ['pytest "checks/test_it.py::test_x[mid-flight]"']
    assert "\033[" not in result.stdout.str()
    result = pytester.runpytest_subprocess("-n", "2", f"--resume-audit-timeline={script}")
    result.assert_outcomes(failed=1)
    expected = (
        f'pytest --resume-audit-timeline "{script}; drain" "checks/test_it.py::test_x[custom]"'
    )
    assert replays(result) == [expected]


# --- what it costs those who don't use it -------------------------------------------------------


def test_to_import_the_plugin_imports_nothing_else() -> None:
    script = (
        "import sys, pytest; before = {*sys.modules}; import pytest_resume_audit.plugin; "
        "print(*{*sys.modules} - before)"
    )
    shown = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True
    )
    assert set(shown.stdout.split()) == {PACKAGE, f"{PACKAGE}.plugin"}


def test_a_run_without_marked_tests_imports_nothing_else(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        f"""
        import sys

        import pytest

        @pytest.mark.parametrize("number", [1, 2])
        def test_x(number):
            with pytest.raises(AssertionError):
                assert [number] == []
            ours = {{name for name in sys.modules if name.partition(".")[0] == "{PACKAGE}"}}
            assert ours == {{"{PACKAGE}", "{PACKAGE}.plugin"}}
        """
    )
    pytester.runpytest_subprocess().assert_outcomes(passed=2)
