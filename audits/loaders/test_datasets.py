"""``IterableDataset`` of Hugging Face datasets, alone and behind torchdata's loader."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from pytest_resume_audit import LoaderAudit, ResumeAudit, Setup

datasets = pytest.importorskip("datasets")

SAMPLES = 17
in_all_timelines = pytest.mark.resume_audit(timelines="loader", setup=Setup(prompts=SAMPLES))


def make_data(*, shards: int = 1, shuffle: bool = False, mapped: bool = False) -> Any:
    """A data set that is read in order, or shuffled by its shards and a buffer of 5."""
    rows = datasets.Dataset.from_dict({"idx": list(range(SAMPLES))})
    data = rows.to_iterable_dataset(num_shards=shards)
    if shuffle:
        data = data.shuffle(seed=0, buffer_size=5)
    if mapped:
        data = data.map(lambda sample: {"text": str(sample["idx"])})
    return data


def make_batched(**options: Any) -> Any:
    return make_data(**options).batch(4)


def begin_with_epoch(data: Any, epoch: int) -> Iterator[Any]:
    """As the documentation asks for: the shuffle is another one in each pass."""
    data.set_epoch(epoch)
    return iter(data)


def samples_of(batch: dict[str, list[int]]) -> list[int]:
    return batch["idx"]


KINDS = [
    pytest.param({}, id="plain"),
    pytest.param({"shards": 3}, id="shards"),
    pytest.param({"shards": 3, "mapped": True}, id="mapped"),
    pytest.param({"shards": 3, "shuffle": True}, id="shuffled"),
]


@pytest.mark.parametrize("options", KINDS)
@in_all_timelines
def test_with_set_epoch(resume_audit: ResumeAudit, options: dict[str, Any]) -> None:
    make = partial(make_batched, **options)
    resume_audit(LoaderAudit(make, begin=begin_with_epoch, ids=samples_of, form="json"))


@pytest.mark.parametrize("options", KINDS)
@in_all_timelines
def test_without_set_epoch(resume_audit: ResumeAudit, options: dict[str, Any]) -> None:
    resume_audit(LoaderAudit(partial(make_batched, **options), ids=samples_of, form="json"))


# --- behind a StatefulDataLoader ------------------------------------------------------------------


def make_loader(workers: int, **options: Any) -> Any:
    torch = pytest.importorskip("torch")
    stateful_dataloader = pytest.importorskip("torchdata.stateful_dataloader")
    torch.manual_seed(0)
    return stateful_dataloader.StatefulDataLoader(
        make_data(shards=4, **options), batch_size=4, num_workers=workers
    )


def begin_behind_loader(loader: Any, epoch: int) -> Iterator[Any]:
    loader.dataset.set_epoch(epoch)
    return iter(loader)


@pytest.mark.parametrize("shuffle", [False, True], ids=["ordered", "shuffled"])
@pytest.mark.parametrize("workers", [0, 2])
@in_all_timelines
def test_behind_a_stateful_loader(resume_audit: ResumeAudit, workers: int, shuffle: bool) -> None:
    make = partial(make_loader, workers, shuffle=shuffle)
    resume_audit(LoaderAudit(make, begin=begin_behind_loader))
