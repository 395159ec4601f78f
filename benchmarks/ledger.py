"""What writing a ledger costs a training, and reading one beside a plain count of the same file.

    python benchmarks/ledger.py calls
    python benchmarks/ledger.py parquet [MILLIONS [TURNS]]
    python benchmarks/ledger.py ledgers [MILLIONS [TURNS]]

``calls`` are ratios to a call of an empty function, and to a bare ``write``. The others have DuckDB
make a log of so many million rows (100), half of one run before a restart and half after it, then
count it by ``GROUP BY`` alone and judge it, in turns (3), each in a process of its own, with 3.5 GB
of memory and two threads. Files go to ``TMPDIR``. Where others use the machine too, it is the
processor's time that can be compared.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from timeit import repeat
from typing import Any

MEMORY = "3.5GB"
PROMPTS = 256
"""Of a step, each with a group of four."""
GROUP = 4


def calls() -> None:
    """What a call of the recorder costs, in time of the processor."""
    from pytest_resume_audit import recorder

    def empty(row: int, *, generation: int = 0, length: int | None = None) -> None:
        pass

    def median(call: str, many: int, **names: Any) -> float:
        times = repeat(call, globals=names, number=many, repeat=15, timer=time.process_time)
        return statistics.median(times) / many * 1e9

    say = "finished(5, generation=1, length=812)"
    base = median(say, 100_000, finished=empty)
    idle = median(say, 100_000, finished=recorder.finished)
    with tempfile.TemporaryDirectory() as directory:
        fd = os.open(Path(directory) / "bare", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        bare = median("write(fd, line)", 20_000, write=os.write, fd=fd, line=b"x" * 116 + b"\n")
        recorder.ledger(directory)
        kept = median(say, 20_000, finished=recorder.finished)
    print(f"an empty function {base:.0f} ns")
    print(f"a call with no listener {idle:.0f} ns, {idle / base:.1f} times")
    print(f"a bare write of a line {bare:.0f} ns")
    print(f"a call with a ledger {kept:.0f} ns, {kept / bare:.1f} times a bare write")


# --- files ----------------------------------------------------------------------------------------


def make_parquet(directory: Path, rows: int) -> list[Path]:
    """Two lives' training data, a row for each answer; the second goes back a tenth of a life."""
    import duckdb

    path = directory / "log.parquet"
    steps = rows // (PROMPTS * GROUP)
    half, back = steps // 2, steps // 20
    duckdb.connect().execute(
        f"COPY (SELECT (hash(step * {PROMPTS} + i % {PROMPTS * GROUP} // {GROUP}) >> 1)::BIGINT "
        "AS key, step, 0 AS reward FROM (SELECT i, i // "
        f"{PROMPTS * GROUP} - if(i // {PROMPTS * GROUP} < {half}, 0, {back}) AS step "
        f"FROM range({steps * PROMPTS * GROUP}) r(i))) TO '{path}'"
    )
    return [path]


def make_ledgers(directory: Path, rows: int) -> list[Path]:
    """Two lives' ledgers; the second goes back to the save before the first one's last steps."""
    import duckdb

    each = 2 + PROMPTS * GROUP * 2
    steps = rows // each
    half, back = steps // 2, max(1, steps // 20)
    paths = []
    for life, (first, last) in enumerate([(0, half), (half - back, steps - back)]):
        begin = 10**15 * (life + 1)
        header = {"ledger": 1, "complete": True, "id": f"life-{life}", "run": "", "host": "one"}
        header |= {"boot": "one", "pid": life, "rank": None, "parent": None}
        header |= {"wall": begin, "mono": begin}
        path = directory / f"life-{life}.jsonl"
        text = (
            'CASE WHEN j = 0 THEN \'"event": "handed_out", "rows": \' || '
            f"range(s * {PROMPTS}, (s + 1) * {PROMPTS})::VARCHAR "
            f'WHEN j = {each - 1} THEN \'"event": "trained", "rows": \' || '
            f"range(s * {PROMPTS}, (s + 1) * {PROMPTS})::VARCHAR || ', \"step\": ' || (s + 1) "
            "ELSE '\"event\": \"' || if(j % 2 = 1, 'finished', 'buffered') || '\", \"row\": ' || "
            f"(s * {PROMPTS} + (j - 1) // {GROUP * 2}) || ', \"generation\": ' || "
            f"((j - 1) // 2 % {GROUP}) || if(j % 2 = 1, ', \"length\": ' || (hash(j) % 999), '') "
            "END"
        )
        clocks = f"', \"wall\": ' || ({begin} + i * 999) || ', \"mono\": ' || ({begin} + i * 999)"
        body = directory / "body"
        duckdb.connect().execute(
            f"COPY (SELECT '{{' || {text} || {clocks} || '}}' FROM "
            f"(SELECT i, i // {each} + {first} AS s, i % {each} AS j "
            f"FROM range({(last - first) * each}) r(i))) "
            f"TO '{body}' (FORMAT csv, HEADER false, QUOTE '', ESCAPE '', DELIMITER '|')"
        )
        # The save is at the step that the second life goes on behind.
        when = begin + (half - back) * each * 999 - 1
        saving = [
            {"event": event, "text": "step", "wall": when, "mono": when}
            for event in ("saving", "saved")
        ]
        restored = [{"event": "restored", "text": "step", "wall": begin, "mono": begin}]
        with path.open("w") as file:
            for line in [header, *(restored if life else saving)]:
                file.write(json.dumps(line) + "\n")
            file.flush()
            subprocess.run(["cat", body], stdout=file, check=True)
        body.unlink()
        paths.append(path)
    return paths


# --- measured in a process of its own -------------------------------------------------------------


def plain(paths: list[str]) -> None:
    """DuckDB's own grouped count."""
    import duckdb

    with tempfile.TemporaryDirectory() as scratch:
        connection = duckdb.connect()
        connection.execute(f"SET temp_directory = '{scratch}'")
        connection.execute(f"SET memory_limit = '{MEMORY}'")
        connection.execute("SET threads = 2")
        names = ", ".join(f"'{path}'" for path in paths)
        source, key = f"read_parquet([{names}])", "key"
        if paths[0].endswith(".jsonl"):
            source = f"read_json([{names}], format = 'newline_delimited', "
            source += "columns = {event: 'VARCHAR', row: 'BIGINT'})"
            key = "event, row"
        connection.execute(
            f"SELECT count(*) FROM (SELECT {key}, count(*) FROM {source} GROUP BY {key})"
        ).fetchall()


def judged(paths: list[str]) -> None:
    """The same file, by the command."""
    from pytest_resume_audit.cli import run

    words = ["ledger", *paths, "--memory", MEMORY, "--json"]
    if paths[0].endswith(".parquet"):
        words += ["--key", "key", "--step", "step", "--prompts", str(_prompts(paths[0]))]
    code = run(words)
    assert code == 0, code


def _prompts(path: str) -> int:
    import duckdb

    (most,) = duckdb.connect().execute(f"SELECT max(step) FROM '{path}'").fetchall()[0]
    return (int(most) + 1) * PROMPTS


def compare(kind: str, millions: float, turns: int) -> None:
    """Make the files, and measure both in turns."""
    with tempfile.TemporaryDirectory() as directory:
        make = make_parquet if kind == "parquet" else make_ledgers
        paths = [str(path) for path in make(Path(directory), int(millions * 1e6))]
        size = sum(os.path.getsize(path) for path in paths) / 2**30
        print(f"{millions:g} million events, {size:.1f} GiB", flush=True)
        times: dict[str, list[tuple[float, float]]] = {"plain": [], "judged": []}
        for _ in range(turns):
            for name, of_it in times.items():
                begun, before = time.perf_counter(), _processor()
                done = subprocess.run(
                    [sys.executable, __file__, name, *paths], check=True, capture_output=True
                )
                of_it.append((time.perf_counter() - begun, _processor() - before))
                if name == "judged":
                    headline = json.loads(done.stdout)["headline"]
            for name, of_it in times.items():
                print(f"{name}: {of_it[-1][0]:.1f} s, of the processor {of_it[-1][1]:.1f} s")
        pairs = list(zip(times["plain"], times["judged"], strict=True))
        wall, processor = (statistics.median(o[i] / t[i] for t, o in pairs) for i in (0, 1))
        most = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
        print(headline)
        print(f"ratio {wall:.2f}, of the processor {processor:.2f}; memory {most:.1f} GiB at most")


def _processor() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Measure and print."""
    what, *words = sys.argv[1:] or ["calls"]
    if what in ("parquet", "ledgers"):
        millions, turns, *_ = [*words, *("100", "3")[len(words) :]]
        compare(what, float(millions), int(turns))
    else:
        {"calls": calls, "plain": lambda: plain(words), "judged": lambda: judged(words)}[what]()


if __name__ == "__main__":
    main()
