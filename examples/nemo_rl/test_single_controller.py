"""NVIDIA NeMo RL's SingleController, audited in a checkout of it.

    NEMO_RL_PATH=~/RL pytest examples/nemo_rl

Its own loop trains and saves. Behind each step is a save: ``train`` and ``save`` let a step through
each. What was found in which revision is in ``docs/results.md``.
"""

from __future__ import annotations

import sys

import pytest

pytest.importorskip("torch", reason="NeMo RL runs on torch")
pytest.importorskip("torchdata", reason="NeMo RL's loader is torchdata's")

from pytest_resume_audit import ResumeAudit, Setup
from pytest_resume_audit.adapters.nemo_rl_checkout import why_missing
from pytest_resume_audit.adapters.nemo_rl_single_controller import SingleControllerCollector

missing = why_missing()
if missing is None and sys.version_info < (3, 11):
    missing = "the SingleController runs in an asyncio.TaskGroup, of Python 3.11"
pytestmark = pytest.mark.skipif(missing is not None, reason=missing or "")

BEGINNING = "hand_out; finish all; train; "
SCRIPTS = {
    "clean": "drain",
    "behind-a-step": "hand_out; finish all; train; finish all; save; crash; restart; drain",
    "mid-flight": BEGINNING + "finish every 2; save; crash; restart; drain",
    "mid-flight-no-buffer": BEGINNING + "finish every 2; save; crash; restart no_buffer; drain",
    "two-crashes": BEGINNING + "finish every 2; save; crash; restart; finish oldest 3; finish all; "
    "train; finish every 2; save; crash; restart; drain",
    "dies-in-save": BEGINNING + "save; finish all; crash in save; restart; drain",
}


@pytest.mark.resume_audit(
    SingleControllerCollector, timelines=SCRIPTS, setup=Setup(prompts=48, drop_last=True)
)
def test_scripts(resume_audit: ResumeAudit) -> None:
    """Two steps are out at most."""
    resume_audit()


@pytest.mark.resume_audit(
    SingleControllerCollector,
    timelines=SCRIPTS,
    setup=Setup(prompts=16, passes=3, group_size=3, shuffle=True, seed=3),
)
def test_passes_of_shuffled_groups(resume_audit: ResumeAudit) -> None:
    """Three passes, each with an order of its own."""
    resume_audit()
