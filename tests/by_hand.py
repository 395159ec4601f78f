"""Runs written down by hand, event by event, and judged: for reports of exactly known content."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pytest_resume_audit import Collector, Setup, Timeline
from pytest_resume_audit.history import Event, History, LifeRecord, Progress, SaveRecord
from pytest_resume_audit.verdict import Asked, AuditReport, Demand, Played, Reference, judge

THE_CASE = "hand_out 12; finish 0-3; train; finish 4 6 7 10; save; crash; restart; drain"


def ordinals(text: str) -> list[int]:
    """The numbers of ``"0-3 5"``."""
    bounds = (word.partition("-") for word in text.split())
    return [o for first, _, last in bounds for o in range(int(first), int(last or first) + 1)]


class ByHand:
    """A run that is written down.

    Example:
        >>> run = ByHand()
        >>> run.life()
        >>> run.ready("0-3")
        >>> run.does("trained", "0-3")
        >>> run.report().skipped[0]
        4
    """

    def __init__(self, setup: Setup | None = None) -> None:
        self.setup = Setup() if setup is None else setup
        rows = [row for epoch in range(self.setup.passes) for row in self.setup.order(epoch)]
        self.history = History(rows=tuple(rows))
        self.place = 0

    def life(self, origin: int | None = None, *, place: int = 0, load_buffer: bool = True) -> None:
        """A life begins, with the weights of a save."""
        size = self.setup.group_size
        self.counts = [0] * (self.setup.prompts * size)
        settled: frozenset[int] = frozenset()
        if origin is not None:
            save = self.history.save(origin)
            self.counts = list(save.counts)
            standing = save.standing
            settled = standing.trained | standing.settled | standing.failed | standing.dropped
        self.progress = Progress(size, settled)
        self.place = place
        self.record = LifeRecord(
            number=len(self.history.lives) + 1,
            origin=origin,
            wanted=origin,
            load_buffer=load_buffer,
            start_counts=tuple(self.counts),
            start_place=place,
        )
        self.history.lives.append(self.record)

    def does(self, kind: str, which: str, generation: int | None = None) -> None:
        """Something happens to prompts: to every generation unless one is named."""
        generations: Iterable[int] = range(self.setup.group_size)
        if generation is not None:
            generations = [generation]
        for ordinal in ordinals(which):
            if kind in ("handed_out", "dropped"):
                self._event(Event(kind, ordinal))
            else:
                for one in generations:
                    self._event(Event(kind, ordinal, one, number=1 if kind == "trained" else None))
            if kind == "handed_out":
                self.place = max(self.place, ordinal + 1)

    def out(self, which: str) -> None:
        """Prompts are handed out and dispatched."""
        self.does("handed_out", which)
        self.does("dispatched", which)

    def ready(self, which: str) -> None:
        """Prompts are handed out, answered and buffered."""
        self.out(which)
        self.answered(which)

    def answered(self, which: str) -> None:
        """Prompts in flight are answered and buffered."""
        self.does("finished", which)
        self.does("buffered", which)

    def trains(self, which: str) -> None:
        """Prompts go all the way into the weights."""
        self.ready(which)
        self.does("trained", which)

    def _event(self, event: Event) -> None:
        self.record.events.append(event)
        self.progress.apply(event)
        if event.kind == "trained" and event.ordinal is not None:
            row = self.history.rows[event.ordinal]
            self.counts[row * self.setup.group_size + (event.generation or 0)] += 1

    def saves(self) -> SaveRecord:
        """A checkpoint is published."""
        save = SaveRecord(
            number=len(self.history.saves) + 1,
            life=self.record.number,
            position=len(self.record.events),
            standing=self.progress.standing(self.place),
            weight_version=0,
            counts=tuple(self.counts),
            published=True,
        )
        self.history.saves.append(save)
        return save

    def ends(self, how: str = "crash") -> None:
        """The life ends."""
        self.record.ended = how
        self.record.final = self.progress.standing(self.place)

    def report(
        self,
        timeline: str = THE_CASE,
        *,
        reference: Reference | None = None,
        collector: type[Any] = Collector,
        name: str = "",
        demand: Demand = "lossless",
        may_reach: tuple[str, ...] = (),
        **played: Any,
    ) -> AuditReport:
        """The last life ends, if it has not, and the run is judged.

        Args:
            timeline: the script, which nothing is played from.
            reference: by default every prompt is expected to be trained.
            collector: for its declarations.
            name: of the timeline.
            demand: of the timeline.
            may_reach: states that it may reach.
            played: other fields of :class:`Played`.
        """
        if self.history.lives and self.record.final is None and "counts" not in played:
            self.ends("end")
        if reference is None:
            everything = frozenset(range(len(self.history.rows)))
            reference = Reference(self.history.rows, everything, frozenset(), frozenset())
        asked = Asked(
            Timeline.parse(timeline), self.setup, name=name, demand=demand, may_reach=may_reach
        )
        played.setdefault("counts", self.counts if self.history.lives else None)
        return judge(asked, reference, Played(self.history, **played), collector)


def the_case(setup: Setup | None = None) -> ByHand:
    """The case that names the project, up to its crash: saved with prompts in flight."""
    run = ByHand(setup)
    run.life()
    run.out("0-11")
    run.answered("0-3")
    run.does("trained", "0-3")
    run.answered("4 6 7 10")
    run.saves()
    run.ends()
    return run


def old_way() -> ByHand:
    """The loader's live place is restored, and the buffer."""
    run = the_case()
    run.life(1, place=12)
    run.does("buffered", "4 6 7 10")
    run.does("trained", "4 6 7 10")
    run.trains("12-15")
    return run


def new_way(*, load_buffer: bool = True) -> ByHand:
    """The loader goes back to the oldest unfinished prompt; what comes again is thrown away."""
    run = the_case()
    run.life(1, place=4, load_buffer=load_buffer)
    if load_buffer:
        run.does("buffered", "4 6 7 10")
    run.does("handed_out", "4-15")
    again = "5 8 9 11-15" if load_buffer else "4-15"
    run.does("dispatched", again)
    run.answered(again)
    run.does("trained", "4-15")
    return run
