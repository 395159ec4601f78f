"""A Ray of threads: actors, object references and queues in this process.

What an audited framework uses of Ray between its own workers, with the behaviour that matters to
them: an actor does one call at a time, in the order in which it was called; where its methods are
coroutines they run in a loop of its own; what is handed over is copied, as it is when it is
pickled.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import copy
import inspect
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any


class LocalRay:
    """What is used of the module ``ray``."""

    @staticmethod
    def get(refs: Any) -> Any:
        """What calls came to, of one reference or of a list.

        Raises:
            BaseException: what a call has raised, as soon as one has.
        """
        if isinstance(refs, list):
            concurrent.futures.wait(refs, return_when=concurrent.futures.FIRST_EXCEPTION)
            failed = [ref for ref in refs if ref.done() and ref.exception() is not None]
            return [ref.result() for ref in failed or refs]
        return refs.result()

    @staticmethod
    def wait(
        refs: Sequence[Future[Any]], *, num_returns: int = 1, timeout: float | None = None
    ) -> tuple[list[Future[Any]], list[Future[Any]]]:
        """The first references that are ready, in their order, and the others.

        It waits until there are enough: who asks again when the time is over does the same.
        """
        while len(ready := [ref for ref in refs if ref.done()]) < num_returns:
            missing = [ref for ref in refs if not ref.done()]
            concurrent.futures.wait(missing, return_when=concurrent.futures.FIRST_COMPLETED)
        ready = ready[:num_returns]
        return ready, [ref for ref in refs if ref not in ready]

    @staticmethod
    def put(value: Any) -> Future[Any]:
        """A reference to a value."""
        ref: Future[Any] = Future()
        ref.set_result(value)
        return ref

    @staticmethod
    def is_initialized() -> bool:
        """Whether there is a cluster: always."""
        return True


class LocalQueue:
    """What is used of ``ray.util.queue.Queue``.

    Args:
        maxsize: items that fit in it.
    """

    def __init__(self, maxsize: int = 0) -> None:
        self._items: queue.Queue[Any] = queue.Queue(maxsize)

    def put(self, item: Any, block: bool = True) -> None:
        """Put a copy of an item in; waits for room."""
        self._items.put(copy.deepcopy(item), block)

    def get(self, block: bool = True) -> Any:
        """Take an item out; waits for one."""
        return self._items.get(block)


class LocalCluster:
    """The actors of one run.

    Example:
        >>> cluster = LocalCluster()
        >>> handle = cluster.actors(list).remote("aba")
        >>> LocalRay.get(handle.count.remote("a"))
        2
        >>> cluster.end()
    """

    def __init__(self) -> None:
        self._handles: list[LocalHandle] = []

    def actors(self, make: Callable[..., Any]) -> LocalActorClass:
        """A class whose instances are actors here.

        Args:
            make: the class, or what makes its instances.
        """
        return LocalActorClass(make, self._handles)

    def end(self) -> None:
        """Let each actor's thread end, once it has done what it was called for."""
        for handle in self._handles:
            handle._worker.end()


class LocalActorClass:
    """A class whose instances are actors: ``kind.remote(...)`` makes one.

    Args:
        make: the class, or what makes its instances.
        handles: where handles to its actors are noted.
    """

    def __init__(self, make: Callable[..., Any], handles: list[LocalHandle]) -> None:
        self._make = make
        self._handles = handles

    def options(self, **resources: Any) -> LocalActorClass:
        """Where it would run, and on what: here."""
        return self

    def remote(self, *args: Any, **kwargs: Any) -> LocalHandle:
        """Make an actor."""
        handle = LocalHandle(self._make(*args, **kwargs))
        self._handles.append(handle)
        return handle


class LocalHandle:
    """An actor: ``handle.method.remote(...)`` gives a reference at once.

    Args:
        actor: the object.
    """

    def __init__(self, actor: Any) -> None:
        self._actor = actor
        kind = type(actor)
        methods = [getattr(kind, name) for name in dir(kind) if not name.startswith("__")]
        in_loop = any(map(inspect.iscoroutinefunction, methods))
        self._worker: _Line | _Loop = (_Loop if in_loop else _Line)(kind.__name__)

    def __getattr__(self, name: str) -> _Method:
        return _Method(getattr(self._actor, name), self._worker)


class _Method:
    def __init__(self, method: Callable[..., Any], worker: _Line | _Loop) -> None:
        self._method, self._worker = method, worker

    def remote(self, *args: Any, **kwargs: Any) -> Future[Any]:
        # As in Ray, a reference that is an argument by itself is what it came to.
        args = tuple(LocalRay.get(arg) if isinstance(arg, Future) else arg for arg in args)
        return self._worker.call(lambda: self._method(*args, **kwargs))


class _Line:
    """One call after the other, in a thread."""

    def __init__(self, name: str) -> None:
        self._calls: queue.Queue[tuple[Callable[[], Any], Future[Any]] | None] = queue.Queue()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def call(self, function: Callable[[], Any]) -> Future[Any]:
        ref: Future[Any] = Future()
        self._calls.put((function, ref))
        return ref

    def end(self) -> None:
        self._calls.put(None)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            function, ref = call
            try:
                ref.set_result(function())
            except Exception as error:
                ref.set_exception(error)


class _Loop:
    """Coroutines, side by side in an event loop in a thread."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def call(self, function: Callable[[], Any]) -> Future[Any]:
        ref: Future[Any] = Future()

        def begin() -> None:
            task = self._loop.create_task(_answer(function, ref))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        try:
            self._loop.call_soon_threadsafe(begin)
        except RuntimeError as ended:
            ref.set_exception(ended)
        return ref

    def end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()


async def _answer(function: Callable[[], Any], ref: Future[Any]) -> None:
    try:
        result = function()
        ref.set_result(await result if inspect.isawaitable(result) else result)
    except Exception as error:
        ref.set_exception(error)
