"""Faults that only other sizes show: more steps, larger groups, equal texts, uneven passes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from right_ways import PartOfAGroup

from faults.planted import planted
from faults.small import Group, Rewinding, Small, Threaded
from faults.torn_sets import read, write
from faults.unseen import RetriesForgotten
from pytest_resume_audit import Prompt, Rig, Rollout, Setup
from pytest_resume_audit.collectors import checkpoints


@planted(
    "K10",
    "hand_out 10; finish 0-8; train 9; save; finish 9; train; save; crash; restart",
    setup=Setup(prompts_per_step=1),
    because="step_9 comes behind step_10: 9 is trained once more, with weights that do not have it",
    finding="silent restart",
    caught_by="ones-ordered-26-saves",
)
class StepNamesSorted(Small):
    """Takes the last name of a checkpoint in the order of text for the newest.

    Needs ten steps, with a save on both sides of the tenth. Seen in no public thread.
    """

    def save(self, root: Path, step: int) -> None:
        made = checkpoints.publish(root, self.state(), step=step)
        at_this_step = len(list(root.glob(f"step_{step}.*")))
        os.rename(made, root / f"step_{step}.{at_this_step:03}")

    @classmethod
    def latest(cls, root: Path) -> Path | None:
        return max(filter(checkpoints.complete, root.glob("step_*")), default=None)


@planted(
    "K11",
    "hand_out 12; finish 0-11; train; save; crash; restart with capacity 4",
    setup=Setup(group_size=2),
    because="of 4-11 the last four are restored, and both answers of the others are asked for "
    "as groups",
    duplicated="4-7",
    why={"trained twice in one life": "4-7"},
    caught_by="uneven-backlog-13-smaller-buffer",
)
class AskedOnceAnAnswer(Small):
    """Asks once more for each answer that no longer fits into the buffer, not for each group.

    Needs a smaller buffer, and groups. Seen in no public thread.
    """

    def load_buffer(self, state: dict[str, Any], *, load_replay_buffer: bool) -> None:
        if not load_replay_buffer:
            super().load_buffer(state, load_replay_buffer=False)
            return
        out = [(number, row) for number, row in state["out"]]
        no_room = self.rig.buffer.load_state_dict(state["buffer"])
        out += [(rollout.tag, rollout.prompt.row) for rollout in no_room]
        self.waiting.extend((number, self.rig.prompts[row]) for number, row in sorted(out))


@planted(
    "K12",
    "hand_out 10; finish 0-9; train 2; save; crash; restart with batch_size 1",
    setup=Setup(prompts=5, passes=3, batch_size=2, prompts_per_step=5),
    because="two passes are six batches, two of them of one prompt: taken for 12 prompts, not 10",
    skipped="10 11",
    why={"jumped over": "10 11"},
    caught_by="short-ordered-03-smaller-batches",
)
class BatchesTimesSize(Small):
    """Works out its place from the number of batches, where their size has changed.

    Needs batches of another size, and passes that do not divide into them. Seen in no public
    thread.
    """

    batches_drawn = 0

    def take_in(self, batch: Sequence[Prompt], state: Any) -> None:
        self.batches_drawn += 1
        super().take_in(batch, state)

    def state(self) -> dict[str, Any]:
        size = self.rig.setup.batch_size
        return {**super().state(), "batches": self.batches_drawn, "size": size}

    def load(self, state: dict[str, Any], *, load_replay_buffer: bool) -> None:
        super().load(state, load_replay_buffer=load_replay_buffer)
        self.batches_drawn, size = state["batches"], self.rig.setup.batch_size
        if state["size"] != size:
            drawn = min(self.batches_drawn * state["size"], self.rig.setup.total)
            self.batches_drawn = -(-drawn // size)
            self.go_to(self.place_of(drawn))


@planted(
    "K13",
    "hand_out 8; finish 0-3; train; finish 5:0; save; crash; restart",
    setup=Setup(group_size=3),
    because="5 has its first answer, and of the two that it lacks one is asked for",
    skipped="5",
    why={"finished in part": "5"},
    caught_by="trios-ordered-03",
)
class OneLackAsked(PartOfAGroup):
    """Asks for the next generation of a group that was resumed, and for no further one.

    Needs groups of three, with one answer. Seen in no public thread.
    """

    def enter(self, number: int, prompt: Prompt, answers: dict[int, Rollout]) -> None:
        self.table[number] = prompt, answers
        lacking = [g for g in range(self.rig.setup.group_size) if g not in answers]
        self.lacks.extend((number, g) for g in (lacking[:1] if answers else lacking))


@planted(
    "K14",
    "hand_out 8; finish 0-3; train; fail 5; finish 4 6 7; train; save; crash; restart",
    setup=Setup(texts=8),
    because="5 has failed, and 13 has its text",
    skipped="13",
    failed="5",
    why={"never dispatched": "13"},
    caught_by="twins-failing-11",
)
class TwinPassedOver(Small):
    """Passes over what has the text of a prompt that failed in this pass, once it is resumed.

    Needs equal texts, and a failure. Seen in no public thread.
    """

    def __init__(self, rig: Rig) -> None:
        super().__init__(rig)
        self.bad: list[Any] = []
        self.passed_over: list[Any] = []

    def key(self, number: int, prompt: Prompt) -> list[Any]:
        return [number // self.rig.setup.prompts_per_pass, prompt.text]

    def ended(self, group: Group) -> None:
        if len(group.answers) < self.rig.setup.group_size:
            self.bad.append(self.key(group.number, group.prompt))
        super().ended(group)

    def wanted(self, batch: Iterable[tuple[int, Prompt]]) -> Iterable[tuple[int, Prompt]]:
        return [(n, prompt) for n, prompt in batch if self.key(n, prompt) not in self.passed_over]

    def state(self) -> dict[str, Any]:
        return {**super().state(), "bad": self.bad}

    def load(self, state: dict[str, Any], *, load_replay_buffer: bool) -> None:
        super().load(state, load_replay_buffer=load_replay_buffer)
        self.bad = list(state["bad"])
        self.passed_over = list(state["bad"])


@planted(
    "K15",
    "hand_out 12; finish 3 11; save; crash; restart no_buffer",
    setup=Setup(texts=8),
    because="3 and 11 have one text; the later one is found by it",
    skipped="3",
    why={"buffered at a save, buffer not loaded": "3"},
    caught_by="twins-ordered-07-nobuf",
)
class AskedAnewByText(Small):
    """Looks up what it asks for anew by the text, where it does not load the buffer.

    Needs equal texts in the buffer at once. Seen in no public thread.
    """

    def load_buffer(self, state: dict[str, Any], *, load_replay_buffer: bool) -> None:
        if not load_replay_buffer:
            size, prompts = self.rig.setup.prompts_per_pass, self.rig.prompts
            by_text = {
                (rollout["tag"] // size, prompts[rollout["row"]].text): rollout
                for rollout in state["buffer"]["rollouts"]
            }
            state = {**state, "buffer": {"rollouts": list(by_text.values())}}
        super().load_buffer(state, load_replay_buffer=load_replay_buffer)


@planted(
    "K16",
    "hand_out 8; finish 0-3; train; save racing (fail 5) at 1; crash; restart",
    because="5 fails when what has failed has been read, and what is in flight has not",
    skipped="5",
    why={"in flight at a save": "5"},
    caught_by="even-failing-10-raced",
)
class FailsWithoutTheLock(RetriesForgotten, Threaded):
    """Takes no lock for what fails, and is to be asked for again.

    Needs a failure inside of a save. Seen in no public thread.
    """

    def answered(self, group: Group, answer: Future[Rollout]) -> None:
        if answer.exception() is None:
            super().answered(group, answer)
            return
        group.out -= 1
        if not group.out:
            self.flying.remove(group)
            self.ended(group)

    def state(self) -> dict[str, Any]:
        again = [(group.number, group.prompt.row) for group in self.again]
        state = super().state()
        return {**state, "out": again + state["out"]}


@planted(
    "K17",
    "hand_out 4; finish 0-3; train; save; hand_out 12; finish 4-11; train 2; crash; restart",
    setup=Setup(prompts=8, passes=2),
    because="8-11 of pass 1 are settled behind the save, and stay so. Rows 0-3 are trained once",
    skipped="8-11",
    why={"never dispatched": "8-11"},
    caught_by="short-ordered-01-rolled-far",
)
class LaterPassNotRolledBack(Rewinding):
    """Notes what is settled of each pass in a file of its own; a later pass's is not rolled back.

    Needs a crash in a later pass than that of the save. Seen in no public thread.
    """

    root: Path | None = None

    def file(self, epoch: int) -> Path:
        assert self.root is not None
        return self.root / f"settled_{epoch}.json"

    def settle(self, numbers: Iterable[int]) -> None:
        super().settle(numbers)
        self.note()

    def note(self) -> None:
        size = self.rig.setup.prompts_per_pass
        for epoch in range(self.rig.setup.passes) if self.root else ():
            write(self.file(epoch), sorted(n for n in self.settled if n // size == epoch))

    def save(self, root: Path, step: int) -> None:
        self.root = root
        self.note()
        super().save(root, step)

    def read(self, checkpoint: Path) -> dict[str, Any]:
        state = super().read(checkpoint)
        self.root = checkpoint.parent
        later = range(state["place"]["epoch"] + 1, self.rig.setup.passes)
        noted = {n for epoch in later for n in read(self.file(epoch))}
        return {**state, "settled": sorted(noted.union(state["settled"]))}


@planted(
    "K18",
    "hand_out 12; finish 0-9; train; save; crash; restart with prompts_per_step 5",
    because="six are in the buffer; a step of five fits once, and 9 is behind it",
    skipped="9",
    why={"buffered at a save, and not restored": "9"},
    caught_by="even-backlog-04-larger-steps",
)
class RestOfAStep(Small):
    """Restores as many whole steps as the buffer has, where steps have become larger.

    Needs larger steps, and a buffer that is no whole number of them. Seen in no public thread.
    """

    def state(self) -> dict[str, Any]:
        return {**super().state(), "a_step": self.rig.setup.prompts_per_step}

    def load_buffer(self, state: dict[str, Any], *, load_replay_buffer: bool) -> None:
        a_step = self.rig.setup.prompts_per_step
        if load_replay_buffer and a_step > state["a_step"]:
            rollouts = state["buffer"]["rollouts"]
            numbers = sorted({rollout["tag"] for rollout in rollouts})
            whole = numbers[: len(numbers) // a_step * a_step]
            kept = [rollout for rollout in rollouts if rollout["tag"] in whole]
            state = {**state, "buffer": {"rollouts": kept}}
        super().load_buffer(state, load_replay_buffer=load_replay_buffer)


@planted(
    "K19",
    "hand_out 8; finish 0-3; train; save; fail 5; crash; restart",
    because="5 was in flight at the save; that it failed is noted behind it, the new try is not",
    skipped="5",
    why={"in flight at a save": "5"},
    caught_by="even-failing-05-rolled",
)
class FailuresNoted(RetriesForgotten):
    """Notes at once what fails, and leaves it out when it is resumed, as if that were for good.

    Needs a failure behind the save that is lost with the life. Seen in no public thread.
    """

    root: Path | None = None

    def out(self) -> list[tuple[int, int]]:
        return super().out() + [(group.number, group.prompt.row) for group in self.again]

    def save(self, root: Path, step: int) -> None:
        self.root = root
        write(root / "failed.json", [])
        super().save(root, step)

    def ended(self, group: Group) -> None:
        super().ended(group)
        if group in self.again and self.root:
            write(self.root / "failed.json", [*read(self.root / "failed.json"), group.number])

    def read(self, checkpoint: Path) -> dict[str, Any]:
        state = super().read(checkpoint)
        self.root = checkpoint.parent
        failed = read(self.root / "failed.json")
        return {**state, "out": [(n, row) for n, row in state["out"] if n not in failed]}
