"""The points of a save: where other work may come between, and where it may die.

A point is a call into the rig by whoever saves, a named ``rig.point``, or a file operation below
the checkpoint root. File operations are seen through the interpreter's audit events
(https://docs.python.org/3/library/audit_events.html). torch and safetensors write from C++ and
raise none: their writers are wrapped while a save is watched.
"""

from __future__ import annotations

import inspect
import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from pytest_resume_audit.control import Control

Before = Callable[[str], None]
"""Called with a description of a file operation, in the thread that is about to do it."""


_saving: ContextVar[SavePoints | None] = ContextVar("saving", default=None)
"""The points of the save that this thread or task makes: its calls into the rig are points."""


class SavePoints:
    """Stops a save at one of its points, until it is told to go on.

    Args:
        control: the life that saves.
        root: its checkpoint root.
        at: which point it stops at, from 1.
        thread: native id of the thread that saves, where that is known beforehand; else the
            save is made :meth:`inside`.

    Attributes:
        seen: what each point was that it came to.
    """

    def __init__(self, control: Control, root: Path, at: int, *, thread: int | None = None) -> None:
        self.seen: list[str] = []
        self._thread = thread
        self._control = control
        self._root = root
        self._at = at
        self._goes_on = False

    @contextmanager
    def watched(self) -> Iterator[None]:
        """While points are counted."""
        self._control.at_call = self._called
        try:
            with watch_files(self._root, self._point):
                yield
        finally:
            self._control.at_call = None

    def inside(self, save: Callable[[], Any]) -> Callable[[], Any]:
        """The same save, known as the one whose calls into the rig count."""

        def known() -> Any:
            token = _saving.set(self)
            result = save()
            # A coroutine goes on in this task's context, which ends with it.
            if not inspect.isawaitable(result):
                _saving.reset(token)
            return result

        return known

    @property
    def stopped(self) -> bool:
        """Whether the save stands at the point now."""
        return bool(self._control.standing_at("point"))

    def go_on(self) -> None:
        """Let the save go on."""
        self._goes_on = True
        self._control.open_gates()

    def _called(self, what: str) -> None:
        if _saving.get() is self or threading.get_native_id() == self._thread:
            self._point(what)

    def _point(self, what: str) -> None:
        with self._control.lock:
            self.seen.append(what)
            if len(self.seen) == self._at:
                self._control.wait("point", lambda: self._goes_on)


class DeathInSave:
    """Keeps what a process would leave that was killed at a file operation of its save.

    Args:
        root: the checkpoint root.
        image: where the copy of it goes; it does not exist yet.
        at: before which operation it dies, from 1.

    Attributes:
        seen: what each operation was.
    """

    def __init__(self, root: Path, image: Path, at: int) -> None:
        self.seen: list[str] = []
        self._root = root
        self._image = image
        self._at = at
        self._lock = threading.Lock()

    @property
    def died(self) -> bool:
        """Whether the save came to that operation."""
        return len(self.seen) >= self._at

    @contextmanager
    def watched(self) -> Iterator[None]:
        """While operations are counted."""
        with watch_files(self._root, self._before):
            yield

    def _before(self, what: str) -> None:
        with self._lock:
            self.seen.append(what)
            if len(self.seen) == self._at:
                shutil.copytree(self._root, self._image, symlinks=True)


@contextmanager
def watch_files(root: Path, before: Before) -> Iterator[None]:
    """Be told of each file operation below a directory, before it is done.

    Args:
        root: the directory.
        before: called in the thread that does it; what it does itself is not watched, and what
            it raises is raised by the operation.
    """
    _install()
    watch = _Watch(root, before)
    with ExitStack() as stack:
        _watches.append(watch)
        stack.callback(_watches.remove, watch)
        for module, name in _WRITERS:
            _wrap(stack, watch, module, name)
        yield


class _Watch:
    def __init__(self, root: Path, before: Before) -> None:
        self._root = os.path.realpath(root)
        self._before = before
        self._busy = threading.local()

    def about_to(self, what: str, path: object, directory: object = -1) -> None:
        """Tell of an operation, if it is below the root and not one of our own."""
        if getattr(self._busy, "now", False):
            return
        self._busy.now = True
        try:
            below = _below(self._root, path, directory)
            if below is not None:
                self._before(f"{what} {below}")
        finally:
            self._busy.now = False


def _below(root: str, path: object, directory: object) -> str | None:
    """A path relative to the root; None for one that is not below it."""
    if isinstance(path, int):
        path = _path_of(path)
    if not isinstance(path, str | bytes | os.PathLike):
        return None
    name = os.fsdecode(path)
    if isinstance(directory, int) and directory >= 0:
        name = os.path.join(_path_of(directory) or "", name)
    parent, last = os.path.split(os.path.abspath(name))
    # The last part may be a link that is about to be replaced; those before it are followed.
    name = os.path.join(os.path.realpath(parent), last)
    return os.path.relpath(name, root) if name.startswith(root + os.sep) else None


def _path_of(descriptor: int) -> str | None:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        return None


# -- audit events ----------------------------------------------------------------------------------

_watches: list[_Watch] = []
_installed = False


def _install() -> None:
    # A hook can't be taken out again, so it is put in by the first save that is watched, and
    # does nothing between them.
    global _installed
    if not _installed:
        _installed = True
        sys.addaudithook(_hook)


def _hook(event: str, args: tuple[Any, ...]) -> None:
    if not _watches:
        return
    tell = _EVENTS.get(event)
    if tell is not None:
        for watch in list(_watches):
            tell(watch, args)


def _opened(watch: _Watch, args: tuple[Any, ...]) -> None:
    path, mode, flags = args
    writing = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
    wants = any(letter in mode for letter in "wax+") if mode is not None else flags & writing
    if wants and not isinstance(path, int):
        watch.about_to("open", path)


_EVENTS: dict[str, Callable[[_Watch, tuple[Any, ...]], None]] = {
    "open": _opened,
    "os.rename": lambda watch, args: watch.about_to("rename to", args[1], args[3]),
    "os.link": lambda watch, args: watch.about_to("link", args[1], args[3]),
    "os.symlink": lambda watch, args: watch.about_to("symlink", args[1], args[2]),
    "os.remove": lambda watch, args: watch.about_to("remove", args[0], args[1]),
    "os.rmdir": lambda watch, args: watch.about_to("rmdir", args[0], args[1]),
    "os.mkdir": lambda watch, args: watch.about_to("mkdir", args[0], args[2]),
    "os.truncate": lambda watch, args: watch.about_to("truncate", args[0]),
}

# -- writers in C++ --------------------------------------------------------------------------------

_WRITERS = (
    ("torch.serialization", "_open_zipfile_writer"),
    ("safetensors.torch", "serialize_file"),
    ("safetensors.numpy", "serialize_file"),
)
"""Module and name of the functions that open a file from C++; wrapped where they are loaded."""


def _wrap(stack: ExitStack, watch: _Watch, module_name: str, name: str) -> None:
    module = sys.modules.get(module_name)
    original = getattr(module, name, None)
    if module is None or original is None:
        return

    def told(*args: Any, **kwargs: Any) -> Any:
        for argument in (*args, *kwargs.values()):
            if isinstance(argument, str | os.PathLike):
                watch.about_to("open", argument)
        return original(*args, **kwargs)

    setattr(module, name, told)
    stack.callback(setattr, module, name, original)
