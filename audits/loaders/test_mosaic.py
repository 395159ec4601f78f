"""mosaicml-streaming's ``StreamingDataset`` and ``StreamingDataLoader``."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import shutil
import sys
import tempfile
import types
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest

from pytest_resume_audit import LoaderAudit, ResumeAudit, Setup

torch = pytest.importorskip("torch")


def _stand_in_for_torchvision() -> None:
    """Names that are imported for data sets of images, where torchvision is not installed."""
    for name in ("", ".datasets", ".transforms", ".transforms.functional"):
        module = types.ModuleType(f"torchvision{name}")
        module.__spec__ = importlib.machinery.ModuleSpec(module.__name__, None)
        sys.modules[module.__name__] = module
    sys.modules["torchvision.datasets"].VisionDataset = object  # type: ignore[attr-defined]
    sys.modules["torchvision.transforms.functional"].to_tensor = None  # type: ignore[attr-defined]


if importlib.util.find_spec("torchvision") is None:
    _stand_in_for_torchvision()
streaming = pytest.importorskip("streaming")

SAMPLES = 17
# It keeps shared memory and open files of each data set until its process ends.
in_all_timelines = pytest.mark.resume_audit(
    timelines="loader", setup=Setup(prompts=SAMPLES), life="process"
)


@cache
def data() -> Path:
    """A directory with the samples, in several shards."""
    directory = tempfile.mkdtemp(prefix="mosaic-")
    with streaming.MDSWriter(out=directory, columns={"idx": "int"}, size_limit=120) as writer:
        for row in range(SAMPLES):
            writer.write({"idx": row})
    return Path(directory)


def make_loader(workers: int, *, shuffle: bool = False) -> Any:
    # Of one directory a process can have one data set.
    local = tempfile.mkdtemp(prefix="mosaic-") + "/data"
    shutil.copytree(data(), local)
    rows = streaming.StreamingDataset(
        local=local, batch_size=4, shuffle=shuffle, num_canonical_nodes=1
    )
    return streaming.StreamingDataLoader(rows, batch_size=4, num_workers=workers)


@pytest.mark.parametrize("shuffle", [False, True], ids=["ordered", "shuffled"])
@pytest.mark.parametrize("workers", [0, 2])
@in_all_timelines
def test_streaming(resume_audit: ResumeAudit, workers: int, shuffle: bool) -> None:
    data()
    resume_audit(LoaderAudit(partial(make_loader, workers, shuffle=shuffle), form="json"))
