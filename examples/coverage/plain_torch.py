"""A plain training loop in torch, whose checkpoints count what they were trained on.

    python plain_torch.py --out run --die-at 5 ; python plain_torch.py --out run
    resume-audit coverage run/final.pt

Eight prompts are out at a time, and a few take long, so that a checkpoint is written while some are
in flight. ``--way old`` saves the loader's live place, and loses them.
"""

from __future__ import annotations

import argparse
import os
import signal
from pathlib import Path

import torch
from torch import nn

from pytest_resume_audit import PromptCoverage

PROMPTS, AHEAD, BATCH, SAVE_EVERY = 24, 8, 4, 3


def main(out: Path, way: str, die_at: int | None) -> None:
    model = nn.Linear(1, 1)
    optimizer = torch.optim.AdamW(model.parameters())
    coverage = PromptCoverage(PROMPTS)
    coverage.attach(model)  # 1: the counts are saved and restored with the model

    step = place = 0
    settled: set[int] = set()
    newest = max(out.glob("step-*.pt"), key=lambda path: int(path.stem[5:]), default=None)
    if newest is not None:
        saved = torch.load(newest)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        step, place, settled = saved["step"], saved["place"], set(saved["settled"])

    in_flight: set[int] = set()
    while True:
        while len(in_flight) < AHEAD and place < PROMPTS:
            if place not in settled:
                in_flight.add(place)
            place += 1
        if not in_flight:
            break

        # One prompt in eight takes longer than all the others.
        batch = sorted(in_flight, key=lambda ordinal: (ordinal % 8 == 3, ordinal))[:BATCH]
        optimizer.zero_grad()
        model(torch.tensor(batch).float().unsqueeze(1)).square().mean().backward()
        optimizer.step()
        coverage.add(batch)  # 2: right behind the optimizer's step
        step += 1
        in_flight -= set(batch)
        settled |= set(batch)
        print(f"step {step}", flush=True)

        if step % SAVE_EVERY == 0:
            cut = place if way == "old" else min(in_flight, default=place)
            coverage.mark(cut)  # what a restart from this checkpoint will do
            staged = out / "staged"
            torch.save(
                {
                    "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "step": step,
                    "place": cut,
                    "settled": sorted(ordinal for ordinal in settled if ordinal >= cut),
                },
                staged,
            )
            staged.replace(out / f"step-{step}.pt")
        if step == die_at:
            os.kill(os.getpid(), signal.SIGKILL)

    coverage.mark(PROMPTS)
    torch.save({"model": model.state_dict()}, out / "final.pt")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--way", choices=("old", "new"), default="new")
    parser.add_argument("--die-at", type=int, metavar="STEP", help="be killed after this step")
    options = parser.parse_args()
    options.out.mkdir(exist_ok=True)
    main(options.out, options.way, options.die_at)
