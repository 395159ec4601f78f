"""Looks at the workers of a life in Ray, and at what carries messages between them.

A call travels from worker to worker while every Python thread sleeps: so every thread is looked
at, Ray's own too, of the workers, of the raylet that starts them and of the server that knows the
actors. Two looks find each asleep with an unchanged run count: then nobody was awake at the
moment in between, and what is sent on one machine makes its receiver runnable at once, so nothing
was on its way. Ray's threads also wake by timers, for nothing; then it is looked again. What of
Ray's own would happen at such a timer only, such as a call that is tried again, is not seen.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time

from pytest_resume_audit.lives.processes import children_of, content_of
from pytest_resume_audit.lives.ray_cluster import Cluster
from pytest_resume_audit.lives.ray_host import TAG
from pytest_resume_audit.rest import ProcLook

_AGENT = b"ray::RuntimeEnv"
"""What prepares the environment of a worker before it is started, by the name of its threads."""

_BUSY_WITH_ITSELF = {
    b"timer_manager",
    b"grpc_global_tim",
    b"task_event_buff",
    b"io_context_moni",
    b"MemoryMonitor.I",
    b"observability_p",
    b"ray_event_io_co",
    b"resource_load_p",
}
"""Threads that never have a message of ours: timers, statistics, the watch over memory."""

_NEXT = 0.02
"""Seconds until it is looked again whether a worker has started: it takes half a second, and more
where looks take its time."""


def workers_of(life: str, cluster: Cluster) -> tuple[set[int], bool]:
    """The workers of a life, and whether one of them, perhaps, is still starting, or ending.

    Args:
        life: its name, which all of them have in their environment.
        cluster: where they run.
    """
    tag = f"{TAG}={life}\0".encode()
    context = f'"{TAG}": "{life}"'.encode()
    found, unclear = set(), False
    for child in children_of(cluster.raylet):
        if tag in content_of(child, "environ"):
            found.add(child)
            unclear |= not content_of(child, "comm").startswith(b"ray::")
        else:
            command = content_of(child, "cmdline")
            # Nothing is there while it becomes a program, and once it has begun to end.
            unclear |= not command or context in command or b"/raylet/raylet" in command
    return found, unclear


class RayLook:
    """Looks at the workers of a life, whichever there are at the moment.

    Args:
        life: its name.
        cluster: where they run.
        ours: a look at the process that audits.
        parked: native ids of threads that stand at a gate of ours; kept up to date elsewhere.
        driver: a process outside of the cluster that is of the life too.
        driver_lock: where threads of that one wait for its interpreter.

    Attributes:
        seen: the workers that there have been.
    """

    name = "proc, without what Ray does by timers"

    def __init__(
        self,
        life: str,
        cluster: Cluster,
        ours: ProcLook,
        parked: set[int],
        *,
        driver: int | None = None,
        driver_lock: int | None = None,
    ) -> None:
        self._life = life
        self._cluster = cluster
        self._ours = ours
        self._parked = parked
        self._raylet = _RayProcess(cluster.raylet, parked)
        self._carriers = [self._raylet, _RayProcess(cluster.gcs, parked)]
        for child in children_of(cluster.raylet):
            with contextlib.suppress(OSError):
                if content_of(child, "comm").strip() == _AGENT:
                    self._carriers.append(_RayProcess(child, parked))
        self._drivers = [] if driver is None else [_RayProcess(driver, parked, driver_lock)]
        self._workers: dict[int, _RayProcess] = {}
        self.seen: set[int] = set()
        self._births = os.open("/proc/loadavg", os.O_RDONLY)
        self._complete_at = b""
        self._found_awake: dict[int, int] = {}
        self._number = itertools.count(1)

    def counts(self) -> dict[int, object]:
        """Of each Python thread in a timed wait how often it has run; of the others who they are.

        What is sent to and fro by one that polls moves others, and Ray's own move all the time:
        whether they sleep is found out by :meth:`asleep` alone.
        """
        counts = self._ours.counts()
        for process in self._python():
            counts.update(process.polls())
        return counts

    def asleep(self) -> bool:
        """Whether every thread sleeps, Ray's too, and none has run while that was found out.

        The run counts of all are read, and then all once more, the other way round: who slept in
        between with an unchanged count did at the moment in the middle. An idle worker wakes a
        hundred times a second for nothing. So whoever was found awake last is nearest to that
        moment from then on, and is hardly ever found so again.
        """
        looks = [self._ours, *self._python(), *self._carriers]
        tasks = {thread: task for look in looks for thread, task in look.tasks().items()}
        order = sorted(tasks, key=lambda thread: self._found_awake.get(thread, 0))
        try:
            if order and not tasks[order[-1]].asleep():
                return False  # as a rule it still is
            counts = {thread: tasks[thread].count() for thread in order}

            def awake(thread: int) -> bool:
                if thread not in counts:
                    return True  # it has been born since
                return not tasks[thread].asleep() or tasks[thread].count() != counts[thread]

            for thread in reversed(order):
                if awake(thread):
                    self._found_awake[thread] = next(self._number)
                    return False
            last = os.pread(self._births, 128, 0).rsplit(None, 1)[-1]
            if last != self._complete_at:
                if not self._is_complete() or any(map(awake, self._raylet.tasks())):
                    return False
                self._complete_at = last
        except OSError:
            for look in looks:
                look.counts()  # that of a process which has lost a thread learns of it
            return False
        return True

    def timed_wait(self, thread: int) -> float | None:
        """Seconds that a sleeping thread still waits at the most; None without a limit."""
        for process in self._python():
            if process.has(thread):
                return process.timed_wait(thread)
        return self._ours.timed_wait(thread)

    def works(self, thread: int) -> bool:
        """Whether a thread has woken, or only sleeps until it gets its interpreter."""
        for process in self._python():
            if process.has(thread):
                return process.works(thread)
        return self._ours.works(thread)

    def only_polls(self) -> bool:
        """Not of interest here: each thread is asked how it waits."""
        return False

    def close(self) -> None:
        """Give back what the looks hold open."""
        for look in [self._ours, *self._python(), *self._carriers]:
            look.close()
        os.close(self._births)

    def _python(self) -> list[_RayProcess]:
        return [*self._drivers, *self._workers.values()]

    def _is_complete(self) -> bool:
        """Whether there is no worker but those that are looked at; else others are from now on.

        Asked while the raylet sleeps: one that it starts has a number, which is the last that was
        given, a moment before the system shows it as a child.
        """
        found, unclear = workers_of(self._life, self._cluster)
        complete = found == self._workers.keys() and not unclear
        for gone in self._workers.keys() - found:
            self._workers.pop(gone).close()
        for born in found - self._workers.keys():
            with contextlib.suppress(OSError):
                self._workers[born] = _RayProcess(born, self._parked)
                self.seen.add(born)
        if unclear:
            time.sleep(_NEXT)
        return complete


class _RayProcess(ProcLook):
    """One process with threads of Ray in it."""

    def __init__(self, process: int, parked: set[int], lock_at: int | None = None) -> None:
        super().__init__(frozenset(), parked, process=process, lock_at=lock_at)
        self._main = process
        self._of_ray: dict[int, bytes] = {}
        self._timed: set[int] = set()

    def polls(self) -> dict[int, object]:
        """What of each Python thread tells whether it has woken from a timed wait."""
        counts: dict[int, object] = {}
        for thread, task in self.tasks().items():
            if self._is_of_ray(thread):
                continue
            try:
                count = task.count()
            except OSError:
                self._forget(thread)
                continue
            counts[thread] = None if super().timed_wait(thread) is None else count
        self._timed = {thread for thread, count in counts.items() if count is not None}
        return counts

    def timed_wait(self, thread: int) -> float | None:
        """Seconds that a Python thread still waits at the most; None without a limit.

        One that was in no timed wait as :meth:`polls` was asked last has none, if it has woken
        since too: it is told of there only when it gets into one, so nobody could wait for that.
        """
        return super().timed_wait(thread) if thread in self._timed else None

    def _living(self) -> set[int]:
        living = super()._living()
        # A number may come back, as that of another thread.
        self._of_ray = {thread: self._of_ray[thread] for thread in self._of_ray.keys() & living}
        return {
            thread
            for thread in living
            if not (self._is_of_ray(thread) and self._of_ray[thread] in _BUSY_WITH_ITSELF)
        }

    def _is_of_ray(self, thread: int) -> bool:
        """Whether it is one of the threads that Ray has given a name.

        A Python thread has that of the thread that started it: a worker's begins with ``ray::``.
        """
        if thread in self._of_ray:
            return True
        name = self._name_of(thread)
        if name.startswith(b"ray::") or name == self._name_of(self._main):
            return False
        self._of_ray[thread] = name
        return True

    def _name_of(self, thread: int) -> bytes:
        try:
            file = os.open(f"{self._process}/task/{thread}/comm", os.O_RDONLY)
        except OSError:
            return b""
        try:
            return os.read(file, 64).strip()
        except OSError:
            return b""
        finally:
            os.close(file)
