"""The data set: prompts, and the rollouts that answer them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, overload


@dataclass(frozen=True, slots=True)
class Prompt:
    """One row of the data set.

    It knows its row, never its ordinal: numbering the stream is the collector's job, and part
    of what is tested.

    Args:
        row: index in the data set, from 0.
        data_set: which data set it is in.
        text_of: the row whose text it has; None: its own.
        ticket: tells the audit, within a life, which hand-out this is; the loader gives it. Where
            a prompt is made anew, from a checkpoint for one, its row is what is known of it.

    Example:
        >>> Prompt(5).row
        5
    """

    row: int
    data_set: int = field(default=0, repr=False)
    text_of: int | None = field(default=None, repr=False, compare=False)
    ticket: int = field(default=0, repr=False, compare=False)

    @property
    def text(self) -> str:
        """A text that is the same in every life and process: a sentence where Faker is there."""
        return _text(self.row if self.text_of is None else self.text_of, self.data_set)


@dataclass(frozen=True, slots=True)
class Rollout:
    """One generation (answer) of a prompt.

    Args:
        prompt: what was answered.
        generation: its place in the group, from 0 to ``group_size - 1``.
        weight_version: trainer steps that the weights had behind them when generation began.
        tag: whatever the collector wants to ride along, such as its own ordinal. It passes
            through the buffer, its state and the trainer untouched; it must survive the
            collector's own way of writing files.
        ticket: tells the audit, within a life, which generation this is; the engine gives it.

    Example:
        >>> import dataclasses
        >>> rollout = Rollout(Prompt(5), generation=0, weight_version=1)
        >>> dataclasses.replace(rollout, tag=5).tag
        5
    """

    prompt: Prompt
    generation: int
    weight_version: int
    tag: Any = None
    ticket: int = field(default=0, repr=False, compare=False)

    @property
    def text(self) -> str:
        """The answer."""
        return f"answer {self.generation} to: {self.prompt.text}"


class Prompts(Sequence[Prompt]):
    """The data set of an audited run: usable as a map-style data set of torch.

    Args:
        count: number of rows.
        data_set: which data set it is: another one has other texts.
        texts: different texts in it; None: each row has its own.

    Attributes:
        fingerprint: another one for another data set.

    Example:
        >>> len(Prompts(16)), Prompts(16)[3].row
        (16, 3)
    """

    def __init__(self, count: int, data_set: int = 0, texts: int | None = None) -> None:
        self.fingerprint = f"{data_set}-{count}" + (f"-{texts}" if texts else "")
        self._prompts = [prompt_of(row, data_set, texts) for row in range(count)]

    def __len__(self) -> int:
        return len(self._prompts)

    def __iter__(self) -> Iterator[Prompt]:
        return iter(self._prompts)

    @overload
    def __getitem__(self, row: int) -> Prompt: ...
    @overload
    def __getitem__(self, row: slice) -> list[Prompt]: ...
    def __getitem__(self, row: int | slice) -> Prompt | list[Prompt]:
        return self._prompts[row]


def prompt_of(row: int, data_set: int, texts: int | None) -> Prompt:
    """The prompt in a row of a data set with so many different texts."""
    return Prompt(row, data_set, None if texts is None else row % texts)


@lru_cache(maxsize=4096)
def _text(row: int, data_set: int) -> str:
    sentence = _sentences()
    which = f"{row}" if data_set == 0 else f"{row} of data set {data_set}"
    return f"prompt {which}" if sentence is None else f"{which}: {sentence(row, data_set)}"


@lru_cache(maxsize=1)
def _sentences() -> Callable[[int, int], str] | None:
    # Faker is imported by the first text that is read, not by the plugin: it costs 0.2 s.
    try:
        from faker import Faker
    except ImportError:
        return None
    fake = Faker()

    def sentence(row: int, data_set: int) -> str:
        fake.seed_instance(row + data_set * 1_000_003)
        return str(fake.sentence())

    return sentence
