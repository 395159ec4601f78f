"""Memory that is quick to fork: in huge pages, of which there are few to copy and to take down.

Where torch is loaded, a process has some 150 MB of its own. In small pages that is 40,000 of them,
to be entered anew for every fork of it, and taken down with every one that is killed.
"""

from __future__ import annotations

import contextlib
import ctypes

_HUGE = 2 << 20
"""Bytes of one; where they are larger, the system refuses what is less."""

_MADV_COLLAPSE = 25  # of Linux 6.1 and newer: include/uapi/asm-generic/mman-common.h


def gather() -> int:
    """Have the system put what this process has on its heap into huge pages, as far as it can.

    Returns:
        The bytes of the ranges that it has done it for: none where it knows no such thing.

    Example:
        >>> gather() % 4096
        0
    """
    gathered = 0
    with contextlib.suppress(OSError, AttributeError):
        advise = ctypes.CDLL(None).madvise
        advise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        for begin, size in _of_its_own():
            if advise(begin, size, _MADV_COLLAPSE) == 0:
                gathered += size
    return gathered


def _of_its_own() -> list[tuple[int, int]]:
    """Address and bytes of what huge pages fit into, in memory that belongs to no file."""
    found = []
    begin = end = 0
    # A name of a file in there may be any bytes, and have what looks like the end of a line.
    with open("/proc/self/smaps", "rb") as maps:
        for line in maps:
            first, *words = line.split()
            if not first.endswith(b":"):
                begin, end = _span(first) if words[0] == b"rw-p" and words[3] == b"0" else (0, 0)
            elif first == b"Rss:" and int(words[0]) * 1024 * 2 > end - begin > 0:
                # What is reserved, and hardly used, would be filled.
                begin, end = -(-begin // _HUGE) * _HUGE, end // _HUGE * _HUGE
                found.append((begin, end - begin))
    return [(begin, size) for begin, size in found if size > 0]


def _span(text: bytes) -> tuple[int, int]:
    begin, end = text.split(b"-")
    return int(begin, 16), int(end, 16)
