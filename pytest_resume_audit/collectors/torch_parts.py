"""Both ways on real parts: torchdata's ``StatefulDataLoader``, a module, an optimizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Literal

try:
    import torch
    from torch import nn
    from torchdata.stateful_dataloader import StatefulDataLoader
    from torchdata.stateful_dataloader.sampler import RandomSampler
except ImportError as error:
    raise ImportError(
        "the collectors on torch need torch and torchdata: pip install 'pytest-resume-audit[torch]'"
    ) from error

from pytest_resume_audit.collector import Collector
from pytest_resume_audit.collectors import checkpoints
from pytest_resume_audit.collectors.frontier import FrontierCollector, StatefulLoader
from pytest_resume_audit.collectors.live_cursor import LiveCursorCollector
from pytest_resume_audit.fakes.prompts import Rollout
from pytest_resume_audit.rig import Rig


def _load(path: Path) -> Any:
    return torch.load(path, weights_only=True)


class _TorchParts(Collector):
    """Loader, weights and files of a torch training run."""

    form: ClassVar[checkpoints.Form] = checkpoints.Form(".pt", torch.save, _load)
    num_workers: ClassVar[int] = 0

    def __init__(self, rig: Rig) -> None:
        super().__init__(rig)
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(rig.setup.seed)
            self.model = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)
        rig.trainer.attach(self.model)

    def make_loader(self) -> StatefulLoader:
        """A ``StatefulDataLoader`` over the prompts."""
        setup, prompts = self.rig.setup, self.rig.prompts
        sampler = None
        if setup.shuffle:
            # The sampler has a generator of its own. With ``shuffle=True, generator=...`` the
            # loader draws its workers' seed from the same one, at each pass, but not at a pass
            # that it resumes: every later pass would then have another order.
            generator = torch.Generator().manual_seed(setup.seed)
            sampler = RandomSampler(prompts, generator=generator)
        self._data_loader = StatefulDataLoader(
            prompts,
            batch_size=setup.batch_size,
            sampler=sampler,
            num_workers=self.num_workers,
            collate_fn=list,
            drop_last=setup.drop_last,
        )
        return self.rig.watch(self._data_loader, key=lambda batch: [prompt.row for prompt in batch])

    def stop(self) -> None:
        """End gracefully, and the loader's worker processes with it."""
        super().stop()
        self._end_workers()

    def crash(self) -> None:
        """End the loader's worker processes: a process that is killed takes them along."""
        self._end_workers()

    def _end_workers(self) -> None:
        # Torch has no public way to end them. They are not waited for: torch does that itself
        # when the loader is thrown away.
        for worker in getattr(self._data_loader._iterator, "_workers", ()):
            worker.terminate()

    def weights(self) -> dict[str, Any]:
        """Module and optimizer; the audit's counts ride in the module."""
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load_weights(self, weights: dict[str, Any]) -> None:
        """Go back to what :meth:`weights` gave."""
        self.model.load_state_dict(weights["model"])
        self.optimizer.load_state_dict(weights["optimizer"])

    def optimize(self) -> list[Rollout] | Literal[False]:
        """One step: forward and backward over what the rig's trainer takes."""
        rollouts = self.rig.trainer.step()
        if rollouts:
            inputs = torch.tensor([[r.prompt.row, r.generation] for r in rollouts]).float()
            rewards = inputs.sum(dim=1, keepdim=True).cos()
            self.optimizer.zero_grad()
            nn.functional.mse_loss(self.model(inputs), rewards).backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()
        return rollouts


class TorchFrontierCollector(_TorchParts, FrontierCollector):
    """The new way on torch.

    Args:
        rig: loader, engine, buffer and trainer of this life.

    Attributes:
        num_workers: processes that the loader reads ahead with; a subclass may set it.
        model: what is trained.
        optimizer: what trains it.
    """

    def identity(self) -> dict[str, Any]:
        """The order of a shuffle, and the form of the state, also depend on worker processes."""
        return {**super().identity(), "num_workers": self.num_workers}


class TorchLiveCursorCollector(_TorchParts, LiveCursorCollector):
    """The old way on torch.

    Args:
        rig: loader, engine, buffer and trainer of this life.

    Attributes:
        num_workers: processes that the loader reads ahead with; a subclass may set it.
        model: what is trained.
        optimizer: what trains it.
    """
