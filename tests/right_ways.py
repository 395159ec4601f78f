"""Right ways to survive a crash, each a small program of its own: none of them may be blamed.

They have their files in common, and nothing else: :class:`OnDisk` publishes a checkpoint whole, and
refuses one that is of other sizes.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from pytest_resume_audit import Collector, Prompt, Rig, Rollout
from pytest_resume_audit.collectors import checkpoints
from pytest_resume_audit.collectors.checkpoints import ResumeRefused
from pytest_resume_audit.control import GenerationFailed


class OnDisk(Collector):
    """Where checkpoints are, and what they can't be resumed without."""

    refuses = (ResumeRefused,)

    def publish(self, root: Path, step: int, parts: dict[str, Any]) -> None:
        checkpoints.publish(root, {"sizes": self.sizes(), **parts}, step=step)

    def parts_of(self, checkpoint: Path) -> dict[str, Any]:
        """The parts of a checkpoint; its weights are restored."""
        parts = checkpoints.read(checkpoint)
        if parts["sizes"] != self.sizes():
            raise ResumeRefused(f"it is of {parts['sizes']}, and this run of {self.sizes()}")
        self.rig.trainer.load_state_dict(parts["weights"])
        return parts

    def sizes(self) -> list[Any]:
        setup = self.rig.setup
        return [self.rig.prompts.fingerprint, setup.group_size, setup.capacity]

    @classmethod
    def latest(cls, root: Path) -> Path | None:
        return checkpoints.newest_complete(root)


# -- an event loop -------------------------------------------------------------------------------


class Tasks(OnDisk):
    """A task for each prompt, and a ledger of all that are not in the buffer yet.

    Between two awaits nothing else runs, so whatever is noted without one is of one moment.
    """

    def __init__(self, rig: Rig) -> None:
        super().__init__(rig)
        self.ledger: dict[int, int] = {}
        self.epoch = self.drawn = self.flying = 0
        self.loader_state = rig.loader.state_dict()
        self.unsent = 0

    async def start(self) -> None:
        self.changed = asyncio.Condition()
        self.tasks: set[asyncio.Task[None]] = set()
        self.unsent = len(self.ledger)
        for number, row in sorted(self.ledger.items()):
            self.spawn(self.answer(number, self.rig.prompts[row]))
        self.spawn(self.collect())

    def spawn(self, work: Any) -> None:
        self.tasks.add(asyncio.create_task(work))

    async def until(self, ready: Callable[[], bool]) -> None:
        async with self.changed:
            await self.changed.wait_for(ready)

    async def tell(self) -> None:
        async with self.changed:
            self.changed.notify_all()

    async def collect(self) -> None:
        while self.epoch < self.rig.setup.passes:
            batches: AsyncIterator[list[Prompt]] = aiter(self.rig.loader)
            while True:
                await self.until(lambda: not self.unsent and self.has_room())
                batch = await anext(batches, None)
                if batch is None:
                    break
                self.loader_state = self.rig.loader.state_dict()
                self.unsent = len(batch)
                for prompt in batch:
                    self.ledger[self.drawn] = prompt.row
                    self.spawn(self.answer(self.drawn, prompt))
                    self.drawn += 1
            self.epoch += 1

    async def answer(self, number: int, prompt: Prompt) -> None:
        await self.until(self.has_room)
        self.unsent -= 1
        self.flying += 1
        generations = range(self.rig.setup.group_size)
        asked = [self.rig.engine.agenerate(prompt, generation) for generation in generations]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        self.flying -= 1
        del self.ledger[number]
        if all(isinstance(answer, Rollout) for answer in answers):
            for answer in answers:
                self.rig.buffer.add(replace(answer, tag=number))
        await self.tell()

    def has_room(self) -> bool:
        setup = self.rig.setup
        if setup.max_in_flight is not None and self.flying >= setup.max_in_flight:
            return False
        return setup.capacity is None or self.flying + len(self.rig.buffer) < setup.capacity

    async def train_step(self) -> bool:
        for old in self.rig.buffer.evict(self.rig.trainer.weight_version):
            if old.generation == 0:
                self.rig.dropped(old.prompt, "too old")
        trained = bool(self.rig.trainer.step())
        await self.tell()
        return trained

    async def save(self, root: Path, step: int) -> None:
        parts = {
            "weights": self.rig.trainer.state_dict(),
            "buffer": self.rig.buffer.state_dict(),
            "loader": [self.epoch, self.drawn, self.loader_state],
            "ledger": list(self.ledger.items()),
        }
        await asyncio.sleep(0)
        self.publish(root, step, parts)

    async def restore(self, checkpoint: Path, *, load_replay_buffer: bool) -> None:
        parts = self.parts_of(checkpoint)
        self.epoch, self.drawn, self.loader_state = parts["loader"]
        self.rig.loader.load_state_dict(self.loader_state)
        self.ledger = dict(parts["ledger"])
        if load_replay_buffer:
            self.rig.buffer.load_state_dict(parts["buffer"])
        else:
            self.ledger |= {r["tag"]: r["row"] for r in parts["buffer"]["rollouts"]}

    async def stop(self) -> None:
        for task in self.tasks:
            task.cancel()


# -- threads -------------------------------------------------------------------------------------


class Workers(OnDisk):
    """Workers at a queue, one generation after the other; saved are the prompts that are out."""

    def __init__(self, rig: Rig) -> None:
        super().__init__(rig)
        self.lock = threading.Lock()
        self.queue: queue.Queue[tuple[int, Prompt]] = queue.Queue()
        self.out: dict[int, int] = {}
        self.place = [0, 0, rig.loader.state_dict()]
        self.room = threading.Semaphore(rig.setup.capacity or rig.setup.total)

    def start(self) -> None:
        threading.Thread(target=self.draw, args=[sorted(self.out.items())], daemon=True).start()
        for _ in range(self.rig.setup.max_in_flight or self.rig.setup.total):
            threading.Thread(target=self.work, daemon=True).start()

    def draw(self, owed: list[tuple[int, int]]) -> None:
        epoch, number, _ = self.place
        for owing, row in owed:
            self.room.acquire()
            self.queue.put((owing, self.rig.prompts[row]))
        while epoch < self.rig.setup.passes:
            for batch in self.rig.loader:
                state = self.rig.loader.state_dict()
                numbered = list(enumerate(batch, number))
                number += len(batch)
                with self.lock:
                    self.out.update((n, prompt.row) for n, prompt in numbered)
                    self.place = [epoch, number, state]
                for one in numbered:
                    self.room.acquire()
                    self.queue.put(one)
            epoch += 1

    def work(self) -> None:
        while True:
            number, prompt = self.queue.get()
            try:
                generations = range(self.rig.setup.group_size)
                answers = [self.rig.engine.generate(prompt, g) for g in generations]
            except GenerationFailed:
                answers = []
                self.room.release()
            with self.lock:
                del self.out[number]
                for answer in answers:
                    self.rig.buffer.add(replace(answer, tag=number))

    def train_step(self) -> bool:
        with self.lock:
            old = self.rig.buffer.evict(self.rig.trainer.weight_version)
            trained = self.rig.trainer.step() or []
        for rollout in old:
            if rollout.generation == 0:
                self.rig.dropped(rollout.prompt, "too old")
        for _ in range(len({rollout.tag for rollout in [*old, *trained]})):
            self.room.release()
        return bool(trained)

    def save(self, root: Path, step: int) -> None:
        with self.lock:
            parts = {
                "weights": self.rig.trainer.state_dict(),
                "buffer": self.rig.buffer.state_dict(),
                "out": list(self.out.items()),
                "place": self.place,
            }
        self.publish(root, step, parts)

    def restore(self, checkpoint: Path, *, load_replay_buffer: bool) -> None:
        parts = self.parts_of(checkpoint)
        self.place, self.out = parts["place"], dict(parts["out"])
        self.rig.loader.load_state_dict(self.place[2])
        if load_replay_buffer:
            self.rig.buffer.load_state_dict(parts["buffer"])
            for _ in range(len(self.rig.buffer)):
                self.room.acquire()
        else:
            self.out.update((r["tag"], r["row"]) for r in parts["buffer"]["rollouts"])


class DrainsFirst(OnDisk):
    """Lets everything that is in flight end before it saves: then the live place is right.

    What is buffered has to be answered again where the buffer is not loaded, so its rows are saved.
    """

    def __init__(self, rig: Rig) -> None:
        super().__init__(rig)
        self.changed = threading.Condition()
        self.place: list[Any] = [0, rig.loader.state_dict()]
        self.waiting: deque[Prompt] = deque()
        self.flying: dict[int, list[Rollout | None]] = {}
        self.tickets = count()

    def start(self) -> None:
        with self.changed:
            self.send()
        threading.Thread(target=self.draw, daemon=True).start()

    def draw(self) -> None:
        for epoch in range(self.place[0], self.rig.setup.passes):
            batches = iter(self.rig.loader)
            while True:
                with self.changed:
                    self.changed.wait_for(lambda: not self.waiting and self.has_room())
                batch = next(batches, None)
                state = self.rig.loader.state_dict()
                if batch is None:
                    break
                with self.changed:
                    self.place = [epoch, state]
                    self.waiting.extend(batch)
                    self.send()

    def has_room(self) -> bool:
        setup = self.rig.setup
        few = setup.max_in_flight is None or len(self.flying) < setup.max_in_flight
        out = len(self.flying) + len(self.rig.buffer)
        return few and (setup.capacity is None or out < setup.capacity)

    def send(self) -> None:
        while self.waiting and self.has_room():
            prompt, ticket = self.waiting.popleft(), next(self.tickets)
            self.flying[ticket] = []
            for generation in range(self.rig.setup.group_size):
                answer = self.rig.engine.submit(prompt, generation)
                answer.add_done_callback(partial(self.answered, ticket))
        self.changed.notify_all()

    def answered(self, ticket: int, answer: Future[Rollout]) -> None:
        with self.changed:
            answers = self.flying[ticket]
            answers.append(None if answer.exception() else answer.result())
            if len(answers) < self.rig.setup.group_size:
                return
            del self.flying[ticket]
            whole = [rollout for rollout in answers if rollout is not None]
            for rollout in whole if len(whole) == len(answers) else ():
                self.rig.buffer.add(rollout)
            self.send()

    def train_step(self) -> bool:
        with self.changed:
            for old in self.rig.buffer.evict(self.rig.trainer.weight_version):
                if old.generation == 0:
                    self.rig.dropped(old.prompt, "too old")
            trained = bool(self.rig.trainer.step())
            self.send()
        return trained

    def save(self, root: Path, step: int) -> None:
        with self.changed:
            self.changed.wait_for(lambda: not self.flying)
            parts = {
                "weights": self.rig.trainer.state_dict(),
                "buffer": self.rig.buffer.state_dict(),
                # A full buffer keeps these out: they are not in flight, and don't end.
                "waiting": [prompt.row for prompt in self.waiting],
                "place": self.place,
            }
        self.publish(root, step, parts)

    def restore(self, checkpoint: Path, *, load_replay_buffer: bool) -> None:
        parts = self.parts_of(checkpoint)
        self.place = parts["place"]
        self.rig.loader.load_state_dict(self.place[1])
        if load_replay_buffer:
            self.rig.buffer.load_state_dict(parts["buffer"])
        else:
            first = [r["row"] for r in parts["buffer"]["rollouts"] if r["generation"] == 0]
            self.waiting.extend(self.rig.prompts[row] for row in first)
        self.waiting.extend(self.rig.prompts[row] for row in parts["waiting"])


class ByArrival(OnDisk):
    """Trains what has come first, from a queue of its own; a pool has a thread for each answer."""

    def __init__(self, rig: Rig) -> None:
        super().__init__(rig)
        self.changed = threading.Condition()
        self.pool = ThreadPoolExecutor(rig.setup.total * rig.setup.group_size)
        self.arrived: deque[list[Rollout]] = deque()
        self.out: dict[int, int] = {}
        self.flying = 0
        self.place = [0, 0, rig.loader.state_dict()]
        self.ended = False

    def start(self) -> None:
        threading.Thread(target=self.draw, args=[sorted(self.out.items())], daemon=True).start()

    def draw(self, owed: list[tuple[int, int]]) -> None:
        for number, row in owed:
            self.send(number, self.rig.prompts[row])
        first, number, _ = self.place
        for epoch in range(first, self.rig.setup.passes):
            batches = iter(self.rig.loader)
            while True:
                self.wait_for_room()
                batch = next(batches, None)
                if batch is None:
                    break
                with self.changed:
                    self.place = [epoch, number + len(batch), self.rig.loader.state_dict()]
                    self.out.update((n, prompt.row) for n, prompt in enumerate(batch, number))
                for prompt in batch:
                    self.send(number, prompt)
                    number += 1
        self.ended = True

    def wait_for_room(self) -> None:
        limit, capacity = self.rig.setup.max_in_flight, self.rig.setup.capacity
        with self.changed:
            self.changed.wait_for(
                lambda: (
                    (limit is None or self.flying < limit)
                    and (capacity is None or self.flying + len(self.arrived) < capacity)
                )
            )

    def send(self, number: int, prompt: Prompt) -> None:
        self.wait_for_room()
        answers: list[Rollout | None] = []
        with self.changed:
            self.flying += 1
        for generation in range(self.rig.setup.group_size):
            self.pool.submit(self.generate, number, prompt, generation, answers)

    def generate(
        self, number: int, prompt: Prompt, generation: int, answers: list[Rollout | None]
    ) -> None:
        try:
            answer = replace(self.rig.engine.generate(prompt, generation), tag=number)
        except GenerationFailed:
            answer = None
        with self.changed:
            answers.append(answer)
            if len(answers) < self.rig.setup.group_size:
                return
            self.flying -= 1
            del self.out[number]
            group = [rollout for rollout in answers if rollout is not None]
            if len(group) == len(answers):
                self.arrive(group)
            self.changed.notify_all()

    def arrive(self, group: list[Rollout]) -> None:
        self.arrived.append(group)
        for rollout in group:
            self.rig.buffered(rollout)

    def train_step(self) -> bool:
        setup, version = self.rig.setup, self.rig.trainer.weight_version
        with self.changed:
            for group in list(self.arrived):
                oldest = min(rollout.weight_version for rollout in group)
                if setup.max_age is not None and version - oldest > setup.max_age:
                    self.arrived.remove(group)
                    self.rig.dropped(group[0].prompt, "too old")
            last = self.ended and not self.out
            many = min(len(self.arrived), setup.prompts_per_step)
            if not many or (many < setup.prompts_per_step and not last):
                return False
            due = [self.arrived.popleft() for _ in range(many)]
            self.rig.trainer.train([rollout for group in due for rollout in group])
            self.changed.notify_all()
            return True

    def save(self, root: Path, step: int) -> None:
        with self.changed:
            arrived = [
                [r.tag, r.prompt.row, r.generation, r.weight_version]
                for group in self.arrived
                for r in group
            ]
            parts = {
                "weights": self.rig.trainer.state_dict(),
                "arrived": arrived,
                "out": list(self.out.items()),
                "place": self.place,
            }
        self.publish(root, step, parts)

    def restore(self, checkpoint: Path, *, load_replay_buffer: bool) -> None:
        parts = self.parts_of(checkpoint)
        self.place, self.out = parts["place"], dict(parts["out"])
        self.rig.loader.load_state_dict(self.place[2])
        groups: dict[int, list[Rollout]] = {}
        for number, row, generation, version in parts["arrived"]:
            rollout = Rollout(self.rig.prompts[row], generation, version, number)
            groups.setdefault(number, []).append(rollout)
        for number, group in groups.items():
            if load_replay_buffer:
                self.arrive(group)
            else:
                self.out[number] = group[0].prompt.row

    def stop(self) -> None:
        self.pool.shutdown(wait=False, cancel_futures=True)


# -- no threads ----------------------------------------------------------------------------------


class ConsumedIds(OnDisk):
    """Keeps the ids of what is consumed, and goes through the pass once more from its start."""

    def __init__(self, rig: Rig) -> None:
        super().__init__(rig)
        self.consumed: set[str] = set()
        self.passed_over: set[str] = set()
        self.epoch = 0
        self.batches: Iterator[Sequence[Prompt]] | None = None
        self.waiting: deque[tuple[str, Prompt]] = deque()
        self.out: dict[str, list[Rollout | None]] = {}
        self.open: dict[int, set[str]] = {}

    def start(self) -> None:
        pass

    def pull(self) -> bool:
        if self.waiting or not self.has_room():
            return False
        while self.epoch < self.rig.setup.passes:
            if self.batches is None:
                self.batches = iter(self.rig.loader)
            batch = next(self.batches, None)
            if batch is not None:
                named = [(f"{self.epoch}-{prompt.row}", prompt) for prompt in batch]
                fresh = [(key, prompt) for key, prompt in named if key not in self.passed_over]
                self.open.setdefault(self.epoch, set()).update(key for key, _ in fresh)
                self.waiting.extend(fresh)
                self.send()
                return True
            self.epoch, self.batches = self.epoch + 1, None
        return False

    def has_room(self) -> bool:
        setup, out = self.rig.setup, len(self.out)
        few = setup.max_in_flight is None or out < setup.max_in_flight
        return few and (setup.capacity is None or out + len(self.rig.buffer) < setup.capacity)

    def send(self) -> None:
        while self.waiting and self.has_room():
            key, prompt = self.waiting.popleft()
            self.out[key] = []
            for generation in range(self.rig.setup.group_size):
                answer = self.rig.engine.submit(prompt, generation)
                answer.add_done_callback(partial(self.answered, key))

    def answered(self, key: str, answer: Future[Rollout]) -> None:
        answers = self.out[key]
        answers.append(None if answer.exception() else replace(answer.result(), tag=key))
        if len(answers) < self.rig.setup.group_size:
            return
        del self.out[key]
        if None in answers:
            self.consume({key})
        else:
            for rollout in filter(None, answers):
                self.rig.buffer.add(rollout)
        self.send()

    def train_step(self) -> bool:
        old = self.rig.buffer.evict(self.rig.trainer.weight_version)
        for rollout in old:
            if rollout.generation == 0:
                self.rig.dropped(rollout.prompt, "too old")
        trained = self.rig.trainer.step() or []
        self.consume({rollout.tag for rollout in [*old, *trained]})
        self.send()
        return bool(trained)

    def consume(self, keys: set[str]) -> None:
        self.consumed |= keys
        for open_keys in self.open.values():
            open_keys -= keys

    def save(self, root: Path, step: int) -> None:
        # After a restart it may not have come again to what is open in an earlier pass.
        first = min([self.epoch, *(epoch for epoch, keys in self.open.items() if keys)])
        parts = {
            "weights": self.rig.trainer.state_dict(),
            "buffer": self.rig.buffer.state_dict(),
            "consumed": sorted(self.consumed),
            "epoch": first,
        }
        self.publish(root, step, parts)

    def restore(self, checkpoint: Path, *, load_replay_buffer: bool) -> None:
        parts = self.parts_of(checkpoint)
        self.consumed, self.epoch = set(parts["consumed"]), parts["epoch"]
        self.passed_over = set(self.consumed)
        self.rig.loader.load_state_dict({"epoch": self.epoch, "yielded": 0})
        if load_replay_buffer:
            self.rig.buffer.load_state_dict(parts["buffer"])
            for rollout in parts["buffer"]["rollouts"]:
                self.passed_over.add(rollout["tag"])
                epoch = int(rollout["tag"].partition("-")[0])
                self.open.setdefault(epoch, set()).add(rollout["tag"])


class Oversamples(OnDisk):
    """Generates for two steps, trains on what ends first, and saves the surplus with its prompts.

    A prompt is one object all its way. Half a group is asked for again as a whole.
    """

    def __init__(self, rig: Rig) -> None:
        super().__init__(rig)
        self.loader_state = rig.loader.state_dict()
        self.begun: list[Sample] = []
        self.unsent: deque[Sample] = deque()
        self.ended = False
        self.source = self.samples()

    def samples(self) -> Iterator[list[Sample]]:
        while self.rig.loader.state_dict()["epoch"] < self.rig.setup.passes:
            for batch in self.rig.loader:
                self.loader_state = self.rig.loader.state_dict()
                yield [Sample(prompt) for prompt in batch]

    def start(self) -> None:
        self.send()

    def pull(self) -> bool:
        if self.unsent or self.is_full():
            return False
        drawn = next(self.source, None)
        if drawn is None:
            self.ended = True
            return False
        self.begun += drawn
        self.unsent.extend(drawn)
        self.send()
        return True

    def is_full(self) -> bool:
        setup = self.rig.setup
        out = sum(sample.flying > 0 for sample in self.begun)
        kept = sum(sample.is_whole(setup.group_size) for sample in self.begun)
        most = setup.capacity or setup.total
        return out >= (setup.max_in_flight or setup.total) or out + kept >= most

    def send(self) -> None:
        while self.unsent and not self.is_full():
            sample = self.unsent.popleft()
            sample.flying = self.rig.setup.group_size
            for generation in range(sample.flying):
                answer = self.rig.engine.submit(sample.prompt, generation)
                answer.add_done_callback(partial(self.answered, sample, generation))

    def answered(self, sample: Sample, generation: int, answer: Future[Rollout]) -> None:
        sample.flying -= 1
        if answer.exception() is None:
            sample.answers[generation] = answer.result()
        if sample.flying:
            return
        if sample.is_whole(self.rig.setup.group_size):
            self.keep(sample)
        else:
            self.begun.remove(sample)
        self.send()

    def keep(self, sample: Sample) -> None:
        for rollout in sample.answers.values():
            self.rig.buffered(rollout)

    def train_step(self) -> bool:
        setup, version = self.rig.setup, self.rig.trainer.weight_version
        ready = [sample for sample in self.begun if sample.is_whole(setup.group_size)]
        for sample in list(ready):
            if setup.max_age is not None and version - sample.oldest() > setup.max_age:
                self.rig.dropped(sample.prompt, "too old")
                self.begun.remove(sample)
                ready.remove(sample)
        due = ready[: setup.prompts_per_step]
        last = self.ended and len(ready) == len(self.begun)
        if not due or (len(due) < setup.prompts_per_step and not last):
            return False
        self.rig.trainer.train([answer for sample in due for answer in sample.answers.values()])
        self.begun = [sample for sample in self.begun if sample not in due]
        self.send()
        return True

    def save(self, root: Path, step: int) -> None:
        parts = {
            "weights": self.rig.trainer.state_dict(),
            "loader": self.loader_state,
            "begun": [self.saved(sample) for sample in self.begun],
        }
        self.publish(root, step, parts)

    def saved(self, sample: Sample) -> list[Any]:
        """Its row, and its answers if it has them all."""
        whole = sample.is_whole(self.rig.setup.group_size)
        return [sample.prompt.row, sample.versions() if whole else {}]

    def restore(self, checkpoint: Path, *, load_replay_buffer: bool) -> None:
        parts = self.parts_of(checkpoint)
        self.loader_state = parts["loader"]
        self.rig.loader.load_state_dict(self.loader_state)
        for row, versions in parts["begun"]:
            sample = Sample(self.rig.prompts[row])
            if load_replay_buffer:
                sample.answers = {
                    int(generation): Rollout(sample.prompt, int(generation), version)
                    for generation, version in versions.items()
                }
            self.begun.append(sample)
            if sample.is_whole(self.rig.setup.group_size):
                self.keep(sample)
            else:
                self.unsent.append(sample)


class Sample:
    """A prompt on its way, with its answers by generation."""

    def __init__(self, prompt: Prompt) -> None:
        self.prompt = prompt
        self.answers: dict[int, Rollout] = {}
        self.flying = 0

    def is_whole(self, size: int) -> bool:
        return len(self.answers) == size

    def oldest(self) -> int:
        return min(rollout.weight_version for rollout in self.answers.values())

    def versions(self) -> dict[int, int]:
        return {generation: r.weight_version for generation, r in self.answers.items()}


class PartOfAGroup(OnDisk):
    """Saves every answer, and asks only for those that a group still lacks.

    What is sent off is one generation, not a group; a table says what each prompt has and lacks.
    An answer may come in a thread of the engine's: a lock keeps table and buffer of one moment.
    """

    def __init__(self, rig: Rig) -> None:
        super().__init__(rig)
        self.lock = threading.RLock()
        self.batches: Iterator[Sequence[Prompt]] | None = None
        self.epoch = self.drawn = 0
        self.place = [0, 0, rig.loader.state_dict()]
        self.table: dict[int, tuple[Prompt, dict[int, Rollout]]] = {}
        self.lacks: deque[tuple[int, int]] = deque()
        self.asked: dict[int, set[int]] = {}
        self.failed: set[int] = set()

    def start(self) -> None:
        with self.lock:
            self.ask()

    def pull(self) -> bool:
        with self.lock:
            return self.draw()

    def draw(self) -> bool:
        if self.lacks or not self.has_room():
            return False
        while self.epoch < self.rig.setup.passes:
            self.batches = self.batches or iter(self.rig.loader)
            batch = next(self.batches, None)
            if batch is not None:
                for prompt in batch:
                    self.enter(self.drawn, prompt, {})
                    self.drawn += 1
                self.place = [self.epoch, self.drawn, self.rig.loader.state_dict()]
                self.ask()
                return True
            self.epoch, self.batches = self.epoch + 1, None
        return False

    def enter(self, number: int, prompt: Prompt, answers: dict[int, Rollout]) -> None:
        self.table[number] = prompt, answers
        size = self.rig.setup.group_size
        self.lacks.extend((number, g) for g in range(size) if g not in answers)

    def has_room(self) -> bool:
        setup, out = self.rig.setup, len(self.asked)
        few = setup.max_in_flight is None or out < setup.max_in_flight
        return few and (setup.capacity is None or out + len(self.rig.buffer) < setup.capacity)

    def ask(self) -> None:
        while self.lacks and (self.lacks[0][0] in self.asked or self.has_room()):
            number, generation = self.lacks.popleft()
            self.asked.setdefault(number, set()).add(generation)
            prompt, _ = self.table[number]
            answer = self.rig.engine.submit(prompt, generation)
            answer.add_done_callback(partial(self.answered, number, generation))

    def answered(self, number: int, generation: int, answer: Future[Rollout]) -> None:
        with self.lock:
            self.take_in(number, generation, answer)

    def take_in(self, number: int, generation: int, answer: Future[Rollout]) -> None:
        _, answers = self.table[number]
        if answer.exception() is None:
            answers[generation] = replace(answer.result(), tag=number)
        else:
            self.failed.add(number)
        self.asked[number].discard(generation)
        if not self.asked[number] and all(lacking != number for lacking, _ in self.lacks):
            del self.asked[number], self.table[number]
            if number not in self.failed:
                for rollout in answers.values():
                    self.rig.buffer.add(rollout)
        self.ask()

    def train_step(self) -> bool:
        with self.lock:
            for old in self.rig.buffer.evict(self.rig.trainer.weight_version):
                if old.generation == 0:
                    self.rig.dropped(old.prompt, "too old")
            trained = bool(self.rig.trainer.step())
            self.ask()
        return trained

    def save(self, root: Path, step: int) -> None:
        with self.lock:
            parts = {
                "weights": self.rig.trainer.state_dict(),
                "buffer": self.rig.buffer.state_dict(),
                "table": [
                    [number, prompt.row, [[g, r.weight_version] for g, r in answers.items()]]
                    for number, (prompt, answers) in self.table.items()
                    # One with a failure is given up, whatever else comes.
                    if number not in self.failed
                ],
                "place": self.place,
            }
        self.publish(root, step, parts)

    def restore(self, checkpoint: Path, *, load_replay_buffer: bool) -> None:
        parts = self.parts_of(checkpoint)
        self.place = parts["place"]
        self.epoch, self.drawn, state = self.place
        self.rig.loader.load_state_dict(state)
        rows = {number: row for number, row, _ in parts["table"]}
        answers = {number: dict(known) for number, _, known in parts["table"]}
        if load_replay_buffer:
            self.rig.buffer.load_state_dict(parts["buffer"])
        else:
            rows |= {r["tag"]: r["row"] for r in parts["buffer"]["rollouts"]}
        for number, row in sorted(rows.items()):
            prompt = self.rig.prompts[row]
            known = answers.get(number, {}).items()
            self.enter(number, prompt, {g: Rollout(prompt, g, v, number) for g, v in known})


class Retries(OnDisk):
    """Polls its futures when it is asked for something, and tries again what has failed."""

    def __init__(self, rig: Rig) -> None:
        super().__init__(rig)
        self.source = self.prompts()
        self.loader_state = rig.loader.state_dict()
        self.owed: deque[Prompt] = deque()
        self.jobs: list[tuple[Prompt, list[Future[Rollout]]]] = []

    def prompts(self) -> Iterator[Sequence[Prompt]]:
        while self.rig.loader.state_dict()["epoch"] < self.rig.setup.passes:
            for batch in self.rig.loader:
                self.loader_state = self.rig.loader.state_dict()
                yield batch

    def start(self) -> None:
        self.poll()

    def pull(self) -> bool:
        moved = self.poll()
        if not self.owed and self.has_room() and (batch := next(self.source, None)):
            self.owed.extend(batch)
            moved = self.poll() or True
        return moved

    def poll(self) -> bool:
        """Take in what has ended, and send off what there is room for."""
        moved = False
        for job in list(self.jobs):
            prompt, answers = job
            for generation, answer in enumerate(answers):
                if answer.done() and answer.exception() is not None:
                    answers[generation] = self.rig.engine.submit(prompt, generation)
                    moved = True
            if all(answer.done() for answer in answers):
                self.jobs.remove(job)
                for answer in answers:
                    self.rig.buffer.add(answer.result())
                moved = True
        while self.owed and self.has_room():
            prompt = self.owed.popleft()
            generations = range(self.rig.setup.group_size)
            self.jobs.append((prompt, [self.rig.engine.submit(prompt, g) for g in generations]))
            moved = True
        return moved

    def has_room(self) -> bool:
        setup, out = self.rig.setup, len(self.jobs)
        few = setup.max_in_flight is None or out < setup.max_in_flight
        return few and (setup.capacity is None or out + len(self.rig.buffer) < setup.capacity)

    def train_step(self) -> bool:
        self.poll()
        for old in self.rig.buffer.evict(self.rig.trainer.weight_version):
            if old.generation == 0:
                self.rig.dropped(old.prompt, "too old")
        trained = bool(self.rig.trainer.step())
        self.poll()
        return trained

    def save(self, root: Path, step: int) -> None:
        self.poll()
        rows = [prompt.row for prompt, _ in self.jobs] + [prompt.row for prompt in self.owed]
        parts = {
            "weights": self.rig.trainer.state_dict(),
            "buffer": self.rig.buffer.state_dict(),
            "loader": self.loader_state,
            "owed": rows,
        }
        self.publish(root, step, parts)

    def restore(self, checkpoint: Path, *, load_replay_buffer: bool) -> None:
        parts = self.parts_of(checkpoint)
        self.loader_state = parts["loader"]
        self.rig.loader.load_state_dict(self.loader_state)
        rows = parts["owed"]
        if load_replay_buffer:
            self.rig.buffer.load_state_dict(parts["buffer"])
        else:
            rollouts = parts["buffer"]["rollouts"]
            rows = [r["row"] for r in rollouts if r["generation"] == 0] + rows
        self.owed.extend(self.rig.prompts[row] for row in rows)
