"""What a timeline costs.

    python benchmarks/timelines.py [--quick]

Prints the median, in milliseconds, of the case that names the project (16 prompts, one save,
crash and restart, with its files) on each reference collector, and as a ratio to the bare
work of its files and threads, also in processes of their own; then the cost per prompt of long
runs as a ratio to the shortest one: flat is 1. That is measured without the interpreter's own
collection of garbage, too, whose cost grows with all that is kept.
"""

from __future__ import annotations

import argparse
import gc
import json
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from pytest_resume_audit import (
    Collector,
    FrontierCollector,
    FuturesCollector,
    LiveCursorCollector,
    Setup,
    run,
)


def median_ms(work: Callable[[], object], times: int) -> float:
    """Median time of some calls, after one that is not counted."""
    work()
    taken = []
    for _ in range(times):
        begun = time.perf_counter()
        work()
        taken.append(time.perf_counter() - begun)
    return statistics.median(taken) * 1000


def bare_files() -> None:
    """What the files of one save, crash and restart cost by themselves, in memory."""
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    root = Path(tempfile.mkdtemp(dir=memory))
    (root / "life-1" / "checkpoint").mkdir(parents=True)
    for name in ("weights", "replay_buffer", "dataloader", "frontier", "manifest"):
        (root / "life-1" / "checkpoint" / name).write_text(json.dumps(list(range(16))))
    shutil.copytree(root / "life-1", root / "life-2")
    for file in (root / "life-2" / "checkpoint").iterdir():
        json.loads(file.read_text())
    shutil.rmtree(root)


def bare_threads() -> None:
    """What the threads of two lives cost by themselves: 16 and 12 generations, two loops."""
    threads = [threading.Thread(target=lambda: None) for _ in range(30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def one_timeline(times: int) -> None:
    """The case that names the project, on each reference collector."""
    files = median_ms(bare_files, times)
    threads = median_ms(bare_threads, times)
    print(f"bare files {files:.2f} ms, bare threads {threads:.2f} ms\n")
    print("mid-flight, 16 prompts          median ms   ratio to bare files (+ threads)")
    for kind, bare in (
        (FuturesCollector, files),
        (FrontierCollector, files + threads),
        (LiveCursorCollector, files + threads),
    ):
        median = median_ms(lambda kind=kind: run(kind, "mid-flight"), times)
        print(f"{kind.__name__:32}{median:9.2f}   {median / bare:.1f}")
    print("\nthe same in processes of their own: two lives, one SIGKILL")
    for kind in (FuturesCollector, FrontierCollector, *kinds_with_torch()):
        median = median_ms(
            lambda kind=kind: run(kind, "mid-flight", life="process"), max(10, times // 10)
        )
        print(f"{kind.__name__:32}{median:9.2f}")


def kinds_with_torch() -> tuple[type[Collector], ...]:
    """Two that have torch loaded, and one that uses it; none where it is not installed."""
    try:
        import with_torch
    except ImportError:
        return ()
    return (
        with_torch.FuturesBesideTorch,
        with_torch.BesideTorch,
        with_torch.TorchFrontierCollector,
    )


def long_runs(sizes: list[int], kind: type[Collector]) -> None:
    """Cost per prompt of longer and longer runs, each with a save and a restart halfway."""
    print(f"\nlong runs on {kind.__name__}     ms per prompt   ratio   without gc   ratio")
    first: list[float] = []
    for prompts in sizes:
        each = [one_long_run(prompts, kind)]
        gc.disable()
        each.append(one_long_run(prompts, kind))
        gc.enable()
        first = first or each
        figures = [
            f"{taken:8.3f}   {taken / least:.2f}" for taken, least in zip(each, first, strict=True)
        ]
        print(f"{prompts:10,} prompts          {'      '.join(figures)}")


def one_long_run(prompts: int, kind: type[Collector]) -> float:
    """Milliseconds per prompt of one run with a save and a restart halfway."""
    setup = Setup(prompts=prompts, batch_size=50, prompts_per_step=50)
    script = f"hand_out {prompts // 2}; finish every 2; save; crash; restart; drain"
    begun = time.perf_counter()
    report = run(kind, script, setup=setup)
    taken = time.perf_counter() - begun
    assert report.verdict == "lossless", report
    return taken * 1000 / prompts


def main() -> None:
    """Run the benchmarks."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="fewer repeats, shorter runs")
    quick = parser.parse_args().quick
    one_timeline(20 if quick else 200)
    long_runs([1_000, 10_000] if quick else [1_000, 10_000, 100_000], FuturesCollector)


if __name__ == "__main__":
    main()
