"""What the README says is so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pytest_resume_audit import LiveCursorCollector, Setup, run
from pytest_resume_audit.catalogue import NAMED, matrix

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def _blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)


def test_the_picture_is_what_a_report_prints() -> None:
    printed = str(run(LiveCursorCollector, "mid-flight"))
    picture, *_ = _blocks("")
    assert printed.startswith(picture)


def test_the_table_of_timelines_is_the_catalogue() -> None:
    rows = re.findall(r"^\| `([\w-]+)` \| (.*) \|$", README, re.MULTILINE)
    assert [row for row in rows if row[0] in NAMED] == [
        (timeline.name, timeline.purpose) for timeline in NAMED.values()
    ]


def test_its_tests_are_collected(pytester: pytest.Pytester) -> None:
    skeleton, of_its_own, *_ = _blocks("python")
    pytester.makepyfile(skeleton + of_its_own)
    result = pytester.runpytest("--collect-only", "-q")
    named = [name for name in NAMED if not name.startswith("legacy")]
    expected = [f"*::test_my_collector_loses_nothing[[]{name}]" for name in named]
    result.stdout.fnmatch_lines_random([*expected, "*::test_two_crashes[[]two-crashes]"])
    assert result.ret == 0


def test_its_command_is_collected(pytester: pytest.Pytester) -> None:
    *_, reports, command, _ = _blocks("python")
    exec(reports, {"rows": [0], "row": 0, "step": 1, "checkpoint": "step-1"})
    pytester.makepyfile(command)
    result = pytester.runpytest("--collect-only", "-q")
    result.stdout.fnmatch_lines(["*::test_training[[]killed-again-and-again]"])
    assert result.ret == 0


def test_its_audit_of_a_loader_passes(pytester: pytest.Pytester) -> None:
    pytest.importorskip("torchdata.stateful_dataloader")
    (of_a_loader,) = (code for code in _blocks("python") if "LoaderAudit" in code)
    pytester.makepyfile(of_a_loader)
    result = pytester.runpytest("-q", "-W", "ignore")
    assert result.ret == 0
    assert result.parseoutcomes()["passed"] == len(matrix("loader", Setup(prompts=17)))


def test_its_code_without_the_marker_runs() -> None:
    *_, by_hand = _blocks("python")
    exec(by_hand, {})


def test_its_real_run_is_counted_and_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("click", reason="the command line is an extra")
    from pytest_resume_audit import cli

    monkeypatch.chdir(tmp_path)
    (code,) = _blocks("py")
    ordinals = [0, 1, 2, 3, 4, 6, 7, 10, 12, 13, 14, 15]
    exec(code, {"torch": torch, "model": torch.nn.Linear(1, 1), "ordinals": ordinals})
    ((command, shown),) = re.findall(
        r"^```\n\$ resume-audit (coverage [^\n]*)\n(.*?)^```$", README, re.DOTALL | re.MULTILINE
    )
    assert cli.run(command.split()) == 1
    assert capsys.readouterr().out == shown


def test_the_table_of_options_has_them_all(pytester: pytest.Pytester) -> None:
    rows = re.findall(r"^\| `(--resume-audit-[\w-]+).*?` \| (?:`(\w+)`)? ?\|", README, re.MULTILINE)
    shown = pytester.runpytest("--help").stdout.str()
    assert sorted(option for option, _ in rows) == sorted(
        set(re.findall(r"^ +(--resume-audit-[\w-]+)", shown, re.MULTILINE))
    )
    assert sorted(name for _, name in rows if name) == sorted(
        re.findall(r"^ +(resume_audit_\w+) \(", shown, re.MULTILINE)
    )


def test_its_file_of_known_losses_is_what_is_written(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_it="""
        import pytest
        from pytest_resume_audit import LiveCursorCollector

        @pytest.mark.resume_audit(LiveCursorCollector, timelines="mid-flight")
        def test_x(resume_audit):
            resume_audit()
        """
    )
    (command,) = re.findall(r"^pytest (.* --resume-audit-update-known)$", README, re.MULTILINE)
    pytester.runpytest(*command.split()).assert_outcomes(xfailed=1)
    written = (pytester.path / "known.json").read_text(encoding="utf-8")
    assert f"\n```\n{written}```\n" in README


def test_its_links_lead_somewhere() -> None:
    files = re.findall(r"\]\((?!https:|#)([^)]+)\)", README)
    assert files
    assert [file for file in files if not (ROOT / file).exists()] == []
    sections = re.findall(r"\]\(#([^)]+)\)", README)
    titles = re.findall(r"^#+ (.*)$", README, re.MULTILINE)
    assert set(sections) <= {title.lower().replace(" ", "-") for title in titles}


def test_the_commands_are_one_line_each() -> None:
    commands = re.findall(r"^<!-- command: (\w+) -->\n```\n(.*)\n```$", README, re.MULTILINE)
    assert [name for name, _ in commands] == ["example", "test"]
