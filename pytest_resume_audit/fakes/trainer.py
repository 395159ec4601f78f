"""The trainer: its weights are the record of what they were trained on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal, cast

from pytest_resume_audit.control import Control
from pytest_resume_audit.fakes.buffer import ReplayBuffer
from pytest_resume_audit.fakes.prompts import Rollout

if TYPE_CHECKING:
    from torch import Tensor, nn

BUFFER_NAME = "resume_audit_counts"


class Trainer:
    """Trains weights that count, per row and generation, how often it went into them.

    Saved and restored by the collector's own checkpoint code like any weights, the counts say
    what a run has trained, whatever crashed, rolled back or was torn on the way.

    Args:
        control: the life it trains in.
        buffer: where :meth:`step` takes groups from.

    Example:
        >>> from pytest_resume_audit import Prompt, Rig, Rollout, Setup
        >>> trainer = Rig(Setup(prompts=2, batch_size=2)).trainer
        >>> trainer.train([Rollout(Prompt(1), generation=0, weight_version=0)])
        >>> trainer.weight_version, trainer.counts()
        (1, [0, 1])
    """

    def __init__(self, control: Control, buffer: ReplayBuffer) -> None:
        self._control = control
        self._buffer = buffer
        self._setup = control.setup
        prompts, self._generations = control.counted
        self._counts = [0] * (prompts * self._generations)
        self._version = 0
        self._model: nn.Module | None = None
        control.weights = lambda: self.steps_behind

    @property
    def weight_version(self) -> int:
        """Steps that the weights have behind them."""
        # A thread that polls it ends with its life.
        self._control.check()
        return self.steps_behind

    @property
    def steps_behind(self) -> int:
        """The same, for whoever is not of the life."""
        return self._version if self._model is None else int(self._in_model()[-1])

    def counts(self) -> list[int]:
        """How often each generation went into the weights: row x ``group_size`` + generation."""
        return list(self._counts) if self._model is None else self._in_model()[:-1].tolist()

    def step(self) -> list[Rollout] | Literal[False]:
        """Train one step on the groups that are due.

        These are the ``prompts_per_step`` lowest complete groups of the buffer (``take`` says
        otherwise). When the loader has ended and nothing is in flight it takes what is left.

        Returns:
            The rollouts trained; False when there are not enough yet.
        """
        setup, control, buffer = self._setup, self._control, self._buffer
        if setup.take == "hand_out":
            rollouts = buffer.sample_hand_out()
        else:
            rollouts = buffer.sample(setup.prompts_per_step)
        if not rollouts and control.data_over and not control.in_flight:
            rollouts = buffer.sample(min(len(buffer), setup.prompts_per_step))
        if not rollouts:
            return False
        self.train(rollouts)
        return rollouts

    def train(self, rollouts: Iterable[Rollout]) -> None:
        """Train one step on these rollouts: called at forward and backward.

        Raises:
            TypeError: for anything but rollouts.
            ValueError: for a row or generation that the setup does not have.
        """
        control = self._control
        control.check()
        rollouts = list(rollouts)
        places = self.places(rollouts)
        with control.lock:
            control.wait("trainer", lambda: control.steps_taken < control.train_limit)
            self._count(rollouts, places, self.steps_behind + 1)
            control.steps_taken += 1

    def train_more(self, rollouts: Iterable[Rollout]) -> None:
        """Train the step that is going on on these rollouts too: the share of another rank."""
        rollouts = list(rollouts)
        with self._control.lock:
            self._count(rollouts, self.places(rollouts), self.steps_behind)

    def _count(self, rollouts: list[Rollout], places: list[int], step: int) -> None:
        """Let rollouts go into the weights. The lock is held."""
        control = self._control
        for rollout in rollouts:
            if self._is_of_here(rollout):
                control.reached("trained", rollout, number=step)
            else:
                ordinal = control.numbers.look_up("trained", rollout.prompt.row, 0)
                control.record("evicted", ordinal, text="of another data set")
        if self._model is None:
            self._version = step
            for place in places:
                self._counts[place] += 1
        else:
            counts = self._in_model()
            counts[-1] = step
            for place in places:
                counts[place] += 1

    def _is_of_here(self, rollout: Rollout) -> bool:
        """Whether it answers a prompt of this data set: what does not trains none of it."""
        return rollout.prompt.data_set == self._setup.data_set

    def places(self, rollouts: Iterable[Rollout]) -> list[int]:
        """Where each rollout is counted; those of another data set are not."""
        indices = [(self._index(rollout), rollout) for rollout in rollouts]
        return [index for index, rollout in indices if self._is_of_here(rollout)]

    def goes_to(self, version: int) -> None:
        """Note the version of weights that are counted in another process."""
        self._version = version

    def _index(self, rollout: Rollout) -> int:
        if not isinstance(rollout, Rollout):
            raise TypeError(f"rig.trainer.train takes rollouts, not {type(rollout).__name__}")
        row, generation = rollout.prompt.row, rollout.generation
        if not (0 <= row < self._setup.prompts and 0 <= generation < self._setup.group_size):
            raise ValueError(
                f"row {row}, generation {generation} is outside of the data set: "
                f"{self._setup.prompts} prompts in groups of {self._setup.group_size}"
            )
        return row * self._generations + generation

    def attach(self, model: nn.Module) -> None:
        """Let the counts ride in a torch module, in a buffer named ``resume_audit_counts``.

        From then on they are saved and restored by the project's own code for the module's
        ``state_dict``, and ``state_dict`` of the trainer is not needed.

        Args:
            model: gets an int64 buffer of ``prompts x group_size + 1`` entries, the last one
                the weight version.
        """
        self._control.check()
        count_in(model, [*self.counts(), self.steps_behind])
        self._model = model

    def _in_model(self) -> Tensor:
        assert self._model is not None
        return counts_in(self._model)

    def state_dict(self) -> dict[str, Any]:
        """The weights: ``version`` and ``counts``."""
        self._control.check()
        with self._control.lock:
            return {"version": self.steps_behind, "counts": self.counts()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go back to saved weights.

        Raises:
            ValueError: for weights of another data set or group size.
        """
        self._control.check()
        try:
            version, counts = int(state["version"]), [int(n) for n in state["counts"]]
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"not a state of this trainer: {state!r:.200}") from error
        with self._control.lock:
            if len(counts) != len(self.counts()):
                raise ValueError(
                    f"weights of another size: {len(counts)} counts, but {self._setup.prompts} "
                    f"prompts in groups of {self._setup.group_size}"
                )
            if self._model is None:
                self._counts, self._version = counts, version
            else:
                self._in_model().copy_(self._in_model().new_tensor([*counts, version]))


def count_in(model: nn.Module, counts: list[int]) -> None:
    """Give a torch module a buffer of counts, the last of them the weight version.

    Raises:
        ImportError: where torch is not installed.
    """
    try:
        import torch
    except ImportError as error:
        raise ImportError(
            "rig.trainer.attach needs torch: pip install 'pytest-resume-audit[torch]'"
        ) from error
    model.register_buffer(BUFFER_NAME, torch.tensor(counts, dtype=torch.int64))


def counts_in(model: nn.Module) -> Tensor:
    """The counts that ride in a module; its entries can be changed in place."""
    # Looked up each time: moving a module, or loading it, may put a new tensor there.
    return cast("Tensor", getattr(model, BUFFER_NAME))
