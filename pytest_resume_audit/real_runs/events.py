"""The events of ledgers, as tables.

Nearly every line is of an answer, and that matters by itself only to a prompt that is missing. So
the files are read twice, and little of them is kept. First all else is taken in, and a line that
begins as one of an answer is passed over. When it is known which prompts are missing, the answers
are: of those prompts one by one, of the others added up.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from pytest_resume_audit.real_runs import moments
from pytest_resume_audit.real_runs.database import Database, quoted
from pytest_resume_audit.real_runs.ledger import EVENTS
from pytest_resume_audit.real_runs.sources import LedgerFile

_ANSWERS = ("finished", "failed", "buffered")

_DEED = {
    "ledger": "INTEGER",
    "event": "VARCHAR",
    "row": "BIGINT",
    "rows": ["BIGINT"],
    "generations": ["INTEGER"],
    "step": "BIGINT",
    "text": "VARCHAR",
    "mono": "BIGINT",
}


class Events:
    """Takes in ledgers.

    Times are nanoseconds of one clock for all of them. A file is known by its number.

    Args:
        database: to take them in.
        ledgers: the files.
    """

    def __init__(self, database: Database, ledgers: Sequence[LedgerFile]) -> None:
        self._db = database
        self._ledgers = ledgers
        first: dict[str, int] = {}
        for ledger in sorted(ledgers, key=lambda one: one.header["mono"]):
            first.setdefault(ledger.clock, ledger.ahead)
        self._ahead = [first[ledger.clock] for ledger in ledgers]

    def read(self) -> None:
        """Table ``deed``: a row for each event but answers, and for each line that is none."""
        self._doing("reading")
        self._db.rows(f"CREATE TYPE kind AS ENUM ({', '.join(map(quoted, EVENTS))})")
        self._db.rows(f"CREATE TYPE path AS ENUM ({self._paths()})")
        answer = " OR ".join(f"""starts_with(json, '{{"event": "{event}"')""" for event in _ANSWERS)
        # Nothing that is asked of what is unnested is asked before, of lines that are passed over.
        self._db.rows(
            f"CREATE TABLE deed AS SELECT {self._file('filename')} AS file, "
            f"{self._time('one.mono', 'filename')} AS t, TRY_CAST(one.event AS kind) AS event, "
            "one.row, one.rows, one.generations, one.step, one.text FROM "
            f"(SELECT filename, unnest([from_json(json, {quoted(json.dumps(_DEED))})]) AS one "
            f"FROM {self._lines('read_json_objects')} WHERE NOT coalesce({answer}, false)) "
            f"WHERE one.ledger IS NULL AND NOT coalesce(one.event IN {_ANSWERS}, false)"
        )

    def times(self) -> dict[int, tuple[int, int]]:
        """Of the first and the last event of each file that has any."""
        times = {
            file: (first, last)
            for file, first, last in self._db.rows(
                "SELECT file, min(t), max(t) FROM deed WHERE event IS NOT NULL AND t IS NOT NULL "
                "GROUP BY file"
            )
        }
        for file, (ledger, ahead) in enumerate(zip(self._ledgers, self._ahead, strict=True)):
            ends = [moments.first(ledger.path), moments.last(ledger.path)]
            found = [end + ahead for end in ends if end is not None]
            found += times.get(file, ())
            if found:
                times[file] = (min(found), max(found))
        return dict(sorted(times.items()))

    def last_before(self, time: int) -> int:
        """When the last event before a time was, of any file; there has to be one."""
        deed = "SELECT max(t) FROM deed WHERE event IS NOT NULL AND t < ?"
        found: list[int | None] = [self._db.value(deed, time)]
        for ledger, ahead in zip(self._ledgers, self._ahead, strict=True):
            last = moments.last(ledger.path, time - ahead)
            found.append(None if last is None else last + ahead)
        return max(one for one in found if one is not None)

    def read_answers(self, *, missing: bool, each: bool) -> None:
        """View ``finished``: how many ``n`` answers each row has, by ``generation``.

        Their generations are in ``places`` as bits, 32 of them in a row of the view. With
        ``missing`` it has the sum of their ``length``, too, of so many that are ``measured``; and
        view ``told`` has all that was told of prompts in table ``gap`` after they were handed out.

        Args:
            missing: whether there is such a table.
            each: count each generation by itself, by its number.
        """
        self._doing("reading the answers of")
        # DuckDB holds what is in brackets, and never the answers, to look for one in the other.
        alone = "row IN (SELECT row FROM gap)" if missing else "false"
        columns = [
            "CASE WHEN event = 'finished' OR alone THEN row END AS row",
            "event = 'finished' AS finished",
            f"{'generation' if each else 'coalesce(generation >> 5, 0)'} AS generation",
            "CASE WHEN mono IS NULL THEN filename::path END AS unreadable",
            "count(*) AS n",
            "bit_or(1::BIGINT << (generation & 31)) AS places",
        ]
        types = "event: 'VARCHAR', row: 'BIGINT', generation: 'INTEGER', mono: 'BIGINT'"
        if missing:
            types += ", length: 'INTEGER'"
            columns += [
                "CASE WHEN alone THEN mono END AS mono",
                "CASE WHEN alone THEN filename::path END AS path",
                "CASE WHEN alone THEN event::kind END AS event",
                "sum(length) AS length",
                "count(length) AS measured",
            ]
        self._db.rows(
            f"CREATE TABLE answer AS SELECT {', '.join(columns)} FROM (SELECT *, {alone} AS alone "
            f"FROM {self._lines('read_json', f', columns = {{{types}}}')} "
            f"WHERE event IN {_ANSWERS}) GROUP BY ALL"
        )
        finished = "SELECT * FROM answer WHERE finished"
        if missing or self._db.value("SELECT count(unreadable) FROM answer"):
            sums = ", sum(length) AS length, sum(measured) AS measured" if missing else ""
            finished = (
                "SELECT row, generation, sum(n) AS n, bit_or(places) AS places"
                f"{sums} FROM ({finished}) GROUP BY row, generation"
            )
        self._db.rows(f"CREATE VIEW finished AS {finished}")
        if missing:
            self._db.rows(
                "CREATE VIEW told AS SELECT file, t, event, row, text FROM deed "
                f"WHERE event = 'dropped' UNION ALL SELECT {self._file('path')}, "
                f"{self._time('mono', 'path')}, event, row, NULL FROM answer "
                "WHERE mono IS NOT NULL"
            )

    def many(self) -> int:
        """How many there are, answers too."""
        many: int = self._db.value(
            "SELECT (SELECT count(event) FROM deed) + (SELECT coalesce(sum(n), 0) FROM answer)"
        )
        return int(many)

    def unreadable(self) -> dict[int, int]:
        """How many lines of each file are none."""
        return {
            file: int(many)
            for file, many in self._db.rows(
                "SELECT file, sum(n) FROM (SELECT file, 1 AS n FROM deed "
                f"WHERE event IS NULL OR t IS NULL UNION ALL SELECT {self._file('unreadable')}, n "
                "FROM answer WHERE unreadable IS NOT NULL) GROUP BY file ORDER BY file"
            )
        }

    def _doing(self, what: str) -> None:
        more = len(self._ledgers) - 1
        self._db.doing(f"{what} {self._ledgers[0].path.name}{f' and {more} more' * (more > 0)}")

    def _lines(self, reader: str, more: str = "") -> str:
        return (
            f"{reader}([{self._paths()}], format = 'newline_delimited', ignore_errors = true, "
            f"filename = true{more})"
        )

    def _paths(self) -> str:
        return ", ".join(quoted(ledger.path) for ledger in self._ledgers)

    def _file(self, name: str) -> str:
        """The number of a file, by its name."""
        return f"enum_code({name}::path)::INTEGER"

    def _time(self, mono: str, name: str) -> str:
        """A time in a file by the one clock."""
        return f"{mono} + [{', '.join(map(str, self._ahead))}][{self._file(name)} + 1]"
