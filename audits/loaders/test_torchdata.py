"""torchdata's ``StatefulDataLoader`` and ``torchdata.nodes``."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from pytest_resume_audit import LoaderAudit, ResumeAudit, Setup

torch = pytest.importorskip("torch")
stateful_dataloader = pytest.importorskip("torchdata.stateful_dataloader")
nodes = pytest.importorskip("torchdata.nodes")

StatefulDataLoader = stateful_dataloader.StatefulDataLoader

SAMPLES = 17
in_all_timelines = pytest.mark.resume_audit(timelines="loader", setup=Setup(prompts=SAMPLES))


class Rows(torch.utils.data.Dataset[int]):
    """Each sample is its own number."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, row: int) -> int:
        return row


class Stream(torch.utils.data.IterableDataset[int]):
    """The same, one after the other, divided between the workers; without a state of its own."""

    def __iter__(self) -> Iterator[int]:
        yield from range(*self.share())

    def share(self) -> tuple[int, int, int]:
        """First, end and step of what a worker reads."""
        worker = torch.utils.data.get_worker_info()
        return (0, SAMPLES, 1) if worker is None else (worker.id, SAMPLES, worker.num_workers)


class StatefulStream(Stream):
    """The same with a state: what it has read of a pass, and nothing behind its end."""

    def __init__(self) -> None:
        self.read = 0

    def __iter__(self) -> Iterator[int]:
        for row in range(*self.share())[self.read :]:
            self.read += 1
            yield row
        self.read = 0

    def state_dict(self) -> dict[str, int]:
        return {"read": self.read}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.read = state["read"]


DATA = {"map": Rows, "iterable": Stream, "stateful": StatefulStream}


def make_loader(data: str, workers: int, **options: Any) -> Any:
    """A loader as a training script makes it, which seeds torch when it starts."""
    torch.manual_seed(0)
    return StatefulDataLoader(DATA[data](), batch_size=4, num_workers=workers, **options)


def make_with_generator(workers: int) -> Any:
    generator = torch.Generator().manual_seed(0)
    return make_loader("map", workers, shuffle=True, generator=generator)


def make_with_sampler(workers: int) -> Any:
    sampler = stateful_dataloader.sampler.RandomSampler(
        Rows(), generator=torch.Generator().manual_seed(0)
    )
    return make_loader("map", workers, sampler=sampler)


@pytest.mark.parametrize("workers", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("data", DATA)
@in_all_timelines
def test_in_order(resume_audit: ResumeAudit, data: str, workers: int) -> None:
    resume_audit(LoaderAudit(partial(make_loader, data, workers)))


@pytest.mark.parametrize("workers", [0, 2])
@in_all_timelines
def test_shuffled(resume_audit: ResumeAudit, workers: int) -> None:
    resume_audit(LoaderAudit(partial(make_loader, "map", workers, shuffle=True)))


@pytest.mark.parametrize("workers", [0, 2])
@in_all_timelines
def test_shuffled_by_a_generator(resume_audit: ResumeAudit, workers: int) -> None:
    resume_audit(LoaderAudit(partial(make_with_generator, workers), form="torch"))


@pytest.mark.parametrize("workers", [0, 2])
@in_all_timelines
def test_shuffled_by_a_sampler(resume_audit: ResumeAudit, workers: int) -> None:
    resume_audit(LoaderAudit(partial(make_with_sampler, workers), form="torch"))


@pytest.mark.parametrize("data", DATA)
@in_all_timelines
def test_persistent_workers(resume_audit: ResumeAudit, data: str) -> None:
    resume_audit(LoaderAudit(partial(make_loader, data, 2, persistent_workers=True)))


@pytest.mark.parametrize("data", DATA)
@in_all_timelines
def test_far_prefetch(resume_audit: ResumeAudit, data: str) -> None:
    resume_audit(LoaderAudit(partial(make_loader, data, 2, prefetch_factor=4)))


@pytest.mark.parametrize("data", DATA)
@in_all_timelines
def test_snapshots_every_third_step(resume_audit: ResumeAudit, data: str) -> None:
    resume_audit(LoaderAudit(partial(make_loader, data, 2, snapshot_every_n_steps=3)))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.resume_audit(timelines="loader", setup=Setup(prompts=SAMPLES, drop_last=True))
def test_without_the_last_batch(resume_audit: ResumeAudit, workers: int) -> None:
    resume_audit(LoaderAudit(partial(make_loader, "map", workers, drop_last=True)))


# --- torchdata.nodes ------------------------------------------------------------------------------


def make_nodes(*, shuffle: bool = False, threads: int = 0, prefetch: int = 0) -> Any:
    torch.manual_seed(0)
    data = Rows()
    order = (
        stateful_dataloader.sampler.RandomSampler(data, generator=torch.Generator().manual_seed(0))
        if shuffle
        else torch.utils.data.SequentialSampler(data)
    )
    node = nodes.MapStyleWrapper(data, order)
    if threads:
        node = nodes.ParallelMapper(node, int, num_workers=threads, method="thread")
    node = nodes.Batcher(node, batch_size=4, drop_last=False)
    if prefetch:
        node = nodes.Prefetcher(node, prefetch_factor=prefetch)
    return nodes.Loader(node)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="plain"),
        pytest.param({"shuffle": True}, id="shuffled"),
        pytest.param({"threads": 2}, id="threads"),
        pytest.param({"prefetch": 2}, id="prefetch"),
        pytest.param({"threads": 2, "prefetch": 2, "shuffle": True}, id="all"),
    ],
)
@in_all_timelines
def test_nodes(resume_audit: ResumeAudit, options: dict[str, Any]) -> None:
    resume_audit(LoaderAudit(partial(make_nodes, **options)))
