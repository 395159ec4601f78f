"""What the command reads in ledgers and logs; what it should say is worked out by hand."""

from __future__ import annotations

import gzip
import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import pytest

pytest.importorskip("click")
pytest.importorskip("rich")
duckdb = pytest.importorskip("duckdb")

from test_process_life import wait_until  # noqa: E402

from pytest_resume_audit import cli  # noqa: E402
from pytest_resume_audit.real_runs import moments  # noqa: E402
from pytest_resume_audit.real_runs.database import Database  # noqa: E402

Line = tuple[str, dict[str, Any]]
SECOND = 10**9
ROOT = Path(__file__).parents[1]


# --- lines of a ledger ---------------------------------------------------------------------------


def handed_out(*rows: int) -> Line:
    return "handed_out", {"rows": list(rows)}


def finished(row: int, generation: int = 0, length: int | None = None) -> Line:
    more = {} if length is None else {"length": length}
    return "finished", {"row": row, "generation": generation, **more}


def buffered(row: int, generation: int = 0) -> Line:
    return "buffered", {"row": row, "generation": generation}


def trained(step: int | None, *rows: int, generations: Iterable[int] | None = None) -> Line:
    words: dict[str, Any] = {"rows": list(rows)}
    if generations is not None:
        words["generations"] = list(generations)
    if step is not None:
        words["step"] = step
    return "trained", words


def save(name: str) -> list[Line]:
    return [("saving", {"text": name}), ("saved", {"text": name})]


def restored(name: str) -> Line:
    return "restored", {"text": name}


ENDED: Line = ("ended", {"text": ""})


class Ledgers:
    """Writes ledgers by hand, one life behind the other, a second a line."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.now = 1000 * SECOND

    def write(
        self, *events: Line | list[Line], name: str = "", at: int | None = None, **header: Any
    ) -> Path:
        number = len(list(self.directory.iterdir()))
        path = self.directory / (name or f"life-{number}.jsonl")
        now = self.now if at is None else at
        jump = header.pop("jump", 0)
        head = {
            "ledger": 1,
            "complete": True,
            "id": path.stem,
            "run": "",
            "host": "node",
            "boot": "boot",
            "pid": number,
            "rank": None,
            "parent": None,
            "wall": now + 10**18,
            "mono": now,
        }
        lines = [json.dumps({**head, **header})]
        for event in events:
            for kind, words in event if isinstance(event, list) else [event]:
                now += SECOND
                clocks = {"wall": now + 10**18 + jump, "mono": now}
                lines.append(json.dumps({"event": kind, **words, **clocks}))
        path.write_text("\n".join(lines) + "\n")
        self.now = max(self.now, now + SECOND)
        return path


@pytest.fixture
def ledgers(tmp_path: Path) -> Ledgers:
    directory = tmp_path / "ledgers"
    directory.mkdir()
    return Ledgers(directory)


class Ask:
    """Asks the command, and gives its exit code and what it has said."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys = capsys

    def __call__(self, *words: object) -> tuple[int, dict[str, Any]]:
        code = cli.run(["ledger", *map(str, words), "--json"])
        out, err = self.capsys.readouterr()
        return code, json.loads(out) if out else {"error": err}

    def text(self, *words: object) -> tuple[int, str]:
        code = cli.run(["ledger", *map(str, words)])
        return code, self.capsys.readouterr().out


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str]) -> Ask:
    return Ask(capsys)


def causes(losses: list[dict[str, Any]]) -> dict[str, list[int]]:
    assert all(loss["prompts"] == len(loss["named"]) for loss in losses)
    return {loss["cause"]: loss["named"] for loss in losses}


# --- the case that names the project --------------------------------------------------------------

# 0-3 are trained; 4, 6, 7, 10 wait in the buffer; 5, 8, 9, 11 are in flight; the loader is at 12.
BEFORE: list[Line] = [
    handed_out(0, 1, 2, 3),
    *(line for row in range(4) for line in (finished(row), buffered(row))),
    handed_out(4, 5, 6, 7),
    trained(1, 0, 1, 2, 3),
    handed_out(8, 9, 10, 11),
    *(line for row in (4, 6, 7, 10) for line in (finished(row), buffered(row))),
    *save("step-1"),
]


def old_way(ledgers: Ledgers) -> None:
    ledgers.write(*BEFORE)
    ledgers.write(
        restored("step-1"),
        *map(buffered, (4, 6, 7, 10)),
        handed_out(12, 13, 14, 15),
        trained(2, 4, 6, 7, 10),
        *map(finished, (12, 13, 14, 15)),
        trained(3, 12, 13, 14, 15),
    )


def new_way(ledgers: Ledgers) -> None:
    ledgers.write(*BEFORE)
    ledgers.write(
        restored("step-1"),
        *map(buffered, (4, 6, 7, 10)),
        handed_out(4, 5, 6, 7),
        handed_out(8, 9, 10, 11),
        handed_out(12, 13, 14, 15),
        trained(2, 4, 6, 7, 10),
        *map(finished, (5, 8, 9, 11, 12, 13, 14, 15)),
        trained(3, 5, 8, 9, 11),
        trained(4, 12, 13, 14, 15),
    )


def test_the_old_way_loses_what_is_in_flight(ledgers, ask):
    old_way(ledgers)
    code, said = ask(ledgers.directory)
    assert (code, said["verdict"]) == (1, "lossy")
    assert said["headline"] == "lossy: of 16 prompts 4 skipped"
    assert causes(said["skipped"]) == {
        "in flight at the save of life 1 at step 1, and never again from life 2 on": [5, 8, 9, 11]
    }
    assert (said["prompts"], said["trained"], said["open"]) == (16, 12, 0)
    (restart,) = said["restarts"]
    assert (restart["place"], restart["goes_on_at"], restart["steps"]) == (12, 12, 0)


def test_the_new_way_loses_nothing(ledgers, ask):
    new_way(ledgers)
    code, said = ask(ledgers.directory)
    assert (code, said["verdict"]) == (0, "lossless")
    assert (said["prompts"], said["trained"], said["skipped"]) == (16, 16, [])
    assert (said["restarts"][0]["place"], said["restarts"][0]["goes_on_at"]) == (12, 4)
    assert (said["answered_again"], said["rolled_back"]) == (0, 0)


def test_it_is_said_in_a_terminal_too(ledgers, ask):
    old_way(ledgers)
    code, text = ask.text(ledgers.directory)
    assert code == 1
    assert text.startswith("lossy: of 16 prompts 4 skipped\n")
    assert "5, 8, 9, 11" in text
    assert "in flight at the save of life 1 at step 1" in " ".join(text.split())


def test_the_readme_shows_what_is_printed(ledgers, ask, monkeypatch):
    old_way(ledgers)
    monkeypatch.setenv("COLUMNS", "100")
    _, text = ask.text(ledgers.directory)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = readme.split("$ resume-audit ledger ledgers/\n")[1].split("```")[0]
    assert [line.rstrip() for line in text.splitlines()][: len(shown.splitlines())] == (
        shown.splitlines()
    )


def test_a_buffer_that_is_not_loaded(ledgers, ask):
    ledgers.write(*BEFORE)
    ledgers.write(restored("step-1"), handed_out(12, 13), trained(2, 12, 13))
    _, said = ask(ledgers.directory)
    # 14 and 15 were never handed out: nothing tells that they are there.
    assert said["prompts"] == 14
    again = "and never again from life 2 on"
    assert causes(said["skipped"]) == {
        f"in flight at the save of life 1 at step 1, {again}": [5, 8, 9, 11],
        f"in the buffer at the save of life 1 at step 1, {again}": [4, 6, 7, 10],
    }


def test_finished_and_in_no_buffer(ledgers, ask):
    ledgers.write(handed_out(0, 1), trained(1, 0), finished(1), save("a"))
    ledgers.write(restored("a"), handed_out(2), trained(2, 2))
    _, said = ask(ledgers.directory)
    assert causes(said["skipped"]) == {
        "finished at the save of life 1 at step 1, and never again from life 2 on": [1]
    }


def test_what_is_handed_out_behind_the_save_is_no_loss_where_it_comes_again(ledgers, ask):
    after = [handed_out(2, 3), trained(2, 2), handed_out(4, 5)]
    ledgers.write(handed_out(0, 1), trained(1, 0, 1), save("a"), *after)
    ledgers.write(restored("a"), handed_out(2, 3), handed_out(4, 5), trained(2, 2, 3, 4, 5))
    code, said = ask(ledgers.directory)
    assert (code, said["skipped"], said["duplicated"]) == (0, [], [])
    (restart,) = said["restarts"]
    assert (restart["step"], restart["reached"], restart["steps"]) == (1, 2, 1)
    assert (restart["trainings"], said["rolled_back"]) == (1, 1)
    # From `saving` to the last line: saved, and three more.
    assert restart["seconds"] == 4


def test_what_is_handed_out_behind_the_save_and_never_again(ledgers, ask):
    after = [handed_out(2, 3), trained(2, 2), handed_out(4, 5)]
    ledgers.write(handed_out(0, 1), trained(1, 0, 1), save("a"), *after)
    ledgers.write(restored("a"), handed_out(4, 5), trained(2, 4, 5))
    code, said = ask(ledgers.directory)
    assert code == 1
    assert causes(said["skipped"]) == {
        "handed out between the save of life 1 at step 1 and its crash, and life 2 has gone on "
        "behind it": [2, 3]
    }
    # 2 was trained, in a step that was rolled back.
    assert said["skipped"][0]["rolled_back"] == 1
    assert (said["prompts"], said["restarts"][0]["goes_on_at"]) == (6, 4)


def test_trained_twice(ledgers, ask):
    ledgers.write(handed_out(0, 1, 2, 3), trained(1, 0, 1), save("a"))
    ledgers.write(restored("a"), handed_out(0, 1, 2, 3), trained(2, 0, 2, 3), trained(3, 3))
    code, said = ask(ledgers.directory)
    assert (code, said["headline"]) == (1, "lossy: of 4 prompts 2 trained twice")
    assert causes(said["duplicated"]) == {
        "trained in life 1 and again in life 2": [0],
        "trained again in life 2": [3],
    }


def test_what_is_still_out_is_open_until_the_run_has_ended(ledgers, ask):
    events = [handed_out(0, 1, 2), trained(1, 0), buffered(1)]
    path = ledgers.write(*events)
    code, said = ask(path)
    assert (code, said["open"], said["skipped"]) == (0, 2, [])
    assert said["headline"] == "lossless: 1 of 3 prompts trained; 2 still out"
    left = {"in flight when the training has ended": [2]}
    left |= {"in the buffer when the training has ended": [1]}
    code, said = ask(path, "--complete")
    assert (code, said["open"], causes(said["skipped"])) == (1, 0, left)
    _, said = ask(ledgers.write(*events, ENDED, name="other.jsonl"))
    assert (said["open"], causes(said["skipped"])) == (0, left)
    _, said = ask(path, "--prompts", 4)
    assert causes(said["skipped"]) == {**left, "never handed out": [3]}


def test_a_life_that_has_not_handed_out_anything_yet_has_lost_nothing(ledgers, ask):
    ledgers.write(*BEFORE)
    ledgers.write(restored("step-1"))
    code, said = ask(ledgers.directory)
    assert (code, said["skipped"], said["open"]) == (0, [], 8)


def test_dropped_and_failed_are_no_loss_and_without_a_reason_it_is_one(ledgers, ask):
    ledgers.write(
        handed_out(0, 1, 2, 3),
        ("dropped", {"row": 1, "text": "too long"}),
        ("dropped", {"row": 2, "text": ""}),
        ("failed", {"row": 3, "generation": 0}),
        trained(1, 0),
        save("a"),
    )
    ledgers.write(restored("a"), handed_out(4), trained(2, 4))
    code, said = ask(ledgers.directory)
    assert (code, said["failed"], causes(said["dropped"])) == (1, 1, {"too long": [1]})
    assert causes(said["skipped"]) == {
        "dropped without a reason before the save of life 1 at step 1": [2]
    }


# --- passes, groups, ranks ------------------------------------------------------------------------


def test_passes_are_counted_by_what_the_loader_hands_out(ledgers, ask):
    ledgers.write(
        *[handed_out(0, 1), handed_out(2, 3), trained(1, 0, 1, 2, 3)],
        *[handed_out(3, 1), trained(2, 3), *save("a")],
    )
    # 1 is in flight in the second pass, and handed out once more.
    ledgers.write(restored("a"), handed_out(1), handed_out(2, 0), trained(3, 1, 2, 0))
    code, said = ask(ledgers.directory)
    assert (code, said["prompts"], said["trained"]) == (0, 8, 8)
    assert (said["restarts"][0]["place"], said["restarts"][0]["goes_on_at"]) == (6, 5)


def test_a_pass_that_is_lost_is_seen_though_the_row_was_trained_before(ledgers, ask):
    ledgers.write(
        *[handed_out(0, 1), handed_out(2, 3), trained(1, 0, 1, 2, 3)],
        *[handed_out(3, 1), trained(2, 3), *save("a")],
    )
    ledgers.write(restored("a"), handed_out(2, 0), trained(3, 2, 0))
    code, said = ask(ledgers.directory)
    assert (code, said["prompts"], said["trained"]) == (1, 8, 7)
    assert causes(said["skipped"]) == {
        "in flight at the save of life 1 at step 2, and never again from life 2 on": [1]
    }


def test_passes_in_one_order(ledgers, ask):
    """Where the order is the same in each pass, a whole pass back is the next pass."""
    ledgers.write(handed_out(0, 1, 2, 3), trained(1, 0, 1, 2, 3), save("a"))
    ledgers.write(restored("a"), handed_out(0, 1, 2, 3), trained(2, 0, 1, 2, 3))
    code, said = ask(ledgers.directory)
    assert (code, said["prompts"], said["restarts"][0]["goes_on_at"]) == (0, 8, 4)


def test_a_pass_again_or_the_next_one(ledgers, ask):
    events = [handed_out(0, 1), handed_out(2, 3), trained(1, 0, 1), *save("a")]
    ledgers.write(*events)
    ledgers.write(restored("a"), handed_out(0, 1), handed_out(2, 3), trained(2, 2, 3))
    code, said = ask(ledgers.directory)
    assert (code, said["skipped"]) == (3, None)
    assert "the next pass, or this one again" in said["headline"]


def test_answers_of_a_group_are_one_training(ledgers, ask):
    ledgers.write(handed_out(0, 1), trained(1, 0, 0, 1, 1), trained(None, 1))
    _, said = ask(ledgers.directory)
    assert causes(said["duplicated"]) == {"trained again in life 1": [1]}


def test_parts_of_a_group_are_the_group_when_all_are_there(ledgers, ask):
    ledgers.write(
        handed_out(0, 1),
        trained(1, 0, 0, 1, generations=(0, 1, 0)),
        trained(2, 1, generations=(1,)),
    )
    assert ask(ledgers.directory)[0] == 0
    ledgers.write(
        *[handed_out(0, 1), trained(1, 0, 0, 1, generations=(0, 1, 0)), ENDED],
        name="in-part.jsonl",
    )
    _, said = ask(ledgers.directory / "in-part.jsonl")
    assert causes(said["skipped"]) == {
        "in flight when the training has ended, and trained in part": [1]
    }


def test_ranks_are_one_life(ledgers, ask):
    begin = ledgers.now
    ledgers.write(handed_out(0, 1), trained(1, 0, 1), save("a"), trained(2, 9), rank=0, at=begin)
    # It reports its share of step 1 before, and of step 2 before rank 0 saves.
    ledgers.write(handed_out(8, 9), trained(1, 8), trained(2, 1), rank=1, at=begin)
    begin = ledgers.now
    ledgers.write(restored("a"), trained(2, 9), rank=0, at=begin)
    ledgers.write(restored("a"), trained(2, 9), rank=1, at=begin)
    code, said = ask(ledgers.directory)
    assert (code, said["lives"], said["duplicated"]) == (0, 2, [])
    assert (said["prompts"], said["trained"], said["open"]) == (4, 3 + 1, 0)


def test_a_process_that_goes_back_by_itself_begins_a_life(ledgers, ask):
    ledgers.write(
        *[handed_out(0, 1), trained(1, 0), *save("a"), trained(2, 1)],
        *[restored("a"), handed_out(2), trained(2, 2)],
    )
    code, said = ask(ledgers.directory)
    assert (code, said["lives"]) == (1, 2)
    assert causes(said["skipped"]) == {
        "in flight at the save of life 1 at step 1, and never again from life 2 on": [1]
    }


def test_how_long_a_process_was_at_work_before_it_went_back_is_told_by_its_answers(ledgers, ask):
    # So many answers that they are found by looking about where they must be.
    answers = [finished(row % 2, generation=row) for row in range(3000)]
    path = ledgers.write(
        *[handed_out(0, 1), trained(1, 0), *save("a"), *answers],
        *[restored("a"), handed_out(1), *answers, trained(2, 1)],
    )
    assert path.stat().st_size > 1 << 18
    _, said = ask(path)
    # From `saving` on: saved, and the answers.
    assert (said["restarts"][0]["seconds"], said["events"]) == (1 + 3000, 4 + 3000 + 2 + 3000 + 1)
    begin = 1000 * SECOND
    assert moments.first(path) == begin + SECOND
    assert moments.last(path) == begin + 6007 * SECOND
    for second in (2, 3, 5, 700, 2999, 3000, 4500, 6006, 6007):
        assert moments.last(path, begin + second * SECOND) == begin + (second - 1) * SECOND
    assert moments.last(path, begin + SECOND) is None


def test_a_restart_from_an_older_save_rolls_lives_back(ledgers, ask):
    ledgers.write(handed_out(0, 1), trained(1, 0), save("a"))
    ledgers.write(restored("a"), handed_out(1, 2), trained(2, 1), save("b"), trained(3, 2))
    ledgers.write(restored("b"), trained(3, 2))
    ledgers.write(restored("a"), handed_out(1, 2), trained(2, 1), trained(3, 2))
    code, said = ask(ledgers.directory)
    assert (code, said["lives"], said["trained"]) == (0, 4, 3)
    assert [one["trainings"] for one in said["restarts"]] == [0, 1, 2]
    assert [one["of_life"] for one in said["restarts"]] == [1, 2, 1]


# --- waste, and length ----------------------------------------------------------------------------


def test_answers_made_again_are_waste(ledgers, ask):
    ledgers.write(handed_out(0, 1), finished(0), finished(1), trained(1, 0), save("a"))
    ledgers.write(restored("a"), handed_out(0, 1), finished(1), trained(2, 1))
    _, said = ask(ledgers.directory)
    assert (said["answered_again"], said["verdict"]) == (1, "lossless")


@pytest.mark.parametrize(
    ("length", "word"),
    [(900, "long answers are lost: 900 tokens in the mean, the others 50"), (50, "no sign")],
)
def test_whether_it_is_long_answers_that_are_lost(ledgers, ask, length, word):
    many = range(60)
    lost = range(0, 60, 6)
    ledgers.write(
        handed_out(*many),
        *(finished(row, length=50) for row in many if row not in lost),
        trained(1, *(row for row in many if row not in lost)),
        save("a"),
        *(finished(row, length=length) for row in lost),
    )
    ledgers.write(restored("a"), handed_out(60), trained(2, 60))
    _, said = ask(ledgers.directory)
    assert said["skipped"][0]["named"] == list(lost)
    assert said["bias"].startswith(word)


def test_without_lengths_it_is_not_known(ledgers, ask):
    old_way(ledgers)
    assert ask(ledgers.directory)[1]["bias"].startswith("undetermined")


# --- what is wrong with files ---------------------------------------------------------------------


def test_a_torn_last_line_is_passed_over(ledgers, ask):
    new_way(ledgers)
    path = ledgers.directory / "life-0.jsonl"
    path.write_bytes(path.read_bytes() + b'{"event": "trained", "ro')
    code, said = ask(ledgers.directory)
    assert (code, said["notes"]) == (
        0,
        [f"{path}: the last line was cut short, and is passed over"],
    )


def test_other_lines_that_cannot_be_read_make_it_undetermined(ledgers, ask):
    new_way(ledgers)
    path = ledgers.directory / "life-0.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:4], "\0\0", '{"event": "unheard of"}', *lines[4:]]) + "\n")
    code, said = ask(ledgers.directory)
    assert (code, said["doubts"]) == (3, [f"{path}: lines that can't be read: 2"])
    assert (said["skipped"], said["open"], said["trained"]) == (None, None, None)


def test_a_ledger_in_which_nothing_has_happened(ledgers, ask):
    path = ledgers.write()
    code, said = ask(path)
    assert (code, said["events"]) == (3, 0)
    assert said["headline"] == "undetermined: nothing has happened yet, by these ledgers"


@pytest.mark.parametrize("separator", [": ", ":"])
def test_answers_without_a_time_cannot_be_read_however_they_are_written(ledgers, ask, separator):
    new_way(ledgers)
    path = ledgers.directory / "life-1.jsonl"
    words = {"event": "finished", "row": 3, "generation": 0}
    line = json.dumps({**words, "wall": 10**18}, separators=(", ", separator))
    whole = json.dumps({**words, "generation": 1, "mono": 1014 * SECOND}, separators=(",", ":"))
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:4], line, whole, *lines[4:]]) + "\n")
    code, said = ask(ledgers.directory)
    assert (code, said["doubts"]) == (3, [f"{path}: lines that can't be read: 1"])


def test_an_incomplete_ledger_makes_it_undetermined(ledgers, ask):
    ledgers.write(handed_out(0), trained(1, 0), complete=False)
    code, said = ask(ledgers.directory)
    assert code == 3
    assert "is incomplete" in said["headline"]


@pytest.mark.parametrize(
    ("header", "word"),
    [
        ({"ledger": 2}, "is a ledger of format 2, and this version reads 1"),
        ({"ledger": None}, "has no header"),
        ({"mono": None}, "undetermined"),
    ],
)
def test_headers_of_another_kind(ledgers, ask, header, word):
    new_way(ledgers)
    path = ledgers.write(trained(7, 7), name="odd.jsonl")
    first, *rest = path.read_text().splitlines()
    words = {**json.loads(first), **header}
    words = {key: value for key, value in words.items() if value is not None or key in ("run",)}
    if header.get("ledger", 1) is None:
        words["event"] = "odd"
    path.write_text("\n".join([json.dumps(words), *rest]) + "\n")
    code, said = ask(ledgers.directory)
    assert code == 3
    assert word in said["headline"]


def test_an_empty_file_and_the_same_file_twice(ledgers, ask):
    new_way(ledgers)
    (ledgers.directory / "empty.jsonl").write_text("")
    one = ledgers.directory / "life-0.jsonl"
    copy = ledgers.directory / "copy.jsonl"
    copy.write_bytes(one.read_bytes()[:-50])
    code, said = ask(ledgers.directory, one)
    assert code == 0
    assert sorted(said["notes"]) == sorted(
        [
            f"{ledgers.directory / 'empty.jsonl'} is empty: passed over",
            f"{one} is {one} again: read once",
            f"{copy} is a copy of {one}: read once",
        ]
    )


def test_two_runs_by_name(ledgers, ask):
    ledgers.write(handed_out(0), trained(1, 0), run="a")
    ledgers.write(handed_out(0), trained(1, 0), run="b")
    code, said = ask(ledgers.directory)
    assert (code, said["error"].count("\n")) == (2, 1)
    assert "ledgers of several runs (a, b): ask about one with --run a" in said["error"]
    assert ask(ledgers.directory, "--run", "b")[0] == 0
    code, said = ask(ledgers.directory, "--run", "c")
    assert (code, "there is a, b" in said["error"]) == (2, True)


def test_two_runs_at_once_without_a_name(ledgers, ask):
    begin = ledgers.now
    ledgers.write(handed_out(0), trained(1, 0), save("a"), at=begin)
    ledgers.write(handed_out(0), trained(1, 0), save("a"), at=begin)
    code, said = ask(ledgers.directory)
    assert code == 3
    assert "were written at the same time" in said["headline"]
    assert "RESUME_AUDIT_RUN" in said["headline"]


def test_two_runs_one_after_the_other_without_a_name(ledgers, ask):
    ledgers.write(handed_out(0, 1), trained(1, 0), save("a"), trained(2, 1))
    ledgers.write(handed_out(0, 1), trained(1, 0, 1))
    code, said = ask(ledgers.directory)
    # Whatever they are, the weights are those of the second.
    assert (code, said["prompts"], said["rolled_back"]) == (0, 2, 2)
    assert "life 2 has begun afresh" in said["notes"][0]


def test_a_run_behind_the_end_of_another(ledgers, ask):
    ledgers.write(handed_out(0, 1), trained(1, 0), save("a"), ENDED)
    ledgers.write(handed_out(0, 1), trained(1, 0, 1), ENDED)
    code, said = ask(ledgers.directory)
    assert (code, said["skipped"], said["trained"]) == (3, None, None)
    assert "life 1 has said that the training is over, and life 2 begins" in said["headline"]
    assert ask(ledgers.directory / "life-0.jsonl")[1]["skipped"][0]["named"] == [1]
    assert ask(ledgers.directory, "--restarts", 0)[0] == 0


def test_a_missing_restart_is_asked_for(ledgers, ask):
    ledgers.write(handed_out(0, 1), trained(1, 0), save("a"), trained(2, 1))
    ledgers.write(handed_out(2, 3), trained(2, 2, 3))
    code, said = ask(ledgers.directory)
    assert code == 3
    assert (
        "life 2 doesn't say what it has gone on from, and its first step is 2" in (said["headline"])
    )
    assert said["skipped"] is None
    code, said = ask(ledgers.directory, "--restarts", 1)
    assert (code, said["skipped"][0]["named"]) == (1, [1])
    code, said = ask(ledgers.directory, "--restarts", 5)
    assert (code, "there are saves at 1" in said["error"]) == (2, True)
    code, said = ask(ledgers.directory, "--restarts", "1,1")
    assert (code, "there are 2 lives, so 1 restarts" in said["error"]) == (2, True)


def test_a_missing_life_is_asked_for(ledgers, ask):
    ledgers.write(handed_out(0, 1), trained(1, 0, 1), save("a"))
    ledgers.write(restored("b"), handed_out(4), trained(3, 4))
    code, said = ask(ledgers.directory)
    assert code == 3
    assert "life 2 has gone on from b, which none of these ledgers has saved" in said["headline"]


def test_a_beginning_that_is_not_there(ledgers, ask):
    ledgers.write(restored("z"), handed_out(4), trained(3, 4))
    code, said = ask(ledgers.directory)
    assert (code, said["skipped"]) == (3, None)
    assert "the first life has gone on from z" in said["headline"]


def test_what_a_life_without_its_beginning_hands_out_may_be_trained_already(ledgers, ask):
    # Of this run nothing is lost: 0 to 3 were trained in the life that is not there.
    new_way(ledgers)
    (ledgers.directory / "life-0.jsonl").unlink()
    ledgers.write(restored("step-1"), handed_out(0, 1, 2, 3), trained(2, 4))
    code, said = ask(ledgers.directory, "--complete")
    assert (code, said["verdict"], said["skipped"]) == (3, "undetermined", None)


def test_a_save_that_nobody_has_called_complete(ledgers, ask):
    ledgers.write(handed_out(0, 1), trained(1, 0, 1), save("a")[:1])
    ledgers.write(restored("a"), handed_out(2), trained(2, 2))
    code, said = ask(ledgers.directory)
    assert (code, "no ledger says that it was complete" in said["notes"][0]) == (0, True)


def test_a_clock_that_jumps(ledgers, ask):
    ledgers.write(handed_out(0), trained(1, 0), save("a"), jump=-3600 * SECOND)
    ledgers.write(restored("a"), handed_out(1), trained(2, 1))
    code, said = ask(ledgers.directory)
    assert code == 0
    assert "the wall clock has jumped" in said["notes"][0]
    ledgers.write(restored("a"), handed_out(1), trained(2, 1), boot="another")
    code, said = ask(ledgers.directory)
    assert code == 3
    assert "the wall clock has jumped" in said["headline"]


def test_a_training_that_nobody_handed_out(ledgers, ask):
    ledgers.write(handed_out(0), trained(1, 0, 7))
    code, said = ask(ledgers.directory)
    assert (code, said["skipped"]) == (3, None)
    assert "trained, and by no ledger handed out: 1" in said["headline"]


def test_another_order_after_a_restart(ledgers, ask):
    ledgers.write(handed_out(0, 1, 2), trained(1, 0, 1), save("a"), handed_out(3, 4))
    ledgers.write(restored("a"), handed_out(9, 2), trained(2, 9, 2))
    code, said = ask(ledgers.directory)
    assert (code, said["skipped"]) == (3, None)
    assert "in another order" in said["headline"]


def test_what_is_only_trained_is_judged_against_a_number(ledgers, ask):
    ledgers.write(trained(1, 0, 1), save("a"), trained(2, 2))
    ledgers.write(restored("a"), trained(2, 3))
    code, said = ask(ledgers.directory)
    assert (code, said["skipped"], said["duplicated"]) == (3, None, [])
    code, said = ask(ledgers.directory, "--prompts", 5)
    assert code == 1
    assert causes(said["skipped"]) == {
        "trained in steps that a restart has taken back, and not again": [2],
        "never seen": [4],
    }


# --- logs that people have ------------------------------------------------------------------------

# Two answers a prompt. After step 3 it goes back to the save of step 1, trains 1 once more, and 4
# never again.
LOG = [
    *[(1, 0), (1, 0), (1, 1), (1, 1), (2, 2), (2, 2), (2, 3), (2, 3), (3, 4), (3, 4)],
    *[(2, 2), (2, 2), (2, 3), (2, 3), (2, 1), (2, 1), (3, 5), (3, 5)],
]


def log(path: Path, rows: Iterable[tuple[Any, ...]], columns: str = "step, uid") -> Path:
    rows = list(rows)
    marks = ", ".join(str(row) for row in rows)
    written = {".csv": "FORMAT csv, HEADER", ".parquet": "FORMAT parquet", ".jsonl": "FORMAT json"}
    duckdb.connect().execute(
        f"COPY (SELECT * FROM (VALUES {marks}) t({columns})) TO '{path}' ({written[path.suffix]})"
    )
    return path


@pytest.mark.parametrize("kind", ["csv", "parquet", "jsonl"])
def test_a_log_with_a_restart(tmp_path, ask, kind):
    path = log(tmp_path / f"log.{kind}", LOG)
    columns = ("--key", "uid", "--step", "step")
    code, said = ask(path, *columns, "--prompts", 7)
    assert code == 1
    assert causes(said["skipped"]) == {
        "trained in steps that a restart has taken back, and not again": [4],
        "never seen": [6],
    }
    assert causes(said["duplicated"]) == {"trained in life 1 and again in life 2": [1]}
    (restart,) = said["restarts"]
    assert (restart["step"], restart["reached"], restart["steps"]) == (1, 3, 2)
    assert (said["rolled_back"], said["events"]) == (3, 18)
    # How many there should be is not said: then only what is twice is known.
    code, said = ask(path, *columns)
    assert (code, said["skipped"], said["prompts"]) == (1, None, None)
    code, said = ask(log(tmp_path / f"once.{kind}", LOG[:10]), *columns)
    assert (code, said["skipped"], said["duplicated"]) == (3, None, [])
    assert "what was to be trained is not known" in said["headline"]
    assert ask(tmp_path / f"once.{kind}", *columns, "--prompts", 5)[0] == 0


def test_keys_that_were_to_be_trained(tmp_path, ask):
    path = log(tmp_path / "log.csv", [(1, "a"), (1, "b")])
    keys = log(tmp_path / "keys.csv", [("a",), ("b",), ("c",)], "uid")
    code, said = ask(path, "--key", "uid", "--step", "step", "--keys", keys)
    assert (code, causes(said["skipped"])) == (1, {"never seen": ["c"]})
    code, said = ask(path, "--key", "uid", "--step", "step", "--prompts", 3)
    assert (code, said["skipped"][0]["prompts"], said["skipped"][0]["named"]) == (1, 1, [])
    code, said = ask(path, "--key", "uid", "--step", "step", "--prompts", 1)
    assert (code, "there are 2 of them" in said["error"]) == (2, True)


def test_restarts_of_a_log_are_said_or_seen(tmp_path, ask):
    path = log(tmp_path / "log.csv", [(10, 0), (20, 1), (30, 2), (30, 1), (40, 3)])
    columns = ("--key", "uid", "--step", "step", "--prompts", 4)
    # Nothing goes down.
    assert causes(ask(path, *columns)[1]["duplicated"]) == {"trained again in life 1": [1]}
    path = log(tmp_path / "down.csv", [(10, 0), (20, 1), (30, 2), (20, 2), (30, 1), (40, 3)])
    assert ask(path, *columns)[0] == 0
    assert ask(path, *columns, "--restarts", 10)[0] == 0
    code, said = ask(path, *columns, "--restarts", "none")
    assert (code, said["duplicated"][0]["named"]) == (1, [1, 2])
    # From 5 on 0 was rolled back too.
    code, said = ask(path, *columns, "--restarts", 5)
    assert (code, said["skipped"][0]["named"]) == (1, [0])
    code, said = ask(path, *columns, "--restarts", 25)
    assert (code, "none of the restarts is from before" in said["error"]) == (2, True)


def test_files_that_begin_again_are_ranks_or_lives(tmp_path, ask):
    one = log(tmp_path / "rank-0.csv", [(1, 0), (2, 1)])
    two = log(tmp_path / "rank-1.csv", [(1, 2), (2, 3)])
    columns = ("--key", "uid", "--step", "step", "--prompts", 4)
    code, said = ask(one, two, *columns)
    assert (code, said["skipped"]) == (3, None)
    assert "if these are ranks, or parts of one life, say --restarts none" in said["headline"]
    assert ask(one, two, *columns, "--restarts", "none")[0] == 0
    code, said = ask(one, two, *columns, "--restarts", 0)
    assert (code, said["skipped"][0]["named"]) == (1, [0, 1])


def test_files_of_a_directory_come_in_the_order_of_their_numbers(tmp_path, ask):
    for step in (9, 10, 11):
        log(tmp_path / f"{step}.jsonl", [(step, step)])
    _, said = ask(tmp_path, "--key", "uid", "--step", "step", "--prompts", 12)
    assert said["lives"] == 1
    assert causes(said["skipped"]) == {"never seen": list(range(9))}


def test_passes_of_a_log(tmp_path, ask):
    rows = [(1, 0, 0), (2, 1, 0), (3, 0, 1), (4, 1, 1)]
    path = log(tmp_path / "log.csv", rows, "step, uid, epoch")
    columns = ("--key", "uid", "--step", "step", "--prompts", 2)
    assert ask(path, *columns, "--pass", "epoch")[0] == 0
    code, said = ask(path, *columns)
    assert (code, said["duplicated"]) == (3, None)
    assert "of a second pass, or repeats? Say where the pass is with --pass" in said["headline"]
    path = log(tmp_path / "less.csv", rows[:3], "step, uid, epoch")
    code, said = ask(path, *columns, "--pass", "epoch")
    assert (code, causes(said["skipped"])) == (1, {"never seen": [1]})


def test_a_group_that_does_not_lie_side_by_side_is_one_training(tmp_path, ask):
    path = log(tmp_path / "log.csv", [(1, 0), (1, 1), (1, 0), (1, 1)])
    assert ask(path, "--key", "uid", "--step", "step", "--prompts", 2)[0] == 0


def test_a_torn_log(tmp_path, ask):
    path = log(tmp_path / "log.jsonl", LOG)
    path.write_bytes(path.read_bytes() + b'{"step": 5, "ui')
    columns = ("--key", "uid", "--step", "step", "--prompts", 7)
    _, said = ask(path, *columns)
    assert said["notes"] == ["the last line was cut short, and is passed over"]
    assert said["skipped"]
    path.write_bytes(path.read_bytes() + b'\n{"step": 5}\n')
    code, said = ask(path, *columns)
    assert (code, said["doubts"]) == (3, ["rows without a prompt or without a step: 2"])


def test_a_torn_line_may_be_that_of_the_one_that_is_not_seen(tmp_path, ask):
    path = log(tmp_path / "log.jsonl", [(1, 0), (2, 1)])
    path.write_bytes(path.read_bytes() + b'{"step": 3, "ui')
    columns = ("--key", "uid", "--step", "step", "--prompts")
    code, said = ask(path, *columns, 3)
    assert (code, said["skipped"]) == (3, None)
    assert "not trained by what can be read: 1" in said["headline"]
    code, said = ask(path, *columns, 4)
    assert (code, said["skipped"][0]["prompts"]) == (1, 2)
    # An object that ends is whole, and a bad line before it is no torn one.
    path.write_text('{"step": 1, "uid": 0}\n{"step": 2\n{"step": 3, "uid": 1}')
    code, said = ask(path, *columns, 2)
    assert (code, said["doubts"]) == (3, ["rows without a prompt or without a step: 1"])
    path.write_text('{"step": 1, "uid": 0}\n{"step": 3, "uid": 1}')
    assert ask(path, *columns, 2)[0] == 0


def test_a_number_at_the_end_of_a_csv_file_may_be_cut_short(tmp_path, ask):
    path = tmp_path / "log.csv"
    columns = ("--key", "uid", "--step", "step", "--prompts", 13)
    path.write_text("step,uid\n" + "".join(f"{uid + 1},{uid}\n" for uid in range(13)))
    assert ask(path, *columns)[0] == 0
    path.write_bytes(path.read_bytes()[:-2])  # "13,12\n": of prompt 12 it leaves 1
    code, said = ask(path, *columns)
    assert (code, said["skipped"], said["duplicated"]) == (3, None, None)
    assert f"the last line of {path} has no end" in said["headline"]
    path.write_bytes(path.read_bytes()[:-2])
    assert ask(path, *columns)[1]["notes"] == ["the last line was cut short, and is passed over"]


def test_a_packed_log_has_no_torn_line(tmp_path, ask):
    path = log(tmp_path / "log.csv", [(1, 0), (2, 1)])
    (tmp_path / "log.csv.gz").write_bytes(gzip.compress(path.read_bytes()))
    assert ask(tmp_path / "log.csv.gz", "--key", "uid", "--step", "step", "--prompts", 2)[0] == 0


@pytest.mark.parametrize("name", ["empty.csv", "empty.jsonl"])
def test_an_empty_log(tmp_path, ask, name):
    empty = tmp_path / name
    empty.touch()
    columns = ("--key", "uid", "--step", "step", "--prompts", 2)
    code, said = ask(empty, *columns)
    assert (code, said["skipped"], said["dropped"]) == (3, None, None)
    assert said["headline"] == "undetermined: there is nothing in it"
    assert said["notes"] == [f"{empty} is empty: passed over"]
    assert ask(empty, log(tmp_path / f"log{empty.suffix}", [(1, 0), (2, 1)]), *columns)[0] == 0


def test_a_csv_file_that_has_only_its_header(tmp_path, ask):
    path = log(tmp_path / "log.csv", [(1, 0), (2, 1)])
    header = tmp_path / "header.csv"
    header.write_text("step,uid\n")
    columns = ("--key", "uid", "--step", "step", "--prompts", 2)
    assert ask(path, header, *columns)[0] == 0
    assert ask(header, path, *columns)[0] == 0
    code, said = ask(header, *columns)
    assert (code, said["headline"]) == (3, "undetermined: there is nothing in it")


def test_half_a_step_is_none(tmp_path, ask):
    columns = ("--key", "uid", "--step", "step", "--prompts", 2)
    path = log(tmp_path / "log.csv", [(1.0, 0), (1.5, 1)])
    code, said = ask(path, *columns)
    assert (code, said["doubts"]) == (3, ["rows without a prompt or without a step: 1"])
    path = log(tmp_path / "whole.csv", [(1.0, 0), (2.0, 1)])
    assert "1.0" in path.read_text()
    assert ask(path, *columns)[0] == 0


# --- how it is asked ------------------------------------------------------------------------------


LOGS = ("--key", "uid", "--step", "step")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["log.csv"], "log.csv is no ledger: name its columns, --key=..."),
        (["log.csv", "--key", "uid"], "name its columns, --step=..."),
        (
            ["log.csv", "--key", "id", "--step", "step"],
            "no column 'id' for --key; it has step, uid",
        ),
        (["log.csv", "life.jsonl", "--key", "uid", "--step", "step"], "log.csv is no ledger, as"),
        (
            ["life.jsonl", "--key", "uid", "--keys", "log.csv"],
            "life.jsonl is a ledger: leave out --key, --keys, for other logs",
        ),
        (["gone.jsonl"], "gone.jsonl: there is no such file"),
        (["life.txt"], "it can't be told what this is; names end in .jsonl"),
        (["nothing"], "there is nothing in it that could be read"),
        (["life.jsonl", "--restarts", "soon"], "steps and commas, such as 100,250, or none"),
        (["torn.parquet", *LOGS], "leave out the file that is damaged"),
        (["noise.csv", *LOGS], "noise.csv"),
        (["zeros.csv", *LOGS], "zeros.csv"),
        (["zeros.jsonl", *LOGS], "zeros.jsonl"),
        (["torn.csv.gz", *LOGS], "torn.csv.gz: leave out the file that is damaged"),
        (["log.csv", *LOGS, "--memory", "much"], "'much' is no number with a unit, such as 3.5GB"),
        (["log.csv", *LOGS, "--memory", "3"], "such as 3.5GB"),
        (["log.csv", *LOGS, "--keys", "none.csv"], "none.csv is empty"),
        (["log.csv", *LOGS, "--keys", "header.csv"], "header.csv names no prompt"),
        (["log.csv", *LOGS, "--keys", "other.csv"], "no column 'uid' for --key; it has name"),
        (
            ["log.csv", *LOGS, "--keys", "texts.csv"],
            "a prompt is VARCHAR in texts.csv and BIGINT in the logs",
        ),
        (["log.csv", "--key", "step", "--step", "step"], "--key and --step are both 'step'"),
        (["log.csv", *LOGS, "--pass", "uid"], "--key and --pass are both 'uid'"),
        (["log.csv", *LOGS, "--run", "a"], "no run has a name here"),
    ],
)
def test_mistakes_are_said_in_a_line(tmp_path, ask, monkeypatch, words, said):
    monkeypatch.chdir(tmp_path)
    log(Path("log.csv"), LOG)
    Ledgers(tmp_path).write(handed_out(0), name="life.jsonl")
    Path("life.txt").write_text("what?")
    Path("torn.parquet").write_bytes(b"PAR1 and no more")
    Path("nothing").mkdir()
    Path("noise.csv").write_bytes(random.Random(0).randbytes(5000))
    for name in ("zeros.csv", "zeros.jsonl"):
        with open(name, "wb") as file:
            file.truncate(1 << 26)
    Path("torn.csv.gz").write_bytes(gzip.compress(Path("log.csv").read_bytes())[:-20])
    Path("none.csv").touch()
    Path("header.csv").write_text("uid\n")
    Path("other.csv").write_text("name\na\n")
    Path("texts.csv").write_text("uid\na\n")
    code, answer = ask(*words)
    assert code == 2
    *usage, error = answer["error"].splitlines()  # click shows the usage of a wrong option
    assert not usage or usage[0].startswith("Usage: ")
    assert said in error
    assert len(error) < 400
    assert error.isprintable()


@pytest.mark.parametrize(
    ("raised", "comes"),
    [("Query interrupted", KeyboardInterrupt), ("something else", RuntimeError)],
)
def test_ctrl_c_in_a_question_is_ctrl_c(raised, comes):
    class Interrupted:
        """As DuckDB ends a question at SIGINT."""

        def execute(self, question: str, values: object) -> Any:
            raise RuntimeError(raised)

    at = Database(cast(Any, Interrupted()), lambda what, part: None)
    with pytest.raises(comes):
        at.rows("SELECT 1")


def reported_to(stdout, *words, unbuffered):
    return subprocess.run(
        [sys.executable, "-m", "pytest_resume_audit", "ledger", *words],
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
    )


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_report_that_cannot_be_written_is_no_verdict(ledgers, unbuffered):
    new_way(ledgers)
    for more in ([], ["--json"]):
        with open("/dev/full", "w") as full:
            done = reported_to(full, ledgers.directory, *more, unbuffered=unbuffered)
        assert done.returncode == 3
        assert done.stderr.startswith("Error: the report can't be written: No space left")
        assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("as_json", [[], ["--json"]])
def test_a_report_that_nobody_reads_is_no_verdict(ledgers, unbuffered, as_json):
    new_way(ledgers)
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as pipe:
        done = reported_to(pipe, ledgers.directory, *as_json, unbuffered=unbuffered)
    assert (done.returncode, done.stderr) == (3, "")


def test_without_duckdb_its_extra_is_named(ledgers, ask, monkeypatch):
    path = ledgers.write(handed_out(0))
    monkeypatch.setitem(sys.modules, "duckdb", None)
    code, said = ask(path)
    assert (code, "pip install 'pytest-resume-audit[duckdb]'" in said["error"]) == (2, True)


# --- a real training ------------------------------------------------------------------------------


def live(directory: Path, way: str, until: int | None) -> None:
    """A life of the example, killed as soon as it has saved that step."""
    words = ["--group-size", "2", "--prompts", "48", "--save-every", "2", "--token", "0.002"]
    env = {**os.environ, "RESUME_AUDIT_LEDGER": str(directory / "ledgers")}
    env["PYTHONPATH"] = os.pathsep.join([str(ROOT), env.get("PYTHONPATH", "")])
    script = str(ROOT / "examples" / "real_training" / "train.py")
    command = [sys.executable, script, "--checkpoints", str(directory), "--way", way, *words]
    with subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as p:
        try:
            if until is not None:
                checkpoint = directory / f"step-{until}.pt"
                wait_until(lambda: checkpoint.exists() or p.poll() is not None, seconds=120)
                assert checkpoint.exists(), p.communicate()[1].decode()
                p.kill()
            _, errors = p.communicate(timeout=120)
        finally:
            p.kill()
    assert p.returncode == (0 if until is None else -signal.SIGKILL), errors.decode()


@pytest.mark.parametrize("way", ["old", "new"])
def test_a_real_training_that_is_killed(tmp_path, ask, way):
    pytest.importorskip("torchdata")
    for until in (2, 6, None):
        live(tmp_path, way, until)
    code, said = ask(tmp_path / "ledgers")
    assert (said["lives"], said["doubts"], said["duplicated"]) == (3, [], [])
    lines = [
        json.loads(line)
        for path in sorted((tmp_path / "ledgers").iterdir())
        for line in path.read_bytes().split(b"\n")[:-1]
    ]
    ever = {row for line in lines if line.get("event") == "trained" for row in line["rows"]}
    if way == "new":
        assert (code, said["prompts"], said["trained"], said["skipped"]) == (0, 48, 48, [])
        return
    named = {row for loss in said["skipped"] for row in loss["named"]}
    assert (code, said["prompts"]) == (1, 48)
    assert said["trained"] == 48 - len(named)
    # Those that no life has trained at all are lost for certain.
    assert set(range(48)) - ever <= named
    assert named


# --- runs at random, beside weights that count by themselves --------------------------------------


@pytest.mark.parametrize("seed", range(40))
def test_runs_at_random_end_in_the_weights_that_the_ledger_tells(ledgers, ask, seed):
    """The trainer's weights count, are saved and restored; the ledger has to come to the same."""
    dice = random.Random(seed)
    rows = list(range(dice.randrange(12, 40)))
    dice.shuffle(rows)
    passes, batch, per_step = dice.choice([1, 1, 2]), dice.randrange(1, 5), dice.randrange(1, 5)
    way = dice.choice(["old", "new", "repeats"])
    orders = [dice.sample(rows, len(rows)) for _ in range(passes)]
    stream = [row for order in orders for row in order]
    saves: list[tuple[str, int, int, Counter[int], list[int], set[int]]] = []
    lives = dice.randrange(2, 6)
    for life in range(lives):
        lines: list[Line] = []
        place, step, weights, buffer, settled = 0, 0, Counter[int](), list[int](), set[int]()
        if saves:
            name, place, step, weights, buffer, settled = dice.choice(saves[-2:])
            weights, buffer, settled = Counter(weights), list(buffer), set(settled)
            lines += [restored(name), *(buffered(stream[ordinal]) for ordinal in buffer)]
        out: list[int] = []
        known = settled | set(buffer)
        # The last life goes on to the end of the data, the others until they are killed.
        for _ in range(dice.randrange(5, 40) if life < lives - 1 else 10**6):
            what = dice.choice(["hand_out", "finish", "finish", "train", "save"])
            if what == "hand_out" and place < len(stream) and len(out) < 12:
                ordinals = range(place, min(place + batch, len(stream)))
                lines.append(handed_out(*(stream[ordinal] for ordinal in ordinals)))
                place = ordinals.stop
                out += [ordinal for ordinal in ordinals if ordinal not in known]
                known |= set(ordinals)
            elif what == "finish" and out:
                ordinal = out.pop(dice.randrange(len(out)))
                lines += [finished(stream[ordinal]), buffered(stream[ordinal])]
                buffer.append(ordinal)
            elif what == "train" and buffer and (len(buffer) >= per_step or place == len(stream)):
                step += 1
                taken, buffer = buffer[:per_step], buffer[per_step:]
                # Without their places two of a row would be a group.
                answers = [stream[ordinal] for ordinal in taken]
                lines.append(trained(step, *answers, generations=[0] * len(answers)))
                weights.update(taken)
                settled |= set(taken)
            elif what == "save" and life < lives - 1 and settled:
                cut = {"old": place, "new": min(out + buffer, default=place)}.get(
                    way, max(0, min(out + buffer, default=place) - batch)
                )
                kept = settled if way != "repeats" else {one for one in settled if one < cut}
                name = f"save-{len(saves)}"
                saves.append((name, cut, step, Counter(weights), list(buffer), set(kept)))
                lines += save(name)
            if place == len(stream) and not out and not buffer:
                break
        ledgers.write(*lines, *([ENDED] if life == lives - 1 else []))
    code, said = ask(ledgers.directory)
    count = Counter(stream[ordinal] for ordinal in weights.elements())
    skipped = {row: passes - count[row] for row in rows if count[row] < passes}
    duplicated = {row: count[row] - passes for row in rows if count[row] > passes}
    named = {row for loss in said["duplicated"] for row in loss["named"]}
    if said["doubts"]:
        # Of so few prompts a whole pass back may be the next pass; what is certain is so.
        assert said["skipped"] is None
        assert named <= set(duplicated)
        assert code in (1, 3)
        return
    assert Counter(row for loss in said["skipped"] for row in loss["named"]) == skipped
    assert sum(loss["prompts"] for loss in said["duplicated"]) == sum(duplicated.values())
    assert named == set(duplicated)
    assert code == (1 if skipped or duplicated else 0)
    assert way != "new" or code == 0
