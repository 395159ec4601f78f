"""The files that are asked about: what they are, whose, and what is wrong with them."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_resume_audit.real_runs.ledger import FORMAT

TABLES = {
    ".jsonl": "json",
    ".ndjson": "json",
    ".json": "json",
    ".csv": "csv",
    ".tsv": "csv",
    ".parquet": "parquet",
}
"""What DuckDB reads a file with, by how its name ends; text may be compressed as well."""

PACKED = (".gz", ".zst")
_JUMP = 1.0
"""Seconds by which the two clocks may part."""


class UnreadableSource(ValueError):
    """A file can't be taken for what it is given as; says what to do."""


@dataclass(frozen=True)
class LedgerFile:
    """A ledger, by its header.

    Args:
        path: where it is.
        header: its first line.
        torn: whether its last line was cut short.
        drift: seconds by which the wall clock has gone another way than the monotonic one.
    """

    path: Path
    header: dict[str, Any]
    torn: bool
    drift: float

    @property
    def clock(self) -> str:
        """Processes with the same have one monotonic clock."""
        host, boot = self.header.get("host"), self.header.get("boot")
        return f"{host} {boot}" if boot else f"{self.header['id']}"

    @property
    def ahead(self) -> int:
        """Nanoseconds from its monotonic clock to its wall clock, at its beginning."""
        return int(self.header["wall"]) - int(self.header["mono"])


@dataclass
class Sources:
    """What was found.

    Attributes:
        ledgers: to be read, each once.
        logs: other tables.
        notes: what is remarkable, and harmless.
        doubts: why something can't be known.
    """

    ledgers: list[LedgerFile] = field(default_factory=list)
    logs: list[Path] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)


def find(paths: Iterable[Path], run: str | None = None) -> Sources:
    """Look at the first and the last line of each file, of directories those below.

    Args:
        paths: of files and directories.
        run: the name of the run that is asked about, where there are several.

    Raises:
        UnreadableSource: when one is not there, empty of tables, or of a form that nobody reads.
    """
    found = Sources()
    seen: dict[Path, Path] = {}
    by_id: dict[str, LedgerFile] = {}
    for path in _files(paths):
        real = path.resolve()
        if real in seen:
            found.notes.append(f"{path} is {seen[real]} again: read once")
            continue
        seen[real] = path
        kind = reader(path)
        if kind != "parquet" and not path.stat().st_size:
            found.notes.append(f"{path} is empty: passed over")
            continue
        if kind != "json" or path.suffix in PACKED:
            found.logs.append(path)
            continue
        first = _first_line(path)
        if first is None:
            found.notes.append(f"{path} is empty: passed over")
        elif "ledger" not in first and "event" not in first:
            found.logs.append(path)
        elif (ledger := _ledger(path, first, found)) is not None:
            other = by_id.get(ledger.header["id"])
            if other is None:
                by_id[ledger.header["id"]] = ledger
            else:
                longer, shorter = sorted(
                    (ledger, other), key=lambda one: one.path.stat().st_size, reverse=True
                )
                by_id[ledger.header["id"]] = longer
                found.notes.append(f"{shorter.path} is a copy of {longer.path}: read once")
    found.ledgers = list(by_id.values())
    if run is not None:
        names = runs(found.ledgers)
        found.ledgers = [one for one in found.ledgers if one.header.get("run") == run]
        if not found.ledgers:
            raise UnreadableSource(
                f"--run {run}: there is {', '.join(names)}"
                if names
                else f"--run {run}: no run has a name here: leave it out"
            )
    if found.ledgers and found.logs:
        raise UnreadableSource(
            f"{found.logs[0]} is no ledger, as {found.ledgers[0].path} is: ask about ledgers and "
            "about other logs in two commands"
        )
    for one in found.ledgers:
        if one.torn:
            found.notes.append(f"{one.path}: the last line was cut short, and is passed over")
        if one.header.get("complete") is not True:
            found.doubts.append(
                f"{one.path} is incomplete: it says that lines could not be written"
            )
    _look_at_clocks(found)
    return found


def reader(path: Path) -> str:
    """What a file is read with: ``json``, ``csv`` or ``parquet``."""
    name = path.with_suffix("") if path.suffix in PACKED else path
    try:
        return TABLES[name.suffix]
    except KeyError:
        raise UnreadableSource(
            f"{path}: it can't be told what this is; names end in {', '.join(TABLES)}"
        ) from None


def _files(paths: Iterable[Path]) -> Iterable[Path]:
    for path in paths:
        if path.is_dir():
            below = sorted(filter(_is_table, path.iterdir()), key=_by_number)
            if not below:
                raise UnreadableSource(f"{path}: there is nothing in it that could be read")
            yield from below
        elif path.exists():
            yield path
        else:
            raise UnreadableSource(f"{path}: there is no such file")


def _by_number(path: Path) -> list[tuple[int, str]]:
    """Step 10 comes behind step 9."""
    words = re.split(r"(\d+)", path.name)
    return [(int(word) if word.isdecimal() else -1, word) for word in words]


def _is_table(path: Path) -> bool:
    try:
        return path.is_file() and bool(reader(path))
    except UnreadableSource:
        return False


def _first_line(path: Path) -> dict[str, Any] | None:
    with path.open("rb") as file:
        line = file.readline(1 << 20)
    if not line.strip():
        return None
    return _parsed(line) or {}


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        words = json.loads(line)
    except ValueError:
        return None
    return words if isinstance(words, dict) else None


def _ledger(path: Path, header: dict[str, Any], found: Sources) -> LedgerFile | None:
    version = header.get("ledger")
    if version is None:
        found.doubts.append(f"{path} has no header: it can't be told whose ledger it is")
        return None
    if version != FORMAT:
        found.doubts.append(
            f"{path} is a ledger of format {version}, and this version reads {FORMAT}: "
            "read it with the version of pytest-resume-audit that wrote it, or a newer one"
        )
        return None
    if not {"id", "wall", "mono"} <= header.keys():
        found.doubts.append(f"{path} has a header that is not whole: its events can't be placed")
        return None
    with path.open("rb") as file:
        file.seek(max(0, os.path.getsize(path) - (1 << 16)))
        *whole, rest = file.read().split(b"\n")
    lines = (line for line in map(_parsed, reversed(whole)) if line)
    last = next((line for line in lines if {"wall", "mono"} <= line.keys()), header)
    drift = (last["wall"] - last["mono"]) - (header["wall"] - header["mono"])
    return LedgerFile(path, header, bool(rest) and _parsed(rest) is None, drift / 1e9)


def _look_at_clocks(found: Sources) -> None:
    jumps = [
        f"{one.path}: by {one.drift:+.0f} s" for one in found.ledgers if abs(one.drift) > _JUMP
    ]
    ahead: dict[str, list[int]] = {}
    for one in found.ledgers:
        ahead.setdefault(one.clock, []).append(one.ahead)
    for clock, values in ahead.items():
        apart = (max(values) - min(values)) / 1e9
        if apart > _JUMP and not jumps:
            jumps.append(f"{clock.split()[0]}: by {apart:.0f} s between two ledgers")
    if not jumps:
        return
    text = f"the wall clock has jumped ({'; '.join(jumps[:3])})"
    if len(ahead) == 1:
        found.notes.append(f"{text}; all is in order by the monotonic clock of the one machine")
    else:
        found.doubts.append(
            f"{text}, and it is by that clock that the order on several machines, or of one that "
            "was booted again, is known"
        )


def runs(ledgers: Sequence[LedgerFile]) -> list[str]:
    """The names of the runs, those without one left out."""
    return sorted({one.header["run"] for one in ledgers if one.header.get("run")})
