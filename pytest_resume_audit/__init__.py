"""Prove that a training run that is saved, crashes and is restarted loses and repeats no prompt.

Every public name is imported when it is first used: the plugin is loaded in every pytest run of
a project that has it installed.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_resume_audit.adapters.loader import LoaderAudit as LoaderAudit
    from pytest_resume_audit.assertions import (
        AuditFailed as AuditFailed,
        assert_lossless as assert_lossless,
        assert_no_duplicates as assert_no_duplicates,
        assert_no_skips as assert_no_skips,
        assert_skipped as assert_skipped,
    )
    from pytest_resume_audit.catalogue import NamedTimeline as NamedTimeline
    from pytest_resume_audit.collector import (
        Collector as Collector,
        SelfDrivenCollector as SelfDrivenCollector,
    )
    from pytest_resume_audit.collectors.frontier import FrontierCollector as FrontierCollector
    from pytest_resume_audit.collectors.futures import FuturesCollector as FuturesCollector
    from pytest_resume_audit.collectors.live_cursor import (
        LiveCursorCollector as LiveCursorCollector,
    )
    from pytest_resume_audit.command import Command as Command
    from pytest_resume_audit.conductor import run as run
    from pytest_resume_audit.control import (
        GenerationFailed as GenerationFailed,
        LifeEnded as LifeEnded,
    )
    from pytest_resume_audit.fakes.prompts import Prompt as Prompt, Rollout as Rollout
    from pytest_resume_audit.fixture import ResumeAudit as ResumeAudit
    from pytest_resume_audit.real_runs.coverage import PromptCoverage as PromptCoverage
    from pytest_resume_audit.rig import Rig as Rig
    from pytest_resume_audit.setup import Setup as Setup
    from pytest_resume_audit.timeline import Timeline as Timeline, TimelineError as TimelineError
    from pytest_resume_audit.verdict import AuditReport as AuditReport

_HOME = {
    "AuditFailed": "assertions",
    "AuditReport": "verdict",
    "Collector": "collector",
    "Command": "command",
    "FrontierCollector": "collectors.frontier",
    "FuturesCollector": "collectors.futures",
    "GenerationFailed": "control",
    "LifeEnded": "control",
    "LiveCursorCollector": "collectors.live_cursor",
    "LoaderAudit": "adapters.loader",
    "NamedTimeline": "catalogue",
    "Prompt": "fakes.prompts",
    "PromptCoverage": "real_runs.coverage",
    "ResumeAudit": "fixture",
    "Rig": "rig",
    "Rollout": "fakes.prompts",
    "SelfDrivenCollector": "collector",
    "Setup": "setup",
    "Timeline": "timeline",
    "TimelineError": "timeline",
    "assert_lossless": "assertions",
    "assert_no_duplicates": "assertions",
    "assert_no_skips": "assertions",
    "assert_skipped": "assertions",
    "run": "conductor",
}

__all__ = sorted(_HOME)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    try:
        home = _HOME[name]
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
    value = getattr(import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*globals(), *__all__]
