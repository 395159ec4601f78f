"""Finds a checkout of NVIDIA NeMo RL, and imports what the audit drives of it.

NeMo RL is used from a source checkout: ``NEMO_RL_PATH``, or a ``nemo_rl`` that can be imported.
Only its algorithms are run, on a CPU. What it imports in passing, and what isn't installed, is
stood in for by :data:`STAND_INS`.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys
import typing
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

SOURCE = "https://github.com/NVIDIA-NeMo/RL"

VARIABLE = "NEMO_RL_PATH"
"""The environment variable that says where a checkout is."""

NEEDS = ("torch", "torchdata", "ray", "transformers", "tensordict", "datasets", "pydantic", "zmq")
"""What has to be installed: it is used, or subclassed, while NeMo RL is imported."""

STAND_INS: Mapping[str, str] = {
    "absl": "its logging, for a mathematics verifier",
    "aiohttp": "HTTP to generation servers",
    "fastapi": "HTTP servers of generation workers",
    "hydra": "classes named in a configuration",
    "matplotlib": "plots in the experiment log",
    "mlflow": "an experiment log",
    "prometheus_client": "metrics of generation workers and of Ray",
    "pynvml": "the memory of GPUs (nvidia-ml-py)",
    "scipy": "resampling of audio",
    "soundfile": "reading of audio",
    "swanlab": "an experiment log",
    "tensorboard": "an experiment log",
    "torch.utils.tensorboard": "the same; torch has the module, which fails without tensorboard",
    "uvicorn": "HTTP servers of generation workers",
    "wandb": "an experiment log",
}
"""Packages that are imported in passing, and what for. A stand-in is made for those that are not
installed, while NeMo RL is imported; nothing that the audit drives calls one."""


class NemoRLMissing(ImportError):
    """There is no NeMo RL to be audited; it says what to do."""


@dataclass(frozen=True)
class NemoRL:
    """The parts of NeMo RL that an audited run is made of.

    What a revision offers is looked up in its classes, never in a version.

    Args:
        package: the name of the imported package.
    """

    package: str

    def module(self, name: str) -> ModuleType:
        """One of its modules, by its name below the package."""
        with _stood_in_for():
            return importlib.import_module(f"{self.package}.{name}")

    @cached_property
    def grpo(self) -> Any:
        """The module of the driver and its configuration."""
        return self.module("algorithms.grpo")

    @cached_property
    def collector(self) -> Any:
        """``AsyncTrajectoryCollector`` without its decorator, which makes a Ray actor of it."""
        actor = self.module("algorithms.async_utils").AsyncTrajectoryCollector
        return actor.__ray_metadata__.modified_class

    @cached_property
    def buffer(self) -> Any:
        """``ReplayBufferImpl``, which is plain."""
        return self.module("algorithms.async_utils.replay_buffer").ReplayBufferImpl

    @cached_property
    def checkpoints(self) -> Any:
        """``CheckpointManager``."""
        return self.module("utils.checkpoint").CheckpointManager

    @cached_property
    def collate(self) -> Any:
        """``rl_collate_fn``, by which the loader makes a batch."""
        return self.module("data.collate_fn").rl_collate_fn

    @cached_property
    def load_dataloader_state(self) -> Any:
        """Restores the loader, unless the data set is another one."""
        return self.module("data.utils").load_dataloader_state

    @cached_property
    def group(self) -> Any:
        """``RolloutGroupResult``: what generation yields for a prompt."""
        return self.module("experience.rollouts").RolloutGroupResult

    @cached_property
    def keys(self) -> Any:
        """The module with the names of what is written into ``rollouts.pt``."""
        return self.module("experience.interfaces")

    @cached_property
    def has_frontier(self) -> bool:
        """Whether checkpoints hold the trained frontier (pull request 3599)."""
        return "resume_frontier_ordinal" in self.takes(self.collector)

    @cached_property
    def warns_of_legacy(self) -> bool:
        """Whether the driver says so when it resumes from a checkpoint without a frontier."""
        return "legacy checkpoint" in inspect.getsource(self.grpo.async_grpo_train).lower()

    def takes(self, kind: Any) -> frozenset[str]:
        """The names of what a class is made with."""
        return frozenset(inspect.signature(kind.__init__).parameters)

    def use_ray(self, stand_in: Any) -> None:
        """Let the collector and the driver's helpers find ``ray`` in this."""
        for module in (self.grpo, self.module("algorithms.async_utils.trajectory_collector")):
            vars(module)["ray"] = stand_in


@lru_cache(maxsize=4)
def load(package: str = "nemo_rl") -> NemoRL:
    """Import NeMo RL.

    Args:
        package: its name; that of a double in tests.

    Raises:
        NemoRLMissing: without a checkout, or without what it needs.
    """
    where = os.environ.get(VARIABLE)
    if package == "nemo_rl" and where and where not in sys.path:
        sys.path.insert(0, where)
    if (problem := _problem(package)) is not None:
        raise NemoRLMissing(problem)
    found = NemoRL(package)
    for part in ("grpo", "collector", "buffer", "checkpoints", "collate", "group"):
        getattr(found, part)
    return found


def why_missing() -> str | None:
    """Why NeMo RL can't be audited here, and what to do; None: it can.

    Example:
        >>> import pytest
        >>> needs_nemo_rl = pytest.mark.skipif(bool(why_missing()), reason=why_missing() or "")
    """
    try:
        load()
    except NemoRLMissing as missing:
        return str(missing)
    return None


def _problem(package: str) -> str | None:
    """What is in the way of an import, without importing."""
    advice = f"clone {SOURCE}, and set {VARIABLE} to where it is"
    where = os.environ.get(VARIABLE)
    if package == "nemo_rl" and where and not Path(where, "nemo_rl", "algorithms").is_dir():
        return f"{VARIABLE} is {where!r}, where there is no nemo_rl/algorithms: {advice}"
    if importlib.util.find_spec(package) is None:
        return f"NeMo RL is audited from a source checkout, and there is none: {advice}"
    if importlib.util.find_spec(f"{package}.algorithms") is None:
        return (
            f"the {package} that is installed has nothing in it, as the 0.0.0 on PyPI, which "
            f"only keeps the name: {advice}"
        )
    lacking = [name for name in NEEDS if importlib.util.find_spec(name) is None]
    if package == "nemo_rl" and lacking:
        return f"to import NeMo RL takes {', '.join(lacking)}: pip install them"
    return None


# -- what is imported in passing -------------------------------------------------------------------


@contextmanager
def _stood_in_for() -> Iterator[None]:
    """While NeMo RL is imported: stand-ins for what isn't installed, and a newer ``TypedDict``."""
    absent = {name for name in STAND_INS if "." not in name and _is_absent(name)}
    if "tensorboard" in absent:
        absent.add("torch.utils.tensorboard")
    finder = _StandInFinder(absent)
    typed_dict = typing.TypedDict
    if sys.version_info < (3, 12):
        # pydantic refuses typing's own in a configuration there.
        from typing_extensions import TypedDict

        typing.TypedDict = TypedDict
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        typing.TypedDict = typed_dict
        # Who imports one of them later is told that it isn't there.
        for name in [name for name in sys.modules if finder.makes(name)]:
            del sys.modules[name]


def _is_absent(name: str) -> bool:
    return name not in sys.modules and importlib.util.find_spec(name) is None


class _StandInFinder:
    """Makes a module for any name of a package that isn't there."""

    def __init__(self, packages: set[str]) -> None:
        self._packages = packages

    def makes(self, name: str) -> bool:
        return any(name == p or name.startswith(f"{p}.") for p in self._packages)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return importlib.util.spec_from_loader(name, self) if self.makes(name) else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """There is nothing in it."""


class _StandIn(ModuleType):
    """A module in which every name is a class that can't be used."""

    __path__ = []  # noqa: RUF012 - what makes a package of a module

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Nothing(name, (), {"__module__": self.__name__})


class _Nothing(type):
    """A class that stands in annotations and base classes, and can't be made an object of."""

    def __getattr__(cls, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Nothing(name, (), {"__module__": f"{cls.__module__}.{cls.__name__}"})

    def __getitem__(cls, key: Any) -> type:
        return cls

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        raise NemoRLMissing(f"{cls.__module__}.{cls.__name__} is needed: its package is missing")
