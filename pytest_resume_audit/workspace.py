"""The directory that one run has for its checkpoints, in memory where there is room.

Where a test run is killed its directory stays behind, and takes memory until the machine restarts.
So a directory is locked while it is used, and who comes next removes those that nobody holds.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import lru_cache
from pathlib import Path

_MEMORY = "/dev/shm"
_ENOUGH = 1 << 30

_NAME = "resume-audit-run-"


@contextmanager
def workspace() -> Iterator[Path]:
    """A directory of a run's own; it is gone behind it, and the current directory is as before.

    Raises:
        FileNotFoundError: when there is no current directory.
    """
    try:
        before = os.getcwd()
    except FileNotFoundError as error:
        raise FileNotFoundError(
            "the current directory is gone: change to one that exists before an audit (os.chdir)"
        ) from error
    with ExitStack() as held:
        root = _directory(held)
        try:
            yield root
        finally:
            try:
                with suppress(OSError):  # it may be gone by now
                    os.chdir(before)  # a collector may have gone to its checkpoints
                shutil.rmtree(root, ignore_errors=True)
            except KeyboardInterrupt:
                shutil.rmtree(root, ignore_errors=True)
                raise


def _directory(held: ExitStack) -> Path:
    _remove_left_ones()  # first: there may be no room because of them
    memory = _memory()
    if memory is None:
        return Path(tempfile.mkdtemp(prefix=_NAME))
    while True:
        root = Path(tempfile.mkdtemp(prefix=_NAME, dir=memory))
        held.enter_context(_locked(root))
        # Between the two steps it was nobody's, and another run may have removed it.
        if root.exists():
            return root


@lru_cache(maxsize=1)
def _memory() -> str | None:
    """Where files are kept in memory, if there is room."""
    try:
        room = os.statvfs(_MEMORY)
    except (AttributeError, OSError):
        return None
    enough = room.f_bavail * room.f_frsize >= _ENOUGH
    return _MEMORY if enough and os.access(_MEMORY, os.W_OK) else None


@lru_cache(maxsize=1)
def _remove_left_ones() -> None:
    """Remove what runs have left that were killed. It takes one look for all runs of a process."""
    for root in Path(_MEMORY).glob(f"{_NAME}*"):
        with _locked(root, wait=False) as ours:
            if ours:
                shutil.rmtree(root, ignore_errors=True)


@contextmanager
def _locked(root: Path, *, wait: bool = True) -> Iterator[bool]:
    """Lock a directory; whether that was possible: it is there, it is ours, and nobody uses it."""
    import fcntl  # where there is memory for files, there are locks

    try:
        opened = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        yield False
        return
    try:
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            now = os.stat(root, follow_symlinks=False)
            ours = os.path.samestat(os.fstat(opened), now) and now.st_uid == os.geteuid()
        except OSError:
            ours = False
        yield ours
    finally:
        os.close(opened)
