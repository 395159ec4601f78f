"""The summary of a session: a row a test, the states reached, the shortest failing timelines."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from pytest_resume_audit.reports import json as as_json, markdown, summary_text
from pytest_resume_audit.states import STATES
from pytest_resume_audit.summary import (
    AUDITED,
    KEY_STATES,
    OUTCOMES,
    PROOF,
    PROVED_NOTHING,
    Outcome,
    Record,
    Summary,
)

SOURCE = """
import os
import pytest
from pytest_resume_audit import FrontierCollector, LiveCursorCollector

@pytest.mark.resume_audit(LiveCursorCollector, timelines=["idle-save", "mid-flight", "straggler"])
def test_old(resume_audit):
    resume_audit()

@pytest.mark.parametrize("word", ["a", "-"])
@pytest.mark.resume_audit(FrontierCollector, timelines=["clean", "mid-flight"])
def test_new(word, resume_audit):
    resume_audit()
"""


# --- rows ---------------------------------------------------------------------------------------


def record(name: str, test: str = "test_x", **fields: Any) -> Record:
    fields = {"of": 2, "matrix": "smoke", "timeline": "drain", "outcome": "lossless", **fields}
    return Record(node_id=f"{test}[{name}]", test=test, id=name, replay=f"pytest {name}", **fields)


def test_states_have_the_names_that_there_are() -> None:
    assert {*KEY_STATES, *PROOF} <= {*STATES}
    assert set(AUDITED) < set(OUTCOMES)


def test_a_row_counts_what_came_of_a_test() -> None:
    summary = Summary(
        [
            record("b", "test_y", outcome="died", failed=True),
            record("e", outcome="lossy", failed=True, skipped=[1, 2], duplicated=[3]),
            record("d", outcome="known", skipped=[4, 5, 6]),
            *(record(f"c{number}") for number in range(3)),
            *(record(f"n{number}", outcome="not run") for number in range(4)),
            record("a", outcome="unreached", states=["saved"]),
        ]
    )
    x, y = summary.rows
    assert (x.test, x.run, x.worst_skip, x.worst_repeat) == ("test_x", 6, 3, 1)
    assert {outcome: x.counts[outcome] for outcome in OUTCOMES if x.counts[outcome]} == {
        "lossless": 3,
        "lossy": 1,
        "known": 1,
        "unreached": 1,
        "not run": 4,
    }
    assert (y.test, y.run) == ("test_y", 1)
    assert (summary.run, summary.audited) == (7, 5)
    assert summary.states["saved"] == 1
    assert summary.never_reached == [*KEY_STATES]
    assert Summary([record("a", matrix=None)]).never_reached == []


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_a_gate_counts_what_came_to_a_verdict(outcome: Outcome) -> None:
    counts = outcome in ("lossless", "lossy", "error", "hang", "refused", "known")
    assert Summary([record("a", outcome=outcome)]).audited == counts


def test_the_shortest_failing_timeline_is_the_one_of_the_fewest_steps() -> None:
    def failing(name: str, timeline: str, **fields: Any) -> Record:
        return record(name, timeline=timeline, failed=True, outcome="lossy", **fields)

    (row,) = Summary(
        [
            failing("long", "a; b; c"),
            failing("z", "b; a"),
            failing("second", "a; bbbbbbbbb"),
            record("passes", timeline="a"),
            record("untold", timeline="a", failed=True, outcome="not run"),
        ]
    ).rows
    assert row.shortest_failing is not None
    assert row.shortest_failing.id == "second"


PROOFS = [*PROOF]


@pytest.mark.parametrize(
    ("records", "nothing"),
    [
        ([record("a"), record("b")], True),
        ([record("a"), record("b", states=PROOFS)], False),
        ([record("a"), record("b", states=PROOFS, outcome="known")], False),
        # It has to be one run that reached them all.
        ([record("a", states=PROOFS[:2]), record("b", states=PROOFS[2:])], True),
        ([record("a"), record("b", outcome="unreached")], True),
        # Not all of the matrix was run.
        ([record("a")], False),
        ([record("a"), record("b", outcome="not run")], False),
        # No matrix at all; a matrix and something of its own.
        ([record("a", matrix=None), record("b", matrix=None)], False),
        ([record("a"), record("b", matrix=None)], True),
        # It says so by itself.
        ([record("a"), record("b", outcome="error", failed=True)], False),
        ([record("a"), record("b", outcome="lossy", expected=True)], False),
    ],
)
def test_what_proved_nothing(records: list[Record], nothing: bool) -> None:
    sentence = PROVED_NOTHING.format(test="test_x", count=2)
    assert Summary(records).failures == ([sentence] if nothing else [])


# --- in the terminal ----------------------------------------------------------------------------


def test_the_text_has_the_columns_that_say_something() -> None:
    lines = [*summary_text.render(Summary([record("a"), record("b", "test_y", outcome="hang")]))]
    assert lines[:3] == [
        "run  lossless  lossy  hang  test",
        "  1         1      0     0  test_x",
        "  1         0      0     1  test_y",
    ]


def test_a_run_ends_with_the_summary(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=SOURCE)
    result = pytester.runpytest("--tb=no")
    result.assert_outcomes(passed=5, failed=2)
    # Of the two that fail, `mid-flight` has 8 steps and `straggler` 13.
    result.stdout.fnmatch_lines(
        [
            "*= resume audit =*",
            "run  lossless  lossy  worst skip  test",
            "  2         2      0           0  test_it.py::test_new[[]-[]]",
            "  2         2      0           0  test_it.py::test_new[[]a[]]",
            "  3         1      2           4  test_it.py::test_old",
            "",
            "states reached, by timelines:",
            "  5 resumed; 5 saved; 4 saved with prompts in flight; * saved with a buffer; *",
            "",
            "shortest failing timeline of test_it.py::test_old: mid-flight",
            "  hand_out 12; finish 0-3; train; finish 4 6 7 10; save; crash; restart; drain",
            "  4 of 16 prompts skipped: 5, 8, 9, 11",
            '  replay: pytest "test_it.py::test_old[[]mid-flight[]]"',
            "*= short test summary info =*",
        ]
    )
    assert result.stdout.str().count("resume audit =") == 1


def test_a_test_that_fails_by_itself_says_so(pytester: pytest.Pytester) -> None:
    source = SOURCE.replace("    resume_audit()", "    resume_audit()\n    assert 1 == 2")
    pytester.makepyfile(test_it=source)
    result = pytester.runpytest("-k", "new and clean")
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(
        ["  lossless: 16 of 16 prompts trained once; the test failed by itself"]
    )


def test_parameters_that_a_plugin_adds_last_make_rows_of_their_own(
    pytester: pytest.Pytester,
) -> None:
    pytester.makeconftest(
        """
        import pytest

        @pytest.hookimpl(trylast=True)
        def pytest_generate_tests(metafunc):
            if "late" in metafunc.fixturenames:
                metafunc.parametrize("late", ["z"])
        """
    )
    pytester.makepyfile(test_it=SOURCE.replace("test_old(", "test_old(late, "))
    result = pytester.runpytest("-k", "old and idle")
    result.stdout.fnmatch_lines(["  1         1      0  test_it.py::test_old[[]idle-save-z[]]"])


@pytest.mark.parametrize(
    "source",
    [
        "def test_x(): pass",
        SOURCE.replace("@pytest.mark.r", "@pytest.mark.skip\n@pytest.mark.r"),
        SOURCE.replace("    resume_audit()", "    pytest.skip('not today')"),
    ],
)
def test_nothing_is_printed_when_nothing_was_audited(
    source: str, pytester: pytest.Pytester
) -> None:
    pytester.makepyfile(source)
    assert "resume audit" not in pytester.runpytest().stdout.str()


def test_nothing_is_printed_when_tests_are_only_collected(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(SOURCE)
    result = pytester.runpytest("--collect-only", "--resume-audit-json=out.json")
    assert "resume audit" not in result.stdout.str()
    assert not Path(pytester.path, "out.json").exists()


def test_a_matrix_that_proves_nothing_fails_the_session(
    nightly: None, pytester: pytest.Pytester
) -> None:
    pytester.makepyfile(
        test_it="""
        import pytest
        from pytest_resume_audit import FrontierCollector

        class NeverSaves(FrontierCollector):
            def save(self, root, step):
                raise ValueError

        @pytest.mark.parametrize("collector", [FrontierCollector, NeverSaves])
        @pytest.mark.resume_audit(timelines="smoke")
        def test_x(collector, resume_audit):
            try:
                resume_audit(collector)
            except AssertionError:
                pass
        """
    )
    result = pytester.runpytest("-k", "Frontier")
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["never reached:", "  saved with a carried-over rest; *"])
    result = pytester.runpytest()
    result.assert_outcomes(passed=4)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    failed = [line for line in result.outlines if line.startswith("failed: ")]
    assert failed == [
        "failed: " + PROVED_NOTHING.format(test="test_it.py::test_x[NeverSaves]", count=2)
    ]
    # A part of the matrix is no reason to complain.
    assert pytester.runpytest("-k", "mid").ret == pytest.ExitCode.OK


# --- files --------------------------------------------------------------------------------------


def written(pytester: pytest.Pytester, *options: str) -> dict[str, Any]:
    pytester.runpytest("--resume-audit-json=out.json", *options)
    found: dict[str, Any] = json.loads((pytester.path / "out.json").read_text(encoding="utf-8"))
    return found


def test_json(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=SOURCE)
    found = written(pytester)
    assert [*found] == [
        "schema",
        "settings",
        "failures",
        "warnings",
        "audited",
        "states",
        "tests",
        "timelines",
    ]
    assert (found["schema"], found["audited"]) == (1, 7)
    assert found["states"].keys() == STATES.keys()
    assert found["states"]["saved with prompts in flight"] == 4
    assert found["states"]["raced inside a save"] == 0
    (old,) = (test for test in found["tests"] if test["test"] == "test_it.py::test_old")
    assert old == {
        "test": "test_it.py::test_old",
        "of": 3,
        "run": 3,
        **dict.fromkeys((outcome.replace(" ", "_") for outcome in OUTCOMES), 0),
        "lossless": 1,
        "lossy": 2,
        "worst_skip": 4,
        "worst_repeat": 0,
        "shortest_failing": "test_it.py::test_old[mid-flight]",
    }
    (flight,) = (
        one for one in found["timelines"] if one["node_id"] == "test_it.py::test_old[mid-flight]"
    )
    assert flight.pop("states") == [
        "resumed",
        "saved",
        "saved with a buffer",
        "saved with prompts in flight",
    ]
    assert flight == {
        "node_id": "test_it.py::test_old[mid-flight]",
        "test": "test_it.py::test_old",
        "id": "mid-flight",
        "of": 3,
        "matrix": None,
        "timeline": "hand_out 12; finish 0-3; train; finish 4 6 7 10; save; crash; restart; drain",
        "replay": 'pytest "test_it.py::test_old[mid-flight]"',
        "outcome": "lossy",
        "failed": True,
        "expected": False,
        "skipped": [5, 8, 9, 11],
        "duplicated": [],
        "headline": "4 of 16 prompts skipped: 5, 8, 9, 11",
        "loss": None,
    }


def test_the_fields_of_the_json_are_described() -> None:
    assert as_json.__doc__ is not None
    described = re.findall(r"^``(\w+)``", as_json.__doc__, re.MULTILINE)
    assert described == [*json.loads(as_json.render(Summary([])))]


def test_markdown_is_added_to_what_is_there(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=SOURCE)
    file = pytester.path / "step.md"
    file.write_text("# before\n")
    for times in (1, 2):
        pytester.runpytest("--resume-audit-markdown=step.md")
        text = file.read_text(encoding="utf-8")
        assert text.startswith("# before\n## Resume audit\n")
        assert text.count("## Resume audit") == times
    assert (
        "| test | run | lossless | lossy | worst skip |\n"
        "| --- | ---: | ---: | ---: | ---: |\n"
        "| `test_it.py::test_old` | 3 | 1 | 2 | 4 |\n"
        "| `test_it.py::test_new[-]` | 2 | 2 | 0 | 0 |\n"
    ) in text
    assert (
        "`test_it.py::test_old[mid-flight]`: 4 of 16 prompts skipped: 5, 8, 9, 11\n\n```\n"
        "hand_out 12; finish 0-3; train; finish 4 6 7 10; save; crash; restart; drain\n"
        'pytest "test_it.py::test_old[mid-flight]"\n```\n'
    ) in text


def test_long_tables_are_folded_and_the_longest_cut_off() -> None:
    def rows(number: int, **fields: Any) -> list[Record]:
        return [record("a", f"test_{at:04}", **fields) for at in range(number)]

    few = markdown.render(Summary(rows(20)))
    assert few.count("<details>") == 1
    many = markdown.render(Summary(rows(21)))
    assert "<details><summary>21 tests</summary>\n\n| test | run |" in many
    assert many.count("<details>") == many.count("</details>") == 2
    failing = [record("z", "test_z", outcome="lossy", failed=True)]
    most = markdown.render(Summary([*rows(300), *failing]))
    assert most.count("| `test_") == 200
    assert "... and 101 more tests" in most
    assert "| `test_z` | 1 | 0 | 1 |" in most
    assert len(markdown.render(Summary(rows(9000, outcome="hang", failed=True)))) < 100_000


def test_what_markdown_would_take_for_its_own_is_escaped() -> None:
    one = record("a", "t[a|b`c]", outcome="error", failed=True, headline="<T> of *x*: a|b")
    summary = Summary([one])
    summary.failures.append("a <b>")
    text = markdown.render(summary)
    assert "| `t[a\\|b'c]` |" in text
    assert "\\<T\\> of \\*x\\*: a\\|b" in text
    assert "**Failed:** a \\<b\\>" in text


@pytest.mark.parametrize("option", ["json", "markdown"])
@pytest.mark.parametrize(
    ("file", "said"),
    [("no/out", "there is no directory * make it first"), (".", "* is a directory: give a file")],
)
def test_a_file_that_can_not_be_written_is_told_before_anything_is_run(
    option: str, file: str, said: str, pytester: pytest.Pytester
) -> None:
    result = pytester.runpytest(f"--resume-audit-{option}={file}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: --resume-audit-{option}: {said}"])


def test_a_file_that_can_not_be_written_at_the_end_fails_with_a_sentence(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile("def test_x():\n    import os\n    os.mkdir('out.json')")
    result = pytester.runpytest("--resume-audit-json=out.json")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["failed: *out.json can't be written: Is a directory"])
    assert "Traceback" not in result.stdout.str() + result.stderr.str()


def test_junit_has_flat_properties(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=SOURCE)
    pytester.runpytest("--junitxml=junit.xml", "-k", "old and mid")
    text = (pytester.path / "junit.xml").read_text(encoding="utf-8")
    assert dict(re.findall(r'<property name="(\w+)" value="([^"]*)"', text)) == {
        "resume_audit_verdict": "lossy",
        "resume_audit_skipped": "4",
        "resume_audit_duplicated": "0",
        "resume_audit_timeline": "hand_out 12; finish 0-3; train; finish 4 6 7 10; save; crash; "
        "restart; drain",
    }


# --- in several processes -----------------------------------------------------------------------


def test_the_summary_is_that_of_all_workers(pytester: pytest.Pytester) -> None:
    pytest.importorskip("xdist", reason="pytest-xdist is not installed")
    pytester.makepyfile(
        test_it=SOURCE
        + """
class Dies(FrontierCollector):
    def restore(self, checkpoint, *, load_replay_buffer):
        os._exit(3)

@pytest.mark.resume_audit(Dies, timelines=["clean", "mid-flight"])
def test_dies(resume_audit):
    resume_audit()
"""
    )
    result = pytester.runpytest_subprocess(
        "-n2", "--dist=worksteal", "--tb=no", "--resume-audit-json=out.json"
    )
    result.assert_outcomes(passed=6, failed=3)
    result.stdout.fnmatch_lines(
        [
            "run  lossless  lossy  died  worst skip  test",
            "  2         1      0     1           0  test_it.py::test_dies",
            "  2         2      0     0           0  test_it.py::test_new[[]-[]]",
            "  2         2      0     0           0  test_it.py::test_new[[]a[]]",
            "  3         1      2     0           4  test_it.py::test_old",
            "shortest failing timeline of test_it.py::test_dies: mid-flight",
            "  worker 'gw?' crashed while running 'test_it.py::test_dies[[]mid-flight[]]'",
            '  replay: pytest "test_it.py::test_dies[[]mid-flight[]]"',
        ]
    )
    found = json.loads((pytester.path / "out.json").read_text(encoding="utf-8"))
    assert (found["audited"], len(found["timelines"])) == (8, 9)
