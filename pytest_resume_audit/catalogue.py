"""The named timelines: what each is for, what it demands, and what it must reach."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
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
        uninterrupted: the run that the script by ordinals is measured against; by default the
            script without its saves and crashes.
        seen: where such a loss was seen in public: GitHub issues and pull requests.
    """

    name: str
    purpose: str
    script: str
    by_position: str
    demand: Demand = "lossless"
    must_reach: tuple[str, ...] = ("saved", "resumed")
    may_reach: tuple[str, ...] = ()
    sizes: Mapping[str, Any] = field(default_factory=dict)
    uninterrupted: str = ""
    seen: tuple[str, ...] = ()

    @property
    def legacy(self) -> bool:
        """Whether it needs a legacy checkpoint."""
        return "downgrade" in self.script

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
        by_position = _parse(self.by_position)
        return Asked(
            timeline=_parse(self.script) if fits else by_position,
            otherwise=by_position if fits else None,
            uninterrupted=_parse(self.uninterrupted) if fits and self.uninterrupted else None,
            setup=sizes,
            name=self.name,
            demand=self.demand,
            must_reach=self.must_reach,
            may_reach=self.may_reach,
        )


@lru_cache(maxsize=256)
def _parse(script: str) -> Timeline:
    return Timeline.parse(script)


_IN_FLIGHT = ("saved with prompts in flight", "saved with a buffer", "resumed")

# The beginning of most forms by position: one step is trained, of the rest some are buffered
# and some in flight. A whole hand-out ends at once, for collectors that wait for one.
_HALFWAY = (
    "hand_out; finish oldest hand_out; train; hand_out; finish oldest hand_out; finish every 2; "
)

_ALL = (
    NamedTimeline(
        name="clean",
        purpose="an uninterrupted run trains every prompt once",
        script="drain",
        by_position="drain",
        demand="clean",
        must_reach=(),
    ),
    NamedTimeline(
        name="idle-save",
        purpose="saved while nothing is out: the easiest save there is",
        script="hand_out 8; finish 0-7; train 2; save; crash; restart; drain",
        by_position="hand_out; finish all; train 2; save; crash; restart; drain",
        may_reach=("saved with nothing out",),
        seen=(
            "thinking-machines-lab/tinker-cookbook#935",
            "huggingface/accelerate#3952",
            "PrimeIntellect-ai/prime-rl#3164",
            "allenai/open-instruct#1523",
        ),
    ),
    NamedTimeline(
        name="mid-flight",
        purpose="the case that names the project: four prompts are in flight at the save",
        script="hand_out 12; finish 0-3; train; finish 4 6 7 10; save; crash; restart; drain",
        by_position=_HALFWAY + "save; crash; restart; drain",
        must_reach=_IN_FLIGHT,
        seen=(
            "NVIDIA-NeMo/RL#3599",
            "NVIDIA-NeMo/RL#3594",
            "verl-project/verl#4199",
            "huggingface/trl#5911",
            "radixark/miles#2254",
        ),
    ),
    NamedTimeline(
        name="mid-flight-no-buffer",
        purpose="the same, and the restart does not load the replay buffer",
        script="hand_out 12; finish 0-3; train; finish 4 6 7 10; save; crash; "
        "restart no_buffer; drain",
        by_position=_HALFWAY + "save; crash; restart no_buffer; drain",
        must_reach=(*_IN_FLIGHT, "resumed without the buffer"),
        seen=(
            "NVIDIA-NeMo/RL#3583",
            "NVIDIA-NeMo/RL#4067",
        ),
    ),
    NamedTimeline(
        name="legacy-checkpoint",
        purpose="a checkpoint written before the fix: the old losses, with a warning",
        script="hand_out 12; finish 0-3; train; finish 4 6 7 10; save; downgrade; crash; "
        "restart; drain",
        by_position=_HALFWAY + "save; downgrade; crash; restart; drain",
        demand="legacy",
        must_reach=(*_IN_FLIGHT, "resumed from a legacy checkpoint"),
        seen=(
            "NVIDIA-NeMo/RL#3820",
            "huggingface/trl#7294",
        ),
    ),
    NamedTimeline(
        name="legacy-lineage",
        purpose="a run that descends from a legacy checkpoint keeps the old behaviour and warns",
        script="hand_out 8; finish 0-3; train; save; downgrade; crash; "
        "restart; hand_out 12; finish 8 10; save; crash; restart; drain",
        by_position="hand_out; finish oldest hand_out; train; hand_out; save; downgrade; crash; "
        "restart; hand_out; finish every 2; save; crash; restart; drain",
        demand="legacy",
        must_reach=("saved with prompts in flight", "resumed from a legacy checkpoint"),
        seen=("NVIDIA-NeMo/RL#3820",),
    ),
    NamedTimeline(
        name="before-first-save",
        purpose="crashed before there is a checkpoint: all begins afresh",
        script="hand_out 8; finish 0-3; train; finish 5; crash; restart; drain",
        by_position="hand_out; finish oldest hand_out; train; crash; restart; drain",
        must_reach=("started afresh after a crash",),
    ),
    NamedTimeline(
        name="rolled-back",
        purpose="steps after the save are lost with the crash, and must be trained again",
        script="hand_out 8; finish 0-3; train; save; finish 4-7; train; hand_out 12; finish 9; "
        "crash; restart; drain",
        by_position="hand_out; finish oldest hand_out; train; hand_out; save; "
        "finish oldest hand_out; train; hand_out; crash; restart; drain",
        must_reach=("resumed", "rolled back trained prompts"),
        seen=(
            "NVIDIA-NeMo/RL#3508",
            "NVIDIA-NeMo/RL#3924",
        ),
    ),
    NamedTimeline(
        name="second-resume",
        purpose="saved right after a resume, before anything is trained, three times over",
        script="hand_out 12; finish 0-3; train; finish 4 6; save; crash; restart; save; crash; "
        "restart; hand_out 12; save; crash; restart; hand_out 16; finish newest 1; save; crash; "
        "restart; drain",
        by_position=_HALFWAY + "save; crash; restart; save; crash; restart; hand_out; save; "
        "crash; restart; hand_out; finish newest 1; save; crash; restart; drain",
        must_reach=(*_IN_FLIGHT, "resumed, and saved before anything was trained"),
        seen=(
            "PrimeIntellect-ai/prime-rl#3332",
            "pytorch/rl#4388",
            "KempnerInstitute/KempnerForge#57",
        ),
    ),
    NamedTimeline(
        name="older-checkpoint",
        purpose="restarted from the first checkpoint, though there is a newer one",
        script="hand_out 12; finish 0-3; train; finish 5; save; finish 4 6 7; train; finish 9; "
        "save; crash; restart from 0; drain",
        by_position=_HALFWAY + "save; finish oldest hand_out; train; hand_out; save; crash; "
        "restart from 0; drain",
        must_reach=(*_IN_FLIGHT, "resumed from an older checkpoint"),
        seen=(
            "NovaSky-AI/SkyRL#2145",
            "verl-project/verl#4873",
        ),
    ),
    NamedTimeline(
        name="same-checkpoint-twice",
        purpose="restarted twice from one checkpoint: the life between leaves no trace",
        script="hand_out 12; finish 0-3; train; finish 5 6; save; crash; "
        "restart; hand_out 12; finish 4 7; train; crash; restart; drain",
        by_position=_HALFWAY + "save; crash; restart; hand_out; finish oldest hand_out; train; "
        "crash; restart; drain",
        must_reach=(*_IN_FLIGHT, "resumed twice from one checkpoint"),
    ),
    NamedTimeline(
        name="straggler",
        purpose="one prompt stays in flight for many hand-outs while later ones are trained",
        script="hand_out 8; finish 0 2 3 4; train; hand_out 12; finish 5-8; train; "
        "hand_out 16; finish 9-12; train; save; crash; restart; drain",
        by_position="hand_out; finish newest hand_out; train; hand_out; finish newest hand_out; "
        "train; hand_out; save; crash; restart; drain",
        must_reach=("saved with prompts in flight", "resumed"),
        may_reach=("saved past a straggler",),
        seen=(
            "huggingface/trl#5911",
            "huggingface/trl#7274",
            "NVIDIA-NeMo/RL#3599",
        ),
    ),
    NamedTimeline(
        name="failed-generation",
        purpose="a generation fails, within what is tolerated, before the save",
        script="hand_out 8; finish 0-3; train; fail 5; finish 4 6; save; crash; restart; drain",
        by_position="hand_out; finish oldest hand_out; train; hand_out; fail oldest 1; "
        "finish oldest 1; save; crash; restart; drain",
        must_reach=("resumed", "saved with a failure behind it"),
        seen=("NVIDIA-NeMo/RL#3599",),
    ),
    NamedTimeline(
        name="dropped",
        purpose="an answer is too old for the weights and is dropped, with a reason",
        script="hand_out 8; finish 0-3; train; hand_out 12; finish 4 6-8; train; hand_out 16; "
        "finish 9-12; train; hand_out 20; finish 5 13-16; train; save; crash; restart; drain",
        by_position="hand_out; finish newest hand_out; train; hand_out; finish newest hand_out; "
        "train; hand_out; finish all; train; save; crash; restart; drain",
        may_reach=("saved with a drop behind it",),
        demand="clean",
        sizes={"prompts": 20, "max_age": 1},
        seen=(
            "huggingface/trl#7294",
            "allenai/open-instruct#1738",
            "verl-project/verl#7082",
        ),
    ),
    NamedTimeline(
        name="gap-fill-tail",
        purpose="part of a batch is dispatched, its rest waits for room at the save",
        script="hand_out 8; finish 0-3; train; hand_out 12; finish 4; save; crash; "
        "restart; hand_out 12; finish 5-7; save; crash; restart; drain",
        by_position="hand_out; finish oldest hand_out; train; hand_out; finish oldest 1; save; "
        "crash; restart; hand_out; finish oldest 3; save; crash; restart; drain",
        must_reach=("saved with prompts in flight", "resumed"),
        may_reach=("saved with a carried-over rest",),
        demand="clean",
        sizes={"max_in_flight": 6},
        seen=(
            "NVIDIA-NeMo/RL#3599",
            "NVIDIA-NeMo/RL#3813",
        ),
    ),
    NamedTimeline(
        name="half-a-group",
        purpose="some generations of a group have ended at the save, the others have not",
        script="hand_out 8; finish 0-3; train; finish 4 5:0 6:0; save; crash; restart; drain",
        by_position="hand_out; finish oldest hand_out; train; hand_out; finish 5:0 6:0; save; "
        "crash; restart; drain",
        may_reach=("saved with part of a group",),
        demand="clean",
        sizes={"group_size": 2},
        seen=(
            "NVIDIA-NeMo/RL#3923",
            "NVIDIA-NeMo/RL#3507",
        ),
    ),
    NamedTimeline(
        name="end-of-pass",
        purpose="saved between the last batch of a pass and the first of the next",
        script="hand_out 8; finish 0-3; train; finish 4 6; save; crash; restart; drain",
        by_position="hand_out; finish oldest hand_out; train; hand_out; save; crash; restart; "
        "drain",
        may_reach=("saved at the end of a pass",),
        demand="clean",
        sizes={"prompts": 8, "passes": 2},
        seen=(
            "verl-project/verl#5725",
            "verl-project/verl#7401",
            "meta-pytorch/data#1437",
        ),
    ),
    NamedTimeline(
        name="second-pass",
        purpose="saved in the middle of the second pass, which has an order of its own",
        script="hand_out 12; finish 0-7; train 2; finish 8 10; save; crash; restart; drain",
        by_position="hand_out; finish all; train 2; hand_out; finish all; train 2; hand_out; "
        "finish every 2; save; crash; restart; drain",
        may_reach=("saved in a later pass",),
        demand="clean",
        sizes={"prompts": 8, "passes": 2, "shuffle": True},
        seen=(
            "huggingface/accelerate#4238",
            "verl-project/verl#4156",
        ),
    ),
    NamedTimeline(
        name="end-of-data",
        purpose="saved when the loader has said that it has no more, with answers still out",
        script="hand_out end; finish 0-13; train 3; save; crash; restart; drain",
        by_position="hand_out; finish all; train 4; hand_out; finish all; train 4; hand_out end; "
        "finish every 2; save; crash; restart; drain",
        may_reach=("saved at the end of a pass",),
        seen=(
            "OpenRLHF/OpenRLHF#1320",
            "OpenRLHF/OpenRLHF#1322",
            "NovaSky-AI/SkyRL#1802",
        ),
    ),
    NamedTimeline(
        name="uneven",
        purpose="sizes that do not divide each other: 17 prompts, batches of 4, steps of 3, "
        "groups of 2",
        script="hand_out 12; finish 0-2; train; finish 3 5 7:0 10; save; crash; "
        "restart; hand_out 16; finish 4 6; train; save; crash; restart; drain",
        by_position=_HALFWAY + "save; crash; restart; hand_out; finish oldest 3; train; save; "
        "crash; restart; drain",
        must_reach=_IN_FLIGHT,
        demand="clean",
        sizes={"prompts": 17, "prompts_per_step": 3, "group_size": 2},
        seen=("NVIDIA-NeMo/RL#3813",),
    ),
)

NAMED: dict[str, NamedTimeline] = {timeline.name: timeline for timeline in _ALL}
"""Every named timeline by its name."""


def _training(
    name: str,
    purpose: str,
    script: str,
    must_reach: tuple[str, ...] = ("saved", "resumed"),
    demand: Demand = "lossless",
) -> NamedTimeline:
    return NamedTimeline(
        name=name,
        purpose=purpose,
        script=script,
        by_position=script,
        demand=demand,
        must_reach=must_reach,
    )


_TRAINING = (
    _training(
        "whole", "a run that is never interrupted trains every prompt once", "drain", (), "clean"
    ),
    _training("killed", "killed right after a save", "train; save; crash; restart; drain"),
    _training(
        "killed-later",
        "killed in the steps after a save, which must be trained again",
        "train; save; train; crash; restart; drain",
        ("saved", "resumed", "rolled back trained prompts"),
    ),
    _training(
        "killed-before-a-save",
        "killed before there is a checkpoint: all begins afresh",
        "train; crash; restart; drain",
        ("started afresh after a crash",),
    ),
    _training(
        "killed-again-and-again",
        "three lives, each saved and killed",
        "train; save; crash; restart; train; save; crash; restart; save; crash; restart; drain",
    ),
    _training(
        "killed-twice-behind-one-save",
        "restarted twice from one checkpoint: the life between leaves no trace",
        "train; save; train; crash; restart; train; crash; restart; drain",
        ("resumed twice from one checkpoint",),
    ),
    _training("two-saves", "two saves, then killed", "train; save; save; crash; restart; drain"),
    _training("stopped", "told to stop, and restarted", "train; save; train; stop; restart; drain"),
    _training(
        "killed-in-a-save",
        "killed at every file operation of its second save",
        "train; save; train; crash in save; restart; drain",
    ),
    _training(
        "torn-by-a-save",
        "a power loss at every file operation of its second save: what was not synced is cut",
        "train; save; train; crash in save torn each; restart; drain",
        demand="lossless or refused",
    ),
    _training(
        "without-the-buffer",
        "the buffer is not loaded: what was in it is answered again",
        "train; save; crash; restart no_buffer; drain",
    ),
    _training(
        "from-the-first",
        "restarted from the first checkpoint, though there is a newer one",
        "train; save; train; save; crash; restart from 0; drain",
        ("saved", "resumed from an older checkpoint"),
    ),
)

MATRICES = ("smoke", "training", "nightly", "full", "loader")
"""Names of sets of timelines: ``smoke`` is every named one, ``training`` those of nothing but
steps, saves and ends, for a loop that the audit does not call, ``loader`` those of a loader alone,
``nightly`` those of ``smoke`` and a save after every event of many runs, ``full`` everything that
is generated."""


@cache
def matrix(name: str, setup: Setup | None = None) -> tuple[NamedTimeline, ...]:
    """The timelines of a set.

    Args:
        name: one of :data:`MATRICES`.
        setup: the sizes that the places of ``loader`` are those of; the others have their own.

    Raises:
        KeyError: for another name.

    Example:
        >>> len(matrix("smoke"))
        20
    """
    from pytest_resume_audit import loader_timelines, matrices

    if name == "loader":
        return loader_timelines.loader_timelines(setup)
    if name in _WRITTEN:
        return _WRITTEN[name]
    generated = {"nightly": matrices.nightly, "full": matrices.full}[name]
    return (*_ALL, *generated())


_WRITTEN = {"smoke": _ALL, "training": _TRAINING}
