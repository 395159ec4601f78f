"""What came of all audits of a session: a record of each in, rows and sentences out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, get_args

from pytest_resume_audit.states import STATES

Outcome = Literal[
    "lossless",
    "lossy",
    "error",
    "hang",
    "refused",
    "known",
    "undetermined",
    "unreached",
    "died",
    "not run",
]
"""What became of a timeline: a verdict, a known loss, or why there is none.

``died``: with the process that played it. ``not run``: skipped by the test itself, or by a budget
that was spent.
"""

OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)

AUDITED: tuple[Outcome, ...] = ("lossless", "lossy", "error", "hang", "refused", "known")
"""Outcomes that say something about a collector: a gate counts these, and no others."""

PROOF = frozenset({"saved with prompts in flight", "saved with a buffer", "resumed"})
"""States that one run has to reach, or the whole matrix of its test has proved nothing."""

LOADER_PROOF = frozenset({"saved in a later pass", "resumed"})
"""The same for the matrix of loaders alone, which have nothing in flight."""

KEY_STATES = (
    "saved with prompts in flight",
    "saved with a buffer",
    "saved with a carried-over rest",
    "saved at the end of a pass",
    "saved with a failure behind it",
    "resumed",
    "resumed, and saved before anything was trained",
    "died between writes",
    "raced inside a save",
)
"""States that a reader has to know about also when no run of a matrix came to them."""

PROVED_NOTHING = (
    "{test} proved nothing: in none of its {count} timelines was a checkpoint saved with prompts "
    "in flight and with a buffer, and resumed"
)
LOADER_PROVED_NOTHING = (
    "{test} proved nothing: in none of its {count} timelines was a checkpoint saved in a later "
    "pass, and resumed"
)


@dataclass(frozen=True, kw_only=True)
class Record:
    """What became of one timeline, in values that JSON and another process take.

    Args:
        node_id: of the item.
        test: its node id without the timeline: the row that it belongs to.
        id: of the timeline.
        of: how many timelines the test plays in all.
        matrix: that the timeline comes from; None: the marker has it by itself.
        timeline: its text.
        replay: the command that plays it again.
        outcome: what became of it.
        failed: whether the item failed.
        expected: whether the test expects a verdict of its own.
        skipped: ordinals, without those that may be.
        duplicated: ordinals, without those that may be.
        states: that the run reached.
        headline: what came of it in one line, or why nothing did.
        loss: for the file of known losses, if there is any.
    """

    node_id: str
    test: str
    id: str
    of: int
    matrix: str | None
    timeline: str
    replay: str
    outcome: Outcome = "not run"
    failed: bool = False
    expected: bool = False
    skipped: Sequence[int] = ()
    duplicated: Sequence[int] = ()
    states: Sequence[str] = ()
    headline: str = ""
    loss: Mapping[str, Any] | None = None

    @property
    def steps(self) -> int:
        """How many steps its timeline has."""
        return self.timeline.count(";") + 1


@dataclass(frozen=True)
class Row:
    """What became of the timelines of one test.

    Args:
        test: its node id, without a timeline.
        records: of its timelines; at least one.
    """

    test: str
    records: Sequence[Record]

    @cached_property
    def counts(self) -> Counter[Outcome]:
        """How many came to each outcome."""
        return Counter(record.outcome for record in self.records)

    @property
    def run(self) -> int:
        """How many were run."""
        return len(self.records) - self.counts["not run"]

    @property
    def of(self) -> int:
        """How many there are."""
        return self.records[0].of

    @property
    def worst_skip(self) -> int:
        """The most prompts that one of them skipped."""
        return max(len(record.skipped) for record in self.records)

    @property
    def worst_repeat(self) -> int:
        """The most prompts that one of them trained again."""
        return max(len(record.duplicated) for record in self.records)

    @property
    def shortest_failing(self) -> Record | None:
        """The easiest one to look into: of the fewest steps, or the first by its text."""
        failing = [one for one in self.records if one.failed and one.outcome != "not run"]
        return min(failing, key=lambda one: (one.steps, one.timeline, one.node_id), default=None)

    @property
    def proved_nothing(self) -> bool:
        """Whether all of a matrix was run, and no run came to where prompts get lost.

        A test that has failed says so by itself, and one that expects a verdict looks for it.
        """
        return (
            self.run == self.of
            and any(record.matrix is not None for record in self.records)
            and not any(record.failed or record.expected for record in self.records)
            and not any(set(record.states) >= self._proof for record in self.records)
        )

    @property
    def of_a_loader(self) -> bool:
        """Whether it is a loader alone that was audited."""
        return any(record.matrix == "loader" for record in self.records)

    @property
    def _proof(self) -> frozenset[str]:
        return LOADER_PROOF if self.of_a_loader else PROOF


class Summary:
    """All audits of a session.

    Args:
        records: one of each timeline, in any order.
        settings: lines on what was chosen, such as the budget and its seed.
        warnings: sentences on what else has to be known.

    Attributes:
        rows: one of each test.
        failures: sentences on why the session fails, whatever its tests do.

    Example:
        >>> record = Record(
        ...     node_id="t.py::test_x[clean]", test="t.py::test_x", id="clean", of=1, matrix=None,
        ...     timeline="drain", replay="pytest t.py", outcome="lossless",
        ... )
        >>> Summary([record]).rows[0].run
        1
    """

    def __init__(
        self,
        records: Iterable[Record],
        *,
        settings: Iterable[str] = (),
        warnings: Iterable[str] = (),
    ) -> None:
        self.records = sorted(records, key=lambda record: record.node_id)
        self.settings = [*settings]
        self.warnings = [*warnings]
        by_test: dict[str, list[Record]] = {}
        for record in self.records:
            by_test.setdefault(record.test, []).append(record)
        self.rows = [Row(test, by_test[test]) for test in sorted(by_test)]
        self.failures = [
            (LOADER_PROVED_NOTHING if row.of_a_loader else PROVED_NOTHING).format(
                test=row.test, count=row.of
            )
            for row in self.rows
            if row.proved_nothing
        ]

    @cached_property
    def counts(self) -> Counter[Outcome]:
        """How many timelines came to each outcome."""
        return Counter(record.outcome for record in self.records)

    @property
    def run(self) -> int:
        """How many timelines were run."""
        return len(self.records) - self.counts["not run"]

    @property
    def audited(self) -> int:
        """How many came to a verdict that says something: a gate counts these."""
        return sum(self.counts[outcome] for outcome in AUDITED)

    @cached_property
    def states(self) -> dict[str, int]:
        """How many runs reached each state there is, most first, zeros included."""
        counts = Counter(state for record in self.records for state in record.states)
        return dict(sorted({state: counts[state] for state in STATES}.items(), key=_most_first))

    @property
    def never_reached(self) -> list[str]:
        """The states among the key ones that no run of a matrix reached.

        What somebody has chosen by hand is for what it is for.
        """
        by_matrix = any(record.matrix not in (None, "loader") for record in self.records)
        return [state for state in KEY_STATES if by_matrix and not self.states[state]]


def _most_first(item: tuple[str, int]) -> int:
    return -item[1]
