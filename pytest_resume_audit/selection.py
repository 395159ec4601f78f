"""Which audits of a session are run, and in which order: a shard, a budget, a seeded sample.

Everything here is decided by ids alone, so that it is the same on every machine and worker.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}


class SelectionError(ValueError):
    """What is wrong with a budget or a shard, and what is allowed."""


@dataclass(frozen=True)
class Budget:
    """How long audits may take in all.

    Args:
        text: as it was given.
        seconds: the same in seconds.
    """

    text: str
    seconds: float

    @classmethod
    def parse(cls, text: str) -> Budget:
        """Read a budget.

        Args:
            text: a number and its unit.

        Raises:
            SelectionError: for what is no time above 0.

        Example:
            >>> Budget.parse("20m").seconds
            1200.0
        """
        found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", text)
        seconds = float(found[1]) * _SECONDS[found[2]] if found else 0.0
        if not 0 < seconds < math.inf:
            raise SelectionError(
                f"{text!r} is no time above 0: allowed are a number and its unit, "
                "such as 90s, 20m or 1.5h"
            )
        return cls(text, seconds)


@dataclass(frozen=True)
class Shard:
    """One of several parts that a set of audits is divided into.

    Args:
        number: of this part, from 1.
        count: of all parts.
    """

    number: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Shard:
        """Read a shard.

        Args:
            text: its number and their count.

        Raises:
            SelectionError: for a number that is not among them.

        Example:
            >>> Shard.parse("2/8")
            Shard(number=2, count=8)
        """
        found = re.fullmatch(r"(\d{1,9})/(\d{1,9})", text)
        shard = cls(int(found[1]), int(found[2])) if found else None
        if shard is None or not 1 <= shard.number <= shard.count:
            raise SelectionError(
                f"{text!r} is no shard: allowed are a number and their count, from 1/8 to 8/8"
            )
        return shard

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    def of(self, node_ids: Iterable[str]) -> set[str]:
        """The tests of this part: each is in one of them, and the parts are of one size.

        Args:
            node_ids: of all tests that are divided, each once.

        Example:
            >>> sorted(len(Shard(number, 3).of("abcdefg")) for number in (1, 2, 3))
            [2, 2, 3]
        """
        return set(seeded(node_ids, seed=0)[self.number - 1 :: self.count])


def seeded(node_ids: Iterable[str], seed: int) -> list[str]:
    """Put tests in an order of which every beginning is a fair sample.

    Args:
        node_ids: of the tests, each once.
        seed: another one gives another order.

    Example:
        >>> seeded("abcdef", seed=1) == seeded("fedcba", seed=1) != seeded("abcdef", seed=2)
        True
    """
    return sorted(node_ids, key=lambda node_id: (_hash(f"{seed} {node_id}"), node_id))


def _hash(text: str) -> int:
    """A number that is the same everywhere, as that of :func:`hash` is not."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
