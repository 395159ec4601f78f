"""The new way: a restart goes on from the oldest prompt that is not settled.

Three classes, to be read from the top. :class:`Frontier` counts: which prompts are settled, and
from which place of the loader a checkpoint must resume. :class:`ResumableCollector` saves and
restores that count together with weights and buffer. :class:`FrontierCollector` moves the
prompts, with a collection thread and a pool of generation threads.
"""

from __future__ import annotations

import dataclasses
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, TypeVar

from pytest_resume_audit.collector import Collector
from pytest_resume_audit.collectors import checkpoints
from pytest_resume_audit.collectors.checkpoints import ResumeRefused as ResumeRefused
from pytest_resume_audit.control import GenerationFailed
from pytest_resume_audit.fakes.prompts import Prompt, Rollout
from pytest_resume_audit.rig import Rig

T = TypeVar("T")


class LegacyCheckpointWarning(UserWarning):
    """A checkpoint without ordinals was restored: what was in flight then is lost."""


# -- the count -----------------------------------------------------------------------------------


class Place(NamedTuple):
    """A place of the loader.

    Args:
        ordinal: of the prompt that it hands out next.
        epoch: the pass over the data that it is in, from 0.
        state: its ``state_dict()`` there; None: as it was made, with nothing to load.
    """

    ordinal: int
    epoch: int
    state: Any


BEGINNING = Place(ordinal=0, epoch=0, state=None)
"""Where a loader is that was just made."""


class Frontier:
    """Counts the stream of prompts: what is settled, and where a restart must resume.

    A loader only knows its live place, and cannot go back. So its place is remembered before
    each batch is pulled, and a checkpoint resumes from the *cut*: the newest remembered place
    at or before the oldest prompt that is not settled. What comes round again from there and is
    settled, or waits in the restored buffer, is thrown away on arrival.

    It has no threads and does no I/O: its methods are called under the collector's lock.

    Args:
        here: the place that the loader starts from.
        identity: what numbers and counts depend on, such as the size of the data set and of a
            batch: with anything else the same ordinal is another prompt.
        remember: batches whose places are remembered. Forgotten are only places that no
            checkpoint can need any more; when all are needed, the frontier is :attr:`full`.

    Raises:
        ValueError: for ``remember`` below 1.

    Example:
        Two batches are handed out, the second one is trained first:

        >>> frontier = Frontier()
        >>> frontier.hand_out(["a", "b"], state="after b")
        [(0, 'a'), (1, 'b')]
        >>> frontier.hand_out(["c", "d"], state="after d")
        [(2, 'c'), (3, 'd')]
        >>> frontier.settle([2, 3, 0])
        >>> frontier.cut
        Place(ordinal=0, epoch=0, state=None)

        After a restart only ``b`` is new:

        >>> again = Frontier.restored(frontier.state_dict())
        >>> again.hand_out(["a", "b"], state="after b")
        [(1, 'b')]
        >>> again.settle([1])
        >>> again.cut, again.lowest_unsettled
        (Place(ordinal=2, epoch=0, state='after b'), 4)
    """

    def __init__(
        self,
        here: Place = BEGINNING,
        *,
        identity: Mapping[str, Any] | None = None,
        remember: int = 512,
    ) -> None:
        if remember < 1:
            raise ValueError(f"Frontier(remember={remember}): at least one place is needed")
        self._identity = dict(identity or {})
        self._remember = remember
        # The cut first, the live place last; between them the places before each batch that
        # was pulled since.
        self._places = deque([here])
        self._lowest_unsettled = here.ordinal
        self._settled_above: set[int] = set()
        self._restored_horizon = here
        self._restored_buffer: set[int] = set()

    @property
    def here(self) -> Place:
        """The live place of the loader."""
        return self._places[-1]

    @property
    def cut(self) -> Place:
        """The newest remembered place at or before the oldest prompt that is not settled."""
        return self._places[0]

    @property
    def lowest_unsettled(self) -> int:
        """The frontier: every ordinal below it is settled."""
        return self._lowest_unsettled

    @property
    def horizon(self) -> Place:
        """The furthest place ever: behind all that was handed out, before a restart or after."""
        return self._restored_horizon if self.filtering else self.here

    @property
    def full(self) -> bool:
        """Whether every remembered place is needed: hand out no more until the frontier moves."""
        return len(self._places) > self._remember

    @property
    def filtering(self) -> bool:
        """Whether the stream still repeats what was handed out before the restart."""
        return self.here.ordinal < self._restored_horizon.ordinal

    def hand_out(self, batch: Sequence[T], state: Any) -> list[tuple[int, T]]:
        """Number a batch that the loader handed out.

        Args:
            batch: its prompts.
            state: of the loader behind the batch, which is its place before the next one.

        Returns:
            Ordinal and prompt of those to be answered; the rest came round again, and is
            settled or waits in the restored buffer.
        """
        first = self.here.ordinal
        behind = Place(first + len(batch), self.here.epoch, state)
        wanted = [
            (ordinal, prompt)
            for ordinal, prompt in enumerate(batch, start=first)
            if not (ordinal < self._restored_horizon.ordinal and self._came_before(ordinal))
        ]
        if self.full:
            # Pulled all the same: this batch's own place is given up. That makes the stretch
            # that a restart repeats longer; giving up the cut would make it lose prompts.
            self._places[-1] = behind
        else:
            self._places.append(behind)
        if not self.filtering:
            self._restored_buffer.clear()
        self._forget()
        return wanted

    def end_pass(self, state: Any) -> None:
        """Note that the loader has ended a pass.

        Args:
            state: of the loader behind the end. It differs from the one behind the last batch,
                from which a restart gets an empty rest of the pass first.
        """
        self._places[-1] = Place(self.here.ordinal, self.here.epoch + 1, state)

    def settle(self, ordinals: Iterable[int]) -> None:
        """Note prompts that are trained, failed for good, or dropped.

        Raises:
            ValueError: for one that was not handed out, or is settled already: it is counted
                twice, or trained twice.
        """
        for ordinal in ordinals:
            if (unknown := ordinal >= self.horizon.ordinal) or self._is_settled(ordinal):
                why = "not handed out" if unknown else "settled already"
                raise ValueError(f"prompt {ordinal} cannot be settled: it is {why}")
            self._settled_above.add(ordinal)
        # A pointer that only moves up: each ordinal passes through the set once.
        while self._lowest_unsettled in self._settled_above:
            self._settled_above.remove(self._lowest_unsettled)
            self._lowest_unsettled += 1
        self._forget()

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint needs: the cut, what is settled above it, and the horizon.

        Returns:
            Plain values, except for the loader's own state in the two places.
        """
        passed = range(self.cut.ordinal, self._lowest_unsettled)
        return {
            "identity": dict(self._identity),
            "cut": self.cut._asdict(),
            "settled": [*passed, *sorted(self._settled_above)],
            "horizon": self.horizon._asdict(),
        }

    @classmethod
    def restored(
        cls,
        state: Mapping[str, Any],
        *,
        identity: Mapping[str, Any] | None = None,
        remember: int = 512,
    ) -> Frontier:
        """The frontier of a restart; the loader has to be put to its :attr:`here` as well.

        Args:
            state: what :meth:`state_dict` gave.
            identity: of the stream now.
            remember: as for a new one.

        Raises:
            ResumeRefused: when the stream is not the one that was saved.
        """
        now = dict(identity or {})
        was = state["identity"]
        changed = [
            f"{name} was {was.get(name)!r} and is {now.get(name)!r}"
            for name in {**was, **now}
            if was.get(name) != now.get(name)
        ]
        if changed:
            raise ResumeRefused(f"the checkpoint is of another run: {', '.join(changed)}")
        frontier = cls(Place(**state["cut"]), identity=identity, remember=remember)
        frontier._restored_horizon = Place(**state["horizon"])
        frontier.settle(state["settled"])
        return frontier

    def skip_buffered(self, ordinals: Iterable[int]) -> None:
        """Note what waits in the restored buffer: it is thrown away when it comes round again.

        What was buffered at the save and is not among them is answered again.

        Raises:
            ResumeRefused: when frontier and buffer are not of one save.
        """
        self._restored_buffer = set(ordinals)
        end = self.horizon.ordinal
        strange = {o for o in self._restored_buffer if self._is_settled(o) or o >= end}
        if strange:
            raise ResumeRefused(
                f"the buffer is not of the same save: {sorted(strange)} are settled, or were "
                "never handed out"
            )

    def _came_before(self, ordinal: int) -> bool:
        return self._is_settled(ordinal) or ordinal in self._restored_buffer

    def _is_settled(self, ordinal: int) -> bool:
        return ordinal < self._lowest_unsettled or ordinal in self._settled_above

    def _forget(self) -> None:
        while len(self._places) > 1 and self._places[1].ordinal <= self._lowest_unsettled:
            self._places.popleft()


# -- save and restore ----------------------------------------------------------------------------


class StatefulLoader(Protocol):
    """A loader that can be saved, such as torchdata's ``StatefulDataLoader``."""

    def __iter__(self) -> Iterator[Sequence[Prompt]]:
        """A pass over the data, or the rest of one."""

    def state_dict(self) -> Any:
        """The live place."""

    def load_state_dict(self, state: Any) -> None:
        """Go to a place: the next ``iter()`` begins there."""


@dataclasses.dataclass
class _Group:
    """A prompt in flight: how many of its generations are out, and the answers so far."""

    out: int
    answers: list[Rollout] = dataclasses.field(default_factory=list)


class ResumableCollector(Collector):
    """What the new way saves and restores; a subclass moves the prompts.

    A subclass asks :meth:`may_pull` and :meth:`has_room`, and reports with :meth:`begin` and
    :meth:`generation_ended`. Its own loader, weights or files go into :meth:`make_loader`,
    :meth:`weights`, :meth:`load_weights`, :meth:`optimize` and :attr:`form`.

    Steps and saves come from one thread, as in a training loop: between the step that puts
    prompts into the weights and the note that they are settled there is no save.

    Args:
        rig: loader, engine, buffer and trainer of this life.

    Attributes:
        form: how the files of a checkpoint are written.
        remember: batches whose places are remembered.
        loader: hands out the prompts.
        frontier: counts them.
        legacy: whether this run descends from a checkpoint without ordinals.
        failure: what ended the collection, raised by the next step or save.
    """

    refuses = (ResumeRefused,)
    form: ClassVar[checkpoints.Form] = checkpoints.JSON
    remember: ClassVar[int] = 512

    def __init__(self, rig: Rig) -> None:
        super().__init__(rig)
        self.loader = self.make_loader()
        self.frontier = Frontier(identity=self.identity(), remember=self.remember)
        self.legacy = False
        self.failure: Exception | None = None
        # What it guards: frontier, groups in flight, and everything that enters the buffer. A
        # subclass with threads puts its lock here.
        self.lock: AbstractContextManager[object] = nullcontext()
        self._in_flight: dict[int, _Group] = {}
        self._buffered = 0
        self._failed_generations = 0

    # -- seams -----------------------------------------------------------------------------

    def make_loader(self) -> StatefulLoader:
        """The loader; by default the rig's own."""
        return self.rig.loader

    def identity(self) -> dict[str, Any]:
        """What the stream of prompts depends on: with other values a resume is refused."""
        setup = self.rig.setup
        return {
            "prompts": len(self.rig.prompts),
            "data": self.rig.prompts.fingerprint,
            "batch_size": setup.batch_size,
            "group_size": setup.group_size,
            "drop_last": setup.drop_last,
            "shuffle": setup.shuffle,
            "seed": setup.seed if setup.shuffle else None,
        }

    def weights(self) -> dict[str, Any]:
        """What to save of the trainer."""
        return self.rig.trainer.state_dict()

    def load_weights(self, weights: dict[str, Any]) -> None:
        """Go back to what :meth:`weights` gave."""
        self.rig.trainer.load_state_dict(weights)

    def optimize(self) -> list[Rollout] | Literal[False]:
        """One step of the trainer: the rollouts it took, False when there are too few yet."""
        return self.rig.trainer.step()

    # -- save and restore ------------------------------------------------------------------

    def save(self, root: Path, step: int) -> None:
        """Publish a checkpoint: weights, buffer, the loader's live place, and the frontier.

        Args:
            root: where the checkpoints are.
            step: trainer steps so far.

        Raises:
            RuntimeError: when the collection has failed.
        """
        self.check()
        # One moment for all of it: nothing is numbered, settled or buffered meanwhile. Written
        # it is outside of the lock, so that the collection goes on.
        with self.lock:
            # What the version before the fix saved, and a legacy run resumes from, is the live
            # place. The loader itself is not asked: another thread may be in the middle of it.
            # And while it repeats a stretch, it stands before prompts that are trained.
            live = self.frontier.horizon
            parts = {
                "weights": self.weights(),
                "replay_buffer": self.rig.buffer.state_dict(),
                "dataloader": {"epoch": live.epoch, "state": live.state},
                "frontier": self.frontier.state_dict(),
            }
        checkpoints.publish(
            root, without_ordinals(parts) if self.legacy else parts, step=step, form=self.form
        )

    def restore(self, checkpoint: Path, *, load_replay_buffer: bool) -> None:
        """Go back to a checkpoint.

        Args:
            checkpoint: what ``save`` wrote, now or before the fix.
            load_replay_buffer: False: what was buffered is answered again.

        Raises:
            ResumeRefused: when it is torn, or when the run no longer fits it.
        """
        parts = checkpoints.read(checkpoint, form=self.form)
        try:
            self._restore(parts, load_replay_buffer)
        except ValueError as error:
            raise ResumeRefused(f"{checkpoint} does not fit this run: {error}") from error
        if self.legacy:
            warnings.warn(
                f"{checkpoint} is a legacy checkpoint: it has no ordinals. The prompts that were "
                "in flight when it was saved are not trained again, now or in any run that "
                "descends from this one.",
                LegacyCheckpointWarning,
                stacklevel=2,
            )

    def _restore(self, parts: dict[str, Any], load_replay_buffer: bool) -> None:
        self.legacy = "frontier" not in parts
        if self.legacy:
            # The old way: on from the live place. The ordinals start anew: they serve this life
            # only, and are not saved.
            here = Place(0, **parts["dataloader"])
            self.frontier = Frontier(here, remember=self.remember)
        else:
            self.frontier = Frontier.restored(
                parts["frontier"], identity=self.identity(), remember=self.remember
            )
        self.load_weights(parts["weights"])
        if load_replay_buffer:
            self._restore_buffer(parts["replay_buffer"])
        if self.frontier.here.state is not None:
            self.loader.load_state_dict(self.frontier.here.state)

    def _restore_buffer(self, saved: dict[str, Any]) -> None:
        no_room = {rollout.tag for rollout in self.rig.buffer.load_state_dict(saved)}
        self._buffered = len(self.rig.buffer)
        if not self.legacy:
            # What does not fit any more is not skipped: it comes round again, to be answered.
            self.frontier.skip_buffered({r["tag"] for r in saved["rollouts"]} - no_room)

    def downgrade(self, checkpoint: Path) -> None:
        """Rewrite a checkpoint as the version before the fix wrote it: without ordinals."""
        parts = checkpoints.read(checkpoint, form=self.form)
        checkpoints.rewrite(checkpoint, without_ordinals(parts), form=self.form)

    @classmethod
    def latest(cls, root: Path) -> Path | None:
        """The newest complete checkpoint."""
        return checkpoints.newest_complete(root)

    # -- steps -----------------------------------------------------------------------------

    def train_step(self) -> bool:
        """Drop what is too old, train one step, and settle what it trained.

        Returns:
            False when there is not enough yet.

        Raises:
            RuntimeError: when the collection has failed.
        """
        self.check()
        self._drop_stale()
        rollouts = self.optimize()
        if not rollouts:
            return False
        self._settle(rollouts)
        return True

    def _drop_stale(self) -> None:
        now = self.rig.trainer.weight_version
        stale = self.rig.buffer.evict(now)
        for rollout in stale:
            if rollout.generation == 0:
                age = f"answered by weights {rollout.weight_version}, now {now}"
                self.rig.dropped(rollout.prompt, f"too old: {age}")
        if stale:
            self._settle(stale)

    def _settle(self, rollouts: list[Rollout]) -> None:
        # Whole groups that have left the buffer. What a legacy checkpoint brought has no ordinal.
        with self.lock:
            self.frontier.settle({r.tag for r in rollouts if r.tag is not None})
            self._buffered -= len(rollouts) // self.rig.setup.group_size
            self.room_made()

    def fail(self, error: Exception) -> None:
        """End the collection; the next step or save says why. The lock is held."""
        self.failure = self.failure or error
        self.room_made()

    def check(self) -> None:
        """Raise what ended the collection, if anything did."""
        if self.failure is not None:
            raise RuntimeError(f"the collection has ended: {self.failure}") from self.failure

    # -- prompts in flight; the lock is held -----------------------------------------------

    def has_room(self) -> bool:
        """Whether one more prompt may be in flight, and fits in the buffer when it is answered."""
        setup, in_flight = self.rig.setup, len(self._in_flight)
        if setup.max_in_flight is not None and in_flight >= setup.max_in_flight:
            return False
        return setup.capacity is None or in_flight + self._buffered < setup.capacity

    def may_pull(self) -> bool:
        """Whether to take one more batch from the loader."""
        # A full frontier moves when what is out is trained. With nothing in flight and less
        # than a step in the buffer, only new prompts can bring that about.
        starved = not self._in_flight and self._buffered < self.rig.setup.prompts_per_step
        return self.has_room() and (starved or not self.frontier.full)

    def begin(self, ordinal: int) -> None:
        """Note that all generations of a prompt are put in flight."""
        self._in_flight[ordinal] = _Group(out=self.rig.setup.group_size)

    def generation_ended(self, ordinal: int, answer: Rollout | GenerationFailed) -> None:
        """Take in one answer, or one failure.

        A group goes into the buffer when it is whole: half a group is in no checkpoint, and is
        answered again as a whole. One that lacks an answer is settled as failed, when none of
        its generations is in flight any more.
        """
        group = self._in_flight[ordinal]
        group.out -= 1
        if isinstance(answer, Rollout):
            group.answers.append(dataclasses.replace(answer, tag=ordinal))
        else:
            self._failed_generations += 1
            tolerated = self.rig.setup.max_failures
            if self._failed_generations > tolerated:
                many = f"{self._failed_generations} generations failed, {tolerated} are tolerated"
                self.fail(RuntimeError(f"{many}; the last one: {answer}"))
        if group.out:
            return
        del self._in_flight[ordinal]
        if len(group.answers) == self.rig.setup.group_size:
            for rollout in group.answers:
                self.rig.buffer.add(rollout)
            self._buffered += 1
        else:
            self.frontier.settle([ordinal])
        self.room_made()

    def room_made(self) -> None:
        """Called when a prompt has left what is in flight, or the buffer: go on dispatching."""


def without_ordinals(parts: Mapping[str, Any]) -> dict[str, Any]:
    """A checkpoint as the version before the fix wrote it, which is the legacy mark.

    Args:
        parts: of a checkpoint.

    Returns:
        The live place, the buffer without tags, the weights.
    """
    rollouts = [{**rollout, "tag": None} for rollout in parts["replay_buffer"]["rollouts"]]
    return {
        "weights": parts["weights"],
        "replay_buffer": {"rollouts": rollouts},
        "dataloader": parts["dataloader"],
    }


# -- threads -------------------------------------------------------------------------------------


class _Ended(Exception):
    """Raised in the collection thread when there is nothing left to wait for."""


class FrontierCollector(ResumableCollector):
    """The new way with threads: loses no prompt in flight, and trains none twice.

    One thread collects; each generation is a task of a pool. One condition guards what they
    share; it is never held where a thread may stand for long, at the loader or in a generation.

    Args:
        rig: loader, engine, buffer and trainer of this life.

    Example:
        >>> from pytest_resume_audit import FrontierCollector, run
        >>> report = run(FrontierCollector, "mid-flight")
        >>> report.verdict, report.skipped
        ('lossless', [])
    """

    def __init__(self, rig: Rig) -> None:
        super().__init__(rig)
        self.lock = self._changed = threading.Condition()
        self._stopping = False
        setup = rig.setup
        limits = (setup.total, setup.max_in_flight, setup.capacity)
        most = min(limit for limit in limits if limit is not None)
        # A thread for each generation that may be in flight; the pool starts them when needed.
        self._pool = ThreadPoolExecutor(most * setup.group_size, "generation")

    def start(self) -> None:
        """Start the collection thread."""
        threading.Thread(target=self._run, name="collection", daemon=True).start()

    def stop(self) -> None:
        """Let the threads end; what is in flight is abandoned."""
        # None is waited for: a thread at the loader or in a generation may stand there for ever.
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
            self._pool.shutdown(wait=False, cancel_futures=True)

    def _run(self) -> None:
        try:
            self._collect()
        except _Ended:
            pass
        except Exception as error:
            with self._changed:
                self.fail(error)

    def _collect(self) -> None:
        for _ in range(self.frontier.here.epoch, self.rig.setup.passes):
            batches = iter(self.loader)
            while True:
                with self._changed:
                    self._wait_for(self.may_pull)
                batch = next(batches, None)
                # Taken by the thread that pulls, before it pulls again: no other could tell
                # whether the loader stands before or behind a batch.
                state = self.loader.state_dict()
                with self._changed:
                    if batch is None:
                        self.frontier.end_pass(state)
                        break
                    wanted = self.frontier.hand_out(batch, state)
                for ordinal, prompt in wanted:
                    self._dispatch(ordinal, prompt)

    def _dispatch(self, ordinal: int, prompt: Prompt) -> None:
        with self._changed:
            # The rest of the batch waits here. It is handed out and not settled, so the cut is
            # before it, and it comes round again after a restart.
            self._wait_for(self.has_room)
            self.begin(ordinal)
            for generation in range(self.rig.setup.group_size):
                self._pool.submit(self._generate, ordinal, prompt, generation)

    def _generate(self, ordinal: int, prompt: Prompt, generation: int) -> None:
        answer: Rollout | GenerationFailed
        try:
            try:
                answer = self.rig.engine.generate(prompt, generation)
            except GenerationFailed as failure:
                answer = failure
            with self._changed:
                self.generation_ended(ordinal, answer)
        except Exception as error:
            # The pool would keep it in a future that nobody looks at.
            with self._changed:
                self.fail(error)

    def _wait_for(self, ready: Callable[[], bool]) -> None:
        self._changed.wait_for(lambda: self._stopping or self.failure is not None or ready())
        if self._stopping or self.failure is not None:
            raise _Ended

    def room_made(self) -> None:
        """Wake the collection thread."""
        self._changed.notify_all()
