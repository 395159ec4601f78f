"""NeMo RL's asynchronous GRPO over a real Ray cluster: buffer and collector are actors there.

A life is a driver, as NeMo RL's own is: ``life="ray-driver"``. Each takes some ten seconds, so that
this is for a few timelines; the others are played over the stand-in of
:mod:`~pytest_resume_audit.adapters.nemo_rl`, with the same results.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

from pytest_resume_audit.adapters.nemo_rl import NemoRLCollector
from pytest_resume_audit.adapters.nemo_rl_checkout import NemoRL, load, why_missing

if why_missing() is None:
    # A life is a fork of a process that has imported this module: it costs its seconds once.
    load()


class _Ray:
    """``ray``, which is imported when a life uses it."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        import ray

        return getattr(ray, name)


class OverRay(NemoRLCollector):
    """The same run, with Ray's own actors.

    Args:
        rig: loader, engine, buffer and trainer of this life.
    """

    lives = ("ray-driver",)
    ray = _Ray()

    def hold(self, make: Callable[[NemoRL], Any], **arguments: Any) -> Any:
        """Make an actor of the cluster."""
        return RayHandle(
            self.ray.remote(num_cpus=0)(_Holder).remote(self.package, _packed((make, arguments)))
        )


class RayHandle:
    """A handle to an actor that holds an object of NeMo RL's.

    Args:
        holder: the actor.
    """

    def __init__(self, holder: Any) -> None:
        self._holder = holder

    def __getattr__(self, name: str) -> _RayMethod:
        if name.startswith("__"):
            raise AttributeError(name)
        return _RayMethod(self._holder, name)

    def __reduce__(self) -> Any:
        return RayHandle, (self._holder,)


class _RayMethod:
    def __init__(self, holder: Any, name: str) -> None:
        self._holder = holder
        self._name = name

    def remote(self, *args: Any, **kwargs: Any) -> Any:
        return self._holder.call.remote(self._name, _packed((args, kwargs)))


class _Holder:
    """The actor: it imports NeMo RL before it unpacks what is of its classes."""

    def __init__(self, package: str, made: bytes) -> None:
        nemo = load(package)
        nemo.use_ray(_Ray())
        make, arguments = pickle.loads(made)
        self._held = make(nemo)(**arguments)

    def call(self, name: str, given: bytes) -> Any:
        args, kwargs = pickle.loads(given)
        return getattr(self._held, name)(*args, **kwargs)


def _packed(what: Any) -> bytes:
    from ray import cloudpickle

    packed: bytes = cloudpickle.dumps(what)
    return packed
