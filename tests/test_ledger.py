"""The ledger that a process writes, and what befalls it."""

from __future__ import annotations

import json
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from test_process_life import wait_until

from pytest_resume_audit import recorder
from pytest_resume_audit.real_runs.ledger import Ledger


@pytest.fixture(autouse=True)
def _own_listeners(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "_listeners", [])
    monkeypatch.setattr(recorder, "_ledger", None)


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def only(directory: Path) -> Path:
    (path,) = directory.iterdir()
    return path


def without_clocks(line: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in line.items() if key not in ("wall", "mono")}


def test_it_says_all_that_is_reported(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "3")
    recorder.ledger(tmp_path / "new" / "ledgers", run="seven")
    recorder.handed_out(row for row in (5, 2))
    recorder.finished(5, generation=1, length=812)
    recorder.finished(2)
    recorder.failed(2)
    recorder.buffered(5, generation=1)
    recorder.dropped(2, 'too "long"\n')
    recorder.trained([5], step=7, generations=(1,))
    recorder.trained(iter([5]))
    recorder.saving(tmp_path / "step-7")
    recorder.saved(tmp_path / "step-7")
    recorder.restored("step-7")
    recorder.ended()
    path = only(tmp_path / "new" / "ledgers")
    header, *lines = read(path)
    assert (header["ledger"], header["complete"], header["run"]) == (1, True, "seven")
    assert (header["pid"], header["rank"], header["parent"]) == (os.getpid(), 3, None)
    assert str(os.getpid()) in path.name
    assert header["id"] in path.name
    assert [without_clocks(line) for line in lines] == [
        {"event": "handed_out", "rows": [5, 2]},
        {"event": "finished", "row": 5, "generation": 1, "length": 812},
        {"event": "finished", "row": 2, "generation": 0},
        {"event": "failed", "row": 2, "generation": 0},
        {"event": "buffered", "row": 5, "generation": 1},
        {"event": "dropped", "row": 2, "text": 'too "long"\n'},
        {"event": "trained", "rows": [5], "generations": [1], "step": 7},
        {"event": "trained", "rows": [5]},
        {"event": "saving", "text": str(tmp_path / "step-7")},
        {"event": "saved", "text": str(tmp_path / "step-7")},
        {"event": "restored", "text": "step-7"},
        {"event": "ended", "text": ""},
    ]
    for clock in ("wall", "mono"):
        times = [line[clock] for line in lines]
        assert header[clock] > 0
        assert times == sorted(times)


def test_rows_may_be_numbers_of_other_libraries(tmp_path):
    numpy = pytest.importorskip("numpy")
    recorder.ledger(tmp_path)
    recorder.trained(numpy.array([3, 4]), step=numpy.int64(2))
    assert without_clocks(read(only(tmp_path))[1]) == {
        "event": "trained",
        "rows": [3, 4],
        "step": 2,
    }


def test_the_environment_switches_it_on_and_a_call_takes_its_place(tmp_path):
    script = (
        "from pytest_resume_audit import recorder\n"
        "recorder.trained([1])\n"
        f"recorder.ledger({str(tmp_path / 'called')!r})\n"
        "recorder.trained([2])\n"
    )
    env = {**os.environ, "RESUME_AUDIT_LEDGER": str(tmp_path / "set"), "RESUME_AUDIT_RUN": "a"}
    subprocess.run([sys.executable, "-c", script], check=True, env=env)
    for name, row in (("set", 1), ("called", 2)):
        header, line = read(only(tmp_path / name))
        assert (header["run"], line["rows"]) == ("a", [row])


def test_importing_the_recorder_is_light(tmp_path):
    script = "import sys; from pytest_resume_audit import recorder; print(*sys.modules)"
    env = {**os.environ, "RESUME_AUDIT_LEDGER": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", script], check=True, env=env, capture_output=True, text=True
    )
    assert not {"pytest", "torch", "numpy", "duckdb", "click"} & set(done.stdout.split())
    assert not list(tmp_path.iterdir())  # it comes with the first event


WRITING = """
import sys, threading
from pytest_resume_audit import recorder
recorder.ledger(sys.argv[1])
def go(thread):
    for count in range(10**9):
        recorder.trained([thread, count], step=count)
        if thread == 0:
            print(count, flush=True)  # after the call has returned
for thread in range(3):
    threading.Thread(target=go, args=(thread,)).start()
"""


@pytest.mark.parametrize("seed", range(6))
def test_a_kill_costs_the_line_that_is_being_written_and_no_other(tmp_path, seed):
    ledgers = tmp_path / "ledgers"
    writing = [sys.executable, "-c", WRITING, str(ledgers)]
    with subprocess.Popen(writing, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for _ in range(random.Random(seed).randrange(1, 400)):
            said = process.stdout.readline()
        process.kill()
        said = ([said] + process.stdout.read().splitlines())[-1]
    *whole, last = only(ledgers).read_bytes().split(b"\n")
    lines = [json.loads(line) for line in whole][1:]
    for thread in range(3):
        counts = [line["step"] for line in lines if line["rows"][0] == thread]
        assert counts == list(range(len(counts)))
        if thread == 0:
            # What the process has said it has written is there.
            assert len(counts) > int(said or 0)
    # The last one may be cut short, but is nothing else.
    assert b'{"event": "trained", "rows": ['.startswith(last[:30])


def test_threads_write_whole_lines(tmp_path):
    recorder.ledger(tmp_path)

    def write(thread: int) -> None:
        for count in range(500):
            recorder.finished(thread, generation=count)

    threads = [threading.Thread(target=write, args=(thread,)) for thread in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    _, *lines = read(only(tmp_path))
    for thread in range(8):
        of_it = [line["generation"] for line in lines if line["row"] == thread]
        assert of_it == list(range(500))


def test_a_forked_child_has_a_ledger_of_its_own(tmp_path):
    script = (
        "import os\n"
        "from pytest_resume_audit import recorder\n"
        f"recorder.ledger({str(tmp_path)!r})\n"
        "recorder.trained([1])\n"
        "if os.fork() == 0:\n"
        "    recorder.trained([2])\n"
        "    os._exit(0)\n"
        "os.wait()\n"
        "recorder.trained([3])\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
    ledgers = {read(path)[1]["rows"][0]: read(path) for path in tmp_path.iterdir()}
    assert sorted(ledgers) == [1, 2]
    assert [line["rows"] for line in ledgers[1][1:]] == [[1], [3]]
    assert len(ledgers[2]) == 2
    assert ledgers[2][0]["parent"] == ledgers[1][0]["id"]
    assert ledgers[2][0]["pid"] != ledgers[1][0]["pid"]


def test_a_fork_while_another_thread_opens_the_file_does_not_hang(tmp_path):
    ledger = Ledger(tmp_path)
    with ledger._lock:  # as the thread would hold it
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            threading.Thread(target=lambda: (ledger.note("trained", [1]), os._exit(7))).start()
            signal.pause()
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def full(script: str, directory: Path) -> subprocess.CompletedProcess[str]:
    """Run where no file may grow beyond 4096 bytes; one that is to do so gets EFBIG, not a signal.

    A disk that is full says the same to ``write``: no, after as much as has room.
    """
    limited = (
        "import resource, signal\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))\n"
        "from pytest_resume_audit import recorder\n"
        f"recorder.ledger({str(directory)!r})\n"
    )
    return subprocess.run(
        # Without bytecode, of which a full disk would leave a half, for others to stumble over.
        [sys.executable, "-B", "-c", limited + script],
        check=True,
        capture_output=True,
        text=True,
    )


def test_a_full_disk_costs_events_and_a_warning(tmp_path):
    done = full("for step in range(1000): recorder.trained([step])\nprint('done')", tmp_path)
    assert done.stdout == "done\n"
    assert done.stderr.count("incomplete from now on, the training goes on") == 1
    assert len(done.stderr.splitlines()) == 1
    text = only(tmp_path).read_text()
    assert len(text) == 4096
    header, *lines = (json.loads(line) for line in text.splitlines()[:-1])
    assert header["complete"] is False
    assert [line["rows"] for line in lines] == [[step] for step in range(len(lines))]


def test_where_there_is_room_again_it_goes_on_and_says_what_is_lost(tmp_path):
    many = 200
    full(
        f"for step in range({many}): recorder.trained([step])\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)\n"
        "recorder.trained([-1])\n"
        "recorder.trained([-2])\n",
        tmp_path,
    )
    whole, torn = [], 0
    for line in only(tmp_path).read_text().splitlines():
        try:
            whole.append(json.loads(line))
        except ValueError:
            torn += 1
    assert torn == 1
    assert whole[0]["complete"] is False
    kept, lost, *after = whole[1:-3], *whole[-3:]
    assert lost["text"] == f"lines that could not be written: {many - len(kept)} or more"
    assert [line["rows"] for line in after] == [[-1], [-2]]


def test_a_device_that_takes_nothing(tmp_path, caplog):
    ledger = Ledger(tmp_path)
    ledger.note("trained", [1])
    with open("/dev/full", "wb", buffering=0) as device:
        os.dup2(device.fileno(), ledger._file)
    for step in range(5):
        ledger.note("trained", [step])
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "No space left on device" in caplog.text
    assert [line["complete"] for line in read(only(tmp_path))[:1]] == [False]


def test_a_directory_that_cannot_be(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    recorder.ledger(tmp_path / "file" / "below")
    for step in range(5):
        recorder.trained([step])
    assert len(caplog.records) == 1
    assert "Not a directory" in caplog.text


def test_a_directory_that_vanishes(tmp_path, caplog, monkeypatch):
    recorder.ledger(tmp_path / "ledgers")
    recorder.trained([1], step=1)
    shutil.rmtree(tmp_path / "ledgers")
    recorder.trained([2], step=2)
    # At a checkpoint it is looked for. That it may be opened again at once is not of this test.
    monkeypatch.setattr("pytest_resume_audit.real_runs.ledger._PATIENCE", 0)
    recorder._listeners[0]._next_attempt = 0  # type: ignore[attr-defined]
    recorder.saving("one")
    recorder.saved("one")
    assert len(caplog.records) == 1
    header, lost, *lines = read(only(tmp_path / "ledgers"))
    assert header["complete"] is False
    assert lost["event"] == "lost"
    assert [line["event"] for line in lines] == ["saving", "saved"]


def test_it_keeps_nothing_in_memory(tmp_path):
    recorder.ledger(tmp_path)

    def write() -> None:
        for step in range(2000):
            recorder.handed_out([step])
            recorder.finished(step, length=step)
            recorder.trained([step], step=step)

    write()  # what is made once
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        write()
        after, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 2000
    assert peak - before < 20_000


def test_it_is_there_while_the_process_runs(tmp_path):
    script = (
        "import sys\n"
        "from pytest_resume_audit import recorder\n"
        f"recorder.ledger({str(tmp_path)!r})\n"
        "recorder.trained([1])\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE) as process:
        wait_until(lambda: any(len(read(path)) == 2 for path in tmp_path.iterdir()))
        process.kill()
