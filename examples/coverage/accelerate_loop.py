"""A training loop with accelerate, which saves the counts with everything else.

    python accelerate_loop.py --out run --die-at 6 ; python accelerate_loop.py --out run
    resume-audit coverage run/final --complete

``--no-skip`` forgets that a restored run has to skip the batches of its pass that are trained.
"""

from __future__ import annotations

import argparse
import os
import signal
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader

from pytest_resume_audit import PromptCoverage

PROMPTS, PASSES, BATCH, SAVE_EVERY = 24, 2, 4, 4


class Progress:
    """The step, saved and restored with the rest."""

    step = 0

    def state_dict(self) -> dict[str, int]:
        return {"step": self.step}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.step = state["step"]


def main(out: Path, die_at: int | None, skip: bool) -> None:
    accelerator = Accelerator(cpu=True)
    model: Any = nn.Linear(1, 1)
    optimizer: Any = torch.optim.AdamW(model.parameters())
    loader: Any = DataLoader(range(PROMPTS), batch_size=BATCH, shuffle=False)  # type: ignore[arg-type]
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    coverage, progress = PromptCoverage(PROMPTS, passes=PASSES), Progress()
    accelerator.register_for_checkpointing(coverage, progress)  # 1

    newest = max(out.glob("step-*"), key=lambda path: int(path.name[5:]), default=None)
    if newest is not None:
        accelerator.load_state(str(newest))

    batches = PROMPTS // BATCH
    for in_pass in range(progress.step // batches, PASSES):
        done = progress.step % batches if skip else 0
        for ordinals in accelerator.skip_first_batches(loader, done):
            accelerator.backward(model(ordinals.float().unsqueeze(1)).square().mean())
            optimizer.step()
            optimizer.zero_grad()
            coverage.add(ordinals, in_pass=in_pass)  # 2
            progress.step += 1
            if progress.step % SAVE_EVERY == 0:
                coverage.gather()  # of all ranks
                accelerator.save_state(str(out / f"step-{progress.step}"))
            if progress.step == die_at:
                os.kill(os.getpid(), signal.SIGKILL)

    coverage.gather()
    accelerator.save_state(str(out / "final"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--die-at", type=int, metavar="STEP", help="be killed after this step")
    parser.add_argument("--no-skip", dest="skip", action="store_false")
    options = parser.parse_args()
    options.out.mkdir(exist_ok=True)
    main(options.out, options.die_at, options.skip)
