"""The new way without a thread: a driver that polls, on futures with callbacks."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from functools import partial

from pytest_resume_audit.collectors.frontier import ResumableCollector
from pytest_resume_audit.control import GenerationFailed
from pytest_resume_audit.fakes.prompts import Prompt, Rollout
from pytest_resume_audit.rig import Rig


class FuturesCollector(ResumableCollector):
    """The new way in one thread: the driver pulls a batch, callbacks take in the answers.

    The same frontier as with threads, and no lock: nothing happens between two lines of it.

    Args:
        rig: loader, engine, buffer and trainer of this life.

    Example:
        >>> from pytest_resume_audit import FuturesCollector, run
        >>> run(FuturesCollector, "mid-flight").verdict
        'lossless'
    """

    def __init__(self, rig: Rig) -> None:
        super().__init__(rig)
        self._batches: Iterator[Sequence[Prompt]] | None = None
        self._rest: deque[tuple[int, Prompt]] = deque()

    def start(self) -> None:
        """Nothing to start: the driver calls :meth:`pull`."""

    def pull(self) -> bool:
        """Take one batch and dispatch what there is room for; the rest follows by itself.

        Returns:
            False when there is nothing to take now: no room, or no more data.
        """
        if self._rest or self.failure is not None or not self.may_pull():
            return False
        while self.frontier.here.epoch < self.rig.setup.passes:
            if self._batches is None:
                self._batches = iter(self.loader)
            batch = next(self._batches, None)
            state = self.loader.state_dict()
            if batch is not None:
                self._rest.extend(self.frontier.hand_out(batch, state))
                self.room_made()
                return True
            self.frontier.end_pass(state)
            self._batches = None
        return False

    def room_made(self) -> None:
        """Dispatch what has waited for room."""
        while self._rest and self.failure is None and self.has_room():
            ordinal, prompt = self._rest.popleft()
            self.begin(ordinal)
            for generation in range(self.rig.setup.group_size):
                answer = self.rig.engine.submit(prompt, generation)
                answer.add_done_callback(partial(self._answered, ordinal))

    def _answered(self, ordinal: int, answer: Future[Rollout]) -> None:
        try:
            failure = answer.exception()
            ended = failure if isinstance(failure, GenerationFailed) else answer.result()
            self.generation_ended(ordinal, ended)
        except Exception as error:
            # The future would only log it.
            self.fail(error)
