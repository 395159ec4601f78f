"""Counts of the prompts that went into the weights, which travel with the weights.

A log of what was trained has to be put together over crashes, rollbacks and restarts from older
checkpoints. A count inside the checkpoint needs none of that: restored weights bring back the
counts of exactly what they were trained on.
"""

from __future__ import annotations

import operator
import os
import sys
import threading
from array import array
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_resume_audit.real_runs.counts import (
    DROPPED,
    MOST,
    WAITING,
    Counts,
    CoverageError,
    check_alike,
    decode,
    join,
)

if TYPE_CHECKING:
    import torch

_KEY = "prompt_coverage"


class PromptCoverage:
    """Counts, per prompt and pass, how often it went into the weights.

    Two lines in a training, ``coverage.add(ordinals)`` behind the optimizer's step, and one of the
    three ways to have the counts saved and restored together with the weights:

    - ``coverage.attach(model)``: in the model's own ``state_dict``;
    - an object with ``state_dict`` and ``load_state_dict``, for a checkpoint's dict,
      ``accelerator.register_for_checkpointing(coverage)`` or PyTorch's distributed checkpoint;
    - ``coverage.save(path)`` and ``coverage.load(path)``: a file beside the checkpoint.

    ``resume-audit coverage CHECKPOINT`` reads them out of any of these.

    An *ordinal* is a prompt's place in the stream of a run that is never interrupted, from 0,
    counted on over the passes. Where a data set is shuffled and only rows are known, say
    ``ordered=False`` and ``add(rows, in_pass=epoch)``: then a row that is not trained says nothing
    about the run before its pass is over.

    Memory is one byte for each prompt of each pass. Counts are exact up to 125; the next one, at
    which they stay, is *126 or more* in the report. A data set may grow at its end between two
    runs.

    Ranks: where ``torch.distributed`` has several, each counts its own share: call ``add`` on one
    rank of those that train the same prompts, such as tensor-parallel ones. Before saving, call
    :meth:`gather` on all of them; or save every rank's share in a file of its own. One share alone
    is never taken for the whole.

    Args:
        prompts: in the data set; what ``drop_last`` or a filter keeps out does not count.
        passes: over the data set.
        group_size: how often each prompt is counted in each pass: 1 where a prompt is added once,
            its number of generations where each generation is added.
        ordered: whether prompts are handed out in the order of their ordinals.
        shared: False where this process counts for all ranks, such as a driver.

    Raises:
        CoverageError: for sizes below 1, or a group that is too large to be counted.

    Example:
        >>> coverage = PromptCoverage(16)
        >>> coverage.add([0, 1, 2, 3])
        >>> restarted = PromptCoverage(16)
        >>> restarted.load_state_dict(coverage.state_dict())
        >>> restarted.add([4, 5])
        >>> restarted.trained
        6
    """

    def __init__(
        self,
        prompts: int,
        *,
        passes: int = 1,
        group_size: int = 1,
        ordered: bool = True,
        shared: bool = True,
    ) -> None:
        prompts, passes = _size("prompts", prompts), _size("passes", passes)
        group_size = _size("group_size", group_size)
        if group_size >= MOST:
            raise CoverageError(
                f"group_size is {group_size}, and counts are exact below {MOST}: add each prompt "
                "once, when the last of its group is trained"
            )
        counts = Counts(prompts, passes, group_size, ordered, bytearray(prompts * passes))
        counts.base = counts.checksum()
        self._counts = counts
        self._shared = shared
        self._lock = threading.Lock()

    # -- in the training step ------------------------------------------------------------------

    def add(self, ordinals: Iterable[int], *, in_pass: int | None = None) -> None:
        """Count what a step has trained.

        Args:
            ordinals: of the prompts in the step, in any form: a list, an array or a tensor of
                one dimension. One that is in it twice counts twice.
            in_pass: the pass, from 0, where ``ordinals`` begin anew in each pass.

        Raises:
            CoverageError: for what is no whole number, or out of range; then nothing is counted.
        """
        taken = self._checked(ordinals, in_pass)
        with self._lock:
            counts = self._counts
            for ordinal in taken:
                counts.add(ordinal)
            if self._share():
                counts.added.extend(taken)

    def drop(self, ordinals: Iterable[int], *, in_pass: int | None = None) -> None:
        """Say that prompts are given up on purpose: failed for good, or filtered out.

        Unless they are trained after all they count neither as trained nor as skipped. A group of
        which some generations were trained already stays as it is.

        Args:
            ordinals: of the prompts.
            in_pass: as in :meth:`add`.

        Raises:
            CoverageError: as in :meth:`add`.
        """
        taken = self._checked(ordinals, in_pass)
        with self._lock:
            for ordinal in taken:
                self._counts.drop(ordinal)
            if self._share():
                self._counts.dropped.extend(taken)

    def mark(self, place: int, waiting: Iterable[int] = ()) -> None:
        """Say, right before saving, what a restart from this checkpoint will do.

        With this, what a checkpoint loses can be told at once, in the middle of a run, without
        any guess about prompts in flight: all below ``place`` that is neither trained nor dropped
        nor waiting will never be trained again. ``mark(prompts * passes)`` at the end of the data
        says that nothing is to come.

        Args:
            place: the ordinal that a restarted loader hands out first.
            waiting: ordinals in the replay buffer that this checkpoint has too.

        Raises:
            CoverageError: for a place out of range, or one of rows (``ordered=False``).
        """
        if not self._counts.ordered:
            raise CoverageError(
                "mark() needs ordinals in the order in which prompts are handed out: with rows "
                "(ordered=False) nothing is below a place"
            )
        end = len(self._counts.cells)
        [place] = self._checked([place], None, end + 1)
        taken = self._checked(waiting, None)
        with self._lock:
            counts = self._counts
            counts.wait(taken)
            counts.place = place
            counts.marked = self._share()

    @property
    def trained(self) -> int:
        """How many prompts, of all passes, were trained at least once, as far as counted here."""
        with self._lock:
            cells = self._counts.cells
            return len(cells) - sum(cells.count(cell) for cell in _UNTRAINED)

    # -- ranks ---------------------------------------------------------------------------------

    def gather(self, group: torch.distributed.ProcessGroup | None = None) -> None:
        """Put the shares of all ranks together: collective, called by every rank before saving.

        Only what came since the last time is sent. Without ``torch.distributed`` it does nothing.

        Args:
            group: of processes; None for all.

        Raises:
            CoverageError: where the ranks count different things.
        """
        with self._lock:
            if not self._share(still=True):
                return
            import torch.distributed as dist

            mine = self._counts
            # The cells stay here: what they have in common is in all of them.
            sent = (replace(mine, cells=bytearray()), mine.waiting() if mine.marked else [])
            shares: list[Any] = [None] * dist.get_world_size(group)
            dist.all_gather_object(shares, sent, group)
            check_alike([share for share, _ in shares])
            join(mine, shares)

    def _share(self, *, still: bool = False) -> bool:
        """Whether this rank counts a share, which from now on is more than all have in common."""
        dist = sys.modules.get("torch.distributed")
        if not self._shared or dist is None or not dist.is_available() or not dist.is_initialized():
            return False
        counts = self._counts
        counts.rank, counts.ranks = dist.get_rank(), dist.get_world_size()
        if counts.ranks > 1 and not still:
            counts.whole = False
        return counts.ranks > 1

    # -- with the checkpoint -------------------------------------------------------------------

    def state_dict(self) -> dict[str, str]:
        """The counts, as a dict with one text: it fits into any checkpoint, and into JSON."""
        with self._lock:
            return {_KEY: self._counts.text()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go back to what :meth:`state_dict` gave.

        Args:
            state: of this data set, or of a smaller one that has grown since.

        Raises:
            CoverageError: for a state of other sizes, of one rank of several, or damaged.
        """
        if not isinstance(state, dict) or not isinstance(state.get(_KEY), str):
            raise CoverageError(f"a state of the coverage has the key {_KEY!r}, with a text")
        self.restore(decode(state[_KEY].encode("utf-8", "replace")))

    def restore(self, saved: Counts) -> None:
        """Go back to counts.

        Args:
            saved: read from a checkpoint.

        Raises:
            CoverageError: for counts of other sizes, or of one rank of several.
        """
        with self._lock:
            self._share(still=True)
            mine = self._counts
            for name in ("group_size", "ordered"):
                if getattr(saved, name) != getattr(mine, name):
                    raise CoverageError(
                        f"the checkpoint counts with {name}={getattr(saved, name)}, this run with "
                        f"{getattr(mine, name)}: they have to be the same"
                    )
            if not saved.whole and (saved.rank, saved.ranks) != (mine.rank, mine.ranks):
                raise CoverageError(
                    f"these are the counts of rank {saved.rank} of {saved.ranks} alone, for rank "
                    f"{mine.rank} of {mine.ranks}: call gather() on all ranks before saving, or "
                    "load() the files of all ranks"
                )
            counts = saved.grown(mine.prompts, mine.passes)
            handed_out = max(counts.reach(), counts.place or 0)
            self._counts = replace(
                counts,
                cells=bytearray(counts.cells),
                base=counts.checksum() if counts.whole else counts.base,
                restarts=[*counts.restarts, handed_out],
                rank=mine.rank,
                ranks=mine.ranks,
                added=array("q", counts.added),
                dropped=array("q", counts.dropped),
            )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the counts into a file beside a checkpoint: all of it, or nothing.

        Args:
            path: of the file, in a directory that exists.
        """
        path = Path(path)
        with self._lock:
            text = self._counts.text()
        staged = path.with_name(f"{path.name}.{os.getpid()}.tmp")
        staged.write_text(text, encoding="ascii")
        staged.replace(path)

    def load(self, *paths: str | os.PathLike[str]) -> None:
        """Go back to the counts that a file or a whole checkpoint has.

        Args:
            *paths: of the file, of the files of all ranks, or of any checkpoint with counts.

        Raises:
            CoverageError: where there are none, or several, or damaged ones.
            OSError: for a file that can't be read.
        """
        from pytest_resume_audit.real_runs.reading import read

        self.restore(read([Path(path) for path in paths]))

    def attach(self, model: torch.nn.Module) -> None:
        """Have the counts ride in a model's ``state_dict``.

        They are its extra state (`get_extra_state
        <https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html>`_), and no buffer:
        ``DistributedDataParallel`` overwrites the buffers of every rank by those of rank 0 before
        each forward, and a buffer follows the model to a GPU, and into its copies. A deep copy of
        the model, such as a reference model, has the same keys and no counts.

        Weights of before are loaded before this, or with ``strict=False``. A model that is
        published, or loaded by an inference server that knows its tensors by name, better has
        the counts beside it.

        Args:
            model: whose attribute ``prompt_coverage`` this takes.

        Raises:
            CoverageError: for a model that has counts already.
        """
        from pytest_resume_audit.real_runs.riding import attach

        attach(self, model)

    def fixed(self) -> bytes:
        """The counts as bytes whose number depends on the sizes alone."""
        with self._lock:
            return self._counts.fixed()

    # -- checks --------------------------------------------------------------------------------

    def _checked(
        self, ordinals: Iterable[int], in_pass: int | None, end: int | None = None
    ) -> list[int]:
        counts = self._counts
        values = ordinals.tolist() if hasattr(ordinals, "tolist") else ordinals
        if isinstance(values, str | bytes) or not isinstance(values, Iterable):
            raise CoverageError(f"{values!r} is no list of ordinals: give all of the step's")
        start, end = 0, len(counts.cells) if end is None else end
        if in_pass is not None:
            number = _whole(in_pass)
            if number is None:
                raise CoverageError(f"in_pass is {in_pass!r}: it has to be a whole number")
            if not 0 <= number < counts.passes:
                raise CoverageError(f"pass {number} is none of 0 to {counts.passes - 1}")
            start, end = number * counts.prompts, counts.prompts
        taken = []
        for value in values:
            ordinal = _whole(value)
            if ordinal is None:
                raise CoverageError(f"{value!r} is no ordinal: it has to be a whole number")
            if not 0 <= ordinal < end:
                raise CoverageError(
                    f"ordinal {ordinal} is out of range: 0 to {end - 1} are counted "
                    f"(prompts={counts.prompts}, passes={counts.passes})"
                )
            taken.append(start + ordinal)
        return taken

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        counts = self._counts
        return (
            f"PromptCoverage({counts.prompts}, passes={counts.passes}): {self.trained} of "
            f"{len(counts.cells)} trained"
        )


def _size(name: str, value: object) -> int:
    number = _whole(value)
    if number is None or number < 1:
        raise CoverageError(f"{name} is {value!r}: it has to be a whole number from 1")
    return number


def _whole(value: object) -> int | None:
    """A whole number of any library's, as Python's; None for what is none."""
    try:
        return None if isinstance(value, bool) else operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return None


_UNTRAINED = (0, WAITING, DROPPED)
"""Cells of which nothing was trained."""
