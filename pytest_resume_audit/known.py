"""The file of known losses: what a project that is not clean yet knows of itself.

It is JSON with a line for each loss, sorted by node id, so that a review sees what came and went::

    {"schema": 1, "known": {
    "tests/test_it.py::test_x[mid-flight]": {"verdict": "lossy", "found": {"skipped": "5, 8, 9"}}
    }}
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_resume_audit.reports.text import listed

if TYPE_CHECKING:
    from pytest_resume_audit.verdict import AuditReport, Finding

SCHEMA = 1

KNOWABLE = ("lossy", "error", "hang", "refused")
"""Verdicts that can be known: undetermined never passes."""


class KnownError(ValueError):
    """What is wrong with a file of known losses, and where."""


@dataclass(frozen=True)
class Loss:
    """What speaks against a run, so exactly that another loss is not taken for it.

    Args:
        verdict: of the run.
        found: the ordinals of each finding, in words; the class of an exception that was raised;
            the verdict of each point of a save that fails.
    """

    verdict: str
    found: Mapping[str, str]

    @classmethod
    def of(cls, report: AuditReport) -> Loss:
        """The loss that a report shows.

        Args:
            report: of a run.

        Example:
            >>> from pytest_resume_audit import LiveCursorCollector, run
            >>> str(Loss.of(run(LiveCursorCollector, "mid-flight")))
            'lossy: skipped: 5, 8, 9, 11'
        """
        found = dict(_entry(finding, report) for finding in report.findings)
        # Of a timeline that goes through all points of a save, the findings are the worst one's.
        at_points = {point.step: point.verdict for point in report.points if not point.passed}
        return cls(report.verdict, {**found, **at_points})

    @classmethod
    def read(cls, value: object) -> Loss:
        """The loss of a JSON value.

        Args:
            value: an entry of the file.

        Raises:
            KnownError: for a value that is no loss.
        """
        if not isinstance(value, dict) or value.keys() != {"verdict", "found"}:
            raise KnownError('it has to have "verdict" and "found", and nothing else')
        verdict, found = value["verdict"], value["found"]
        if verdict not in KNOWABLE:
            raise KnownError(f'"verdict" is {verdict!r}: allowed are {", ".join(KNOWABLE)}')
        if not isinstance(found, dict) or not all(isinstance(text, str) for text in found.values()):
            raise KnownError('"found" has to be an object of texts')
        return cls(verdict, found)

    def as_json(self) -> dict[str, Any]:
        """The same as a JSON value."""
        return {"verdict": self.verdict, "found": dict(self.found)}

    def __str__(self) -> str:
        found = [f"{what}: {which}" if which else what for what, which in self.found.items()]
        return f"{self.verdict}: {'; '.join(found)}"

    def changed_to(self, other: Loss) -> str:
        """Say in what another loss differs from this one.

        Args:
            other: what came instead.

        Example:
            >>> was = Loss("lossy", {"skipped": "5, 8"})
            >>> was.changed_to(Loss("lossy", {"skipped": "5", "starved": "8"}))
            'skipped: was 5, 8, is 5; starved: was not there, is 8'
        """
        was, now = ({"verdict": loss.verdict, **loss.found} for loss in (self, other))

        def said(found: dict[str, str], what: str) -> str:
            return (found[what] or "there") if what in found else "not there"

        return "; ".join(
            f"{what}: was {said(was, what)}, is {said(now, what)}"
            for what in dict.fromkeys([*was, *now])
            if was.get(what) != now.get(what)
        )


def read(path: Path) -> dict[str, Loss]:
    """Read a file of known losses.

    Args:
        path: of the file.

    Returns:
        The losses by node id.

    Raises:
        KnownError: for a file that can't be read, or an entry that is none.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_each_once)
    except OSError as error:
        raise KnownError(
            f"{path} can't be read: {error.strerror}; --resume-audit-update-known writes it"
        ) from None
    except json.JSONDecodeError as error:
        raise KnownError(f"{path}, line {error.lineno}: {error.msg}") from None
    except (KnownError, ValueError, RecursionError) as error:
        raise KnownError(f"{path}: {error}") from None
    known = found.get("known") if isinstance(found, dict) else None
    if not isinstance(known, dict) or found.get("schema") != SCHEMA:
        raise KnownError(f'{path}: it has to be {{"schema": {SCHEMA}, "known": {{...}}}}')
    losses = {}
    for node_id, value in known.items():
        try:
            losses[node_id] = Loss.read(value)
        except KnownError as error:
            raise KnownError(f"{path}, entry {node_id!r}: {error}") from None
    return losses


def write(path: Path, losses: Mapping[str, Loss]) -> None:
    """Write a file of known losses.

    Args:
        path: of the file.
        losses: by node id.

    Raises:
        OSError: when it can't be written.
    """
    lines = ",\n".join(
        f"{_text(node_id)}: {_text(loss.as_json())}" for node_id, loss in sorted(losses.items())
    )
    path.write_text(f'{{"schema": {SCHEMA}, "known": {{\n{lines}\n}}}}\n', encoding="utf-8")


def functions_of(node_ids: Iterable[str]) -> set[str]:
    """The tests that node ids belong to, whatever their parameters.

    Example:
        >>> functions_of(["a.py::test_x[8-clean]", "a.py::test_x[9-clean]"])
        {'a.py::test_x'}
    """
    tests = set()
    for node_id in node_ids:
        path, _, names = node_id.partition("::")
        tests.add(f"{path}::{names.partition('[')[0]}")
    return tests


def _entry(finding: Finding, report: AuditReport) -> tuple[str, str]:
    """What was found, and which: without what is another one each time, such as a path."""
    if finding.verdict == "hang":
        return "hang", ""
    if finding.verdict in ("error", "refused") and report.error is not None:
        return finding.verdict, type(report.error).__qualname__
    return finding.text.partition("\n")[0], listed(finding.ordinals, room=10**9)


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(name for at, (name, _) in enumerate(pairs) if name in dict(pairs[:at]))
        raise KnownError(f"{twice!r} is in it twice")
    return found


def _text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
