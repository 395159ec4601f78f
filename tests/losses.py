"""What the old way loses in the named timelines, worked out from each script by hand.

Lost is whatever was in flight, or not dispatched, at a save that a later life was restored
from; with ``no_buffer`` what was buffered too.
"""

from __future__ import annotations

from typing import NamedTuple


class Old(NamedTuple):
    """What the old way loses, and why it is that."""

    skipped: list[int]
    because: str


OLD_WAY = {
    "clean": Old([], "nothing interrupts it"),
    "idle-save": Old([], "0-7 are trained, nothing is out"),
    "mid-flight": Old([5, 8, 9, 11], "0-3 trained, 4 6 7 10 buffered, loader at 12"),
    "mid-flight-no-buffer": Old([4, 5, 6, 7, 8, 9, 10, 11], "nor is the buffer loaded"),
    "before-first-save": Old([], "it begins afresh"),
    "rolled-back": Old([4, 5, 6, 7], "out at the save; their training is rolled back"),
    "second-resume": Old(
        [5, 7, 8, 9, 10, 11, 12, 13, 14],
        "5 and 7-11 are out at save 1; the loader goes on at 12; 12-14 are out at save 4",
    ),
    "older-checkpoint": Old([4, 6, 7, 8, 9, 10, 11], "at save 1 only 5 is buffered, loader at 12"),
    "same-checkpoint-twice": Old([4, 7, 8, 9, 10, 11], "5 and 6 are buffered, loader at 12"),
    "straggler": Old([1, 13, 14, 15], "trained are 0 2-12, the loader is at 16"),
    "failed-generation": Old([7], "4 and 6 are buffered, 5 has failed, loader at 8"),
    "dropped": Old([17, 18, 19], "5 is dropped, the others up to 16 are trained, loader at 20"),
    "gap-fill-tail": Old(
        [5, 6, 7, 8, 9, 10, 11],
        "at save 1 4 is buffered, 5-10 are the six in flight, 11 waits to be dispatched",
    ),
    "half-a-group": Old([5, 6, 7], "4 is buffered, of 5 and 6 one generation has ended"),
    "end-of-pass": Old(
        [13, 15],
        "5 and 7 are out: their rows are trained in the second pass only, so it is their second "
        "training that is missing",
    ),
    "second-pass": Old([9, 11], "the first pass is trained, 8 and 10 are buffered, loader at 12"),
    "end-of-data": Old([14, 15], "0-11 are trained, 12 and 13 buffered, the loader has ended"),
    "uneven": Old(
        [4, 6, 7, 8, 9, 11, 12, 13, 14, 15],
        "at save 1 3 5 10 are buffered, loader at 12; at save 2 12-15 are out, loader at 16",
    ),
}

LEGACY = {
    "legacy-checkpoint": [5, 8, 9, 11],
    # 4-7 are out at save 1, which is downgraded; 9 and 11 at save 2, which descends from it.
    "legacy-lineage": [4, 5, 6, 7, 9, 11],
}
