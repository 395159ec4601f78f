"""Where the processes of lives come from: one that has the user's modules loaded, and forks.

To import torch takes a second or two; to fork a process that has it a few milliseconds.

    python -m pytest_resume_audit.lives.nursery DESCRIPTOR

It is given a socket. What it is sent are modules to import, once, and then requests; what it sends
back are process ids and how they ended. When the socket is closed it ends, and so do its children.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import io
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any
from weakref import WeakKeyDictionary

from pytest_resume_audit.lives.pages import gather
from pytest_resume_audit.lives.processes import children_of, cleans_up, kill_group
from pytest_resume_audit.remote import receive, send

START = 120.0
"""Seconds that the modules may take to be imported."""

_TO_CLOSE = 2.0
"""Seconds that a process that begins lives gets to end them all."""

_TO_CLEAN_UP = 5.0
"""Seconds that those get which clean up behind a life."""

UNKNOWN = (
    "A life in a process of its own imports the collector's module {module!r} by its name: put the "
    "collector into a module that can be imported from anywhere in the project"
)


class NurseryError(RuntimeError):
    """No process for a life can be had."""


class Servant:
    """A process that begins lives, and answers one request after the other.

    Args:
        module: what it runs; it is given the descriptor of a socket.
        env: what it has in its environment, with what this process has.
    """

    def __init__(self, module: str, env: Mapping[str, str]) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **env},
            )
        self._connection = Connection(ours.detach())
        self._asking = threading.Lock()
        atexit.register(self.close)

    def close(self) -> None:
        """End it, and every life that it has begun."""
        atexit.unregister(self.close)
        # It hears of it, and ends what is left of its lives; if it doesn't, it is ended itself.
        self._connection.close()
        try:
            self._process.wait(_TO_CLOSE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it is there."""
        return self._process.poll() is None

    def _ask(self, request: tuple[Any, ...], timeout: float = 30.0) -> Any:
        try:
            with self._asking:
                send(self._connection, request)
                if not self._connection.poll(timeout):
                    why = f"the process that begins lives was silent for {timeout:g} s"
                    raise NurseryError(why)
                ok, value = receive(self._connection)
        except (EOFError, OSError) as error:
            self.close()
            raise NurseryError(f"the process that begins lives has died: {error!r}") from error
        except BaseException:
            # Broken off, by Ctrl-C too: an answer that comes late would be taken for the next one.
            self.close()
            raise
        if not ok:
            raise NurseryError(str(value))
        return value


class Nursery(Servant):
    """A process that forks the processes of lives.

    Args:
        modules: what lives are made from.
        env: what they find in the environment then, with what this process has.
        ahead: whether they are imported in it, before any life begins, or in each life.

    Attributes:
        has_learnt: whether it has imported what lives import when they run.
        spoilt: whether an import has begun threads, processes or a timer, which no fork of it has,
            or waits for the ends of processes itself.
        living: the processes that nobody has waited for.

    Raises:
        NurseryError: when it doesn't come up.
    """

    def __init__(
        self, modules: Sequence[str], env: Mapping[str, str], *, ahead: bool = True
    ) -> None:
        super().__init__(__name__, env)
        self.has_learnt = False
        self.living: set[int] = set()
        self._modules = list(modules)
        imported = self._modules if ahead else []
        self.spoilt: bool = self._ask(("import", list(sys.path), os.getcwd(), imported), START)

    def fork(self, *payload: Any, output: str, env: Mapping[str, str]) -> int:
        """Begin the process of a life.

        Args:
            payload: what :func:`pytest_resume_audit.lives.child.live` is given.
            output: a file for what it prints.
            env: its environment.

        Returns:
            Its process id.
        """
        path, modules = list(sys.path), self._modules
        return self._begun(("fork", payload, output, os.getcwd(), dict(env), path, modules))

    def run(
        self, words: Sequence[str], *, output: str, directory: str, environment: Mapping[str, str]
    ) -> int:
        """Begin a command, in a session of its own.

        Args:
            words: the command.
            output: a file for what it prints.
            directory: where it is run.
            environment: all of its variables.

        Returns:
            Its process id.
        """
        return self._begun(("run", list(words), output, directory, dict(environment)))

    def _begun(self, request: tuple[Any, ...]) -> int:
        pid = int(self._ask(request))
        self.living.add(pid)
        return pid

    def learn(self, modules: Iterable[str]) -> None:
        """Import what a life has imported since, of packages that are here already.

        Torch imports much of itself only when it is used, which every life would do anew.
        """
        self.has_learnt = True
        self.spoilt = self._ask(("learn", list(modules)), START)

    def wait(self, pid: int) -> int:
        """Wait until a process of it has ended; how it did, as ``os.waitstatus_to_exitcode``."""
        self.living.discard(pid)
        try:
            return int(self._ask(("wait", pid)))
        except NurseryError:
            return -signal.SIGKILL  # a life ends with the one that has begun it


_MOST = 3
"""Nurseries that are kept though nothing of them lives: each may have all of torch in it."""

_nurseries: dict[tuple[str, ...], Nursery] = {}
"""Those of this process, the one used last at the end."""


_taken: WeakKeyDictionary[threading.Thread, Nursery] = WeakKeyDictionary()
"""The one that each thread has asked for last, though nothing of it may live yet."""

_choosing = threading.Lock()


def nursery_of(*modules: str, **env: str) -> Nursery:
    """The nursery of this session that has these modules, imported in such an environment.

    Modules whose files have changed since are others: a collector may have been written anew, and
    loaded again, between two audits.
    """
    key = (*map(_as_it_is, modules), *(f"{name}={value}" for name, value in sorted(env.items())))
    with _choosing:
        found = kept = _nurseries.pop(key, None)
        # It may have died, or be that of the process that this one was forked from.
        if kept is not None and (not kept.alive or (kept.spoilt and not kept.living)):
            kept.close()
            found = None
        if found is None:
            found = _new(modules, env)
            # What it has learnt is what has spoilt the one before.
            found.has_learnt = kept is not None and kept.spoilt
        _nurseries[key] = found
        _taken[threading.current_thread()] = found
        for idle in [key for key in list(_nurseries)[:-_MOST] if not _needed(_nurseries[key])]:
            _nurseries.pop(idle).close()
    return found


def _new(modules: Sequence[str], env: Mapping[str, str]) -> Nursery:
    nursery = Nursery(modules, env)
    if nursery.spoilt:
        nursery.close()
        nursery = Nursery(modules, env, ahead=False)
    return nursery


def _as_it_is(module: str) -> str:
    """A module's name, and where there is a file of it, that file and when it was written."""
    file = getattr(sys.modules.get(module), "__file__", None)
    with contextlib.suppress(OSError):
        if file is not None:
            return f"{module} from {file} of {os.stat(file).st_mtime_ns}"
    return module


def _needed(nursery: Nursery) -> bool:
    """Whether anything of it lives, or will, as another thread has just asked for it."""
    here = threading.current_thread()
    others = [thread for thread in list(_taken) if thread is not here and thread.is_alive()]
    return bool(nursery.living) or any(_taken[thread] is nursery for thread in others)


# --- in the process itself ------------------------------------------------------------------------


_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def die_with_parent() -> None:
    """Have the system kill this process when the one that forked it dies."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _prctl(what: int, value: int) -> None:
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(what, value)


def main(descriptor: int) -> None:
    """Fork until nobody asks any more."""
    # Until it hears of it by its connection: then it has others to kill first.
    die_with_parent()
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for whoever audits to act on
    # Whoever ignores it hands that on, and then nobody can be told how a life has ended.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    connection = Connection(descriptor)
    try:
        while True:
            what, *words = receive(connection)
            try:
                if what in _CHILDREN:
                    value = _begin(connection, what, words)
                else:
                    value = _REQUESTS[what](*words)
            except Exception as error:
                send(connection, (False, f"{type(error).__name__}: {error}"))
                continue
            send(connection, (True, value))
            if what in _MORE_LIVES:  # while the one before begins to live
                _have_one_to_spare(connection)
    except (EOFError, OSError):
        for life in _lives:
            with contextlib.suppress(OSError):
                kill_group(life)
        _lives.clear()
        _spares.clear()
        _end_orphans()


class _Spare:
    """A fork that waits for what it is to be: where torch is loaded, forking takes milliseconds.

    Args:
        connection: of this process, which its forks must not hold.
    """

    def __init__(self, connection: Connection) -> None:
        ours, theirs = socket.socketpair()
        try:
            self.pid = os.fork()
        except OSError:
            ours.close()
            theirs.close()
            raise
        if self.pid == 0:
            ours.close()
            connection.close()
            _be_what_is_asked(Connection(theirs.detach()))
        theirs.close()
        self._connection = Connection(ours.detach())

    def be(self, what: str, words: list[Any]) -> int:
        """Have it be a life, or a command; its process id."""
        with contextlib.closing(self._connection):
            send(self._connection, (what, words))
        _lives.add(self.pid)
        return self.pid

    def end(self) -> None:
        """It is not needed any more."""
        self._connection.close()
        os.waitpid(self.pid, 0)


def _have_one_to_spare(connection: Connection) -> None:
    with contextlib.suppress(OSError):  # too many processes: tried again when one is asked for
        _spares.append(_Spare(connection))


def _begin(connection: Connection, what: str, words: list[Any]) -> int:
    with contextlib.suppress(OSError):  # it may be that somebody has killed it
        if _spares:
            return _spares.pop().be(what, words)
    return _Spare(connection).be(what, words)


def _be_what_is_asked(connection: Connection) -> None:
    """In a fork: never come back, as what has begun others is not done here."""
    die_with_parent()
    try:
        what, words = receive(connection)
    except (EOFError, OSError):
        os._exit(0)
    connection.close()
    try:
        _CHILDREN[what](*words)
    except Exception:
        traceback.print_exc()
    sys.exit(1)


_lives: set[int] = set()
"""The processes of lives that have not been waited for."""

_spares: list[_Spare] = []
"""One, at the most."""


def _import(path: list[str], directory: str, modules: list[str]) -> bool:
    from pytest_resume_audit.lives import child  # noqa: F401
    from pytest_resume_audit.rest import interpreter_lock

    sys.path[:] = path
    os.chdir(directory)
    for module in modules:
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise ImportError(f"{error}. {UNKNOWN.format(module=module)}") from error
        except (Exception, SystemExit) as error:
            why = f"the collector's module {module!r} raised {type(error).__name__}: {error}"
            raise ImportError(why) from error
    interpreter_lock()  # its forks have it at the same address
    _prctl(_PR_SET_PDEATHSIG, 0)
    _settle_memory()
    return _is_spoilt() or bool(children_of(os.getpid()))


def _learn(modules: list[str]) -> bool:
    while _spares:
        _spares.pop().end()
    for module in modules:
        if module.partition(".")[0] in sys.modules and module not in sys.modules:
            # It may be one that only its package can import.
            with contextlib.suppress(Exception, SystemExit):
                importlib.import_module(module)
    _settle_memory()
    return _is_spoilt()


def _is_spoilt() -> bool:
    """Whether an import has begun what no fork has, or sees to the ends of lives in our place."""
    ends = signal.getsignal(signal.SIGCHLD) != signal.SIG_DFL
    return ends or threading.active_count() > 1 or signal.getitimer(signal.ITIMER_REAL)[0] > 0


def _settle_memory() -> None:
    """Have as little of it as possible be copied for each fork."""
    gc.collect()
    gc.freeze()
    gather()


def _wait(pid: int) -> int:
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    _lives.discard(pid)
    _end_orphans()
    return code


def _end_orphans() -> None:
    """End what a life has started in sessions of its own: all of it are this one's children now."""
    kept = _lives | {spare.pid for spare in _spares}
    cleaners: set[int] = set()
    while orphans := set(children_of(os.getpid())) - kept - cleaners:
        for orphan in orphans:
            if cleans_up(orphan):
                cleaners.add(orphan)
            elif not _end(orphan):
                kept.add(orphan)
    if cleaners:
        _await(cleaners)


def _end(orphan: int) -> bool:
    """Kill it; whether that was allowed: it may have become another user."""
    try:
        os.kill(orphan, signal.SIGKILL)
        os.waitpid(orphan, 0)
    except PermissionError:
        return False
    except (ProcessLookupError, ChildProcessError):
        pass
    return True


def _await(cleaners: set[int]) -> None:
    """Wait until those have ended by themselves, as nobody is left for them to wait for."""
    end = time.monotonic() + _TO_CLEAN_UP
    for cleaner in cleaners:
        while os.waitpid(cleaner, os.WNOHANG)[0] == 0:
            if time.monotonic() > end:
                _end(cleaner)
                break
            time.sleep(0.001)


_REQUESTS: dict[str, Callable[..., Any]] = {
    "import": _import,
    "learn": _learn,
    "wait": _wait,
}


def _settle(output: str, directory: str) -> None:
    """Have a fork be by itself."""
    os.setsid()
    _redirect(output)
    os.chdir(directory)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _become(words: list[str], output: str, directory: str, env: dict[str, str]) -> None:
    """What a fork does: it is a command, and never comes back."""
    try:
        _settle(output, directory)
        os.execvpe(words[0], words, env)
    except OSError as error:
        os.write(2, f"{words[0]}: {error}".encode())
    os._exit(127)


def _live(
    payload: tuple[Any, ...],
    output: str,
    directory: str,
    env: dict[str, str],
    path: list[str],
    modules: list[str],
) -> None:
    """What a fork does: it is a life, and never comes back but to end as any process does."""
    from pytest_resume_audit.lives.child import live

    _settle(output, directory)
    os.environ.clear()
    os.environ.update(env)
    sys.path[:] = path
    _say_at_once()
    for module in modules:
        importlib.import_module(module)  # which may have been done ahead
    live(*payload)
    sys.exit()  # as any process does, its own way of ending too


def print_into(output: str) -> None:
    """Have a file for what this process prints.

    Args:
        output: the file, which is added to.
    """
    _redirect(output)
    _say_at_once()


def _redirect(output: str) -> None:
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)


def _say_at_once() -> None:
    for stream in (sys.stdout, sys.stderr):
        # What is in a buffer when it is killed is gone, and with it what it said last.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True)


_CHILDREN: dict[str, Callable[..., None]] = {"fork": _live, "run": _become}

_MORE_LIVES = ("fork", "learn")
"""Requests behind which a life will be asked for, and none is spare."""


if __name__ == "__main__":
    main(int(sys.argv[1]))
