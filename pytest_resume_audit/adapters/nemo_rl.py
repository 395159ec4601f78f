"""NVIDIA NeMo RL's asynchronous GRPO, audited: its own parts, driven in its driver's order.

Real are ``AsyncTrajectoryCollector`` with its threads, ``ReplayBufferImpl``, ``CheckpointManager``,
torchdata's ``StatefulDataLoader``, the batches, and the driver's own helpers for save and restore.
The rig's are the answers, and the weights. What ``async_grpo_train`` itself does between them can't
be called apart from it, and is said again here: :meth:`~NemoRLCollector.restore`,
:meth:`~NemoRLCollector.start`, :meth:`~NemoRLCollector.train_step` and
:meth:`~NemoRLCollector.save`. :mod:`~pytest_resume_audit.adapters.nemo_rl_driver` tells when the
driver has changed.

One adapter serves the code before pull request 3599 (https://github.com/NVIDIA-NeMo/RL/pull/3599),
the pull request, and what comes later: it looks at what the classes take. It was run against the
revisions e9835761 (which the pull request starts from), ee5741a1 (its head), 25b33ff4 (the merge of
that head into a later main) and 7ea279ab (a later main, which has it not).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

try:
    import torch
    from torchdata.stateful_dataloader import StatefulDataLoader
except ImportError as error:
    raise ImportError(
        "the adapter to NeMo RL needs torch and torchdata: pip install 'pytest-resume-audit[torch]'"
    ) from error

from pytest_resume_audit.adapters.nemo_rl_checkout import NemoRL, load
from pytest_resume_audit.catalogue import NamedTimeline, matrix
from pytest_resume_audit.collector import Collector
from pytest_resume_audit.control import GenerationFailed
from pytest_resume_audit.fakes.prompts import Prompt, Rollout
from pytest_resume_audit.rig import Rig
from pytest_resume_audit.setup import Setup

ROLLOUTS = "resume_audit_rollouts"
"""The name under which a batch carries the rig's rollouts, one for each of its rows."""

WEIGHTS = Path("policy", "weights", "counts.pt")
"""Where in a checkpoint the weights are."""


# -- what Ray is used for --------------------------------------------------------------------------


class Handle:
    """An object in this process, called as an actor is: ``handle.method.remote(...)``.

    The call is made at once, in the calling thread.

    Args:
        actor: the object.

    Example:
        >>> LocalRay.get(Handle([3, 5, 3]).count.remote(3))
        2
    """

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    def __getattr__(self, name: str) -> _Method:
        return _Method(getattr(self._actor, name))


class _Method:
    def __init__(self, method: Any) -> None:
        self._method = method

    def remote(self, *args: Any, **kwargs: Any) -> Answered:
        return Answered(self._method(*args, **kwargs))


class Answered:
    """What such a call came to: to be awaited, or handed to :meth:`LocalRay.get`.

    Args:
        value: what the method returned.
    """

    def __init__(self, value: Any) -> None:
        self.value = value

    def __await__(self) -> Any:
        yield from ()
        return self.value


class LocalRay:
    """What NeMo RL's collector and its driver's helpers use of ``ray``."""

    @staticmethod
    def get(answer: Any) -> Any:
        """What a call came to."""
        return answer.value


# -- the collector ---------------------------------------------------------------------------------

SIZES = Setup(drop_last=True)
"""The sizes to audit it with by default: its loader leaves out an incomplete last batch."""


class NemoRLCollector(Collector):
    """A training run of NeMo RL.

    A step takes what one hand-out of the loader has, as in NeMo RL: ``setup.batch_size`` is
    ``num_prompts_per_step``. ``setup.max_age`` is ``max_trajectory_age_steps``, 1 unless it is set;
    ``setup.max_failures`` is ``max_generation_failures``. The sizes that it has not are named by
    :func:`lacks`.

    Generation yields each group when all of it has ended, as NeMo-Gym streams them. When one
    generation fails, its batch fails, and what of it has not ended is given up.

    Args:
        rig: loader, engine, buffer and trainer of this life.

    Attributes:
        package: the name of NeMo RL's package.
        whole_batches: whether groups are yielded only when a whole batch has ended, as NeMo RL's
            own rollouts do where NeMo-Gym is not used.
        ray: what stands for ``ray``.

    Example:
        >>> from pytest_resume_audit import run
        >>> print(run(NemoRLCollector, "mid-flight"))  # doctest: +SKIP
    """

    ray: ClassVar[Any] = LocalRay
    package: ClassVar[str] = "nemo_rl"
    whole_batches: ClassVar[bool] = False

    def __init__(self, rig: Rig) -> None:
        super().__init__(rig)
        self.nemo = load(self.package)
        self.nemo.use_ray(self.ray)
        self.config = _config(self.nemo, rig.setup)
        self.step = 0
        self.consumed_samples = 0
        self.trained_frontier = 0
        self.warmed_up = False
        self.checkpointer: Any = None
        self.collector: Any = None
        # What the collector is made with, beyond what every run has.
        self.resumed: dict[str, Any] = {}
        torch.manual_seed(rig.setup.seed)
        self.loader = rig.watch(self._make_loader(), key=lambda batch: batch["idx"])
        self.buffer = self._make_buffer()

    # -- its parts -------------------------------------------------------------------------------

    def _make_loader(self) -> StatefulDataLoader[Any]:
        setup = self.rig.setup
        return StatefulDataLoader(
            [_datum(prompt) for prompt in self.rig.prompts],
            batch_size=setup.batch_size,
            shuffle=setup.shuffle,
            collate_fn=self.nemo.collate,
            drop_last=True,
        )

    def _make_buffer(self) -> Any:
        """The replay buffer, of the size that the driver gives it."""
        setup = self.rig.setup
        sizes: dict[str, Any] = {"max_size": setup.batch_size * self.max_age * 2}
        if "drop_incomplete_targets_on_restore" in self.nemo.takes(self.nemo.buffer):
            sizes["drop_incomplete_targets_on_restore"] = False
        return self.hold(partial(watched_buffer, rig=self.rig), **sizes)

    def hold(self, make: Callable[[NemoRL], Any], **arguments: Any) -> Any:
        """Make an actor.

        Args:
            make: makes its class.
            arguments: what that is made with.

        Returns:
            A handle to it.
        """
        return Handle(make(self.nemo)(**arguments))

    @property
    def max_age(self) -> int:
        """Steps that an answer may be older than the weights it trains."""
        return int(self.config.grpo.async_grpo.max_trajectory_age_steps)

    @property
    def max_steps(self) -> int:
        """Steps that the data is enough for."""
        return self.rig.setup.prompts // self.rig.setup.batch_size

    def _make_checkpointer(self, root: Path) -> None:
        self.config.checkpointing["checkpoint_dir"] = str(root)
        self.checkpointer = self.nemo.checkpoints(self.config.checkpointing)

    # -- as the driver restores and starts -------------------------------------------------------

    def restore(self, checkpoint: Path, *, load_replay_buffer: bool) -> None:
        """Restore in the driver's order: training info, weights, loader, buffer, rollouts."""
        self._make_checkpointer(checkpoint.parent)
        info = self.nemo.grpo._get_grpo_save_state(self.checkpointer.load_training_info(checkpoint))
        self.step, self.consumed_samples = info.current_step, info.consumed_samples
        self.rig.trainer.load_state_dict(torch.load(checkpoint / WEIGHTS))
        self.nemo.load_dataloader_state(self.loader, str(checkpoint), self.config.data)
        kept = self._restore_buffer(checkpoint, load_replay_buffer=load_replay_buffer)
        rollouts: dict[str, Any] = {}
        if (checkpoint / "rollouts.pt").exists():
            rollouts = torch.load(checkpoint / "rollouts.pt", weights_only=False)
        self._resume_from(rollouts, kept)

    def _restore_buffer(self, checkpoint: Path, *, load_replay_buffer: bool) -> dict[str, Any]:
        sizes = {
            "num_prompts_per_step": self.rig.setup.batch_size,
            "current_training_step": self.step,
            "max_age_steps": self.max_age,
        }
        helper = getattr(self.nemo.grpo, "_maybe_restore_async_replay_buffer_checkpoint", None)
        if helper is not None:
            kept = helper(
                self.buffer, str(checkpoint), load_replay_buffer=load_replay_buffer, **sizes
            )
            return kept or {}
        path = checkpoint / "replay_buffer.pt"
        # Without such an option it is left out by removing the file: then the buffer is empty.
        if not load_replay_buffer or not path.exists():
            return {}
        kept = self.ray.get(self.buffer.load_from_path.remote(str(path), **sizes))
        return dict(kept)

    def _resume_from(self, rollouts: dict[str, Any], kept: dict[str, Any]) -> None:
        """What the collector goes on from, and the frontier that the driver counts on from."""
        keys = self.nemo.keys
        behind = keys.NEXT_NEMO_GYM_TASK_INDEX_KEY
        at_least = max(rollouts.get(behind, 0), kept.get(behind, 0))
        self.resumed = {"next_nemo_gym_task_index": at_least}
        self.trained_frontier = self.consumed_samples
        if not self.nemo.has_frontier:
            return
        frontier = rollouts.get(keys.FRONTIER_ORDINAL_KEY)
        base = rollouts.get(keys.RESUME_BASE_ORDINAL_KEY)
        if frontier is None or base is None:
            self.resumed["pending_batch"] = rollouts.get(keys.PENDING_PROMPTS_KEY)
            self.resumed["ordinals_frontier_aligned"] = False
            if self.nemo.warns_of_legacy:
                print("The driver warns: this run descends from a legacy checkpoint")
        else:
            self.resumed = {
                "next_nemo_gym_task_index": int(base),
                "resume_frontier_ordinal": int(frontier),
                "resume_covered_task_indices": list(kept.get(keys.RETAINED_TASK_INDICES_KEY, ())),
                "pending_batch": None,
                "ordinals_frontier_aligned": True,
            }
        if frontier is not None:
            self.trained_frontier = int(frontier)

    def start(self) -> None:
        """Make the collector, tell it the weights' version, and let it collect."""
        self.collector = self.hold(
            partial(gated_collector, rig=self.rig, whole_batches=self.whole_batches),
            policy_generation=None,
            tokenizer=None,
            task_to_env={},
            master_config=self.config,
            replay_buffer=self.buffer,
            start_step=self.step,
            **self.resumed,
        )
        self.ray.get(self.collector.set_weight_version.remote(self.step))
        self.ray.get(self.collector.start_collection.remote(self.loader))

    # -- as the driver trains --------------------------------------------------------------------

    def train_step(self) -> bool:
        """One pass through the driver's loop.

        Where the driver waits, and asks again, this returns False; so it does where the driver
        raises because the data has ended before the last step.

        Collection is quick and training slow: when a step ends, what may be asked for has long
        been. So this also returns False while the script keeps the collector from the loader. A
        version that went by unseen would leave a step that nobody generates for.
        """
        get, buffer, collector = self.ray.get, self.buffer, self.collector
        get(collector.check_health.remote())
        self._check_collection()
        if self.step >= self.max_steps or not self._is_settled() or not self._is_warmed_up():
            return False
        sampled = get(
            buffer.sample.remote(
                num_prompt_groups=self.rig.setup.batch_size,
                current_weight_version=self.step,
                max_age_steps=self.max_age,
            )
        )
        if sampled is None:
            return False
        groups = sampled["trajectories"]
        ordinals = [group.get(self.nemo.keys.NEMO_GYM_TASK_INDEX_KEY) for group in groups]
        if None not in ordinals:
            self.trained_frontier = max(self.trained_frontier, *(o + 1 for o in ordinals))
        rollouts = _rollouts_of(groups)
        if len(rollouts) != self.rig.setup.batch_size * self.rig.setup.group_size:
            return False
        self.rig.trainer.train(rollouts)
        get(collector.prepare_for_refit.remote())
        self.step += 1
        get(collector.set_weight_version.remote(self.step))
        get(collector.resume_after_refit.remote())
        self.consumed_samples += self.rig.setup.batch_size
        return True

    def _is_settled(self) -> bool:
        """Whether the collector has asked for all that it may ask for at this version."""
        return bool(self.ray.get(self.collector.is_settled.remote()))

    def _is_warmed_up(self) -> bool:
        """Whether this step is complete, and the next: the driver waits for both at first."""
        steps = [self.step, self.step + 1] if self.step + 1 < self.max_steps else [self.step]
        self.warmed_up = self.warmed_up or all(
            self.ray.get(
                self.buffer.has_complete_batch.remote(step, self.rig.setup.batch_size, self.max_age)
            )
            for step in steps
        )
        return self.warmed_up

    def _check_collection(self) -> None:
        """Raise what has ended the collector's loop, which only notes that it ended."""
        if self.ray.get(self.collector.get_status.remote()).get("errored"):
            raise RuntimeError("the trajectory collector stopped with an error; see its output")

    # -- as the driver saves ---------------------------------------------------------------------

    def save(self, root: Path, step: int) -> None:
        """Save in the driver's order; the directory gets its name in the background.

        The driver waits for that before its next save, and when it ends; here it is waited for at
        once, since a save that has returned is published.
        """
        get, grpo = self.ray.get, self.nemo.grpo
        if self.checkpointer is None or Path(self.checkpointer.checkpoint_dir) != root:
            self._make_checkpointer(root)
        self.checkpointer.finalize_pending()
        info = grpo._initial_grpo_save_state()
        info.current_step, info.consumed_samples = self.step, self.consumed_samples
        staged = Path(self.checkpointer.init_tmp_checkpoint(self.step, vars(info), self.config))
        (staged / WEIGHTS).parent.mkdir(parents=True)
        torch.save(self.rig.trainer.state_dict(), staged / WEIGHTS)
        if not self.nemo.has_frontier:
            loader_state = get(self.collector.get_dataloader_state.remote())
            torch.save(loader_state, staged / "train_dataloader.pt")
            grpo._save_async_replay_buffer_checkpoint(self.buffer, str(staged))
            rollouts = get(self.collector.get_rollouts_state.remote())
        else:
            both = get(self.collector.get_checkpoint_state.remote(self.trained_frontier))
            loader, rollouts = both["dataloader"], both["rollouts"]
            torch.save(loader["dataloader_state"], staged / "train_dataloader.pt")
            grpo._save_async_replay_buffer_checkpoint(self.buffer, str(staged))
            if loader["frontier_aligned"]:
                rollouts[self.nemo.keys.FRONTIER_ORDINAL_KEY] = loader["frontier_ordinal"]
                rollouts[self.nemo.keys.RESUME_BASE_ORDINAL_KEY] = loader["base_ordinal"]
        torch.save(rollouts, staged / "rollouts.pt")
        self.checkpointer.begin_finalization(staged, wait_fn=None)
        self.checkpointer.finalize_pending()

    @classmethod
    def latest(cls, root: Path) -> Path | None:
        """The checkpoint with the highest step."""
        found = load(cls.package).checkpoints(_checkpointing(root)).get_latest_checkpoint_path()
        return None if found is None else Path(found)

    def downgrade(self, checkpoint: Path) -> None:
        """Rewrite it as before the frontier: the loader's live place, and groups unnumbered."""
        keys = self.nemo.keys
        live = self.ray.get(self.collector.get_dataloader_state.remote())
        torch.save(live, checkpoint / "train_dataloader.pt")
        torch.save({keys.NEXT_NEMO_GYM_TASK_INDEX_KEY: 0}, checkpoint / "rollouts.pt")
        buffered = torch.load(checkpoint / "replay_buffer.pt", weights_only=False)
        for group in buffered["trajectories"]:
            group.pop(keys.NEMO_GYM_TASK_INDEX_KEY, None)
        torch.save(buffered, checkpoint / "replay_buffer.pt")

    # -- the end ---------------------------------------------------------------------------------

    def crash(self) -> None:
        """Let its threads end: a killed actor takes them along, and they wait without a limit."""
        if self.checkpointer is not None:
            self.checkpointer.shutdown()
        if self.collector is not None:
            self.collector.end.remote()

    def stop(self) -> None:
        """The driver ends a run by killing its actors, once what it saved has its name."""
        self.crash()


class WholeBatches(NemoRLCollector):
    """The same, with NeMo RL's own rollouts: the groups of a batch come when all of it has ended.

    Args:
        rig: loader, engine, buffer and trainer of this life.
    """

    whole_batches = True


def lacks(setup: Setup) -> str | None:
    """What of a setup NeMo RL has not, so that nothing would be shown; None: it has all.

    Example:
        >>> lacks(Setup(passes=2))
        'its asynchronous GRPO goes through the data once'
    """
    if setup.passes > 1:
        return "its asynchronous GRPO goes through the data once"
    if setup.max_in_flight is not None:
        return "how much is in flight follows from the age of answers alone"
    if setup.capacity is not None:
        return "the size of its buffer follows from the age of answers alone"
    if setup.prompts % setup.batch_size and not setup.drop_last:
        return "its loader leaves out an incomplete last batch: Setup(drop_last=True)"
    return None


def timelines(name: str) -> tuple[NamedTimeline, ...]:
    """The timelines of a matrix that NeMo RL has the sizes for, with ``SIZES``.

    Args:
        name: of the matrix: ``"smoke"``, ``"nightly"`` or ``"full"``.

    Example:
        >>> [timeline.name for timeline in timelines("smoke")][:2]
        ['clean', 'idle-save']
    """
    return tuple(timeline for timeline in matrix(name) if _has_sizes(timeline))


def _has_sizes(timeline: NamedTimeline) -> bool:
    changes = timeline.ask().timeline.changes if " with " in timeline.script else ()
    return lacks(replace(SIZES, **{**timeline.sizes, **dict(changes)})) is None


# -- what the rig sees -----------------------------------------------------------------------------


def watched_buffer(nemo: NemoRL, rig: Rig) -> Any:
    """NeMo RL's replay buffer, which also says what is in it and what it evicts.

    Args:
        nemo: where the class is from.
        rig: whom it is told.

    Returns:
        A class, made with the same arguments.
    """

    class WatchedBuffer(nemo.buffer):  # type: ignore[misc, name-defined]
        def add(self, trajectory: Any, *args: Any, **kwargs: Any) -> Any:
            status = super().add(trajectory, *args, **kwargs)
            if status == "success":
                _say_buffered(rig, [trajectory])
            return status

        def load_from_path(self, *args: Any, **kwargs: Any) -> Any:
            kept = super().load_from_path(*args, **kwargs)
            _say_buffered(rig, self.trajectories)
            return kept

        def sample(self, *args: Any, **kwargs: Any) -> Any:
            before = list(self.trajectories)
            sampled = super().sample(*args, **kwargs)
            there = [*self.trajectories, *(sampled["trajectories"] if sampled else ())]
            known = {id(group) for group in there}
            for group in before:
                if id(group) not in known:
                    rig.dropped(_rollouts_of([group])[0].prompt, "older than allowed")
            return sampled

    return WatchedBuffer


def _say_buffered(rig: Rig, groups: Iterable[dict[str, Any]]) -> None:
    for rollout in _rollouts_of(groups):
        rig.buffered(rollout)


def _rollouts_of(groups: Iterable[dict[str, Any]]) -> list[Rollout]:
    return [rollout for group in groups for rollout in group["batch"][ROLLOUTS]]


def gated_collector(nemo: NemoRL, rig: Rig, *, whole_batches: bool) -> Any:
    """NeMo RL's collector, whose generation is the rig's.

    Args:
        nemo: where the class is from.
        rig: answers the prompts.
        whole_batches: whether groups are yielded only when all of them have ended.

    Returns:
        A class, made with the same arguments.
    """

    class GatedCollector(nemo.collector):  # type: ignore[misc, name-defined]
        def is_settled(self) -> bool:
            """Whether it waits for the next version of the weights, or has no more data."""
            waits = not self._generation_limit_cleared.is_set()
            return waits or not self.collection_thread.is_alive()

        def end(self) -> None:
            """End its loop, which waits for one of these without a limit."""
            self.running = False
            self._manual_pause_cleared.set()
            self._refit_pause_cleared.set()
            self._generation_limit_cleared.set()

        async def _iter_rollout_groups(
            self, repeated_batch: Any, num_generations: int, *args: Any, **kwargs: Any
        ) -> AsyncIterator[Any]:
            prompts = [rig.prompts[row] for row in repeated_batch["idx"][::num_generations]]
            async for position, rollouts in _answers(rig, prompts, num_generations, whole_batches):
                start = position * num_generations
                batch = repeated_batch.slice(start, start + num_generations)
                batch[ROLLOUTS] = rollouts
                yield nemo.group(group_index=position, final_batch=batch, rollout_metrics={})

    return GatedCollector


async def _answers(
    rig: Rig, prompts: Sequence[Prompt], generations: int, whole_batches: bool
) -> AsyncIterator[tuple[int, list[Rollout]]]:
    """The groups of a batch, each when it has ended; what a failure leaves of it is dropped."""
    left = set(range(len(prompts)))

    async def answer(position: int) -> tuple[int, list[Rollout]]:
        asked = [rig.engine.agenerate(prompts[position], n) for n in range(generations)]
        return position, await asyncio.gather(*asked)

    groups = [asyncio.create_task(answer(position)) for position in sorted(left)]
    try:
        if whole_batches:
            await asyncio.gather(*groups)
        for group in asyncio.as_completed(groups):
            position, rollouts = await group
            left.discard(position)
            yield position, rollouts
    except GenerationFailed:
        for position in sorted(left):
            rig.dropped(prompts[position], "a generation of its batch failed")
        raise


# -- configuration and data ------------------------------------------------------------------------


def _config(nemo: NemoRL, setup: Setup) -> Any:
    """A configuration with what the collector and the driver read of it."""
    grpo = nemo.grpo
    return grpo.MasterConfig.model_construct(
        grpo=grpo.GRPOConfig.model_construct(
            num_prompts_per_step=setup.batch_size,
            num_generations_per_prompt=setup.group_size,
            max_rollout_turns=1,
            async_grpo=grpo.AsyncGRPOConfig.model_construct(
                enabled=True,
                max_trajectory_age_steps=setup.max_age or 1,
                max_generation_failures=setup.max_failures,
                # A refit would else wait until all generations have ended.
                in_flight_weight_updates=True,
                recompute_kv_cache_after_weight_updates=False,
            ),
        ),
        policy={
            "max_total_sequence_length": 8,
            "make_sequence_length_divisible_by": 1,
            "generation": {"backend": "vllm", "vllm_cfg": {"async_engine": True}},
        },
        env={"should_use_nemo_gym": False},
        # The name lets a restart notice another data set.
        data={"train": {"dataset_name": f"audited-{setup.data_set}"}},
        checkpointing=_checkpointing(Path()),
    )


def _checkpointing(root: Path) -> dict[str, Any]:
    return {
        "enabled": True,
        "checkpoint_dir": str(root),
        "metric_name": None,
        "higher_is_better": True,
        "keep_top_k": None,
        "save_period": 1,
        "save_optimizer": False,
    }


def _datum(prompt: Prompt) -> dict[str, Any]:
    """A row of the data set; it is known by its ``idx`` all the way."""
    tokens = torch.tensor([prompt.row])
    return {
        "message_log": [{"role": "user", "content": prompt.text, "token_ids": tokens}],
        "length": 1,
        "extra_env_info": {},
        "loss_multiplier": 1.0,
        "idx": prompt.row,
        "task_name": "audited",
    }
