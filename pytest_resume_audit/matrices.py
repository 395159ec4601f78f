"""The generated timelines: a save, a crash and a restart after every single event of a run.

The runs are of several sizes, and their answers come in several orders. Each timeline has a name
that says what it is, such as ``even-reversed-07-nobuf``: 16 prompts in fours, the newest answer
first, saved after the 7th event, restarted without the buffer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any, NamedTuple

from pytest_resume_audit.catalogue import NamedTimeline
from pytest_resume_audit.setup import Setup
from pytest_resume_audit.verdict import Demand

WINDOW = 3
"""Hand-outs that are out at once, at the most, in the run that saves are inserted into."""


class Event(NamedTuple):
    """One event of a run.

    Args:
        step: of a script, by ordinals.
        by_position: the same for a collector that throttles itself.
        place: of the loader, once it has happened.
    """

    step: str
    by_position: str
    place: int


@dataclass(frozen=True)
class Order:
    """The order in which answers come.

    Args:
        name: part of the names of its timelines.
        says: what it is, for their purpose.
        key: sorts the prompts in flight; the first one ends.
        by_position: how a script takes the same one.
        late: one that ends after all others that are in flight.
        fails: those that fail.
        backlog: steps that the buffer must be enough for before one is taken.
        last_first: whether the last generation of a group ends first.
        sizes: fields of the setup that belong to it.
    """

    name: str
    says: str
    key: Callable[[int], Any] = int
    by_position: str = "oldest 1"
    late: int | None = None
    fails: tuple[int, ...] = ()
    backlog: int = 1
    last_first: bool = False
    sizes: Mapping[str, Any] = field(default_factory=dict)

    def next(self, flying: Iterable[int]) -> int:
        """Which prompt in flight ends next."""
        return min(flying, key=lambda ordinal: (ordinal == self.late, self.key(ordinal)))


ORDERS = (
    Order("ordered", "answers come in order"),
    Order("reversed", "the newest answer comes first", lambda o: -o, "newest 1", last_first=True),
    Order("alternate", "every other answer comes first", lambda o: (o % 2, o), "newest 1"),
    Order("straggler", "one prompt stays in flight to the end", late=1, by_position="newest 1"),
    # By position it is a whole group that fails, and groups may be larger after a restart. What is
    # lost with a life fails once more.
    Order("failing", "two generations fail", fails=(5, 6), sizes={"max_failures": 12}),
    Order(
        "stale",
        "an answer comes when it is too old, and is evicted by the next step, or on restore",
        late=5,
        by_position="newest 1",
        sizes={"max_age": 1},
    ),
    Order("backlog", "steps come late, so that the buffer holds more than one", backlog=2),
)
"""The orders in which answers come."""


@dataclass(frozen=True)
class Sizes:
    """Sizes of a run.

    Args:
        name: part of the names of its timelines.
        says: what they are, for their purpose.
        fields: of the setup.
    """

    name: str
    says: str
    fields: Mapping[str, Any]


EVEN = Sizes("even", "16 prompts in fours", {})
UNEVEN = Sizes(
    "uneven",
    "17 prompts in fours, steps of 3, groups of 2",
    {"prompts": 17, "prompts_per_step": 3, "group_size": 2},
)
PASSES = Sizes(
    "passes", "two shuffled passes of 8 prompts", {"prompts": 8, "passes": 2, "shuffle": True}
)
SHORT = Sizes(
    "short",
    "three shuffled passes of 5 prompts in twos, steps of 3",
    {"prompts": 5, "passes": 3, "shuffle": True, "batch_size": 2, "prompts_per_step": 3},
)
LIMITED = Sizes("limited", "6 prompts in flight at the most", {"max_in_flight": 6})
CROWDED = Sizes("crowded", "6 groups fit in the buffer", {"capacity": 6})
TIGHT = Sizes(
    "tight",
    "two passes of 6 prompts in fours, steps of 3, groups of 2; 3 prompts in flight and 5 "
    "groups in the buffer at the most",
    {
        "prompts": 6, "passes": 2, "prompts_per_step": 3, "group_size": 2,
        "max_in_flight": 3, "capacity": 5,
    },
)  # fmt: skip
TRIOS = Sizes(
    "trios",
    "7 prompts in fours, steps of 2, groups of 3",
    {"prompts": 7, "prompts_per_step": 2, "group_size": 3},
)
TWINS = Sizes("twins", "20 prompts of three texts", {"prompts": 20, "texts": 3})
ONES = Sizes(
    "ones",
    "12 prompts in twos, a step for each",
    {"prompts": 12, "batch_size": 2, "prompts_per_step": 1},
)
LONG = Sizes("long", "64 prompts in twos", {"prompts": 64, "batch_size": 2})
"""The sizes of the runs."""


def events(setup: Setup, order: Order) -> list[Event]:
    """One run that is never interrupted, event by event.

    Args:
        setup: its sizes.
        order: in which its answers come.

    Returns:
        Its events, up to where only the last answers and steps are left to a ``drain``.

    Example:
        >>> [event.step for event in events(Setup(prompts=2, batch_size=1), ORDERS[0])]
        ['hand_out 1', 'hand_out 2', 'finish 0', 'finish 1', 'train']
    """
    return list(_Run(setup, order).events())


class _Run:
    """A run on paper: no more of it than decides which event can come next."""

    def __init__(self, setup: Setup, order: Order) -> None:
        self.setup = setup
        self.order = order
        self.place = 0
        self.steps = 0
        self.waiting: list[int] = []
        self.flying: dict[int, int] = {}
        self.buffered: dict[int, int] = {}

    def events(self) -> Iterator[Event]:
        while True:
            if self._may_train():
                yield self._train()
            elif self._may_hand_out():
                yield self._hand_out()
            elif self.flying:
                yield from self._end(self._next())
            else:
                return

    def _may_train(self) -> bool:
        whole = len(self.buffered) >= self.setup.prompts_per_step * self.order.backlog
        at_the_end = self.place == self.setup.total and not self.flying
        return bool(self.buffered) and (whole or at_the_end)

    def _train(self) -> Event:
        oldest = self.steps - (self.setup.max_age if self.setup.max_age is not None else self.steps)
        fresh = sorted(o for o, version in self.buffered.items() if version >= oldest)
        taken = fresh[: self.setup.prompts_per_step]
        self.buffered = {
            o: version
            for o, version in self.buffered.items()
            if version >= oldest and o not in taken
        }
        self.steps += bool(taken)
        self._dispatch()
        return Event("train", "train", self.place)

    def _may_hand_out(self) -> bool:
        out = len(self.flying) + len(self.buffered)
        batch = self.setup.batch_size
        room = out + batch <= WINDOW * batch and not self.waiting
        # With no room for any of it, some collectors ask for a batch, and others do not.
        return room and self._has_room() and self.place < self.setup.total

    def _hand_out(self) -> Event:
        in_pass = self.place % self.setup.prompts_per_pass
        batch = min(self.setup.batch_size, self.setup.prompts_per_pass - in_pass)
        self.waiting += range(self.place, self.place + batch)
        self.place += batch
        self._dispatch()
        return Event(f"hand_out {self.place}", "hand_out", self.place)

    def _has_room(self) -> bool:
        limit, capacity = self.setup.max_in_flight, self.setup.capacity
        if limit is not None and len(self.flying) >= limit:
            return False
        return capacity is None or len(self.flying) + len(self.buffered) < capacity

    def _dispatch(self) -> None:
        while self.waiting and self._has_room():
            self.flying[self.waiting.pop(0)] = self.steps

    def _next(self) -> int:
        # What is late comes once it is too old; where nothing is, after all others.
        late, age = self.order.late, self.setup.max_age
        if late in self.flying and age is not None and self.steps - self.flying[late] > age:
            return late
        return self.order.next(self.flying)

    def _end(self, ordinal: int) -> Iterator[Event]:
        size = self.setup.group_size
        version = self.flying[ordinal]
        fails = ordinal in self.order.fails
        if fails:
            one = f"{ordinal}" if size == 1 else f"{ordinal}:0"
            yield Event(f"fail {one}", "fail oldest 1", self.place)
        position = f"finish {self.order.by_position}"
        rest = range(1 if fails else 0, size)
        for generation in reversed(rest) if self.order.last_first else rest:
            one = f"{ordinal}" if size == 1 else f"{ordinal}:{generation}"
            yield Event(f"finish {one}", position, self.place)
        del self.flying[ordinal]
        if not fails:
            self.buffered[ordinal] = version
        self._dispatch()


# --- what is inserted -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Insert:
    """What comes between two events of a run.

    Args:
        name: behind the names of its timelines; empty for the plain one.
        says: what it is, for their purpose.
        steps: of the script; ``{again}`` is a hand-out up to where the loader was, ``{next}`` the
            next events of the run.
        demand: what is asked for.
        must_reach: states without which the run proves nothing.
        ahead: events of the run that ``{next}`` takes.
        seen: where such a loss was seen in public.
    """

    name: str
    says: str
    steps: str
    demand: Demand = "lossless"
    must_reach: tuple[str, ...] = ("saved", "resumed")
    ahead: int = 0
    seen: tuple[str, ...] = ()


PLAIN = Insert(
    "",
    "crashed and restarted",
    "save; crash; restart; {again}",
    seen=(
        "NVIDIA-NeMo/RL#3599",
        "verl-project/verl#4199",
        "huggingface/trl#5911",
    ),
)
NO_BUFFER = Insert(
    "nobuf",
    "restarted without the buffer",
    "save; crash; restart no_buffer; {again}",
    must_reach=("saved", "resumed without the buffer"),
    seen=(
        "NVIDIA-NeMo/RL#3583",
        "NVIDIA-NeMo/RL#4067",
    ),
)
TWICE = Insert(
    "twice",
    "resumed, saved at once, and resumed again",
    "save; crash; restart; save; crash; restart; {again}",
    seen=(
        "PrimeIntellect-ai/prime-rl#3332",
        "pytorch/rl#4388",
    ),
)
THRICE = Insert(
    "thrice",
    "resumed three times, with a little progress in between",
    "save; crash; restart; {again}; save; crash; restart; {again}; finish newest 1; save; crash; "
    "restart; {again}",
    seen=(
        "PrimeIntellect-ai/prime-rl#3332",
        "KempnerInstitute/KempnerForge#57",
    ),
)
RESAVED = Insert(
    "resaved",
    "resumed, saved twice with a little progress in between, and resumed again",
    "save; crash; restart; {again}; save; finish newest 1; save; crash; restart; {again}",
)
NO_BUFFER_TWICE = Insert(
    "nobuf-twice",
    "restarted without the buffer, saved at once, and resumed again",
    "save; crash; restart no_buffer; {again}; save; crash; restart; {again}",
    must_reach=("saved", "resumed", "resumed without the buffer"),
)
NO_BUFFER_FIRST = Insert(
    "nobuf-first",
    "restarted from one checkpoint three times: without the buffer, and with it",
    "save; crash; restart no_buffer; {again}; crash; restart; {again}; crash; restart; {again}",
    must_reach=("saved", "resumed twice from one checkpoint"),
)
SAME_SAVE = Insert(
    "same-save",
    "resumed twice from one checkpoint: the life between leaves no trace",
    "save; crash; restart; {again}; {next}; crash; restart; {again}",
    must_reach=("saved", "resumed twice from one checkpoint"),
    ahead=3,
)
STOPPED = Insert("stopped", "stopped and restarted", "save; stop; restart; {again}")
STOPPED_LATE = Insert(
    "stopped-late",
    "stopped some events after the save, which are lost",
    "save; {next}; stop; restart; {again}",
    ahead=6,
)
AFRESH = Insert(
    "afresh",
    "restarted, and then begun afresh: no trace of the lives before",
    "save; crash; restart; {again}; crash; restart afresh; {again}",
    seen=("huggingface/trl#5911",),
)
AFRESH_SAVED = Insert(
    "afresh-saved",
    "restarted, begun afresh, and resumed from a save of the new run",
    "save; crash; restart; {again}; crash; restart afresh; {again}; finish newest 1; save; crash; "
    "restart; {again}",
)
ROLLED_BACK = Insert(
    "rolled",
    "crashed some events after the save, which are lost",
    "save; {next}; crash; restart; {again}",
    ahead=6,
    seen=(
        "NVIDIA-NeMo/RL#3508",
        "NVIDIA-NeMo/RL#3924",
    ),
)
ROLLED_FAR = Insert(
    "rolled-far",
    "crashed in another step or pass, and all since the save is lost",
    "save; {next}; crash; restart; {again}",
    ahead=12,
)
OLDER = Insert(
    "older",
    "restarted from the checkpoint before the newest",
    "save; {next}; save; crash; restart from 0; {again}",
    must_reach=("saved", "resumed from an older checkpoint"),
    ahead=6,
    seen=(
        "NovaSky-AI/SkyRL#2145",
        "verl-project/verl#4873",
    ),
)
OLDER_LIFE = Insert(
    "older-life",
    "resumed, saved, and restarted from the checkpoint of the life before",
    "save; crash; restart; {again}; {next}; save; crash; restart from 0; {again}",
    must_reach=("saved", "resumed", "resumed from an older checkpoint"),
    ahead=3,
)
BRANCHED = Insert(
    "branched",
    "restarted from the checkpoint before the newest, and from two that were saved on the new way",
    "save; {next}; save; crash; restart from 0; {again}; finish newest 1; save; crash; restart; "
    "{again}; finish newest 4; train; save; crash; restart; {again}",
    must_reach=("saved", "resumed", "resumed from an older checkpoint"),
    ahead=6,
)
LEGACY = Insert(
    "legacy",
    "the checkpoint is a legacy one",
    "save; downgrade; crash; restart; {again}",
    demand="legacy",
    seen=(
        "NVIDIA-NeMo/RL#3820",
        "huggingface/trl#7294",
    ),
)
LEGACY_LINEAGE = Insert(
    "lineage",
    "the run descends from a legacy checkpoint",
    "save; downgrade; crash; restart; {again}; finish newest 1; save; crash; restart; {again}",
    demand="legacy",
    seen=("NVIDIA-NeMo/RL#3820",),
)
RACED = Insert(
    "raced",
    "what comes next comes inside of the save, at every point of it",
    "save racing ({next}); crash; restart; {again}",
    must_reach=("saved", "resumed", "raced inside a save"),
    ahead=3,
    seen=(
        "NVIDIA-NeMo/RL#3599",
        "NVIDIA-NeMo/RL#3480",
        "ByteDance-Seed/VeOmni#789",
    ),
)
RACED_AGAIN = Insert(
    "raced-again",
    "resumed, and what comes next comes inside of that life's save, at every point of it",
    "save; crash; restart; {again}; save racing ({next}); crash; restart; {again}",
    must_reach=RACED.must_reach,
    ahead=RACED.ahead,
)
KILLED = Insert(
    "killed",
    "a second save dies before every file operation",
    "save; {next}; crash in save; restart; {again}",
    must_reach=("resumed", "died between writes"),
    ahead=2,
    seen=(
        "PrimeIntellect-ai/prime-rl#1825",
        "vllm-project/speculators#739",
    ),
)
KILLED_FIRST = Insert(
    "killed-first",
    "the first save dies before every file operation",
    "crash in save; restart; {again}",
    must_reach=("died between writes",),
    seen=(
        "vllm-project/speculators#739",
        "RLinf/RLinf#1469",
    ),
)
KILLED_RESUMED = Insert(
    "killed-resumed",
    "a resumed life dies in its save, before every file operation, and the next one saves as well",
    "save; crash; restart; {again}; {next}; crash in save; restart; {again}; {next}; "
    "finish newest 1; train; save; crash; restart; {again}",
    must_reach=KILLED.must_reach,
    ahead=KILLED.ahead,
)
TORN = Insert(
    "torn",
    "a second save dies, and the file written last is torn",
    "save; {next}; crash in save torn each; restart; {again}",
    demand="lossless or refused",
    must_reach=("resumed", "died between writes"),
    ahead=2,
    seen=(
        "NovaSky-AI/SkyRL#2145",
        "verl-project/verl#7952",
    ),
)
TORN_FIRST = Insert(
    "torn-first",
    "the first save dies, and the file written last is torn",
    "crash in save torn each; restart; {again}",
    demand="lossless or refused",
    must_reach=("died between writes",),
    seen=(
        "NovaSky-AI/SkyRL#2145",
        "verl-project/verl#7952",
    ),
)


def _resized(name: str, says: str, changes: str, *seen: str) -> Insert:
    return Insert(
        name,
        says,
        f"save; crash; restart with {changes}; {{again}}",
        demand="lossless or refused",
        seen=seen,
    )


LARGER_BATCHES = _resized(
    "larger-batches", "restarted with larger batches", "batch_size 8", "allenai/OLMo#182"
)
SMALLER_BATCHES = _resized(
    "smaller-batches", "restarted with smaller batches", "batch_size 3", "allenai/OLMo#182"
)
SMALLER_BUFFER = _resized(
    "smaller-buffer", "restarted with a smaller buffer", "capacity 4", "NVIDIA-NeMo/RL#3138"
)
LARGER_STEPS = _resized("larger-steps", "restarted with larger steps", "prompts_per_step 5")
RESIZED = (
    LARGER_BATCHES,
    SMALLER_BATCHES,
    _resized(
        "larger-groups", "restarted with larger groups", "group_size 3", "NVIDIA-NeMo/RL#3813"
    ),
    _resized("smaller-steps", "restarted with smaller steps", "prompts_per_step 3"),
    LARGER_STEPS,
    SMALLER_BUFFER,
    _resized("more-prompts", "restarted with a data set that has grown", "prompts 20"),
    _resized(
        "other-data",
        "restarted with another data set",
        "data_set 1",
        "NVIDIA-NeMo/RL#2519",
        "NovaSky-AI/SkyRL#2010",
    ),
)
"""What changes across a restart: a refusal is as good as a run that loses nothing."""


def _twice(resized: Insert) -> Insert:
    """The same, and what is changed stays so."""
    return replace(
        resized,
        name=f"{resized.name}-twice",
        says=f"{resized.says}, and resumed again from a save some events later",
        steps=f"{resized.steps}; {{next}}; save; crash; restart; {{again}}",
        ahead=4,
    )


RESIZED_TWICE = tuple(map(_twice, RESIZED))


def every_save_point(sizes: Sizes, order: Order, insert: Insert) -> Iterator[NamedTimeline]:
    """A timeline for each event of a run, with something inserted behind it.

    Args:
        sizes: of the run.
        order: in which its answers come.
        insert: what comes behind the event.

    Example:
        >>> next(every_save_point(EVEN, ORDERS[0], PLAIN)).script[:52]
        'hand_out 4; save; crash; restart; hand_out 4; hand_o'
    """
    fields = {**sizes.fields, **order.sizes}
    run = events(Setup(**fields), order)
    whole = _script(event.step for event in run)
    for number, event in enumerate(run, start=1):
        before, rest = run[:number], run[number:]
        races = insert in (RACED, RACED_AGAIN)
        ahead = [e for e in rest if not (races and e.step == "train")][: insert.ahead]
        if len(ahead) < insert.ahead:
            break
        if races:
            # A failure inside of the save may be in it: then it has happened.
            rest = [e for e in rest if e not in ahead or not e.step.startswith("fail")]
        name = f"{sizes.name}-{order.name}-{number:02}"
        yield NamedTimeline(
            name=f"{name}-{insert.name}" if insert.name else name,
            purpose=f"{sizes.says}, {order.says}; saved after {event.step}, {insert.says}",
            script=_with(insert, before, ahead, rest, by_position=False),
            by_position=_with(insert, before, ahead, rest, by_position=True),
            uninterrupted=whole,
            demand=insert.demand,
            must_reach=insert.must_reach,
            sizes=fields,
            seen=insert.seen,
        )


def many_saves(sizes: Sizes, order: Order, *, back: int = 0) -> Iterator[NamedTimeline]:
    """A timeline for each event of a run that is saved behind every event, once it has ten saves.

    Names and numbers of checkpoints get one digit more then, and old ones may be cleared away.

    Args:
        sizes: of the run.
        order: in which its answers come.
        back: how many saves before the newest one it is restarted from.
    """
    fields = {**sizes.fields, **order.sizes}
    run = events(Setup(**fields), order)
    whole = _script(event.step for event in run)
    for number in range(10, len(run) + 1):
        kept = number - back
        restart = f"restart from {kept - 1}" if back else "restart"
        script, by_position = (
            _script(
                [
                    *(f"{word}; save" for word in _words(run[:number], by_position=form)),
                    f"crash; {restart}",
                    _again(run[kept - 1], by_position=form),
                    *_words(run[kept:], by_position=form),
                ]
            )
            for form in (False, True)
        )
        name = f"{sizes.name}-{order.name}-{number:02}-saves"
        older = f" and restarted from {back} saves before" if back else ""
        yield NamedTimeline(
            name=f"{name}-older" if back else name,
            purpose=f"{sizes.says}, {order.says}; saved after every event, and crashed after "
            f"{run[number - 1].step}{older}",
            script=script,
            by_position=by_position,
            uninterrupted=whole,
            demand="lossless",
            must_reach=OLDER.must_reach if back else PLAIN.must_reach,
            sizes=fields,
            seen=OLDER.seen,
        )


def every_two_save_points(
    sizes: Sizes, order: Order, *, third: bool = False
) -> Iterator[NamedTimeline]:
    """A timeline for every two events of a run, saved, crashed and restarted behind both.

    Args:
        sizes: of the run.
        order: in which its answers come.
        third: whether to take only those that have a third of the run between them: the life in
            the middle draws, trains and comes into another pass.
    """
    fields = {**sizes.fields, **order.sizes}
    run = events(Setup(**fields), order)
    whole = _script(event.step for event in run)
    for first, second in combinations(range(1, len(run) + 1), 2):
        if third and second - first != len(run) // 3:
            continue
        halves = run[:first], run[first:second]
        script, by_position = (
            "; ".join(
                [
                    _with(PLAIN, halves[0], [], halves[1], by_position=form),
                    _with(PLAIN, [], [], run[second:], by_position=form, place=run[second - 1]),
                ]
            )
            for form in (False, True)
        )
        yield NamedTimeline(
            name=f"{sizes.name}-{order.name}-{first:02}-{second:02}",
            purpose=f"{sizes.says}, {order.says}; crashed and restarted after "
            f"{run[first - 1].step} and after {run[second - 1].step}",
            script=script,
            by_position=by_position,
            uninterrupted=whole,
            demand="lossless",
            must_reach=PLAIN.must_reach,
            sizes=fields,
            seen=PLAIN.seen,
        )


def _with(
    insert: Insert,
    before: list[Event],
    ahead: list[Event],
    rest: list[Event],
    *,
    by_position: bool,
    place: Event | None = None,
) -> str:
    inserted = insert.steps.format(
        again=_again(place or before[-1], by_position=by_position),
        next=_script(_words(ahead, by_position=by_position)),
    )
    first, last = (_words(events, by_position=by_position) for events in (before, rest))
    return _script([*first, inserted, *last])


def _words(events: list[Event], *, by_position: bool) -> list[str]:
    """Events as a script has them."""
    return [event.by_position if by_position else event.step for event in events]


def _again(at: Event, *, by_position: bool) -> str:
    """A hand-out up to where the loader was behind an event."""
    return "hand_out" if by_position else f"hand_out {at.place}"


def _script(steps: Iterable[str]) -> str:
    return "; ".join(steps)


# --- matrices -------------------------------------------------------------------------------------


def nightly() -> Iterator[NamedTimeline]:
    """A save after every event of runs of all sizes and orders, resumed in several ways."""
    *orders, backlog = ORDERS
    for order in orders:
        for insert in (PLAIN, NO_BUFFER, TWICE, THRICE, RESAVED, ROLLED_BACK, LEGACY):
            yield from every_save_point(EVEN, order, insert)
        for sizes in (UNEVEN, PASSES, SHORT, LIMITED, CROWDED, TRIOS):
            for insert in (PLAIN, NO_BUFFER, THRICE):
                yield from every_save_point(sizes, order, insert)
        for insert in (PLAIN, NO_BUFFER):
            yield from every_save_point(TWINS, order, insert)
    yield from every_save_point(LONG, orders[3], PLAIN)
    for insert in (PLAIN, NO_BUFFER, THRICE, RESAVED):
        yield from every_save_point(EVEN, backlog, insert)
    for insert in (LARGER_STEPS, SMALLER_BUFFER, _twice(SMALLER_BUFFER)):
        yield from every_save_point(EVEN, backlog, insert)
    for insert in (PLAIN, SMALLER_BUFFER):
        yield from every_save_point(UNEVEN, backlog, insert)
    for order in orders[:2]:
        for sizes in (EVEN, ONES):
            yield from many_saves(sizes, order)
        for insert in (STOPPED, STOPPED_LATE, OLDER, OLDER_LIFE, BRANCHED, LEGACY_LINEAGE):
            yield from every_save_point(EVEN, order, insert)
        for insert in (RACED, KILLED, KILLED_FIRST, KILLED_RESUMED, TORN, TORN_FIRST):
            yield from every_save_point(EVEN, order, insert)
        for insert in (NO_BUFFER_TWICE, NO_BUFFER_FIRST, AFRESH, AFRESH_SAVED):
            yield from every_save_point(EVEN, order, insert)
        for insert in (*RESIZED, *RESIZED_TWICE):
            yield from every_save_point(EVEN, order, insert)
        for sizes in (PASSES, SHORT):
            yield from every_save_point(sizes, order, TWICE)
        for sizes in (PASSES, SHORT, TIGHT):
            for insert in (RESAVED, ROLLED_FAR):
                yield from every_save_point(sizes, order, insert)
        for sizes in (UNEVEN, SHORT):
            for insert in (SMALLER_BATCHES, SMALLER_BUFFER):
                yield from every_save_point(sizes, order, insert)
        yield from every_save_point(UNEVEN, order, LARGER_BATCHES)
        # What no other size or insert brings together: limits, groups, passes and races.
        for insert in (PLAIN, NO_BUFFER, THRICE, SAME_SAVE, NO_BUFFER_TWICE, NO_BUFFER_FIRST):
            yield from every_save_point(TIGHT, order, insert)
        for insert in (RACED, RACED_AGAIN):
            yield from every_save_point(TIGHT, order, insert)
        for sizes in (UNEVEN, PASSES, SHORT, TIGHT):
            yield from every_two_save_points(sizes, order, third=True)
    yield from every_save_point(EVEN, orders[4], RACED)
    yield from many_saves(EVEN, orders[0], back=3)


def full() -> Iterator[NamedTimeline]:
    """Everything: each size in each order with each insert, and every two save points."""
    inserts = [PLAIN, NO_BUFFER, TWICE, THRICE, RESAVED, SAME_SAVE]
    inserts += [NO_BUFFER_TWICE, NO_BUFFER_FIRST, STOPPED, STOPPED_LATE]
    inserts += [ROLLED_BACK, ROLLED_FAR, OLDER, OLDER_LIFE, BRANCHED, AFRESH, AFRESH_SAVED]
    inserts += [LEGACY, LEGACY_LINEAGE, RACED, RACED_AGAIN]
    inserts += [KILLED, KILLED_FIRST, KILLED_RESUMED, TORN, TORN_FIRST]
    resized = {
        EVEN.name: (*RESIZED, *RESIZED_TWICE),
        LIMITED.name: RESIZED,
        CROWDED.name: RESIZED,
        UNEVEN.name: (LARGER_BATCHES, SMALLER_BATCHES, SMALLER_BUFFER),
        SHORT.name: (SMALLER_BATCHES, SMALLER_BUFFER),
    }
    for sizes in (EVEN, UNEVEN, PASSES, SHORT, LIMITED, CROWDED, TIGHT, TRIOS):
        for order in ORDERS:
            for insert in [*inserts, *resized.get(sizes.name, ())]:
                yield from every_save_point(sizes, order, insert)
            yield from every_two_save_points(sizes, order)
            yield from many_saves(sizes, order)
            yield from many_saves(sizes, order, back=3)
    for order in ORDERS:
        for insert in (PLAIN, NO_BUFFER):
            yield from every_save_point(TWINS, order, insert)
        for sizes in (LONG, ONES):
            yield from every_save_point(sizes, order, PLAIN)
        yield from many_saves(ONES, order)
