"""Plays a script on a training command."""

from __future__ import annotations

from pathlib import Path

from pytest_resume_audit.command import Command
from pytest_resume_audit.control import Control
from pytest_resume_audit.lives.command import CommandLife
from pytest_resume_audit.play import Raised
from pytest_resume_audit.self_driven import SelfDrivenPlay
from pytest_resume_audit.timeline import Fail, Finish, HandOut, Restart, Save, Step

_LOADER = "no loader of the command is held: let its script take batches from recorder.watch(...)"
_ANSWERS = "no answer of the command is held: let its script call recorder.hold(row) for each"


class NotHeld(RuntimeError):
    """A step asks for what the command does not let an audit hold."""


class CommandPlay(SelfDrivenPlay):
    """One run of a script on a command, whose processes report what they do."""

    life: CommandLife

    def _new_life(self, control: Control) -> CommandLife:
        assert isinstance(self.make, Command)
        return CommandLife(self.make, control, self.deadline, self.root, self.overheard)

    def _do(self, step: Step) -> None:
        super()._do(step)
        self.rest_name = self.life.rest_name
        reported = self.life.reported
        if isinstance(step, HandOut) and not reported.holds_loader:
            raise Raised(NotHeld(f"{step.text}: {_LOADER}"))
        if isinstance(step, Finish | Fail) and not reported.holds_answers:
            raise Raised(NotHeld(f"{step.text}: {_ANSWERS}"))

    _chosen_by = "the command says that it has saved, or restored,"
    _how_to_write = "restored() takes what saved() was given"

    def _own_name(self, name: str) -> str:
        """The same; or that of the one it is a file of."""
        own = super()._own_name(name)
        known = {save.checkpoint for save in self.history.saves}
        parents = (parent.as_posix() for parent in Path(own).parents)
        return own if own in known else next((p for p in parents if p in known), own)

    def _choose(self, restart: Restart) -> Path | None:
        self.life.loads_buffer = restart.buffer
        return super()._choose(restart)

    def _take_origin(self, checkpoint: Path | None) -> None:
        super()._take_origin(checkpoint)
        if self.record.origin is not None:
            save = self.history.save(self.record.origin)
            self.life.reported.goes_back(save.weight_version, save.counts)

    def _stop(self) -> None:
        """Let it end by itself, saving on its way if it does."""
        control = self.control
        run = self.life.stop()
        while not run.done:
            self.life.settle()
            if control.standing_at("save"):
                self._through_save(Save())
            self._go_on_behind_saves()
            if control.standing_at("trainer"):
                # What it was about to train it trains, before it looks at what it was told.
                control.train_limit = control.steps_taken + 1
                self._go_on()
        self._end_life("stop", self._next_root())
