"""accelerate's prepared loaders, on torchdata's ``StatefulDataLoader``."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from pytest_resume_audit import LoaderAudit, ResumeAudit, Setup

accelerate = pytest.importorskip("accelerate")
torch = pytest.importorskip("torch")
pytest.importorskip("torchdata.stateful_dataloader")

SAMPLES = 17
in_all_timelines = pytest.mark.resume_audit(timelines="loader", setup=Setup(prompts=SAMPLES))


class Rows(torch.utils.data.Dataset[int]):
    """Each sample is its own number."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, row: int) -> int:
        return row


def make_loader(workers: int, *, shuffle: bool = False, seedable: bool = False) -> Any:
    accelerate.utils.set_seed(0)
    accelerator = accelerate.Accelerator(
        cpu=True,
        dataloader_config=accelerate.DataLoaderConfiguration(
            use_stateful_dataloader=True, use_seedable_sampler=seedable
        ),
    )
    loader = torch.utils.data.DataLoader(Rows(), batch_size=4, shuffle=shuffle, num_workers=workers)
    return accelerator.prepare(loader)


def begin_with_epoch(loader: Any, epoch: int) -> Iterator[Any]:
    loader.set_epoch(epoch)
    return iter(loader)


@pytest.mark.parametrize("workers", [0, 2])
@in_all_timelines
def test_in_order(resume_audit: ResumeAudit, workers: int) -> None:
    resume_audit(LoaderAudit(partial(make_loader, workers)))


@pytest.mark.parametrize("workers", [0, 2])
@in_all_timelines
def test_shuffled(resume_audit: ResumeAudit, workers: int) -> None:
    resume_audit(LoaderAudit(partial(make_loader, workers, shuffle=True)))


@pytest.mark.parametrize("workers", [0, 2])
@in_all_timelines
def test_shuffled_by_a_seedable_sampler(resume_audit: ResumeAudit, workers: int) -> None:
    make = partial(make_loader, workers, shuffle=True, seedable=True)
    resume_audit(LoaderAudit(make, begin=begin_with_epoch))
