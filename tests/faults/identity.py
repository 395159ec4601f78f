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
    caught_by="even-failing-15",
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


class ByRow(Rewinding):
    """Knows by their rows what is settled, and goes through the pass from its start."""

    def __init__(self, rig: Rig) -> None:
        super().__init__(rig)
        self.rows: set[int] = set()

    def row(self, number: int) -> int:
        epoch, place = divmod(number, self.rig.setup.prompts_per_pass)
        return self.rig.setup.order(epoch)[place]

    def load_buffer(self, state: dict[str, Any], *, load_replay_buffer: bool) -> None:
        super().load_buffer(state, load_replay_buffer=load_replay_buffer)
        self.rows = {self.row(number) for number in self.known if self.counts(number)}

    def counts(self, number: int) -> bool:
        """Whether a number that is known is of the pass that is gone through again."""
        size = self.rig.setup.prompts_per_pass
        return number // size == first_not_in(self.known) // size

    def wanted(self, batch: Iterable[tuple[int, Prompt]]) -> Iterable[tuple[int, Prompt]]:
        return [(number, prompt) for number, prompt in batch if prompt.row not in self.rows]


@planted(
    "E3",
    IDLE,
    setup=Setup(prompts=8, passes=2),
    because="0-7 are done in pass 0, and taken for done in pass 1",
    skipped="8-15",
    why={"never dispatched": "8-15"},
    caught_by="end-of-pass",
)
class DoneInAnotherPass(ByRow):
    """Keeps the set of what is done over the end of a pass.

    https://github.com/NovaSky-AI/SkyRL/pull/1802
    """

    def counts(self, number: int) -> bool:
        return True


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

    Seen as the reason for which public code refuses equal keys.
    """

    def __init__(self, rig: Rig) -> None:
        super().__init__(rig)
        self.texts: set[tuple[int, str]] = set()

    def key(self, number: int, prompt: Prompt) -> tuple[int, str]:
        return number // self.rig.setup.prompts_per_pass, prompt.text

    def load_buffer(self, state: dict[str, Any], *, load_replay_buffer: bool) -> None:
        super().load_buffer(state, load_replay_buffer=load_replay_buffer)
        setup, size = self.rig.setup, self.rig.setup.prompts_per_pass
        for number in self.known:
            row = setup.order(number // size)[number % size]
            self.texts.add(self.key(number, self.rig.prompts[row]))

    def wanted(self, batch: Iterable[tuple[int, Prompt]]) -> Iterable[tuple[int, Prompt]]:
        return [(n, prompt) for n, prompt in batch if self.key(n, prompt) not in self.texts]


@planted(
    "E6",
    IDLE + " with data_set 1",
    because="0-7 are settled in the old data set, and taken for settled in the new one",
    skipped="0-7",
    why={"settled in another data set": "0-7"},
    caught_by="even-ordered-08-other-data",
)
class SetOfOtherData(Rewinding):
    """Keeps the set of what is done when the data set is another.

    https://github.com/NovaSky-AI/SkyRL/pull/2010
    """

    def sizes(self) -> list[Any]:
        return [self.rig.setup.group_size]
