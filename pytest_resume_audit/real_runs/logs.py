"""What other logs of a run say: tables with a column for the prompt and one for the step.

Such as the dumps of training data that frameworks write, step by step. Their order is taken for
the order in which they were written: where the step goes down, the run was restarted.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

from pytest_resume_audit.real_runs.database import Database, name, quoted
from pytest_resume_audit.real_runs.report import LISTED, Loss, Restart, RunReport
from pytest_resume_audit.real_runs.sources import PACKED, Sources, UnreadableSource, reader

_MOST_RESTARTS = 1000
"""More than that are no restarts: the table is not in the order in which it was written."""

_LONGEST_LINE = 1 << 25

_PASS_OVER = 0.9
"""The part of all prompts that is trained once when a second pass may begin."""


def judge(
    database: Database,
    sources: Sources,
    *,
    key: str,
    step: str,
    epoch: str | None = None,
    restarts: Sequence[int] | None = None,
    prompts: int | None = None,
    keys: Path | None = None,
) -> RunReport:
    """Judge a run by what it has logged of its training.

    Args:
        database: to do it in.
        sources: with the logs.
        key: the column of the prompt, and
        step: of the step that trained it.
        epoch: that of the pass, if there are several.
        restarts: the steps that restarts have gone on from, 0 for afresh; an empty one says that
            there was none. By default they are found where the step goes down.
        prompts: how many were to be trained, in each pass.
        keys: a table with those that were to be trained, in a column of the same name.

    Raises:
        UnreadableSource: when a column is not there, or ``restarts`` doesn't fit.
    """
    report = RunReport(notes=[*sources.notes], doubts=[*sources.doubts])
    torn = _take_in(database, report, sources.logs, key, step, epoch)
    _find_lives(database, report, restarts, len(sources.logs))
    if report.doubts:
        return report
    if keys is None:
        count(database, report, prompts, epoch)
    else:
        _take_in_keys(database, keys, key)
        _count_against(keys, database, report, prompts, epoch)
    missing = sum(loss.prompts for loss in report.skipped or ())
    if 0 < missing <= torn:
        report.skipped = None
        report.doubts.append(
            f"not trained by what can be read: {missing}, which may be in the last line that was "
            "cut short: write that line whole, or take it out"
        )
    return report


def _table(kind: str, paths: Sequence[Path], more: str = "") -> str:
    names = ", ".join(map(quoted, paths))
    # An array of JSON is taken as it is; of lines, those that can't be read are counted.
    lines = all(".json" not in path.suffixes for path in paths)
    how = {
        "json": ", format = 'newline_delimited', ignore_errors = true" if lines else "",
        "csv": ", header = true, null_padding = true",
        "parquet": "",
    }[kind]
    return f"read_{kind}([{names}]{how}{more})"


def _columns(
    database: Database, kind: str, paths: Sequence[Path], asked: dict[str, str]
) -> dict[str, str]:
    """The type of each column, where those are there that are asked for by an option."""
    types = {
        column: of
        for column, of, *_ in database.rows(f"DESCRIBE SELECT * FROM {_table(kind, paths)}")
    }
    for option, column in asked.items():
        if column not in types:
            raise UnreadableSource(
                f"{paths[0]} has no column {column!r} for {option}; it has {', '.join(types)}"
            )
    return types


def _take_in_keys(database: Database, keys: Path, key: str) -> None:
    """Table ``wanted``: the prompts that were to be trained, each once."""
    if not keys.stat().st_size:
        raise UnreadableSource(f"{keys} is empty: it has to name the prompts to be trained")
    kind = reader(keys)
    _columns(database, kind, [keys], {"--key": key})
    database.rows(
        f"CREATE TABLE wanted AS SELECT DISTINCT {name(key)} AS key "
        f"FROM {_table(kind, [keys])} WHERE {name(key)} IS NOT NULL"
    )
    if not database.value("SELECT count(*) FROM wanted"):
        raise UnreadableSource(f"{keys} names no prompt: it has to name those to be trained")


def _count_against(
    keys: Path, database: Database, report: RunReport, prompts: int | None, epoch: str | None
) -> None:
    import duckdb

    try:
        count(database, report, prompts, epoch, keys="wanted")
    except duckdb.ConversionException:
        theirs, ours = (
            database.value(f"SELECT typeof(any_value(key)) FROM {table}")
            for table in ("wanted", "entry")
        )
        raise UnreadableSource(
            f"a prompt is {theirs} in {keys} and {ours} in the logs: write it in the same form in "
            "both"
        ) from None


def _take_in(
    database: Database,
    report: RunReport,
    paths: Sequence[Path],
    key: str,
    step: str,
    epoch: str | None,
) -> int:
    """Table ``log``: key, pass and step in the order of the files; a group is one row.

    Returns:
        How many last lines were cut short, and are passed over.
    """
    database.doing(f"reading {paths[0].name}{f' and {len(paths) - 1} more' * (len(paths) > 1)}")
    kinds = {reader(path) for path in paths}
    if len(kinds) > 1:
        raise UnreadableSource(f"files of one kind at a time, not {' and '.join(sorted(kinds))}")
    (kind,) = kinds
    asked = {"--key": key, "--step": step} | ({"--pass": epoch} if epoch else {})
    for (option, column), (other, same) in combinations(asked.items(), 2):
        if column == same:
            raise UnreadableSource(f"{option} and {other} are both {column!r}: name two columns")
    types = _columns(database, kind, paths, asked)
    whole = f"TRY_CAST({name(step)} AS BIGINT)"
    if not types[step].endswith(("INT", "INTEGER")):
        # Half a step is none, and would be rounded to another.
        whole = f"CASE WHEN TRY_CAST({name(step)} AS DOUBLE) % 1 = 0 THEN {whole} END"
    columns = f"{name(key)} AS key, {name(epoch) if epoch else 'NULL'} AS pass, {whole} AS step"
    source = f"SELECT {columns} FROM {_table(kind, paths)}"
    if kind != "parquet":
        # Read by all cores first: what looks at one row after the other is done by one.
        shape = ", ".join(f"{name(one)}: {quoted(types[one])}" for one in asked.values())
        more = f", columns = {{{shape}}}" if kind == "json" else ""
        database.rows(f"CREATE TABLE raw AS SELECT {columns} FROM {_table(kind, paths, more)}")
        source = "SELECT * FROM raw"
    # A group comes as so many rows, one below the other.
    database.rows(
        "CREATE TABLE log AS SELECT key, pass, step FROM (SELECT *, lag(key) OVER () AS other, "
        f"lag(step) OVER () AS before{', lag(pass) OVER () AS earlier' if epoch else ''} "
        f"FROM ({source})) WHERE key IS DISTINCT FROM other OR step IS DISTINCT FROM before"
        + (" OR pass IS DISTINCT FROM earlier" if epoch else "")
    )
    if kind != "parquet":
        report.events = database.value("SELECT count(*) FROM raw")
        database.rows("DROP TABLE raw")
    else:
        report.events = database.value(f"SELECT count(*) FROM {_table(kind, paths)}")
    if not report.events:
        report.doubts.append("there is nothing in it")
    bad: int = database.value("SELECT count(*) FROM log WHERE key IS NULL OR step IS NULL")
    torn = [path for path in paths if _is_torn(path)]
    if bad > len(torn):
        report.doubts.append(f"rows without a prompt or without a step: {bad:,}")
    elif bad:
        report.notes.append("the last line was cut short, and is passed over")
        return bad
    elif torn:
        report.doubts.append(
            f"the last line of {torn[0]} has no end, so that a number in it may be cut short: end "
            "it with a new line, or take it out"
        )
    return 0


def _is_torn(path: Path) -> bool:
    """Whether the last line has no end, and may be part of one; an object says where it ends."""
    if path.suffix in PACKED or ".json" in path.suffixes or reader(path) == "parquet":
        return False
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _LONGEST_LINE))
        rest = file.read().rpartition(b"\n")[2]
    if reader(path) == "csv" or not rest.strip():
        return bool(rest)
    try:
        json.loads(rest)
    except ValueError:
        return True
    return False


def _find_lives(
    database: Database, report: RunReport, restarts: Sequence[int] | None, files: int
) -> None:
    """View ``entry``: what is in ``log``, with its life, and whether it is in the lineage."""
    database.doing("finding the lives")
    found: list[tuple[int, int, int]] = []
    if restarts is None or restarts:
        found = database.rows(
            "SELECT n, step, before FROM (SELECT rowid AS n, step, lag(step) OVER () AS before "
            f"FROM log WHERE step IS NOT NULL) WHERE step < before LIMIT {_MOST_RESTARTS + 1}"
        )
    if len(found) > _MOST_RESTARTS:
        report.doubts.append(
            f"the step goes down more than {_MOST_RESTARTS:,} times: this is not in the order in "
            "which it was written; if there was no restart, say --restarts none"
        )
        return
    report.lives = len(found) + 1
    first = database.value("SELECT min(step) FROM log")
    cuts = []
    for _, step, _ in found:
        if restarts is not None:
            below = [one for one in restarts if one < step]
            if not below:
                raise UnreadableSource(
                    f"--restarts: the step goes down to {step}, and none of the restarts is from "
                    "before"
                )
            cuts.append(max(below))
            continue
        cuts.append(step - 1)
        if step <= first:
            report.doubts.append(
                f"the step begins again at {step}: if these are ranks, or parts of one life, say "
                "--restarts none; if the run has begun afresh, --restarts 0; if they are two "
                "runs, ask about one"
            )
            return
    if restarts is not None and len(restarts) > len(found):
        report.notes.append(
            f"of {len(restarts)} restarts {len(found)} can be seen: the others have taken no "
            "logged step back"
        )
    # A row stays where every later restart has come from its step, or from one behind it.
    stays = [min(cuts[i:]) for i in range(len(cuts))]
    ends = [n for n, _, _ in found]
    life = " ".join(f"WHEN rowid < {n} THEN {i + 1}" for i, n in enumerate(ends))
    kept = " ".join(
        f"WHEN rowid < {n} THEN step <= {stay}" for n, stay in zip(ends, stays, strict=True)
    )
    database.rows(
        "CREATE VIEW entry AS SELECT key, pass, step, "
        + (f"CASE {life} ELSE {len(ends) + 1} END" if ends else "1")
        + " AS life, "
        + (f"CASE {kept} ELSE true END" if ends else "true")
        + " AS kept FROM log WHERE key IS NOT NULL AND step IS NOT NULL"
    )
    for i, ((_, _, before), cut) in enumerate(zip(found, cuts, strict=True)):
        # What this restart is the first to take back.
        lives = [
            f"(life = {j + 1} AND step > {cut}"
            + (f" AND step <= {min(cuts[j:i])})" if j < i else ")")
            for j in range(i + 1)
        ]
        steps, trainings = database.row(
            "SELECT count(DISTINCT (life, step)), count(*) FROM (SELECT DISTINCT key, pass, life, "
            f"step FROM entry WHERE {' OR '.join(lives)})"
        )
        report.restarts.append(
            Restart(
                life=i + 2,
                checkpoint=f"step {cut}",
                of_life=None,
                step=cut,
                reached=before,
                steps=steps,
                trainings=trainings,
            )
        )
    report.rolled_back = sum(one.trainings for one in report.restarts)


def count(
    database: Database,
    report: RunReport,
    prompts: int | None,
    epoch: str | None,
    keys: str | None = None,
) -> None:
    """Judge by what ``entry`` has of key, pass, step, life and kept.

    Args:
        database: that has it.
        report: to be filled in.
        prompts: how many were to be trained, in each pass.
        epoch: where ``pass`` comes from, if from anywhere.
        keys: a table of those that were to be trained.
    """
    database.doing("counting")
    group = "key, pass" if epoch else "key"
    database.rows(
        f"CREATE TABLE seen AS SELECT {group}, count(*) AS n FROM entry WHERE kept GROUP BY {group}"
    )
    trained, suspects = database.row("SELECT count(*), count(*) FILTER (n > 1) FROM seen")
    report.trained = trained
    if suspects:
        # Rows of one step that are not side by side are one training all the same.
        database.rows(
            f"CREATE TABLE twice AS SELECT {group}, len(list(DISTINCT step)) AS n, "
            "list_sort(list(DISTINCT step))[2] AS again, list_sort(list(DISTINCT life)) AS lives "
            f"FROM entry SEMI JOIN (SELECT * FROM seen WHERE n > 1) s USING ({group}) "
            f"WHERE kept GROUP BY {group} HAVING count(DISTINCT step) > 1"
        )
        _count_repeats(database, report, epoch, trained)
    else:
        report.duplicated = []
    _count_skips(database, report, prompts, epoch, keys)


def _count_repeats(database: Database, report: RunReport, epoch: str | None, trained: int) -> None:
    many, again = database.row("SELECT count(*), min(again) FROM twice")
    if many and not epoch:
        before = database.value(
            "SELECT count(*) FROM (SELECT min(step) AS first FROM entry WHERE kept GROUP BY key) "
            "WHERE first < ?",
            again,
        )
        if before >= _PASS_OVER * trained or many > trained / 2:
            report.doubts.append(
                f"prompts that are trained in several steps: {many:,}, from step {again} on: of a "
                "second pass, or repeats? Say where the pass is with --pass"
            )
            return
    report.duplicated = [
        Loss(
            f"trained in life {lives[0]} and again in life {lives[1]}"
            if len(lives) > 1
            else f"trained again in life {lives[0]}",
            extra,
            named,
        )
        for lives, extra, named in database.rows(
            f"SELECT lives[-2:] AS lives, sum(n - 1)::BIGINT, list(key ORDER BY key)[:{LISTED}] "
            "FROM twice GROUP BY ALL ORDER BY lives"
        )
    ]


def _count_skips(
    database: Database,
    report: RunReport,
    prompts: int | None,
    epoch: str | None,
    keys: str | None,
) -> None:
    if prompts is None and keys is None:
        report.prompts = None
        report.doubts.append(
            "what was to be trained is not known, so skips can't be: say how many prompts with "
            "--prompts, or which with --keys"
        )
        return
    passes = database.value("SELECT count(DISTINCT pass) FROM seen") if epoch else 1
    if keys is None:
        assert prompts is not None
        kind = database.value("SELECT typeof(any_value(key)) FROM seen")
        in_range = kind in ("BIGINT", "INTEGER", "UBIGINT", "UINTEGER", "SMALLINT") and not (
            database.value("SELECT count(*) FROM seen WHERE key < 0 OR key >= ?", prompts)
        )
        if not in_range:
            _count_skips_by_number(report, database, prompts, passes)
            return
        keys = f"(SELECT range AS key FROM range({prompts}))"
    wanted = f"SELECT w.key, p.pass FROM {keys} w, (SELECT DISTINCT pass FROM seen) p"
    same = "s.key = w.key AND s.pass = w.pass"
    if not epoch:
        wanted, same = f"SELECT key FROM {keys}", "s.key = w.key"
    report.prompts = database.value(f"SELECT count(*) FROM ({wanted})")
    report.trained = database.value(
        f"SELECT count(*) FROM ({wanted}) w WHERE EXISTS (SELECT 1 FROM seen s WHERE {same})"
    )
    report.skipped = [
        Loss(
            "trained in steps that a restart has taken back, and not again"
            if back
            else "never seen",
            many,
            named,
            many if back else 0,
        )
        for back, many, named in database.rows(
            f"SELECT back, count(*), list(key ORDER BY key)[:{LISTED}] FROM (SELECT w.key, EXISTS "
            f"(SELECT 1 FROM entry s WHERE {same} AND NOT s.kept) AS back FROM ({wanted}) w "
            f"WHERE NOT EXISTS (SELECT 1 FROM seen s WHERE {same})) "
            "GROUP BY back ORDER BY back DESC"
        )
    ]
    report.open = 0


def _count_skips_by_number(
    report: RunReport, database: Database, prompts: int, passes: int
) -> None:
    """Which were to be trained is not known, only how many."""
    report.prompts = prompts * passes
    assert report.trained is not None
    missing = report.prompts - report.trained
    if missing < 0:
        raise UnreadableSource(
            f"--prompts {prompts:,}: there are {report.trained:,} of them in {passes} pass"
            f"{'es' * (passes > 1)}"
        )
    known = [
        key
        for (key,) in database.rows(
            "SELECT key FROM (SELECT DISTINCT key FROM entry WHERE NOT kept) b "
            "ANTI JOIN seen USING (key) ORDER BY key"
        )
    ]
    losses = []
    if known:
        losses.append(
            Loss(
                "trained in steps that a restart has taken back, and not again",
                len(known),
                known[:LISTED],
                len(known),
            )
        )
    if missing > len(known):
        losses.append(Loss("never seen", missing - len(known)))
    report.skipped = losses
    report.open = 0
