"""Which test an item is, and the command that plays it again."""

from __future__ import annotations

import os
import re
import shlex

import pytest

from pytest_resume_audit.marker import Case
from pytest_resume_audit.timeline import Timeline


def node_id(item: pytest.Item) -> str:
    """The node id of a test, of its parts: pytest-xdist may have added a group to the whole.

    Args:
        item: the test.
    """
    assert item.parent is not None
    return f"{item.parent.nodeid}::{item.name}"


def replay(item: pytest.Item, case: Case) -> str:
    """The command that plays a test again.

    Args:
        item: the test.
        case: what it plays.
    """
    words = ["pytest"]
    if case.overridden:
        timeline = case.timeline
        text = timeline.text if isinstance(timeline, Timeline) else timeline.name
        words += ["--resume-audit-timeline", _quoted(text)]
    elif case.chosen and case.matrix is not None:
        words += ["--resume-audit-matrix", case.matrix]
    if case.chosen_life:
        words += ["--resume-audit-life", case.life]
    config = item.config
    path, *names = node_id(item).split("::")
    if config.invocation_params.dir != config.rootpath:
        path = os.path.relpath(config.rootpath / path, config.invocation_params.dir)
    return " ".join([*words, _quoted("::".join([path, *names]))])


def _quoted(word: str) -> str:
    """A word as a shell takes it; in double quotes where they are enough, as Windows knows them."""
    return shlex.quote(word) if re.search(r'["$`\\!]', word) else f'"{word}"'
