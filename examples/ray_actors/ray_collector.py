"""A collector made of Ray actors, in the old way and in the new way.

It has the parts that verl, SkyRL, AReaL and ROLL have, each where these have it:

- `Collection`, an actor, has the loader. Prompts get their numbers here, as this is the only place
  that sees them in the order of the stream, and one task a batch is sent out from here.
- `answer`, a task, has a batch answered. This is where generation is gated: an answer is ready when
  the audit says so, and the task waits for it in a worker of its own.
- `Buffer`, an actor, keeps the answers until a step takes them.
- The collector itself is what calls the three: the life. A step is seen where it takes rollouts out
  of the buffer and trains the weights, and a checkpoint is written here. A crash is the end of this
  one, by `ray.kill` or by the death of the driver: its actors and their tasks end with it, and
  nothing is left but the checkpoint.

The rig goes to all of them as an argument: it works wherever it comes to.
"""

from __future__ import annotations

import os
import pickle
import threading
from concurrent.futures import as_completed
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from pytest_resume_audit import Collector, Prompt, Rig, Rollout

ray = pytest.importorskip("ray", reason="the collector is made of Ray actors")

# --- the actors ---------------------------------------------------------------------------------


@ray.remote(num_cpus=0)
class Buffer:
    """Answers that wait for a step, by the numbers of their prompts."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.rollouts: dict[int, Rollout] = {}

    def add(self, number: int, rollout: Rollout) -> None:
        self.rollouts[number] = rollout
        self.rig.buffered(rollout)

    def load(self, rollouts: dict[int, Rollout]) -> None:
        for number, rollout in rollouts.items():
            self.add(number, rollout)

    def content(self) -> dict[int, Rollout]:
        return self.rollouts

    def take(self, most: int) -> dict[int, Rollout]:
        """The lowest of them, which are no longer here then."""
        return {number: self.rollouts.pop(number) for number in sorted(self.rollouts)[:most]}


@ray.remote(num_cpus=0)
def answer(rig: Rig, numbered: dict[int, Prompt], buffer: Any) -> None:
    """Have a batch answered; each answer goes to the buffer as soon as it is ready."""
    answers = {rig.engine.submit(prompt): number for number, prompt in numbered.items()}
    for ready in as_completed(answers):
        ray.get(buffer.add.remote(answers[ready], ready.result()))


@ray.remote(num_cpus=0)
class Collection:
    """Takes batches from the loader, and sends a task out for each."""

    def __init__(self, rig: Rig, buffer: Any) -> None:
        self.rig = rig
        self.buffer = buffer
        self.known: set[int] = set()
        # Before each batch: the number of its first prompt, and the loader's state.
        self.places: list[tuple[int, Any]] = [(0, None)]
        self.tasks: list[Any] = []
        self.ended = False

    def start(self) -> None:
        self.thread = threading.Thread(target=self.collect, daemon=True)
        self.thread.start()

    def collect(self) -> None:
        for batch in self.rig.loader:
            first, _ = self.places[-1]
            self.places.append((first + len(batch), self.rig.loader.state_dict()))
            numbered = dict(enumerate(batch, start=first))
            new = {number: p for number, p in numbered.items() if number not in self.known}
            if new:
                self.tasks.append(answer.remote(self.rig, new, self.buffer))
        self.ended = True

    def go_to(self, place: tuple[int, Any], known: set[int]) -> None:
        """Go on at a place; what is known there is not asked for again."""
        self.places, self.known = [place], known
        if place[1] is not None:
            self.rig.loader.load_state_dict(place[1])

    def live_place(self) -> tuple[int, Any]:
        return self.places[-1]

    def place_of(self, number: int) -> tuple[int, Any]:
        """The place of the batch that has a number."""
        return [place for place in self.places if place[0] <= number][-1]

    def idle(self) -> bool:
        """Whether all that the loader has is answered."""
        answered, _ = ray.wait(self.tasks, num_returns=len(self.tasks), timeout=0)
        return self.ended and len(answered) == len(self.tasks)


# --- the collector --------------------------------------------------------------------------------


class OldWay(Collector):
    """Saves the loader's place as it is at that moment."""

    def __init__(self, rig: Rig) -> None:
        super().__init__(rig)
        # In an actor Ray is there already; as a driver it finds the cluster by RAY_ADDRESS.
        if not ray.is_initialized():
            ray.init(log_to_driver=False)
        self.buffer = Buffer.remote(rig)
        self.collection = Collection.remote(rig, self.buffer)
        self.trained: set[int] = set()

    def start(self) -> None:
        ray.get(self.collection.start.remote())

    def train_step(self) -> bool:
        size = self.rig.setup.prompts_per_step
        waiting = ray.get(self.buffer.content.remote())
        if not waiting or (len(waiting) < size and not ray.get(self.collection.idle.remote())):
            return False
        batch = ray.get(self.buffer.take.remote(size))
        self.rig.trainer.train(batch.values())
        self.trained.update(batch)
        return True

    def save(self, root: Path, step: int) -> None:
        state = {
            "weights": self.rig.trainer.state_dict(),
            "buffer": ray.get(self.buffer.content.remote()),
            "trained": self.trained,
            "place": self.place_to_save(),
        }
        publish(state, root)

    def place_to_save(self) -> tuple[int, Any]:
        place: tuple[int, Any] = ray.get(self.collection.live_place.remote())
        return place

    def restore(self, checkpoint: Path, *, load_replay_buffer: bool) -> None:
        state = pickle.loads((checkpoint / "state.pkl").read_bytes())
        self.rig.trainer.load_state_dict(state["weights"])
        self.trained = state["trained"]
        buffered = state["buffer"] if load_replay_buffer else {}
        ray.get(self.buffer.load.remote(buffered))
        ray.get(self.collection.go_to.remote(state["place"], self.trained | set(buffered)))


class NewWay(OldWay):
    """Saves the place of the oldest batch that is not trained to its end.

    After a restart that batch comes again, and all that came after it. What is trained or buffered
    already is not asked for again.
    """

    def place_to_save(self) -> tuple[int, Any]:
        oldest = next(number for number in count() if number not in self.trained)
        place: tuple[int, Any] = ray.get(self.collection.place_of.remote(oldest))
        return place


# --- the files ------------------------------------------------------------------------------------


def publish(state: dict[str, Any], root: Path) -> None:
    """Write a checkpoint under another name first, so that none is ever there in part."""
    number = 1 + max((int(path.name) for path in root.glob("[0-9]*")), default=0)
    unfinished = root / f".{number}"
    unfinished.mkdir(exist_ok=True)
    (unfinished / "state.pkl").write_bytes(pickle.dumps(state))
    os.rename(unfinished, root / str(number))
