"""The named timelines: what each is for, what it demands, and what it must reach."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pytest_resume_audit.setup import Setup
from pytest_resume_audit.timeline import Timeline
from pytest_resume_audit.verdict import Asked, Demand


@dataclass(frozen=True, kw_only=True)
class NamedTimeline:
    """A timeline of the catalogue.

    Args:
        name: short, stable; it is the id of a test.
        purpose: one line on what it is for.
        script: by ordinals, for a setup of its own sizes.
        by_position: the same story for a collector that throttles itself, or other sizes.
        demand: what it asks for.
        must_reach: states without which a run proves nothing.
        may_reach: states that depend on the collector's way of working.
        sizes: fields of the setup that belong to the story.
    """

    name: str
    purpose: str
    script: str
    by_position: str
    demand: Demand = "lossless"
    must_reach: tuple[str, ...] = ("saved", "resumed")
    may_reach: tuple[str, ...] = ()
    sizes: Mapping[str, Any] = field(default_factory=dict)

    def ask(self, setup: Setup | None = None) -> Asked:
        """The timeline for a setup.

        Args:
            setup: the user's sizes; where the story has its own, those hold. The script by
                ordinals is taken when the sizes are those it was written for, else the one by
                position.
        """
        own = Setup(**self.sizes)
        sizes = own if setup is None else replace(setup, **self.sizes)
        written_for = ("prompts", "batch_size", "prompts_per_step", "group_size", "passes")
        fits = all(getattr(sizes, name) == getattr(own, name) for name in written_for)
        return Asked(
            timeline=Timeline.parse(self.script if fits else self.by_position),
            setup=sizes,
            name=self.name,
            demand=self.demand,
            must_reach=self.must_reach,
            may_reach=self.may_reach,
        )


NAMED: dict[str, NamedTimeline] = {
    timeline.name: timeline
    for timeline in (
        NamedTimeline(
            name="mid-flight",
            purpose="the case that names the project: saved while four prompts are in flight",
            script="hand_out 12; finish 0-3; train; finish 4 6 7 10; save; crash; restart; drain",
            by_position="hand_out; finish oldest 4; train; hand_out; finish every 2; save; crash; restart; drain",
            must_reach=("saved with prompts in flight", "saved with a buffer", "resumed"),
        ),
    )
}
