"""The sizes of an audited run."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

Take = Literal["group", "hand_out", "arrival"]

_TAKES = ("group", "hand_out", "arrival")


@dataclass(frozen=True, kw_only=True)
class Setup:
    """How large the run is that a timeline is played on, and how its trainer takes groups.

    The defaults are those of the case that names the project: 16 prompts, handed out and
    trained 4 at a time. Unequal sizes find more: ``Setup(prompts=17, prompts_per_step=3,
    group_size=2)``.

    Args:
        prompts: rows in the data set.
        batch_size: prompts in one hand-out of the loader.
        prompts_per_step: groups that one trainer step takes.
        group_size: generations of one prompt.
        passes: how often the loader goes through the data set (epochs).
        shuffle: whether each pass has an order of its own.
        seed: of the shuffle.
        drop_last: whether the loader leaves out the incomplete last batch of a pass.
        take: which groups a step takes: ``"group"``, the lowest complete ones; ``"hand_out"``,
            the next hand-out once none of it is in flight; ``"arrival"``, in order of arrival.
        capacity: groups that fit in the replay buffer; None: any number.
        max_age: steps that an answer may be older than the weights it trains; None: any.
        max_in_flight: prompts that may be in flight at once; None: any number. More is a fault
            of the collector.
        max_failures: failed generations that the collector must tolerate.
        data_set: which data set it is: another one has other texts in the same rows.
        texts: different texts in it: row 11 of one with 8 has that of row 3. None: each row has a
            text of its own.

    Raises:
        ValueError: for a size that makes no run, naming the field.

    Example:
        >>> Setup(prompts=8, passes=2).total
        16
    """

    prompts: int = 16
    batch_size: int = 4
    prompts_per_step: int = 4
    group_size: int = 1
    passes: int = 1
    shuffle: bool = False
    seed: int = 0
    drop_last: bool = False
    take: Take = "group"
    capacity: int | None = None
    max_age: int | None = None
    max_in_flight: int | None = None
    max_failures: int = 1
    data_set: int = 0
    texts: int | None = None

    def __post_init__(self) -> None:
        for name in ("prompts", "batch_size", "prompts_per_step", "group_size", "passes"):
            self._check(name, least=1)
        for name in ("seed", "max_failures", "data_set"):
            self._check(name, least=0)
        for name, least in (("capacity", 1), ("max_age", 0), ("max_in_flight", 1), ("texts", 1)):
            if getattr(self, name) is not None:
                self._check(name, least=least)
        for name in ("shuffle", "drop_last"):
            if not isinstance(value := getattr(self, name), bool):
                raise ValueError(f"Setup({name}={value!r}): True or False is needed")
        if self.take not in _TAKES:
            raise ValueError(f"Setup(take={self.take!r}): allowed are {', '.join(_TAKES)}")
        if self.drop_last and self.batch_size > self.prompts:
            raise ValueError(
                "Setup(drop_last=True) with batch_size above prompts hands out nothing"
            )

    def _check(self, name: str, *, least: int) -> None:
        value = getattr(self, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ValueError(f"Setup({name}={value!r}): a whole number from {least} is needed")

    @property
    def prompts_per_pass(self) -> int:
        """Prompts that one pass hands out: fewer than ``prompts`` under ``drop_last``."""
        return self.prompts - self.prompts % self.batch_size if self.drop_last else self.prompts

    @property
    def total(self) -> int:
        """Prompts that the whole run hands out, over all passes."""
        return self.prompts_per_pass * self.passes

    def changed(self, changes: Iterable[tuple[str, int]]) -> Setup:
        """The sizes after some of them have changed.

        Args:
            changes: fields and their values, in the order in which they change.

        Raises:
            ValueError: for sizes that make no run.

        Example:
            >>> Setup().changed([("batch_size", 8), ("batch_size", 2)]).batch_size
            2
        """
        values: dict[str, Any] = dict(changes)
        return replace(self, **values) if values else self

    def order(self, epoch: int) -> Sequence[int]:
        """The rows of one pass, in the order in which the rig's own loader hands them out."""
        rows: Sequence[int] = range(self.prompts)
        if self.shuffle:
            # Seeded by a number, the generator gives the same order in every process.
            rows = random.Random(self.seed * 1_000_003 + epoch).sample(rows, self.prompts)
        return rows[: self.prompts_per_pass]

    def __str__(self) -> str:
        """The fields that differ from the defaults, as they would be written."""
        changed = [
            f"{f.name}={getattr(self, f.name)!r}"
            for f in fields(self)
            if getattr(self, f.name) != f.default
        ]
        return f"Setup({', '.join(changed)})"


def widest(setup: Setup, changes: Iterable[tuple[str, int]]) -> tuple[int, int]:
    """Prompts, and generations of each, that a run with changing sizes has at the most.

    Example:
        >>> widest(Setup(), [("prompts", 20), ("prompts", 12)])
        (20, 1)
    """
    many = {"prompts": [setup.prompts], "group_size": [setup.group_size]}
    for name, value in changes:
        many.get(name, []).append(value)
    return max(many["prompts"]), max(many["group_size"])
