"""The replay buffer: keeps finished groups until the trainer takes them."""

from __future__ import annotations

from operator import index
from typing import Any

from pytest_resume_audit.control import Control
from pytest_resume_audit.fakes.prompts import Prompt, Rollout


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
        self._groups: dict[int, list[Rollout]] = {}

    def __len__(self) -> int:
        """Number of complete groups."""
        self._control.check()
        with self._control.lock:
            return len(self._complete())

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
            complete = self._in_order(self._complete())
            if len(complete) < groups:
                return []
            return [r for ordinal in complete[:groups] for r in self._groups.pop(ordinal)]

    def sample_hand_out(self) -> list[Rollout]:
        """Take the complete groups of the lowest hand-out, once none of it is in flight."""
        self._control.check()
        with self._control.lock:
            complete = sorted(self._complete())
            if not complete:
                return []
            first = self._hand_out_of(complete[0])
            if any(self._hand_out_of(ordinal) == first for ordinal in self._control.in_flight):
                return []
            taken = [ordinal for ordinal in complete if self._hand_out_of(ordinal) == first]
            return [r for ordinal in taken for r in self._groups.pop(ordinal)]

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
        try:
            rollouts = [
                Rollout(
                    Prompt(index(r["row"])),
                    index(r["generation"]),
                    index(r["weight_version"]),
                    r["tag"],
                )
                for r in state["rollouts"]
            ]
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a state of this buffer: {state!r:.200}") from error
        self._control.check()
        setup = self._control.setup
        for rollout in rollouts:
            row, generation = rollout.prompt.row, rollout.generation
            if not (0 <= row < setup.prompts and 0 <= generation < setup.group_size):
                raise ValueError(
                    f"a state of a buffer over other data: row {row}, generation {generation}, "
                    f"with {setup.prompts} prompts in groups of {setup.group_size}"
                )
        with self._control.lock:
            self._groups.clear()
        return [evicted for rollout in rollouts for evicted in self.add(rollout)]

    def _keep(self, rollout: Rollout) -> None:
        ordinal = self._control.reached("buffered", rollout)
        self._groups.setdefault(ordinal, []).append(rollout)

    def _complete(self) -> list[int]:
        size = self._control.setup.group_size
        return [
            ordinal
            for ordinal, group in self._groups.items()
            if len({r.generation for r in group}) >= size
        ]

    def _in_order(self, ordinals: list[int]) -> list[int]:
        return ordinals if self._control.setup.take == "arrival" else sorted(ordinals)

    def _hand_out_of(self, ordinal: int) -> tuple[int, int]:
        setup = self._control.setup
        passed, offset = divmod(ordinal, setup.prompts_per_pass)
        return passed, offset // setup.batch_size

    def _evict(self, ordinals: list[int], why: str) -> list[Rollout]:
        evicted = []
        for ordinal in ordinals:
            group = self._groups.pop(ordinal)
            evicted.extend(group)
            for rollout in group:
                self._control.numbers.lose(ordinal, rollout.generation)
            self._control.record("evicted", ordinal, text=why)
        return evicted
