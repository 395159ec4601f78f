"""What happened: events, the standing of every prompt, saves, lives and their lineage."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

KINDS = (
    "restored",
    "started",
    "saving",
    "pass_begun",
    "handed_out",
    "pass_ended",
    "dispatched",
    "finished",
    "failed",
    "buffered",
    "evicted",
    "dropped",
    "trained",
    "saved",
    "crashed",
    "stopped",
    "ended",
)
"""Every kind of event, in the order in which those of one moment are written down."""

_RANK = {kind: rank for rank, kind in enumerate(KINDS)}


class Event(NamedTuple):
    """Something that happened to a prompt, or in a life.

    Args:
        kind: one of :data:`KINDS`.
        ordinal: of the prompt; None for what concerns the whole life.
        generation: of its group; None for the whole group.
        number: ``trained``: the step; ``dispatched`` and ``dropped``: the weight version;
            ``saving``, ``saved`` and ``restored``: the save, from 1; ``pass_ended``: passes ended
            so far.
        text: the reason of a drop or eviction.
    """

    kind: str
    ordinal: int | None = None
    generation: int | None = None
    number: int | None = None
    text: str = ""


def in_order(events: Iterable[Event]) -> list[Event]:
    """The events of one moment in the order of the history: threads leave no trace in it."""
    return sorted(events, key=_order)


def _order(event: Event) -> tuple[int, int, int, int, str]:
    def known(number: int | None) -> int:
        return -1 if number is None else number

    return (
        _RANK[event.kind],
        known(event.number) if event.kind == "trained" else 0,
        known(event.ordinal),
        known(event.generation),
        event.text,
    )


@dataclass(frozen=True)
class Standing:
    """Where the prompts of a life stand at one moment: disjoint sets of ordinals.

    Args:
        handed_out: handed out and nothing more, such as the carried-over rest of a batch.
        in_flight: a generation of it is being answered.
        held: finished, and not in the buffer: the collector has it.
        buffered: in the replay buffer.
        trained: by this life, and nothing of the group is out any more.
        failed: and not tried again.
        dropped: given up by the collector, with a reason.
        evicted: thrown out of the buffer, and nothing more.
        settled: settled in the weights that the life started from, and not touched since.
        owed: out at the save that the life was restored from, and not come round again yet.
        place: of the loader.
        partly: groups that are out, with some of their answers there and some not.
    """

    handed_out: frozenset[int]
    in_flight: frozenset[int]
    held: frozenset[int]
    buffered: frozenset[int]
    trained: frozenset[int]
    failed: frozenset[int]
    dropped: frozenset[int]
    evicted: frozenset[int]
    settled: frozenset[int]
    owed: frozenset[int]
    partly: frozenset[int]
    place: int

    @property
    def done(self) -> frozenset[int]:
        """Everything that is settled, in this life or before: trained, failed or dropped."""
        return self.trained | self.settled | self.failed | self.dropped

    @property
    def unsettled(self) -> frozenset[int]:
        """Everything that was handed out, in this life or before, and is not settled."""
        out = self.handed_out | self.in_flight | self.held | self.buffered
        return out | self.evicted | self.owed


_PLACES = (
    "handed_out", "in_flight", "held", "buffered",
    "trained", "failed", "dropped", "evicted", "settled", "owed",
)  # fmt: skip


class Progress:
    """The standing of one life as its events come in.

    Args:
        group_size: generations of a prompt.
        settled: ordinals settled in the weights that the life starts from.
        owed: ordinals that were out at the save it was restored from.
    """

    def __init__(
        self, group_size: int, settled: Iterable[int] = (), owed: Iterable[int] = ()
    ) -> None:
        self._group_size = group_size
        self._sets: dict[str, set[int]] = {place: set() for place in _PLACES}
        self._where: dict[int, str] = {}
        self._answers: dict[int, set[int]] = {}
        self._failures: dict[int, set[int]] = {}
        self._flying: dict[int, int] = {}
        self._buffered: dict[int, set[int]] = {}
        for ordinal in settled:
            self._move(ordinal, "settled")
        for ordinal in owed:
            self._move(ordinal, "owed")

    def apply(self, event: Event) -> None:
        """Take in one event."""
        kind, ordinal = event.kind, event.ordinal
        if ordinal is None:
            return
        generation = event.generation or 0
        if kind == "handed_out":
            # What is settled, or waits in the restored buffer, stays so when it comes round.
            if self._where.get(ordinal, "owed") == "owed":
                self._move(ordinal, "handed_out")
        elif kind == "dispatched":
            self._flying[ordinal] = self._flying.get(ordinal, 0) + 1
            self._move(ordinal, "in_flight")
        elif kind in ("finished", "failed"):
            ended, other = self._answers, self._failures
            if kind == "failed":
                ended, other = other, ended
            ended.setdefault(ordinal, set()).add(generation)
            other.get(ordinal, set()).discard(generation)
            self._flying[ordinal] = self._flying.get(ordinal, 0) - 1
            # What was given up stays so when a late answer to it comes.
            if self._flying[ordinal] <= 0 and self._where.get(ordinal) != "dropped":
                self._move(ordinal, "failed" if self._failures.get(ordinal) else "held")
        elif kind == "buffered":
            kept = self._buffered.setdefault(ordinal, set())
            kept.add(generation)
            if len(kept) >= self._group_size:
                self._move(ordinal, "buffered")
        elif kind == "trained":
            for known in (self._answers, self._buffered):
                if event.generation is None:
                    known.pop(ordinal, None)
                known.get(ordinal, set()).discard(generation)
            if not self._is_out(ordinal):
                self._move(ordinal, "trained")
        elif kind == "evicted":
            for known in (self._answers, self._buffered):
                known.pop(ordinal, None)
            # Of one moment's events those of a new try come first.
            self._move(ordinal, "in_flight" if self._is_out(ordinal) else "evicted")
        elif kind == "dropped":
            self._buffered.pop(ordinal, None)
            self._move(ordinal, "dropped")

    def _is_out(self, ordinal: int) -> bool:
        """Whether a generation is in flight, held or buffered."""
        return bool(
            self._flying.get(ordinal, 0) > 0
            or self._answers.get(ordinal)
            or self._buffered.get(ordinal)
        )

    def _move(self, ordinal: int, place: str) -> None:
        former = self._where.get(ordinal)
        if former is not None:
            self._sets[former].discard(ordinal)
        self._where[ordinal] = place
        self._sets[place].add(ordinal)

    def where(self, ordinal: int) -> str | None:
        """Where a prompt stands: a name of :class:`Standing`; None before it is handed out."""
        return self._where.get(ordinal)

    def standing(self, place: int) -> Standing:
        """Where every prompt of the life stands now, with the loader at this place."""
        out = self._sets["in_flight"] | self._sets["held"]
        partly = {o for o in out if 0 < len(self._answers.get(o, ())) < self._group_size}
        return Standing(
            **{name: frozenset(ordinals) for name, ordinals in self._sets.items()},
            partly=frozenset(partly),
            place=place,
        )

    def held(self) -> frozenset[int]:
        """Whole groups that are finished, and that the collector has not put in the buffer."""
        return frozenset(
            ordinal
            for ordinal in self._sets["held"]
            if len(self._answers.get(ordinal, ())) >= self._group_size
        )


@dataclass
class SaveRecord:
    """A checkpoint, and what was out when it was written.

    Args:
        number: from 1, over all lives.
        life: the life that wrote it, from 1.
        position: events of that life before the save began.
        standing: of the prompts when the save began.
        weight_version: of the weights when the save began.
        counts: of the weights when the save began.
        answers: generations that were there, finished and not trained, by ordinal.
        checkpoint: its name below the checkpoint root.
        published: whether the save came to its end.
        end: events of that life before the save had ended: with others between, where it was
            raced.
        raced_at: the point at which it was held while other steps happened.
        raced: steps that happened inside of it.
        kept_out: steps that should have, and were kept out until it had ended.
        died_at: the file operation before which it died.
        overwrote: the older checkpoint that it was writing over when it died.
        torn: the file that it wrote last and what is left of it, where that is torn.
        unseen: files that changed in it though no operation on them was seen: a death or a race
            between two of those was not played.
        legacy: whether it was rewritten as the version before the fix wrote it.
    """

    number: int
    life: int
    position: int
    standing: Standing
    weight_version: int
    counts: tuple[int, ...]
    answers: Mapping[int, frozenset[int]] = field(default_factory=dict)
    checkpoint: str = ""
    published: bool = False
    end: int = 0
    raced_at: str = ""
    raced: tuple[str, ...] = ()
    kept_out: tuple[str, ...] = ()
    died_at: str = ""
    overwrote: str = ""
    torn: str = ""
    unseen: tuple[str, ...] = ()
    legacy: bool = False


@dataclass
class LifeRecord:
    """One life.

    Args:
        number: from 1.
        origin: the save it was restored from; None: it began afresh.
        wanted: the save the script told it to restart from; None: afresh, or no save yet.
        load_buffer: whether the restart loaded the replay buffer.
        events: what happened in it.
        start_counts: of the weights when it had started; empty when it never did.
        start_version: of the weights when it had started.
        start_place: of the loader when it had started.
        start_buffer: ordinals that were in the buffer when it had started.
        ended: ``"crash"``, ``"stop"`` or ``"end"``.
        final: the standing when it ended.
        most_in_flight: prompts that were in flight at once, at the most.
        warned: whether it gave the warning that the collector declares for legacy checkpoints.
        left_behind: threads that survived the end of the life, and where they stand.
        data_set: that it trained on.
        doubtful: ordinals of which nobody can tell which was asked for: their row was out in two
            passes at once, with a part of it done before.
    """

    number: int
    origin: int | None = None
    wanted: int | None = None
    load_buffer: bool = True
    events: list[Event] = field(default_factory=list)
    start_counts: tuple[int, ...] = ()
    start_version: int = 0
    start_place: int = 0
    start_buffer: frozenset[int] = frozenset()
    ended: str = "end"
    final: Standing | None = None
    most_in_flight: int = 0
    warned: bool = False
    left_behind: tuple[str, ...] = ()
    data_set: int = 0
    doubtful: frozenset[int] = frozenset()

    @property
    def began(self) -> bool:
        """Whether it came to run: not when its restart raised or was refused."""
        return bool(self.start_counts)

    def ordinals(self, kind: str, since: int = 0, until: int | None = None) -> set[int]:
        """The ordinals that events of one kind in this life name."""
        return {
            event.ordinal
            for event in self.events[since:until]
            if event.kind == kind and event.ordinal is not None
        }


class End(NamedTuple):
    """What became of an answer that was asked for in the lineage.

    Args:
        kind: ``"trained"`` or ``"dropped"``.
        ordinal: of its prompt.
        age: steps that the weights had gone on since it was asked for; of a group that was
            dropped, since the first of its answers was.
        carried_over: whether it was asked for before the last restart, and not since.
        in_save: whether that was in a save, in which nothing else happened.
    """

    kind: str
    ordinal: int
    age: int
    carried_over: bool
    in_save: bool = False


@dataclass
class History:
    """Everything that happened in one audited run, in an order that does not vary.

    Args:
        rows: the row at each ordinal of the uninterrupted stream.
    """

    rows: tuple[int, ...] = ()
    lives: list[LifeRecord] = field(default_factory=list)
    saves: list[SaveRecord] = field(default_factory=list)

    def save(self, number: int) -> SaveRecord:
        """The save of this number, from 1."""
        return self.saves[number - 1]

    def branch(self, save: SaveRecord) -> History:
        """The same history up to now, with another last save, to be gone on with by itself."""
        saves = [replace(before) for before in self.saves[:-1]]
        return History(self.rows, list(self.lives), [*saves, save])

    def lineage(self) -> list[tuple[LifeRecord, int]]:
        """The lives that made the final weights, oldest first.

        Returns:
            Each life with the number of its events that belong to the lineage: those before
            the save that the next life was restored from; for the last life all of them.
        """
        if not self.lives:
            return []
        life = self.lives[-1]
        lineage = [(life, len(life.events))]
        while life.origin is not None:
            save = self.save(life.origin)
            life = self.lives[save.life - 1]
            # What failed or was dropped while the save went on may be in it, or not.
            lineage.append((life, max(save.position, save.end)))
        return lineage[::-1]

    def ends(self) -> Iterator[End]:
        """How old each answer of the lineage was when it was trained or dropped."""
        asked: dict[int, dict[int, tuple[int, int]]] = {}  # by generation: weights, life
        for life, until in self.lineage():
            saves = [
                range(save.position, save.end)
                for save in self.saves
                if save.life == life.number and not save.raced
            ]
            for at, (kind, ordinal, generation, number, _) in enumerate(life.events[:until]):
                if ordinal is None:
                    continue
                if kind == "dispatched":
                    asked.setdefault(ordinal, {})[generation or 0] = (number or 0, life.number)
                group = asked.get(ordinal, {})
                if kind == "trained" and generation in group:
                    # A step of this number goes into the weights of the step before.
                    version, since = group[generation]
                    yield End(kind, ordinal, (number or 0) - 1 - version, since < life.number)
                elif kind == "dropped" and group:
                    version = min(version for version, _ in group.values())
                    since = max(since for _, since in group.values())
                    age, in_save = (number or 0) - version, any(at in save for save in saves)
                    yield End(kind, ordinal, age, since < life.number, in_save)

    def lines(self) -> list[str]:
        """The history as text, an event a line: equal for equal runs."""
        return [
            f"life {life.number}: "
            + " ".join(str(part) for part in event if part not in (None, ""))
            for life in self.lives
            for event in life.events
        ]
