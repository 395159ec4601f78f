"""Mechanisms that no public case is known of: the matrix was once blind to each of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from right_ways import ConsumedIds

from faults.place import IDLE
from faults.planted import planted
from faults.small import Group, Rewinding, Small
from faults.torn_sets import read, write
from pytest_resume_audit import Rig, Setup
from pytest_resume_audit.collectors import checkpoints


@planted(
    "H1",
    "hand_out 12; finish 0-3; train; finish 4-6 8; train; finish 9; "
    "save; crash; restart; save; crash; restart",
    setup=Setup(prompts=8, passes=2),
    because="7 is in flight, and only 9 of pass 1 is restored: the second save begins with pass 1. "
    "Row 7 is trained once, which is missed at its last place, 15",
    skipped="15",
    why={"not come round again at a save": "15"},
    caught_by="passes-reversed-04-twice",
)
class PassForgotten(ConsumedIds):
    """Saves the first pass that something is known to be out in, before it has come to it again.

    Seen in no public thread, but in a right way that was none.
    """

    def save(self, root: Path, step: int) -> None:
        parts = {
            "weights": self.rig.trainer.state_dict(),
            "buffer": self.rig.buffer.state_dict(),
            "consumed": sorted(self.consumed),
            "epoch": min((epoch for epoch, keys in self.open.items() if keys), default=self.epoch),
        }
        self.publish(root, step, parts)


@planted(
    "H2",
    "hand_out 8; save; finish 0-3; train; save; crash; restart from 0; hand_out 8; finish 4-7; "
    "train; save; crash; restart",
    because="step 1 is of 0-3, and then of 4-7: its weights stay the first, all else is the second",
    skipped="4-7",
    duplicated="0-3",
    why={"weights not restored": "4-7", "only the weights show it": "0-3"},
    finding="weights not restored",
    caught_by="even-ordered-02-branched",
)
class WeightsOfAnotherWay(Small):
    """Writes no weights of a step that there are weights of, and all else.

    Seen in no public thread.
    """

    def save(self, root: Path, step: int) -> None:
        state = self.state()
        weights = root / f"weights_{step}.json"
        if not weights.exists():
            write(weights, state["weights"])
        checkpoints.publish(root, {**state, "weights": weights.name}, step=step)

    def read(self, checkpoint: Path) -> dict[str, Any]:
        state = super().read(checkpoint)
        return {**state, "weights": read(checkpoint.parent / state["weights"])}


@planted(
    "H3",
    "hand_out 12; finish 0-3; train; save; hand_out 16; stop; restart",
    because="the checkpoint knows of 4-11, and the note of a loader that has handed out 16",
    skipped="12-15",
    why={"jumped over": "12-15"},
    caught_by="even-ordered-01-stopped-late",
)
class NotesWhereItStopped(Small):
    """Writes down the loader's place when it is stopped, beside the last checkpoint.

    Seen in no public thread.
    """

    note: Path | None = None

    def save(self, root: Path, step: int) -> None:
        self.note = root / "stopped.json"
        self.note.unlink(missing_ok=True)
        super().save(root, step)

    def stop(self) -> None:
        if self.note is not None:
            write(self.note, self.place)

    def restore(self, checkpoint: Path, *, load_replay_buffer: bool) -> None:
        super().restore(checkpoint, load_replay_buffer=load_replay_buffer)
        self.note = checkpoint.parent / "stopped.json"
        if self.note.exists():
            self.go_to(read(self.note))


@planted(
    "H4",
    IDLE + " with prompts_per_step 3",
    because="0-7 are written as 0-3 of the steps 0 and 1, which are 0-3 and 3-6 in steps of three",
    duplicated="7",
    why={"trained before a save and again": "7"},
    caught_by="even-backlog-18-larger-steps",
)
class NumbersInSteps(Rewinding):
    """Writes down by step and place in it what is settled, whatever the size of a step.

    Seen in no public thread.
    """

    def state(self) -> dict[str, Any]:
        size = self.rig.setup.prompts_per_step
        return {**super().state(), "settled": [divmod(n, size) for n in sorted(self.settled)]}

    def load_buffer(self, state: dict[str, Any], *, load_replay_buffer: bool) -> None:
        size = self.rig.setup.prompts_per_step
        state["settled"] = [step * size + place for step, place in state["settled"]]
        super().load_buffer(state, load_replay_buffer=load_replay_buffer)


@planted(
    "H5",
    "hand_out 8; finish 0-3; train; hand_out 12; finish 4-7; train; hand_out 16; finish 8-11; "
    "save; crash; restart",
    setup=Setup(max_age=1),
    because="8-11 were asked for after step 1, and the restart is after step 2, where an "
    "uninterrupted run trains them. Taken for answers of step 0 they are two steps old",
    dropped="8-11",
    finding="dropped after a restart",
    concerned="8-11",
    caught_by="even-stale-20",
)
class AgesAnew(Small):
    """Saves its answers without the step that they are of, and drops them as too old.

    Seen in no public thread.
    """

    def state(self) -> dict[str, Any]:
        state = super().state()
        for rollout in state["buffer"]["rollouts"]:
            rollout["weight_version"] = 0
        return state


@planted(
    "H6",
    "hand_out 8; finish 0-3; train; fail 5; finish 4 6 7; save; crash; restart",
    setup=Setup(max_failures=1),
    because="5 has failed and is asked for again behind the next step, which comes after the save",
    skipped="5",
    why={"failed at a save": "5"},
    caught_by="failed-generation",
)
class RetriesForgotten(Small):
    """Asks again for what failed, once a step is done; a checkpoint knows nothing of it.

    Seen in no public thread.
    """

    def __init__(self, rig: Rig) -> None:
        super().__init__(rig)
        self.again: list[Group] = []

    def ended(self, group: Group) -> None:
        if len(group.answers) < self.rig.setup.group_size:
            self.again.append(group)
        else:
            super().ended(group)

    def train_step(self) -> bool:
        trained = super().train_step()
        with self.lock:
            self.waiting.extend((group.number, group.prompt) for group in self.again)
            self.again.clear()
            self.dispatch()
        return trained
