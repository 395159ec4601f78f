"""A callback for the Trainer of Hugging Face, which keeps the counts in its checkpoints.

    python hf_trainer.py --out run --die-at 6 ; python hf_trainer.py --out run
    resume-audit coverage run/checkpoint-12 --complete

``--ignore-data-skip`` is the Trainer's own option of that name, which begins the pass anew.
"""

from __future__ import annotations

import argparse
import os
import signal
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from pytest_resume_audit import PromptCoverage

PROMPTS, PASSES = 24, 2


class CoverageCallback(TrainerCallback):
    """Counts the rows that go into the weights, and keeps the counts in each checkpoint.

    The data set has a column ``row``, the index of each of its rows; with
    ``remove_unused_columns=False`` it comes to the model, before whose forward it is taken out.

    Args:
        coverage: counts by rows: ``ordered=False``.
    """

    FILE = "prompt_coverage"

    def __init__(self, coverage: PromptCoverage) -> None:
        self.coverage = coverage
        self.in_pass = 0
        self.rows: list[int] = []

    def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        if state.global_step:
            checkpoint = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            self.coverage.load(checkpoint / self.FILE)
        more["model"].register_forward_pre_hook(self.take_rows, with_kwargs=True)

    def take_rows(self, model: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
        rows = kwargs.pop("row")
        if model.training:
            self.rows += rows.tolist()
        return args, kwargs

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        self.in_pass = int(state.epoch + 1e-6)

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        self.coverage.add(self.rows, in_pass=self.in_pass)
        self.rows.clear()

    def on_save(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        self.coverage.gather()
        if state.is_world_process_zero:
            checkpoint = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            self.coverage.save(checkpoint / self.FILE)


class DieAt(TrainerCallback):
    """Is killed after a step, as by a preempted machine."""

    def __init__(self, step: int | None) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        if state.global_step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(1, 1)

    def forward(self, prompt: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": self.linear(prompt).square().mean()}


def main(out: Path, die_at: int | None, ignore_data_skip: bool) -> None:
    rows = [{"prompt": torch.tensor([float(row)]), "row": row} for row in range(PROMPTS)]
    coverage = PromptCoverage(PROMPTS, passes=PASSES, ordered=False)
    trainer = Trainer(
        model=Model(),
        args=TrainingArguments(
            output_dir=str(out),
            num_train_epochs=PASSES,
            per_device_train_batch_size=4,
            save_steps=4,
            ignore_data_skip=ignore_data_skip,
            remove_unused_columns=False,
            use_cpu=True,
            report_to="none",
            disable_tqdm=True,
        ),
        train_dataset=rows,
        callbacks=[CoverageCallback(coverage), DieAt(die_at)],
    )
    trainer.train(resume_from_checkpoint=get_last_checkpoint(str(out)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--die-at", type=int, metavar="STEP", help="be killed after this step")
    parser.add_argument("--ignore-data-skip", action="store_true")
    options = parser.parse_args()
    options.out.mkdir(exist_ok=True)
    main(options.out, options.die_at, options.ignore_data_skip)
