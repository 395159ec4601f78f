"""Reference collectors in a module that loads torch, as one of a project would."""

from __future__ import annotations

import torch

from pytest_resume_audit import FrontierCollector, FuturesCollector
from pytest_resume_audit.collectors.torch_parts import TorchFrontierCollector

__all__ = ["BesideTorch", "FuturesBesideTorch", "TorchFrontierCollector", "torch"]


class FuturesBesideTorch(FuturesCollector):
    """The same; each of its processes has torch loaded."""


class BesideTorch(FrontierCollector):
    """The same."""
