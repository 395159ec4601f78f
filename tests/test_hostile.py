"""Collectors that misbehave: each is reported, in bounded time, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import subprocess
import sys
import textwrap
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import menagerie
import pytest
from menagerie import OldWay

from pytest_resume_audit import LiveCursorCollector, Prompt, Rollout, conductor
from pytest_resume_audit.conductor import run
from pytest_resume_audit.setup import Setup
from pytest_resume_audit.verdict import AuditReport

STORY = "hand_out 12; finish 0-3; train; finish 4 6 7 10; save; crash; restart; drain"
HANGS_AT = 0.5
"""Seconds: how long a test waits until a hang is called one."""

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")


def play(collector: Any, script: str = STORY, deadline: float = 20.0) -> AuditReport:
    return run(collector, script, deadline=deadline)


def until(holds: Callable[[], bool], seconds: float = 20.0) -> bool:
    """Wait for a condition; whether it came."""
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(0.001)
    return True


# -- afterwards everything is as before ----------------------------------------------------------


def open_files() -> set[tuple[str, str]]:
    found = set()
    if sys.platform.startswith("linux"):
        for number in os.listdir("/proc/self/fd"):
            try:
                found.add((number, os.readlink(f"/proc/self/fd/{number}")))
            except OSError:
                continue  # that of the listing itself
    return found


def surroundings() -> dict[str, Any]:
    loggers = [logging.getLogger(name) for name in (None, "asyncio", "concurrent.futures")]
    return {
        "warnings": (list(warnings.filters), warnings.showwarning),
        "hook": threading.excepthook,
        "logging": [(list(logger.handlers), list(logger.filters)) for logger in loggers],
        "output": (sys.stdout, sys.stderr),
        "directory": os.getcwd(),
    }


@pytest.fixture
def leaves_threads() -> list[Callable[[], None]]:
    """For a test whose threads no one can end: what ends them, once the test is done."""
    return []


@pytest.fixture(autouse=True)
def undisturbed(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    workspaces = tmp_path / "workspaces"
    workspaces.mkdir()
    monkeypatch.setattr(conductor, "_memory", lambda: str(workspaces))
    threads, files, before = set(threading.enumerate()), open_files(), surroundings()
    former = threading.excepthook
    yield

    def ended() -> bool:
        return set(threading.enumerate()) <= threads

    if "leaves_threads" in request.fixturenames:
        for end in request.getfixturevalue("leaves_threads"):
            end()
        # What such a thread raises at its end must not come out elsewhere: the hook stays.
        threading.excepthook = former
    assert until(ended), [t for t in threading.enumerate() if t not in threads]
    assert open_files() <= files
    assert list(workspaces.iterdir()) == []
    assert surroundings() == before
    good = run(LiveCursorCollector, STORY, deadline=20)
    assert (good.verdict, good.skipped) == ("lossy", [5, 8, 9, 11])
    good = run(menagerie.AsyncFrontier, STORY, deadline=20)
    assert (good.verdict, good.findings) == ("lossless", ())


# -- three that behave, to be spoiled ------------------------------------------------------------


class Inline(menagerie.OneThread):
    """In the caller's thread."""

    def downgrade(self, checkpoint: Path) -> None:
        """Nothing: its checkpoints have no ordinals anyway."""


class Threaded(OldWay):
    """A thread that collects, and one for each answer."""

    def start(self) -> None:
        threading.Thread(target=self.collect, name="collection", daemon=True).start()

    def collect(self) -> None:
        for batch in self.rig.loader:
            for prompt in batch:
                threading.Thread(target=self.answer, args=[prompt], daemon=True).start()

    def answer(self, prompt: Prompt) -> None:
        self.rig.buffer.add(self.rig.engine.generate(prompt))

    def downgrade(self, checkpoint: Path) -> None:
        """Nothing: its checkpoints have no ordinals anyway."""


class Callbacks(Threaded):
    """The same, with callbacks of futures in the place of threads."""

    def collect(self) -> None:
        for batch in self.rig.loader:
            for prompt in batch:
                self.rig.engine.submit(prompt).add_done_callback(self.answered)

    def answered(self, answer: Any) -> None:
        self.rig.buffer.add(answer.result())


class Looped(menagerie.AsyncIteration):
    """Coroutines."""

    async def downgrade(self, checkpoint: Path) -> None:
        """Nothing: its checkpoints have no ordinals anyway."""


class Forgetful(Looped):
    """Coroutines, in tasks that nobody keeps once they have ended."""

    async def collect(self) -> None:
        async for batch in self.rig.loader:
            for prompt in batch:
                task = asyncio.create_task(self.answer(prompt))
                self.tasks.add(task)
                task.add_done_callback(self.tasks.discard)


KINDS = [Inline, Threaded, Looped]


def spoiled(kind: type[Any], method: str, body: Callable[[], Any]) -> type[Any]:
    """A collector one method of which does something else."""

    def plain(*args: Any, **options: Any) -> Any:
        return body()

    async def coroutine(*args: Any, **options: Any) -> Any:
        return body()

    whole: Any = coroutine if kind is Looped and method not in ("__init__", "latest") else plain
    return type(f"Spoiled{kind.__name__}", (kind,), {
        method: classmethod(whole) if method == "latest" else whole,
    })  # fmt: skip


class Bang(Exception):
    """What the collectors of these tests raise."""


def bang() -> None:
    raise Bang("in the collector")


def frames(error: BaseException | None) -> list[str]:
    assert error is not None
    return [frame.name for frame in traceback.extract_tb(error.__traceback__)]


def is_error(report: AuditReport, error: type[BaseException], where: str) -> None:
    """The verdict is the exception, and its traceback leads to where it was raised."""
    assert report.verdict == "error", report.findings
    assert type(report.error) is error
    assert not report.passed
    assert frames(report.error)[-1] == where
    assert report.findings[0].text.startswith(error.__name__)


# -- raising -------------------------------------------------------------------------------------

METHODS = ["__init__", "start", "save", "restore", "train_step", "stop", "latest", "downgrade"]


@pytest.mark.parametrize("method", [*METHODS, "pull"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_method_that_raises(kind: Any, method: str) -> None:
    if method == "pull" and kind is not Inline:
        pytest.skip("it has a thread or a loop, and is not pulled")
    script = STORY.replace("save;", "save; downgrade;") if method == "downgrade" else STORY
    script = script.replace("crash", "stop") if method == "stop" else script
    is_error(play(spoiled(kind, method, bang), script), Bang, "bang")


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
@pytest.mark.parametrize("kind", KINDS)
def test_a_method_that_exits(kind: Any, error: Any) -> None:
    def leave() -> None:
        raise error("enough")

    is_error(play(spoiled(kind, "save", leave)), error, "leave")


def test_an_init_that_raises_in_the_second_life_only() -> None:
    class Once(Threaded):
        lives = 0

        def __init__(self, rig: Any) -> None:
            super().__init__(rig)
            Once.lives += 1
            if Once.lives == 3:  # after the uninterrupted run, and the first life of the other
                bang()

    report = play(Once)
    is_error(report, Bang, "bang")
    assert len(report.history.lives) == 2


def test_an_error_is_no_refusal_unless_declared() -> None:
    class Refuses(Threaded):
        refuses = (Bang,)

        def restore(self, checkpoint: Path, *, load_replay_buffer: bool) -> None:
            bang()

    report = play(Refuses)
    assert report.verdict == "refused"
    assert frames(report.error)[-1] == "bang"
    is_error(play(spoiled(Refuses, "save", bang)), Bang, "bang")


EXCEPTIONS = pytest.mark.parametrize("error", [Bang, SystemExit, KeyboardInterrupt])


@EXCEPTIONS
def test_a_collection_thread_that_raises(error: Any) -> None:
    class Breaks(Threaded):
        def collect(self) -> None:
            for number, _ in enumerate(self.rig.loader):
                if number == 2:
                    raise error("no more")

    is_error(play(Breaks), error, "collect")


@EXCEPTIONS
@pytest.mark.parametrize("kind", [Inline, Callbacks])
def test_a_callback_of_an_answer_that_raises(kind: Any, error: Any) -> None:
    class Breaks(kind):  # type: ignore[misc]
        def answered(self, answer: Any) -> None:
            if answer.result().prompt.row == 6:
                raise error("not this one")
            super().answered(answer)

    is_error(play(Breaks), error, "answered")


@EXCEPTIONS
@pytest.mark.parametrize("kind", [Looped, Forgetful, menagerie.LoopInThread])
def test_a_task_that_raises(kind: Any, error: Any) -> None:
    class Breaks(kind):  # type: ignore[misc]
        async def answer(self, *args: Any) -> None:
            await super().answer(*args)
            raise error("afterwards")

    is_error(play(Breaks), error, "answer")


@EXCEPTIONS
def test_a_collecting_coroutine_that_raises(error: Any) -> None:
    class Breaks(Looped):
        async def collect(self) -> None:
            async for _ in self.rig.loader:
                raise error("no more")

    is_error(play(Breaks), error, "collect")


def test_a_task_whose_exception_is_asked_for_is_no_error() -> None:
    class Handles(Looped):
        async def collect(self) -> None:
            async for batch in self.rig.loader:
                self.tasks.add(asyncio.create_task(self.answer_all(batch)))

        async def answer_all(self, batch: list[Prompt]) -> None:
            breaking = asyncio.create_task(asyncio.sleep(0, result=None))
            failing = asyncio.create_task(self.fail())
            await asyncio.gather(breaking, failing, return_exceptions=True)
            await asyncio.gather(*(self.answer(prompt) for prompt in batch))

        async def fail(self) -> None:
            bang()

    assert play(Handles, "drain").verdict == "lossless"


@pytest.mark.parametrize("kind", [Threaded, Callbacks, Looped])
def test_what_a_thread_makes_of_the_end_of_its_life_is_not_held_against_the_next(kind: Any) -> None:
    # Code that wraps whatever ends a worker is right to do so; the life has ended all the same.
    class Wraps(kind):  # type: ignore[misc]
        def collect(self) -> Any:
            def loop() -> None:
                try:
                    self.rig.engine.generate(Prompt(0))
                except BaseException as error:
                    raise RuntimeError("a worker died") from error

            if not self.rig.setup.passes:  # pragma: no cover
                loop()
            return super().collect()

        def answer(self, prompt: Prompt) -> Any:
            answer = super().answer(prompt)
            if asyncio.iscoroutine(answer):
                return self.wrapped(answer)
            return answer

        async def wrapped(self, answer: Any) -> None:
            try:
                await answer
            except BaseException as error:
                raise RuntimeError("a worker died") from error

    if kind is Threaded:

        def answer(self: Any, prompt: Prompt) -> None:
            try:
                Threaded.answer(self, prompt)
            except BaseException as error:
                raise RuntimeError("a worker died") from error

        Wraps.answer = answer  # type: ignore[method-assign]
    report = play(Wraps)
    assert report.error is None
    assert report.skipped == [5, 8, 9, 11]
