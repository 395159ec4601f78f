"""Numbering: which place of the stream an event belongs to, though a prompt knows its row only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from pytest_resume_audit.history import SaveRecord, Standing
from pytest_resume_audit.numbering import STAGES, LifeNumbering, Numbering

TWICE = [0, 1, 2, 3, 0, 1, 2, 3]
"""Two passes over four rows: row 1 has the places 1 and 5."""


def life(rows: list[int] | None = None, settled: tuple[int, ...] = ()) -> LifeNumbering:
    return LifeNumbering(Numbering(TWICE if rows is None else rows), settled)


def way(numbers: LifeNumbering, row: int, stages: str, generation: int = 0) -> list[int]:
    """The ordinals at which a row reaches these stages, one after the other."""
    return [numbers.of(stage, row, generation) for stage in stages.split()]


# --- the stream ---------------------------------------------------------------------------------


def test_the_uninterrupted_run_writes_the_stream() -> None:
    stream = Numbering()
    numbers = LifeNumbering(stream)
    assert stream.open
    assert numbers.hand_out([2, 0], 0) == [0, 1]
    assert numbers.hand_out([1, 3], 2) == [2, 3]
    assert numbers.hand_out([2, 0], None) == [4, 5]
    assert stream.rows == [2, 0, 1, 3, 2, 0]
    assert stream.places == {2: [0, 4], 0: [1, 5], 1: [2], 3: [3]}
    assert numbers.place == 6


def test_a_stream_that_is_known_is_not_written() -> None:
    stream = Numbering(TWICE)
    assert not stream.open
    assert LifeNumbering(stream).hand_out([0, 1], 0) == [0, 1]
    assert stream.rows == TWICE


def test_an_empty_stream_is_known_too() -> None:
    assert not Numbering([]).open


def test_matches() -> None:
    stream = Numbering(TWICE)
    assert stream.matches(0, [0, 1, 2])
    assert stream.matches(3, [3, 0])
    assert stream.matches(6, [2, 3])
    assert not stream.matches(6, [2, 3, 0])  # over the end
    assert not stream.matches(8, [0])
    assert not stream.matches(0, [1])


@pytest.mark.parametrize(
    ("rows", "near", "place"),
    [
        ([2, 3], 0, 2),
        ([2, 3], 3, 2),
        ([2, 3], 4, 2),  # as near as 6: the earlier one
        ([2, 3], 5, 6),
        ([2, 3], 99, 6),
        ([3, 0], 7, 3),  # over the seam of two passes: there is one such place
        ([0, 2], 0, None),  # not one behind the other
        ([9], 0, None),
        ([2, 3, 0, 1, 2, 3, 0], 0, None),  # longer than what is left
    ],
)
def test_find_the_nearest_place(rows: list[int], near: int, place: int | None) -> None:
    assert Numbering(TWICE).find(rows, near) == place


# --- hand-outs ----------------------------------------------------------------------------------


def test_a_loader_that_knows_its_place() -> None:
    numbers = life()
    assert numbers.hand_out([0, 1], 4) == [4, 5]
    assert numbers.place == 6
    assert numbers.hand_out([2, 3], 2) == [2, 3]
    assert numbers.place == 4


def test_an_empty_batch() -> None:
    numbers = life()
    numbers.hand_out([0, 1], 0)
    assert numbers.hand_out([], 2) == []
    assert numbers.place == 2


def test_a_watched_loader_goes_on_from_where_it_was() -> None:
    numbers = life()
    assert numbers.hand_out([0, 1, 2, 3], None) == [0, 1, 2, 3]
    # The same rows come in the second pass: not found anew, but next in the stream.
    assert numbers.hand_out([0, 1, 2, 3], None) == [4, 5, 6, 7]
    assert numbers.place == 8


def test_a_watched_loader_whose_place_is_found_by_its_rows() -> None:
    numbers = life()
    assert numbers.hand_out([2, 3], None) == [2, 3]
    numbers.place = 5
    assert numbers.hand_out([2, 3], None) == [6, 7]
    assert numbers.place == 8


def test_a_loader_that_hands_out_only_what_is_left() -> None:
    # A project that resumes by a list of prompts: its batches are nowhere in the stream.
    numbers = life(list(range(16)), settled=(0, 1, 2, 3))
    assert numbers.hand_out([5, 8, 9, 11], None) == [5, 8, 9, 11]
    assert numbers.hand_out([12, 13, 14, 15], None) == [12, 13, 14, 15]


def test_a_place_that_does_not_fit_its_rows() -> None:
    # Each row is taken for itself, from its first place on.
    numbers = life()
    assert numbers.hand_out([3, 1], 0) == [3, 1]
    assert numbers.hand_out([3, 1], 2) == [7, 5]
    assert numbers.place == 4


def test_behind_the_end_of_the_stream_rows_are_surplus() -> None:
    numbers = life()
    numbers.hand_out([0, 1, 2, 3], 0)
    numbers.hand_out([0, 1, 2, 3], 4)
    assert numbers.hand_out([0, 1], 8) == [4, 5]
    assert numbers.place == 10


def test_an_unknown_row_gets_a_place_at_the_end() -> None:
    numbers = life()
    assert numbers.hand_out([99, 98, 99], None) == [8, 9, 8]
    assert numbers.numbering.rows == [*TWICE, 99, 98]
    assert numbers.of("trained", 77, 0) == 10


# --- one pass -----------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", STAGES)
def test_with_one_place_a_row_is_there_whatever_happens(stage: str) -> None:
    numbers = life([3, 1, 2, 0], settled=(0, 1))
    for _ in range(3):
        assert numbers.of(stage, 3, 0) == 0
        assert numbers.of(stage, 1, 1) == 1


# --- several passes -----------------------------------------------------------------------------

WAY = "dispatched finished buffered trained"


def test_one_pass_after_the_other() -> None:
    numbers = life()
    for place in (0, 4):
        numbers.hand_out([0, 1, 2, 3], place)
        for row in (3, 1, 0, 2):
            assert way(numbers, row, WAY) == [place + row] * 4


def test_both_places_in_flight_at_once() -> None:
    numbers = life()
    numbers.hand_out([0, 1, 2, 3], 0)
    numbers.hand_out([0, 1, 2, 3], 4)
    assert way(numbers, 1, "dispatched dispatched") == [1, 5]
    # Which of them has finished is known. The later one was first.
    numbers.reach("finished", 5, 0)
    assert way(numbers, 1, "buffered trained") == [5, 5]
    numbers.reach("finished", 1, 0)
    assert way(numbers, 1, "buffered trained") == [1, 1]


def test_both_places_buffered_at_once() -> None:
    numbers = life()
    numbers.hand_out([0, 1, 2, 3], 0)
    numbers.hand_out([0, 1, 2, 3], 4)
    way(numbers, 1, "dispatched dispatched finished finished buffered buffered")
    assert way(numbers, 1, "trained trained") == [1, 5]


def test_a_place_is_dispatched_when_it_has_been_handed_out() -> None:
    numbers = life()
    numbers.hand_out([0, 1, 2, 3], 4)
    assert numbers.of("dispatched", 1, 0) == 5


def test_generations_go_each_their_own_way() -> None:
    numbers = life()
    numbers.hand_out([0, 1, 2, 3], 0)
    assert [numbers.of("dispatched", 1, generation) for generation in (0, 1)] == [1, 1]
    numbers.hand_out([0, 1, 2, 3], 4)
    assert [numbers.of("dispatched", 1, generation) for generation in (1, 0)] == [5, 5]
    numbers.reach("finished", 1, 0)
    numbers.reach("finished", 5, 1)
    assert numbers.of("buffered", 1, 0) == 1
    assert numbers.of("buffered", 1, 1) == 5


def test_looking_up_leaves_no_trace() -> None:
    numbers = life()
    numbers.hand_out([0, 1, 2, 3], 0)
    assert numbers.look_up("dispatched", 1, 0) == 1
    assert numbers.look_up("dispatched", 1, 0) == 1


# --- restarts -----------------------------------------------------------------------------------


def test_what_is_settled_comes_round_again_and_is_thrown_away() -> None:
    # 0-4 are settled. The loader goes back to 4: row 1 is dispatched for 5, and for 1 no more.
    numbers = life(settled=(0, 1, 2, 3, 4))
    numbers.hand_out([0, 1, 2, 3], 4)
    assert way(numbers, 1, WAY) == [5] * 4


def test_a_whole_pass_is_thrown_away_before_the_next_comes() -> None:
    numbers = life(settled=(0, 1, 2, 3))
    numbers.hand_out([0, 1, 2, 3], 0)
    numbers.hand_out([0, 1, 2, 3], 4)
    assert way(numbers, 1, WAY) == [5] * 4


def test_what_is_settled_and_trained_again_is_a_repeat_of_its_own_place() -> None:
    # A collector that does not know what is settled: it is 1 that is trained again, not 5.
    numbers = life(settled=(0, 1, 2, 3))
    numbers.hand_out([0, 1, 2, 3], 0)
    assert way(numbers, 1, WAY) == [1] * 4
    numbers.hand_out([0, 1, 2, 3], 4)
    assert way(numbers, 1, WAY) == [5] * 4


def test_restored_rollouts_belong_to_what_is_not_settled() -> None:
    numbers = life(settled=(0, 1, 2, 3))
    assert way(numbers, 1, "buffered trained") == [5, 5]


def test_a_restored_answer_is_not_of_the_place_that_is_asked_for_it_again() -> None:
    """Place 1 is in flight, and of place 5 one answer was saved."""
    numbers = life()
    numbers.owed = frozenset([1, 5])
    assert [numbers.of("dispatched", 1, generation) for generation in (0, 1)] == [1, 1]
    assert numbers.of("dispatched", 1, 0) == 5
    numbers.reach("finished", 5, 0)
    assert numbers.of("buffered", 1, 1) == 5


def test_two_restored_groups_of_one_row() -> None:
    numbers = life()
    buffered = [numbers.of("buffered", 1, generation) for generation in (0, 1, 0, 1)]
    assert buffered == [1, 1, 5, 5]


def test_what_was_out_twice_at_the_save_is_sent_off_twice_without_coming_round() -> None:
    numbers = life()
    numbers.owed = frozenset({1, 5})
    assert way(numbers, 1, "dispatched dispatched") == [1, 5]
    # And once more is a second try.
    assert numbers.of("dispatched", 1, 0) == 5


def test_a_second_try_goes_before_what_has_not_come_round_again() -> None:
    numbers = life()
    numbers.owed = frozenset({1, 5})
    numbers.hand_out([0, 1], 0)
    assert numbers.of("dispatched", 1, 0) == 1
    numbers.lose(1, 0)
    assert numbers.of("dispatched", 1, 0) == 1


def test_a_restored_place_is_not_dispatched_when_it_is_thrown_away_on_arrival() -> None:
    # 1 is restored from the buffer; it comes round, and then row 1 comes for 5.
    numbers = life()
    assert numbers.of("buffered", 1, 0) == 1
    numbers.hand_out([0, 1, 2, 3], 0)
    assert numbers.of("trained", 1, 0) == 1


def test_nothing_is_left_for_the_row() -> None:
    # Everything is settled, and nothing handed out: surplus goes to the last place.
    numbers = life(settled=tuple(range(8)))
    assert way(numbers, 1, "buffered trained trained") == [5, 5, 5]


def test_trained_more_often_than_there_are_places() -> None:
    numbers = life()
    assert way(numbers, 1, "trained trained trained trained") == [1, 5, 5, 5]


def test_a_settled_place_is_passed_over() -> None:
    numbers = life()
    numbers.hand_out([0, 1, 2, 3], 0)
    way(numbers, 1, "dispatched")
    numbers.settle(1)
    assert numbers.of("trained", 1, 0) == 5


# --- more tries ---------------------------------------------------------------------------------


def test_a_failed_place_is_tried_once_more() -> None:
    numbers = life()
    numbers.hand_out([0, 1, 2, 3], 0)
    assert way(numbers, 1, "dispatched") == [1]
    numbers.lose(1, 0)
    assert way(numbers, 1, WAY) == [1] * 4


def test_a_failed_place_is_tried_once_more_while_the_other_is_in_flight() -> None:
    numbers = life()
    numbers.hand_out([0, 1, 2, 3], 0)
    numbers.hand_out([0, 1, 2, 3], 4)
    way(numbers, 1, "dispatched dispatched")
    numbers.lose(1, 0)
    assert numbers.of("dispatched", 1, 0) == 1
    numbers.reach("finished", 5, 0)
    numbers.reach("finished", 1, 0)
    assert way(numbers, 1, "buffered buffered") == [1, 5]


def test_a_group_is_tried_again_as_a_whole_while_the_other_is_in_flight() -> None:
    """One of its generations failed, and the other had ended: both are asked for again."""
    numbers = life()
    numbers.hand_out([0, 1, 2, 3], 0)
    numbers.hand_out([0, 1, 2, 3], 4)
    for generation in (0, 1):
        way(numbers, 1, "dispatched dispatched", generation)
    numbers.lose(1, 0)
    numbers.reach("finished", 1, 1)
    assert [numbers.of("dispatched", 1, generation) for generation in (0, 1)] == [1, 1]


def test_a_restored_group_is_gone_on_with_before_one_that_was_handed_out_since() -> None:
    """Both are asked for one generation at a time, and the first of place 1 has ended."""
    numbers = life()
    numbers.owed = frozenset([1])
    assert numbers.of("dispatched", 1, 0) == 1
    numbers.hand_out([0, 1, 2, 3], 4)
    assert numbers.of("dispatched", 1, 0) == 5
    numbers.reach("finished", 1, 0)
    assert numbers.of("dispatched", 1, 1) == 1
    numbers.reach("finished", 5, 0)
    assert numbers.of("dispatched", 1, 1) == 5


def test_a_place_that_failed_for_good_leaves_the_next_to_itself() -> None:
    numbers = life()
    numbers.hand_out([0, 1, 2, 3], 0)
    way(numbers, 1, "dispatched")
    numbers.lose(1, 0)
    numbers.hand_out([0, 1, 2, 3], 4)
    assert way(numbers, 1, "dispatched") == [5]
    numbers.reach("finished", 5, 0)
    assert way(numbers, 1, "buffered trained") == [5, 5]


def test_a_failed_place_is_tried_again_before_one_that_was_settled_and_came_round() -> None:
    numbers = life(settled=(0, 1, 2, 3))
    numbers.hand_out([0, 1, 2, 3], 0)
    numbers.hand_out([0, 1, 2, 3], 4)
    assert numbers.of("dispatched", 1, 0) == 5
    numbers.lose(5, 0)
    assert numbers.of("dispatched", 1, 0) == 5


def test_an_evicted_place_goes_its_way_again() -> None:
    numbers = life()
    numbers.hand_out([0, 1, 2, 3], 0)
    numbers.hand_out([0, 1, 2, 3], 4)
    assert way(numbers, 1, "dispatched finished buffered") == [1, 1, 1]
    assert way(numbers, 1, "dispatched") == [5]
    numbers.lose(1, 0)
    assert way(numbers, 1, "dispatched finished buffered trained") == [1] * 4
    assert way(numbers, 1, "finished buffered trained") == [5] * 3


def test_an_evicted_place_is_not_the_trained_one() -> None:
    numbers = life()
    assert way(numbers, 1, "buffered buffered") == [1, 5]
    numbers.lose(1, 0)
    assert numbers.of("trained", 1, 0) == 5


def test_dispatched_once_too_often() -> None:
    numbers = life()
    numbers.hand_out([0, 1, 2, 3], 0)
    assert way(numbers, 1, "dispatched dispatched") == [1, 1]


def test_what_is_tried_again_in_the_uninterrupted_run_is_so_before_another_that_came() -> None:
    numbers = LifeNumbering(Numbering(TWICE, retried=frozenset({1})))
    numbers.hand_out([0, 1, 2, 3], 0)
    way(numbers, 1, "dispatched")
    numbers.hand_out([0, 1, 2, 3], 4)
    numbers.lose(1, 0)
    assert way(numbers, 1, "dispatched dispatched") == [1, 5]
    # It may be tried again later, though, and the other be asked for first.
    assert numbers.doubtful == {1, 5}


def test_what_failed_and_was_dropped_is_not_tried_again() -> None:
    numbers = life()
    numbers.owed = frozenset({1, 5})
    way(numbers, 1, "dispatched")
    numbers.lose(1, 0)
    numbers.settle(1)
    assert way(numbers, 1, "dispatched") == [5]


def test_the_last_of_several_is_asked_for_again_whichever_ended_last() -> None:
    numbers = life()
    numbers.owed = frozenset({1, 5})
    way(numbers, 1, "dispatched dispatched")
    numbers.reach("finished", 1, 0)
    assert way(numbers, 1, "dispatched") == [5]


def test_what_fails_for_good_in_the_uninterrupted_run_is_not_tried_again() -> None:
    numbers = LifeNumbering(Numbering(TWICE, given_up=frozenset({1})))
    numbers.owed = frozenset({1, 5})
    way(numbers, 1, "dispatched")
    numbers.lose(1, 0)
    assert way(numbers, 1, "dispatched") == [5]


def test_a_branch_knows_what_is_tried_again_too() -> None:
    branch = Numbering(TWICE, frozenset({1}), frozenset({2})).branch()
    assert (branch.rows, branch.given_up, branch.retried) == (TWICE, {1}, {2})


# --- tickets ------------------------------------------------------------------------------------


def test_a_prompt_says_which_hand_out_it_is() -> None:
    numbers = life()
    numbers.hand_out([0, 1, 2, 3], 0)
    numbers.hand_out([0, 1, 2, 3], 4)
    assert numbers.ask_for(1, 0, 5) == 5
    assert numbers.ask_for(1, 0, 1) == 1
    numbers.lose(5, 0)
    assert numbers.ask_for(1, 0, 5) == 5


def test_what_is_settled_and_asked_for_again_says_so() -> None:
    numbers = life(settled=(0, 1, 2, 3))
    numbers.hand_out([0, 1, 2, 3], 0)
    numbers.hand_out([0, 1, 2, 3], 4)
    assert numbers.ask_for(1, 0, 1) == 1


def test_one_prompt_that_is_kept_for_its_row_stands_for_each_of_its_places() -> None:
    numbers = life()
    numbers.hand_out([0, 1, 2, 3], 0)
    assert numbers.ask_for(1, 0, 1) == 1
    numbers.hand_out([0, 1, 2, 3], 4)
    assert numbers.ask_for(1, 0, 1) == 5


def test_one_that_is_kept_is_no_new_try_of_its_hand_out() -> None:
    numbers = life([0, 1, 0, 1, 0, 1])
    numbers.hand_out([0, 1], 0)
    numbers.hand_out([0, 1], 2)
    assert numbers.ask_for(1, 0, 1) == 1
    numbers.lose(1, 0)
    # Nothing says yet that it is kept: it is tried again.
    assert numbers.ask_for(1, 0, 1) == 1
    assert numbers.ask_for(1, 0, 1) == 3
    numbers.lose(1, 0)
    numbers.hand_out([0, 1], 4)
    assert numbers.ask_for(1, 0, 1) == 5


def test_what_is_asked_for_twice_says_so_where_no_other_waits() -> None:
    numbers = life()
    numbers.hand_out([0, 1, 2, 3], 0)
    assert numbers.of("buffered", 1, 0) == 1
    assert numbers.ask_for(1, 0, 1) == 1
    assert numbers.ask_for(1, 0, None) == 1


def test_the_ticket_of_another_row_says_nothing() -> None:
    numbers = life()
    numbers.hand_out([0, 1, 2, 3], 4)
    assert numbers.ask_for(1, 0, 6) == 5


# --- parts of groups from a checkpoint ----------------------------------------------------------


def restarted(
    answers: Mapping[int, set[int]],
    *,
    failed: frozenset[int] = frozenset(),
    load_buffer: bool = True,
    **stood: frozenset[int],
) -> LifeNumbering:
    """A life that is restored from a save at which these answers were there, and not buffered."""
    stood.setdefault("in_flight", frozenset({1, 5}))
    places: dict[str, Any] = {name: frozenset() for name in Standing.__dataclass_fields__}
    save = SaveRecord(
        number=1,
        life=1,
        position=0,
        standing=Standing(**{**places, **stood, "place": 8}),
        weight_version=0,
        counts=(),
        answers={ordinal: frozenset(there) for ordinal, there in answers.items()},
    )
    numbers = LifeNumbering(Numbering(TWICE, given_up=frozenset({1})))
    numbers.go_on_from(save, failed, load_buffer=load_buffer)
    return numbers


def asked(numbers: LifeNumbering, generations: list[int]) -> list[int]:
    return [numbers.of("dispatched", 1, generation) for generation in generations]


@pytest.mark.parametrize("there", [0, 1])
def test_what_is_thrown_away_is_asked_for_as_a_whole(there: int) -> None:
    assert asked(restarted({1: {there}}), [0, 1, 0, 1]) == [1, 1, 5, 5]


def test_what_is_thrown_away_is_not_kept_in_part() -> None:
    assert asked(restarted({1: {0, 1}}), [0, 0, 1]) == [1, 5, 1]


@pytest.mark.parametrize("there", [0, 1])
def test_of_what_is_kept_only_the_rest_is_asked_for(there: int) -> None:
    assert asked(restarted({1: {there}}), [1 - there, 0, 1]) == [1, 5, 5]


def test_what_is_kept_of_larger_groups() -> None:
    assert asked(restarted({1: {0, 2}}), [1, 0, 1, 2]) == [1, 5, 5, 5]
    assert asked(restarted({1: {1, 2}}), [0, 0, 1, 2]) == [1, 5, 5, 5]
    assert asked(restarted({1: {0}, 5: {0, 1}}), [1, 2, 2]) == [1, 1, 5]


def test_what_has_failed_in_part_and_is_not_tried_again_leaves_its_row_to_the_other() -> None:
    assert asked(restarted({}, failed=frozenset({1})), [0, 1]) == [5, 5]
    # 5 is tried again, by what an uninterrupted run does.
    assert asked(restarted({}, failed=frozenset({1, 5})), [0, 1]) == [5, 5]
    # Unless the other has been asked for: then it is tried again after all.
    assert asked(restarted({}, failed=frozenset({1})), [0, 0]) == [5, 1]
    # Settled, it is not what is asked for first in any case.
    settled = restarted({}, in_flight=frozenset({5}), failed=frozenset({1}))
    assert asked(settled, [0]) == [5]


def test_an_answer_that_was_there_is_put_in_the_buffer_at_its_own_place() -> None:
    numbers = restarted({5: {0}})
    assert asked(numbers, [0, 1, 1]) == [1, 1, 5]
    assert numbers.of("buffered", 1, 0) == 5


def test_a_save_may_begin_by_putting_whole_groups_in_the_buffer() -> None:
    numbers = restarted({1: {0}, 5: {0, 1}})
    assert [numbers.of("buffered", 1, generation) for generation in (0, 1)] == [5, 5]


def test_a_group_comes_into_the_buffer_as_a_whole() -> None:
    # Of 5 the last answers came while the save went on: 1 is in flight, and 5 has 0 alone.
    numbers = restarted({5: {0}})
    assert [numbers.of("buffered", 1, generation) for generation in (0, 1, 2)] == [5, 5, 5]
    # Nor is it of what had failed.
    numbers = restarted({}, failed=frozenset({1}))
    assert numbers.of("buffered", 1, 0) == 5


def test_an_answer_that_was_not_there_is_of_no_larger_part_of_a_group() -> None:
    assert restarted({1: {0, 1}, 5: {2}}).of("buffered", 1, 2) == 5


def test_what_was_in_the_buffer_comes_back_with_it_alone() -> None:
    stood = {"in_flight": frozenset({1}), "buffered": frozenset({5})}
    answers = {1: {0}, 5: {0, 1}}
    assert restarted(answers, **stood).of("buffered", 1, 0) == 5
    assert restarted(answers, load_buffer=False, **stood).of("buffered", 1, 0) == 1


def test_what_is_there_at_a_save() -> None:
    numbers = restarted({0: {0, 1}, 1: {0}, 5: {0}})
    numbers.reach("finished", 2, 1)
    numbers.reach("finished", 3, 0)
    numbers.reach("buffered", 3, 0)
    numbers.reach("dispatched", 1, 1)  # what it lacks
    numbers.reach("dispatched", 0, 1)  # as a whole, then
    numbers.reach("buffered", 4, 1)
    assert numbers.answers() == {1: {0}, 2: {1}, 3: {0}, 4: {1}, 5: {0}}
    numbers.reach("trained", 3, 0)
    numbers.lose(4, 1)
    numbers.reach("trained", 5, 0)
    assert numbers.answers() == {1: {0}, 2: {1}}


def test_where_part_of_a_group_is_there_nobody_can_tell_which_is_asked_for() -> None:
    numbers = restarted({1: {0}})
    asked(numbers, [0])
    assert numbers.doubtful == {1, 5}


def test_where_both_have_the_whole_way_before_them_it_does_not_matter() -> None:
    numbers = restarted({})
    asked(numbers, [0, 0])
    assert numbers.doubtful == set()


def test_where_a_part_was_asked_for_since_nobody_can_tell() -> None:
    numbers = restarted({})
    asked(numbers, [0, 1])
    assert numbers.doubtful == {1, 5}


def test_of_two_that_wait_for_their_next_generation_the_last_that_ended_goes_on() -> None:
    numbers = restarted({})
    asked(numbers, [1, 1])
    numbers.reach("finished", 5, 1)
    numbers.reach("finished", 1, 1)
    assert not numbers.doubtful
    assert asked(numbers, [0]) == [1]
    assert numbers.doubtful == {1, 5}
    numbers = restarted({})
    asked(numbers, [1, 1])
    numbers.reach("finished", 1, 1)
    numbers.reach("finished", 5, 1)
    assert asked(numbers, [0, 0]) == [5, 1]


def test_with_one_that_it_can_be_there_is_no_doubt() -> None:
    numbers = restarted({1: {0}}, in_flight=frozenset({1}))
    assert asked(numbers, [0]) == [1]
    assert not numbers.doubtful


def test_where_a_retry_may_be_the_other_place_nobody_can_tell() -> None:
    numbers = life()
    numbers.hand_out([0, 1, 2, 3], 0)
    way(numbers, 1, "dispatched")
    numbers.lose(1, 0)
    numbers.hand_out([0, 1, 2, 3], 4)
    assert not numbers.doubtful
    way(numbers, 1, "dispatched")
    assert numbers.doubtful == {1, 5}


def test_with_its_ticket_there_is_no_doubt() -> None:
    numbers = restarted({1: {0}})
    numbers.hand_out([0, 1], 4)
    assert numbers.ask_for(1, 0, 5) == 5
    assert numbers.doubtful == set()


# --- drops --------------------------------------------------------------------------------------


def test_a_drop_settles_its_place() -> None:
    numbers = life()
    numbers.hand_out([0, 1, 2, 3], 0)
    numbers.hand_out([0, 1, 2, 3], 4)
    assert numbers.drop(1) == 1
    assert way(numbers, 1, WAY) == [5] * 4
    # Nothing is left of the row.
    assert numbers.drop(1) == 5


def test_the_place_that_came_furthest_is_dropped() -> None:
    # 1 is in flight; of 5 there is more and more.
    numbers = life()
    numbers.hand_out([0, 1, 2, 3], 0)
    numbers.hand_out([0, 1, 2, 3], 4)
    way(numbers, 1, "dispatched dispatched")
    numbers.reach("finished", 5, 0)
    assert numbers._which_is_dropped(1) == 5
    numbers.reach("finished", 1, 0)
    numbers.reach("buffered", 5, 0)
    assert numbers._which_is_dropped(1) == 5


def test_what_was_evicted_is_dropped_before_what_is_buffered() -> None:
    numbers = life()
    assert way(numbers, 1, "buffered buffered") == [1, 5]
    numbers.lose(5, 0)
    assert numbers.drop(1) == 5


def test_a_failure_is_not_what_is_dropped_when_something_was_evicted() -> None:
    # 1 failed for good, 5 was answered, buffered and evicted.
    numbers = life()
    numbers.hand_out([0, 1, 2, 3], 0)
    way(numbers, 1, "dispatched")
    numbers.lose(1, 0)
    numbers.hand_out([0, 1, 2, 3], 4)
    way(numbers, 1, "dispatched")
    numbers.reach("finished", 5, 0)
    way(numbers, 1, "buffered")
    numbers.lose(5, 0)
    assert numbers.drop(1) == 5


def test_the_failed_one_of_two_that_were_dispatched_is_dropped() -> None:
    numbers = life()
    numbers.hand_out([0, 1, 2, 3], 0)
    numbers.hand_out([0, 1, 2, 3], 4)
    way(numbers, 1, "dispatched dispatched")
    numbers.lose(5, 0)
    assert numbers.drop(1) == 5


def test_a_drop_of_a_row_that_is_trained_or_unknown() -> None:
    numbers = life()
    way(numbers, 1, "buffered trained")
    assert numbers.drop(1) == 5
    assert numbers.drop(99) == 8
