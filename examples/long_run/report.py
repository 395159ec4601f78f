"""Makes a page and plots of the runs that ``run.py`` has made.

    python report.py --runs results --page ../../docs/long-run.md

Skipped prompts and their causes are what ``resume-audit ledger`` and ``resume-audit coverage`` say;
the rest comes from the logs and the files. Needs matplotlib.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot

sys.path.insert(0, str(Path(__file__).parents[1] / "real_training"))
from train import Sums

WAYS = {"old": "tab:red", "new": "tab:blue"}
LENGTHS = ((3, 3), (4, 5), (6, 9), (10, 19), (20, 128))
"""Digits of a prompt, from and to, that are put together."""


@dataclass
class Run:
    """What one run says of itself.

    Args:
        way: ``"old"`` or ``"new"``.
        summary: of ``run.py``.
        ledger: as ``resume-audit ledger --json`` prints it.
        coverage: as ``resume-audit coverage --json`` prints it.
        strip: the picture of ``resume-audit coverage``.
        rewards: by step, of the lineage.
        sizes: of the checkpoints, in bytes.
    """

    way: str
    summary: dict[str, Any]
    ledger: dict[str, Any]
    coverage: dict[str, Any]
    strip: str
    rewards: dict[int, float]
    sizes: list[int]

    @property
    def skipped(self) -> list[int]:
        """Rows that no step of the lineage has trained."""
        return [int(row) for loss in self.ledger["skipped"] for row in loss["named"]]


def read(directory: Path) -> Run:
    """Read what a run has left."""
    checkpoints = sorted(
        (directory / "checkpoints").glob("step-*.pt"), key=lambda path: int(path.stem[5:])
    )
    rewards = {}
    for line in (directory / "log.txt").read_text(encoding="utf-8").splitlines():
        if found := re.search(r"step (\d+) reward ([\d.]+)", line):
            rewards[int(found[1])] = float(found[2])  # a step that was rolled back comes again
    summary = json.loads((directory / "summary.json").read_text(encoding="utf-8"))
    last = str(checkpoints[-1])
    return Run(
        way=summary["way"],
        summary=summary,
        ledger=json.loads(asked("ledger", "--json", str(directory / "ledger"))),
        coverage=json.loads(asked("coverage", "--json", last)),
        strip=asked("coverage", last),
        rewards=rewards,
        sizes=[path.stat().st_size for path in checkpoints],
    )


def asked(*words: str) -> str:
    """What ``resume-audit`` prints."""
    command = [sys.executable, "-m", "pytest_resume_audit", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


# --- the page -------------------------------------------------------------------------------------


def page(runs: list[Run], lengths: list[int], plots: dict[str, str]) -> str:
    """The report, in Markdown."""
    of = {way: [run for run in runs if run.way == way] for way in WAYS}
    lives = [len(run.summary["lives"]) for run in runs]
    old = of["old"]
    lost = [row for run in old for row in run.skipped]
    ranked = sorted(lengths)
    half, tenth = ranked[len(ranked) // 2], ranked[-len(ranked) // 10]
    text = f"""# One long run, before and after

A real asynchronous training, killed by SIGKILL at random moments and started again, once the old
way and once the new way, with each of {len(old)} seeds: [examples/long_run](../examples/long_run).
A small policy in torch learns by REINFORCE to say the sum of every two neighbouring digits.
{len(lengths)} prompts are handed out 8 at a time, 32 are out at once, 16 threads generate 4 answers
to each; most prompts are short and a few are long (half have {half} digits, one in ten {tenth} or
more). It saves every 5 steps, and had {min(lives)} to {max(lives)} lives. All that differs is what
a checkpoint says of the loader's place.

    python examples/long_run/run.py --out results --prompts {len(lengths)} --kills 30
    python examples/long_run/report.py --runs results --page docs/long-run.md

## Prompts that were never trained

| seed | way | lives | skipped | trained twice | skipped, by the counts in the weights |
|---|---|---|---|---|---|
"""
    for run in sorted(runs, key=lambda run: (run.summary["seed"], run.way == "new")):
        text += (
            f"| {run.summary['seed']} | {run.way} | {len(run.summary['lives'])} "
            f"| {share(len(run.skipped), len(lengths))} | {len(run.ledger['duplicated'])} "
            f"| {run.coverage['totals']['skipped']} |\n"
        )
    causes: Counter[str] = Counter()
    for run in old:
        for loss in run.ledger["skipped"]:
            causes[loss["cause"].split(" at the save")[0]] += loss["prompts"]
    text += f"""
The ledger and the counts know nothing of each other: one is put together from what happened, the
other has travelled in the checkpoints. Of the old way's {len(lost)} skipped prompts, by where they
were at the save that a life went on from:

| | prompts |
|---|---|
"""
    names = {"finished": "some of its four answers were there, the others in flight"}
    for cause, many in causes.most_common():
        text += f"| {names.get(cause, cause)} | {share(many, len(lost))} |\n"
    text += f"""
## Which prompts are lost

![Share of prompts lost, by length]({plots["lengths"]})

| digits | prompts | skipped, the old way, in the mean of the seeds |
|---|---|---|
"""
    for low, high in LENGTHS:
        there = {row for row, length in enumerate(lengths) if low <= length <= high}
        mean = sum(row in there for row in lost) / len(old)
        text += f"| {low} to {high} | {len(there)} | {share(round(mean), len(there))} |\n"
    gone = statistics.mean(lengths[row] for row in lost)
    text += f"""
The lost ones have {gone:.1f} digits in the mean, all prompts {statistics.mean(lengths):.1f}. What
is in flight at a save is what takes long.

{strips(of)}
## Does it learn worse?

![Rewards of both ways]({plots["rewards"]})

{difference(of)}

## What the new way costs

| | old | new |
|---|---|---|
"""
    rows: tuple[tuple[str, Callable[[Run], float]], ...] = (
        ("answers made again", lambda run: run.ledger["answered_again"]),
        ("of all that were asked for, %", lambda run: 100 * again(run, len(lengths))),
        ("trainings that were rolled back", lambda run: run.ledger["rolled_back"]),
        ("a checkpoint, KiB", lambda run: statistics.mean(run.sizes) / 1024),
    )
    for name, figure in rows:
        means = [statistics.mean(figure(run) for run in of[way]) for way in WAYS]
        text += f"| {name} | {means[0]:.0f} | {means[1]:.0f} |\n"
    return (
        text
        + """
Means over the seeds. The place of the new way is that of the oldest prompt in flight, and a life
here takes a second or two, so that a long prompt holds it back over several lives, and is answered
anew in each. What was trained or waits in the buffer is not answered again when it comes round.
Two runs at a time shared a machine that had other work to do, so seconds are not told.
"""
    )


def share(part: int, whole: int) -> str:
    return f"{part} ({100 * part / whole:.1f} %)" if whole else str(part)


def again(run: Run, prompts: int) -> float:
    return float(run.ledger["answered_again"]) / (4 * prompts)


def strips(of: dict[str, list[Run]]) -> str:
    """The pictures of one run of each way, side by side in time."""
    text = ""
    for way, runs in of.items():
        picture = [
            line for line in runs[0].strip.splitlines() if re.match(r" *\d+  [-\dS.]+$", line)
        ]
        text += f"The {way} way, seed {runs[0].summary['seed']}; each sign is about five prompts,\n"
        text += "`S` where one of them was skipped:\n\n```\n" + "\n".join(picture) + "\n```\n\n"
    return text


def difference(of: dict[str, list[Run]]) -> str:
    """What can be said of the rewards."""
    ends = {way: [end_of(run) for run in runs] for way, runs in of.items()}
    spread = {way: (min(values), max(values)) for way, values in ends.items()}
    text = "; ".join(
        f"{way}: {statistics.mean(values):.3f} ({spread[way][0]:.3f} to {spread[way][1]:.3f})"
        for way, values in ends.items()
    )
    apart = spread["old"][1] < spread["new"][0] or spread["new"][1] < spread["old"][0]
    verdict = (
        "The ranges do not overlap, but they are of few seeds."
        if apart
        else "They overlap: this training does not show a difference."
    )
    return (
        f"Reward in the last 40 steps, mean and range over the seeds: {text}. {verdict} "
        "What is learnt\nfrom a long prompt here can be learnt from the short ones too, so that "
        "nothing else was to be expected."
    )


def end_of(run: Run) -> float:
    return statistics.mean(run.rewards[step] for step in sorted(run.rewards)[-40:])


# --- the plots ------------------------------------------------------------------------------------


def plot_rewards(runs: list[Run], path: Path) -> None:
    """Rewards by step: the mean of the seeds, and their range."""
    _, axes = pyplot.subplots(figsize=(7, 3.5))
    for way, colour in WAYS.items():
        curves = [smoothed(run.rewards) for run in runs if run.way == way]
        many = min(len(curve) for curve in curves)
        steps = range(1, many + 1)
        columns = list(zip(*[curve[:many] for curve in curves], strict=True))
        axes.plot(steps, [statistics.mean(c) for c in columns], color=colour, label=f"{way} way")
        axes.fill_between(
            steps, list(map(min, columns)), list(map(max, columns)), color=colour, alpha=0.2
        )
    axes.set_xlabel("step of the lineage")
    axes.set_ylabel("reward, mean of 20 steps")
    axes.legend()
    pyplot.tight_layout()
    pyplot.savefig(path)


def smoothed(rewards: dict[int, float], width: int = 20) -> list[float]:
    """The mean of the last steps at each; a line that was lost with its life is as that before."""
    values: list[float] = []
    for step in range(1, max(rewards) + 1):
        values.append(rewards.get(step, values[-1] if values else rewards[min(rewards)]))
    return [statistics.mean(values[max(0, at - width + 1) : at + 1]) for at in range(len(values))]


def plot_lengths(runs: list[Run], lengths: list[int], path: Path) -> None:
    """The share of prompts of each length that were lost."""
    _, axes = pyplot.subplots(figsize=(7, 3))
    for offset, (way, colour) in zip((-0.2, 0.2), WAYS.items(), strict=True):
        of_way = [run for run in runs if run.way == way]
        shares = []
        for low, high in LENGTHS:
            there = {row for row, length in enumerate(lengths) if low <= length <= high}
            lost = [len(there.intersection(run.skipped)) / len(there) for run in of_way]
            shares.append(100 * statistics.mean(lost))
        places = [at + offset for at in range(len(LENGTHS))]
        axes.bar(places, shares, width=0.4, color=colour, label=f"{way} way")
    axes.set_xticks(range(len(LENGTHS)), [f"{low}-{high}" for low, high in LENGTHS])
    axes.set_xlabel("digits of the prompt")
    axes.set_ylabel("skipped, %")
    axes.legend()
    pyplot.tight_layout()
    pyplot.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--runs", type=Path, required=True, help="what run.py has made")
    parser.add_argument("--page", type=Path, required=True, help="the page; the plots go beside it")
    options = parser.parse_args()
    runs = [read(directory) for directory in sorted(options.runs.iterdir())]
    prompts = runs[0].coverage["prompts"]
    lengths = [len(prompt["digits"]) for prompt in Sums(prompts, 128).prompts]
    plots = {name: f"long-run-{name}.svg" for name in ("rewards", "lengths")}
    plot_rewards(runs, options.page.parent / plots["rewards"])
    plot_lengths(runs, lengths, options.page.parent / plots["lengths"])
    options.page.write_text(page(runs, lengths, plots), encoding="utf-8")


if __name__ == "__main__":
    main()
