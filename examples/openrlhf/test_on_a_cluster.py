"""OpenRLHF's asynchronous training, audited over a real local Ray cluster.

    tox -e openrlhf -- examples/openrlhf/test_on_a_cluster.py

All its actors and queues are Ray's. It takes some minutes; the other tests play many timelines over
a stand-in for Ray.
"""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="OpenRLHF runs on torch")
pytest.importorskip("ray", reason="OpenRLHF's actors are Ray's")

from pytest_resume_audit import ResumeAudit, Setup
from pytest_resume_audit.adapters.openrlhf_parts import why_missing
from pytest_resume_audit.adapters.openrlhf_ray import OpenRLHFOverRay

missing = why_missing()
pytestmark = [
    pytest.mark.skipif(missing is not None, reason=missing or ""),
    # A tip of Ray's on the variables that name GPUs, where there are none.
    pytest.mark.filterwarnings("ignore:Tip. In future versions of Ray:FutureWarning"),
]

MORE = "hand_out; finish all; "

# Each worker imports OpenRLHF before it does anything: on a busy machine that takes minutes, in
# which there is no progress to be seen.
DEADLINE = 600


@pytest.mark.resume_audit(
    OpenRLHFOverRay,
    timelines={"smallest": MORE + "save; crash; restart; drain"},
    setup=Setup(prompts=8, batch_size=4, prompts_per_step=2),
    life="ray-driver",
    deadline=DEADLINE,
)
def test_issue_1322(resume_audit: ResumeAudit) -> None:
    """The same loss as over the stand-in."""
    resume_audit()


@pytest.mark.resume_audit(
    OpenRLHFOverRay,
    timelines={"behind-a-step": 2 * MORE + "save; crash; restart; drain"},
    setup=Setup(prompts=12),
    life="ray-driver",
    deadline=DEADLINE,
)
def test_as_much_is_generated_as_is_trained(resume_audit: ResumeAudit) -> None:
    """None, as over the stand-in."""
    resume_audit()
