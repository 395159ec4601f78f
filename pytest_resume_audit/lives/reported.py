"""Takes in what a training command reports of its prompts."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from pytest_resume_audit.control import Control
from pytest_resume_audit.fakes.prompts import Prompt, Rollout
from pytest_resume_audit.lives.server import AGAIN, Answer, RigServer
from pytest_resume_audit.rig import Rig

AT_SAVES = frozenset({"save", "saved", "restored", "point"})
"""The gates of saves and restarts."""


class Reported:
    """The reports of one life of a command, as events of its rig.

    Args:
        server: that they come to.
        rig: of the life.
        control: of the same.

    Attributes:
        any: whether anything has been reported.
        holds_loader: whether the command lets the loader be held.
        holds_answers: whether it lets its answers be held.
        trainers: ids of the processes that train.
        restored: the checkpoint that it says it has restored.
        writes: the checkpoint that it says it writes now; empty when it writes none.
        goes_on: whether it may go on from there.
        carries_counts: whether its own weights carry the counts.
    """

    def __init__(self, server: RigServer, rig: Rig, control: Control) -> None:
        self.any = self.holds_answers = self.goes_on = self.carries_counts = False
        self.restored: Path | None = None
        self.writes = ""
        self._saved = ""
        self.trainers: set[int] = set()
        self._server = server
        self._rig = rig
        self._control = control
        self._flying: Counter[tuple[int, int]] = Counter()
        self._held: set[tuple[int, int]] = set()
        self._stepping = threading.Lock()
        self._steps: set[tuple[int, int]] = set()
        self._times: Counter[tuple[int, int]] = Counter()
        self._last_steps: dict[int, int] = {}
        self._implied: Counter[int] = Counter()
        server.answers(
            "report",
            at_once={"note": self._note, "version": lambda: rig.trainer.weight_version},
            at_gates={
                "trained": self._trained,
                "saving": self._saving,
                "saved": self._is_saved,
                "restored": self._restored,
                "hold": self._hold,
            },
        )

    @property
    def holds_loader(self) -> bool:
        """Whether the command lets the loader be held."""
        return self._server.holds_loader

    # -- prompts -------------------------------------------------------------------------------

    def _note(
        self, kind: str, rows: Sequence[int], generations: Sequence[int] | None, text: str
    ) -> None:
        self.any = True
        if kind == "handed_out":
            self._handed_out(rows)
        elif kind == "dropped":
            if not text:
                raise ValueError("dropped() needs a reason: a drop without one is a loss")
            for row in rows:
                self._rig.dropped(self._prompt(row), text)
        else:
            for row, generation in zip(rows, generations or (), strict=True):
                self._reached(kind, row, generation)

    def _handed_out(self, rows: Sequence[int]) -> None:
        if self.holds_loader:
            return  # which tells of it by itself
        control = self._control
        for row in rows:
            self._prompt(row)
        with control.lock:
            # Another rank may have trained some already, which says as much.
            rows = [row for row in rows if not self._take_implied(row)]
            control.hand_out(rows, None)
            # When it is sent off nobody tells: from now on it may be in flight.
            for row in rows:
                for generation in range(self._rig.setup.group_size):
                    ordinal = control.numbers.of("dispatched", row, generation)
                    control.record(
                        "dispatched", ordinal, generation, number=self._rig.trainer.steps_behind
                    )
                    self._flying[ordinal, generation] += 1

    def _take_implied(self, row: int) -> bool:
        known = self._implied[row] > 0
        self._implied[row] -= known
        return known

    def _reached(self, kind: str, row: int, generation: int) -> None:
        prompt, control = self._prompt(row, generation), self._control
        with control.lock:
            if kind == "buffered":
                self._ended("finished", row, generation)
                control.reached("buffered", self._rollout(prompt, generation))
            elif (row, generation) not in self._held:
                self._ended(kind, row, generation)

    def _ended(self, how: str, row: int, generation: int) -> None:
        """A generation has ended, if it is in flight. The lock is held."""
        numbers = self._control.numbers
        ordinal = numbers.look_up("finished", row, generation)
        if not self._flying[ordinal, generation]:
            return
        self._flying[ordinal, generation] -= 1
        if how == "failed":
            numbers.lose(ordinal, generation)
        else:
            numbers.reach("finished", ordinal, generation)
        self._control.record(how, ordinal, generation)

    def _hold(self, answer: Answer, row: int, generation: int) -> None:
        self.any = self.holds_answers = True
        prompt = self._prompt(row, generation)
        self._held.add((row, generation))
        self._server.generate(answer, prompt, generation)

    def _prompt(self, row: int, generation: int = 0) -> Prompt:
        many, size = self._rig.setup.prompts, self._rig.setup.group_size
        if not 0 <= row < many:
            raise ValueError(
                f"row {row} is outside of the data set, which has {many} prompts: give the audit "
                "the sizes that the command has, as in setup=Setup(prompts=1000)"
            )
        if not 0 <= generation < size:
            raise ValueError(
                f"generation {generation} of row {row} is outside of its group, which has {size}: "
                "give the audit the sizes that the command has, as in setup=Setup(group_size=8)"
            )
        return self._rig.prompts[row]

    def _rollout(self, prompt: Prompt, generation: int) -> Rollout:
        return Rollout(prompt, generation, self._rig.trainer.steps_behind)

    # -- steps ---------------------------------------------------------------------------------

    def _trained(
        self,
        answer: Answer,
        rows: Sequence[int],
        generations: Sequence[int] | None,
        step: int | None,
        counts: Sequence[int] | None,
        process: int,
    ) -> None:
        self.any = True
        with self._control.lock:
            self.trainers.add(process)
        self._take(counts)
        answers = self._answers(rows, generations)
        rollouts = [
            self._rollout(self._prompt(row, generation), generation) for row, generation in answers
        ]
        places = self._rig.trainer.places(rollouts)
        share = self._share_of(step, process)

        def may_train() -> bool:
            return share in self._steps or self._server.may_train()

        def train() -> object:
            # Several ranks are heard at a time, and one of them begins the step.
            with self._stepping:
                if not may_train():
                    return AGAIN
                self._say_how_they_came(answers)
                if share in self._steps:
                    self._rig.trainer.train_more(rollouts)
                else:
                    self._rig.trainer.train(rollouts)
                    self._steps.update(() if share is None else (share,))
            return places

        self._server.when("trainer", may_train, answer, train)

    def _share_of(self, step: int | None, process: int) -> tuple[int, int] | None:
        """Which step a report has a share in: its number, and how often that has come before.

        Numbers may begin anew with every pass.
        """
        if step is None:
            return None
        with self._control.lock:
            if self._last_steps.get(process) != step:
                self._last_steps[process] = step
                self._times[process, step] += 1
            return step, self._times[process, step]

    def _say_how_they_came(self, answers: Sequence[tuple[int, int]]) -> None:
        """What is trained has been handed out and answered, also where nobody told."""
        control = self._control
        with control.lock:
            for row, generation in answers:
                known = control.numbers.came(row)
                if not known and not self.holds_loader:
                    control.hand_out([row], None)
                    self._implied[row] += 1
                self._ended("finished", row, generation)

    def _answers(
        self, rows: Sequence[int], generations: Sequence[int] | None
    ) -> list[tuple[int, int]]:
        """Row and generation of each answer in a batch."""
        size = self._rig.setup.group_size
        if generations is not None:
            return list(zip(rows, generations, strict=True))
        many = Counter(rows)
        if set(many.values()) <= {1}:
            return [(row, generation) for row in rows for generation in range(size)]
        if set(many.values()) == {size}:
            return [(row, generation) for row in many for generation in range(size)]
        if size == 1:
            return [(row, 0) for row in rows]
        raise ValueError(
            f"a batch has parts of groups: of {size} generations each, row "
            f"{next(row for row in rows if many[row] != size)} comes {min(many.values())} times. "
            "Say which in generations="
        )

    # -- checkpoints ---------------------------------------------------------------------------

    def _take(self, counts: Sequence[int] | None) -> None:
        """Know the weights as the command's own model has them."""
        if counts is not None:
            self.carries_counts = True
            *those, version = counts
            self._rig.trainer.load_state_dict({"version": version, "counts": those})

    def _saving(self, answer: Answer, checkpoint: str, counts: Sequence[int] | None) -> None:
        self.any = True
        with self._control.lock:
            # No step goes through a save: one that has its number is another.
            self._last_steps.clear()
            if self.writes:
                raise ValueError(
                    f"saving({_named(checkpoint)}) comes before saved({_named(self.writes)}): "
                    "report one save after the other, each to its end, and by one of several ranks"
                )
            self.writes = checkpoint
        self._take(counts)
        self._server.saving(answer, checkpoint)

    def _is_saved(self, answer: Answer, checkpoint: str) -> None:
        self.any = True
        with self._control.lock:
            if not self.writes and checkpoint != self._saved:
                raise ValueError(
                    f"saved({_named(checkpoint)}) comes without saving({_named(checkpoint)}): "
                    "report that before the first of its files is written"
                )
            self.writes, self._saved = "", checkpoint
        self._server.saved(answer, checkpoint)

    def _restored(
        self, answer: Answer, checkpoint: str, counts: Sequence[int] | None, process: int
    ) -> None:
        self.any = True
        with self._control.lock:
            if process in self.trainers or (self.trainers and self.restored is None):
                raise ValueError(
                    f"restored({_named(checkpoint)}) comes after training steps: report it before "
                    "the first of a life; going back to a checkpoint without a restart is not "
                    "audited"
                )
            if self.restored is not None and self.restored != Path(checkpoint):
                raise ValueError(
                    f"restored({_named(checkpoint)}) comes after "
                    f"restored({_named(self.restored)}): report the one that training goes on from"
                )
            self.restored = Path(checkpoint)
        self._take(counts)
        self._server.when("restored", lambda: self.goes_on, answer, lambda: None)

    def goes_back(self, version: int, counts: Sequence[int]) -> None:
        """Take the weights for those that a checkpoint was saved with, if nothing better is known.

        Args:
            version: steps behind them.
            counts: of them.
        """
        if not self.carries_counts:
            self._rig.trainer.load_state_dict({"version": version, "counts": list(counts)})

    def go_on(self) -> None:
        """Let it go on from what it has restored."""
        self.goes_on = True
        self._control.open_gates()


def _named(checkpoint: str | Path) -> str:
    return repr(Path(checkpoint).name)
