"""What every test of this project may use."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import pytest

# All of it once: what a run of pytest in this process imports by itself is forgotten after it, and
# the next one would have other classes of the same names.
from pytest_resume_audit import catalogue, fixture, listing, marker, session  # noqa: F401

# What is written in C can't be loaded twice.
with contextlib.suppress(ImportError):
    import numpy  # noqa: F401
with contextlib.suppress(ImportError):
    import torch  # noqa: F401

pytest_plugins = ["pytester"]

GENERATED = tuple(
    replace(catalogue.NAMED["mid-flight"], name=f"g{number}", purpose="generated")
    for number in range(6)
)
"""What the fixture ``nightly`` adds to the named timelines."""


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same one everywhere, for the runs of pytest in a test."""
    monkeypatch.setenv("COLUMNS", "80")
    for name in ("CI", "BUILD_NUMBER", "PYTEST_DISABLE_PLUGIN_AUTOLOAD", "PYTEST_PLUGINS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def nightly(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small matrix of that name, for runs of pytest in this process."""
    clean, flight = catalogue.NAMED["clean"], catalogue.NAMED["mid-flight"]
    matrices = {"smoke": (clean, flight), "nightly": (clean, flight, *GENERATED)}
    for module in (marker, listing):
        monkeypatch.setattr(module, "matrix", matrices.__getitem__)
    monkeypatch.setattr(marker, "MATRICES", tuple(matrices))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Tell which timeline caught each planted fault, where these have been searched for."""
    found = dict(
        value
        for outcome in ("passed", "failed")
        for report in terminalreporter.getreports(outcome)
        for name, value in report.user_properties
        if name == "planted_fault"
    )
    if not found:
        return
    caught = sum(map(bool, found.values()))
    terminalreporter.section(f"planted faults: {caught} of {len(found)} caught")
    rows_of: dict[str, list[str]] = {}
    for row, caught_by in sorted(found.items()):
        rows_of.setdefault(caught_by or "not caught", []).append(row)
    for caught_by, rows in sorted(rows_of.items()):
        terminalreporter.line(f"{caught_by}: {' '.join(rows)}")
