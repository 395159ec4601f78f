"""The audit's parts without the audit: loader, engine, buffer and trainer in tests by hand.

Here nothing waits for a timeline. The loader hands out at once, and an answer is ready when the
test says so: a rollout engine whose answers come in the order that a test needs.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pytest_resume_audit import GenerationFailed, Rig, Setup
from pytest_resume_audit.fakes.engine import Engine
from pytest_resume_audit.fakes.loader import Loader


def test_answers_come_out_of_order(resume_rig: Rig) -> None:
    """Prompts 0 to 3 are answered last one first; the trainer takes the lowest of them."""
    rig = resume_rig
    for prompt in next(iter(rig.loader)):
        answer = rig.engine.submit(prompt)
        answer.add_done_callback(lambda answer: rig.buffer.add(answer.result()))

    for row in (3, 2, 1):
        rig.engine.finish(row)
    assert rig.trainer.step() is False, "four prompts make a step, and row 0 is in flight"

    rig.engine.finish(0)
    assert [rollout.prompt.row for rollout in rig.trainer.step() or ()] == [0, 1, 2, 3]
    assert rig.trainer.counts() == [1] * 4 + [0] * 12


def test_a_loader_goes_on_where_it_was_saved(resume_loader: Loader) -> None:
    """Its state is the live place: four prompts are handed out, the fifth comes next."""
    next(iter(resume_loader))
    after_restart = Rig().loader
    after_restart.load_state_dict(resume_loader.state_dict())
    assert next(iter(after_restart))[0].row == 4


def test_a_generation_fails(resume_engine: Engine, resume_loader: Loader) -> None:
    prompt, *_ = next(iter(resume_loader))
    answer = resume_engine.submit(prompt)
    resume_engine.fail(prompt.row)
    with pytest.raises(GenerationFailed, match="row 0"):
        answer.result()


@pytest.mark.parametrize("shuffle", [False, True])
def test_sizes_of_ones_own(shuffle: bool) -> None:
    """Without the fixtures, a rig of any size."""
    rig = Rig(Setup(prompts=6, batch_size=3, passes=2, shuffle=shuffle))
    passes = [[prompt.row for batch in rig.loader for prompt in batch] for _ in range(2)]
    assert sorted(passes[0]) == sorted(passes[1]) == [0, 1, 2, 3, 4, 5]
    assert (passes[0] == passes[1]) is not shuffle


def test_the_script_without_pytest() -> None:
    script = Path(__file__).with_name("without_pytest.py")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert "LiveCursorCollector: lossy, skipped [5, 8, 9, 11]" in done.stdout
    assert "FrontierCollector: lossless, skipped []" in done.stdout
