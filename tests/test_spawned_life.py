"""Lives in interpreters of their own, as on systems without fork or ``/proc``."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import dying
import menagerie
import pytest
from test_inside_a_save import IN_PLACE, InPlace
from test_process_life import ONE_STEP, held_by_this_process, is_running, wait_until

from pytest_resume_audit import FrontierCollector, LiveCursorCollector, Setup, play, run
from pytest_resume_audit.lives import server, spawned
from pytest_resume_audit.verdict import AuditReport

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="it looks at /proc itself")


@pytest.fixture(params=["posix", "bare"], autouse=True)
def system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """One without ``/proc``, and one without groups, signals and local sockets either."""
    monkeypatch.setattr(play, "has_proc", lambda: False)
    if request.param == "bare":
        monkeypatch.setattr(spawned, "_GROUPS", False)
        monkeypatch.setattr(server, "_ANY", (("127.0.0.1", 0), "AF_INET"))
    return str(request.param)


def spawn(collector: Any, script: str, **options: Any) -> AuditReport:
    return run(collector, script, life="process", **options)


def test_the_case_that_names_the_project():
    report = spawn(LiveCursorCollector, "mid-flight")
    assert (report.verdict, report.skipped) == ("lossy", [5, 8, 9, 11])
    assert "found out by frames: the same run may go differently" in str(report)
    assert spawn(FrontierCollector, "mid-flight").verdict == "lossless"


def test_one_that_polls_is_no_hang():
    """It is looked for long at each step, so that the script is short."""
    setup = Setup(prompts=4, batch_size=2, prompts_per_step=1)
    script = "hand_out 2; finish 0; save; crash; restart; drain"
    report = spawn(menagerie.EventPoller, script, setup=setup)
    assert (report.verdict, report.skipped) == ("lossy", [1])


def test_a_killed_save_leaves_what_the_image_of_one_leaves():
    script = IN_PLACE.replace("at {k}", "at 2")
    there, here = spawn(InPlace, script), run(InPlace, script)
    assert (there.verdict, there.skipped) == (here.verdict, here.skipped)


def test_a_save_can_be_raced():
    script = "hand_out 8; finish 0-3; train; save racing (finish 4; hand_out 12) at 2; drain"
    there, here = (spawn(FrontierCollector, script), run(FrontierCollector, script))
    assert there.history.lines() == here.history.lines()


def test_a_stop_is_heard_of():
    assert spawn(dying.Stops, ONE_STEP.replace("crash", "stop")).verdict == "lossless"


def test_a_life_that_dies_by_itself_is_reported_as_that():
    report = spawn(dying.Exits, ONE_STEP)
    said = "its process died by itself: exit status 3; it printed last:\n    about to exit"
    assert str(report.error) == said


def test_a_module_that_cant_be_imported_there_is_told_of(tmp_path, monkeypatch):
    (tmp_path / "once.py").write_text(
        "import os\n"
        "from pytest_resume_audit import FuturesCollector\n"
        "if os.environ.setdefault('LOADED_IN', str(os.getpid())) != str(os.getpid()):\n"
        "    raise ImportError('only once')\n"
        "class Once(FuturesCollector):\n"
        "    pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "once", raising=False)
    monkeypatch.setitem(os.environ, "LOADED_IN", str(os.getpid()))
    import once  # type: ignore[import-not-found]

    report = spawn(once.Once, "drain")
    assert report.verdict == "error"
    assert "its process does not begin" in str(report.error)
    assert "ImportError: only once" in str(report.error)


def test_a_life_that_comes_to_no_end_hangs_and_is_killed():
    report = spawn(dying.WaitsInSave, ONE_STEP, deadline=1)
    assert report.verdict == "hang"
    assert "save does not return" in report.findings[0].text


@linux
def test_nothing_stays_behind_a_run(capsys, system):
    processes, files, threads = held_by_this_process()
    kind = dying.LeavesAnotherProcess if system == "posix" else dying.TellsItsPlace
    assert spawn(kind, ONE_STEP).verdict == "lossless"
    started = [int(pid) for pid in re.findall(r"started (\d+)", capsys.readouterr().out)]
    # The uninterrupted run, and two lives; each group ends with all that its life has started.
    assert len(started) == (3 if system == "posix" else 0)
    wait_until(lambda: not any(map(is_running, started)))

    def no_more_than_before() -> bool:
        # What served the lives of another test may have been about to end.
        now = held_by_this_process()
        return {*now[0]} <= {*processes} and now[1] <= files and now[2] <= threads

    wait_until(no_more_than_before)


KILLED = """
from pytest_resume_audit import play, run
from pytest_resume_audit.lives import spawned
import dying
import menagerie
play.has_proc = lambda: False
spawned._GROUPS = {groups}
run(dying.TellsThatItTrains, "hand_out 4; finish 0-3; train", life="process", deadline=60)
"""


@linux
def test_a_life_ends_with_whoever_audits(tmp_path, system):
    (tmp_path / "killed.py").write_text(KILLED.format(groups=system == "posix"))
    path = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    told = tmp_path / "told"
    with subprocess.Popen(
        [sys.executable, str(tmp_path / "killed.py")],
        env={**os.environ, "PYTHONPATH": path, "TELL": str(told)},
    ) as auditor:
        wait_until(lambda: told.exists() and told.read_text().endswith("\n"), 60)
        auditor.kill()
    life = int(told.read_text())
    assert life != auditor.pid
    wait_until(lambda: not is_running(life))
