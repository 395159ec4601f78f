"""Grain's data sets and its ``DataLoader``: the state is that of an iterator."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from pytest_resume_audit import LoaderAudit, ResumeAudit, Setup

grain = pytest.importorskip("grain")

SAMPLES = 17
in_all_timelines = pytest.mark.resume_audit(timelines="loader", setup=Setup(prompts=SAMPLES))


class Rows:
    """Each sample is its own number. Grain knows a source again by its ``repr``."""

    def __repr__(self) -> str:
        return "Rows()"

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, row: int) -> int:
        return row


def make_data(*, shuffle: bool = False, prefetch: bool = True, window: int = 0) -> Any:
    data = grain.MapDataset.source(Rows())
    if shuffle:
        data = data.shuffle(seed=1)
    options = grain.ReadOptions() if prefetch else grain.ReadOptions(num_threads=0)
    stream = data.to_iter_dataset(options)
    if window:
        stream = grain.experimental.WindowShuffleIterDataset(stream, window_size=window, seed=1)
    return stream.batch(4, drop_remainder=False)


def make_loader(workers: int, *, shuffle: bool = False) -> Any:
    sampler = grain.samplers.IndexSampler(
        num_records=SAMPLES,
        shard_options=grain.sharding.NoSharding(),
        shuffle=shuffle,
        num_epochs=1,
        seed=1,
    )
    return grain.DataLoader(
        data_source=Rows(),
        sampler=sampler,
        operations=[grain.transforms.Batch(4, drop_remainder=False)],
        worker_count=workers,
    )


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="plain"),
        pytest.param({"prefetch": False}, id="no-threads"),
        pytest.param({"shuffle": True}, id="shuffled"),
        pytest.param({"window": 5}, id="window"),
    ],
)
@in_all_timelines
def test_data_set(resume_audit: ResumeAudit, options: dict[str, Any]) -> None:
    resume_audit(LoaderAudit(partial(make_data, **options), state_of="iterator"))


@pytest.mark.parametrize("shuffle", [False, True], ids=["ordered", "shuffled"])
@pytest.mark.parametrize("workers", [0, 2])
@in_all_timelines
def test_loader(resume_audit: ResumeAudit, workers: int, shuffle: bool) -> None:
    """A worker is a process that is spawned: each takes seconds to import Grain."""
    resume_audit(LoaderAudit(partial(make_loader, workers, shuffle=shuffle), state_of="iterator"))
