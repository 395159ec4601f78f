"""What a planted fault is: a collector, the scenario that shows it, and what must be reported."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from pytest_resume_audit import Collector, Setup
from pytest_resume_audit.verdict import Demand, Verdict

C = TypeVar("C", bound=type[Collector])

KINDS = (
    "skipped", "duplicated", "unexpected", "partial", "starved",
    "failed", "dropped", "structural", "excused",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Planted:
    """A fault, and what the audit must say of it.

    Args:
        row: its id, a letter for the kind and a number.
        collector: that has it.
        script: a run that shows it.
        setup: the sizes of that run.
        because: how the ordinals come about.
        told: the ordinals that must be reported, by what they are reported as; of every kind that
            is not named there must be none.
        why: the kinds of reason, with the ordinals that have it: all that is skipped, repeated or
            starved.
        verdict: of the run.
        finding: part of the sentence that the audit says.
        concerned: the ordinals that this sentence is about, where they are told nowhere else.
        demand: of the run; by default what a script of one's own asks for.
        caught_by: the first timeline of the nightly matrix that it does not pass; empty where it
            is right that it passes all.
    """

    row: str
    collector: type[Collector]
    script: str
    because: str
    caught_by: str
    setup: Setup = field(default_factory=Setup)
    told: Mapping[str, str] = field(default_factory=dict)
    why: Mapping[str, str] = field(default_factory=dict)
    verdict: Verdict = "lossy"
    finding: str = ""
    concerned: str = ""
    demand: Demand | None = None

    def ordinals(self) -> dict[str, list[int]]:
        """What must be reported, by kind."""
        return {kind: numbers(self.told.get(kind, "")) for kind in KINDS}


PLANTED: list[Planted] = []
"""Every planted fault, in the order in which its module lists it."""

OUT_OF_SCOPE: dict[str, str] = {}
"""Faults that the audit does not judge, and why."""


def planted(
    row: str,
    script: str,
    *,
    because: str,
    caught_by: str,
    setup: Setup | None = None,
    why: Mapping[str, str] | None = None,
    verdict: Verdict = "lossy",
    finding: str = "",
    concerned: str = "",
    demand: Demand | None = None,
    **told: str,
) -> Callable[[C], C]:
    """List a collector among the planted faults; the arguments are those of :class:`Planted`.

    Ordinals are written as in a script: ``"4 6-8"``.
    """

    if not told.keys() <= set(KINDS):
        raise TypeError(f"{row}: ordinals are told as {', '.join(KINDS)}, not {', '.join(told)}")

    def list_it(collector: C) -> C:
        PLANTED.append(
            Planted(
                row=row,
                collector=collector,
                script=script,
                because=because,
                caught_by=caught_by,
                setup=setup or Setup(),
                told=told,
                why=why or {},
                verdict=verdict,
                finding=finding,
                concerned=concerned,
                demand=demand,
            )
        )
        return collector

    return list_it


def numbers(text: str) -> list[int]:
    """The ordinals of a text such as ``"4 6-8"``.

    >>> numbers("4 6-8")
    [4, 6, 7, 8]
    """
    found: list[int] = []
    for word in text.split():
        first, _, last = word.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found
