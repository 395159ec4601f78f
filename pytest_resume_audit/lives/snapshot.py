"""What survives a life: a copy of its checkpoint root, taken while others may write below it."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from pathlib import Path

_NAMES_ONLY = (stat.S_IFSOCK, stat.S_IFIFO)
"""Of a socket or a pipe its name survives, and is in the way of who makes it anew."""


def snapshot(root: Path, into: Path) -> None:
    """Copy a directory as it is at the moment.

    What goes away meanwhile is left out, as it would be gone a moment later. A link to a place
    below the directory leads to the same place below the copy: for a run that is restarted, the
    directory is where it always was.

    Args:
        root: the directory.
        into: the copy, which is not there yet.
    """
    _copy(os.fspath(root), os.fspath(into), os.fspath(root), os.fspath(into))


def _copy(source: str, target: str, root: str, into: str) -> None:
    os.makedirs(target)
    with os.scandir(source) as entries:
        for entry in entries:
            copy = os.path.join(target, entry.name)
            with contextlib.suppress(FileNotFoundError):
                if entry.is_symlink():
                    os.symlink(_moved(os.readlink(entry.path), root, into), copy)
                elif entry.is_dir():
                    _copy(entry.path, copy, root, into)
                elif entry.is_file():
                    shutil.copy2(entry.path, copy)
                elif stat.S_IFMT(kind := entry.stat().st_mode) in _NAMES_ONLY:
                    with contextlib.suppress(OSError):  # not everywhere may anybody make a socket
                        os.mknod(copy, kind)
    with contextlib.suppress(FileNotFoundError):
        shutil.copystat(source, target)


def _moved(path: str, root: str, into: str) -> str:
    inside = path == root or path.startswith(root + os.sep)
    return into + path[len(root) :] if inside else path
