"""The parts of a rig as fixtures, for tests written by hand."""

from __future__ import annotations

import pytest

from pytest_resume_audit import FrontierCollector, GenerationFailed, Rig, Setup
from pytest_resume_audit.fakes.buffer import ReplayBuffer
from pytest_resume_audit.fakes.engine import Engine
from pytest_resume_audit.fakes.loader import Loader
from pytest_resume_audit.fakes.trainer import Trainer
from pytest_resume_audit.fixture import ResumeAudit


def test_the_loader_hands_out_at_once(resume_loader: Loader) -> None:
    assert [prompt.row for prompt in next(iter(resume_loader))] == [0, 1, 2, 3]
    assert resume_loader.state_dict() == {"epoch": 0, "yielded": 4}


def test_the_engine_answers_when_it_is_told_to(
    resume_engine: Engine, resume_loader: Loader
) -> None:
    first, second, *_ = next(iter(resume_loader))
    answer, failure = resume_engine.submit(first), resume_engine.submit(second)
    assert resume_engine.in_flight == [(0, 0), (1, 0)]
    resume_engine.finish(0)
    resume_engine.fail(1)
    assert answer.result(timeout=0).prompt == first
    with pytest.raises(GenerationFailed):
        failure.result(timeout=0)


def test_the_parts_belong_to_one_rig(
    resume_loader: Loader,
    resume_engine: Engine,
    resume_buffer: ReplayBuffer,
    resume_trainer: Trainer,
    resume_rig: Rig,
) -> None:
    assert resume_rig.setup == Setup()
    assert (resume_rig.loader, resume_rig.engine) == (resume_loader, resume_engine)
    assert (resume_rig.buffer, resume_rig.trainer) == (resume_buffer, resume_trainer)
    answers = [resume_engine.submit(prompt) for prompt in next(iter(resume_loader))]
    for row, answer in enumerate(answers):
        resume_engine.finish(row)
        resume_buffer.add(answer.result(timeout=0))
    assert len(resume_buffer) == 4
    assert resume_trainer.step()
    assert resume_trainer.counts() == [1] * 4 + [0] * 12


@pytest.mark.parametrize(
    "part", ["resume_rig", "resume_loader", "resume_engine", "resume_buffer", "resume_trainer"]
)
def test_each_part_can_be_had_alone(part: str, request: pytest.FixtureRequest) -> None:
    assert request.getfixturevalue(part) is not None


@pytest.mark.resume_audit(timelines={"one": "drain"}, setup=Setup(prompts=6, batch_size=2))
def test_the_sizes_are_those_of_the_marker(
    resume_audit: ResumeAudit, resume_rig: Rig, resume_loader: Loader
) -> None:
    assert resume_rig.setup == Setup(prompts=6, batch_size=2)
    assert len(next(iter(resume_loader))) == 2
    assert resume_audit(FrontierCollector).setup == resume_rig.setup


def test_each_test_has_a_rig_of_its_own(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.parametrize("again", [False, True])
        def test_loader(again, resume_loader):
            assert next(iter(resume_loader))[0].row == 0
        """
    )
    pytester.runpytest().assert_outcomes(passed=2)


def test_a_thread_that_stands_in_a_call_ends_with_the_test(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import threading

        import pytest

        threads = []

        @pytest.fixture(autouse=True)
        def none_is_left(request):
            yield
            # Torn down after resume_rig, which is set up later.
            assert not any(thread.is_alive() for thread in threads)

        @pytest.fixture
        def thread(none_is_left, resume_rig):
            standing = threading.Event()

            def generate():
                prompt = next(iter(resume_rig.loader))[0]
                standing.set()
                resume_rig.engine.generate(prompt)

            thread = threading.Thread(target=generate, name="generates")
            threads.append(thread)
            thread.start()
            assert standing.wait(10)
            while not resume_rig._control.standing_at("engine"):
                pass
            return thread

        def test_that_passes(thread):
            assert thread.is_alive()

        def test_that_fails(thread):
            assert not thread.is_alive()
        """
    )
    result = pytester.runpytest_subprocess("-W", "error")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.no_fnmatch_line("*LifeEnded*")


def test_any_other_exception_in_a_thread_is_still_reported(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import threading

        def test_thread(resume_rig):
            thread = threading.Thread(target=lambda: 1 / 0)
            thread.start()
            thread.join()
        """
    )
    result = pytester.runpytest_subprocess("-W", "error")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*PytestUnhandledThreadExceptionWarning*"])


def test_the_hook_for_threads_is_put_back(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import threading

        def test_rig(resume_rig):
            assert threading.excepthook.__module__ == "pytest_resume_audit.fixture"

        def test_none():
            assert threading.excepthook.__module__ != "pytest_resume_audit.fixture"
        """
    )
    pytester.runpytest("-p", "no:randomly").assert_outcomes(passed=2)


def test_the_life_is_over_after_the_test(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest
        from pytest_resume_audit import LifeEnded

        @pytest.fixture
        def use_it_too_late(request):
            yield
            with pytest.raises(LifeEnded):
                next(iter(request.node.rig.loader))

        def test_rig(use_it_too_late, resume_rig, request):
            request.node.rig = resume_rig
        """
    )
    pytester.runpytest().assert_outcomes(passed=1)


def test_a_loop_that_outlives_the_test_goes_on(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import asyncio

        import pytest

        @pytest.fixture(scope="module")
        def loop():
            loop = asyncio.new_event_loop()
            yield loop
            for task in asyncio.all_tasks(loop):
                task.cancel()
            loop.run_until_complete(asyncio.sleep(0))
            loop.close()

        @pytest.fixture
        def rig(loop, resume_rig):
            return resume_rig

        @pytest.mark.parametrize("again", [False, True])
        def test_loop(loop, rig, again):
            async def generate_in_the_background():
                prompt = (await anext(aiter(rig.loader)))[0]
                task = asyncio.create_task(rig.engine.agenerate(prompt))
                await asyncio.sleep(0)
                assert not task.done()

            loop.run_until_complete(generate_in_the_background())
        """
    )
    pytester.runpytest_subprocess("-W", "error").assert_outcomes(passed=2)


def test_the_fixtures_are_listed_with_what_they_are(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest("--fixtures")
    result.stdout.fnmatch_lines_random(
        [
            "resume_audit -- *",
            "resume_rig -- *",
            "resume_loader -- *",
            "resume_engine -- *",
            "resume_buffer -- *",
            "resume_trainer -- *",
        ]
    )
    result.stdout.no_fnmatch_line("resume_*no docstring*")
