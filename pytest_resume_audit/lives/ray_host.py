"""Begins lives in actors of a Ray cluster: the driver that they belong to.

It is a process of its own, so that the process that audits is left without Ray's threads, and free
to be a driver of whatever cluster its tests want.

    python -m pytest_resume_audit.lives.ray_host DESCRIPTOR

It is given a socket, and answers requests. When it ends, however that came, so do its lives.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from pytest_resume_audit.lives.nursery import Servant, die_with_parent, print_into
from pytest_resume_audit.lives.ray_cluster import START, Cluster, cluster
from pytest_resume_audit.remote import receive, send

TAG = "PYTEST_RESUME_AUDIT_LIFE"
"""A variable in the environment of every worker of a life: the name of that life."""


class RayHost(Servant):
    """A driver of the session's cluster, which has the actors of lives.

    Attributes:
        cluster: that it is connected to.

    Raises:
        ClusterError: when there is none.
        NurseryError: when it doesn't come up.
    """

    def __init__(self) -> None:
        self.cluster: Cluster = cluster()
        super().__init__(__name__, self.cluster.environment)
        self._ask(("connect", self.cluster.address, self.cluster.directory), START)

    def begin(self, *payload: Any, output: str) -> str:
        """Begin a life in an actor.

        Args:
            payload: what :func:`pytest_resume_audit.lives.child.live` is given.
            output: a file for what it prints.

        Returns:
            The name of the life.
        """
        place = output, os.getcwd(), list(sys.path), dict(os.environ)
        return str(self._ask(("begin", payload, *place)))

    def kill(self, life: str) -> None:
        """Kill the actor of a life, without a restart."""
        self._ask(("kill", life))

    def how(self, life: str, within: float) -> str | None:
        """How the actor of a life came to its end, in Ray's words; None while it hasn't.

        Args:
            life: which.
            within: seconds that it is waited for.
        """
        how: str | None = self._ask(("how", life, within))
        return how

    def kill_actors(self, processes: list[int]) -> None:
        """Kill whatever named actors run in these processes, as detached ones do, for good."""
        self._ask(("kill_actors", processes))


_hosts: list[RayHost] = []


def ray_host() -> RayHost:
    """The one of this process, started where there is none."""
    if not _hosts or not _hosts[0].alive:
        _hosts[:] = [RayHost()]
    return _hosts[0]


def environment(life: str, path: list[str]) -> dict[str, str]:
    """What the workers of a life have in their environment.

    Args:
        life: its name.
        path: where modules are imported from.
    """
    return {TAG: life, "PYTHONPATH": os.pathsep.join(filter(None, path))}


# --- in the process itself ------------------------------------------------------------------------


def _main(descriptor: int) -> None:
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for whoever audits to act on
    connection = Connection(descriptor)
    host = _Host()
    with contextlib.suppress(EOFError, OSError):
        while True:
            what, *words = receive(connection)
            answer: Callable[..., Any] = getattr(host, what)
            try:
                send(connection, (True, answer(*words)))
            except Exception as error:
                send(connection, (False, f"{type(error).__name__}: {error}"))
    os._exit(0)  # its job ends as that of any driver that is gone


class _Host:
    """Answers the requests."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._spare: tuple[list[str], str, Any] | None = None
        self._lives: dict[str, tuple[Any, Any]] = {}

    def connect(self, address: str, directory: str) -> None:
        # Ray tells every driver of workers that died, which here is what most of them do.
        print_into(f"{directory}/driver-{os.getpid()}")

        import ray

        ray.init(
            address,
            namespace=f"resume-audit-{os.getpid()}",
            log_to_driver=False,
            logging_level="ERROR",
            configure_logging=False,
        )

    def begin(
        self,
        payload: tuple[Any, ...],
        output: str,
        directory: str,
        path: list[str],
        env: dict[str, str],
    ) -> str:
        if self._spare is None or self._spare[0] != path:
            self._replace_spare(path)
        assert self._spare is not None
        _, name, actor = self._spare
        self._lives[name] = actor, actor.live.remote(payload, output, directory, path, env)
        # A worker takes half a second to start: that of the next life does so meanwhile.
        self._spare = None
        self._replace_spare(path)
        return name

    def _replace_spare(self, path: list[str]) -> None:
        import ray

        if self._spare is not None:
            ray.kill(self._spare[2], no_restart=True)
        name = f"{os.getpid()}-{next(self._numbers)}"
        kind = ray.remote(num_cpus=0, max_restarts=0, max_task_retries=0)(_LifeActor)
        env = environment(name, path)
        self._spare = path, name, kind.options(runtime_env={"env_vars": env}).remote()

    def kill(self, life: str) -> None:
        import ray

        if life in self._lives:
            ray.kill(self._lives.pop(life)[0], no_restart=True)

    def how(self, life: str, within: float) -> str | None:
        import ray

        try:
            ray.get(self._lives[life][1], timeout=within)
        except ray.exceptions.GetTimeoutError:
            return None
        except Exception as error:
            return _in_short(str(error))
        return "it came to its end"

    def kill_actors(self, processes: list[int]) -> None:
        import ray
        from ray._private.state import actors

        all_named = ray.util.list_named_actors(all_namespaces=True)
        if not all_named:
            return
        there = {actor["ActorID"] for actor in actors().values() if actor["Pid"] in processes}
        for named in all_named:
            with contextlib.suppress(ValueError):  # it is gone
                actor = ray.get_actor(named["name"], namespace=named["namespace"])
                if actor._actor_id.hex() in there:
                    ray.kill(actor, no_restart=True)


def _in_short(text: str) -> str:
    """The sentences that say how a worker ended, without those on what to do about clusters."""
    for begin in ("Worker exit type: ", "The actor is dead because "):
        if begin in text:
            text = text[text.index(begin) :]
            break
    return text.partition(" Some common causes")[0].partition(" There are some potential")[0]


class _LifeActor:
    """The actor that a life is."""

    def __init__(self) -> None:
        # Of the life itself nothing is known yet: what any needs is imported while it waits for it.
        from pytest_resume_audit.lives import child  # noqa: F401

    def live(
        self,
        payload: tuple[Any, ...],
        output: str,
        directory: str,
        path: list[str],
        env: dict[str, str],
    ) -> None:
        from pytest_resume_audit.lives.child import live

        print_into(output)
        os.chdir(directory)
        sys.path[:] = path
        os.environ.update(env)
        live(*payload)


if __name__ == "__main__":
    # By its own name: what is pickled from here has to be found by it.
    from pytest_resume_audit.lives import ray_host as module

    module._main(int(sys.argv[1]))
