"""The Ray of threads."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from pytest_resume_audit.adapters.local_ray import LocalCluster, LocalQueue, LocalRay


@pytest.fixture
def cluster():
    made = LocalCluster()
    yield made
    made.end()


class Notes:
    def __init__(self, first=()):
        self.seen = list(first)
        self.go_on = threading.Event()

    def note(self, word):
        self.seen.append(word)
        return list(self.seen)

    def waits(self):
        assert self.go_on.wait(10)

    def fails(self):
        raise ValueError("on purpose")


class Gate:
    """An actor of coroutines: one call waits for another."""

    def __init__(self):
        self.event = asyncio.Event()

    async def passes(self):
        await self.event.wait()
        return "passed"

    async def opens(self):
        self.event.set()

    async def fails(self):
        raise ValueError("on purpose")

    def plain(self):
        return "plain"


def test_an_actor_does_one_call_after_the_other(cluster):
    notes = cluster.actors(Notes).options(num_gpus=1).remote(first=["a"])
    refs = [notes.note.remote(word) for word in "bcd"]
    assert LocalRay.get(refs) == [["a", "b"], ["a", "b", "c"], ["a", "b", "c", "d"]]


def test_coroutines_of_an_actor_go_on_side_by_side(cluster):
    gate = cluster.actors(Gate).remote()
    waiting = gate.passes.remote()
    assert LocalRay.get(gate.plain.remote()) == "plain"
    assert not waiting.done()
    LocalRay.get(gate.opens.remote())
    assert LocalRay.get(waiting) == "passed"


def test_a_failure_is_raised_while_another_call_still_waits(cluster):
    held, other = Notes(), cluster.actors(Notes).remote()
    waiting = cluster.actors(lambda: held).remote().waits.remote()
    with pytest.raises(ValueError, match="on purpose"):
        LocalRay.get([waiting, other.fails.remote()])
    assert not waiting.done()
    held.go_on.set()
    # Its actor goes on.
    assert LocalRay.get([waiting, other.note.remote("a")]) == [None, ["a"]]


def test_a_coroutine_that_fails_fails_its_reference(cluster):
    gate = cluster.actors(Gate).remote()
    with pytest.raises(ValueError, match="on purpose"):
        LocalRay.get(gate.fails.remote())
    assert LocalRay.get(gate.plain.remote()) == "plain"


def test_the_first_that_are_ready_come_in_their_order(cluster):
    held = Notes()
    slow = cluster.actors(lambda: held).remote().waits.remote()
    ready = [LocalRay.put(1), LocalRay.put(2)]
    assert LocalRay.wait([slow, *ready], timeout=10.0) == ([ready[0]], [slow, ready[1]])
    held.go_on.set()
    assert LocalRay.wait([slow, ready[1]], num_returns=2) == ([slow, ready[1]], [])


def test_a_reference_by_itself_is_handed_over_as_what_it_came_to(cluster):
    notes = cluster.actors(Notes).remote()
    assert LocalRay.get(notes.note.remote(LocalRay.put("a"))) == ["a"]
    (nested,) = LocalRay.get(cluster.actors(Notes).remote().note.remote([LocalRay.put("a")]))
    assert LocalRay.get(nested[0]) == "a"


def test_what_is_put_into_a_queue_is_copied():
    queue, item = LocalQueue(maxsize=1), {"place": [1]}
    queue.put(item)
    item["place"].append(2)
    assert queue.get(block=True) == {"place": [1]}


def test_threads_of_a_cluster_end_with_it():
    before, cluster = set(threading.enumerate()), LocalCluster()
    cluster.actors(Notes).remote()
    gate = cluster.actors(Gate).remote()
    assert len(set(threading.enumerate()) - before) == 2
    cluster.end()
    deadline = time.monotonic() + 10
    while set(threading.enumerate()) - before and time.monotonic() < deadline:
        time.sleep(0)
    assert not set(threading.enumerate()) - before
    # Who calls it all the same, as in a ``finally``, is told.
    with pytest.raises(RuntimeError, match="closed"):
        LocalRay.get(gate.plain.remote())
