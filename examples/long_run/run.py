"""One long run, killed again and again: the old way beside the new way.

    python run.py --out results

Starts ``../real_training/train.py``, kills it by SIGKILL at random moments, starts it again, and
lets the last life come to its end; for each way and each of several seeds. Each run leaves a
ledger of what happened to its prompts, counts of what went into the weights inside its checkpoints,
and its log. ``report.py`` makes pages and plots of them.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

TRAIN = Path(__file__).parents[1] / "real_training" / "train.py"


def one_run(options: argparse.Namespace, way: str, seed: int) -> None:
    """One run to its end, over as many lives as it takes.

    Args:
        options: of the command line.
        way: ``"old"`` or ``"new"``.
        seed: of the training and of the moments at which it is killed.
    """
    out = options.out / f"{way}-{seed}"
    checkpoints = out / "checkpoints"
    checkpoints.mkdir(parents=True)
    words = [sys.executable, str(TRAIN), "--checkpoints", str(checkpoints), "--way", way]
    words += ["--seed", str(seed), "--prompts", str(options.prompts), "--batch-size", "8"]
    words += ["--prompts-per-step", "8", "--ahead", "32", "--threads", "16", "--save-every", "5"]
    words += ["--longest", "128", "--rate", "0.003"]
    environment = {**os.environ, "RESUME_AUDIT_LEDGER": str(out / "ledger")}
    steps = options.prompts // 8
    dice = random.Random(seed)
    lives = []
    began = time.monotonic()
    with (
        open(out / "log.txt", "w", encoding="utf-8") as log,
        open(out / "errors.txt", "w", encoding="utf-8") as errors,
    ):
        for life in range(options.kills + 1):
            last = life == options.kills
            # Steps that this life may take: what is left of the run, over the lives that are left.
            most = None if last else dice.randint(1, 2 * steps // (options.kills + 1))
            process = subprocess.Popen(
                words, stdout=subprocess.PIPE, stderr=errors, env=environment, text=True
            )
            assert process.stdout is not None
            taken = 0
            for line in process.stdout:
                log.write(f"life {life} {line}")
                taken += line.startswith("step")
                if taken == most:
                    # Somewhere in the steps that follow, or in the save between them.
                    time.sleep(dice.uniform(0, 0.2))
                    process.send_signal(signal.SIGKILL)
                    break
            process.stdout.close()
            lives.append({"steps": taken, "status": process.wait()})
            if process.returncode == 0:
                break
            if process.returncode != -signal.SIGKILL:
                raise RuntimeError(f"a life died by itself: see {out / 'errors.txt'}")
    summary = {"way": way, "seed": seed, "seconds": time.monotonic() - began, "lives": lives}
    (out / "summary.json").write_text(json.dumps(summary, indent=1))
    print(f"{way}, seed {seed}: {len(lives)} lives, {summary['seconds']:.0f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="a directory that is not there yet")
    parser.add_argument("--prompts", type=int, default=4096)
    parser.add_argument("--kills", type=int, default=36)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--at-once", type=int, default=2, help="runs at one time")
    options = parser.parse_args()
    options.out.mkdir(parents=True)
    with ThreadPoolExecutor(options.at_once) as pool:
        runs = [
            pool.submit(one_run, options, way, seed)
            for seed in range(options.seeds)
            for way in ("old", "new")
        ]
        for run in runs:
            run.result()


if __name__ == "__main__":
    main()
