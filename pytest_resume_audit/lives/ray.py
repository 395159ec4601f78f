"""Lives in Ray: in an actor, which a crash kills, or in a driver, whose job ends with it."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from pytest_resume_audit.lives.local import Call
from pytest_resume_audit.lives.nursery import NurseryError
from pytest_resume_audit.lives.process import LifeDied, ProcessLife
from pytest_resume_audit.lives.processes import is_over, kill_all
from pytest_resume_audit.lives.ray_cluster import ClusterError
from pytest_resume_audit.lives.ray_host import RayHost, environment, ray_host
from pytest_resume_audit.lives.ray_look import RayLook, workers_of
from pytest_resume_audit.rest import Look, ProcLook
from pytest_resume_audit.style import Make

_A_WHILE = 2.0
"""Seconds that Ray gets to say how an actor ended."""

_START = 120.0
"""Seconds that a life may take to begin: a worker has to be started, and to import."""

_LABELS = (":actor_name:", ":task_name:", ":job_id:")
"""Begins of lines in a log that are Ray's own."""

_CLEARED = 60.0
"""Seconds that all workers of a life get to be gone once it has ended."""


class _InRay(ProcessLife):
    """What lives in Ray have in common: workers, which end with them."""

    rest_name = RayLook.name
    _life = ""
    _host: RayHost
    _looks: RayLook | None = None

    _driver: int | None = None
    """The process of the collector, where it is no worker."""

    def _new_look(self) -> Look:
        parked = self.control.parked
        ours = ProcLook(self._ours, parked)
        self._looks = RayLook(
            self._life,
            self._host.cluster,
            ours,
            parked,
            driver=self._driver,
            driver_lock=self._lock_at,
        )
        return self._looks

    def stop(self) -> Call:
        """Have the collector stop, and then end."""
        self._stopping = True
        return self.call("stop")

    def whereabouts(self) -> list[str]:
        """What each thread of the collector waits for, and what each other worker does."""
        others = self._workers() - {self._pid}
        return super().whereabouts() + sorted(f"a worker is {_title(pid)}" for pid in others)

    def _workers(self) -> set[int]:
        return workers_of(self._life, self._host.cluster)[0]

    def _clear(self) -> None:
        """Wait until nothing of the life is left: what outlives it by itself is killed."""
        end, since = time.monotonic() + _CLEARED, time.monotonic()
        known: set[int] = set()
        while True:
            left, unclear = workers_of(self._life, self._host.cluster)
            if not (left or unclear):
                return
            now = time.monotonic()
            if now > end:
                named = ", ".join(sorted(map(_title, left)))
                raise LifeDied(f"its workers can't be ended: {named}")
            hangs = now - since > _A_WHILE
            if hangs or left - known:
                # Detached actors belong to nobody, and do not end by themselves.
                known |= left
                with contextlib.suppress(NurseryError):
                    self._host.kill_actors(sorted(left))
            if hangs:
                since = now
                kill_all(left)
            time.sleep(0.005)

    def end(self) -> tuple[str, ...]:
        """Kill it, and wait until all its workers are gone.

        Returns:
            The threads that it leaves behind: none.
        """
        left = super().end()
        if self._life:
            self._clear()
        return left

    def printed(self) -> str:
        """What the collector has printed, and then what its other workers have."""
        said = [super().printed()]
        if self._looks is not None:
            logs = Path(self._host.cluster.directory) / "session_latest" / "logs"
            for pid in sorted(self._looks.seen - {self._pid}):
                for log in sorted(logs.glob(f"worker-*-{pid}.*"), reverse=True):
                    with contextlib.suppress(OSError):
                        lines = log.read_text(errors="replace").splitlines(keepends=True)
                        said += [line for line in lines if not line.startswith(_LABELS)]
        return "".join(said)

    def _leave_what_it_has_learnt(self) -> None:
        """What it has imported is of no use to others: each is imported anew."""


class RayLife(_InRay):
    """A life in an actor: a crash is ``ray.kill`` of it."""

    def _begin_process(self, make: Make, payload: tuple[Any, ...]) -> None:
        self._host = _host()
        self._life = self._host.begin(*payload, output=str(self._output))
        with self._heard:
            self._pid = self._pid or -1  # it is there, though it may not have told its number yet
        end = time.monotonic() + _START
        while not self._has_begun(1.0):
            how = self._host.how(self._life, 0)
            if how is not None or time.monotonic() > end:
                raise NurseryError(f"its actor does not begin: {how or f'{_START:g} s are over'}")

    def _kill(self) -> None:
        with contextlib.suppress(NurseryError):
            self._host.kill(self._life)

    def _wait(self) -> int:
        end = time.monotonic() + _CLEARED
        while not is_over(self._pid) and time.monotonic() < end:
            time.sleep(0.002)
        return 0

    def _how_it_ended(self) -> str | None:
        if self._stopping:
            return None
        return self._host.how(self._life, _A_WHILE) or "it closed its connection to the audit"


class RayDriverLife(_InRay):
    """A life in a process that is a driver of the cluster: with it ends its job."""

    def _begin_process(self, make: Make, payload: tuple[Any, ...]) -> None:
        self._host = _host()
        self._life = f"{os.getpid()}-driver-{id(self)}-{time.monotonic_ns()}"
        super()._begin_process(make, payload)
        self._driver = self._pid

    def _environment(self) -> dict[str, str]:
        # What ``ray job submit`` gives to a driver: its workers have these variables, whatever
        # the collector itself gives to ray.init.
        job = {"runtime_env": {"env_vars": environment(self._life, list(sys.path))}}
        return {
            **self._host.cluster.environment,
            "RAY_ADDRESS": self._host.cluster.address,
            "RAY_JOB_CONFIG_JSON_ENV_VAR": json.dumps(job),
        }

    def _imported_with(self) -> dict[str, str]:
        return self._host.cluster.environment


def _host() -> RayHost:
    try:
        return ray_host()
    except ClusterError as error:
        raise NurseryError(str(error)) from None


def _title(pid: int) -> str:
    """What a worker calls itself: its actor or task, and the method that runs."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").decode(errors="replace")
    return "gone"
