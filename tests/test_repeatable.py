"""The same script gives the same history, event for event; on a busy machine as well.

``RESUME_AUDIT_REPEATS=200`` plays every collector 200 times, instead of a few.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import menagerie
import pytest

from pytest_resume_audit import FrontierCollector, FuturesCollector, LiveCursorCollector
from pytest_resume_audit.collector import Collector, SelfDrivenCollector
from pytest_resume_audit.conductor import run

REPEATS = int(os.environ.get("RESUME_AUDIT_REPEATS", "0"))

SCRIPT = (
    "hand_out 12; finish 0-3; train; finish 4 6 7 10; save; crash; "
    "restart; hand_out 16; finish newest 1; save; stop; restart; drain"
)

COLLECTORS = [
    FrontierCollector,
    FuturesCollector,
    LiveCursorCollector,
    *(
        kind
        for kind in vars(menagerie).values()
        if isinstance(kind, type)
        and issubclass(kind, Collector | SelfDrivenCollector)
        and kind.__module__ == menagerie.__name__
        and kind is not menagerie.OldWay
    ),
]

linux = pytest.mark.skipif(
    not sys.platform.startswith("linux"),
    reason="without /proc rest is looked for in another way, and repeatability is not promised",
)


def repeats(collector: Any, few: int) -> int:
    # Queues wait for half a second and more each time that something is concluded.
    return REPEATS or (2 if collector is menagerie.Queues else few)


def lines(collector: Any) -> list[str]:
    report = run(collector, SCRIPT, deadline=30)
    told = [f"{report.verdict}, {'gated' if report.gated else 'not gated'}"]
    return told + [str(missed) for missed in report.missed] + report.history.lines()


@linux
@pytest.mark.parametrize("collector", COLLECTORS)
def test_every_time_the_same(collector: Any) -> None:
    first = lines(collector)
    for _ in range(repeats(collector, 4) - 1):
        assert lines(collector) == first


@pytest.fixture(scope="module")
def busy() -> Iterator[None]:
    """Every processor has something else to do."""
    # Each ends by itself should nobody be left to end it.
    spin = [sys.executable, "-c", "import os; p = os.getppid()\nwhile os.getppid() == p: pass"]
    spinners = [subprocess.Popen(spin) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for spinner in spinners:
            spinner.kill()
            spinner.wait()


@linux
@pytest.mark.usefixtures("busy")
@pytest.mark.parametrize("collector", COLLECTORS)
def test_every_time_the_same_on_a_busy_machine(collector: Any) -> None:
    first = lines(collector)
    for _ in range(repeats(collector, 2) - 1):
        assert lines(collector) == first
