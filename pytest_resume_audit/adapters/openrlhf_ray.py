"""OpenRLHF's asynchronous training over a real Ray cluster, with its own actors and queues.

A life is the driver that ``train(args)`` of its command line is: ``life="ray-driver"``. What needs
a GPU is stood in for as in :mod:`~pytest_resume_audit.adapters.openrlhf`, in each worker. Each of
eight workers imports OpenRLHF, which takes a minute or so: this is for a few timelines.
"""

from __future__ import annotations

import base64
import os
import pickle
from typing import Any

from pytest_resume_audit.adapters.openrlhf import (
    Engine,
    OpenRLHFCollector,
    policy,
    stand_ins,
)
from pytest_resume_audit.adapters.openrlhf_parts import load, why_missing

PACKAGE = "PYTEST_RESUME_AUDIT_OPENRLHF"
"""A variable in the environment of each worker: the name of OpenRLHF's package."""

RIG = "PYTEST_RESUME_AUDIT_RIG"
"""Another one: a handle to the rig of its life."""

if RIG not in os.environ and why_missing() is None:
    # A life is a fork of a process that has imported this module: it costs its seconds once.
    load()


class OpenRLHFOverRay(OpenRLHFCollector):
    """The same run, over Ray.

    Args:
        rig: loader, engine, buffer and trainer of this life.
    """

    lives = ("ray-driver",)

    def train(self, args: Any) -> None:
        """Train with the arguments of its command line, as a driver of the cluster."""
        import ray

        told = {PACKAGE: self.package, RIG: base64.b64encode(pickle.dumps(self.rig)).decode()}
        ray.init(
            runtime_env={
                "worker_process_setup_hook": f"{__name__}.{set_up.__name__}",
                "env_vars": told,
            },
            log_to_driver=False,
        )
        engines = [ray.remote(num_cpus=0)(Engine).remote(self.rig)]
        worker = ray.remote(num_cpus=0)(policy(self.openrlhf, self.rig))
        self.openrlhf.replace(
            {
                "cli.train_ppo_ray": {
                    "create_vllm_engines": lambda *sizes, **options: engines,
                    "PolicyModelActor": WithoutGPU(worker),
                }
            }
        )
        self.openrlhf.entry.train(args)


class WithoutGPU:
    """A class of actors that gets none of the GPUs that are asked for.

    Args:
        actors: the class.
    """

    def __init__(self, actors: Any) -> None:
        self._actors = actors

    def options(self, **resources: Any) -> Any:
        """Where it would run, and on what: wherever there is room."""
        return self._actors


def set_up() -> None:
    """Have OpenRLHF in a worker, before any of its actors is there."""
    import torch

    rig = pickle.loads(base64.b64decode(os.environ[RIG]))
    # DeepSpeed tries a compiler while it is imported, and looks for accelerators.
    with rig.working():
        openrlhf = load(os.environ[PACKAGE])
    torch.manual_seed(rig.setup.seed)
    openrlhf.replace(stand_ins(openrlhf, rig))
