"""Checkpoint directories that appear all at once, and that tell when they are torn."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

MANIFEST = "manifest.json"

_NAME = re.compile(r"checkpoint_(\d{6,})")
_log = logging.getLogger(__name__)


class ResumeRefused(RuntimeError):
    """A checkpoint that this run can't go on from without losing or repeating prompts."""


class Form(NamedTuple):
    """How one part of a checkpoint is written to a file, and read back.

    Args:
        suffix: of the files.
        write: writes a value to a path.
        read: reads it back.
    """

    suffix: str
    write: Callable[[Any, Path], object]
    read: Callable[[Path], Any]


def _write_json(value: Any, path: Path) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")


def _read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


JSON = Form(".json", _write_json, _read_json)
"""Plain JSON files."""


def publish(root: Path, parts: Mapping[str, Any], *, step: int, form: Form = JSON) -> Path:
    """Write a checkpoint under a temporary name, then give it its own name in one rename.

    A process that is killed on the way leaves the temporary directory, which no restart takes
    and the next ``publish`` clears away. Nothing is synced to the disk: what a killed process
    has written, the operating system still has. A machine that loses power may lose it; the
    manifest then shows that a file is torn.

    Args:
        root: where the checkpoints are.
        parts: what to save, by the name of its file.
        step: trainer steps so far.
        form: of the files.

    Returns:
        The checkpoint. It has the number after the highest one below ``root``: two saves at one
        step are two checkpoints, and a run that went back to an older one goes on counting.

    Example:
        >>> import tempfile
        >>> root = Path(tempfile.mkdtemp())
        >>> publish(root, {"weights": [1, 2]}, step=3).name
        'checkpoint_000001'
        >>> read(root / "checkpoint_000001")
        {'weights': [1, 2]}
    """
    checkpoint = _named(root, max(_numbers(root), default=0) + 1)
    unfinished = root / f".{checkpoint.name}.tmp"
    if unfinished.exists():
        shutil.rmtree(unfinished)
    unfinished.mkdir()
    _fill(unfinished, parts, step, form)
    os.rename(unfinished, checkpoint)
    return checkpoint


def rewrite(checkpoint: Path, parts: Mapping[str, Any], *, form: Form = JSON) -> None:
    """Put other parts into a checkpoint that exists; its step stays.

    Args:
        checkpoint: a complete one.
        parts: what it holds from now on, by the name of its file.
        form: of the files.
    """
    step = _read_json(checkpoint / MANIFEST)["step"]
    for file in checkpoint.iterdir():
        file.unlink()
    _fill(checkpoint, parts, step, form)


def read(checkpoint: Path, *, form: Form = JSON) -> dict[str, Any]:
    """The parts of a checkpoint.

    Args:
        checkpoint: what :func:`publish` returned.
        form: of the files.

    Raises:
        ResumeRefused: for one that is torn.
    """
    files = _intact_files(checkpoint)
    if files is None:
        raise ResumeRefused(f"{checkpoint} is torn: its files are not those of its manifest")
    return {name.removesuffix(form.suffix): form.read(checkpoint / name) for name in files}


def complete(checkpoint: Path) -> bool:
    """Whether every file of a checkpoint is there as it was written."""
    return _intact_files(checkpoint) is not None


def newest_complete(root: Path) -> Path | None:
    """The newest checkpoint below ``root`` that is complete; None when there is none at all.

    Raises:
        ResumeRefused: when there are checkpoints and all are torn. To begin afresh is for whoever
            runs this to decide: it would train everything once more.
    """
    numbers = sorted(_numbers(root), reverse=True)
    for number in numbers:
        checkpoint = _named(root, number)
        if complete(checkpoint):
            return checkpoint
        _log.warning("%s is torn: an older checkpoint is looked for", checkpoint)
    if numbers:
        raise ResumeRefused(f"each of the {len(numbers)} checkpoints in {root} is torn")
    return None


def _intact_files(checkpoint: Path) -> list[str] | None:
    try:
        files = _read_json(checkpoint / MANIFEST)["files"]
        intact = all(_describe(checkpoint / name) == known for name, known in files.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return list(files) if intact else None


def _numbers(root: Path) -> list[int]:
    return [int(match[1]) for name in os.listdir(root) if (match := _NAME.fullmatch(name))]


def _named(root: Path, number: int) -> Path:
    return root / f"checkpoint_{number:06}"


def _fill(directory: Path, parts: Mapping[str, Any], step: int, form: Form) -> None:
    names = [name + form.suffix for name in parts]
    for name, value in zip(names, parts.values(), strict=True):
        form.write(value, directory / name)
    # Last, so that a directory with a manifest has all of its files.
    files = {name: _describe(directory / name) for name in names}
    _write_json({"step": step, "files": files}, directory / MANIFEST)


def _describe(file: Path) -> dict[str, Any]:
    digest, size = hashlib.sha256(), 0
    with file.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
            size += len(block)
    return {"bytes": size, "sha256": digest.hexdigest()}
