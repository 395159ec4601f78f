"""A training command, in whatever framework, that is audited as it is."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import string
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from textwrap import shorten
from typing import Any

from pytest_resume_audit.collector import Delivery, SelfDrivenCollector
from pytest_resume_audit.rig import Rig
from pytest_resume_audit.setup import Setup
from pytest_resume_audit.timeline import Restart, Timeline

SIZES = tuple(size.name for size in fields(Setup))
"""The sizes that a command can be told."""

CHECKPOINTS, CHECKPOINT = "checkpoints", "checkpoint"


class CommandRefused(RuntimeError):
    """A command has refused to resume, with what its ``refuses`` looks for."""


@dataclass(frozen=True, eq=False)
class Command:
    """A training command: started, watched, killed, and started again.

    Its script reports through :mod:`pytest_resume_audit.recorder`. A crash is a SIGKILL to all
    its processes, a stop a SIGTERM.

    Args:
        command: a line, or a list of words; no shell reads it. ``{checkpoints}`` stands for the
            directory of checkpoints, ``{prompts}``, ``{batch_size}`` and every other field of
            :class:`Setup` for that size: a timeline with sizes of its own is only played where
            the command has them. Programs beside the running Python are found first.
        resume: words to add at a restart, with ``{checkpoint}`` for the one to go back to. Without
            them the script has to find the newest by itself, as it does after a real crash.
        no_buffer: words to add where the replay buffer is not to be loaded.
        directory: where it is run; by default where the tests are.
        environment: variables to add.
        latest: which checkpoint below the root a restart takes, for ``resume``; by default the file
            or directory whose name ends in the highest number.
        downgrade: rewrites a checkpoint as the version before the fix wrote it.
        refuses: a regular expression: a failure at a restart that has printed it is a deliberate
            refusal to resume.
        legacy_warning: a regular expression that a life resumed from a legacy checkpoint prints.
        delivery: as of a :class:`Collector`.
        order: as of a :class:`Collector`.
        stream: as of a :class:`Collector`.
        structural: as of a :class:`Collector`.

    Raises:
        ValueError: for a command without words, or with a placeholder that is none.

    Example:
        >>> train = Command("python train.py --out {checkpoints} --batch-size {batch_size}")
        >>> train.words(Path("/ckpt"), Setup())
        ['python', 'train.py', '--out', '/ckpt', '--batch-size', '4']
    """

    command: str | Sequence[str]
    resume: str | Sequence[str] | None = field(default=None, kw_only=True)
    no_buffer: str | Sequence[str] | None = field(default=None, kw_only=True)
    directory: str | os.PathLike[str] | None = field(default=None, kw_only=True)
    environment: Mapping[str, str] = field(default_factory=dict, kw_only=True)
    latest: Callable[[Path], Path | None] | None = field(default=None, kw_only=True)
    downgrade: Callable[[Path], None] | None = field(default=None, kw_only=True)
    refuses: str | None = field(default=None, kw_only=True)
    legacy_warning: str = field(default=SelfDrivenCollector.legacy_warning, kw_only=True)
    delivery: Delivery = field(default="exactly_once", kw_only=True)
    order: str = field(default="any", kw_only=True)
    stream: str = field(default="finite", kw_only=True)
    structural: bool = field(default=False, kw_only=True)
    kind: type[SelfDrivenCollector] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        allowed = (CHECKPOINTS, *SIZES)
        for name, more in (("command", ()), ("resume", (CHECKPOINT,)), ("no_buffer", ())):
            words = _split(name, getattr(self, name))
            for word in _placeholders(words):
                if word not in (*allowed, *more):
                    raise ValueError(
                        f"Command({name}=...): there is no {{{word}}}; there are "
                        + ", ".join(f"{{{one}}}" for one in (*more, *allowed))
                        + ". Braces of its own are written {{ }}"
                    )
            if any("\0" in word for word in words):
                raise ValueError(f"Command({name}=...) has a NUL, which no word can have")
        if not _split("command", self.command):
            raise ValueError("Command(''): it has no words")
        if self.resume is not None and CHECKPOINT not in _placeholders(
            _split("resume", self.resume)
        ):
            raise ValueError("Command(resume=...) has no {checkpoint}, which it is for")
        try:
            self.words(Path("root"), Setup(), checkpoint=Path("checkpoint"))
        except (ValueError, TypeError) as error:
            raise ValueError(f"a command's words can't be filled in: {error}") from None
        for variable, value in self.environment.items():
            if not _is_variable(variable, value):
                raise ValueError(
                    f"Command(environment=...): {variable!r}: {value!r} is none: both are texts, "
                    "the name without ="
                )
        if self.refuses is not None:
            try:
                re.compile(self.refuses)
            except re.error as error:
                raise ValueError(f"Command(refuses=...) is no pattern: {error}") from None
        # Frozen, but its kind follows from the rest.
        object.__setattr__(self, "kind", _kind(self))

    def __call__(self, rig: Rig) -> SelfDrivenCollector:
        """What any collector is made by; a command never is: a process is begun."""
        raise TypeError(f"{self} is run by an audit, and makes no collector")

    def words(
        self,
        root: Path,
        setup: Setup,
        *,
        checkpoint: Path | None = None,
        load_replay_buffer: bool = True,
    ) -> list[str]:
        """The words that a life is started with.

        Args:
            root: the directory of checkpoints.
            setup: the sizes.
            checkpoint: what to go back to, if the command is told.
            load_replay_buffer: False: the buffer starts empty.
        """
        words = list(_split("command", self.command))
        if checkpoint is not None:
            words += _split("resume", self.resume)
        if not load_replay_buffer:
            words += _split("no_buffer", self.no_buffer)
        known: dict[str, Any] = {name: getattr(setup, name) for name in SIZES}
        known |= {CHECKPOINTS: root, CHECKPOINT: checkpoint}
        return [word.format_map(known) for word in words]

    def variables(self) -> dict[str, str]:
        """The environment that it is run in."""
        beside = os.path.dirname(sys.executable)
        path = os.pathsep.join(filter(None, (beside, os.environ.get("PATH"))))
        return {**os.environ, "PATH": path, **self.environment}

    def missing(self) -> str | None:
        """Say that its program can't be found; None when it can."""
        (program, *_) = _split("command", self.command)
        where = os.path.abspath(self.directory or ".")
        if not os.path.isdir(where):
            return f"there is no directory {where} to run the command in"
        if os.sep in program:
            program = os.path.join(where, program)
        found = shutil.which(program, path=self.variables()["PATH"])
        if found is None:
            return f"the command {program!r} is not found, or can't be executed"
        return None

    def lacks(self, timeline: Timeline, sizes: Iterable[str] = ()) -> str | None:
        """Say what the command would need for a timeline; None when it has all of it.

        Args:
            timeline: the script.
            sizes: fields of the setup that belong to its story.
        """
        there = _placeholders(_split("command", self.command))
        for size in (*sizes, *(name for name, _ in timeline.changes)):
            if size not in there:
                return f"the timeline says how large {size} is: give the command a {{{size}}}"
        for step in timeline.steps:
            if not isinstance(step, Restart):
                continue
            if self.resume is None and step.source != "latest":
                return f"{step.text!r} needs resume=..., with a {{checkpoint}} to go back to"
            if self.no_buffer is None and not step.buffer:
                return f"{step.text!r} needs no_buffer=..., words to begin with an empty buffer"
        return None


def _split(name: str, words: str | Sequence[str] | None) -> list[str]:
    if words is None:
        return []
    if isinstance(words, str):
        try:
            return shlex.split(words)
        except ValueError as error:
            raise ValueError(f"Command({name}=...): {error}: {words}") from None
    if not all(isinstance(word, str) for word in words):
        raise ValueError(f"Command({name}=...) is a line or a list of words, not {words!r}")
    return list(words)


def _is_variable(name: object, value: object) -> bool:
    texts = isinstance(name, str) and isinstance(value, str)
    return texts and bool(name) and "=" not in str(name) and "\0" not in f"{name}{value}"


def _placeholders(words: Iterable[str]) -> set[str]:
    try:
        fields = [field for word in words for field in string.Formatter().parse(word)]
        return {name for _, name, _, _ in fields if name is not None}
    except ValueError as error:
        raise ValueError(f"a command's words: {error}; braces are written {{{{ }}}}") from None


def _kind(command: Command) -> type[SelfDrivenCollector]:
    """A class that declares what the command does, and stands for it in an audit."""
    body: dict[str, Any] = {
        name: getattr(command, name) for name in ("delivery", "order", "stream", "structural")
    }
    body |= {"lives": ("command",), "legacy_warning": command.legacy_warning}
    body["latest"] = staticmethod(command.latest or _newest)
    if command.refuses is not None:
        body["refuses"] = (CommandRefused,)
    if command.downgrade is not None:
        body["downgrade"] = staticmethod(command.downgrade)
    named = " ".join(_split("command", command.command))
    body["__qualname__"] = f"Command({shorten(named, 60, placeholder='...')!r})"
    return type("Command", (_Runs,), body)


class _Runs(SelfDrivenCollector):
    """What a command would be as an object."""

    def run(self, root: Path, *, resume: Path | None, load_replay_buffer: bool) -> None:
        """Never called: a process does it."""
        raise NotImplementedError


def _newest(root: Path) -> Path | None:
    """The file or directory whose name ends in the highest number."""
    numbered = [
        (int(match[1]), path.name, path)
        for path in root.iterdir()
        if (match := re.search(r"(\d+)(\.\w+)?$", path.name))
    ]
    return max(numbered, default=(0, "", None))[2]
