"""When a life is at rest, by each way of looking at its threads."""

from __future__ import annotations

import contextlib
import gc
import os
import queue
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pytest_resume_audit import rest
from pytest_resume_audit.control import Control
from pytest_resume_audit.frames import current_frames
from pytest_resume_audit.numbering import Numbering
from pytest_resume_audit.rest import FrameLook, NotAtRest, ProcLook, Rest, look_at
from pytest_resume_audit.setup import Setup

linux = pytest.mark.skipif(
    not os.path.exists("/proc/self/task"), reason="threads are looked at in /proc"
)

DEADLINE = 20.0


class Life:
    """Threads that are looked at, and how they end."""

    def __init__(self, kind: type[Any]) -> None:
        self.control = Control(Setup(), Numbering(range(16)))
        self.ignored = rest.native_threads()
        self.look = kind(self.ignored, self.control.parked)
        self.over = threading.Event()
        self.ends: list[Callable[[], None]] = []
        self.threads: list[threading.Thread] = []
        self.loops = 0

    def start(self, target: Callable[[], Any], *, end: Callable[[], Any] = lambda: None) -> int:
        """Begin a thread; returns its native id once it runs."""
        running = threading.Event()

        def body() -> None:
            running.set()
            target()

        thread = threading.Thread(target=body, daemon=True)
        thread.start()
        running.wait()
        self.threads.append(thread)
        self.ends.append(end)
        assert thread.native_id is not None
        return thread.native_id

    def rest(self, deadline: float = DEADLINE, *, conclude: bool = False) -> None:
        Rest(self.control, self.look, deadline).wait(conclude=conclude)

    def close(self) -> None:
        self.over.set()
        while self.ends:
            self.ends.pop()()
        for thread in self.threads:
            thread.join(DEADLINE)
            assert not thread.is_alive()
        self.look.close()


@pytest.fixture(params=[pytest.param(ProcLook, marks=linux), FrameLook])
def life(request: pytest.FixtureRequest) -> Iterator[Life]:
    """Looked at in both ways."""
    life = Life(request.param)
    yield life
    life.close()


@pytest.fixture(params=[pytest.param(ProcLook, marks=linux)])
def in_proc(request: pytest.FixtureRequest) -> Iterator[Life]:
    """Looked at in the way that is exact."""
    life = Life(request.param)
    yield life
    life.close()


def held() -> threading.Lock:
    lock = threading.Lock()
    lock.acquire()
    return lock


# -- asleep --------------------------------------------------------------------------------------


def test_nobody_is_at_rest(life: Life) -> None:
    life.rest()
    life.rest(conclude=True)


def test_asleep_in_a_lock(life: Life) -> None:
    lock = held()
    life.start(lock.acquire, end=lock.release)
    life.rest(conclude=True)


def test_asleep_in_an_event(life: Life) -> None:
    life.start(life.over.wait)
    life.rest(conclude=True)


def test_asleep_at_a_queue(life: Life) -> None:
    jobs: queue.Queue[None] = queue.Queue()
    life.start(jobs.get, end=lambda: jobs.put(None))
    life.rest(conclude=True)


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    here, there = socket.socketpair()
    with here, there:
        yield here, there


def test_asleep_in_select(ends: tuple[socket.socket, socket.socket], life: Life) -> None:
    here, there = ends
    life.start(lambda: select.select([here], [], []), end=lambda: there.send(b"x"))
    life.rest(conclude=True)


def test_asleep_in_a_long_sleep(in_proc: Life) -> None:
    # Longer than a poller: at rest at once, and a conclusion waits for the one waking.
    ended: list[bool] = []
    in_proc.start(lambda: (time.sleep(0.4), ended.append(True)))
    in_proc.rest()
    in_proc.rest(conclude=True)
    assert ended


# -- pollers -------------------------------------------------------------------------------------


def get_nothing(timeout: float) -> None:
    with contextlib.suppress(queue.Empty):
        queue.Queue[None]().get(timeout=timeout)


def polling(life: Life, pause: Callable[[], Any]) -> None:
    while not life.over.is_set():
        life.loops += 1
        pause()


@pytest.mark.parametrize(
    "pause",
    [
        lambda: time.sleep(0.001),
        lambda: time.sleep(0.01),
        lambda: threading.Event().wait(0.003),
        lambda: held().acquire(timeout=0.005),
        lambda: select.select([], [], [], 0.004),
        lambda: get_nothing(timeout=0.005),
    ],
    ids=["sleep 1 ms", "sleep", "event", "lock", "select", "queue"],
)
def test_a_poller_must_have_woken(in_proc: Life, pause: Any) -> None:
    in_proc.start(lambda: polling(in_proc, pause))
    for _ in range(5):
        before = in_proc.loops
        in_proc.rest()
        assert in_proc.loops > before


def test_one_poller_may_hand_on_to_the_next(in_proc: Life) -> None:
    # What is put in at one end has come out at the other before the life is called at rest.
    first: list[int] = []
    second: list[int] = []
    third: list[int] = []

    def move(source: list[int], target: list[int]) -> None:
        while not in_proc.over.is_set():
            if source:
                target.append(source.pop())
            time.sleep(0.003)

    in_proc.start(lambda: move(second, third))
    in_proc.start(lambda: move(first, second))
    for number in range(5):
        first.append(number)
        in_proc.rest()
        assert third[-1] == number


def test_one_poller_may_hand_on_to_a_worker(in_proc: Life) -> None:
    # Of eight things, moved one a time, nothing is heard before the last one is there.
    given: queue.SimpleQueue[list[int]] = queue.SimpleQueue()
    source: list[int] = []
    groups: list[list[int]] = []

    def move() -> None:
        while not in_proc.over.is_set():
            given.put([source.pop()] if source else [])
            time.sleep(0.002)

    def collect() -> None:
        group: list[int] = []
        while not in_proc.over.is_set():
            group += given.get()
            if len(group) == 8:
                groups.append(group)
                group = []

    in_proc.start(move)
    in_proc.start(collect, end=lambda: given.put([]))
    for number in range(3):
        source.extend(range(8))
        in_proc.rest()
        assert len(groups) == number + 1


def test_a_timer_that_is_set_again_is_one_poller(in_proc: Life) -> None:
    # Each wait is in a thread of its own, which begins the next one and ends.
    source: list[int] = []
    moved: list[int] = []

    def move() -> None:
        if source:
            moved.append(source.pop())
        if not in_proc.over.is_set():
            timer = threading.Timer(0.003, move)
            timer.daemon = True
            timer.start()

    in_proc.start(move)
    for number in range(5):
        source.append(number)
        in_proc.rest()
        assert moved[-1] == number
    in_proc.rest(conclude=True)


def test_one_that_works_beside_a_poller_is_never_at_rest(in_proc: Life) -> None:
    in_proc.start(lambda: polling(in_proc, lambda: time.sleep(0.01)))
    in_proc.start(lambda: spinning(in_proc))
    with pytest.raises(NotAtRest):
        in_proc.rest(deadline=0.5)


def test_a_slow_poller_that_moves_a_worker_need_not_wake_often(in_proc: Life) -> None:
    # As a thread that logs every now and then, through a queue.
    given: queue.SimpleQueue[bool] = queue.SimpleQueue()

    def beat() -> None:
        while not in_proc.over.wait(1):
            in_proc.loops += 1
            given.put(True)
        given.put(False)

    in_proc.start(lambda: all(iter(given.get, False)))
    in_proc.start(beat)
    in_proc.rest(deadline=10, conclude=True)
    assert in_proc.loops


def test_slow_pollers_need_wake_once_each_where_there_is_no_time_for_more(in_proc: Life) -> None:
    woken: set[int] = set()

    def poll(number: int) -> None:
        while not in_proc.over.wait(2):
            woken.add(number)

    for number in range(3):
        in_proc.start(lambda number=number: poll(number))
    in_proc.rest(deadline=5, conclude=True)
    assert woken == {0, 1, 2}


@linux
def test_a_poller_that_wakes_while_it_is_asked_how_it_waits() -> None:
    """By then it waits for another thread, without a limit, as one does that never polled."""
    asks, answered = held(), held()
    may_ask, may_answer = threading.Event(), threading.Event()

    def poll() -> None:
        while not life.over.is_set():
            threading.Event().wait(0.01)
            if may_ask.is_set():
                asks.release()
                answered.acquire()

    def answer() -> None:
        while asks.acquire() and not life.over.is_set():
            may_answer.wait()
            life.loops += 1
            answered.release()

    class Late(ProcLook):
        asked = False

        def timed_wait(self, thread: int) -> float | None:
            while thread == poller and not self.asked:
                may_ask.set()
                self.asked = super().timed_wait(thread) is None
            return super().timed_wait(thread)

        def counts(self) -> dict[int, object]:
            if self.asked:
                may_answer.set()
            return super().counts()

    life = Life(Late)
    poller = life.start(poll, end=answered.release)
    life.start(answer, end=asks.release)
    life.rest()
    assert life.loops
    life.close()


def test_how_long_a_thread_still_waits(in_proc: Life) -> None:
    def reads(wait: Callable[[], Any], end: Callable[[], Any] = lambda: None) -> float | None:
        thread = in_proc.start(wait, end=end)
        in_proc.rest()
        return in_proc.look.timed_wait(thread)

    lock = held()
    assert reads(lock.acquire, lock.release) is None
    timed: list[Callable[[], Any]] = [
        lambda: in_proc.over.wait(30),
        lambda: held().acquire(timeout=1),
        lambda: time.sleep(1),
        lambda: select.select([], [], [], 1),
    ]
    for wait in timed:
        left = reads(wait)
        assert left is not None
        assert 0 < left <= 30


# -- not asleep ----------------------------------------------------------------------------------


def spinning(life: Life) -> None:
    while not life.over.is_set():
        life.loops += 1


def test_one_that_works_is_never_at_rest(life: Life) -> None:
    life.start(lambda: spinning(life))
    with pytest.raises(NotAtRest):
        life.rest(deadline=0.3)


def test_one_that_polls_is_at_rest_when_it_has_found_nothing_for_a_while(life: Life) -> None:
    to_do: list[int] = []

    def poll() -> None:
        while not life.over.wait(0.002):
            for number in list(to_do):
                to_do.remove(number)
                life.control.activity += 1
                if number:
                    to_do.append(number - 1)

    life.start(poll)
    life.rest(conclude=True)
    to_do.append(20)
    life.rest()
    assert not to_do


def test_a_call_that_is_let_through_is_not_at_rest(life: Life) -> None:
    with life.control.granted(), pytest.raises(NotAtRest):
        life.rest(deadline=0.1)
    life.rest()


def test_the_deadline_runs_from_the_last_progress(life: Life) -> None:
    # Ten times something happens; each time there are as many seconds again.
    steps = threading.Semaphore(0)
    done: list[int] = []

    def work() -> None:
        for number in range(10):
            for _ in range(20_000):
                life.loops += 1
            done.append(number)
            life.control.activity += 1
        steps.release()

    life.start(work)
    life.rest(deadline=DEADLINE)
    assert done == list(range(10))


def test_one_that_waits_for_the_interpreter_is_not_at_rest(in_proc: Life) -> None:
    # A thread that nobody looks at keeps the interpreter busy: whoever is woken meanwhile has
    # to wait for it, asleep as any other, and has work to do.
    stop = threading.Event()
    wake = held()

    def work() -> None:
        while True:
            wake.acquire()
            if in_proc.over.is_set():
                return
            for _ in range(2_000):
                in_proc.loops += 1

    thread = in_proc.start(work, end=wake.release)
    in_proc.rest()

    def foreign() -> None:
        while not stop.is_set():
            pass

    spinner = threading.Thread(target=foreign, daemon=True)
    spinner.start()
    assert spinner.native_id is not None
    look = ProcLook(in_proc.ignored | {spinner.native_id}, set())
    try:
        assert thread in look.counts()
        for round_ in range(1, 4):
            wake.release()
            Rest(in_proc.control, look, DEADLINE).wait()
            assert in_proc.loops == 2_000 * round_
    finally:
        stop.set()
        spinner.join()
        look.close()


def test_one_that_stands_at_a_gate_is_not_looked_at(life: Life) -> None:
    thread = life.start(lambda: spinning(life))
    life.control.parked.add(thread)
    life.rest()
    life.control.parked.clear()
    with pytest.raises(NotAtRest):
        life.rest(deadline=0.1)


def test_one_that_was_there_before_is_not_looked_at() -> None:
    other = Life(FrameLook)
    other.start(lambda: spinning(other))
    try:
        kinds = [FrameLook, ProcLook] if os.path.exists("/proc/self/task") else [FrameLook]
        for kind in kinds:
            life = Life(kind)
            life.rest()
            life.close()
    finally:
        other.close()


# -- coming and going ----------------------------------------------------------------------------


def test_threads_that_come_and_go(life: Life) -> None:
    # Each begins the next: at rest is what is left when the last has ended.
    done: list[int] = []

    def begin(number: int) -> None:
        done.append(number)
        if number < 30:
            threading.Thread(target=begin, args=[number + 1]).start()

    life.start(lambda: begin(0))
    life.rest()
    if isinstance(life.look, ProcLook):
        assert done == list(range(31))
    assert life.look.counts() == {} or isinstance(life.look, FrameLook)


@linux
def test_no_file_stays_open() -> None:
    before = set(os.listdir("/proc/self/fd"))
    life = Life(ProcLook)
    for _ in range(5):
        life.start(lambda: None)
    life.start(life.over.wait)
    life.rest()
    life.close()
    assert set(os.listdir("/proc/self/fd")) <= before


def test_the_system_s_own_way_is_taken() -> None:
    look = look_at(frozenset(), set())
    exact = sys.platform.startswith("linux") and os.path.exists(
        f"/proc/self/task/{threading.get_native_id()}/schedstat"
    )
    assert look.name == ("proc" if exact else "frames")
    look.close()


def test_frames_are_taken_where_there_is_no_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rest, "_TASKS", "/nowhere")
    look = look_at(frozenset(), set())
    assert isinstance(look, FrameLook)
    assert threading.get_native_id() in rest.native_threads()


@linux
def test_a_probe_that_is_broken_off_leaves_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> float:
        raise KeyboardInterrupt

    before = set(threading.enumerate())
    monkeypatch.setattr(rest.time, "monotonic", interrupted)
    with pytest.raises(KeyboardInterrupt):
        rest._probe()
    # What an earlier test has left may end meanwhile.
    assert set(threading.enumerate()) <= before


@linux
def test_every_probe_finds_the_same_lock() -> None:
    # In its condition a wait is at one address or at the next, in turn.
    found = {address & ~4 for address in (rest._probe() for _ in range(20)) if address is not None}
    assert len(found) == 1


COMPUTING = """
import os, threading
from pytest_resume_audit.rest import interpreter_lock

def compute():
    while True:
        pass

lock = interpreter_lock()
os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
for _ in range(3):
    threading.Thread(target=compute).start()
print(lock, flush=True)
"""


@linux
def test_threads_that_only_compute_wait_for_nothing_but_the_interpreter() -> None:
    waits: dict[tuple[int, int], bool] = {}
    with contextlib.ExitStack() as ends:
        looks: list[tuple[ProcLook, set[int], int]] = []
        for _ in range(2):  # on one processor, so that each is kept waiting for it by the other
            computing = subprocess.Popen([sys.executable, "-c", COMPUTING], stdout=subprocess.PIPE)
            ends.enter_context(computing)
            ends.callback(computing.kill)
            assert computing.stdout is not None
            lock_at = int(computing.stdout.readline())
            look = ProcLook(frozenset(), set(), process=computing.pid, lock_at=lock_at)
            ends.callback(look.close)
            look.counts()
            looks.append((look, {t for t in look.tasks() if t != computing.pid}, lock_at))
        end = time.monotonic() + DEADLINE
        # In either three addresses are those of the lock; more are seen when one that has given
        # it up waits until another one has taken it.
        while len(waits) <= 6 and time.monotonic() < end:
            for look, threads, lock_at in looks:
                for thread in threads:
                    if call := look.tasks()[thread].call():
                        waits[lock_at, call[1]] = rest._for_interpreter(call, lock_at)
    assert len(waits) > 6
    assert all(waits.values())


# --- where threads are --------------------------------------------------------------------------


@pytest.mark.parametrize("enabled", [True, False])
def test_no_garbage_is_collected_while_frames_are_taken(enabled: bool) -> None:
    """Whatever runs in a collection there can wait for ever for a thread that ends."""
    inside = []

    def collecting(phase: str, info: dict[str, int]) -> None:
        frame = sys._getframe(1)
        inside.append(frame.f_code is current_frames.__code__)

    before, threshold = gc.isenabled(), gc.get_threshold()
    over = threading.Event()
    waiting = [threading.Thread(target=over.wait) for _ in range(5)]
    for thread in waiting:
        thread.start()
    gc.callbacks.append(collecting)
    (gc.enable if enabled else gc.disable)()
    gc.set_threshold(1)
    try:
        frames = current_frames()
        assert gc.isenabled() == enabled
    finally:
        gc.set_threshold(*threshold)
        (gc.enable if before else gc.disable)()
        gc.callbacks.remove(collecting)
        over.set()
        for thread in waiting:
            thread.join()
    assert frames.keys() >= {thread.ident for thread in waiting}
    assert not any(inside)
