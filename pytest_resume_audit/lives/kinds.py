"""The kinds of life that there are, and what a collector needs to have one."""

from __future__ import annotations

import pickle
from typing import Literal

LifeKind = Literal["local", "process", "command"]
"""``local``: objects of this process, thrown away by a crash; ``process``: a child process each,
killed by one; ``command``: a training command, which is killed with all it has started."""


COMMAND_LIFE = (
    "'command' is the life of a Command(\"python train.py ...\"), and a command has no other"
)


def not_importable(make: object) -> str | None:
    """Why another process could not import what makes the collectors; None when it can.

    Args:
        make: a class, or a function of the rig.
    """
    name = getattr(make, "__qualname__", None) or repr(make)
    why = "as a life in a process of its own imports it"
    if getattr(make, "__module__", None) == "__main__":
        return f"{name} is in the script that is run: put it into a module, {why}"
    try:
        pickle.dumps(make)
    except Exception as error:
        return f"{name} can't be found by its name: put it at the top of a module, {why} ({error})"
    return None
