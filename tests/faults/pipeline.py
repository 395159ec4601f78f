"""Parts of the pipeline that prompts are in, and that nobody saves."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

from faults.planted import planted
from faults.small import Group, Rewinding, Small
from pytest_resume_audit import Prompt, Rig, Setup


@planted(
    "C1",
    "hand_out 12; finish 0-7; train 2; finish 8 9; save; crash; restart",
    because="8 and 9 are restored, two more fill the step: of the batch 10-13 the last two are "
    "thrown away",
    skipped="12 13",
    why={"never dispatched": "12 13"},
    caught_by="second-resume",
)
class ThrowsTheRestAway(Rewinding):
    """Fills up the restored step from a new batch, and throws the rest of the batch away.

    https://github.com/NVIDIA-NeMo/RL/pull/3599, https://github.com/NVIDIA-NeMo/RL/pull/3813
    """

    gap = 0

    def load_buffer(self, state: dict[str, Any], *, load_replay_buffer: bool) -> None:
        super().load_buffer(state, load_replay_buffer=load_replay_buffer)
        restored = len(self.rig.buffer)
        self.gap = self.rig.setup.prompts_per_step - restored if restored else 0

    def wanted(self, batch: Iterable[tuple[int, Prompt]]) -> Iterable[tuple[int, Prompt]]:
        wanted = list(super().wanted(batch))
        if wanted and self.gap > 0:
            wanted, self.gap = wanted[: self.gap], 0
        return wanted


@planted(
    "C2",
    "hand_out 8; finish 0-7; train; save; crash; restart",
    because="of eight that are generated four are trained, the others are in no checkpoint",
    skipped="4-7",
    why={"buffered at a save, and not restored": "4-7"},
    caught_by="mid-flight",
)
class Oversampling(Small):
    """Generates more than a step takes, and saves nothing of the surplus.

    https://github.com/OpenRLHF/OpenRLHF/issues/1322
    """

    def load_buffer(self, state: dict[str, Any], *, load_replay_buffer: bool) -> None:
        state["buffer"]["rollouts"].clear()
        super().load_buffer(state, load_replay_buffer=load_replay_buffer)


@planted(
    "C3",
    "hand_out 12; finish 0-11; train 2; save; crash; restart",
    setup=Setup(prompts=20),
    because="0-7 are trained, 8-11 wait in the pool",
    skipped="8-11",
    why={"finished, held by the collector at a save": "8-11"},
    caught_by="dropped",
)
class SparePool(Small):
    """Keeps what the next step does not need in a pool of its own, which is not saved.

    https://github.com/NVIDIA-NeMo/RL/pull/3665
    """

    def __init__(self, rig: Rig) -> None:
        super().__init__(rig)
        self.pool: deque[Group] = deque()

    def ended(self, group: Group) -> None:
        if len(self.rig.buffer) < self.rig.setup.prompts_per_step:
            super().ended(group)
        else:
            self.pool.append(group)

    def train_step(self) -> bool:
        while self.pool and len(self.rig.buffer) < self.rig.setup.prompts_per_step:
            super().ended(self.pool.popleft())
        return super().train_step()


class Prefetching:
    """A loader that is two batches ahead, and says where it is itself."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader
        self.state_dict = loader.state_dict
        self.load_state_dict = loader.load_state_dict

    def __iter__(self) -> Iterator[Any]:
        batches, queue = iter(self.loader), deque[Any]()
        while True:
            while len(queue) < 3 and (batch := next(batches, None)) is not None:
                queue.append(batch)
            if not queue:
                return
            yield queue.popleft()


@planted(
    "C5",
    "hand_out 12; finish 0-3; train; save; crash; restart",
    because="4-11 are in the queue; the place is that behind it",
    skipped="4-11",
    why={"handed out, not dispatched at a save": "4-11"},
    caught_by="idle-save",
)
class PrefetchQueue(Small):
    """Saves the place of the loader's workers, which are two batches ahead.

    https://github.com/pytorch/rl/pull/4089; what a loader's workers have fetched is not saved
    either: https://github.com/meta-pytorch/data/issues/1520
    """

    def make_loader(self) -> Any:
        return Prefetching(self.rig.loader)


@planted(
    "C6",
    "hand_out 8; finish 0-7; train; save; crash; restart",
    because="0-3 are trained; 4-7 are in the buffer of another sampler, by its name",
    skipped="4-7",
    why={"buffered at a save, and not restored": "4-7"},
    caught_by="mid-flight",
)
class OtherSampler(Small):
    """Throws the saved buffer away, as the name of its sampler is not the one it looks for.

    https://github.com/NVIDIA-NeMo/RL/pull/3480
    """

    sampler = "oldest-first"

    def state(self) -> dict[str, Any]:
        return {**super().state(), "sampler": "OldestFirst"}

    def load_buffer(self, state: dict[str, Any], *, load_replay_buffer: bool) -> None:
        if load_replay_buffer and state["sampler"] != self.sampler:
            state["buffer"]["rollouts"].clear()
        super().load_buffer(state, load_replay_buffer=load_replay_buffer)


@planted(
    "C7",
    "hand_out 12; finish 0-3; train; finish 4-11; save; crash; restart with capacity 4",
    setup=Setup(prompts=24),
    because="of the eight that are buffered four fit",
    skipped="8-11",
    why={"buffered at a save, and not restored": "8-11"},
    caught_by="even-backlog-08-smaller-buffer",
)
class SmallerBuffer(Small):
    """Cuts the saved buffer to what fits in the new one.

    https://github.com/NVIDIA-NeMo/RL/pull/3138
    """

    def load_buffer(self, state: dict[str, Any], *, load_replay_buffer: bool) -> None:
        capacity = self.rig.setup.capacity
        if load_replay_buffer and capacity is not None:
            del state["buffer"]["rollouts"][capacity * self.rig.setup.group_size :]
        super().load_buffer(state, load_replay_buffer=load_replay_buffer)


@planted(
    "C8",
    "hand_out 8; finish 0-7; train; save; crash; restart no_buffer",
    because="4-7 are in the buffer, which is not loaded; the loader goes on at 8",
    skipped="4-7",
    why={"buffered at a save, buffer not loaded": "4-7"},
    caught_by="mid-flight-no-buffer",
)
class BufferSwitchedOff(Small):
    """Leaves the loader behind what is in the buffer when that is not to be loaded.

    https://github.com/NVIDIA-NeMo/RL/pull/3583, https://github.com/NVIDIA-NeMo/RL/pull/4067
    """

    def load_buffer(self, state: dict[str, Any], *, load_replay_buffer: bool) -> None:
        if not load_replay_buffer:
            state["buffer"]["rollouts"].clear()
        super().load_buffer(state, load_replay_buffer=load_replay_buffer)


@planted(
    "C10",
    "hand_out 4; finish 0-3; train; hand_out 8; save; crash; restart",
    setup=Setup(max_in_flight=4),
    because="4-7 are sent off again, and then 8-11 as if nothing were in flight",
    finding="had 8 prompts in flight, over its limit of 4",
    caught_by="gap-fill-tail",
)
class WarmUpAgain(Small):
    """Sends off again what was in flight, and then fills up as at the start.

    https://github.com/verl-project/verl/issues/7759
    """

    def __init__(self, rig: Rig) -> None:
        super().__init__(rig)
        self.sent_again: list[Group] = []

    def start(self) -> None:
        super().start()
        self.sent_again = list(self.flying)

    def in_flight(self) -> int:
        return sum(group not in self.sent_again for group in self.flying)
