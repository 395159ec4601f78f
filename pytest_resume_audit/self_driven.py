"""Plays a script on a collector whose own loop trains and saves."""

from __future__ import annotations

from pathlib import Path

from pytest_resume_audit.control import Control
from pytest_resume_audit.history import SaveRecord
from pytest_resume_audit.play import Hangs, Play, Raised, Refused
from pytest_resume_audit.savepoints import Images
from pytest_resume_audit.timeline import Fail, Finish, HandOut, Save, Step, Train


class SelfDrivenPlay(Play):
    """One run of a script on a collector whose own loop trains and saves.

    Its ``run`` is one long call; training steps and saves are gates that the script opens.
    """

    def _new_control(self) -> Control:
        return Control(
            self.setup,
            self.numbering,
            gated=self.gated,
            self_driven=True,
            counted=self.counted,
        )

    def _start(self, checkpoint: Path | None, *, load_replay_buffer: bool) -> None:
        self._resumes = checkpoint is not None
        self._running = self.life.call(
            "run", self.life_root, resume=checkpoint, load_replay_buffer=load_replay_buffer
        )

    def _do(self, step: Step) -> None:
        if isinstance(step, HandOut | Finish | Fail) and not self.control.standing_at("point"):
            self._go_on_behind_saves()
        super()._do(step)

    def _check(self) -> None:
        super()._check()
        error = getattr(self, "_running", None) and self._running.error
        if error is not None:
            self._running.error = None
            refused = self._resumes and self._is_refusal(error)
            raise (Refused if refused else Raised)(error)
        if self.record.events and self.record.events[-1].kind == "trained":
            self._resumes = False

    def _train_once(self) -> bool:
        control = self.control
        before = control.steps_taken
        control.train_limit = before + 1
        self._go_on_behind_saves()
        while control.standing_at("save"):
            self._through_save(Save())
            self._go_on_behind_saves()
        return control.steps_taken > before

    def _train(self, step: Train) -> None:
        missed = len(self.missed)
        super()._train(step)
        if len(self.missed) > missed and self._stands_at_loader():
            self.in_the_way.add("a training step")

    def _save(self, step: Save) -> None:
        """Let steps through until the framework saves, and hold it right behind the save."""
        if self._comes_to_save(step):
            self._through_save(step)

    def _save_watched(self, step: Step, images: Images) -> SaveRecord | None:
        if not self._comes_to_save(step):
            return None
        with images.watched():
            return self._through_save(Save())

    def _comes_to_save(self, step: Step) -> bool:
        """Let steps through until the framework is about to save."""
        control = self.control
        self._go_on_behind_saves()
        while not control.standing_at("save"):
            before = control.steps_taken
            control.train_limit = before + 1
            self._go_on()
            if control.steps_taken == before:
                self._rest(conclude=True)
                if not control.standing_at("save"):
                    why = "run has ended" if self._running.done else "it waits for more"
                    self._miss(step.text, f"no save came: {why}", throttled=True)
                    return False
        return True

    def _through_save(self, step: Save) -> SaveRecord:
        control = self.control
        saver, *_ = control.standing_at("save")
        save = self._begin_save()
        control.save_limit = control.saves_begun + 1
        if step.race is None:
            self._go_on()
        else:
            assert step.race.at is not None
            points = self.life.points(self.life_root, step.race.at, saver.thread)
            with points.watched():
                self._go_on()
                if not points.stopped:
                    self._rest(conclude=True)
                self._race_at(points, step.race, save)
                self._rest()
            self._after_race(points, step, save)
        if self.life.killed:
            return save
        while not control.standing_at("saved"):
            # One that is written in the background may be known to be complete steps later.
            before = control.steps_taken
            control.train_limit = before + 1
            self._go_on()
            if self.life.killed:
                return save
            if control.steps_taken == before and not control.standing_at("saved"):
                if self._stands_at_loader():
                    self.in_the_way.add("a save")
                raise Hangs(self._stands("a save does not come to its end"))
        assert control.checkpoint is not None
        save.checkpoint, save.published = self._name_of(control.checkpoint), True
        save.end = len(self.record.events)
        self._note("saved", save.number)
        self._commit()
        return save

    def _go_on_behind_saves(self) -> None:
        self.control.pass_limit = self.control.saves_begun
        self._go_on()

    def _go_on(self) -> None:
        self.control.open_gates()
        self._rest()

    def _stop(self) -> None:
        self._end_life("stop", self._next_root())

    def _check_drained(self) -> None:
        if not self._running.done and self.kind.stream == "finite":
            self._hang_or_drain("run does not return")
