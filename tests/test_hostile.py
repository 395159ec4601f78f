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

from pytest_resume_audit import (
    FuturesCollector,
    LifeEnded,
    LiveCursorCollector,
    Prompt,
    Rollout,
    conductor,
    workspace,
)
from pytest_resume_audit.catalogue import matrix
from pytest_resume_audit.collectors import checkpoints
from pytest_resume_audit.conductor import run
from pytest_resume_audit.setup import Setup
from pytest_resume_audit.verdict import AuditReport

STORY = "hand_out 12; finish 0-3; train; finish 4 6 7 10; save; crash; restart; drain"
HANGS_AT = 0.5
"""Seconds: the deadline, in tests of what nothing but the deadline can tell from work."""

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
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leaves_threads: list[Callable[[], None]]
) -> Iterator[None]:
    workspaces = tmp_path / "workspaces"
    workspaces.mkdir()
    monkeypatch.setattr(workspace, "_memory", lambda: str(workspaces))
    threads, files, before = set(threading.enumerate()), open_files(), surroundings()
    former = threading.excepthook
    yield

    def ended() -> bool:
        return set(threading.enumerate()) <= threads

    if leaves_threads:
        for end in leaves_threads:
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


@pytest.mark.parametrize(
    ("kind", "method"),
    [(Inline, "pull"), *((kind, method) for kind in KINDS for method in METHODS)],
)
def test_a_method_that_raises(kind: Any, method: str) -> None:
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


class WrapsInThread(Threaded):
    """Wraps whatever ends a worker, the end of its life too."""

    def answer(self, prompt: Prompt) -> None:
        try:
            super().answer(prompt)
        except BaseException as error:
            raise RuntimeError("a worker died") from error


class WrapsInTask(Looped):
    """The same in a task."""

    async def answer(self, prompt: Prompt) -> None:
        try:
            await super().answer(prompt)
        except BaseException as error:
            raise RuntimeError("a worker died") from error


@pytest.mark.parametrize("collector", [WrapsInThread, WrapsInTask])
def test_what_is_made_of_the_end_of_a_life_is_not_held_against_the_next(collector: Any) -> None:
    report = play(collector)
    assert report.error is None
    assert report.skipped == [5, 8, 9, 11]


def test_only_the_end_of_a_life_is_not_heard_of_in_a_finalizer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    heard: list[type[BaseException]] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda args: heard.append(args.exc_type))

    class Finalized:
        def __init__(self, error: type[BaseException]) -> None:
            self.error = error

        def __del__(self) -> None:
            raise self.error

    class Finalizes(Threaded):
        def start(self) -> None:
            super().start()
            for error in (LifeEnded, KeyError):
                Finalized(error)

    assert play(Finalizes).skipped == [5, 8, 9, 11]
    # Once in each life, and once in the uninterrupted run.
    assert heard == [KeyError] * 3


# -- never returning -----------------------------------------------------------------------------


def spin() -> None:
    while True:
        pass


def sleep() -> None:
    while True:
        time.sleep(0.01)


NEVER = [
    (Inline, "pull"),
    *((kind, name) for kind in KINDS for name in ("start", "save", "restore", "train_step")),
]


@pytest.mark.parametrize(
    ("kind", "method", "body"),
    [*((*never, spin) for never in NEVER), *((kind, "save", sleep) for kind in KINDS)],
)
def test_a_method_that_goes_on_for_ever(kind: Any, method: str, body: Any) -> None:
    seen_at_once = body is sleep and kind is not Inline
    report = play(spoiled(kind, method, body), deadline=20 if seen_at_once else HANGS_AT)
    assert report.verdict == "hang", report.findings
    assert f"is in {body.__name__} ({__file__}" in report.findings[0].text


@pytest.mark.parametrize(
    ("kind", "method"), [(Inline, "pull"), *((kind, "save") for kind in KINDS)]
)
def test_a_method_that_waits_for_a_lock_for_ever(
    kind: Any, method: str, leaves_threads: list[Callable[[], None]]
) -> None:
    locks: list[threading.Lock] = []

    def wait() -> None:
        lock = threading.Lock()
        lock.acquire()
        locks.append(lock)
        lock.acquire()

    leaves_threads.append(lambda: [lock.release() for lock in locks] and None)
    report = play(spoiled(kind, method, wait), deadline=HANGS_AT if kind is Inline else 20)
    assert report.verdict == "hang", report.findings
    assert f"is in wait ({__file__}" in report.findings[0].text


@pytest.mark.parametrize("method", ["start", "save", "restore", "train_step"])
def test_a_coroutine_that_waits_for_ever(method: str) -> None:
    async def wait(*args: Any, **options: Any) -> None:
        await asyncio.get_running_loop().create_future()

    report = play(type("Waits", (Looped,), {method: wait}))
    assert report.verdict == "hang", report.findings
    assert report.findings[0].text.startswith(f"{method} does not return")


def test_a_thread_that_works_on_for_ever_is_named() -> None:
    class Spins(Threaded):
        def collect(self) -> None:
            spin()

    report = play(Spins, deadline=HANGS_AT)
    assert report.verdict == "hang"
    assert "no rest" in report.findings[0].text
    assert "'collection' is in spin" in report.findings[0].text


def test_a_pull_that_always_says_it_took_something() -> None:
    class Boasts(Inline):
        def pull(self) -> bool:
            super().pull()
            return True

    class BoastsInLoop(menagerie.AsyncPull):
        async def pull(self) -> bool:
            await super().pull()
            return True

    for collector in (Boasts, BoastsInLoop):
        report = play(collector)
        assert report.verdict == "lossy"
        assert report.skipped == [5, 8, 9, 11]


@pytest.mark.parametrize("answer", [True, None, "trained"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_step_is_what_went_into_the_weights_whatever_is_said(kind: Any, answer: Any) -> None:
    class Says(kind):  # type: ignore[misc]
        def train_step(self) -> Any:
            self.rig.trainer.step()
            return answer

    report = play(Says)
    assert report.skipped == [5, 8, 9, 11]
    assert report.missed == ()


# -- not ending ----------------------------------------------------------------------------------


class Stubborn(Threaded):
    """A thread of it swallows whatever ends it, and calls the rig again."""

    let_go = threading.Event()

    def start(self) -> None:
        super().start()
        threading.Thread(target=self.stay, name="stubborn", daemon=True).start()

    def stay(self) -> None:
        try:
            while not self.let_go.is_set():
                time.sleep(0.002)
                len(self.rig.buffer)
        except BaseException:
            self.stay()


def test_a_thread_that_will_not_end_is_left_behind_and_named(
    leaves_threads: list[Callable[[], None]],
) -> None:
    Stubborn.let_go.clear()
    leaves_threads.append(Stubborn.let_go.set)
    report = play(Stubborn)
    assert report.skipped == [5, 8, 9, 11]
    for life in report.history.lives:
        assert [text for text in life.left_behind if "'stubborn'" in text]


def test_the_next_run_is_not_disturbed_by_a_thread_that_was_left_behind(
    leaves_threads: list[Callable[[], None]],
) -> None:
    Stubborn.let_go.clear()
    leaves_threads.append(Stubborn.let_go.set)
    expected = run(menagerie.BatchBarrier, STORY, deadline=20)
    play(Stubborn)
    again = run(menagerie.BatchBarrier, STORY, deadline=20)
    assert again.history.lines() == expected.history.lines()
    assert again.findings == expected.findings


SCRIPT = """
    import threading, time
    from pytest_resume_audit import Collector, run

    class Stubborn(Collector):
        def start(self):
            threading.Thread(target=self.collect, daemon=True).start()
            threading.Thread(target=self.stay, daemon=True).start()
            self.stop_me = threading.Lock()
            self.stop_me.acquire()
            threading.Thread(target=self.wait, daemon=True).start()

        def collect(self):
            for batch in self.rig.loader:
                for prompt in batch:
                    self.rig.engine.submit(prompt).add_done_callback(self.answered)

        def answered(self, answer):
            self.rig.buffer.add(answer.result())

        def stay(self):
            try:
                while True:
                    time.sleep(0.001)
                    len(self.rig.buffer)
            except BaseException:
                self.stay()

        def wait(self):
            self.stop_me.acquire()

        def save(self, root, step):
            (root / f"step_{step}").mkdir()

        def restore(self, checkpoint, *, load_replay_buffer):
            pass

    report = run(Stubborn, "hand_out 4; finish 0-3; train; save; crash; restart; drain")
    print(report.verdict, len(report.history.lives[0].left_behind))
"""


def test_the_interpreter_ends_though_threads_were_left_behind() -> None:
    package = str(Path(conductor.__file__).parents[1])
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(SCRIPT)],
        env={**os.environ, "PYTHONPATH": package},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr == ""
    # One that swallows its end, and one that waits for a lock for ever.
    assert ended.stdout == "lossy 2\n"


# -- reaching into another life ------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_the_rig_of_an_old_life_is_dead(kind: Any) -> None:
    rigs: list[Any] = []

    class Reaches(kind):  # type: ignore[misc]
        def __init__(self, rig: Any) -> None:
            super().__init__(rig)
            rigs.append(rig)

        def train_step(self) -> Any:
            if len(rigs) > 1:
                len(rigs[-2].buffer)
            return super().train_step()

    report = play(Reaches)
    assert report.verdict == "error"
    assert type(report.error).__name__ == "LifeEnded"
    assert "train_step" in frames(report.error)
    assert "the life has ended" in report.findings[0].text


def test_what_the_old_life_does_to_its_files_is_not_seen_by_the_next() -> None:
    tidied: list[Path] = []

    class Tidies(Threaded):
        def save(self, root: Path, step: int) -> None:
            super().save(root, step)
            threading.Thread(target=self.tidy, args=[root], daemon=True).start()

        def tidy(self, root: Path) -> None:
            try:
                self.rig.engine.generate(Prompt(15))
            finally:
                # The life has ended under it.
                for checkpoint in root.iterdir():
                    shutil.rmtree(checkpoint)
                (root / "step_9").mkdir()
                tidied.append(root)

    report = play(Tidies, "hand_out 4; finish 0-3; train; save; crash; restart; drain")
    assert tidied
    assert report.history.lives[1].origin == 1
    assert report.verdict == "lossless"


def test_files_kept_open_and_a_changed_directory() -> None:
    kept: list[Any] = []

    class Wanders(Inline):
        def save(self, root: Path, step: int) -> None:
            os.chdir(root)
            super().save(root, step)
            kept.extend(path.open() for path in root.rglob("*.json"))

    report = play(Wanders)
    assert report.skipped == [5, 8, 9, 11]
    assert kept
    for file in kept:
        file.close()


# -- nonsense ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("chosen", "error"),
    [
        (lambda root: root.parent, "not below"),
        (lambda root: 5, "not below"),
        (lambda root: root, "no save of this run"),
        (lambda root: root / "step_77", "no save of this run"),
    ],
    ids=["outside", "a number", "the root", "missing"],
)
def test_latest_chooses_nonsense(chosen: Any, error: str) -> None:
    class Chooses(Inline):
        @classmethod
        def latest(cls, root: Path) -> Any:
            return chosen(root)

    report = play(Chooses)
    assert report.verdict == "error"
    assert error in report.findings[0].text


def test_latest_may_give_a_text() -> None:
    class Chooses(Inline):
        @classmethod
        def latest(cls, root: Path) -> Any:
            return str(root / "step_1")

    assert play(Chooses).skipped == [5, 8, 9, 11]


def test_latest_that_finds_nothing_is_a_silent_restart() -> None:
    class Forgets(Inline):
        @classmethod
        def latest(cls, root: Path) -> None:
            return None

    report = play(Forgets)
    assert report.verdict == "lossy"
    assert report.findings[0].text.startswith("silent restart: life 2 began afresh")
    assert report.skipped == report.duplicated == []


def test_a_save_that_writes_nothing() -> None:
    class Saves(Inline):
        def save(self, root: Path, step: int) -> None:
            pass

    report = run(Saves, "mid-flight", deadline=20)
    assert report.verdict == "undetermined"
    assert not report.passed
    assert [missed.step for missed in report.missed] == ["save"]


class KeepsOne(Inline):
    """A new checkpoint takes the place of the old one."""

    def save(self, root: Path, step: int) -> None:
        for checkpoint in root.iterdir():
            shutil.rmtree(checkpoint)
        super().save(root, step)


def test_a_checkpoint_that_was_not_kept_is_no_loss() -> None:
    script = "hand_out 8; finish 0-3; train; save; finish 4-7; train; save; crash; restart"
    report = play(KeepsOne, f"{script} from 0")
    assert report.verdict == "lossless"
    assert report.history.lives[1].origin is None
    assert ["not kept" in missed.why for missed in report.missed] == [True]
    assert play(KeepsOne, script).history.lives[1].origin == 2


def test_a_downgrade_without_a_save() -> None:
    class NeverSaves(menagerie.SelfDriven):
        every = 99

        def downgrade(self, checkpoint: Path) -> None:
            bang()

    report = play(NeverSaves, "hand_out 4; finish 0-3; save; downgrade; crash; restart; drain")
    assert report.error is None
    assert [missed.step for missed in report.missed] == ["save", "downgrade"]


@pytest.mark.parametrize(
    ("trained", "error"),
    [
        ([Rollout(Prompt(99), 0, 0)], ValueError),
        ([Rollout(Prompt(-1), 0, 0)], ValueError),
        ([Rollout(Prompt(0), 3, 0)], ValueError),
        (["an answer"], TypeError),
    ],
)
def test_what_can_not_be_trained(trained: Any, error: Any) -> None:
    class Trains(Threaded):
        def train_step(self) -> bool:
            self.rig.trainer.train(trained)
            return True

    is_error(play(Trains), error, "_index")


def test_a_drop_without_a_reason() -> None:
    class Drops(Inline):
        def answered(self, answer: Any) -> None:
            self.rig.dropped(answer.result().prompt, "")

    is_error(play(Drops), ValueError, "dropped")


def test_a_prompt_that_is_put_in_the_buffer_twice_is_trained_twice() -> None:
    class Doubles(Inline):
        def answered(self, answer: Any) -> None:
            super().answered(answer)
            if answer.result().prompt.row == 6:
                super().answered(answer)

    report = play(Doubles)
    assert report.verdict == "lossy"
    assert report.duplicated == [6]
    assert report.skipped == [5, 8, 9, 11]


def test_a_prompt_that_is_said_to_be_buffered_twice_is_in_it_once() -> None:
    class Says(menagerie.OwnPartsFrontier):
        def answered(self, answer: Any) -> None:
            super().answered(answer)
            self.rig.buffered(answer.result())

    assert play(Says).verdict == "lossless"


# -- a loader of one's own -----------------------------------------------------------------------


def watched(batches: Callable[[], Iterator[Any]], key: Callable[[Any], Any] = list) -> type[Any]:
    """A collector with a loader that gives these batches."""

    class Loader:
        def __iter__(self) -> Iterator[Any]:
            return batches()

    class Watches(Inline):
        def start(self) -> None:
            self.batches = iter(self.rig.watch(Loader(), key))  # type: ignore[assignment]

        def pull(self) -> bool:
            batch = next(self.batches, None)
            for row in batch or ():
                future = self.rig.engine.submit(Prompt(row))  # type: ignore[arg-type]
                future.add_done_callback(self.answered)
            return batch is not None

    return Watches


def breaks() -> Iterator[list[int]]:
    yield [0, 1, 2, 3]
    bang()


def strays() -> Iterator[list[int]]:
    yield [0, 1, 99, 3]


def pauses() -> Iterator[list[int]]:
    yield [0, 1, 2, 3]
    yield []
    yield [4, 5, 6, 7]


def test_a_loader_that_raises() -> None:
    is_error(play(watched(breaks)), Bang, "bang")


def test_a_loader_that_leaves_the_data_set() -> None:
    is_error(play(watched(strays)), ValueError, "_index")


def test_a_key_that_raises() -> None:
    is_error(play(watched(pauses, key=lambda batch: bang())), Bang, "bang")


def test_a_loader_with_an_empty_batch() -> None:
    report = run(watched(pauses), "drain", setup=Setup(prompts=8), deadline=20)
    assert report.verdict == "lossless"
    assert report.structural == []


# -- around the process --------------------------------------------------------------------------


def test_much_output_passes(capfd: pytest.CaptureFixture[str]) -> None:
    line = "x" * 1000

    class Talks(Threaded):
        def answer(self, prompt: Prompt) -> None:
            for _ in range(200):
                print(line)
                print(line, file=sys.stderr)
            super().answer(prompt)

    assert play(Talks).skipped == [5, 8, 9, 11]
    out, err = capfd.readouterr()
    assert out.count(line) == err.count(line) == (12 + 4 + 16) * 200


def test_warnings_as_errors_do_not_end_the_collector() -> None:
    class Warns(Threaded):
        def answer(self, prompt: Prompt) -> None:
            warnings.warn("on its way out", DeprecationWarning, stacklevel=1)
            super().answer(prompt)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(DeprecationWarning, match="on its way out"):
            # Not in the collector, but from the audit to whoever asked for it.
            play(Warns)
        warnings.simplefilter("ignore")
        assert play(Warns).skipped == [5, 8, 9, 11]


def test_a_collector_with_a_hook_of_its_own() -> None:
    heard: list[Any] = []

    class Hooks(Threaded):
        def start(self) -> None:
            self.former, threading.excepthook = threading.excepthook, heard.append
            super().start()

        def collect(self) -> None:
            super().collect()
            bang()

    before = threading.excepthook
    try:
        report = play(Hooks)
    finally:
        threading.excepthook = before
    # Its hook has it; the audit knows nothing of it, and nothing is lost by it.
    assert [hooked.exc_type for hooked in heard if hooked.exc_type is Bang]
    assert report.skipped == [5, 8, 9, 11]


# -- paths and files -----------------------------------------------------------------------------


class WritesPathsDown(LiveCursorCollector):
    """Its newest checkpoint is named by a link and by a text, both with the whole path."""

    def save(self, root: Path, step: int) -> None:
        super().save(root, step)
        newest = checkpoints.newest_complete(root)
        assert newest is not None
        (root / "tracker").write_text(str(newest))
        (root / "link").unlink(missing_ok=True)
        (root / "link").symlink_to(newest)

    @classmethod
    def latest(cls, root: Path) -> Path | None:
        if not (root / "tracker").exists():
            return None
        assert (root / "link").resolve().parent == root.resolve(), "it is where it always was"
        return Path((root / "tracker").read_text())


def test_a_path_that_was_written_down_is_the_same_after_a_restart() -> None:
    assert play(WritesPathsDown).skipped == [5, 8, 9, 11]
    assert play(WritesPathsDown, "save; crash; restart; save; crash; restart").skipped == []


class LastByName(FuturesCollector):
    """Takes the last of its checkpoints by name, of which the tenth is not the last."""

    def save(self, root: Path, step: int) -> None:
        number = len(list(root.glob("ck-*"))) + 1
        super().save(root, step)
        newest = checkpoints.newest_complete(root)
        assert newest is not None
        newest.rename(root / f"ck-{number}")

    @classmethod
    def latest(cls, root: Path) -> Path | None:
        return max(root.glob("ck-*"), key=lambda path: path.name, default=None)


def test_the_tenth_checkpoint_is_newer_than_the_ninth() -> None:
    many = [t for t in matrix("nightly") if t.name.endswith("-saves")]
    caught = [t for t in many if not run(LastByName, t).passed]
    assert caught
    (finding, *_) = run(LastByName, caught[0]).findings
    assert "silent restart" in finding.text or finding.text == "skipped"


class LoadsAllTheSame(FuturesCollector):
    """Loads the buffer though it is told not to."""

    def restore(self, checkpoint: Path, *, load_replay_buffer: bool) -> None:
        super().restore(checkpoint, load_replay_buffer=True)


def test_a_buffer_that_is_loaded_all_the_same_shows_nothing() -> None:
    report = run(LoadsAllTheSame, "mid-flight-no-buffer")
    assert report.verdict == "undetermined"
    assert "resumed without the buffer" in report.findings[0].text
