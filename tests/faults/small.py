"""Small right ways, which the faults vary in one place each.

:class:`Small` saves the prompts that are out by themselves. :class:`Rewinding` saves none of them,
and hands out once more what is not settled. Both are driven by ``pull``; :class:`Threaded` is the
first one with a thread.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from pytest_resume_audit import Collector, Prompt, Rig, Rollout
from pytest_resume_audit.collectors import checkpoints
from pytest_resume_audit.collectors.checkpoints import ResumeRefused


@dataclass(eq=False)
class Group:
    """A prompt in flight.

    Args:
        number: of the prompt, in the order in which they were drawn.
        prompt: what is answered.
        out: generations that have not ended.
        answers: of those that have.
    """

    number: int
    prompt: Prompt
    out: int
    answers: list[Rollout] = field(default_factory=list)


class Small(Collector):
    """Saves weights, buffer, the loader's place, and the prompts behind it that are still out.

    Without a thread: nothing happens between two lines of it. What is out at the save is sent off
    first of all after a restart, so it does not matter that the loader can't go back.
    """

    refuses = (ResumeRefused,)

    def __init__(self, rig: Rig) -> None:
        super().__init__(rig)
        self.lock: AbstractContextManager[object] = nullcontext()
        self.loader = self.make_loader()
        self.batches: Iterator[Sequence[Prompt]] | None = None
        self.epoch = 0
        self.drawn = 0
        self.place = self.here(self.loader.state_dict())
        self.waiting: deque[tuple[int, Prompt]] = deque()
        self.flying: list[Group] = []

    def make_loader(self) -> Any:
        return self.rig.loader

    # -- drawing -----------------------------------------------------------------------------

    def start(self) -> None:
        with self.lock:
            self.dispatch()

    def pull(self) -> bool:
        if not self.may_draw():
            return False
        batch = self.draw()
        if batch is None:
            return False
        self.take_in(batch, self.loader.state_dict())
        return True

    def may_draw(self) -> bool:
        return not self.waiting and self.has_room()

    def draw(self) -> Sequence[Prompt] | None:
        """The next batch; None at the end of the last pass."""
        while self.epoch < self.rig.setup.passes:
            if self.batches is None:
                self.batches = iter(self.loader)
            batch = next(self.batches, None)
            if batch is not None:
                return batch
            self.epoch, self.batches = self.epoch + 1, None
        return None

    def take_in(self, batch: Sequence[Prompt], state: Any) -> None:
        """Number a batch, and send off what there is room for."""
        self.waiting.extend(self.wanted(enumerate(batch, self.drawn)))
        self.drawn += len(batch)
        self.place = self.here(state)
        self.dispatch()

    def wanted(self, batch: Iterable[tuple[int, Prompt]]) -> Iterable[tuple[int, Prompt]]:
        return batch

    def here(self, state: Any) -> dict[str, Any]:
        return {"epoch": self.epoch, "drawn": self.drawn, "loader": state}

    # -- answers -----------------------------------------------------------------------------

    def has_room(self) -> bool:
        setup, flying = self.rig.setup, self.in_flight()
        if setup.max_in_flight is not None and flying >= setup.max_in_flight:
            return False
        return setup.capacity is None or flying + len(self.rig.buffer) < setup.capacity

    def in_flight(self) -> int:
        return len(self.flying)

    def dispatch(self) -> None:
        while self.waiting and self.has_room():
            self.send(*self.waiting.popleft())

    def send(self, number: int, prompt: Prompt) -> None:
        size = self.rig.setup.group_size
        group = Group(number, prompt, size)
        self.flying.append(group)
        for generation in range(size):
            answer = self.rig.engine.submit(prompt, generation)
            answer.add_done_callback(partial(self.answered, group))

    def answered(self, group: Group, answer: Future[Rollout]) -> None:
        with self.lock:
            group.out -= 1
            if answer.exception() is None:
                group.answers.append(answer.result())
            if not group.out:
                self.flying.remove(group)
                self.ended(group)
                self.dispatch()

    def ended(self, group: Group) -> None:
        """Buffer a group that is whole; of one that failed nothing is left to do."""
        if len(group.answers) < self.rig.setup.group_size:
            self.settle([group.number])
            return
        for rollout in group.answers:
            self.buffer(rollout, group.number)

    def buffer(self, rollout: Rollout, number: int) -> None:
        tagged = Rollout(
            rollout.prompt, rollout.generation, rollout.weight_version, number, rollout.ticket
        )
        self.rig.buffer.add(tagged)

    # -- steps -------------------------------------------------------------------------------

    def train_step(self) -> bool:
        with self.lock:
            self.drop_stale()
            rollouts = self.step()
            self.settle({rollout.tag for rollout in rollouts})
            self.dispatch()
        return bool(rollouts)

    def step(self) -> list[Rollout]:
        return self.rig.trainer.step() or []

    def drop_stale(self) -> None:
        for rollout in self.rig.buffer.evict(self.rig.trainer.weight_version):
            if rollout.generation == 0:
                self.rig.dropped(rollout.prompt, "too old")
                self.settle([rollout.tag])

    def settle(self, numbers: Iterable[int]) -> None:
        """Note prompts that are trained, failed or dropped."""

    # -- save and restore --------------------------------------------------------------------

    def save(self, root: Path, step: int) -> None:
        with self.lock:
            state = self.state()
        checkpoints.publish(root, state, step=step)

    def state(self) -> dict[str, Any]:
        return {
            "sizes": self.sizes(),
            "weights": self.rig.trainer.state_dict(),
            "buffer": self.rig.buffer.state_dict(),
            "place": self.place,
            "out": self.out(),
        }

    def sizes(self) -> list[Any]:
        """What a checkpoint can't be resumed without; the batches may be others."""
        return [self.rig.prompts.fingerprint, self.rig.setup.group_size]

    def out(self) -> list[tuple[int, int]]:
        """Number and row of what is drawn and not finished."""
        flying = [(group.number, group.prompt.row) for group in self.flying]
        return flying + [(number, prompt.row) for number, prompt in self.waiting]

    def restore(self, checkpoint: Path, *, load_replay_buffer: bool) -> None:
        state = self.read(checkpoint)
        if state["sizes"] != self.sizes():
            raise ResumeRefused(f"sizes were {state['sizes']}, and are {self.sizes()}")
        self.load(state, load_replay_buffer=load_replay_buffer)

    def read(self, checkpoint: Path) -> dict[str, Any]:
        return checkpoints.read(checkpoint)

    def load(self, state: dict[str, Any], *, load_replay_buffer: bool) -> None:
        self.rig.trainer.load_state_dict(state["weights"])
        self.load_buffer(state, load_replay_buffer=load_replay_buffer)
        self.go_to(state["place"])

    def load_buffer(self, state: dict[str, Any], *, load_replay_buffer: bool) -> None:
        """Load the buffer, or answer once more what was in it; and what was out in any case."""
        out = {(number, row) for number, row in state["out"]}
        if load_replay_buffer:
            no_room = self.rig.buffer.load_state_dict(state["buffer"])
            out |= {(rollout.tag, rollout.prompt.row) for rollout in no_room}
        else:
            out |= {(rollout["tag"], rollout["row"]) for rollout in state["buffer"]["rollouts"]}
        self.waiting.extend((number, self.rig.prompts[row]) for number, row in sorted(out))

    def go_to(self, place: dict[str, Any]) -> None:
        self.place, self.epoch, self.drawn = place, place["epoch"], place["drawn"]
        self.loader.load_state_dict(place["loader"])

    def place_of(self, number: int) -> dict[str, Any]:
        """The place of the loader before a prompt."""
        epoch, yielded = divmod(number, self.rig.setup.prompts_per_pass)
        state = {"epoch": epoch, "yielded": yielded}
        return {"epoch": epoch, "drawn": number, "loader": state}

    @classmethod
    def latest(cls, root: Path) -> Path | None:
        return checkpoints.newest_complete(root)


class Threaded(Small):
    """The same with a thread that draws, and a lock that is held while all is read for a save."""

    pull = Collector.pull

    def __init__(self, rig: Rig) -> None:
        super().__init__(rig)
        self.lock = self.changed = threading.Condition()

    def start(self) -> None:
        super().start()
        threading.Thread(target=self.collect, name="collection", daemon=True).start()

    def collect(self) -> None:
        while True:
            with self.changed:
                self.changed.wait_for(self.may_draw)
            batch = self.draw()
            if batch is None:
                return
            # Asked by the thread that draws, before it draws again: no other can tell whether
            # the loader stands before a batch or behind it.
            state = self.loader.state_dict()
            with self.changed:
                self.take_in(batch, state)

    def dispatch(self) -> None:
        super().dispatch()
        self.changed.notify_all()


class Rewinding(Small):
    """Saves what is settled, and draws once more from the first prompt that is not.

    What comes round again, and is settled or waits in the restored buffer, is thrown away.
    """

    def __init__(self, rig: Rig) -> None:
        super().__init__(rig)
        self.settled: set[int] = set()
        self.known: set[int] = set()

    def settle(self, numbers: Iterable[int]) -> None:
        self.settled.update(numbers)

    def wanted(self, batch: Iterable[tuple[int, Prompt]]) -> Iterable[tuple[int, Prompt]]:
        return [(number, prompt) for number, prompt in batch if number not in self.known]

    def state(self) -> dict[str, Any]:
        return {**super().state(), "settled": sorted(self.settled)}

    def out(self) -> list[tuple[int, int]]:
        return []

    def load_buffer(self, state: dict[str, Any], *, load_replay_buffer: bool) -> None:
        self.settled = set(state["settled"])
        self.known = set(self.settled)
        if load_replay_buffer:
            no_room = {r.tag for r in self.rig.buffer.load_state_dict(state["buffer"])}
            self.known |= {r["tag"] for r in state["buffer"]["rollouts"]} - no_room

    def go_to(self, place: dict[str, Any]) -> None:
        super().go_to(self.place_of(first_not_in(self.known)))

    def row_of(self, number: int) -> int:
        epoch, place = divmod(number, self.rig.setup.prompts_per_pass)
        return self.rig.setup.order(epoch)[place]


def first_not_in(numbers: set[int]) -> int:
    """The lowest number, from 0, that is not in a set."""
    return next(number for number in count() if number not in numbers)
