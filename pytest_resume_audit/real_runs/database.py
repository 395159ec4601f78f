"""DuckDB, with what is common to all questions: a scratch on disk, a limit of memory, progress."""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import duckdb

Progress = Callable[[str, float], None]
"""Is told what is done now, and how much of it is done, from 0 to 1."""


class Database:
    """A database of its own, that is gone afterwards.

    Args:
        connection: to it.
        progress: told of every question that takes long.
    """

    def __init__(self, connection: duckdb.DuckDBPyConnection, progress: Progress) -> None:
        self._connection = connection
        self._progress = progress
        self._doing = ""

    def doing(self, what: str) -> None:
        """What the next questions are for."""
        self._doing = what
        self._progress(what, 0.0)

    def rows(self, question: str, *values: Any) -> list[tuple[Any, ...]]:
        """Ask, and get all that comes."""
        done = threading.Event()

        def watch() -> None:
            while not done.wait(0.2):
                self._progress(self._doing, max(0.0, self._connection.query_progress()) / 100)

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            return self._connection.execute(question, list(values) or None).fetchall()
        except RuntimeError as error:
            # What DuckDB makes of Ctrl-C; its own errors are none of these.
            if "interrupted" in str(error).lower():
                raise KeyboardInterrupt from None
            raise
        finally:
            done.set()
            watcher.join()

    def row(self, question: str, *values: Any) -> tuple[Any, ...]:
        """Ask for one row."""
        (row,) = self.rows(question, *values)
        return row

    def value(self, question: str, *values: Any) -> Any:
        """Ask for one value."""
        return self.row(question, *values)[0]

    def fill(self, table: str, columns: str, rows: list[tuple[Any, ...]]) -> None:
        """A small table."""
        self._connection.execute(f"CREATE OR REPLACE TABLE {table} ({columns})")
        if rows:
            marks = ", ".join("?" * len(rows[0]))
            self._connection.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)


@contextmanager
def database(memory: str, progress: Progress) -> Iterator[Database]:
    """A database below the directory for temporary files (``TMPDIR``).

    Args:
        memory: that it may take, such as ``3.5GB``; what is more goes to disk.
        progress: told of every question that takes long.
    """
    import duckdb

    scratch = Path(tempfile.mkdtemp(prefix="resume-audit-"))
    try:
        # In memory, and from there to disk: to pack into a file what is read once or twice takes
        # longer than to read it.
        with duckdb.connect(":memory:") as connection:
            connection.execute("SET memory_limit = ?", [memory])
            connection.execute("SET temp_directory = ?", [str(scratch)])
            connection.execute("SET enable_progress_bar = true")
            connection.execute("SET enable_progress_bar_print = false")
            yield Database(connection, progress)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def quoted(text: object) -> str:
    """A string of SQL."""
    return "'" + str(text).replace("'", "''") + "'"


def name(column: str) -> str:
    """A column's name in SQL."""
    return '"' + column.replace('"', '""') + '"'
