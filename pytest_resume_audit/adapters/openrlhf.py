"""OpenRLHF's asynchronous PPO and its relatives, audited: the released code, in one process.

Real are the whole of its own run, ``train(args)`` of its command line, with the arguments that this
makes of options; ``PPOTrainerAsync``, ``GenerateSamplesActor``, ``TrainingActor`` and ``VLLMLock``,
``SamplesGenerator`` with its buffer, the experience maker, ``RayActorGroup``, the policy's part in
saves, ``DeepspeedStrategy`` with its rotation of checkpoints, ``PromptDataset``, and torchdata's
``StatefulDataLoader``. The rig's are the answers, and the weights. What is stood in for, and why:

- **Ray**, by threads (:mod:`~pytest_resume_audit.adapters.local_ray`): a life takes a second. Over
  Ray itself, :mod:`~pytest_resume_audit.adapters.openrlhf_ray`, it takes a minute.
- **The model server**, ``RolloutRayActor``: it answers when the timeline lets it, a prompt at a
  time, as the real one gives all samples of a prompt together.
- **The policy's model**: loading, forward, backward and the sync of weights need a GPU. It loads
  its checkpoint where the real one does, and trains where the real one does: what is trained is
  counted there, with the default ``--train.micro_batch_size`` of 1. Larger ones leave out what does
  not fill one, and gradients of a step below ``--train.batch_size`` wait for the next: not seen.
- **DeepSpeedEngine**: it writes DeepSpeed's files in DeepSpeed's order, with the counts in them.
- **The data set's files, and the tokenizer**: the rig's prompts, and none.
- **torch_dist_barrier_and_cuda_sync**: there is one rank, and no GPU.
- The shuffle of ``setup_dataloader`` is the setup's, and memory is not pinned: there is no GPU.

:mod:`~pytest_resume_audit.adapters.openrlhf_driver` tells when what is said again here of the
policy, the engines and DeepSpeed has changed. It was run against OpenRLHF 0.11.2
(https://github.com/OpenRLHF/OpenRLHF).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

try:
    import torch
except ImportError as error:
    raise ImportError(
        "the adapter to OpenRLHF needs torch: pip install 'pytest-resume-audit[torch]'"
    ) from error

from pytest_resume_audit.adapters.local_ray import LocalCluster, LocalQueue, LocalRay
from pytest_resume_audit.adapters.openrlhf_parts import OpenRLHF, load
from pytest_resume_audit.catalogue import NamedTimeline, matrix
from pytest_resume_audit.collector import SelfDrivenCollector
from pytest_resume_audit.fakes.prompts import Rollout
from pytest_resume_audit.rig import Rig
from pytest_resume_audit.setup import Setup

ACTOR = "_actor"
"""The directory, below ``--ckpt.path``, with the policy's checkpoints."""

LATEST = "latest"
"""The file in there with the name of the newest one."""

WEIGHTS = "mp_rank_00_model_states.pt"
OPTIMIZER = "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt"


class OpenRLHFCollector(SelfDrivenCollector):
    """A training run of OpenRLHF with ``--train.async_enable``.

    A hand-out is what is generated at a time, a step what is trained at a time:
    ``setup.batch_size`` is ``--rollout.vllm_generate_batch_size``, ``setup.prompts_per_step``
    ``--rollout.batch_size``, ``setup.group_size`` ``--rollout.n_samples_per_prompt``,
    ``setup.passes`` ``--train.num_episodes``. The sizes that it has not are named by :func:`lacks`.
    It saves behind each step.

    Args:
        rig: loader, engine, buffer and trainer of this life.

    Attributes:
        package: the name of OpenRLHF's package.
        options: more options of its command line.

    Example:
        >>> from pytest_resume_audit import Setup, run
        >>> print(run(OpenRLHFCollector, "drain", setup=Setup(prompts=8)))  # doctest: +SKIP
    """

    lives: ClassVar[tuple[str, ...]] = ("local", "process")
    package: ClassVar[str] = "openrlhf"
    options: ClassVar[Sequence[str]] = ()

    def __init__(self, rig: Rig) -> None:
        super().__init__(rig)
        self.openrlhf = load(self.package)

    def run(self, root: Path, *, resume: Path | None, load_replay_buffer: bool) -> None:
        """Train to the end. There is no buffer in a checkpoint to be loaded or left out."""
        torch.manual_seed(self.rig.setup.seed)
        if resume is not None and resume != self.latest(root):
            # An older checkpoint is chosen by hand: nothing of the command line names one.
            (resume.parent / LATEST).write_text(resume.name)
        afresh = resume is None and self.latest(root) is not None
        args = self.openrlhf.arguments(_options(self.rig.setup, root, afresh, self.options))
        self.openrlhf.replace(stand_ins(self.openrlhf, self.rig))
        self.train(args)

    def train(self, args: Any) -> None:
        """Train with the arguments of its command line, over a Ray of threads."""
        cluster = LocalCluster()
        self.openrlhf.replace(_local_ray(self.openrlhf, self.rig, cluster))
        self.openrlhf.entry.train(args)
        cluster.end()

    @classmethod
    def latest(cls, root: Path) -> Path | None:
        """The checkpoint that DeepSpeed's file names.

        What a torn one names is not there. Then it is the newest, and a restart from it fails.
        """
        latest = root / ACTOR / LATEST
        if not latest.is_file():
            return None
        name = latest.read_text().strip()
        named = root / ACTOR / name
        return named if name and named.is_dir() else super().latest(root / ACTOR)


class PartialRolloutCollector(OpenRLHFCollector):
    """The same with ``--train.partial_rollout_enable``: weights change while answers are out."""

    options = ("--train.partial_rollout_enable",)


def lacks(setup: Setup) -> str | None:
    """Which size of a setup OpenRLHF has not, and why; None: it has all.

    Example:
        >>> lacks(Setup(max_age=1))
        'max_age: OpenRLHF trains answers of any age'
    """
    for field, why in (
        ("max_age", "OpenRLHF trains answers of any age"),
        ("capacity", "its queue holds steps, not groups"),
        ("max_in_flight", "it generates --rollout.vllm_generate_batch_size prompts at a time"),
        ("drop_last", "its loader hands out prompts one by one, and leaves none out"),
    ):
        if getattr(setup, field):
            return f"{field}: {why}"
    return None


def timelines(name: str) -> tuple[NamedTimeline, ...]:
    """The timelines of a matrix whose sizes OpenRLHF has.

    Args:
        name: of the matrix.
    """
    return tuple(
        timeline for timeline in matrix(name) if lacks(Setup(**dict(timeline.sizes))) is None
    )


def _options(setup: Setup, root: Path, afresh: bool, more: Sequence[str]) -> list[str]:
    """What would be typed to train, of its documented asynchronous runs, the least."""
    step = setup.prompts_per_step * setup.group_size
    return [
        *("--actor.model_name_or_path", "audited", "--actor.num_gpus_per_node", "1"),
        *(
            "--data.prompt_dataset",
            "audited",
            "--data.input_key",
            "text",
            "--data.label_key",
            "row",
        ),
        *("--reward.remote_url", "audited", "--algo.kl.init_coef", "0"),
        *("--algo.advantage.estimator", "reinforce", "--vllm.num_engines", "1"),
        *("--train.async_enable", "--train.num_episodes", str(setup.passes)),
        *("--train.batch_size", str(step), "--train.seed", str(setup.seed)),
        *("--rollout.batch_size", str(setup.prompts_per_step)),
        *("--rollout.vllm_generate_batch_size", str(setup.batch_size)),
        *("--rollout.n_samples_per_prompt", str(setup.group_size)),
        *("--rollout.micro_batch_size", "1"),
        *("--ckpt.path", str(root), "--ckpt.save_steps", "1"),
        *(() if afresh else ("--ckpt.load_enable",)),
        *more,
    ]


def stand_ins(openrlhf: OpenRLHF, rig: Rig) -> dict[str, dict[str, Any]]:
    """The names in OpenRLHF's modules that mean something else in each process of a life.

    Args:
        openrlhf: its modules.
        rig: of the life.
    """
    return {
        "trainer.ppo_trainer_async": {
            "SamplesGenerator": _watched_samples(openrlhf, rig),
            "get_tokenizer": lambda *names, **options: _NoTokenizer(),
        },
        "trainer.ppo_trainer": {"blending_datasets": lambda *names, **options: _rows(rig)},
        "trainer.ray.ppo_actor": {"torch_dist_barrier_and_cuda_sync": lambda: None},
        "utils.deepspeed": {"DeepspeedStrategy": _watched_strategy(openrlhf, rig)},
        "utils.deepspeed.deepspeed": {"torch_dist_barrier_and_cuda_sync": lambda: None},
    }


def _local_ray(openrlhf: OpenRLHF, rig: Rig, cluster: LocalCluster) -> dict[str, dict[str, Any]]:
    """The names that mean Ray, or one of its actors."""
    main = "trainer.ppo_trainer_async"
    engines = [cluster.actors(Engine).remote(rig)]
    actors = ("PPOTrainerAsync", "GenerateSamplesActor", "TrainingActor", "VLLMLock")
    return {
        "cli.train_ppo_ray": {
            "ray": LocalRay,
            "create_vllm_engines": lambda *sizes, **options: engines,
            "PolicyModelActor": cluster.actors(policy(openrlhf, rig)),
        },
        main: {
            "ray": LocalRay,
            "Queue": LocalQueue,
            **{name: cluster.actors(openrlhf.plain(main, name)) for name in actors},
        },
        "trainer.ppo_trainer": {"ray": LocalRay},
        "trainer.ppo_utils.samples_generator": {"ray": LocalRay},
        "trainer.ppo_utils.experience_maker": {"ray": LocalRay},
        "trainer.ray.vllm_engine": {"ray": LocalRay},
        "trainer.ray.launcher": {"ray": LocalRay},
    }


# -- what the rig sees -----------------------------------------------------------------------------


def _watched_strategy(openrlhf: OpenRLHF, rig: Rig) -> Any:
    """The strategy, whose loader is watched. A prompt's row is its label."""
    strategy = openrlhf.original("utils.deepspeed.deepspeed", "DeepspeedStrategy")

    class WatchedStrategy(strategy):  # type: ignore[misc, valid-type]
        def setup_dataloader(
            self, dataset: Any, batch_size: int, pin: bool, shuffle: bool, *args: Any, **kwargs: Any
        ) -> Any:
            loader = super().setup_dataloader(
                dataset, batch_size, False, rig.setup.shuffle, *args, **kwargs
            )
            return rig.watch(loader, key=lambda batch: [int(row) for row in batch[2]])

    return WatchedStrategy


def _watched_samples(openrlhf: OpenRLHF, rig: Rig) -> Any:
    """The generator of samples, which says what enters its buffer."""
    samples = openrlhf.original("trainer.ppo_utils.samples_generator", "SamplesGenerator")

    class WatchedSamples(samples):  # type: ignore[misc, valid-type]
        def _generate_vllm(self, *args: Any, **kwargs: Any) -> Any:
            experiences, *others = super()._generate_vllm(*args, **kwargs)
            for rollout in _rollouts(rig, experiences):
                rig.buffered(rollout)
            return experiences, *others

    return WatchedSamples


class Engine:
    """What is called of ``RolloutRayActor``.

    The tokens of an answer are row, generation and ticket.

    Args:
        rig: answers the prompts.
    """

    def __init__(self, rig: Rig) -> None:
        self._rig = rig

    async def generate_responses(
        self, *, prompt: str, label: str, num_samples: int, **others: Any
    ) -> list[dict[str, Any]]:
        """Answer a prompt: all its samples together."""
        asked = self._rig.prompts[int(label)]
        given = [await self._rig.engine.agenerate(asked, n) for n in range(num_samples)]
        return [
            {
                "prompt": prompt,
                "label": label,
                "observation_tokens": [int(label), rollout.generation, rollout.ticket],
                "action_ranges": [(1, 3)],
                "rollout_log_probs": None,
                "reward": 1.0,
                "scores": 1.0,
            }
            for rollout in given
        ]

    def get_num_unfinished_requests(self) -> int:
        """Requests that it still answers: by which an engine is chosen, of several."""
        return 0

    async def pause_generation(self) -> None:
        """Hold its answers while weights change: the timeline holds them."""

    async def resume_generation(self) -> None:
        """Go on with them."""


def _rollouts(rig: Rig, experiences: Iterable[Any]) -> list[Rollout]:
    """The answers in experiences, which their tokens stand for."""
    tokens = [row.tolist() for experience in experiences for row in experience.sequences]
    return [
        Rollout(rig.prompts[row], generation, weight_version=0, ticket=ticket)
        for row, generation, ticket in tokens
    ]


def policy(openrlhf: OpenRLHF, rig: Rig) -> Any:
    """The policy's worker, whose training and saves are gates.

    Args:
        openrlhf: its modules.
        rig: whom it is told.

    Returns:
        A class, made with the same arguments.
    """

    class Policy(openrlhf.plain("trainer.ray.ppo_actor", "PolicyModelActor")):  # type: ignore[misc]
        def __init__(self, *world: Any) -> None:
            """Be the only rank: no address is written into the environment."""

        def init_model_from_pretrained(self, strategy: Any, *others: Any) -> None:
            checkpoints = strategy.args.ckpt
            self.strategy = strategy
            self.save_hf_ckpt, self.disable_ds_ckpt = checkpoints.save_hf, checkpoints.disable_ds
            self.actor = SimpleNamespace(model=_weights(openrlhf, rig))
            self.trainer = SimpleNamespace(replay_buffer=[])
            self.checkpoint_states: Any = {}
            directory = Path(checkpoints.path, ACTOR)
            if checkpoints.load_enable and directory.exists():
                found, self.checkpoint_states = strategy.load_ckpt(self.actor.model, str(directory))
                if found is not None:
                    rig.restored(Path(found))

        def forward(self, *, action_mask: torch.Tensor, **others: Any) -> torch.Tensor:
            return torch.zeros(action_mask.shape)

        def fit(self, **others: Any) -> dict[str, Any]:
            rig.trainer.train(_rollouts(rig, self.trainer.replay_buffer))
            self.trainer.replay_buffer.clear()
            return {}

        def broadcast_to_vllm(self) -> None: ...

        def save_model(self) -> None: ...

        def save_checkpoint(self, tag: str, *args: Any, **kwargs: Any) -> None:
            checkpoint = Path(self.strategy.args.ckpt.path, ACTOR, tag)
            rig.saving(checkpoint)
            super().save_checkpoint(tag, *args, **kwargs)
            rig.saved(checkpoint)

    return Policy


def _weights(openrlhf: OpenRLHF, rig: Rig) -> Any:
    """DeepSpeed's engine, of which only the checkpoints are there."""
    trainer = rig.trainer
    deepspeed = openrlhf.module("utils.deepspeed.deepspeed").deepspeed

    class Weights(deepspeed.DeepSpeedEngine):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            torch.nn.Module.__init__(self)

        def __del__(self) -> None: ...

        def save_checkpoint(
            self, save_dir: str, *, tag: str, client_state: dict[str, Any], save_latest: bool
        ) -> None:
            checkpoint = Path(save_dir, tag)
            checkpoint.mkdir(parents=True, exist_ok=True)
            torch.save({"module": trainer.state_dict(), **client_state}, checkpoint / WEIGHTS)
            torch.save({}, checkpoint / OPTIMIZER)
            if save_latest:
                with open(Path(save_dir, LATEST), "w") as file:
                    file.write(tag)

        def load_checkpoint(
            self, load_dir: str, tag: str | None, **others: Any
        ) -> tuple[str | None, Any]:
            latest = Path(load_dir, LATEST)
            if tag is None and not latest.is_file():
                return None, None
            checkpoint = Path(load_dir, latest.read_text().strip() if tag is None else tag)
            state = torch.load(checkpoint / WEIGHTS, weights_only=False)
            torch.load(checkpoint / OPTIMIZER)
            trainer.load_state_dict(state.pop("module"))
            return str(checkpoint), state

    return Weights()


# -- what is stood in for --------------------------------------------------------------------------


class _Rows(list[dict[str, str]]):
    def select(self, places: Iterable[int]) -> _Rows:
        return _Rows(self[place] for place in places)


def _rows(rig: Rig) -> _Rows:
    """The data set."""
    return _Rows({"text": prompt.text, "row": str(prompt.row)} for prompt in rig.prompts)


class _NoTokenizer:
    """What is called of a tokenizer: it shows the first answer of a step in the log."""

    pad_token_id = 0

    def decode(self, tokens: torch.Tensor, **options: Any) -> list[str]:
        """What tokens say."""
        return [str(row.tolist()) for row in tokens]
