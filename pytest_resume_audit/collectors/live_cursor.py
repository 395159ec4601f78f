"""The old way: a checkpoint holds the loader's live place, and what is in flight is lost."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar, Literal

from pytest_resume_audit.collector import Collector
from pytest_resume_audit.collectors import checkpoints
from pytest_resume_audit.collectors.frontier import StatefulLoader
from pytest_resume_audit.control import GenerationFailed
from pytest_resume_audit.fakes.prompts import Prompt, Rollout
from pytest_resume_audit.rig import Rig


class LiveCursorCollector(Collector):
    """The code that people write: it saves weights, buffer and loader, each as it stands.

    A prompt that is in flight at the save is behind the loader's place and not in the buffer:
    after a restart nobody answers it.

    Args:
        rig: loader, engine, buffer and trainer of this life.

    Attributes:
        form: how the files of a checkpoint are written.
        loader: hands out the prompts.
        epoch: the pass over the data that the loader is in.

    Example:
        >>> from pytest_resume_audit import LiveCursorCollector, run
        >>> run(LiveCursorCollector, "mid-flight").skipped
        [5, 8, 9, 11]
    """

    refuses = (checkpoints.ResumeRefused,)
    form: ClassVar[checkpoints.Form] = checkpoints.JSON

    def __init__(self, rig: Rig) -> None:
        super().__init__(rig)
        self.loader = self.make_loader()
        self.epoch = 0
        self._changed = threading.Condition()
        self._in_flight = 0
        self._failed_generations = 0
        self._error: Exception | None = None
        self._pool = ThreadPoolExecutor(rig.setup.total * rig.setup.group_size, "generation")

    # -- seams -----------------------------------------------------------------------------

    def make_loader(self) -> StatefulLoader:
        """The loader; by default the rig's own."""
        return self.rig.loader

    def weights(self) -> dict[str, Any]:
        """What to save of the trainer."""
        return self.rig.trainer.state_dict()

    def load_weights(self, weights: dict[str, Any]) -> None:
        """Go back to what :meth:`weights` gave."""
        self.rig.trainer.load_state_dict(weights)

    def optimize(self) -> list[Rollout] | Literal[False]:
        """One step of the trainer: the rollouts it took, False when there are too few yet."""
        return self.rig.trainer.step()

    # -- save and restore ------------------------------------------------------------------

    def save(self, root: Path, step: int) -> None:
        """Publish a checkpoint: weights, buffer, and the loader's live place."""
        self._check()
        parts = {
            "weights": self.weights(),
            "replay_buffer": self.rig.buffer.state_dict(),
            "dataloader": {"epoch": self.epoch, "state": self.loader.state_dict()},
        }
        checkpoints.publish(root, parts, step=step, form=self.form)

    def restore(self, checkpoint: Path, *, load_replay_buffer: bool) -> None:
        """Go back to a checkpoint."""
        parts = checkpoints.read(checkpoint, form=self.form)
        self.load_weights(parts["weights"])
        if load_replay_buffer:
            self.rig.buffer.load_state_dict(parts["replay_buffer"])
        self.epoch = parts["dataloader"]["epoch"]
        self.loader.load_state_dict(parts["dataloader"]["state"])

    @classmethod
    def latest(cls, root: Path) -> Path | None:
        """The newest complete checkpoint."""
        return checkpoints.newest_complete(root)

    # -- collection ------------------------------------------------------------------------

    def start(self) -> None:
        """Start the collection thread."""
        threading.Thread(target=self._collect, name="collection", daemon=True).start()

    def stop(self) -> None:
        """Let the generation threads end; what is in flight is abandoned."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _collect(self) -> None:
        while self.epoch < self.rig.setup.passes:
            for batch in self.loader:
                for prompt in batch:
                    self._dispatch(prompt)
            self.epoch += 1

    def _dispatch(self, prompt: Prompt) -> None:
        with self._changed:
            self._changed.wait_for(self._has_room)
            self._in_flight += 1
        ended: list[Rollout | None] = []
        for generation in range(self.rig.setup.group_size):
            self._pool.submit(self._generate, prompt, generation, ended)

    def _has_room(self) -> bool:
        setup = self.rig.setup
        if setup.max_in_flight is not None and self._in_flight >= setup.max_in_flight:
            return False
        return setup.capacity is None or self._in_flight + len(self.rig.buffer) < setup.capacity

    def _generate(self, prompt: Prompt, generation: int, ended: list[Rollout | None]) -> None:
        try:
            try:
                answer = self.rig.engine.generate(prompt, generation)
            except GenerationFailed:
                answer = None
            with self._changed:
                ended.append(answer)
                self._failed_generations += answer is None
                if len(ended) == self.rig.setup.group_size:
                    self._group_ended(ended)
        except Exception as error:
            self._error = error

    def _group_ended(self, ended: list[Rollout | None]) -> None:
        self._in_flight -= 1
        if None not in ended:
            for rollout in filter(None, ended):
                self.rig.buffer.add(rollout)
        self._changed.notify_all()

    # -- steps -----------------------------------------------------------------------------

    def train_step(self) -> bool:
        """Drop what is too old, and train one step."""
        self._check()
        for rollout in self.rig.buffer.evict(self.rig.trainer.weight_version):
            if rollout.generation == 0:
                self.rig.dropped(rollout.prompt, "too old")
        trained = bool(self.optimize())
        with self._changed:
            self._changed.notify_all()
        return trained

    def _check(self) -> None:
        failed, tolerated = self._failed_generations, self.rig.setup.max_failures
        if self._error is not None or failed > tolerated:
            raise RuntimeError(
                f"{failed} generations failed, {tolerated} are tolerated"
            ) from self._error
