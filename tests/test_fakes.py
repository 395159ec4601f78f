"""The parts of a rig, used by hand: prompts, loader, engine, buffer, trainer."""

from __future__ import annotations

import asyncio
import copy
import json
import pickle
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest

from pytest_resume_audit import GenerationFailed, LifeEnded, Prompt, Rig, Rollout, Setup
from pytest_resume_audit.control import Control, Waiter
from pytest_resume_audit.fakes import prompts as prompts_module
from pytest_resume_audit.fakes.loader import Loader
from pytest_resume_audit.fakes.prompts import Prompts
from pytest_resume_audit.history import Event
from pytest_resume_audit.numbering import Numbering

FIVE = Setup(prompts=5, batch_size=2)
"""Three batches a pass: [0, 1], [2, 3], [4]."""


def rows(batch: list[Prompt]) -> list[int]:
    return [prompt.row for prompt in batch]


def answer(row: int, generation: int = 0, version: int = 0, tag: Any = None) -> Rollout:
    return Rollout(Prompt(row), generation, version, tag)


def gens(rollouts: list[Rollout]) -> list[tuple[int, int]]:
    return [(rollout.prompt.row, rollout.generation) for rollout in rollouts]


class SeenControl(Control):
    """A control that says when somebody comes to stand at a gate."""

    def __init__(self, *args: Any, **fields: Any) -> None:
        super().__init__(*args, **fields)
        self._stood = threading.Semaphore(0)

    def _stand(self, waiter: Waiter) -> None:
        super()._stand(waiter)
        self._stood.release()

    def until_at(self, gate: str) -> None:
        """Wait until somebody stands at a gate."""
        assert self._stood.acquire(timeout=10)
        assert [waiter.gate for waiter in self.waiters] == [gate]


class Audited:
    """A rig with its control in hand: what is recorded, and the end of the life."""

    def __init__(self, setup: Setup | None = None, **fields: Any) -> None:
        setup = Setup() if setup is None else setup
        stream = [row for epoch in range(setup.passes) for row in setup.order(epoch)]
        self.control = SeenControl(setup, Numbering(stream), **fields)
        self.rig = Rig(setup, self.control)

    def records(self, kind: str) -> list[Event]:
        return [event for event in self.control.records if event.kind == kind]

    def ordinals(self, kind: str) -> list[int | None]:
        return [event.ordinal for event in self.records(kind)]


# --- prompts ------------------------------------------------------------------------------------


def test_prompts_are_a_data_set() -> None:
    prompts = Prompts(4)
    assert len(prompts) == 4
    assert [prompt.row for prompt in prompts] == [0, 1, 2, 3]
    assert prompts[1:3] == [Prompt(1), Prompt(2)]
    assert prompts[-1] == Prompt(3)
    with pytest.raises(IndexError):
        prompts.__getitem__(4)


def test_a_prompt_knows_its_row_and_never_its_ordinal() -> None:
    prompt = Prompt(3)
    assert not hasattr(prompt, "__dict__")
    names = [name for name in dir(prompt) if not name.startswith("_")]
    assert names == ["data_set", "row", "text", "text_of", "ticket"]
    with pytest.raises(FrozenInstanceError):
        prompt.row = 4  # type: ignore[misc]


def test_prompts_and_rollouts_survive_a_file() -> None:
    rollout = answer(3, 1, 7, tag={"ordinal": 11})
    assert pickle.loads(pickle.dumps(rollout)) == rollout
    assert copy.deepcopy(rollout) == rollout


@pytest.fixture
def no_faker(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def forget() -> None:
        prompts_module._sentences.cache_clear()
        prompts_module._text.cache_clear()

    monkeypatch.setitem(sys.modules, "faker", None)
    forget()
    yield
    forget()


@pytest.mark.usefixtures("no_faker")
def test_texts_are_plain_without_faker() -> None:
    assert Prompt(3).text == "prompt 3"
    assert answer(3, 1).text == "answer 1 to: prompt 3"


def test_texts_are_the_same_every_time_and_each_has_its_row() -> None:
    prompts_module._text.cache_clear()
    first = [prompt.text for prompt in Prompts(4)]
    prompts_module._text.cache_clear()
    assert [Prompt(row).text for row in (3, 2, 1, 0)] == first[::-1]
    assert len(set(first)) == 4


# --- loader -------------------------------------------------------------------------------------


def test_each_iter_is_a_pass() -> None:
    loader = Rig(FIVE).loader
    assert len(loader) == 3
    for _ in range(2):
        assert [rows(batch) for batch in loader] == [[0, 1], [2, 3], [4]]


def test_drop_last() -> None:
    loader = Rig(Setup(prompts=5, batch_size=2, drop_last=True)).loader
    assert len(loader) == 2
    assert [rows(batch) for batch in loader] == [[0, 1], [2, 3]]


def test_each_pass_has_the_order_of_its_epoch() -> None:
    setup = Setup(prompts=10, batch_size=4, shuffle=True, drop_last=True, passes=2)
    loader = Rig(setup).loader
    passes = [[row for batch in loader for row in rows(batch)] for _ in range(2)]
    assert passes == [list(setup.order(0)), list(setup.order(1))]
    assert passes[0] != passes[1]


def test_rows_may_have_their_texts_in_common() -> None:
    rig = Rig(Setup(texts=8))
    assert rig.prompts[11].text == rig.prompts[3].text == Prompt(3).text
    assert rig.prompts[11] != rig.prompts[3]
    assert len({prompt.text for prompt in rig.prompts}) == 8
    assert rig.prompts.fingerprint != Rig(Setup()).prompts.fingerprint


def test_a_text_that_two_rows_have_comes_back_with_the_buffer() -> None:
    rig = Rig(Setup(texts=8))
    rig.buffer.add(Rollout(rig.prompts[11], generation=0, weight_version=0))
    again = Rig(Setup(texts=8))
    again.buffer.load_state_dict(rig.buffer.state_dict())
    assert again.buffer.sample(1)[0].prompt.text == Prompt(3).text


def test_the_prompts_are_those_of_the_data_set() -> None:
    rig = Rig(FIVE)
    batch = next(iter(rig.loader))
    assert batch[0] == rig.prompts[0]
    # Though each hand-out of it is told from the others.
    assert batch[0].ticket not in (rig.prompts[0].ticket, batch[1].ticket)


def state(epoch: int, yielded: int) -> dict[str, int]:
    return {"epoch": epoch, "yielded": yielded}


def test_the_state_is_the_live_place() -> None:
    loader = Rig(FIVE).loader
    assert loader.state_dict() == state(0, 0)
    batches = iter(loader)
    assert loader.state_dict() == state(0, 0)
    seen = []
    for _ in range(3):
        next(batches)
        seen.append((loader.state_dict(), loader.place))
    assert seen == [(state(0, 2), 2), (state(0, 4), 4), (state(0, 5), 5)]
    # The end of the pass is noticed by the call that finds nothing.
    assert next(batches, None) is None
    assert (loader.state_dict(), loader.place) == (state(1, 0), 5)
    assert next(batches, None) is None
    assert loader.state_dict() == state(1, 0)
    assert rows(next(iter(loader))) == [0, 1]
    assert (loader.state_dict(), loader.place) == (state(1, 2), 7)


def test_a_state_is_plain_and_its_own() -> None:
    loader = Rig(FIVE).loader
    before = loader.state_dict()
    next(iter(loader))
    assert before == state(0, 0)
    assert json.loads(json.dumps(before)) == before


@pytest.mark.parametrize(
    ("at", "rest"),
    [
        (state(0, 0), [[0, 1], [2, 3], [4]]),
        (state(0, 2), [[2, 3], [4]]),
        (state(0, 3), [[3, 4]]),  # in the middle of a batch: on from there
        (state(0, 5), []),  # after the last batch, before the end was noticed
        (state(1, 0), [[0, 1], [2, 3], [4]]),
    ],
)
def test_a_restored_loader_goes_on(at: dict[str, int], rest: list[list[int]]) -> None:
    loader = Rig(Setup(prompts=5, batch_size=2, passes=2)).loader
    loader.load_state_dict(at)
    assert loader.state_dict() == at
    assert [rows(batch) for batch in loader] == rest
    # Then comes the next pass, from its beginning.
    assert loader.state_dict() == state(at["epoch"] + 1, 0)
    assert [rows(batch) for batch in loader] == [[0, 1], [2, 3], [4]]


def test_a_restored_loader_has_the_order_of_its_epoch() -> None:
    setup = Setup(prompts=8, batch_size=4, shuffle=True, passes=2)
    loader = Rig(setup).loader
    loader.load_state_dict(state(1, 4))
    assert [rows(batch) for batch in loader] == [list(setup.order(1))[4:]]


def test_iter_in_the_middle_of_a_pass_begins_the_next() -> None:
    loader = Rig(FIVE).loader
    next(iter(loader))
    again = iter(loader)
    assert loader.state_dict() == state(1, 0)
    assert rows(next(again)) == [0, 1]
    assert loader.state_dict() == state(1, 2)


def test_iter_that_is_never_asked_is_a_pass_all_the_same() -> None:
    loader = Rig(FIVE).loader
    iter(loader)
    iter(loader)
    assert loader.state_dict() == state(1, 0)


def test_the_iterator_that_exists_goes_its_own_way() -> None:
    loader = Rig(FIVE).loader
    old = iter(loader)
    next(old)
    loader.load_state_dict(state(0, 4))
    assert rows(next(old)) == [2, 3]
    # The state is that of the place that was loaded, which the next iter() takes.
    assert loader.state_dict() == state(0, 4)
    new = iter(loader)
    assert rows(next(new)) == [4]
    assert rows(next(old)) == [4]
    assert next(old, None) is None
    assert loader.state_dict() == state(0, 5)
    assert next(new, None) is None
    assert loader.state_dict() == state(1, 0)


def test_a_state_loaded_before_iter_and_one_loaded_after() -> None:
    loader = Rig(FIVE).loader
    loader.load_state_dict(state(0, 2))
    batches = iter(loader)
    loader.load_state_dict(state(0, 4))
    assert rows(next(batches)) == [2, 3]
    assert rows(next(iter(loader))) == [4]


@pytest.mark.parametrize(
    "bad",
    [None, [], 3, "x", {}, {"epoch": 0}, {"yielded": 0}, {"epoch": None, "yielded": 0},
     {"epoch": "one", "yielded": 0}],
    ids=str,
)  # fmt: skip
def test_no_state_of_a_loader(bad: Any) -> None:
    loader = Rig(FIVE).loader
    next(iter(loader))
    with pytest.raises(ValueError, match=r"^not a state of this loader: "):
        loader.load_state_dict(bad)
    assert loader.state_dict() == state(0, 2)


@pytest.mark.parametrize("bad", [state(0, 6), state(0, -1), state(-1, 0)], ids=str)
def test_a_state_of_a_loader_over_other_data(bad: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"^a state of a loader over other data: .* 5 prompts$"):
        Rig(FIVE).loader.load_state_dict(bad)


def test_drop_last_makes_the_data_shorter() -> None:
    loader = Rig(Setup(prompts=5, batch_size=2, drop_last=True)).loader
    loader.load_state_dict(state(0, 4))
    with pytest.raises(ValueError, match="other data"):
        loader.load_state_dict(state(0, 5))


def test_what_the_loader_does_is_recorded() -> None:
    audited = Audited(Setup(prompts=4, batch_size=2, passes=2))
    loader = audited.rig.loader
    for _ in range(2):
        assert not audited.control.data_over
        for _ in loader:
            pass
    assert audited.ordinals("handed_out") == list(range(8))
    assert [event.number for event in audited.records("pass_ended")] == [1, 2]
    assert audited.control.data_over


def test_a_pass_that_ends_before_the_last_is_not_the_end_of_the_data() -> None:
    audited = Audited(Setup(prompts=4, batch_size=2, passes=2))
    list(audited.rig.loader)
    assert audited.control.pass_ended
    assert not audited.control.data_over
    next(iter(audited.rig.loader))
    assert not audited.control.pass_ended


def test_a_restored_loader_numbers_from_its_place() -> None:
    audited = Audited(Setup(prompts=4, batch_size=2, passes=2))
    audited.rig.loader.load_state_dict(state(1, 2))
    assert audited.control.numbers.place == 6
    list(audited.rig.loader)
    assert audited.ordinals("handed_out") == [6, 7]
    assert audited.control.data_over


def test_async_iteration() -> None:
    async def two_passes(loader: Loader) -> list[list[int]]:
        return [rows(batch) for _ in range(2) async for batch in loader]

    loader = Rig(FIVE).loader
    assert asyncio.run(two_passes(loader)) == [[0, 1], [2, 3], [4]] * 2
    assert loader.state_dict() == state(2, 0)


def test_async_and_plain_iteration_share_the_state() -> None:
    async def first(loader: Loader) -> list[int]:
        return rows(await anext(aiter(loader)))

    loader = Rig(FIVE).loader
    assert asyncio.run(first(loader)) == [0, 1]
    assert loader.state_dict() == state(0, 2)
    assert rows(next(iter(loader))) == [0, 1]
    assert loader.state_dict() == state(1, 2)


# --- a project's own loader ---------------------------------------------------------------------


class OwnLoader:
    """Batches of rows; its state is a list of a name and a count."""

    name = "mine"

    def __init__(self, batches: list[list[int]]) -> None:
        self.batches = batches
        self.next = 0

    def __iter__(self) -> Iterator[list[int]]:
        while self.next < len(self.batches):
            self.next += 1
            yield self.batches[self.next - 1]
        self.next = 0

    def __len__(self) -> int:
        return len(self.batches)

    def state_dict(self) -> dict[str, Any]:
        return {"at": (self.name, self.next)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        _, self.next = state["at"]


TWO_PASSES = Setup(prompts=4, batch_size=2, passes=2)


def watched(audited: Audited, batches: list[list[int]] | None = None) -> Any:
    own = OwnLoader([[0, 1], [2, 3]] if batches is None else batches)
    return audited.rig.watch(own, key=lambda batch: batch)


def test_a_watched_loader_hands_out_and_is_numbered() -> None:
    audited = Audited(TWO_PASSES)
    loader = watched(audited)
    assert len(loader) == 2
    assert list(loader) == [[0, 1], [2, 3]]
    assert list(loader) == [[0, 1], [2, 3]]
    assert audited.ordinals("handed_out") == list(range(8))
    assert audited.control.data_over


def test_what_a_watched_loader_has_besides_is_its_own() -> None:
    loader = watched(Audited())
    assert loader.name == "mine"
    with pytest.raises(AttributeError):
        loader.nothing_like_it()


def test_the_key_gives_rows_of_any_batch() -> None:
    audited = Audited()
    loader = audited.rig.watch(
        [{"index": ["1", "0"]}], key=lambda batch: (int(i) for i in batch["index"])
    )
    assert list(loader) == [{"index": ["1", "0"]}]
    assert audited.ordinals("handed_out") == [1, 0]


def test_a_pass_of_a_watched_loader_begins_with_its_iterator() -> None:
    """One that is made before a state is loaded must not see that state."""
    touched = []

    class Eager:
        def __iter__(self) -> Iterator[list[int]]:
            touched.append(True)
            return iter([[0]])

    batches = iter(Audited().rig.watch(Eager(), key=lambda batch: batch))
    assert touched
    assert next(batches) == [0]


@pytest.mark.parametrize("file", [lambda s: s, lambda s: json.loads(json.dumps(s))])
def test_the_place_of_a_watched_loader_comes_back_with_its_state(
    file: Callable[[Any], Any],
) -> None:
    # Both passes have the same batches: only the state tells which one the restart is in.
    first = Audited(TWO_PASSES)
    loader = watched(first)
    list(loader)
    next(iter(loader))
    saved = file(loader.state_dict())
    second = Audited(TWO_PASSES)
    second.control.numbers.numbering.saved_places.update(
        first.control.numbers.numbering.saved_places
    )
    again = watched(second)
    again.load_state_dict(saved)
    assert next(iter(again)) == [2, 3]
    assert second.ordinals("handed_out") == [6, 7]


def test_the_place_of_a_state_nobody_has_seen_is_found_by_the_rows() -> None:
    audited = Audited()
    loader = watched(audited, [[row, row + 1] for row in range(0, 16, 2)])
    loader.load_state_dict({"at": ["mine", 3]})
    assert next(iter(loader)) == [6, 7]
    assert audited.ordinals("handed_out") == [6, 7]


def test_states_that_json_does_not_know_have_a_place_too() -> None:
    class Odd(OwnLoader):
        def state_dict(self) -> Any:
            return {"at": (frozenset({1}), self.next)}

    audited = Audited(TWO_PASSES)
    loader = audited.rig.watch(Odd([[0, 1], [2, 3]]), key=lambda batch: batch)
    list(loader)
    batches = iter(loader)
    next(batches)
    saved = loader.state_dict()
    next(batches)
    loader.load_state_dict(saved)
    assert audited.control.numbers.place == 6


# --- engine -------------------------------------------------------------------------------------


def test_submit() -> None:
    engine = Rig().engine
    future = engine.submit(Prompt(5))
    assert not future.done()
    assert engine.in_flight == [(5, 0)]
    engine.finish(5)
    assert future.result(timeout=0) == answer(5)
    assert engine.in_flight == []


def test_in_any_order_and_by_generation() -> None:
    engine = Rig(Setup(group_size=2)).engine
    futures = {
        (row, generation): engine.submit(Prompt(row), generation)
        for row in (7, 3)
        for generation in (1, 0)
    }
    assert engine.in_flight == [(3, 0), (3, 1), (7, 0), (7, 1)]
    engine.finish(7, generation=1)
    engine.finish(3)
    assert [key for key, future in futures.items() if not future.done()] == [(7, 0)]
    assert futures[3, 1].result(timeout=0) == answer(3, 1)
    assert engine.in_flight == [(7, 0)]


def test_an_answer_has_the_weights_that_it_began_with() -> None:
    rig = Rig()
    first = rig.engine.submit(Prompt(0))
    rig.trainer.train([answer(1)])
    second = rig.engine.submit(Prompt(2))
    rig.engine.finish(0)
    rig.engine.finish(2)
    assert first.result(timeout=0).weight_version == 0
    assert second.result(timeout=0).weight_version == 1


def test_a_failure() -> None:
    engine = Rig().engine
    future = engine.submit(Prompt(5))
    engine.fail(5)
    with pytest.raises(GenerationFailed, match=r"^generation 0 of the prompt in row 5 failed$"):
        future.result(timeout=0)
    again = engine.submit(Prompt(5))
    engine.finish(5)
    assert again.result(timeout=0) == answer(5)


def test_one_of_a_group_fails() -> None:
    engine = Rig(Setup(group_size=2)).engine
    futures = [engine.submit(Prompt(5), generation) for generation in (0, 1)]
    engine.fail(5, generation=1)
    assert futures[1].done()
    assert not futures[0].done()


def test_a_cancelled_future_stays_cancelled() -> None:
    engine = Rig().engine
    future = engine.submit(Prompt(5))
    assert future.cancel()
    engine.finish(5)
    assert future.cancelled()


@pytest.mark.parametrize(
    ("end", "which", "said"),
    [
        ("finish", {"row": 6}, "row 6 is not in flight; in flight: [(5, 0)]"),
        ("fail", {"row": 5, "generation": 1},
         "row 5, generation 1 is not in flight; in flight: [(5, 0)]"),
    ],
)  # fmt: skip
def test_what_is_not_in_flight_cannot_end(end: str, which: dict[str, int], said: str) -> None:
    engine = Rig().engine
    engine.submit(Prompt(5))
    with pytest.raises(LookupError) as caught:
        getattr(engine, end)(**which)
    assert str(caught.value) == said


def test_nothing_ends_twice() -> None:
    engine = Rig().engine
    engine.submit(Prompt(5))
    engine.finish(5)
    with pytest.raises(LookupError, match=r"in flight: \[\]$"):
        engine.finish(5)


def in_thread(call: Callable[[], Any]) -> Future[Any]:
    """Make a call in a thread: a future of what it returns or raises, LifeEnded included."""
    outcome: Future[Any] = Future()

    def body() -> None:
        try:
            outcome.set_result(call())
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=body, daemon=True).start()
    return outcome


def test_generate_blocks_until_the_answer_is_there() -> None:
    audited = Audited()
    outcome = in_thread(lambda: audited.rig.engine.generate(Prompt(5)))
    audited.control.until_at("engine")
    assert not outcome.done()
    audited.rig.engine.finish(5)
    assert outcome.result(timeout=10) == answer(5)


def test_generate_raises_the_failure() -> None:
    audited = Audited()
    outcome = in_thread(lambda: audited.rig.engine.generate(Prompt(5), generation=0))
    audited.control.until_at("engine")
    audited.rig.engine.fail(5)
    with pytest.raises(GenerationFailed):
        outcome.result(timeout=10)


def test_agenerate() -> None:
    async def both(rig: Rig) -> list[Any]:
        tasks = [asyncio.create_task(rig.engine.agenerate(Prompt(row))) for row in (1, 2)]
        await asyncio.sleep(0)
        assert rig.engine.in_flight == [(1, 0), (2, 0)]
        rig.engine.finish(2)
        assert await tasks[1] == answer(2)
        assert not tasks[0].done()
        rig.engine.fail(1)
        return await asyncio.gather(*tasks, return_exceptions=True)

    failure, rollout = asyncio.run(both(Rig()))
    assert isinstance(failure, GenerationFailed)
    assert rollout == answer(2)


def test_a_cancelled_coroutine_does_not_stand_at_the_gate_any_more() -> None:
    async def cancelled(audited: Audited) -> None:
        task = asyncio.create_task(audited.rig.engine.agenerate(Prompt(1)))
        await asyncio.sleep(0)
        assert len(audited.control.standing_at("engine")) == 1
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert audited.control.standing_at("engine") == []
        audited.rig.engine.finish(1)

    asyncio.run(cancelled(Audited()))


def test_two_places_of_a_row_in_flight_end_as_what_they_are() -> None:
    audited = Audited(TWO_PASSES)
    rig = audited.rig
    for _ in range(2):
        list(rig.loader)
    for _ in range(2):
        rig.engine.submit(Prompt(1))
    later = audited.control.in_flight[5][0]
    audited.control.end_generation(later)
    rig.buffer.add(later.result())
    rig.trainer.train(rig.buffer.sample(1))
    assert audited.ordinals("dispatched") == [1, 5]
    for kind in ("finished", "buffered", "trained"):
        assert audited.ordinals(kind) == [5], kind


# --- buffer -------------------------------------------------------------------------------------


def test_the_lowest_complete_groups_are_taken() -> None:
    buffer = Rig(Setup(group_size=2)).buffer
    for row, generation in [(3, 0), (1, 1), (2, 0), (1, 0), (2, 1)]:
        buffer.add(answer(row, generation))
    assert len(buffer) == 2
    assert buffer.sample(3) == []
    assert len(buffer) == 2
    assert gens(buffer.sample(1)) == [(1, 1), (1, 0)]
    assert gens(buffer.sample(1)) == [(2, 0), (2, 1)]
    assert len(buffer) == 0
    buffer.add(answer(3, 1))
    assert gens(buffer.sample(1)) == [(3, 0), (3, 1)]


def test_lowest_is_first_in_the_stream_not_in_the_data_set() -> None:
    setup = Setup(prompts=8, shuffle=True)
    buffer = Rig(setup).buffer
    order = list(setup.order(0))
    for row in range(8):
        buffer.add(answer(row))
    assert [row for row, _ in gens(buffer.sample(8))] == order


def test_a_generation_that_comes_twice_makes_no_group() -> None:
    buffer = Rig(Setup(group_size=2)).buffer
    buffer.add(answer(1, 0))
    buffer.add(answer(1, 0))
    assert len(buffer) == 0
    buffer.add(answer(1, 1))
    # And what is there twice is handed on twice: hiding it would hide a fault.
    assert gens(buffer.sample(1)) == [(1, 0), (1, 0), (1, 1)]


def test_in_order_of_arrival() -> None:
    buffer = Rig(Setup(take="arrival")).buffer
    for row in (3, 1, 2):
        buffer.add(answer(row))
    assert gens(buffer.sample(2)) == [(3, 0), (1, 0)]


def test_a_full_buffer_evicts_the_oldest_group() -> None:
    audited = Audited(Setup(capacity=2, group_size=2))
    buffer = audited.rig.buffer
    assert buffer.add(answer(3, 0)) == []
    assert buffer.add(answer(1, 0)) == []
    assert buffer.add(answer(3, 1)) == []
    assert gens(buffer.add(answer(2, 0))) == [(3, 0), (3, 1)]
    assert gens(buffer.add(answer(0, 0))) == [(1, 0)]
    assert len(buffer) == 0
    evicted = [(event.ordinal, event.text) for event in audited.records("evicted")]
    assert evicted == [(3, "full"), (1, "full")]


def test_room_comes_back_when_groups_are_taken() -> None:
    buffer = Rig(Setup(capacity=2)).buffer
    for row in (0, 1):
        buffer.add(answer(row))
    buffer.sample(1)
    assert buffer.add(answer(2)) == []


def test_what_is_too_old_is_evicted() -> None:
    # At most 1 step old: with weights of version 3, version 2 stays and version 1 goes.
    audited = Audited(Setup(max_age=1))
    buffer = audited.rig.buffer
    for row, version in [(0, 1), (1, 2), (2, 0), (3, 3)]:
        buffer.add(answer(row, version=version))
    assert buffer.evict(1) == []
    assert gens(buffer.evict(3)) == [(0, 0), (2, 0)]
    assert gens(buffer.sample(2)) == [(1, 0), (3, 0)]
    assert [(e.ordinal, e.text) for e in audited.records("evicted")] == [
        (0, "too old"),
        (2, "too old"),
    ]


def test_a_group_is_as_old_as_its_oldest_answer() -> None:
    buffer = Rig(Setup(max_age=0, group_size=2)).buffer
    buffer.add(answer(1, 0, version=2))
    buffer.add(answer(1, 1, version=1))
    assert buffer.evict(1) == []
    assert gens(buffer.evict(2)) == [(1, 0), (1, 1)]


def test_without_limits_nothing_is_evicted() -> None:
    buffer = Rig().buffer
    assert [buffer.add(answer(row)) for row in range(16)] == [[]] * 16
    assert buffer.evict(10**6) == []


def test_a_hand_out_is_taken_when_none_of_it_is_in_flight() -> None:
    rig = Rig(Setup(prompts=10, batch_size=4, take="hand_out", passes=2))
    for row in (4, 5, 1, 2):
        rig.buffer.add(answer(row))
    rig.engine.submit(Prompt(3))
    assert rig.buffer.sample_hand_out() == []
    rig.engine.finish(3)
    assert gens(rig.buffer.sample_hand_out()) == [(1, 0), (2, 0)]
    # 6 and 7 never came; what is in flight of the next hand-out is none of its business.
    rig.engine.submit(Prompt(8))
    assert gens(rig.buffer.sample_hand_out()) == [(4, 0), (5, 0)]
    assert rig.buffer.sample_hand_out() == []


def test_the_last_hand_out_of_a_pass_is_short() -> None:
    # Hand-outs of 4, 4, 2 and again 4, 4, 2: 9 is the end of the first pass, 10 begins the next.
    rig = Rig(Setup(prompts=10, batch_size=4, take="hand_out", passes=2))
    for row in (8, 9, 0, 8):
        rig.buffer.add(answer(row))
    rig.buffer.add(answer(0))
    # Row 0 has the places 0 and 10, row 8 has 8 and 18.
    taken = []
    while batch := rig.buffer.sample_hand_out():
        taken.append(gens(batch))
    assert taken == [[(0, 0)], [(8, 0), (9, 0)], [(0, 0)], [(8, 0)]]


def test_a_state_of_a_buffer_goes_through_a_file() -> None:
    setup = Setup(group_size=2)
    buffer = Rig(setup).buffer
    kept = [answer(3, 0, 1, tag=12), answer(1, 0), answer(3, 1, 2, tag={"n": [1]})]
    for rollout in kept:
        buffer.add(rollout)
    text = json.dumps(buffer.state_dict())
    audited = Audited(setup)
    again = audited.rig.buffer
    again.add(answer(9))
    assert again.load_state_dict(json.loads(text)) == []
    assert audited.ordinals("buffered") == [9, 3, 3, 1]
    assert len(again) == 1
    assert again.state_dict() == json.loads(text)
    assert again.sample(1) == [kept[0], kept[2]]
    # What was there before is gone, and of 1 there is only half.
    again.add(answer(1, 1))
    assert again.sample(1) == [kept[1], answer(1, 1)]
    assert again.state_dict() == {"rollouts": []}


def test_a_state_keeps_the_order_of_arrival() -> None:
    setup = Setup(take="arrival")
    buffer, again = Rig(setup).buffer, Rig(setup).buffer
    for row in (3, 1, 2):
        buffer.add(answer(row))
    again.load_state_dict(buffer.state_dict())
    assert gens(again.sample(3)) == [(3, 0), (1, 0), (2, 0)]


def test_what_does_not_fit_any_more_comes_back() -> None:
    buffer = Rig().buffer
    for row in range(4):
        buffer.add(answer(row))
    small = Rig(Setup(capacity=3)).buffer
    assert gens(small.load_state_dict(buffer.state_dict())) == [(0, 0)]
    assert len(small) == 3


ONE = {"row": 1, "generation": 0, "weight_version": 0, "tag": None}


@pytest.mark.parametrize(
    "bad",
    [None, [], {}, {"rollouts": None}, {"rollouts": [1]}, {"rollouts": [{"row": 1}]}]
    + [{"rollouts": [{key: value for key, value in ONE.items() if key != left}]} for left in ONE]
    + [{"rollouts": [{**ONE, key: "1"}]} for key in ("row", "generation", "weight_version")],
    ids=str,
)
def test_no_state_of_a_buffer(bad: Any) -> None:
    buffer = Rig().buffer
    buffer.add(answer(5))
    with pytest.raises(ValueError, match=r"^not a state of this buffer: "):
        buffer.load_state_dict(bad)
    assert gens(buffer.sample(1)) == [(5, 0)]


@pytest.mark.parametrize("other", [{"row": 16}, {"row": -1}, {"generation": 1}], ids=str)
def test_a_state_of_a_buffer_over_other_data(other: dict[str, int]) -> None:
    buffer = Rig().buffer
    buffer.add(answer(5))
    with pytest.raises(ValueError, match=r"other data: .* 16 prompts in groups of 1$"):
        buffer.load_state_dict({"rollouts": [ONE, {**ONE, **other}]})
    assert gens(buffer.sample(1)) == [(5, 0)]


# --- trainer ------------------------------------------------------------------------------------


def test_the_weights_count() -> None:
    audited = Audited(Setup(prompts=3, group_size=2, batch_size=3))
    trainer = audited.rig.trainer
    assert (trainer.weight_version, trainer.counts()) == (0, [0] * 6)
    trainer.train([answer(0, 1), answer(2, 0)])
    trainer.train([answer(2, 0)])
    assert (trainer.weight_version, trainer.counts()) == (2, [0, 1, 0, 0, 2, 0])
    assert [(e.ordinal, e.generation, e.number) for e in audited.records("trained")] == [
        (0, 1, 1),
        (2, 0, 1),
        (2, 0, 2),
    ]


def test_counts_are_a_copy() -> None:
    trainer = Rig().trainer
    trainer.counts()[0] = 9
    assert trainer.counts()[0] == 0


def test_any_iterable_of_rollouts_is_trained() -> None:
    audited = Audited()
    audited.rig.trainer.train(iter([answer(0), answer(1)]))  # type: ignore[arg-type, unused-ignore]
    assert audited.rig.trainer.counts()[:3] == [1, 1, 0]
    assert audited.ordinals("trained") == [0, 1]


def filled(setup: Setup, which: list[int]) -> Rig:
    """A rig whose loader has handed all out, and whose buffer has these."""
    rig = Rig(setup)
    for row in which:
        rig.buffer.add(answer(row))
    return rig


def test_a_step_takes_what_is_due() -> None:
    rig = filled(Setup(prompts_per_step=2), [4, 1, 2])
    assert gens(rig.trainer.step() or []) == [(1, 0), (2, 0)]
    assert rig.trainer.step() is False
    assert rig.trainer.weight_version == 1


def test_a_last_step_takes_what_is_left() -> None:
    rig = filled(Setup(prompts_per_step=4), [0, 1, 2])
    list(rig.loader)
    future = rig.engine.submit(Prompt(3))
    # The loader has ended, but something is in flight.
    assert rig.trainer.step() is False
    rig.engine.fail(3)
    assert future.done()
    assert gens(rig.trainer.step() or []) == [(0, 0), (1, 0), (2, 0)]
    assert rig.trainer.step() is False


def test_a_last_step_is_not_taken_before_the_loader_says_that_it_has_ended() -> None:
    rig = filled(Setup(prompts=4), [0, 1, 2])
    batches = iter(rig.loader)
    next(batches)
    assert rig.trainer.step() is False
    assert next(batches, None) is None
    assert rig.trainer.step()


def test_a_last_step_comes_after_the_last_pass() -> None:
    rig = filled(Setup(prompts=4, passes=2), [0, 1, 2])
    list(rig.loader)
    assert rig.trainer.step() is False
    list(rig.loader)
    assert rig.trainer.step()


def test_a_last_step_is_a_step() -> None:
    rig = filled(Setup(prompts_per_step=2), [0, 1, 2])
    list(rig.loader)
    assert [gens(rig.trainer.step() or []) for _ in range(3)] == [[(0, 0), (1, 0)], [(2, 0)], []]


def test_half_a_group_is_never_taken() -> None:
    rig = filled(Setup(group_size=2), [0, 1])
    list(rig.loader)
    assert rig.trainer.step() is False


def test_a_step_by_arrival() -> None:
    rig = filled(Setup(prompts_per_step=2, take="arrival"), [5, 1, 3])
    assert gens(rig.trainer.step() or []) == [(5, 0), (1, 0)]


def test_a_step_by_hand_out() -> None:
    rig = filled(Setup(take="hand_out", prompts_per_step=2), [0, 1, 2, 3, 4])
    assert len(rig.trainer.step() or []) == 4
    rig.engine.submit(Prompt(5))
    assert rig.trainer.step() is False
    rig.engine.finish(5)
    assert gens(rig.trainer.step() or []) == [(4, 0)]


@pytest.mark.parametrize("bad", [None, 3, Prompt(1), {"row": 1}])
def test_only_rollouts_are_trained(bad: Any) -> None:
    trainer = Rig().trainer
    with pytest.raises(TypeError) as caught:
        trainer.train([answer(0), bad])
    assert str(caught.value) == f"rig.trainer.train takes rollouts, not {type(bad).__name__}"
    assert trainer.counts() == [0] * 16
    assert trainer.weight_version == 0


@pytest.mark.parametrize(("row", "generation"), [(16, 0), (-1, 0), (0, 2), (0, -1)])
def test_only_rows_of_the_data_set_are(row: int, generation: int) -> None:
    trainer = Rig(Setup(group_size=2)).trainer
    with pytest.raises(ValueError, match="outside of the data set") as caught:
        trainer.train([answer(0), answer(row, generation)])
    assert str(caught.value) == (
        f"row {row}, generation {generation} is outside of the data set: 16 prompts in groups of 2"
    )
    assert trainer.counts() == [0] * 32


def test_weights_go_through_a_file() -> None:
    trainer = Rig().trainer
    trainer.train([answer(3)])
    text = json.dumps(trainer.state_dict())
    trainer.train([answer(4)])
    again = Rig().trainer
    again.train([answer(9)])
    again.train([answer(9)])
    again.load_state_dict(json.loads(text))
    assert again.weight_version == 1
    assert again.counts() == [int(row == 3) for row in range(16)]
    again.train([answer(3)])
    assert (again.weight_version, again.counts()[3]) == (2, 2)


@pytest.mark.parametrize(
    "bad",
    [None, {}, {"version": 1}, {"counts": [0] * 16}, {"version": "a", "counts": [0] * 16},
     {"version": 1, "counts": None}, {"version": 1, "counts": ["x"]}],
    ids=str,
)  # fmt: skip
def test_no_state_of_a_trainer(bad: Any) -> None:
    trainer = Rig().trainer
    trainer.train([answer(3)])
    with pytest.raises(ValueError, match=r"^not a state of this trainer: "):
        trainer.load_state_dict(bad)
    assert trainer.weight_version == 1


def test_weights_of_another_size() -> None:
    with pytest.raises(ValueError, match="of another size") as caught:
        Rig(Setup(group_size=2)).trainer.load_state_dict(Rig().trainer.state_dict())
    assert str(caught.value) == (
        "weights of another size: 16 counts, but 16 prompts in groups of 2"
    )


def test_counts_ride_in_a_torch_module() -> None:
    torch = pytest.importorskip("torch")
    rig = Rig(Setup(prompts=4))
    rig.trainer.train([answer(1)])
    model = torch.nn.Linear(2, 2)
    rig.trainer.attach(model)
    assert model.state_dict()["resume_audit_counts"].tolist() == [0, 1, 0, 0, 1]
    rig.trainer.train([answer(1), answer(2)])
    saved = {name: value.clone() for name, value in model.state_dict().items()}
    assert saved["resume_audit_counts"].tolist() == [0, 2, 1, 0, 2]
    assert (rig.trainer.weight_version, rig.trainer.counts()) == (2, [0, 2, 1, 0])
    assert rig.trainer.state_dict() == {"version": 2, "counts": [0, 2, 1, 0]}

    other = Rig(Setup(prompts=4))
    fresh = torch.nn.Linear(2, 2)
    other.trainer.attach(fresh)
    fresh.load_state_dict(saved)
    assert (other.trainer.weight_version, other.trainer.counts()) == (2, [0, 2, 1, 0])
    assert other.engine.submit(Prompt(0)) is not None
    other.engine.finish(0)
    other.trainer.load_state_dict({"version": 7, "counts": [1, 1, 1, 1]})
    assert fresh.state_dict()["resume_audit_counts"].tolist() == [1, 1, 1, 1, 7]


def test_a_module_that_is_moved_or_cast_keeps_its_counts() -> None:
    torch = pytest.importorskip("torch")
    rig = Rig(Setup(prompts=4))
    model = torch.nn.Linear(2, 2)
    rig.trainer.attach(model)
    model.half()
    model._apply(lambda tensor: tensor.clone())
    rig.trainer.train([answer(3)])
    counts = model.state_dict()["resume_audit_counts"]
    assert counts.dtype == torch.int64
    assert counts.tolist() == [0, 0, 0, 1, 1]
    assert [name for name, _ in model.named_parameters()] == ["weight", "bias"]


def test_attach_without_torch_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(
        ImportError, match=r"needs torch: pip install 'pytest-resume-audit\[torch\]'"
    ):
        Rig().trainer.attach(object())  # type: ignore[arg-type, unused-ignore]


# --- what a collector reports -------------------------------------------------------------------


def test_a_buffer_of_the_projects_own_is_reported() -> None:
    audited = Audited()
    audited.rig.buffered(answer(5))
    assert audited.records("buffered") == [Event("buffered", 5, 0)]


def test_a_drop_needs_a_reason() -> None:
    audited = Audited()
    with pytest.raises(ValueError, match=r"^rig\.dropped needs a reason"):
        audited.rig.dropped(Prompt(5), "")
    assert audited.control.records == []
    audited.rig.dropped(Prompt(5), "too old")
    assert audited.records("dropped") == [Event("dropped", 5, number=0, text="too old")]


def test_the_place_that_is_buffered_is_the_one_that_is_dropped() -> None:
    # Row 1 is trained at 1, and in the buffer for 5.
    audited = Audited(TWO_PASSES)
    rig = audited.rig
    rig.buffer.add(answer(1))
    rig.trainer.train(rig.buffer.sample(1))
    rig.buffer.add(answer(1))
    rig.dropped(Prompt(1), "not wanted")
    assert audited.ordinals("dropped") == [5]


def test_events_of_a_self_driven_collector(tmp_path: Any) -> None:
    audited = Audited()
    rig = audited.rig
    rig.restored(tmp_path / "step_3")
    rig.saving(tmp_path / "step_4")
    rig.saved(str(tmp_path / "step_4"))  # type: ignore[arg-type, unused-ignore]
    rig.point("anywhere")
    assert audited.records("restored") == [Event("restored", text="step_3")]
    assert audited.control.checkpoint == tmp_path / "step_4"


# --- the end of a life --------------------------------------------------------------------------

LAST_CALLS: dict[str, Callable[[Rig], Any]] = {
    "iter": lambda rig: iter(rig.loader),
    "aiter": lambda rig: aiter(rig.loader),
    "place": lambda rig: rig.loader.place,
    "loader-state": lambda rig: rig.loader.state_dict(),
    "loader-load": lambda rig: rig.loader.load_state_dict(state(0, 0)),
    "generate": lambda rig: rig.engine.generate(Prompt(0)),
    "submit": lambda rig: rig.engine.submit(Prompt(0)),
    "agenerate": lambda rig: asyncio.run(rig.engine.agenerate(Prompt(0))),
    "finish": lambda rig: rig.engine.finish(15),
    "fail": lambda rig: rig.engine.fail(15),
    "in-flight": lambda rig: rig.engine.in_flight,
    "add": lambda rig: rig.buffer.add(answer(0)),
    "len": lambda rig: len(rig.buffer),
    "sample": lambda rig: rig.buffer.sample(1),
    "sample-hand-out": lambda rig: rig.buffer.sample_hand_out(),
    "evict": lambda rig: rig.buffer.evict(1),
    "buffer-state": lambda rig: rig.buffer.state_dict(),
    "buffer-load": lambda rig: rig.buffer.load_state_dict({"rollouts": []}),
    "step": lambda rig: rig.trainer.step(),
    "train": lambda rig: rig.trainer.train([answer(0)]),
    "weight-version": lambda rig: rig.trainer.weight_version,
    "trainer-state": lambda rig: rig.trainer.state_dict(),
    "trainer-load": lambda rig: rig.trainer.load_state_dict({"version": 0, "counts": [0] * 16}),
    "buffered": lambda rig: rig.buffered(answer(0)),
    "dropped": lambda rig: rig.dropped(Prompt(0), "a reason"),
    "point": lambda rig: rig.point("here"),
    "saving": lambda rig: rig.saving(None),  # type: ignore[arg-type]
    "saved": lambda rig: rig.saved("step_1"),  # type: ignore[arg-type]
    "restored": lambda rig: rig.restored("step_1"),  # type: ignore[arg-type]
    "watch-iter": lambda rig: iter(rig.watch([[0]], key=lambda batch: batch)),
    "watch-state": lambda rig: rig.watch(OwnLoader([[0]]), key=lambda batch: batch).state_dict(),
    "watch-load": lambda rig: rig.watch(OwnLoader([[0]]), key=lambda b: b).load_state_dict({}),
}


@pytest.mark.parametrize("call", LAST_CALLS.values(), ids=LAST_CALLS)
def test_every_call_after_the_end_raises(call: Callable[[Rig], Any]) -> None:
    audited = Audited()
    in_flight = audited.rig.engine.submit(Prompt(15))
    audited.control.end()
    before = list(audited.control.records)
    with pytest.raises(LifeEnded):
        call(audited.rig)
    # From another thread as well, and nothing is recorded, nothing done.
    with pytest.raises(LifeEnded):
        in_thread(lambda: call(audited.rig)).result(timeout=10)
    assert audited.control.records == before
    assert not in_flight.done()


def test_an_iterator_of_a_dead_life_raises() -> None:
    audited = Audited()
    plain = iter(audited.rig.loader)
    own = iter(watched(audited))
    next(plain)
    audited.control.end()
    for batches in (plain, own):
        with pytest.raises(LifeEnded):
            next(batches)


def test_no_future_is_completed_after_the_end() -> None:
    audited = Audited()
    called = []
    future = audited.rig.engine.submit(Prompt(5))
    future.add_done_callback(called.append)
    # Ended, but its completion comes late: the life ends in between.
    late: list[Callable[[], None]] = []
    audited.control.courier = late.append
    audited.rig.engine.finish(5)
    audited.control.end()
    late[0]()
    assert not future.done()
    assert called == []


@pytest.mark.parametrize("gate", ["engine", "loader", "trainer", "save", "saved"])
def test_a_thread_at_a_gate_ends_with_its_life(gate: str) -> None:
    # Gated and self-driven: each gate is closed until the script opens it.
    audited = Audited(gated=True, self_driven=True)
    control, rig = audited.control, audited.rig

    def saves() -> None:
        control.save_limit = 1
        rig.saving(None)  # type: ignore[arg-type]
        rig.saved("step_1")  # type: ignore[arg-type]

    calls: dict[str, Callable[[], Any]] = {
        "engine": lambda: rig.engine.generate(Prompt(5)),
        "loader": lambda: next(iter(rig.loader)),
        "trainer": lambda: rig.trainer.train([answer(0)]),
        "save": lambda: rig.saving(None),  # type: ignore[arg-type]
        "saved": saves,
    }
    outcome = in_thread(calls[gate])
    control.until_at(gate)
    control.end()
    with pytest.raises(LifeEnded):
        outcome.result(timeout=10)
    assert control.standing_at(gate) == []
    assert control.records == [Event("dispatched", 5, 0, 0)] * (gate == "engine")


@pytest.mark.parametrize("what", ["agenerate", "async for"])
def test_a_coroutine_at_a_gate_ends_with_its_life(what: str) -> None:
    audited = Audited(gated=True)
    control, rig = audited.control, audited.rig
    reached = []

    async def waits() -> None:
        if what == "agenerate":
            await rig.engine.agenerate(Prompt(5))
        else:
            await anext(aiter(rig.loader))
        reached.append("behind the gate")

    outcome = in_thread(lambda: asyncio.run(waits()))
    control.until_at("engine" if what == "agenerate" else "loader")
    control.end()
    with pytest.raises(LifeEnded):
        outcome.result(timeout=10)
    assert reached == []


def test_except_exception_does_not_keep_a_dead_life_going() -> None:
    assert not issubclass(LifeEnded, Exception)
    # A thread that it ends says nothing, even under -W error.
    assert issubclass(LifeEnded, SystemExit)


# --- the rig ------------------------------------------------------------------------------------


def test_a_rig_made_by_hand_is_open() -> None:
    rig = Rig()
    assert rig.setup == Setup()
    assert len(rig.prompts) == 16
    assert sum(len(batch) for batch in rig.loader) == 16


def test_a_whole_run_by_hand() -> None:
    rig = Rig(Setup(prompts=5, batch_size=2, prompts_per_step=2, group_size=2))
    for batch in rig.loader:
        for prompt in batch:
            futures = [rig.engine.submit(prompt, generation) for generation in (0, 1)]
            rig.engine.finish(prompt.row)
            for future in futures:
                rig.buffer.add(replace(future.result(timeout=0), tag=prompt.row))
        while rig.trainer.step():
            pass
    while rig.trainer.step():
        pass
    assert rig.trainer.counts() == [1] * 10
    # [0, 1], [2, 3], and what is left: [4].
    assert rig.trainer.weight_version == 3
