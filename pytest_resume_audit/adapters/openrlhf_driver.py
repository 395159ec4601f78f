"""Tells when what the adapter says again of OpenRLHF no longer is what OpenRLHF does.

Nearly all of OpenRLHF's run is its own code. What needs a GPU is said again: where the policy
loads, trains and lets go of its experiences, what an engine answers, and the order in which
DeepSpeed writes a checkpoint. For each of these what is called in which order is read from the
source here, and compared with what is known.
"""

from __future__ import annotations

import ast
import difflib
import inspect
import textwrap
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from pytest_resume_audit.adapters.openrlhf_parts import VERSION, OpenRLHF


class Restated(NamedTuple):
    """A method that the adapter has its own of.

    Args:
        where: module and class, below OpenRLHF's package.
        method: its name.
        does: calls, and values that are set or returned by name, in the order of the source.
        here: what of the adapter is to be looked at when that has changed.
    """

    where: tuple[str, str]
    method: str
    does: str
    here: str


_POLICY = ("trainer.ray.ppo_actor", "PolicyModelActor")
_PPO = ("trainer.ray.ppo_actor", "ActorPPOTrainer")
_ENGINE = ("trainer.ray.vllm_engine", "RolloutRayActor")
_TURNS = ("utils.agent", "SingleTurnAgentExecutor")
_DEEPSPEED = ("utils.deepspeed.deepspeed", "deepspeed.DeepSpeedEngine")

RESTATED = (
    Restated(
        _POLICY,
        "init_model_from_pretrained",
        "checkpoint_states= '_actor' exists load_ckpt checkpoint_states=",
        "policy",
    ),
    Restated(_POLICY, "fit", "ppo_train clear", "policy"),
    Restated(_PPO, "ppo_train", "DataLoader training_step", "policy"),
    Restated(_POLICY, "append", "append", "policy"),
    Restated(_POLICY, "get_checkpoint_states", "checkpoint_states", "policy"),
    Restated(_ENGINE, "generate_responses", "execute gather", "Engine"),
    Restated(
        _TURNS,
        "execute",
        "'prompt' 'label' 'observation_tokens' 'action_ranges' 'rollout_log_probs' 'reward' "
        "'scores' 'observation_tokens' 'scores'",
        "Engine",
    ),
    Restated(
        _DEEPSPEED,
        "save_checkpoint",
        "makedirs _save_checkpoint _save_zero_checkpoint commit 'latest'",
        "_weights",
    ),
    Restated(_DEEPSPEED, "load_checkpoint", "'latest' isfile _load_checkpoint", "_weights"),
)
"""What is said again, as OpenRLHF and DeepSpeed have it in the releases that it was run against."""


def order_of(method: Callable[..., Any], watched: Sequence[str]) -> str:
    """What a method does of what is watched, in the order of its source.

    Args:
        method: the method.
        watched: names that are called or read; ``name=`` where one is set; strings, in quotes.

    Example:
        >>> def fit(self):
        ...     self.trainer.ppo_train(0.1)
        ...     print("trained")
        ...     self.trainer.replay_buffer.clear()
        >>> order_of(fit, ["clear", "ppo_train"])
        'ppo_train clear'
    """
    tree = ast.parse(textwrap.dedent(inspect.getsource(method)))
    found = sorted((node.lineno, node.col_offset, name) for node, name in _named(tree))
    return " ".join(name for _, _, name in found if name in watched)


def _named(tree: ast.AST) -> Iterator[tuple[ast.expr, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            yield node, node.attr if isinstance(node.ctx, ast.Load) else f"{node.attr}="
        elif isinstance(node, ast.Name):
            yield node, node.id if isinstance(node.ctx, ast.Load) else f"{node.id}="
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node, repr(node.value)


def changes_in(openrlhf: OpenRLHF, restated: Sequence[Restated] = RESTATED) -> list[str]:
    """What differs from what is known, each with what to do; empty: nothing.

    Args:
        openrlhf: its modules.
        restated: what is known.
    """
    changes = []
    for known in restated:
        order = order_of(_method(openrlhf, known), known.does.split())
        if order != known.does:
            lines = difflib.ndiff(known.does.split(), order.split())
            differences = "\n".join(line for line in lines if not line.startswith("?"))
            changes.append(
                f"{'.'.join(known.where)}.{known.method} is not that of OpenRLHF {VERSION}:\n"
                f"{differences}\nread it, and see that {known.here} of the adapter does the same"
            )
    return changes


def _method(openrlhf: OpenRLHF, known: Restated) -> Callable[..., Any]:
    module, name = known.where
    first, *rest = name.split(".")
    kind = openrlhf.original(module, first)
    for part in rest:
        kind = getattr(kind, part)
    actor = getattr(kind, "__ray_metadata__", None)
    plain = kind if actor is None else actor.modified_class
    method: Callable[..., Any] = getattr(plain, known.method)
    return method
