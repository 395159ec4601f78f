"""Megatron-Energon's savable loader, over a file of JSON lines."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest

from pytest_resume_audit import LoaderAudit, ResumeAudit, Setup

energon = pytest.importorskip("megatron.energon")

SAMPLES = 17
in_all_timelines = pytest.mark.resume_audit(timelines="loader", setup=Setup(prompts=SAMPLES))


@cache
def data() -> Path:
    """A file with the samples, and the index that energon makes of it."""
    file = Path(tempfile.mkdtemp(prefix="energon-")) / "data.jsonl"
    file.write_text("".join(json.dumps({"text": str(row)}) + "\n" for row in range(SAMPLES)))
    command = [str(Path(sys.executable).with_name("energon")), "prepare", str(file)]
    subprocess.run(command, check=True, capture_output=True)
    return file


@energon.stateless
def cook(sample: dict[str, Any]) -> Any:
    keys = energon.basic_sample_keys(sample)
    return energon.TextSample(**keys, text=sample["json"]["text"])


class Encoder(energon.DefaultTaskEncoder):  # type: ignore[misc,name-defined]
    cookers = [energon.Cooker(cook)]  # noqa: RUF012


def make_loader(workers: int, *, shuffle: int | None = None) -> Any:
    rows = energon.get_train_dataset(
        data(),
        batch_size=4,
        batch_drop_last=False,
        worker_config=energon.WorkerConfig(rank=0, world_size=1, num_workers=workers),
        task_encoder=Encoder(),
        shuffle_buffer_size=shuffle,
        max_samples_per_sequence=None,
        repeat=False,
    )
    return energon.get_savable_loader(rows)


def samples_of(batch: Any) -> list[int]:
    return [int(text) for text in batch.text]


def save_rank(loader: Any, iterator: Any) -> Any:
    return loader.save_state_rank()


def load_rank(loader: Any, state: Any) -> None:
    loader.restore_state_rank(state)


@pytest.mark.parametrize("shuffle", [None, 5], ids=["ordered", "shuffled"])
@pytest.mark.parametrize("workers", [0, 2])
@in_all_timelines
def test_savable_loader(resume_audit: ResumeAudit, workers: int, shuffle: int | None) -> None:
    data()
    make = partial(make_loader, workers, shuffle=shuffle)
    resume_audit(LoaderAudit(make, ids=samples_of, save=save_rank, load=load_rank))
