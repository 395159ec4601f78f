"""The arguments of the ``resume_audit`` marker, checked when tests are collected."""

from __future__ import annotations

import difflib
import inspect
import math
import re
import reprlib
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

import pytest

from pytest_resume_audit.adapters.loader import LoaderAudit, collector_of
from pytest_resume_audit.catalogue import MATRICES, NAMED, NamedTimeline, matrix
from pytest_resume_audit.collector import Collector, SelfDrivenCollector
from pytest_resume_audit.command import Command
from pytest_resume_audit.lives.kinds import COMMAND_LIFE, LifeKind, not_importable
from pytest_resume_audit.setup import Setup
from pytest_resume_audit.timeline import Timeline, TimelineError

if TYPE_CHECKING:
    from pytest_resume_audit.style import Make

AnyTimeline = Timeline | NamedTimeline

ARGUMENTS = ("collector", "timelines", "setup", "life", "deadline")
LIVES: tuple[LifeKind, ...] = get_args(LifeKind)
"""The kinds of life that there are."""

CUSTOM = "custom"
"""The id of a script from the command line."""

NO_FIXTURE = (
    "the test has a resume_audit marker and does not take the fixture: add `resume_audit` to its "
    "arguments and call it (a method of a unittest.TestCase can't: write a function)"
)
NO_MARKER = (
    "the fixture `resume_audit` needs a marker on the test, its class or its module: "
    "@pytest.mark.resume_audit(collector=MyCollector)"
)
MANY_MARKERS = "{count} resume_audit markers, those of its class and module included: keep one"
NOTHING_LEFT = (
    "none is left, as each needs a legacy checkpoint, and {name} does not override `downgrade`, "
    "which writes one"
)
NO_SUCH_LIFE = "{name} has no life {life!r}: its lives are {lives}"
SOME_TIMELINE = (
    "allowed are a script such as 'hand_out 12; save; crash; restart', a Timeline, a "
    "NamedTimeline, a list of them, a dict of them by id, and the names {names}"
)

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 80

_ID = re.compile(r"[A-Za-z0-9_.+=-]{1,60}")


class ArgumentError(ValueError):
    """What is wrong with an argument; where it stands is added later."""


class MarkerError(pytest.UsageError, pytest.Collector.CollectError):  # type: ignore[misc]
    """A marker that says something wrong.

    A usage error by its nature; pytest shows one that is raised in the collection without our
    own traceback only when it is a CollectError too.
    """


@dataclass(frozen=True)
class Case:
    """What one test plays.

    Args:
        id: of the test, in brackets behind its name.
        timeline: the timeline.
        collector: makes the collectors; None: the test hands it over.
        setup: the sizes; None: the usual ones.
        life: the kind of life.
        deadline: seconds without progress; None: the usual ones.
        overridden: whether the timeline is that of the command line.
        of: how many timelines the test plays in all.
        matrix: the matrix that the timeline comes from; None: the marker has it by itself.
        chosen: whether the command line or the configuration file says which matrix that is.
        chosen_life: whether the command line says which life it is.
        excluded: why it is not played, as the collector's declarations say; empty: it is.
    """

    id: str
    timeline: AnyTimeline
    collector: Make | None
    setup: Setup | None
    life: LifeKind
    deadline: float | None
    overridden: bool
    of: int = 1
    matrix: str | None = None
    chosen: bool = False
    chosen_life: bool = False
    excluded: str = ""


@dataclass(frozen=True)
class Override:
    """What the command line and the configuration file say to all markers.

    Args:
        timeline: to play on every marked test, and its id; None: those of the marker.
        deadline: for tests whose marker has none.
        matrix: of the command line: wherever a marker names a matrix, or no timelines at all.
        configured_matrix: of the configuration file: where a marker names no timelines at all.
        life: where a marker names none.
    """

    timeline: tuple[str, AnyTimeline] | None = None
    deadline: float | None = None
    matrix: str | None = None
    configured_matrix: str | None = None
    life: LifeKind | None = None


def override(
    timeline: str | None,
    deadline: float | None,
    configured: float | None,
    matrix: str | None = None,
    configured_matrix: str | None = None,
    life: str | None = None,
) -> Override:
    """Check the options.

    Args:
        timeline: of the command line.
        deadline: of the command line.
        configured: the deadline of the configuration file.
        matrix: of the command line.
        configured_matrix: of the configuration file.
        life: of the command line.

    Raises:
        pytest.UsageError: for one that can't be.
    """
    of_line = "resume_audit_deadline" if deadline is None else "--resume-audit-deadline"
    try:
        with _about(of_line):
            seconds = _deadline(configured if deadline is None else deadline)
        matrices = {"--resume-audit-matrix": matrix, "resume_audit_matrix": configured_matrix}
        for option, name in matrices.items():
            with _about(option):
                if name is not None and name not in MATRICES:
                    raise ArgumentError(f"{_SHORT.repr(name)} is no matrix{_near(name, MATRICES)}")
        one = None
        with _about("--resume-audit-timeline"):
            if timeline is not None:
                played = _one(timeline, NAMED)
                one = (played.name if isinstance(played, NamedTimeline) else CUSTOM, played)
        with _about("--resume-audit-life"):
            chosen = None if life is None else _life(life)
        return Override(one, seconds, matrix, configured_matrix, chosen)
    except ArgumentError as error:
        raise pytest.UsageError(str(error)) from None


def cases(
    metafunc: pytest.Metafunc, marks: Sequence[pytest.Mark], given: Override | None
) -> list[Case]:
    """Check the marker of a test, and choose what the test plays.

    Args:
        metafunc: the test.
        marks: every resume_audit marker that it has.
        given: what is said to all markers, if anything.

    Returns:
        A case for each timeline; at least one.

    Raises:
        MarkerError: where the marker is, what is wrong with it, and what is allowed.
    """
    try:
        if len(marks) > 1:
            raise ArgumentError(MANY_MARKERS.format(count=len(marks)))
        if "resume_audit" not in metafunc.fixturenames:
            raise ArgumentError(NO_FIXTURE)
        return _cases(_by_name(marks[0]), given or Override())
    except ArgumentError as error:
        path, line, name = metafunc.definition.location
        raise MarkerError(f"{path}:{(line or 0) + 1}: {name}: {error}") from None


def wrong_with(collector: object, life: str) -> str | None:
    """Say what is wrong with what is to make the collectors.

    Args:
        collector: a class, or anything that is called with a rig.
        life: the kind of life that it has to have, if it is a class.

    Returns:
        A message; None when nothing is wrong.
    """
    name = _name(collector)
    if isinstance(collector, Command):
        return collector.missing()
    if isinstance(collector, Collector | SelfDrivenCollector):
        made = type(collector).__qualname__
        return f"{made}(...) is a collector already: give the class, as each life makes its own"
    if isinstance(collector, type):
        if not issubclass(collector, Collector | SelfDrivenCollector):
            base = "derive it from Collector or SelfDrivenCollector"
            return f"the class {name} is no collector: {base}"
        if inspect.isabstract(collector):
            missing = ", ".join(sorted(collector.__abstractmethods__))
            return f"{name} is abstract, it needs the methods {missing}"
        if life not in collector.lives:
            return NO_SUCH_LIFE.format(name=name, life=life, lives=collector.lives)
    if not callable(collector):
        return (
            f"{_SHORT.repr(collector)} is no collector: allowed are a class derived from "
            "Collector or SelfDrivenCollector, and a function that makes a collector from a rig"
        )
    try:
        inspect.signature(collector).bind(None)
    except TypeError as error:
        return f"{name} can't be called with a rig alone: {error}"
    except ValueError:
        pass  # something built in, which doesn't tell what it takes
    return None if life == "local" else not_importable(collector)


# --- the arguments ------------------------------------------------------------------------------


def _by_name(mark: pytest.Mark) -> dict[str, Any]:
    """The marker's arguments by name."""
    arguments = dict(mark.kwargs)
    for name in arguments:
        if name not in ARGUMENTS:
            raise ArgumentError(f"no argument {name!r}{_near(name, ARGUMENTS)}")
    if len(mark.args) > 1:
        raise ArgumentError(f"{len(mark.args)} arguments without a name: only collector may be")
    if mark.args and "collector" in arguments:
        raise ArgumentError("collector: given twice, with its name and without")
    return {**dict(zip(ARGUMENTS, mark.args, strict=False)), **arguments}


def _cases(arguments: Mapping[str, Any], given: Override) -> list[Case]:
    collector, setup = arguments.get("collector"), arguments.get("setup")
    alone = isinstance(collector, LoaderAudit)
    collector = collector_of(collector)  # type: ignore[arg-type]  # it is looked at below
    deadline = arguments.get("deadline")
    runs_command = isinstance(collector, Command)
    with _about("life"):
        life = _life(arguments.get("life", "command" if runs_command else "local"))
        if runs_command != (life == "command"):
            raise ArgumentError(COMMAND_LIFE)
    if given.life is not None and "life" not in arguments and not runs_command:
        life = given.life
        lives = getattr(collector, "lives", (life,)) if isinstance(collector, type) else (life,)
        if life not in lives:
            # What its declarations exclude is no mistake of whoever chose a life for all.
            why = NO_SUCH_LIFE.format(name=_name(collector), life=life, lives=lives)
            case = Case("no-life", NAMED["clean"], collector, None, life, None, False)
            return [replace(case, excluded=why)]
    with _about("collector"):
        if collector is not None and (wrong := wrong_with(collector, life)):
            raise ArgumentError(wrong)
    with _about("setup"):
        if not isinstance(setup, Setup | None):
            raise ArgumentError(f"{_SHORT.repr(setup)} is no Setup, such as Setup(prompts=32)")
    with _about("deadline"):
        deadline = _deadline(deadline)
    with _about("timelines"):
        named = "timelines" in arguments
        # A loader alone, and a command, have one matrix, whatever is chosen for collectors.
        usual = given.configured_matrix or "smoke"
        instead = given.matrix
        if alone or runs_command:
            usual = "loader" if alone else "training"
            instead = "loader" if alone else None
        timelines = _timelines(arguments.get("timelines", usual), instead, setup)
        if isinstance(collector, Command):
            timelines = _those_it_has_words_for(collector, timelines)
        for name, found in timelines.items():
            _check_playable(name, found, setup)
        lacks_downgrade = _lacks_downgrade(collector)
        able = {
            name: found
            for name, found in timelines.items()
            if not (lacks_downgrade and found.timeline.legacy)
        }
        if given.timeline is not None:
            name, timeline = given.timeline
            able = {name: _Found(timeline)}
        if not able:
            raise ArgumentError(NOTHING_LEFT.format(name=_name(collector)))
    chosen = given.matrix or (None if named else given.configured_matrix)
    chosen = None if alone or runs_command else chosen
    return [
        Case(
            id=name,
            timeline=found.timeline,
            collector=collector,
            setup=setup,
            life=life,
            deadline=given.deadline if deadline is None else deadline,
            overridden=given.timeline is not None,
            of=len(able),
            matrix=found.matrix,
            chosen=found.matrix is not None and chosen is not None,
            chosen_life=given.life is not None and "life" not in arguments and not runs_command,
        )
        for name, found in able.items()
    ]


def _those_it_has_words_for(command: Command, timelines: dict[str, _Found]) -> dict[str, _Found]:
    """Leave out what a command can't be told; what a marker has by itself is a mistake."""
    able = {}
    for name, found in timelines.items():
        timeline = found.timeline
        script = timeline if isinstance(timeline, Timeline) else timeline.ask().timeline
        sizes = () if isinstance(timeline, Timeline) else timeline.sizes
        lacking = command.lacks(script, sizes)
        if lacking is None:
            able[name] = found
        elif found.matrix is None:
            raise ArgumentError(f"{name}: {lacking}")
    return able


def _check_playable(name: str, found: _Found, setup: Setup | None) -> None:
    """Check that a timeline goes with the sizes, and with those that it has behind a restart.

    The scripts of a matrix are right, and too many to read them all; it has sizes of a few kinds.
    """
    timeline = found.timeline
    try:
        if isinstance(timeline, Timeline):
            (setup or Setup()).changed(timeline.changes)
        elif found.matrix is None:
            asked = timeline.ask(setup)
            asked.setup.changed(asked.timeline.changes)
        elif setup is not None:
            _resized(setup, tuple(timeline.sizes.items()), *_RESTART_WITH.findall(timeline.script))
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"{name} can't be played with {setup or Setup()}: {error}") from None


_RESTART_WITH = re.compile("restart[^;]* with [^;]*")


@lru_cache(maxsize=256)
def _resized(setup: Setup, sizes: tuple[tuple[str, Any], ...], *restarts: str) -> Setup:
    own = replace(setup, **dict(sizes))
    for restart in restarts:
        own = own.changed(Timeline.parse(f"save; crash; {restart}").changes)
    return own


def _lacks_downgrade(collector: object) -> bool:
    """Whether this is a class that can't write a legacy checkpoint; a factory doesn't tell."""
    if isinstance(collector, Command):
        return collector.downgrade is None
    return isinstance(collector, type) and getattr(collector, "downgrade", None) in (
        Collector.downgrade,
        SelfDrivenCollector.downgrade,
    )


class _Found(NamedTuple):
    """A timeline, and the matrix that it comes from, if any."""

    timeline: AnyTimeline
    matrix: str | None = None


def _timelines(value: object, instead: str | None, setup: Setup | None) -> dict[str, _Found]:
    """What a marker says of its timelines, by id.

    Args:
        value: its argument.
        instead: the matrix to take for every one that it names.
        setup: the sizes.
    """
    if isinstance(value, Mapping):
        found = [(name, _Found(_named_one(name, timeline))) for name, timeline in value.items()]
    elif isinstance(value, list | tuple):
        found = [named for timeline in value for named in _some(timeline, instead, setup)]
    else:
        found = _some(value, instead, setup)
    if not found:
        raise ArgumentError(f"{_SHORT.repr(value)} is empty: {_allowed()}")
    timelines: dict[str, _Found] = {}
    for name, one in found:
        if not (isinstance(name, str) and _ID.fullmatch(name)):
            raise ArgumentError(
                f"{_SHORT.repr(name)} can't be an id: allowed are letters, digits and _.+=-"
            )
        # A matrix may well contain what is named beside it.
        if timelines.setdefault(name, one).timeline != one.timeline:
            raise ArgumentError(f"two different timelines have the id {name!r}")
    return timelines


def _some(value: object, instead: str | None, setup: Setup | None) -> list[tuple[str, _Found]]:
    """The timelines of a matrix, or a single one, with their ids."""
    if isinstance(value, str) and value in MATRICES:
        name = value if value == "loader" else instead or value
        timelines = matrix(name, setup) if name == "loader" else matrix(name)
        return [(timeline.name, _Found(timeline, name)) for timeline in timelines]
    one = _one(value, [*MATRICES, *NAMED])
    if isinstance(one, NamedTimeline):
        return [(one.name, _Found(one))]
    # Of the script alone: an id that counts would go to another script when one is put before it.
    return [(f"script-{zlib.crc32(one.text.encode()):08x}", _Found(one))]


def _named_one(name: object, value: object) -> AnyTimeline:
    with _about(str(name)):
        return _one(value, NAMED)


def _one(value: object, names: Collection[str]) -> AnyTimeline:
    """One timeline.

    Args:
        value: what is said of it.
        names: that it could have meant.
    """
    if isinstance(value, AnyTimeline):
        return value
    if not isinstance(value, str):
        raise ArgumentError(f"{_SHORT.repr(value)} is no timeline: {_allowed()}")
    if value in NAMED:
        return NAMED[value]
    try:
        return Timeline.parse(value)
    except TimelineError as error:
        if re.search(r"\s|;", value.strip()):
            raise ArgumentError(str(error)) from None
        raise ArgumentError(
            f"{_SHORT.repr(value)} is no name{_near(value, names)}\nand no script: {error}"
        ) from None


def _life(value: object) -> LifeKind:
    if value not in LIVES:
        raise ArgumentError(f"{_SHORT.repr(value)} is unknown{_near(value, LIVES)}")
    return value


def _deadline(value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ArgumentError(f"{_SHORT.repr(value)} is no number of seconds above 0")
    return float(value)


# --- messages -----------------------------------------------------------------------------------


@contextmanager
def _about(argument: str) -> Iterator[None]:
    """Say which argument is wrong."""
    try:
        yield
    except ArgumentError as error:
        raise ArgumentError(f"{argument}: {error}") from None


def _near(word: object, names: Collection[str]) -> str:
    """What was probably meant, and what else could have been."""
    close = difflib.get_close_matches(word.lower(), names, n=1) if isinstance(word, str) else []
    meant = f", did you mean {close[0]!r}?" if close else ":"
    return f"{meant} allowed are {', '.join(names)}"


def _allowed() -> str:
    return SOME_TIMELINE.format(names=", ".join([*MATRICES, *NAMED]))


def _name(value: object) -> str:
    return getattr(value, "__qualname__", None) or _SHORT.repr(value)
