"""Timelines: the scripts of one or more lives of a run, in code and as text.

A timeline says in which order prompts are handed out, finished and trained, when a checkpoint is
saved, and when the run dies and starts again. The text is also the token to replay a run with, so
the two forms are equal in power: `Timeline.parse(timeline.text) == timeline`, always.

>>> case = Timeline.parse("hand_out 12; finish 0-3; train; finish 4 6 7 10; save; crash; restart")
>>> case.lives, case.saves
(2, 1)
>>> case.uninterrupted().text
'hand_out 12; finish 0-3; train; finish 4 6 7 10; drain'
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeVar, cast

__all__ = [
    "Crash",
    "Death",
    "Downgrade",
    "Drain",
    "Fail",
    "Finish",
    "HandOut",
    "Ordinals",
    "Position",
    "Race",
    "Restart",
    "Save",
    "Step",
    "Stop",
    "Target",
    "Timeline",
    "TimelineError",
    "Train",
]

_T = TypeVar("_T")

Torn = Literal["empty", "half"]
"""What is left of a file that a power loss has torn."""

_TORN = ("empty", "half", "each")

_CHANGES = ("batch_size", "group_size", "prompts_per_step", "prompts", "capacity", "data_set")

# Limits keep every number short enough to print and parse again, and `finish 0-999999999` from
# filling the memory. Both are far above what an audit can run.
_MOST = 999_999_999
_MOST_TARGETS = 10_000

_SHOWN = 40  # characters shown of a word or value in a message
_AROUND = 30  # characters of the script shown on either side of the wrong word


class TimelineError(ValueError):
    """A timeline that can't be: what is wrong, where, and what would be right.

    Args:
        problem: What is wrong and what is allowed.
        hint: What was probably meant, or what to do about it.
        text: The script as it was given; empty for a timeline made in code.
        column: Where in `text` the wrong word begins, from 0; None for one made in code.
        width: How many characters the wrong word has.
        part: Which of the parts given to a constructor is wrong. The reader of the text finds
            the word to point at by it.
        nth: Which word of that part.

    Attributes:
        problem: As given.
        hint: As given.
        text: As given.
        column: As given.

    Example:
        >>> try:
        ...     Timeline.parse("finnish 3")
        ... except TimelineError as error:
        ...     print(error.column, error.hint)
        0 did you mean `finish`?
    """

    def __init__(
        self,
        problem: str,
        *,
        hint: str = "",
        text: str = "",
        column: int | None = None,
        width: int = 1,
        part: int = -1,
        nth: int = 0,
    ) -> None:
        self.problem = problem
        self.hint = hint
        self.text = text
        self.column = column
        self._part = part
        self._nth = nth
        lines = [problem]
        if column is not None and text.strip():
            lines += _pointed(text, column, width)
        if hint:
            lines.append(hint)
        super().__init__("\n".join(lines))


# --- which generations end ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Target:
    """One prompt by its ordinal, or one of its generations.

    Args:
        ordinal: The prompt's place in the stream of an uninterrupted run, from 0.
        generation: Which of its generations, from 0; None means all of them.

    Raises:
        TimelineError: A number is missing, below 0 or not whole.

    Example:
        >>> Target(5).text, Target(5, generation=0).text
        ('5', '5:0')
    """

    ordinal: int
    generation: int | None = None

    def __post_init__(self) -> None:
        _check_number(self.ordinal, "an ordinal", least=0)
        if self.generation is not None:
            _check_number(self.generation, "a generation", least=0)

    @property
    def text(self) -> str:
        """The target as a script writes it."""
        return f"{self.ordinal}" if self.generation is None else f"{self.ordinal}:{self.generation}"


@dataclass(frozen=True, slots=True)
class Ordinals:
    """Prompts by their ordinals, in the order in which they end.

    Args:
        targets: The prompts or single generations. An ordinal stands there once; twice only as
            different generations.

    Raises:
        TimelineError: No target, too many, one twice, or something that is no `Target`.

    Example:
        >>> Ordinals((Target(0), Target(1), Target(2), Target(5, generation=0))).text
        '0-2 5:0'
    """

    targets: tuple[Target, ...]

    def __post_init__(self) -> None:
        _check_tuple(self.targets, "the targets of Ordinals", "Target")
        if len(self.targets) > _MOST_TARGETS:
            raise TimelineError(
                f"more than {_MOST_TARGETS} ordinals in one step", part=_MOST_TARGETS
            )
        seen: set[tuple[int, int | None]] = set()
        ordinals: set[int] = set()
        for part, target in enumerate(self.targets):
            if not isinstance(target, Target):
                raise TimelineError(f"{_shown(target)} is not a Target", part=part)
            ordinal, generation = target.ordinal, target.generation
            if generation is None:
                twice = ordinal in ordinals
            else:
                twice = (ordinal, None) in seen or (ordinal, generation) in seen
            if twice:
                raise TimelineError(
                    f"ordinal {target.text} stands here twice: a generation ends once",
                    part=part,
                )
            seen.add((ordinal, generation))
            ordinals.add(ordinal)

    @property
    def text(self) -> str:
        """The targets as a script writes them: three or more in a row become a range."""
        words = []
        first = 0
        while first < len(self.targets):
            last = first
            while last + 1 < len(self.targets) and _in_a_row(*self.targets[last : last + 2]):
                last += 1
            if last - first >= 2:
                words.append(f"{self.targets[first].ordinal}-{self.targets[last].ordinal}")
                first = last + 1
            else:
                words.append(self.targets[first].text)
                first += 1
        return " ".join(words)


@dataclass(frozen=True, slots=True)
class Position:
    """Prompts by their place among those in flight, for collectors that decide how many are out.

    Args:
        kind: `oldest` or `newest` so many, `every` so-manyth, or `all`.
        count: How many; `hand_out` stands for one whole hand-out and goes with `oldest` and
            `newest`; `all` takes None.

    Raises:
        TimelineError: An unknown kind, or a count that doesn't go with it.

    Example:
        >>> Position("oldest", 2).text, Position("all").text
        ('oldest 2', 'all')
    """

    kind: Literal["oldest", "newest", "every", "all"]
    count: int | Literal["hand_out"] | None = None

    def __post_init__(self) -> None:
        if self.kind not in _POSITIONS:
            raise TimelineError(
                f"{_shown(self.kind)} is not a position: expected {_either(_POSITIONS)}"
            )
        if self.kind == "all":
            if self.count is not None:
                raise TimelineError(f"`all` takes no count, not {_shown(self.count)}")
        elif self.kind == "every":
            _check_number(self.count, "the count of `every`", least=1)
        elif self.count != "hand_out":
            _check_number(
                self.count, f"the count of `{self.kind}`", least=1, otherwise="`hand_out`"
            )

    @property
    def text(self) -> str:
        """The position as a script writes it."""
        return self.kind if self.count is None else f"{self.kind} {self.count}"


_POSITIONS = ("oldest", "newest", "every", "all")


# --- steps --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HandOut:
    """The loader hands out prompts.

    Args:
        until: Until its place is this one, the same place after a restart; `end`: to the end of
            the data; None: until the collector stops asking.

    Raises:
        TimelineError: `until` is none of these.

    Example:
        >>> HandOut(12).text, HandOut("end").text, HandOut().text
        ('hand_out 12', 'hand_out end', 'hand_out')
    """

    until: int | Literal["end"] | None = None

    def __post_init__(self) -> None:
        if self.until is not None and self.until != "end":
            _check_number(self.until, "the place of `hand_out`", least=1, otherwise="`end`")

    @property
    def text(self) -> str:
        """The step as a script writes it."""
        return "hand_out" if self.until is None else f"hand_out {self.until}"


@dataclass(frozen=True, slots=True)
class Finish:
    """Generations end well, one after the other.

    Args:
        which: The generations, by ordinal or by position.

    Raises:
        TimelineError: `which` is neither.

    Example:
        >>> Finish(Ordinals((Target(4), Target(6)))).text
        'finish 4 6'
        >>> Finish(Position("oldest", "hand_out")).text
        'finish oldest hand_out'
    """

    which: Ordinals | Position

    def __post_init__(self) -> None:
        _check_which(self.which, "finish")

    @property
    def text(self) -> str:
        """The step as a script writes it."""
        return f"finish {self.which.text}"


@dataclass(frozen=True, slots=True)
class Fail:
    """Generations fail, one after the other.

    Args:
        which: The generations, by ordinal or by position.

    Raises:
        TimelineError: `which` is neither.

    Example:
        >>> Fail(Ordinals((Target(5, generation=0),))).text
        'fail 5:0'
    """

    which: Ordinals | Position

    def __post_init__(self) -> None:
        _check_which(self.which, "fail")

    @property
    def text(self) -> str:
        """The step as a script writes it."""
        return f"fail {self.which.text}"


@dataclass(frozen=True, slots=True)
class Train:
    """The trainer takes steps.

    Args:
        steps: How many.

    Raises:
        TimelineError: `steps` is below 1 or not a whole number.

    Example:
        >>> Train().text, Train(3).text
        ('train', 'train 3')
    """

    steps: int = 1

    def __post_init__(self) -> None:
        _check_number(self.steps, "the steps of `train`", least=1)

    @property
    def text(self) -> str:
        """The step as a script writes it."""
        return "train" if self.steps == 1 else f"train {self.steps}"


@dataclass(frozen=True, slots=True)
class Race:
    """What happens in the middle of a save.

    Args:
        steps: What happens: only `HandOut`, `Finish` and `Fail`, and at least one of them.
        at: At which point of the save, from 1: a call into the rig by the saving thread, a file
            operation, or a named point. None: at every one, in a run of its own each.

    Raises:
        TimelineError: No step, one that may not race, or `at` below 1.

    Example:
        >>> Race((HandOut(16),), at=2).text, Race((HandOut(16),)).text
        ('racing (hand_out 16) at 2', 'racing (hand_out 16)')
    """

    steps: tuple[Step, ...]
    at: int | None = None

    def __post_init__(self) -> None:
        _check_tuple(self.steps, "the steps of a race", "HandOut, Finish or Fail")
        for part, step in enumerate(self.steps):
            if not isinstance(step, HandOut | Finish | Fail):
                raise TimelineError(_may_not_race(_named(step)), part=part)
        if self.at is not None:
            _check_number(self.at, "the point of a race", least=1)

    @property
    def text(self) -> str:
        """The race as a script writes it, after `save`."""
        at = "" if self.at is None else f" at {self.at}"
        return f"racing ({_joined(self.steps)}){at}"


@dataclass(frozen=True, slots=True)
class Save:
    """The collector saves a checkpoint.

    Args:
        race: What happens in the middle of it, if anything.

    Raises:
        TimelineError: `race` is not a `Race`.

    Example:
        >>> Save().text, Save(Race((HandOut(16),), at=2)).text
        ('save', 'save racing (hand_out 16) at 2')
    """

    race: Race | None = None

    def __post_init__(self) -> None:
        if self.race is not None and not isinstance(self.race, Race):
            raise TimelineError(f"`save` takes a Race, not {_shown(self.race)}")

    @property
    def text(self) -> str:
        """The step as a script writes it."""
        return "save" if self.race is None else f"save {self.race.text}"


@dataclass(frozen=True, slots=True)
class Death:
    """Where in a save a life dies.

    Args:
        at: Before which of the save's file operations, from 1. None: before every one, in a run
            of its own each.
        torn: What the file written last has lost, as after a power loss: nothing (None), all of
            it (`empty`), its second `half`, or `each` of the two, in a run of its own each. One
            that is torn may also be behind the last operation.

    Raises:
        TimelineError: `at` is below 1 or not a whole number, `torn` is something else.

    Example:
        >>> Death().text, Death(2).text, Death(2, torn="half").text, Death(torn="each").text
        ('in save', 'in save at 2', 'in save at 2 torn half', 'in save torn each')
    """

    at: int | None = None
    torn: Torn | Literal["each"] | None = None

    def __post_init__(self) -> None:
        if self.at is not None:
            _check_number(self.at, "the file operation of `crash in save at`", least=1)
        if self.torn is not None and self.torn not in _TORN:
            raise TimelineError(f"`torn` takes {_either(_quoted(_TORN))}, not {_shown(self.torn)}")

    @property
    def text(self) -> str:
        """The death as a script writes it, after `crash`."""
        at = "" if self.at is None else f" at {self.at}"
        torn = "" if self.torn is None else f" torn {self.torn}"
        return f"in save{at}{torn}"


@dataclass(frozen=True, slots=True)
class Crash:
    """The life ends suddenly.

    Args:
        in_save: None: at rest. A `Death`: in a save that begins now.

    Raises:
        TimelineError: `in_save` is not a `Death`.

    Example:
        >>> Crash().text, Crash(Death(at=2)).text
        ('crash', 'crash in save at 2')
    """

    in_save: Death | None = None

    def __post_init__(self) -> None:
        if self.in_save is not None and not isinstance(self.in_save, Death):
            raise TimelineError(f"`crash` takes a Death, not {_shown(self.in_save)}")

    @property
    def text(self) -> str:
        """The step as a script writes it."""
        return "crash" if self.in_save is None else f"crash {self.in_save.text}"


@dataclass(frozen=True, slots=True)
class Stop:
    """The life ends gracefully.

    Example:
        >>> Stop().text
        'stop'
    """

    @property
    def text(self) -> str:
        """The step as a script writes it."""
        return "stop"


@dataclass(frozen=True, slots=True)
class Restart:
    """The next life begins.

    Args:
        source: From the `latest` checkpoint, from the one with this number in order of saving,
            from 0, or `afresh`, from none.
        buffer: Whether the replay buffer is loaded.
        changes: Sizes that are others from this life on, by the names of their fields in the
            setup: `batch_size`, `group_size`, `prompts_per_step`, `prompts`, the buffer's
            `capacity`, and `data_set`, another of which has other texts in its rows.

    Raises:
        TimelineError: An unknown source, a `buffer` that is not a bool, one that is False though
            nothing is loaded at all, or a size that can't change.

    Example:
        >>> Restart().text, Restart(0, buffer=False).text, Restart("afresh").text
        ('restart', 'restart from 0 no_buffer', 'restart afresh')
        >>> Restart(changes=(("batch_size", 8),)).text
        'restart with batch_size 8'
    """

    source: Literal["latest", "afresh"] | int = "latest"
    buffer: bool = True
    changes: tuple[tuple[str, int], ...] = ()

    def __post_init__(self) -> None:
        if self.source not in ("latest", "afresh"):
            _check_number(
                self.source,
                "the source of `restart`",
                least=0,
                otherwise="`latest` or `afresh`",
            )
        if not isinstance(self.buffer, bool):
            raise TimelineError(
                f"the buffer of `restart` must be True or False, not {_shown(self.buffer)}"
            )
        if self.source == "afresh" and not self.buffer:
            raise TimelineError("`restart afresh` loads no checkpoint: leave `no_buffer` out")
        if not isinstance(self.changes, tuple):
            raise TimelineError(
                "the changes of `restart` must be a tuple of pairs of a field and a number, "
                f"not {_shown(self.changes)}"
            )
        for part, change in enumerate(self.changes):
            if not isinstance(change, tuple) or len(change) != 2 or change[0] not in _CHANGES:
                raise TimelineError(
                    f"{_shown(change)} is no change of `restart`: it is a pair of "
                    f"{_either(_quoted(_CHANGES))} and a number",
                    part=part,
                )
            try:
                _check_number(change[1], f"`{change[0]}`", least=1)
            except TimelineError as error:
                raise TimelineError(error.problem, part=part, nth=1) from None

    @property
    def text(self) -> str:
        """The step as a script writes it."""
        words = ["restart"]
        if self.source == "afresh":
            words.append("afresh")
        elif self.source != "latest":
            words.append(f"from {self.source}")
        if not self.buffer:
            words.append("no_buffer")
        if self.changes:
            words += ["with", *(f"{name} {value}" for name, value in self.changes)]
        return " ".join(words)


@dataclass(frozen=True, slots=True)
class Downgrade:
    """The checkpoint just saved becomes one that the version before the fix wrote.

    Example:
        >>> Downgrade().text
        'downgrade'
    """

    @property
    def text(self) -> str:
        """The step as a script writes it."""
        return "downgrade"


@dataclass(frozen=True, slots=True)
class Drain:
    """Everything is finished and trained until the data ends and no step takes anything more.

    Example:
        >>> Drain().text
        'drain'
    """

    @property
    def text(self) -> str:
        """The step as a script writes it."""
        return "drain"


Step = HandOut | Finish | Fail | Train | Save | Crash | Stop | Restart | Downgrade | Drain
"""Any step of a timeline. Each has a `text`, as a script writes it."""


# --- timelines ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Timeline:
    """The script of one or more lives of a run.

    A timeline that doesn't end with a drain gets one, so equal scripts are equal. It can be
    compared, hashed, pickled and printed; `str` gives its text.

    Args:
        steps: What happens, in order.

    Attributes:
        steps: The steps as a tuple, the last of them a `Drain`.

    Raises:
        TimelineError: No steps, something that is no step, or steps in an order that can't be:
            a life goes on after its end, a restart without an end before it or from a checkpoint
            not saved yet, a downgrade without a save before it, a second step that goes through
            every point of a save, or a last life that is dead.

    Example:
        >>> str(Timeline([HandOut(4), Save(), Crash(), Restart()]))
        'hand_out 4; save; crash; restart; drain'
    """

    steps: tuple[Step, ...]

    def __init__(self, steps: Iterable[Step]) -> None:
        if isinstance(steps, str):
            raise TimelineError(
                "a Timeline is made of steps, not of text", hint="use Timeline.parse for text"
            )
        if not isinstance(steps, Iterable):
            raise TimelineError(f"a Timeline is made of steps, not of {_shown(steps)}")
        given = tuple(steps)
        _check_script(given)
        whole = given if isinstance(given[-1], Drain) else (*given, Drain())
        object.__setattr__(self, "steps", whole)

    @classmethod
    def parse(cls, text: str) -> Timeline:
        """Read a timeline from its text.

        Args:
            text: The steps, separated by `;` or new lines. A `#` begins a comment that goes to
                the end of the line.

        Returns:
            The timeline.

        Raises:
            TimelineError: The text is no timeline; the error points at the wrong word.

        Example:
            >>> Timeline.parse("hand_out 4; finish 0-3  # all of them").steps[0]
            HandOut(until=4)
        """
        if not isinstance(text, str):
            raise TimelineError(f"the text of a timeline must be a str, not {_shown(text)}")
        return _Reader(text).timeline()

    @property
    def text(self) -> str:
        """The timeline as text, the drain at its end included.

        Example:
            >>> Timeline([HandOut(4), Train()]).text
            'hand_out 4; train; drain'
        """
        return _joined(self.steps)

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"Timeline.parse({self.text!r})"

    @property
    def lives(self) -> int:
        """How many lives it has.

        Example:
            >>> Timeline.parse("save; crash; restart").lives
            2
        """
        return 1 + sum(isinstance(step, Restart) for step in self.steps)

    @property
    def saves(self) -> int:
        """How many saves it has. A `crash in save` publishes nothing and counts none.

        Example:
            >>> Timeline.parse("save; crash in save at 1; restart; save").saves
            2
        """
        return sum(isinstance(step, Save) for step in self.steps)

    @property
    def legacy(self) -> bool:
        """Whether any of its checkpoints becomes a legacy one.

        Example:
            >>> Timeline.parse("save; downgrade; crash; restart").legacy
            True
        """
        return any(isinstance(step, Downgrade) for step in self.steps)

    @property
    def torn(self) -> bool:
        """Whether any of its crashes leaves a file torn.

        Example:
            >>> Timeline.parse("crash in save at 2 torn half; restart").torn
            True
        """
        return any(
            isinstance(step, Crash) and step.in_save is not None and step.in_save.torn is not None
            for step in self.steps
        )

    @property
    def changes(self) -> tuple[tuple[str, int], ...]:
        """The sizes that change at its restarts, in their order.

        Example:
            >>> Timeline.parse("save; crash; restart with batch_size 8 prompts 20").changes
            (('batch_size', 8), ('prompts', 20))
        """
        restarts = (step for step in self.steps if isinstance(step, Restart))
        return tuple(change for step in restarts for change in step.changes)

    @property
    def walks(self) -> bool:
        """Whether it goes through every point of a save, in a run of its own each.

        Example:
            >>> Timeline.parse("crash in save; restart").walks
            True
            >>> Timeline.parse("crash in save at 2; restart").walks
            False
        """
        return any(_walks(step) for step in self.steps)

    @property
    def races_everywhere(self) -> bool:
        """Whether it races a save at every point of it, in a run of its own each."""
        return any(isinstance(step, Save) and _walks(step) for step in self.steps)

    def at(self, point: int, torn: Torn | None = None) -> Timeline:
        """Return the timeline that plays one point out of all that it goes through.

        Args:
            point: Which one, from 1.
            torn: What the file written last has lost there.

        Returns:
            The timeline; the same one when it goes through none.

        Example:
            >>> Timeline.parse("crash in save torn each; restart").at(3, "half").text
            'crash in save at 3 torn half; restart; drain'
        """
        return Timeline(_at(step, point, torn) if _walks(step) else step for step in self.steps)

    def all_at(self, point: int) -> list[Timeline]:
        """Return the timelines that play one point out of all: more than one if files are torn.

        Args:
            point: Which one, from 1.

        Example:
            >>> [one.text for one in Timeline.parse("crash in save torn each; restart").all_at(3)]
            ... # doctest: +NORMALIZE_WHITESPACE
            ['crash in save at 3 torn empty; restart; drain',
             'crash in save at 3 torn half; restart; drain']
        """
        (step,) = (step for step in self.steps if _walks(step))
        torn = step.in_save.torn if isinstance(step, Crash) and step.in_save else None
        every: tuple[Torn | None, ...] = ("empty", "half") if torn == "each" else (torn,)
        return [self.at(point, one) for one in every]

    def uninterrupted(self) -> Timeline:
        """Return the same finishing order without save or crash, to measure against.

        Returns:
            The timeline without its saves, crashes, stops, restarts and downgrades. What races
            a save stays, as plain steps in the save's place.

        Example:
            >>> raced = Timeline.parse("hand_out 4; save racing (finish 2) at 1; crash; restart")
            >>> raced.uninterrupted().text
            'hand_out 4; finish 2; drain'
        """
        steps: list[Step] = []
        for step in self.steps:
            if isinstance(step, Save):
                steps += step.race.steps if step.race else ()
            elif not isinstance(step, Crash | Stop | Restart | Downgrade):
                steps.append(step)
        return Timeline(steps)


def _check_script(steps: tuple[Step, ...]) -> None:
    """Refuse steps that can't follow one another."""
    if not steps:
        raise TimelineError("the timeline is empty: it needs at least one step", hint="try `drain`")
    saved = 0
    walks = False
    before: Step | None = None
    for part, step in enumerate(steps):
        if not isinstance(step, Step):
            raise TimelineError(f"step {part + 1}, {_shown(step)}, is not a step", part=part)
        if isinstance(before, Crash | Stop) and not isinstance(step, Restart):
            raise TimelineError(
                f"{_named(step)} follows {_named(before)}: only `restart` may, as the life is over",
                hint="put `restart` before it",
                part=part,
            )
        if isinstance(step, Restart):
            if not isinstance(before, Crash | Stop):
                raise TimelineError(
                    f"{_named(step)} may follow only `crash` or `stop`: the life still goes on",
                    hint="put `crash` or `stop` before it",
                    part=part,
                )
            if isinstance(step.source, int) and step.source >= saved:
                raise TimelineError(
                    f"{_named(step)} needs more than {step.source} saves before it, "
                    f"as checkpoints count from 0: there are {saved}",
                    part=part,
                    nth=2,
                )
        if isinstance(step, Downgrade) and not isinstance(before, Save):
            raise TimelineError(
                "`downgrade` may follow only `save`, right after it: it rewrites that checkpoint",
                hint="put `save` before it",
                part=part,
            )
        if _walks(step):
            if walks:
                raise TimelineError(
                    f"{_named(step)} goes through every point of a save, as a step before it does: "
                    "only one step may",
                    hint="put `at` and a number behind one of them",
                    part=part,
                )
            walks = True
        saved += isinstance(step, Save)
        before = step
    if isinstance(before, Crash | Stop):
        raise TimelineError(
            f"the last life is dead: the timeline ends with {_named(before)}, "
            "and nothing is left to be trained or judged",
            hint="add `; restart` at the end",
        )


def _walks(step: Step) -> bool:
    """Whether a step goes through every point of a save."""
    if isinstance(step, Save):
        return step.race is not None and step.race.at is None
    if isinstance(step, Crash) and step.in_save is not None:
        return step.in_save.at is None or step.in_save.torn == "each"
    return False


def _at(step: Step, point: int, torn: Torn | None) -> Step:
    """One point of a step that goes through every one."""
    if isinstance(step, Save):
        assert step.race is not None
        return Save(Race(step.race.steps, point))
    return Crash(Death(point, torn))


# --- reading the text ---------------------------------------------------------------------------


class _Word(NamedTuple):
    text: str
    at: int


_WORDS = re.compile(r"#[^\n]*|[;()\n]|[^\s;()#]+")
_MARKS = (";", "\n", "(", ")")
_NUMBER = re.compile("[0-9]{1,9}")  # no more digits than _MOST has
_TARGET = re.compile("([0-9]{1,9})(?:-([0-9]{1,9})|:([0-9]{1,9}))?")
_RACING = ("hand_out", "finish", "fail")


class _Reader:
    """Reads one script, word by word."""

    def __init__(self, text: str) -> None:
        self.text = text
        found = (_Word(match[0], match.start()) for match in _WORDS.finditer(text))
        self.words = [word for word in found if not word.text.startswith("#")]
        self.next = 0

    def timeline(self) -> Timeline:
        steps: list[Step] = []
        names: list[_Word] = []
        while self.next < len(self.words):
            if not self.skip(";", "\n"):
                names.append(self.words[self.next])
                steps.append(self.step(tuple(_STEPS), ends=(";", "\n")))
        return self.make(names or [_Word("", 0)], Timeline, steps)

    def step(self, allowed: Sequence[str], ends: Sequence[str]) -> Step:
        name = self.words[self.next]
        self.next += 1
        # Asked before the step is read: a race in a race in a race would be read by recursion.
        if name.text not in allowed:
            if name.text in _STEPS:
                raise self.error(name, _may_not_race(f"`{name.text}`"))
            raise self.unknown(name, allowed)
        step = _STEPS[name.text](self)
        if self.next < len(self.words) and self.words[self.next].text not in ends:
            extra = self.words[self.next]
            raise self.error(
                extra,
                f"{_shown(extra.text)} is too much after {_named(step)}: "
                f"expected `;`, a new line or {'`)`' if ')' in ends else 'the end'}",
                hint=_new_step(extra),
            )
        return step

    # One function a step.

    def hand_out(self) -> Step:
        if not self.more():
            return HandOut()
        word = self.take("a number or `end`")
        if word.text == "end":
            return HandOut("end")
        return self.make([word], HandOut, self.number(word, "end"))

    def finish(self) -> Step:
        return Finish(self.which())

    def fail(self) -> Step:
        return Fail(self.which())

    def train(self) -> Step:
        if not self.more():
            return Train()
        word = self.take("a number")
        return self.make([word], Train, self.number(word))

    def save(self) -> Step:
        if not self.more():
            return Save()
        self.keyword("racing")
        opening = self.words[self.next - 1]
        if not self.skip("("):
            raise self.error(opening, "`racing` needs `(` and the racing steps after it")
        opening = self.words[self.next - 1]
        steps: list[Step] = []
        names: list[_Word] = []
        while not self.skip(")"):
            if self.next == len(self.words):
                raise self.error(opening, "`(` is never closed: expected `)` after the last step")
            if not self.skip(";", "\n"):
                names.append(self.words[self.next])
                steps.append(self.step(_RACING, ends=(";", "\n", ")")))
        if not self.more():
            return Save(self.make(names or [opening], Race, tuple(steps)))
        self.keyword("at")
        at = self.take("a number")
        return Save(self.make([*(names or [opening]), at], Race, tuple(steps), self.number(at)))

    def crash(self) -> Step:
        if not self.more():
            return Crash()
        self.keyword("in")
        self.keyword("save")
        if not self.more():
            return Crash(Death())
        if self.keyword("at", "torn") == "torn":
            return Crash(Death(torn=self.torn()))
        word = self.take("a number")
        at = self.number(word)
        if not self.more():
            return Crash(self.make([word], Death, at))
        self.keyword("torn")
        return Crash(self.make([word], Death, at, self.torn()))

    def torn(self) -> Torn | Literal["each"]:
        return cast('Torn | Literal["each"]', self.keyword(*_TORN))

    def stop(self) -> Step:
        return Stop()

    def restart(self) -> Step:
        if not self.more():
            return Restart()
        source: Literal["latest", "afresh"] | int = "latest"
        how = self.keyword("from", "afresh", "no_buffer", "with")
        if how == "from":
            source = self.number(self.take("the number of a checkpoint"))
            how = self.keyword("no_buffer", "with") if self.more() else ""
        elif how == "afresh":
            source = "afresh"
        buffer = how != "no_buffer"
        if how != "with" and not self.skip("with"):
            return Restart(source, buffer)
        names: list[_Word] = []
        changes: list[tuple[str, int]] = []
        while self.more() or not changes:
            names.append(self.words[min(self.next, len(self.words) - 1)])
            name = self.keyword(*_CHANGES)
            changes.append((name, self.number(self.take("a number"))))
        return self.make(names, Restart, source, buffer, tuple(changes))

    def downgrade(self) -> Step:
        return Downgrade()

    def drain(self) -> Step:
        return Drain()

    # What steps are made of.

    def which(self) -> Ordinals | Position:
        word = self.take("ordinals such as `4 6 7`, or a position such as `oldest 2` or `all`")
        if word.text == "all":
            return Position("all")
        if word.text in _POSITIONS:
            otherwise = () if word.text == "every" else ("hand_out",)
            count = self.take(_either(["a number", *(f"`{keyword}`" for keyword in otherwise)]))
            if count.text == "hand_out":
                return self.make([count], Position, word.text, "hand_out")
            return self.make([count], Position, word.text, self.number(count, *otherwise))
        targets = self.targets(word, _POSITIONS)
        words = [word] * len(targets)
        # Also over when there are too many already: a long list of ranges could fill the memory.
        while self.more() and len(targets) <= _MOST_TARGETS:
            word = self.take("an ordinal")
            found = self.targets(word, ())
            targets += found
            words += [word] * len(found)
        return self.make(words, Ordinals, tuple(targets))

    def targets(self, word: _Word, otherwise: Sequence[str]) -> list[Target]:
        match = _TARGET.fullmatch(word.text)
        if match is None:
            ordinals = f"ordinals from 0 to {_MOST} such as `4 6 7`"
            raise self.unknown(word, otherwise, ordinals, "a range `0-3`", "one generation `5:0`")
        first, last, generation = match.groups()
        if generation is not None:
            return [Target(int(first), int(generation))]
        if last is None:
            return [Target(int(first))]
        if int(last) < int(first):
            raise self.error(
                word,
                f"the range `{word.text}` goes down: a range goes up",
                hint="write the ordinals one by one, in the order in which they end",
            )
        if int(last) - int(first) >= _MOST_TARGETS:
            raise self.error(word, f"`{word.text}` is more than {_MOST_TARGETS} ordinals")
        return [Target(ordinal) for ordinal in range(int(first), int(last) + 1)]

    def number(self, word: _Word, *otherwise: str) -> int:
        if not _NUMBER.fullmatch(word.text):
            raise self.unknown(word, otherwise, f"a whole number up to {_MOST}")
        return int(word.text)

    def keyword(self, *allowed: str) -> str:
        word = self.take(_either(_quoted(allowed)))
        if word.text not in allowed:
            raise self.unknown(word, allowed)
        return word.text

    # Moving on.

    def more(self) -> bool:
        """Whether the step goes on."""
        return self.next < len(self.words) and self.words[self.next].text not in _MARKS

    def take(self, expected: str) -> _Word:
        """Take the step's next word, which has to be there."""
        if not self.more():
            last = self.words[self.next - 1]
            raise self.error(last, f"`{last.text}` needs {expected} after it")
        self.next += 1
        return self.words[self.next - 1]

    def skip(self, *marks: str) -> bool:
        """Pass over the next word if it is one of these."""
        found = self.next < len(self.words) and self.words[self.next].text in marks
        self.next += found
        return found

    # What is wrong.

    def make(self, words: Sequence[_Word], kind: Callable[..., _T], *args: object) -> _T:
        """Make a part of the timeline; if it is refused, point at the word it was made from."""
        try:
            return kind(*args)
        except TimelineError as error:
            word = words[error._part]
            if error._nth:
                word = self.words[self.words.index(word) + error._nth]
            raise self.error(word, error.problem, error.hint) from None

    def unknown(self, word: _Word, keywords: Sequence[str], *also: str) -> TimelineError:
        expected = [*also, *(f"`{keyword}`" for keyword in keywords)]
        close = _closest(word.text, keywords)
        return self.error(
            word,
            f"{_shown(word.text)} is not understood: expected {_either(expected)}",
            hint=f"did you mean `{close}`?" if close else _new_step(word),
        )

    def error(self, word: _Word, problem: str, hint: str = "") -> TimelineError:
        return TimelineError(
            problem, hint=hint, text=self.text, column=word.at, width=len(word.text)
        )


_STEPS: dict[str, Callable[[_Reader], Step]] = {
    "hand_out": _Reader.hand_out,
    "finish": _Reader.finish,
    "fail": _Reader.fail,
    "train": _Reader.train,
    "save": _Reader.save,
    "crash": _Reader.crash,
    "stop": _Reader.stop,
    "restart": _Reader.restart,
    "downgrade": _Reader.downgrade,
    "drain": _Reader.drain,
}


# --- checks and messages ------------------------------------------------------------------------


def _check_number(value: object, what: str, *, least: int, otherwise: str = "") -> None:
    # Not isinstance: True is an int to it, and `Train(True)` a slip.
    if type(value) is not int or not least <= value <= _MOST:
        allowed = f"a whole number from {least} to {_MOST}"
        if otherwise:
            allowed += f", or {otherwise}"
        raise TimelineError(f"{what} must be {allowed}, not {_shown(value)}")


def _check_tuple(value: object, what: str, items: str) -> None:
    if not isinstance(value, tuple):
        raise TimelineError(f"{what} must be a tuple of {items}, not {_shown(value)}")
    if not value:
        raise TimelineError(f"{what} must be at least one {items}", part=0)


def _check_which(value: object, step: str) -> None:
    if not isinstance(value, Ordinals | Position):
        raise TimelineError(f"`{step}` takes Ordinals or a Position, not {_shown(value)}")


def _in_a_row(one: Target, two: Target) -> bool:
    return one.generation is two.generation is None and two.ordinal == one.ordinal + 1


def _joined(steps: Iterable[Step]) -> str:
    return "; ".join(step.text for step in steps)


def _may_not_race(step: str) -> str:
    return f"{step} may not race a save: only `hand_out`, `finish` and `fail` may"


def _quoted(words: Iterable[str]) -> list[str]:
    return [f"`{word}`" for word in words]


def _new_step(word: _Word) -> str:
    return f"put `;` before `{word.text}` to begin a step" if word.text in _STEPS else ""


def _closest(word: str, keywords: Sequence[str]) -> str | None:
    if len(word) > _SHOWN:
        return None
    import difflib  # only an error needs it

    return next(iter(difflib.get_close_matches(word.lower(), keywords, n=1)), None)


def _either(words: Sequence[str]) -> str:
    return " or ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def _named(step: object) -> str:
    return _shown(step.text if isinstance(step, Step) else step)


def _shown(value: object) -> str:
    """Return a value short, printable and in quotes: it may be huge, or bytes from a wrong file."""
    try:
        text = value if isinstance(value, str) else repr(value)
    except Exception:
        # Even an int may refuse: Python prints none of more than 4300 digits.
        text = f"<{type(value).__name__}>"
    if len(text) > _SHOWN:
        text = f"{text[:_SHOWN]}..."
    return f"`{_printable(text)}`"


def _printable(text: str) -> str:
    """Replace one character by one, so that what stands below stays below."""
    return "".join(char if char.isprintable() else " " if char.isspace() else "?" for char in text)


def _pointed(text: str, column: int, width: int) -> list[str]:
    """Return the line of the wrong word, cut around it, and carets under the word."""
    start = text.rfind("\n", 0, column) + 1
    line = text[start:].partition("\n")[0]
    column -= start
    width = max(1, min(width, _SHOWN))
    left = max(0, column - _AROUND)
    right = column + width + _AROUND
    before = "..." if left > 0 else ""
    after = "..." if right < len(line) else ""
    margin = " " * (len(before) + column - left)
    return [f"    {before}{_printable(line[left:right])}{after}", f"    {margin}{'^' * width}"]
