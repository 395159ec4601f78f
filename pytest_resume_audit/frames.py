"""Where every thread is."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterable
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


def places(threads: Iterable[threading.Thread]) -> dict[int, object]:
    """Where threads stand in their Python code, by native id.

    Args:
        threads: those; left out where they have ended, or are not there yet.
    """
    frames = current_frames()
    return {
        thread.native_id: (id(frames[thread.ident]), frames[thread.ident].f_lasti)
        for thread in threads
        if thread.native_id is not None and thread.ident in frames
    }
