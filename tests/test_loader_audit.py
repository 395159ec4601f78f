"""Audits of loaders alone, on small loaders in pure Python: a right one, and one for each fault."""

from __future__ import annotations

import itertools
import pickle
import random
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from pytest_resume_audit import LiveCursorCollector, LoaderAudit, NamedTimeline, Setup, run
from pytest_resume_audit.adapters.loader import ids_of
from pytest_resume_audit.catalogue import matrix
from pytest_resume_audit.loader_timelines import loader_timelines
from pytest_resume_audit.summary import Record, Summary
from pytest_resume_audit.timeline import Timeline
from pytest_resume_audit.verdict import AuditReport

# Two whole batches and one that is not: 4, 4 and 2 samples a pass; places 4, 8, 10, 14, 18, 20.
SAMPLES, BATCH = 10, 4
SETUP = Setup(prompts=SAMPLES, batch_size=BATCH, passes=3)


# --- loaders --------------------------------------------------------------------------------------


class Right:
    """Right: at the end of a pass its state is the beginning of the next one."""

    shuffle = False

    def __init__(self) -> None:
        self.epoch = self.done = 0

    def rows(self, epoch: int) -> list[int]:
        rows = list(range(SAMPLES))
        return random.Random(epoch).sample(rows, SAMPLES) if self.shuffle else rows

    def __iter__(self) -> Iterator[list[int]]:
        rows = self.rows(self.epoch)
        while self.done < SAMPLES:
            batch = rows[self.done : self.done + BATCH]
            self.done += len(batch)
            yield batch
        self.epoch, self.done = self.epoch + 1, 0

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "done": self.done}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch, self.done = state["epoch"], state["done"]


class Shuffled(Right):
    """The same, with an order of its own in each pass."""

    shuffle = True


class ReadsAhead(Right):
    """Its state is the place it has read to, a batch further than it has handed out."""

    def __iter__(self) -> Iterator[list[int]]:
        ahead: list[int] | None = None
        for batch in super().__iter__():
            if ahead is not None:
                yield ahead
            ahead = batch
        assert ahead is not None
        yield ahead


class RepeatsBatch(Right):
    """Its state is that before the batch that was handed out last."""

    def __iter__(self) -> Iterator[list[int]]:
        for batch in super().__iter__():
            self.before = {"epoch": self.epoch, "done": self.done - len(batch)}
            yield batch
        self.before = super().state_dict()

    before: dict[str, Any] | None = None

    def state_dict(self) -> dict[str, Any]:
        return self.before or super().state_dict()


class EmptyAfterEnd(Right):
    """Behind the end of a pass its state still is that end: the next pass is empty."""

    def __iter__(self) -> Iterator[list[int]]:
        if self.resumed:
            self.resumed = False
        else:
            self.done = 0
        rows = self.rows(0)
        while self.done < SAMPLES:
            batch = rows[self.done : self.done + BATCH]
            self.done += len(batch)
            yield batch

    resumed = False

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.resumed = True


class AnewAtEnd(Right):
    """Behind the last batch of a pass, in the loop, its state is the beginning of the pass."""

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "done": self.done % SAMPLES}


class Lazy(Right):
    """Goes to a state with its first batch, and has the state of a new one before that."""

    pending: dict[str, Any] | None = None

    def __iter__(self) -> Iterator[list[int]]:
        if self.pending is not None:
            super().load_state_dict(self.pending)
            self.pending = None
        yield from super().__iter__()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.pending = state


class ForgetsSeed(Right):
    """Each pass has the order that comes next in a generator, which no state has."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = random.Random(4)

    def rows(self, epoch: int) -> list[int]:
        return self.generator.sample(range(SAMPLES), SAMPLES)


class Refusing(Right):
    """Says loudly that it can't go on from the middle of a pass."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["done"]:
            raise RuntimeError("a pass that has begun can't be resumed")
        super().load_state_dict(state)


class RefusingLate(Right):
    """Says it when it is asked for the first batch."""

    def __iter__(self) -> Iterator[list[int]]:
        if self.done:
            raise RuntimeError("a pass that has begun can't be resumed")
        yield from super().__iter__()


class Hanging(Right):
    """After a resume it waits for ever for its first batch."""

    resumed = False

    def __iter__(self) -> Iterator[list[int]]:
        while self.resumed:
            time.sleep(0.01)
        yield from super().__iter__()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.resumed = True


class HangingInSave(Right):
    """Never gives a state in the second pass."""

    def state_dict(self) -> dict[str, Any]:
        while self.epoch:
            time.sleep(0.01)
        return super().state_dict()


class Breaking(Right):
    """Raises in the second pass."""

    def rows(self, epoch: int) -> list[int]:
        if epoch:
            raise OSError("the data is gone")
        return super().rows(epoch)


class Workers(Right):
    """Each of its two workers reads every other sample, and it hands out by turns.

    Its state counts the batches, and a resume begins with the first worker again.
    """

    def __iter__(self) -> Iterator[list[int]]:
        shares = [list(range(worker, SAMPLES, 2)) for worker in range(2)]
        rest = [share[done:] for share, done in zip(shares, self.taken, strict=True)]
        worker = 0
        while any(rest):
            batch, rest[worker] = rest[worker][:2], rest[worker][2:]
            self.taken[worker] += len(batch)
            if batch:
                yield batch
            worker = 1 - worker
        self.taken = [0, 0]

    def __init__(self) -> None:
        super().__init__()
        self.taken = [0, 0]

    def state_dict(self) -> dict[str, Any]:
        return {"taken": list(self.taken)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.taken = state["taken"]


class OnIterator:
    """Its state is that of an iterator, as Grain has it."""

    def __iter__(self) -> Any:
        return _Iterator()


class _Iterator:
    def __init__(self) -> None:
        self.done = 0

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> list[int]:
        if self.done >= SAMPLES:
            raise StopIteration
        batch = list(range(self.done, min(self.done + BATCH, SAMPLES)))
        self.done += len(batch)
        return batch

    def get_state(self) -> bytes:
        return pickle.dumps(self.done)

    def set_state(self, state: bytes) -> None:
        self.done = pickle.loads(state)


class Padding(Right):
    """Fills up the last batch with the first samples."""

    def __iter__(self) -> Iterator[list[int]]:
        for batch in super().__iter__():
            yield batch + list(range(BATCH - len(batch)))


class Endless(Right):
    """One pass that never ends."""

    def __iter__(self) -> Iterator[list[int]]:
        while True:
            yield from super().__iter__()


def play(
    make: Callable[[], Any], timeline: str, *, deadline: float = 30, **declared: Any
) -> AuditReport:
    """Play a timeline of the matrix, or a script."""
    return run(LoaderAudit(make, **declared), timeline, setup=SETUP, deadline=deadline)


def play_all(make: Callable[[], Any], **declared: Any) -> dict[str, AuditReport]:
    """Play the whole matrix."""
    return {t.name: play(make, t.name, **declared) for t in loader_timelines(SETUP)}


def failing(reports: dict[str, AuditReport]) -> set[str]:
    return {name for name, report in reports.items() if not report.passed}


# --- right ones -----------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["pickle", "json"])
@pytest.mark.parametrize("make", [Right, Shuffled])
def test_a_right_one_passes_all(make: type[Right], form: str) -> None:
    reports = play_all(make, form=form)
    assert {report.verdict for report in reports.values()} == {"lossless"}
    assert [name for name, report in reports.items() if report.unreached] == []
    assert [name for name, report in reports.items() if report.missed] == []


def test_it_is_played_in_processes_of_its_own() -> None:
    for name in ("save-04", "end-1-thrice"):
        report = run(LoaderAudit(Shuffled), name, setup=SETUP, life="process")
        assert report.verdict == "lossless"
        assert report.history.lives[-1].origin is not None


def test_the_state_of_an_iterator() -> None:
    # Behind an end there is no state but that of the end: the pass that comes next is empty.
    reports = play_all(OnIterator, state_of="iterator")
    at_ends = {f"end-{n}{form}" for n in (1, 2) for form in ("", "-twice", "-thrice")}
    assert failing(reports) == at_ends
    assert reports["end-1"].skipped == list(range(20, 30))


def test_an_endless_one_passes() -> None:
    reports = {
        name: play(Endless, name, stream="endless") for name in ("save-02", "save-05-thrice")
    }
    assert {report.verdict for report in reports.values()} == {"lossless"}


def test_padding_has_to_be_declared() -> None:
    assert play(Padding, "clean").verdict == "lossy"
    assert play(Padding, "clean", structural=True).verdict == "lossless"
    # 0 and 1 fill the third batch, so a place is not where it would be without them.
    assert play(Padding, "hand_out 12; save; crash; restart", structural=True).passed


# --- faults, one by one ---------------------------------------------------------------------------


def test_a_place_that_was_read_ahead_is_lost() -> None:
    # At the save 4-7 are read and not handed out; of each row the last place is missing.
    report = play(ReadsAhead, "save-01")
    assert (report.skipped, report.duplicated) == ([24, 25, 26, 27], [])
    assert "its row was lost at 4, in another pass" in report.reasons[24].text
    assert "life 2 restarted the loader at 8, behind it" in report.reasons[24].text
    assert "rows of the data set, skipped: 4-7" in str(report)


def test_a_batch_is_repeated() -> None:
    report = play(RepeatsBatch, "save-02")
    assert (report.skipped, report.duplicated) == ([], [24, 25, 26, 27])
    assert "repeated at 4, in another pass: trained before save 1" in report.reasons[24].text
    assert [finding.text for finding in report.findings] == ["trained more than once"]


def test_the_pass_behind_an_end_is_empty() -> None:
    # In the loop an empty rest is right; behind the end it stands for the second pass.
    assert play(EmptyAfterEnd, "save-03").verdict == "lossless"
    report = play(EmptyAfterEnd, "end-1")
    assert (report.skipped, report.duplicated) == (list(range(20, 30)), [])


def test_a_pass_begins_anew_behind_its_last_batch() -> None:
    # Of three passes the first is done twice: the rows come four times.
    report = play(AnewAtEnd, "save-03")
    assert (report.skipped, report.duplicated) == ([], list(range(20, 30)))
    assert play(AnewAtEnd, "end-1").verdict == "lossless"


def test_a_state_that_is_applied_late() -> None:
    # Right after the resume its state is that of a new one, before `iter()` and behind it: the
    # next life begins at the first batch. Between passes that is where it should.
    reports = play_all(Lazy)
    batches = {f"save-{n:02}-{form}" for n in range(1, 7) for form in ("twice", "begun")}
    assert failing(reports) == batches
    assert reports["save-01-twice"].duplicated == [20, 21, 22, 23]
    assert reports["save-01-begun"].duplicated == [20, 21, 22, 23]


def test_a_shuffle_that_is_not_saved() -> None:
    # The generator's orders come pass by pass in a run that is never interrupted. After a restart
    # they begin anew: in the first pass that is right, the second goes on with the first of them.
    generator = random.Random(4)
    first, second, third = (generator.sample(range(SAMPLES), SAMPLES) for _ in range(3))
    assert play(ForgetsSeed, "save-02").verdict == "lossless"
    report = play(ForgetsSeed, "save-05")
    trained = [*first, *second[:8], *first[8:], *second]
    times = {row: trained.count(row) for row in range(SAMPLES)}
    last = {row: 20 + third.index(row) for row in range(SAMPLES)}
    assert report.skipped == sorted(last[row] for row in times if times[row] == 2)
    assert report.duplicated == sorted(last[row] for row in times if times[row] == 4)
    assert report.skipped


def test_the_order_of_another_pass() -> None:
    # Behind the first pass the orders begin anew: the first comes again, instead of the second,
    # and the second instead of the third. So each sample is trained once a pass, and too late.
    report = play(ForgetsSeed, "end-1")
    assert (report.verdict, report.skipped, report.duplicated) == ("lossy", [], [])
    assert [finding.text for finding in report.findings] == [
        "trained out of the order of the stream"
    ]
    assert play(ForgetsSeed, "end-1", order="any").verdict == "lossless"


def test_an_order_that_is_not_that_of_the_run() -> None:
    # Worker 0 reads 0 2 4 6 8, worker 1 reads 1 3 5 7 9, by twos and by turns: the stream is
    # 0 2 1 3 4 6 5 7 8 9. Saved behind 0 2, the first worker begins again: 4 6 1 3 8 5 7 9.
    report = play(Workers, "hand_out 2; save; crash; restart")
    assert (report.skipped, report.duplicated) == ([], [])
    assert [finding.text for finding in report.findings] == [
        "trained out of the order of the stream"
    ]
    assert report.findings[0].ordinals == (2, 3, 6, 7)
    assert play(Workers, "hand_out 2; save; crash; restart", order="any").verdict == "lossless"


@pytest.mark.parametrize("make", [Refusing, RefusingLate])
def test_a_loud_refusal_is_an_outcome_of_its_own(make: type[Right]) -> None:
    report = play(make, "save-01")
    assert (report.verdict, report.skipped, report.duplicated) == ("refused", [], [])
    assert "a pass that has begun can't be resumed" in str(report)
    assert play(make, "end-1").verdict == "lossless"


def test_what_is_raised_later_is_no_refusal() -> None:
    report = play(Breaking, "save-01")
    assert report.verdict == "error"
    assert "the data is gone" in str(report)


@pytest.mark.parametrize(("make", "timeline"), [(Hanging, "save-01"), (HangingInSave, "save-05")])
def test_a_hang_has_a_deadline(make: type[Right], timeline: str) -> None:
    assert play(make, timeline, deadline=1.5).verdict == "hang"


# --- what is said of it ---------------------------------------------------------------------------


def test_samples_that_do_not_fit_the_setup() -> None:
    report = run(LoaderAudit(Right), "clean", setup=Setup(prompts=8))
    assert report.verdict == "error"
    assert "sample 8, and there are 8, from 0: say how many" in str(report)
    fewer = run(LoaderAudit(Right), "clean", setup=Setup(prompts=16))
    assert fewer.verdict == "lossy"
    assert "not trained by an uninterrupted run" in str(fewer)


@pytest.mark.parametrize(
    ("batch", "ids"),
    [
        (3, [3]),
        ([1, (2, [3])], [1, 2, 3]),
        ({"text": ["a", "b"], "idx": [5, 4]}, [5, 4]),
        ({"sample": [7]}, [7]),
        ([{"id": 1}, {"id": 2}], [1, 2]),
    ],
)
def test_ids_are_found(batch: Any, ids: list[int]) -> None:
    assert ids_of(batch) == ids


@pytest.mark.parametrize("batch", [{"text": [1], "label": [2]}, ["a"], 1.5, True, {}])
def test_ids_that_can_not_be_told(batch: Any) -> None:
    with pytest.raises(TypeError, match=r"say how, LoaderAudit\(\.\.\., ids="):
        ids_of(batch)


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ({"make": 3}, r"LoaderAudit\(make=3\): a function is needed"),
        ({"ids": None}, r"LoaderAudit\(ids=None\)"),
        ({"state_of": "data"}, "allowed are loader, iterator"),
        ({"form": "yaml"}, "allowed are pickle, torch, json"),
        ({"order": "none"}, "order is one of"),
        ({"stream": "none"}, "stream is one of"),
    ],
)
def test_wrong_declarations(declared: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        LoaderAudit(**{"make": Right, **declared})


def test_what_has_no_state() -> None:
    report = run(LoaderAudit(partial(list, range(4))), "save-01", setup=Setup(prompts=4))
    assert "has a state_dict: say how it is saved, LoaderAudit(..., save=" in str(report)


def test_a_life_has_a_loader_of_its_own() -> None:
    made: list[Right] = []

    def make() -> Right:
        made.append(Right())
        return made[-1]

    play(make, "save-01-twice")
    assert len({id(loader) for loader in made}) == 1 + 3  # the uninterrupted run, and three lives


# --- timelines ------------------------------------------------------------------------------------


def test_the_matrix_has_what_it_must() -> None:
    scripts = {t.name: t.script for t in loader_timelines(SETUP)}
    places = ("04", "08", "10", "14", "18", "20")
    for number, place in enumerate(map(int, places), start=1):
        assert scripts[f"save-{number:02}"] == f"hand_out {place}; save; crash; restart; drain"
    assert scripts["save-03-thrice"] == (
        "hand_out 10; save; crash; restart; hand_out 14; save; crash; restart; "
        "hand_out 18; save; crash; restart; drain"
    )
    assert scripts["end-1"] == "hand_out 10; hand_out; save; crash; restart; drain"
    assert scripts["begun-1"] == "hand_out 10; hand_out; hand_out; save; crash; restart; drain"


@pytest.mark.parametrize(
    "setup",
    [
        Setup(prompts=1, batch_size=1),
        Setup(prompts=3, batch_size=8),
        Setup(prompts=10, batch_size=4, drop_last=True),
        Setup(prompts=30, batch_size=1, passes=5),
    ],
    ids=str,
)
def test_the_matrix_is_right_for_all_sizes(setup: Setup) -> None:
    timelines = loader_timelines(setup)
    assert len({t.name for t in timelines}) == len(timelines)
    for timeline in timelines:
        asked = timeline.ask(setup)
        assert asked.setup.passes >= 3
        assert all(
            step.until <= asked.setup.total
            for step in Timeline.parse(timeline.script).steps
            if isinstance(getattr(step, "until", None), int)
        )


def test_a_bare_hand_out_goes_on_to_the_next_pause() -> None:
    report = play(Right, "hand_out; hand_out; hand_out 14; hand_out; save; crash; restart")
    (first, _) = report.history.lives
    kinds = [kind for kind, _ in itertools.groupby(event.kind for event in first.events)]
    assert kinds[:2] == ["pass_begun", "handed_out"]
    assert report.history.saves[0].standing.place == 20
    assert report.verdict == "lossless"


# --- in pytest ------------------------------------------------------------------------------------


def test_the_marker_plays_the_matrix(pytester: pytest.Pytester) -> None:
    _write_small(pytester)
    pytester.makepyfile(
        test_it="""
        import pytest
        from pytest_resume_audit import LoaderAudit, Setup
        from small import Right

        SETUP = Setup(prompts=10, batch_size=4)

        @pytest.mark.resume_audit(LoaderAudit(make=Right), setup=SETUP)
        def test_by_position(resume_audit):
            resume_audit()

        @pytest.mark.resume_audit(collector=LoaderAudit(Right), timelines="drain", setup=SETUP)
        def test_by_name(resume_audit):
            resume_audit()

        @pytest.mark.resume_audit(timelines=["loader", "save; crash; restart"], setup=SETUP)
        def test_at_the_call(resume_audit):
            resume_audit(LoaderAudit(make=Right))
        """
    )
    count = len(loader_timelines(SETUP))
    # A loader has one matrix, whatever is chosen for collectors.
    result = pytester.runpytest("-q", "--resume-audit-matrix", "nightly")
    result.assert_outcomes(passed=2 * count + 2)
    result.stdout.no_fnmatch_line("*proved nothing*")


def test_one_that_never_resumes_in_a_later_pass_proves_nothing() -> None:
    def summary(*states: str) -> Summary:
        record = Record(
            node_id="t.py::test_x[clean]",
            test="t.py::test_x",
            id="clean",
            of=1,
            matrix="loader",
            timeline="drain",
            replay="pytest t.py",
            outcome="lossless",
            states=states,
        )
        return Summary([record])

    assert summary("saved in a later pass", "resumed").failures == []
    (failure,) = summary("saved", "resumed").failures
    assert "proved nothing: in none of its 1 timelines was a checkpoint saved in a later" in failure


def _write_small(pytester: pytest.Pytester) -> None:
    """A module with the right loader."""
    pytester.makepyfile(
        small="""
        class Right:
            def __init__(self):
                self.done = 0

            def __iter__(self):
                while self.done < 10:
                    batch = list(range(self.done, min(self.done + 4, 10)))
                    self.done += len(batch)
                    yield batch
                self.done = 0

            def state_dict(self):
                return {"done": self.done}

            def load_state_dict(self, state):
                self.done = state["done"]
        """
    )


def test_the_matrix_is_listed(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest("--resume-audit-list", "--resume-audit-matrix", "loader")
    count = len(matrix("loader"))
    result.stdout.fnmatch_lines(
        [f"loader: {count} timelines", "*hand_out 4; save; crash; restart*"]
    )


def test_matrices_of_collectors_stay_as_they_are() -> None:
    assert isinstance(matrix("loader")[0], NamedTimeline)
    assert run(LiveCursorCollector, "mid-flight").skipped == [5, 8, 9, 11]


# --- torchdata ------------------------------------------------------------------------------------


def make_stateful_loader(workers: int, *, sampled: bool) -> Any:
    import torch
    import torchdata.stateful_dataloader as torchdata

    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    if sampled:
        order = torchdata.sampler.RandomSampler(range(SAMPLES), generator=generator)
        return torchdata.StatefulDataLoader(
            range(SAMPLES), batch_size=BATCH, sampler=order, num_workers=workers
        )
    return torchdata.StatefulDataLoader(
        range(SAMPLES), batch_size=BATCH, shuffle=True, generator=generator, num_workers=workers
    )


@pytest.mark.parametrize("form", ["pickle", "torch"])
def test_torchdata_passes_with_nothing_but_make(form: str) -> None:
    pytest.importorskip("torchdata.stateful_dataloader", reason="its loader")
    reports = play_all(partial(make_stateful_loader, 0, sampled=True), form=form)
    assert {report.verdict for report in reports.values()} == {"lossless"}


@pytest.mark.parametrize("life", ["local", "process"])
def test_torchdata_with_workers(life: Any) -> None:
    pytest.importorskip("torchdata.stateful_dataloader", reason="its loader")
    audit = LoaderAudit(partial(make_stateful_loader, 2, sampled=True))
    for name in ("save-02-thrice", "end-1"):
        report = run(audit, name, setup=SETUP, life=life)
        assert report.verdict == "lossless"
        assert "resumed" in report.states
