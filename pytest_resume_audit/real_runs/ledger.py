"""The ledger: what a process of a real run does with its prompts, line by line.

A line is in the kernel's hands when the call that reports it returns, so that SIGKILL costs at most
the one being written. Nothing is kept in memory, and threads need no lock: the file is appended to
by one ``write`` a line. Only a machine that loses power may lose more.

The file is JSON lines, one file a process. The first is the header::

    {"ledger": 1, "complete": true, "id": "5f0c...", "run": "", "host": "node-1", "boot": "...",
     "pid": 4711, "rank": 0, "parent": null, "wall": 1764506262123456789, "mono": 81234567890}

``ledger`` is the version of the format. ``complete`` is overwritten in its place when a line could
not be written. ``parent`` is the id of the ledger of the process that this one was forked from.
``wall`` and ``mono`` are nanoseconds of the wall clock and of the monotonic one, on every line::

    {"event": "handed_out", "rows": [5, 2], "wall": ..., "mono": ...}
    {"event": "finished", "row": 5, "generation": 1, "length": 812, ...}
    {"event": "failed", "row": 2, "generation": 0, ...}
    {"event": "buffered", "row": 5, "generation": 1, ...}
    {"event": "dropped", "row": 2, "text": "too long", ...}
    {"event": "trained", "rows": [5], "generations": [1], "step": 7, ...}
    {"event": "saving", "text": "/checkpoints/step-7", ...}
    {"event": "saved", "text": "/checkpoints/step-7", ...}
    {"event": "restored", "text": "/checkpoints/step-7", ...}
    {"event": "ended", ...}
    {"event": "lost", "text": "lines that could not be written: 12 or more", ...}
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Sequence
from pathlib import Path

FORMAT = 1
"""The version of the ledger's form."""

EVENTS = (
    "handed_out",
    "finished",
    "failed",
    "buffered",
    "dropped",
    "trained",
    "saving",
    "saved",
    "restored",
    "ended",
    "lost",
)

RUN = "RESUME_AUDIT_RUN"
"""The environment variable that names the run, where several write to one directory."""

RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")
"""Environment variables in which launchers say a process's rank."""

_HEAD = f'{{"ledger": {FORMAT}, "complete": '
_COMPLETE, _INCOMPLETE = "true ", "false"
"""Of one length, so that one can be written over the other where there is no room for more."""

_PATIENCE = 1_000_000_000
"""Nanoseconds between attempts to open a file that can't be opened."""


class Ledger:
    """Writes the ledger of this process; a child that it forks gets one of its own.

    The file comes into being with the first event. What can't be written stops nobody: one warning
    is logged, the events are counted and forgotten, and the ledger says that it is incomplete.

    Args:
        directory: made if it is not there.
        run: a name for the run, the same in all its lives; where two runs share a directory.
    """

    def __init__(self, directory: str | os.PathLike[str], run: str = "") -> None:
        self._directory = Path(directory).absolute()
        self._run = run or os.environ.get(RUN, "")
        self._id: str | None = None
        self._parent: str | None = None
        self._path = self._directory
        self._fd = -1
        self._file = -1  # of the open file; what is in self._fd, when that may be written to
        self._torn = False  # whether the file ends within a line
        self._lost = 0
        self._warned = False
        self._next_attempt = 0
        self._lock = threading.RLock()
        if hasattr(os, "register_at_fork"):  # where there are forks
            os.register_at_fork(after_in_child=self._forked)

    def note(
        self,
        kind: str,
        rows: Sequence[int],
        generations: Sequence[int] | None = None,
        number: int | None = None,
        text: str = "",
        length: int | None = None,
    ) -> None:
        """Append a line."""
        if kind in ("handed_out", "trained"):
            what = f'"rows": {rows}'
            if generations is not None:
                what += f', "generations": {generations}'
            if number is not None:
                what += f', "step": {number}'
        elif generations is not None:
            what = f'"row": {rows[0]}, "generation": {generations[0]}'
            if length is not None:
                what += f', "length": {length}'
        else:
            what = f'"text": {json.dumps(text)}'
            if rows:
                what = f'"row": {rows[0]}, {what}'
            else:
                self._look_whether_it_is_there()
        line = (
            f'{{"event": "{kind}", {what}, "wall": {time.time_ns()}, '
            f'"mono": {time.monotonic_ns()}}}\n'
        ).encode()
        try:
            # Closed, and after any failure, this is -1, and the write fails at once.
            written = os.write(self._fd, line)
        except OSError:
            written = 0
        if written != len(line):
            self._write_somehow(line, written)

    # -- where something is wrong, or nothing written yet ---------------------------------------

    def _write_somehow(self, line: bytes, written: int) -> None:
        with self._lock:
            try:
                if self._file < 0:
                    self._open()
                elif written:
                    # The rest of a line that was cut short; it fails with the reason.
                    self._torn = True
                    self._write(line[written:])
                    return
                if self._lost:
                    self._write(b"\n" * self._torn + _lost(self._lost))
                    self._lost = 0
                self._write(line)
                self._fd = self._file
            except OSError as error:
                self._lost += 1
                self._fd = -1
                self._warn(error)

    def _write(self, data: bytes) -> None:
        while data:
            data = data[os.write(self._file, data) :]
            self._torn = bool(data)

    def _open(self) -> None:
        now = time.monotonic_ns()
        if now < self._next_attempt:
            raise BlockingIOError("tried a moment ago")
        self._next_attempt = now + _PATIENCE
        self._id = secrets.token_hex(8)
        started = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
        self._path = self._directory / f"{started}-{os.getpid()}-{self._id}.jsonl"
        self._directory.mkdir(parents=True, exist_ok=True)
        self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
        words = {
            "id": self._id,
            "run": self._run,
            "host": socket.gethostname(),
            "boot": _boot(),
            "pid": os.getpid(),
            "rank": _rank(),
            "parent": self._parent,
            "wall": time.time_ns(),
            "mono": time.monotonic_ns(),
        }
        complete = _INCOMPLETE if self._lost else _COMPLETE
        try:
            self._write(f"{_HEAD}{complete}, {json.dumps(words)[1:]}\n".encode())
        except OSError:
            os.close(self._file)
            self._file = -1
            self._path.unlink(missing_ok=True)
            raise

    def _warn(self, error: OSError) -> None:
        if self._file >= 0:
            try:
                # Not by the file at hand: whatever is written to that goes to its end.
                with open(self._path, "r+b", buffering=0) as again:
                    again.seek(len(_HEAD))
                    again.write(_INCOMPLETE.encode())
            except OSError:
                pass
        if not self._warned:
            self._warned = True
            import logging

            logging.getLogger(__name__).warning(
                "the ledger %s is incomplete from now on, the training goes on: %s",
                self._path,
                error,
            )

    def _look_whether_it_is_there(self) -> None:
        """At a checkpoint: a file that was deleted takes lines that nobody will ever read."""
        try:
            if self._file < 0 or os.fstat(self._file).st_nlink:
                return
            os.close(self._file)
        except OSError:
            pass
        with self._lock:
            self._fd = self._file = -1
            self._torn = False
            self._lost += 1
            self._warn(FileNotFoundError("it was deleted"))

    def _forked(self) -> None:
        self._lock = threading.RLock()
        if self._file >= 0:
            os.close(self._file)
            self._parent = self._id
        self._fd = self._file = -1
        self._torn = False
        self._lost = 0
        self._next_attempt = 0


def _lost(events: int) -> bytes:
    words = {
        "event": "lost",
        "text": f"lines that could not be written: {events} or more",
        "wall": time.time_ns(),
        "mono": time.monotonic_ns(),
    }
    return f"{json.dumps(words)}\n".encode()


def _rank() -> int | None:
    for name in RANKS:
        if os.environ.get(name, "").isdecimal():
            return int(os.environ[name])
    return None


def _boot() -> str:
    """By which processes are told that have one monotonic clock."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
