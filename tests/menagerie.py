"""Many kinds of collectors, each small and in a style of its own.

Their checkpoints are of two kinds. The old way keeps the loader's live place, and loses what is
in flight (:class:`OldWay`). The right way is the ``Frontier``'s, with the moving of prompts done
in another style (:class:`ResumableCollector`).
"""

from __future__ import annotations

import asyncio
import json
import queue
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

from pytest_resume_audit import Collector, Prompt, Rig, Rollout, SelfDrivenCollector, Setup
from pytest_resume_audit.collectors import checkpoints
from pytest_resume_audit.collectors.frontier import (
    Frontier,
    FrontierCollector,
    Place,
    ResumableCollector,
)
from pytest_resume_audit.control import GenerationFailed


def write(root: Path, step: int, parts: dict[str, Any]) -> Path:
    """A checkpoint of one file."""
    checkpoint = root / f"step_{step}"
    checkpoint.mkdir(exist_ok=True)
    (checkpoint / "state.json").write_text(json.dumps(parts))
    return checkpoint


def read(checkpoint: Path) -> dict[str, Any]:
    """What :func:`write` wrote."""
    parts: dict[str, Any] = json.loads((checkpoint / "state.json").read_text())
    return parts


class OldWay(Collector):
    """Weights, buffer, and the loader's live place."""

    def save(self, root: Path, step: int) -> None:
        write(root, step, self.parts())

    def parts(self) -> dict[str, Any]:
        rig = self.rig
        return {
            "weights": rig.trainer.state_dict(),
            "buffer": rig.buffer.state_dict(),
            "loader": rig.loader.state_dict(),
        }

    def restore(self, checkpoint: Path, *, load_replay_buffer: bool) -> None:
        parts = read(checkpoint)
        self.rig.trainer.load_state_dict(parts["weights"])
        self.rig.loader.load_state_dict(parts["loader"])
        if load_replay_buffer:
            self.rig.buffer.load_state_dict(parts["buffer"])


# -- event loops ---------------------------------------------------------------------------------


class SyncPullInLoop(OldWay):
    """A coroutine pulls from the loader without awaiting: its loop stands at the gate with it."""

    async def start(self) -> None:
        self.tasks = {asyncio.create_task(self.collect())}

    async def collect(self) -> None:
        for batch in self.rig.loader:
            self.tasks.update(asyncio.create_task(self.answer(prompt)) for prompt in batch)
            await asyncio.sleep(0)

    async def answer(self, prompt: Prompt) -> None:
        self.rig.buffer.add(await self.rig.engine.agenerate(prompt))


class AsyncIteration(OldWay):
    """``async for`` over the loader, a task for each answer; every method is a coroutine."""

    async def start(self) -> None:
        self.tasks = {asyncio.create_task(self.collect())}

    async def collect(self) -> None:
        async for batch in self.rig.loader:
            self.tasks.update(asyncio.create_task(self.answer(prompt)) for prompt in batch)

    async def answer(self, prompt: Prompt) -> None:
        self.rig.buffer.add(await self.rig.engine.agenerate(prompt))

    async def train_step(self) -> bool:
        await asyncio.sleep(0)
        return bool(self.rig.trainer.step())

    async def save(self, root: Path, step: int) -> None:
        await asyncio.sleep(0)
        write(root, step, self.parts())

    async def restore(self, checkpoint: Path, *, load_replay_buffer: bool) -> None:
        await asyncio.sleep(0)
        super().restore(checkpoint, load_replay_buffer=load_replay_buffer)

    async def stop(self) -> None:
        for task in self.tasks:
            task.cancel()


class AsyncPull(OldWay):
    """A coroutine ``pull``: the audit drives it, answers come in tasks."""

    async def start(self) -> None:
        self.batches = aiter(self.rig.loader)
        self.tasks: set[asyncio.Task[None]] = set()

    async def pull(self) -> bool:
        async for batch in self.batches:
            self.tasks.update(asyncio.create_task(self.answer(prompt)) for prompt in batch)
            return True
        return False

    async def answer(self, prompt: Prompt) -> None:
        self.rig.buffer.add(await self.rig.engine.agenerate(prompt))


class AsyncFrontier(ResumableCollector):
    """The right way in the audit's loop: the lock is that nothing else runs between awaits."""

    async def start(self) -> None:
        self.room = asyncio.Condition()
        self.tasks: set[asyncio.Task[None]] = {asyncio.create_task(self.collect())}

    async def collect(self) -> None:
        for _ in range(self.frontier.here.epoch, self.rig.setup.passes):
            batches = aiter(self.loader)
            while True:
                await self.until(self.may_pull)
                batch = await anext(batches, None)
                state = self.loader.state_dict()
                if batch is None:
                    self.frontier.end_pass(state)
                    break
                for ordinal, prompt in self.frontier.hand_out(batch, state):
                    await self.until(self.has_room)
                    self.begin(ordinal)
                    for generation in range(self.rig.setup.group_size):
                        answer = self.answer(ordinal, prompt, generation)
                        self.tasks.add(asyncio.create_task(answer))

    async def until(self, ready: Any) -> None:
        async with self.room:
            await self.room.wait_for(ready)

    async def answer(self, ordinal: int, prompt: Prompt, generation: int) -> None:
        ended: Rollout | GenerationFailed
        try:
            ended = await self.rig.engine.agenerate(prompt, generation)
        except GenerationFailed as failure:
            ended = failure
        self.generation_ended(ordinal, ended)
        await self.tell()

    async def train_step(self) -> bool:
        trained = super().train_step()
        await self.tell()
        return trained

    async def tell(self) -> None:
        async with self.room:
            self.room.notify_all()


class LoopInThread(AsyncFrontier):
    """The right way in a loop in a thread of its own; calls go there and wait for the result."""

    def start(self) -> None:
        self.running = threading.Event()
        threading.Thread(target=lambda: asyncio.run(self.main()), name="loop", daemon=True).start()
        self.running.wait()

    async def main(self) -> None:
        self.loop, self.ending = asyncio.get_running_loop(), asyncio.Event()
        await super().start()
        self.running.set()
        await self.ending.wait()
        for task in self.tasks:
            task.cancel()

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self.ending.set)

    def save(self, root: Path, step: int) -> None:
        async def save() -> None:
            super(LoopInThread, self).save(root, step)

        asyncio.run_coroutine_threadsafe(save(), self.loop).result()

    def train_step(self) -> bool:
        return asyncio.run_coroutine_threadsafe(super().train_step(), self.loop).result()


# -- threads -------------------------------------------------------------------------------------


class OneLock(OldWay):
    """Holds its one lock while it pulls, and while it saves."""

    def start(self) -> None:
        self.lock = threading.Lock()
        self.pool = ThreadPoolExecutor(16)
        threading.Thread(target=self.collect, daemon=True).start()

    def collect(self) -> None:
        batches = iter(self.rig.loader)
        while True:
            with self.lock:
                batch = next(batches, None)
            if batch is None:
                return
            for prompt in batch:
                self.pool.submit(self.answer, prompt)

    def answer(self, prompt: Prompt) -> None:
        self.rig.buffer.add(self.rig.engine.generate(prompt))

    def save(self, root: Path, step: int) -> None:
        with self.lock:
            super().save(root, step)

    def stop(self) -> None:
        self.pool.shutdown(wait=False, cancel_futures=True)


class OneLockFrontier(FrontierCollector):
    """The right way, with its lock held at the loader."""

    def _collect(self) -> None:
        for _ in range(self.frontier.here.epoch, self.rig.setup.passes):
            batches = iter(self.loader)
            while True:
                with self._changed:
                    self._wait_for(self.may_pull)
                    batch = next(batches, None)
                    state = self.loader.state_dict()
                    if batch is None:
                        self.frontier.end_pass(state)
                        break
                    wanted = self.frontier.hand_out(batch, state)
                for ordinal, prompt in wanted:
                    self._dispatch(ordinal, prompt)


class SleepPoller(OldWay):
    """A thread looks every 2 ms which answers have come in; another one pulls."""

    def start(self) -> None:
        self.stopping = threading.Event()
        self.waiting: list[Future[Rollout]] = []
        for target in (self.collect, self.poll):
            threading.Thread(target=target, daemon=True).start()

    def collect(self) -> None:
        for batch in self.rig.loader:
            self.waiting.extend(self.rig.engine.submit(prompt) for prompt in batch)

    def poll(self) -> None:
        while not self.stopping.is_set():
            for answer in [answer for answer in self.waiting if answer.done()]:
                self.waiting.remove(answer)
                self.rig.buffer.add(answer.result())
            self.pause()

    def pause(self) -> None:
        time.sleep(0.002)

    def stop(self) -> None:
        self.stopping.set()


class EventPoller(SleepPoller):
    """The same, asleep in ``Event.wait(0.003)``."""

    def pause(self) -> None:
        self.stopping.wait(0.003)


class BufferPoller(SleepPoller):
    """The same; it asks each time how much is buffered, which is known elsewhere."""

    def pause(self) -> None:
        self.most_buffered = max(self.most_buffered, len(self.rig.buffer))
        super().pause()

    def start(self) -> None:
        self.most_buffered = 0
        super().start()


class TimerPoller(SleepPoller):
    """The same, in a timer that is set again each time: every wait is in a thread of its own."""

    def poll(self) -> None:
        if not self.stopping.is_set():
            for answer in [answer for answer in self.waiting if answer.done()]:
                self.waiting.remove(answer)
                self.rig.buffer.add(answer.result())
            timer = threading.Timer(0.003, self.poll)
            timer.daemon = True
            timer.start()


class AsksItsWorker(SleepPoller):
    """The same; each time it asks another thread, and waits for what that one says."""

    def start(self) -> None:
        self.questions: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self.replies: queue.SimpleQueue[int] = queue.SimpleQueue()
        threading.Thread(target=self.reply, daemon=True).start()
        super().start()

    def reply(self) -> None:
        while (question := self.questions.get()) is not None:
            self.replies.put(question)

    def poll(self) -> None:
        try:
            super().poll()
        finally:
            self.questions.put(None)

    def pause(self) -> None:
        self.questions.put(len(self.waiting))
        self.replies.get()
        super().pause()


class BatchBarrier(OldWay):
    """A thread a batch waits for all of its answers, and buffers them together."""

    def start(self) -> None:
        threading.Thread(target=self.collect, daemon=True).start()

    def collect(self) -> None:
        for batch in self.rig.loader:
            answers = [self.rig.engine.submit(prompt) for prompt in batch]
            threading.Thread(target=self.buffer_all, args=[answers], daemon=True).start()

    def buffer_all(self, answers: list[Future[Rollout]]) -> None:
        for rollout in [answer.result() for answer in answers]:
            self.rig.buffer.add(rollout)


class OneBatchAtATime(BatchBarrier):
    """Pulls no batch before the last one is answered, buffered and trained."""

    def start(self) -> None:
        self.trained = threading.Semaphore(1)
        super().start()

    def collect(self) -> None:
        batches = iter(self.rig.loader)
        while self.trained.acquire() and (batch := next(batches, None)):
            self.buffer_all([self.rig.engine.submit(prompt) for prompt in batch])

    def train_step(self) -> bool:
        trained = super().train_step()
        if trained:
            self.trained.release()
        return trained


class Drains(OldWay):
    """Waits for all that is in flight before it saves: then the live place is right."""

    def start(self) -> None:
        self.changed = threading.Condition()
        self.in_flight = 0
        threading.Thread(target=self.collect, daemon=True).start()

    def collect(self) -> None:
        for batch in self.rig.loader:
            with self.changed:
                self.in_flight += len(batch)
            for prompt in batch:
                self.rig.engine.submit(prompt).add_done_callback(self.answered)

    def answered(self, answer: Future[Rollout]) -> None:
        with self.changed:
            self.rig.buffer.add(answer.result())
            self.in_flight -= 1
            self.changed.notify_all()

    def save(self, root: Path, step: int) -> None:
        with self.changed:
            self.changed.wait_for(lambda: not self.in_flight)
            super().save(root, step)


class Queues(OldWay):
    """Workers at queues, each with a timeout, as in code that looks at a stop flag."""

    def start(self) -> None:
        self.stopping = False
        self.prompts: queue.Queue[Prompt] = queue.Queue()
        self.answers: queue.Queue[Future[Rollout]] = queue.Queue()
        for target in (self.collect, self.dispatch, self.store):
            threading.Thread(target=target, daemon=True).start()

    def collect(self) -> None:
        for batch in self.rig.loader:
            for prompt in batch:
                self.prompts.put(prompt)

    def dispatch(self) -> None:
        for prompt in self.come_from(self.prompts, timeout=0.5):
            self.rig.engine.submit(prompt).add_done_callback(self.answers.put)

    def store(self) -> None:
        for answer in self.come_from(self.answers, timeout=0.7):
            self.rig.buffer.add(answer.result())

    def come_from(self, source: queue.Queue[Any], timeout: float) -> Iterator[Any]:
        while not self.stopping:
            try:
                yield source.get(timeout=timeout)
            except queue.Empty:
                continue

    def stop(self) -> None:
        self.stopping = True


class BackgroundWriter(FrontierCollector):
    """The right way, with the files of a checkpoint written by a thread that is waited for."""

    def save(self, root: Path, step: int) -> None:
        writer = threading.Thread(target=super().save, args=(root, step), name="writer")
        writer.start()
        writer.join()


class BlockingStep(OldWay):
    """``train_step`` blocks until there are enough groups, or no more can come."""

    def start(self) -> None:
        self.changed = threading.Condition()
        self.out = 0
        self.loaded = False
        threading.Thread(target=self.collect, daemon=True).start()

    def collect(self) -> None:
        for batch in self.rig.loader:
            with self.changed:
                self.out += len(batch)
            for prompt in batch:
                self.rig.engine.submit(prompt).add_done_callback(self.answered)
        with self.changed:
            self.loaded = True
            self.changed.notify_all()

    def answered(self, answer: Future[Rollout]) -> None:
        with self.changed:
            self.rig.buffer.add(answer.result())
            self.out -= 1
            self.changed.notify_all()

    def train_step(self) -> bool:
        with self.changed:
            self.changed.wait_for(self.enough)
            return bool(self.rig.trainer.step())

    def enough(self) -> bool:
        whole = len(self.rig.buffer) >= self.rig.setup.prompts_per_step
        return whole or (self.loaded and not self.out)


# -- no threads ----------------------------------------------------------------------------------


class OneThread(OldWay):
    """Pulled by the audit; callbacks put the answers into the buffer."""

    def start(self) -> None:
        self.batches = iter(self.rig.loader)

    def pull(self) -> bool:
        batch = next(self.batches, None)
        for prompt in batch or ():
            self.rig.engine.submit(prompt).add_done_callback(self.answered)
        return batch is not None

    def answered(self, answer: Future[Rollout]) -> None:
        self.rig.buffer.add(answer.result())


class RowLoader:
    """A project's own loader: batches of bare row numbers."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.next = 0

    def __iter__(self) -> Iterator[list[int]]:
        while self.next < self.setup.prompts:
            first, self.next = self.next, min(self.next + self.setup.batch_size, self.setup.prompts)
            yield list(range(first, self.next))

    def state_dict(self) -> dict[str, int]:
        return {"next": self.next}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.next = state["next"]


class OwnParts(Collector):
    """A loader, a buffer (a dict by row) and training of its own; the buffer isn't saved."""

    def __init__(self, rig: Rig) -> None:
        super().__init__(rig)
        self.loader = rig.watch(RowLoader(rig.setup), key=lambda batch: batch)
        self.finished: dict[int, Rollout] = {}
        self.out = 0
        self.lock = threading.Lock()

    def start(self) -> None:
        threading.Thread(target=self.collect, daemon=True).start()

    def collect(self) -> None:
        for rows in self.loader:
            self.out += len(rows)
            for row in rows:
                self.rig.engine.submit(self.rig.prompts[row]).add_done_callback(self.answered)

    def answered(self, answer: Future[Rollout]) -> None:
        with self.lock:
            rollout = answer.result()
            self.finished[rollout.prompt.row] = rollout
            self.rig.buffered(rollout)

    def train_step(self) -> bool:
        with self.lock:
            rows = sorted(self.finished)[: self.rig.setup.prompts_per_step]
            last = self.loader.next == self.rig.setup.prompts and self.out == len(self.finished)
            if not rows or (len(rows) < self.rig.setup.prompts_per_step and not last):
                return False
            self.rig.trainer.train([self.finished.pop(row) for row in rows])
            self.out -= len(rows)
            return True

    def save(self, root: Path, step: int) -> None:
        weights, loader = self.rig.trainer.state_dict(), self.loader.state_dict()
        write(root, step, {"weights": weights, "loader": loader})

    def restore(self, checkpoint: Path, *, load_replay_buffer: bool) -> None:
        parts = read(checkpoint)
        self.rig.trainer.load_state_dict(parts["weights"])
        self.loader.load_state_dict(parts["loader"])


class OwnPartsFrontier(OwnParts):
    """The same made right by hand: the ``Frontier``, and a buffer that is saved, in its own files.

    One pass, one generation a prompt, no failures: so an ordinal is a row.
    """

    def __init__(self, rig: Rig) -> None:
        super().__init__(rig)
        self.frontier = Frontier()

    def collect(self) -> None:
        for rows in self.loader:
            with self.lock:
                wanted = self.frontier.hand_out(rows, self.loader.state_dict())
                self.out += len(wanted)
            for _, row in wanted:
                self.rig.engine.submit(self.rig.prompts[row]).add_done_callback(self.answered)

    def train_step(self) -> bool:
        before = set(self.finished)
        trained = super().train_step()
        with self.lock:
            self.frontier.settle(before - set(self.finished) if trained else ())
        return trained

    def save(self, root: Path, step: int) -> None:
        with self.lock:
            buffer = [(row, r.weight_version) for row, r in self.finished.items()]
            parts = {
                "weights": self.rig.trainer.state_dict(),
                "frontier": self.frontier.state_dict(),
                "buffer": buffer,
            }
        checkpoints.publish(root, parts, step=step)

    def restore(self, checkpoint: Path, *, load_replay_buffer: bool) -> None:
        parts = checkpoints.read(checkpoint)
        self.rig.trainer.load_state_dict(parts["weights"])
        self.frontier = Frontier.restored(parts["frontier"])
        here = self.frontier.here
        if here != Place(0, 0, None):
            self.loader.load_state_dict(here.state)
        if load_replay_buffer:
            for row, version in parts["buffer"]:
                self.finished[row] = Rollout(self.rig.prompts[row], 0, version)
                self.rig.buffered(self.finished[row])
            self.out = len(self.finished)
            self.frontier.skip_buffered(self.finished)


# -- self-driven ---------------------------------------------------------------------------------


class SelfDriven(SelfDrivenCollector):
    """A training loop that saves every second step; answers come from a thread each."""

    every = 2

    def run(self, root: Path, *, resume: Path | None, load_replay_buffer: bool) -> None:
        self.changed = threading.Condition()
        self.out = 0
        self.loaded = False
        if resume is not None:
            self.restore(resume, load_replay_buffer)
        threading.Thread(target=self.collect, daemon=True).start()
        while self.train():
            if self.rig.trainer.weight_version % self.every == 0:
                self.save(root)

    def collect(self) -> None:
        for batch in self.rig.loader:
            with self.changed:
                self.out += len(batch)
            for prompt in batch:
                threading.Thread(target=self.answer, args=[prompt], daemon=True).start()
        with self.changed:
            self.loaded = True
            self.changed.notify_all()

    def answer(self, prompt: Prompt) -> None:
        rollout = self.rig.engine.generate(prompt)
        with self.changed:
            self.rig.buffer.add(rollout)
            self.out -= 1
            self.changed.notify_all()

    def train(self) -> bool:
        with self.changed:
            self.changed.wait_for(self.enough)
            rollouts = self.rig.buffer.sample(
                min(len(self.rig.buffer), self.rig.setup.prompts_per_step)
            )
        if rollouts:
            self.train_on(rollouts)
        return bool(rollouts)

    def train_on(self, rollouts: list[Rollout]) -> None:
        self.rig.trainer.train(rollouts)

    def enough(self) -> bool:
        whole = len(self.rig.buffer) >= self.rig.setup.prompts_per_step
        return whole or (self.loaded and not self.out)

    def save(self, root: Path) -> None:
        step = self.rig.trainer.weight_version
        self.rig.saving(root / f"step_{step}")
        self.rig.saved(write(root, step, self.parts()))

    def parts(self) -> dict[str, Any]:
        rig = self.rig
        return {
            "weights": rig.trainer.state_dict(),
            "buffer": rig.buffer.state_dict(),
            "loader": rig.loader.state_dict(),
        }

    def restore(self, checkpoint: Path, load_replay_buffer: bool) -> None:
        parts = read(checkpoint)
        self.rig.trainer.load_state_dict(parts["weights"])
        self.rig.loader.load_state_dict(parts["loader"])
        if load_replay_buffer:
            self.rig.buffer.load_state_dict(parts["buffer"])
        self.rig.restored(checkpoint)


class SelfDrivenFrontier(SelfDriven):
    """The same made right by hand: one pass, one generation a prompt, no failures."""

    every = 1

    def run(self, root: Path, *, resume: Path | None, load_replay_buffer: bool) -> None:
        self.frontier = Frontier()
        super().run(root, resume=resume, load_replay_buffer=load_replay_buffer)

    def collect(self) -> None:
        for batch in self.rig.loader:
            with self.changed:
                wanted = self.frontier.hand_out(batch, self.rig.loader.state_dict())
                self.out += len(wanted)
            for _, prompt in wanted:
                threading.Thread(target=self.answer, args=[prompt], daemon=True).start()
        with self.changed:
            self.loaded = True
            self.changed.notify_all()

    def train_on(self, rollouts: list[Rollout]) -> None:
        super().train_on(rollouts)
        with self.changed:
            self.frontier.settle(rollout.prompt.row for rollout in rollouts)

    def parts(self) -> dict[str, Any]:
        with self.changed:
            return {**super().parts(), "frontier": self.frontier.state_dict()}

    def restore(self, checkpoint: Path, load_replay_buffer: bool) -> None:
        parts = read(checkpoint)
        self.rig.trainer.load_state_dict(parts["weights"])
        self.frontier = Frontier.restored(parts["frontier"])
        if self.frontier.here.state is not None:
            self.rig.loader.load_state_dict(self.frontier.here.state)
        if load_replay_buffer:
            self.rig.buffer.load_state_dict(parts["buffer"])
            self.frontier.skip_buffered(r["row"] for r in parts["buffer"]["rollouts"])
        self.rig.restored(checkpoint)


class OneBatchAhead(SelfDrivenCollector):
    """One thread for all: it sends the next batch off, then trains the last one, then saves."""

    def run(self, root: Path, *, resume: Path | None, load_replay_buffer: bool) -> None:
        if resume is not None:
            parts = read(resume)
            self.rig.trainer.load_state_dict(parts["weights"])
            self.rig.loader.load_state_dict(parts["loader"])
            self.rig.restored(resume)
        batches = iter(self.rig.loader)
        ahead = self.send(next(batches, None))
        while ahead:
            current, ahead = ahead, self.send(next(batches, None))
            self.rig.trainer.train([answer.result() for answer in current])
            step = self.rig.trainer.weight_version
            self.rig.saving(root / f"step_{step}")
            weights, loader = self.rig.trainer.state_dict(), self.rig.loader.state_dict()
            self.rig.saved(write(root, step, {"weights": weights, "loader": loader}))

    def send(self, batch: Sequence[Prompt] | None) -> list[Future[Rollout]]:
        return [self.rig.engine.submit(prompt) for prompt in batch or ()]


class InStep(SelfDrivenCollector):
    """One thread, nothing ahead: at a save all that was handed out is trained."""

    def run(self, root: Path, *, resume: Path | None, load_replay_buffer: bool) -> None:
        if resume is not None:
            parts = read(resume)
            self.rig.trainer.load_state_dict(parts["weights"])
            self.rig.loader.load_state_dict(parts["loader"])
            self.rig.restored(resume)
        for batch in self.rig.loader:
            answers = [self.rig.engine.submit(prompt) for prompt in batch]
            wait(answers)
            self.rig.trainer.train([answer.result() for answer in answers])
            step = self.rig.trainer.weight_version
            self.rig.saving(root / f"step_{step}")
            weights, loader = self.rig.trainer.state_dict(), self.rig.loader.state_dict()
            self.rig.saved(write(root, step, {"weights": weights, "loader": loader}))
