"""Loaders alone: anything that hands out batches and has a saved state, without a collector.

A loader is driven as a training script does it: pass after pass, each batch trained at once, the
state saved with the weights. So there is nothing in flight, and whatever is lost or repeated
across a restart is the loader's.
"""

from __future__ import annotations

import abc
import copyreg
import pickle
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

from pytest_resume_audit.collector import Collector
from pytest_resume_audit.collectors import checkpoints
from pytest_resume_audit.fakes.prompts import Rollout
from pytest_resume_audit.rig import Rig
from pytest_resume_audit.style import Make

StateForm = Literal["pickle", "torch", "json"]
StateOf = Literal["loader", "iterator"]

_ID_KEYS = ("id", "ids", "idx", "index", "row", "rows")


# --- what the callables are by default ------------------------------------------------------------


def begin_pass(loader: Any, epoch: int) -> Iterator[Any]:
    """Begin a pass: ``iter(loader)``."""
    return iter(loader)


def ids_of(batch: Any) -> list[int]:
    """The samples of a batch: whole numbers, alone or in lists, tuples, tensors and arrays.

    Of a dict it is what stands at ``id``, ``ids``, ``idx``, ``index``, ``row`` or ``rows``, or at
    its only key.

    Raises:
        TypeError: where it can't be told.

    Example:
        >>> ids_of([(3,), 1]), ids_of({"text": ["a", "b"], "idx": [5, 4]})
        ([3, 1], [5, 4])
    """
    if isinstance(batch, Mapping):
        keys = [key for key in _ID_KEYS if key in batch] or list(batch)
        if len(keys) != 1:
            raise TypeError(_NO_IDS.format(what=f"a dict with the keys {list(batch)}"))
        return ids_of(batch[keys[0]])
    if hasattr(batch, "tolist"):
        batch = batch.tolist()
    if isinstance(batch, list | tuple):
        return [row for part in batch for row in ids_of(part)]
    if isinstance(batch, int) and not isinstance(batch, bool):
        return [batch]
    raise TypeError(_NO_IDS.format(what=f"{batch!r:.80}"))


_NO_IDS = (
    "the samples of a batch can't be told from {what}: say how, "
    "LoaderAudit(..., ids=lambda batch: [...])"
)


def save_state(loader: Any, iterator: Any) -> Any:
    """The state of whichever has one: ``loader.state_dict()``, else that of the iterator.

    An iterator of Grain has ``get_state`` instead.
    """
    for owner in (loader, iterator):
        for method in ("state_dict", "get_state"):
            if hasattr(owner, method):
                return getattr(owner, method)()
    raise TypeError(
        f"neither {type(loader).__name__} nor its iterator has a state_dict: say how it is saved, "
        "LoaderAudit(..., save=lambda loader, iterator: ...)"
    )


def load_state(target: Any, state: Any) -> None:
    """``target.load_state_dict(state)``; an iterator of Grain has ``set_state`` instead."""
    if hasattr(target, "load_state_dict"):
        target.load_state_dict(state)
    else:
        target.set_state(state)


def end_workers(loader: Any, iterator: Any) -> None:
    """End the worker processes of torch's loaders, as a process that is killed takes them along."""
    for owner in (iterator, getattr(loader, "_iterator", None)):
        for worker in getattr(owner, "_workers", ()):
            worker.terminate()


# --- the audit ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LoaderAudit:
    """An audit of a loader alone; it stands where a collector does.

    The loader goes through ``setup.passes`` passes over ``setup.prompts`` samples, whose ids are
    0, 1, 2 and so on. It is made anew for each life, data set and all, and its state goes through
    a file. A run that is never interrupted says which sample comes when; against that, at the end
    of each timeline, no sample may be skipped or repeated, and none may come out of order.

    Args:
        make: makes the loader, with a new data set; without arguments.
        begin: begins a pass; with the loader and the number of the pass from 0, which after a
            restart is that of the pass that is gone on with. By default ``iter(loader)``.
        ids: the ids of a batch, in order; by default :func:`ids_of`.
        save: the state; with the loader and the iterator of the pass that was begun last, None
            before the first. By default :func:`save_state`.
        load: goes to a state; with the loader or the iterator, and the state. By default
            :func:`load_state`.
        state_of: ``"loader"``: the state is loaded into the loader, and then a pass is begun;
            ``"iterator"``: a pass is begun, and the state is loaded into its iterator.
        form: how the state goes to a file: ``"pickle"``, ``"torch"`` (read back with
            ``weights_only=True``) or ``"json"``.
        order: ``"stream"``: the samples come in the order of a run that is never interrupted;
            ``"any"``: it is enough that none is lost or repeated.
        stream: ``"endless"`` for a loader whose one pass never ends.
        structural: True for a loader that pads its last batch, or leaves out samples (other than
            by ``setup.drop_last``), in a run that is never interrupted.
        end: ends the processes of a loader that is thrown away; by default :func:`end_workers`.

    Raises:
        TypeError: for arguments of another kind.

    Example:
        .. code-block:: python

            def make_loader():
                return StatefulDataLoader(range(16), batch_size=4, shuffle=True)

            @pytest.mark.resume_audit(LoaderAudit(make=make_loader))
            def test_the_loader_loses_nothing(resume_audit):
                resume_audit()
    """

    make: Callable[[], Any]
    begin: Callable[[Any, int], Any] = begin_pass
    ids: Callable[[Any], Any] = ids_of
    save: Callable[[Any, Any], Any] = save_state
    load: Callable[[Any, Any], object] = load_state
    state_of: StateOf = "loader"
    form: StateForm = "pickle"
    order: Literal["stream", "any"] = "stream"
    stream: Literal["finite", "endless"] = "finite"
    structural: bool = False
    end: Callable[[Any, Any], object] = end_workers

    def __post_init__(self) -> None:
        for name in ("make", "begin", "ids", "save", "load", "end"):
            if not callable(value := getattr(self, name)):
                raise TypeError(f"LoaderAudit({name}={value!r}): a function is needed")
        for name, allowed in (("state_of", get_args(StateOf)), ("form", get_args(StateForm))):
            if (value := getattr(self, name)) not in allowed:
                raise TypeError(f"LoaderAudit({name}={value!r}): allowed are {', '.join(allowed)}")
        self.collector  # noqa: B018  a wrong declaration is told here

    @property
    def collector(self) -> type[Collector]:
        """The collector that drives the loader."""
        return _collector_of(self)


def collector_of(audited: Make | LoaderAudit) -> Make:
    """What makes the collectors of an audit: of a loader alone those that drive it."""
    return audited.collector if isinstance(audited, LoaderAudit) else audited


class _Made(abc.ABCMeta):
    """The class of the collectors that are made here."""

    audit: LoaderAudit


@cache
def _collector_of(audit: LoaderAudit) -> type[Collector]:
    declared = {
        "audit": audit,
        "order": audit.order,
        "stream": audit.stream,
        "structural": audit.structural,
        "__module__": getattr(getattr(audit.make, "func", audit.make), "__module__", __name__),
        "__qualname__": f"LoaderAudit({_name_of(audit.make)})",
    }
    made: type[Any] = _Made("LoaderAudit", (LoaderCollector,), declared)
    return made


def _made_again(kind: _Made) -> tuple[Any, ...]:
    """How such a collector is pickled: by its audit, as nothing has its name."""
    return _collector_of, (kind.audit,)


copyreg.pickle(_Made, _made_again)


def _name_of(make: Callable[[], Any]) -> str:
    if isinstance(make, partial):
        given = [*map(repr, make.args), *(f"{k}={v!r}" for k, v in make.keywords.items())]
        return f"{_name_of(make.func)}({', '.join(given)})"
    return getattr(make, "__qualname__", None) or repr(make)


# --- how a loader is driven -----------------------------------------------------------------------


class LoaderCollector(Collector, metaclass=_Made):
    """Drives a loader as a training script does, each batch trained at once.

    It pauses where such a script may save, other than behind a batch: behind ``iter()``, before
    the first batch, and at the end of a pass. ``hand_out`` without a number goes on to the next
    pause.

    Args:
        rig: of this life.
    """

    audit: ClassVar[LoaderAudit]
    refuses = (Exception,)

    def __init__(self, rig: Rig) -> None:
        super().__init__(rig)
        self._driven = _Driven(self.audit)
        self._loader = rig.watch(self._driven, key=self._rows)
        self._pass: Iterator[Any] | None = None

    def start(self) -> None:
        """Nothing to start: the loader is asked by :meth:`pull`."""

    def pull(self) -> bool:
        """Begin a pass, take and train one batch of it, or see that it has ended.

        Returns:
            False at a pause.
        """
        endless = self.audit.stream == "endless"
        if self._driven.epoch >= self.rig.setup.passes and not endless:
            return False
        if self._pass is None:
            self._pass = iter(self._loader)
            return False
        for batch in self._pass:
            self._train(self._rows(batch))
            return True
        self._pass = None
        self._driven.epoch += 1
        return False

    def save(self, root: Path, step: int) -> None:
        """Write weights, state and the number of the pass."""
        parts = {
            "trainer": {"epoch": self._driven.epoch, "weights": self.rig.trainer.state_dict()},
            "loader": self._loader.state_dict(),
        }
        checkpoints.publish(root, parts, step=step, form=_form(self.audit.form))

    def restore(self, checkpoint: Path, *, load_replay_buffer: bool) -> None:
        """Go back to a checkpoint."""
        parts = checkpoints.read(checkpoint, form=_form(self.audit.form))
        self.rig.trainer.load_state_dict(parts["trainer"]["weights"])
        self._driven.epoch = parts["trainer"]["epoch"]
        self._loader.load_state_dict(parts["loader"])

    def crash(self) -> None:
        """End the loader's processes."""
        self.audit.end(self._driven.loader, self._driven.iterator)

    def stop(self) -> None:
        """End the loader's processes."""
        self.crash()

    def _train(self, rows: list[int]) -> None:
        version = self.rig.trainer.weight_version
        self.rig.trainer.train([Rollout(self.rig.prompts[row], 0, version) for row in rows])

    def _rows(self, batch: Any) -> list[int]:
        rows = [int(row) for row in self.audit.ids(batch)]
        samples = self.rig.setup.prompts
        for row in rows:
            if not 0 <= row < samples:
                raise ValueError(
                    f"the loader handed out sample {row}, and there are {samples}, from 0: say how "
                    "many it has, setup=Setup(prompts=..., batch_size=...)"
                )
        return rows


class _Driven:
    """A loader as the rig watches it: by iteration and by its state.

    Args:
        audit: says how.

    Attributes:
        loader: the user's.
        iterator: of the pass that was begun last; None before the first.
        epoch: passes that have ended.
    """

    def __init__(self, audit: LoaderAudit) -> None:
        self.audit = audit
        self.loader = audit.make()
        self.iterator: Any = None
        self.epoch = 0
        self._begun = False

    def __iter__(self) -> Iterator[Any]:
        if not self._begun:
            self._begin()
        self._begun = False
        iterator: Iterator[Any] = self.iterator
        return iterator

    def _begin(self) -> None:
        self.iterator = iter(self.audit.begin(self.loader, self.epoch))

    def _begin_early(self) -> None:
        """Begin the pass before the loop does: there has to be an iterator with a state."""
        self._begin()
        self._begun = True

    def state_dict(self) -> Any:
        if self.audit.state_of == "iterator" and self.iterator is None:
            self._begin_early()
        return self.audit.save(self.loader, self.iterator)

    def load_state_dict(self, state: Any) -> None:
        if self.audit.state_of == "iterator":
            self._begin_early()
            self.audit.load(self.iterator, state)
        else:
            self.audit.load(self.loader, state)


# --- through bytes --------------------------------------------------------------------------------


@cache
def _form(name: StateForm) -> checkpoints.Form:
    if name == "json":
        return checkpoints.JSON
    return _torch_form() if name == "torch" else checkpoints.Form(".pkl", _pickle, _unpickle)


def _pickle(value: Any, path: Path) -> None:
    path.write_bytes(pickle.dumps(value))


def _unpickle(path: Path) -> Any:
    return pickle.loads(path.read_bytes())


def _torch_form() -> checkpoints.Form:
    try:
        import torch
    except ImportError as error:
        raise ImportError(
            "LoaderAudit(form='torch') needs torch: pip install 'pytest-resume-audit[torch]'"
        ) from error
    return checkpoints.Form(".pt", torch.save, lambda path: torch.load(path, weights_only=True))
