"""Training commands: started, watched, killed, and started again."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from test_process_life import is_running, wait_until

from pytest_resume_audit import Command, FuturesCollector, Setup, run
from pytest_resume_audit.lives.command import processes_below
from pytest_resume_audit.lives.nursery import nursery_of
from pytest_resume_audit.verdict import AuditReport

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="it is watched through /proc"
)

SCRIPTS = Path(__file__).parent / "commands"
SETUP = Setup(prompts=32)
"""Of ``train.py``: it hands out 8 prompts ahead, trains 4 a step and saves every second step."""


def train(way: str, words: str = "", **options: Any) -> Command:
    line = f"python train.py --out {{checkpoints}} --prompts {{prompts}} --way {way} {words}"
    return Command(line, directory=SCRIPTS, **options)


def odd(name: str, script: str, *, deadline: float = 20, **options: Any) -> AuditReport:
    command = Command(f"python odd.py {name} {{checkpoints}}", directory=SCRIPTS, **options)
    return run(command, script, deadline=deadline)


# --- what is lost, and what is not --------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "lost", "place"),
    [
        # Saved behind step 2: 8 are trained, 4 more are out; the place is 12.
        ("train; save; crash; restart", 4, 12),
        ("train; save; train; crash; restart", 4, 12),
        # Behind two steps comes a save of its own, and the next one behind step 4.
        ("train 2; save; crash; restart", 4, 20),
        # And behind step 4 once more, of a life that has begun at 12 and hands out 8 ahead.
        ("train; save; crash; restart; train; save; crash; restart", 8, 24),
        ("train; save; stop; restart", 4, 12),
    ],
)
def test_the_old_way_loses_what_is_out_and_the_new_way_nothing(script, lost, place):
    old = run(train("old"), script, setup=SETUP)
    assert (old.verdict, len(old.skipped), old.duplicated) == ("lossy", lost, [])
    # Which of them are still out depends on the threads that answer.
    assert max(old.skipped) < place
    new = run(train("new"), script, setup=SETUP)
    assert (new.verdict, new.skipped, new.duplicated) == ("lossless", [], [])
    assert new.rest == "gates"


HELD = "hand_out 8; finish 0-3; train; hand_out 12; finish 4-7; finish 9; save; crash; restart"


def test_a_script_that_lets_itself_be_held_has_the_history_that_is_asked_for():
    old = run(train("old", "--held"), HELD, setup=SETUP)
    assert (old.verdict, old.skipped) == ("lossy", [8, 9, 10, 11])
    # Three threads answer: 11 is taken by the one that has answered 9.
    assert sorted(old.history.saves[0].standing.in_flight) == [8, 10, 11]
    assert sorted(old.history.saves[0].standing.buffered) == [9]
    assert old.rest == "proc"
    again = run(train("old", "--held"), HELD, setup=SETUP)
    assert again.history.lines() == old.history.lines()
    assert run(train("new", "--held"), HELD, setup=SETUP).verdict == "lossless"


def test_a_generation_may_fail():
    script = HELD.replace("finish 9", "fail 9")
    report = run(train("new", "--held"), script, setup=SETUP)
    # Its thread ends with the failure: prompt 9 is never trained in that life, and again later.
    assert "failed" in {event.kind for event in report.history.lives[0].events}


def test_a_save_may_be_raced():
    script = HELD.replace("save;", "save racing (finish 8) at 1;")
    report = run(train("new", "--held"), script, setup=SETUP)
    (save,) = [save for save in report.history.saves if save.raced_at]
    assert (save.raced, save.kept_out) == (("finish 8",), ())
    assert report.verdict == "lossless"


@pytest.mark.parametrize("step", ["hand_out 8", "finish 0", "fail 0", "finish oldest 1"])
def test_what_cant_be_held_is_not_asked_to_be(step):
    report = run(train("new"), f"{step}; train; save; crash; restart", setup=SETUP)
    assert report.verdict == "error"
    part = "loader" if step.startswith("hand_out") else "answer"
    assert str(report.error).startswith(f"{step}: no {part} of the command is held: let its script")


def test_what_fails_and_what_is_dropped_is_known():
    report = odd("Drops", "train 3; save; crash; restart")
    assert report.verdict == "lossless"
    assert (report.failed, report.dropped) == ([4], [5])


# --- deaths in a save ---------------------------------------------------------------------------


def test_a_save_is_killed_at_each_of_its_operations():
    report = run(train("new"), "train; save; train; crash in save; restart", setup=SETUP)
    assert [point.where for point in report.points] == [
        "before open step-4.tmp",
        "before rename to step-4.json",
    ]
    assert report.verdict == "lossless"


def test_a_torn_checkpoint_is_refused_or_passed_over():
    script = "train; save; train; crash in save at 2 torn half; restart"
    assert run(train("new"), script, setup=SETUP).verdict == "lossless"
    script = "train; save; train; crash in save at 3 torn half; restart"
    assert run(train("new"), script, setup=SETUP).verdict == "refused"


IN_THE_SECOND = "train; save; train; crash in save; restart"


def test_a_save_is_killed_where_a_fork_writes_it():
    # Whoever waits for the fork dies with it, and does not say that the checkpoint is complete.
    report = odd("AForkSaves", IN_THE_SECOND)
    where = ["before open 16.tmp", "before rename to 16.json"]
    assert (report.verdict, [point.where for point in report.points]) == ("lossless", where)
    report = odd("AForkReports", IN_THE_SECOND)
    where = ["before open 16.json"]
    assert (report.verdict, [point.where for point in report.points]) == ("lossless", where)


@pytest.mark.parametrize("name", ["SavesBehindItsBack", "SeesLaterThatItSaved"])
@pytest.mark.parametrize("script", ["train; save; train; crash; restart", IN_THE_SECOND])
def test_training_may_go_on_while_a_save_is_written(name, script):
    report = odd(name, script)
    assert report.verdict == "lossless"
    # What a checkpoint has is what was trained when it was begun, as its name says.
    saves = [save for save in report.history.saves if save.published]
    assert [f"{sum(save.counts)}.json" for save in saves] == [save.checkpoint for save in saves]


# --- how it ends --------------------------------------------------------------------------------

SAVED = "train; save; crash; restart"
"""Of ``odd.py``, which saves behind every step: two of each."""


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("Exits", "exit status 3; it printed last:\n    out of luck"),
        ("Crashes", "killed by SIGSEGV"),
        ("SaysHalf", "killed by SIGKILL"),
    ],
)
def test_a_command_that_dies_by_itself_is_reported_as_that(name, how):
    report = odd(name, "train 2; save; drain")
    assert report.verdict == "error"
    assert str(report.error).startswith(f"the command died by itself: {how}")


def test_a_command_that_reports_nothing_is_told_how_to():
    report = odd("Silent", SAVED)
    assert report.verdict == "error"
    assert "it has ended, and it has reported nothing: its script has to import" in str(report)


def test_a_command_that_reports_nothing_is_not_waited_for_for_ever():
    report = odd("Waits", SAVED, deadline=1)
    assert report.verdict == "error"
    assert "within 1 s it has reported nothing" in str(report.error)
    assert "it printed last:\n    waiting" in str(report.error)


def test_a_command_that_stands_still_hangs_and_is_killed():
    report = odd("Stuck", SAVED, deadline=1)
    assert report.verdict == "hang"
    assert f"save ({SCRIPTS / 'odd.py'}:" in report.findings[0].text


def test_a_command_may_print_what_it_likes(capsys):
    assert odd("Talks", SAVED).verdict == "lossless"
    assert "x" * 10_000 in capsys.readouterr().out


def test_a_command_ends_with_all_that_it_has_started(capsys):
    assert odd("LeavesProcesses", SAVED).verdict == "lossless"
    started = [int(pid) for pid in re.findall(r"started (\d+)", capsys.readouterr().out)]
    assert len(started) == 6  # two of the uninterrupted run, and of each life
    wait_until(lambda: not any(map(is_running, started)))


def test_a_shell_script_ends_with_all_that_it_has_started(tmp_path, capsys):
    script = tmp_path / "train.sh"
    script.write_text(f'#!/bin/sh\npython {SCRIPTS / "odd.py"} LeavesProcesses "$1"\n')
    script.chmod(0o755)
    report = run(Command([str(script), "{checkpoints}"]), SAVED)
    assert report.verdict == "lossless"
    started = [int(pid) for pid in re.findall(r"started (\d+)", capsys.readouterr().out)]
    assert len(started) == 6
    wait_until(lambda: not any(map(is_running, started)))


def test_several_ranks_train_one_step():
    report = odd("Ranks", "train 2; crash; restart")
    assert [save.weight_version for save in report.history.saves[:2]] == [1, 2]
    assert report.history.lives[0].ordinals("trained") == set(range(8))
    assert report.verdict == "lossless"


def test_a_shell_script_around_torchrun(tmp_path):
    pytest.importorskip("torch", reason="its launcher")
    script = tmp_path / "train.sh"
    line = f"torchrun --standalone --nproc-per-node 2 {SCRIPTS / 'ranks.py'}"
    script.write_text(f'#!/bin/sh\necho "the shell is $$"\n{line} "$1"\n')
    script.chmod(0o755)
    nursery_of()
    before = processes_below(os.getpid())
    report = run(Command([str(script), "{checkpoints}"]), "train 2; crash; restart", deadline=60)
    assert report.verdict == "lossless"
    # Both ranks of both steps, and nothing of the one that they were about to begin.
    assert report.history.lives[0].ordinals("trained") == set(range(8))
    wait_until(lambda: set(processes_below(os.getpid())) <= set(before))


def test_a_command_that_goes_on_as_a_daemon_has_ended_too_early():
    nursery_of()
    before = processes_below(os.getpid())
    for script in ("drain", SAVED):
        report = odd("GoesOnAsADaemon", script)
        assert report.verdict == "error"
        assert "a process that it has started goes on with the training" in str(report.error)
    wait_until(lambda: set(processes_below(os.getpid())) <= set(before))


def test_a_shell_that_does_not_wait_has_ended_too_early(tmp_path):
    script = tmp_path / "train.sh"
    script.write_text(f'#!/bin/sh\npython {SCRIPTS / "odd.py"} Training "$1" &\n')
    script.chmod(0o755)
    report = run(Command([str(script), "{checkpoints}"]), SAVED)
    assert "a process that it has started goes on with the training" in str(report.error)
    script.write_text(script.read_text() + "wait\n")
    assert run(Command([str(script), "{checkpoints}"]), SAVED).verdict == "lossless"


def test_one_that_becomes_another_program_meanwhile_is_seen_to_go_on(tmp_path):
    # Five programs, one after the other: at any of these moments it may be looked at.
    script = tmp_path / "train.sh"
    program = f"exec env MORE=4 env MORE=3 env MORE=2 python {SCRIPTS / 'odd.py'}"
    script.write_text(f'#!/bin/sh\n({program} Training "$1") &\n')
    script.chmod(0o755)
    for _ in range(5):
        report = run(Command([str(script), "{checkpoints}"]), SAVED)
        assert "a process that it has started goes on with the training" in str(report.error)


# --- faults that a death brings about -----------------------------------------------------------


def test_what_is_trained_behind_the_restored_weights_and_before_is_seen():
    # Two steps of four are trained and saved; the life behind begins at 4, or at 12.
    again = odd("GoesAStepBack", SAVED)
    assert (again.verdict, again.skipped, again.duplicated) == ("lossy", [], [4, 5, 6, 7])
    ahead = odd("SavesAhead", SAVED)
    assert (ahead.verdict, ahead.skipped, ahead.duplicated) == ("lossy", [8, 9, 10, 11], [])


# --- how it is told to stop ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "origin", "saved"),
    [
        # Standing before its second step it is told: it trains that, saves, and ends.
        ("SavesWhenTold", 1, 8),
        # Or breaks it off, which then has trained nothing.
        ("RaisesWhenTold", 1, 4),
        # Or takes no notice: it trains all there is.
        ("IgnoresTerm", 4, 16),
        # Or saves what is behind it there and then, while the step is broken off.
        ("SavesInItsHandler", 1, 4),
        # Or dies of it.
        ("Training", 1, 4),
    ],
)
def test_a_stop_is_a_sigterm(name, origin, saved):
    report = odd(name, "train; stop; restart")
    assert report.verdict == "lossless"
    life = report.history.lives[1]
    assert life.origin == origin
    assert sum(report.history.saves[origin - 1].counts) == saved


def test_a_command_that_does_not_stop_hangs():
    report = odd("NeverStops", "train; stop; restart", deadline=1)
    assert report.verdict == "hang"


# --- how it is restarted ------------------------------------------------------------------------


def test_words_are_added_at_a_restart(capsys):
    resume, empty = "--resume {checkpoint}", ["--empty-buffer"]
    script = "train 2; save; train; crash; restart from 0; train; crash; restart no_buffer"
    report = odd("Words", script, resume=resume, no_buffer=empty)
    assert report.verdict == "lossless"
    told = re.findall(r"told:(.*)", capsys.readouterr().out)
    assert [re.sub(r"/\S*/", "", words).strip() for words in told] == [
        "",
        "",
        "--resume 4.json",
        "--resume 16.json --empty-buffer",
    ]


def test_it_may_begin_afresh():
    report = odd("Words", "train 2; crash; restart afresh", resume="--resume {checkpoint}")
    assert report.verdict == "lossless"


@pytest.mark.parametrize(
    ("script", "lacking"),
    [
        ("train; save; crash; restart from 0", "'restart from 0' needs resume=..., with a"),
        ("train; save; crash; restart afresh", "'restart afresh' needs resume=..., with a"),
        ("train; save; crash; restart no_buffer", "'restart no_buffer' needs no_buffer=..., words"),
        ("train; save; crash; restart with prompts 20", "give the command a {prompts}"),
    ],
)
def test_what_a_command_cant_be_told_is_told_to_who_asks(script, lacking):
    with pytest.raises(TypeError, match=re.escape(lacking)):
        odd("Training", script)


def test_the_sizes_of_a_named_timeline_have_to_be_told_too():
    with pytest.raises(TypeError, match=r"give the command a \{max_age\}"):
        run(train("new"), "dropped", setup=Setup(prompts=20, max_age=1))


def test_sizes_are_told_to_the_command():
    script = "train; save; crash; restart with prompts 40"
    assert run(train("new"), script, setup=SETUP).verdict == "lossless"


def test_a_refusal_is_known_by_what_it_prints():
    script = "train; crash; restart"  # with one save behind the step, and no older one
    report = odd("Refuses", script, refuses="another world")
    assert report.verdict == "refused"
    assert odd("Refuses", script).verdict == "error"


def test_a_checkpoint_that_nobody_has_saved_cant_be_restored():
    report = odd("SaysAnother", SAVED)
    assert report.verdict == "error"
    assert "'77.json', which no save of this run has written" in str(report)


def test_who_does_not_say_that_it_resumes_has_begun_afresh():
    report = odd("ForgetsToSay", SAVED)
    assert report.verdict == "lossy"
    assert report.skipped == [*range(8)]


@pytest.mark.parametrize("name", ["ByALink", "ByAFile", "FromItsDirectory"])
def test_a_checkpoint_is_known_by_whatever_leads_to_it(name):
    report = odd(name, "train; save; crash; restart")
    assert (report.verdict, report.history.lives[1].origin) == ("lossless", 2)


def test_it_goes_on_from_one_checkpoint():
    report = odd("RestoresTwo", SAVED)
    assert report.verdict == "error"
    assert "restored('8.json') comes after restored('4.json'): report the one" in str(report)


def test_a_checkpoint_may_be_made_a_legacy_one():
    def downgrade(checkpoint: Path) -> None:
        checkpoint.write_text("0")

    script = "train; save; downgrade; crash; restart"
    report = odd("Training", script, downgrade=downgrade, legacy_warning="nothing like it")
    # All is trained once more, and no warning is given.
    assert report.verdict == "lossy"
    assert report.duplicated == [*range(8)]
    assert [finding.text for finding in report.findings] == [
        "trained more than once",
        "life 2 descends from a legacy checkpoint and gave no warning that matches "
        "'nothing like it'",
    ]


# --- its weights --------------------------------------------------------------------------------


def test_the_counts_may_ride_in_its_weights():
    pytest.importorskip("torch", reason="a torch module")
    assert odd("InTorch", SAVED).verdict == "lossless"
    lost = odd("LosesWeights", SAVED)
    assert lost.verdict == "lossy"
    assert lost.skipped == [*range(8)]


# --- what is wrong with a command ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"command": ""}, "it has no words"),
        ({"command": "python train.py {out}"}, "there is no {out}; there are {checkpoints}, {pr"),
        ({"command": "find . -exec {}"}, "there is no {}; there are {checkpoints}, {prompts}, "),
        ({"command": "python {prompts:x}{batch_size:%}y {seed"}, "braces are written {{ }}"),
        ({"command": "python {prompts:nonsense}"}, "can't be filled in: Invalid format spec"),
        ({"command": "python a\0b"}, "has a NUL"),
        ({"command": "python", "environment": {"SIZE": 2}}, "'SIZE': 2 is none: both are texts"),
        ({"command": "python", "environment": {"A=B": "2"}}, "the name without ="),
        ({"command": "python {"}, "braces are written {{ }}"),
        ({"command": "python 'train.py"}, "No closing quotation"),
        ({"command": ["python", 3]}, "is a line or a list of words"),
        ({"command": "python", "resume": "--resume"}, "has no {checkpoint}, which it is for"),
        ({"command": "python", "no_buffer": "{checkpoint}"}, "there is no {checkpoint}"),
        ({"command": "python", "refuses": "("}, "is no pattern"),
        ({"command": "python", "delivery": "twice"}, "delivery is one of"),
    ],
)
def test_a_wrong_command(arguments, said):
    with pytest.raises((ValueError, TypeError), match=re.escape(said)):
        Command(**arguments)


def test_a_command_that_is_not_there():
    with pytest.raises(TypeError, match="the command 'trian' is not found"):
        run(Command("trian --now"), "drain")
    with pytest.raises(TypeError, match="there is no directory /nowhere to run the command in"):
        run(Command("python x.py", directory="/nowhere"), "drain")


def test_a_row_that_is_none():
    report = odd("TooFar", SAVED)
    assert report.verdict == "error"
    assert "row 100 is outside of the data set, which has 16 prompts: give the audit" in str(report)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("mask", "one of the rows is True, and has to be a whole number"),
        ("word", "one of the rows is '0', and has to be a whole number"),
        ("one", "rows are given as a list, or whatever else can be gone through: not 3"),
        ("step", "step is '1', and has to be a whole number"),
        ("too-few", "generations= has 1 entries for 2 rows"),
        ("generation", "generation 5 of row 0 is outside of its group, which has 1: give the"),
        ("no-reason", "dropped() needs a reason"),
        ("saved-alone", "saved('1') comes without saving('1')"),
        ("saves-at-once", "saving('2') comes before saved('1'): report one save after the other"),
        ("far-hold", "row 99 is outside of the data set"),
        ("odd-hold", "row is 'a', and has to be a whole number"),
        ("no-name", "expected str, bytes or os.PathLike object, not NoneType"),
        ("odd-reason", "expected str, bytes or os.PathLike object, not int"),
        ("goes-back", "restored('0.json') comes after training steps"),
    ],
)
def test_a_wrong_report_is_an_error_whatever_the_script_makes_of_it(wrong, said):
    command = Command(f"python odd.py Reports {{checkpoints}} {wrong}", directory=SCRIPTS)
    report = run(command, SAVED, deadline=20)
    assert report.verdict == "error"
    assert said in str(report.error)


def test_a_report_may_come_in_the_middle_of_another():
    assert odd("ReportsInAHandler", SAVED).verdict == "lossless"


def test_step_numbers_may_begin_anew():
    report = odd("CountsAnew", "train 3; crash; restart")
    assert report.verdict == "lossless"
    assert report.history.lives[0].ordinals("trained") == set(range(12))


def test_who_says_nothing_keeps_no_other_out():
    assert odd("Connects", SAVED).verdict == "lossless"


def test_a_closed_connection_is_no_good_end():
    report = odd("ClosesAll", SAVED)
    assert report.verdict == "error"
    assert "the connection to the audit is closed: the audit has ended, or the script" in str(
        report
    )


def test_only_a_command_has_its_life():
    with pytest.raises(TypeError, match="'command' is the life of a Command"):
        run(FuturesCollector, "drain", life="command")


# --- in a test ----------------------------------------------------------------------------------

TEST = """
import pytest
from pytest_resume_audit import Command, Setup

{way} = Command(
    "python train.py --out {{checkpoints}} --prompts {{prompts}} --way {way}", directory={scripts!r}
)

@pytest.mark.resume_audit({way}, setup=Setup(prompts=32){more})
def test_it(resume_audit):
    resume_audit()
"""


def test_a_marker_has_the_timelines_that_a_command_can_be_told(pytester):
    pytester.makepyfile(TEST.format(way="new", scripts=str(SCRIPTS), more=""))
    result = pytester.runpytest("--resume-audit-life", "process")
    # Neither `restart from 0` nor `restart no_buffer`, which need words.
    result.assert_outcomes(passed=10)


def test_a_marker_that_asks_for_more_is_a_usage_error(pytester):
    more = ', timelines="train; save; crash; restart no_buffer"'
    pytester.makepyfile(TEST.format(way="new", scripts=str(SCRIPTS), more=more))
    result = pytester.runpytest()
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines(["*'restart no_buffer' needs no_buffer=..., words to begin with*"])


def test_a_failing_command_is_replayed(pytester):
    more = ', timelines="train; save; crash; restart"'
    pytester.makepyfile(TEST.format(way="old", scripts=str(SCRIPTS), more=more))
    result = pytester.runpytest()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "E *collector: Command('python train.py --out {checkpoints} --prompts {prompts}...')",
            'E *replay: pytest "*::test_it*"',
        ]
    )


@pytest.mark.parametrize("life", ["local", "process"])
def test_a_command_has_no_other_life(pytester, life):
    pytester.makepyfile(TEST.format(way="new", scripts=str(SCRIPTS), more=f', life="{life}"'))
    result = pytester.runpytest()
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines(["*life: 'command' is the life of a Command(*"])
