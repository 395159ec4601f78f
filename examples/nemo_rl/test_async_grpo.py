"""NVIDIA NeMo RL's asynchronous GRPO, audited in a checkout of it.

    NEMO_RL_PATH=~/RL pytest examples/nemo_rl

plays the scripts below, and the named timelines. A long run, of which a seeded sample fits:

    NEMO_RL_PATH=~/RL NEMO_RL_MATRIX=nightly pytest examples/nemo_rl --resume-audit-budget 30m

What was found in which revision is in ``docs/results.md``.
"""

from __future__ import annotations

import os

import pytest

pytest.importorskip("torch", reason="NeMo RL runs on torch")
pytest.importorskip("torchdata", reason="NeMo RL's loader is torchdata's")

from pytest_resume_audit import ResumeAudit, Setup
from pytest_resume_audit.adapters.nemo_rl import (
    SIZES,
    NemoRLCollector,
    WholeBatches,
    timelines,
)
from pytest_resume_audit.adapters.nemo_rl_checkout import load, why_missing
from pytest_resume_audit.adapters.nemo_rl_driver import change_in

missing = why_missing()
pytestmark = pytest.mark.skipif(missing is not None, reason=missing or "")

# At first, and behind each restart, the driver waits for two steps before it trains one. After two
# trained steps two hand-outs are out; of those every other prompt has been answered.
HALFWAY = "hand_out; finish all; train; hand_out; train; hand_out; finish every 2; "
SCRIPTS = {
    "mid-flight": HALFWAY + "save; crash; restart; hand_out; drain",
    "mid-flight-no-buffer": HALFWAY + "save; crash; restart no_buffer; hand_out; drain",
    "all-answered": HALFWAY + "finish all; save; crash; restart; hand_out; drain",
    "two-crashes": HALFWAY + "save; crash; restart; hand_out; finish newest 1; finish oldest 3; "
    "train; hand_out; save; crash; restart; hand_out; drain",
    "rolled-back": HALFWAY + "save; finish all; train; hand_out; crash; restart; hand_out; drain",
    "dies-in-save": HALFWAY + "save; finish all; train; hand_out; crash in save; restart; "
    "hand_out; drain",
    "races-a-save": HALFWAY + "save racing (finish newest 1); crash; restart; hand_out; drain",
    "legacy": HALFWAY + "save; downgrade; crash; restart; hand_out; drain",
    "legacy-lineage": HALFWAY + "save; downgrade; crash; restart; hand_out; finish all; train; "
    "hand_out; finish every 2; save; crash; restart; hand_out; drain",
    # Gap-filling: a batch loses its prompts, and its step is made whole from later ones.
    "gap": "hand_out; finish all; train; hand_out; fail oldest 1; hand_out; finish newest 1; "
    "train; hand_out; save; crash; restart; hand_out; drain",
    "gap-of-some": "hand_out; finish all; train; hand_out; finish oldest 1; fail oldest 1; "
    "hand_out; finish all; train; hand_out; save; crash; restart; hand_out; drain",
}

# A save behind every answer of the two hand-outs that are out, the oldest or the newest first.
OUT = 8
RESUMES = {
    "": "save; crash; restart; hand_out; drain",
    "-nobuf": "save; crash; restart no_buffer; hand_out; drain",
    "-twice": "save; crash; restart; hand_out; finish all; train; hand_out; finish newest 3; save; "
    "crash; restart; hand_out; drain",
}
EVERY_ANSWER = {
    f"{first}-{answers}{name}": "hand_out; finish all; train; hand_out; train; hand_out; "
    + (f"finish {first} {answers}; " if answers else "")
    + resume
    for first in ("oldest", "newest")
    for answers in range(OUT)
    for name, resume in RESUMES.items()
}


def test_the_driver_is_one_that_is_known() -> None:
    """What the adapter says again of the driver is what the driver does."""
    assert change_in(load().grpo.async_grpo_train) is None


@pytest.mark.resume_audit(NemoRLCollector, timelines=SCRIPTS, setup=Setup(prompts=48))
def test_scripts(resume_audit: ResumeAudit) -> None:
    """An answer may be one step old."""
    resume_audit()


@pytest.mark.resume_audit(NemoRLCollector, timelines=SCRIPTS, setup=Setup(prompts=48, max_age=2))
def test_two_steps_old(resume_audit: ResumeAudit) -> None:
    """It may be two steps old: a step more is out."""
    resume_audit()


@pytest.mark.resume_audit(
    NemoRLCollector,
    timelines=SCRIPTS,
    setup=Setup(prompts=51, group_size=3, shuffle=True, seed=3, drop_last=True),
)
def test_shuffled_groups(resume_audit: ResumeAudit) -> None:
    """Groups of three, a shuffle, and prompts that make no whole batch."""
    resume_audit()


@pytest.mark.resume_audit(WholeBatches, timelines=SCRIPTS, setup=Setup(prompts=48))
def test_whole_batches(resume_audit: ResumeAudit) -> None:
    """With NeMo RL's own rollouts no prompt of a batch is buffered before all of them are."""
    resume_audit()


@pytest.mark.resume_audit(
    NemoRLCollector,
    timelines={name: SCRIPTS[name] for name in ("gap", "gap-of-some")},
    setup=Setup(prompts=48, max_failures=3),
)
def test_more_failures_are_tolerated(resume_audit: ResumeAudit) -> None:
    """A batch that failed is not asked for again, however many may fail."""
    resume_audit()


@pytest.mark.resume_audit(NemoRLCollector, timelines=EVERY_ANSWER, setup=Setup(prompts=48))
def test_every_answer(resume_audit: ResumeAudit) -> None:
    """Saved behind a step, as NeMo RL saves, and behind each answer that comes then."""
    resume_audit()


@pytest.mark.resume_audit(
    NemoRLCollector, timelines=timelines(os.environ.get("NEMO_RL_MATRIX", "smoke")), setup=SIZES
)
def test_matrix(resume_audit: ResumeAudit) -> None:
    """The named timelines, in the forms that fit: NeMo RL decides itself how much is out."""
    resume_audit()
