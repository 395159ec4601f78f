"""Histories: where each prompt of a life stands, and which lives made the final weights."""

from __future__ import annotations

import random

import pytest

from pytest_resume_audit.history import (
    KINDS,
    End,
    Event,
    History,
    LifeRecord,
    Progress,
    SaveRecord,
    Standing,
    in_order,
)

PLACES = [name for name in Standing.__dataclass_fields__ if name not in ("partly", "place")]


def play(script: str, *, group_size: int = 1, settled: tuple[int, ...] = ()) -> Progress:
    """The progress after events such as ``"dispatched 5:1"``, split by semicolons."""
    progress = Progress(group_size, settled)
    for event in filter(None, (part.strip() for part in script.split(";"))):
        kind, prompt = event.split()
        ordinal, colon, generation = prompt.partition(":")
        progress.apply(Event(kind, int(ordinal), int(generation) if colon else None))
    return progress


def nowhere_but(standing: Standing, **where: set[int]) -> None:
    """Check all of a standing: what is not named is empty."""
    assert {p: set(getattr(standing, p)) for p in PLACES} == {
        p: where.get(p, set()) for p in PLACES
    }


# --- standing -----------------------------------------------------------------------------------

WAY = "handed_out 5; dispatched 5:0; finished 5:0; buffered 5:0; trained 5:0"


@pytest.mark.parametrize(
    ("length", "where"),
    list(enumerate([None, "handed_out", "in_flight", "held", "buffered", "trained"])),
)
def test_the_way_of_a_prompt(length: int, where: str | None) -> None:
    progress = play("; ".join(WAY.split("; ")[:length]))
    assert progress.where(5) == where
    nowhere_but(progress.standing(0), **({where: {5}} if where else {}))


@pytest.mark.parametrize(
    ("script", "where"),
    [
        ("dispatched 5:0; failed 5:0", "failed"),
        ("dispatched 5:0; dropped 5", "dropped"),
        ("buffered 5:0; evicted 5", "evicted"),
        ("buffered 5:0; evicted 5; dropped 5", "dropped"),
        # Without a buffer that is reported: from the collector's hands into the weights.
        ("dispatched 5:0; finished 5:0; trained 5:0", "trained"),
        # Restored from a checkpoint.
        ("buffered 5:0", "buffered"),
        ("buffered 5:0; handed_out 5", "buffered"),
        # Answered again though its answer was restored.
        ("buffered 5:0; handed_out 5; dispatched 5:0", "in_flight"),
        # A second try.
        ("dispatched 5:0; failed 5:0; dispatched 5:0", "in_flight"),
        ("dispatched 5:0; failed 5:0; dispatched 5:0; finished 5:0", "held"),
        # In one moment's events a new try comes before the failure it answers.
        ("dispatched 5:0; dispatched 5:0; failed 5:0", "in_flight"),
        ("dispatched 5:0; dispatched 5:0; failed 5:0; finished 5:0", "held"),
        # So it does before the eviction.
        ("buffered 5:0; dispatched 5:0; evicted 5", "in_flight"),
        # A late answer to what was given up changes nothing.
        ("dispatched 5:0; dropped 5; finished 5:0", "dropped"),
        ("dispatched 5:0; dropped 5; failed 5:0", "dropped"),
        # Unless it is used all the same.
        ("dispatched 5:0; dropped 5; finished 5:0; trained 5:0", "trained"),
    ],
)
def test_other_ways(script: str, where: str) -> None:
    assert play(script).where(5) == where


def test_what_is_settled_comes_round_again_and_stays_so() -> None:
    progress = play("handed_out 1; handed_out 2", settled=(0, 1))
    nowhere_but(progress.standing(3), settled={0, 1}, handed_out={2})


def test_what_is_settled_and_answered_again_is_in_flight() -> None:
    progress = play("handed_out 1; dispatched 1:0", settled=(0, 1))
    nowhere_but(progress.standing(3), settled={0}, in_flight={1})


def test_events_without_a_prompt_move_nothing() -> None:
    progress = Progress(1)
    for kind in ("started", "saving", "saved", "pass_ended", "crashed"):
        progress.apply(Event(kind, number=1))
    nowhere_but(progress.standing(4))
    assert progress.standing(4).place == 4


def test_unsettled_is_what_a_life_has_out() -> None:
    progress = play(
        "handed_out 0; dispatched 1:0; dispatched 2:0; finished 2:0; buffered 3:0; "
        "buffered 4:0; evicted 4; dispatched 5:0; failed 5:0; dropped 6; trained 7:0",
        settled=(8,),
    )
    standing = progress.standing(9)
    nowhere_but(
        standing,
        handed_out={0},
        in_flight={1},
        held={2},
        buffered={3},
        evicted={4},
        failed={5},
        dropped={6},
        trained={7},
        settled={8},
    )
    assert standing.unsettled == {0, 1, 2, 3, 4}


def test_a_standing_does_not_change_afterwards() -> None:
    progress = play("dispatched 5:0")
    before = progress.standing(0)
    progress.apply(Event("finished", 5, 0))
    nowhere_but(before, in_flight={5})


# --- groups -------------------------------------------------------------------------------------


def in_group(script: str) -> tuple[str | None, bool]:
    """Where group 5 of two stands, and whether it is there in part."""
    progress = play(script, group_size=2)
    return progress.where(5), 5 in progress.standing(0).partly


BOTH = "dispatched 5:0; dispatched 5:1; "


@pytest.mark.parametrize(
    ("script", "where", "partly"),
    [
        (BOTH, "in_flight", False),
        (BOTH + "finished 5:0", "in_flight", True),
        (BOTH + "finished 5:0; finished 5:1", "held", False),
        # One after the other: the second is not asked for before the first is there.
        ("dispatched 5:0; finished 5:0", "held", True),
        ("dispatched 5:0; finished 5:0; dispatched 5:1", "in_flight", True),
        # Each goes into the buffer as it comes: the group is buffered when it is whole.
        (BOTH + "finished 5:0; buffered 5:0", "in_flight", True),
        (BOTH + "finished 5:0; buffered 5:0; finished 5:1", "held", False),
        (BOTH + "finished 5:0; buffered 5:0; finished 5:1; buffered 5:1", "buffered", False),
        # A generation that comes twice makes no group.
        ("buffered 5:0; buffered 5:0", None, False),
        # One failure fails the group, but not before the other has ended.
        (BOTH + "failed 5:0", "in_flight", False),
        (BOTH + "failed 5:0; finished 5:1", "failed", False),
        (BOTH + "finished 5:1; failed 5:0", "failed", False),
        (BOTH + "failed 5:0; failed 5:1", "failed", False),
        (BOTH + "failed 5:0; finished 5:1; dispatched 5:0; finished 5:0", "held", False),
        # Trained, when nothing of the group is out any more.
        ("buffered 5:0; buffered 5:1; trained 5:0", "buffered", False),
        ("buffered 5:0; buffered 5:1; trained 5:0; trained 5:1", "trained", False),
        (BOTH + "finished 5:0; trained 5:0", "in_flight", False),
        (BOTH + "finished 5:0; trained 5:0; finished 5:1; trained 5:1", "trained", False),
        (BOTH + "failed 5:0; finished 5:1; trained 5:1", "trained", False),
        ("buffered 5:0; buffered 5:1; trained 5", "trained", False),
        # Half a group thrown out while the other half is answered.
        (BOTH + "finished 5:0; buffered 5:0; evicted 5", "in_flight", False),
    ],
)
def test_groups(script: str, where: str | None, partly: bool) -> None:
    assert in_group(script) == (where, partly)


def test_held_are_whole_groups_only() -> None:
    progress = play(
        "dispatched 1:0; finished 1:0; dispatched 2:0; finished 2:0; dispatched 2:1; finished 2:1",
        group_size=2,
    )
    assert progress.standing(0).held == {1, 2}
    assert progress.held() == {2}


def test_an_evicted_group_that_is_asked_for_again_begins_anew() -> None:
    progress = play(
        "buffered 5:0; buffered 5:1; evicted 5; dispatched 5:0; finished 5:0", group_size=2
    )
    assert progress.where(5) == "held"
    assert progress.held() == set()
    assert progress.standing(0).partly == {5}


# --- order --------------------------------------------------------------------------------------

IN_ORDER = [
    Event("restored", number=1),
    Event("saving", number=2),
    Event("handed_out", 2),
    Event("handed_out", 10),
    Event("pass_ended", number=1),
    Event("dispatched", 1, 0, 7),
    Event("dispatched", 2, 0, 3),  # by prompt, whatever the weights
    Event("finished", 1, 0),
    Event("finished", 1, 1),
    Event("finished", 2, 0),
    Event("failed", 0, 0),
    Event("buffered", 1, 0),
    Event("evicted", 4, text="full"),
    Event("dropped", 4, text="a"),
    Event("dropped", 4, text="b"),
    Event("trained", 9, 0, 1),
    Event("trained", 2, 0, 2),  # by step first
    Event("saved", number=2),
    Event("crashed"),
]


def test_the_order_of_one_moment_does_not_depend_on_who_came_first() -> None:
    for seed in range(20):
        shuffled = list(IN_ORDER)
        random.Random(seed).shuffle(shuffled)
        assert in_order(shuffled) == IN_ORDER


def test_every_kind_has_its_rank() -> None:
    assert in_order([Event(kind) for kind in reversed(KINDS)]) == [Event(kind) for kind in KINDS]


def test_the_lines_of_a_history() -> None:
    history = History(
        lives=[
            LifeRecord(1, events=[Event("handed_out", 0), Event("dispatched", 0, 0, 0)]),
            LifeRecord(2, events=[Event("dropped", 12, None, 3, "too old"), Event("crashed")]),
        ]
    )
    # A zero is said, what there is not is left out.
    assert history.lines() == [
        "life 1: handed_out 0",
        "life 1: dispatched 0 0 0",
        "life 2: dropped 12 3 too old",
        "life 2: crashed",
    ]


def test_the_ordinals_of_a_life() -> None:
    life = LifeRecord(
        1,
        events=[
            Event("trained", 4, 0, 1),
            Event("trained", 4, 1, 1),
            Event("saving", number=1),
            Event("trained", 6, 0, 2),
            Event("pass_ended", number=1),
        ],
    )
    assert life.ordinals("trained") == {4, 6}
    assert life.ordinals("trained", until=2) == {4}
    assert life.ordinals("trained", since=2) == {6}
    assert life.ordinals("pass_ended") == set()
    assert not life.began
    assert LifeRecord(1, start_counts=(0,)).began


# --- lineage ------------------------------------------------------------------------------------

NOTHING = Standing(**{place: frozenset() for place in (*PLACES, "partly")}, place=0)


def lineage_of(origins: list[int | None], saves: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Numbers of the lives of a lineage, with their events that belong to it.

    Args:
        origins: for each life the save it was restored from; each has 10 events.
        saves: life and position of each save.
    """
    history = History(
        lives=[
            LifeRecord(number, origin, events=[Event("started")] * 10)
            for number, origin in enumerate(origins, start=1)
        ],
        saves=[
            SaveRecord(number, life, position, NOTHING, 0, ())
            for number, (life, position) in enumerate(saves, start=1)
        ],
    )
    return [(life.number, until) for life, until in history.lineage()]


@pytest.mark.parametrize(
    ("origins", "saves", "lineage"),
    [
        ([], [], []),
        ([None], [], [(1, 10)]),
        # Saved at 3 and at 7, restarted from the newer one, from the older one, from none.
        ([None, 2], [(1, 3), (1, 7)], [(1, 7), (2, 10)]),
        ([None, 1], [(1, 3), (1, 7)], [(1, 3), (2, 10)]),
        ([None, None], [(1, 3), (1, 7)], [(2, 10)]),
        # A chain.
        ([None, 1, 2], [(1, 3), (2, 5)], [(1, 3), (2, 5), (3, 10)]),
        # Twice from one checkpoint: the life between leaves no trace.
        ([None, 1, 1], [(1, 3)], [(1, 3), (3, 10)]),
        ([None, 1, 1], [(1, 3), (2, 5)], [(1, 3), (3, 10)]),
        # Back over a life that had saved: from a checkpoint of the one before.
        ([None, 1, 2, 1], [(1, 3), (2, 5)], [(1, 3), (4, 10)]),
        # Afresh in the middle: what was before has no part in it.
        ([None, 1, None, 2], [(1, 3), (3, 5)], [(3, 5), (4, 10)]),
        ([None, None, 1], [(1, 3)], [(1, 3), (3, 10)]),
        # Saved before anything happened.
        ([None, 1], [(1, 0)], [(1, 0), (2, 10)]),
    ],
)
def test_lineage(
    origins: list[int | None], saves: list[tuple[int, int]], lineage: list[tuple[int, int]]
) -> None:
    assert lineage_of(origins, saves) == lineage


def test_what_was_out_at_the_save_is_owed_until_it_comes_round_again() -> None:
    progress = Progress(1, settled=[0], owed=[5, 6])
    assert progress.standing(4).owed == progress.standing(4).unsettled == {5, 6}
    progress.apply(Event("handed_out", 5))
    progress.apply(Event("handed_out", 0))
    standing = progress.standing(8)
    assert (standing.owed, standing.handed_out, standing.settled) == ({6}, {5}, {0})


def test_a_group_is_not_trained_while_the_collector_holds_some_of_it() -> None:
    progress = Progress(2)
    for kind in ("dispatched", "finished"):
        for generation in (0, 1):
            progress.apply(Event(kind, 5, generation))
    progress.apply(Event("trained", 5, 0, 1))
    assert progress.where(5) == "held"
    progress.apply(Event("trained", 5, 1, 1))
    assert progress.where(5) == "trained"


# --- ages ---------------------------------------------------------------------------------------


def test_how_old_each_answer_is_when_it_is_trained_or_dropped() -> None:
    first = [
        Event("handed_out", 0),
        Event("dispatched", 0, 0, 2),
        Event("dispatched", 0, 1, 4),  # a later try of the other half
        Event("dispatched", 1, 0, 4),
        Event("dispatched", 2, 0, 4),
        Event("dispatched", 3, 0, 4),
        Event("trained", 0, 0, 6),  # in a step that goes into weights of 5 steps
        Event("trained", 0, 1, 6),
        Event("dropped", 9, None, 6, "never asked for"),
        Event("trained", 8, 0, 6),  # nor was this one, as far as was seen
        Event("dispatched", 1, 0, 6),  # behind the save
    ]
    second = [
        Event("restored", number=1),
        Event("dispatched", 2, 0, 6),
        Event("dispatched", 4, 0, 6),
        Event("dispatched", 4, 1, 7),
        Event("dropped", 1, None, 6, "too old"),
        Event("trained", 2, 0, 8),
        Event("trained", 3, 0, 8),
        Event("dropped", 4, None, 9, "too old"),
    ]
    history = History(
        lives=[LifeRecord(1, events=first), LifeRecord(2, origin=1, events=second)],
        saves=[SaveRecord(1, 1, 10, NOTHING, 6, ())],
    )
    assert list(history.ends()) == [
        End("trained", 0, 3, False),
        End("trained", 0, 1, False),
        End("dropped", 1, 2, True),
        End("trained", 2, 1, False),
        End("trained", 3, 3, True),
        End("dropped", 4, 3, False),  # by the older one of its answers
    ]


def test_a_group_that_is_asked_for_again_in_part_is_not_carried_over() -> None:
    history = History(
        lives=[
            LifeRecord(1, events=[Event("dispatched", 0, 0, 1), Event("dispatched", 0, 1, 1)]),
            LifeRecord(2, 1, events=[Event("dispatched", 0, 1, 2), Event("dropped", 0, None, 3)]),
        ],
        saves=[SaveRecord(1, 1, 2, NOTHING, 2, ())],
    )
    assert list(history.ends()) == [End("dropped", 0, 2, False)]


def test_saves_are_found_by_their_number() -> None:
    saves = [SaveRecord(number, 1, 0, NOTHING, 0, ()) for number in (1, 2)]
    assert History(saves=saves).save(2) is saves[1]
