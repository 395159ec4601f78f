"""The named timelines on real parts: torchdata's loader, torch's files, a trained module."""

from __future__ import annotations

import pytest
from losses import LEGACY, OLD_WAY

from pytest_resume_audit import run

torch = pytest.importorskip("torch", reason="the real parts are torch's")
pytest.importorskip("torchdata", reason="the real loader is torchdata's")

from pytest_resume_audit.collectors.torch_parts import (  # noqa: E402
    TorchFrontierCollector,
    TorchLiveCursorCollector,
)


class FrontierWithWorkers(TorchFrontierCollector):
    num_workers = 2


class LiveCursorWithWorkers(TorchLiveCursorCollector):
    num_workers = 2


# With worker processes a life takes some tenths of a second: the ones that tell most.
WITH_WORKERS = ["mid-flight", "second-resume", "end-of-pass", "second-pass"]


@pytest.mark.parametrize("name", OLD_WAY)
def test_the_old_way(name):
    report = run(TorchLiveCursorCollector, name)
    assert report.skipped == OLD_WAY[name].skipped, OLD_WAY[name].because
    assert report.duplicated == []


@pytest.mark.parametrize("name", [*OLD_WAY, *LEGACY])
def test_the_new_way(name):
    report = run(TorchFrontierCollector, name)
    assert report.skipped == LEGACY.get(name, [])
    assert report.duplicated == []
    assert report.verdict == "lossless"
    assert report.unreached is None


@pytest.mark.parametrize("name", WITH_WORKERS)
def test_the_old_way_with_worker_processes(name):
    report = run(LiveCursorWithWorkers, name)
    assert report.skipped == OLD_WAY[name].skipped, OLD_WAY[name].because
    assert report.duplicated == []


@pytest.mark.parametrize("name", WITH_WORKERS)
def test_the_new_way_with_worker_processes(name):
    report = run(FrontierWithWorkers, name)
    assert report.verdict == "lossless"
    assert report.unreached is None


def test_the_counts_ride_in_a_module_that_is_trained(tmp_path):
    """The files are torch's, and the counts are where the weights are."""
    kept = []

    class Kept(TorchFrontierCollector):
        def save(self, root, step):
            super().save(root, step)
            kept.append(
                {
                    file.name: torch.load(file, weights_only=True)
                    for file in max(root.iterdir()).glob("*.pt")
                }
            )

    report = run(Kept, "hand_out 8; finish 0-3; train; save; crash; restart; drain")
    assert report.verdict == "lossless"
    (files,) = kept
    found = [
        tensor
        for value in files.values()
        for tensor in tensors(value)
        if tensor.dtype == torch.int64 and tensor.shape == (17,)
    ]
    # 16 prompts in groups of one, and the steps behind them: 0-3 are trained once, in one step.
    assert [tensor.tolist() for tensor in found] == [[1] * 4 + [0] * 12 + [1]]


def tensors(value):
    """Every tensor in nested dicts and lists."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        return [tensor for part in value.values() for tensor in tensors(part)]
    if isinstance(value, list | tuple):
        return [tensor for part in value for tensor in tensors(part)]
    return []
