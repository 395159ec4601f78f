"""Faults of a resumed life: in what it saves itself, or in how the next one is resumed."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from itertools import chain
from pathlib import Path
from typing import Any

from faults.planted import planted
from faults.small import Group, Small, Threaded
from faults.torn_sets import read, write
from pytest_resume_audit import Prompt, Rollout
from pytest_resume_audit.collectors import checkpoints


class FromBefore(Small):
    """Knows which of the prompts that it has out come from before the restart."""

    def __init__(self, rig: Any) -> None:
        super().__init__(rig)
        self.before: set[int] = set()

    def load_buffer(self, state: dict[str, Any], *, load_replay_buffer: bool) -> None:
        super().load_buffer(state, load_replay_buffer=load_replay_buffer)
        self.before = {number for number, _ in self.waiting}

    def without(self, numbers: set[int]) -> list[tuple[int, int]]:
        return [(number, row) for number, row in super().out() if number not in numbers]


@planted(
    "K1",
    "hand_out 8; finish 0-3; train; save; crash; restart; hand_out 8; save; finish 4; save; crash; "
    "restart",
    because="4-7 are in the first save of life 2; in its second one 4 is buffered, and 5-7 are not",
    skipped="5-7",
    why={"in flight at a save": "5-7"},
    caught_by="even-ordered-01-resaved",
)
class CarriedOnce(FromBefore):
    """Clears the list of what is out from before the restart once it has been saved.

    Needs two saves in one resumed life. Seen in no public thread.
    """

    carried = False

    def out(self) -> list[tuple[int, int]]:
        return self.without(self.before if self.carried else set())

    def save(self, root: Path, step: int) -> None:
        super().save(root, step)
        self.carried = True


@planted(
    "K2",
    "hand_out 8; finish 0-7; train; save; crash; restart no_buffer; save; crash; restart",
    because="4-7 were buffered, are asked for anew in life 2, and not in its save",
    skipped="4-7",
    why={"in flight at a save": "4-7"},
    caught_by="even-ordered-04-nobuf-twice",
)
class AskedAnewNotOwed(FromBefore):
    """Asks for what was in a buffer that it does not load, and keeps no account of that.

    Needs a restart without the buffer, and a save and a restart behind it. Seen in no public
    thread.
    """

    def load_buffer(self, state: dict[str, Any], *, load_replay_buffer: bool) -> None:
        super().load_buffer(state, load_replay_buffer=load_replay_buffer)
        buffered = {rollout["tag"] for rollout in state["buffer"]["rollouts"]}
        self.before = set() if load_replay_buffer else buffered

    def out(self) -> list[tuple[int, int]]:
        return self.without(self.before)


@planted(
    "K3",
    "hand_out 12; finish 0-11; train; save; crash; restart with capacity 6; save; crash; restart",
    because="of 4-11 the last six are restored; 4 and 5 wait for room, and are not in the save",
    skipped="4 5",
    why={"evicted at a save": "4 5"},
    caught_by="even-backlog-08-smaller-buffer-twice",
)
class NoRoomNotOwed(FromBefore):
    """Asks for what no longer fits into the buffer, and keeps no account of that.

    Needs a smaller buffer, and a save and a restart behind it. Seen in no public thread.
    """

    def load_buffer(self, state: dict[str, Any], *, load_replay_buffer: bool) -> None:
        super().load_buffer(state, load_replay_buffer=load_replay_buffer)
        buffered = {rollout["tag"] for rollout in state["buffer"]["rollouts"]}
        self.before = buffered if load_replay_buffer else set()

    def out(self) -> list[tuple[int, int]]:
        return self.without(self.before)


class InBatches(Small):
    """Keeps its place as whole batches, and prompts before them. It is right."""

    base = 0
    batches_drawn = 0

    def unit(self) -> int:
        """Prompts in each of the batches."""
        return self.rig.setup.batch_size

    def take_in(self, batch: Sequence[Prompt], state: Any) -> None:
        if len(batch) == self.rig.setup.batch_size:
            self.batches_drawn += 1
        else:
            self.base += len(batch)
        super().take_in(batch, state)

    def state(self) -> dict[str, Any]:
        place = {"base": self.base, "batches": self.batches_drawn, "unit": self.unit()}
        return {**super().state(), "place": place}

    def go_to(self, place: dict[str, Any]) -> None:
        self.base = place["base"] + place["batches"] * place["unit"]
        self.batches_drawn = 0
        super().go_to(self.place_of(min(self.base, self.rig.setup.total)))


@planted(
    "K4",
    "hand_out 4; finish 0-3; train; save; crash; restart with batch_size 2; hand_out 8; "
    "finish 4-7; train; save; crash; restart",
    because="two batches of 2 behind 4 are saved as two of 4, which end at 12",
    skipped="8-11",
    why={"jumped over": "8-11"},
    caught_by="even-ordered-01-larger-batches-twice",
)
class OldUnitKept(InBatches):
    """Takes the size of a batch over from the checkpoint into the next one.

    Needs batches of another size, and a save and a restart behind them. Seen in no public thread.
    """

    saved_unit = 0

    def unit(self) -> int:
        return self.saved_unit or super().unit()

    def go_to(self, place: dict[str, Any]) -> None:
        super().go_to(place)
        self.saved_unit = place["unit"]


@planted(
    "K5",
    "hand_out 8; finish 0-3; train; finish 4 5; save; finish 6 7; crash in save at 10; restart; "
    "finish 6 7; train; save; crash; restart",
    because="the dead save has left files of 4-7; they are trained in life 2, and in the directory "
    "that its save finds",
    duplicated="4-7",
    why={"trained before a save and again": "4-7"},
    caught_by="even-ordered-04-killed-resumed",
)
class ShardsOfADeadSave(Small):
    """Writes each buffered group to a file, into a directory that may not be empty.

    Needs a save that dies, and one behind it that is resumed. Seen in no public thread.
    """

    def save(self, root: Path, step: int) -> None:
        state = self.state()
        staging = root / "staging"
        staging.mkdir(exist_ok=True)
        rollouts = state.pop("buffer")["rollouts"]
        for number in sorted({rollout["tag"] for rollout in rollouts}):
            group = [rollout for rollout in rollouts if rollout["tag"] == number]
            write(staging / f"group_{number:03}.json", group)
        made = checkpoints.publish(root, state, step=step)
        staging.rename(made / "buffer")

    def read(self, checkpoint: Path) -> dict[str, Any]:
        groups = map(read, sorted((checkpoint / "buffer").glob("group_*.json")))
        return {**super().read(checkpoint), "buffer": {"rollouts": list(chain(*groups))}}


@planted(
    "K6",
    "hand_out 8; finish 0-7; train; save; crash; restart no_buffer; crash; restart",
    because="4-7 were in the file that life 2 has no use for",
    skipped="4-7",
    why={"buffered at a save, and not restored": "4-7"},
    caught_by="even-ordered-04-nobuf-first",
)
class DiscardsTheBuffersFile(Small):
    """Removes the file of a buffer that it does not load, and takes a missing one for empty.

    Needs a restart without the buffer, and one with it from the same checkpoint. Seen in no public
    thread.
    """

    def save(self, root: Path, step: int) -> None:
        state = self.state()
        name = f"buffer_{len(list(root.glob('checkpoint_*'))) + 1:03}.json"
        write(root / name, state.pop("buffer"))
        checkpoints.publish(root, {**state, "file": name}, step=step)

    def read(self, checkpoint: Path) -> dict[str, Any]:
        state = super().read(checkpoint)
        self.file = checkpoint.parent / state["file"]
        return {**state, "buffer": read(self.file) if self.file.exists() else {"rollouts": []}}

    def load_buffer(self, state: dict[str, Any], *, load_replay_buffer: bool) -> None:
        super().load_buffer(state, load_replay_buffer=load_replay_buffer)
        if not load_replay_buffer:
            self.file.unlink(missing_ok=True)


@planted(
    "K7",
    "hand_out 8; finish 0-3; train; save; crash; restart; crash; restart; crash; restart",
    because="4-7 have been out in three lives, and none has outlived them",
    skipped="4-7",
    why={"in flight at a save": "4-7"},
    caught_by="even-ordered-01-nobuf-first",
)
class TakenForPoison(Small):
    """Takes what was out at a save for the reason why the run crashes, at the third restart.

    Needs three restarts from one checkpoint. Seen in no public thread.
    """

    def read(self, checkpoint: Path) -> dict[str, Any]:
        tries = checkpoint.parent / f"{checkpoint.name}.tries"
        before = read(tries) if tries.exists() else 0
        write(tries, before + 1)
        state = super().read(checkpoint)
        return {**state, "out": []} if before >= 2 else state


@planted(
    "K8",
    "hand_out 8; finish 0-3; train; save; crash; restart; save racing (finish 4) at 3; crash; "
    "restart",
    because="4 comes from before the restart; it ends when the buffer has been read, and what is "
    "out has not",
    skipped="4",
    why={"in flight at a save": "4"},
    caught_by="tight-ordered-01-raced-again",
)
class RestoredWithoutTheLock(Threaded):
    """Takes no lock for the answers to what was out before the restart.

    Needs a race inside of a save of a resumed life. Seen in no public thread.
    """

    def load_buffer(self, state: dict[str, Any], *, load_replay_buffer: bool) -> None:
        super().load_buffer(state, load_replay_buffer=load_replay_buffer)
        self.before = {number for number, _ in self.waiting}

    before: set[int] = set()  # noqa: RUF012 (replaced, and never changed)

    def answered(self, group: Group, answer: Future[Rollout]) -> None:
        if group.number not in self.before:
            super().answered(group, answer)
            return
        group.out -= 1
        if answer.exception() is None:
            group.answers.append(answer.result())
        if not group.out:
            self.flying.remove(group)
            self.ended(group)

    def state(self) -> dict[str, Any]:
        state = super().state()
        return {**state, "step": self.rig.trainer.weight_version, "out": self.out()}


@planted(
    "K9",
    "hand_out 8; finish 0-3; save; crash; restart; train; save; crash; restart from 0",
    because="the first save of life 2 writes over the file of that of life 1, which had 0-3",
    skipped="0-3",
    why={"buffered at a save, and not restored": "0-3"},
    caught_by="even-ordered-01-older-life",
)
class CountedAnew(Small):
    """Names the buffer's file by a count of saves that begins anew in each life.

    Needs a save of a resumed life, and a checkpoint of the life before that is gone back to. Seen
    in no public thread.
    """

    saves = 0

    def save(self, root: Path, step: int) -> None:
        state = self.state()
        self.saves += 1
        name = f"buffer_{self.saves:03}.json"
        write(root / name, state.pop("buffer"))
        checkpoints.publish(root, {**state, "file": name}, step=step)

    def read(self, checkpoint: Path) -> dict[str, Any]:
        state = super().read(checkpoint)
        return {**state, "buffer": read(checkpoint.parent / state["file"])}
