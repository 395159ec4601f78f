"""Which ordinal an event belongs to.

A prompt knows its row only. With several passes a row has several places in the stream, so each
event is given the place that the way of a prompt leaves for it: a rollout is buffered where one
was finished, trained where one was buffered. A place that is asked for is the one of the hand-out
or, where the prompt comes from a checkpoint, the one that fits best; where others do, it is noted.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from enum import IntEnum, auto

from pytest_resume_audit.history import SaveRecord

STAGES = ("handed_out", "dispatched", "finished", "buffered", "trained")
"""The way of a prompt, from the loader into the weights."""

_EARLIER = dict(zip(STAGES[1:], STAGES, strict=False))


class Numbering:
    """The stream of the run that is never interrupted: the row at each ordinal.

    Args:
        rows: the row at each ordinal; None while the uninterrupted run itself is played, which
            appends them as the loader hands them out.
        given_up: ordinals that fail for good in the uninterrupted run.
        retried: ordinals that fail there, and are tried again.
    """

    def __init__(
        self,
        rows: Sequence[int] | None = None,
        given_up: frozenset[int] = frozenset(),
        retried: frozenset[int] = frozenset(),
    ) -> None:
        self.open = rows is None
        self.given_up = given_up
        self.retried = retried
        self.rows: list[int] = []
        self.places: dict[int, list[int]] = {}
        self.saved_places: dict[str, set[int]] = {}
        for row in rows or ():
            self.append(row)

    def branch(self) -> Numbering:
        """The same stream, to be gone on with by itself."""
        other = Numbering(self.rows, self.given_up, self.retried)
        other.open = self.open
        other.saved_places = {name: set(places) for name, places in self.saved_places.items()}
        return other

    def append(self, row: int) -> int:
        """The ordinal of one more prompt at the end of the stream."""
        ordinal = len(self.rows)
        self.rows.append(row)
        self.places.setdefault(row, []).append(ordinal)
        return ordinal

    def matches(self, place: int, rows: Sequence[int]) -> bool:
        """Whether the stream has these rows, in this order, from ``place`` on."""
        return self.rows[place : place + len(rows)] == list(rows)

    def find(self, rows: Sequence[int], near: int) -> int | None:
        """The place nearest to ``near`` at which the stream has these rows in this order."""
        starts = [p for p in self.places.get(rows[0], ()) if self.matches(p, rows)]
        return min(starts, key=lambda p: (abs(p - near), p), default=None)


@dataclass
class _Way:
    """How far an ordinal has come in a life.

    Args:
        reached: its generations at each stage; a hand-out is one of generation 0.
        lost: generations that failed or were evicted, and were not asked for again.
        tries: how often each was asked for.
    """

    reached: defaultdict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    lost: set[int] = field(default_factory=set)
    tries: Counter[int] = field(default_factory=Counter)

    def at(self, stage: str) -> Set[int]:
        """The generations that have reached a stage."""
        return self.reached.get(stage, frozenset())

    def has_passed(self, stage: str, generation: int) -> bool:
        """Whether a generation has reached a stage, or a later one."""
        return any(generation in self.at(one) for one in STAGES[STAGES.index(stage) :])

    @property
    def behind(self) -> frozenset[int]:
        """Generations that were asked for less often than others of the group."""
        most = max(self.tries.values(), default=0)
        return frozenset(g for g in self.tries if self.tries[g] < most)


class _Fit(IntEnum):
    """How well a place fits a generation of its row that is asked for: the first fits best."""

    GOES_ON = auto()
    """A generation of it has ended, and this was not asked for: one comes after the other."""
    RETRIED = auto()
    """It failed, and what fails is tried again."""
    CAME = auto()
    """It was handed out, and this generation not asked for."""
    LOST = auto()
    """It failed or was evicted, and may be tried again."""
    SETTLED = auto()
    """It came round, and the collector may not know that it is settled."""
    OWED = auto()
    """It was out at the save: it may be sent off from the checkpoint, without coming round."""
    UNNEEDED = auto()
    """It was out at the save, but seems to have been given up, or this answer to have been kept."""
    BEHIND = auto()
    """Another generation of it was asked for more often: it is asked for again as a whole."""
    AGAIN = auto()
    """It was asked for already."""
    AHEAD = auto()
    """Nothing is known of it."""
    OVER = auto()
    """It is settled."""


_ASKED_FOR = (_Fit.RETRIED, _Fit.LOST, _Fit.BEHIND, _Fit.AGAIN, _Fit.OVER)
"""What has been asked for, or needs not be."""

_IN_DOUBT = (_Fit.RETRIED, _Fit.CAME, _Fit.LOST, _Fit.OWED, _Fit.UNNEEDED)
"""Where the collector may mean the one place as well as the other, as far as it has shown."""


class LifeNumbering:
    """The numbering of one life's events.

    Args:
        numbering: the stream.
        settled: ordinals that are settled in the weights this life starts from.

    Attributes:
        place: of the loader, as far as it is known.
        restored: ordinals that were buffered at the save this life was restored from.
        owed: all that was out at that save, the buffered ones too.
        kept: generations that were there then, of what was not buffered as a whole.
        failed_before: what had a failure by then, and is not tried again.
        doubtful: ordinals of one row of which some were asked for, and nobody can tell which.
    """

    def __init__(self, numbering: Numbering, settled: Iterable[int] = ()) -> None:
        self.numbering = numbering
        self.place = 0
        self.restored: frozenset[int] = frozenset()
        self.owed: frozenset[int] = frozenset()
        self.kept: Mapping[int, frozenset[int]] = {}
        self.failed_before: frozenset[int] = frozenset()
        self.doubtful: set[int] = set()
        self._settled = set(settled)
        self._ways: defaultdict[int, _Way] = defaultdict(_Way)
        # By row.
        self._fresh: dict[int, list[int]] = {}  # handed out and not trained since, in their order
        self._asked_last: dict[int, int] = {}
        self._ended_last: dict[int, int] = {}
        self._keeps_prompts = False

    def go_on_from(self, save: SaveRecord, failed: Set[int], *, load_buffer: bool) -> None:
        """Take up what was so at the save that the life is restored from.

        Args:
            save: which one.
            failed: ordinals of which a generation had failed by then.
            load_buffer: whether what was in the buffer comes back.
        """
        standing = save.standing
        self.place, self.owed = standing.place, standing.unsettled
        self.restored = standing.buffered if load_buffer else frozenset()
        self.kept = {o: some for o, some in save.answers.items() if o not in standing.buffered}
        self.failed_before = self.numbering.given_up & failed
        self._settled |= standing.done

    # -- what happens ----------------------------------------------------------------------------

    def hand_out(self, rows: Sequence[int], place: int | None) -> list[int]:
        """The ordinals of a batch.

        Args:
            rows: its rows, in order.
            place: the loader's place before it, None where only the rows are known.
        """
        if not rows:
            return []
        stream = self.numbering
        if stream.open:
            ordinals = [stream.append(row) for row in rows]
        else:
            start = self.place if place is None else place
            if not stream.matches(start, rows):
                found = None if place is not None else stream.find(rows, near=start)
                start = -1 if found is None else found
            ordinals = (
                list(range(start, start + len(rows)))
                if start >= 0
                else [self.of("handed_out", row, 0) for row in rows]
            )
        for row, ordinal in zip(rows, ordinals, strict=True):
            self.reach("handed_out", ordinal, 0)
            self._fresh.setdefault(row, []).append(ordinal)
        self.place = ordinals[-1] + 1 if place is None else place + len(rows)
        return ordinals

    def of(self, stage: str, row: int, generation: int) -> int:
        """The ordinal at which this row reaches a stage now, which it then has reached."""
        ordinal = self.look_up(stage, row, generation)
        self.reach(stage, ordinal, generation)
        return ordinal

    def ask_for(self, row: int, generation: int, handed_out: int | None) -> int:
        """The ordinal of a generation that is asked for now.

        Args:
            row: of its prompt.
            generation: which one.
            handed_out: the ordinal at which its prompt was handed out in this life, if it was.
        """
        if (
            handed_out is None
            or self.numbering.rows[handed_out] != row
            or self._is_of_another(handed_out, generation)
        ):
            return self.of("dispatched", row, generation)
        self.reach("dispatched", handed_out, generation)
        return handed_out

    def reach(self, stage: str, ordinal: int, generation: int) -> None:
        """Note that a generation whose ordinal is known has reached a stage."""
        way, row = self._ways[ordinal], self.numbering.rows[ordinal]
        way.reached[stage].add(generation)
        if stage == "dispatched":
            # Asked for once more, it has the way before it again.
            for passed in (way.lost, way.reached["finished"], way.reached["buffered"]):
                passed.discard(generation)
            way.tries[generation] += 1
            self._asked_last[row] = ordinal
        elif stage == "finished":
            self._ended_last[row] = ordinal
        elif stage == "trained" and ordinal in self._fresh.get(row, ()):
            self._fresh[row].remove(ordinal)

    def lose(self, ordinal: int, generation: int) -> None:
        """Note that a generation failed or was evicted: it may be asked for once more."""
        self._ways[ordinal].lost.add(generation)

    def drop(self, row: int) -> int:
        """The ordinal at which this row is given up now: it is settled."""
        ordinal = self._which_is_dropped(row)
        self.settle(ordinal)
        return ordinal

    def settle(self, ordinal: int) -> None:
        """Note that a prompt failed or was dropped: what comes next of its row is another place."""
        self._settled.add(ordinal)

    # -- what is known ---------------------------------------------------------------------------

    def tries(self, ordinal: int, generation: int) -> int:
        """How often a generation was asked for."""
        return self._ways[ordinal].tries[generation]

    def came(self, row: int) -> bool:
        """Whether this row has been handed out in this life, and not trained since."""
        ways = [self._ways[place] for place in self.numbering.places.get(row, ())]
        return any(0 in way.at("handed_out") and 0 not in way.at("trained") for way in ways)

    def answers(self) -> dict[int, frozenset[int]]:
        """The generations of each ordinal that are there now: finished, and not trained.

        Those from before the restart too, where none of them was asked for again.
        """
        there: dict[int, frozenset[int]] = {}
        for ordinal in sorted({*self._ways, *self.kept}):
            way = self._ways[ordinal]
            kept = self.kept.get(ordinal, frozenset())
            if kept & way.tries.keys():
                kept = frozenset()
            came = way.at("finished") | way.at("buffered") | kept
            if left := came - way.at("trained") - way.lost:
                there[ordinal] = frozenset(left)
        return there

    def look_up(self, stage: str, row: int, generation: int) -> int:
        """The ordinal at which this row would reach a stage next."""
        places = self.numbering.places.get(row)
        if places is None:
            return self.numbering.append(row)
        if len(places) == 1:
            return places[0]
        if stage == "dispatched":
            return self._which_is_asked_for(places, generation)
        if stage == "trained" and not self._asked_last and self._fresh.get(row):
            # Trained straight from the loader: which place it is, the hand-out has said.
            return self._fresh[row][0]
        return self._which_goes_on(stage, places, generation)

    # -- which place it is -----------------------------------------------------------------------

    def _which_goes_on(self, stage: str, places: Sequence[int], generation: int) -> int:
        """The place whose answer reaches a stage behind the first: where it left the one before."""
        earlier = _EARLIER.get(stage, stage)
        ahead = [p for p in places if not self._ways[p].has_passed(stage, generation)]
        waiting = [p for p in ahead if p not in self._settled]
        # At last the settled: they go the way once more where a collector does not know them.
        for place in (*waiting, *ahead):
            if generation in self._ways[place].at(earlier) and not self._is_lost(place, generation):
                return place
        if stage == "buffered":
            waiting.sort(key=lambda place: (*self._fit_of_saved(place, generation), place))
        # Restored from a checkpoint, or, with nothing left to do for this row, surplus.
        return waiting[0] if waiting else places[-1]

    def _fit_of_saved(self, place: int, generation: int) -> tuple[int, ...]:
        """How well a place fits an answer that comes from the checkpoint: the lowest fits best."""
        way, there = self._ways[place], self.kept.get(place, frozenset())
        # What is in flight has yet to end: a saved answer is of a place that has it already.
        in_flight = generation in way.at("dispatched")
        # A group comes as a whole.
        begun = bool(way.at("buffered"))
        # Whole groups come before halves: a save may begin by putting those in the buffer.
        of_group = len(there) if generation in there else 0
        unlikely = place in self.failed_before
        return place not in self.restored, unlikely, in_flight, not begun, -of_group

    def _is_lost(self, place: int, generation: int) -> bool:
        return generation in self._ways[place].lost and place not in self._settled

    def _which_is_asked_for(self, places: Sequence[int], generation: int) -> int:
        fits = {place: self._fit(place, generation) for place in places}
        best = min(fits.values())
        fitting = [place for place, fit in fits.items() if fit is best]
        if best is _Fit.GOES_ON:
            self._doubt(fitting)
            last = self._ended_last[self.numbering.rows[places[0]]]
            return last if last in fitting else fitting[0]
        if best in _IN_DOUBT:
            self._doubt([place for place, fit in fits.items() if fit in _IN_DOUBT])
        return fitting[-1] if best in (_Fit.BEHIND, _Fit.AGAIN, _Fit.OVER) else fitting[0]

    def _doubt(self, could_be: Sequence[int]) -> None:
        """Note that the collector may mean each of these places."""
        # Of two that have the whole way before them the one is as good as the other.
        if len(could_be) > 1 and any(self.kept.get(p) or self._ways[p].tries for p in could_be):
            self.doubtful.update(could_be)

    def _fit(self, place: int, generation: int) -> _Fit:
        way, settled = self._ways[place], place in self._settled
        if not way.has_passed("dispatched", generation):
            came = bool(way.at("handed_out"))
            if settled:
                return _Fit.SETTLED if came else _Fit.OVER
            if self._seems_kept(place, generation):
                return _Fit.UNNEEDED
            if way.at("finished"):
                return _Fit.GOES_ON
            if came:
                return _Fit.CAME
            if place in self.failed_before:
                return _Fit.UNNEEDED
            return _Fit.OWED if place in self.owed else _Fit.AHEAD
        if self._is_lost(place, generation) and place not in self.numbering.given_up:
            return _Fit.RETRIED if place in self.numbering.retried else _Fit.LOST
        if generation in way.at("dispatched"):
            return _Fit.BEHIND if generation in way.behind else _Fit.AGAIN
        return _Fit.OVER

    def _seems_kept(self, place: int, generation: int) -> bool:
        """Whether a group is gone on with from the checkpoint, by the answers that it lacks."""
        kept, asked = self.kept.get(place, frozenset()), self._ways[place].tries.keys()
        if generation not in kept or not asked or asked & kept:
            return False
        # A group is asked for from its first generation on, and one group after the other.
        return generation < min(asked) or self._asked_last[self.numbering.rows[place]] != place

    def _is_of_another(self, handed_out: int, generation: int) -> bool:
        """Whether a collector that keeps one prompt for all of its row means another place."""
        fit = self._fit(handed_out, generation)
        places = self.numbering.places[self.numbering.rows[handed_out]]
        others = [self._fit(place, generation) for place in places if place != handed_out]
        waits = any(other in (_Fit.GOES_ON, *_IN_DOUBT) for other in others)
        if waits and fit in (_Fit.AGAIN, _Fit.OVER):
            self._keeps_prompts = True
        return waits and self._keeps_prompts and fit in _ASKED_FOR

    def _which_is_dropped(self, row: int) -> int:
        """Of several places the one that came furthest; and of those the one that was lost."""
        places = self.numbering.places.get(row)
        if places is None:
            return self.numbering.append(row)
        ways = {place: self._ways[place] for place in places if place not in self._settled}
        waiting = [place for place, way in ways.items() if not way.at("trained")]
        for stage in STAGES[-2::-1]:
            came = [place for place in waiting if ways[place].at(stage)]
            if came:
                return next((place for place in came if ways[place].lost), came[0])
        return waiting[0] if waiting else places[-1]
