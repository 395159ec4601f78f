"""Lives that can't be had: without Ray, on another system, and of a rig that has no such life."""

from __future__ import annotations

import pickle

import pytest

from pytest_resume_audit import Command, FuturesCollector, Rig, run
from pytest_resume_audit.lives import kinds

HINT = r"pip install 'pytest-resume-audit\[ray\]'"


@pytest.fixture
def without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kinds.importlib.util, "find_spec", lambda name: None)


@pytest.mark.parametrize("life", ["ray", "ray-driver"])
def test_the_extra_is_named(without_ray, life):
    with pytest.raises(ModuleNotFoundError, match=f"life '{life}' needs Ray: {HINT}"):
        run(FuturesCollector, "drain", life=life)


@pytest.mark.parametrize("life", ["ray", "ray-driver", "command"])
def test_a_system_where_processes_cant_be_watched(monkeypatch, life):
    monkeypatch.setattr(kinds.sys, "platform", "darwin")
    collector = Command("python train.py") if life == "command" else FuturesCollector
    with pytest.raises(NotImplementedError, match=f"life '{life}' needs Linux"):
        run(collector, "drain", life=life)


def test_a_marked_test_fails_with_it(without_ray, pytester: pytest.Pytester):
    pytester.makepyfile(
        """
        import pytest
        from pytest_resume_audit import FuturesCollector

        @pytest.mark.resume_audit(FuturesCollector, timelines="drain", life="ray")
        def test_it(resume_audit):
            resume_audit()
        """
    )
    result = pytester.runpytest_inprocess()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["*life 'ray' needs Ray: pip install 'pytest-resume-audit[[]ray[]]'"]
    )


def test_a_rig_of_a_local_life_says_that_it_cant_leave_its_process():
    rig = Rig()
    for part in (rig, rig.engine, rig.buffer):
        with pytest.raises(TypeError, match="has the life 'process', 'ray' or 'ray-driver'"):
            pickle.dumps(part)
