"""What a loader's saved place means, and what it is taken for."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from faults.place import IDLE
from faults.planted import planted
from faults.small import Small
from pytest_resume_audit import Prompt, Rig, Rollout, Setup

log = logging.getLogger(__name__)


@planted(
    "D1",
    IDLE,
    setup=Setup(prompts=8, passes=2),
    because="the loader is at the end of pass 0, and what is left of that is taken for pass 1",
    skipped="8-15",
    why={"never handed out": "8-15"},
    caught_by="end-of-pass",
)
class EmptyPass(Small):
    """Counts the empty rest of a pass that was saved at its end as the next pass.

    https://github.com/verl-project/verl/pull/5725, https://github.com/verl-project/verl/issues/7401,
    https://github.com/meta-pytorch/data/issues/1437
    """

    def go_to(self, place: dict[str, Any]) -> None:
        super().go_to(place)
        self.epoch = self.drawn // self.rig.setup.prompts_per_pass


@planted(
    "D2",
    IDLE,
    setup=Setup(prompts=8),
    because="the loader is at its end, and begins anew",
    duplicated="0-7",
    why={"trained before a save and again": "0-7"},
    caught_by="second-resume",
)
class SamePassAgain(Small):
    """Begins the pass again when its loader was saved at the end.

    https://github.com/OpenRLHF/OpenRLHF/issues/1320, https://github.com/OpenRLHF/OpenRLHF/issues/1322
    """

    def go_to(self, place: dict[str, Any]) -> None:
        size = self.rig.setup.prompts_per_pass
        if place["loader"]["yielded"] == size:
            place = self.place_of(place["drawn"] - size)
        super().go_to(place)


@planted(
    "D4",
    "hand_out 8; finish 0-7; train 2; hand_out 12; finish 8-11; train; save; crash; restart",
    # The orders are 2 3 1 4 6 0 5 7 and 7 6 5 0 2 3 4 1.
    setup=Setup(prompts=8, passes=2, shuffle=True, seed=75),
    because="rows 7 6 5 0 of pass 1 are trained; in the order of pass 0 the next are 6 0 5 7",
    skipped="12-15",
    duplicated="8-11",
    why={"never handed out": "12-15", "trained before a save and again": "8-11"},
    caught_by="second-pass",
)
class OrderOfPassZero(Small):
    """Restores the place in a pass, and not which pass: the order is that of the first.

    https://github.com/huggingface/accelerate/pull/4238,
    https://github.com/huggingface/accelerate/pull/4071,
    https://github.com/verl-project/verl/pull/4156
    """

    def go_to(self, place: dict[str, Any]) -> None:
        super().go_to(place)
        self.loader.load_state_dict({"epoch": 0, "yielded": place["loader"]["yielded"]})


class Rows:
    """A loader of a project's own: it goes through the rows of a pass, and knows its place.

    Args:
        rig: for the sizes and the prompts.

    Attributes:
        seed: of the shuffle.
        excluded: rows that are left out in this pass.
    """

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.seed = rig.setup.seed
        self.excluded: set[int] = set()
        self.epoch = self.yielded = 0

    def __iter__(self) -> Iterator[list[Prompt]]:
        rows = [row for row in self.order() if row not in self.excluded]
        while batch := rows[self.yielded : self.yielded + self.rig.setup.batch_size]:
            self.yielded += len(batch)
            yield [self.rig.prompts[row] for row in batch]
        self.epoch, self.yielded = self.epoch + 1, 0
        self.excluded.clear()

    def order(self) -> Sequence[int]:
        return replace(self.rig.setup, seed=self.seed).order(self.epoch)

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "yielded": self.yielded}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epoch, self.yielded = state["epoch"], state["yielded"]


def rows_of(batch: Sequence[Prompt]) -> list[int]:
    return [prompt.row for prompt in batch]


class OwnLoader(Small):
    """The right way on a loader of its own."""

    def make_loader(self) -> Any:
        self.rows = Rows(self.rig)
        return self.rig.watch(self.rows, key=rows_of)


@planted(
    "D5",
    "hand_out 4; finish 0-3; train; save; crash; restart",
    # The order is 6 7 0 1 2 4 5 3, and with the next seed 3 6 7 2 0 5 4 1.
    setup=Setup(prompts=8, shuffle=True, seed=32),
    because="rows 6 7 0 1 are trained; in the other order 0 5 4 1 come behind place 4",
    skipped="4 7",
    duplicated="2 3",
    why={"never handed out": "4 7", "trained before a save and again": "2 3"},
    caught_by="second-pass",
)
class ShuffledAnew(OwnLoader):
    """Restores the place, and not the state of the generator that the order comes from.

    https://github.com/wyim-pgl/transgenic/issues/59, https://github.com/google/tunix/issues/2288,
    https://github.com/huggingface/accelerate/pull/4232
    """

    def go_to(self, place: dict[str, Any]) -> None:
        super().go_to(place)
        self.rows.seed += 1


@planted(
    "D6",
    IDLE,
    because="the iterator of the start hands out from 0, wherever the loader has been put",
    duplicated="0-7",
    why={"trained before a save and again": "0-7"},
    caught_by="idle-save",
)
class IteratorFirst(Small):
    """Makes the iterator before the state is loaded.

    https://github.com/PrimeIntellect-ai/prime-rl/pull/3332,
    https://github.com/PrimeIntellect-ai/prime-rl/pull/3299,
    https://github.com/alibaba/TorchEasyRec/pull/544
    """

    def __init__(self, rig: Rig) -> None:
        super().__init__(rig)
        self.batches = iter(self.loader)


@planted(
    "D7",
    "hand_out 8; finish 0-7; train 2; save; crash; restart; hand_out 12; finish 8-11; train; "
    "save; crash; restart",
    because="run 1 draws two batches, run 2 one; run 3 goes on behind the first",
    duplicated="4-11",
    why={"trained before a save and again": "4-11"},
    caught_by="legacy-lineage",
)
class CountsOneRun(Small):
    """Saves how much this run has drawn, which the next takes for the place.

    https://github.com/KempnerInstitute/KempnerForge/issues/57,
    https://github.com/PrimeIntellect-ai/prime-rl/pull/3332
    """

    run = 0

    def take_in(self, batch: Sequence[Prompt], state: Any) -> None:
        self.run += len(batch)
        super().take_in(batch, state)
        self.place = self.place_of(self.run)


class PlaceInBatches(Small):
    """Saves which batch of the pass is the next.

    https://github.com/allenai/OLMo/pull/182
    """

    def here(self, state: Any) -> dict[str, Any]:
        batches = -(-state["yielded"] // self.rig.setup.batch_size)
        return super().here({"epoch": state["epoch"], "batches": batches})

    def go_to(self, place: dict[str, Any]) -> None:
        rows = place["loader"]["batches"] * self.rig.setup.batch_size
        epoch, size = place["epoch"], self.rig.setup.prompts_per_pass
        state = {"epoch": epoch, "yielded": min(rows, size)}
        super().go_to({"epoch": epoch, "drawn": epoch * size + rows, "loader": state})
        self.place = self.here(state)


planted(
    "D8a",
    IDLE + " with batch_size 8",
    because="two batches of four are two of eight",
    skipped="8-15",
    why={"jumped over": "8-15"},
    caught_by="even-ordered-01-larger-batches",
)(PlaceInBatches)

planted(
    "D8b",
    IDLE + " with batch_size 4",
    setup=Setup(batch_size=8),
    because="one batch of eight is one of four",
    duplicated="4-7",
    why={"trained before a save and again": "4-7"},
    caught_by="even-ordered-01-larger-batches",
)(PlaceInBatches)


class Shards:
    """A loader over four shards, which the ranks share: each rank gives one row to a batch.

    The order is the same with any number of ranks: the shards take turns.
    """

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        size = -(-rig.setup.prompts // 4)
        rows = range(rig.setup.prompts)
        self.rows = [rows[first : first + size] for first in range(0, 4 * size, size)]
        self.epoch = 0
        self.given = dict.fromkeys(range(4), 0)

    def __iter__(self) -> Iterator[list[Prompt]]:
        ranks = self.rig.setup.batch_size
        while rows := [row for row in (self.next_row() for _ in range(ranks)) if row is not None]:
            yield [self.rig.prompts[row] for row in rows]
        self.epoch += 1
        self.given = dict.fromkeys(range(4), 0)

    def next_row(self) -> int | None:
        left = [s for s in self.given if self.given[s] < len(self.rows[s])]
        if not left:
            return None
        shard = min(left, key=lambda shard: (self.given[shard], shard))
        self.given[shard] += 1
        return self.rows[shard][self.given[shard] - 1]

    def state_dict(self) -> dict[str, Any]:
        ranks = min(self.rig.setup.batch_size, 4)
        shares = [
            [[shard, self.given[shard]] for shard in self.given if shard % ranks == rank]
            for rank in range(ranks)
        ]
        return {"epoch": self.epoch, "shares": shares}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        # Each rank looks for its own share.
        ranks = self.rig.setup.batch_size
        self.epoch = state["epoch"]
        self.given = {shard: given for share in state["shares"][:ranks] for shard, given in share}


@planted(
    "D8c",
    IDLE + " with batch_size 2",
    because="each of four ranks has given two of its four rows; two ranks are left, and go on with "
    "the shards of the first two: rows 10 11 14 15 are lost, whose places are 10 14 11 15",
    skipped="10 11 14 15",
    why={"never handed out": "10 11 14 15"},
    caught_by="even-ordered-01-smaller-batches",
)
class FewerRanks(Small):
    """With fewer ranks nobody takes up what the others have left.

    https://github.com/pytorch/torchtitan/pull/816,
    https://github.com/NVIDIA-BioNeMo/bionemo-recipes/pull/1250
    """

    def make_loader(self) -> Any:
        return self.rig.watch(Shards(self.rig), key=rows_of)


@planted(
    "D9",
    IDLE + " with data_set 1 prompts 10",
    because="the place is 8, in the new data set of ten as well",
    skipped="0-7",
    why={"settled in another data set": "0-7"},
    caught_by="even-ordered-04-other-data",
)
class AnyData(Small):
    """Goes to the old place, in whatever data set.

    https://github.com/NVIDIA-NeMo/RL/pull/2519
    """

    def sizes(self) -> list[Any]:
        return [self.rig.setup.group_size]


@planted(
    "D10",
    IDLE,
    because="rows 0-2 are left out of the list from now on: its place 8 is row 11",
    skipped="8-10",
    why={"jumped over": "8-10"},
    caught_by="idle-save",
)
class Exclusions(OwnLoader):
    """Takes solved prompts off the list at a restart, and keeps the place in it.

    Seen as code that leaves them out of the order and goes on at the number of batches:
    https://github.com/allenai/open-instruct (HFDataLoader.load_state_dict). What counts as
    solved here are three rows of eight.
    """

    def __init__(self, rig: Rig) -> None:
        super().__init__(rig)
        self.solved: dict[int, int] = {}

    def step(self) -> list[Rollout]:
        rollouts = super().step()
        self.solved |= {r.tag: r.prompt.row for r in rollouts if r.prompt.row % 8 < 3}
        return rollouts

    def state(self) -> dict[str, Any]:
        size, epoch = self.rig.setup.prompts_per_pass, self.place["epoch"]
        solved = [row for number, row in self.solved.items() if number // size == epoch]
        return {**super().state(), "solved": solved}

    def load(self, state: dict[str, Any], *, load_replay_buffer: bool) -> None:
        super().load(state, load_replay_buffer=load_replay_buffer)
        self.rows.excluded = set(state["solved"])


@planted(
    "D11",
    IDLE,
    setup=Setup(prompts=10),
    demand="clean",
    because="8 and 9 are less than a batch",
    structural="8 9",
    finding="not trained by an uninterrupted run",
    caught_by="uneven",
)
class NoTail(Small):
    """Leaves out the incomplete batch at the end of a pass, and tells nobody.

    Seen as a length that is rounded down to whole batches:
    https://github.com/NovaSky-AI/SkyRL (_AsyncDataloader)
    """

    def take_in(self, batch: Sequence[Prompt], state: Any) -> None:
        super().take_in(batch if len(batch) == self.rig.setup.batch_size else [], state)


@planted(
    "D12",
    IDLE,
    because="it says that it goes to 8, and stays at 0",
    duplicated="0-7",
    why={"trained before a save and again": "0-7"},
    caught_by="idle-save",
)
class FastForwardAnnounced(Small):
    """Says that it skips what is trained, and does not.

    https://github.com/vllm-project/speculators/pull/603
    """

    def go_to(self, place: dict[str, Any]) -> None:
        log.info("skipping %d prompts", place["drawn"])
