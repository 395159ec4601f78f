"""Which ordinal an event belongs to.

A prompt knows its row only. With several passes a row has several places in the stream, so each
event is given the place that the way of a prompt leaves for it: a rollout is buffered where one
was finished, trained where one was buffered.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
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


class _Fit(IntEnum):
    """How well a place fits a generation of its row that is asked for: the first fits best."""

    GOES_ON = auto()
    """The generation before it has ended: one is asked for after the other."""
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
        kept: generations that were finished then, of groups that were not all in the buffer.
        failed_before: of what was out then, what had a failure and is not tried again.
        tries: how often each generation of an ordinal was asked for.
        doubtful: ordinals of one row of which some were asked for, and nobody can tell which.
    """

    def __init__(self, numbering: Numbering, settled: Iterable[int] = ()) -> None:
        self.numbering = numbering
        self.place = 0
        self.restored: frozenset[int] = frozenset()
        self.owed: frozenset[int] = frozenset()
        self.kept: Mapping[int, frozenset[int]] = {}
        self.failed_before: frozenset[int] = frozenset()
        self.tries: Counter[tuple[int, int]] = Counter()
        self.doubtful: set[int] = set()
        self._settled = set(settled)
        self._reached: dict[str, set[tuple[int, int]]] = {stage: set() for stage in STAGES}
        self._lost: set[tuple[int, int]] = set()
        self._asked_last: dict[int, int] = {}  # by row
        # By row: places that were handed out and not trained since, in their order.
        self._fresh: dict[int, list[int]] = {}

    def go_on_from(self, save: SaveRecord, failed: Set[int], *, load_buffer: bool) -> None:
        """Take up what was so at the save that the life is restored from.

        Args:
            save: which one.
            failed: ordinals of which a generation had failed by then.
            load_buffer: whether what was in the buffer comes back.
        """
        standing = save.standing
        self.place, self.owed, self.kept = standing.place, standing.unsettled, save.answers
        self.restored = standing.buffered if load_buffer else frozenset()
        self.failed_before = self.owed & self.numbering.given_up & failed
        self._settled |= standing.done

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
        self._reached["handed_out"].update((ordinal, 0) for ordinal in ordinals)
        for row, ordinal in zip(rows, ordinals, strict=True):
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
        if handed_out is None or self.numbering.rows[handed_out] != row:
            return self.of("dispatched", row, generation)
        # A collector may keep one prompt for all of its row: this one has been asked for then.
        if self._fit(handed_out, generation) in (_Fit.AGAIN, _Fit.OVER):
            return self.of("dispatched", row, generation)
        self.reach("dispatched", handed_out, generation)
        return handed_out

    def reach(self, stage: str, ordinal: int, generation: int) -> None:
        """Note that a generation whose ordinal is known has reached a stage."""
        if stage == "dispatched":
            # Asked for once more, it has the way before it again.
            for passed in (self._lost, self._reached["finished"], self._reached["buffered"]):
                passed.discard((ordinal, generation))
            self.tries[ordinal, generation] += 1
            self._asked_last[self.numbering.rows[ordinal]] = ordinal
        self._reached[stage].add((ordinal, generation))
        if stage == "trained":
            fresh = self._fresh.get(self.numbering.rows[ordinal], [])
            if ordinal in fresh:
                fresh.remove(ordinal)

    def lose(self, ordinal: int, generation: int) -> None:
        """Note that a generation failed or was evicted: it may be asked for once more."""
        self._lost.add((ordinal, generation))

    def look_up(self, stage: str, row: int, generation: int) -> int:
        """The ordinal at which this row would reach a stage next."""
        places = self.numbering.places.get(row)
        if places is None:
            return self.numbering.append(row)
        if len(places) == 1:
            return places[0]
        if stage == "dispatched":
            return self._which_is_asked_for(places, generation)
        if stage == "trained" and not self._reached["dispatched"] and self._fresh.get(row):
            # Trained straight from the loader: which place it is, the hand-out has said.
            return self._fresh[row][0]
        return self._which_goes_on(stage, places, generation)

    def _which_goes_on(self, stage: str, places: Sequence[int], generation: int) -> int:
        """The place whose answer reaches a stage behind the first: where it left the one before."""
        earlier = self._reached[_EARLIER.get(stage, stage)]
        ahead = [p for p in places if not self._has_passed(stage, p, generation)]
        waiting = [p for p in ahead if p not in self._settled]
        # At last the settled: they go the way once more where a collector does not know them.
        for place in (*waiting, *ahead):
            if (place, generation) in earlier and not self._is_lost(place, generation):
                return place
        if stage == "buffered":
            waiting.sort(key=lambda place: (*self._fit_of_saved(place, generation), place))
        # Restored from a checkpoint, or, with nothing left to do for this row, surplus.
        return waiting[0] if waiting else places[-1]

    def _fit_of_saved(self, place: int, generation: int) -> tuple[bool, int, bool]:
        """How well a place fits an answer that comes from the checkpoint: the lowest fits best."""
        there = self.kept.get(place, frozenset())
        # Whole groups come before halves: a save may begin by putting those in the buffer.
        of_group = len(there) if generation in there else 0
        # What is in flight has yet to end: a saved answer is of a place that has it already.
        in_flight = (place, generation) in self._reached["dispatched"]
        return place not in self.restored, -of_group, in_flight

    def _has_passed(self, stage: str, place: int, generation: int) -> bool:
        """Whether an answer has reached a stage, or a later one, in this life."""
        later = STAGES[STAGES.index(stage) :]
        return any((place, generation) in self._reached[one] for one in later)

    def _is_lost(self, place: int, generation: int) -> bool:
        return (place, generation) in self._lost and place not in self._settled

    def _which_is_asked_for(self, places: Sequence[int], generation: int) -> int:
        fits = {place: self._fit(place, generation) for place in places}
        best = min(fits.values())
        could_be = [place for place, fit in fits.items() if fit in _IN_DOUBT]
        # Of two that have the whole way before them the one is as good as the other.
        begun = [p for p in could_be if p in self.kept or self._is_lost(p, generation)]
        if best in _IN_DOUBT and len(could_be) > 1 and begun:
            self.doubtful.update(could_be)
        fitting = [place for place, fit in fits.items() if fit is best]
        return fitting[-1] if best in (_Fit.BEHIND, _Fit.AGAIN, _Fit.OVER) else fitting[0]

    def _fit(self, place: int, generation: int) -> _Fit:
        settled = place in self._settled
        if not self._has_passed("dispatched", place, generation):
            before = place, generation - 1
            came = (place, 0) in self._reached["handed_out"]
            if settled:
                return _Fit.SETTLED if came else _Fit.OVER
            if before in self._reached["finished"] and not self.tries[place, generation]:
                return _Fit.GOES_ON
            if self._seems_kept(place, generation):
                return _Fit.UNNEEDED
            if came:
                return _Fit.CAME
            if place in self.failed_before:
                return _Fit.UNNEEDED
            return _Fit.OWED if place in self.owed else _Fit.AHEAD
        if self._is_lost(place, generation) and place not in self.numbering.given_up:
            return _Fit.RETRIED if place in self.numbering.retried else _Fit.LOST
        if (place, generation) in self._reached["dispatched"]:
            return _Fit.BEHIND if self._is_behind(place, generation) else _Fit.AGAIN
        return _Fit.OVER

    def _seems_kept(self, place: int, generation: int) -> bool:
        """Whether a group is gone on with from the checkpoint, by the answers that it lacks."""
        kept = self.kept.get(place, frozenset())
        if generation not in kept:
            return False
        asked = {g for (of, g), many in self.tries.items() if of == place and many}
        if not asked or asked & kept:
            return False
        # A group is asked for from its first generation on, and one group after the other.
        return generation < min(asked) or self._asked_last[self.numbering.rows[place]] != place

    def _is_behind(self, ordinal: int, generation: int) -> bool:
        """Whether another generation of the group has been asked for more often."""
        tries = [many for (of, _), many in self.tries.items() if of == ordinal]
        return self.tries[ordinal, generation] < max(tries, default=0)

    def answers(self) -> dict[int, frozenset[int]]:
        """The generations of each ordinal that are finished now, and not in the buffer.

        Those from before the restart too: that they were not asked for again is all that is known.
        """
        taken_over = {(o, g) for o, kept in self.kept.items() for g in kept if not self.tries[o, g]}
        there: dict[int, set[int]] = {}
        for ordinal, generation in self._reached["finished"] | taken_over:
            if not self._has_passed("buffered", ordinal, generation):
                there.setdefault(ordinal, set()).add(generation)
        return {ordinal: frozenset(generations) for ordinal, generations in there.items()}

    def came(self, row: int) -> bool:
        """Whether this row has been handed out in this life, and not trained since."""
        places = self.numbering.places.get(row, ())
        there, done = self._reached["handed_out"], self._reached["trained"]
        return any((p, 0) in there and (p, 0) not in done for p in places)

    def drop(self, row: int) -> int:
        """The ordinal at which this row is given up now: it is settled."""
        ordinal = self._which_is_dropped(row)
        self.settle(ordinal)
        return ordinal

    def _which_is_dropped(self, row: int) -> int:
        """Of several places the one that came furthest; and of those the one that was lost."""
        places = self.numbering.places.get(row)
        if places is None:
            return self.numbering.append(row)
        done = {ordinal for ordinal, _ in self._reached["trained"]} | self._settled
        waiting = [place for place in places if place not in done]
        lost = {ordinal for ordinal, _ in self._lost}
        for stage in STAGES[-2::-1]:
            came = {ordinal for ordinal, _ in self._reached[stage]}.intersection(waiting)
            if came:
                return min(came & lost or came)
        return waiting[0] if waiting else places[-1]

    def settle(self, ordinal: int) -> None:
        """Note that a prompt failed or was dropped: what comes next of its row is another place."""
        self._settled.add(ordinal)
