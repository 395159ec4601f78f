"""How a collector has to be driven, found out from its class."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass

from pytest_resume_audit.collector import Collector, SelfDrivenCollector
from pytest_resume_audit.rig import Rig

AnyCollector = Collector | SelfDrivenCollector
Make = Callable[[Rig], AnyCollector]
"""What a run is given: a class, or anything that makes a collector from a rig."""


@dataclass(frozen=True)
class Style:
    """How a collector has to be driven.

    Args:
        self_driven: its own loop trains and saves.
        loop: its methods are coroutines.
        threaded: it has threads or a loop, so it is watched from outside; False where every
            call is made at once.
    """

    self_driven: bool
    loop: bool
    threaded: bool

    @classmethod
    def of(cls, kind: type[AnyCollector]) -> Style:
        """The style that a class seems to have: single-threaded when it is pulled."""
        loop = any(inspect.iscoroutinefunction(getattr(kind, name, None)) for name in _METHODS)
        self_driven = issubclass(kind, SelfDrivenCollector)
        return cls(self_driven, loop, threaded=self_driven or loop or not pulls(kind))


_METHODS = ("start", "save", "restore", "pull", "train_step", "stop", "crash", "downgrade")


class WrongStyle(Exception):
    """The collector has to be driven in another way: the run is thrown away.

    Args:
        style: the way.
    """

    def __init__(self, style: Style) -> None:
        super().__init__(style)
        self.style = style


def can_downgrade(kind: type[AnyCollector]) -> bool:
    """Whether a collector can make legacy checkpoints."""
    return kind.downgrade not in (Collector.downgrade, SelfDrivenCollector.downgrade)


def pulls(kind: type[AnyCollector]) -> bool:
    """Whether a collector has no thread of its own, and takes a batch when it is asked to."""
    return issubclass(kind, Collector) and kind.pull is not Collector.pull
