"""NVIDIA NeMo RL's SingleController, audited: the newer path, whose own loop trains and saves.

Real are ``SingleControllerActor`` with its rollout and train pumps, its samplers,
``TQReplayBuffer``, ``RolloutManager`` with its retries, ``CheckpointManager`` and the loader. The
rig's are the answers and the weights. Stood in for are, each by no more than is called:

- the data plane (TransferQueue): a dictionary of rows, since rows are only kept and given back;
- the policy: a step is taken by the rig's trainer, when all of its groups have come;
- weight synchronisation and the experiment log: there is nothing to send, and nothing to log;
- Ray: asked once for the GPUs of the cluster.

It was run against revision 7ea279ab of https://github.com/NVIDIA-NeMo/RL.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import torch
from torchdata.stateful_dataloader import StatefulDataLoader

from pytest_resume_audit.adapters.nemo_rl import WEIGHTS, _checkpointing, _datum
from pytest_resume_audit.adapters.nemo_rl_checkout import load
from pytest_resume_audit.collector import SelfDrivenCollector
from pytest_resume_audit.fakes.prompts import Rollout
from pytest_resume_audit.rig import Rig

PARTITION = "train"

_MOST_AWAITS = 8


class SingleControllerCollector(SelfDrivenCollector):
    """A training run of NeMo RL's SingleController, which saves behind each step.

    As in NeMo RL a step takes what one hand-out has: ``setup.batch_size`` is
    ``num_prompts_per_step``. ``setup.max_age`` is how many steps the default sampler, ``in_order``,
    may look ahead, 1 unless it is set; ``setup.max_in_flight`` is ``max_inflight_prompts``.

    Its loop reads the loader without awaiting, so it can't be held there: how much is out follows
    from its own limits.

    Args:
        rig: loader, engine, buffer and trainer of this life.

    Attributes:
        package: the name of NeMo RL's package.
    """

    package: ClassVar[str] = "nemo_rl"

    def __init__(self, rig: Rig) -> None:
        super().__init__(rig)
        self.nemo = load(self.package)
        self.module = self.nemo.module("algorithms.single_controller")
        vars(self.module).update(Logger=_Ignores, ray=_NoCluster)
        torch.manual_seed(rig.setup.seed)
        loader = StatefulDataLoader(
            [_datum(prompt) for prompt in rig.prompts],
            batch_size=rig.setup.batch_size,
            shuffle=rig.setup.shuffle,
            collate_fn=self.nemo.collate,
            drop_last=True,
        )
        self.loader = rig.watch(loader, key=lambda batch: batch["idx"])
        self.rows = _Rows()

    def run(self, root: Path, *, resume: Path | None, load_replay_buffer: bool) -> None:
        """Train to the end, in an event loop."""
        config = _config(self, root)
        state = self.nemo.grpo._initial_grpo_save_state()
        if resume is not None:
            info = self.nemo.checkpoints(config.checkpointing).load_training_info(resume)
            state = self.nemo.grpo._get_grpo_save_state(info)
            self.rig.trainer.load_state_dict(torch.load(resume / WEIGHTS))
            self.nemo.load_dataloader_state(self.loader, str(resume), config.data)
            self.rig.restored(resume)
        _run(self._run(config, state, resume if load_replay_buffer else None))

    async def _run(self, config: Any, state: Any, resume: Path | None) -> None:
        parts = SimpleNamespace(
            partition_id=PARTITION,
            dp_client=self.rows,
            gen_handle=_Ignores(),
            trainer_handle=_Policy(self.rig, self.rows),
            dataloader=self.loader,
            weight_synchronizer=_Ignores(),
            advantage_estimator=None,
            loss_fn=None,
            tq_buffer=_watched_buffer(self),
            env_handles={},
            save_state=state,
            last_checkpoint_path=None if resume is None else str(resume),
            train_cluster=None,
            inference_cluster=None,
        )
        parts.rollout_manager = _gated_manager(self, parts.tq_buffer)
        timings = SimpleNamespace(to_metrics_dict=dict)
        controller = _gated_controller(self)(config, parts, timings)
        await controller.run()

    @classmethod
    def latest(cls, root: Path) -> Path | None:
        """The checkpoint with the highest step."""
        found = load(cls.package).checkpoints(_checkpointing(root)).get_latest_checkpoint_path()
        return None if found is None else Path(found)


def _run(main: Coroutine[Any, Any, None]) -> None:
    """Run a loop to its end; when its life ends first, what it leaves is closed with it."""
    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(loop.create_task(main))
    finally:
        for task in asyncio.all_tasks(loop):
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            _close(task.get_coro())
        loop.close()


def _close(coroutine: Any) -> None:
    # Each await in a ``finally`` keeps it from closing once. Left to the collection of garbage it
    # would be closed when there is no loop any more, and complain.
    for _ in range(_MOST_AWAITS):
        try:
            coroutine.close()
        except RuntimeError:
            continue
        return


# -- what the rig sees -----------------------------------------------------------------------------


def _gated_controller(collector: SingleControllerCollector) -> Any:
    """The controller, whose saves are gates; what it saves gets its name at once."""
    rig, actor = collector.rig, collector.module.SingleControllerActor

    class GatedController(actor.__ray_metadata__.modified_class):  # type: ignore[misc, name-defined]
        async def _save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
            root = Path(self._checkpointer.checkpoint_dir)
            checkpoint = root / f"step_{self._train_steps}"
            await asyncio.to_thread(rig.saving, checkpoint)
            await super()._save_checkpoint(*args, **kwargs)
            await asyncio.to_thread(self._checkpointer.finalize_pending)
            await asyncio.to_thread(rig.saved, checkpoint)

    return GatedController


def _gated_manager(collector: SingleControllerCollector, buffer: Any) -> Any:
    """The rollout manager, whose answers are the rig's."""
    rollouts = collector.nemo.module("experience.rollout_manager")
    records = collector.nemo.keys
    rig = collector.rig

    class GatedManager(rollouts.RolloutManager):  # type: ignore[misc, name-defined]
        async def run_rollout(self, input_sample: Any) -> Any:
            row = int(input_sample["idx"])
            prompt, size = rig.prompts[row], rig.setup.group_size
            given = await asyncio.gather(*(rig.engine.agenerate(prompt, n) for n in range(size)))
            asked = input_sample["message_log"]
            return records.PromptGroupRecord(
                prompt_idx=row,
                prompt=asked,
                extra_env_info={},
                metadata={},
                completions=[
                    records.Completion(
                        message_log=[*map(dict, asked), _said(rollout)],
                        env_extras=None,
                        truncated=False,
                        reward=1.0,
                    )
                    for rollout in given
                ],
                rollout_metrics={},
            )

    return GatedManager(
        tokenizer=None,
        task_to_env={},
        num_generations_per_prompt=rig.setup.group_size,
        max_seq_len=8,
        policy_generation=_Ignores(),
        tq_buffer=buffer,
    )


def _said(rollout: Rollout) -> dict[str, Any]:
    return {
        "role": "assistant",
        "content": rollout.text,
        "token_ids": torch.tensor([rollout.generation, rollout.ticket]),
        "generation_logprobs": torch.zeros(2),
    }


def _watched_buffer(collector: SingleControllerCollector) -> Any:
    """The replay buffer, which says what is in it, and what it evicts."""
    module = collector.nemo.module("algorithms.async_utils.replay_buffer")
    rig, rows = collector.rig, collector.rows

    class WatchedBuffer(module.TQReplayBuffer):  # type: ignore[misc, name-defined]
        async def commit(self, *args: Any, **kwargs: Any) -> Any:
            meta = await super().commit(*args, **kwargs)
            self.say_buffered([meta])
            return meta

        async def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
            restored = await super().load_state_dict(*args, **kwargs)
            self.say_buffered(self.meta_list)
            return restored

        async def remove(self, indices: Any, *args: Any, **kwargs: Any) -> Any:
            evicted = [self.meta_list[i] for i in indices] if kwargs.get("remove_in_dp") else []
            for meta in filter(None, evicted):
                rollouts = _rollouts(rig, rows, meta.sample_ids)
                rig.dropped(rollouts[0].prompt, "its step has passed")
            return await super().remove(indices, *args, **kwargs)

        def say_buffered(self, metas: Iterable[Any]) -> None:
            for meta in metas:
                for rollout in _rollouts(rig, rows, meta.sample_ids):
                    rig.buffered(rollout)

    return WatchedBuffer(rows, PARTITION, pad_value_dict={"token_ids": 0})


def _rollouts(rig: Rig, rows: _Rows, samples: Iterable[str]) -> list[Rollout]:
    """The answers in these rows, which their tokens stand for."""
    found = []
    for sample in samples:
        row, generation, ticket = rows.tokens(sample)[:3]
        found.append(Rollout(rig.prompts[row], generation, weight_version=0, ticket=ticket))
    return found


# -- what is stood in for --------------------------------------------------------------------------


class _Rows:
    """A data plane: rows by name."""

    def __init__(self) -> None:
        self._rows: dict[str, tuple[Any, int]] = {}

    def put_samples(self, *, sample_ids: list[str], fields: Any, **others: Any) -> None:
        self._rows.update((name, (fields, i)) for i, name in enumerate(sample_ids))

    def get_samples(self, *, sample_ids: list[str], select_fields: list[str], **others: Any) -> Any:
        # It is asked for a group at a time, as it was put.
        fields, _ = self._rows[sample_ids[0]]
        return fields.select(*select_fields)

    def clear_samples(self, *, sample_ids: list[str], **others: Any) -> None:
        for name in sample_ids:
            self._rows.pop(name, None)

    def tokens(self, name: str) -> list[int]:
        """The tokens of a row."""
        fields, i = self._rows[name]
        return [int(token) for token in fields["input_ids"].unbind()[i]]


class _Policy:
    """The policy's steps, and its part of a checkpoint."""

    def __init__(self, rig: Rig, rows: _Rows) -> None:
        self._rig, self._rows = rig, rows
        self._step: list[Rollout] = []

    def begin_train_step(self, loss: Any) -> None:
        self._step = []

    def train_microbatches_from_meta(self, meta: Any) -> None:
        self._step += _rollouts(self._rig, self._rows, meta.sample_ids)

    def finish_train_step(self) -> dict[str, float]:
        self._rig.trainer.train(self._step)
        return {"loss": 0.0, "grad_norm": 0.0}

    def save_checkpoint(self, weights_path: str, **others: Any) -> None:
        path = Path(weights_path) / WEIGHTS.name
        path.parent.mkdir(parents=True)
        torch.save(self._rig.trainer.state_dict(), path)

    def prepare_for_training(self) -> None: ...

    def finalize_async_save(self) -> None: ...


class _Ignores:
    """Something that is told what the audit has no use for."""

    requires_kv_scale_sync = False

    def __init__(self, *args: Any) -> None: ...

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args, **kwargs: None


class _NoCluster:
    """What the controller uses of ``ray``."""

    @staticmethod
    def cluster_resources() -> dict[str, float]:
        return {}


def _config(collector: SingleControllerCollector, root: Path) -> Any:
    """A configuration with what the controller reads of it."""
    setup, grpo = collector.rig.setup, collector.nemo.grpo
    configs = collector.nemo.module("algorithms.single_controller_utils.config")
    age = setup.max_age or 1
    most = setup.batch_size * (age + 1)
    return configs.MasterConfig.model_construct(
        grpo=grpo.GRPOConfig.model_construct(
            num_prompts_per_step=setup.batch_size,
            num_generations_per_prompt=setup.group_size,
            max_num_epochs=setup.passes,
            max_num_steps=setup.total // setup.batch_size,
            skip_reference_policy_logprobs_calculation=True,
        ),
        async_rl=configs.AsyncRLConfig(
            sampler={"name": "in_order", "max_lookahead_versions": age},
            min_groups_for_streaming_train=setup.batch_size,
            max_inflight_prompts=setup.max_in_flight or most,
            max_buffered_rollouts=most,
        ),
        loss_fn=grpo.ClippedPGLossConfig.model_construct(
            force_on_policy_ratio=True, reference_policy_kl_penalty=0.0
        ),
        policy={
            "train_global_batch_size": setup.batch_size * setup.group_size,
            "generation": {"backend": "vllm", "vllm_cfg": {"async_engine": True}},
        },
        env={"should_use_nemo_gym": False},
        data={"train": {"dataset_name": f"audited-{setup.data_set}"}},
        logger={},
        checkpointing={**_checkpointing(root), "checkpoint_must_save_by": None},
    )
