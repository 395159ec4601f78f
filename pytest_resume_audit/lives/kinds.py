"""The kinds of life that there are, and what a collector needs to have one."""

from __future__ import annotations

import importlib.util
import pickle
import sys
from typing import Literal

LifeKind = Literal["local", "process", "ray", "ray-driver", "command"]
"""``local``: objects of this process, thrown away by a crash; ``process``: a child process each,
killed by one; ``ray``: an actor of a Ray cluster each, killed by ``ray.kill``; ``ray-driver``: a
child process each that is a driver of that cluster, whose job ends with it; ``command``: a training
command, which is killed with all it has started."""

COMMAND_LIFE = (
    "'command' is the life of a Command(\"python train.py ...\"), and a command has no other"
)


def not_here(life: LifeKind) -> str | None:
    """Why this system can't have a kind of life; None where it can.

    Args:
        life: the kind.
    """
    if life in ("local", "process") or sys.platform.startswith("linux"):
        return None
    return f"life {life!r} needs Linux, where its processes can be watched: take life='process'"


def missing(life: LifeKind) -> str | None:
    """What has to be installed for a kind of life; None where all is there.

    Args:
        life: the kind.
    """
    if life.startswith("ray") and importlib.util.find_spec("ray") is None:
        return f"life {life!r} needs Ray: pip install 'pytest-resume-audit[ray]'"
    return None


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
