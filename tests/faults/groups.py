"""Groups of generations that are resumed in part, or under another size."""

from __future__ import annotations

from typing import Any

from faults.place import IDLE, FromCount
from faults.planted import planted
from faults.small import Small
from pytest_resume_audit import Rig, Rollout, Setup

PART = "hand_out 8; finish 0-3; train; finish 5:0 5:1 5:2; save; crash; restart"


class SavesAnswers(Small):
    """Saves the answers of groups that are not whole yet."""

    def state(self) -> dict[str, Any]:
        answers = [
            [group.number, group.prompt.row, answer.generation, answer.weight_version]
            for group in self.flying
            for answer in group.answers
        ]
        return {**super().state(), "answers": answers}

    def load_buffer(self, state: dict[str, Any], *, load_replay_buffer: bool) -> None:
        super().load_buffer(state, load_replay_buffer=load_replay_buffer)
        for number, row, generation, version in state["answers"]:
            self.answer_restored(Rollout(self.rig.prompts[row], generation, version, number))

    def answer_restored(self, answer: Rollout) -> None:
        """Take in one answer of a group that is not whole."""
        raise NotImplementedError


@planted(
    "F1",
    PART,
    setup=Setup(group_size=4),
    because="5 has three of its four answers, and is trained with these",
    partial="5",
    finding="trained in part",
    caught_by="half-a-group",
)
class PartForWhole(SavesAnswers):
    """Takes the restored part of a group for the whole.

    https://github.com/NVIDIA-NeMo/RL/pull/3923, https://github.com/NVIDIA-NeMo/RL/pull/3507
    """

    def __init__(self, rig: Rig) -> None:
        super().__init__(rig)
        self.parts: list[Rollout] = []

    def answer_restored(self, answer: Rollout) -> None:
        self.parts.append(answer)
        self.waiting = type(self.waiting)(w for w in self.waiting if w[0] != answer.tag)

    def step(self) -> list[Rollout]:
        if not self.parts:
            return super().step()
        parts, self.parts = self.parts, []
        self.rig.trainer.train(parts)
        return parts


@planted(
    "F1-double",
    PART,
    setup=Setup(group_size=4),
    because="three answers of 5 are restored, and four are asked for: seven are trained",
    duplicated="5",
    why={"trained twice in one life": "5"},
    caught_by="half-a-group",
)
class PartAndWhole(SavesAnswers):
    """Restores a part of a group, and asks for the whole again.

    https://github.com/NVIDIA-NeMo/RL/pull/3923, https://github.com/NVIDIA-NeMo/RL/pull/3507
    """

    def answer_restored(self, answer: Rollout) -> None:
        self.rig.buffer.add(answer)


@planted(
    "F3",
    "hand_out 8; finish 0-7; train; save; crash; restart with group_size 8",
    setup=Setup(group_size=4),
    because="four answers of eight never are a group; the loader goes on at 8",
    skipped="4-7",
    why={"buffered at a save, and not restored": "4-7"},
    caught_by="even-ordered-04-larger-groups",
)
class AnyGroupSize(Small):
    """Resumes with groups of another size, without a word.

    Seen as the check that prevents it: a restore is told which size of a group to expect in
    https://github.com/NVIDIA-NeMo/RL/pull/3813
    """

    def sizes(self) -> list[Any]:
        return [self.rig.prompts.fingerprint]


@planted(
    "F4",
    IDLE,
    setup=Setup(group_size=3),
    because="of eight prompts 24 answers are trained, divided by four: six",
    duplicated="6 7",
    why={"trained before a save and again": "6 7"},
    caught_by="idle-save",
)
class GroupsForSteps(FromCount):
    """Divides by the groups of a step where it should by the answers of a group.

    A test in which both numbers are equal can't see it:
    https://github.com/NVIDIA-NeMo/RL/pull/3813
    """

    def worth(self, rollouts: list[Rollout]) -> int:
        return len(rollouts) // self.rig.setup.prompts_per_step
