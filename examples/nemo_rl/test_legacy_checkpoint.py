"""A checkpoint that an older NeMo RL has written, resumed by a newer one.

    NEMO_RL_PATH=~/RL NEMO_RL_BEFORE_PATH=~/RL-before pytest examples/nemo_rl

The older one, which saves no frontier, runs in a process of its own: this file is a program too,
which writes the checkpoint. Nothing waits for a script here: the rig is driven by hand.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="NeMo RL runs on torch")
pytest.importorskip("torchdata", reason="NeMo RL's loader is torchdata's")

from pytest_resume_audit import Rig, Setup
from pytest_resume_audit.adapters.nemo_rl import LocalRay, NemoRLCollector
from pytest_resume_audit.adapters.nemo_rl_checkout import VARIABLE, load, why_missing

OLDER = "NEMO_RL_BEFORE_PATH"
SIZES = Setup(prompts=48)

missing = why_missing()
if missing is None and OLDER not in os.environ:
    missing = f"{OLDER} does not say where a checkout from before pull request 3599 is"
if missing is None and not load().has_frontier:
    missing = "the newer NeMo RL saves no frontier either"
pytestmark = pytest.mark.skipif(missing is not None, reason=missing or "")


def until(ready: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait for something, but not for ever."""
    end = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > end:
            raise TimeoutError("nothing more happens")
        time.sleep(0.001)


def in_flight(collector: NemoRLCollector) -> list[int]:
    """Rows that are in flight."""
    return [row for row, _ in collector.rig.engine.in_flight]


def has(collector: NemoRLCollector, *, flying: int, buffered: int) -> Callable[[], bool]:
    """Whether it asks for no more now, and so many prompts are in flight and in the buffer."""

    def holds() -> bool:
        settled = LocalRay.get(collector.collector.is_settled.remote())
        size = LocalRay.get(collector.buffer.size.remote())
        return bool(settled) and (len(in_flight(collector)), size) == (flying, buffered)

    return holds


def write(root: Path) -> None:
    """Train two steps, let every other prompt that is out be answered, and save."""
    collector = NemoRLCollector(Rig(SIZES))
    collector.start()
    until(has(collector, flying=8, buffered=0))
    for row in in_flight(collector):
        collector.rig.engine.finish(row)
    until(has(collector, flying=0, buffered=8))
    for step in (1, 2):
        assert collector.train_step()
        until(has(collector, flying=4 * step, buffered=8 - 4 * step))
    for row in in_flight(collector)[::2]:
        collector.rig.engine.finish(row)
    until(has(collector, flying=4, buffered=4))
    collector.save(root, collector.step)
    collector.crash()


def go_on(collector: NemoRLCollector) -> int:
    """Let all be answered, and train a step where there is one; how many there have been."""
    for row in in_flight(collector):
        collector.rig.engine.finish(row)
    collector.train_step()
    return collector.step


def test_what_was_in_flight_is_lost_once_and_no_more(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Lost is what the older one had pulled and not buffered; the rest of a batch is kept now."""
    environment = {**os.environ, VARIABLE: os.environ[OLDER]}
    subprocess.run([sys.executable, __file__, tmp_path], env=environment, check=True, timeout=300)
    checkpoint = NemoRLCollector.latest(tmp_path)
    assert checkpoint == tmp_path / "step_2"

    collector = NemoRLCollector(Rig(SIZES))
    collector.restore(checkpoint, load_replay_buffer=True)
    assert "legacy checkpoint" in capsys.readouterr().out
    collector.start()
    in_flight_at_the_save = [9, 11, 13, 15]
    pulled_ahead = [16, 17, 18, 19]
    # 32 prompts in 8 steps, and 8 that are lost among them: not to the end of the data, where NeMo
    # RL gives up what is in flight.
    until(lambda: go_on(collector) == 8)
    collector.crash()

    counts = collector.rig.trainer.counts()
    lost = [row for row, count in enumerate(counts[:40]) if count == 0]
    assert lost == in_flight_at_the_save + pulled_ahead
    assert max(counts) == 1


if __name__ == "__main__":
    write(Path(sys.argv[1]))
