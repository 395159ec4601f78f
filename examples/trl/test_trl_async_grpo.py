"""TRL's asynchronous GRPO, audited in its release.

    pip install torch==2.13.0 trl==1.16.0 aiohttp requests
    pytest examples/trl

Its trainer trains and saves by itself. Behind each step is a save: ``train`` lets a step through,
and its save. What was found is in ``docs/results.md``.
"""

from __future__ import annotations

import pytest

pytest.importorskip("trl", reason="TRL is not installed: see the tox environment 'trl'")
pytest.importorskip("aiohttp", reason="TRL's rollout worker asks its server by aiohttp")

from pytest_resume_audit import ResumeAudit, Setup, assert_skipped
from pytest_resume_audit.adapters.trl import TRLCollector

pytestmark = pytest.mark.filterwarnings("ignore")

AHEAD = {
    # Two steps' worth of answers are there, and one step is trained.
    "one-step": "hand_out 8; finish 0-7; train; crash; restart; drain",
    "mid-flight": "hand_out 12; finish 0-7; train; crash; restart; drain",
}

# More answers come, and are asked for, while a save is being written.
RACES = {
    f"races-at-{point}": "hand_out 12; finish 0-7; "
    f"save racing (finish 8-11; hand_out 16) at {point}; crash; restart; drain"
    for point in (2, 12, 18)
}

# Prompt 0 is answered when it is two versions too old.
STALE = (
    "hand_out 5; finish 1-4; hand_out 9; finish 5-8; train; hand_out 13; finish 9-12; train; "
    "hand_out 17; finish 0; finish 13-16; train; crash; restart; drain"
)


# The legacy ones need a checkpoint of another form; `dropped` is below, as STALE.
NAMED = [
    "clean",
    "idle-save",
    "mid-flight",
    "mid-flight-no-buffer",
    "before-first-save",
    "rolled-back",
    "second-resume",
    "older-checkpoint",
    "same-checkpoint-twice",
    "straggler",
    "failed-generation",
    "gap-fill-tail",
    "half-a-group",
    "end-of-pass",
    "second-pass",
    "end-of-data",
    "uneven",
]


@pytest.mark.resume_audit(TRLCollector, timelines=NAMED, life="process", deadline=60)
def test_named_timelines(resume_audit: ResumeAudit) -> None:
    """What the audit plays on every collector."""
    resume_audit()


@pytest.mark.resume_audit(TRLCollector, timelines={"clean": "drain"}, life="process", deadline=60)
def test_a_run_that_is_never_interrupted(resume_audit: ResumeAudit) -> None:
    """Trains all."""
    resume_audit()


@pytest.mark.resume_audit(TRLCollector, timelines=AHEAD, life="process", deadline=60)
def test_the_batch_that_is_collated_ahead(resume_audit: ResumeAudit) -> None:
    """A batch counts as trained when it is collated, which is a step before it is trained."""
    assert_skipped(resume_audit(expect="lossy"), [4, 5, 6, 7])


@pytest.mark.resume_audit(TRLCollector, timelines=RACES, life="process", deadline=60)
def test_races_with_a_save(resume_audit: ResumeAudit) -> None:
    """What comes meanwhile loses no more than the batch that is collated ahead."""
    assert_skipped(resume_audit(expect="lossy"), [4, 5, 6, 7])


@pytest.mark.resume_audit(
    TRLCollector,
    timelines={"stale": STALE},
    setup=Setup(prompts=24, max_age=1, max_in_flight=5),
    life="process",
    deadline=60,
)
def test_a_group_that_is_dropped_for_its_age(resume_audit: ResumeAudit) -> None:
    """Keeps the saved position for ever: https://github.com/huggingface/trl/issues/7274"""
    report = resume_audit(expect="lossy")
    assert report.duplicated == [*range(1, 12)]
