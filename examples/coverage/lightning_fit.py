"""A callback for Lightning, whose counts are in each of its checkpoints.

    python lightning_fit.py --out run --die-at 5 ; python lightning_fit.py --out run
    resume-audit coverage run/final.ckpt --complete

``--plain-loader`` takes a loader that has no state: Lightning begins it anew when it resumes.
"""

from __future__ import annotations

import argparse
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn

from pytest_resume_audit import PromptCoverage

PROMPTS, PASSES, BATCH = 24, 2, 4


class CoverageCallback(Callback):
    """Counts the prompts that go into the weights, in each checkpoint.

    Args:
        coverage: of the data set.
        key: gives the places of a batch's prompts in the pass.
    """

    def __init__(self, coverage: PromptCoverage, key: Any) -> None:
        self.coverage = coverage
        self.key = key
        self.since: list[int] = []
        self.step = 0

    def on_train_batch_end(
        self, trainer: Trainer, module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.since += self.key(batch)
        if trainer.global_step > self.step:  # not while gradients are accumulated
            self.coverage.add(self.since, in_pass=trainer.current_epoch)
            self.since.clear()
        self.step = trainer.global_step

    def on_train_start(self, trainer: Trainer, module: Any) -> None:
        self.step = trainer.global_step

    def state_dict(self) -> dict[str, Any]:
        self.coverage.gather()  # Lightning saves on all ranks
        return self.coverage.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.coverage.load_state_dict(state)


class DieAt(Callback):
    """Is killed after a step, as by a preempted machine."""

    def __init__(self, step: int | None) -> None:
        self.step = step

    def on_train_batch_end(self, trainer: Trainer, *more: Any) -> None:
        if trainer.global_step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


class Loader:
    """Batches of a pass in order."""

    place = 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        for start in range(self.begin(), PROMPTS, BATCH):
            self.place = start + BATCH
            yield torch.arange(start, start + BATCH)

    def __len__(self) -> int:
        return PROMPTS // BATCH

    def begin(self) -> int:
        return 0


class StatefulLoader(Loader):
    """The same, whose place Lightning saves and restores, as of torchdata's loader."""

    def begin(self) -> int:
        return self.place % PROMPTS

    def state_dict(self) -> dict[str, int]:
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.place = state["place"]


class Module(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(1, 1)

    def training_step(self, batch: torch.Tensor) -> torch.Tensor:
        return self.linear(batch.float().unsqueeze(1)).square().mean()  # type: ignore[no-any-return]

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters())


def main(out: Path, die_at: int | None, plain_loader: bool) -> None:
    coverage = PromptCoverage(PROMPTS, passes=PASSES)
    checkpoints = ModelCheckpoint(out, filename="{step}", every_n_train_steps=2, save_top_k=-1)
    trainer = Trainer(
        max_epochs=PASSES,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[CoverageCallback(coverage, torch.Tensor.tolist), checkpoints, DieAt(die_at)],
    )
    newest = max(out.glob("step=*.ckpt"), key=lambda path: int(path.stem[5:]), default=None)
    loader = Loader() if plain_loader else StatefulLoader()
    trainer.fit(Module(), loader, ckpt_path=None if newest is None else str(newest))
    trainer.save_checkpoint(out / "final.ckpt")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--die-at", type=int, metavar="STEP", help="be killed after this step")
    parser.add_argument("--plain-loader", action="store_true")
    options = parser.parse_args()
    options.out.mkdir(exist_ok=True)
    main(options.out, options.die_at, options.plain_loader)
