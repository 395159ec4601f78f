"""A collector made of Ray actors is audited as any other: only the life is another.

    pip install 'pytest-resume-audit[ray]'
    pytest -rx --xfail-tb examples/ray_actors

A local cluster is started for the session, and is gone after it.
"""

from __future__ import annotations

import pytest
from ray_collector import NewWay, OldWay

from pytest_resume_audit import ResumeAudit


@pytest.mark.xfail(strict=True, reason="what is in flight at the save is gone")
@pytest.mark.resume_audit(OldWay, timelines="mid-flight", life="ray")
def test_the_old_way(resume_audit: ResumeAudit) -> None:
    resume_audit()


@pytest.mark.resume_audit(
    NewWay,
    timelines=["mid-flight", "mid-flight-no-buffer"],
    life="ray",
)
def test_the_new_way(resume_audit: ResumeAudit) -> None:
    resume_audit()


@pytest.mark.resume_audit(NewWay, timelines="mid-flight", life="ray-driver")
def test_the_new_way_when_its_driver_dies(resume_audit: ResumeAudit) -> None:
    resume_audit()
