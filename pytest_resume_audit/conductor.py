"""Runs one timeline on one collector, against the uninterrupted run, and judges it."""

from __future__ import annotations

import difflib
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple, get_args
from weakref import WeakKeyDictionary

from pytest_resume_audit.adapters.loader import LoaderAudit, collector_of
from pytest_resume_audit.catalogue import NAMED, NamedTimeline, matrix
from pytest_resume_audit.collector import Collector, SelfDrivenCollector
from pytest_resume_audit.command import Command
from pytest_resume_audit.command_play import CommandPlay
from pytest_resume_audit.history import History
from pytest_resume_audit.lives.kinds import (
    COMMAND_LIFE,
    LifeKind,
    missing,
    not_here,
    not_importable,
)
from pytest_resume_audit.lives.overheard import Overheard
from pytest_resume_audit.play import Play
from pytest_resume_audit.self_driven import SelfDrivenPlay
from pytest_resume_audit.setup import Setup
from pytest_resume_audit.style import AnyCollector, Make, Style, WrongStyle
from pytest_resume_audit.timeline import Timeline, TimelineError
from pytest_resume_audit.verdict import Asked, AuditReport, Demand, Played, Reference, judge
from pytest_resume_audit.walk import worst_of
from pytest_resume_audit.workspace import workspace

MOST_POINTS = 500
"""Points of a save that are gone through; some have one more in each run, and never an end."""

DEADLINE = 30.0
"""Seconds without progress after which a run is called a hang."""


def run(
    collector: Make | LoaderAudit,
    timeline: str | Timeline | NamedTimeline | Asked,
    *,
    setup: Setup | None = None,
    deadline: float = DEADLINE,
    life: LifeKind = "local",
) -> AuditReport:
    """Play a timeline on a collector, and judge what came of it.

    Args:
        collector: a class, or anything that makes a collector from a rig; or the audit of a
            loader alone.
        timeline: a script, a name of the catalogue (of a loader alone: of the matrix ``loader``
            too), or one of its timelines.
        setup: the sizes; by default those of the case that names the project.
        deadline: seconds without progress after which the run is called a hang.
        life: the kind of life: ``"local"``, objects of this process that are thrown away;
            ``"process"``, a child process of its own each, which is killed; ``"ray"``, an actor
            each, which is killed, of a Ray cluster that is started for the session;
            ``"ray-driver"``, a child process each that is a driver of that cluster. A
            :class:`Command` has one kind only, its own.

    Returns:
        The report. Whatever the collector does, it is reported, not raised.

    Raises:
        TimelineError: for a script that makes no sense.
        TypeError: for what is no collector, no setup, no deadline.
        ModuleNotFoundError: for a life that needs an extra, which is named.
        NotImplementedError: for a life that this system can't watch: in Ray, and of commands, they
            need Linux.

    Example:
        >>> from pytest_resume_audit import LiveCursorCollector, run
        >>> report = run(LiveCursorCollector, "mid-flight")
        >>> report.skipped
        [5, 8, 9, 11]
    """
    if isinstance(timeline, str):
        own = matrix("loader", setup) if isinstance(collector, LoaderAudit) else ()
        timeline = {**NAMED, **{named.name: named for named in own}}.get(timeline, timeline)
    make = collector_of(collector)
    if not isinstance(setup, Setup | None):
        raise TypeError(f"setup is a Setup, such as Setup(prompts=32), not {setup!r}")
    if life not in get_args(LifeKind):
        kinds = ", ".join(map(repr, get_args(LifeKind)))
        raise TypeError(f"life is one of {kinds}, not {life!r}")
    if isinstance(collector, Command):
        life = "command"
        if (why := collector.missing()) is not None:
            raise TypeError(why)
    elif life == "command":
        raise TypeError(COMMAND_LIFE)
    if (why := not_here(life)) is not None:
        raise NotImplementedError(why)
    if lacks := missing(life):
        raise ModuleNotFoundError(lacks, name="ray")
    if life not in ("local", "command") and (why := not_importable(make)):
        raise TypeError(why)
    is_number = isinstance(deadline, int | float) and not isinstance(deadline, bool)
    if not is_number or not 0 < deadline < float("inf"):
        raise TypeError(f"deadline is a number of seconds above 0, not {deadline!r}")
    asked = _asked(timeline, setup)
    if isinstance(collector, Command):
        sizes = timeline.sizes if isinstance(timeline, NamedTimeline) else ()
        if (why := collector.lacks(asked.timeline, sizes)) is not None:
            raise TypeError(why)
    report = _Audit(make, asked, deadline, life).report()
    throttled = report.passed and report.unreached is not None
    if asked.otherwise is not None and throttled and not report.lacks_downgrade:
        by_position = replace(asked, timeline=asked.otherwise, otherwise=None, uninterrupted=None)
        other = _Audit(make, by_position, deadline, life).report()
        if other.unreached is None or not other.passed:
            return other
    return report


def _asked(timeline: str | Timeline | NamedTimeline | Asked, setup: Setup | None) -> Asked:
    if isinstance(timeline, str):
        timeline = _parsed(timeline)
    if isinstance(timeline, NamedTimeline):
        return timeline.ask(setup)
    if isinstance(timeline, Timeline):
        loud_is_enough = timeline.torn or timeline.changes
        demand: Demand = "lossless or refused" if loud_is_enough else "lossless"
        if timeline.legacy:
            demand = "legacy"
        return Asked(timeline, Setup() if setup is None else setup, demand=demand)
    if isinstance(timeline, Asked):
        return timeline if setup is None else replace(timeline, setup=setup)
    raise TypeError(
        "a timeline is a script, a name of the catalogue, a Timeline or a NamedTimeline, "
        f"not {type(timeline).__name__}"
    )


def _parsed(script: str) -> Timeline:
    try:
        return Timeline.parse(script)
    except TimelineError as error:
        close = difflib.get_close_matches(script, NAMED, n=1)
        if not close:
            raise
        raise TimelineError(error.problem, hint=f"did you mean {close[0]!r}?") from None


class _Audit:
    """One timeline on one collector: the uninterrupted run, the run, the verdict."""

    def __init__(self, make: Make, asked: Asked, deadline: float, life: LifeKind) -> None:
        if not _may_make_collectors(make):
            raise TypeError(
                "a collector is a class, or a callable that makes one from a rig, "
                f"not {type(make).__name__}"
            )
        self.make = make
        self.asked = asked
        self.deadline = deadline
        self.setup = asked.setup.changed(asked.timeline.changes)
        self.kind: type[AnyCollector] = make if isinstance(make, type) else Collector
        if isinstance(make, Command):
            self.kind = make.kind
        self.style = Style.of(self.kind)
        self.life = life
        if life != "local":
            self.style = replace(self.style, threaded=True)

    def report(self) -> AuditReport:
        with Overheard(everything=self.asked.timeline.legacy) as overheard:
            self.overheard = overheard
            reference, failed = self._reference()
            if failed is not None:
                asked = replace(
                    self.asked, timeline=self.asked.timeline.uninterrupted(), must_reach=()
                )
                report = judge(asked, reference, failed, self.kind)
            else:
                self.reference = reference
                report = worst_of(self.asked, self._reports(reference))
        overheard.warn_again()
        return report

    def _reference(self) -> tuple[Reference, Played | None]:
        """What the uninterrupted run does; and that run itself where it came to no end."""
        timeline = self.asked.uninterrupted or self.asked.timeline.uninterrupted()
        known = _references.setdefault(self.make, {}) if _can_remember(self.make) else {}
        key = (timeline, self.setup, self.life)
        if key not in known:
            (run,) = self._play_well(timeline, None)
            played = run.played
            if played.counts is None:
                return Reference((), frozenset(), frozenset(), frozenset()), played
            known[key] = (_reference_of(played, self.setup), self.kind)
        reference, self.kind = known[key]
        return reference, None

    def _reports(self, reference: Reference) -> Iterator[AuditReport]:
        """What came of the timeline; of each point of a save, where it goes through all."""
        timeline = self.asked.timeline
        one_run_gives_all = self.life == "local" and not timeline.races_everywhere
        if one_run_gives_all or not timeline.walks:
            yield from self._judged(self._play_well(timeline, reference))
            return
        for at in range(1, MOST_POINTS + 1):
            for one in timeline.all_at(at):
                (run,) = self._play_well(one, reference)
                saves = run.played.history.saves
                came_to = any(save.raced_at or save.died_at or save.torn for save in saves)
                broke_off = not came_to and run.past_the_end is None
                if came_to or broke_off or (at == 1 and run.past_the_end):
                    yield from self._judged([run])
                if broke_off or run.past_the_end:
                    return

    def _judged(self, runs: list[_Run]) -> Iterator[AuditReport]:
        for run in runs:
            asked = replace(self.asked, timeline=run.timeline)
            yield judge(asked, self.reference, run.played, self.kind)

    def _play_well(self, timeline: Timeline, reference: Reference | None) -> list[_Run]:
        """Play with the loader's gate; without it, where the gate was in the way."""
        first = self._play(timeline, reference, gated=True)
        in_the_way = set().union(*(run.in_the_way for run in first))
        if not in_the_way:
            return first
        second = self._play(timeline, reference, gated=False)
        if not in_the_way <= set().union(*(run.held for run in second)):
            return second
        # What is held with the gate open too, the gate did not hold. But it may only have taken
        # its time, as what waits for another process does.
        if _hangs(first) and not _hangs(second):
            return self._play(timeline, reference, gated=True, patient=True)
        return first

    def _play(
        self,
        timeline: Timeline,
        reference: Reference | None,
        *,
        gated: bool,
        patient: bool = False,
    ) -> list[_Run]:
        """Play the timeline to its end, or to each of its ends where a save dies at every point."""
        while True:
            with workspace() as root:
                play = self._kind_of_play()(
                    self.make,
                    timeline,
                    self.setup if reference is None else self.asked.setup,
                    root,
                    self.overheard,
                    reference=reference,
                    gated=gated,
                    patient=patient,
                    style=self.style,
                    deadline=self.deadline,
                    life=self.life,
                )
                try:
                    run = self._played(play)
                    runs = [self._played(play.branch(image)) for image in play.images]
                except WrongStyle as wrong:
                    self.style = wrong.style
                    continue
            if play.made:
                self.kind = play.kind
            return runs or [run]

    def _kind_of_play(self) -> type[Play]:
        if self.life == "command":
            return CommandPlay
        return SelfDrivenPlay if self.style.self_driven else Play

    def _played(self, play: Play) -> _Run:
        watched = self.style.threaded
        played = play.play() if watched else _supervised(play, self.deadline)
        return _Run(
            play.timeline,
            played,
            frozenset(play.in_the_way),
            frozenset(play.held),
            play.past_the_end,
        )


class _Run(NamedTuple):
    """One run of a timeline, to one of its ends.

    Args:
        timeline: without what it leaves open.
        played: what came of it.
        in_the_way: what stood still while a thread stood at the loader's gate.
        held: what was finished and held by the collector, and calls that waited.
        past_the_end: whether the save that a point was asked of has fewer; None: no such save
            came to its end.
    """

    timeline: Timeline
    played: Played
    in_the_way: frozenset[str]
    held: frozenset[str]
    past_the_end: bool | None


def _hangs(runs: list[_Run]) -> bool:
    return any(run.played.hang is not None for run in runs)


_references: WeakKeyDictionary[
    Any, dict[tuple[Timeline, Setup, LifeKind], tuple[Reference, type[AnyCollector]]]
] = WeakKeyDictionary()
"""The uninterrupted runs of each collector: many timelines have the same one."""


def _may_make_collectors(make: object) -> bool:
    if isinstance(make, type):
        return issubclass(make, Collector | SelfDrivenCollector)
    return callable(make)


def _can_remember(make: Make) -> bool:
    # A factory may make something else each time; a class is what it is.
    return isinstance(make, type | Command)


def _reference_of(played: Played, setup: Setup) -> Reference:
    history = played.history
    life = history.lives[-1]
    final = life.final
    assert final is not None
    size = setup.group_size
    answers: dict[int, set[int]] = {}
    for event in life.events:
        if event.kind == "trained" and event.ordinal is not None:
            answers.setdefault(event.ordinal, set()).add(event.generation or 0)
    trained = frozenset(o for o, generations in answers.items() if len(generations) == size)
    return Reference(
        rows=history.rows,
        trained=trained,
        partial=frozenset(answers.keys() - trained),
        failed=final.failed,
        dropped=final.dropped,
        oldest=_oldest(history),
        retried=trained & life.ordinals("failed"),
    )


def _oldest(history: History) -> int | None:
    """The greatest age of an answer that a run trains, where that is what it goes by."""
    ages: dict[str, list[int]] = {"trained": [], "dropped": []}
    for end in history.ends():
        ages[end.kind].append(end.age)
    oldest = max(ages["trained"], default=None)
    if oldest is None or min(ages["dropped"], default=oldest + 1) <= oldest:
        return None
    return oldest


def _supervised(play: Play, deadline: float) -> Played:
    """Play where every call is made at once, in a thread: a call that never returns is seen."""
    played: list[Played] = []
    errors: list[BaseException] = []
    done = threading.Lock()
    done.acquire()

    def body() -> None:
        try:
            played.append(play.play())
        except BaseException as error:
            errors.append(error)
        finally:
            done.release()

    thread = threading.Thread(target=body, name="resume-audit", daemon=True)
    thread.start()
    try:
        progress = -1
        while not done.acquire(timeout=deadline):
            now = play.activity
            if now == progress:
                return play.given_up(thread)
            progress = now
    except BaseException:
        play.give_up()
        raise
    if errors:
        raise errors[0]
    return played[0]
