"""The sizes of a run."""

from __future__ import annotations

import dataclasses
import pickle
import re
from contextlib import AbstractContextManager
from typing import Any

import pytest

from pytest_resume_audit import Setup

# The least that each whole number may be.
LEAST = {
    "prompts": 1,
    "batch_size": 1,
    "prompts_per_step": 1,
    "group_size": 1,
    "passes": 1,
    "seed": 0,
    "capacity": 1,
    "max_age": 0,
    "max_in_flight": 1,
    "max_failures": 0,
    "data_set": 0,
    "texts": 1,
}
MAY_BE_NONE = {"capacity", "max_age", "max_in_flight", "texts"}
FLAGS = {"shuffle", "drop_last"}


def make(**fields: Any) -> Setup:
    return Setup(**fields)


def refused(message: str) -> AbstractContextManager[Any]:
    return pytest.raises(ValueError, match=f"^{re.escape(message)}$")


def test_every_field_is_tested_here() -> None:
    assert {*LEAST, *FLAGS, "take"} == {field.name for field in dataclasses.fields(Setup)}


@pytest.mark.parametrize(("name", "least"), LEAST.items(), ids=LEAST)
def test_the_least_is_allowed_and_one_less_is_not(name: str, least: int) -> None:
    assert getattr(make(**{name: least}), name) == least
    with refused(f"Setup({name}={least - 1}): a whole number from {least} is needed"):
        make(**{name: least - 1})


@pytest.mark.parametrize("value", [1.0, 2.5, "3", True, float("nan"), [4]])
@pytest.mark.parametrize("name", LEAST)
def test_only_whole_numbers_are(name: str, value: Any) -> None:
    with refused(f"Setup({name}={value!r}): a whole number from {LEAST[name]} is needed"):
        make(**{name: value})


@pytest.mark.parametrize("name", LEAST)
def test_none_is_a_size_only_where_it_means_any(name: str) -> None:
    if name in MAY_BE_NONE:
        assert getattr(make(**{name: None}), name) is None
    else:
        with refused(f"Setup({name}=None): a whole number from {LEAST[name]} is needed"):
            make(**{name: None})


@pytest.mark.parametrize("value", [0, 1, None, "yes"])
@pytest.mark.parametrize("name", sorted(FLAGS))
def test_flags_are_true_or_false(name: str, value: Any) -> None:
    with refused(f"Setup({name}={value!r}): True or False is needed"):
        make(**{name: value})


@pytest.mark.parametrize("take", ["group", "hand_out", "arrival"])
def test_ways_to_take(take: Any) -> None:
    assert Setup(take=take).take == take


@pytest.mark.parametrize("take", ["Group", "", None, ["group"]])
def test_no_way_to_take(take: Any) -> None:
    with refused(f"Setup(take={take!r}): allowed are group, hand_out, arrival"):
        Setup(take=take)


def test_a_run_that_hands_out_nothing_is_none() -> None:
    assert Setup(prompts=4, batch_size=4, drop_last=True).total == 4
    with pytest.raises(ValueError, match=r"drop_last=True.*batch_size above prompts"):
        Setup(prompts=3, batch_size=4, drop_last=True)
    # Without drop_last it is one short batch.
    assert Setup(prompts=3, batch_size=4).total == 3


def test_sizes_are_given_by_name_and_stay() -> None:
    with pytest.raises(TypeError):
        Setup(16)  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        Setup().prompts = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("setup", "per_pass", "total"),
    [
        (Setup(), 16, 16),
        (Setup(prompts=17), 17, 17),
        (Setup(prompts=17, passes=3), 17, 51),
        # 4 batches of 4; the 17th prompt is left out of each pass.
        (Setup(prompts=17, drop_last=True), 16, 16),
        (Setup(prompts=17, drop_last=True, passes=3), 16, 48),
        (Setup(prompts=16, drop_last=True, passes=2), 16, 32),
        (Setup(prompts=7, batch_size=4, drop_last=True, passes=2), 4, 8),
        # Groups are not prompts.
        (Setup(prompts=5, group_size=3, passes=2), 5, 10),
    ],
)
def test_totals(setup: Setup, per_pass: int, total: int) -> None:
    assert setup.prompts_per_pass == per_pass
    assert setup.total == total


def test_without_shuffle_each_pass_is_in_order() -> None:
    setup = Setup(prompts=7, drop_last=True, passes=2)
    assert list(setup.order(0)) == list(setup.order(1)) == [0, 1, 2, 3]
    assert list(Setup(prompts=3).order(5)) == [0, 1, 2]


def test_shuffled_each_pass_has_an_order_of_its_own_and_every_row_once() -> None:
    setup = Setup(prompts=16, shuffle=True, passes=3)
    orders = [list(setup.order(epoch)) for epoch in range(3)]
    for order in orders:
        assert sorted(order) == list(range(16))
    assert len({tuple(order) for order in [*orders, list(range(16))]}) == 4


def test_an_order_is_the_same_in_every_process() -> None:
    # Written down once: a checkpoint of another process depends on it.
    assert list(Setup(prompts=8, shuffle=True).order(0)) == [6, 7, 3, 0, 2, 5, 1, 4]
    assert list(Setup(prompts=8, shuffle=True).order(1)) == list(
        pickle.loads(pickle.dumps(Setup(prompts=8, shuffle=True))).order(1)
    )


def test_the_seed_changes_the_order() -> None:
    first, second = (Setup(shuffle=True, seed=seed) for seed in (0, 1))
    assert list(first.order(0)) != list(second.order(0))
    # And the next seed is not the next pass.
    assert list(first.order(1)) != list(second.order(0))


def test_shuffle_with_drop_last_leaves_out_the_end_of_each_order() -> None:
    whole = Setup(prompts=10, shuffle=True)
    short = Setup(prompts=10, shuffle=True, drop_last=True)
    for epoch in range(3):
        assert list(short.order(epoch)) == list(whole.order(epoch))[:8]


@pytest.mark.parametrize(
    ("setup", "text"),
    [
        (Setup(), "Setup()"),
        (Setup(prompts=16, seed=0), "Setup()"),
        (
            Setup(group_size=2, prompts=17, take="hand_out", shuffle=True, capacity=8),
            "Setup(prompts=17, group_size=2, shuffle=True, take='hand_out', capacity=8)",
        ),
    ],
)
def test_it_is_written_as_it_would_be_made(setup: Setup, text: str) -> None:
    assert str(setup) == text
    assert eval(text, {"Setup": Setup}) == setup
