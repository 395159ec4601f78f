"""Faults that need two things at once, of which the matrix once played one at a time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from right_ways import PartOfAGroup

from faults.loaders import OwnLoader, Rows, rows_of
from faults.planted import planted
from faults.small import Group, Rewinding, Small, Threaded
from faults.torn_sets import LATE, read, write
from faults.unseen import RetriesForgotten
from pytest_resume_audit import Prompt, Rig, Rollout, Setup
from pytest_resume_audit.collectors import checkpoints


@planted(
    "J1",
    "hand_out 8; finish 0-3; train; finish 5:1; save; crash; restart",
    setup=Setup(group_size=2),
    because="5 has its last answer and lacks the first; behind the last there is none to ask for",
    skipped="5",
    why={"in flight at a save": "5"},
    caught_by="uneven-reversed-04",
)
class HighestGeneration(PartOfAGroup):
    """Asks for what is behind the highest generation that a group has.

    Needs a group whose generations end out of order. Seen in no public thread.
    """

    def enter(self, number: int, prompt: Prompt, answers: dict[int, Rollout]) -> None:
        self.table[number] = prompt, answers
        first = max(answers, default=-1) + 1
        self.lacks.extend((number, g) for g in range(first, self.rig.setup.group_size))


@planted(
    "J2",
    "hand_out 8; finish 0-3; train; save racing (hand_out 12) at 3; crash; restart",
    setup=Setup(prompts=8, passes=2),
    because="the place is 8 of pass 0; its pass is written when that is 1, which ends at 8",
    skipped="8-15",
    why={"jumped over": "8-15"},
    caught_by="tight-ordered-09-raced",
)
class PassReadLate(Threaded):
    """Writes down which pass it is in when the file of the place is written.

    Needs a save that a new pass begins in: the variable of ``for epoch in range(passes)`` stays at
    the last one behind the end. Seen in no public thread.
    """

    def save(self, root: Path, step: int) -> None:
        with self.lock:
            parts = self.state()
        place = parts.pop("place")
        parts["place"] = lambda: self.in_this_pass(place)
        checkpoints.publish(root, parts, step=step, form=LATE)

    def in_this_pass(self, place: dict[str, Any]) -> dict[str, Any]:
        epoch = min(self.epoch, self.rig.setup.passes - 1)
        return {**place, "epoch": epoch, "loader": {**place["loader"], "epoch": epoch}}


@planted(
    "J3",
    "hand_out 4; finish 0-3; train; save; crash; restart; hand_out 12; finish 4-11; train 2; "
    "save; crash; restart",
    setup=Setup(prompts=8, passes=2),
    because="life 2 begins at 4 of pass 0, and in pass 1 it takes place 4 for 8, its end",
    skipped="12-15",
    why={"jumped over": "12-15"},
    caught_by="tight-ordered-09-raced-again",
)
class OffsetKept(Small):
    """Adds where a life began in its first pass to its places in the later ones, too.

    Needs a life that has been resumed, comes into another pass, and saves. Seen in no public
    thread.
    """

    began = 0, 0

    def go_to(self, place: dict[str, Any]) -> None:
        super().go_to(place)
        self.began = self.epoch, place["loader"]["yielded"]

    def take_in(self, batch: Sequence[Prompt], state: Any) -> None:
        epoch, offset = self.began
        if self.epoch > epoch:
            yielded = min(state["yielded"] + offset, self.rig.setup.prompts_per_pass)
            state = {**state, "yielded": yielded}
        super().take_in(batch, state)


@planted(
    "J4",
    "hand_out 4; finish 0-3; save; train; save; save; crash; restart from 0",
    because="0-3 are in the first file, and there are three",
    skipped="0-3",
    why={"buffered at a save, and not restored": "0-3"},
    caught_by="even-ordered-10-saves-older",
)
class BuffersPruned(Small):
    """Keeps every checkpoint, and the last two of the large files with the buffer.

    Needs three saves, and a restart from the first of them. Seen in no public thread.
    """

    def save(self, root: Path, step: int) -> None:
        state = self.state()
        name = f"buffer_{len(list(root.glob('checkpoint_*'))) + 1:03}.json"
        write(root / name, state.pop("buffer"))
        checkpoints.publish(root, {**state, "file": name}, step=step)
        for older in sorted(root.glob("buffer_*.json"))[:-2]:
            older.unlink()

    def read(self, checkpoint: Path) -> dict[str, Any]:
        state = super().read(checkpoint)
        file = checkpoint.parent / state["file"]
        return {**state, "buffer": read(file) if file.exists() else {"rollouts": []}}


@planted(
    "J5",
    "hand_out 4; finish 0:0; save; crash; restart; crash; restart",
    setup=Setup(group_size=2),
    because="life 2 takes the first answer of 0 out of the spool; life 3 has none, and asks only "
    "for the second",
    skipped="0",
    why={"finished in part": "0"},
    caught_by="tight-ordered-02-same-save",
)
class TakenOutOfTheSpool(PartOfAGroup):
    """Moves the answers of half groups out of a spool when it restores them.

    Needs half a group, and two restarts from one checkpoint. Seen in no public thread.
    """

    def publish(self, root: Path, step: int, parts: dict[str, Any]) -> None:
        name = f"spool_{len(list(root.glob('checkpoint_*'))) + 1}.json"
        write(root / name, parts["table"])
        table = [[n, row, [g for g, _ in known]] for n, row, known in parts["table"]]
        super().publish(root, step, {**parts, "table": table, "spool": name})

    def parts_of(self, checkpoint: Path) -> dict[str, Any]:
        parts = super().parts_of(checkpoint)
        spool = checkpoint.parent / parts["spool"]
        self.had = {number: known for number, _, known in parts["table"]}
        if spool.exists():
            parts["table"] = read(spool)
            spool.unlink()
        else:
            parts["table"] = [[number, row, []] for number, row, _ in parts["table"]]
        return parts

    had: dict[int, list[int]] = {}  # noqa: RUF012 (of a checkpoint, and never changed)

    def enter(self, number: int, prompt: Prompt, answers: dict[int, Rollout]) -> None:
        self.table[number] = prompt, answers
        size, had = self.rig.setup.group_size, self.had.get(number, ())
        self.lacks.extend((number, g) for g in range(size) if g not in had)


@planted(
    "J6",
    "hand_out 8; finish 0-3; train; fail 4 5; finish 6 7; save; crash; restart",
    setup=Setup(max_failures=2),
    because="4 and 5 are to be asked for again, and the last of them is saved",
    skipped="4",
    why={"failed at a save": "4"},
    caught_by="even-failing-12",
)
class OneRetrySaved(RetriesForgotten):
    """Has room for one prompt that is to be asked for again in a checkpoint.

    Needs two that have failed at once. Seen in no public thread.
    """

    def out(self) -> list[tuple[int, int]]:
        return super().out() + [(group.number, group.prompt.row) for group in self.again[-1:]]


class OrdersInTurn(Rows):
    """The order of a pass is the next one of a generator, which is not saved."""

    behind = 0

    def order(self) -> Sequence[int]:
        return self.rig.setup.order(self.epoch - self.behind)

    def load_state_dict(self, state: dict[str, int]) -> None:
        super().load_state_dict(state)
        self.behind = max(0, self.epoch - 1)


@planted(
    "J7",
    "hand_out 20; finish 0-19; train 5; save; crash; restart",
    # The orders of the passes 1 and 2 are 7 6 4 0 2 5 3 1 and 5 3 6 0 1 2 4 7.
    setup=Setup(prompts=8, passes=3, shuffle=True, seed=2),
    because="rows 5 3 6 0 of pass 2 are trained; in the order of pass 1 the next are 2 5 3 1",
    skipped="22 23",
    duplicated="16 17",
    why={"never handed out": "22 23", "trained before a save and again": "16 17"},
    caught_by="short-ordered-15",
)
class OneOrderDrawn(OwnLoader):
    """Draws one order to come back to the pass it was in, whichever that is.

    Needs a third pass, and orders that differ. Seen in no public thread.
    """

    def make_loader(self) -> Any:
        self.rows = OrdersInTurn(self.rig)
        return self.rig.watch(self.rows, key=rows_of)


@planted(
    "J8",
    "hand_out 8; save; crash; restart",
    setup=Setup(prompts=8, passes=2, max_in_flight=6),
    because="6 and 7 wait for room, and the loader is at the start of pass 1 already. Their rows "
    "are trained once, which is missed at their last places",
    skipped="14 15",
    why={"handed out, not dispatched at a save": "14 15"},
    caught_by="tight-ordered-06-resaved",
)
class BackInThePass(Small):
    """Takes the loader back by what waits for room, and not over the start of the pass it is in.

    Needs a rest of a batch that waits at the end of a pass. Seen in no public thread.
    """

    resumed_at = 0

    def go_to(self, place: dict[str, Any]) -> None:
        super().go_to(place)
        self.resumed_at = self.drawn

    def unsent(self) -> set[int]:
        """What this life has drawn, and has had no room for."""
        return {number for number, _ in self.waiting if number >= self.resumed_at}

    def state(self) -> dict[str, Any]:
        size, passes = self.rig.setup.prompts_per_pass, self.rig.setup.passes
        first = min(self.drawn // size, passes - 1) * size
        place = self.place_of(max(first, self.drawn - len(self.unsent())))
        return {**super().state(), "place": place}

    def out(self) -> list[tuple[int, int]]:
        unsent = self.unsent()
        return [(number, row) for number, row in super().out() if number not in unsent]


@planted(
    "J9",
    "hand_out 8; finish 0-3; train; save; crash; restart",
    because="4-7 are in flight at the save, and given up for it",
    dropped="4-7",
    finding="dropped in a save",
    concerned="4-7",
    caught_by="mid-flight",
)
class GivesUpForASave(Small):
    """Gives up what is in flight when it saves, and says so.

    Needs a verdict that does not take a word for a reason. Seen in no public thread.
    """

    def __init__(self, rig: Rig) -> None:
        super().__init__(rig)
        self.given_up: list[Group] = []

    def save(self, root: Path, step: int) -> None:
        self.given_up += self.flying
        for group in self.flying:
            self.rig.dropped(group.prompt, "interrupted by a checkpoint")
        self.flying.clear()
        super().save(root, step)

    def answered(self, group: Group, answer: Future[Rollout]) -> None:
        if group not in self.given_up:
            super().answered(group, answer)


@planted(
    "J10",
    "hand_out 8; finish 0-3; train; fail 5; finish 6 7; save; crash; restart",
    because="5 has failed for good, as it would without a crash; it comes round again behind 4, is "
    "answered, and that is thrown away",
    failed="5",
    verdict="lossless",
    caught_by="",
)
class AnswersTheSettled(Rewinding):
    """Answers what comes round again, and throws the answer away: waste, and no loss.

    Needs a failure behind a save, and an answer to it after all. Seen in no public thread.
    """

    def wanted(self, batch: Iterable[tuple[int, Prompt]]) -> Iterable[tuple[int, Prompt]]:
        return batch

    def ended(self, group: Group) -> None:
        if group.number not in self.known:
            super().ended(group)


@planted(
    "J11",
    "hand_out 8; save; crash; restart",
    setup=Setup(max_in_flight=6),
    because="6 and 7 wait for room at the save, and are given up by the restart",
    dropped="6 7",
    finding="dropped without having been asked for",
    concerned="6 7",
    caught_by="gap-fill-tail",
)
class GivesUpWhatWaits(Small):
    """Gives up at a restart what had no room yet at the save, and says so.

    Needs a limit, and a verdict that does not take a word for a reason. Seen in no public thread.
    """

    def state(self) -> dict[str, Any]:
        return {**super().state(), "waiting": [prompt.row for _, prompt in self.waiting]}

    def out(self) -> list[tuple[int, int]]:
        return [(group.number, group.prompt.row) for group in self.flying]

    def load(self, state: dict[str, Any], *, load_replay_buffer: bool) -> None:
        super().load(state, load_replay_buffer=load_replay_buffer)
        for row in state["waiting"]:
            self.rig.dropped(self.rig.prompts[row], "had no room")
