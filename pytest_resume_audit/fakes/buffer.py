"""The replay buffer: keeps finished groups until the trainer takes them."""

from __future__ import annotations

import heapq
import itertools
from operator import index
from typing import Any

from pytest_resume_audit.control import Control
from pytest_resume_audit.fakes.prompts import Rollout, prompt_of


class ReplayBuffer:
    """Keeps rollouts by group, until a step takes the group or it is evicted.

    The lowest group is the one whose prompt comes first in the stream.

    Args:
        control: the life it is in; its setup says how many groups fit.

    Example:
        >>> from pytest_resume_audit import Prompt, Rig, Rollout, Setup
        >>> buffer = Rig(Setup(prompts=4)).buffer
        >>> for row in (2, 0, 1):
        ...     _ = buffer.add(Rollout(Prompt(row), generation=0, weight_version=0))
        >>> [rollout.prompt.row for rollout in buffer.sample(2)], len(buffer)
        ([0, 1], 1)
    """

    def __init__(self, control: Control) -> None:
        self._control = control
        self._by_arrival = control.setup.take == "arrival"
        self._groups: dict[int, list[Rollout]] = {}
        # Complete groups, the one to be taken next first; those evicted since are passed over.
        self._complete: set[int] = set()
        self._next: list[tuple[int, int]] = []
        self._arrivals = itertools.count()
        self._arrived: dict[int, int] = {}

    def __len__(self) -> int:
        """Number of complete groups."""
        self._control.check()
        with self._control.lock:
            return len(self._complete)

    def add(self, rollout: Rollout) -> list[Rollout]:
        """Keep a finished rollout.

        Returns:
            What was evicted to make room, oldest group first: for the collector to drop or to
            ask for again. Mostly nothing.
        """
        self._control.check()
        with self._control.lock:
            self._keep(rollout)
            capacity = self._control.setup.capacity
            if capacity is None:
                return []
            return self._evict(list(self._groups)[: max(0, len(self._groups) - capacity)], "full")

    def evict(self, weight_version: int) -> list[Rollout]:
        """Throw out the groups that are too old for the weights of this version.

        Returns:
            The rollouts thrown out: for the collector to drop or to ask for again.
        """
        self._control.check()
        with self._control.lock:
            age = self._control.setup.max_age
            if age is None:
                return []
            too_old = [
                ordinal
                for ordinal, group in self._groups.items()
                if weight_version - min(r.weight_version for r in group) > age
            ]
            return self._evict(too_old, "too old")

    def sample(self, groups: int) -> list[Rollout]:
        """Take the lowest complete groups out, the ones the setup's ``take`` says.

        Returns:
            Their rollouts, group by group; nothing when there are not that many yet.
        """
        self._control.check()
        with self._control.lock:
            if len(self._complete) < groups:
                return []
            return [r for _ in range(groups) for r in self._take(self._due())]

    def sample_hand_out(self) -> list[Rollout]:
        """Take the complete groups of the lowest hand-out, once none of it is in flight."""
        self._control.check()
        with self._control.lock:
            if not self._complete:
                return []
            hand_out = self._hand_out_of(min(self._complete))
            if any(ordinal in self._control.in_flight for ordinal in hand_out):
                return []
            return [r for o in hand_out if o in self._complete for r in self._take(o)]

    def state_dict(self) -> dict[str, Any]:
        """What it keeps, as plain lists and numbers (and the collector's own tags)."""
        self._control.check()
        with self._control.lock:
            rollouts = [r for group in self._groups.values() for r in group]
        return {
            "rollouts": [
                {
                    "row": r.prompt.row,
                    "generation": r.generation,
                    "weight_version": r.weight_version,
                    "tag": r.tag,
                    **({"data_set": r.prompt.data_set} if r.prompt.data_set else {}),
                }
                for r in rollouts
            ]
        }

    def load_state_dict(self, state: dict[str, Any]) -> list[Rollout]:
        """Keep what was kept then, instead of what it keeps now.

        Returns:
            What did not fit, as from :meth:`add`.

        Raises:
            ValueError: for what is not a state of a buffer.
        """
        setup = self._control.setup
        try:
            rollouts = [
                Rollout(
                    prompt_of(index(r["row"]), index(r.get("data_set", 0)), setup.texts),
                    index(r["generation"]),
                    index(r["weight_version"]),
                    r["tag"],
                )
                for r in state["rollouts"]
            ]
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a state of this buffer: {state!r:.200}") from error
        self._control.check()
        for rollout in rollouts:
            row, generation = rollout.prompt.row, rollout.generation
            if not (0 <= row < setup.prompts and 0 <= generation < setup.group_size):
                raise ValueError(
                    f"a state of a buffer over other data: row {row}, generation {generation}, "
                    f"with {setup.prompts} prompts in groups of {setup.group_size}"
                )
        with self._control.lock:
            for kept in (self._groups, self._complete, self._next, self._arrived):
                kept.clear()
        return [evicted for rollout in rollouts for evicted in self.add(rollout)]

    def _keep(self, rollout: Rollout) -> None:
        control = self._control
        ordinal = control.reached("buffered", rollout)
        if ordinal not in self._groups:
            self._groups[ordinal] = []
            self._arrived[ordinal] = next(self._arrivals)
        group = self._groups[ordinal]
        group.append(rollout)
        if len({r.generation for r in group}) == control.setup.group_size:
            if ordinal not in self._complete:
                key = self._arrived[ordinal] if self._by_arrival else ordinal
                heapq.heappush(self._next, (key, ordinal))
            self._complete.add(ordinal)

    def _due(self) -> int:
        """The complete group that is taken next; there is one."""
        while True:
            _, ordinal = heapq.heappop(self._next)
            if ordinal in self._complete:
                return ordinal

    def _take(self, ordinal: int) -> list[Rollout]:
        self._complete.discard(ordinal)
        del self._arrived[ordinal]
        return self._groups.pop(ordinal)

    def _hand_out_of(self, ordinal: int) -> range:
        """The ordinals of the hand-out that an ordinal is in."""
        setup = self._control.setup
        passed, offset = divmod(ordinal, setup.prompts_per_pass)
        first = passed * setup.prompts_per_pass
        start = first + offset // setup.batch_size * setup.batch_size
        return range(start, min(start + setup.batch_size, first + setup.prompts_per_pass))

    def _evict(self, ordinals: list[int], why: str) -> list[Rollout]:
        evicted = []
        for ordinal in ordinals:
            group = self._take(ordinal)
            evicted.extend(group)
            for rollout in group:
                self._control.numbers.lose(ordinal, rollout.generation)
            self._control.record("evicted", ordinal, text=why)
        return evicted
