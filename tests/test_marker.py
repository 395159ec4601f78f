"""The arguments of the marker: what they choose, and what is said of a wrong one."""

from __future__ import annotations

import functools
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pytest_resume_audit import (
    Collector,
    FrontierCollector,
    NamedTimeline,
    Rig,
    SelfDrivenCollector,
    Setup,
    Timeline,
)
from pytest_resume_audit.catalogue import NAMED, matrix
from pytest_resume_audit.marker import (
    MANY_MARKERS,
    NO_FIXTURE,
    NOTHING_LEFT,
    Case,
    Override,
    cases,
    override,
)

LEGACY = [name for name, timeline in NAMED.items() if timeline.ask().timeline.legacy]
OWN = NamedTimeline(name="own", purpose="", script="drain", by_position="drain", must_reach=())
OTHER = NamedTimeline(name="own", purpose="", script="drain", by_position="train", must_reach=())
WRONG = NamedTimeline(name="wrong", purpose="", script="hurry", by_position="drain")
TOO_LARGE = Setup(prompts=64, batch_size=32, drop_last=True)


class OnlyStart(Collector):
    def start(self) -> None: ...


class Whole(OnlyStart):
    def save(self, root: object, step: int) -> None: ...

    def restore(self, checkpoint: object, *, load_replay_buffer: bool) -> None: ...


class Elsewhere(Whole):
    lives = ("process", "ray")


class Greedy(Whole):
    def __init__(self, rig: Rig, more: int) -> None:
        super().__init__(rig)


def make(rig: Rig) -> Whole:
    return Whole(rig)


def make_of_nothing() -> None: ...


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError


def chosen(*args: object, given: Override | None = None, **kwargs: object) -> list[Case]:
    """What is played by a test whose marker has these arguments."""
    definition = SimpleNamespace(location=("test_it.py", 6, "test_x"))
    test = SimpleNamespace(definition=definition, fixturenames=["resume_audit"])
    mark = pytest.mark.resume_audit.with_args(*args, **kwargs).mark
    return cases(cast("pytest.Metafunc", test), [mark], given)


def ids(*args: object, **kwargs: Any) -> list[str]:
    return [case.id for case in chosen(*args, **kwargs)]


def said_of(*args: object, **kwargs: Any) -> str:
    """What is said of wrong arguments."""
    with pytest.raises(pytest.Collector.CollectError) as error:
        chosen(*args, **kwargs)
    place, message = str(error.value).split(": test_x: ", 1)
    assert place == "test_it.py:7"
    return message


# --- what is chosen -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((), {}),
        ((FrontierCollector,), {}),
        ((make,), {"timelines": "smoke"}),
        ((), {"collector": FrontierCollector, "setup": None, "deadline": None}),
        ((), {"collector": lambda rig: Whole(rig)}),
        ((), {"collector": functools.partial(Greedy, more=1)}),
    ],
)
def test_every_named_timeline_is_played_by_default(
    args: tuple[object, ...], kwargs: dict[str, object]
) -> None:
    assert ids(*args, **kwargs) == [timeline.name for timeline in matrix("smoke")] == [*NAMED]


def test_a_case_has_what_the_marker_says() -> None:
    setup = Setup(prompts=32)
    assert chosen(Whole, timelines=OWN, setup=setup, life="local", deadline=5) == [
        Case("own", OWN, Whole, setup, "local", 5.0, overridden=False)
    ]


@pytest.mark.parametrize(
    ("timelines", "expected"),
    [
        ("mid-flight", ["mid-flight"]),
        (["mid-flight", "clean"], ["mid-flight", "clean"]),
        (("clean",), ["clean"]),
        (OWN, ["own"]),
        ([OWN, "clean"], ["own", "clean"]),
        ({"mine": "drain", "yours": OWN, "theirs": "clean"}, ["mine", "yours", "theirs"]),
        ({"mine": Timeline.parse("save; crash; restart")}, ["mine"]),
        # What comes twice is played once, where it comes first.
        ([OWN, "clean", OWN], ["own", "clean"]),
        (["drain", Timeline.parse("drain")], ["script-3c867321"]),
        (
            ["mid-flight", "smoke"],
            ["mid-flight", *(name for name in NAMED if name != "mid-flight")],
        ),
    ],
)
def test_timelines_are_chosen_by_name_by_object_and_with_ids_of_ones_own(
    timelines: object, expected: list[str]
) -> None:
    assert ids(timelines=timelines) == expected


@pytest.mark.parametrize(
    "script",
    [
        "hand_out 4; save; crash; restart",
        "\n    hand_out 4 # four\n    save\n    crash; restart; drain\n",
        Timeline.parse("hand_out 4; save; crash; restart"),
    ],
)
def test_the_id_of_a_script_depends_on_what_it_says_and_on_nothing_else(script: object) -> None:
    assert ids(timelines=script) == ["script-44a43332"]
    assert ids(timelines=["drain", script]) == ["script-3c867321", "script-44a43332"]


def test_what_needs_a_legacy_checkpoint_is_left_out_where_none_can_be_written() -> None:
    assert LEGACY
    assert ids(Whole) == [name for name in NAMED if name not in LEGACY]
    scripts = {"one": "save; downgrade; crash; restart", "two": "drain"}
    assert ids(Whole, timelines=scripts) == ["two"]


@pytest.mark.parametrize("collector", [None, make, FrontierCollector])
def test_what_a_factory_will_make_is_not_known_yet(collector: object) -> None:
    assert set(LEGACY) <= set(ids(collector=collector))


# --- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "kwargs", "said"),
    [
        ((), {"collectr": make}, "no argument 'collectr', did you mean 'collector'?"),
        ((), {"timeline": "smoke"}, "no argument 'timeline', did you mean 'timelines'?"),
        ((), {"xyz": 1}, "no argument 'xyz': allowed are collector, timelines, setup, life, dea"),
        ((make, "smoke"), {}, "2 arguments without a name: only collector may be"),
        ((make,), {"collector": make}, "collector: given twice, with its name and without"),
    ],
)
def test_unknown_arguments(args: tuple[object, ...], kwargs: dict[str, object], said: str) -> None:
    assert said_of(*args, **kwargs).startswith(said)


@pytest.mark.parametrize(
    ("collector", "said"),
    [
        (5, "5 is no collector: allowed are a class derived from Collector or SelfDriven"),
        ("Whole", "'Whole' is no collector"),
        (dict, "the class dict is no collector: derive it from Collector or SelfDriven"),
        (Collector, "Collector is abstract, it needs the methods restore, save, start"),
        (OnlyStart, "OnlyStart is abstract, it needs the methods restore, save"),
        (SelfDrivenCollector, "SelfDrivenCollector is abstract, it needs the methods run"),
        (Whole(Rig()), "Whole(...) is a collector already: give the class, as each life makes"),
        (Elsewhere, "Elsewhere has no life 'local': its lives are ('process', 'ray')"),
        (Greedy, "Greedy can't be called with a rig alone: missing a required argument: 'more'"),
        (make_of_nothing, "make_of_nothing can't be called with a rig alone: too many"),
    ],
)
def test_wrong_collectors(collector: object, said: str) -> None:
    assert said_of(collector=collector).startswith(f"collector: {said}")


@pytest.mark.parametrize(
    ("timelines", "said"),
    [
        (
            "mid-fligt",
            "'mid-fligt' is no name, did you mean 'mid-flight'? allowed are smoke, training, ni",
        ),
        ("Smok", "'Smok' is no name, did you mean 'smoke'?"),
        ("zzz", "'zzz' is no name: allowed are smoke, training, nightly"),
        ("", "'' is no name: allowed are"),
        (["clean", "mid_flight"], "'mid_flight' is no name, did you mean 'mid-flight'?"),
        ({"x": "smoke"}, "x: 'smoke' is no name: allowed are clean"),
        (5, "5 is no timeline: allowed are a script such as"),
        (None, "None is no timeline: allowed are"),
        ([["clean"]], "['clean'] is no timeline: allowed are"),
        ({"clean"}, "{'clean'} is no timeline: allowed are"),
        (OWN.ask(), "Asked("),
        ([], "[] is empty: allowed are"),
        ({}, "{} is empty: allowed are"),
        ([OWN, OTHER], "two different timelines have the id 'own'"),
        ([replace(OWN, name="clean"), "smoke"], "two different timelines have the id 'clean'"),
        ({"a b": "clean"}, "'a b' can't be an id: allowed are letters, digits and _.+=-"),
        ({"a[b]": "clean"}, "'a[b]' can't be an id"),
        ({"ä": "clean"}, "'ä' can't be an id"),
        ({"": "clean"}, "'' can't be an id"),
        ({5: "clean"}, "5 can't be an id"),
        ({"x" * 61: "clean"}, f"'{'x' * 61}' can't be an id"),
        (WRONG, "wrong can't be played with Setup(): `hurry` is not understood"),
        (["clean", "uneven", "zzz"], "'zzz' is no name"),
    ],
)
def test_wrong_timelines(timelines: object, said: str) -> None:
    assert said_of(FrontierCollector, timelines=timelines).startswith(f"timelines: {said}")


def test_a_wrong_script_is_shown_with_the_place_that_is_wrong() -> None:
    lines = said_of(timelines=["clean", "hand_out 4; finnish 3; drain"]).splitlines()
    assert lines[0].startswith("timelines: `finnish` is not understood: expected `hand_out`")
    assert lines[1:] == [
        "    hand_out 4; finnish 3; drain",
        "                ^^^^^^^",
        "did you mean `finish`?",
    ]


def test_a_wrong_word_may_be_a_name_or_a_script() -> None:
    lines = said_of(timelines="crashh").splitlines()
    assert lines[0].startswith("timelines: 'crashh' is no name")
    assert lines[1].startswith("and no script: `crashh` is not understood")
    assert lines[2:] == ["    crashh", "    ^^^^^^", "did you mean `crash`?"]


def test_sizes_that_a_named_timeline_can_not_have() -> None:
    said = said_of(timelines="uneven", setup=TOO_LARGE)
    assert said.startswith(f"timelines: uneven can't be played with {TOO_LARGE}: Setup(drop_last")


@pytest.mark.parametrize(
    ("timelines", "name"),
    [
        ({"grown": "save; crash; restart with batch_size 8"}, "grown"),
        ([replace(OWN, by_position="save; crash; restart with batch_size 8")], "own"),
        ("nightly", "even-ordered-01-larger-batches"),
    ],
)
def test_sizes_that_a_timeline_can_not_have_after_a_restart(timelines, name: str) -> None:
    """Four prompts, in batches of eight of which an incomplete one is left out."""
    setup = Setup(prompts=4, drop_last=True)
    said = said_of(FrontierCollector, timelines=timelines, setup=setup)
    assert said.startswith(f"timelines: {name} can't be played with {setup}: Setup(drop_last=True)")


@pytest.mark.parametrize(
    ("argument", "value", "said"),
    [
        ("setup", 5, "5 is no Setup, such as Setup(prompts=32)"),
        ("setup", {"prompts": 32}, "{'prompts': 32} is no Setup"),
        ("setup", Setup, "<class 'pytest_resume_audit.setup.Setup'> is no Setup"),
        ("life", "locla", "'locla' is unknown, did you mean 'local'? allowed are local"),
        ("life", None, "None is unknown: allowed are local"),
        ("life", ["local"], "['local'] is unknown: allowed are local"),
        ("deadline", 0, "0 is no number of seconds above 0"),
        ("deadline", -1.5, "-1.5 is no number of seconds above 0"),
        ("deadline", "5", "'5' is no number of seconds above 0"),
        ("deadline", True, "True is no number of seconds above 0"),
        ("deadline", float("nan"), "nan is no number of seconds above 0"),
        ("deadline", float("inf"), "inf is no number of seconds above 0"),
    ],
)
def test_other_wrong_arguments(argument: str, value: object, said: str) -> None:
    assert said_of(**{argument: value}).startswith(f"{argument}: {said}")


@pytest.mark.parametrize("value", [["a"] * 5000, "x" * 9000, "x; " * 3000, Unprintable()])
@pytest.mark.parametrize("argument", ["collector", "timelines", "setup", "life", "deadline"])
def test_what_is_long_or_can_not_be_shown_is_refused_all_the_same(
    argument: str, value: object
) -> None:
    assert len(said_of(**{argument: value})) < 1500


def test_nothing_is_left() -> None:
    said = said_of(Whole, timelines=LEGACY)
    assert said == "timelines: " + NOTHING_LEFT.format(name="Whole")


# --- options ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("mid-flight", "mid-flight"),
        ("hand_out 4; save; crash; restart", "custom"),
        ("drain", "custom"),
    ],
)
def test_the_timeline_of_the_command_line_is_played_by_every_test(text: str, expected: str) -> None:
    (case,) = chosen(timelines=["clean", OWN], given=override(text, None, None))
    assert case.id == expected
    assert case.overridden


@pytest.mark.parametrize(
    ("marker", "line", "configured", "expected"),
    [
        (None, None, None, None),
        (None, None, 7.0, 7.0),
        (None, 5.0, 7.0, 5.0),
        (3, 5.0, 7.0, 3.0),
        (3, None, None, 3.0),
    ],
)
def test_the_deadline_is_that_of_the_marker_the_command_line_or_the_file(
    marker: float | None, line: float | None, configured: float | None, expected: float | None
) -> None:
    given = override(None, line, configured)
    (case,) = chosen(timelines="clean", deadline=marker, given=given)
    assert case.deadline == expected


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("smoke", None, None), "--resume-audit-timeline: 'smoke' is no name: allowed are clean"),
        (("mid-fligt", None, None), "--resume-audit-timeline: 'mid-fligt' is no name, did you"),
        (("save; sav", None, None), "--resume-audit-timeline: `sav` is not understood"),
        ((None, -1.0, 5.0), "--resume-audit-deadline: -1.0 is no number of seconds above 0"),
        ((None, None, 0.0), "resume_audit_deadline: 0.0 is no number of seconds above 0"),
    ],
)
def test_wrong_options(options: tuple[Any, Any, Any], said: str) -> None:
    with pytest.raises(pytest.UsageError) as error:
        override(*options)
    assert str(error.value).startswith(said)


# --- in pytest ----------------------------------------------------------------------------------


def refused(pytester: pytest.Pytester) -> str:
    """What pytest says of the one wrong marker there is, without any line of ours."""
    result = pytester.runpytest("--collect-only")
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.assert_outcomes(errors=1)
    output = result.stdout.str()
    assert "Traceback" not in output
    assert "marker.py" not in output
    return output


def test_an_error_says_where_the_marker_is(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_it="""
        import pytest

        class TestY:
            @pytest.mark.resume_audit(timelines="save; sav")
            def test_x(self, resume_audit): ...
        """
    )
    output = refused(pytester)
    assert "test_it.py:4: TestY.test_x: timelines: `sav` is not understood" in output
    assert "\n    save; sav\n          ^^^\n" in output


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
    assert MANY_MARKERS.format(count=2) in refused(pytester)


def test_a_marked_test_without_the_fixture(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.resume_audit
        def test_x(): ...
        """
    )
    assert NO_FIXTURE in refused(pytester)


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


def test_a_collector_may_be_the_only_argument(pytester: pytest.Pytester) -> None:
    """To pytest a mark called with nothing but a class marks that class."""
    pytester.makepyfile(
        """
        import pytest
        from pytest_resume_audit import FrontierCollector, FuturesCollector, Rig

        @pytest.mark.resume_audit(FuturesCollector)
        def test_one(resume_audit):
            assert resume_audit().collector == "FuturesCollector"

        @pytest.mark.resume_audit(FuturesCollector)
        class TestTwo:
            def test_two(self, resume_audit):
                assert resume_audit().collector == "FuturesCollector"

        @pytest.mark.resume_audit(FrontierCollector)
        def test_three(resume_audit):
            assert resume_audit().collector == "FrontierCollector"

        def test_the_class_is_left_as_it_was():
            assert not getattr(FuturesCollector, "pytestmark", None)
            assert isinstance(FuturesCollector(Rig()), FuturesCollector)
        """
    )
    result = pytester.runpytest("--resume-audit-timeline=mid-flight")
    result.assert_outcomes(passed=4)


def test_an_abstract_collector_as_the_only_argument(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest
        from pytest_resume_audit import Collector

        class OnlyStart(Collector):
            def start(self): ...

        @pytest.mark.resume_audit(OnlyStart)
        def test_x(resume_audit): ...
        """
    )
    assert "OnlyStart is abstract, it needs the methods restore, save" in refused(pytester)


def test_a_function_as_the_only_argument_is_told_to_be_named(pytester: pytest.Pytester) -> None:
    """Pytest takes it for what is marked, and calls it with the test."""
    pytester.makepyfile(
        """
        import pytest
        from pytest_resume_audit import FuturesCollector

        def make(rig):
            return FuturesCollector(rig)

        @pytest.mark.resume_audit(make)
        def test_x(resume_audit): ...
        """
    )
    result = pytester.runpytest()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*test_a_function_as_the_only*py:[78]:*", "*collector=make*"])


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
    names = ("TestBase::test_one", "TestDerived::test_one", "TestDerived::test_two")
    result.stdout.fnmatch_lines_random([f"*::{name}[[]clean[]] PASSED*" for name in names])


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
            f"*::test_x[[]z-{size}-{timeline}[]]"
            for size in (8, 16)
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
