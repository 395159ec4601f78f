"""What a run proves: weights and history in, a report out. Nothing here runs anything."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from pytest_resume_audit.collector import SelfDrivenCollector
from pytest_resume_audit.history import History, LifeRecord, SaveRecord
from pytest_resume_audit.setup import Setup, widest
from pytest_resume_audit.states import reached
from pytest_resume_audit.timeline import Downgrade, Timeline

if TYPE_CHECKING:
    from pytest_resume_audit.collector import Collector

Verdict = Literal["lossless", "undetermined", "refused", "hang", "error", "lossy"]

WORST_LAST: tuple[Verdict, ...] = (
    "lossless",
    "undetermined",
    "refused",
    "hang",
    "error",
    "lossy",
)

Demand = Literal["lossless", "clean", "legacy", "lossless or refused"]
"""What a timeline asks for.

``clean``: lossless, and nothing structural unless the collector declares it. ``legacy``: no
duplicates, the warning in every life of the lineage, and no skips but of what was not settled at
some save of it. ``lossless or refused``: a loud refusal to resume is as good.
"""


_FROM_LEGACY = "resumed from a legacy checkpoint"
"""The state without which a run shows nothing of the demand ``"legacy"``."""


_NOT_TRAINED = ("failed", "evicted", "dropped")
"""What may become of a prompt that is not trained, with a word in the history."""


class Ordinals(list[int]):
    """Ordinals of one kind in a report: a list that knows its report, for failing asserts."""

    def __init__(self, ordinals: Iterable[int], report: AuditReport | None = None) -> None:
        super().__init__(sorted(ordinals))
        self.report = report


@dataclass(frozen=True)
class Reason:
    """Why an ordinal was skipped, repeated or starved.

    Args:
        kind: the same for equal causes; totals are counted by it.
        text: the whole sentence, with the saves and lives.
    """

    kind: str
    text: str


@dataclass(frozen=True)
class Finding:
    """Something that the run showed.

    Args:
        verdict: what it makes of the run.
        text: the sentence.
        ordinals: the prompts concerned, if any.
    """

    verdict: Verdict
    text: str
    ordinals: tuple[int, ...] = ()


@dataclass(frozen=True)
class Missed:
    """A step of the script that could not be done.

    Args:
        step: its text.
        why: what stood in the way.
        throttled: whether that is the collector's own way of working, not a fault.
    """

    step: str
    why: str
    throttled: bool


@dataclass(frozen=True)
class Reference:
    """What the run does when nothing interrupts it.

    Args:
        rows: the row at each ordinal of the stream.
        trained: ordinals that it trained, every generation of them.
        failed: ordinals that failed for good.
        dropped: ordinals that the collector dropped.
        partial: ordinals that it trained in part, such as groups of which a generation failed.
        oldest: the greatest age of an answer that it trained, in steps; None where it trained
            none, or dropped one that was no older: what it drops it then drops for other reasons.
        retried: ordinals that failed, and that it trained in a later try.
    """

    rows: tuple[int, ...]
    trained: frozenset[int]
    failed: frozenset[int]
    dropped: frozenset[int]
    partial: frozenset[int] = frozenset()
    oldest: int | None = None
    retried: frozenset[int] = frozenset()

    @property
    def expected(self) -> frozenset[int]:
        """What must come out of an interrupted run too: trained, failed or dropped."""
        return self.trained | self.failed | self.dropped | self.partial


@dataclass(frozen=True)
class Played:
    """A run, as the conductor hands it over.

    Args:
        history: what happened.
        counts: of the last life's weights, row x ``group_size`` + generation; None where the
            run did not come to its end.
        missed: steps that could not be done.
        error: an exception of the collector, or None.
        refusal: an exception by which it refused to resume, or None.
        hang: what stood still, or None.
        gated: whether the loader's gate was on.
        rest: how rest was looked for.
    """

    history: History
    counts: Sequence[int] | None
    missed: tuple[Missed, ...] = ()
    error: BaseException | None = None
    refusal: BaseException | None = None
    hang: str | None = None
    gated: bool = True
    rest: str = "proc"


@dataclass(frozen=True)
class Point:
    """What came of one point of a save, of a timeline that goes through all of them.

    Args:
        step: of the script, that plays this point.
        timeline: the script that plays it alone.
        where: what the save was about to do, or had done.
        verdict: of the run.
        passed: whether it meets the demand.
        kept_out: steps that were kept out until the save had ended: a lock, rightly held.
    """

    step: str
    timeline: Timeline
    where: str
    verdict: Verdict
    passed: bool
    kept_out: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class AuditReport:
    """What one timeline proved about a collector.

    Attributes:
        verdict: the worst of the findings; ``"lossless"`` without any.
        name: of the timeline; empty for a script of one's own.
        timeline: the script.
        setup: the sizes it was played with.
        collector: name of the collector.
        demand: what the timeline asks for.
        findings: everything that speaks against the run, worst first.
        skipped: ordinals trained by nobody, in the weights that the last life ends with.
        duplicated: ordinals trained more than once in them.
        unexpected: trained, though an uninterrupted run would not have.
        partial: some generations of the group trained, not all.
        starved: buffered at the end of the data, and no step took it.
        failed: failed for good.
        dropped: given up by the collector, with a reason.
        structural: missed by the uninterrupted run too.
        excused: skipped or repeated, but within what the demand or the declaration allows.
        rolled_back: trained after the save that a later life restarted from.
        regenerated: answered again though an answer was saved.
        reasons: why, for each skipped, duplicated and starved ordinal.
        states: the states that the run reached.
        missed: steps of the script that could not be done.
        unreached: why the run could not show what the timeline is for, through the collector's
            own way of working; None when it could.
        history: what happened.
        gated: False when the loader's gate had to be left open.
        rest: how rest was looked for.
        error: the exception of the collector, if any.
        points: what came of each point of a save, where the timeline goes through all of them;
            all else is then of the worst.
    """

    verdict: Verdict
    name: str
    timeline: Timeline
    setup: Setup
    collector: str
    demand: Demand
    findings: tuple[Finding, ...]
    skipped: Ordinals
    duplicated: Ordinals
    unexpected: Ordinals
    partial: Ordinals
    starved: Ordinals
    failed: Ordinals
    dropped: Ordinals
    structural: Ordinals
    excused: Ordinals
    rolled_back: Ordinals
    regenerated: Ordinals
    reasons: Mapping[int, Reason]
    states: frozenset[str]
    missed: tuple[Missed, ...]
    unreached: str | None
    history: History = field(repr=False)
    gated: bool
    rest: str
    error: BaseException | None = None
    points: tuple[Point, ...] = ()

    def __post_init__(self) -> None:
        for value in vars(self).values():
            if isinstance(value, Ordinals):
                value.report = self

    @property
    def passed(self) -> bool:
        """Whether the timeline's demand is met. Undetermined never passes."""
        if self.verdict == "refused":
            return self.demand == "lossless or refused"
        return self.verdict == "lossless"

    @property
    def lacks_downgrade(self) -> bool:
        """Whether the collector could not make the legacy checkpoint that the script asks for."""
        return any(missed.step == Downgrade().text for missed in self.missed)

    def __str__(self) -> str:
        from pytest_resume_audit.reports.text import render

        return render(self)


@dataclass(frozen=True)
class Asked:
    """What a run is judged by: the timeline and what it asks for.

    Args:
        timeline: the script.
        setup: the sizes.
        name: of the timeline.
        demand: what it asks for.
        must_reach: states without which the run proves nothing.
        may_reach: states that depend on the collector's way of working: a run without them is
            unreached.
        otherwise: the same story by position, for a collector that throttles itself.
        uninterrupted: the run that it is measured against; None: the script without its saves
            and crashes.
    """

    timeline: Timeline
    setup: Setup
    name: str = ""
    demand: Demand = "lossless"
    must_reach: tuple[str, ...] = ()
    may_reach: tuple[str, ...] = ()
    otherwise: Timeline | None = None
    uninterrupted: Timeline | None = None


def judge(
    asked: Asked,
    reference: Reference,
    played: Played,
    collector: type[Collector] | type[SelfDrivenCollector],
) -> AuditReport:
    """Judge a run against the uninterrupted one.

    Args:
        asked: the timeline, the sizes and the demand.
        reference: what an uninterrupted run does.
        played: the run.
        collector: the class, for its declarations and its name.

    Returns:
        The report; its verdict is the worst of its findings.
    """
    return _Judgement(asked, reference, played, collector).report()


def _in_doubt(ordinals: frozenset[int]) -> str:
    """What a finding ends with that one pass, taken for another, may be the reason for."""
    return (
        f", as far as can be told: {', '.join(map(str, sorted(ordinals)))} are of the same rows in "
        "several passes, were out at once, and partly done: nobody can tell which was asked for "
        "(passes of more prompts than are out at once keep them apart)"
    )


class _Judgement:
    def __init__(
        self,
        asked: Asked,
        reference: Reference,
        played: Played,
        collector: type[Collector] | type[SelfDrivenCollector],
    ) -> None:
        self.asked = asked
        changes = asked.timeline.changes
        self.setup = asked.setup.changed(changes)
        _, self.generations = widest(asked.setup, changes)
        # Of a group that was trained when groups were smaller, or larger, all is trained.
        self.regrouped = any(name == "group_size" for name, _ in changes)
        self.reference = reference
        self.played = played
        self.history = played.history
        self.collector = collector
        self.lineage = self.history.lineage()
        self.rows = reference.rows
        self.places: dict[int, list[int]] = {}
        for ordinal, row in enumerate(self.rows):
            self.places.setdefault(row, []).append(ordinal)
        # An endless stream has no last prompt: what happens to come after the expected ones
        # is neither asked for nor a fault.
        self.endless = collector.stream == "endless"
        self.expected = frozenset(o for o in reference.expected if not self._is_beyond(o))
        self.findings: list[Finding] = []
        self.reasons: dict[int, Reason] = {}

    def report(self) -> AuditReport:
        history, expected = self.history, self.expected
        ended = self.played.counts is not None
        failed, dropped = self._failed_for_good(), self._in_lineage("dropped")
        times = self._times_trained(failed | dropped)
        whole = any if self.regrouped else all
        trained = {ordinal for ordinal, each in times.items() if whole(each)}
        touched = {ordinal for ordinal, each in times.items() if any(each)}
        final = history.lives[-1].final if history.lives else None
        left = expected - touched - failed - dropped if ended else frozenset()
        lost = self._where_each_was_lost(left, failed | dropped)
        starved = {o for o in left if final is not None and lost[o] in final.buffered}
        skipped = set(left - starved)
        repeated = {ordinal: max(each) - 1 for ordinal, each in times.items() if max(each) > 1}
        duplicated = set(repeated)

        for ordinal in sorted(skipped | starved):
            self.reasons[ordinal] = self._why_not_trained(ordinal, lost[ordinal])
        for ordinal in sorted(duplicated):
            self.reasons[ordinal] = self._why_twice(ordinal)

        excused = self._excused_skips(skipped, lost) | self._excused_repeats(repeated)
        unexpected = {o for o in touched - expected if not self._is_beyond(o)}
        partial = touched - trained - self.reference.partial
        self._blame("skipped", skipped - excused)
        self._blame("trained more than once", duplicated - excused)
        self._blame("trained, though an uninterrupted run does not", unexpected)
        self._check_rows()
        self._blame("trained in part: some generations of the group", partial)
        self._blame("starved: buffered at the end, and no step took it", starved)
        for when, given_up in self._dropped_without_need().items():
            self._blame(
                f"dropped {when}, though no older than what an uninterrupted run trains",
                given_up - touched - failed,
            )
        self._blame(
            "dropped without having been asked for, though an uninterrupted run trains them",
            self._dropped_unasked() - touched - failed,
        )
        structural = self._structural()
        if self.asked.demand == "clean" and not self.collector.structural:
            text = "not trained by an uninterrupted run" + self._why_structural(structural)
            self._find("lossy", text, structural)
            self._find("lossy", "trained beyond the passes of the setup", self._beyond_the_setup())
        self._check_lives()
        self._check_order(duplicated)
        self._check_end()
        states = reached(history, self.setup)
        unreached = self._check_reached(states)

        self.findings.sort(key=lambda finding: -WORST_LAST.index(finding.verdict))
        return AuditReport(
            verdict=self.findings[0].verdict if self.findings else "lossless",
            name=self.asked.name,
            timeline=self.asked.timeline,
            setup=self.asked.setup,
            collector=self.collector.__qualname__,
            demand=self.asked.demand,
            findings=tuple(self.findings),
            skipped=Ordinals(skipped),
            duplicated=Ordinals(duplicated),
            unexpected=Ordinals(unexpected),
            partial=Ordinals(partial),
            starved=Ordinals(starved),
            failed=Ordinals(failed - touched),
            dropped=Ordinals(dropped - touched - failed),
            structural=Ordinals(structural),
            excused=Ordinals(excused),
            rolled_back=Ordinals(self._rolled_back()),
            regenerated=Ordinals(self._regenerated()),
            reasons=self.reasons,
            states=states,
            missed=self.played.missed,
            unreached=unreached,
            history=history,
            gated=self.played.gated,
            rest=self.played.rest,
            error=self.played.error or self.played.refusal,
        )

    # -- what the weights say ----------------------------------------------------------------

    @cached_property
    def counts(self) -> list[int] | None:
        """How often each generation went into the weights: of the last data set, if it changed."""
        counts = self.played.counts
        if counts is None:
            return None
        lives = [life for life, _ in self.lineage]
        first = next((life for life in lives if life.data_set == lives[-1].data_set), None)
        if first is None or first is lives[0]:
            return list(counts)
        return [after - before for after, before in zip(counts, first.start_counts, strict=True)]

    def _times_trained(self, given_up: set[int]) -> dict[int, list[int]]:
        """How often each ordinal went into the final weights, by generation.

        The k-th training of a row belongs to its k-th place in the stream, and a surplus to the
        last one. A place whose prompt failed or was dropped comes after the others, and one
        that the uninterrupted run does not train at last.
        """
        counts, size = self.counts, self.generations
        if counts is None:
            return {}
        times: dict[int, list[int]] = {}
        for row, places in self.places.items():
            if self.endless and (seen := self._seen_trained(row, places)):
                times.update(seen)
                continue
            ordinals = [o for o in places if not self._is_beyond(o) or self._trainings(o)]
            order = sorted(ordinals, key=lambda o: (o not in self.expected, o in given_up, o))
            for generation in range(size):
                count = counts[row * size + generation] if (row + 1) * size <= len(counts) else 0
                for ordinal in order[:count]:
                    times.setdefault(ordinal, [0] * size)[generation] += 1
                if count > len(order):
                    surplus = times.setdefault(ordinals[-1], [0] * size)
                    surplus[generation] += count - len(order)
        return times

    def _seen_trained(self, row: int, places: list[int]) -> dict[int, list[int]]:
        """How often each place of a row was seen trained, if the weights count the same.

        A stream without an end has a later place for every training that is missing: by their
        number alone the weights can't tell.
        """
        size, counts = self.generations, self.counts or ()
        times = {
            place: [len(self._all_trainings.get(place, {}).get(g, ())) for g in range(size)]
            for place in places
        }
        seen = [sum(each[g] for each in times.values()) for g in range(size)]
        if seen != list(counts[row * size : (row + 1) * size]):
            return {}
        return times

    def _is_beyond(self, ordinal: int) -> bool:
        """Whether it comes behind what is expected of an endless stream.

        That the weights count it there has to be seen in the history: else a repeat of an
        expected place of its row would look like it.
        """
        return self.endless and ordinal >= self.setup.total

    def _check_rows(self) -> None:
        counts, size = self.counts or (), self.generations
        strange = {index // size for index, count in enumerate(counts) if count}
        strange -= self.places.keys()
        if strange:
            rows = ", ".join(map(str, sorted(strange)))
            self._add("lossy", f"the weights count rows that were never handed out: {rows}")

    # -- what the history says ---------------------------------------------------------------

    def _in_lineage(self, kind: str) -> set[int]:
        return {o for life, until in self.lineage for o in life.ordinals(kind, until=until)}

    def _failed_for_good(self) -> set[int]:
        """Prompts with a generation that failed, and that was not tried again.

        What has failed for good at a save, as where nothing comes between, stays so: when it comes
        round again after a restart, it may be answered, and thrown away as settled.
        """
        for_good: set[int] = set()
        failed: set[int] = set()
        last: dict[tuple[int, int | None], str] = {}
        flying: Counter[tuple[int, int | None]] = Counter()
        for life, until in self.lineage:
            # What is tried again where nothing comes between was still to be, at the save.
            last = {
                which: end for which, end in last.items() if which[0] not in self.reference.retried
            }
            flying.clear()
            for event in life.events[:until]:
                if event.ordinal is None:
                    continue
                which = event.ordinal, event.generation
                if event.kind == "dispatched":
                    flying[which] += 1
                elif event.kind in ("finished", "failed"):
                    flying[which] -= 1
                    last[which] = event.kind
            # A new try that is in flight when the lineage goes on elsewhere: it is not settled.
            out = {which for which, tries in flying.items() if tries > 0}
            last.update((which, "in flight") for which in out)
            failed = {ordinal for (ordinal, _), end in last.items() if end == "failed"}
            for_good |= failed & self.reference.failed - {ordinal for ordinal, _ in out}
        return for_good | failed

    def _trainings(self, ordinal: int) -> list[tuple[int, int]]:
        """Life and step of each training of a prompt in the lineage.

        Of a group, those of the generation that was trained most often.
        """
        return max(self._all_trainings.get(ordinal, {}).values(), key=len, default=[])

    @cached_property
    def _all_trainings(self) -> dict[int, dict[int | None, list[tuple[int, int]]]]:
        """Life and step of each training in the lineage, by ordinal and generation."""
        trainings: dict[int, dict[int | None, list[tuple[int, int]]]] = {}
        for life, until in self.lineage:
            for event in life.events[:until]:
                if event.kind == "trained" and event.ordinal is not None:
                    of_group = trainings.setdefault(event.ordinal, {})
                    step = life.number, event.number or 0
                    of_group.setdefault(event.generation, []).append(step)
        return trainings

    def _resumes(self) -> list[tuple[SaveRecord, LifeRecord]]:
        """The restarts of the lineage, oldest first: the save, and the life that began there."""
        return [
            (self.history.save(life.origin), life)
            for life, _ in self.lineage
            if life.origin is not None
        ]

    def _structural(self) -> set[int]:
        """Places of the stream that the uninterrupted run did not come to, or left."""
        if not self.reference.rows:
            return set()  # the uninterrupted run did not come to its end
        seen = 0 if self.endless else len(self.reference.rows)
        return set(range(max(self.setup.total, seen))) - self.expected

    def _why_structural(self, structural: set[int]) -> str:
        """What a run that is never interrupted has left out altogether, if that tells."""
        events = [event for life, _ in self.lineage for event in life.events]
        asked_for = {event.generation for event in events if event.kind == "dispatched"}
        size, per_pass = self.setup.group_size, self.setup.prompts_per_pass
        missing = [str(number) for number in range(size) if number not in asked_for]
        if asked_for and missing:
            which = ", ".join(missing)
            return f": generation {which} was never asked for, and group_size is {size}"
        handed_out = {event.ordinal for event in events if event.kind == "handed_out"}
        furthest = max((ordinal for ordinal in handed_out if ordinal is not None), default=-1)
        if 0 <= furthest < min(structural, default=0) and (furthest + 1) % per_pass == 0:
            begun = (furthest + 1) // per_pass
            return f": pass {begun + 1} of {self.setup.passes} was never begun"
        return ""

    def _beyond_the_setup(self) -> set[int]:
        """Places that an uninterrupted run trains though the setup has fewer passes."""
        passes = self.setup.passes
        if self.endless:
            return set()
        beyond = {place for places in self.places.values() for place in places[passes:]}
        return beyond & self.reference.trained

    def _written_over(self, save: SaveRecord) -> list[SaveRecord]:
        """The saves that died while they wrote over this one."""
        return [s for s in self.history.saves if s.died_at and s.overwrote == save.checkpoint]

    def _rolled_back(self) -> set[int]:
        lost: set[int] = set()
        kept = {life.number: until for life, until in self.lineage}
        for life in self.history.lives:
            lost |= life.ordinals("trained", since=kept.get(life.number, 0))
        return lost

    def _regenerated(self) -> set[int]:
        return {
            ordinal
            for save, life in self._resumes()
            for ordinal in life.ordinals("dispatched") & save.standing.buffered
        }

    def _dropped_without_need(self) -> dict[str, set[int]]:
        """Prompts that were dropped for no reason but a restart, or a save.

        A restart changes when answers are trained, and so which become too old: to drop what it
        took over is right then, whatever an uninterrupted run drops. Where that trains one as old,
        age is no reason. Of answers made anew, other limits of a collector may be the reason.
        """
        oldest = self.reference.oldest
        if oldest is None or self.asked.timeline.changes:
            return {}
        young = [
            end
            for end in self.history.ends()
            if end.kind == "dropped" and end.age <= oldest and end.ordinal in self.reference.trained
        ]
        by_a_restart = {end.ordinal for end in young if end.carried_over}
        in_a_save = {end.ordinal for end in young if end.in_save}
        return {"after a restart": by_a_restart, "in a save": in_a_save - by_a_restart}

    def _dropped_unasked(self) -> set[int]:
        """Prompts that were dropped before there was anything to be said against an answer.

        Where nothing in the lineage was asked for, the engine is not watched.
        """
        asked = self._in_lineage("dispatched")
        if not asked or self.asked.timeline.changes:
            return set()
        return (self._in_lineage("dropped") - asked) & self.reference.trained

    # -- reasons -------------------------------------------------------------------------------

    def _where_each_was_lost(self, left: Iterable[int], given_up: set[int]) -> dict[int, int]:
        """The place in the stream where each missing ordinal was lost.

        The weights tell only that a row went in once too few, and so that its last place is
        missing; where the history says that another place of the row was lost, it was there.
        """
        missing = set(left)
        where = {}
        for row in {self.rows[ordinal] for ordinal in missing}:
            lost = [
                place
                for place in self.places[row]
                if place in self.expected and place not in given_up and not self._trainings(place)
            ]
            others = iter([place for place in lost if place not in missing])
            for ordinal in sorted(missing.intersection(self.places[row])):
                where[ordinal] = ordinal if ordinal in lost else next(others, ordinal)
        return where

    def _why_not_trained(self, ordinal: int, place: int) -> Reason:
        """Why an ordinal, lost at this place of the stream, is missing in the weights."""
        reason = self._where_lost(place)
        if place == ordinal:
            return reason
        return Reason(reason.kind, f"its row was lost at {place}, in another pass: {reason.text}")

    def _where_lost(self, ordinal: int) -> Reason:
        """Follow a prompt back from the last life to where it was lost."""
        if not self.lineage:
            return Reason("never handed out", "never handed out: nothing was played")
        for save, life in [(None, self.lineage[0][0]), *self._resumes()][::-1]:
            reason = self._lost_in(life, save, ordinal)
            if reason is None and save is not None:
                reason = self._lost_between(save, life, ordinal)
            if reason is not None:
                return reason
        place = self.lineage[-1][0].final
        where = f"the loader ended at {place.place}" if place else "the run did not end"
        return Reason("never handed out", f"never handed out: {where}")

    def _lost_in(self, life: LifeRecord, save: SaveRecord | None, ordinal: int) -> Reason | None:
        """What became of a prompt in a life that ended without having trained it."""
        if life is not self.lineage[-1][0] or life.final is None:
            return None
        number, final = life.number, life.final
        if ordinal in final.handed_out:
            if save is not None and ordinal < self._furthest(save):
                return Reason(
                    "thrown away on arrival",
                    f"handed out again in life {number} and thrown away on arrival, "
                    "though neither trained nor buffered",
                )
            return Reason("never dispatched", f"handed out in life {number} and never dispatched")
        if ordinal in final.in_flight:
            return Reason("still in flight", f"still in flight when life {number} ended")
        if ordinal in final.held & final.partly:
            return Reason(
                "finished in part",
                f"finished in part in life {number}, and never put in the buffer as a whole",
            )
        if ordinal in final.held:
            return Reason(
                "held by the collector",
                f"finished in life {number}, and never put in the buffer",
            )
        if ordinal in final.evicted:
            return Reason("evicted", f"evicted from the buffer in life {number}, and not dropped")
        if ordinal in final.buffered:
            return Reason("starved", f"buffered when life {number} ended, and no step took it")
        if ordinal in final.trained:
            return Reason(
                "not in the weights", f"trained in life {number}, but the weights do not show it"
            )
        return None

    def _unsettled(self, save: SaveRecord) -> frozenset[int]:
        """What was out at a save, or had failed and was still to be tried again."""
        return save.standing.unsettled | save.standing.failed & self.reference.retried

    @staticmethod
    def _furthest(save: SaveRecord) -> int:
        standing = save.standing
        return max(standing.place, max(standing.unsettled, default=-1) + 1)

    def _lost_between(self, save: SaveRecord, life: LifeRecord, ordinal: int) -> Reason | None:
        """What became of a prompt between a save and the life that was restored from it."""
        standing, at = save.standing, f"save {save.number}"
        behind = (
            f"life {life.number} restarted the loader at {life.start_place}, behind it"
            if life.start_place > ordinal
            else f"life {life.number} did not take it up again"
        )
        if ordinal in standing.buffered:
            if not life.load_buffer:
                return Reason(
                    "buffered at a save, buffer not loaded",
                    f"buffered at {at}, and the buffer was not loaded: {behind}",
                )
            return Reason(
                "buffered at a save, and not restored",
                f"buffered at {at}, and not in the restored buffer: {behind}",
            )
        for ordinals, where in (
            (standing.in_flight, "in flight"),
            (standing.held & standing.partly, "finished in part"),
            (standing.held, "finished, held by the collector,"),
            (standing.handed_out, "handed out, not dispatched,"),
            (standing.evicted, "evicted"),
            (standing.failed, "failed"),
        ):
            if ordinal in ordinals:
                kind = f"{where.rstrip(',')} at a save"
                return Reason(kind, f"{where} at {at}, and {behind}")
        writer = self.history.lives[save.life - 1]
        if ordinal in standing.owed and writer.start_place <= ordinal:
            return Reason(
                "not come round again at a save", f"not come round again at {at}, and {behind}"
            )
        if ordinal in standing.trained | standing.settled and self._counted(save, ordinal):
            if life.data_set != writer.data_set:
                return Reason(
                    "settled in another data set",
                    f"settled before {at} in another data set, and {behind} (to refuse to resume "
                    "is right too)",
                )
            return Reason(
                "weights not restored",
                f"trained before {at}, but the weights of life {life.number} do not show it",
            )
        if ordinal >= self._furthest(save) and life.start_place > ordinal:
            return Reason(
                "jumped over",
                f"not handed out at {at}, and life {life.number} restarted the loader at "
                f"{life.start_place}, behind it",
            )
        return None

    def _counted(self, save: SaveRecord, ordinal: int) -> bool:
        """Whether the weights had gone through this prompt's row when a save began."""
        size, row = self.generations, self.rows[ordinal]
        return any(save.counts[row * size : (row + 1) * size])

    def _why_twice(self, ordinal: int) -> Reason:
        """Why a row went into the weights more often than it has places.

        The surplus is that of its last place; where the history says that another place was
        trained twice, that one has the reason.
        """
        places = self.places[self.rows[ordinal]]
        twice = [place for place in places if len(self._trainings(place)) > 1]
        if not twice or ordinal in twice:
            return self._how_twice(ordinal)
        reason = self._how_twice(twice[0])
        text = f"its row was repeated at {twice[0]}, in another pass: {reason.text}"
        return Reason(reason.kind, text)

    def _how_twice(self, ordinal: int) -> Reason:
        trainings = self._trainings(ordinal)
        lives = [life for life, _ in trainings]
        for save, life in self._resumes():
            if life.number in lives and any(number < life.number for number in lives):
                return Reason(
                    "trained before a save and again",
                    f"trained before save {save.number} and again in life {life.number}",
                )
            for over in self._written_over(save):
                before = self.history.lives[over.life - 1].ordinals("trained", until=over.position)
                if life.number in lives and ordinal in before:
                    return Reason(
                        "trained before a save and again",
                        f"trained before save {over.number}, which died while it wrote over save "
                        f"{save.number}, and again in life {life.number}",
                    )
        if len(trainings) > 1:
            steps = sorted({step for _, step in trainings})
            where = f"in steps {' and '.join(map(str, steps))}"
            if len(steps) == 1:
                where = f"{len(trainings)} times in step {steps[0]}"
            return Reason("trained twice in one life", f"trained in life {lives[0]} {where}")
        return Reason(
            "only the weights show it", "the weights count it more often than it was seen trained"
        )

    # -- what is allowed ----------------------------------------------------------------------

    def _legacy_resumes(self) -> list[tuple[SaveRecord, LifeRecord]]:
        """The restarts of the lineage from a legacy checkpoint, or from one descended from it."""
        resumes = self._resumes()
        first = next((i for i, (save, _) in enumerate(resumes) if save.legacy), len(resumes))
        return resumes[first:]

    def _excused_skips(self, skipped: set[int], lost: Mapping[int, int]) -> set[int]:
        if self.asked.demand != "legacy":
            return set()
        # Where no legacy checkpoint could be made the run is unreached, whatever it lost.
        made = any(save.legacy for save in self.history.saves)
        resumes = self._legacy_resumes() if made else self._resumes()
        out = {o for save, _ in resumes for o in self._unsettled(save)}
        return {ordinal for ordinal in skipped if lost[ordinal] in out}

    def _excused_repeats(self, repeated: Mapping[int, int]) -> set[int]:
        if self.collector.delivery != "at_least_once" or self.asked.demand == "legacy":
            return set()
        # By row: the weights don't tell which of a row's places was repeated.
        allowed: Counter[int] = Counter()
        for save, _ in self._resumes():
            lowest = min(self._unsettled(save), default=save.standing.place)
            before = save.standing.trained | save.standing.settled
            allowed.update(self.rows[o] for o in before if o > lowest)
        return {o for o, times in repeated.items() if times <= allowed[self.rows[o]]}

    # -- what can't be told --------------------------------------------------------------------

    @cached_property
    def doubtful(self) -> frozenset[int]:
        """Ordinals of which nobody can tell which of their row was asked for in the lineage."""
        return frozenset().union(*(life.doubtful for life, _ in self.lineage))

    def _is_told(self, ordinal: int) -> bool:
        """Whether what is found of a prompt is so whichever of its row was asked for."""
        if ordinal >= len(self.rows):
            return True
        row = self.rows[ordinal]
        places = self.places[row]
        # A buffer that takes two halves for a group evicts, and keeps, others than it should.
        if any(not self._in_lineage(kind).isdisjoint(places) for kind in _NOT_TRAINED):
            return False
        if self.doubtful.isdisjoint(places):
            return True
        size = self.generations
        counts = (self.counts or ())[row * size : (row + 1) * size]
        expected = len(self.expected.intersection(places))
        last = [event for event in self.lineage[-1][0].events if event.ordinal in places]
        put = Counter(event.generation for event in last if event.kind == "buffered")
        put.subtract(event.generation for event in last if event.kind == "trained")
        return any(count != expected for count in counts) and max(put.values(), default=0) <= 0

    # -- checks -------------------------------------------------------------------------------

    def _find(self, verdict: Verdict, text: str, ordinals: Iterable[int]) -> None:
        concerned = tuple(sorted(ordinals))
        if concerned:
            self.findings.append(Finding(verdict, text, concerned))

    def _blame(self, text: str, ordinals: Iterable[int], told: bool | None = None) -> None:
        """Find that prompts were lost or repeated: *undetermined* where that can't be told.

        Whether it can, the prompts themselves say by default.
        """
        concerned = list(ordinals)
        if told is None:
            told = not self.doubtful or any(map(self._is_told, concerned))
        if told:
            self._find("lossy", text, concerned)
        else:
            self._find("undetermined", text + _in_doubt(self.doubtful), concerned)

    def _add(self, verdict: Verdict, text: str) -> None:
        self.findings.append(Finding(verdict, text))

    def _check_lives(self) -> None:
        limit = self.setup.max_in_flight
        for life in self.history.lives:
            if limit is not None and life.most_in_flight > limit:
                text = (
                    f"life {life.number} had {life.most_in_flight} prompts in flight, "
                    f"over its limit of {limit}"
                )
                if life.doubtful:
                    self._add("undetermined", text + _in_doubt(life.doubtful))
                else:
                    self._add("lossy", text)
            self._check_silent_restart(life)
            if life.origin is not None:
                self._check_restored(life, self.history.save(life.origin))
        for _, life in self._legacy_resumes():
            # A life that never ran, or is cut off by the deadline, has not had its say.
            if life.began and life.final is not None and not life.warned:
                self._add(
                    "lossy",
                    f"life {life.number} descends from a legacy checkpoint and gave no warning "
                    f"that matches {self.collector.legacy_warning!r}",
                )

    def _check_silent_restart(self, life: LifeRecord) -> None:
        if life.wanted is None or not life.began:
            return
        wanted = self.history.save(life.wanted)
        since = [
            s for s in self.history.saves if wanted.number <= s.number and s.life < life.number
        ]
        if life.origin is not None and any(save.torn for save in since):
            return  # the newest may be the torn one: an older is a way out
        version = 0 if life.origin is None else self.history.save(life.origin).weight_version
        if version < wanted.weight_version:
            origin = "afresh" if life.origin is None else f"from save {life.origin}"
            self._add(
                "lossy",
                f"silent restart: life {life.number} began {origin}, with weights of step "
                f"{version}, though save {wanted.number} with step {wanted.weight_version} "
                "was published",
            )

    def _check_restored(self, life: LifeRecord, save: SaveRecord) -> None:
        # What a save that died was writing over may be the one or the other by now.
        either = {s.counts for s in (save, *self._written_over(save))}
        if life.began and life.start_counts not in either:
            self._add(
                "lossy",
                f"weights not restored: those of life {life.number} are not those of "
                f"save {save.number}",
            )
        begun: dict[tuple[int | None, int | None], int] = {}
        older = set()
        for event in life.events:
            if event.kind == "dispatched":
                begun[event.ordinal, event.generation] = event.number or 0
            elif event.kind == "trained" and event.ordinal is not None:
                version = begun.get((event.ordinal, event.generation))
                if version is not None and version < save.weight_version:
                    older.add(event.ordinal)
        self._blame("answered by weights older than the restored ones", older)

    def _check_order(self, duplicated: set[int]) -> None:
        if self.collector.order != "stream":
            return
        repeated = {o for ordinal in duplicated for o in self.places[self.rows[ordinal]]}
        late = self._late(repeated)
        told = not self.doubtful or self._late(repeated, without=self.doubtful)
        self._blame("trained out of the order of the stream", late, told=bool(told))

    def _late(self, repeated: set[int], without: frozenset[int] = frozenset()) -> set[int]:
        """What is trained behind something that comes after it in the stream."""
        furthest, late = -1, set()
        for life, until in self.lineage:
            for kind, ordinal, *_ in life.events[:until]:
                if kind != "trained" or ordinal is None or ordinal in without:
                    continue
                # Events of one step are sorted: only from step to step can it fall back.
                # What is trained once more comes late by that: it has a finding of its own,
                # unless it came instead of another pass of its row, as the last weights say.
                once = len(self._trainings(ordinal)) == 1
                instead = self.counts is not None and ordinal not in repeated
                if ordinal < furthest and (once or instead):
                    late.add(ordinal)
                furthest = max(furthest, ordinal)
        return late

    def _check_end(self) -> None:
        played = self.played
        if played.error is not None:
            self._add("error", f"{type(played.error).__name__}: {played.error}")
        if played.refusal is not None:
            refusal = f"{type(played.refusal).__name__}: {played.refusal}"
            self._add("refused", f"refused to resume: {refusal}")
        if played.hang is not None:
            self._add("hang", played.hang)
        if not self.history.lives:
            self._add("undetermined", "nothing was played")
        elif played.counts is not None and not self.reference.trained:
            self._add("undetermined", "the uninterrupted run trains nothing, so nothing is shown")
        elif played.counts is None and not (played.error or played.refusal or played.hang):
            self._add("undetermined", "the run has no final weights")

    def _check_reached(self, states: frozenset[str]) -> str | None:
        """Whether the run showed what the timeline is for.

        Returns:
            Why not, when that is the collector's own way of working.
        """
        must_reach = list(self.asked.must_reach)
        if self.asked.demand == "legacy" and _FROM_LEGACY not in must_reach:
            must_reach.append(_FROM_LEGACY)
        unmet = [state for state in must_reach if state not in states]
        optional = [state for state in self.asked.may_reach if state not in states]
        if self.played.counts is None:
            return None
        own = not (self.asked.name or must_reach or self.asked.may_reach)
        if own and self.played.missed and not self.findings:
            # A script of one's own has no states to reach: it has to be done as it stands.
            unmet.append("every step of the script")
        if unmet:
            missed = "; ".join(f"{missed.step}: {missed.why}" for missed in self.played.missed)
            what = f"not reached: {'; '.join(unmet)}" + (f" ({missed})" if missed else "")
            if any(missed.throttled for missed in self.played.missed):
                return what
            kept_out = [step for save in self.history.saves for step in save.kept_out]
            if kept_out:
                steps = ", ".join(kept_out)
                return f"{what}: race not taken: {steps} could not be done before the save's end"
            if not self.played.gated:
                return f"{what}, with the loader's gate open"
            if any(save.standing.held for save in self.history.saves):
                return f"{what}, with finished prompts held by the collector"
            if issubclass(self.collector, SelfDrivenCollector):
                return f"{what}, as it trains and saves by itself"
            self._add("undetermined", what)
        elif optional:
            return f"this collector never came to: {'; '.join(optional)}"
        return None
