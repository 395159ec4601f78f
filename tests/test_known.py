"""Known losses: what is known passes as known, and nothing else does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_resume_audit import FrontierCollector, LiveCursorCollector, run
from pytest_resume_audit.known import KnownError, Loss, functions_of, read, write

MID_FLIGHT = "test_it.py::test_x[mid-flight]"
IDLE = "test_it.py::test_x[idle-save]"
LOSS = {"verdict": "lossy", "found": {"skipped": "5, 8, 9, 11"}}
SOURCE = """
import pytest
from pytest_resume_audit import FrontierCollector, LiveCursorCollector

@pytest.mark.resume_audit(LiveCursorCollector, timelines=["idle-save", "mid-flight"])
def test_x(resume_audit):
    resume_audit()
"""
RIGHT_WAY = SOURCE.replace("audit(LiveCursor", "audit(Frontier")
USES = "--resume-audit-known=known.json"
UPDATES = (USES, "--resume-audit-update-known")


# --- the file -----------------------------------------------------------------------------------


def test_a_file_has_a_line_for_each_loss_sorted(tmp_path: Path) -> None:
    file = tmp_path / "known.json"
    losses = {"b.py::test": Loss("hang", {"hang": ""}), "a.py::tést": Loss.read(LOSS)}
    write(file, losses)
    assert file.read_text(encoding="utf-8").splitlines() == [
        '{"schema": 1, "known": {',
        '"a.py::tést": {"verdict": "lossy", "found": {"skipped": "5, 8, 9, 11"}},',
        '"b.py::test": {"verdict": "hang", "found": {"hang": ""}}',
        "}}",
    ]
    assert read(file) == losses


def test_a_file_may_be_empty_of_losses(tmp_path: Path) -> None:
    write(tmp_path / "known.json", {})
    assert read(tmp_path / "known.json") == {}


def test_a_loss_is_exact() -> None:
    class Raises(FrontierCollector):
        def restore(self, checkpoint: Path, *, load_replay_buffer: bool) -> None:
            raise ValueError(checkpoint)

    assert Loss.of(run(LiveCursorCollector, "mid-flight")).as_json() == LOSS
    # An exception by its kind: what it says may be another thing each time, such as a path.
    assert Loss.of(run(Raises, "mid-flight")).as_json() == {
        "verdict": "error",
        "found": {"error": "ValueError"},
    }


def test_a_loss_names_every_point_of_a_save_that_fails() -> None:
    class InPlace(FrontierCollector):
        def save(self, root: Path, step: int) -> None:
            super().save(root, step)
            for name in ("one", "two"):
                (root / name).write_text("")

        def restore(self, checkpoint: Path, *, load_replay_buffer: bool) -> None:
            if not (checkpoint.parent / "two").exists():
                raise ValueError("half a checkpoint")
            super().restore(checkpoint, load_replay_buffer=load_replay_buffer)

    report = run(InPlace, "hand_out 8; finish 0-3; train; crash in save; restart")
    loss = Loss.of(report)
    failing = [point.step for point in report.points if not point.passed]
    # With a whole checkpoint in its place, before either of the two files.
    assert len(failing) == 2
    assert loss.found == {"error": "ValueError", **dict.fromkeys(failing, "error")}
    assert Loss.read(loss.as_json()) == loss


@pytest.mark.parametrize(
    ("was", "now", "said"),
    [
        ({"skipped": "5"}, {"skipped": "5, 8"}, "skipped: was 5, is 5, 8"),
        ({"skipped": "5"}, {"starved": "5"}, "skipped: was 5, is not there; starved: was not"),
        ({}, {"a silent restart": ""}, "a silent restart: was not there, is there"),
    ],
)
def test_what_has_changed(was: dict[str, str], now: dict[str, str], said: str) -> None:
    assert Loss("lossy", was).changed_to(Loss("lossy", now)).startswith(said)
    assert Loss("lossy", was).changed_to(Loss("hang", was)) == "verdict: was lossy, is hang"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "known.json, line 1: Expecting value"),
        ('{"schema": 1,\n"known": {\n"a": }}', "known.json, line 3: Expecting value"),
        ("[]", 'known.json: it has to be {"schema": 1, "known": {...}}'),
        ('{"schema": 2, "known": {}}', "known.json: it has to be"),
        ('{"schema": 1, "known": []}', "known.json: it has to be"),
        ('{"schema": 1, "known": {"a": 5}}', "known.json, entry 'a': it has to have \"verdict\""),
        ('{"schema": 1, "known": {"a": {"verdict": "lossy"}}}', "entry 'a': it has to have"),
        (
            '{"schema": 1, "known": {"a": {"verdict": "undetermined", "found": {}}}}',
            "entry 'a': \"verdict\" is 'undetermined': allowed are lossy, error, hang, refused",
        ),
        (
            '{"schema": 1, "known": {"a": {"verdict": "lossy", "found": {"skipped": [5]}}}}',
            "entry 'a': \"found\" has to be an object of texts",
        ),
        ('{"schema": 1, "known": {"a": {}, "a": {}}}', "known.json: 'a' is in it twice"),
        ("\udcff", "known.json: 'utf-8' codec can't decode"),
    ],
)
def test_a_malformed_file(text: str, said: str, tmp_path: Path, pytester: pytest.Pytester) -> None:
    file = pytester.path / "known.json"
    file.write_text(text, encoding="utf-8", errors="surrogateescape")
    with pytest.raises(KnownError) as error:
        read(file)
    assert said in str(error.value)
    result = pytester.runpytest(USES)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert f"ERROR: --resume-audit-known: {error.value}" in result.stderr.str()


def test_the_tests_of_node_ids() -> None:
    ids = ["a.py::test_x[b::c[1]-clean]", "d/a.py::T::test_y", "a.py::test_x[8]@group"]
    assert functions_of(ids) == {"a.py::test_x", "d/a.py::T::test_y"}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((USES,), "--resume-audit-known: *known.json can't be read: No such file or directory; *"),
        (("--resume-audit-update-known",), "--resume-audit-update-known needs the file: *"),
        (("--resume-audit-known=no/k", UPDATES[1]), "--resume-audit-known: there is no directory*"),
        (("--resume-audit-known=.", UPDATES[1]), "--resume-audit-known: * is a directory: give a*"),
    ],
)
def test_wrong_options(options: tuple[str, ...], said: str, pytester: pytest.Pytester) -> None:
    result = pytester.runpytest(*options)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: {said}"])


# --- in a run of pytest -------------------------------------------------------------------------


def knows(pytester: pytest.Pytester, losses: dict[str, Any]) -> None:
    file = pytester.path / "known.json"
    file.write_text(json.dumps({"schema": 1, "known": losses}), encoding="utf-8")


def known(pytester: pytest.Pytester) -> dict[str, Any]:
    text = (pytester.path / "known.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)["known"]
    return found


def test_what_is_recorded_is_known_from_then_on(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=SOURCE)
    pytester.runpytest().assert_outcomes(passed=1, failed=1)
    for options in (UPDATES, (USES,)):
        result = pytester.runpytest(*options, "-rx")
        result.assert_outcomes(passed=1, xfailed=1)
        assert result.ret == pytest.ExitCode.OK
        result.stdout.fnmatch_lines(
            [
                "run  lossless  lossy  known  worst skip  test",
                "  2         1      0      1           4  test_it.py::test_x",
                f"XFAIL {MID_FLIGHT.replace('[', '[[]')} - known: lossy: skipped: 5, 8, 9, 11",
            ]
        )
        assert known(pytester) == {MID_FLIGHT: LOSS}


def test_a_new_loss_fails(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=SOURCE)
    knows(pytester, {"test_it.py::test_x[straggler]": LOSS})
    pytester.runpytest(USES).assert_outcomes(passed=1, failed=1)


def test_a_loss_that_has_changed_fails_and_says_how(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=SOURCE)
    knows(pytester, {MID_FLIGHT: {"verdict": "lossy", "found": {"skipped": "5, 8"}}})
    result = pytester.runpytest(USES)
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        [
            "E       AuditFailed: 4 of 16 prompts skipped: 5, 8, 9, 11",
            "*- known loss -*",
            "the known loss has changed: skipped: was 5, 8, is 5, 8, 9, 11",
            "--resume-audit-known known.json --resume-audit-update-known",
            "*= resume audit =*",
            "  4 of 16 prompts skipped: 5, 8, 9, 11 (the known loss was lossy: skipped: 5, 8)",
        ]
    )
    pytester.runpytest(*UPDATES).assert_outcomes(passed=1, xfailed=1)
    assert known(pytester) == {MID_FLIGHT: LOSS}


def test_a_loss_that_is_gone_has_to_be_removed(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=RIGHT_WAY)
    knows(pytester, {MID_FLIGHT: LOSS})
    result = pytester.runpytest(USES)
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        [
            "the known loss is gone (lossy: skipped: 5, 8, 9, 11): remove its line from*",
            "shortest failing timeline of test_it.py::test_x: mid-flight",
        ]
    )
    pytester.runpytest(*UPDATES).assert_outcomes(passed=2)
    assert known(pytester) == {}


def test_what_was_not_run_is_kept(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=RIGHT_WAY)
    knows(pytester, {MID_FLIGHT: LOSS, IDLE: LOSS})
    pytester.runpytest(*UPDATES, "-k", "idle").assert_outcomes(passed=1, deselected=1)
    assert known(pytester) == {MID_FLIGHT: LOSS}
    pytester.runpytest(*UPDATES, "--collect-only")
    assert known(pytester) == {MID_FLIGHT: LOSS}


def test_what_proves_nothing_takes_no_loss_away(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_it="""
        import pytest
        from pytest_resume_audit import FrontierCollector, NamedTimeline

        def own(name, **reach):
            return NamedTimeline(
                name=name, purpose="", script="drain", by_position="drain",
                **{"must_reach": (), **reach},
            )

        @pytest.mark.resume_audit(
            FrontierCollector,
            timelines=[
                own("unreached", may_reach=("saved",)), own("undetermined", must_reach=("saved",)),
            ],
        )
        def test_x(resume_audit):
            resume_audit()

        @pytest.mark.skip
        @pytest.mark.resume_audit(FrontierCollector, timelines="clean")
        def test_y(resume_audit):
            resume_audit()
        """
    )
    names = ("test_x[unreached]", "test_x[undetermined]", "test_y[clean]")
    losses = {f"test_it.py::{name}": LOSS for name in names}
    knows(pytester, losses)
    for options in ((USES,), UPDATES):
        pytester.runpytest(*options).assert_outcomes(skipped=2, failed=1)
        assert known(pytester) == losses


def test_other_failures_of_a_test_are_never_known(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_it=SOURCE.replace(
            "    resume_audit()", "    resume_audit(expect='lossy')\n    assert 1 == 2"
        ).replace('"idle-save", ', "")
    )
    for options in (UPDATES, (USES,)):
        pytester.runpytest(*options).assert_outcomes(failed=1)
        assert known(pytester) == {}


def test_a_loss_that_the_test_expects_is_no_known_one(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_it=SOURCE.replace("resume_audit()", "resume_audit(expect='lossy')").replace(
            '"idle-save", ', ""
        )
    )
    pytester.runpytest(*UPDATES).assert_outcomes(passed=1)
    assert known(pytester) == {}


def test_asserts_by_hand_are_known_too(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_it=SOURCE.replace(
            "    resume_audit()",
            "    from pytest_resume_audit import assert_no_skips\n"
            "    assert_no_skips(resume_audit(expect='lossy'))",
        ).replace('"idle-save", ', "")
    )
    for options in (UPDATES, (USES,)):
        pytester.runpytest(*options).assert_outcomes(xfailed=1)


def test_a_script_of_the_command_line_has_no_known_losses(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=SOURCE)
    script = "--resume-audit-timeline=hand_out 8; finish 0-3; train; save; crash; restart"
    pytester.runpytest(*UPDATES, script).assert_outcomes(failed=1)
    assert known(pytester) == {}


def test_runxfail_lets_known_losses_fail(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=SOURCE)
    for options in (UPDATES, (USES,)):
        pytester.runpytest(*options, "--runxfail").assert_outcomes(passed=1, failed=1)
        assert known(pytester) == {MID_FLIGHT: LOSS}


@pytest.mark.parametrize(
    ("losses", "options", "warned"),
    [
        ([MID_FLIGHT, "gone.py::test_x[clean]"], (), ["gone.py::test_x"]),
        (["test_it.py::test_gone[clean]", "test_it.py::T::m[clean]"], (), ["T::m", "test_gone"]),
        # What may only have been left out is not stale.
        (["test_it.py::test_gone[clean]"], ("-k", "mid"), []),
        (["test_it.py::test_gone[clean]"], ("test_it.py::test_x",), []),
        (["test_it.py::test_gone[clean]"], ("--deselect=test_it.py::test_y",), []),
        (["test_it.py::test_gone[clean]"], ("--resume-audit-shard=1/1",), []),
        (["test_other.py::test_y[clean]"], ("test_it.py",), []),
        (["gone.py::test_x[clean]"], ("-k", "mid"), ["gone.py::test_x"]),
        # Another timeline of a test belongs to another matrix.
        (["test_it.py::test_x[generated-1]"], (), []),
    ],
)
def test_losses_of_tests_that_are_no_more(
    losses: list[str], options: tuple[str, ...], warned: list[str], pytester: pytest.Pytester
) -> None:
    pytester.makepyfile(test_it=SOURCE, test_other="def test_z(): pass")
    knows(pytester, {MID_FLIGHT: LOSS, **dict.fromkeys(losses, LOSS)})
    result = pytester.runpytest(USES, *options)
    assert result.ret == pytest.ExitCode.OK
    lines = [line for line in result.outlines if line.startswith("warning: known.json knows a")]
    assert len(lines) == len(warned)
    assert all(
        f"{test}, and there is no such" in line for test, line in zip(warned, lines, strict=True)
    )


def test_node_ids_are_those_of_the_root_wherever_pytest_is_started(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makeini("[pytest]")
    folder = pytester.mkpydir("checks")
    folder.joinpath("test_it.py").write_text(SOURCE)
    monkeypatch.chdir(folder)
    options = ("--resume-audit-known=../known.json", "--resume-audit-update-known")
    pytester.runpytest(*options).assert_outcomes(passed=1, xfailed=1)
    assert known(pytester) == {f"checks/{MID_FLIGHT}": LOSS}


def test_workers_know_and_one_process_writes(pytester: pytest.Pytester) -> None:
    pytest.importorskip("xdist", reason="pytest-xdist is not installed")
    pytester.makepyfile(
        test_it=SOURCE.replace("@pytest.mark", "@pytest.mark.xdist_group('one')\n@pytest.mark")
    )
    knows(pytester, {"gone.py::test_x[clean]": LOSS})
    options = ("-n2", "--dist=loadgroup")
    result = pytester.runpytest_subprocess(*UPDATES, *options)
    result.assert_outcomes(passed=1, xfailed=1)
    assert known(pytester) == {MID_FLIGHT: LOSS, "gone.py::test_x[clean]": LOSS}
    result = pytester.runpytest_subprocess(USES, *options)
    result.assert_outcomes(passed=1, xfailed=1)
    result.stdout.fnmatch_lines(["warning: known.json knows a loss of gone.py::test_x, *"])
