"""Counters, stamps, options and guards of a resume."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from faults.place import IDLE, FromCount
from faults.planted import OUT_OF_SCOPE, planted
from faults.small import Rewinding, Small, Threaded, first_not_in
from pytest_resume_audit import Prompt, Rig, Rollout, Setup
from pytest_resume_audit.collectors import checkpoints

OUT_OF_SCOPE["G1"] = (
    "a step counter that is raised twice on resume gives the wrong names to right checkpoints: "
    "every prompt is trained once, and what is judged are the weights "
    "(https://github.com/verl-project/verl/issues/7933)"
)


@planted(
    "G2",
    "hand_out 4; finish 0-3; train; hand_out 8; finish 4-7; save; crash; restart",
    setup=Setup(capacity=4),
    because="4-7 are restored and trained, and count as buffered for ever: there is no room",
    verdict="hang",
    finding="stopped asking for prompts",
    caught_by="crowded-ordered-05",
)
class FullForEver(Threaded):
    """Counts what it buffers and what leaves, and forgets that the restored leaves too.

    https://github.com/NVIDIA-NeMo/RL/pull/3066, https://github.com/NVIDIA-NeMo/RL/pull/3435
    """

    def __init__(self, rig: Rig) -> None:
        super().__init__(rig)
        self.kept: set[int] = set()
        self.restored = 0

    def has_room(self) -> bool:
        capacity = self.rig.setup.capacity
        full = len(self.flying) + len(self.kept) + self.restored
        return super().has_room() and (capacity is None or full < capacity)

    def buffer(self, rollout: Rollout, number: int) -> None:
        self.kept.add(number)
        super().buffer(rollout, number)

    def settle(self, numbers: Iterable[int]) -> None:
        self.kept -= set(numbers)

    def load_buffer(self, state: dict[str, Any], *, load_replay_buffer: bool) -> None:
        super().load_buffer(state, load_replay_buffer=load_replay_buffer)
        self.restored = len(self.rig.buffer)


@planted(
    "G3",
    "hand_out 8; finish 0-3; train; finish 4-7; save; crash; restart",
    because="4-7 are for step 2, and so on; all are taken for one later, and step 2 has none",
    starved="4-15",
    why={"starved": "4-15"},
    caught_by="idle-save",
)
class ShiftedStamps(Small):
    """Stamps each group with the step it is for, and on resume with the one after.

    No loss of this kind is known; what has to agree with the stamps is restored in
    https://github.com/NVIDIA-NeMo/RL/pull/3429 and https://github.com/NVIDIA-NeMo/RL/pull/3480
    """

    def __init__(self, rig: Rig) -> None:
        super().__init__(rig)
        self.stamped = 0
        self.stamps: dict[int, int] = {}

    def buffer(self, rollout: Rollout, number: int) -> None:
        if number not in self.stamps:
            self.stamp(number)
        super().buffer(rollout, number)

    def stamp(self, number: int) -> None:
        self.stamps[number] = self.stamped // self.rig.setup.prompts_per_step
        self.stamped += 1

    def settle(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self.stamps.pop(number, None)

    def step(self) -> list[Rollout]:
        due = min(self.stamps.values(), default=0) <= self.rig.trainer.weight_version
        return super().step() if due else []

    def load_buffer(self, state: dict[str, Any], *, load_replay_buffer: bool) -> None:
        super().load_buffer(state, load_replay_buffer=load_replay_buffer)
        next_step = self.rig.trainer.weight_version + 1
        self.stamped = next_step * self.rig.setup.prompts_per_step
        if load_replay_buffer:
            for number in sorted({rollout["tag"] for rollout in state["buffer"]["rollouts"]}):
                self.stamp(number)


@planted(
    "G5",
    "hand_out 4; finish 0-3; train; hand_out 20; save; crash; restart",
    setup=Setup(prompts=24),
    because="the two places that are remembered are 12 and 16, and 4-19 are in flight",
    skipped="4-19",
    why={"in flight at a save": "4-19"},
    caught_by="second-resume",
)
class ShortMemory(Rewinding):
    """Remembers two places of the loader, and without one that is old enough takes the live one.

    https://github.com/NVIDIA-NeMo/RL/pull/3599
    """

    def __init__(self, rig: Rig) -> None:
        super().__init__(rig)
        self.places: deque[int] = deque(maxlen=2)

    def take_in(self, batch: Sequence[Prompt], state: Any) -> None:
        self.places.append(self.drawn)
        super().take_in(batch, state)

    def state(self) -> dict[str, Any]:
        mark = first_not_in(self.settled)
        behind = [place for place in self.places if place <= mark]
        place = self.place_of(max(behind, default=self.drawn))
        return {**super().state(), "place": place}

    def go_to(self, place: dict[str, Any]) -> None:
        Small.go_to(self, place)


@planted(
    "G6",
    "hand_out 12; finish 0-3; train; save; crash; restart",
    because="0-11 are handed out, and 12 is taken for one of them that is done",
    skipped="12",
    why={"never dispatched": "12"},
    caught_by="idle-save",
)
class HorizonTooHigh(Rewinding):
    """Wants of what was handed out only what is owed, and all that is new: from one too late.

    https://github.com/NVIDIA-NeMo/RL/pull/3599
    """

    horizon = -1

    def state(self) -> dict[str, Any]:
        return {**super().state(), "horizon": max(self.horizon, self.drawn)}

    def load_buffer(self, state: dict[str, Any], *, load_replay_buffer: bool) -> None:
        super().load_buffer(state, load_replay_buffer=load_replay_buffer)
        self.horizon = state["horizon"]

    def wanted(self, batch: Iterable[tuple[int, Prompt]]) -> Iterable[tuple[int, Prompt]]:
        owed = set(range(self.horizon)) - self.known
        return [(n, prompt) for n, prompt in batch if n in owed or n > self.horizon]


@planted(
    "G8",
    "hand_out 12; finish 0-3; train; finish 4-7; save; downgrade; crash; restart",
    because="the checkpoint is from before the buffer and what is out were saved; nobody is told",
    skipped="4-11",
    excused="4-11",
    why={"buffered at a save, and not restored": "4-7", "in flight at a save": "8-11"},
    finding="gave no warning",
    caught_by="legacy-checkpoint",
)
class SilentLegacy(Small):
    """Resumes from a checkpoint of the version before, and does not warn.

    https://github.com/NVIDIA-NeMo/RL/pull/3820, https://github.com/huggingface/trl/pull/7294
    """

    def downgrade(self, checkpoint: Path) -> None:
        parts = checkpoints.read(checkpoint)
        del parts["out"], parts["buffer"]
        checkpoints.rewrite(checkpoint, parts)

    def load_buffer(self, state: dict[str, Any], *, load_replay_buffer: bool) -> None:
        if "out" in state:
            super().load_buffer(state, load_replay_buffer=load_replay_buffer)


@planted(
    "G9",
    IDLE + "; crash; restart afresh",
    because="life 2 resumes at 8, and life 3, which begins afresh, still begins there",
    skipped="0-7",
    why={"never handed out": "0-7"},
    caught_by="even-ordered-01-afresh",
)
class EarlierStart(Small):
    """Keeps the place of an earlier resume where a run that begins afresh finds it.

    https://github.com/huggingface/trl/pull/5911
    """

    kept: dict[str, Any] | None = None

    def go_to(self, place: dict[str, Any]) -> None:
        type(self).kept = place
        super().go_to(place)

    def start(self) -> None:
        if self.kept is not None and not self.drawn:
            super().go_to(self.kept)
        super().start()


@planted(
    "G10",
    IDLE,
    because="the weights have 0-7, and it goes on with rollout 0",
    duplicated="0-7",
    why={"trained before a save and again": "0-7"},
    caught_by="idle-save",
)
class RolloutZero(FromCount):
    """Restores the weights, and not the number of the rollout that is next.

    https://github.com/THUDM/slime/issues/1558
    """

    def load_buffer(self, state: dict[str, Any], *, load_replay_buffer: bool) -> None:
        pass


@planted(
    "G11",
    "hand_out 8; finish 0-7; train 2; hand_out 12; finish 8-11; train; save; crash; restart",
    setup=Setup(prompts=8, passes=2),
    because="in pass 1 rows 0-3 are done; a new loader begins with pass 0, where they are passed "
    "over and 4-7 come again, and then has all of pass 1",
    duplicated="8-15",
    why={"trained before a save and again": "8-15"},
    caught_by="second-pass",
)
class FreshLoader(Rewinding):
    """Keeps the set of what is done in the pass, under a loader that begins afresh.

    https://github.com/NovaSky-AI/SkyRL/pull/2010
    """

    def go_to(self, place: dict[str, Any]) -> None:
        pass

    def wanted(self, batch: Iterable[tuple[int, Prompt]]) -> Iterable[tuple[int, Prompt]]:
        size = self.rig.setup.prompts_per_pass
        current = first_not_in(self.known) // size
        done = {self.row_of(n) for n in self.known if n // size == current}
        if self.epoch > 0:
            done.clear()
        return [(number, prompt) for number, prompt in batch if prompt.row not in done]


@planted(
    "G12",
    IDLE,
    setup=Setup(prompts=10),
    demand="clean",
    because="8 and 9 are less than a batch, and dropped with a word",
    dropped="8 9",
    verdict="lossless",
    caught_by="",
)
class TailDropped(Small):
    """Drops the incomplete batch at the end of a pass, and says so: that is no loss.

    https://github.com/NovaSky-AI/SkyRL/pull/1802
    """

    def take_in(self, batch: Sequence[Prompt], state: Any) -> None:
        if len(batch) < self.rig.setup.batch_size:
            for prompt in batch:
                self.rig.dropped(prompt, "less than a batch")
            batch = []
        super().take_in(batch, state)


@planted(
    "G13",
    "hand_out 12; finish 0-3; train; finish 4-7; save; crash; restart",
    because="8-11 are sent off again with the weights of the start, and then those are restored",
    finding="answered by weights older than the restored ones",
    concerned="8-11",
    caught_by="mid-flight",
)
class GeneratesFirst(Small):
    """Begins to generate before the weights are loaded.

    https://github.com/huggingface/trl/pull/5293, https://github.com/areal-project/AReaL/pull/1588
    """

    def load(self, state: dict[str, Any], *, load_replay_buffer: bool) -> None:
        self.load_buffer(state, load_replay_buffer=load_replay_buffer)
        self.go_to(state["place"])
        self.dispatch()
        self.rig.trainer.load_state_dict(state["weights"])
