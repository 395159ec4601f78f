"""litdata's ``StreamingDataset`` and ``StreamingDataLoader``."""

from __future__ import annotations

import tempfile
from functools import cache, partial
from typing import Any

import pytest

from pytest_resume_audit import LoaderAudit, ResumeAudit, Setup

litdata = pytest.importorskip("litdata")
torch = pytest.importorskip("torch")

SAMPLES = 17
in_all_timelines = pytest.mark.resume_audit(timelines="loader", setup=Setup(prompts=SAMPLES))


@cache
def data() -> str:
    """A directory with the samples, in chunks of three."""
    from litdata.streaming import Cache

    directory = tempfile.mkdtemp(prefix="litdata-")
    written = Cache(directory, chunk_size=3)
    for row in range(SAMPLES):
        written[row] = row
    written.done()
    written.merge()
    return directory


def make_loader(workers: int, *, shuffle: bool = False, **options: Any) -> Any:
    torch.manual_seed(0)
    rows = litdata.StreamingDataset(data(), shuffle=shuffle, drop_last=False)
    return litdata.StreamingDataLoader(rows, batch_size=4, num_workers=workers, **options)


@pytest.mark.parametrize("shuffle", [False, True], ids=["ordered", "shuffled"])
@pytest.mark.parametrize("workers", [0, 1, 2])
@in_all_timelines
def test_streaming(resume_audit: ResumeAudit, workers: int, shuffle: bool) -> None:
    data()
    resume_audit(LoaderAudit(partial(make_loader, workers, shuffle=shuffle), form="json"))
