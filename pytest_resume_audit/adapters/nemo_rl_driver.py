"""Tells when NeMo RL's driver no longer is what the adapter says again of it.

``async_grpo_train`` is one function of a thousand lines, and what it does between the calls that it
makes can't be called apart from it. The adapter does the same in the same order. That order is read
out of the driver's source here, and compared with those that are known.
"""

from __future__ import annotations

import ast
import difflib
import inspect
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

_RESTORES_BEFORE = "get_latest_checkpoint_path load_from_path load"
_RESTORES = "get_latest_checkpoint_path _maybe_restore_async_replay_buffer_checkpoint load"
_COLLECTS_FIRST = "start_collection set_weight_version"
_COLLECTS_SECOND = "set_weight_version start_collection"
_WARMS_UP = "check_health has_complete_batch has_complete_batch get_trajectories_needed get_status"
_REFITS = "prepare_for_refit weight_version+ set_weight_version resume_after_refit"
_SAVES_BEFORE = (
    "finalize_pending init_tmp_checkpoint save_checkpoint get_dataloader_state save "
    "_save_async_replay_buffer_checkpoint get_rollouts_state save begin_finalization"
)
_SAVES = (
    "finalize_pending init_tmp_checkpoint save_checkpoint get_checkpoint_state save "
    "_save_async_replay_buffer_checkpoint save begin_finalization"
)

KNOWN = {
    "before pull request 3599": f"{_RESTORES_BEFORE} {_COLLECTS_FIRST} {_WARMS_UP} check_health "
    f"sample get_status train {_REFITS} consumed_samples+ {_SAVES_BEFORE} step+",
    "with pull request 3599": f"{_RESTORES} {_COLLECTS_FIRST} {_WARMS_UP} check_health "
    f"sample get_status train {_REFITS} consumed_samples+ {_SAVES} step+",
    # An engine that shares its GPUs with training sleeps meanwhile; the adapter's does not.
    "a later main, without it": f"{_RESTORES_BEFORE} {_COLLECTS_SECOND} {_WARMS_UP} check_health "
    "sample get_status prepare_for_refit train weight_version+ set_weight_version "
    f"{_REFITS} consumed_samples+ {_SAVES_BEFORE} resume_after_refit step+",
}
"""The driver's order in the revisions that the adapter was run against."""

_WATCHED = {name for order in KNOWN.values() for name in order.split()}


def order_of(driver: Callable[..., Any]) -> str:
    """What moves prompts, weights and checkpoints in a driver, in the order of its source.

    Args:
        driver: ``async_grpo_train``.

    Returns:
        Names of what it calls, methods of actors among them, and of what it counts up.

    Example:
        >>> def driver(buffer, collector, step):
        ...     collector.check_health.remote()
        ...     buffer.sample.remote(4)
        ...     print(step)
        ...     step += 1
        >>> order_of(driver)
        'check_health sample step+'
    """
    tree = ast.parse(textwrap.dedent(inspect.getsource(driver)))
    found = sorted((node.lineno, node.col_offset, name) for node, name in _named(tree))
    return " ".join(name for _, _, name in found if name in _WATCHED)


def _named(tree: ast.AST) -> Iterator[tuple[ast.Call | ast.AugAssign, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            function = node.func
            if isinstance(function, ast.Attribute) and function.attr == "remote":
                function = function.value
            if isinstance(function, ast.Attribute):
                yield node, function.attr
            elif isinstance(function, ast.Name):
                yield node, function.id
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            yield node, f"{node.target.id}+"


def change_in(driver: Callable[..., Any]) -> str | None:
    """How a driver's order differs from all that are known, and what to do; None: it is known.

    Args:
        driver: ``async_grpo_train``.
    """
    order = order_of(driver)
    if order in KNOWN.values():
        return None
    nearest = max(KNOWN, key=lambda name: _likeness(KNOWN[name], order))
    differences = "\n".join(
        line
        for line in difflib.ndiff(KNOWN[nearest].split(), order.split())
        if not line.startswith("?")
    )
    return (
        f"the driver of NeMo RL has changed; nearest is that {nearest!r}:\n{differences}\n"
        "read async_grpo_train, and see that restore, start, train_step and save of "
        "NemoRLCollector still do the same"
    )


def _likeness(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one.split(), other.split()).ratio()
