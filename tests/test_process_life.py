"""Lives in processes of their own: a crash kills them, and everything else is as in any life."""

from __future__ import annotations

import contextlib
import importlib
import io
import multiprocessing
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import dying
import menagerie
import pytest
from test_inside_a_save import IN_PLACE, InPlace
from test_repeatable import COLLECTORS, SCRIPT

from pytest_resume_audit import (
    FrontierCollector,
    FuturesCollector,
    LiveCursorCollector,
    Setup,
    run,
    workspace,
)
from pytest_resume_audit.catalogue import NAMED
from pytest_resume_audit.control import Control
from pytest_resume_audit.lives.nursery import Nursery, _end_orphans, nursery_of
from pytest_resume_audit.lives.process import LifeDied, ProcessLife
from pytest_resume_audit.lives.processes import children_of, processes_below
from pytest_resume_audit.lives.server import RigServer
from pytest_resume_audit.numbering import Numbering
from pytest_resume_audit.rig import Rig
from pytest_resume_audit.verdict import AuditReport

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="it is watched through /proc"
)

ONE_STEP = "hand_out 4; finish 0-3; train; save; crash; restart"


def in_process(collector: Any, script: str, **options: Any) -> AuditReport:
    return run(collector, script, life="process", **options)


# --- the same as in any life --------------------------------------------------------------------


@pytest.mark.parametrize("collector", [FrontierCollector, LiveCursorCollector])
@pytest.mark.parametrize("name", NAMED)
def test_a_named_timeline_has_the_history_that_it_has_here(name, collector):
    there, here = in_process(collector, name), run(collector, name)
    assert there.history.lines() == here.history.lines()
    assert (there.verdict, there.skipped) == (here.verdict, here.skipped)
    assert there.unreached == here.unreached
    assert there.rest == "proc"


@pytest.mark.parametrize("collector", [kind for kind in COLLECTORS if kind is not menagerie.Queues])
def test_every_kind_of_collector_has_the_history_that_it_has_here(collector):
    there, here = in_process(collector, SCRIPT), run(collector, SCRIPT)
    told = [line for line in here.history.lines() if " dispatched " not in line]
    assert [line for line in there.history.lines() if " dispatched " not in line] == told
    assert (there.verdict, there.skipped) == (here.verdict, here.skipped)


@pytest.mark.parametrize(
    "script",
    [
        IN_PLACE.replace(" at {k}", ""),
        IN_PLACE.replace("at {k}", "torn each"),
        "hand_out 8; finish 0-3; train; save racing (finish 4; hand_out 12); crash; restart",
    ],
)
def test_a_killed_save_leaves_what_the_image_of_one_leaves(script):
    there, here = in_process(InPlace, script), run(InPlace, script)
    if "racing" not in script:  # a single thread here has no races, and a process has
        assert there.points == here.points
    assert len(there.points) > 2
    assert there.verdict == here.verdict


@pytest.mark.parametrize("collector", [FrontierCollector, LiveCursorCollector])
def test_every_point_of_a_save_is_the_same(collector):
    for script in (
        "hand_out 8; finish 0-3; train; save; hand_out 12; finish 4; crash in save; restart",
        "hand_out 8; finish 0-3; train; save; crash in save torn each; restart",
        "hand_out 8; finish 0-3; train; save racing (finish 4; hand_out 12); crash; restart",
    ):
        assert in_process(collector, script).points == run(collector, script).points


def test_weights_in_a_torch_module_are_counted_where_they_are():
    pytest.importorskip("torch", reason="a torch module")
    pytest.importorskip("torchdata", reason="its loader")
    from pytest_resume_audit.collectors.torch_parts import (
        TorchFrontierCollector,
        TorchLiveCursorCollector,
    )

    assert in_process(TorchLiveCursorCollector, "mid-flight").skipped == [5, 8, 9, 11]
    assert in_process(TorchFrontierCollector, "mid-flight").verdict == "lossless"


def test_sizes_may_change_from_life_to_life():
    script = "hand_out 8; finish 0-3; train; save; crash; restart with prompts 20; drain"
    assert in_process(LiveCursorCollector, script).skipped == [4, 5, 6, 7]
    assert in_process(FuturesCollector, script).verdict == "refused"


# --- how it ends --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("collector", "how"),
    [
        (dying.Exits, "exit status 3; it printed last:\n    about to exit"),
        (dying.Crashes, "killed by SIGSEGV; it printed last:\n    Fatal Python error"),
        (dying.RunsOutOfMemory, "killed by SIGKILL"),
        (dying.ExitsInThread, "exit status 4"),
        (dying.ExitsInInit, "exit status 5"),
        (dying.ExitsInRestore, "exit status 6"),
        (dying.ExitsInSave, "exit status 0"),
    ],
)
def test_a_life_that_dies_by_itself_is_reported_as_that(collector, how):
    report = in_process(collector, ONE_STEP)
    assert report.verdict == "error"
    assert isinstance(report.error, LifeDied)
    assert str(report.error).startswith(f"its process died by itself: {how}")


def test_an_exception_comes_with_its_traceback_from_there():
    report = in_process(dying.Raises, ONE_STEP)
    assert (report.verdict, type(report.error)) == ("error", KeyError)
    assert 'raise KeyError("no such step")' in str(report)


def test_an_exception_that_cant_travel_is_told_of():
    report = in_process(dying.RaisesWhatCantTravel, ONE_STEP)
    assert report.verdict == "error"
    assert str(report.error) == "Local: held here"


@pytest.mark.parametrize(
    ("collector", "said"),
    [
        (dying.RaisesLies, "found out"),
        (dying.RaisesWhatHasNoText, "HasNoText, which has no text: its __str__ raises"),
        (dying.RaisesWhatExits, "Exits9, which has no text: its __str__ raises"),
        (dying.RaisesItself, "ValueError, which has no text: its __str__ raises"),
        (dying.RaisesInThread, "HasNoText, which has no text: its __str__ raises"),
        (dying.ChoosesANumber, "expected str, bytes or os.PathLike object, not int"),
    ],
)
def test_an_exception_is_told_of_whatever_code_it_has(collector, said):
    report = in_process(collector, ONE_STEP)
    assert (report.verdict, str(report.error)) == ("error", said)
    assert said in str(report)


def test_of_an_exception_of_many_megabytes_a_part_is_told():
    report = in_process(dying.RaisesMuch, ONE_STEP)
    assert report.verdict == "error"
    assert str(report.error).startswith("ValueError: xxx")
    assert len(str(report)) < 1_000_000


def test_a_refusal_is_one_though_its_exception_takes_more_than_it_keeps():
    report = in_process(dying.RefusesWithTwo, ONE_STEP)
    assert (report.verdict, str(report.findings[0].text)) == (
        "refused",
        run(dying.RefusesWithTwo, ONE_STEP).findings[0].text,
    )


@pytest.mark.parametrize(
    ("collector", "said"),
    [
        (dying.Spins, "no rest within"),
        (dying.HoldsTheInterpreter, "its process does not answer"),
        (dying.WaitsInSave, "save does not return"),
        (dying.WaitsInStop, "stop does not return"),
    ],
)
def test_a_life_that_comes_to_no_end_hangs_and_is_killed(collector, said):
    script = ONE_STEP.replace("crash", "stop") if collector is dying.WaitsInStop else ONE_STEP
    report = in_process(collector, script, deadline=1)
    assert report.verdict == "hang"
    assert said in report.findings[0].text
    assert living(nursery_of("dying")._process.pid) == []


def test_where_a_life_hangs_is_told():
    (finding,) = in_process(dying.WaitsInSave, ONE_STEP, deadline=1).findings
    assert f"save ({dying.__file__}:" in finding.text


def test_a_stop_is_a_sigterm_that_the_collector_hears_of():
    report = in_process(dying.Stops, ONE_STEP.replace("crash", "stop"))
    assert report.verdict == "lossless"
    killed = in_process(dying.Stops, ONE_STEP)
    assert str(killed.error) == "'it was not stopped'" or "it was not stopped" in str(killed.error)


@pytest.mark.parametrize("collector", [dying.HearsElsewhere, dying.HearsElsewhereAfterALoop])
def test_a_stop_is_heard_of_whichever_thread_the_system_gives_the_signal_to(collector):
    report = in_process(collector, ONE_STEP.replace("crash", "stop"), deadline=5)
    assert report.verdict == "lossless", report


def test_a_stop_may_end_a_life_with_the_status_of_a_sigterm():
    report = in_process(dying.EndsAsShellsDo, ONE_STEP.replace("crash", "stop"))
    assert report.verdict == "lossless", report


def test_a_handler_that_keeps_a_stop_from_the_collector_is_told_of():
    report = in_process(dying.OnlyNotes, ONE_STEP.replace("crash", "stop"), deadline=2)
    assert report.verdict == "hang"
    assert "; SIGTERM is handled by OnlyNotes.note of dying, so that" in report.findings[0].text


@pytest.mark.parametrize("life", ["local", "process"])
def test_a_step_that_waits_for_another_process_is_no_hang(life):
    setup = Setup(prompts=8)
    report = run(dying.WaitsForAWorker, ONE_STEP, setup=setup, life=life)
    assert (report.verdict, report.skipped, report.gated) == ("lossless", [], True), report


AT_IMPORT = """
import os, signal
from pytest_resume_audit import FuturesCollector

{at_import}

class AsItWasImported(FuturesCollector):
    def start(self):
        assert {holds}
        super().start()
"""

REAPS = """
def reap(number, frame):
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass

signal.signal(signal.SIGCHLD, reap)
"""
IGNORES = "signal.signal(signal.SIGCHLD, signal.SIG_IGN)"


@pytest.mark.parametrize("at_import", [REAPS, IGNORES], ids=["reaps", "ignores"])
def test_a_module_may_see_to_its_children_from_its_import_on(at_import, tmp_path, monkeypatch):
    holds = "signal.getsignal(signal.SIGCHLD) != signal.SIG_DFL"
    collector = imported_with(at_import, holds, tmp_path, monkeypatch)
    report = in_process(collector, ONE_STEP.replace("crash", "stop"))
    assert report.verdict == "lossless", report


def test_a_timer_that_a_module_sets_runs_in_every_life(tmp_path, monkeypatch):
    sets = "signal.setitimer(signal.ITIMER_REAL, 1000)"
    holds = "signal.getitimer(signal.ITIMER_REAL)[0] > 0"
    collector = imported_with(sets, holds, tmp_path, monkeypatch)
    report = in_process(collector, ONE_STEP)
    assert report.verdict == "lossless", report


def imported_with(at_import: str, holds: str, directory: Path, monkeypatch: Any) -> Any:
    """A collector whose module does something to its process; this one stays as it was."""
    name = f"at_import_{directory.name}"
    (directory / f"{name}.py").write_text(AT_IMPORT.format(at_import=at_import, holds=holds))
    monkeypatch.syspath_prepend(directory)
    before = signal.getsignal(signal.SIGCHLD)
    try:
        return importlib.import_module(name).AsItWasImported
    finally:
        signal.signal(signal.SIGCHLD, before)
        signal.setitimer(signal.ITIMER_REAL, 0)


def test_whoever_audits_may_be_one_that_ignores_the_ends_of_children(tmp_path):
    """As a daemon may, which hands it on to what it starts."""
    code = (
        "import signal\n"
        "signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
        "from pytest_resume_audit import FuturesCollector, run\n"
        f"script = {ONE_STEP.replace('crash', 'stop')!r}\n"
        "print(run(FuturesCollector, script, life='process').verdict)\n"
    )
    path = os.pathsep.join(filter(None, sys.path))
    env = {**os.environ, "PYTHONPATH": path}
    ended = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60
    )
    assert ended.stdout == "lossless\n", ended.stderr


def test_what_a_life_prints_is_printed_here(capsys):
    report = in_process(dying.LeavesAProcess, ONE_STEP)
    assert report.verdict == "lossless"
    started = [int(pid) for pid in re.findall(r"started (\d+)", capsys.readouterr().out)]
    # The uninterrupted run, and two lives; each ends with all that it has started.
    assert len(started) == 3
    wait_until(lambda: not any(is_running(pid) for pid in started))


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_life_that_goes_on_as_a_daemon_has_died():
    report = in_process(dying.BecomesADaemon, ONE_STEP)
    assert str(report.error) == "its process died by itself: exit status 3"


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_save_is_killed_though_a_fork_keeps_its_connection_open():
    script = ONE_STEP.replace("save; crash", "crash in save at 1")
    report = in_process(dying.LeavesAFork, script)
    here = run(FuturesCollector, script)
    assert (report.verdict, [save.died_at for save in report.history.saves]) == (
        here.verdict,
        [save.died_at for save in here.history.saves],
    )


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_worker_can_be_ended():
    assert in_process(dying.EndsAWorker, ONE_STEP).verdict == "lossless"


def test_a_life_that_ends_with_the_process_that_forks_is_reported_as_that():
    report = in_process(dying.KillsWhoBeganIt, ONE_STEP)
    assert str(report.error) == "its process died by itself: killed by SIGKILL"
    assert in_process(dying.ReturnsWhatCantTravel, ONE_STEP).verdict == "lossless"


def test_names_that_are_no_files_survive():
    # As after a real crash the name is there, and can't be made anew.
    report = in_process(dying.LeavesAPipe, ONE_STEP + "; hand_out 8; finish 4-7; train; save")
    assert report.verdict == "error"
    assert isinstance(report.error, FileExistsError)


def test_what_a_life_prints_fits_any_output(monkeypatch):
    printed = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(printed, encoding="ascii"))
    assert in_process(dying.PrintsAnAccent, ONE_STEP).verdict == "lossless"
    sys.stdout.flush()
    assert b"d\\xe9j\\xe0 vu" in printed.getvalue()


# --- faults that a death brings about -----------------------------------------------------------


def test_what_is_in_a_buffer_dies_with_the_process():
    # The weights have 0-3, and the place behind them was never written: it begins at 0.
    report = in_process(dying.NeverFlushes, ONE_STEP)
    assert (report.verdict, report.skipped, report.duplicated) == ("lossy", [], [0, 1, 2, 3])
    stopped = in_process(dying.NeverFlushes, ONE_STEP.replace("crash", "stop"))
    assert stopped.verdict == "lossless"


def test_what_is_in_a_global_dies_with_the_process():
    report = in_process(dying.InAGlobal, ONE_STEP)
    assert (report.verdict, report.skipped, report.duplicated) == ("lossy", [], [0, 1, 2, 3])
    # As an object of this process it finds what the life before has left there.
    assert run(dying.InAGlobal, ONE_STEP).verdict == "lossless"


def test_a_place_that_is_written_before_the_weights_is_ahead_of_them():
    # The second save dies with the place 8 written, and the weights that have 0-3 still there.
    script = (
        "hand_out 4; finish 0-3; train; save; "
        "hand_out 8; finish 4-7; train; crash in save at 2; restart"
    )
    report = in_process(dying.InOrder, script)
    assert [save.died_at for save in report.history.saves] == ["", "open step-1/weights"]
    assert (report.verdict, report.skipped, report.duplicated) == ("lossy", [4, 5, 6, 7], [])
    assert in_process(dying.InOrder, script.replace(" in save at 2", "")).verdict == "lossless"


# --- nothing stays behind -----------------------------------------------------------------------


def living(nursery: int) -> list[int]:
    """The lives that it has begun: each is in a session of its own, unlike the one to spare."""
    found = []
    for pid in children_of(nursery):
        with contextlib.suppress(ProcessLookupError):
            found += [pid] if os.getsid(pid) == pid else []
    return found


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def wait_until(condition, seconds: float = 10) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.01)


def test_no_process_stays_behind_a_run():
    in_process(FuturesCollector, "mid-flight")
    assert living(nursery_of("pytest_resume_audit.collectors.futures")._process.pid) == []


LIVES = 500 if int(os.environ.get("RESUME_AUDIT_EVERY", "29")) <= 29 else 50
"""Played in a row: fewer where all is played several times."""

FIVE_LIVES = "hand_out 4; finish 0-3; train; save; " + "crash; restart; " * 4 + "drain"


def held_by_this_process() -> tuple[list[int], int, int]:
    """Processes below it, files and sockets open in it, threads."""
    files = len(os.listdir("/proc/self/fd"))
    return processes_below(os.getpid()), files, threading.active_count()


def test_many_lives_in_a_row_leave_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setattr(workspace, "_memory", lambda: str(tmp_path))
    in_process(FuturesCollector, FIVE_LIVES)
    before = held_by_this_process()
    for _ in range(LIVES // 5):
        assert in_process(FuturesCollector, FIVE_LIVES).verdict == "lossless"
    # Threads that served the last life end once they have read that it is over.
    wait_until(lambda: holds_no_more_than(before))
    assert list(tmp_path.iterdir()) == []


MANY = """
import sys
from pytest_resume_audit import FuturesCollector, run, workspace

workspace._memory = lambda: sys.argv[1]
for _ in range(4):
    assert run(FuturesCollector, {script!r}, life="process").verdict == "lossless"
"""


def test_lives_of_several_audits_at_once_leave_nothing_behind(tmp_path):
    words = [sys.executable, "-c", MANY.format(script=FIVE_LIVES), str(tmp_path)]
    before = processes_below(os.getpid())
    audits = [subprocess.Popen(words) for _ in range(8)]
    assert [audit.wait(120) for audit in audits] == [0] * 8
    assert set(processes_below(os.getpid())) <= set(before)
    assert list(tmp_path.iterdir()) == []


KILLED = """
import os
import signal
from pytest_resume_audit import run
import dying

# Who is started in the background of a shell may have been told to ignore it.
signal.signal(signal.SIGINT, signal.default_int_handler)

class Tells(dying.Spins):
    pass

if __name__ == "__main__":
    from pytest_resume_audit.lives.nursery import nursery_of
    print(nursery_of("dying")._process.pid, flush=True)
    run(dying.Spins, "hand_out 4; finish 0-3; train", life="process", deadline=60)
"""


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_no_process_stays_behind_one_that_is_killed(sign, tmp_path):
    (tmp_path / "killed.py").write_text(KILLED)
    path = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    auditor = subprocess.Popen(
        [sys.executable, str(tmp_path / "killed.py")],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": path},
        text=True,
    )
    with auditor:
        assert auditor.stdout is not None
        nursery = int(auditor.stdout.readline())
        wait_until(lambda: living(nursery))
        begun = children_of(nursery)
        auditor.send_signal(sign)
        auditor.wait()
    wait_until(lambda: not any(map(is_running, [nursery, *begun])))


def test_a_process_for_the_next_life_may_be_killed():
    in_process(FuturesCollector, ONE_STEP)
    nursery = nursery_of("pytest_resume_audit.collectors.futures")
    wait_until(lambda: children_of(nursery.pid))
    (spare,) = children_of(nursery.pid)
    os.kill(spare, signal.SIGKILL)
    wait_until(lambda: not is_running(spare))
    assert in_process(FuturesCollector, ONE_STEP).verdict == "lossless"
    wait_until(lambda: len(children_of(nursery.pid)) == 1)
    assert spare not in children_of(nursery.pid)


@pytest.mark.parametrize("ends", ["crash", "crash in save at 2", "stop"])
def test_what_cleans_up_shared_memory_is_not_killed(ends):
    report = in_process(dying.SharesMemory, ONE_STEP.replace("crash", ends))
    assert report.verdict == "lossless", report
    assert not Path(f"/dev/shm/shared-{nursery_of('dying').pid}").exists()


def test_what_may_not_be_killed_is_not_tried_for_ever(monkeypatch):
    tried = []

    def of_another_user(pid: int, sign: int) -> None:
        tried.append(pid)
        raise PermissionError

    monkeypatch.setattr("pytest_resume_audit.lives.nursery.children_of", lambda _: [1, 2])
    monkeypatch.setattr(os, "kill", of_another_user)
    _end_orphans()
    assert sorted(tried) == [1, 2]


def test_a_life_that_is_killed_before_it_begins_is_told_of_at_once(monkeypatch):
    def killed(self: Nursery, *payload: Any, **more: Any) -> int:
        pid = fork(self, *payload, **more)
        os.kill(pid, signal.SIGKILL)
        return pid

    def silent(self: Any, *words: Any) -> None:
        """It may have begun before it is killed: then nobody hears of it."""

    fork = Nursery.fork
    monkeypatch.setattr(Nursery, "fork", killed)
    monkeypatch.setattr(ProcessLife, "_hear", silent)
    report = in_process(FuturesCollector, ONE_STEP)
    assert report.verdict == "error"
    assert str(report.error) == "its process does not begin: killed by SIGKILL"
    monkeypatch.undo()
    assert in_process(FuturesCollector, ONE_STEP).verdict == "lossless"


def test_the_next_lives_begin_with_less_where_the_nursery_dies_of_learning(monkeypatch):
    nursery_of("pytest_resume_audit.collectors.futures").close()
    learnt: list[int] = []

    def learn(self: Nursery, modules: Any) -> None:
        os.kill(self.pid, signal.SIGKILL)
        learnt.append(self.pid)
        whole(self, modules)

    whole = Nursery.learn
    monkeypatch.setattr(Nursery, "learn", learn)
    assert in_process(FuturesCollector, ONE_STEP).verdict == "lossless"
    assert learnt


CANT_FORK = """
import os, sys
from pytest_resume_audit import FuturesCollector

if "pytest_resume_audit.lives.nursery" in sys.orig_argv:
    fork, asked = os.fork, []

    def fork_or_fail():
        asked.append(True)
        if len(asked) == {fails}:
            raise BlockingIOError("too many processes")
        return fork()

    os.fork = fork_or_fail

class Forked(FuturesCollector):
    pass
"""


@pytest.mark.parametrize("fails", [1, 2])
def test_a_fork_that_fails_ends_no_other_life(fails, tmp_path, monkeypatch):
    # The first fork is the first life, the second one waits to be the next.
    name = f"cant_fork_number_{fails}"
    (tmp_path / f"{name}.py").write_text(CANT_FORK.format(fails=fails))
    monkeypatch.syspath_prepend(tmp_path)
    collector = importlib.import_module(name).Forked
    report = in_process(collector, ONE_STEP)
    if fails == 1:
        assert "too many processes" in str(report.error)
    else:
        assert report.verdict == "lossless"
    assert in_process(collector, ONE_STEP).verdict == "lossless"


@pytest.mark.parametrize("at", ["forks", "waits"])
def test_nothing_stays_behind_one_that_is_broken_off(at, tmp_path, monkeypatch):
    monkeypatch.setattr(workspace, "_memory", lambda: str(tmp_path))
    in_process(FuturesCollector, ONE_STEP)
    before = held_by_this_process()
    nursery = nursery_of("pytest_resume_audit.collectors.futures")
    asked: list[str] = []

    def ask(self: Nursery, request: tuple[Any, ...], timeout: float = 30.0) -> Any:
        asked.append(request[0])
        if self is nursery and asked.count("fork") == 1 and request[0] == at[:-1]:
            # Ctrl-C, when it has been told, and its answer has not been read.
            monkeypatch.setattr(self, "_connection", Interrupts(self._connection))
        return whole(self, request, timeout)

    whole = Nursery._ask
    monkeypatch.setattr(Nursery, "_ask", ask)
    with pytest.raises(KeyboardInterrupt):
        in_process(FuturesCollector, ONE_STEP.replace("4", "5"))
    monkeypatch.undo()
    assert in_process(FuturesCollector, ONE_STEP).verdict == "lossless"
    wait_until(lambda: holds_no_more_than(before))
    assert list(tmp_path.iterdir()) == []


class Interrupts:
    """A connection over which nothing more is heard."""

    def __init__(self, connection: Connection) -> None:
        self.send_bytes, self.close = connection.send_bytes, connection.close

    def poll(self, timeout: float) -> bool:
        raise KeyboardInterrupt


def holds_no_more_than(before: tuple[list[int], int, int]) -> bool:
    """What earlier tests have left may have gone since."""
    processes, files, threads = held_by_this_process()
    return len(processes) <= len(before[0]) and files <= before[1] and threads <= before[2]


def test_a_long_path_for_temporary_files_is_none_for_sockets(tmp_path, monkeypatch):
    long = tmp_path / ("long" * 30)
    long.mkdir()
    monkeypatch.setitem(multiprocessing.current_process()._config, "tempdir", str(long))
    assert in_process(FuturesCollector, ONE_STEP).verdict == "lossless"


def test_a_server_that_accepts_nobody_any_more_can_be_closed():
    control = Control(Setup(), Numbering())
    server = RigServer(Rig(Setup(), control), control, lambda connection, words: None)
    (accepts,) = [t for t in threading.enumerate() if t.name == "resume-audit server"]
    # One who goes away in the middle of being let in, just as the life is over.
    server._over = True
    with socket.socket(socket.AF_UNIX) as leaves:
        leaves.connect(server.address)
    accepts.join(10)
    assert not accepts.is_alive()
    closes = threading.Thread(target=server.close, daemon=True)
    closes.start()
    closes.join(10)
    assert not closes.is_alive()


# --- how it is chosen ---------------------------------------------------------------------------

TEST = """
import pytest
from collectors_of_this_test import {name}

@pytest.mark.resume_audit({name}, timelines="mid-flight"{more})
def test_it(resume_audit):
    resume_audit()
"""


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makepyfile(
        collectors_of_this_test="from dying import OfThisProcess\n"
        "from pytest_resume_audit import FrontierCollector, LiveCursorCollector\n"
    )
    return pytester


def test_a_marker_chooses_the_life(project):
    project.makepyfile(TEST.format(name="FrontierCollector", more=', life="process"'))
    project.runpytest("-W", "error").assert_outcomes(passed=1)


def test_the_command_line_chooses_the_life_and_a_replay_names_it(project):
    project.makepyfile(test_it=TEST.format(name="LiveCursorCollector", more=""))
    result = project.runpytest("--resume-audit-life", "process")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ['E *replay: pytest --resume-audit-life process "test_it.py::test_it[[]mid-flight[]]"']
    )


def test_a_collector_that_has_no_such_life_is_left_out_or_told_of(project):
    project.makepyfile(TEST.format(name="OfThisProcess", more=""))
    result = project.runpytest("--resume-audit-life", "process", "-rs")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["*OfThisProcess has no life 'process': its lives are ('local',)"])
    project.makepyfile(TEST.format(name="OfThisProcess", more=', life="process"'))
    assert project.runpytest().ret == pytest.ExitCode.INTERRUPTED


def test_a_life_that_is_none_is_told_of(project):
    result = project.runpytest("--resume-audit-life", "proces")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        [
            "*--resume-audit-life: 'proces' is unknown, did you mean 'process'? "
            "*local, process, ray, ray-driver, command"
        ]
    )
    with pytest.raises(TypeError, match="life is one of 'local', 'process'"):
        run(FuturesCollector, "drain", life="rey")  # type: ignore[arg-type]


def test_a_collector_that_cant_be_imported_is_told_of():
    class Local(FuturesCollector):
        pass

    with pytest.raises(TypeError, match="put it at the top of a module"):
        in_process(Local, "drain")
    with pytest.raises(TypeError, match="put it at the top of a module"):
        in_process(lambda rig: FuturesCollector(rig), "drain")


def test_a_factory_at_the_top_of_a_module_is_imported():
    assert in_process(make_frontier, "mid-flight").verdict == "lossless"


def make_frontier(rig):
    return FrontierCollector(rig)


def test_a_limit_and_several_generations_hold_there_too():
    setup = Setup(prompts=17, prompts_per_step=3, group_size=2, max_in_flight=6)
    assert in_process(FrontierCollector, "uneven", setup=setup).verdict == "lossless"


# --- what a life may do -------------------------------------------------------------------------


def test_a_life_that_dies_while_it_is_stopped_is_reported_as_that():
    report = in_process(dying.ExitsInStop, ONE_STEP.replace("crash", "stop"))
    assert str(report.error) == "its process died by itself: exit status 5"


def test_a_life_that_becomes_another_program_is_reported_as_that():
    report = in_process(dying.BecomesAnother, ONE_STEP)
    assert "became another program" in str(report.error)
    # The next one has what it needs.
    assert in_process(dying.ReturnsWhatCantTravel, ONE_STEP).verdict == "lossless"


def test_a_session_of_its_own_ends_with_the_life(capsys):
    assert in_process(dying.LeavesASession, ONE_STEP).verdict == "lossless"
    started = [int(pid) for pid in re.findall(r"started (\d+)", capsys.readouterr().out)]
    assert len(started) == 3
    wait_until(lambda: not any(is_running(pid) for pid in started))


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_the_rig_works_in_a_fork():
    assert in_process(dying.AsksInAFork, ONE_STEP).verdict == "lossless"


def test_a_class_that_cant_be_imported_is_told_of_by_name():
    report = in_process(dying.make_local, ONE_STEP)
    assert report.verdict == "error"
    assert "make_local.<locals>.Local can't be found by its name" in str(report.error)


def test_a_life_has_the_directory_and_the_environment_of_its_test(tmp_path, monkeypatch, capsys):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        monkeypatch.setenv("RUN", name)
        in_process(dying.TellsItsPlace, "drain")
        assert f"in {tmp_path / name} with {name}" in capsys.readouterr().out


def test_a_life_has_the_collector_as_it_is_now(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    skipped = []
    for way in ("FrontierCollector", "LiveCursorCollector"):
        (tmp_path / "written_anew.py").write_text(
            f"from pytest_resume_audit import {way}\nclass Written({way}):\n    pass\n"
        )
        monkeypatch.delitem(sys.modules, "written_anew", raising=False)
        written = importlib.import_module("written_anew").Written
        skipped.append(in_process(written, "mid-flight").skipped)
    assert skipped == [[], [5, 8, 9, 11]]


def test_a_life_has_the_path_as_it_is_now(tmp_path, monkeypatch):
    late = tmp_path / "late"
    late.mkdir()
    (late / "found_late.py").touch()
    (tmp_path / "finds.py").write_text(
        "from pytest_resume_audit import FuturesCollector\n"
        "class Finds(FuturesCollector):\n"
        "    def start(self):\n"
        "        import found_late\n"
        "        super().start()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    finds = importlib.import_module("finds").Finds
    assert "No module named 'found_late'" in str(in_process(finds, ONE_STEP).error)
    monkeypatch.syspath_prepend(late)
    assert in_process(finds, ONE_STEP).verdict == "lossless"


IN_A_LOOP = """
import asyncio, threading
from pytest_resume_audit import LiveCursorCollector

{imports}

class InALoop(LiveCursorCollector):
    def start(self):
        {late}
        super().start()

    def save(self, root, step):
        from {package}.at_import import LOOP

        async def save():
            super(InALoop, self).save(root, step)

        asyncio.run_coroutine_threadsafe(save(), LOOP).result()
"""

LOOP = """
import asyncio, threading

LOOP = asyncio.new_event_loop()
threading.Thread(target=LOOP.run_forever, daemon=True).start()
"""


@pytest.mark.parametrize("imported", ["ahead", "late"])
def test_threads_that_a_module_begins_are_there_in_every_life(imported, tmp_path, monkeypatch):
    # A fork has none of the threads of the process that has imported the module.
    package = tmp_path / f"loop_{imported}"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "at_import.py").write_text(LOOP)
    lines = [f"from {package.name} import at_import", "pass"]
    imports, late = lines if imported == "ahead" else reversed(lines)
    text = IN_A_LOOP.format(imports=imports, late=late, package=package.name)
    (package / "collector.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    collector = importlib.import_module(f"{package.name}.collector").InALoop
    for _ in range(2):
        report = in_process(collector, "mid-flight", deadline=10)
        assert (report.verdict, report.skipped) == ("lossy", [5, 8, 9, 11])


PROCESS = """
import subprocess
from pytest_resume_audit import FuturesCollector

CAT = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

class AsksAProcess(FuturesCollector):
    def save(self, root, step):
        CAT.stdin.write(b"saved\\n")
        CAT.stdin.flush()
        assert CAT.stdout.readline() == b"saved\\n"
        super().save(root, step)
"""


def test_processes_that_a_module_begins_are_there_in_every_life(tmp_path, monkeypatch):
    (tmp_path / "asks_a_process.py").write_text(PROCESS)
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("asks_a_process")
    with module.CAT:
        assert in_process(module.AsksAProcess, FIVE_LIVES).verdict == "lossless"


@pytest.mark.parametrize("raised", ["SystemExit(4)", "EOFError('no more')"])
def test_a_module_that_raises_there_is_named(raised, tmp_path, monkeypatch):
    name = f"raises_{raised.partition('(')[0]}"
    (tmp_path / f"{name}.py").write_text(
        "import sys\n"
        "from pytest_resume_audit import FuturesCollector\n"
        "class Imported(FuturesCollector):\n"
        "    pass\n"
        "if 'pytest_resume_audit.lives.nursery' in sys.orig_argv:\n"
        f"    raise {raised}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    report = in_process(importlib.import_module(name).Imported, ONE_STEP)
    error = eval(raised)
    said = f"the collector's module {name!r} raised {type(error).__name__}: {error}"
    assert (report.verdict, said in str(report.error)) == ("error", True)


def test_few_nurseries_are_kept():
    modules = ["json", "csv", "uuid", "cmd"]
    found = [nursery_of(module) for module in modules]
    assert [nursery.alive for nursery in found] == [False, True, True, True]
    assert nursery_of("cmd") is found[-1]


def test_a_nursery_with_a_life_in_it_is_kept(tmp_path):
    used = nursery_of("json")
    where = {"output": str(tmp_path / "output"), "directory": str(tmp_path)}
    pid = used.run(["sleep", "60"], environment=dict(os.environ), **where)
    for module in ["csv", "uuid", "cmd"]:
        nursery_of(module)
    assert used.alive
    os.kill(pid, signal.SIGKILL)
    assert used.wait(pid) == -signal.SIGKILL
    nursery_of("sched")
    assert not used.alive


def test_threads_that_ask_at_once_share_a_nursery():
    before = processes_below(os.getpid())
    found: list[Nursery] = []
    together = threading.Barrier(4)

    def ask() -> None:
        together.wait()
        found.append(nursery_of("shelve"))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1
    assert {*processes_below(os.getpid())} - {*before} <= {found[0].pid, *children_of(found[0].pid)}


def test_a_nursery_that_another_thread_has_asked_for_is_kept():
    asked, goes_on = threading.Event(), threading.Event()
    found: list[Nursery] = []

    def ask() -> None:
        found.append(nursery_of("json"))
        asked.set()
        goes_on.wait()

    thread = threading.Thread(target=ask)
    thread.start()
    asked.wait()
    for module in ["csv", "uuid", "cmd"]:
        nursery_of(module)
    assert found[0].alive
    goes_on.set()
    thread.join()
    nursery_of("sched")
    assert not found[0].alive
