"""How workers are looked at: what needs no Ray, only processes."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from test_process_life import wait_until

from pytest_resume_audit.lives.processes import is_over
from pytest_resume_audit.lives.ray_cluster import Cluster
from pytest_resume_audit.lives.ray_host import TAG
from pytest_resume_audit.lives.ray_look import _RayProcess, workers_of

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="it is watched through /proc"
)

READS = "import sys; sys.stdin.readline(); sys.stdin.close()"


@pytest.fixture
def child(request):
    """A process that reads a line, and then does what the test says."""
    then = getattr(request, "param", "")
    with subprocess.Popen(
        [sys.executable, "-c", f"{READS}\n{then}"],
        stdin=subprocess.PIPE,
        env={**os.environ, TAG: "life 1"},
        text=True,
    ) as process:
        wait_until(lambda: b"readline" in cmdline(process.pid))
        yield process
        process.kill()


def cmdline(pid):
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        return file.read()


def here():
    """This process as the one that starts workers."""
    me = os.getpid()
    return Cluster(address="", keeper=me, raylet=me, gcs=me, directory="")


def test_a_worker_is_told_by_its_environment(child):
    # It has not given itself a name yet, as a worker does once it has started.
    assert workers_of("life 1", here()) == ({child.pid}, True)
    assert workers_of("life 2", here()) == (set(), False)


def test_one_that_ends_may_be_of_any_life(child):
    child.stdin.write("\n")
    child.stdin.flush()
    wait_until(lambda: is_over(child.pid))
    for life in ("life 1", "life 2"):
        assert workers_of(life, here()) == (set(), True)
    child.wait()
    assert workers_of("life 1", here()) == (set(), False)


@pytest.mark.parametrize("child", ["while True: pass"], indirect=True)
def test_who_was_in_no_timed_wait_is_no_poller_for_having_woken(child):
    look = _RayProcess(child.pid, set())
    wait_until(lambda: look.polls() == {child.pid: None} and look.asleep())
    counts = look.counts()
    child.stdin.write("\n")
    child.stdin.flush()
    wait_until(lambda: look.counts() != counts)
    # It would be waited for until its count has changed, which None never does.
    assert look.timed_wait(child.pid) is None
    assert look.polls()[child.pid] is not None
    assert look.timed_wait(child.pid) == 0
    look.close()
