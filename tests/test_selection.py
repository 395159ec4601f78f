"""Which audits are run: shards, and what fits into a budget."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest

from pytest_resume_audit import session
from pytest_resume_audit.selection import Budget, SelectionError, Shard, seeded

NODE_IDS = [f"test_it.py::test_{test}[t{number}]" for test in "xy" for number in range(400)]


# --- by ids alone -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("20m", 1200), ("2h", 7200), ("1.5h", 5400), ("0.5s", 0.5)]
)
def test_a_budget_is_a_number_and_its_unit(text: str, seconds: float) -> None:
    assert Budget.parse(text) == Budget(text, seconds)


@pytest.mark.parametrize(
    "text", ["", "20", "m", "20 m", "0m", "-1m", "20min", "1h30m", "nan s", "9" * 400 + "h", "٣m "]
)
def test_what_is_no_budget(text: str) -> None:
    with pytest.raises(SelectionError, match="is no time above 0: allowed are a number and its"):
        Budget.parse(text)


@pytest.mark.parametrize("text", ["", "2", "0/8", "9/8", "1/0", "-1/8", "1/8/2", "a/b", "1 / 8"])
def test_what_is_no_shard(text: str) -> None:
    with pytest.raises(SelectionError, match="is no shard: allowed are"):
        Shard.parse(text)


@pytest.mark.parametrize("parts", [1, 2, 3, 7, 8])
def test_each_test_is_in_exactly_one_shard(parts: int) -> None:
    shards = [Shard.parse(f"{number}/{parts}") for number in range(1, parts + 1)]
    members = [shard.of(NODE_IDS) for shard in shards]
    assert sorted(one for part in members for one in part) == sorted(NODE_IDS)
    fair = len(NODE_IDS) / parts
    assert all(fair - 1 < len(part) < fair + 1 for part in members)
    assert members == [shard.of(reversed(NODE_IDS)) for shard in shards], "whatever their order"


def test_a_part_is_a_mix_of_all_tests() -> None:
    # In the order of their hashes: that of `printf '0 b' | sha256sum` begins with 840f, that of
    # a with cf6d, that of c with edc8.
    assert [Shard(number, 3).of("abc") for number in (1, 2, 3)] == [{"b"}, {"a"}, {"c"}]


def test_a_seeded_order_depends_on_the_ids_and_the_seed_alone() -> None:
    orders = {seed: seeded(NODE_IDS, seed) for seed in range(5)}
    assert all(sorted(order) == sorted(NODE_IDS) for order in orders.values())
    assert len({tuple(order) for order in orders.values()}) == 5
    assert seeded(reversed(NODE_IDS), 3) == orders[3]
    # Every beginning is a fair sample: it has its part of each test.
    of_x = [sum("test_x" in one for one in order[:200]) for order in orders.values()]
    assert all(70 < number < 130 for number in of_x)
    # What is taken out leaves the order of the others as it was.
    fewer = [one for one in NODE_IDS if "7" not in one]
    assert seeded(fewer, 3) == [one for one in orders[3] if "7" not in one]


# --- in a run of pytest -------------------------------------------------------------------------

SOURCE = """
import pytest
from pytest_resume_audit import FrontierCollector, LiveCursorCollector

def test_before():
    pass

@pytest.mark.resume_audit(FrontierCollector, timelines="nightly")
def test_x(resume_audit):
    resume_audit()

def test_between():
    pass

@pytest.mark.resume_audit(FrontierCollector, timelines="nightly")
def test_y(resume_audit):
    resume_audit()

@pytest.mark.resume_audit(FrontierCollector, timelines={"own": "drain"})
def test_z(resume_audit):
    resume_audit()

def test_after():
    pass
"""


@pytest.fixture
def source(pytester: pytest.Pytester, nightly: None) -> None:
    pytester.makepyfile(test_it=SOURCE)


@pytest.fixture
def ticks(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A clock that goes on by a second whenever it is looked at: an audit takes one."""
    clock = count()
    monkeypatch.setattr(session, "monotonic", lambda: float(next(clock)))
    return clock


def collected(pytester: pytest.Pytester, *options: str) -> list[str]:
    result = pytester.runpytest("--collect-only", "-q", "-p", "no:randomly", *options)
    return [line.partition("::")[2] for line in result.outlines if "::" in line]


@pytest.mark.usefixtures("source")
def test_shards_are_of_audits_alone(pytester: pytest.Pytester) -> None:
    everything = collected(pytester)
    others = ["test_before", "test_between", "test_after"]
    assert len(everything) == 3 + 8 + 8 + 1
    for parts in (1, 2, 5):
        shards = [
            collected(pytester, f"--resume-audit-shard={number}/{parts}")
            for number in range(1, parts + 1)
        ]
        assert all([one for one in shard if "[" not in one] == others for shard in shards)
        audits = [one for shard in shards for one in shard if "[" in one]
        assert sorted(audits) == sorted(one for one in everything if "[" in one)


@pytest.mark.parametrize("workers", [(), ("-n", "1")], ids=["alone", "with xdist"])
def test_a_part_with_nothing_in_it_is_no_mistake(
    pytester: pytest.Pytester, workers: tuple[str, ...]
) -> None:
    if workers:
        pytest.importorskip("xdist")
    pytester.makepyfile(
        """
        import pytest
        from pytest_resume_audit import FuturesCollector

        @pytest.mark.resume_audit(FuturesCollector, timelines=["clean", "mid-flight"])
        def test_x(resume_audit):
            resume_audit()
        """
    )
    for part, ran in (("1/3", 1), ("2/3", 1), ("3/3", 0)):
        result = pytester.runpytest_subprocess(f"--resume-audit-shard={part}", *workers)
        assert result.ret == pytest.ExitCode.OK
        result.assert_outcomes(passed=ran, deselected=0 if workers else 2 - ran)
    result = pytester.runpytest_subprocess(
        "--resume-audit-shard=3/3", "--resume-audit-require=1", *workers
    )
    assert result.ret == pytest.ExitCode.TESTS_FAILED


@pytest.mark.usefixtures("source")
def test_what_is_in_another_shard_is_deselected(pytester: pytest.Pytester) -> None:
    here = len(collected(pytester, "--resume-audit-shard=2/2"))
    result = pytester.runpytest("--resume-audit-shard=2/2")
    result.assert_outcomes(passed=here, deselected=20 - here)
    result.stdout.fnmatch_lines(["resume-audit: shard 2/2"])


@pytest.mark.usefixtures("source")
def test_named_timelines_come_first_then_a_seeded_sample(pytester: pytest.Pytester) -> None:
    by_name = ["test_x[clean]", "test_x[mid-flight]", "test_y[clean]", "test_y[mid-flight]"]
    by_name += ["test_z[own]"]
    orders = set()
    for seed in (0, 1, 2):
        options = ("--resume-audit-budget=1h", f"--resume-audit-seed={seed}")
        order = collected(pytester, *options)
        # Tests without a marker stay where they are.
        assert [order[0], order[9], order[-1]] == ["test_before", "test_between", "test_after"]
        audits = [one for one in order if "[" in one]
        assert audits[:5] == by_name
        assert len(set(audits)) == 17
        assert collected(pytester, *options) == order
        orders.add(tuple(audits[5:]))
        expected = seeded([f"test_it.py::{one}" for one in sorted(audits[5:])], seed)
        assert [f"test_it.py::{one}" for one in audits[5:]] == expected
    assert len(orders) == 3


def test_some_of_a_matrix_are_sampled_too(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_it="""
        import pytest
        from dataclasses import replace
        from pytest_resume_audit import FrontierCollector
        from pytest_resume_audit.catalogue import NAMED

        NAMES = ("clean", "mid-flight")
        GENERATED = [replace(NAMED["clean"], name=f"even-ordered-{n}") for n in range(6)]
        SIZES_IT_HAS = (*(NAMED[name] for name in NAMES), *GENERATED)

        @pytest.mark.resume_audit(FrontierCollector, timelines=SIZES_IT_HAS)
        def test_x(resume_audit):
            resume_audit()
        """
    )
    order = collected(pytester, "--resume-audit-budget=1h")
    assert order[:2] == ["test_x[clean]", "test_x[mid-flight]"]
    sampled = [f"test_it.py::{one}" for one in order[2:]]
    assert len(sampled) == 6
    assert sampled == seeded(sorted(sampled), 0) != sorted(sampled)


@pytest.mark.usefixtures("source")
def test_no_other_order_undoes_that_of_a_budget(pytester: pytest.Pytester) -> None:
    pytest.importorskip("pytest_randomly")

    def audits(*options: str) -> list[str]:
        result = pytester.runpytest(
            "--collect-only", "-q", "--resume-audit-budget=1h", "-p", "randomly", *options
        )
        order = [line for line in result.outlines if "::" in line and "[" in line]
        return [one for one in order if "[g" in one]

    assert audits("-p", "randomly", "--randomly-seed=1") == audits("--randomly-seed=2")


@pytest.mark.usefixtures("source", "ticks")
def test_what_does_not_fit_is_not_run_and_says_so(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest("--resume-audit-budget=7s", "-rs", "-p", "no:randomly")
    # Each audit takes a second: seven are run, the others and no other test are skipped.
    result.assert_outcomes(passed=3 + 7, skipped=10)
    result.stdout.fnmatch_lines(
        [
            "resume-audit: budget 7s, seed 0",
            "*= resume audit =*",
            "budget 7s, seed 0: 7 of 17 timelines",
            "SKIPPED [[]*[]] test_it.py:*: not run: the budget of 7s was spent",
        ]
    )
    assert "session.py" not in result.stdout.str()
    table = {
        line.split()[-1].partition("::")[2]: line.split()[:-1]
        for line in result.outlines
        if line.endswith(("::test_x", "::test_y", "::test_z")) and line.startswith(" ")
    }
    assert {name: len(row) for name, row in table.items()} == dict.fromkeys(
        ("test_x", "test_y", "test_z"), 4
    )
    # run, lossless, lossy, not run
    assert sum(int(row[0]) for row in table.values()) == 7
    assert sum(int(row[3]) for row in table.values()) == 10
    assert table["test_z"] == ["1", "1", "0", "0"]


@pytest.mark.usefixtures("source", "ticks")
def test_a_budget_that_is_never_spent_runs_all(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest("--resume-audit-budget=1h")
    result.assert_outcomes(passed=20)
    result.stdout.fnmatch_lines(["budget 1h, seed 0: 17 of 17 timelines"])


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("--resume-audit-budget=20", "--resume-audit-budget: '20' is no time above 0: allowed"),
        ("--resume-audit-shard=9/8", "--resume-audit-shard: '9/8' is no shard: allowed are"),
        ("--resume-audit-seed=x", "invalid int value: 'x'"),
    ],
)
def test_wrong_options(option: str, said: str, pytester: pytest.Pytester) -> None:
    result = pytester.runpytest(option)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert said in result.stderr.str()


def test_a_sample_and_a_shard_are_the_same_in_every_worker(pytester: pytest.Pytester) -> None:
    pytest.importorskip("xdist", reason="pytest-xdist is not installed")
    pytester.makepyfile(test_it=SOURCE.replace('"nightly"', '"smoke"'))
    result = pytester.runpytest_subprocess(
        "-n2",
        "--dist=worksteal",
        "--resume-audit-matrix=smoke",
        "--resume-audit-budget=1h",
        "--resume-audit-seed=3",
        "--resume-audit-shard=1/4",
    )
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["resume-audit: matrix smoke, shard 1/4, budget 1h, seed 3"])
    (line,) = (line for line in result.outlines if line.startswith("budget 1h, seed 3: "))
    ran, _, of = line.removeprefix("budget 1h, seed 3: ").removesuffix(" timelines").split()
    assert ran == of
    assert 0 < int(of) < 41
