"""The old way: a checkpoint holds the loader's live place, and what is in flight is lost."""

from __future__ import annotations

from typing import ClassVar

from pytest_resume_audit.collector import Collector
from pytest_resume_audit.collectors import checkpoints


class LiveCursorCollector(Collector):
    """The code that people write: it saves weights, buffer and loader, each as it stands.

    A prompt that is in flight at the save is behind the loader's place and not in the buffer:
    after a restart nobody answers it.

    Args:
        rig: loader, engine, buffer and trainer of this life.

    Attributes:
        form: how the files of a checkpoint are written.
        loader: hands out the prompts.
        epoch: the pass over the data that the loader is in.
    """

    refuses = (checkpoints.ResumeRefused,)
    form: ClassVar[checkpoints.Form] = checkpoints.JSON
