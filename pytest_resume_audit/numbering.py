"""Which ordinal an event belongs to.

A prompt knows its row only. With several passes a row has several places in the stream, so each
event is given the place that the way of a prompt leaves for it: a rollout is buffered where one
was finished, trained where one was buffered.
"""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Iterable, Sequence

STAGES = ("handed_out", "dispatched", "finished", "buffered", "trained")
"""The way of a prompt, from the loader into the weights."""

_EARLIER = dict(zip(STAGES[1:], STAGES, strict=False))


class Numbering:
    """The stream of the run that is never interrupted: the row at each ordinal.

    Args:
        rows: the row at each ordinal; None while the uninterrupted run itself is played, which
            appends them as the loader hands them out.
    """

    def __init__(self, rows: Sequence[int] | None = None) -> None:
        self.open = rows is None
        self.rows: list[int] = []
        self.places: dict[int, list[int]] = {}
        self.saved_places: dict[str, set[int]] = {}
        for row in rows or ():
            self.append(row)

    def branch(self) -> Numbering:
        """The same stream, to be gone on with by itself."""
        other = Numbering(self.rows)
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


class LifeNumbering:
    """The numbering of one life's events.

    Args:
        numbering: the stream.
        settled: ordinals that are settled in the weights this life starts from.

    Attributes:
        place: of the loader, as far as it is known.
        restored: ordinals that were buffered at the save this life was restored from.
        owed: all that was out at that save, the buffered ones too.
        tries: how often each generation of an ordinal was asked for.
    """

    def __init__(self, numbering: Numbering, settled: Iterable[int] = ()) -> None:
        self.numbering = numbering
        self.place = 0
        self.restored: frozenset[int] = frozenset()
        self.owed: frozenset[int] = frozenset()
        self._settled = set(settled)
        self._reached: dict[str, set[tuple[int, int]]] = {stage: set() for stage in STAGES}
        self._lost: set[tuple[int, int]] = set()
        self.tries: Counter[tuple[int, int]] = Counter()
        # By row: places that were handed out and not trained since, in their order.
        self._fresh: dict[int, list[int]] = {}

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

    def reach(self, stage: str, ordinal: int, generation: int) -> None:
        """Note that a generation whose ordinal is known has reached a stage."""
        if stage == "dispatched":
            # Asked for once more, it has the way before it again.
            for passed in (self._lost, self._reached["finished"], self._reached["buffered"]):
                passed.discard((ordinal, generation))
            self.tries[ordinal, generation] += 1
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
        if stage == "trained" and not self._reached["dispatched"] and self._fresh.get(row):
            # Trained straight from the loader: which place it is, the hand-out has said.
            return self._fresh[row][0]
        here = self._reached[stage]
        later = STAGES[STAGES.index(stage) :]
        earlier = self._reached[_EARLIER.get(stage, stage)]
        came = 0 if stage == "dispatched" else generation
        passed = {p for p in places if any((p, generation) in self._reached[s] for s in later)}
        ahead = [p for p in places if p not in passed]
        waiting = [p for p in ahead if p not in self._settled]
        lost = [p for p in places if (p, generation) in self._lost and p not in self._settled]
        if stage == "dispatched":
            # One generation after the other: the group whose last one has ended is gone on with.
            for place in waiting:
                last = place, generation - 1
                if last in self._reached["finished"] and not self.tries[place, generation]:
                    return place
        # At last the settled: they go the way once more where a collector does not know them.
        for candidates in (waiting, ahead):
            for place in candidates:
                if (place, came) in earlier and place not in lost:
                    return place
            if lost and stage == "dispatched":
                return lost[0]
        if stage == "dispatched":
            # Sent off from the checkpoint itself, without coming round again.
            for place in waiting:
                if place in self.owed:
                    return place
            tried = [p for p in places if (p, generation) in here]
            if tried:
                # What is asked for again as a whole is so with the generations that had ended.
                begun = [p for p in tried if self._is_behind(p, generation)]
                return (begun or tried)[-1]
        if stage == "buffered":
            # What is in flight has yet to end: a saved answer is of a place that has it already.
            asked = self._reached["dispatched"]
            waiting.sort(key=lambda p: (p not in self.restored, (p, generation) in asked, p))
        # Restored from a checkpoint, or, with nothing left to do for this row, surplus.
        return waiting[0] if waiting else places[-1]

    def _is_behind(self, ordinal: int, generation: int) -> bool:
        """Whether another generation of the group has been asked for more often."""
        tries = [many for (of, _), many in self.tries.items() if of == ordinal]
        return self.tries[ordinal, generation] < max(tries, default=0)

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

    def pass_of(self, ordinal: int) -> int:
        """The pass that an ordinal belongs to, from 0: how often its row came before."""
        row = self.numbering.rows[ordinal]
        return bisect.bisect_left(self.numbering.places[row], ordinal)
