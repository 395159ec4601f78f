"""Audits a real training by its command: the old way is lossy, the new way is not.

    pytest examples/real_training

``train.py`` is started as anybody would start it, killed where a timeline says, and started again.
A real training takes a few seconds a life, so only some timelines are played here;
``timelines="training"`` are all that suit a command.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pytest_resume_audit import Command, ResumeAudit, Setup

pytest.importorskip("torchdata", reason="the training reads from a StatefulDataLoader")
pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="commands are watched through /proc"
)

SIZES = (
    "--prompts {prompts} --batch-size {batch_size} --prompts-per-step {prompts_per_step} "
    "--group-size {group_size}"
)
SETUP = Setup(prompts=48, group_size=2)


def training(way: str) -> Command:
    return Command(
        f"python train.py --checkpoints {{checkpoints}} --way {way} {SIZES}",
        no_buffer="--no-load-buffer",
        directory=Path(__file__).parent,
    )


TIMELINES = {
    "killed": "train; save; crash; restart",
    "killed-again": "train; save; train; crash; restart; train; save; crash; restart",
    "without-the-buffer": "train; save; crash; restart no_buffer",
    "killed-in-a-save": "train; save; train; crash in save at 2; restart",
}


@pytest.mark.resume_audit(training("new"), timelines=TIMELINES, setup=SETUP)
def test_the_new_way(resume_audit: ResumeAudit) -> None:
    resume_audit()


@pytest.mark.resume_audit(training("old"), timelines={"killed": TIMELINES["killed"]}, setup=SETUP)
def test_the_old_way(resume_audit: ResumeAudit) -> None:
    report = resume_audit(expect="lossy")
    assert report.skipped
    assert not report.duplicated
