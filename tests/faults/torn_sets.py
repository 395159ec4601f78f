"""The parts of a checkpoint are not of one moment, or not all there."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from faults.planted import planted
from faults.small import Small, Threaded
from pytest_resume_audit import Rig, Setup
from pytest_resume_audit.collectors import checkpoints

WHOLE = "hand_out 4; finish 0-3; train; save; hand_out 8; finish 4-7; train; "


def write(path: Path, value: Any) -> None:
    """Write a file whole, in the place of the one before."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps(value))
    os.replace(new, path)


def read(path: Path) -> Any:
    return json.loads(path.read_text())


@planted(
    "B1a",
    "hand_out 12; finish 0-3; train; finish 4-7; save racing (finish 8-11) at 3; crash; restart",
    because="the buffer is read with 4-7; then 8-11 finish, and are out no more",
    skipped="8-11",
    why={"in flight at a save": "8-11"},
    caught_by="even-ordered-01-raced",
)
class BufferFirst(Threaded):
    """Reads the buffer first and what is out later, while the producers go on.

    https://github.com/NVIDIA-NeMo/RL/pull/3599, https://github.com/NVIDIA-NeMo/RL/pull/3480
    """

    def save(self, root: Path, step: int) -> None:
        parts = {
            "sizes": self.sizes(),
            "weights": self.rig.trainer.state_dict(),
            "buffer": self.rig.buffer.state_dict(),
            "place": self.here(self.rig.loader.state_dict()),
            "out": self.out(),
        }
        checkpoints.publish(root, parts, step=step)


@planted(
    "B1b",
    "hand_out 8; finish 0-3; train; finish 4-7; save racing (hand_out 12; finish 8-11) at 3; "
    "crash; restart",
    because="the place is read as 8; then 8-11 are drawn and finish, and are in the buffer too",
    duplicated="8-11",
    why={"trained twice in one life": "8-11"},
    caught_by="even-ordered-01-raced",
)
class PlaceFirst(Threaded):
    """Reads the loader's place first and the buffer later.

    https://github.com/NVIDIA-NeMo/RL/pull/3599
    """

    def save(self, root: Path, step: int) -> None:
        parts = {
            "sizes": self.sizes(),
            "weights": self.rig.trainer.state_dict(),
            "place": self.here(self.rig.loader.state_dict()),
            "out": self.out(),
            "buffer": self.rig.buffer.state_dict(),
        }
        checkpoints.publish(root, parts, step=step)


@planted(
    "B2a",
    WHOLE + "crash in save at 3; restart",
    because="the weights have 0-7 already, the place is still 4",
    duplicated="4-7",
    why={"trained before a save and again": "4-7"},
    caught_by="even-ordered-06-killed",
)
class WrittenOver(Small):
    """Writes the files of a checkpoint one by one over those of the last.

    Seen as a file that is written where the last one was, and as parts of one step that are there
    without the others: https://github.com/PrimeIntellect-ai/prime-rl/pull/2992,
    https://github.com/PrimeIntellect-ai/prime-rl/pull/1825,
    https://github.com/PrimeIntellect-ai/prime-rl/pull/1712
    """

    def save(self, root: Path, step: int) -> None:
        state = self.state()
        directory = root / "state"
        if not directory.exists():
            directory.mkdir()
        write(directory / "weights.json", state.pop("weights"))
        write(directory / "rest.json", state)

    @classmethod
    def latest(cls, root: Path) -> Path | None:
        directory = root / "state"
        return directory if (directory / "rest.json").exists() else None

    def read(self, checkpoint: Path) -> dict[str, Any]:
        return {**read(checkpoint / "rest.json"), "weights": read(checkpoint / "weights.json")}


class Pointed(Small):
    """A file names the directory of the last checkpoint, and is written before it."""

    def save(self, root: Path, step: int) -> None:
        directory = root / f"step_{len(list(root.glob('step_*'))) + 1}"
        write(root / "latest.json", directory.name)
        directory.mkdir()
        write(directory / "state.json", self.state())

    @classmethod
    def latest(cls, root: Path) -> Path | None:
        pointer = root / "latest.json"
        return root / read(pointer) if pointer.exists() else None

    def read(self, checkpoint: Path) -> dict[str, Any]:
        state: dict[str, Any] = read(checkpoint / "state.json")
        return state


@planted(
    "B3",
    WHOLE + "crash in save at 4; restart",
    because="the second directory is named and empty; the first one is not looked for",
    verdict="refused",
    finding="FileNotFoundError",
    caught_by="even-ordered-01-killed",
)
class PointerFirst(Pointed):
    """Names the new checkpoint as the latest before its files are there.

    https://github.com/NovaSky-AI/SkyRL/pull/2145, https://github.com/verl-project/verl/issues/7952
    """


@planted(
    "B3-silent",
    WHOLE + "crash in save at 4; restart",
    because="the second directory is named and empty, so it begins with new weights",
    finding="silent restart",
    caught_by="even-ordered-08-killed",
)
class PointerFirstAndSilent(Pointed):
    """The same, and what is named and not there is taken for a run that never saved.

    https://github.com/NovaSky-AI/SkyRL/pull/2145
    """

    @classmethod
    def latest(cls, root: Path) -> Path | None:
        named = super().latest(root)
        return named if named is not None and (named / "state.json").exists() else None


@planted(
    "B4",
    WHOLE + "crash in save; restart",
    because="the first checkpoint is deleted, the second not written: at the worst point of the "
    "save it begins with new weights",
    finding="silent restart",
    caught_by="even-ordered-01-killed",
)
class DeletesFirst(Small):
    """Keeps one checkpoint, and deletes it before the new one is there.

    https://github.com/verl-project/verl/pull/4873,
    https://github.com/NovaSky-AI/SkyRL/pull/2145
    """

    def save(self, root: Path, step: int) -> None:
        for older in list(root.iterdir()):
            shutil.rmtree(older)
        super().save(root, step)


@planted(
    "B5",
    "hand_out 4; finish 0-3; train; save racing (hand_out 8; hand_out 12) at 3; crash; restart",
    because="nothing is out when the save begins; its last file has the place two batches later",
    skipped="4-11",
    why={"jumped over": "4-11"},
    caught_by="even-ordered-01-raced",
)
class CapturedLate(Threaded):
    """Captures the loader's place when its file is written, behind all the others.

    https://github.com/NVIDIA-NeMo/RL/pull/3429, https://github.com/ByteDance-Seed/VeOmni/pull/789
    """

    def save(self, root: Path, step: int) -> None:
        with self.lock:
            parts = self.state()
        del parts["place"]
        parts["place"] = lambda: self.here(self.rig.loader.state_dict())
        checkpoints.publish(root, parts, step=step, form=LATE)


def write_late(value: Any, path: Path) -> None:
    checkpoints.JSON.write(value() if callable(value) else value, path)


LATE = checkpoints.Form(".json", write_late, checkpoints.JSON.read)


@planted(
    "B7",
    "hand_out 12; finish 0-3; train; save; finish 4-11; train; crash; restart",
    because="the weights have 0-3; the newest snapshot has 8-11 in the buffer, and 4-7 as trained",
    skipped="4-7",
    why={"in flight at a save": "4-7"},
    caught_by="rolled-back",
)
class NewerSnapshot(Small):
    """Pairs the checkpoint of the trainer with a snapshot of the rollouts that is taken each step.

    https://github.com/NVIDIA-NeMo/RL/pull/3508, https://github.com/NVIDIA-NeMo/RL/pull/3924
    """

    def __init__(self, rig: Rig) -> None:
        super().__init__(rig)
        self.root: Path | None = None

    def save(self, root: Path, step: int) -> None:
        self.root = root
        super().save(root, step)
        self.snapshot(root)

    def train_step(self) -> bool:
        trained = super().train_step()
        if trained and self.root is not None:
            self.snapshot(self.root)
        return trained

    def snapshot(self, root: Path) -> None:
        state = self.state()
        write(root / "rollouts.json", {name: state[name] for name in ("buffer", "place", "out")})

    def read(self, checkpoint: Path) -> dict[str, Any]:
        self.root = checkpoint.parent
        return {**super().read(checkpoint), **read(self.root / "rollouts.json")}


@planted(
    "B8",
    WHOLE + "crash in save at 5; restart",
    because="the second directory has the weights of 0-7, and nothing else",
    duplicated="0-7",
    why={"trained before a save and again": "0-7"},
    caught_by="even-ordered-01-killed",
)
class HighestNumber(Small):
    """Takes the directory with the highest number, whatever is in it.

    https://github.com/vllm-project/speculators/pull/739,
    https://github.com/RLinf/RLinf/pull/1469, https://github.com/NVIDIA-NeMo/Automodel/issues/603
    """

    def save(self, root: Path, step: int) -> None:
        state = self.state()
        directory = root / f"step_{len(list(root.glob('step_*'))) + 1}"
        directory.mkdir()
        write(directory / "weights.json", state.pop("weights"))
        write(directory / "rest.json", state)

    @classmethod
    def latest(cls, root: Path) -> Path | None:
        return super(Small, cls).latest(root)

    def read(self, checkpoint: Path) -> dict[str, Any]:
        begin = {"sizes": self.sizes(), "place": self.place, "buffer": {"rollouts": []}, "out": []}
        rest = checkpoint / "rest.json"
        weights = {"weights": read(checkpoint / "weights.json")}
        return {**(read(rest) if rest.exists() else begin), **weights}


@planted(
    "B9",
    "hand_out 8; finish 0-7; train 2; save racing (hand_out 12) at 4; crash; restart",
    setup=Setup(prompts=8, passes=2),
    because="pass 0 from before, place 4 from after the wrap: rows 4-7 come once more in pass 0, "
    "which the weights show as one too many in the last pass",
    duplicated="12-15",
    why={"trained before a save and again": "12-15"},
    caught_by="even-ordered-01-raced",
)
class ReadInTwo(Threaded):
    """Reads the loader's pass and its place in the pass one after the other, without a lock.

    Seen as a state that a thread reads while it is changed, and as code that keeps both in
    attributes of a loader: https://github.com/PrimeIntellect-ai/prime-rl/pull/3164 (review),
    https://github.com/allenai/open-instruct (HFDataLoader.state_dict)
    """

    def save(self, root: Path, step: int) -> None:
        with self.lock:
            state = self.state()
        epoch = self.rig.loader.state_dict()["epoch"]
        yielded = self.rig.loader.state_dict()["yielded"]
        loader = {"epoch": epoch, "yielded": yielded}
        state["place"] = {**self.place, "epoch": epoch, "loader": loader}
        checkpoints.publish(root, state, step=step)
