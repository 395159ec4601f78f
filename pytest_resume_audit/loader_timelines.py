"""The timelines that a loader alone is played through: a save behind every batch, and at the ends.

Their places are those of the setup. Behind each there are passes left, so that a state that is
right for the pass it was saved in, and wrong for the next, is found as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from functools import cache

from pytest_resume_audit.catalogue import NamedTimeline
from pytest_resume_audit.setup import Setup
from pytest_resume_audit.verdict import Demand

PASSES = 3
"""Passes of each timeline: a save in either of the first two, and one more behind it."""

_AT_THE_END = ("meta-pytorch/data#1437", "verl-project/verl#5725", "verl-project/verl#7401")
_AGAIN = ("PrimeIntellect-ai/prime-rl#3332", "pytorch/rl#4388", "KempnerInstitute/KempnerForge#57")


@cache
def loader_timelines(setup: Setup | None = None) -> tuple[NamedTimeline, ...]:
    """The timelines for a loader of these sizes.

    Args:
        setup: its samples and the batch size; the number of passes is that of the timelines,
            unless it is larger.

    Example:
        >>> for timeline in loader_timelines(Setup(prompts=8))[1:4]:
        ...     print(f"{timeline.name:12} {timeline.script}")
        save-00      save; crash; restart; drain
        begun-00     hand_out; save; crash; restart; drain
        save-01      hand_out 4; save; crash; restart; drain
    """
    return tuple(_Stories(Setup() if setup is None else setup).all())


class _Stories:
    def __init__(self, setup: Setup) -> None:
        self.batch = setup.batch_size
        self.per_pass = setup.prompts_per_pass
        self.passes = max(PASSES, setup.passes)
        default = Setup()
        changed = {f.name: getattr(setup, f.name) for f in fields(Setup)}
        self.sizes = {
            **{name: value for name, value in changed.items() if value != getattr(default, name)},
            "passes": self.passes,
        }

    def all(self) -> Iterator[NamedTimeline]:
        one = self._one
        yield one("clean", "passes that are never interrupted", "drain", must=(), demand="clean")
        yield one("save-00", "saved before anything, even `iter()`", self._resumed("save"))
        yield one("begun-00", "saved behind `iter()`", self._resumed("hand_out; save"))
        for number, place in enumerate(self._places(), start=1):
            yield from self._behind_a_batch(f"{number:02}", place)
        yield from self._behind_a_pass()
        middle, later = self._after(0, 1), self._after(0, 3)
        yield one(
            "rolled-back",
            "batches that came after the save are lost with the crash, and come again",
            f"hand_out {middle}; save; hand_out {later}; crash; restart; drain",
            must=("resumed", "rolled back trained prompts"),
        )
        yield one(
            "same-checkpoint-twice",
            "restarted twice from one checkpoint: the life between leaves no trace",
            f"hand_out {middle}; save; crash; restart; hand_out {later}; crash; restart; drain",
            must=("resumed twice from one checkpoint",),
        )
        yield one(
            "older-checkpoint",
            "restarted from the first checkpoint, though there is a newer one",
            f"hand_out {middle}; save; hand_out {later}; save; crash; restart from 0; drain",
            must=("resumed from an older checkpoint",),
        )
        yield one(
            "stopped",
            "ended gracefully, in the middle of a pass",
            f"hand_out {later}; save; stop; restart; drain",
        )

    def _behind_a_batch(self, number: str, place: int) -> Iterator[NamedTimeline]:
        one, saved = self._one, f"hand_out {place}; save"
        last = place % self.per_pass == 0
        seen = _AT_THE_END if last else ()
        says = f"saved at {place}, " + ("behind the last batch of a pass" if last else "in a pass")
        yield one(f"save-{number}", says, self._resumed(saved), seen=seen)
        yield one(
            f"save-{number}-twice",
            f"{says}, and again right after the resume, before `iter()`",
            self._resumed(saved, "save"),
            seen=_AGAIN,
        )
        yield one(
            f"save-{number}-begun",
            f"{says}, and again right after the resume, behind `iter()`",
            self._resumed(saved, "hand_out; save"),
            seen=_AGAIN,
        )
        yield one(
            f"save-{number}-thrice",
            f"{says}, and resumed three times, with one batch in between",
            self._resumed(saved, *(f"hand_out {self._after(place, n)}; save" for n in (1, 2))),
            seen=_AGAIN,
        )

    def _behind_a_pass(self) -> Iterator[NamedTimeline]:
        for number in range(1, PASSES):
            end = number * self.per_pass
            # The loop sees the end of a pass when it asks for more: in `hand_out` by itself.
            ended = f"hand_out {end}; hand_out"
            for name, says, saved in (
                (f"end-{number}", f"saved behind the end of pass {number}", f"{ended}; save"),
                (
                    f"begun-{number}",
                    f"saved behind the `iter()` of the pass after pass {number}",
                    f"{ended}; hand_out; save",
                ),
            ):
                yield self._at_an_end(name, says, self._resumed(saved))
                yield self._at_an_end(
                    f"{name}-twice",
                    f"{says}, and again right after the resume",
                    self._resumed(saved, "save"),
                )
                yield self._at_an_end(
                    f"{name}-thrice",
                    f"{says}, and resumed three times, with one batch in between",
                    self._resumed(
                        saved, *(f"hand_out {self._after(end, n)}; save" for n in (1, 2))
                    ),
                )
        last = self.passes * self.per_pass
        yield self._at_an_end(
            "last-batch",
            "saved behind the last batch of all",
            self._resumed(f"hand_out {last}; save"),
        )
        yield self._at_an_end(
            "last-end",
            "saved behind the end of all passes: nothing comes any more",
            self._resumed("hand_out end; save"),
        )

    def _places(self) -> list[int]:
        """The places behind each batch of the first two passes."""
        ends = [*range(self.batch, self.per_pass, self.batch), self.per_pass]
        return [end + done for done in (0, self.per_pass) for end in ends]

    def _after(self, place: int, batches: int) -> int:
        """The place so many batches later, if there are that many."""
        for _ in range(batches):
            in_pass = place % self.per_pass
            place += min(self.batch, self.per_pass - in_pass)
        return min(place, self.passes * self.per_pass)

    @staticmethod
    def _resumed(*saves: str) -> str:
        """Each of these saves, crashed and restarted from."""
        return "; ".join([*(f"{saved}; crash; restart" for saved in saves), "drain"])

    def _at_an_end(self, name: str, purpose: str, script: str) -> NamedTimeline:
        return self._one(name, purpose, script, seen=_AT_THE_END)

    def _one(
        self,
        name: str,
        purpose: str,
        script: str,
        *,
        must: tuple[str, ...] = ("saved", "resumed"),
        demand: Demand = "lossless",
        seen: tuple[str, ...] = (),
    ) -> NamedTimeline:
        return NamedTimeline(
            name=name,
            purpose=purpose,
            script=script,
            by_position=script,
            demand=demand,
            must_reach=must,
            sizes=self.sizes,
            seen=seen,
        )
