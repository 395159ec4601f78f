"""What the process of a life is asked while it runs, and how it watches its saves."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from pytest_resume_audit.frames import current_frames, places
from pytest_resume_audit.lives.local import place_of
from pytest_resume_audit.lives.processes import kill_group
from pytest_resume_audit.remote import Line, portable
from pytest_resume_audit.savepoints import Images, SavePoints
from pytest_resume_audit.timeline import Death


class Inquiry:
    """Answers what is asked over a line, whatever the collector does meanwhile.

    Args:
        line: to the process that audits.
        ours: the threads that are the audit's own; those with names of ours are known.
        weights: version and counts, where they are counted in this process.
    """

    def __init__(
        self,
        line: Line,
        ours: Callable[[], set[threading.Thread]],
        weights: Callable[[], tuple[int, tuple[int, ...]] | None],
    ) -> None:
        self._line = line
        self._ours = ours
        self._watch: _Watch | None = None
        self._answers: dict[str, Callable[..., Any]] = {
            "weights": weights,
            "threads": self._threads,
            "frames": self._places,
            "modules": lambda: list(sys.modules),
            "terminates": _terminates,
            "watch": self._begin_watch,
            "unwatch": self._end_watch,
        }

    @property
    def points(self) -> SavePoints | None:
        """The points of the save that is watched for a race."""
        return None if self._watch is None else self._watch.points

    def answer(self, what: str, number: int, *words: Any) -> None:
        """Answer at once, in the thread that reads the line."""
        try:
            self._line.tell("returned", number, True, self._answers[what](*words))
        except BaseException as error:
            self._line.tell("returned", number, False, portable(error))

    def _threads(self) -> list[tuple[int, str, str]]:
        """Native id, name and place of each thread of the collector."""
        frames = current_frames()
        ours = self._ours()
        return [
            (thread.native_id or 0, thread.name, place_of(frames.get(thread.ident or 0)))
            for thread in threading.enumerate()
            if thread not in ours and not thread.name.startswith("resume-audit")
        ]

    def _places(self) -> tuple[float, dict[int, object]]:
        """What has been computed here, in seconds, and where each thread stands, by native id.

        All but those that do what is asked here. One that has been woken, and waits for a
        processor, stands where it has slept.
        """
        worked = time.process_time()
        if self._line.wakes:
            return worked, {0: object()}  # the same as nothing else
        ours = {threading.current_thread(), *self._ours()}
        return worked, places(t for t in threading.enumerate() if t not in ours)

    def _begin_watch(
        self, root: Path, at: int | None, death: Death | None, thread: int | None
    ) -> None:
        self._watch = _Watch(self._line, root, at, death, thread)

    def _end_watch(self) -> tuple[list[str], tuple[str, ...], str | None]:
        assert self._watch is not None
        watch, self._watch = self._watch, None
        return watch.close()


def _terminates() -> str | None:
    """What is done at a SIGTERM, where that is the collector's own affair."""
    handler = signal.getsignal(signal.SIGTERM)
    if handler == signal.SIG_IGN:
        return "SIGTERM is ignored"
    module = str(getattr(handler, "__module__", None))
    if not callable(handler) or module.partition(".")[0] == __name__.partition(".")[0]:
        return None
    return f"SIGTERM is handled by {getattr(handler, '__qualname__', handler)} of {module}"


class _Watch:
    """What is watched in a save: its points, for a race, or its file operations, for a death."""

    def __init__(
        self, line: Line, root: Path, at: int | None, death: Death | None, thread: int | None
    ) -> None:
        self._stack = ExitStack()
        self.points: SavePoints | None = None
        self._images: Images | None = None
        if death is None:
            assert at is not None
            self.points = _Points(line, root, at, thread)
            self._stack.enter_context(self.points.watched())
        else:
            self._images = _Deaths(line, root, death)
            self._stack.enter_context(self._images.watched())

    def close(self) -> tuple[list[str], tuple[str, ...], str | None]:
        """What was seen, what changed unseen, and the file that was written last."""
        self._stack.close()
        if self.points is not None:
            return self.points.seen, self.points.unseen, None
        assert self._images is not None
        return self._images.seen, self._images.unseen, self._images.last()


class _Points(SavePoints):
    """Stops a save at the gate of the process that audits."""

    def __init__(self, line: Line, root: Path, at: int, thread: int | None) -> None:
        super().__init__(line, root, at, thread=thread)
        self._line = line

    def _stand(self, what: str) -> None:
        self._line.call("rig", "stand_at_point", what)


class _Deaths(Images):
    """Kills the process at a file operation of a save, instead of keeping an image of it."""

    def __init__(self, line: Line, root: Path, death: Death) -> None:
        super().__init__(root, root, "", death)
        self._line = line

    def _take(self, at: int, before: str) -> None:
        cut = self.last()
        dies = self._death.torn is None or any(self.tears(cut))
        if self._death.at == at and before and dies:
            line = self._line.here()
            # What is written to a socket is there, whatever becomes of the writer.
            line.tell("dies", before, cut)
            if line is not self._line:
                # A fork that helps with the save: whoever waits for its end must not go on, so
                # that all of them are killed by the process that audits.
                threading.Event().wait()
            die()


def die() -> None:
    """Be killed, with all that this process has started."""
    if not hasattr(os, "killpg"):
        os.kill(os.getpid(), signal.SIGTERM)  # no signal there: it is over at once
    if os.getpgrp() == os.getpid():
        kill_group(os.getpid())
    os.kill(os.getpid(), signal.SIGKILL)
