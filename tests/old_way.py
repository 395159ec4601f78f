"""The old way on paper: what a run that saves the loader's live place loses in a script.

It knows nothing of the audit: it reads the text of a script, and moves prompts by the rules that
the README tells. It is what the generated timelines are measured by, as nobody works out three
thousand of them by hand.
"""

from __future__ import annotations

import copy
import re
from collections import Counter
from dataclasses import dataclass, field

from pytest_resume_audit import Setup

UNLIMITED = 10**9


@dataclass
class Saved:
    """What a checkpoint of the old way holds; failed and dropped prompts are beyond recall."""

    place: int = 0
    steps: int = 0
    trained: Counter[int] = field(default_factory=Counter)
    buffered: dict[int, int] = field(default_factory=dict)
    partly: dict[int, int] = field(default_factory=dict)
    given_up: set[int] = field(default_factory=set)
    of_other_data: set[int] = field(default_factory=set)


class OldWay:
    """One run of a script.

    Attributes:
        skipped: ordinals that it never trains.
    """

    def __init__(self, setup: Setup, script: str) -> None:
        self.setup = setup
        self.saves: list[Saved] = []
        self.forgotten: Counter[int] = Counter()
        self._begin(Saved())
        for step in split(script):
            self._do(step)
        self._drain()
        self.skipped = self._skipped()

    # -- lives ---------------------------------------------------------------------------------

    def _begin(self, saved: Saved) -> None:
        self.now = copy.deepcopy(saved)
        self.waiting: list[int] = []
        # Of each prompt in flight: the generations that are out, the weights it began with.
        self.flying: dict[int, tuple[set[int], int]] = {}
        self.failing: set[int] = set()
        self.ended = False

    def _do(self, step: str) -> None:
        word, *rest = step.split()
        if word == "hand_out":
            self._hand_out(int(rest[0]))
        elif word in ("finish", "fail"):
            self._finish(rest, failed=word == "fail")
        elif word == "train":
            self._train()
        elif word == "save":
            self._save(step)
        elif word == "restart":
            self._restart(rest)
        else:
            # A save that dies has published nothing.
            assert word in ("crash", "stop"), step

    def _save(self, step: str) -> None:
        race = re.fullmatch(r"save racing \((.*)\) at (\d+)", step)
        before = copy.deepcopy(self.now)
        for inner in split(race[1]) if race else ():
            self._do(inner)
        # It reads weights, buffer and loader, in this order, and then writes files.
        at = int(race[2]) if race else 4
        saved = copy.deepcopy(self.now)
        if at > 1:
            saved.trained, saved.steps, saved.given_up = before.trained, before.steps, set()
            saved.given_up |= self.now.given_up
        if at > 2:
            saved.buffered = before.buffered
        if at > 3:
            saved.place = before.place
        self.saves.append(saved)

    def _restart(self, words: list[str]) -> None:
        text = " ".join(words)
        source = re.search(r"from (\d+)", text)
        saved = self.saves[int(source[1]) if source else -1] if self.saves else Saved()
        self._begin(Saved() if "afresh" in text else saved)
        if "no_buffer" in text:
            self.now.buffered = {}
        for name, value in re.findall(
            r"(batch_size|group_size|prompts_per_step|prompts|capacity|data_set) (\d+)", text
        ):
            self.setup = self.setup.changed([(name, int(value))])
            if name == "group_size":
                # Never complete again; too old they can be all the same.
                self.now.partly, self.now.buffered = self.now.buffered, {}
            if name == "capacity":
                # The oldest have to go.
                kept = list(self.now.buffered.items())[-int(value) :]
                self.now.buffered = dict(kept)
            if name == "data_set":
                # What is buffered answers the prompts of the other one.
                self.forgotten = self.now.trained.copy()
                self.now.of_other_data = set(self.now.buffered)

    # -- the way of a prompt -------------------------------------------------------------------

    def _hand_out(self, limit: int) -> None:
        self._dispatch()
        while not self.waiting and self.now.place < min(limit, self.setup.total):
            in_pass = self.now.place % self.setup.prompts
            batch = min(self.setup.batch_size, self.setup.prompts - in_pass)
            self.waiting += range(self.now.place, self.now.place + batch)
            self.now.place += batch
            self._dispatch()
        self.ended = not self.waiting and limit > self.setup.total

    def _dispatch(self) -> None:
        limit = self.setup.max_in_flight or UNLIMITED
        capacity = self.setup.capacity or UNLIMITED
        while (
            self.waiting
            and len(self.flying) < limit
            and len(self.flying) + len(self.now.buffered) < capacity
        ):
            out = set(range(self.setup.group_size))
            self.flying[self.waiting.pop(0)] = (out, self.now.steps)

    def _finish(self, words: list[str], *, failed: bool, limit: int = 0) -> None:
        if words[0] == "newest":
            words = [str(ordinal) for ordinal in sorted(self.flying)[-int(words[1]) :]]
        for word in words:
            ordinal, _, generation = word.partition(":")
            self._end(int(ordinal), int(generation) if generation else None, failed)
            if limit:
                self._hand_out(limit)

    def _end(self, ordinal: int, generation: int | None, failed: bool) -> None:
        if ordinal not in self.flying:
            return
        out, version = self.flying[ordinal]
        if failed:
            # The prompt has failed with its first generation that does.
            self.failing.add(ordinal)
            self.now.given_up.add(ordinal)
        if generation is None:
            out.clear()
        else:
            out.discard(generation)
        if out:
            return
        del self.flying[ordinal]
        if ordinal not in self.failing:
            self.now.buffered[ordinal] = version
        self._dispatch()

    def _train(self) -> bool:
        now, age = self.now, self.setup.max_age
        if age is not None:
            kept = {**now.partly, **now.buffered}
            stale = {o for o, version in kept.items() if now.steps - version > age}
            now.given_up |= stale
            now.buffered = {o: v for o, v in now.buffered.items() if o not in stale}
            now.partly = {o: v for o, v in now.partly.items() if o not in stale}
        due = sorted(now.buffered)[: self.setup.prompts_per_step]
        at_the_end = self.ended and not self.flying
        if not due or (len(due) < self.setup.prompts_per_step and not at_the_end):
            return False
        for ordinal in due:
            del now.buffered[ordinal]
            now.trained[ordinal] += ordinal not in now.of_other_data
        now.steps += 1
        self._dispatch()
        return True

    def _drain(self) -> None:
        moved = True
        while moved:
            before = (self.now.place, len(self.flying), len(self.now.buffered), self.now.steps)
            self._hand_out(UNLIMITED)
            while self.flying:
                words = [str(ordinal) for ordinal in sorted(self.flying)]
                self._finish(words, failed=False, limit=UNLIMITED)
            while self._train():
                pass
            after = (self.now.place, len(self.flying), len(self.now.buffered), self.now.steps)
            moved = before != after

    # -- the weights ---------------------------------------------------------------------------

    def _skipped(self) -> list[int]:
        """By row: the k-th training belongs to its k-th place that was not given up."""
        rows = [row for epoch in range(self.setup.passes) for row in self.setup.order(epoch)]
        counts = Counter[int]()
        for ordinal, times in (self.now.trained - self.forgotten).items():
            counts[rows[ordinal]] += times
        places: dict[int, list[int]] = {}
        for ordinal, row in enumerate(rows):
            if ordinal not in self.now.given_up:
                places.setdefault(row, []).append(ordinal)
        return sorted(o for row, found in places.items() for o in found[counts[row] :])


def split(script: str) -> list[str]:
    """The steps of a script; what races a save stays with it."""
    return [step.strip() for step in re.findall(r"[^;(]+(?:\([^)]*\)[^;]*)?", script)]
