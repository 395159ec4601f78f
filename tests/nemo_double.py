"""A small double of NeMo RL: classes of the same shape, for tests where there is no checkout.

It has the places that the adapter touches, and a way of its own between them: a loop that fills
target after target, a thread for each batch that is out. As NeMo RL there are two of it, before and
with frontiers in checkpoints: ``nemo_double_before`` and ``nemo_double_after``.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

ORDINAL, NEXT = "_ordinal", "next_ordinal"
FRONTIER, BASE, KEPT, PENDING = "frontier", "base", "kept", "pending"


class Batch(dict):
    """Columns of one length."""

    @property
    def size(self) -> int:
        return len(self["idx"])

    def pick(self, rows: Iterable[int]) -> Batch:
        rows = list(rows)
        return Batch({name: [column[row] for row in rows] for name, column in self.items()})

    def slice(self, start: int, end: int) -> Batch:
        return self.pick(range(start, end))

    def repeated(self, times: int) -> Batch:
        return self.pick([row for row in range(self.size) for _ in range(times)])


def rl_collate_fn(rows: list[dict[str, Any]]) -> Batch:
    return Batch({name: [row[name] for row in rows] for name in rows[0]})


@dataclass
class RolloutGroupResult:
    group_index: int
    final_batch: Batch
    rollout_metrics: dict[str, Any]


# -- configuration -------------------------------------------------------------------------------


class Config(SimpleNamespace):
    @classmethod
    def model_construct(cls, **values: Any) -> Config:
        return cls(**values)


# -- buffer --------------------------------------------------------------------------------------


class ReplayBufferImpl:
    def __init__(self, max_size: int) -> None:
        self.max_size = max_size
        self.trajectories: list[dict[str, Any]] = []
        self._lock = threading.Lock()

    def add(self, trajectory: dict[str, Any], weight_version: int, target: int) -> str:
        with self._lock:
            if len(self.trajectories) >= self.max_size:
                return "full"
            self.trajectories.append({**trajectory, "version": weight_version, "target": target})
            return "success"

    def sample(self, num_prompt_groups: int, current_weight_version: int, max_age_steps: int):
        with self._lock:
            oldest = current_weight_version - max_age_steps
            self.trajectories = [t for t in self.trajectories if t["version"] >= oldest]
            due = [t for t in self.trajectories if t["target"] == current_weight_version]
            if len(due) < num_prompt_groups:
                return None
            self.trajectories = [t for t in self.trajectories if t not in due]
            return {"trajectories": due, "avg_trajectory_age": 0.0}

    def get_trajectories_needed(self, target: int, wanted: int, max_age: int) -> int:
        with self._lock:
            return wanted - sum(t["target"] == target for t in self.trajectories)

    def has_complete_batch(self, target: int, wanted: int, max_age: int) -> bool:
        return self.get_trajectories_needed(target, wanted, max_age) <= 0

    def save_to_path(self, path: str) -> int:
        torch.save({"trajectories": self.trajectories}, path)
        return len(self.trajectories)

    def load_from_path(
        self, path: str, num_prompts_per_step: int, current_training_step: int, max_age_steps: int
    ) -> dict[str, Any]:
        self.trajectories = torch.load(path, weights_only=False)["trajectories"]
        kept = [t[ORDINAL] for t in self.trajectories if ORDINAL in t]
        return {NEXT: max(kept, default=-1) + 1, KEPT: kept}


# -- collector -----------------------------------------------------------------------------------


class Before:
    """Saves the loader's live place; throws away what of a batch a target does not take."""

    def __init__(
        self,
        policy_generation: Any,
        tokenizer: Any,
        task_to_env: dict[str, Any],
        master_config: Any,
        replay_buffer: Any,
        start_step: int = 0,
        next_nemo_gym_task_index: int = 0,
    ) -> None:
        grpo = master_config.grpo
        self.wanted, self.generations = grpo.num_prompts_per_step, grpo.num_generations_per_prompt
        self.age = grpo.async_grpo.max_trajectory_age_steps
        self.tolerated = grpo.async_grpo.max_generation_failures
        self.buffer = replay_buffer
        self.version = self.first_target = start_step
        self.next_ordinal = next_nemo_gym_task_index
        self.busy: set[int] = set()
        self.out: set[int] = set()
        self.rest: Batch | None = None
        self.failures = 0
        self.fatal: str | None = None
        self.running = self.errored = False
        self._manual_pause_cleared = threading.Event()
        self._refit_pause_cleared = threading.Event()
        self._generation_limit_cleared = threading.Event()
        for event in (self._manual_pause_cleared, self._refit_pause_cleared):
            event.set()
        self._generation_limit_cleared.set()

    def start_collection(self, dataloader: Any) -> None:
        self.dataloader, self.running = dataloader, True
        self.collection_thread = threading.Thread(target=self._loop, daemon=True)
        self.collection_thread.start()

    def _loop(self) -> None:
        batches = iter(self.dataloader)
        try:
            while self.running:
                self._refit_pause_cleared.wait()
                target = self._next_target()
                if target is None:
                    self._generation_limit_cleared.clear()
                    # Between the look and the clearing somebody may have ended.
                    if self._next_target() is None:
                        self._generation_limit_cleared.wait()
                    self._generation_limit_cleared.set()
                    continue
                batch, self.rest = self.rest, None
                if batch is None:
                    self._remember_place()
                    batch = next(batches, None)
                if batch is None:
                    return
                batch = self._wanted_of(batch)
                if batch.size:
                    self._dispatch(batch, target)
        except Exception:
            self.errored = True

    def _next_target(self) -> int | None:
        for target in range(max(self.version, self.first_target), self.version + self.age + 1):
            if target not in self.busy and self._needed(target) > 0:
                return target
        return None

    def _needed(self, target: int) -> int:
        answered = self.buffer.get_trajectories_needed.remote(target, self.wanted, self.age)
        return int(ray.get(answered))

    def _dispatch(self, batch: Batch, target: int) -> None:
        needed = self._needed(target)
        taken, rest = batch.slice(0, min(needed, batch.size)), None
        if needed < batch.size:
            rest = batch.slice(needed, batch.size)
        self._keep(rest)
        self.busy.add(target)
        self.out.update(taken[ORDINAL])
        work = self._work(taken, target, self.version)
        threading.Thread(target=asyncio.run, args=[work], daemon=True).start()

    async def _work(self, batch: Batch, target: int, version: int) -> None:
        groups = self._iter_rollout_groups(batch.repeated(self.generations), self.generations)
        try:
            async for group in groups:
                made = {"batch": group.final_batch, ORDINAL: group.final_batch[ORDINAL][0]}
                await self.buffer.add.remote(made, version, target)
                self.out.discard(made[ORDINAL])
            self.failures = 0
        except Exception as error:
            self.failures += 1
            if self.failures > self.tolerated:
                self.fatal = f"too many failures, the last one: {error!r}"
            # What is lost for good holds no checkpoint back.
            self.out.difference_update(batch[ORDINAL])
        self.busy.discard(target)
        self._generation_limit_cleared.set()

    def _iter_rollout_groups(self, repeated_batch: Batch, num_generations: int) -> Any:
        raise NotImplementedError

    def set_weight_version(self, version: int) -> None:
        self.version = version
        # A target that was trained is not filled again; the one of this version is.
        self.first_target = version
        self._generation_limit_cleared.set()

    def prepare_for_refit(self) -> None:
        self._refit_pause_cleared.clear()

    def resume_after_refit(self) -> None:
        self._refit_pause_cleared.set()

    def check_health(self) -> None:
        if self.fatal is not None:
            raise RuntimeError(self.fatal)

    def get_status(self) -> dict[str, Any]:
        return {"running": self.running, "errored": self.errored}

    def get_dataloader_state(self) -> Any:
        return self.dataloader.state_dict()

    def get_rollouts_state(self) -> dict[str, Any]:
        return {NEXT: self.next_ordinal}

    # what the two differ in

    def _remember_place(self) -> None: ...

    def _wanted_of(self, batch: Batch) -> Batch:
        batch[ORDINAL] = list(range(self.next_ordinal, self.next_ordinal + batch.size))
        self.next_ordinal += batch.size
        return batch

    def _keep(self, rest: Batch | None) -> None: ...


class After(Before):
    """Saves the place before the oldest prompt that is out; keeps the rest of a batch."""

    def __init__(
        self,
        *args: Any,
        pending_batch: Batch | None = None,
        ordinals_frontier_aligned: bool = True,
        resume_frontier_ordinal: int | None = None,
        resume_covered_task_indices: Any = (),
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.aligned = ordinals_frontier_aligned
        self.rest = pending_batch
        self.trained_below = resume_frontier_ordinal or 0
        self.covered = set(resume_covered_task_indices)
        self.places: list[tuple[int, Any]] = []

    def _remember_place(self) -> None:
        self.places.append((self.next_ordinal, self.dataloader.state_dict()))

    def _wanted_of(self, batch: Batch) -> Batch:
        if ORDINAL in batch:  # kept from before
            return batch
        ordinals = super()._wanted_of(batch)[ORDINAL]
        return batch.pick(
            row
            for row, ordinal in enumerate(ordinals)
            if ordinal >= self.trained_below and ordinal not in self.covered
        )

    def _keep(self, rest: Batch | None) -> None:
        self.rest = rest

    def get_checkpoint_state(self, frontier_ordinal: int) -> dict[str, Any]:
        rollouts = self.get_rollouts_state()
        waiting = self.rest[ORDINAL] if self.rest else ()
        cut = min([frontier_ordinal, *self.out, *waiting])
        if not self.aligned:
            if self.rest:
                rollouts[PENDING] = self.rest
            loader = {"dataloader_state": self.get_dataloader_state(), "frontier_aligned": False}
            return {"dataloader": loader, "rollouts": rollouts}
        here = (self.next_ordinal, self.get_dataloader_state())
        base, state = [place for place in [*self.places, here] if place[0] <= cut][-1]
        loader = {"dataloader_state": state, "base_ordinal": base, "frontier_aligned": True}
        return {"dataloader": {**loader, "frontier_ordinal": cut}, "rollouts": rollouts}


# -- checkpoints ---------------------------------------------------------------------------------


class CheckpointManager:
    def __init__(self, config: dict[str, Any]) -> None:
        self.checkpoint_dir = Path(config["checkpoint_dir"])
        self.naming: threading.Thread | None = None

    def init_tmp_checkpoint(self, step: int, info: dict[str, Any], config: Any) -> Path:
        staged = self.checkpoint_dir / f"tmp_step_{step}"
        staged.mkdir()
        (staged / "training_info.json").write_text(json.dumps(info))
        (staged / "config.json").write_text(json.dumps(config.data))
        return staged

    def begin_finalization(self, staged: Path, wait_fn: Any = None) -> None:
        named = self.checkpoint_dir / staged.name.removeprefix("tmp_")

        def name() -> None:
            if named.exists():
                os.rename(named, self.checkpoint_dir / f"old_{named.name}_{os.urandom(4).hex()}")
            os.rename(staged, named)

        self.naming = threading.Thread(target=name, daemon=True)
        self.naming.start()

    def finalize_pending(self) -> None:
        if self.naming is not None:
            self.naming.join()

    def shutdown(self) -> None:
        self.finalize_pending()

    def get_latest_checkpoint_path(self) -> str | None:
        steps = [int(p.name.removeprefix("step_")) for p in self.checkpoint_dir.glob("step_*")]
        return str(self.checkpoint_dir / f"step_{max(steps)}") if steps else None

    def load_training_info(self, checkpoint: Any) -> dict[str, Any]:
        info: dict[str, Any] = json.loads(Path(checkpoint, "training_info.json").read_text())
        return info


def load_dataloader_state(loader: Any, checkpoint: str, data: dict[str, Any]) -> None:
    if json.loads(Path(checkpoint, "config.json").read_text()) == data:
        loader.load_state_dict(torch.load(Path(checkpoint, "train_dataloader.pt")))


# -- driver --------------------------------------------------------------------------------------


@dataclass
class SaveState:
    current_step: int = 0
    current_epoch: int = 0
    consumed_samples: int = 0
    notes: dict[str, str] = field(default_factory=dict)


def _get_grpo_save_state(info: dict[str, Any]) -> SaveState:
    return SaveState(**info)


def _save_async_replay_buffer_checkpoint(buffer: Any, checkpoint: str) -> int:
    return int(ray.get(buffer.save_to_path.remote(os.path.join(checkpoint, "replay_buffer.pt"))))


def _maybe_restore_async_replay_buffer_checkpoint(
    buffer: Any, checkpoint: str, *, load_replay_buffer: bool, **sizes: Any
) -> dict[str, Any] | None:
    path = os.path.join(checkpoint, "replay_buffer.pt")
    if not load_replay_buffer or not os.path.exists(path):
        return None
    kept: dict[str, Any] = ray.get(buffer.load_from_path.remote(path, **sizes))
    return kept


def drives_before(manager: Any, buffer: Any, collector: Any, policy: Any, step: int) -> None:
    """In the order of the driver before the pull request; it is read, and never run."""
    newest = manager.get_latest_checkpoint_path()
    buffer.load_from_path.remote(newest)
    torch.load("rollouts.pt")
    collector.start_collection.remote()
    collector.set_weight_version.remote(step)
    collector.check_health.remote()
    buffer.has_complete_batch.remote(step)
    buffer.has_complete_batch.remote(step + 1)
    buffer.get_trajectories_needed.remote(step)
    collector.get_status.remote()
    weight_version = consumed_samples = 0
    while step < 4:
        collector.check_health.remote()
        buffer.sample.remote(4)
        collector.get_status.remote()
        policy.train()
        collector.prepare_for_refit.remote()
        weight_version += 1
        collector.set_weight_version.remote(weight_version)
        collector.resume_after_refit.remote()
        consumed_samples += 4
        manager.finalize_pending()
        staged = manager.init_tmp_checkpoint(step, consumed_samples)
        policy.save_checkpoint(staged)
        loader = collector.get_dataloader_state.remote()
        torch.save(loader, staged)
        _save_async_replay_buffer_checkpoint(buffer, staged)
        rollouts = collector.get_rollouts_state.remote()
        torch.save(rollouts, staged)
        manager.begin_finalization(staged)
        step += 1


def drives_after(manager: Any, buffer: Any, collector: Any) -> None:
    """Warns of a legacy checkpoint, and has lost a call on the way."""
    manager.get_latest_checkpoint_path()
    collector.check_health.remote()
    buffer.sample.remote(4)


# -- modules -------------------------------------------------------------------------------------


class ray:
    """What the double uses of Ray: that of its modules, where the adapter puts a stand-in."""

    @staticmethod
    def get(answer: Any) -> Any:
        return next(module.ray for module in USE_RAY if module.ray is not None).get(answer)


USE_RAY: list[Any] = []


def install_module(name: str, contents: dict[str, Any]) -> Any:
    """Make a module importable, or put more into it."""
    module: Any = sys.modules.setdefault(name, ModuleType(name))
    module.__spec__ = ModuleSpec(name, None, is_package=True)
    module.__path__ = []
    vars(module).update(contents)
    return module


def install(package: str, collector: type[Before], buffer: type = ReplayBufferImpl) -> None:
    """Make the double importable under a name."""
    after = issubclass(collector, After)
    grpo = {
        "MasterConfig": Config,
        "GRPOConfig": Config,
        "AsyncGRPOConfig": Config,
        "ClippedPGLossConfig": Config,
        "_get_grpo_save_state": _get_grpo_save_state,
        "_initial_grpo_save_state": SaveState,
        "_save_async_replay_buffer_checkpoint": _save_async_replay_buffer_checkpoint,
        "async_grpo_train": drives_after if after else drives_before,
    }
    helper = _maybe_restore_async_replay_buffer_checkpoint
    if after:
        grpo[helper.__name__] = helper
    keys = {"NEMO_GYM_TASK_INDEX_KEY": ORDINAL, "NEXT_NEMO_GYM_TASK_INDEX_KEY": NEXT}
    if after:
        keys |= {"FRONTIER_ORDINAL_KEY": FRONTIER, "RESUME_BASE_ORDINAL_KEY": BASE}
        keys |= {"RETAINED_TASK_INDICES_KEY": KEPT, "PENDING_PROMPTS_KEY": PENDING}
    actor = SimpleNamespace(__ray_metadata__=SimpleNamespace(modified_class=collector))
    modules: dict[str, dict[str, Any]] = {
        "": {},
        "algorithms": {},
        "algorithms.grpo": grpo,
        "algorithms.async_utils": {"AsyncTrajectoryCollector": actor},
        "algorithms.async_utils.replay_buffer": {"ReplayBufferImpl": buffer},
        "algorithms.async_utils.trajectory_collector": {},
        "utils.checkpoint": {"CheckpointManager": CheckpointManager},
        "data.collate_fn": {"rl_collate_fn": rl_collate_fn},
        "data.utils": {"load_dataloader_state": load_dataloader_state},
        "experience.rollouts": {"RolloutGroupResult": RolloutGroupResult},
        "experience.interfaces": keys,
    }
    for name, contents in modules.items():
        full = f"{package}.{name}".rstrip(".")
        module = install_module(full, contents)
        if name in ("algorithms.grpo", "algorithms.async_utils.trajectory_collector"):
            module.ray = None
            USE_RAY.append(module)


install("nemo_double_before", Before)
install("nemo_double_after", After)
