"""What counts prove, and what they can't.

A prompt that is trained more often than it should be is duplicated: that is certain at any time. A
prompt that is not trained is skipped only if it will not be trained any more, and counts alone do
not know the future. What is certain:

- *Complete*: the run has come to its end. All that is not trained, nor dropped, is skipped.
- *Marked*: the training said where a restart from this checkpoint goes on, and what waits in the
  buffer (:meth:`~pytest_resume_audit.real_runs.coverage.PromptCoverage.mark`). All other that is
  not trained below that place is never handed out again: it is skipped, or will be as soon as the
  run is restarted from here. What is above that place is not lost.
- *At most N in flight*: of all that was handed out, at most N prompts can be on their way, waiting
  ones too. Of M that are not trained below the highest trained one, at least M - N are skipped.
  Which ones can't be told: a prompt may be on its way for any time.
- Otherwise what is not trained, below the highest that is, may be on its way: *undetermined*.

What lies above all trained ones is not reached, as far as is known, and is not judged. Where
ordinals are rows of a shuffled data set, nothing of a pass is judged before a later one has begun.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from pytest_resume_audit.real_runs.counts import DROPPED, MOST, WAITING, Counts, CoverageError

Verdict = Literal["lossless", "lossy", "undetermined"]

TRAINED, SKIPPED, IN_PART, DUPLICATED, OPEN, WAITS, DROPS, UNREACHED, UNEXPECTED = b"-SP2?bd.n"
"""What became of an ordinal, as one byte each, the symbols of the drawing of an audit."""

NAMES = {
    TRAINED: "trained",
    SKIPPED: "skipped",
    IN_PART: "in part",
    DUPLICATED: "duplicated",
    OPEN: "undetermined",
    WAITS: "waiting",
    DROPS: "dropped",
    UNREACHED: "not reached",
    UNEXPECTED: "not expected",
}


@dataclass(frozen=True)
class CoverageReport:
    """The verdict on the counts of one checkpoint.

    Args:
        verdict: lossless goes as far as the run got, see ``why``.
        why: a sentence for each reason.
        prompts: of a pass.
        passes: over the data.
        marks: what became of each ordinal, a byte each.
        missing: how many ordinals are skipped or trained in part at least: more than those marked
            so where it is known how many are, but not which.
        saturated: how many ordinals were trained so often that it is not known how often.
        repeats: how often a prompt was trained too often, in sum, at least.
        at_restarts: for each restart of this run's lineage that lost some: its number from 1, the
            ordinal that the run had come to, and how many below it, untrained by then, still are.
    """

    verdict: Verdict
    why: tuple[str, ...]
    prompts: int
    passes: int
    marks: bytes
    missing: int
    saturated: int
    repeats: int
    at_restarts: tuple[tuple[int, int, int], ...]

    def count(self, mark: int, one_pass: int | None = None) -> int:
        """How many ordinals have a mark, in all or in one pass."""
        start, end = 0, len(self.marks)
        if one_pass is not None:
            start, end = one_pass * self.prompts, (one_pass + 1) * self.prompts
        return self.marks.count(mark, start, end)

    def spans(self, mark: int) -> Iterator[tuple[int, int]]:
        """First and last of each run of ordinals with a mark."""
        for found in re.finditer(re.escape(bytes([mark])) + b"+", self.marks):
            yield found.start(), found.end() - 1

    @property
    def reached(self) -> int:
        """The first ordinal above all that are known to have been handed out."""
        return len(self.marks.rstrip(bytes([UNREACHED, UNEXPECTED])))


def judge(
    counts: Counts,
    *,
    complete: bool = False,
    in_flight: int | None = None,
    prompts: int | None = None,
    passes: int | None = None,
) -> CoverageReport:
    """Say what the counts of a checkpoint prove.

    Args:
        counts: of all ranks.
        complete: the run has come to its end.
        in_flight: at most so many prompts are handed out and not trained at a time, buffered ones
            too; None where that is not known.
        prompts: expected of each pass; None: as counted.
        passes: expected; None: as counted.

    Raises:
        CoverageError: for what does not go with these counts.

    Example:
        >>> cells = bytearray(16)
        >>> cells[:4] = cells[12:] = bytes([1] * 4)
        >>> report = judge(Counts(16, cells=cells), complete=True)
        >>> report.verdict, report.marks.decode()
        ('lossy', '----SSSSSSSS----')
        >>> judge(Counts(16, cells=cells)).marks.decode()
        '----????????----'
    """
    size, end = counts.prompts, len(counts.cells)
    reached = counts.reach()
    if not reached and not counts.place:
        return CoverageReport(
            "undetermined", ("nothing was trained",), size, counts.passes,
            bytes([UNREACHED]) * end, 0, 0, 0, (),
        )  # fmt: skip
    known = reached if counts.ordered else max(reached - 1, 0) // size * size
    lost_below, open_below = (0, known)
    if complete:
        lost_below = open_below = end
    elif counts.place is not None:
        lost_below = open_below = counts.place
    elif in_flight == 0:
        lost_below = known
    lost, maybe, unreached = (
        _table(counts.group_size, *marks, waits=SKIPPED if complete else WAITS)
        for marks in ((SKIPPED, IN_PART), (OPEN, OPEN), (UNREACHED, UNREACHED))
    )
    cells = bytes(counts.cells)
    marks = b"".join(
        (
            cells[:lost_below].translate(lost),
            cells[lost_below:open_below].translate(maybe),
            cells[max(lost_below, open_below) :].translate(unreached),
        )
    )
    marks = _without_unexpected(marks, counts, prompts, passes)
    open_ones = marks.count(OPEN)
    certain = marks.count(SKIPPED) + marks.count(IN_PART)
    surely = 0 if in_flight is None else max(open_ones - in_flight, 0)
    repeats = sum(
        cells.count(cell) * (cell - counts.group_size)
        for cell in range(counts.group_size + 1, MOST + 1)
    )
    why = tuple(_reasons(counts, marks, known, complete, in_flight, surely))
    verdict: Verdict = "lossless"
    saturated = sum(cells.count(cell) for cell in (MOST, MOST | WAITING))
    full = saturated if counts.group_size == MOST else 0
    if full:
        often = f"{full} were trained {MOST} times, as they should be, or more: it can't be told"
        why = (often, *why)
    if open_ones or full or (not known and not complete and counts.place is None):
        verdict = "undetermined"
    if certain or surely or DUPLICATED in marks:
        verdict = "lossy"
    return CoverageReport(
        verdict,
        why,
        size,
        counts.passes,
        marks,
        certain + surely,
        saturated,
        repeats,
        tuple(_at_restarts(counts, marks)),
    )


def _without_unexpected(
    marks: bytes, counts: Counts, prompts: int | None, passes: int | None
) -> bytes:
    """The same marks, where untrained prompts that nobody expects are none that is missing."""
    prompts = counts.prompts if prompts is None else prompts
    passes = counts.passes if passes is None else passes
    for name, expected, counted in (
        ("prompts", prompts, counts.prompts),
        ("passes", passes, counts.passes),
    ):
        if not 1 <= expected <= counted:
            raise CoverageError(
                f"{expected} {name} are expected, and 1 to {counted} can be: the training was told "
                f"PromptCoverage({counts.prompts}, passes={counts.passes})"
            )
    if (prompts, passes) == (counts.prompts, counts.passes):
        return marks
    parts = []
    for one in range(counts.passes):
        start = one * counts.prompts
        few = prompts if one < passes else 0
        beyond = marks[start + few : start + counts.prompts]
        wrong = re.search(rb"[-P2]", beyond)
        if wrong is not None:
            raise CoverageError(
                f"ordinal {start + few + wrong.start()} was trained, which is beyond {prompts} "
                f"prompts in {passes} passes: give the numbers of the run, or none"
            )
        parts += [marks[start : start + few], bytes([UNEXPECTED]) * len(beyond)]
    return b"".join(parts)


def _table(group_size: int, untrained: int, part: int, *, waits: int) -> bytes:
    """What becomes of each cell."""

    def mark(cell: int) -> int:
        count = cell & ~WAITING
        if cell == DROPPED:
            return DROPS
        if count >= group_size:
            return TRAINED if count == group_size else DUPLICATED
        if cell & WAITING:
            return waits
        return part if count else untrained

    return bytes(map(mark, range(256)))


def _reasons(
    counts: Counts, marks: bytes, known: int, complete: bool, in_flight: int | None, surely: int
) -> Iterator[str]:
    open_ones = marks.count(OPEN)
    if complete:
        yield "the run is complete: what is not trained is skipped"
    elif counts.place is not None:
        yield (
            f"a restart from here goes on at {counts.place}: what is not trained below, and does "
            "not wait in the buffer, is lost"
        )
    elif not known:
        yield "these are rows of a shuffled data set, in its first pass: none can be missed yet"
    elif open_ones and in_flight is None:
        yield (
            f"{open_ones} below the highest trained may be in flight or buffered, or lost: say "
            "--complete or --in-flight N, or have the training call mark()"
        )
    elif open_ones:
        yield (
            f"{open_ones} below the highest trained are not, and {in_flight} at most are in "
            f"flight or buffered: {surely or 'none'} at least {'is' if surely == 1 else 'are'} lost"
        )
    rest = marks.count(UNREACHED)
    if rest:
        yield f"nothing is said of {rest} that the run has not come to, as far as is known"


def _at_restarts(counts: Counts, marks: bytes) -> Iterator[tuple[int, int, int]]:
    """What was untrained at a restart, below what was handed out by then, and still is."""
    before = 0
    for number, place in enumerate(counts.restarts, start=1):
        lost = sum(marks.count(mark, before, place) for mark in (SKIPPED, IN_PART, OPEN))
        if lost:
            yield number, place, lost
        before = max(before, place)


@dataclass(frozen=True)
class Between:
    """What happened between two checkpoints of a run.

    Args:
        verdict: on what happened, whatever was lost before.
        why: a sentence for each reason.
        trained: how many ordinals were trained for the first time.
        repeated: those that were trained, and are duplicated now.
        lost: those that are skipped or in part since.
        missing: how many are lost at least: more than ``lost`` where it is not known which.
        undone: those that were trained more often at the first checkpoint than at the second.
        restarts: how often the run was restarted.
    """

    verdict: Verdict
    why: tuple[str, ...]
    trained: int
    repeated: tuple[int, ...]
    lost: tuple[int, ...]
    missing: int
    undone: tuple[int, ...]
    restarts: int


def compare(
    first: Counts, second: Counts, before: CoverageReport, after: CoverageReport
) -> Between:
    """Say what happened between two checkpoints.

    Args:
        first: counts of the earlier one.
        second: counts of the later one.
        before: the report on the first.
        after: the report on the second.

    Raises:
        CoverageError: for counts of different data.
    """
    if (first.prompts, first.passes, first.group_size) != (
        second.prompts,
        second.passes,
        second.group_size,
    ):
        raise CoverageError(
            f"the first counts {first.prompts} prompts, {first.passes} passes and groups of "
            f"{first.group_size}, the second {second.prompts}, {second.passes} and "
            f"{second.group_size}: only counts of the same data can be compared"
        )
    trained = 0
    repeated, undone = [], []
    for ordinal in _differing(bytes(first.cells), bytes(second.cells)):
        was, now = (_count(counts.cells[ordinal]) for counts in (first, second))
        trained += not was and bool(now)
        if now < was:
            undone.append(ordinal)
        elif now > first.group_size:
            repeated.append(ordinal)
    restarts = max(len(second.restarts) - len(first.restarts), 0)
    # What a restart from the first checkpoint was to lose is lost by the restart, not before.
    known = max(first.restarts, default=0) if restarts else len(after.marks)
    lost = [
        ordinal
        for mark in (SKIPPED, IN_PART)
        for start, end in after.spans(mark)
        for ordinal in range(start, end + 1)
        if before.marks[ordinal] not in (SKIPPED, IN_PART) or ordinal >= known
    ]
    missing = max(after.missing - before.missing, len(lost))
    why = []
    verdict: Verdict = after.verdict if after.verdict != "lossy" else "lossless"
    if OPEN in after.marks:
        verdict = "undetermined"
    stuck = [
        at.start()
        for at in _SATURATED.finditer(first.cells)
        if _count(second.cells[at.start()]) == MOST
    ]
    if stuck:
        why.append(
            f"{len(stuck)} had been trained {MOST} times or more at the first checkpoint: whether "
            "they were trained again can't be told"
        )
        verdict = "undetermined"
    if undone:
        why.append(
            f"{len(undone)} were trained at the first checkpoint and are not at the second, which "
            "does not descend from it: it was rolled back, or is of another run"
        )
        verdict = "undetermined"
    if repeated or missing:
        verdict = "lossy"
    return Between(
        verdict,
        tuple(why),
        trained,
        tuple(repeated),
        tuple(sorted(lost)),
        missing,
        tuple(undone),
        restarts,
    )


_SATURATED = re.compile(bytes([ord("["), MOST, MOST | WAITING, ord("]")]))


def _count(cell: int) -> int:
    return 0 if cell == DROPPED else cell & ~WAITING


_STRETCH = 4096


def _differing(one: bytes, other: bytes) -> Iterator[int]:
    """Where two differ."""
    for start in range(0, len(one), _STRETCH):
        mine, its = one[start : start + _STRETCH], other[start : start + _STRETCH]
        if mine != its:
            yield from (start + i for i, (a, b) in enumerate(zip(mine, its, strict=True)) if a != b)
