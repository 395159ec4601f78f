"""What every test of this project may use."""

from __future__ import annotations

import pytest

pytest_plugins = ["pytester"]


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same one everywhere, for the runs of pytest in a test."""
    monkeypatch.setenv("COLUMNS", "80")
    for name in ("CI", "BUILD_NUMBER", "PYTEST_DISABLE_PLUGIN_AUTOLOAD", "PYTEST_PLUGINS"):
        monkeypatch.delenv(name, raising=False)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Tell which timeline caught each planted fault, where these have been searched for."""
    found = {
        row: caught_by
        for outcome in ("passed", "failed")
        for report in terminalreporter.getreports(outcome)
        for name, (row, caught_by) in report.user_properties
        if name == "planted_fault"
    }
    if not found:
        return
    caught = sum(map(bool, found.values()))
    terminalreporter.section(f"planted faults: {caught} of {len(found)} caught")
    rows_of: dict[str, list[str]] = {}
    for row, caught_by in sorted(found.items()):
        rows_of.setdefault(caught_by or "not caught", []).append(row)
    for caught_by, rows in sorted(rows_of.items()):
        terminalreporter.line(f"{caught_by}: {' '.join(rows)}")
