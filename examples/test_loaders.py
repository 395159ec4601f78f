"""A loader alone, without a collector: torchdata's ``StatefulDataLoader``, shuffled.

The loader is saved behind every batch, at each end of a pass and right after a resume; each time
it is made anew, with a new data set, and goes to the saved state. No sample may be skipped or
repeated, and the order has to be that of a run that is never interrupted.

    pytest -rx --xfail-tb examples/test_loaders.py

shows a way to shuffle that keeps its order, and one that does not.
"""

from __future__ import annotations

from typing import Any

import pytest

from pytest_resume_audit import LoaderAudit, ResumeAudit, Setup

torch = pytest.importorskip("torch", reason="the example shuffles with a generator of torch")
stateful_dataloader = pytest.importorskip(
    "torchdata.stateful_dataloader", reason="the example is about a StatefulDataLoader"
)

SAMPLES = 17


def make_with_sampler() -> Any:
    """A loader whose sampler has a generator of its own."""
    data = range(SAMPLES)
    sampler = stateful_dataloader.sampler.RandomSampler(
        data, generator=torch.Generator().manual_seed(0)
    )
    return stateful_dataloader.StatefulDataLoader(data, batch_size=4, sampler=sampler)


def make_with_generator() -> Any:
    """A loader that has the generator itself, and draws more from it than the orders."""
    generator = torch.Generator().manual_seed(0)
    return stateful_dataloader.StatefulDataLoader(
        range(SAMPLES), batch_size=4, shuffle=True, generator=generator
    )


@pytest.mark.resume_audit(LoaderAudit(make=make_with_sampler), setup=Setup(prompts=SAMPLES))
def test_a_sampler_keeps_its_order(resume_audit: ResumeAudit) -> None:
    resume_audit()


@pytest.mark.xfail(reason="the passes behind a resume have other orders", strict=True)
@pytest.mark.resume_audit(
    LoaderAudit(make=make_with_generator),
    timelines="hand_out 4; save; crash; restart",
    setup=Setup(prompts=SAMPLES, passes=3),
)
def test_a_generator_does_not(resume_audit: ResumeAudit) -> None:
    resume_audit()


@pytest.mark.resume_audit(
    LoaderAudit(make=make_with_generator, order="any"), setup=Setup(prompts=SAMPLES)
)
def test_but_it_loses_nothing(resume_audit: ResumeAudit) -> None:
    resume_audit()
