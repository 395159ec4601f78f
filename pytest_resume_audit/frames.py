"""Where every thread is."""

from __future__ import annotations

import gc
import sys
from types import FrameType


def current_frames() -> dict[int, FrameType]:
    """The innermost frame of every thread, by the thread's identifier.

    Garbage that is collected inside of ``sys._current_frames`` may run Python code, and with it
    another thread: one that ends there waits, before Python 3.12, for a lock that this call holds,
    and both wait for ever (https://github.com/python/cpython/issues/106883). So none is.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        return sys._current_frames()
    finally:
        if enabled:
            gc.enable()
