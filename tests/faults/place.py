"""A place of the loader is saved, and it is not that of the oldest prompt that is still out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from faults.planted import planted
from faults.small import Rewinding, Small, first_not_in
from pytest_resume_audit import Prompt, Rig, Rollout, Setup

IDLE = "hand_out 8; finish 0-7; train 2; save; crash; restart"


@planted(
    "A1",
    "hand_out 12; finish 0-3; train; finish 4-7; save; crash; restart",
    because="0-3 are trained, 4-7 buffered, 8-11 in flight; the loader goes on at 12",
    skipped="4-11",
    why={"buffered at a save, and not restored": "4-7", "in flight at a save": "8-11"},
    caught_by="mid-flight",
)
class LivePlace(Small):
    """Saves the loader's live place, and neither the buffer nor what is in flight.

    https://github.com/NVIDIA-NeMo/RL/pull/3599, https://github.com/verl-project/verl/pull/4199,
    https://github.com/huggingface/trl/pull/5911, https://github.com/radixark/miles/issues/2254
    """

    def load_buffer(self, state: dict[str, Any], *, load_replay_buffer: bool) -> None:
        pass


@planted(
    "A2",
    "hand_out 12; finish 0-3; train; finish 4-7; save; crash; restart",
    because="4-7 are restored with the buffer, 8-11 are in flight; the loader goes on at 12",
    skipped="8-11",
    why={"in flight at a save": "8-11"},
    caught_by="mid-flight",
)
class LivePlaceAndBuffer(Small):
    """Saves the live place and the buffer, and not what is in flight.

    https://github.com/NVIDIA-NeMo/RL/issues/3594, https://github.com/NVIDIA-NeMo/RL/pull/3429
    """

    def out(self) -> list[tuple[int, int]]:
        return []


@planted(
    "A3",
    "hand_out 8; finish 0-3; train; save; crash; restart",
    because="4-7 are drawn for the next step, and held; the loader goes on at 8",
    skipped="4-7",
    why={"handed out, not dispatched at a save": "4-7"},
    caught_by="idle-save",
)
class OneBatchAhead(Small):
    """Draws the batch of the next step before it saves.

    https://github.com/ByteDance-Seed/VeOmni/pull/789
    """

    def __init__(self, rig: Rig) -> None:
        super().__init__(rig)
        self.ahead: list[tuple[int, Prompt]] = []

    def wanted(self, batch: Iterable[tuple[int, Prompt]]) -> Iterable[tuple[int, Prompt]]:
        current, self.ahead = self.ahead, list(batch)
        return current

    def pull(self) -> bool:
        if not self.may_draw():
            return False
        if super().pull():
            return True
        self.waiting.extend(self.wanted([]))
        self.dispatch()
        return bool(self.flying)


@planted(
    "A4",
    "hand_out 8; finish 0-7; train 2; save; crash; restart",
    because="the second batch, 4-7, was the last one trained, and is the next once more",
    duplicated="4-7",
    why={"trained before a save and again": "4-7"},
    caught_by="idle-save",
)
class IndexOfTheLast(Small):
    """Saves the index of the batch it is at as that of the next one.

    https://github.com/thinking-machines-lab/tinker-cookbook/issues/935,
    https://github.com/huggingface/accelerate/pull/3952
    """

    def take_in(self, batch: Any, state: Any) -> None:
        before = self.place_of(self.drawn)
        super().take_in(batch, state)
        self.place = before


@planted(
    "A5",
    IDLE,
    because="all that is trained comes once more",
    duplicated="0-7",
    why={"trained before a save and again": "0-7"},
    caught_by="idle-save",
)
class NoPlace(Small):
    """Saves no place of the loader at all.

    https://github.com/PrimeIntellect-ai/prime-rl/pull/3164,
    https://github.com/allenai/open-instruct/pull/1523,
    https://github.com/meta-pytorch/torchforge/issues/362,
    https://github.com/hiyouga/EasyR1/issues/57
    """

    def go_to(self, place: dict[str, Any]) -> None:
        pass


class FromCount(Small):
    """Goes on from a count of what is trained, and forgets the rest: right if that is in order."""

    def __init__(self, rig: Rig) -> None:
        super().__init__(rig)
        self.count = 0

    def step(self) -> list[Rollout]:
        rollouts = super().step()
        self.count += self.worth(rollouts)
        return rollouts

    def worth(self, rollouts: list[Rollout]) -> int:
        return len(rollouts) // self.rig.setup.group_size

    def state(self) -> dict[str, Any]:
        return {**super().state(), "count": self.count}

    def load_buffer(self, state: dict[str, Any], *, load_replay_buffer: bool) -> None:
        self.count = state["count"]

    def go_to(self, place: dict[str, Any]) -> None:
        super().go_to(self.place_of(self.count))


@planted(
    "A6",
    "hand_out 12; finish 0 1; fail 2; finish 3 4; train; finish 6-9; train; save; crash; restart",
    because="0 1 3 4 and 6-9 are trained: eight, so it goes on at 8, and 5 is in flight",
    skipped="5",
    duplicated="8 9",
    failed="2",
    why={"in flight at a save": "5", "trained before a save and again": "8 9"},
    caught_by="straggler",
)
class CountOfTheTrained(FromCount):
    """Takes the number of trained prompts for a place, though a failure is tolerated.

    https://github.com/NVIDIA-NeMo/RL/pull/3599
    """


@planted(
    "A7",
    "hand_out 4; finish 0-3; train; save; crash; restart",
    because="two loops over four prompts count as eight",
    skipped="4-7",
    why={"jumped over": "4-7"},
    caught_by="idle-save",
)
class CountOfLoops(FromCount):
    """Counts the loops of the trainer, two over each input, as inputs.

    https://github.com/google/tunix/issues/2290
    """

    def worth(self, rollouts: list[Rollout]) -> int:
        return 2 * super().worth(rollouts)


@planted(
    "A8",
    "hand_out 6; finish 0-5; train 3; save; crash; restart",
    setup=Setup(prompts=10, batch_size=2, prompts_per_step=2),
    because="three batches are one whole chunk of two, which ends at 4",
    duplicated="4 5",
    why={"trained before a save and again": "4 5"},
    caught_by="mid-flight",
)
class ChunksForBatches(Small):
    """Saves a number of batches, and goes back to the chunk of two that the next one is in.

    https://github.com/OpenPipe/ART/pull/908
    """

    def go_to(self, place: dict[str, Any]) -> None:
        size = self.rig.setup.batch_size
        batches = place["drawn"] // size
        super().go_to(self.place_of(batches // 2 * 2 * size))


class MarkAlone(Rewinding):
    """Goes on from the first prompt that is not settled, and knows nothing of those above it."""

    def state(self) -> dict[str, Any]:
        return {**super().state(), "mark": first_not_in(self.settled)}

    def load_buffer(self, state: dict[str, Any], *, load_replay_buffer: bool) -> None:
        self.settled = set(range(state["mark"]))
        self.known = set(self.settled)


@planted(
    "A9",
    "hand_out 12; finish 0 1 3 4; train; finish 5-8; train; save; crash; restart",
    because="2 is in flight, so it goes on there; 3-8 are trained",
    duplicated="3-8",
    why={"trained before a save and again": "3-8"},
    caught_by="straggler",
)
class LowWaterMark(MarkAlone):
    """Saves the lowest prompt that is not trained, and no set of those above it that are.

    https://github.com/huggingface/trl/pull/5911, https://github.com/huggingface/trl/issues/7274
    """


@planted(
    "A11",
    "hand_out 12; finish 0 1 3-11; train 11; hand_out 16; finish 12 13; train 2; finish 2; "
    "save; crash; restart",
    setup=Setup(prompts=24, prompts_per_step=1, capacity=12, max_age=12),
    because="2 comes after 13 steps, is too old and dropped, and stays the lowest for ever; "
    "answered anew it is trained after all",
    duplicated="3-13",
    why={"trained before a save and again": "3-13"},
    caught_by="straggler",
)
class PinnedByADrop(MarkAlone):
    """A low-water mark that a dropped prompt holds where it is.

    https://github.com/huggingface/trl/issues/7274, https://github.com/huggingface/trl/pull/7294
    """

    def ended(self, group: Any) -> None:
        super().ended(group)
        self.drop_stale()

    def drop_stale(self) -> None:
        for rollout in self.rig.buffer.evict(self.rig.trainer.weight_version):
            self.rig.dropped(rollout.prompt, "too old")


REPLACED = (
    "hand_out 8; finish 0-3; train; hand_out 12; finish 5-8; train; hand_out 16; finish 4 9-12; "
    "train; save; crash; restart"
)

# The README's "dropped": what is dropped on purpose, and told, is no loss.
planted(
    "A12",
    REPLACED,
    setup=Setup(max_age=1),
    demand="clean",
    because="4 comes two steps late and is dropped; 12 is trained in its place",
    dropped="4",
    verdict="lossless",
    caught_by="",
)(Small)


@planted(
    "A12-untold",
    REPLACED,
    setup=Setup(max_age=1),
    demand="clean",
    because="4 comes two steps late and is replaced by 12; nobody says so",
    structural="4",
    finding="not trained by an uninterrupted run",
    caught_by="dropped",
)
class ReplacesWithoutARecord(Small):
    """Replaces a stale prompt by a new one, and keeps no record of it.

    https://github.com/allenai/open-instruct/pull/1738,
    https://github.com/verl-project/verl/pull/7082
    """

    def drop_stale(self) -> None:
        for rollout in self.rig.buffer.evict(self.rig.trainer.weight_version):
            self.settle([rollout.tag])
