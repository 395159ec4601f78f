"""A training script as small as can be: a loader, threads that answer, a buffer, a trainer.

It hands out eight prompts ahead of what it trains, and saves after every second step: the old way
the loader's place, the new way what was handed out and not trained besides.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import threading
from pathlib import Path

from pytest_resume_audit import recorder

AHEAD = 8


def main(options: argparse.Namespace) -> None:
    place, step, owed = 0, 0, []
    newest = max(options.out.glob("step-*.json"), default=None, key=lambda p: int(p.stem[5:]))
    if newest is not None:
        state = json.loads(newest.read_text())
        place, step = state["place"], state["step"]
        owed = state["owed"] if options.way == "new" else []
        recorder.restored(newest)
    asked: queue.Queue[int] = queue.Queue()
    buffer: queue.Queue[int] = queue.Queue()

    def answer() -> None:
        while True:
            row = asked.get()
            if options.held:
                recorder.hold(row)
            recorder.finished(row)
            recorder.buffered(row)
            buffer.put(row)

    for _ in range(3):
        threading.Thread(target=answer, daemon=True).start()
    out: list[int] = []
    for row in owed:
        out.append(row)
        asked.put(row)
    batches = [list(range(at, at + 4)) for at in range(place, options.prompts, 4)]
    loader = iter(recorder.watch(batches, key=list) if options.held else batches)
    more = True
    while True:
        while more and len(out) < AHEAD:
            batch = next(loader, None)
            if batch is None:
                more = False
                break
            if not options.held:
                recorder.handed_out(batch)
            place += len(batch)
            out += batch
            for row in batch:
                asked.put(row)
        if not out:
            break
        rows = [buffer.get() for _ in range(min(4, len(out)))]
        step += 1
        recorder.trained(rows, step=step)
        for row in rows:
            out.remove(row)
        if step % 2 == 0:
            checkpoint = options.out / f"step-{step}.json"
            recorder.saving(checkpoint)
            state = {"place": place, "step": step, "owed": out}
            temporary = checkpoint.with_suffix(".tmp")
            temporary.write_text(json.dumps(state))
            os.replace(temporary, checkpoint)
            recorder.saved(checkpoint)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--way", choices=("old", "new"), default="new")
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--held", action="store_true", help="let an audit hold it")
    main(parser.parse_args())
