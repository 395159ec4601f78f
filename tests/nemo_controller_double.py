"""A small double of NeMo RL's SingleController, beside :mod:`nemo_double`.

Two pumps in one event loop: one sends off what the loader hands out, up to so many steps ahead;
the other trains a step when all of its groups are there, and saves behind it. It saves the
loader's live place, as NeMo RL does.
"""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from nemo_double import Batch, CheckpointManager, Config, install_module


class Fields(dict):
    """Columns of tensors."""

    def select(self, *names: str) -> Fields:
        return Fields({name: self[name] for name in names})


class TQReplayBuffer:
    def __init__(self, rows: Any, partition: str, *, pad_value_dict: dict[str, int]) -> None:
        self.rows, self.partition = rows, partition
        self.meta_list: list[Any] = []

    async def commit(self, group: str, record: Any, target: int) -> Any:
        logs = [completion.message_log for completion in record.completions]
        tokens = [torch.cat([m["token_ids"] for m in log]) for log in logs]
        names = [f"{group}_{i}" for i in range(len(tokens))]
        self.rows.put_samples(
            sample_ids=names,
            partition_id=self.partition,
            fields=Fields(input_ids=torch.stack(tokens)),
        )
        meta = SimpleNamespace(sample_ids=names, target=target)
        self.meta_list.append(meta)
        return meta

    async def remove(self, indices: list[int], *, remove_in_dp: bool = False) -> int:
        for index in sorted(indices, reverse=True):
            meta = self.meta_list.pop(index)
            if remove_in_dp:
                self.rows.clear_samples(sample_ids=meta.sample_ids, partition_id=self.partition)
        return len(indices)

    async def evict(self, version: int) -> int:
        old = [i for i, meta in enumerate(self.meta_list) if meta.target < version]
        return await self.remove(old, remove_in_dp=True)

    async def state_dict(self) -> list[Any]:
        return [
            (
                meta.sample_ids,
                meta.target,
                self.rows.get_samples(
                    sample_ids=meta.sample_ids,
                    partition_id=self.partition,
                    select_fields=["input_ids"],
                ),
            )
            for meta in self.meta_list
        ]

    async def load_state_dict(self, state: list[Any]) -> int:
        for names, target, fields in state:
            self.rows.put_samples(sample_ids=names, partition_id=self.partition, fields=fields)
            self.meta_list.append(SimpleNamespace(sample_ids=names, target=target))
        return len(state)


class RolloutManager:
    def __init__(self, *, tq_buffer: TQReplayBuffer, **others: Any) -> None:
        self.buffer = tq_buffer

    async def run_rollout(self, input_sample: Any) -> Any:
        raise NotImplementedError

    async def generate_and_push(self, sample: Any, target: int) -> None:
        record = await self.run_rollout(sample)
        await self.buffer.commit(uuid.uuid4().hex, record, target)


class SingleController:
    def __init__(self, config: Any, parts: Any, timings: Any) -> None:
        timings.to_metrics_dict()
        self.config, self.parts = config, parts
        self._checkpointer = CheckpointManager(config.checkpointing)
        self._train_steps = parts.save_state.current_step
        self.epoch = parts.save_state.current_epoch
        self.sent_off = self._train_steps
        self.pushing: set[asyncio.Task[None]] = set()
        self.over = False

    async def run(self) -> None:
        last = self.parts.last_checkpoint_path
        if last is not None:
            saved = torch.load(Path(last, "replay_buffer.pt"), weights_only=False)
            await self.parts.tq_buffer.load_state_dict(saved)
        async with asyncio.TaskGroup() as self.rollouts:
            self.rollouts.create_task(self.send_off())
            self.rollouts.create_task(self.train())

    async def send_off(self) -> None:
        grpo, ahead = self.config.grpo, self.config.async_rl.sampler["max_lookahead_versions"]
        while self.epoch < grpo.max_num_epochs:
            for batch in self.parts.dataloader:
                while self.sent_off > self._train_steps + ahead:
                    await asyncio.sleep(0.005)
                for row in range(self.lacking(batch)):
                    sample = {name: column[row] for name, column in batch.items()}
                    push = self.parts.rollout_manager.generate_and_push(sample, self.sent_off)
                    self.pushing.add(task := self.rollouts.create_task(push))
                    task.add_done_callback(self.pushing.discard)
                self.sent_off += 1
            self.epoch += 1
        self.over = True

    def lacking(self, batch: Batch) -> int:
        there = [meta for meta in self.parts.tq_buffer.meta_list if meta.target == self.sent_off]
        return batch.size - len(there)

    async def train(self) -> None:
        policy, buffer = self.parts.trainer_handle, self.parts.tq_buffer
        while self._train_steps < self.config.grpo.max_num_steps:
            await buffer.evict(self._train_steps)
            due = [i for i, meta in enumerate(buffer.meta_list) if meta.target == self._train_steps]
            if len(due) < self.config.grpo.num_prompts_per_step:
                if self.over and not self.pushing:
                    return
                await asyncio.sleep(0.005)
                continue
            metas = [buffer.meta_list[i] for i in due]
            await buffer.remove(due)
            policy.prepare_for_training()
            policy.begin_train_step(None)
            for meta in metas:
                policy.train_microbatches_from_meta(meta)
            await asyncio.to_thread(policy.finish_train_step)
            self._train_steps += 1
            await self._save_checkpoint({})

    async def _save_checkpoint(self, metrics: dict[str, float]) -> None:
        state = self.parts.save_state
        state.current_step, state.current_epoch = self._train_steps, self.epoch
        place = self.parts.dataloader.state_dict()
        staged = self._checkpointer.init_tmp_checkpoint(self._train_steps, vars(state), self.config)
        self.parts.trainer_handle.save_checkpoint(weights_path=str(staged / "policy" / "weights"))
        torch.save(place, staged / "train_dataloader.pt")
        torch.save(await self.parts.tq_buffer.state_dict(), staged / "replay_buffer.pt")
        self._checkpointer.begin_finalization(staged)


actor = SimpleNamespace(__ray_metadata__=SimpleNamespace(modified_class=SingleController))
for name, contents in {
    "algorithms.single_controller": {"SingleControllerActor": actor},
    "algorithms.single_controller_utils": {},
    "algorithms.single_controller_utils.config": {"MasterConfig": Config, "AsyncRLConfig": Config},
    "algorithms.async_utils.replay_buffer": {"TQReplayBuffer": TQReplayBuffer},
    "experience.rollout_manager": {"RolloutManager": RolloutManager},
    "experience.interfaces": {"PromptGroupRecord": SimpleNamespace, "Completion": SimpleNamespace},
}.items():
    install_module(f"nemo_double_before.{name}", contents)
