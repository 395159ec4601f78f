"""Counts of a stream of prompts, and the form that they are written in.

One byte an ordinal: the lower seven bits say how often it was trained, 126 meaning 126 *or more*;
the highest bit says that it waits in a replay buffer that is saved too. 255 is a prompt that was
dropped before anything of it was trained.

The written form says by itself where it begins, how long it is, and whether it is whole, so that
it is found in any file that has it in one piece, without knowing that file's format, and without
executing a pickle: in what ``torch.save``, PyTorch's distributed checkpoint, safetensors or JSON
write. There are two: a text, compressed, and bytes whose length depends on the number of prompts
alone, for tensors that are loaded in place.
"""

from __future__ import annotations

import base64
import json
import re
import sys
import zlib
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

MOST = 126
"""What a count goes up to, and stays at: this many, or more."""

WAITING = 0x80
"""The bit of a prompt that waits in a buffer."""

DROPPED = 0xFF
"""The byte of a prompt that was dropped untrained."""

MAGIC = b"resume-audit-coverage/"
VERSION = 1
PREAMBLE = 56
"""Bytes before the body: magic, version, form, length and checksum."""

_IS_WAITING = re.compile(rb"[\x80-\xfe]")
_NOT_WAITING = bytes(cell & ~WAITING if WAITING <= cell < DROPPED else cell for cell in range(256))
_PREAMBLE = re.compile(rb"resume-audit-coverage/(\d{6})([tb]):([0-9a-f]{16}):([0-9a-f]{8}):")
_FIXED_HEADER = 16 * 1024
_MOST_RESTARTS = 1000
_NEWEST_RESTARTS = 500


class CoverageError(ValueError):
    """What is wrong with ordinals, counts or a file of them, and the way out."""


class DamagedCoverage(CoverageError):
    """Counts were there, and can't be read any more."""


@dataclass
class Counts:
    """How often each prompt of each pass went into the weights.

    Args:
        prompts: of a pass.
        passes: over the data.
        group_size: how often each prompt is to be counted in each pass.
        ordered: whether ordinals have the order in which prompts are handed out.
        cells: a byte an ordinal.
        place: the ordinal at which a restart goes on; None where nobody said.
        restarts: for each time that these counts were restored, the ordinal below which prompts
            had been handed out by then.
        rank: of the process that counted.
        ranks: how many processes count, each its own share.
        whole: whether the shares of all ranks are in here.
        base: a checksum of ``cells`` when they last were whole, which all ranks have in common.
        added: ordinals that this rank trained since, once for each time.
        dropped: ordinals that this rank dropped since.
        marked: whether this rank said since where a restart goes on, and what waits.
    """

    prompts: int
    passes: int = 1
    group_size: int = 1
    ordered: bool = True
    cells: bytearray = field(default_factory=bytearray, repr=False)
    place: int | None = None
    restarts: list[int] = field(default_factory=list)
    rank: int = 0
    ranks: int = 1
    whole: bool = True
    base: int = 0
    added: array[int] = field(default_factory=lambda: array("q"), repr=False)
    dropped: array[int] = field(default_factory=lambda: array("q"), repr=False)
    marked: bool = False

    def add(self, ordinal: int) -> None:
        """Count an ordinal that is in range."""
        cell = self.cells[ordinal]
        count = 1 if cell == DROPPED else min((cell & ~WAITING) + 1, MOST)
        waiting = cell & WAITING if count < self.group_size and cell != DROPPED else 0
        self.cells[ordinal] = count | waiting

    def drop(self, ordinal: int) -> None:
        """Give up an ordinal that is in range, if nothing of it was trained."""
        if not self.cells[ordinal] & ~WAITING:
            self.cells[ordinal] = DROPPED

    def waiting(self) -> list[int]:
        """The ordinals that wait in a buffer."""
        return [found.start() for found in _IS_WAITING.finditer(self.cells)]

    def wait(self, ordinals: Iterable[int]) -> None:
        """Have these ordinals wait that are not trained to the end, and no others."""
        self.cells = bytearray(self.cells.translate(_NOT_WAITING))
        for ordinal in ordinals:
            cell = self.cells[ordinal]
            if cell != DROPPED and cell & ~WAITING < self.group_size:
                self.cells[ordinal] = cell | WAITING

    def checksum(self) -> int:
        """Of all cells."""
        return zlib.crc32(self.cells)

    def reach(self) -> int:
        """The first ordinal above all that are known to have been handed out."""
        return len(self.cells.rstrip(b"\0"))

    def grown(self, prompts: int, passes: int) -> Counts:
        """The same counts for a larger data set, whose new prompts come last in each pass.

        In passes that were over before, the new prompts are taken for dropped.

        Args:
            prompts: of a pass.
            passes: over the data; more than that are kept.

        Raises:
            CoverageError: for fewer prompts.
        """
        passes = max(passes, self.passes)
        if prompts < self.prompts:
            raise CoverageError(
                f"the checkpoint counts {self.prompts} prompts, this run has {prompts}: "
                "a data set may grow, with its new prompts at the end, but not shrink"
            )
        if (prompts, passes) == (self.prompts, self.passes):
            return self
        cells = bytearray(prompts * passes)
        newest = max(self.reach() - 1, 0) // self.prompts
        for one in range(self.passes):
            start = one * prompts
            cells[start : start + self.prompts] = self.cells[
                one * self.prompts : (one + 1) * self.prompts
            ]
            if one < newest:
                added = prompts - self.prompts
                cells[start + self.prompts : start + prompts] = bytes([DROPPED]) * added

        def moved(ordinal: int) -> int:
            """Of an ordinal that all below it were handed out."""
            last = max(ordinal - 1, 0)
            return ordinal + last // self.prompts * (prompts - self.prompts)

        return Counts(
            prompts,
            passes,
            self.group_size,
            self.ordered,
            cells,
            None if self.place is None else moved(self.place),
            [moved(place) for place in self.restarts],
            self.rank,
            self.ranks,
            self.whole,
            zlib.crc32(cells) if self.whole else self.base,
            array("q", [o + o // self.prompts * (prompts - self.prompts) for o in self.added]),
            array("q", [o + o // self.prompts * (prompts - self.prompts) for o in self.dropped]),
            self.marked,
        )

    # -- the written form -----------------------------------------------------------------------

    def text(self) -> str:
        """The compressed form: letters, digits and ``-_:/=`` alone."""
        body = base64.urlsafe_b64encode(zlib.compress(self._body(pad=False), 1))
        return (_preamble(b"t", body) + body).decode("ascii")

    def fixed(self) -> bytes:
        """The form whose length is the same for the same number of prompts."""
        body = self._body(pad=True)
        return _preamble(b"b", body) + body

    def _body(self, *, pad: bool) -> bytes:
        restarts = self.restarts
        if len(restarts) > _MOST_RESTARTS:
            restarts = [max(restarts[:-_NEWEST_RESTARTS]), *restarts[-_NEWEST_RESTARTS:]]
        header = json.dumps(
            {
                "prompts": self.prompts,
                "passes": self.passes,
                "group_size": self.group_size,
                "ordered": self.ordered,
                "place": self.place,
                "restarts": restarts,
                "rank": self.rank,
                "ranks": self.ranks,
                "whole": self.whole,
                "marked": self.marked,
                "base": self.base,
                "added": len(self.added),
                "dropped": len(self.dropped),
            }
        ).encode("ascii")
        if pad:
            header = header.ljust(_FIXED_HEADER - 1)
        return b"".join([header, b"\n", self.cells, _bytes(self.added), _bytes(self.dropped)])


def _preamble(form: bytes, body: bytes) -> bytes:
    return b"%s%06d%s:%016x:%08x:" % (MAGIC, VERSION, form, len(body), zlib.crc32(body))


def _bytes(ordinals: array[int]) -> bytes:
    if sys.byteorder == "big":
        ordinals = array("q", ordinals)
        ordinals.byteswap()
    return ordinals.tobytes()


def length_of(preamble: bytes) -> int | None:
    """How many bytes follow a preamble; None for bytes that are none.

    Raises:
        DamagedCoverage: for a preamble of a version that this one does not read.
    """
    found = _PREAMBLE.fullmatch(preamble)
    if found is None:
        return None
    if int(found[1]) != VERSION:
        raise DamagedCoverage(
            f"its counts have version {int(found[1])}, and this reads version {VERSION}: "
            "upgrade pytest-resume-audit"
        )
    return int(found[3], 16)


def decode(written: bytes) -> Counts:
    """The counts of their written form.

    Args:
        written: preamble and body.

    Raises:
        DamagedCoverage: for counts that are cut off, changed, or make no sense.
    """
    length = length_of(written[:PREAMBLE])
    found = _PREAMBLE.match(written)
    if length is None or found is None:
        raise DamagedCoverage("its counts have no valid beginning: take an earlier checkpoint")
    body = written[PREAMBLE:]
    if len(body) != length:
        raise DamagedCoverage(
            f"its counts are cut off: {len(body)} of {length} bytes: take an earlier checkpoint"
        )
    if zlib.crc32(body) != int(found[4], 16):
        raise DamagedCoverage("its counts have a wrong checksum: take an earlier checkpoint")
    try:
        if found[2] == b"t":
            body = zlib.decompress(base64.urlsafe_b64decode(body))
        header, _, rest = body.partition(b"\n")
        return _counts(json.loads(header), rest)
    except (ValueError, KeyError, TypeError, zlib.error) as error:
        raise DamagedCoverage(f"its counts make no sense ({error}): save it again") from None


def _counts(header: dict[str, Any], rest: bytes) -> Counts:
    added, dropped = header.pop("added"), header.pop("dropped")
    counts = Counts(**header)
    size = counts.prompts * counts.passes
    if len(rest) != size + 8 * (added + dropped):
        raise ValueError(f"{len(rest)} bytes for {size} ordinals")
    counts.cells = bytearray(rest[:size])
    for ordinals, start, many in (
        (counts.added, size, added),
        (counts.dropped, size + 8 * added, dropped),
    ):
        ordinals.frombytes(rest[start : start + 8 * many])
        if sys.byteorder == "big":
            ordinals.byteswap()
        if many and not 0 <= min(ordinals) <= max(ordinals) < size:
            raise ValueError("ordinals beyond the last")
    return counts


def merged(shares: list[Counts]) -> Counts:
    """The counts of all ranks together.

    Args:
        shares: of each rank, in any order.

    Raises:
        CoverageError: for shares that do not belong together, or are not all.
    """
    shares = sorted(shares, key=lambda share: share.rank)
    first, ranks = shares[0], [share.rank for share in shares]
    check_alike(shares)
    missing = sorted(set(range(first.ranks)) - set(ranks))
    if missing:
        raise CoverageError(
            f"only rank {', '.join(map(str, ranks))} of {first.ranks} is in it, which counts its "
            "own share: call coverage.gather() on all ranks before saving, or give the files of all"
        )
    whole = replace(first, cells=bytearray(first.cells))
    join(whole, [(share, share.waiting()) for share in shares])
    whole.rank = 0
    return whole


def check_alike(shares: list[Counts]) -> None:
    """See that shares belong together.

    Raises:
        CoverageError: where they do not.
    """
    kinds = {(s.prompts, s.passes, s.group_size, s.ordered, s.ranks, s.base) for s in shares}
    if len(kinds) > 1 or len({share.rank for share in shares}) < len(shares):
        raise CoverageError(
            "the shares of the ranks do not belong to one another: all ranks have to count the "
            "same prompts and restore the same checkpoint, and the files to be of one save"
        )


def join(whole: Counts, shares: list[tuple[Counts, list[int]]]) -> None:
    """Make the share of one rank the counts of all.

    Args:
        whole: the share, in place.
        shares: of all ranks, with what waits of each; their cells are not looked at.
    """
    for share, _ in shares:
        if share.rank != whole.rank:
            for ordinal in share.dropped:
                whole.drop(ordinal)
            for ordinal in share.added:
                whole.add(ordinal)
    marked = [(share, waiting) for share, waiting in shares if share.marked]
    if marked:
        whole.wait(ordinal for _, waiting in marked for ordinal in waiting)
        whole.place = min(share.place for share, _ in marked if share.place is not None)
    whole.whole, whole.marked = True, False
    whole.base, whole.added, whole.dropped = whole.checksum(), array("q"), array("q")
