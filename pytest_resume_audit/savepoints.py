"""The points of a save: where other work may come between, and where it may die.

A point is a call into the rig by whoever saves, a named ``rig.point``, or a file operation below
the checkpoint root. File operations are seen through the interpreter's audit events
(https://docs.python.org/3/library/audit_events.html). torch and safetensors write from C++ and
raise none: their writers are wrapped while a save is watched.
"""

from __future__ import annotations

import inspect
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_resume_audit.control import Control
from pytest_resume_audit.lives.snapshot import snapshot
from pytest_resume_audit.remote import Line
from pytest_resume_audit.timeline import Death, Torn

Before = Callable[[str, str], None]
"""Called with a file operation and the path it is about, in the thread that is about to do it."""


_saving: ContextVar[SavePoints | None] = ContextVar("saving", default=None)
"""The points of the save that this thread or task makes: its calls into the rig are points."""


class SavePoints:
    """Stops a save at one of its points, until it is told to go on.

    Args:
        calls: its ``at_call`` is told of each call into the rig: the control of the life that
            saves, or the line to it.
        root: its checkpoint root.
        at: which point it stops at, from 1.
        thread: native id of the thread that saves, where that is known beforehand; else the
            save is made :meth:`inside`.

    Attributes:
        seen: what each point was that it came to.
        unseen: files that changed though no operation on them was seen.
    """

    def __init__(
        self, calls: Control | Line, root: Path, at: int, *, thread: int | None = None
    ) -> None:
        self.seen: list[str] = []
        self.unseen: tuple[str, ...] = ()
        self._thread = thread
        self._calls = calls
        self._root = root
        self._at = at
        self._goes_on = False
        self._lock = threading.Lock()
        self._written = Written(root)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """While points are counted."""
        self._calls.at_call = self._called
        try:
            with watch_files(self._root, self._about_to):
                yield
        finally:
            self._calls.at_call = None
            self.unseen = self._written.unseen()

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

    @property
    def _control(self) -> Control:
        assert isinstance(self._calls, Control)
        return self._calls

    @property
    def stopped_at(self) -> str:
        """What the point is that it stands at, or stood."""
        return self.seen[self._at - 1]

    def go_on(self) -> None:
        """Let the save go on."""
        self._goes_on = True
        self._control.open_gates()

    def _about_to(self, what: str, path: str) -> None:
        self._written.about_to(what, path)
        self._point(f"{what} {path}")

    def _called(self, what: str) -> None:
        if _saving.get() is self or threading.get_native_id() == self._thread:
            self._point(what)

    def _point(self, what: str) -> None:
        with self._lock:
            self.seen.append(what)
            stands = len(self.seen) == self._at
        if stands:
            self._stand(what)

    def _stand(self, what: str) -> None:
        """Wait until the save may go on."""
        with self._control.lock:
            self._control.wait("point", lambda: self._goes_on)


@dataclass(frozen=True)
class Image:
    """What a process that was killed in a save leaves of its files.

    Args:
        at: before which of the save's file operations it died, from 1.
        before: that operation; empty behind the last one.
        torn: what the file written last has lost, if anything.
        cut: that file, below the checkpoint root.
        path: a directory for the lives that come after it.
        files: the copy of the checkpoint root, which the next of them finds.
    """

    at: int
    before: str
    torn: Torn | None
    cut: str
    path: Path
    files: Path


class Images:
    """Keeps what a process would leave, at the file operations of its save.

    Args:
        root: the checkpoint root.
        into: a directory; each image gets one of its own below it.
        name: of the checkpoint root in there.
        death: at which operations, and whether files are torn.

    Attributes:
        seen: what each operation was.
        unseen: files that changed though no operation on them was seen.
        taken: the images.
    """

    def __init__(self, root: Path, into: Path, name: str, death: Death) -> None:
        self.seen: list[str] = []
        self.unseen: tuple[str, ...] = ()
        self.taken: list[Image] = []
        self._root = root
        self._into = into
        self._name = name
        self._death = death
        self._written = Written(root)
        self._lock = threading.Lock()

    @contextmanager
    def watched(self) -> Iterator[None]:
        """While operations are counted."""
        with watch_files(self._root, self._before, self._written.synced):
            yield
        self._end()

    def _end(self) -> None:
        """The save has come to its end."""
        self.unseen = self._written.unseen()
        if self._death.torn is not None:
            # Written in full, and the power fails.
            self._take(len(self.seen) + 1, "")

    def last(self) -> str | None:
        """The file that was written last, by the name it has now."""
        return self._written.last()

    def _before(self, what: str, path: str) -> None:
        with self._lock:
            self.seen.append(f"{what} {path}")
            self._take(len(self.seen), self.seen[-1])
            self._written.about_to(what, path)

    def _take(self, at: int, before: str) -> None:
        death = self._death
        if death.at not in (None, at):
            return
        if death.torn is None:
            self.taken.append(self._copy(at, before))
            return
        cut = self.last()
        for torn, length in self.tears(cut):
            self.taken.append(self._copy(at, before, torn, cut or "", length))

    def tears(self, cut: str | None) -> Iterator[tuple[Torn, int]]:
        """How a file can be torn, and how long it is then.

        What is no shorter than it was is no tear, and half of a byte is nothing.
        """
        size = 0
        with suppress(FileNotFoundError):  # by now it has another name, or none
            size = 0 if cut is None else os.path.getsize(self._root / cut)
        if size > 0 and self._death.torn in ("empty", "each"):
            yield "empty", 0
        if size > 1 and self._death.torn in ("half", "each"):
            yield "half", size // 2

    def _copy(
        self, at: int, before: str, torn: Torn | None = None, cut: str = "", length: int = 0
    ) -> Image:
        path = self._into / f"at-{at}-{torn or 'whole'}"
        image = Image(at, before, torn, cut, path, path / self._name)
        snapshot(self._root, image.files)
        if cut:
            with suppress(FileNotFoundError):
                os.truncate(image.files / cut, length)
        return image


class Written:
    """Which files below a directory were seen to be written.

    They are known by their inodes: what is staged under one name is published under another.

    Args:
        root: the directory, as it is before anything is written.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._before = set(_files(root).values())
        self._opened: list[str] = []
        self._inodes: list[int] = []
        self._synced: set[int] = set()

    def about_to(self, what: str, path: str) -> None:
        """Take note of a file operation that is about to be done."""
        self._find_opened()
        if what == "open":
            self._opened.append(path)

    def synced(self, inode: int) -> None:
        """Take note that a file is on the disk as it is."""
        self._find_opened()
        self._synced.add(inode)

    def last(self) -> str | None:
        """The file that was written last, by the name it has now; None without one.

        What was synced to the disk no power loss can tear.
        """
        self._find_opened()
        names = {inode: name for name, (inode, *_) in _files(self._root).items()}
        torn = (i for i in reversed(self._inodes) if i in names and i not in self._synced)
        return next((names[inode] for inode in torn), None)

    def unseen(self) -> tuple[str, ...]:
        """The files that are new or have changed though they were not seen to be written."""
        self._find_opened()
        return tuple(
            name
            for name, state in sorted(_files(self._root).items())
            if state not in self._before and state[0] not in self._inodes
        )

    def _find_opened(self) -> None:
        """A file is there only after the operation of which we were told before."""
        for path in self._opened:
            with suppress(OSError):
                inode = os.stat(self._root / path).st_ino
                self._inodes.append(inode)
                self._synced.discard(inode)
        self._opened.clear()


def _files(root: Path) -> dict[str, tuple[int, int, int]]:
    """Inode, size and time of change of each file below a directory."""
    found = {}
    for directory, _, names in os.walk(root):
        for name in names:
            path = os.path.join(directory, name)
            with suppress(OSError):  # gone since
                state = os.lstat(path)
                key = os.path.relpath(path, root)
                found[key] = state.st_ino, state.st_size, state.st_mtime_ns
    return found


@contextmanager
def watch_files(
    root: Path, before: Before, synced: Callable[[int], None] | None = None
) -> Iterator[None]:
    """Be told of each file operation below a directory, before it is done.

    Args:
        root: the directory.
        before: called in the thread that does it; what it does itself is not watched, and what
            it raises is raised by the operation.
        synced: called with the inode of each file that has been synced to the disk.
    """
    _install()
    watch = _Watch(root, before)
    with ExitStack() as stack:
        _watches.append(watch)
        stack.callback(_watches.remove, watch)
        for module, name in _WRITERS:
            _wrap(stack, watch, module, name)
        if synced is not None:
            for name in ("fsync", "fdatasync"):
                _wrap_sync(stack, name, synced)
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
                self._before(what, below)
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


def _wrap_sync(stack: ExitStack, name: str, synced: Callable[[int], None]) -> None:
    """Be told of what is synced; it raises no audit event either."""
    original = getattr(os, name, None)
    if original is None:
        return

    def told(descriptor: Any) -> None:
        original(descriptor)
        number = descriptor if isinstance(descriptor, int) else descriptor.fileno()
        synced(os.fstat(number).st_ino)

    setattr(os, name, told)
    stack.callback(setattr, os, name, original)
