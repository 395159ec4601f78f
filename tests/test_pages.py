"""Memory in huge pages: there is as much of it as before, and what is in it stays."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pytest_resume_audit.lives.pages import gather

HEAP = """
import mmap
from pathlib import Path
from pytest_resume_audit.lives.pages import gather

def of_this_process(what):  # in kB
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(what))

kept = [bytes([n % 251]) * 1000 for n in range(100_000)]  # 100 MB
reserved = mmap.mmap(-1, 1 << 30, flags=mmap.MAP_PRIVATE)
for page in range(0, 1 << 30, 1 << 20):
    reserved[page] = 1  # a page in each MB
before = of_this_process("Rss:")
gathered = gather()
assert gathered > 64 << 20, gathered
assert of_this_process("AnonHugePages:") * 1024 >= gathered
assert of_this_process("Rss:") < before + 16 * 1024
assert all(kept[n] == bytes([n % 251]) * 1000 for n in range(100_000))
"""


def knows_it() -> bool:
    if sys.platform != "linux" or not Path("/sys/kernel/mm/transparent_hugepage").is_dir():
        return False
    release = Path("/proc/sys/kernel/osrelease").read_text().split(".")
    return (int(release[0]), int(release[1].partition("-")[0])) >= (6, 1)


@pytest.mark.skipif(not knows_it(), reason="huge pages on demand are of Linux 6.1 and newer")
def test_what_is_used_is_gathered_and_what_is_reserved_is_not() -> None:
    subprocess.run([sys.executable, "-c", HEAP], check=True, timeout=60)


ANY_NAME = """
import mmap, os, sys
from pytest_resume_audit.lives.pages import gather

with open(os.fsencode(sys.argv[1]) + b"/Pr\\xfcfung\\r.bin", "w+b") as file:
    file.write(bytes(4096))
    file.flush()
    mapped = mmap.mmap(file.fileno(), 4096)
gather()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have rules for names")
def test_a_file_in_memory_may_have_any_name(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", ANY_NAME, str(tmp_path)], check=True, timeout=60)


def test_where_the_system_knows_no_such_thing_nothing_is_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_such_file(*_: object) -> None:
        raise FileNotFoundError

    monkeypatch.setattr("builtins.open", no_such_file)
    assert gather() == 0
