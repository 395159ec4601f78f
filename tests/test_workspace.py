"""Directories of runs: what a killed one has left is removed, and nothing else is."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from pytest_resume_audit import workspace

fcntl = pytest.importorskip("fcntl")

MEMORY = workspace._memory

pytestmark = pytest.mark.skipif(MEMORY() is None, reason="there is no memory for files here")

HOLDER = """
import sys
from pytest_resume_audit import workspace

workspace._memory = lambda: sys.argv[1]
with workspace.workspace() as root:
    (root / "checkpoint").mkdir()
    print(root, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def memory(tmp_path, monkeypatch):
    monkeypatch.setattr(workspace, "_MEMORY", str(tmp_path))
    monkeypatch.setattr(workspace, "_memory", lambda: str(tmp_path))
    workspace._remove_left_ones.cache_clear()
    yield tmp_path
    workspace._remove_left_ones.cache_clear()


@pytest.fixture
def holder(memory):
    """Another test run, in the middle of a timeline."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, memory],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    process.root = Path(process.stdout.readline().strip())
    with process:
        yield process
        process.kill()


def test_what_a_killed_run_has_left_is_removed(holder, memory):
    holder.kill()
    assert holder.wait() == -signal.SIGKILL
    assert list(memory.iterdir()) == [holder.root]
    with workspace.workspace() as root:
        assert list(memory.iterdir()) == [root]
    assert list(memory.iterdir()) == []


def test_it_is_so_where_it_has_left_no_room(holder, memory, monkeypatch):
    holder.kill()
    holder.wait()
    monkeypatch.setattr(workspace, "_memory", lambda: None if list(memory.iterdir()) else memory)
    with workspace.workspace() as root:
        assert list(memory.iterdir()) == [root]


def test_what_another_run_uses_is_not(holder):
    with workspace.workspace():
        assert (holder.root / "checkpoint").is_dir()
    holder.communicate()
    assert (holder.returncode, holder.root.exists()) == (0, False)


def test_nor_is_what_is_no_directory_of_a_run(memory, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "kept").touch()
    (memory / "resume-audit-run-link").symlink_to(elsewhere)
    (memory / "resume-audit-run-file").touch()
    (memory / "resume-audit-other").mkdir()
    before = sorted(memory.iterdir())
    with workspace.workspace():
        pass
    assert sorted(memory.iterdir()) == before
    assert (elsewhere / "kept").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_nor_is_what_another_user_has_left(memory):
    theirs = memory / "resume-audit-run-theirs"
    theirs.mkdir()
    os.chown(theirs, 65534, -1)
    with workspace.workspace():
        assert theirs.exists()


def test_one_that_was_removed_before_it_was_locked_is_made_anew(memory, monkeypatch):
    made = []

    def mkdtemp(**words):
        root = make(**words)
        made.append(Path(root))
        if len(made) == 1:
            workspace._remove_left_ones.cache_clear()
            workspace._remove_left_ones()
        return root

    make = tempfile.mkdtemp
    monkeypatch.setattr(tempfile, "mkdtemp", mkdtemp)
    with workspace.workspace() as root:
        assert [path.exists() for path in made] == [False, True]
        assert root == made[1]


def test_without_locks_nothing_is_removed(memory, monkeypatch):
    def flock(file, how):
        raise OSError(errno.ENOLCK, "no locks available")

    left = memory / "resume-audit-run-left"
    left.mkdir()
    monkeypatch.setattr(fcntl, "flock", flock)
    with workspace.workspace() as root:
        assert sorted(memory.iterdir()) == sorted([left, root])


def test_a_process_looks_once(memory, holder):
    with workspace.workspace():
        pass
    holder.kill()
    holder.wait()
    with workspace.workspace():
        assert holder.root.exists()


ENOUGH = 1 << 30


@pytest.mark.parametrize(
    ("blocks", "writable", "where"),
    [
        (ENOUGH // 4096, True, "/dev/shm"),
        (ENOUGH // 4096 - 1, True, None),
        (ENOUGH // 4096, False, None),
        (0, False, None),
    ],
)
def test_checkpoints_are_in_memory_where_a_gibibyte_is_free(
    blocks: int, writable: bool, where: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workspace, "_MEMORY", "/dev/shm")
    room = SimpleNamespace(f_bavail=blocks, f_frsize=4096)
    monkeypatch.setattr(os, "statvfs", lambda path: room)
    monkeypatch.setattr(os, "access", lambda path, mode: writable)
    assert MEMORY.__wrapped__() == where


def test_checkpoints_are_on_the_disk_where_there_is_no_such_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing(path: str) -> None:
        raise FileNotFoundError(path)

    monkeypatch.setattr(os, "statvfs", missing)
    assert MEMORY.__wrapped__() is None
