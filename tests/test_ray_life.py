"""Lives in Ray: an actor each, or a driver each, and all else as in any life."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray", reason="lives in Ray")

import dying
import in_ray
import menagerie
from test_inside_a_save import IN_PLACE, InPlace
from test_process_life import is_running, wait_until
from test_repeatable import SCRIPT

from pytest_resume_audit import FrontierCollector, FuturesCollector, LiveCursorCollector, Setup, run
from pytest_resume_audit.catalogue import NAMED
from pytest_resume_audit.lives.process import LifeDied
from pytest_resume_audit.lives.ray_cluster import directory_of
from pytest_resume_audit.verdict import AuditReport

pytestmark = [
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="it is watched through /proc"),
    # Another pytest of the session may be starting the cluster, or its workers.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

ONE_STEP = "hand_out 4; finish 0-3; train; save; crash; restart"
KINDS = ["ray", "ray-driver"]
ACTORS = str(Path(__file__).parent.parent / "examples" / "ray_actors")


def in_ray_life(collector: Any, script: str, life: str = "ray", **options: Any) -> AuditReport:
    return run(collector, script, life=life, **options)


@pytest.fixture
def actors(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(ACTORS)
    import ray_collector

    return ray_collector


# --- the same as in any life --------------------------------------------------------------------


@pytest.mark.parametrize("collector", [FrontierCollector, LiveCursorCollector])
@pytest.mark.parametrize("name", NAMED)
def test_a_named_timeline_has_the_history_that_it_has_here(name, collector):
    there, here = in_ray_life(collector, name), run(collector, name)
    assert there.history.lines() == here.history.lines()
    assert (there.verdict, there.skipped) == (here.verdict, here.skipped)
    assert there.unreached == here.unreached


@pytest.mark.parametrize(
    "collector",
    [menagerie.AsyncFrontier, menagerie.SelfDrivenFrontier, menagerie.SleepPoller],
)
def test_every_kind_of_collector_has_the_history_that_it_has_here(collector):
    there, here = in_ray_life(collector, SCRIPT), run(collector, SCRIPT)
    told = [line for line in here.history.lines() if " dispatched " not in line]
    assert [line for line in there.history.lines() if " dispatched " not in line] == told


@pytest.mark.parametrize("life", KINDS)
def test_the_case_that_names_the_project(life):
    assert in_ray_life(LiveCursorCollector, "mid-flight", life).skipped == [5, 8, 9, 11]
    report = in_ray_life(FrontierCollector, "mid-flight", life)
    assert report.verdict == "lossless"
    assert "without what Ray does by timers" in str(report)


@pytest.mark.parametrize("life", KINDS)
@pytest.mark.parametrize("death", ["at 2", "torn half"])
def test_a_killed_save_leaves_what_a_killed_process_leaves(death, life):
    script = IN_PLACE.replace("at {k}", death)
    there, here = in_ray_life(InPlace, script, life), run(InPlace, script, life="process")
    assert there.verdict == here.verdict
    assert there.history.lines() == here.history.lines()


def test_a_save_can_be_raced():
    script = "hand_out 8; finish 0-3; train; save racing (finish 4; hand_out 12) at 2; crash"
    there = in_ray_life(FrontierCollector, script + "; restart")
    here = run(FrontierCollector, script + "; restart")
    assert there.history.lines() == here.history.lines()


@pytest.mark.parametrize("life", KINDS)
def test_the_rig_works_in_actors_and_tasks(life):
    assert in_ray_life(in_ray.Keeps, ONE_STEP, life).verdict == "lossless"


@pytest.mark.parametrize("life", KINDS)
def test_a_stop_is_a_call(life):
    report = in_ray_life(dying.Stops, ONE_STEP.replace("crash", "stop"), life)
    assert report.verdict == "lossless"


def test_a_model_can_be_attached_in_the_process_of_the_collector_alone():
    report = in_ray_life(in_ray.AttachesInAPart, ONE_STEP)
    assert "attach the model in the collector's own process" in str(report.error)


# --- a collector made of actors -----------------------------------------------------------------


def test_a_collector_made_of_actors_has_the_same_history_each_time(actors):
    script = "hand_out 8; finish 5; finish 0-3; train; save; crash; restart; drain"
    setup = Setup(prompts=8)
    first, *others = (in_ray_life(actors.NewWay, script, setup=setup) for _ in range(3))
    assert first.verdict == "lossless"
    for other in others:
        assert other.history.lines() == first.history.lines()


def test_what_is_on_its_way_between_workers_is_waited_for():
    script = "hand_out 8; finish 5; finish 0-3; train; finish 6; save; crash; restart"
    setup = Setup(prompts=8)
    there = in_ray_life(in_ray.LongWay, script, setup=setup)
    assert there.verdict == "lossless"
    assert there.history.lines() == run(FuturesCollector, script, setup=setup).history.lines()


def test_one_that_asks_its_actors_again_and_again_comes_to_rest():
    assert in_ray_life(in_ray.Polls, ONE_STEP).verdict == "lossless"


# --- how it ends --------------------------------------------------------------------------------


def test_an_actor_that_dies_by_itself_is_reported_as_that():
    report = in_ray_life(dying.Exits, ONE_STEP)
    assert report.verdict == "error"
    assert isinstance(report.error, LifeDied)
    assert "died by itself: Worker exit type: SYSTEM_ERROR" in str(report.error)
    assert "it printed last:\n    about to exit" in str(report.error)


def test_a_driver_that_dies_by_itself_is_reported_as_that():
    report = in_ray_life(dying.Exits, ONE_STEP, "ray-driver")
    said = "its process died by itself: exit status 3; it printed last:\n    about to exit"
    assert str(report.error) == said


@pytest.mark.parametrize("collector", [in_ray.PartExits, in_ray.PartIsKilled])
@pytest.mark.parametrize("life", KINDS)
def test_a_part_that_dies_by_itself_is_reported_as_that(collector, life, capsys):
    report = in_ray_life(collector, ONE_STEP, life)
    assert report.verdict == "error"
    assert type(report.error).__name__ == "ActorDiedError"
    assert ("about to exit" in capsys.readouterr().out) == (collector is in_ray.PartExits)


def test_what_a_part_raises_comes_with_its_traceback():
    report = in_ray_life(in_ray.PartFails, ONE_STEP)
    assert report.verdict == "error"
    assert isinstance(report.error, KeyError)
    assert 'raise KeyError("no such part")' in str(report)


def test_a_refusal_may_come_from_a_part():
    assert in_ray_life(in_ray.RefusesInAPart, ONE_STEP).verdict == "refused"


def test_a_life_that_waits_for_ever_hangs_and_is_killed():
    report = in_ray_life(dying.WaitsInSave, ONE_STEP, deadline=5)
    assert report.verdict == "hang"
    assert "save does not return" in report.findings[0].text


@pytest.mark.parametrize(
    "collector", [in_ray.HasAPart, in_ray.LeavesADetachedActor, in_ray.RestartsItsPart]
)
@pytest.mark.parametrize("life", KINDS)
def test_nothing_of_a_life_is_there_after_it(collector, life, capsys):
    report = in_ray_life(collector, ONE_STEP, life)
    # A detached actor of the first life would be in the way of the second one's name.
    assert report.verdict == "lossless"
    started = [int(pid) for pid in re.findall(r"started (\d+)", capsys.readouterr().out)]
    assert len(started) == 3
    assert not any(is_running(pid) for pid in started)


# --- a session ----------------------------------------------------------------------------------

TEST = """
import os
from pathlib import Path
import pytest
from pytest_resume_audit import FrontierCollector

def note():
    from pytest_resume_audit.lives.ray_cluster import cluster
    found = cluster()
    Path("seen-" + str(os.getpid())).write_text(f"{found.keeper} {found.raylet} {found.directory}")

@pytest.mark.parametrize("number", range(2))
@pytest.mark.resume_audit(FrontierCollector, timelines="hand_out 4; finish 0", life="ray")
def test_it(resume_audit, number):
    resume_audit()
    note()

def test_fails():
    assert False
"""


def sessions_of(place: Path) -> set[tuple[int, int, str]]:
    words = [path.read_text().split() for path in place.glob("seen-*")]
    return {(int(keeper), int(raylet), directory) for keeper, raylet, directory in words}


def alone() -> dict[str, str]:
    """The environment of a session that is no part of this one."""
    env = {name: value for name, value in os.environ.items() if "XDIST" not in name}
    path = os.pathsep.join(filter(None, [str(Path(__file__).parent.parent), *sys.path]))
    return {**env, "PYTHONPATH": path}


def pytest_run(*options: str) -> list[str]:
    return [sys.executable, "-m", "pytest", "-p", "no:randomly", "-p", "no:cacheprovider", *options]


def workers_below(directory: str) -> list[int]:
    """Whatever process has a session of Ray in its arguments or its environment."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
        except OSError:
            continue
        if directory.encode() in words and process.name != str(os.getpid()):
            found.append(int(process.name))
    return found


@pytest.mark.parametrize("options", [[], ["-n", "2"]])
def test_a_session_has_one_cluster_and_leaves_nothing_behind(options, tmp_path):
    if options:
        pytest.importorskip("xdist", reason="several processes")
    (tmp_path / "test_it.py").write_text(TEST)
    result = subprocess.run(
        pytest_run(*options), cwd=tmp_path, env=alone(), capture_output=True, text=True, check=False
    )
    assert "2 passed" in result.stdout, result.stdout
    assert "1 failed" in result.stdout
    assert len([*tmp_path.glob("seen-*")]) == (2 if options else 1)
    ((keeper, raylet, directory),) = sessions_of(tmp_path)
    assert not is_running(keeper)
    assert not is_running(raylet)
    assert not Path(directory).exists()
    assert workers_below(directory) == []


ENDLESS = """
import time
from test_it import note

def test_it():
    note()
    print("begun", flush=True)
    time.sleep(1000)
"""


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGKILL])
def test_nothing_stays_behind_a_session_that_is_broken_off(sign, tmp_path):
    (tmp_path / "test_it.py").write_text(TEST)
    (tmp_path / "test_endless.py").write_text(ENDLESS)
    session = subprocess.Popen(
        pytest_run("-s", "test_it.py::test_it", "test_endless.py"),
        cwd=tmp_path,
        env=alone(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    with session:
        assert session.stdout is not None
        said = iter(session.stdout.readline, "")
        assert any("begun" in line for line in said)
        session.send_signal(sign)
        session.stdout.read()
        session.wait()
    ((keeper, raylet, directory),) = sessions_of(tmp_path)
    wait_until(lambda: not is_running(keeper))
    assert not is_running(raylet)
    assert not Path(directory).exists()
    wait_until(lambda: workers_below(directory) == [])


def test_the_cluster_listens_on_this_machine_alone():
    in_ray_life(FrontierCollector, "hand_out 4")
    found = directory_of(os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid())
    assert '"address": "127.0.0.1:' in (found / "cluster").read_text()
