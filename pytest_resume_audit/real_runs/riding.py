"""Counts inside a model's own state."""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import nn

from pytest_resume_audit.real_runs.counts import CoverageError, decode
from pytest_resume_audit.real_runs.coverage import PromptCoverage

NAME = "prompt_coverage"


class _Rider(nn.Module):
    """The part of a model whose extra state the counts are; a copy of it has none."""

    def __init__(self, coverage: PromptCoverage | None) -> None:
        super().__init__()
        self.coverage = coverage

    def get_extra_state(self) -> torch.Tensor:
        written = b"" if self.coverage is None else self.coverage.fixed()
        return torch.frombuffer(bytearray(written or b"\0"), dtype=torch.uint8)

    def set_extra_state(self, state: Any) -> None:
        if self.coverage is None:
            return
        if not isinstance(state, torch.Tensor) or state.dtype != torch.uint8:
            kind = getattr(state, "dtype", type(state).__name__)
            raise CoverageError(f"the {NAME} of the state is {kind}, and no counts: load its own")
        state = state.cpu().contiguous()
        # Without numpy, which torch does not need.
        self.coverage.restore(decode(ctypes.string_at(state.data_ptr(), state.numel())))

    def forward(self, value: Any) -> Any:
        """Nothing: an ``nn.Sequential`` calls whatever is in it."""
        return value

    def __deepcopy__(self, memo: dict[int, Any]) -> _Rider:
        return _Rider(None)


def attach(coverage: PromptCoverage, model: nn.Module) -> None:
    """Have the counts ride in a model; see :meth:`PromptCoverage.attach`."""
    if hasattr(model, NAME):
        raise CoverageError(f"the model has a {NAME} already: attach one, before it is wrapped")
    setattr(model, NAME, _Rider(coverage))
