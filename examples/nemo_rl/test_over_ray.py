"""NVIDIA NeMo RL's asynchronous GRPO, audited over a real local Ray cluster.

    NEMO_RL_PATH=~/RL pytest examples/nemo_rl/test_over_ray.py

Buffer and collector are actors, as in NeMo RL's own driver. It takes a minute or two; the other
tests play many timelines over a stand-in for Ray's handles.
"""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="NeMo RL runs on torch")
pytest.importorskip("torchdata", reason="NeMo RL's loader is torchdata's")

from pytest_resume_audit import ResumeAudit, Setup
from pytest_resume_audit.adapters.nemo_rl_checkout import why_missing
from pytest_resume_audit.adapters.nemo_rl_ray import OverRay

missing = why_missing()
pytestmark = pytest.mark.skipif(missing is not None, reason=missing or "")

SCRIPTS = {
    "mid-flight": "hand_out; finish all; train; hand_out; train; hand_out; finish every 2; save; "
    "crash; restart; hand_out; drain"
}


@pytest.mark.resume_audit(
    OverRay, timelines=SCRIPTS, setup=Setup(prompts=32), life="ray-driver", deadline=120
)
def test_over_ray(resume_audit: ResumeAudit) -> None:
    """The same loss, or none, as over the stand-in."""
    resume_audit()
