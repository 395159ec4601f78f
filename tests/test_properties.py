"""What holds for any script and any history, tried with what hypothesis comes up with."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pytest_resume_audit import FuturesCollector, Setup, conductor, run
from pytest_resume_audit.history import Event, History, LifeRecord
from pytest_resume_audit.timeline import (
    Crash,
    Death,
    Downgrade,
    Fail,
    Finish,
    HandOut,
    Ordinals,
    Position,
    Race,
    Restart,
    Save,
    Step,
    Stop,
    Target,
    Timeline,
    Train,
)
from pytest_resume_audit.verdict import Asked, AuditReport, Played, Reference, judge

pytest.importorskip("hypothesis", reason="what holds for any script is tried with it")

from hypothesis import HealthCheck, given, settings, strategies as st

settings.register_profile(
    "audit",
    deadline=None,  # no test here is about time
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("audit")


# --- scripts ------------------------------------------------------------------------------------

NUMBERS = st.integers(0, 24)
TARGETS = st.builds(Target, NUMBERS, st.none() | st.integers(0, 3))
POSITIONS = st.one_of(
    st.builds(Position, st.sampled_from(["oldest", "newest"]), st.integers(1, 5)),
    st.builds(Position, st.sampled_from(["oldest", "newest"]), st.just("hand_out")),
    st.builds(Position, st.just("every"), st.integers(1, 5)),
    st.just(Position("all")),
)
ONE_EACH = st.lists(TARGETS, min_size=1, max_size=5, unique_by=lambda target: target.ordinal)
WHICH = st.builds(Ordinals, ONE_EACH.map(tuple)) | POSITIONS
INNER = st.one_of(
    st.builds(HandOut, st.none() | st.just("end") | st.integers(1, 24)),
    st.builds(Finish, WHICH),
    st.builds(Fail, WHICH),
)
CHANGES = st.lists(
    st.tuples(
        st.sampled_from(["batch_size", "group_size", "prompts_per_step", "prompts", "data_set"]),
        st.integers(1, 30),
    ),
    max_size=2,
).map(tuple)


@st.composite
def timelines(draw: st.DrawFn) -> Timeline:
    """Scripts that make sense: lives end and begin, downgrades follow saves, one step walks."""
    steps: list[Step] = []
    saves, walks = 0, draw(st.booleans())
    for _ in range(draw(st.integers(1, 12))):
        kind = draw(st.sampled_from(["inner", "inner", "inner", "train", "save", "life"]))
        if kind == "inner":
            steps.append(draw(INNER))
        elif kind == "train":
            steps.append(Train(draw(st.integers(1, 4))))
        elif kind == "save":
            at = None if walks else draw(st.integers(1, 9))
            race = st.builds(Race, st.lists(INNER, min_size=1, max_size=3).map(tuple), st.just(at))
            step = Save(draw(st.none() | race))
            walks = walks and step.race is None
            steps.append(step)
            saves += 1
            if draw(st.booleans()):
                steps.append(Downgrade())
        else:
            torn = draw(st.sampled_from([None, "empty", "half", "each"]))
            at = None if walks else draw(st.integers(1, 9))
            torn = "half" if torn == "each" and not walks else torn
            end = draw(st.sampled_from([Crash(), Stop(), Crash(Death(at, torn))]))
            walks = walks and end in (Crash(), Stop())
            source = draw(
                st.sampled_from(["latest", "afresh"]) | st.integers(0, saves - 1)
                if saves
                else st.sampled_from(["latest", "afresh"])
            )
            buffer = source == "afresh" or draw(st.booleans())
            steps += [end, Restart(source, buffer, draw(CHANGES))]
    return Timeline(steps)


@given(timelines())
def test_any_script_is_read_back_as_itself(timeline: Timeline) -> None:
    assert Timeline.parse(timeline.text) == timeline
    assert Timeline.parse(timeline.text.replace("; ", "\n")) == timeline
    uninterrupted = timeline.uninterrupted()
    assert uninterrupted.uninterrupted() == uninterrupted
    assert (uninterrupted.lives, uninterrupted.saves) == (1, 0)


# --- histories ----------------------------------------------------------------------------------


class OldWay(FuturesCollector):
    """The old way in one thread: it is as if it always came from a legacy checkpoint."""

    def __init__(self, rig: Any) -> None:
        super().__init__(rig)
        self.legacy = True


class Judged:
    """What was handed to the judge of a run."""

    def __init__(self, asked: Asked, reference: Reference, played: Played, kind: Any) -> None:
        self.asked = asked
        self.reference = reference
        self.played = played
        self.kind = kind

    def again(self, **changed: Any) -> AuditReport:
        """Judge it once more, with something changed."""
        reference = changed.pop("reference", self.reference)
        return judge(self.asked, reference, replace(self.played, **changed), self.kind)


SETUPS = st.sampled_from(
    [
        Setup(),
        Setup(prompts=17, prompts_per_step=3, group_size=2),
        Setup(prompts=8, passes=2, shuffle=True),
        Setup(prompts=5, passes=3, batch_size=2, prompts_per_step=3),
        Setup(max_in_flight=6),
    ]
)


@st.composite
def scripts(draw: st.DrawFn) -> str:
    """Scripts of a few lives, in which something happens in most of them."""
    steps = []
    for _ in range(draw(st.integers(0, 3))):
        steps += draw(st.lists(EVENTS, max_size=6))
        steps += draw(
            st.sampled_from(
                [
                    ["save", "crash", "restart"],
                    ["save", "crash", "restart no_buffer"],
                    ["save", "finish newest 2", "train", "crash", "restart"],
                    ["save", "hand_out 16", "save", "crash", "restart from 0"],
                    ["crash", "restart"],
                    ["save", "stop", "restart"],
                ]
            )
        )
    return "; ".join([*steps, "drain"])


EVENTS = st.sampled_from(
    [
        "hand_out 4",
        "hand_out 8",
        "hand_out 12",
        "finish oldest 2",
        "finish newest 1",
        "finish every 2",
        "finish all",
        "fail newest 1",
        "train",
        "train 2",
    ]
)


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> list[Judged]:
    """What the last run was judged by."""
    seen: list[Judged] = []

    def tells(asked: Asked, reference: Reference, played: Played, kind: Any) -> AuditReport:
        seen.append(Judged(asked, reference, played, kind))
        return judge(asked, reference, played, kind)

    monkeypatch.setattr(conductor, "judge", tells)
    return seen


def play(judged: list[Judged], collector: Any, script: str, setup: Setup) -> AuditReport:
    judged.clear()
    return run(collector, script, setup=replace(setup, max_failures=99))


@settings(max_examples=60)
@given(scripts(), SETUPS, st.sampled_from([FuturesCollector, OldWay]))
def test_every_prompt_is_accounted_for_once(judged: Any, script, setup, collector) -> None:
    report = play(judged, collector, script, setup)
    # A step that can't be done leaves it undetermined, and its prompts have to be somewhere.
    assert report.verdict in ("lossless", "lossy", "undetermined"), report
    (one,) = judged
    trained = trained_in(one, report)
    kinds = [trained, report.failed, report.dropped, report.skipped, report.starved]
    everything = [ordinal for kind in kinds for ordinal in kind]
    assert sorted(everything) == sorted(one.reference.expected)
    assert len(set(everything)) == len(everything), "each of them once"
    assert set(report.duplicated) <= set(trained)
    if collector is FuturesCollector:
        assert report.skipped == report.duplicated == report.starved == [], report


def trained_in(one: Judged, report: AuditReport) -> list[int]:
    """Which places went into the weights, by the weights alone."""
    size = report.setup.group_size
    counts = one.played.counts or ()
    given_up = {*report.failed, *report.dropped}
    trained = []
    for row in range(report.setup.prompts):
        places = [o for o, r in enumerate(one.reference.rows) if r == row]
        places.sort(key=lambda o: (o not in one.reference.expected, o in given_up, o))
        most = max(counts[row * size : (row + 1) * size])
        trained += places[:most]
    return [ordinal for ordinal in trained if ordinal in one.reference.expected]


@settings(max_examples=60)
@given(scripts(), SETUPS, st.randoms(use_true_random=False))
def test_other_names_for_the_rows_change_nothing(judged: Any, script, setup, random) -> None:
    report = play(judged, OldWay, script, setup)
    (one,) = judged
    names = list(range(setup.prompts))
    random.shuffle(names)
    renamed = one.again(
        history=renamed_history(one.played.history, names, setup),
        counts=renamed_counts(one.played.counts, names, setup),
        reference=replace(one.reference, rows=tuple(names[row] for row in one.reference.rows)),
    )
    assert told(renamed) == told(report)


def renamed_counts(counts: Any, names: list[int], setup: Setup) -> tuple[int, ...]:
    size, renamed = setup.group_size, list(counts)
    if counts:
        for row, name in enumerate(names):
            renamed[name * size : (name + 1) * size] = counts[row * size : (row + 1) * size]
    return tuple(renamed)


def renamed_history(history: History, names: list[int], setup: Setup) -> History:
    return History(
        tuple(names[row] for row in history.rows),
        [
            replace(life, start_counts=renamed_counts(life.start_counts, names, setup))
            for life in history.lives
        ],
        [replace(save, counts=renamed_counts(save.counts, names, setup)) for save in history.saves],
    )


@settings(max_examples=60)
@given(scripts(), SETUPS, st.randoms(use_true_random=False))
def test_the_order_of_independent_events_changes_nothing(
    judged: Any, script, setup, random
) -> None:
    report = play(judged, OldWay, script, setup)
    (one,) = judged
    history = one.played.history
    reordered = History(
        history.rows, [reordered_life(life, history, random) for life in history.lives],
        history.saves,
    )  # fmt: skip
    assert told(one.again(history=reordered)) == told(report)


def reordered_life(life: LifeRecord, history: History, random: Any) -> LifeRecord:
    """Some neighbours change places: of different prompts, and on the same side of every save."""
    events = list(life.events)
    borders = {p for s in history.saves if s.life == life.number for p in (s.position, s.end)}
    for at in range(1, len(events)):
        two = events[at - 1], events[at]
        if at not in borders and are_independent(*two) and random.random() < 0.5:
            events[at - 1], events[at] = two[1], two[0]
    return replace(life, events=events)


def are_independent(one: Event, two: Event) -> bool:
    return None not in (one.ordinal, two.ordinal) and one.ordinal != two.ordinal


def told(report: AuditReport) -> dict[str, Any]:
    """What a report says, but for what it was made from."""
    return {
        "verdict": report.verdict,
        "findings": report.findings,
        "ordinals": {k: list(v) for k, v in vars(report).items() if type(v).__name__ == "Ordinals"},
        "reasons": dict(report.reasons),
        "states": report.states,
        "unreached": report.unreached,
    }
