"""Finds the counts in a checkpoint, whatever wrote it.

Counts say themselves where they begin and how long they are, so they are looked for in the bytes of
files. No pickle is loaded, so none can do harm, and neither torch nor a class of the training's is
needed.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, NamedTuple

from pytest_resume_audit.real_runs.counts import (
    MAGIC,
    PREAMBLE,
    Counts,
    CoverageError,
    DamagedCoverage,
    decode,
    length_of,
    merged,
)

_PIECE = 1 << 24
_MOST_HEADER = 100_000_000
"""Bytes of the header of a safetensors file: its own limit."""

Progress = Callable[[int], None]
"""Is told how many more bytes have been looked through."""


class SeveralCoverages(CoverageError):
    """More than one coverage was found where one was asked for."""


class Found(NamedTuple):
    """Counts, and the file that has them."""

    path: Path
    counts: Counts


def read(paths: list[Path]) -> Counts:
    """The counts of one checkpoint.

    Args:
        paths: its file or directory, or the files of all ranks.

    Returns:
        The counts of all ranks together.

    Raises:
        CoverageError: where there are none, several, damaged ones, or of some ranks alone.
        OSError: for what can't be read.

    Example:
        >>> import tempfile
        >>> from pytest_resume_audit.real_runs.coverage import PromptCoverage
        >>> file = Path(tempfile.mkdtemp()) / "coverage"
        >>> PromptCoverage(16).save(file)
        >>> read([file]).prompts
        16
    """
    return together([one for path in paths for one in find(path)])


def find(path: Path, progress: Progress = lambda _: None) -> list[Found]:
    """All counts in a checkpoint.

    Args:
        path: of its file or directory.
        progress: is told how far it is.

    Raises:
        CoverageError: where there are none, or damaged ones.
        OSError: for what can't be read.
    """
    found: list[Found] = []
    for file in files(path):
        if file.suffix == ".distcp" and not file.with_name(".metadata").exists():
            raise DamagedCoverage(
                f"{file.parent}: it has no .metadata, which is written last, so it was not saved "
                "to its end: take an earlier checkpoint"
            )
        found += _in_file(file, progress)
    if not found:
        raise CoverageError(
            f"{path}: it has no counts: the training has to save those of a PromptCoverage with it"
        )
    return found


def together(found: list[Found]) -> Counts:
    """The counts of one checkpoint, of all that were found in it.

    Args:
        found: at least one.

    Raises:
        CoverageError: for several different ones, or those of some ranks alone.
    """
    if all(one.counts.whole for one in found):
        if any(not _same(one.counts, found[0].counts) for one in found):
            raise _several(found)
        return found[0].counts
    ranked = {one.counts.rank: one.counts for one in found}
    if any(one.counts != ranked[one.counts.rank] for one in found):
        raise _several(found)
    return merged(list(ranked.values()))


def files(path: Path) -> list[Path]:
    """The files of a checkpoint.

    Args:
        path: of its file or directory.
    """
    if not path.is_dir():
        return [path]
    return sorted(file for file in path.rglob("*") if file.is_file())


def _same(one: Counts, other: Counts) -> bool:
    """Whether two wholes are the same, whichever ranks wrote them."""
    return (one.cells, one.place, one.restarts) == (other.cells, other.place, other.restarts)


def _several(found: list[Found]) -> SeveralCoverages:
    of = {one.path: f"{one.path} ({one.counts.reach()} reached)" for one in found}
    return SeveralCoverages(
        f"there are several coverages, in {', '.join(list(of.values())[:4])}"
        f"{', ...' if len(of) > 4 else ''}: name the checkpoint or file that is meant"
    )


def _in_file(path: Path, progress: Progress) -> Iterator[Found]:
    with path.open("rb") as file:
        beginning = file.read(8)
        file.seek(0)
        try:
            if path.suffix == ".safetensors":
                counts = list(_in_safetensors(file, path.stat().st_size, progress))
            elif beginning.startswith(b"PK\3\4") and path.suffix != ".distcp":
                counts = list(_in_zip(file, progress))
            else:
                counts = list(_in_bytes(file, progress))
        except DamagedCoverage as error:
            raise DamagedCoverage(f"{path}: {error}") from None
    return (Found(path, one) for one in counts)


def _in_zip(file: IO[bytes], progress: Progress) -> Iterator[Counts]:
    """Of ``torch.save``: a pickle, and the bytes of each tensor by itself."""
    try:
        with zipfile.ZipFile(file) as archive:
            for entry in archive.infolist():
                with archive.open(entry) as part:
                    tensor = "/data/" in entry.filename
                    if not tensor or part.read(len(MAGIC)) == MAGIC:
                        with archive.open(entry) as whole:
                            yield from _in_bytes(whole, lambda _: None)
                progress(entry.file_size)
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError) as error:
        raise DamagedCoverage(
            f"it is cut off or damaged ({error}): take an earlier checkpoint"
        ) from None


def _in_safetensors(file: IO[bytes], size: int, progress: Progress) -> Iterator[Counts]:
    """Of safetensors: a header, which says where each tensor lies."""
    try:
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= min(size - 8, _MOST_HEADER):
            raise ValueError("its header is longer than it")
        header = json.loads(file.read(length))
        tensors = {name: tensor for name, tensor in header.items() if name != "__metadata__"}
        places = sorted(tuple(tensor["data_offsets"]) for tensor in tensors.values())
        if places and 8 + length + max(end for _, end in places) != size:
            raise ValueError(f"it has {size} bytes, and its header says other")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedCoverage(
            f"it is cut off or damaged ({error}): take an earlier checkpoint"
        ) from None
    for start, end in places:
        file.seek(8 + length + start)
        if end - start >= PREAMBLE and file.read(len(MAGIC)) == MAGIC:
            file.seek(8 + length + start)
            yield decode(file.read(end - start))
        progress(end - start)


def _in_bytes(file: IO[bytes], progress: Progress) -> Iterator[Counts]:
    """Of anything: wherever a preamble is."""
    held = b""
    while piece := file.read(_PIECE):
        progress(len(piece))
        held += piece
        at = 0
        while (at := held.find(MAGIC, at)) >= 0:
            held, at = held[at:], 0
            held = _filled(held, file, PREAMBLE)
            length = length_of(held[:PREAMBLE])
            if length is None and len(held) >= PREAMBLE:
                at = len(MAGIC)  # a text that mentions it
                continue
            held = _filled(held, file, PREAMBLE + (length or 0))
            yield decode(held[: PREAMBLE + (length or 0)])
            held = held[PREAMBLE + (length or 0) :]
        # A preamble may begin in one piece and end in the next.
        held = held[-(len(MAGIC) - 1) :]


def _filled(held: bytes, file: IO[bytes], size: int) -> bytes:
    """What is held and what follows, up to a size that may be a lie."""
    pieces = [held]
    missing = size - len(held)
    while missing > 0 and (piece := file.read(min(missing, _PIECE))):
        pieces.append(piece)
        missing -= len(piece)
    return b"".join(pieces)
