"""What is known of a real run, and what is not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Verdict = Literal["lossless", "lossy", "undetermined"]

SCHEMA = 1
"""Version of the JSON's form."""

LISTED = 10_000
"""Prompts that are named in the JSON; all are counted."""


@dataclass
class Loss:
    """Prompts that have met the same fate.

    Args:
        cause: what that was.
        prompts: how many.
        named: the first of them.
        rolled_back: how many of them were trained in steps that a restart has taken back.
    """

    cause: str
    prompts: int
    named: list[Any] = field(default_factory=list)
    rolled_back: int = 0


@dataclass
class Restart:
    """From one life to the next.

    Args:
        life: the number of the life that it begins, from 1.
        checkpoint: that it came from, as it is named in the ledger or by its step; None: from
            none, afresh.
        of_life: the life that saved it; None where it came from none.
        step: that the checkpoint has; None where no steps are reported.
        reached: the step that the lives before it had come to.
        steps: how many trained steps it has taken back.
        trainings: how often a prompt was trained in them.
        seconds: from the save to the last thing that the lives before it said.
        place: where the loader was at the save, in prompts since the run has begun; None where it
            is not known.
        goes_on_at: where it has gone on; below ``place`` it hands out again what was not settled.
    """

    life: int
    checkpoint: str | None
    of_life: int | None
    step: int | None
    reached: int | None = None
    steps: int = 0
    trainings: int = 0
    seconds: float | None = None
    place: int | None = None
    goes_on_at: int | None = None


@dataclass
class RunReport:
    """What came of the prompts of a run, in the weights that its last life has ended with.

    A number that can't be known is None, and says so when it is shown.

    Attributes:
        lives: how many.
        events: that were read.
        prompts: that were to be trained, each pass counted.
        trained: of them, at least once.
        skipped: by cause.
        duplicated: by cause.
        dropped: by reason; given up on purpose, and no loss.
        failed: prompts that got no answer; no loss either.
        open: still out when the last life has ended or was killed, and not lost.
        restarts: one after the other.
        answered_again: answers that were made though the prompt had one for that pass.
        rolled_back: how often a prompt was trained in steps that a restart has taken back.
        bias: whether it is long answers that are lost, in a sentence.
        notes: what is remarkable, and harmless.
        doubts: why something can't be known.
    """

    lives: int = 0
    events: int = 0
    prompts: int | None = None
    trained: int | None = None
    skipped: list[Loss] | None = None
    duplicated: list[Loss] | None = None
    dropped: list[Loss] | None = None
    failed: int | None = None
    open: int | None = None
    restarts: list[Restart] = field(default_factory=list)
    answered_again: int | None = None
    rolled_back: int | None = None
    bias: str | None = None
    notes: list[str] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)

    @property
    def verdict(self) -> Verdict:
        """A loss that is certain is one, whatever else isn't known; nothing else passes a doubt."""
        if self.skipped or self.duplicated:
            return "lossy"
        if self.doubts or self.skipped is None or self.duplicated is None:
            return "undetermined"
        return "lossless"

    def headline(self) -> str:
        """All of it in a line."""
        parts = [
            f"{count(losses)} {what}"
            for losses, what in ((self.skipped, "skipped"), (self.duplicated, "trained twice"))
            if losses
        ]
        if self.verdict == "lossy":
            return f"lossy: of {number(self.prompts)} prompts {', '.join(parts)}"
        if self.verdict == "undetermined":
            return f"undetermined: {self.doubts[0] if self.doubts else 'nothing tells of a skip'}"
        rest = f"; {number(self.open)} still out" if self.open else ""
        return f"lossless: {number(self.trained)} of {number(self.prompts)} prompts trained{rest}"

    def to_json(self) -> dict[str, Any]:
        """As plain values; what can't be known is null."""
        return {
            "schema": SCHEMA,
            "verdict": self.verdict,
            "headline": self.headline(),
            **{name: _plain(value) for name, value in vars(self).items()},
        }


def count(losses: Sequence[Loss] | None) -> int | None:
    """How many prompts in all; None stays None."""
    return None if losses is None else sum(loss.prompts for loss in losses)


def number(value: float | None) -> str:
    """A number for people; what can't be known is undetermined, never zero.

    Example:
        >>> number(1234567), number(None)
        ('1,234,567', 'undetermined')
    """
    return "undetermined" if value is None else f"{value:,}"


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if isinstance(value, (Loss, Restart)):
        return {name: _plain(one) for name, one in vars(value).items()}
    return value
