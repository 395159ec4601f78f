"""The adapter to NeMo RL, on a double of it: what is lost was worked out by hand.

In every timeline the first two steps are trained, two hand-outs are out, and every other prompt of
them has been answered: of 8 to 15 those that are odd are in flight.
"""

from __future__ import annotations

import importlib.util
import pickle
import sys
import typing
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the adapter reads and writes torch's files")
pytest.importorskip("torchdata", reason="NeMo RL's loader is torchdata's")

import nemo_double

from pytest_resume_audit import Rig, Rollout, Setup, run
from pytest_resume_audit.adapters import nemo_rl_checkout, nemo_rl_ray
from pytest_resume_audit.adapters.nemo_rl import (
    ROLLOUTS,
    Handle,
    LocalRay,
    NemoRLCollector,
    lacks,
    timelines,
    watched_buffer,
)
from pytest_resume_audit.adapters.nemo_rl_checkout import NemoRL, NemoRLMissing, load, why_missing
from pytest_resume_audit.adapters.nemo_rl_driver import change_in, order_of
from pytest_resume_audit.control import LifeEnded
from pytest_resume_audit.fakes.loader import WatchedLoader


class Before(NemoRLCollector):
    package = "nemo_double_before"


class After(NemoRLCollector):
    package = "nemo_double_after"


class BeforeWhole(Before):
    whole_batches = True


class AfterWhole(After):
    whole_batches = True


SIZES = Setup(prompts=32)
HALFWAY = "hand_out; finish all; train; hand_out; train; hand_out; finish every 2; "
RESUMED = "save; crash; restart; hand_out; drain"
MID_FLIGHT = HALFWAY + RESUMED

IN_FLIGHT = [9, 11, 13, 15]
# Two targets lack two groups each, and each throws away two of the batch that it takes them from.
THROWN_AWAY = [18, 19, 22, 23]


# -- runs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("setup", [SIZES, Setup(prompts=32, shuffle=True, seed=3)], ids=str)
def test_what_is_in_flight_is_lost_before_and_not_after(setup):
    assert run(Before, MID_FLIGHT, setup=setup).skipped == IN_FLIGHT + THROWN_AWAY
    report = run(After, MID_FLIGHT, setup=setup)
    assert (report.verdict, report.unreached) == ("lossless", None)
    assert {"saved with prompts in flight", "saved with a buffer", "resumed"} <= report.states


def test_groups_are_lost_whole():
    setup = Setup(prompts=32, group_size=2)
    report = run(Before, MID_FLIGHT, setup=setup)
    assert (report.skipped, report.partial) == (IN_FLIGHT + THROWN_AWAY, [])
    assert run(After, MID_FLIGHT, setup=setup).verdict == "lossless"


def test_an_age_of_two_has_a_step_more_out():
    # 0 to 11 are asked for at first; those that are out at the save are 12 to 19.
    setup = Setup(prompts=40, max_age=2)
    assert run(Before, MID_FLIGHT, setup=setup).skipped == [13, 15, 17, 19, 22, 23, 26, 27]
    assert run(After, MID_FLIGHT, setup=setup).verdict == "lossless"


def test_without_the_buffer_all_that_is_out_is_lost_before():
    script = MID_FLIGHT.replace("restart", "restart no_buffer")
    assert run(Before, script, setup=SIZES).skipped == list(range(8, 16))
    report = run(After, script, setup=SIZES)
    assert report.verdict == "lossless"
    assert report.regenerated == [8, 10, 12, 14]


def test_whole_batches_reach_the_buffer_together():
    # Of neither batch all have ended: nothing is buffered, and all eight are lost.
    assert run(BeforeWhole, MID_FLIGHT, setup=SIZES).skipped == list(range(8, 16))
    assert run(AfterWhole, MID_FLIGHT, setup=SIZES).verdict == "lossless"


def test_a_legacy_checkpoint_loses_what_was_in_flight_and_is_warned_of():
    # The rest of a batch is kept now: nothing is thrown away.
    script = MID_FLIGHT.replace("save", "save; downgrade")
    report = run(After, script, setup=SIZES)
    assert (report.verdict, report.skipped) == ("lossless", IN_FLIGHT)
    assert report.excused == IN_FLIGHT


def test_a_driver_that_does_not_warn_is_reported(monkeypatch):
    monkeypatch.setitem(load("nemo_double_after").__dict__, "warns_of_legacy", False)
    report = run(After, MID_FLIGHT.replace("save", "save; downgrade"), setup=SIZES)
    assert report.verdict == "lossy"
    assert "gave no warning" in str(report)


@pytest.mark.parametrize("collector", [After, AfterWhole])
def test_a_failure_takes_its_batch_along(collector):
    script = "hand_out; finish all; train; hand_out; fail oldest 1; hand_out; drain"
    report = run(collector, script, setup=SIZES)
    assert (report.verdict, report.skipped) == ("lossless", [])
    assert sorted([*report.failed, *report.dropped]) == [8, 9, 10, 11]


def test_more_failures_than_are_tolerated_end_the_run():
    setup = Setup(prompts=32, max_failures=0)
    report = run(After, "hand_out; fail oldest 1; drain", setup=setup)
    assert report.verdict == "error"
    assert "too many failures" in str(report.error)


def test_a_loop_that_ended_with_an_error_is_reported():
    class Ends(Before):
        def start(self) -> None:
            super().start()
            self.collector._actor.errored = True

    report = run(Ends, "drain", setup=SIZES)
    assert report.verdict == "error"
    assert "stopped with an error" in str(report.error)


def test_a_step_of_the_wrong_size_is_not_trained():
    # What was buffered has one answer each. The driver throws such a step away, and waits for one
    # that nobody generates for.
    script = MID_FLIGHT.replace("restart", "restart with group_size 2")
    report = run(After, script, setup=SIZES)
    assert report.verdict == "hang"


def test_another_data_set_begins_at_its_first_row():
    script = HALFWAY + "save; crash; restart with data_set 1; hand_out; drain"
    report = run(Before, script, setup=SIZES)
    assert report.history.lives[1].start_place == 0


@pytest.mark.parametrize(
    "name", ["second-resume", "rolled-back", "older-checkpoint", "half-a-group"]
)
def test_named_timelines(name):
    assert run(After, name).verdict == "lossless"


def test_every_death_of_a_save():
    script = HALFWAY + "save; hand_out; finish all; train; crash in save; restart; hand_out; drain"
    report = run(After, script, setup=SIZES)
    assert (report.verdict, report.unreached) == ("lossless", None)
    assert any("rename to step_3" in str(point) for point in report.points)


def test_a_watched_loader_can_be_sent_to_another_process():
    rig = Rig(Setup(prompts=4))
    watched = pickle.loads(pickle.dumps(WatchedLoader([[0, 1]], len, rig.setup)))
    assert len(watched) == 1


def test_a_life_in_a_process():
    assert run(Before, MID_FLIGHT, setup=SIZES, life="process").skipped == IN_FLIGHT + THROWN_AWAY


def test_a_life_leaves_no_thread_behind():
    report = run(After, HALFWAY + "save; stop; restart; hand_out; drain", setup=SIZES)
    assert report.verdict == "lossless"
    assert not any(life.left_behind for life in report.history.lives)


def test_the_files_of_a_checkpoint(tmp_path):
    rig = Rig(Setup(prompts=8))
    collector = After(rig)
    collector.start()
    collector.save(tmp_path, 0)
    checkpoint = After.latest(tmp_path)
    assert checkpoint == tmp_path / "step_0"
    names = {path.name for path in checkpoint.iterdir()}
    assert {"train_dataloader.pt", "replay_buffer.pt", "rollouts.pt", "policy"} <= names
    collector.crash()


# -- sizes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "setup",
    [Setup(passes=2), Setup(max_in_flight=6), Setup(capacity=4), Setup(prompts=17)],
    ids=str,
)
def test_sizes_that_it_has_not(setup):
    assert lacks(setup)


def test_timelines_of_other_sizes_are_left_out():
    assert lacks(SIZES) is None
    assert lacks(Setup(prompts=17, drop_last=True)) is None
    named, nightly = (
        [timeline.name for timeline in timelines(name)] for name in ("smoke", "nightly")
    )
    assert {"mid-flight", "uneven", "half-a-group", "dropped"} <= set(named)
    assert not {"end-of-pass", "second-pass", "gap-fill-tail"} & set(named)
    assert not any(name.startswith(("passes-", "short-", "limited-")) for name in nightly)
    assert not any("smaller-buffer" in name for name in nightly)
    assert any("larger-batches" in name for name in nightly)


# -- parts ---------------------------------------------------------------------------------------


def test_what_the_buffer_evicts_is_a_drop():
    rig = Rig(Setup(prompts=4, batch_size=2))
    buffer = watched_buffer(load("nemo_double_after"), rig)(max_size=4)
    rows = next(iter(rig.loader))
    for target, prompt in enumerate(rows):
        rollout = Rollout(prompt, generation=0, weight_version=0)
        buffer.add({"batch": {ROLLOUTS: [rollout]}}, target, 2)
    sampled = buffer.sample(num_prompt_groups=1, current_weight_version=2, max_age_steps=1)
    assert [group["batch"][ROLLOUTS][0].prompt.row for group in sampled["trajectories"]] == [1]
    dropped = [event for event in rig._control.records if event.kind == "dropped"]
    assert [(event.ordinal, event.text) for event in dropped] == [(0, "older than allowed")]


def test_what_a_full_buffer_refuses_is_not_buffered():
    rig = Rig(Setup(prompts=2, batch_size=2))
    buffer = watched_buffer(load("nemo_double_after"), rig)(max_size=1)
    statuses = [
        buffer.add({"batch": {ROLLOUTS: [Rollout(prompt, 0, 0)]}}, 0, 0)
        for prompt in next(iter(rig.loader))
    ]
    assert statuses == ["success", "full"]
    assert [e.ordinal for e in rig._control.records if e.kind == "buffered"] == [0]


def test_a_handle_answers_at_once_in_both_ways():
    handle = Handle({"a": 3})
    assert LocalRay.get(handle.get.remote("a")) == 3

    async def wait():
        return await handle.get.remote("b", 5)

    with pytest.raises(StopIteration) as ended:
        wait().send(None)
    assert ended.value.value == 5


def test_a_call_that_raises_raises_where_it_is_made():
    with pytest.raises(LifeEnded):
        Handle(DeadActor()).work.remote()


class DeadActor:
    def work(self):
        raise LifeEnded


class Called:
    """An actor of Ray, and its method."""

    def __init__(self, holder):
        self.holder = holder

    @property
    def call(self):
        return self

    def remote(self, name, given):
        return self.holder.call(name, given)


def test_what_an_actor_holds_is_made_and_called_there(monkeypatch):
    monkeypatch.setattr(nemo_rl_ray, "_packed", pickle.dumps)
    used = []
    monkeypatch.setattr(NemoRL, "use_ray", lambda self, ray: used.append(ray))
    made = pickle.dumps((the_buffer, {"max_size": 3}))
    held = nemo_rl_ray.RayHandle(Called(nemo_rl_ray._Holder("nemo_double_after", made)))
    assert held.add.remote({"ordinal": 1}, 0, target=2) == "success"
    assert held.get_trajectories_needed.remote(2, 4, max_age=1) == 3
    assert [type(ray).__name__ for ray in used] == ["_Ray"]
    with pytest.raises(AttributeError):
        held.__wrapped__  # noqa: B018


def the_buffer(nemo):
    return nemo.buffer


# -- the driver ----------------------------------------------------------------------------------


def test_the_order_of_a_driver_is_read_from_its_source():
    assert order_of(nemo_double.drives_after) == ("get_latest_checkpoint_path check_health sample")
    assert change_in(nemo_double.drives_before) is None


def test_a_changed_driver_is_told_and_by_what():
    change = change_in(nemo_double.drives_after)
    assert "- _maybe_restore_async_replay_buffer_checkpoint" in change
    assert "has changed" in change


# -- the checkout --------------------------------------------------------------------------------


@pytest.fixture
def fresh(monkeypatch):
    """As if nothing had been loaded, and nothing were installed."""
    monkeypatch.setattr(nemo_rl_checkout, "load", load.__wrapped__)
    monkeypatch.delenv("NEMO_RL_PATH", raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in [n for n in sys.modules if n.partition(".")[0] == "nemo_rl"]:
        monkeypatch.delitem(sys.modules, name)


def test_without_a_checkout_it_says_what_to_do(fresh, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    why = why_missing()
    assert "clone https://github.com/NVIDIA-NeMo/RL" in why
    assert "NEMO_RL_PATH" in why


def test_a_path_without_a_checkout_is_named(fresh, monkeypatch, tmp_path):
    monkeypatch.setenv("NEMO_RL_PATH", str(tmp_path))
    with pytest.raises(NemoRLMissing, match="there is no nemo_rl/algorithms"):
        nemo_rl_checkout.load()


def test_the_empty_package_is_known(fresh, monkeypatch, tmp_path):
    (tmp_path / "nemo_rl").mkdir()
    (tmp_path / "nemo_rl" / "__init__.py").write_text('__version__ = "0.0.0"')
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(NemoRLMissing, match=r"0\.0\.0 on PyPI"):
        nemo_rl_checkout.load()


def test_what_it_needs_is_named(fresh, monkeypatch, tmp_path):
    (tmp_path / "nemo_rl" / "algorithms").mkdir(parents=True)
    monkeypatch.setenv("NEMO_RL_PATH", str(tmp_path))
    monkeypatch.setattr(nemo_rl_checkout, "NEEDS", ("torch", "no_such_package"))
    with pytest.raises(NemoRLMissing, match="takes no_such_package: pip install"):
        nemo_rl_checkout.load()


def test_what_is_imported_in_passing_is_stood_in_for(fresh, monkeypatch, tmp_path):
    """A checkout of one file for each part, whose driver imports what isn't installed."""
    monkeypatch.setattr(nemo_rl_checkout, "STAND_INS", {"no_such_package": "an experiment log"})
    monkeypatch.setattr(nemo_rl_checkout, "NEEDS", ())
    monkeypatch.setenv("NEMO_RL_PATH", str(tmp_path))
    parts = {
        "algorithms/grpo.py": "import typing\nimport no_such_package.parts as parts\n"
        "from no_such_package import Log\nclass Own(Log): pass\nTYPE = typing.TypedDict",
        "algorithms/async_utils/__init__.py": "class AsyncTrajectoryCollector:\n"
        "    class __ray_metadata__:\n        class modified_class: pass",
        "algorithms/async_utils/replay_buffer.py": "class ReplayBufferImpl: pass",
        "utils/checkpoint.py": "class CheckpointManager: pass",
        "data/collate_fn.py": "rl_collate_fn = list",
        "experience/rollouts.py": "RolloutGroupResult = tuple",
    }
    for name, text in parts.items():
        path = tmp_path / "nemo_rl" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        (path.parent / "__init__.py").touch()
    (tmp_path / "nemo_rl" / "__init__.py").touch()
    typed_dict = typing.TypedDict
    found = nemo_rl_checkout.load()
    assert found.buffer.__name__ == "ReplayBufferImpl"
    with pytest.raises(NemoRLMissing, match=r"no_such_package\.Log is needed"):
        found.grpo.Log()
    assert found.grpo.parts.Any.thing.__name__ == "thing"
    # Afterwards all is as it was.
    assert typing.TypedDict is typed_dict
    assert "no_such_package" not in sys.modules
    assert importlib.util.find_spec("no_such_package") is None


def test_nothing_of_it_is_imported_with_the_plugin():
    source = Path(nemo_rl_checkout.__file__).read_text()
    assert "import nemo_rl" not in source
    assert "import ray" not in source
