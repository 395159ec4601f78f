"""When a process has said something first or last, by its ledger's lines that are about there.

They lie in the order of time, but for threads that were held up on their way to the file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from pytest_resume_audit.real_runs.ledger import EVENTS

_STRETCH = 1 << 16
"""Bytes in which no thread is held up for all the lines."""


def first(path: Path) -> int | None:
    """When the first event was, in nanoseconds of the monotonic clock; None without one there.

    Args:
        path: of the ledger.
    """
    with path.open("rb") as file:
        return min(_times(file.read(_STRETCH).splitlines()), default=None)


def last(path: Path, before: int | None = None) -> int | None:
    """When the last event was, or the last one before a time; None without one there.

    Args:
        path: of the ledger.
        before: in nanoseconds of the monotonic clock.
    """
    with path.open("rb") as file:
        low = high = file.seek(0, os.SEEK_END)
        if before is not None:
            low = 0
            while high - low > _STRETCH:
                middle = (low + high) // 2
                file.seek(middle)
                file.readline()
                time = next(_times(file), None)
                if time is not None and time < before:
                    low = middle
                else:
                    high = middle
        file.seek(max(0, low - _STRETCH))
        lines = file.read(high + _STRETCH - file.tell()).splitlines()
    return max((t for t in _times(lines) if before is None or t < before), default=None)


def _times(lines: Iterable[bytes]) -> Iterator[int]:
    for line in lines:
        try:
            words = json.loads(line)
            if words["event"] in EVENTS:
                yield int(words["mono"])
        except (ValueError, TypeError, LookupError, OverflowError):
            pass  # of an event that can't be read no time is known
