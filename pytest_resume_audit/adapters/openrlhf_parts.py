"""Imports the parts of OpenRLHF that an audited run is made of.

OpenRLHF is used as it was released. It needs a GPU, a model server and a cluster to train; what of
that is stood in for while its modules are imported is :data:`STAND_INS`.
"""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import importlib.util
import inspect
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType, ModuleType, SimpleNamespace
from typing import Any

VERSION = "0.11.2"
"""The release that the adapter was run against."""

NEEDS = ("openrlhf", "torch", "torchdata", "ray", "transformers", "peft", "datasets", "deepspeed")
"""What has to be installed."""

STAND_INS: Mapping[str, Sequence[str]] = {
    "vllm": ("SamplingParams",),
    "vllm.inputs": ("TokensPrompt",),
    "vllm.utils": ("random_uuid",),
    "flash_attn": (),
    "flash_attn.bert_padding": ("index_first_axis", "pad_input", "rearrange", "unpad_input"),
    "flash_attn.utils": (),
    "flash_attn.utils.distributed": ("all_gather",),
}
"""Modules that need a GPU, and the names that are imported from them. They stand for the model
server and for attention over packed sequences; of all these only ``SamplingParams`` is called,
which holds what it is given."""

_ENTRY = "cli.train_ppo_ray"


class OpenRLHFMissing(ImportError):
    """There is no OpenRLHF to be audited; it says what to do."""


@dataclass(frozen=True)
class OpenRLHF:
    """OpenRLHF's modules.

    Args:
        package: the name of the imported package.
    """

    package: str

    def module(self, name: str) -> ModuleType:
        """One of its modules, by its name below the package."""
        return importlib.import_module(f"{self.package}.{name}")

    @property
    def entry(self) -> Any:
        """The module of its command line; ``train(args)`` is the whole run."""
        return self.module(_ENTRY)

    def original(self, module: str, name: str) -> Any:
        """What a name in a module means before it is replaced."""
        return _original(self.package, module, name)

    def plain(self, module: str, name: str) -> Any:
        """A class without its decorator, which makes a Ray actor of it."""
        return self.original(module, name).__ray_metadata__.modified_class

    def arguments(self, options: Sequence[str]) -> Any:
        """What its command line makes of options: with its own defaults and its own checks.

        Args:
            options: as they would be typed.
        """
        with _TYPING:
            typed, sys.argv = sys.argv, [_ENTRY, *options]
            try:
                names = dict(vars(self.entry))
                exec(_parsing(self.package), names)
            finally:
                sys.argv = typed
        return names["args"]

    def replace(self, names: Mapping[str, Mapping[str, Any]]) -> None:
        """Give names in its modules another meaning, for this process.

        Args:
            names: for each module its names and what they are now.
        """
        for module, meanings in names.items():
            for name, meaning in meanings.items():
                if not hasattr(self.module(module), name):
                    raise AttributeError(
                        f"{self.package}.{module} has no {name} to be stood in for: the adapter is "
                        f"for OpenRLHF {VERSION}"
                    )
                setattr(self.module(module), name, meaning)


_TYPING = threading.Lock()


@lru_cache(maxsize=64)
def _original(package: str, module: str, name: str) -> Any:
    # The first life asks before it replaces; later ones are answered from the cache.
    return getattr(importlib.import_module(f"{package}.{module}"), name)


@lru_cache(maxsize=4)
def _parsing(package: str) -> CodeType:
    """Its command line, up to where it would train: that part is in no function of its own."""
    tree = ast.parse(inspect.getsource(importlib.import_module(f"{package}.{_ENTRY}")))
    last = tree.body[-1]
    if not isinstance(last, ast.If) or ast.unparse(last.body[-1]) != "train(args)":
        raise AttributeError(
            f"the command line of {package}.{_ENTRY} no longer ends in train(args): the adapter is "
            f"for OpenRLHF {VERSION}"
        )
    return compile(ast.Module(last.body[:-1], []), f"{package}.{_ENTRY}", "exec")


@lru_cache(maxsize=4)
def load(package: str = "openrlhf") -> OpenRLHF:
    """Import OpenRLHF.

    Args:
        package: its name.

    Raises:
        OpenRLHFMissing: when something is not installed.
    """
    if package == "openrlhf" and (why := why_missing()) is not None:
        raise OpenRLHFMissing(why)
    openrlhf = OpenRLHF(package)
    with _stood_in_for(), warnings.catch_warnings():
        # What packages say of each other while they are imported is nothing to be tested.
        warnings.simplefilter("ignore")
        for name in (_ENTRY, "trainer.ppo_trainer_async", "utils.deepspeed.deepspeed"):
            openrlhf.module(name)
    with_progress = sys.modules.get("tqdm")
    if with_progress is not None:
        # Its bars otherwise start a thread that looks after them, in the life that has the first.
        with_progress.tqdm.monitor_interval = 0
    return openrlhf


def why_missing() -> str | None:
    """Why OpenRLHF can't be audited here, and what to do; None: it can."""
    lacking = [name for name in NEEDS if importlib.util.find_spec(name) is None]
    how = "tox -e openrlhf has what it needs"
    if lacking:
        return f"OpenRLHF is not run without {', '.join(lacking)}: {how}"
    found = importlib.metadata.version("openrlhf")
    if found != VERSION:
        return f"the adapter is for OpenRLHF {VERSION}, and not for {found}: {how}"
    return None


@contextmanager
def _stood_in_for() -> Iterator[None]:
    """A stretch in which the modules that need a GPU can be imported."""
    put = {}
    tops = {name.partition(".")[0] for name in STAND_INS}
    missing = {top for top in tops if importlib.util.find_spec(top) is None}
    for name, names in STAND_INS.items():
        if name.partition(".")[0] in missing:
            put[name] = _stand_in(name, names)
    if put and importlib.util.find_spec("transformers") is not None:
        # These look whether there is a flash_attn: they are to find that there is none.
        for name in ("transformers", "transformers.modeling_flash_attention_utils", "peft"):
            importlib.import_module(name)
    sys.modules.update(put)
    try:
        yield
    finally:
        for name in put:
            sys.modules.pop(name, None)


def _stand_in(name: str, names: Sequence[str]) -> ModuleType:
    module = ModuleType(name)
    module.__path__ = []
    module.__spec__ = importlib.util.spec_from_loader(name, None)
    for of in names:
        setattr(module, of, type(of, (SimpleNamespace,), {}))
    return module
