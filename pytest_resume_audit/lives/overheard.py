"""What a life says outside of its calls: exceptions in threads, warnings, logging, output."""

from __future__ import annotations

import io
import logging
import re
import sys
import threading
import warnings
from collections.abc import Callable
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from types import TracebackType
from typing import Any, TextIO
from weakref import WeakSet

from pytest_resume_audit.control import LifeEnded

_BACKGROUND_LOGGERS = ("concurrent.futures", "asyncio")
"""Where the standard library reports exceptions of callbacks and tasks that nobody waits for."""


class Overheard:
    """Listens while lives are played, and puts everything back at the end.

    Args:
        everything: whether the warning for legacy checkpoints is also looked for in logging
            and output.

    Attributes:
        pattern: of that warning.
        errors: exceptions that ended a thread, a callback or a task of a life.
        warned: whether the pattern was seen since it was last set to False.
        left_behind: set when threads of a life could not be ended.
        dead: threads of lives that have ended.
    """

    def __init__(self, *, everything: bool) -> None:
        self.errors: list[BaseException] = []
        self.warned = False
        self.left_behind = False
        self.dead: WeakSet[threading.Thread] = WeakSet()
        self.pattern: re.Pattern[str] | None = None
        self._everything = everything
        self._warnings: list[warnings.WarningMessage] = []
        self._stack = ExitStack()

    def __enter__(self) -> Overheard:
        self._stack.callback(_hook(self))
        self._stack.callback(_unraisable_hook(self))
        self._hear_warnings()
        heard = _Heard(self)
        for name in _BACKGROUND_LOGGERS:
            logger = logging.getLogger(name)
            logger.addFilter(heard)
            self._stack.callback(logger.removeFilter, heard)
        if self._everything:
            logging.getLogger().addHandler(heard)
            self._stack.callback(logging.getLogger().removeHandler, heard)
            self._stack.enter_context(redirect_stdout(_Tee(sys.stdout, self.hear)))
            self._stack.enter_context(redirect_stderr(_Tee(sys.stderr, self.hear)))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.close()

    def forget(self) -> None:
        """A life has ended: what it raised, and what its threads may yet raise, is of no matter."""
        self.errors.clear()
        self.dead.update(threading.enumerate())

    def hear(self, text: str) -> bool:
        """Take note of a text; returns whether it is the warning looked for."""
        found = self.pattern is not None and self.pattern.search(text) is not None
        self.warned = self.warned or found
        return found

    def hear_warning(self, message: warnings.WarningMessage) -> None:
        """Keep a warning that was given elsewhere, for :meth:`warn_again`."""
        self._warnings.append(message)

    def warn_again(self) -> None:
        """Give the warnings of the lives once more, under the filters of whoever called us.

        Those looked for are left out: they were asked for.
        """
        kept, self._warnings = self._warnings, []
        for message in kept:
            warnings.warn_explicit(
                message.message, message.category, message.filename, message.lineno,
                source=message.source,
            )  # fmt: skip

    def _hear_warnings(self) -> None:
        # "always": what the collector warns of must be seen in every life, and must not become
        # an exception inside of it; warn_again gives it to the user's own filters.
        self._stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("always")

        def show(
            message: Warning | str,
            category: type[Warning],
            filename: str,
            lineno: int,
            file: TextIO | None = None,
            line: str | None = None,
        ) -> None:
            if not self.hear(f"{category.__name__}: {message}"):
                self._warnings.append(
                    warnings.WarningMessage(message, category, filename, lineno, file, line)
                )

        warnings.showwarning = show


class _Heard(logging.Handler):
    """Hears log records: as a filter of the standard library's, as a handler of the root."""

    def __init__(self, overheard: Overheard) -> None:
        super().__init__()
        self._overheard = overheard

    def filter(self, record: logging.LogRecord) -> bool:
        if record.name in _BACKGROUND_LOGGERS and isinstance(record.exc_info, tuple):
            error = record.exc_info[1]
            if error is not None and not isinstance(error, LifeEnded):
                self._overheard.errors.append(error)
            # It is reported with the timeline; here it would only be seen a second time.
            return False
        return True

    def emit(self, record: logging.LogRecord) -> None:
        self._overheard.hear(record.getMessage())


class _Tee(io.TextIOBase):
    """Passes output on, and hears it."""

    def __init__(self, out: TextIO, hear: Callable[[str], Any]) -> None:
        self._out = out
        self._hear = hear

    def write(self, text: str) -> int:
        self._hear(text)
        return self._out.write(text)

    def flush(self) -> None:
        self._out.flush()

    def close(self) -> None:
        """Leave the output open: it is not ours."""


def _hook(overheard: Overheard) -> Callable[[], None]:
    """Hear exceptions that end threads of the lives; returns what puts the former hook back."""
    former = threading.excepthook
    before = set(threading.enumerate())

    def hook(args: threading.ExceptHookArgs) -> None:
        if isinstance(args.exc_value, LifeEnded) or args.exc_type is LifeEnded:
            return
        if args.thread in before or args.exc_value is None:
            former(args)
        elif args.thread not in overheard.dead:
            overheard.errors.append(args.exc_value)

    threading.excepthook = hook

    def put_back() -> None:
        # A thread that was left behind may still meet its end: the hook stays for it.
        if threading.excepthook is hook and not overheard.left_behind:
            threading.excepthook = former

    return put_back


def _unraisable_hook(overheard: Overheard) -> Callable[[], None]:
    """Hear nothing of a life's end in a finalizer; returns what puts the former hook back.

    A thread is ended by an exception from outside, wherever it is then. In a finalizer, or the
    callback of a weak reference, it can't be raised, and is no fault of the collector.
    """
    former = sys.unraisablehook

    def hook(args: sys.UnraisableHookArgs) -> None:
        if not issubclass(args.exc_type, LifeEnded):
            former(args)

    sys.unraisablehook = hook

    def put_back() -> None:
        if sys.unraisablehook is hook and not overheard.left_behind:
            sys.unraisablehook = former

    return put_back
