"""Collectors that use Ray, or whose workers end by themselves."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import ClassVar

import pytest

from pytest_resume_audit import FuturesCollector

ray = pytest.importorskip("ray", reason="collectors that use it")


def connect() -> None:
    """Be in the cluster: an actor is already, a driver finds it by RAY_ADDRESS."""
    if not ray.is_initialized():
        ray.init(log_to_driver=False)


@ray.remote(num_cpus=0)
class Part:
    """An actor that a collector has started."""

    def pid(self):
        return os.getpid()

    def exit(self):
        print("about to exit", file=sys.stderr, flush=True)
        os._exit(3)

    def is_killed(self):
        os.kill(os.getpid(), signal.SIGKILL)

    def fail(self):
        raise KeyError("no such part")

    def hold(self, rig):
        """Use the rig, as a part of the collector does."""
        return rig.setup.prompts, rig.trainer.weight_version


class HasAPart(FuturesCollector):
    """Has an actor of its own, with options of it."""

    options: ClassVar[dict] = {}

    def start(self):
        connect()
        self.part = Part.options(**self.options).remote()
        print(f"started {ray.get(self.part.pid.remote())}")
        super().start()


class LeavesADetachedActor(HasAPart):
    """Its actor belongs to nobody: a life that only left it would find it again."""

    options: ClassVar[dict] = {"name": "part of a test", "lifetime": "detached"}


class RestartsItsPart(HasAPart):
    options: ClassVar[dict] = {"max_restarts": -1}


class Keeps(HasAPart):
    """Its actor and a task of it use the rig."""

    def train_step(self):
        prompts, version = ray.get(self.part.hold.remote(self.rig))
        assert (prompts, version) == (self.rig.setup.prompts, self.rig.trainer.weight_version)
        assert ray.get(ask.remote(self.rig)) == version
        return super().train_step()


@ray.remote(num_cpus=0)
def ask(rig):
    return rig.trainer.weight_version


@ray.remote(num_cpus=0)
def attach(rig):
    rig.trainer.attach(object())


class AttachesInAPart(HasAPart):
    def train_step(self):
        ray.get(attach.remote(self.rig))


class PartExits(HasAPart):
    def train_step(self):
        ray.get(self.part.exit.remote())


class PartIsKilled(HasAPart):
    """What the system does to it when there is no memory left."""

    def train_step(self):
        ray.get(self.part.is_killed.remote())


class PartFails(HasAPart):
    def train_step(self):
        ray.get(self.part.fail.remote())


class RefusesInAPart(HasAPart):
    """What it refuses to resume with is raised in its actor."""

    refuses = (LookupError,)

    def restore(self, checkpoint, *, load_replay_buffer):
        connect()
        ray.get(Part.remote().fail.remote())


class Polls(FuturesCollector):
    """Trains in a thread that asks an actor every few milliseconds how many steps are due."""

    def start(self):
        connect()
        self.part = Part.remote()
        super().start()

    def train_step(self):
        for _ in range(3):
            ray.get(self.part.pid.remote())
            time.sleep(0.01)
        return super().train_step()


@ray.remote(num_cpus=0)
def pass_on(way, rollout):
    """A worker of its own, which is started for it: half a second in which nothing runs here."""
    return ray.get(way[0].hand_on.remote(way[1:], rollout))


@ray.remote(num_cpus=0)
class Hop:
    async def hand_on(self, way, rollout):
        return await way[0].hand_on.remote(way[1:], rollout) if way else rollout


class LongWay(FuturesCollector):
    """Each answer goes through a task and from actor to actor before it is buffered."""

    def start(self):
        connect()
        hops = [Hop.remote() for _ in range(2)]
        self.way = hops * 10
        super().start()

    def generation_ended(self, ordinal, ended):
        if ordinal % 4 == 1:
            ended = ray.get(pass_on.options(name=f"way of {ordinal}").remote(self.way, ended))
        super().generation_ended(ordinal, ended)
