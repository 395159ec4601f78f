"""The arguments of the marker: what they choose, and what is said of a wrong one."""

from __future__ import annotations

from textwrap import indent

import pytest

from pytest_resume_audit.catalogue import MATRICES, NAMED, matrix
from pytest_resume_audit.marker import (
    MANY_MARKERS,
    NO_FIXTURE,
    NOTHING_LEFT,
    SWALLOWED,
)

PREAMBLE = """
import functools
import pytest
from pytest_resume_audit import (
    Collector, FrontierCollector, LiveCursorCollector, NamedTimeline, SelfDrivenCollector, Setup,
    Timeline,
)

class NoMethods(Collector):
    pass

class OnlyStart(Collector):
    def start(self): ...

class Elsewhere(FrontierCollector):
    lives = ("process", "ray")

class Greedy(FrontierCollector):
    def __init__(self, rig, more):
        super().__init__(rig)

class NoDowngrade(FrontierCollector):
    downgrade = Collector.downgrade

def make(rig):
    return FrontierCollector(rig)

def make_of_nothing():
    return None

own = NamedTimeline(name="own", purpose="", script="drain", by_position="drain", must_reach=())
"""
LEGACY = [name for name, timeline in NAMED.items() if timeline.ask().timeline.legacy]


def collected(pytester: pytest.Pytester, arguments: str, *options: str) -> list[str]:
    """The ids of the tests that are made of a marker with these arguments, in order."""
    pytester.makepyfile(
        f"{PREAMBLE}\n@pytest.mark.resume_audit({arguments})\ndef test_x(resume_audit): ..."
    )
    result = pytester.runpytest("--collect-only", "-q", "-p", "no:randomly", *options)
    assert result.ret == pytest.ExitCode.OK
    return [
        line.partition("::test_x")[2].removeprefix("[").removesuffix("]")
        for line in result.outlines
        if "::test_x" in line
    ]


def refused(pytester: pytest.Pytester, arguments: str, *options: str) -> str:
    """What is said of these arguments."""
    pytester.makepyfile(
        f"{PREAMBLE}\n@pytest.mark.resume_audit({arguments})\ndef test_x(resume_audit): ..."
    )
    return refused_file(pytester, *options)


def refused_file(pytester: pytest.Pytester, *options: str) -> str:
    """What is said of the marker in the test file: nothing else, and no line of ours."""
    result = pytester.runpytest("--collect-only", *options)
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.assert_outcomes(errors=1)
    output = result.stdout.str()
    assert "Traceback" not in output
    assert "marker.py" not in output
    return output


# --- what is chosen -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        "",
        "collector=FrontierCollector",
        "FrontierCollector, timelines='smoke'",
        "collector=make",
        "lambda rig: FrontierCollector(rig)",
        "collector=functools.partial(Greedy, more=1)",
        "collector=FrontierCollector, timelines='smoke', setup=Setup(prompts=32), life='local', "
        "deadline=5",
    ],
)
def test_every_named_timeline_is_played_by_default(
    arguments: str, pytester: pytest.Pytester
) -> None:
    assert collected(pytester, arguments) == [timeline.name for timeline in matrix("smoke")]


@pytest.mark.parametrize(
    ("timelines", "ids"),
    [
        ("'mid-flight'", ["mid-flight"]),
        ("['mid-flight', 'clean']", ["mid-flight", "clean"]),
        ("('clean',)", ["clean"]),
        ("own", ["own"]),
        ("[own, 'clean']", ["own", "clean"]),
        ("{'mine': 'drain', 'yours': own, 'theirs': 'clean'}", ["mine", "yours", "theirs"]),
        ("{'mine': Timeline.parse('save; crash; restart')}", ["mine"]),
    ],
)
def test_timelines_are_chosen_by_name_by_object_and_with_ids_of_ones_own(
    timelines: str, ids: list[str], pytester: pytest.Pytester
) -> None:
    assert collected(pytester, f"timelines={timelines}") == ids


def test_the_id_of_a_script_depends_on_what_it_says_and_on_nothing_else(
    pytester: pytest.Pytester,
) -> None:
    scripts = [
        "'hand_out 4; save; crash; restart'",
        "'''\n    hand_out 4 # four\n    save\n    crash; restart; drain\n'''",
        "Timeline.parse('hand_out 4; save; crash; restart')",
    ]
    alone = [collected(pytester, f"timelines={script}") for script in scripts]
    assert alone == [["script-f64a1f2b"]] * 3
    assert collected(pytester, f"timelines=['drain', {scripts[0]}]") == [
        "script-d0ae3ae9",
        "script-f64a1f2b",
    ]


def test_what_needs_a_legacy_checkpoint_is_left_out_where_none_can_be_written(
    pytester: pytest.Pytester,
) -> None:
    assert LEGACY
    ids = collected(pytester, "collector=NoDowngrade")
    assert ids == [name for name in NAMED if name not in LEGACY]
    scripts = "{'one': 'save; downgrade; crash; restart', 'two': 'drain'}"
    assert collected(pytester, f"collector=NoDowngrade, timelines={scripts}") == ["two"]


def test_what_a_factory_will_make_is_not_known_yet(pytester: pytest.Pytester) -> None:
    assert set(LEGACY) <= set(collected(pytester, "collector=lambda rig: NoDowngrade(rig)"))


def test_the_marker_of_a_class_is_that_of_its_methods(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest
        from pytest_resume_audit import FrontierCollector

        @pytest.mark.resume_audit(collector=FrontierCollector, timelines="clean")
        class TestBase:
            def test_one(self, resume_audit):
                resume_audit()

        class TestDerived(TestBase):
            def test_two(self, resume_audit):
                resume_audit()
        """
    )
    result = pytester.runpytest("-v")
    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines_random(
        [
            f"*::{name}[[]clean[]] PASSED*"
            for name in ("TestBase::test_one", "TestDerived::test_two")
        ]
    )


def test_the_marker_of_a_module_is_that_of_its_tests(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest
        from pytest_resume_audit import FrontierCollector

        pytestmark = pytest.mark.resume_audit(collector=FrontierCollector, timelines="clean")

        def test_one(resume_audit):
            resume_audit()
        """
    )
    pytester.runpytest().assert_outcomes(passed=1)


def test_ids_follow_those_of_a_tests_own_parameters(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        """
        def pytest_generate_tests(metafunc):
            if "late" in metafunc.fixturenames:
                metafunc.parametrize("late", ["z"])
        """
    )
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.parametrize("size", [8, 16])
        @pytest.mark.resume_audit(timelines=["clean", "mid-flight"])
        def test_x(size, late, resume_audit): ...
        """
    )
    result = pytester.runpytest("--collect-only", "-q")
    result.stdout.fnmatch_lines_random(
        [
            f"*::test_x[[]{ids}-{timeline}[]]"
            for ids in ("8-z", "16-z")
            for timeline in ("clean", "mid-flight")
        ]
    )


def test_a_fixture_of_ones_own_may_take_the_audit(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest
        from pytest_resume_audit import FrontierCollector

        @pytest.fixture
        def audit(resume_audit):
            return lambda: resume_audit(FrontierCollector)

        @pytest.mark.resume_audit(timelines="clean")
        def test_x(audit):
            assert audit().passed
        """
    )
    pytester.runpytest().assert_outcomes(passed=1)


# --- what is refused ----------------------------------------------------------------------------


def test_an_error_says_where_the_marker_is(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_it="""
        import pytest

        class TestY:
            @pytest.mark.resume_audit(deadline=-1)
            def test_x(self, resume_audit): ...
        """
    )
    assert "test_it.py:4: TestY.test_x: deadline: -1 is no number" in refused_file(pytester)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("collectr=FrontierCollector", "no argument 'collectr', did you mean 'collector'?"),
        ("timeline='smoke'", "no argument 'timeline', did you mean 'timelines'?"),
        ("colour=1", "no argument 'colour': allowed are collector, timelines, setup, life, dead"),
        ("FrontierCollector, 'smoke'", "2 arguments without a name: only collector may be"),
        ("make, collector=make", "collector: given twice, with its name and without"),
    ],
)
def test_unknown_arguments(arguments: str, said: str, pytester: pytest.Pytester) -> None:
    assert said in refused(pytester, arguments)


@pytest.mark.parametrize(
    ("collector", "said"),
    [
        ("5", "5 is no collector: allowed are a class"),
        ("'FrontierCollector'", "'FrontierCollector' is no collector"),
        ("dict", "the class dict is no collector: derive it from Collector or SelfDriven"),
        ("Collector", "Collector is abstract, it needs the methods restore, save, start"),
        ("NoMethods", "NoMethods is abstract, it needs the methods restore, save, start"),
        ("OnlyStart", "OnlyStart is abstract, it needs the methods restore, save\n"),
        ("SelfDrivenCollector", "SelfDrivenCollector is abstract, it needs the methods run"),
        ("FrontierCollector(None)", "FrontierCollector(...) is a collector already: give the cl"),
        ("Elsewhere", "Elsewhere has no life 'local': its lives are ('process', 'ray')"),
        ("Greedy", "Greedy can't be called with a rig alone: missing a required argument: 'more'"),
        ("make_of_nothing", "make_of_nothing can't be called with a rig alone: too many"),
    ],
)
def test_wrong_collectors(collector: str, said: str, pytester: pytest.Pytester) -> None:
    assert f"test_x: collector: {said}" in refused(pytester, f"collector={collector}")


@pytest.mark.parametrize(
    ("timelines", "said"),
    [
        ("'mid-fligt'", "'mid-fligt' is no name, did you mean 'mid-flight'? allowed are smoke, cl"),
        ("'Smok'", "'Smok' is no name, did you mean 'smoke'?"),
        ("'zzz'", "'zzz' is no name: allowed are smoke, clean"),
        ("['clean', 'mid_flight']", "'mid_flight' is no name, did you mean 'mid-flight'?"),
        ("{'x': 'smoke'}", "'smoke' is no name: allowed are clean"),
        ("5", "5 is no timeline: allowed are a script such as"),
        ("[['clean']]", "['clean'] is no timeline: allowed are"),
        ("{'clean'}", "{'clean'} is no timeline: allowed are"),
        ("None", "None is no timeline: allowed are"),
        ("[]", "[] is empty: allowed are"),
        ("{}", "{} is empty: allowed are"),
        ("''", "'' is no name: allowed are"),
        ("['clean', 'smoke']", "'clean' is in it twice"),
        ("['drain', Timeline.parse('drain')]", "'script-d0ae3ae9' is in it twice"),
        ("{'a b': 'clean'}", "'a b' can't be an id: allowed are letters, digits and _.+=-"),
        ("{'': 'clean'}", "'' can't be an id"),
        ("{5: 'clean'}", "5 can't be an id"),
        ("{'x' * 61: 'clean'}", "x' can't be an id"),
        ("{'a[b]': 'clean'}", "'a[b]' can't be an id"),
    ],
)
def test_wrong_timelines(timelines: str, said: str, pytester: pytest.Pytester) -> None:
    output = refused(pytester, f"collector=FrontierCollector, timelines={timelines}")
    assert "test_x: timelines: " in output
    assert said in output


def test_a_wrong_script_is_shown_with_the_place_that_is_wrong(pytester: pytest.Pytester) -> None:
    output = refused(pytester, "timelines=['clean', 'hand_out 4; finnish 3; drain']")
    shown = "hand_out 4; finnish 3; drain\n            ^^^^^^^\ndid you mean `finish`?"
    assert indent(shown, "    ").replace("    did", "did") in output


def test_a_wrong_word_may_be_a_name_or_a_script(pytester: pytest.Pytester) -> None:
    output = refused(pytester, "timelines='crashh'")
    assert "'crashh' is no name" in output
    assert "    crashh\n    ^^^^^^\ndid you mean `crash`?" in output


def test_a_wrong_timeline_object_says_which_and_why(pytester: pytest.Pytester) -> None:
    script = "NamedTimeline(name='own', purpose='', script='hurry', by_position='drain')"
    output = refused(pytester, f"timelines={script}")
    assert "timelines: own can't be played with None: `hurry` is not understood" in output
    sizes = "Setup(prompts=64, batch_size=32, drop_last=True)"
    output = refused(pytester, f"timelines='uneven', setup={sizes}")
    assert f"timelines: uneven can't be played with {sizes.replace('64', '64')}: " in output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("setup=5", "setup: 5 is no Setup, such as Setup(prompts=32)"),
        ("setup={'prompts': 32}", "setup: {'prompts': 32} is no Setup"),
        ("setup=Setup", "setup: <class 'pytest_resume_audit.setup.Setup'> is no Setup"),
        ("life='locla'", "life: 'locla' is unknown, did you mean 'local'?"),
        ("life=None", "life: None is unknown: allowed are local"),
        ("life=['local']", "life: ['local'] is unknown"),
        ("deadline=0", "deadline: 0 is no number of seconds above 0"),
        ("deadline='5'", "deadline: '5' is no number of seconds above 0"),
        ("deadline=True", "deadline: True is no number of seconds above 0"),
        ("deadline=float('nan')", "deadline: nan is no number of seconds above 0"),
        ("deadline=float('inf')", "deadline: inf is no number of seconds above 0"),
    ],
)
def test_other_wrong_arguments(arguments: str, said: str, pytester: pytest.Pytester) -> None:
    assert f"test_x: {said}" in refused(pytester, arguments)


@pytest.mark.parametrize(
    "value", ["['a'] * 5000", "'x' * 9000", "type('V', (), {'__repr__': 5})()"]
)
@pytest.mark.parametrize("argument", ["collector", "timelines", "setup", "life", "deadline"])
def test_a_value_that_is_long_or_cannot_be_shown_is_refused_all_the_same(
    argument: str, value: str, pytester: pytest.Pytester
) -> None:
    assert len(refused(pytester, f"{argument}={value}")) < 6000


def test_nothing_is_left(pytester: pytest.Pytester) -> None:
    output = refused(pytester, f"collector=NoDowngrade, timelines={LEGACY}")
    assert NOTHING_LEFT.format(name="NoDowngrade") in output


def test_several_markers_on_one_test(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.resume_audit(timelines="clean")
        class TestX:
            @pytest.mark.resume_audit(timelines="smoke")
            def test_x(self, resume_audit): ...
        """
    )
    assert MANY_MARKERS.format(count=2) in refused_file(pytester)


def test_a_marked_test_without_the_fixture(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.resume_audit
        def test_x(): ...
        """
    )
    assert NO_FIXTURE in refused_file(pytester)


def test_a_marked_method_of_a_testcase_fails_as_it_can_take_no_fixture(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(
        """
        import unittest

        import pytest

        @pytest.mark.resume_audit(timelines="clean")
        class TestX(unittest.TestCase):
            def test_x(self): ...
        """
    )
    result = pytester.runpytest()
    result.assert_outcomes(failed=1)
    assert NO_FIXTURE in result.stdout.str()


@pytest.mark.parametrize("argument", ["FrontierCollector", "make"])
def test_a_test_that_pytest_takes_for_an_argument_of_its_collector(
    argument: str, pytester: pytest.Pytester
) -> None:
    # @pytest.mark.resume_audit(MyCollector) marks MyCollector, and makes one of the test.
    said = refused(pytester, argument)
    assert f"::test_x {SWALLOWED}" in said


def test_there_is_a_matrix_of_every_timeline() -> None:
    assert "smoke" in MATRICES
    assert {timeline.name for timeline in matrix("smoke")} == NAMED.keys()
