"""The contract: what a project writes to have its collector audited."""

from __future__ import annotations

import abc
import re
from collections.abc import Awaitable
from pathlib import Path
from types import FunctionType
from typing import Any, ClassVar, Literal

from pytest_resume_audit.rig import Rig

Delivery = Literal["exactly_once", "at_least_once"]


def _check_declarations(kind: type[_Audited]) -> None:
    """Refuse declarations that say nothing, where the class is defined."""
    for name, allowed in (
        ("delivery", ("exactly_once", "at_least_once")),
        ("order", ("stream", "any")),
        ("stream", ("finite", "endless")),
        ("structural", (True, False)),
    ):
        if getattr(kind, name) not in allowed:
            words = ", ".join(map(repr, allowed))
            raise TypeError(
                f"{kind.__qualname__}.{name} is one of {words}, not {getattr(kind, name)!r}"
            )
    refuses = kind.refuses
    if not isinstance(refuses, tuple) or not all(
        isinstance(error, type) and issubclass(error, Exception) for error in refuses
    ):
        raise TypeError(f"{kind.__qualname__}.refuses is a tuple of exceptions, not {refuses!r}")
    try:
        re.compile(kind.legacy_warning)
    except (re.error, TypeError) as error:
        raise TypeError(f"{kind.__qualname__}.legacy_warning is no pattern: {error}") from None


class _Audited:
    """What both styles of collector declare; they are judged by it.

    Attributes:
        delivery: ``"exactly_once"``; or ``"at_least_once"``: a repeat is allowed, once a
            restart, for a prompt that was trained at the save and lies above the lowest one
            that was not settled then.
        order: ``"stream"`` promises that steps take prompts in the order of the stream.
        stream: ``"endless"`` for a loader that never ends: the first ``prompts x passes`` are
            expected, and the run is ended there.
        lives: the kinds of life it can have.
        refuses: exceptions that are a deliberate refusal to resume.
        legacy_warning: a pattern (regular expression) that a life resumed from a legacy
            checkpoint, or descending from one, must show in warnings, logging or output.
        structural: True when a run that is never interrupted may leave prompts untrained.
    """

    delivery: ClassVar[Delivery] = "exactly_once"
    order: ClassVar[Literal["stream", "any"]] = "any"
    stream: ClassVar[Literal["finite", "endless"]] = "finite"
    lives: ClassVar[tuple[str, ...]] = ("local", "process", "ray", "ray-driver")
    refuses: ClassVar[tuple[type[Exception], ...]] = ()
    legacy_warning: ClassVar[str] = "(?i)legacy"
    structural: ClassVar[bool] = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        _check_declarations(cls)

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and not kwargs and isinstance(args[0], FunctionType | type):
            return _decorated(cls, args[0])
        return super().__new__(cls)

    def __init__(self, rig: Rig) -> None:
        self.rig = rig

    @classmethod
    def latest(cls, root: Path) -> Path | None:
        """Which checkpoint a restart takes.

        Args:
            root: the checkpoint root.

        Returns:
            The directory whose name ends in the highest number, complete or not; None when
            there is none. Override it with the project's own rule.
        """
        numbered = [
            (int(match[1]), path)
            for path in root.iterdir()
            if (match := re.search(r"(\d+)$", path.name)) and path.is_dir()
        ]
        return max(numbered, default=(0, None), key=lambda found: found[0])[1]


class Collector(_Audited, abc.ABC):
    """A collector that the audit calls, step by step: one object a life.

    Each method may be ``async``. Only ``start``, ``save`` and ``restore`` are required.

    Args:
        rig: loader, engine, buffer and trainer of this life.

    Example:
        >>> class Draining(Collector):
        ...     def start(self):
        ...         self.batches = iter(self.rig.loader)
        ...
        ...     def pull(self):
        ...         for prompt in next(self.batches, ()):
        ...             future = self.rig.engine.submit(prompt)
        ...             future.add_done_callback(lambda f: self.rig.buffer.add(f.result()))
        ...         return True
        ...
        ...     def save(self, root, step): ...
        ...     def restore(self, checkpoint, *, load_replay_buffer): ...
    """

    @abc.abstractmethod
    def start(self) -> Awaitable[None] | None:
        """Begin to collect. It may start threads, tasks or actors; it returns."""

    @abc.abstractmethod
    def save(self, root: Path, step: int) -> Awaitable[None] | None:
        """Publish checkpoint ``step`` below ``root``, in the project's own layout.

        When it returns, ``latest`` has to find the checkpoint: what is only staged by then is
        taken for lost by a crash that comes right behind it.

        Args:
            root: the checkpoint root, which exists; after a restart the checkpoints of the
                lives before are in it.
            step: trainer steps so far; several saves may have the same.
        """

    @abc.abstractmethod
    def restore(self, checkpoint: Path, *, load_replay_buffer: bool) -> Awaitable[None] | None:
        """Go back to a checkpoint; called before ``start``.

        Args:
            checkpoint: what ``latest`` chose.
            load_replay_buffer: False: the buffer starts empty.
        """

    def pull(self) -> bool | Awaitable[bool]:
        """Take one batch and dispatch it; only for a collector without a thread.

        Returns:
            False when there is nothing to take now.
        """
        return False

    def train_step(self) -> bool | Awaitable[bool]:
        """Train one step; by default ``rig.trainer.step()``.

        Returns:
            False when there is not enough yet.
        """
        return bool(self.rig.trainer.step())

    def stop(self) -> Awaitable[None] | None:
        """End gracefully."""

    def crash(self) -> Awaitable[None] | None:
        """End suddenly what the rig cannot end by itself, such as child processes."""

    def downgrade(self, checkpoint: Path) -> Awaitable[None] | None:
        """Rewrite the checkpoint just saved as the version before the fix wrote it."""
        raise NotImplementedError


class SelfDrivenCollector(_Audited, abc.ABC):
    """A collector whose own loop trains and saves, such as a ``Trainer.train()``.

    The framework's training step calls ``rig.trainer.train(rollouts)`` at forward and backward,
    its save is bracketed by ``rig.saving(checkpoint)`` and ``rig.saved(checkpoint)``, a resume
    says ``rig.restored(checkpoint)``. Each of these calls is a gate at which the script holds
    the run, or crashes it.

    Args:
        rig: loader, engine, buffer and trainer of this life.
    """

    @abc.abstractmethod
    def run(self, root: Path, *, resume: Path | None, load_replay_buffer: bool) -> None:
        """Train to the end.

        Args:
            root: the checkpoint root, which exists.
            resume: the checkpoint to go back to first; None: begin afresh.
            load_replay_buffer: False: the buffer starts empty.
        """

    def crash(self) -> None:
        """End suddenly what the rig cannot end by itself, such as child processes."""

    def downgrade(self, checkpoint: Path) -> None:
        """Rewrite the checkpoint just saved as the version before the fix wrote it."""
        raise NotImplementedError


def _decorated(kind: type, test: FunctionType | type) -> FunctionType | type:
    """Mark a test that ``@pytest.mark.resume_audit(MyCollector)`` stands on.

    To pytest a mark that is called with nothing but a class decorates that class, so the class
    is given the mark, and then is called with the test. The mark goes on to where it was meant
    for; without it somebody has called a collector with what is no rig.

    Raises:
        TypeError: for a class that does not carry the mark.
    """
    marks = list(kind.__dict__.get("pytestmark", ()))
    if not marks or marks[-1].name != "resume_audit":
        raise TypeError(
            f"{kind.__qualname__} is made with a Rig, not with {test.__qualname__}; a function "
            "that makes collectors is given to the marker by name: "
            "@pytest.mark.resume_audit(collector=make)"
        )
    import pytest

    kind.pytestmark = marks[:-1]  # type: ignore[attr-defined]
    marked: FunctionType | type = pytest.mark.resume_audit(collector=kind)(test)
    return marked
