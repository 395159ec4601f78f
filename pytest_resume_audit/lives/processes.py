"""Processes: what the system tells of them, and how they are killed.

What is in shared memory outlives the process that it is of. So Python has one that waits for the
end of those that use any, and removes it then, and so has torch. These are not killed with a life,
as they are not where a system is out of memory: else each life would leave some of it behind for
ever, and the next one could come upon it.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterable
from pathlib import Path


def children_of(pid: int) -> list[int]:
    """The processes that this one is the parent of.

    Where one that is listed already goes while the rest is read, the system may leave others out
    (``get_children_pid`` in Linux, fs/proc/array.c): then the next list lacks that one.
    """
    found = _listed_children(pid)
    while (again := _listed_children(pid)) != found:
        found = again
    return found


def _listed_children(pid: int) -> list[int]:
    found = []
    for task in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{task}/children") as children:
            found += [int(child) for child in children.read().split()]
    return found


def processes_below(pid: int) -> list[int]:
    """The processes that one has started, and those that they have, and so on."""
    found: list[int] = []
    left = [pid]
    while left:
        with contextlib.suppress(OSError):
            more = children_of(left.pop())
            found += more
            left += more
    return found


def content_of(pid: int, name: str) -> bytes:
    """What a file of a process in ``/proc`` says; nothing where there is no answer any more."""
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def is_over(pid: int) -> bool:
    """Whether a process has ended, if it is not waited for yet."""
    state = content_of(pid, "stat")
    return not state or state[state.rindex(b")") + 2 :][:1] in (b"Z", b"X")


def threads_of(pid: int) -> set[int]:
    """The native ids of a process's threads; none once it has ended."""
    if is_over(pid):
        return set()
    with contextlib.suppress(OSError):
        return {int(task) for task in os.listdir(f"/proc/{pid}/task")}
    return set()


_CLEANERS = (b"multiprocessing.resource_tracker", b"torch_shm_manager")


def cleans_up(pid: int) -> bool:
    """Whether a process is there to clean up behind others, and ends by itself when they have."""
    line = content_of(pid, "cmdline")
    return any(cleaner in line for cleaner in _CLEANERS)


def kill_group(leader: int) -> None:
    """Kill a process that leads a group, and the group with it: this one last, if it is in there.

    Args:
        leader: its process id; it may have ended.
    """
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if not any(map(cleans_up, _group_of(leader))):
            os.killpg(leader, signal.SIGKILL)
        elif leader == os.getpid():
            _kill_but_cleaners(leader)
            os.kill(leader, signal.SIGKILL)
        else:
            os.killpg(leader, signal.SIGSTOP)  # so that none of them starts another meanwhile
            _kill_but_cleaners(leader)
            os.killpg(leader, signal.SIGCONT)


def _kill_but_cleaners(leader: int) -> None:
    group = _group_of(leader)
    kill_all(pid for pid in group if pid != os.getpid() and not cleans_up(pid))


def kill_all(pids: Iterable[int]) -> None:
    """Kill processes, as far as they are there, and may be killed."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def _group_of(leader: int) -> list[int]:
    """The processes of a group, as far as the system tells."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))):
            with contextlib.suppress(ProcessLookupError):
                if os.getpgid(pid) == leader:
                    found.append(pid)
    return found
