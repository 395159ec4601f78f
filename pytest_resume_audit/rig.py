"""The rig: what a collector is built on in an audited life."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TypeVar

from pytest_resume_audit.control import Control
from pytest_resume_audit.fakes.buffer import ReplayBuffer
from pytest_resume_audit.fakes.engine import Engine
from pytest_resume_audit.fakes.loader import Loader, WatchedLoader
from pytest_resume_audit.fakes.prompts import Prompt, Prompts, Rollout
from pytest_resume_audit.fakes.trainer import Trainer
from pytest_resume_audit.numbering import Numbering
from pytest_resume_audit.setup import Setup

Batch = TypeVar("Batch")


class Rig:
    """Loader, engine, buffer and trainer of one life.

    In an audit each life's collector gets a new one. Made by hand it is open: the loader hands
    out at once, generations end when ``rig.engine.finish`` says so.

    All of it works from any thread and from asyncio. After the end of the life every call
    raises :class:`LifeEnded`.

    Args:
        setup: the sizes.
        control: given by the audit.

    Attributes:
        setup: the sizes.
        prompts: the data set.
        loader: hands out prompts.
        engine: answers them.
        buffer: keeps finished groups.
        trainer: trains on them.

    Example:
        >>> rig = Rig(Setup(prompts=4, batch_size=2, prompts_per_step=2))
        >>> batch = next(iter(rig.loader))
        >>> answers = [rig.engine.submit(prompt) for prompt in batch]
        >>> rig.engine.finish(0), rig.engine.finish(1)
        (None, None)
        >>> _ = [rig.buffer.add(answer.result()) for answer in answers]
        >>> [rollout.prompt.row for rollout in rig.trainer.step()]
        [0, 1]
    """

    def __init__(self, setup: Setup | None = None, control: Control | None = None) -> None:
        self.setup = Setup() if setup is None else setup
        self._control = _open(self.setup) if control is None else control
        self.prompts = Prompts(self.setup.prompts, self.setup.data_set, self.setup.texts)
        self.loader = Loader(self.prompts, self._control)
        self.engine = Engine(self._control)
        self.buffer = ReplayBuffer(self._control)
        self.trainer = Trainer(self._control, self.buffer)

    def watch(
        self, loader: Iterable[Batch], key: Callable[[Batch], Iterable[int]]
    ) -> WatchedLoader[Batch]:
        """Put a project's own loader in the place of ``rig.loader``.

        Args:
            loader: each ``iter()`` of it is a pass; with ``state_dict`` and
                ``load_state_dict`` where it has them.
            key: the rows of a batch, in order.

        Returns:
            The loader to take batches from; every other attribute is that of ``loader``.

        Example:
            >>> rig = Rig(Setup(prompts=4))
            >>> loader = rig.watch([["a", "b"], ["c", "d"]], key=lambda batch: map(ord, batch))
            >>> next(iter(loader))
            ['a', 'b']
        """
        return WatchedLoader(loader, key, self._control)

    def buffered(self, rollout: Rollout) -> None:
        """Say that a rollout is in the project's own buffer now; after a restart as well."""
        with self._control.lock:
            self._control.reached("buffered", rollout)

    def dropped(self, prompt: Prompt, reason: str) -> None:
        """Say that a prompt is given up on purpose, and why.

        Raises:
            ValueError: without a reason.
        """
        if not reason:
            raise ValueError("rig.dropped needs a reason: a drop without one is a loss")
        self._control.dropped(prompt, reason)

    def point(self, name: str) -> None:
        """Name a place in the collector where the audit may interleave other work, or crash."""
        self._control.check()

    def working(self) -> AbstractContextManager[None]:
        """While something is done where the audit does not look, such as in a child process.

        The life is not at rest until it ends, so what it leads to is waited for. It has to end
        whatever the timeline does next.

        Example:
            >>> with Rig().working():
            ...     pass  # wait for the child to answer
        """
        return self._control.granted()

    def saving(self, checkpoint: Path) -> None:
        """Say that a checkpoint begins to be written; for a self-driven collector."""
        self._control.begin_save()

    def saved(self, checkpoint: Path) -> None:
        """Say that a checkpoint is written; for a self-driven collector."""
        self._control.end_save(Path(checkpoint))

    def restored(self, checkpoint: Path) -> None:
        """Say that a checkpoint has been restored; for a self-driven collector."""
        self._control.note("restored", text=Path(checkpoint).name)


def _open(setup: Setup) -> Control:
    stream = [row for epoch in range(setup.passes) for row in setup.order(epoch)]
    return Control(setup, Numbering(stream))
