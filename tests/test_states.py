"""States: each is reached by what its name says, and not by what only looks like it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pytest_resume_audit import Setup
from pytest_resume_audit.catalogue import NAMED
from pytest_resume_audit.history import Event, History, LifeRecord, SaveRecord, Standing
from pytest_resume_audit.states import STATES, reached

SETUP = Setup(prompts=8, batch_size=4, passes=2)


def stands(place: int = 0, **where: set[int]) -> Standing:
    names = [name for name in Standing.__dataclass_fields__ if name != "place"]
    assert set(where) <= set(names)
    return Standing(place=place, **{name: frozenset(where.get(name, ())) for name in names})


def life(number: int, origin: int | None = None, *events: Event, **fields: Any) -> LifeRecord:
    fields.setdefault("ended", "crash")
    return LifeRecord(number, origin, events=list(events), **fields)


def save(number: int, of: int, standing: Standing | None = None, **fields: Any) -> SaveRecord:
    fields.setdefault("position", 0)
    fields.setdefault("published", True)
    return SaveRecord(
        number,
        life=of,
        standing=stands() if standing is None else standing,
        weight_version=0,
        counts=(),
        **fields,
    )


def history(lives: list[LifeRecord], saves: list[SaveRecord] | None = None) -> History:
    return History(tuple(range(8)) * 2, lives, saves or [])


def saved(place: int = 0, *events: Event, **where: set[int]) -> History:
    """One life that saves once, behind these events."""
    return history([life(1, None, *events)], [save(1, 1, stands(place, **where), position=9)])


ONE = life(1)

# A history that reaches each state, and those that nearly do.
CASES: dict[str, tuple[History, list[History]]] = {
    "saved": (
        saved(),
        [history([ONE]), history([ONE], [save(1, 1, published=False)])],
    ),
    "saved with prompts in flight": (saved(8, in_flight={5}), [saved(8, held={5})]),
    "saved with a buffer": (saved(8, buffered={5}), [saved(8, in_flight={5})]),
    "saved with a carried-over rest": (saved(8, handed_out={5}), [saved(8, in_flight={5})]),
    "saved with part of a group": (
        saved(8, in_flight={5}, partly={5}),
        [saved(8, in_flight={5})],
    ),
    # One hand-out is 4: with 4 trained, 0 is a whole one behind; with 3, it is not.
    "saved past a straggler": (
        saved(8, in_flight={0}, trained={1, 4}),
        [saved(8, in_flight={0}, trained={1, 3}), saved(8, in_flight={0}), saved(8, trained={4})],
    ),
    "saved with nothing out": (
        saved(8, trained={1}, failed={2}, dropped={3}, settled={0}),
        [saved(8, **{where: {5}}) for where in ("handed_out", "in_flight", "held", "buffered")],
    ),
    "saved at the end of a pass": (saved(8), [saved(0), saved(4), saved(12)]),
    "saved in a later pass": (saved(9), [saved(8), saved(4)]),
    "saved with a failure behind it": (
        saved(8, Event("failed", 5, 0)),
        [saved(8, Event("finished", 5, 0))],
    ),
    "saved with a drop behind it": (
        saved(8, Event("dropped", 5)),
        [
            saved(8, Event("failed", 5, 0)),
            # Behind the save, not before it.
            history([life(1, None, Event("dropped", 5))], [save(1, 1, position=0)]),
        ],
    ),
    "resumed": (
        history([ONE, life(2, 1)], [save(1, 1)]),
        [history([ONE, life(2)], [save(1, 1)]), saved()],
    ),
    "resumed without the buffer": (
        history([ONE, life(2, 1, load_buffer=False)], [save(1, 1)]),
        [
            history([ONE, life(2, 1)], [save(1, 1)]),
            history([ONE, life(2, load_buffer=False)], [save(1, 1)]),
        ],
    ),
    "resumed, and saved before anything was trained": (
        history([ONE, life(2, 1)], [save(1, 1), save(2, 2, stands(8, settled={1}))]),
        [
            history([ONE, life(2, 1)], [save(1, 1), save(2, 2, stands(8, trained={1}))]),
            saved(8),
        ],
    ),
    "resumed from an older checkpoint": (
        history([ONE, life(2, 1)], [save(1, 1), save(2, 1)]),
        [
            history([ONE, life(2, 2)], [save(1, 1), save(2, 1)]),
            # The newer one came later.
            history([ONE, life(2, 1)], [save(1, 1), save(2, 2)]),
            # There is no newer one: nothing was written.
            history([ONE, life(2, 1)], [save(1, 1), save(2, 1, published=False)]),
        ],
    ),
    "resumed twice from one checkpoint": (
        history([ONE, life(2, 1), life(3, 1)], [save(1, 1)]),
        [
            history([ONE, life(2, 1), life(3, 2)], [save(1, 1), save(2, 2)]),
            history([ONE, life(2), life(3)]),
        ],
    ),
    "started afresh after a crash": (
        history([ONE, life(2)]),
        [
            history([ONE]),
            history([ONE, life(2, 1)], [save(1, 1)]),
            history([life(1, ended="stop"), life(2)]),
        ],
    ),
    "resumed from a legacy checkpoint": (
        history([ONE, life(2, 1)], [save(1, 1, legacy=True)]),
        [
            history([ONE, life(2, 2)], [save(1, 1, legacy=True), save(2, 1)]),
            history([ONE], [save(1, 1, legacy=True)]),
        ],
    ),
    "rolled back trained prompts": (
        history([life(1, None, Event("trained", 4, 0, 1)), life(2, 1)], [save(1, 1, position=0)]),
        [
            history(
                [life(1, None, Event("trained", 4, 0, 1)), life(2, 1)], [save(1, 1, position=1)]
            ),
            history([life(1, None, Event("finished", 4, 0)), life(2, 1)], [save(1, 1, position=0)]),
        ],
    ),
}

CASES["raced inside a save"] = (
    history([ONE], [replace(save(1, 1), raced=("finish 5",))]),
    [history([ONE], [replace(save(1, 1), kept_out=("finish 5",))]), saved(8)],
)
CASES["died between writes"] = (
    history([ONE], [replace(save(1, 1, published=False), died_at="mkdir step_1")]),
    [saved(8), history([ONE], [save(1, 1, published=False)])],
)


def test_every_state_is_here() -> None:
    assert set(CASES) == set(STATES)


@pytest.mark.parametrize("name", STATES)
def test_it_is_reached_by_what_it_says(name: str) -> None:
    assert name in reached(CASES[name][0], SETUP)


@pytest.mark.parametrize("name", STATES)
def test_it_is_not_reached_by_less(name: str) -> None:
    for number, other in enumerate(CASES[name][1]):
        assert name not in reached(other, SETUP), number


@pytest.mark.parametrize("name", [name for name in STATES if name.startswith("saved")])
def test_a_save_that_wrote_nothing_reaches_nothing(name: str) -> None:
    told = CASES[name][0]
    told.saves[0].published = False
    assert name not in reached(told, SETUP)
    told.saves[0].published = True


def test_nothing_is_reached_by_nothing() -> None:
    assert reached(History(), SETUP) == frozenset()
    assert reached(history([life(1, ended="end")]), SETUP) == frozenset()


def test_under_drop_last_a_pass_is_shorter() -> None:
    # 10 prompts in batches of 4: a pass ends at 8.
    short = Setup(prompts=10, batch_size=4, passes=2, drop_last=True)
    assert "saved at the end of a pass" in reached(saved(8), short)
    assert "saved in a later pass" in reached(saved(9), short)
    assert "saved at the end of a pass" not in reached(saved(10), short)


def test_the_catalogue_asks_for_states_that_there_are() -> None:
    for timeline in NAMED.values():
        assert {*timeline.must_reach, *timeline.may_reach} <= set(STATES), timeline.name
