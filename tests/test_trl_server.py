"""The server that stands for the one that TRL's rollout worker asks, without TRL."""

from __future__ import annotations

import http.client
import itertools
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from pytest_resume_audit import Prompt, Rig, Rollout, Setup
from pytest_resume_audit.adapters.trl_server import (
    FILLER,
    NUMBERS,
    WORDS,
    AnswersWhenLet,
    rollout_of,
    tokens_of,
)

SECONDS = 20.0


class Worker:
    """Asks as TRL's worker does: row after row, each for all of its group, over and over.

    Args:
        server: whom it asks.
        rig: of the same life.
        slots: requests that it has out at once.
        start: the row that it begins with.
    """

    def __init__(self, server: AnswersWhenLet, rig: Rig, *, slots: int, start: int = 0) -> None:
        self._server, self._rig = server, rig
        self.got: list[list[int]] = []
        self.failures = 0
        self._pending: dict[int, int] = {}
        self._changed = threading.Condition()
        rows = (n % rig.setup.prompts for n in itertools.count(start))
        self._asks = (
            (group, row) for group, row in enumerate(rows) for _ in range(rig.setup.group_size)
        )
        self._seeds = itertools.count()
        server.begin(start)
        for _ in range(slots):
            self._ask_next()

    def _ask_next(self) -> None:
        group, row = next(self._asks)
        seed = next(self._seeds)
        threading.Thread(target=self._ask, args=(group, row, seed), daemon=True).start()

    def _ask(self, group: int, row: int, seed: int) -> None:
        while True:
            try:
                answer = ask(self._server, row, seed)
                break
            except urllib.error.HTTPError:
                with self._changed:
                    self.failures += 1
                    self._changed.notify_all()
            except OSError:
                return
        (choice,) = answer["choices"]
        assert len(choice["logprobs"]["token_logprobs"]) == len(choice["token_ids"])
        with self._changed:
            self.got.append(choice["token_ids"])
            self._pending[group] = self._pending.get(group, 0) + 1
            whole = self._pending[group] == self._rig.setup.group_size
            self._ask_next()
            self._changed.notify_all()
        if whole:
            for _ in range(self._rig.setup.group_size):
                self._server.arrived()

    def until(self, answers: int) -> list[list[int]]:
        """What it has been answered, once there are so many answers."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.got) >= answers, SECONDS), self.got
            return list(self.got)


def asking(row: int, seed: int) -> bytes:
    """What is sent to ask for a row."""
    return json.dumps({"prompt": [WORDS.index(str(row))], "seed": seed, "n": 1}).encode()


def ask(server: AnswersWhenLet, row: int, seed: int) -> Any:
    """One request; what is answered."""
    request = urllib.request.Request(f"{server.url}/v1/completions", data=asking(row, seed))
    with urllib.request.urlopen(request, timeout=SECONDS) as response:
        return json.load(response)


def until(rig: Rig, flying: list[tuple[int, int]]) -> None:
    """Wait for these to be in flight."""
    end = threading.Event()
    for _ in range(int(SECONDS / 0.01)):
        if rig.engine.in_flight == flying:
            return
        end.wait(0.01)
    assert rig.engine.in_flight == flying


@pytest.fixture
def rig() -> Rig:
    return Rig(Setup(prompts=4, batch_size=1))


@pytest.fixture
def server(rig: Rig) -> Iterator[AnswersWhenLet]:
    server = AnswersWhenLet(rig, slots=3, filler=2)
    yield server
    server.close()


def rows(answers: list[list[int]]) -> list[str]:
    """The first word of each answer."""
    return [WORDS[tokens[0]] for tokens in answers]


def test_an_answer_says_which_it_is(rig):
    for ticket in (0, 1, NUMBERS - 1, NUMBERS, 5 * NUMBERS + 7):
        rollout = Rollout(Prompt(3), 2, 0, ticket=ticket)
        found = rollout_of(rig, tokens_of(rollout))
        assert (found, found.ticket) == (rollout, ticket)


def test_what_fills_up_a_step_is_no_answer(rig):
    assert rollout_of(rig, [WORDS.index(FILLER), WORDS.index("<eos>")]) is None


@pytest.mark.parametrize("words", ["1 0 0 5", "1 0 0 5 6", "<pad> 0 0 5 <eos>", "1 0 0 5 6 <eos>"])
def test_other_tokens_are_refused(rig, words):
    with pytest.raises(ValueError, match="not an answer of the audit's server"):
        rollout_of(rig, [WORDS.index(word) for word in words.split()])


def test_it_answers_when_it_is_let(rig, server):
    worker = Worker(server, rig, slots=3)
    until(rig, [(0, 0), (1, 0), (2, 0)])
    rig.engine.finish(1)
    assert rows(worker.until(1)) == ["1"]
    # The slot that is free is for the next row.
    until(rig, [(0, 0), (2, 0), (3, 0)])
    assert worker.got == worker.until(1)


def test_it_begins_where_the_worker_does(rig, server):
    Worker(server, rig, slots=3, start=2)
    # Behind 2 and 3 the data has ended: 0 of the next pass is not of the setup.
    until(rig, [(2, 0), (3, 0)])


def test_generations_are_told_apart():
    rig = Rig(Setup(prompts=4, batch_size=1, group_size=2))
    server = AnswersWhenLet(rig, slots=3, filler=2)
    worker = Worker(server, rig, slots=3)
    until(rig, [(0, 0), (0, 1), (1, 0)])
    rig.engine.finish(0, 1)
    (tokens,) = worker.until(1)
    assert rollout_of(rig, tokens) == Rollout(rig.prompts[0], 1, 0)
    until(rig, [(0, 0), (1, 0), (1, 1)])
    server.close()


def test_a_failure_is_asked_for_again_as_the_same_generation(rig, server):
    worker = Worker(server, rig, slots=3)
    until(rig, [(0, 0), (1, 0), (2, 0)])
    rig.engine.fail(1)
    until(rig, [(0, 0), (1, 0), (2, 0)])
    assert worker.failures == 1
    rig.engine.finish(1)
    assert rollout_of(rig, worker.until(1)[0]) == Rollout(rig.prompts[1], 0, 0)


def test_the_second_pass_is_of_the_setup_too():
    rig = Rig(Setup(prompts=2, batch_size=1, passes=2))
    server = AnswersWhenLet(rig, slots=2, filler=2)
    worker = Worker(server, rig, slots=2)
    for row in (0, 1):
        until(rig, [(0, 0), (1, 0)])
        rig.engine.finish(row)
        worker.until(row + 1)
    until(rig, [(0, 0), (1, 0)])
    rig.engine.finish(0)
    rig.engine.finish(1)
    # Both passes are through: two more fill up.
    assert sorted(rows(worker.until(6))[4:]) == [FILLER, FILLER]
    server.close()


def test_of_two_requests_for_a_row_the_one_that_connects_first_is_of_the_first_pass(monkeypatch):
    rig = Rig(Setup(prompts=2, batch_size=1, passes=2))
    server = AnswersWhenLet(rig, slots=1, filler=2)
    server.begin(0)
    address = server.url.removeprefix("http://")
    first, second = (http.client.HTTPConnection(address, timeout=SECONDS) for _ in range(2))
    first.connect()
    second.connect()
    # Its thread has got so far, and that of the first one has read nothing yet.
    is_there = threading.Event()
    await_turn = type(server._http).await_turn

    def await_turn_of(served: Any, client_address: Any) -> None:
        if client_address == second.sock.getsockname():
            is_there.set()
        await_turn(served, client_address)

    monkeypatch.setattr(type(server._http), "await_turn", await_turn_of)
    second.request("POST", "/v1/completions", asking(0, seed=2))
    assert is_there.wait(SECONDS)
    first.request("POST", "/v1/completions", asking(0, seed=1))
    until(rig, [(0, 0)])
    rig.engine.finish(0)
    # The second one is of a place behind that of row 1, for which nobody has asked.
    with first.getresponse() as response:
        assert json.load(response)["choices"]
    server.close()
    first.close()
    second.close()


def test_what_comes_behind_fills_up_when_all_has_arrived(rig, server):
    worker = Worker(server, rig, slots=3)
    for row in (1, 2, 3):
        until(rig, [(0, 0), *((other, 0) for other in range(row, min(4, row + 2)))])
        rig.engine.finish(row)
        worker.until(row)
    # The worker asks for more, and gets nothing before 0 has arrived.
    until(rig, [(0, 0)])
    assert rows(worker.until(3)) == ["1", "2", "3"]
    rig.engine.finish(0)
    assert rows(worker.until(6))[3:] == ["0", FILLER, FILLER]


def test_what_trl_asks_besides(server):
    with urllib.request.urlopen(f"{server.url}/health", timeout=SECONDS) as response:
        assert response.status == 200
    with urllib.request.urlopen(f"{server.url}/v1/models", timeout=SECONDS) as response:
        assert json.load(response)["data"][0]["max_model_len"] > 0
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(f"{server.url}/other", timeout=SECONDS)
