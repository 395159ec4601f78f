"""OpenRLHF's asynchronous training, audited as it was released.

    tox -e openrlhf
    pytest examples/openrlhf

A long run of the named timelines, and of a seeded sample of those that are generated:

    OPENRLHF_MATRIX=nightly pytest examples/openrlhf -k named_timelines --resume-audit-budget 20m

A step is over when the weights have gone to the engines, and by default these go there only while
nothing is generated. So a script has all that is out answered before a save, or the run has
``--train.partial_rollout_enable``. It saves behind each step: ``train`` lets one through, and
``save`` holds the run behind the next. What was found, and which tests fail, is in
``docs/results.md``.
"""

from __future__ import annotations

import os

import pytest

pytest.importorskip("torch", reason="OpenRLHF runs on torch")

from pytest_resume_audit import ResumeAudit, Setup
from pytest_resume_audit.adapters.openrlhf import (
    OpenRLHFCollector,
    PartialRolloutCollector,
    timelines,
)
from pytest_resume_audit.adapters.openrlhf_driver import changes_in
from pytest_resume_audit.adapters.openrlhf_parts import load, why_missing

missing = why_missing()
pytestmark = pytest.mark.skipif(missing is not None, reason=missing or "")
if missing is None:
    load()  # it takes a while: in a life that would look like one that stands still

MORE = "hand_out; finish all; "
MATRIX = timelines(os.environ.get("OPENRLHF_MATRIX", "smoke"))


class DeeperQueue(OpenRLHFCollector):
    options = ("--train.async_queue_size", "2")


def scripts(begun: str, more: str) -> dict[str, str]:
    """Scripts that are the same story for several sizes.

    Args:
        begun: until one step is due and the next one waits in the queue.
        more: what the step after next takes to be generated.
    """
    return {
        "clean": "drain",
        "before-first-save": MORE + "crash; restart; drain",
        "behind-a-step": begun + "save; crash; restart; drain",
        "behind-two-steps": begun + f"train; {more}save; crash; restart; drain",
        "rolled-back": begun + f"save; {more}train; crash; restart; drain",
        "two-crashes": begun + f"save; crash; restart; {begun}save; crash; restart; drain",
        "twice-from-one": begun + f"save; crash; restart; {begun}train; crash; "
        "restart from 0; drain",
        "older-checkpoint": begun + f"save; {more}save; crash; restart from 0; drain",
        "stopped": begun + "save; stop; restart; drain",
        "dies-in-save": begun + f"save; {more}crash in save; restart; drain",
        "dies-in-first-save": begun + "crash in save; restart; drain",
        "torn-in-save": begun + f"save; {more}crash in save torn each; restart; drain",
    }


EVEN = scripts(begun=2 * MORE, more=MORE)
OVERSAMPLED = scripts(begun=MORE, more="")
# Two steps a pass. Saved behind the second, before which the generator has gone on: it has found
# that there is no more, or has generated for the next pass.
LAST_STEP = {"last-step": 2 * MORE + "save; hand_out; save; crash; restart; drain"}
LAST_OF_A_PASS = {"last-step": 2 * MORE + f"save; {MORE}save; crash; restart; drain"}
MID_FLIGHT = {
    "mid-flight": 2 * MORE + "train; hand_out; finish every 2; save; crash; restart; drain",
    "mid-flight-twice": 2 * (2 * MORE + "train; hand_out; finish every 2; save; crash; restart; ")
    + "drain",
    "nothing-answered": 2 * MORE + "train; hand_out; save; crash; restart; drain",
    "newest-first": 2 * MORE + "train; hand_out; finish newest 3; save; crash; restart; drain",
}


@pytest.mark.resume_audit(OpenRLHFCollector, timelines=EVEN, setup=Setup(prompts=24))
def test_as_much_is_generated_as_is_trained(resume_audit: ResumeAudit) -> None:
    resume_audit()


@pytest.mark.resume_audit(
    OpenRLHFCollector,
    timelines=OVERSAMPLED,
    setup=Setup(prompts=24, batch_size=8, prompts_per_step=2),
)
def test_more_is_generated_than_is_trained(resume_audit: ResumeAudit) -> None:
    """``vllm_generate_batch_size`` 8, ``batch_size`` 2."""
    resume_audit()


@pytest.mark.resume_audit(
    OpenRLHFCollector,
    timelines={"smallest": MORE + "save; crash; restart; drain"},
    setup=Setup(prompts=8, batch_size=4, prompts_per_step=2),
)
def test_issue_1322(resume_audit: ResumeAudit) -> None:
    """The sizes of https://github.com/OpenRLHF/OpenRLHF/issues/1322."""
    resume_audit()


@pytest.mark.resume_audit(
    OpenRLHFCollector,
    timelines=EVEN,
    setup=Setup(prompts=33, prompts_per_step=3, group_size=2, shuffle=True, seed=3),
)
def test_sizes_that_do_not_divide_each_other(resume_audit: ResumeAudit) -> None:
    """Groups of two are generated in fours and trained in threes."""
    resume_audit()


@pytest.mark.resume_audit(
    DeeperQueue, timelines=scripts(begun=3 * MORE, more=MORE), setup=Setup(prompts=24)
)
def test_two_steps_wait_in_the_queue(resume_audit: ResumeAudit) -> None:
    resume_audit()


@pytest.mark.resume_audit(PartialRolloutCollector, timelines=MID_FLIGHT, setup=Setup(prompts=24))
def test_answers_are_out_while_it_saves(resume_audit: ResumeAudit) -> None:
    resume_audit()


@pytest.mark.resume_audit(
    OpenRLHFCollector,
    timelines={"drain": "drain"},
    setup=Setup(prompts=7, batch_size=4, prompts_per_step=2),
)
def test_issue_1320(resume_audit: ResumeAudit) -> None:
    """The tail of https://github.com/OpenRLHF/OpenRLHF/issues/1320, which is repaired."""
    resume_audit()


@pytest.mark.resume_audit(OpenRLHFCollector, timelines=LAST_STEP, setup=Setup(prompts=8))
def test_behind_the_last_step(resume_audit: ResumeAudit) -> None:
    """The last generation is a full one: it has not come to the end of the data."""
    resume_audit()


@pytest.mark.resume_audit(
    OpenRLHFCollector, timelines=LAST_OF_A_PASS, setup=Setup(prompts=8, passes=2)
)
def test_behind_the_last_step_of_a_pass(resume_audit: ResumeAudit) -> None:
    resume_audit()


@pytest.mark.resume_audit(OpenRLHFCollector, timelines=LAST_STEP, setup=Setup(prompts=7))
def test_behind_a_last_step_that_is_cut_short(resume_audit: ResumeAudit) -> None:
    """The last generation has come to the end of the data."""
    resume_audit()


@pytest.mark.resume_audit(
    OpenRLHFCollector, timelines=LAST_OF_A_PASS, setup=Setup(prompts=7, passes=2)
)
def test_behind_a_last_step_of_a_pass_that_is_cut_short(resume_audit: ResumeAudit) -> None:
    resume_audit()


@pytest.mark.resume_audit(
    OpenRLHFCollector,
    timelines={"before-the-last-step": MORE + "save; crash; restart; drain"},
    setup=Setup(prompts=7, batch_size=8, prompts_per_step=4),
)
def test_all_is_generated_at_once(resume_audit: ResumeAudit) -> None:
    """What waits, and the place at the end of the data, come together."""
    resume_audit()


@pytest.mark.resume_audit(OpenRLHFCollector, timelines=MATRIX)
def test_named_timelines(resume_audit: ResumeAudit) -> None:
    """Most of these save while answers are out, which it does not."""
    resume_audit()


@pytest.mark.resume_audit(PartialRolloutCollector, timelines=MATRIX)
def test_named_timelines_with_partial_rollouts(resume_audit: ResumeAudit) -> None:
    resume_audit()


def test_what_the_adapter_says_again_has_not_changed() -> None:
    """See ``pytest_resume_audit/adapters/openrlhf_driver.py``."""
    assert not changes_in(load())
