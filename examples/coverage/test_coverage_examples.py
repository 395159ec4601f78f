"""Each training is killed, started again, and read by ``resume-audit coverage``.

    pytest examples/coverage

Where a library is not installed, its training is skipped; ``tox -e coverage-hf`` and the like have
one each.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent

pytest.importorskip("torch", reason="the trainings need torch")
pytest.importorskip("click", reason="the command line is an extra")
pytest.importorskip("rich", reason="the command line is an extra")


def train(script: str, out: Path, *arguments: str) -> int:
    done = subprocess.run(
        [sys.executable, script, "--out", str(out), *arguments],
        cwd=HERE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    if done.returncode not in (0, -9):
        pytest.fail(f"{script} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
    return done.returncode


def coverage(*arguments: object) -> tuple[int, dict[str, Any]]:
    """The exit code and the report."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest_resume_audit", "coverage", *map(str, arguments), "--json"],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def found(report: dict[str, Any]) -> dict[str, list[list[int]]]:
    return {name: spans for name, spans in report["ordinals"].items() if spans}


SCRIPTS = {
    "plain_torch.py": ("torch", 5, "final.pt"),
    "hf_trainer.py": ("transformers", 6, "checkpoint-12"),
    "lightning_fit.py": ("lightning", 5, "final.ckpt"),
    "accelerate_loop.py": ("accelerate", 6, "final"),
}
"""What each needs, after which step it is killed, and its last checkpoint."""


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_run_that_resumes_rightly_is_lossless(script: str, tmp_path: Path) -> None:
    needs, die_at, last = SCRIPTS[script]
    pytest.importorskip(needs)
    assert train(script, tmp_path, "--die-at", f"{die_at}") == -9
    assert not (tmp_path / last).exists()
    assert train(script, tmp_path) == 0
    code, report = coverage(tmp_path / last, "--complete")
    assert (code, found(report)) == (0, {})
    assert report["totals"]["trained"] == report["prompts"] * report["passes"]


def test_the_live_place_of_the_plain_loop_loses_what_is_in_flight(tmp_path: Path) -> None:
    # When step 3 is saved, 16 prompts have been handed out. 3 and 11 take long, 14 and 15 came
    # last: these four are in flight.
    train("plain_torch.py", tmp_path, "--way", "old", "--die-at", "5")
    lost = [[3, 3], [11, 11], [14, 15]]
    code, report = coverage(tmp_path / "step-3.pt")
    assert (code, found(report)) == (1, {"skipped": lost})
    train("plain_torch.py", tmp_path, "--way", "old")
    code, report = coverage(tmp_path / "final.pt")
    assert (code, found(report)) == (1, {"skipped": lost})
    assert report["at_restarts"] == [{"restart": 1, "place": 16, "untrained": 4}]
    code, report = coverage(tmp_path / "step-3.pt", tmp_path / "final.pt")
    assert (code, report["between"]["lost"]) == (1, lost)


def test_the_trainer_of_hugging_face_without_its_data_skip(tmp_path: Path) -> None:
    # Saved after 4 of 6 steps of the first pass, which then begins anew and has all its 6: 16
    # prompts come twice. 12 steps in all leave 2 for the second pass, of 4 prompts each.
    pytest.importorskip("transformers")
    train("hf_trainer.py", tmp_path, "--ignore-data-skip", "--die-at", "6")
    train("hf_trainer.py", tmp_path, "--ignore-data-skip")
    code, report = coverage(tmp_path / "checkpoint-12", "--complete")
    assert code == 1
    assert [one["duplicated"] for one in report["by_pass"]] == [16, 0]
    assert [one["skipped"] for one in report["by_pass"]] == [0, 16]


def test_lightning_with_a_loader_that_has_no_state(tmp_path: Path) -> None:
    # Saved after 4 of 6 batches of a pass: two more are trained, which are the first two again.
    pytest.importorskip("lightning")
    train("lightning_fit.py", tmp_path, "--plain-loader", "--die-at", "5")
    train("lightning_fit.py", tmp_path, "--plain-loader")
    code, report = coverage(tmp_path / "final.ckpt", "--complete")
    assert (code, found(report)) == (1, {"skipped": [[16, 23]], "duplicated": [[0, 7]]})


def test_accelerate_without_skipping_batches(tmp_path: Path) -> None:
    # Saved after 4 batches of the first pass, which then begins anew.
    pytest.importorskip("accelerate")
    train("accelerate_loop.py", tmp_path, "--no-skip", "--die-at", "6")
    train("accelerate_loop.py", tmp_path, "--no-skip")
    code, report = coverage(tmp_path / "final", "--complete")
    assert (code, found(report)) == (1, {"duplicated": [[0, 15]]})
