"""A life in an interpreter of its own, where none can be forked, or be watched through ``/proc``.

    python -m pytest_resume_audit.lives.spawned

It is told on its standard input what to be, and ends when that is closed: so does it when whoever
audits has died. Each one imports all anew, and whether its threads are at rest is seen from where
they stand in their Python code: both are slower than where processes are forked and watched.
"""

from __future__ import annotations

import contextlib
import math
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

from pytest_resume_audit.lives.child import live
from pytest_resume_audit.lives.inquiry import die
from pytest_resume_audit.lives.local import Call
from pytest_resume_audit.lives.nursery import print_into
from pytest_resume_audit.lives.process import LifeDied, ProcessLife
from pytest_resume_audit.lives.server import LISTENS
from pytest_resume_audit.rest import FrameLook, Look
from pytest_resume_audit.style import Make

_GROUPS = hasattr(os, "killpg")
"""Whether this system has groups of processes, and signals that a process hears."""


class SpawnedLife(ProcessLife):
    """A life in a new interpreter."""

    rest_name = FrameLook.name

    def _begin_process(self, make: Make, payload: tuple[Any, ...]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            start_new_session=_GROUPS,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        self._pid = self._process.pid
        assert self._process.stdin is not None
        self._closing.callback(self._process.stdin.close)
        with contextlib.suppress(OSError):  # it is gone already, which is told of below
            pickle.dump((list(sys.path), str(self._output), payload), self._process.stdin)
            self._process.stdin.flush()

    def _new_look(self) -> Look:
        return _FramesInBoth(self._ours, self.control.parked, self._frames)

    def _frames(self) -> tuple[float, dict[int, object]]:
        """What it has computed, in seconds, and where its threads stand."""
        if self._gone:
            return 0.0, {}
        try:
            frames: tuple[float, dict[int, object]] = self.ask("frames", within=1.0)
        except LifeDied:
            self._see_its_end()
            # Too busy to answer: not at rest.
            return (0.0, {}) if self._gone else (math.inf, {0: object()})
        return frames

    def stop(self) -> Call:
        """Send it a SIGTERM, which on a system without signals is a call."""
        if _GROUPS:
            return super().stop()
        self._stopping = True
        return self.call("stop")

    def _is_over(self) -> bool:
        if self._ended is not None:
            return True
        if not _GROUPS:
            return self._process.poll() is not None
        # It is left to be waited for: until then its number is that of no other group.
        how = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, self._pid, how) is not None

    def _kill(self) -> None:
        if _GROUPS:
            super()._kill()
        else:
            self._process.kill()

    def _collected(self) -> int:
        return self._process.wait()

    def _leave_what_it_has_learnt(self) -> None:
        """Nobody takes it up: each imports all anew."""


class _FramesInBoth(FrameLook):
    """Looks at the frames of this process, and of another that is asked for its own.

    Args:
        ignored: native ids of threads that are not the life's.
        parked: native ids of threads that stand at a gate of ours; kept up to date elsewhere.
        there: asks the other one: what it has computed, in seconds, and its frames.
    """

    def __init__(
        self,
        ignored: frozenset[int],
        parked: set[int],
        there: Callable[[], tuple[float, dict[int, object]]],
    ) -> None:
        super().__init__(ignored, parked)
        self._there = there

    def counts(self) -> dict[int, object]:
        """Where each thread stands, by native id.

        By the time that the other one has answered, all it had said before has been acted on: so
        those that listen to it, which each answer moves, need not be looked at.
        """
        _, there = self._there()
        listen = {t.native_id for t in threading.enumerate() if t.name == LISTENS}
        counts = {**super().counts(), **there}
        passed_over = self._parked | listen
        return {thread: place for thread, place in counts.items() if thread not in passed_over}

    def _worked(self) -> float:
        return super()._worked() + self._there()[0]


# --- in the process itself ------------------------------------------------------------------------


def _main() -> None:
    path, output, payload = pickle.load(sys.stdin.buffer)
    sys.path[:] = path
    print_into(output)
    told_from = os.dup(0)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    threading.Thread(
        target=_end_with_it, args=(told_from,), name="resume-audit end", daemon=True
    ).start()
    _, _, _, make, *_ = payload
    pickle.loads(make)  # imported now: it may take longer than any call into it
    live(*payload)


def _end_with_it(told_from: int) -> None:
    """End this process, and what it has started, when whoever audits is gone."""
    os.read(told_from, 1)  # nothing more is said: it comes back when the other end is closed
    die()


if __name__ == "__main__":
    _main()
