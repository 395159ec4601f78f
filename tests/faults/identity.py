"""What tells one prompt from another, over retries, passes, twins and data sets."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from faults.place import IDLE
from faults.planted import planted
from faults.small import Group, Rewinding, Small, first_not_in
from pytest_resume_audit import Prompt, Rig, Setup


class InOrder(Small):
    """Buffers answers in the order of their numbers, so that a low-water mark is enough.

    Whatever is buffered or in flight at a save is above the mark, and comes once more.
    """

    def __init__(self, rig: Rig) -> None:
        super().__init__(rig)
        self.turn: list[int] = []
        self.finished: dict[int, Group] = {}
        self.settled: set[int] = set()

    def send(self, number: int, prompt: Prompt) -> None:
        self.turn.append(number)
        super().send(number, prompt)

    def has_room(self) -> bool:
        capacity = self.rig.setup.capacity
        kept = len(self.flying) + len(self.finished) + len(self.rig.buffer)
        return super().has_room() and (capacity is None or kept < capacity)

    def ended(self, group: Group) -> None:
        self.finished[group.number] = group
        while self.turn and self.turn[0] in self.finished:
            super().ended(self.finished.pop(self.turn.pop(0)))

    def settle(self, numbers: Iterable[int]) -> None:
        self.settled.update(numbers)

    def state(self) -> dict[str, Any]:
        return {**super().state(), "mark": first_not_in(self.settled)}

    def load_buffer(self, state: dict[str, Any], *, load_replay_buffer: bool) -> None:
        self.settled = set(range(state["mark"]))

    def go_to(self, place: dict[str, Any]) -> None:
        super().go_to(self.place_of(first_not_in(self.settled)))


@planted(
    "E2",
    "hand_out 8; finish 0-3; train; finish 4 6 7; fail 5; finish 5; train; save; crash; restart",
    because="5 is trained under a new number, so the mark stays at 5; 5-7 are trained",
    duplicated="5-7",
    why={"trained before a save and again": "5-7"},
    caught_by="even-failing-16",
)
class RetriedUnderANewName(InOrder):
    """Gives what is tried again a new number, and never closes the old one.

    https://github.com/NVIDIA-NeMo/RL/pull/3506, https://github.com/NVIDIA-NeMo/RL/pull/4085,
    https://github.com/radixark/miles/issues/2254
    """

    alias = 1_000_000

    def ended(self, group: Group) -> None:
        if len(group.answers) == self.rig.setup.group_size:
            super().ended(group)
            return
        self.turn.remove(group.number)
        self.alias += 1
        self.send(self.alias, group.prompt)


@planted(
    "E3",
    IDLE,
    setup=Setup(prompts=8, passes=2),
    because="0-7 are done in pass 0, and taken for done in pass 1",
    skipped="8-15",
    why={"never dispatched": "8-15"},
    caught_by="end-of-pass",
)
class DoneInAnotherPass(Rewinding):
    """Knows by their rows what is settled, and keeps the set over the end of a pass.

    Seen as the set that has to be cleared there, and is:
    https://github.com/NovaSky-AI/SkyRL (_AsyncDataloader.reset_at_epoch_end)
    """

    def wanted(self, batch: Iterable[tuple[int, Prompt]]) -> Iterable[tuple[int, Prompt]]:
        done = {self.row_of(number) for number in self.known}
        return [(number, prompt) for number, prompt in batch if prompt.row not in done]


@planted(
    "E4",
    "hand_out 12; finish 3; train; save; crash; restart",
    setup=Setup(prompts_per_step=1, texts=8),
    because="11 has the text of 3, which is trained",
    skipped="11",
    why={"thrown away on arrival": "11"},
    caught_by="twins-ordered-04",
)
class ByText(Rewinding):
    """Knows by their texts what is settled: one of two that are equal stands for both.

    Seen as the other way out, a data set that is refused unless its keys are unique:
    https://github.com/PrimeIntellect-ai/prime-rl (orchestrator/buffer.py)
    """

    def wanted(self, batch: Iterable[tuple[int, Prompt]]) -> Iterable[tuple[int, Prompt]]:
        texts = {self.key(number, self.rig.prompts[self.row_of(number)]) for number in self.known}
        return [(n, prompt) for n, prompt in batch if self.key(n, prompt) not in texts]

    def key(self, number: int, prompt: Prompt) -> tuple[int, str]:
        return number // self.rig.setup.prompts_per_pass, prompt.text


@planted(
    "E6",
    IDLE + " with data_set 1",
    because="0-7 are settled in the old data set, and taken for settled in the new one",
    skipped="0-7",
    why={"settled in another data set": "0-7"},
    caught_by="even-ordered-04-other-data",
)
class SetOfOtherData(Rewinding):
    """Keeps the set of what is done when the data set is another.

    https://github.com/NovaSky-AI/SkyRL/pull/2010
    """

    def sizes(self) -> list[Any]:
        return [self.rig.setup.group_size]
