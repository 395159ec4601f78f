"""What counting costs in a training step, and at a save.

    python benchmarks/coverage.py

A step of 512 prompts is counted, of a data set of ten thousand and of ten million prompts, and set
beside a forward, backward and optimizer step of a small network on as many rows. Then the counts of
ten million prompts, of which every other one is trained in no order, are saved and judged.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable

import torch
from torch import nn

from pytest_resume_audit.real_runs.counts import decode
from pytest_resume_audit.real_runs.coverage import PromptCoverage
from pytest_resume_audit.real_runs.judging import judge

STEP, FEW, MANY = 512, 10_000, 10_000_000


def seconds(work: Callable[[], object], times: int = 15) -> float:
    """The median of some."""
    took = []
    for _ in range(times):
        begun = time.perf_counter()
        work()
        took.append(time.perf_counter() - begun)
    return statistics.median(took)


def main() -> None:
    """Measure and print."""
    torch.set_num_threads(1)  # others would have it wait for cores that they have
    drawn = random.Random(0)
    network = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512))
    optimizer = torch.optim.AdamW(network.parameters())
    rows = torch.randn(STEP, 512)

    def step() -> None:
        optimizer.zero_grad()
        network(rows).square().mean().backward()
        optimizer.step()

    few, many = PromptCoverage(FEW), PromptCoverage(MANY)
    of_few, of_many = ([drawn.randrange(size) for _ in range(STEP)] for size in (FEW, MANY))
    training = seconds(step)
    for size, coverage, ordinals in ((FEW, few, of_few), (MANY, many, of_many)):
        counting = seconds(lambda coverage=coverage, ordinals=ordinals: coverage.add(ordinals))
        print(f"{STEP} of {size:,} prompts counted: {counting / training:.4f} of a small step")

    many.add(drawn.sample(range(MANY), MANY // 2))
    text = many.state_dict()["prompt_coverage"]
    print(
        f"{MANY:,} prompts at random: {len(text) / 1e6:.1f} MB as text, {MANY / 1e6:.0f} in memory"
    )
    saving, fixed = seconds(many.state_dict, 3), seconds(many.fixed, 3)
    print(
        f"to save them: {saving / training:.0f} small steps as text, {fixed / training:.1f} fixed"
    )
    counts = decode(text.encode())
    print(f"to judge them: {seconds(lambda: judge(counts), 3) / training:.0f} small steps")


if __name__ == "__main__":
    main()
