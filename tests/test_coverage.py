"""Counts of prompts: what is counted, what they prove, and how they travel with the weights."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from pytest_resume_audit.real_runs.counts import Counts, CoverageError, decode, merged
from pytest_resume_audit.real_runs.coverage import PromptCoverage
from pytest_resume_audit.real_runs.judging import CoverageReport, compare, judge
from pytest_resume_audit.real_runs.reading import read


def counts_of(coverage: PromptCoverage) -> Counts:
    return decode(coverage.state_dict()["prompt_coverage"].encode())


def cells_of(coverage: PromptCoverage) -> list[int]:
    return list(counts_of(coverage).cells)


def restarted(coverage: PromptCoverage, **sizes: Any) -> PromptCoverage:
    """A new process, restored from what the other one saves now, by way of JSON."""
    counts = counts_of(coverage)
    sizes = {"prompts": counts.prompts, "passes": counts.passes, **sizes}
    sizes = {"group_size": counts.group_size, "ordered": counts.ordered, **sizes}
    other = PromptCoverage(sizes.pop("prompts"), **sizes)
    other.load_state_dict(json.loads(json.dumps(coverage.state_dict())))
    return other


def marks(coverage: PromptCoverage, **known: Any) -> str:
    return judge(counts_of(coverage), **known).marks.decode()


# --- counting -----------------------------------------------------------------------------------


def test_each_prompt_of_each_pass_is_counted() -> None:
    coverage = PromptCoverage(4, passes=2)
    coverage.add([0, 2])
    coverage.add(iter([2, 7]))
    coverage.add([3], in_pass=1)
    assert cells_of(coverage) == [1, 0, 2, 0, 0, 0, 0, 2]
    assert coverage.trained == 3


def test_a_count_stays_at_its_limit() -> None:
    coverage = PromptCoverage(2)
    for _ in range(300):
        coverage.add([1])
    assert cells_of(coverage) == [0, 126]
    report = judge(counts_of(coverage), complete=True)
    assert (report.saturated, report.repeats) == (1, 125)


def test_what_is_at_its_limit_may_have_been_trained_again() -> None:
    coverage = PromptCoverage(2)
    coverage.add([0] + [1] * 126)
    first = counts_of(coverage)
    restarted = PromptCoverage(2)
    restarted.load_state_dict(coverage.state_dict())
    restarted.add([1])
    second = counts_of(restarted)
    between = compare(first, second, judge(first), judge(second))
    assert (between.verdict, between.repeated) == ("undetermined", ())
    assert "1 had been trained 126 times or more" in between.why[0]


def test_a_group_at_the_limit_may_have_been_trained_too_often() -> None:
    # Such as another version has written: this one takes no group that is so large.
    cells = bytearray([126, 126])
    report = judge(Counts(2, group_size=126, cells=cells), complete=True)
    assert (report.verdict, report.saturated) == ("undetermined", 2)
    assert "2 were trained 126 times, as they should be, or more" in report.why[0]


def test_the_largest_group_is_told_from_more() -> None:
    coverage = PromptCoverage(2, group_size=125)
    coverage.add([0] * 125 + [1] * 125)
    assert judge(counts_of(coverage), complete=True).verdict == "lossless"
    coverage.add([1])
    assert marks(coverage) == "-2"


class Number:
    """A whole number of another library."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __index__(self) -> int:
        return self.value


def test_sizes_and_passes_may_be_numbers_of_other_libraries() -> None:
    sizes: Any = {"prompts": Number(4), "passes": Number(2), "group_size": Number(1)}
    coverage = PromptCoverage(**sizes)
    in_pass: Any = Number(1)
    coverage.add([0], in_pass=in_pass)
    assert cells_of(coverage) == [0, 0, 0, 0, 1, 0, 0, 0]
    assert counts_of(coverage).prompts == 4


@pytest.mark.parametrize(
    ("ordinals", "says"),
    [
        ([0, 8], "ordinal 8 is out of range: 0 to 7 are counted"),
        ([0, -1], "ordinal -1 is out of range"),
        ([0, 1.0], "1.0 is no ordinal"),
        ([0, True], "True is no ordinal"),
        ([0, "1"], "'1' is no ordinal"),
        ([0, None], "None is no ordinal"),
        ([[0, 1]], "no ordinal"),
        (3, "3 is no list"),
        ("01", "'01' is no list"),
        ([0, 10**30], "out of range"),
    ],
)
@pytest.mark.parametrize("call", ["add", "drop"])
def test_what_is_no_ordinal_leaves_the_counts_untouched(
    ordinals: Any, says: str, call: str
) -> None:
    coverage = PromptCoverage(4, passes=2)
    coverage.add([5])
    with pytest.raises(CoverageError, match=says):
        getattr(coverage, call)(ordinals)
    assert cells_of(coverage) == [0, 0, 0, 0, 0, 1, 0, 0]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"ordinals": [4], "in_pass": 0}, "ordinal 4 is out of range: 0 to 3"),
        ({"ordinals": [0], "in_pass": 2}, "pass 2 is none of 0 to 1"),
        ({"ordinals": [0], "in_pass": -1}, "pass -1"),
        ({"ordinals": [0], "in_pass": 0.5}, "in_pass is 0.5"),
    ],
)
def test_a_wrong_pass_is_refused(arguments: dict[str, Any], says: str) -> None:
    coverage = PromptCoverage(4, passes=2)
    with pytest.raises(CoverageError, match=says):
        coverage.add(**arguments)
    assert coverage.trained == 0


@pytest.mark.parametrize(
    ("sizes", "says"),
    [
        ({"prompts": 0}, "prompts is 0"),
        ({"prompts": 4, "passes": True}, "passes is True"),
        ({"prompts": 4.0}, "prompts is 4.0"),
        ({"prompts": 4, "group_size": 126}, "add each prompt once"),
    ],
)
def test_wrong_sizes_are_refused(sizes: dict[str, Any], says: str) -> None:
    with pytest.raises(CoverageError, match=says):
        PromptCoverage(**sizes)


def test_ten_million_prompts_take_a_byte_each_and_a_step_copies_none() -> None:
    tracemalloc.start()
    try:
        coverage = PromptCoverage(10_000_000)
        assert tracemalloc.get_traced_memory()[0] < 10_100_000
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        for step in range(10):
            coverage.add(range(step * 512, step * 512 + 512))
        assert tracemalloc.get_traced_memory()[1] - before < 100_000
    finally:
        tracemalloc.stop()
    text = coverage.state_dict()["prompt_coverage"]
    assert len(text) < 100_000
    assert decode(text.encode()).cells.count(1) == 5120


# --- restarts -----------------------------------------------------------------------------------


def test_restored_counts_are_those_of_the_weights() -> None:
    first = PromptCoverage(8)
    first.add([0, 1])
    older = first.state_dict()
    first.add([2, 3])  # is rolled back
    second = PromptCoverage(8)
    second.load_state_dict(older)
    second.add([2])
    third = restarted(second)
    third.add([3, 4])
    assert cells_of(third) == [1, 1, 1, 1, 1, 0, 0, 0]
    assert counts_of(third).restarts == [2, 3]


def test_a_data_set_may_grow() -> None:
    # Two passes of three, the second one begun. Each gets a fourth prompt: that of the first pass
    # was not there yet, that of the second is still to come.
    first = PromptCoverage(3, passes=2)
    first.add([0, 1, 2, 3])
    first.mark(4, waiting=[5])
    grown = restarted(first, prompts=4)
    grown.add([5])
    assert marks(grown) == "---d--b."
    assert counts_of(grown).place == 5
    assert counts_of(grown).restarts == [7]


def test_what_was_complete_is_not_lossy_for_growing() -> None:
    first = PromptCoverage(3)
    first.add([0, 1, 2])
    first.mark(3)
    grown = restarted(first, prompts=5)
    assert marks(grown) == "---.."
    grown.add([3, 4])
    grown.mark(5)
    assert judge(counts_of(grown)).verdict == "lossless"


def test_a_data_set_may_not_shrink_nor_groups_change() -> None:
    first = PromptCoverage(4, group_size=2)
    first.add([0, 0])
    for sizes, says in (
        ({"prompts": 3}, "may grow"),
        ({"group_size": 3}, "group_size=2"),
        ({"ordered": False}, "ordered=True"),
    ):
        with pytest.raises(CoverageError, match=says):
            restarted(first, **sizes)


def test_more_passes_may_be_asked_for() -> None:
    first = PromptCoverage(2)
    first.add([0, 1])
    second = restarted(first, passes=2)
    second.add([2])
    assert marks(second) == "---."


@pytest.mark.parametrize("state", [None, {}, {"prompt_coverage": 1}, {"prompt_coverage": "no"}])
def test_what_is_no_state_is_refused(state: Any) -> None:
    with pytest.raises(CoverageError):
        PromptCoverage(2).load_state_dict(state)


def test_a_file_beside_the_checkpoint(tmp_path: Path) -> None:
    first = PromptCoverage(4)
    first.add([0])
    first.save(tmp_path / "coverage")
    second = PromptCoverage(4)
    second.load(tmp_path / "coverage")
    assert cells_of(second) == [1, 0, 0, 0]
    assert [file.name for file in tmp_path.iterdir()] == ["coverage"]


def test_many_restarts_keep_the_fixed_form_at_its_length() -> None:
    coverage = PromptCoverage(2)
    length = len(coverage.fixed())
    counts = counts_of(coverage)
    counts.restarts = [2] * 5000
    assert len(counts.fixed()) == length
    assert len(decode(counts.fixed()).restarts) == 501


def test_random_runs_are_counted_as_a_dict_counts_them(tmp_path: Path) -> None:
    pytest.importorskip("hypothesis")
    from hypothesis import given, settings, strategies as st

    step = st.lists(st.integers(0, 11), max_size=4)
    event = st.one_of(
        step.map(lambda those: ("add", those)),
        st.just(("save", None)),
        st.integers(0, 9).map(lambda which: ("restart", which)),
    )

    @settings(max_examples=50, deadline=None, database=None)
    @given(st.lists(event, max_size=30))
    def check(events: list[tuple[str, Any]]) -> None:
        coverage, expected = PromptCoverage(6, passes=2), [0] * 12
        saved = [(coverage.state_dict(), list(expected))]
        for what, which in events:
            if what == "add":
                coverage.add(which)
                for ordinal in which:
                    expected[ordinal] += 1
            elif what == "save":
                saved.append((coverage.state_dict(), list(expected)))
            else:
                state, expected = saved[which % len(saved)]
                expected = list(expected)
                coverage = PromptCoverage(6, passes=2)
                coverage.load_state_dict(state)
        assert cells_of(coverage) == expected

    check()


# --- what counts prove --------------------------------------------------------------------------


def the_case(**sizes: Any) -> PromptCoverage:
    """0-3 are trained, 4, 6, 7 and 10 wait in the buffer, 5, 8, 9 and 11 are in flight."""
    coverage = PromptCoverage(16, **sizes)
    coverage.add(range(4))
    return coverage


def test_the_live_place_loses_what_is_in_flight() -> None:
    coverage = the_case()
    coverage.mark(12, waiting=[4, 6, 7, 10])
    assert marks(coverage) == "----bSbbSSbS...."
    assert judge(counts_of(coverage)).verdict == "lossy"
    # The first life goes on, and trains them: that run has lost nothing.
    coverage.add([5, 8, 9, 11, 4, 6, 7, 10])
    assert judge(counts_of(coverage)).verdict == "lossless"


def test_after_the_restart_they_are_still_missing() -> None:
    before = the_case()
    before.mark(12, waiting=[4, 6, 7, 10])
    after = restarted(before)
    after.add([4, 6, 7, 10, 12, 13, 14, 15, 12])
    first, second = counts_of(before), counts_of(after)
    report = judge(second, complete=True)
    assert report.marks.decode() == "-----S--SS-S2---"
    assert report.at_restarts == ((1, 12, 4),)
    between = compare(first, second, judge(first), report)
    assert between.lost == (5, 8, 9, 11)
    assert (between.repeated, between.trained, between.restarts) == ((12,), 8, 1)
    assert between.verdict == "lossy"
    # And nothing is lost once more by a second restart.
    last = counts_of(restarted(after))
    assert compare(second, last, judge(second), judge(last)).lost == ()


def test_the_cut_loses_nothing() -> None:
    coverage = the_case()
    coverage.mark(4, waiting=[4, 6, 7, 10])
    assert marks(coverage) == "----b.bb..b....."
    assert judge(counts_of(coverage)).verdict == "lossless"


def test_the_buffer_of_before_does_not_excuse_what_it_lost() -> None:
    coverage = the_case()
    coverage.mark(12, waiting=[4, 5])
    coverage.mark(12, waiting=[4])
    assert marks(coverage) == "----bSSSSSSS...."


@pytest.mark.parametrize(
    ("known", "verdict", "missing", "drawn"),
    [
        ({}, "undetermined", 0, "--?--??-........"),
        ({"in_flight": 3}, "undetermined", 0, "--?--??-........"),
        ({"in_flight": 2}, "lossy", 1, "--?--??-........"),
        ({"in_flight": 0}, "lossy", 3, "--S--SS-........"),
        ({"complete": True}, "lossy", 11, "--S--SS-SSSSSSSS"),
        ({"complete": True, "prompts": 8}, "lossy", 3, "--S--SS-nnnnnnnn"),
    ],
)
def test_what_is_in_flight_is_not_called_lost(
    known: dict[str, Any], verdict: str, missing: int, drawn: str
) -> None:
    coverage = PromptCoverage(16)
    coverage.add([0, 1, 3, 4, 7])
    report = judge(counts_of(coverage), **known)
    assert (report.verdict, report.missing, report.marks.decode()) == (verdict, missing, drawn)


def test_without_a_gap_it_is_lossless_as_far_as_it_got() -> None:
    report = judge(counts_of(the_case()))
    assert report.verdict == "lossless"
    assert report.why == ("nothing is said of 12 that the run has not come to, as far as is known",)


def test_nothing_trained_proves_nothing() -> None:
    for known in ({}, {"complete": True}, {"in_flight": 0}):
        assert judge(counts_of(PromptCoverage(4)), **known).verdict == "undetermined"


def test_what_has_waited_is_counted_like_any_other() -> None:
    coverage = PromptCoverage(3)
    coverage.mark(3, waiting=[0, 1])
    coverage.add([0, 1, 1])
    assert cells_of(coverage) == [1, 2, 0]
    assert judge(counts_of(coverage)).repeats == 1


def test_what_is_lost_before_anything_is_trained() -> None:
    coverage = PromptCoverage(8)
    coverage.mark(4, waiting=[1])
    report = judge(counts_of(coverage))
    assert (report.verdict, report.marks.decode()) == ("lossy", "SbSS....")


def test_a_repeat_is_certain_at_any_time() -> None:
    coverage = PromptCoverage(4)
    coverage.add([2, 2])
    report = judge(counts_of(coverage))
    assert (report.verdict, report.marks.decode()) == ("lossy", "??2.")


def test_groups_are_to_be_whole() -> None:
    coverage = PromptCoverage(5, group_size=3)
    coverage.add([0, 0, 0, 1, 1, 2, 2, 2, 2, 4, 4])
    assert marks(coverage, complete=True) == "-P2SP"
    coverage.mark(5, waiting=[4])
    assert marks(coverage) == "-P2Sb"
    coverage.add([4])
    assert marks(coverage) == "-P2S-"


def test_what_is_dropped_is_not_skipped_unless_it_is_trained_twice() -> None:
    coverage = PromptCoverage(4)
    coverage.add([0])
    coverage.drop([0, 1, 2])
    coverage.add([2, 3])
    assert marks(coverage, complete=True) == "-d--"
    assert judge(counts_of(coverage), complete=True).verdict == "lossless"


def test_what_is_left_in_the_buffer_at_the_end_is_skipped() -> None:
    coverage = PromptCoverage(3)
    coverage.add([0, 2])
    coverage.mark(3, waiting=[1])
    assert marks(coverage) == "-b-"
    assert marks(coverage, complete=True) == "-S-"


def test_rows_of_a_shuffled_data_set_are_judged_by_whole_passes() -> None:
    coverage = PromptCoverage(4, passes=2, ordered=False)
    coverage.add([3, 1], in_pass=0)
    assert judge(counts_of(coverage)).verdict == "undetermined"
    assert marks(coverage) == ".-.-...."
    coverage.add([0], in_pass=0)
    coverage.add([2], in_pass=1)
    assert marks(coverage) == "--?-..-."
    assert judge(counts_of(coverage), in_flight=0).missing == 1
    with pytest.raises(CoverageError, match="in the order"):
        coverage.mark(4)


def test_a_rollback_between_two_checkpoints_is_undetermined() -> None:
    coverage = the_case()
    older = counts_of(coverage)
    coverage.add([4])
    newer = counts_of(coverage)
    between = compare(newer, older, judge(newer), judge(older))
    assert between.verdict == "undetermined"
    assert between.undone == (4,)


def test_only_the_same_data_is_compared() -> None:
    one, other = counts_of(the_case()), counts_of(PromptCoverage(17))
    with pytest.raises(CoverageError, match=r"16 prompts.*17"):
        compare(one, other, judge(one), judge(other))


@pytest.mark.parametrize("known", [{"prompts": 17}, {"passes": 2}, {"prompts": 3}])
def test_what_can_not_be_expected_is_refused(known: dict[str, Any]) -> None:
    with pytest.raises(CoverageError, match=r"expected|beyond"):
        judge(counts_of(the_case()), **known)


def test_what_is_missing_is_put_down_to_one_restart() -> None:
    # The second restart came from a cut below what had been handed out before the first.
    counts = Counts(8, cells=bytearray([1, 1, 0, 1, 0, 0, 0, 1]), restarts=[6, 3, 7])
    assert judge(counts, complete=True).at_restarts == ((1, 6, 3), (3, 7, 1))


def test_a_long_run_whose_restarts_lost_most() -> None:
    # As seen in public: 736 of about 2450 prompts skipped, 675 of them at five restarts.
    coverage = PromptCoverage(5000)
    place = 0
    for _ in range(5):
        coverage.add(range(place, place + 300))
        coverage.mark(place + 435)  # 135 in flight
        place += 435
        coverage = restarted(coverage)
    coverage.add(range(place + 61, place + 275))  # 61 were lost otherwise
    coverage.mark(place + 275)
    report = judge(counts_of(coverage))
    assert report.missing == 736
    assert sum(untrained for _, _, untrained in report.at_restarts) == 675
    assert round(100 * report.missing / report.reached) == 30


# --- ranks --------------------------------------------------------------------------------------


def share(rank: int, added: list[int], *, ranks: int = 2, **more: Any) -> Counts:
    counts = Counts(6, cells=bytearray(6), rank=rank, ranks=ranks, whole=False, **more)
    for ordinal in added:
        counts.add(ordinal)
    counts.added.extend(added)
    return counts


def test_shares_are_summed() -> None:
    both = merged([share(1, [1, 2]), share(0, [0, 2])])
    assert list(both.cells) == [1, 1, 2, 0, 0, 0]
    assert both.whole


def test_shares_that_are_not_all_are_refused() -> None:
    with pytest.raises(CoverageError, match="only rank 0, 2 of 3"):
        merged([share(0, [0], ranks=3), share(2, [1], ranks=3)])


@pytest.mark.parametrize("other", [share(0, [1]), share(1, [1], base=7), share(1, [1], ranks=3)])
def test_shares_of_different_saves_are_refused(other: Counts) -> None:
    with pytest.raises(CoverageError, match="do not belong to one another"):
        merged([share(0, [0]), other])


def test_ranks_that_restored_different_checkpoints_are_refused() -> None:
    shares = []
    for rank in range(2):
        coverage = PromptCoverage(6)
        coverage.add([rank])
        counts = counts_of(restarted(coverage))
        counts.rank, counts.ranks, counts.whole = rank, 2, False
        shares.append(counts)
    with pytest.raises(CoverageError, match="do not belong to one another"):
        merged(shares)


def test_what_waits_is_what_the_ranks_said_last() -> None:
    shares = [share(0, [0]), share(1, [1])]
    for counts in shares:
        counts.wait([2, 3])  # of the save before, in all ranks
    shares[1].wait([3])
    shares[1].marked, shares[1].place = True, 4
    both = merged(shares)
    assert both.waiting() == [3]
    assert judge(both).marks.decode() == "--Sb.."


RANKS = """
import os, sys, torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
from pathlib import Path
from torch import nn
from pytest_resume_audit.real_runs.coverage import PromptCoverage
from pytest_resume_audit.real_runs.reading import read

rank, root = int(sys.argv[1]), Path(sys.argv[2])
dist.init_process_group("gloo", init_method=f"file://{root}/meet", rank=rank, world_size=2)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
coverage = PromptCoverage(10)
coverage.attach(model)
ddp = nn.parallel.DistributedDataParallel(model)  # broadcasts buffers before each forward
for step in range(3):
    ddp(torch.randn(4, 2)).sum().backward()
    coverage.add([2 * step + rank])
coverage.save(root / f"share{rank}")
coverage.gather()
coverage.gather()  # counts nothing twice
torch.save(ddp.state_dict(), root / f"model{rank}.pt")
dcp.save({"coverage": coverage}, checkpoint_id=root / "dcp")
grown = PromptCoverage(12)
dcp.load({"coverage": grown}, checkpoint_id=root / "dcp")
if rank == 0:
    grown.add([6, 7])
grown.gather()
assert grown.trained == 8, grown
grown.add([8 + rank])
grown.save(root / f"later{rank}")
dist.destroy_process_group()
# Where DDP has been, a thread of gloo that lags behind asks for the lock of an interpreter that
# ends, and aborts the process.
os._exit(0)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="gloo by a file")
def test_two_ranks_count_their_own_shares(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    ranks = [
        subprocess.Popen([sys.executable, "-c", RANKS, f"{rank}", f"{tmp_path}"], env=plain())
        for rank in range(2)
    ]
    assert [rank.wait(timeout=300) for rank in ranks] == [0, 0]
    expected = bytearray([1] * 6 + [0] * 4)
    for file in ("model0.pt", "model1.pt", "dcp"):
        assert read([tmp_path / file]).cells == expected, file
    assert read([tmp_path / "share1", tmp_path / "share0"]).cells == expected
    with pytest.raises(CoverageError, match=r"coverage\.gather"):
        read([tmp_path / "share0"])
    with pytest.raises(CoverageError, match="of rank 0 of 2 alone"):
        PromptCoverage(10).restore(read_share(tmp_path / "share0"))
    later = read([tmp_path / "later0", tmp_path / "later1"])
    assert later.cells == bytearray([1] * 10 + [0] * 2)


def plain() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def read_share(path: Path) -> Counts:
    return decode(path.read_bytes())


# --- in a model ---------------------------------------------------------------------------------


def test_counts_ride_in_a_model(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")

    def made() -> tuple[Any, PromptCoverage]:
        model, coverage = torch.nn.Sequential(torch.nn.Linear(2, 1)), PromptCoverage(4)
        coverage.attach(model)
        return model, coverage

    model, coverage = made()
    model(torch.ones(1, 2))
    coverage.add(torch.tensor([0, 3]))
    torch.save({"nested": [model.half().state_dict()]}, tmp_path / "it.pt")
    other, restored = made()
    saved = torch.load(tmp_path / "it.pt", weights_only=True)
    other.load_state_dict(saved["nested"][0])
    assert cells_of(restored) == [1, 0, 0, 1]
    assert list(read([tmp_path / "it.pt"]).cells) == [1, 0, 0, 1]

    # A reference model has the same keys, and counts nothing.
    reference = copy.deepcopy(model)
    reference.load_state_dict(model.state_dict())
    torch.save({"policy": model.state_dict(), "reference": reference.state_dict()}, tmp_path / "p")
    assert list(read([tmp_path / "p"]).cells) == [1, 0, 0, 1]

    with pytest.raises(CoverageError, match="already"):
        PromptCoverage(4).attach(model)
    with pytest.raises(CoverageError, match="no valid beginning"):
        model.load_state_dict(reference.state_dict())
    wrong = {**model.state_dict(), "prompt_coverage._extra_state": torch.ones(3)}
    with pytest.raises(CoverageError, match="float32"):
        model.load_state_dict(wrong)


def test_tensors_that_are_no_ordinals_are_refused() -> None:
    torch = pytest.importorskip("torch")
    coverage = PromptCoverage(4)
    for tensor in (torch.tensor([1.0]), torch.tensor([[1]]), torch.tensor(1), torch.tensor([True])):
        with pytest.raises(CoverageError):
            coverage.add(tensor)
    assert coverage.trained == 0


def test_the_report_names_spans() -> None:
    report: CoverageReport = judge(Counts(6, cells=bytearray([1, 0, 0, 1, 0, 1])))
    assert list(report.spans(ord("?"))) == [(1, 2), (4, 4)]
