"""``resume-audit coverage``: what it reads, what it says, and how it ends."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("click", reason="the command line is an extra")
pytest.importorskip("rich", reason="the command line is an extra")

from pytest_resume_audit import cli
from pytest_resume_audit.real_runs.coverage import PromptCoverage

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs the command line: exit code, output, errors."""

    def run(*arguments: object) -> tuple[int, str, str]:
        code = cli.run(["coverage", *map(str, arguments)])
        return code, *capsys.readouterr()

    return run


def the_case(*, trained: int = 4) -> PromptCoverage:
    coverage = PromptCoverage(16)
    coverage.add(range(trained))
    coverage.mark(12, waiting=[4, 6, 7, 10])
    return coverage


LOST = "lossy: 4 of 12 skipped\nskipped: 5, 8, 9, 11\n"


# --- what it says -------------------------------------------------------------------------------


def test_a_loss_is_shown(command: Command, tmp_path: Path) -> None:
    the_case().save(tmp_path / "it")
    code, out, err = command(tmp_path / "it")
    assert (code, err) == (1, "")
    assert out == LOST + (
        "waiting: 4, 6, 7, 10\n"
        "\n"
        "pass  trained  skipped  duplicated  waiting  not reached\n"
        "   0        4        4           0        4            4\n"
        "\n"
        "each sign is a prompt\n"
        " 0  ----bSbbSSbS....\n"
        "- trained   S skipped   b waiting   . not reached\n"
        "\n"
        "a restart from here goes on at 12: what is not trained below, and does not wait \n"
        "in the buffer, is lost\n"
        "nothing is said of 4 that the run has not come to, as far as is known\n"
    )


def test_a_lossless_run(command: Command, tmp_path: Path) -> None:
    coverage = PromptCoverage(3, passes=2)
    coverage.add(range(6))
    coverage.save(tmp_path / "it")
    code, out, _ = command(tmp_path / "it", "--complete")
    assert code == 0
    assert "lossless: 6 of 6 trained as often as they should be" in out


def test_one_lost_prompt_of_a_million_stands_out(command: Command, tmp_path: Path) -> None:
    coverage = PromptCoverage(1_000_000)
    coverage.add(range(654_321))
    coverage.add(range(654_322, 1_000_000))
    coverage.save(tmp_path / "it")
    code, out, _ = command(tmp_path / "it", "--complete")
    assert code == 1
    assert "skipped: 654321\n" in out
    [line] = [line for line in out.splitlines() if "S" in line and "---" in line]
    first, drawn = line.split()
    at = int(first) + drawn.index("S") * 1_000_000 / (8 * 71)
    assert abs(at - 654_321) < 2 * 1_000_000 / (8 * 71)


def test_in_the_middle_of_a_run_it_may_not_be_known(command: Command, tmp_path: Path) -> None:
    coverage = PromptCoverage(8)
    coverage.add([0, 3, 5])
    coverage.save(tmp_path / "it")
    code, out, _ = command(tmp_path / "it")
    assert code == 3
    assert "undetermined: 3 of 6 reached are not trained yet" in out
    assert "--in-flight N" in out
    code, out, _ = command(tmp_path / "it", "--in-flight", 1)
    assert code == 1
    assert "lossy: at least 2 of 6 skipped" in out
    assert command(tmp_path / "it", "--complete", "--in-flight", 2)[0] == 2


def test_what_can_not_be_told_is_said(command: Command, tmp_path: Path) -> None:
    coverage = PromptCoverage(8, ordered=False)
    coverage.save(tmp_path / "it")
    code, out, _ = command(tmp_path / "it", "--complete")
    assert code == 3
    assert out.startswith("undetermined: nothing was trained\n")
    coverage.add([3])
    coverage.save(tmp_path / "it")
    code, out, _ = command(tmp_path / "it")
    assert code == 3
    assert out.startswith("undetermined: these are rows of a shuffled data set")


def test_what_happened_between_two(command: Command, tmp_path: Path) -> None:
    before = the_case()
    before.save(tmp_path / "before")
    after = PromptCoverage(16)
    after.load(tmp_path / "before")
    after.add([4, 6, 7, 10, 12, 13, 14, 15, 12])
    after.save(tmp_path / "after")
    code, out, _ = command(tmp_path / "before", tmp_path / "after")
    assert code == 1
    assert (
        "between the two, over 1 restart: lossy: 8 trained for the first time, 4 lost, 1 \n"
        "repeated\nlost: 5, 8, 9, 11\nrepeated: 12\n"
    ) in out
    _, out, _ = command(tmp_path / "before", tmp_path / "after", "--json")
    between = json.loads(out)["between"]
    assert (between["lost"], between["repeated"]) == ([[5, 5], [8, 9], [11, 11]], [[12, 12]])
    # What was lost by then is no news.
    later = PromptCoverage(16)
    later.load(tmp_path / "after")
    later.save(tmp_path / "later")
    code, out, _ = command(tmp_path / "after", tmp_path / "later")
    assert code == 0
    assert "lossy: 4 of 16 skipped, 1 duplicated" in out
    code, out, _ = command(tmp_path / "after", tmp_path / "before")
    assert code == 3
    assert "does not" in out


def test_json(command: Command, tmp_path: Path) -> None:
    the_case().save(tmp_path / "it")
    code, out, _ = command(tmp_path / "it", "--json")
    value = json.loads(out)
    assert code == 1
    assert (value["schema"], value["verdict"], value["missing"]) == (1, "lossy", 4)
    assert value["ordinals"]["skipped"] == [[5, 5], [8, 9], [11, 11]]
    assert value["by_pass"][0] == value["totals"]
    assert value["totals"]["trained"] == 4
    assert value["between"] is None
    _, out, _ = command(tmp_path / "it", tmp_path / "it", "--json")
    assert json.loads(out)["between"]["lost"] == []


def test_help_has_examples_and_exit_codes(command: Command) -> None:
    code, out, _ = command("--help")
    assert code == 0
    assert "resume-audit coverage output/checkpoint-500 --in-flight 64" in out
    assert "3  undetermined" in out


# --- what it reads ------------------------------------------------------------------------------


def saved_by_torch(path: Path) -> Path:
    torch = pytest.importorskip("torch")
    torch.save({"model": torch.ones(5), "rest": [{"coverage": the_case().state_dict()}]}, path)
    return path


def saved_the_old_way_of_torch(path: Path) -> Path:
    torch = pytest.importorskip("torch")
    state = {"coverage": the_case().state_dict(), "model": torch.ones(5)}
    torch.save(state, path, _use_new_zipfile_serialization=False)
    return path


def saved_in_a_model(path: Path) -> Path:
    torch = pytest.importorskip("torch")
    model = torch.nn.Linear(2, 2)
    the_case().attach(model)
    torch.save(model.state_dict(), path)
    return path


def saved_as_safetensors(path: Path) -> Path:
    torch = pytest.importorskip("torch")
    safetensors = pytest.importorskip("safetensors.torch")
    model = torch.nn.Linear(2, 2)
    the_case().attach(model)
    path = path.with_suffix(".safetensors")
    safetensors.save_file(model.state_dict(), path)
    return path


def saved_distributed(path: Path) -> Path:
    torch = pytest.importorskip("torch")
    import torch.distributed.checkpoint as dcp

    with pytest.warns(UserWarning, match="torch.distributed is"):
        dcp.save({"coverage": the_case(), "model": {"a": torch.ones(5)}}, checkpoint_id=path)
    return path


def saved_beside(path: Path) -> Path:
    path.mkdir()
    the_case().save(path / "coverage")
    (path / "model.bin").write_bytes(bytes(1000))
    (path / "README").write_text("resume-audit-coverage/ is how counts begin, in any file.\n" * 9)
    return path


def saved_as_json(path: Path) -> Path:
    path.write_text(json.dumps({"step": 3, "callbacks": [the_case().state_dict()]}))
    return path


def saved_by_pickle(path: Path) -> Path:
    path.write_bytes(pickle.dumps(the_case().state_dict()))
    return path


WAYS = (
    saved_by_torch,
    saved_the_old_way_of_torch,
    saved_in_a_model,
    saved_as_safetensors,
    saved_distributed,
    saved_beside,
    saved_as_json,
    saved_by_pickle,
)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__.removeprefix("saved_"))
def test_every_kind_of_checkpoint_is_read(
    way: Callable[[Path], Path], command: Command, tmp_path: Path
) -> None:
    code, out, err = command(way(tmp_path / "it"))
    assert (code, err) == (1, "")
    assert out.startswith(LOST)


def test_counts_across_two_pieces_are_read(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pytest_resume_audit.real_runs import reading

    saved_beside(tmp_path / "it")
    counts = (tmp_path / "it" / "coverage").read_bytes()
    for piece in (1, 7, 64):
        monkeypatch.setattr(reading, "_PIECE", piece)
        (tmp_path / "it" / "coverage").write_bytes(b"resume-audit" * 5 + counts + b"more")
        assert command(tmp_path / "it")[1].startswith(LOST)


class Malicious:
    """Whoever loads its pickle makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (f"{self.path}",)


@pytest.mark.parametrize("kind", ["torch", "pickle", "metadata"])
def test_no_pickle_is_executed(kind: str, command: Command, tmp_path: Path) -> None:
    mine, path = tmp_path / "executed", tmp_path / "it"
    path.mkdir()
    state = {"evil": Malicious(mine), **the_case().state_dict()}
    if kind == "torch":
        pytest.importorskip("torch").save(state, path / "it.pt")
    elif kind == "pickle":
        (path / "it.pkl").write_bytes(pickle.dumps(state))
    else:
        (path / ".metadata").write_bytes(pickle.dumps(Malicious(mine)))
        (path / "__0_0.distcp").write_bytes(pickle.dumps(the_case().state_dict()))
    code, out, _ = command(path)
    assert code == 1
    assert out.startswith(LOST)
    assert not mine.exists()


def test_the_files_of_all_ranks_are_one_checkpoint(command: Command, tmp_path: Path) -> None:
    from pytest_resume_audit.real_runs.counts import Counts

    for rank in range(3):
        share = Counts(6, cells=bytearray(6), rank=rank, ranks=3, whole=False)
        share.add(2 * rank)
        share.added.append(2 * rank)
        (tmp_path / f"rank{rank}").write_text(share.text())
    files = [tmp_path / f"rank{rank}" for rank in range(3)]
    for arguments in ([tmp_path], files):
        code, out, _ = command(*arguments, "--complete")
        assert code == 1
        assert "skipped: 1, 3, 5\n" in out
    code, out, err = command(files[0], "--complete")
    assert (code, out) == (3, "")
    assert "only rank 0 of 3" in err
    code, _, err = command(*files[:2])
    assert code == 3
    assert "only rank 0, 1 of 3" in err


# --- what it refuses ----------------------------------------------------------------------------


def one_line(err: str) -> bool:
    return err.startswith("Error: ") and err.count("\n") == 1


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__.removeprefix("saved_"))
def test_what_is_cut_off_is_never_lossless(
    way: Callable[[Path], Path], command: Command, tmp_path: Path
) -> None:
    path = way(tmp_path / "it")
    inside = path.rglob("*") if path.is_dir() else [path]
    [file] = [f for f in inside if b"resume-audit-coverage/000001" in f.read_bytes()]
    whole = file.read_bytes()
    begins = whole.index(b"resume-audit-coverage/000001")
    # The counts of these prompts take a few hundred bytes, or 16 KiB in a tensor.
    for length in (0, 1, 7, 40, begins - 1, begins + 1, begins + 30, begins + 60, begins + 200):
        file.write_bytes(whole[: max(length, 0)])
        code, out, err = command(path)
        assert (code, out) == (3, ""), length
        assert one_line(err), err


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__.removeprefix("saved_"))
def test_what_was_changed_is_never_lossless(
    way: Callable[[Path], Path], command: Command, tmp_path: Path
) -> None:
    path = way(tmp_path / "it")
    inside = path.rglob("*") if path.is_dir() else [path]
    [file] = [f for f in inside if b"resume-audit-coverage/000001" in f.read_bytes()]
    whole = file.read_bytes()
    begins = whole.index(b"resume-audit-coverage/000001")
    for at in (*range(0, 60, 3), 100, 150):
        changed = bytearray(whole)
        changed[begins + at] ^= 1
        file.write_bytes(changed)
        code, out, err = command(path)
        assert (code, out) == (3, ""), at
        assert one_line(err), err


def test_a_newer_version_is_refused(command: Command, tmp_path: Path) -> None:
    the_case().save(tmp_path / "it")
    text = (tmp_path / "it").read_text()
    (tmp_path / "it").write_text(text.replace("/000001", "/000002"))
    code, _, err = command(tmp_path / "it")
    assert code == 3
    assert "version 2" in err


def test_a_torn_archive_is_refused_though_its_counts_are_whole(
    command: Command, tmp_path: Path
) -> None:
    path = saved_by_torch(tmp_path / "it")
    path.write_bytes(path.read_bytes()[:-50])
    code, _, err = command(path)
    assert code == 3
    assert "cut off or damaged" in err


def test_safetensors_of_another_length_are_refused(command: Command, tmp_path: Path) -> None:
    path = saved_as_safetensors(tmp_path / "it")
    path.write_bytes(path.read_bytes() + b"more")
    code, _, err = command(path)
    assert code == 3
    assert "its header says other" in err


def test_a_distributed_checkpoint_without_metadata_is_refused(
    command: Command, tmp_path: Path
) -> None:
    path = saved_distributed(tmp_path / "it")
    (path / ".metadata").unlink()
    code, _, err = command(path)
    assert code == 3
    assert "not saved to its end" in err


def test_several_checkpoints_at_once_are_refused(command: Command, tmp_path: Path) -> None:
    for trained in (2, 4):
        the_case(trained=trained).save(tmp_path / f"{trained}")
    code, _, err = command(tmp_path)
    assert code == 2
    assert one_line(err)
    assert "several coverages" in err
    assert command(tmp_path / "2", tmp_path / "4", tmp_path / "2")[0] == 2


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["nowhere"], 2, "No such file"),
        (["empty"], 3, "it has no counts"),
        (["it", "--prompts", "17"], 2, "17 prompts are expected"),
        (["it", "--prompts", "0"], 2, "0 is not in the range"),
        (["it", "--in-flight", "-1"], 2, "-1 is not in the range"),
        ([], 2, "Missing argument"),
        (["it", "--nonsense"], 2, "No such option"),
    ],
)
def test_mistakes(
    arguments: list[str],
    code: int,
    says: str,
    command: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    the_case().save("it")
    Path("empty").mkdir()
    found, out, err = command(*arguments)
    assert (found, out) == (code, "")
    assert says in err


def test_a_zip_of_something_else_has_no_counts(command: Command, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "it.pt", "w") as archive:
        archive.writestr("it/data.pkl", b"nothing")
    assert command(tmp_path / "it.pt")[0] == 3


# --- how it ends --------------------------------------------------------------------------------


def run(*arguments: object, code: str | None = None, **more: Any) -> Any:
    way = ["-m", "pytest_resume_audit"] if code is None else ["-c", code]
    return subprocess.run(
        [sys.executable, *way, *map(str, arguments)], text=True, timeout=300, check=False, **more
    )


def test_a_defect_is_no_verdict(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(cli, "_read", fails)
    code, _, err = command("it")
    assert code == 3
    assert "ZeroDivisionError" in err
    assert "not a verdict" in err


def test_an_output_that_nobody_reads_is_no_verdict(tmp_path: Path) -> None:
    the_case().save(tmp_path / "it")
    for more in ([], ["--json"]):
        reader, writer = os.pipe()
        os.close(reader)
        with open(writer, "w") as closed:
            done = run("coverage", tmp_path / "it", *more, stdout=closed, stderr=subprocess.PIPE)
        assert (done.returncode, done.stderr) == (3, "")


def test_without_its_extra_it_says_what_it_needs() -> None:
    code = (
        "import sys; sys.modules['click'] = None; sys.argv = ['resume-audit']\n"
        "from pytest_resume_audit.__main__ import main; main()"
    )
    done = run(code=code, capture_output=True)
    assert done.returncode == 2
    assert done.stderr == "resume-audit needs click: pip install 'pytest-resume-audit[cli]'\n"
