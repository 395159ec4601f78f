"""A first audit: one collector in the old way, and the same one in the new way.

A collector takes prompts from the loader, has them answered by the rollout engine, and puts the
answers into the replay buffer, from which the trainer takes them. Loader, model and files are
real here, of torchdata and torch. Engine, buffer and trainer are those of the audit's rig: the
audit decides when an answer is ready, when a checkpoint is saved, and when the run crashes.

    pytest -rx --xfail-tb examples/test_first_audit.py

shows how the old way fails, and runs the new way through every way to crash that it is made for.
"""

from __future__ import annotations

import dataclasses
import threading
from concurrent.futures import Future
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from pytest_resume_audit import Collector, Prompt, ResumeAudit, Rig, Rollout, assert_skipped

torch = pytest.importorskip("torch", reason="the example trains a torch module")
stateful_dataloader = pytest.importorskip(
    "torchdata.stateful_dataloader", reason="the example reads from a StatefulDataLoader"
)


# --- the old way --------------------------------------------------------------------------------


class OldWay(Collector):
    """Saves the loader's place as it is at that moment."""

    def __init__(self, rig: Rig) -> None:
        super().__init__(rig)
        self.loader = make_loader(rig)
        self.model = torch.nn.Linear(2, 1)
        rig.trainer.attach(self.model)  # the audit counts in the model what it was trained on

    def start(self) -> None:
        threading.Thread(target=self.collect, daemon=True).start()

    def collect(self) -> None:
        for batch in self.loader:
            for prompt in batch:
                self.rig.engine.submit(prompt).add_done_callback(self.answered)

    def answered(self, answer: Future[Rollout]) -> None:
        self.rig.buffer.add(answer.result())

    def save(self, root: Path, step: int) -> None:
        state = {
            "model": self.model.state_dict(),
            "buffer": self.rig.buffer.state_dict(),
            "loader": self.loader.state_dict(),
        }
        publish(state, root)

    def restore(self, checkpoint: Path, *, load_replay_buffer: bool) -> None:
        state = torch.load(checkpoint / "state.pt")
        self.model.load_state_dict(state["model"])
        if load_replay_buffer:
            self.rig.buffer.load_state_dict(state["buffer"])
        self.loader.load_state_dict(state["loader"])


# --- the new way --------------------------------------------------------------------------------


class NewWay(Collector):
    """Saves the place of the oldest batch that is not trained to its end.

    After a restart that batch comes again, and all that came after it. What is trained or
    buffered already is not asked for again.
    """

    def __init__(self, rig: Rig) -> None:
        super().__init__(rig)
        self.loader = make_loader(rig)
        self.model = torch.nn.Linear(2, 1)
        rig.trainer.attach(self.model)
        # Before each batch: the number of its first prompt, and the loader's state.
        self.places: list[tuple[int, Any]] = [(0, None)]
        self.trained: set[int] = set()
        self.restored: set[int] = set()

    def start(self) -> None:
        threading.Thread(target=self.collect, daemon=True).start()

    def collect(self) -> None:
        for batch in self.loader:
            first, _ = self.places[-1]
            self.places.append((first + len(batch), self.loader.state_dict()))
            for number, prompt in enumerate(batch, start=first):
                if number not in self.trained and number not in self.restored:
                    answer = self.rig.engine.submit(prompt)
                    answer.add_done_callback(partial(self.answered, number))

    def answered(self, number: int, answer: Future[Rollout]) -> None:
        self.rig.buffer.add(dataclasses.replace(answer.result(), tag=number))

    def train_step(self) -> bool:
        rollouts = self.rig.trainer.step()
        self.trained.update(rollout.tag for rollout in rollouts or ())
        return bool(rollouts)

    def save(self, root: Path, step: int) -> None:
        oldest = next(number for number in count() if number not in self.trained)
        state = {
            "model": self.model.state_dict(),
            "buffer": self.rig.buffer.state_dict(),
            "place": [place for place in self.places if place[0] <= oldest][-1],
            "trained": sorted(self.trained),
        }
        publish(state, root)

    def restore(self, checkpoint: Path, *, load_replay_buffer: bool) -> None:
        state = torch.load(checkpoint / "state.pt")
        self.model.load_state_dict(state["model"])
        if load_replay_buffer:
            self.rig.buffer.load_state_dict(state["buffer"])
            self.restored = {rollout["tag"] for rollout in state["buffer"]["rollouts"]}
        self.trained = set(state["trained"])
        self.places = [state["place"]]
        _, place = state["place"]
        if place is not None:
            self.loader.load_state_dict(place)


# --- what both share ----------------------------------------------------------------------------


def make_loader(rig: Rig) -> Any:
    """A real loader; the audit watches which rows of the data set it hands out."""
    loader = stateful_dataloader.StatefulDataLoader(
        rig.prompts, batch_size=rig.setup.batch_size, collate_fn=list
    )
    return rig.watch(loader, key=rows)


def rows(batch: list[Prompt]) -> list[int]:
    return [prompt.row for prompt in batch]


def publish(state: dict[str, Any], root: Path) -> None:
    """Write a checkpoint, which gets its name when all of it is there."""
    unfinished = root / "unfinished"
    unfinished.mkdir(exist_ok=True)
    torch.save(state, unfinished / "state.pt")
    unfinished.rename(root / f"checkpoint_{len([*root.glob('checkpoint_*')])}")


# --- the tests ----------------------------------------------------------------------------------


@pytest.mark.resume_audit(OldWay, timelines=["clean", "idle-save"])
def test_the_old_way_looks_right(resume_audit: ResumeAudit) -> None:
    """It is: while nothing crashes, and when nothing is in flight at the save."""
    resume_audit()


@pytest.mark.xfail(reason="what is in flight at the save is lost", raises=AssertionError)
@pytest.mark.resume_audit(OldWay, timelines="mid-flight")
def test_the_old_way(resume_audit: ResumeAudit) -> None:
    """Fails. Take off the first mark, and so does the test run."""
    resume_audit()


@pytest.mark.resume_audit(OldWay, timelines="mid-flight")
def test_a_known_loss(resume_audit: ResumeAudit) -> None:
    """A loss that is known, and to be just this one until it is repaired."""
    report = resume_audit(expect="lossy")
    assert_skipped(report, [5, 8, 9, 11])


@pytest.mark.resume_audit(
    NewWay,
    timelines=[
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
        "end-of-data",
    ],
)
def test_the_new_way(resume_audit: ResumeAudit) -> None:
    """Loses and repeats nothing, wherever the run is saved and crashes."""
    resume_audit()
