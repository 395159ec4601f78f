"""The generated timelines: the new way loses nothing in any, the old way what it must.

By default one in so many is played; ``RESUME_AUDIT_EVERY=1`` plays all of the nightly matrix, and
one in 17 of the full one.
"""

from __future__ import annotations

import os
import re
from collections import Counter

import pytest
from old_way import OldWay, split

from pytest_resume_audit import (
    FrontierCollector,
    FuturesCollector,
    LiveCursorCollector,
    Setup,
    run,
)
from pytest_resume_audit.catalogue import MATRICES, NAMED, NamedTimeline, matrix
from pytest_resume_audit.matrices import (
    EVEN,
    ORDERS,
    PLAIN,
    RACED,
    ROLLED_BACK,
    TIGHT,
    UNEVEN,
    events,
    every_save_point,
    every_two_save_points,
    many_saves,
)
from pytest_resume_audit.timeline import Timeline
from pytest_resume_audit.verdict import AuditReport

EVERY = int(os.environ.get("RESUME_AUDIT_EVERY", "43"))
NIGHTLY = matrix("nightly")[len(NAMED) :]
FULL = matrix("full")[len(NAMED) :]
CHOSEN = {timeline.name: timeline for timeline in (*NIGHTLY[::EVERY], *FULL[:: 17 * EVERY])}
SAMPLE = [pytest.param(timeline, id=name) for name, timeline in CHOSEN.items()]


# --- what is generated --------------------------------------------------------------------------


@pytest.mark.parametrize("name", MATRICES)
def test_a_matrix_has_short_names_each_once(name: str) -> None:
    names = [timeline.name for timeline in matrix(name)]
    if name not in ("training", "loader"):  # which tell stories of their own
        assert names[: len(NAMED)] == list(NAMED)
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[a-z0-9-]{1,40}", name) for name in names)


def test_the_nightly_matrix_has_thousands_and_the_full_one_all_of_them() -> None:
    assert 3_000 < len(NIGHTLY) < 8_000
    assert {timeline.name for timeline in NIGHTLY} < {timeline.name for timeline in matrix("full")}


@pytest.mark.parametrize("name", MATRICES)
def test_every_timeline_is_a_script_in_both_forms(name: str) -> None:
    for timeline in matrix(name)[:: 1 if name != "full" else 17]:
        asked = timeline.ask()
        assert asked.timeline.text == Timeline.parse(timeline.script).text
        assert asked.otherwise is not None
        assert timeline.legacy == asked.timeline.legacy
        assert timeline.purpose


def test_the_events_of_a_run_in_order_are_these() -> None:
    """Three hand-outs are out at once; a step is taken as soon as four groups are there."""
    assert [event.step for event in events(Setup(), ORDERS[0])] == [
        "hand_out 4", "hand_out 8", "hand_out 12",
        "finish 0", "finish 1", "finish 2", "finish 3", "train",
        "hand_out 16",
        "finish 4", "finish 5", "finish 6", "finish 7", "train",
        "finish 8", "finish 9", "finish 10", "finish 11", "train",
        "finish 12", "finish 13", "finish 14", "finish 15", "train",
    ]  # fmt: skip


@pytest.mark.parametrize("order", ORDERS, ids=lambda order: order.name)
def test_every_order_has_its_own_way(order) -> None:
    ends = [
        int(event.step.split()[1])
        for event in events(Setup(**order.sizes), order)
        if event.step.startswith(("finish", "fail"))
    ]
    assert sorted(ends) == list(range(16)), "every prompt ends once"
    first = {
        "ordered": [0, 1, 2, 3],
        "reversed": [11, 10, 9, 8],
        "alternate": [0, 2, 4, 6],
        "straggler": [0, 2, 3, 4],
        "failing": [0, 1, 2, 3],
        "stale": [0, 1, 2, 3],
        "backlog": [0, 1, 2, 3],
    }
    assert ends[:4] == first[order.name]
    last = {"straggler": 1, "reversed": 0}
    assert ends[-1] == last.get(order.name, 15)


def test_the_generations_of_a_group_end_in_both_orders() -> None:
    of_ten = {
        order.name: [
            event.step
            for event in events(Setup(**UNEVEN.fields, **order.sizes), order)
            if event.step.startswith("finish 10:")
        ]
        for order in ORDERS
    }
    assert of_ten["ordered"] == ["finish 10:0", "finish 10:1"]
    assert of_ten["reversed"] == ["finish 10:1", "finish 10:0"]


def test_two_prompts_fail_at_once() -> None:
    order = next(order for order in ORDERS if order.name == "failing")
    steps = [event.step for event in events(Setup(), order)]
    assert steps[steps.index("fail 5") + 1] == "fail 6"


@pytest.mark.parametrize(("insert", "times"), [(RACED, 1), (ROLLED_BACK, 2)])
def test_a_failure_comes_again_where_it_was_lost(insert, times: int) -> None:
    """Inside of a save it may be in that; behind the save it is lost with the life."""
    order = next(order for order in ORDERS if order.name == "failing")
    found = [split(timeline.script) for timeline in every_save_point(EVEN, order, insert)]
    saves = [next(i for i, step in enumerate(s) if step.startswith("save")) for s in found]
    inside = [
        [step for step in steps if "fail 5" in step]
        for steps, save in zip(found, saves, strict=True)
        if any("fail 5" in step for step in steps[save : steps.index("restart")])
    ]
    assert inside
    assert all(len(steps) == times for steps in inside)


def test_a_run_is_resumed_from_a_save_before_the_newest() -> None:
    """Saved behind each of ten events; the eighth is the first step, after the loader gave 12."""
    timeline = next(iter(many_saves(EVEN, ORDERS[0], back=3)))
    steps = split(timeline.script)
    assert steps[:20:2] == [event.step for event in events(Setup(), ORDERS[0])[:10]]
    assert steps[1:20:2] == ["save"] * 10
    assert steps[20:25] == ["crash", "restart from 6", "hand_out 12", "train", "hand_out 16"]


def test_two_save_points_a_third_of_the_run_apart_cross_into_another_pass() -> None:
    """Of 12 prompts in passes of 6 the life in the middle draws both from the first and on."""
    scripts = [t.script for t in every_two_save_points(TIGHT, ORDERS[0], third=True)]
    lives = [script.split("save; crash; restart; ") for script in scripts]
    places = [[re.findall(r"hand_out (\d+)", life)[-1] for life in three[:2]] for three in lives]
    assert ["4", "10"] in places


def test_a_stale_answer_comes_two_steps_after_its_prompt() -> None:
    order = next(order for order in ORDERS if order.name == "stale")
    steps = [event.step for event in events(Setup(max_age=1), order)]
    # 5 goes out with the weights of no step; it may be one step older than those it trains.
    assert steps[: steps.index("finish 5")].count("train") == 2


def test_a_backlog_is_more_than_one_step() -> None:
    order = next(order for order in ORDERS if order.name == "backlog")
    steps = [event.step for event in events(Setup(), order)]
    assert steps[: steps.index("train")][-1] == "finish 7"


@pytest.mark.parametrize("sizes", [EVEN, UNEVEN], ids=lambda sizes: sizes.name)
def test_a_save_comes_after_every_single_event(sizes) -> None:
    run_of = events(Setup(**sizes.fields), ORDERS[0])
    found = list(every_save_point(sizes, ORDERS[0], PLAIN))
    assert len(found) == len(run_of)
    for number, timeline in enumerate(found, start=1):
        steps = split(timeline.script)
        assert steps.index("save") == number
        assert steps[number + 1 : number + 3] == ["crash", "restart"]
        without = steps[:number] + steps[number + 4 :]
        assert without == [event.step for event in run_of]


# --- what they find -----------------------------------------------------------------------------


def expected_of_the_old_way(timeline: NamedTimeline, report: AuditReport) -> list[int]:
    """What the old way loses on paper, at the point of the save that the report is of."""
    script = report.timeline.text.removesuffix("; drain")
    return OldWay(Setup(**timeline.sizes), script).skipped


@pytest.mark.parametrize("timeline", SAMPLE)
def test_the_old_way_loses_what_it_loses_on_paper(timeline: NamedTimeline) -> None:
    report = run(LiveCursorCollector, timeline)
    if timeline.legacy:
        assert report.unreached is not None, "it makes no legacy checkpoints"
        return
    if timeline.name.endswith("torn-first"):
        # The only checkpoint is torn: it refuses, as it should.
        assert (report.verdict, report.passed) == ("refused", True)
        return
    assert report.skipped == expected_of_the_old_way(timeline, report)
    assert report.duplicated == []
    assert report.verdict == ("lossy" if report.skipped else "lossless")
    # What was in flight is lost already: a resumed life may have nothing that can race its save.
    assert report.unreached is None or timeline.name.endswith("raced-again")


@pytest.mark.parametrize("collector", [FrontierCollector, FuturesCollector])
@pytest.mark.parametrize("timeline", SAMPLE)
def test_the_new_way_loses_and_repeats_nothing(timeline: NamedTimeline, collector) -> None:
    report = run(collector, timeline)
    assert report.passed, report
    # What does not fit in a smaller buffer is answered again, and steps may be of any size.
    harmless = "capacity" in timeline.script or "prompts_per_step" in timeline.script
    resized = " with " in timeline.script and not harmless
    refuses = timeline.name.endswith("torn-first") or resized
    assert report.verdict == ("refused" if refuses else "lossless")
    assert set(report.skipped) == set(report.excused), "only legacy checkpoints excuse a loss"
    assert timeline.legacy or not report.skipped
    assert report.duplicated == []
    if "-raced" in timeline.name and collector is FuturesCollector:
        assert "single-threaded" in str(report.unreached)
    else:
        # A resumed life may have rewound its loader, and have nothing out that can race its save.
        assert report.unreached is None or timeline.name.endswith("raced-again")


@pytest.mark.parametrize("collector", [FrontierCollector, LiveCursorCollector])
@pytest.mark.parametrize("timeline", SAMPLE[::7])
def test_the_same_timeline_has_the_same_history(timeline: NamedTimeline, collector) -> None:
    """The audit audits itself: a sample of it, at every run."""
    first, second = run(collector, timeline), run(collector, timeline)
    assert first.history.lines() == second.history.lines()
    assert first.points == second.points


def test_the_old_way_is_caught_nearly_everywhere() -> None:
    """On paper: there are few moments in which nothing is out."""
    plain = [t for t in NIGHTLY if split(t.script).count("save") == 1 and "racing" not in t.script]
    lost = Counter(bool(OldWay(Setup(**t.sizes), t.script).skipped) for t in plain if not t.legacy)
    assert lost[True] > 10 * lost[False]
