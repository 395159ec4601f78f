"""TRL's asynchronous GRPO, audited: the whole ``AsyncGRPOTrainer.train()``, on a CPU.

Real are the trainer, its queue and staleness, its batches, forward, backward and optimizer, its
checkpoints and its resume, and the rollout worker, in the child process that it starts. The rig's
are the answers, from :class:`~pytest_resume_audit.adapters.trl_server.AnswersWhenLet`, and the
counts, which ride in the model's own checkpoint.

It was run against TRL 1.16.0 (transformers 5.24.0, accelerate 1.15.0, torch 2.13.0). That release
is used unmodified, but for what it needs GPUs for:

- ``is_vllm_available``, which keeps the worker from being made: vLLM itself is never called, only
  its server, over HTTP.
- ``get_peak_flops_per_device``, which asks for the name of the GPU, for a metric.
- ``packing._flash_attn``, a kernel for GPUs: the same attention, in plain torch.
- ``weight_transfer=``, a public argument: there is nobody to send weights to.

Not in play are the limit of TRL's queue, which is emptied at once into one that the audit can hold,
and the worker's health checks. What is said again of TRL is the rule by which it drops an answer
that is too old (:meth:`_Queue.get`), and where the worker begins (``dataset_start_index``).
:func:`change_in_trl` tells when these have changed.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import queue
import tempfile
import threading
from pathlib import Path
from typing import Any

# Nothing is fetched or told; a thread that tells would be waited for, too.
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")

try:
    import torch
    from datasets import Dataset
    from tokenizers import Tokenizer, models, pre_tokenizers
    from tqdm import tqdm
    from transformers import (
        PreTrainedTokenizerFast,
        Qwen2Config,
        Qwen2ForCausalLM,
        TrainerCallback,
    )
    from transformers.trainer_utils import get_last_checkpoint
    from trl.experimental.async_grpo import (
        AsyncGRPOConfig,
        AsyncGRPOTrainer,
        async_grpo_trainer,
        async_rollout_worker,
        packing,
    )
except ImportError as error:
    raise ImportError(
        "the adapter to TRL needs it: pip install torch==2.13.0 trl==1.16.0 aiohttp requests"
    ) from error

from pytest_resume_audit.adapters.trl_server import (
    EOS,
    PAD,
    WORDS,
    AnswersWhenLet,
    rollout_of,
)
from pytest_resume_audit.collector import SelfDrivenCollector
from pytest_resume_audit.fakes.prompts import Rollout
from pytest_resume_audit.rig import Rig

AGES = 4
"""``max_staleness``, as it is by default in TRL."""


class TRLCollector(SelfDrivenCollector):
    """A training run of TRL's asynchronous GRPO, which saves behind each step.

    A step takes ``setup.prompts_per_step`` groups; ``setup.group_size`` is ``num_generations``,
    ``setup.max_age`` is ``max_staleness``, 4 unless it is set, and ``setup.max_in_flight`` the
    groups that the worker has out, by default as many as TRL would have with that age.

    Its worker goes through the data again and again: it is audited as a stream that never ends, and
    what comes behind the last prompt of the setup only fills up the last steps. So TRL's own rule
    for the end, which counts groups, is not played.

    A resume begins at the lowest prompt that was not trained: what was trained above it comes
    again. That is the promise it is held to, *at least once*.

    Args:
        rig: loader, engine, buffer and trainer of this life.

    Example:
        >>> from pytest_resume_audit import run
        >>> print(run(TRLCollector, "mid-flight", life="process"))  # doctest: +SKIP
    """

    lives = ("process",)
    stream = "endless"
    delivery = "at_least_once"

    def run(self, root: Path, *, resume: Path | None, load_replay_buffer: bool) -> None:
        """Train, until the life is ended. There is no buffer that could be loaded."""
        _stand_in()
        torch.set_num_threads(1)
        # Its thread wakes every ten seconds, and each time that would have to be waited for.
        tqdm.monitor_interval = 0
        setup = self.rig.setup
        samples = setup.prompts_per_step * setup.group_size
        age = AGES if setup.max_age is None else setup.max_age
        groups = setup.max_in_flight or max(age, 1) * setup.prompts_per_step
        slots = groups * setup.group_size
        server = AnswersWhenLet(self.rig, slots=slots, filler=2 * samples)
        with tempfile.TemporaryDirectory() as model:
            tokenizer = _make_model(Path(model))
            trainer = _Audited(
                self.rig,
                server,
                resume,
                model=model,
                reward_funcs=same_reward,
                args=AsyncGRPOConfig(
                    output_dir=str(root),
                    per_device_train_batch_size=samples,
                    num_generations=setup.group_size,
                    max_staleness=age,
                    max_inflight_tasks=slots,
                    token_budget=0,
                    max_completion_length=8,
                    # Never its own end: see the class.
                    num_train_epochs=setup.passes + 100,
                    vllm_server_base_url=server.url,
                    request_timeout=86400,
                    heartbeat_stale_after_s=86400,
                    save_strategy="steps",
                    save_steps=1,
                    use_cpu=True,
                    bf16=False,
                    gradient_checkpointing=False,
                    report_to=[],
                    logging_strategy="no",
                    disable_tqdm=True,
                    seed=setup.seed,
                ),
                train_dataset=_data(self.rig),
                processing_class=tokenizer,
                weight_transfer=_NoTransfer(),
            )
            self.rig.trainer.attach(trainer.model)
            trainer.train(resume_from_checkpoint=None if resume is None else str(resume))

    @classmethod
    def latest(cls, root: Path) -> Path | None:
        """The checkpoint with the highest step, as ``resume_from_checkpoint=True`` finds it."""
        found = get_last_checkpoint(str(root))
        return None if found is None else Path(found)


# -- what the rig sees -----------------------------------------------------------------------------


class _Audited(AsyncGRPOTrainer):  # type: ignore[misc]
    """The trainer, which says what it trains and saves, and waits for the timeline there."""

    def __init__(
        self, rig: Rig, server: AnswersWhenLet, resume: Path | None, **arguments: Any
    ) -> None:
        super().__init__(callbacks=[_Begins(self)], **arguments)
        self.rig, self.server, self.resume = rig, server, resume
        self.rollout_queue = _Queue(self)

    def training_step(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Forward and backward."""
        rollouts = trained_in(self.rig, inputs)
        if rollouts:
            self.rig.trainer.train(rollouts)
        return super().training_step(model, inputs, *args, **kwargs)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        checkpoint = Path(self.args.output_dir, f"checkpoint-{self.state.global_step}")
        self.rig.saving(checkpoint)
        super()._save_checkpoint(model, trial)
        self.rig.saved(checkpoint)


class _Begins(TrainerCallback):  # type: ignore[misc]
    """Comes when a checkpoint is loaded, and before the worker is started."""

    def __init__(self, trainer: _Audited) -> None:
        self._trainer = trainer

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        trainer = self._trainer
        if trainer.resume is not None:
            trainer.rig.restored(trainer.resume)
        trainer.server.begin(trainer.rollout_worker._loop_kwargs["dataset_start_index"])


class _Queue:
    """The queue of answers that the trainer takes from, which says what comes and what is dropped.

    Args:
        trainer: whose queue it is.
    """

    def __init__(self, trainer: _Audited) -> None:
        self._trainer = trainer
        self._theirs = trainer.rollout_worker.rollout_buffer
        self._here: queue.Queue[Any] = queue.Queue()
        self._dropped: set[int] = set()
        threading.Thread(target=self._hand_on, name="resume-audit queue", daemon=True).start()

    def _hand_on(self) -> None:
        trainer = self._trainer
        while True:
            sample = self._theirs.get()
            rollout = rollout_of(trainer.rig, sample.input_ids[sample.completion_mask == 1])
            if rollout is not None:
                trainer.rig.buffered(rollout)
            self._here.put(sample)
            trainer.server.arrived()

    def get(self, timeout: float | None = None) -> Any:
        """The next answer. The trainer drops it, by its own rule, where it is too old."""
        trainer = self._trainer
        # Without a limit: the trainer only asks for the worker's health, and comes again.
        sample = self._here.get()
        if trainer.model_version - sample.model_version > trainer.args.max_staleness:
            rollout = rollout_of(trainer.rig, sample.input_ids[sample.completion_mask == 1])
            if rollout is not None and sample.group_id not in self._dropped:
                self._dropped.add(sample.group_id)
                trainer.rig.dropped(rollout.prompt, "older than max_staleness")
        return sample

    def qsize(self) -> int:
        """How many there are."""
        return self._here.qsize()


def trained_in(rig: Rig, inputs: dict[str, Any]) -> list[Rollout]:
    """The answers of a packed batch, by the tokens that the loss is taken over.

    Args:
        rig: where the prompts are.
        inputs: of ``training_step``: one row, in which prefixes that are shared stand once.
            ``shift_labels`` (1, N) has the token that each position predicts, ``token_index`` and
            ``segment_id`` (1, M) the position and the answer of each token of the loss.

    Example:
        >>> rig = Rig()
        >>> labels = torch.tensor([[-100, 8, 3, 3, 4, 1]])
        >>> index, segment = torch.tensor([[1, 2, 3, 4, 5]]), torch.tensor([[0, 0, 0, 0, 0]])
        >>> batch = {"shift_labels": labels, "token_index": index, "segment_id": segment}
        >>> [rollout.prompt.row for rollout in trained_in(rig, batch)]
        [5]
    """
    chosen = inputs["token_index"] >= 0
    labels = inputs["shift_labels"][0][inputs["token_index"][chosen]]
    segments = inputs["segment_id"][chosen]
    found = []
    for segment in range(int(segments.max()) + 1):
        rollout = rollout_of(rig, labels[segments == segment].tolist())
        if rollout is not None:
            found.append(rollout)
    return found


def same_reward(completions: list[Any], **others: Any) -> list[float]:
    """A reward; which one is of no matter here."""
    return [1.0] * len(completions)


# -- what is said again of TRL ---------------------------------------------------------------------

KNOWN = {
    "RolloutQueueDataset.__iter__": "d92a084c61a3511c",
    "AsyncGRPOTrainer._save_checkpoint": "ac7c7c0f73d720da",
    "AsyncGRPOTrainer._inner_training_loop": "83ea8e8f30f62e92",
    "AsyncGRPOTrainer.compute_loss": "5c0c485d130acb07",
    "TreeRow.pack": "c33de3e4ab8253f0",
    "_AsyncRolloutLoop._repeat_iterator": "ed97bff71aee925b",
    "_AsyncRolloutLoop._generate_one_turn": "3bb24a643860d38e",
}
"""The places of TRL that the adapter leans on, each with a digest of its source in 1.16.0."""


def change_in_trl() -> str | None:
    """What has changed in TRL that the adapter says again, and what to do; None: nothing."""
    changed = [name for name, known in KNOWN.items() if digest_of(name) != known]
    if not changed:
        return None
    return (
        f"TRL is not as in 1.16.0: {', '.join(changed)} changed; read them, and see that "
        "_Queue.get still drops what they drop, _Begins begins where they do, trained_in reads "
        "what they train, and AnswersWhenLet is asked as they ask"
    )


def digest_of(name: str) -> str:
    """A digest of the source of a method, named ``Class.method``."""
    kind, method = name.split(".")
    modules = (async_grpo_trainer, async_rollout_worker, packing)
    owner = next(getattr(module, kind) for module in modules if hasattr(module, kind))
    source = inspect.getsource(getattr(owner, method))
    return hashlib.sha256(source.encode()).hexdigest()[:16]


# -- what is stood in for --------------------------------------------------------------------------


def _stand_in() -> None:
    """Let it run without a GPU and without vLLM: in the process of this life."""
    async_rollout_worker.is_vllm_available = lambda: True
    async_grpo_trainer.get_peak_flops_per_device = lambda *args: None
    packing._flash_attn = _Attention


class _Attention:
    """What is called of FlashAttention: segments of queries, each with the keys of its path."""

    @staticmethod
    def flash_attn_varlen_func(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        cu_seqlens_q: torch.Tensor,
        cu_seqlens_k: torch.Tensor,
        max_seqlen_q: int,
        max_seqlen_k: int,
        *,
        softmax_scale: float,
        causal: bool,
        window_size: tuple[int, int],
    ) -> torch.Tensor:
        """Attention of tokens x heads x width, where queries are the last of their keys."""
        shared = query.shape[1] // key.shape[1]
        keys, values = (x.repeat_interleave(shared, dim=1) for x in (key, value))
        parts = []
        q, k = cu_seqlens_q.tolist(), cu_seqlens_k.tolist()
        for q0, q1, k0, k1 in zip(q, q[1:], k, k[1:], strict=False):
            scores = torch.einsum("qhd,khd->hqk", query[q0:q1], keys[k0:k1]) * softmax_scale
            hidden = torch.ones(q1 - q0, k1 - k0, dtype=torch.bool).triu(k1 - k0 - (q1 - q0) + 1)
            weights = scores.masked_fill(hidden, float("-inf")).softmax(dim=-1)
            parts.append(torch.einsum("hqk,khd->qhd", weights, values[k0:k1]))
        return torch.cat(parts)


class _NoTransfer:
    """Sends no weights: nobody generates with them."""

    def init_weight_transfer(self) -> None:
        """Nothing to set up."""

    def pause(self) -> None:
        """Nothing to pause."""

    def send_weights(self, iterator: Any) -> None:
        """Go through the weights, as whoever sends them does."""
        for _ in iterator:
            pass

    def resume(self) -> None:
        """Nothing to resume."""

    def destroy(self) -> None:
        """Nothing to release."""


def _make_model(directory: Path) -> Any:
    """Write a model of one layer; returns its tokenizer, of one token a word."""
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token=PAD))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token=PAD, eos_token=EOS)
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    # Answers have no parts that could be told apart.
    tokenizer.response_template = {
        "defaults": {"role": "assistant"},
        "start_anchor": PAD,
        "fields": {"content": {"content": "text"}},
    }
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(WORDS),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=64,
        tie_word_embeddings=False,
        eos_token_id=WORDS.index(EOS),
        pad_token_id=WORDS.index(PAD),
    )
    Qwen2ForCausalLM(config).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return tokenizer


def _data(rig: Rig) -> Any:
    """The prompts, in order: the word for its row stands for each."""
    rows = range(len(rig.prompts))
    return Dataset.from_dict({"prompt": [[{"role": "user", "content": str(row)}] for row in rows]})
