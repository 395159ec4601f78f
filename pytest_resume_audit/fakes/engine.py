"""The rollout engine: answers prompts when the script, or a test by hand, says so."""

from __future__ import annotations

from concurrent.futures import Future

from pytest_resume_audit.control import Control
from pytest_resume_audit.fakes.prompts import Prompt, Rollout


class Engine:
    """Answers prompts, one generation a call, each when it is let go.

    Real answers take longer than dispatch, and end in any order: here nothing ends by itself.
    In an audit the timeline ends generations; alone, ``finish`` and ``fail`` do.

    Args:
        control: the life it answers in.

    Example:
        >>> from pytest_resume_audit import Prompt, Rig, Setup
        >>> engine = Rig(Setup()).engine
        >>> future = engine.submit(Prompt(5))
        >>> engine.finish(5)
        >>> future.result().prompt.row
        5
    """

    def __init__(self, control: Control) -> None:
        self._control = control

    def generate(self, prompt: Prompt, generation: int = 0) -> Rollout:
        """Answer a prompt; blocks until the answer is there.

        Raises:
            GenerationFailed: when the generation fails.
        """
        control = self._control
        begun = control.dispatch(prompt, generation)
        with control.lock:
            control.wait("engine", lambda: begun.ended)
        return begun.result()

    def submit(self, prompt: Prompt, generation: int = 0) -> Future[Rollout]:
        """Answer a prompt in the background.

        Returns:
            A future of the rollout; :class:`GenerationFailed` is its exception when it fails.
        """
        future: Future[Rollout] = Future()
        self._control.dispatch(prompt, generation, future)
        return future

    async def agenerate(self, prompt: Prompt, generation: int = 0) -> Rollout:
        """Answer a prompt in a coroutine.

        Raises:
            GenerationFailed: when the generation fails.
        """
        control = self._control
        begun = control.dispatch(prompt, generation)
        await control.await_gate("engine", lambda: begun.ended)
        return begun.result()

    @property
    def in_flight(self) -> list[tuple[int, int]]:
        """Row and generation of what is in flight, sorted."""
        self._control.check()
        with self._control.lock:
            waiting = self._control.in_flight.values()
            return sorted((g.prompt.row, g.generation) for group in waiting for g in group)

    def finish(self, row: int, generation: int | None = None) -> None:
        """Let the generations of a row end, or one of them.

        Raises:
            LookupError: when none of them is in flight.
        """
        self._end(row, generation, failed=False)

    def fail(self, row: int, generation: int | None = None) -> None:
        """Let the generations of a row fail, or one of them.

        Raises:
            LookupError: when none of them is in flight.
        """
        self._end(row, generation, failed=True)

    def _end(self, row: int, generation: int | None, *, failed: bool) -> None:
        with self._control.lock:
            ending = [
                begun
                for group in self._control.in_flight.values()
                for begun in group
                if begun.prompt.row == row and generation in (None, begun.generation)
            ]
        if not ending:
            which = "" if generation is None else f", generation {generation}"
            raise LookupError(f"row {row}{which} is not in flight; in flight: {self.in_flight}")
        for begun in ending:
            self._control.end_generation(begun, failed=failed)
