"""The Ray cluster of a session: a local one, shared by all processes that audit.

Whoever needs it first starts a process that keeps it:

    python -m pytest_resume_audit.lives.ray_cluster PLACE FILES PROCESS

It ends, and the cluster with it, when the main process of the session has, however that came.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import json
import os
import secrets
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pytest_resume_audit.lives.processes import children_of

START = 120.0
"""Seconds that a cluster may take to come up."""

_SETTINGS = {
    # A thread in ray.get wakes this often, for nothing, and would have to be waited for.
    "get_check_signal_interval_milliseconds": 3_600_000,
    # Workers are started for a life, and only when it needs them.
    "enable_worker_prestart": False,
    "prestart_worker_first_driver": False,
    # A start that is held back until others are through, be they of other lives, can't be seen.
    "worker_maximum_startup_concurrency": 1024,
    # Threads for objects from other machines: by default as many as a machine with 1024 CPUs has.
    "object_manager_rpc_threads_num": 1,
}


class ClusterError(RuntimeError):
    """There is no cluster to be had."""


@dataclass(frozen=True)
class Cluster:
    """A cluster that runs.

    Args:
        address: what ``ray.init`` connects to.
        keeper: the process that keeps it.
        raylet: the one that starts workers.
        gcs: the one that knows the actors.
        directory: what it writes.
    """

    address: str
    keeper: int
    raylet: int
    gcs: int
    directory: str

    @property
    def environment(self) -> dict[str, str]:
        """What has to be in the environment before Ray is imported, to connect to it."""
        return _environment(Path(self.directory))


def _environment(files: Path) -> dict[str, str]:
    return {
        # By this Ray calls a node 127.0.0.1, and then listens there alone.
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        # A key of its own, and not that of the user's clusters.
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(files / "token"),
    }


def cluster() -> Cluster:
    """The cluster of this session; started, where it does not run yet.

    Raises:
        ClusterError: when it doesn't come up.
    """
    main = _main_process()
    place = directory_of(main)
    place.mkdir(mode=0o700, exist_ok=True)
    with open(place / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = _running(place)
        if found is None:
            found = _start(place, main)
    return found


def directory_of(main: int) -> Path:
    """Where what is known of a session's cluster is written down.

    Args:
        main: the main process of the session.
    """
    return Path(tempfile.gettempdir()) / f"resume-audit-ray-{os.getuid()}-{main}"


def _main_process() -> int:
    """The process of the session that ends last: under pytest-xdist the one that started this."""
    return os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid()


def _running(place: Path) -> Cluster | None:
    with contextlib.suppress(OSError, ValueError, TypeError):
        found = Cluster(**json.loads((place / "cluster").read_text()))
        if all(map(_lives, (found.keeper, found.raylet, found.gcs))):
            return found
    return None


def _lives(process: int) -> bool:
    try:
        stat = Path(f"/proc/{process}/stat").read_bytes()
    except OSError:
        return False
    return stat[stat.rindex(b")") + 2 :][:1] not in (b"Z", b"X")


def _start(place: Path, main: int) -> Cluster:
    # Short: the paths of its sockets have to fit into a hundred bytes.
    files = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))
    (files / "token").touch(0o600)
    (files / "token").write_text(secrets.token_hex(32))
    # In a session of its own: a Ctrl-C is for whoever audits, who then ends it.
    with open(place / "output", "w") as output:
        keeper = subprocess.Popen(
            [sys.executable, "-m", __name__, str(place), str(files), str(main)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=output,
            start_new_session=True,
            env={
                **os.environ,
                **_environment(files),
                "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            },
        )
    assert keeper.stdout is not None
    with keeper.stdout as said:
        came = select.select([said], [], [], START)[0] and said.readline()
    found = _running(place)
    if not came or found is None:
        with contextlib.suppress(OSError):
            os.killpg(keeper.pid, signal.SIGKILL)
        keeper.wait()
        shutil.rmtree(files, ignore_errors=True)
        why = (place / "output").read_text(errors="replace").strip() or "it said nothing"
        raise ClusterError(f"no Ray cluster came up: {why}")
    _keepers.append(keeper)
    if main == os.getpid():
        atexit.register(_end, keeper, place)
    return found


_keepers: list[subprocess.Popen[bytes]] = []
"""Kept, so that nobody warns of processes that are not waited for."""


def _end(keeper: subprocess.Popen[bytes], place: Path) -> None:
    keeper.terminate()
    keeper.wait()
    shutil.rmtree(place, ignore_errors=True)


def end(main: int) -> None:
    """End the cluster of a session whose main process this is, and wait until it has ended.

    Args:
        main: the process.
    """
    place = directory_of(main)
    found = _running(place)
    if found is not None:
        with contextlib.suppress(OSError):
            handle = os.pidfd_open(found.keeper)
            os.kill(found.keeper, signal.SIGTERM)
            select.select([handle], [], [], START)
            os.close(handle)
    shutil.rmtree(place, ignore_errors=True)


# --- in the process that keeps it -----------------------------------------------------------------


def main(place: Path, files: Path, process: int) -> None:
    """Keep a cluster, until a process has ended, or somebody says so.

    Args:
        place: where it is written down.
        files: a directory for what it writes.
        process: the one.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    told, tell = os.pipe()
    watched = os.pidfd_open(process)
    try:
        found = _initialized(files)
        signal.signal(signal.SIGTERM, lambda number, frame: os.close(tell))
        (place / "cluster").write_text(json.dumps(asdict(found)))
        print("up", flush=True)
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  # nobody reads it any more
        select.select([watched, told], [], [])
    finally:
        import ray

        ray.shutdown()
        shutil.rmtree(files, ignore_errors=True)
        shutil.rmtree(place, ignore_errors=True)


def _initialized(files: Path) -> Cluster:
    import ray

    ray.init(
        # Nothing is computed: they are what workers wait for, and nobody should.
        num_cpus=1024,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
        configure_logging=False,
        object_store_memory=256 << 20,
        _temp_dir=str(files),
        _system_config=_SETTINGS,
    )
    of: dict[str, Any] = {}
    for child in children_of(os.getpid()):
        of[Path(f"/proc/{child}/comm").read_text().strip()] = child
    return Cluster(
        address=ray.get_runtime_context().gcs_address,
        keeper=os.getpid(),
        raylet=of["raylet"],
        gcs=of["gcs_server"],
        directory=str(files),
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
