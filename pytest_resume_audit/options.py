"""The options that are about all audits of a session together, checked before anything is run."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest

from pytest_resume_audit.selection import Budget, SelectionError, Shard

_T = TypeVar("_T")

NOTHING_TO_UPDATE = "--resume-audit-update-known needs the file: --resume-audit-known FILE"


@dataclass(frozen=True, kw_only=True)
class Options:
    """What is asked of the session as a whole.

    Args:
        budget: how long audits may take; with pytest-xdist, in each worker.
        seed: of the order in which they are taken then.
        shard: the part that is run.
        require: the fewest timelines that have to be audited, and the option that says so.
        known: the file of known losses.
        update_known: whether it is written anew.
        json: a file for the summary as JSON.
        markdown: a file that the summary is added to as Markdown.
    """

    budget: Budget | None = None
    seed: int = 0
    shard: Shard | None = None
    require: tuple[str, int] | None = None
    known: Path | None = None
    update_known: bool = False
    json: Path | None = None
    markdown: Path | None = None

    @classmethod
    def of(cls, config: pytest.Config) -> Options:
        """Check the options.

        Args:
            config: of pytest.

        Raises:
            pytest.UsageError: for one that can't be, and what is allowed.
        """

        def given(name: str) -> Any:
            return config.getoption(f"resume_audit_{name}", None)

        update_known = bool(given("update_known"))
        if update_known and given("known") is None:
            raise pytest.UsageError(NOTHING_TO_UPDATE)
        paths: dict[str, Path | None] = {}
        for name in ("known", "json", "markdown"):
            path = paths[name] = (
                None if given(name) is None else config.invocation_params.dir / given(name)
            )
            written = name != "known" or update_known
            if path is not None and written and not is_worker(config):
                _check_writable(f"--resume-audit-{name}", path)
        return cls(
            budget=_parsed("--resume-audit-budget", Budget.parse, given("budget")),
            seed=given("seed") or 0,
            shard=_parsed("--resume-audit-shard", Shard.parse, given("shard")),
            require=_required(config),
            update_known=update_known,
            **paths,
        )


def is_worker(config: pytest.Config) -> bool:
    """Whether this is a process that pytest-xdist has started: it runs a part, and sums up none.

    Args:
        config: of pytest.
    """
    return hasattr(config, "workerinput")


def _parsed(option: str, parse: Callable[[str], _T], text: str | None) -> _T | None:
    """What an option says, if it is given."""
    try:
        return None if text is None else parse(text)
    except SelectionError as error:
        raise pytest.UsageError(f"{option}: {error}") from None


def _required(config: pytest.Config) -> tuple[str, int] | None:
    least = config.getoption("resume_audit_require", None)
    option = "--resume-audit-require"
    if least is None:
        option, least = "resume_audit_require", config.getini("resume_audit_require")
    if least is None:
        return None
    if least < 1:
        raise pytest.UsageError(f"{option}: {least} is no number of timelines above 0")
    return option, least


def _check_writable(option: str, path: Path) -> None:
    """Tell before anything is run that a file can't be written, where that can be told."""
    if path.is_dir():
        raise pytest.UsageError(f"{option}: {path} is a directory: give a file")
    if not path.parent.is_dir():
        raise pytest.UsageError(f"{option}: there is no directory {path.parent}: make it first")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise pytest.UsageError(f"{option}: {path} can't be written: permission denied")
