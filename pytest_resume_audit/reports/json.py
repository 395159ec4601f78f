"""The summary of a session as JSON, for other programs.

Its form has a version, ``schema``. A new field leaves it as it is; a field that goes, or means
something else, makes it one more.

=================  ==================================================================
``schema``         1
``settings``       lines on what was chosen, such as the budget and its seed
``failures``       sentences on why the session fails, whatever its tests do
``warnings``       sentences on what else has to be known
``audited``        timelines that came to a verdict: what a gate counts
``states``         how many timelines reached each state
``tests``          for each test: ``test``, ``of`` (timelines that it has), ``run``,
                   a count of each outcome (``lossless``, ``lossy``, ``error``,
                   ``hang``, ``refused``, ``known``, ``undetermined``, ``unreached``,
                   ``died``, ``not_run``), ``worst_skip``, ``worst_repeat``, and
                   ``shortest_failing``, a node id or null
``timelines``      for each that was run: the fields of
                   :class:`~pytest_resume_audit.summary.Record`
=================  ==================================================================
"""

from __future__ import annotations

import json
from dataclasses import asdict

from pytest_resume_audit.reports.summary_text import cells
from pytest_resume_audit.summary import Row, Summary

SCHEMA = 1


def render(summary: Summary) -> str:
    """The summary as a JSON text.

    Args:
        summary: of the session.
    """
    return json.dumps(
        {
            "schema": SCHEMA,
            "settings": summary.settings,
            "failures": summary.failures,
            "warnings": summary.warnings,
            "audited": summary.audited,
            "states": summary.states,
            "tests": [_test(row) for row in summary.rows],
            "timelines": [asdict(r) for r in summary.records if r.outcome != "not run"],
        },
        ensure_ascii=False,
    )


def _test(row: Row) -> dict[str, object]:
    failing = row.shortest_failing
    return {
        "test": row.test,
        "of": row.of,
        **{title.replace(" ", "_"): figure for title, figure in cells(row).items()},
        "shortest_failing": None if failing is None else failing.node_id,
    }
