"""The workflows in ``examples/ci``: they are YAML, and pytest takes their commands."""

from __future__ import annotations

import re
import shlex
from importlib.util import find_spec
from pathlib import Path

import pytest

WORKFLOWS = sorted((Path(__file__).parents[1] / "examples" / "ci").glob("*.yml"))
COMMANDS = [
    " ".join(found.split())
    for workflow in WORKFLOWS
    for found in re.findall(
        r"^ +- run: >-\n((?: {10}.*\n)+)", workflow.read_text(encoding="utf-8"), re.MULTILINE
    )
]
VALUES = {
    "${{ matrix.shard }}": "4",
    "${{ github.run_number }}": "1207",
    "$GITHUB_STEP_SUMMARY": "summary.md",
}
SOURCE = """
import pytest
from pytest_resume_audit import FrontierCollector

@pytest.mark.resume_audit(FrontierCollector)
def test_x(resume_audit):
    resume_audit()
"""


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_is_yaml(workflow: Path) -> None:
    yaml = pytest.importorskip("yaml")
    found = yaml.safe_load(workflow.read_text(encoding="utf-8"))
    runs = [step["run"] for job in found["jobs"].values() for step in job["steps"] if "run" in step]
    assert [run for run in runs if run.startswith("pytest ")] == COMMANDS


def test_there_is_a_gate_and_a_nightly_run() -> None:
    assert WORKFLOWS
    gate, nightly = COMMANDS
    for option in ("require", "known", "markdown"):
        assert f"--resume-audit-{option}" in gate
    for option in ("matrix nightly", "shard", "budget", "seed", "require", "known", "json"):
        assert f"--resume-audit-{option}" in nightly


@pytest.mark.usefixtures("nightly")
@pytest.mark.parametrize("command", COMMANDS, ids=["gate", "nightly"])
def test_pytest_takes_each_command(command: str, pytester: pytest.Pytester) -> None:
    if find_spec("xdist") is None:
        command = command.replace(" -n auto --dist worksteal", "")
    for name, value in VALUES.items():
        command = command.replace(name, value)
    assert "$" not in command
    program, *words = shlex.split(command)
    assert program == "pytest"
    folder = pytester.path / "tests" / "resume"
    folder.mkdir(parents=True)
    folder.joinpath("test_it.py").write_text(SOURCE)
    folder.joinpath("known.json").write_text('{"schema": 1, "known": {}}')
    result = pytester.runpytest("--collect-only", *words)
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["*<Function test_x[[]*[]]>"])
