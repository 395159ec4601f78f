"""The adapter to OpenRLHF, on a double of it: what is lost was worked out by hand.

The double generates a hand-out at a time, and holds its lock meanwhile: a step ends when all that
is out has been answered.
"""

from __future__ import annotations

import importlib.util
import sys

import pytest

pytest.importorskip("torch", reason="the adapter reads and writes torch's files")

import openrlhf_double

from pytest_resume_audit import Setup, run
from pytest_resume_audit.adapters import openrlhf_parts
from pytest_resume_audit.adapters.openrlhf import OpenRLHFCollector, lacks, timelines
from pytest_resume_audit.adapters.openrlhf_driver import Restated, changes_in
from pytest_resume_audit.adapters.openrlhf_parts import (
    STAND_INS,
    OpenRLHF,
    OpenRLHFMissing,
    load,
    why_missing,
)


class Double(OpenRLHFCollector):
    package = "openrlhf_double"


class Repaired(OpenRLHFCollector):
    package = "openrlhf_double_repaired"


# Eight are generated at a time, and two are trained at a time. Saved behind the second step: 0 to 3
# are trained, 4 to 7 wait, and the place of the loader is 8.
SIZES = Setup(prompts=24, batch_size=8, prompts_per_step=2)
BEHIND_TWO_STEPS = "hand_out; finish all; train; save; crash; "
LOST = [4, 5, 6, 7]


# -- runs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("collector", [Double, Repaired])
@pytest.mark.parametrize("setup", [Setup(), Setup(group_size=3, passes=2), SIZES], ids=str)
def test_an_uninterrupted_run_trains_all(collector, setup):
    report = run(collector, "drain", setup=setup)
    assert (report.verdict, report.structural) == ("lossless", [])


def test_what_waits_for_its_step_is_lost_where_the_live_place_is_saved():
    report = run(Double, BEHIND_TWO_STEPS + "restart; drain", setup=SIZES)
    assert (report.verdict, report.unreached) == ("lossy", None)
    assert (report.skipped, report.duplicated) == (LOST, [])
    assert {"saved with a buffer", "resumed"} <= report.states


def test_what_waits_for_its_step_is_answered_again_where_its_place_is_saved():
    report = run(Repaired, BEHIND_TWO_STEPS + "restart; drain", setup=SIZES)
    assert (report.verdict, report.unreached) == ("lossless", None)
    assert report.regenerated == LOST


def test_groups_are_lost_whole():
    setup = Setup(prompts=24, batch_size=8, prompts_per_step=2, group_size=3)
    report = run(Double, BEHIND_TWO_STEPS + "restart; drain", setup=setup)
    assert (report.skipped, report.partial) == (LOST, [])


def test_an_older_checkpoint_is_the_one_that_is_gone_back_to():
    # Its first save is the one behind the first step, which ``train`` lets through.
    report = run(Double, BEHIND_TWO_STEPS + "restart from 0; drain", setup=SIZES)
    assert report.skipped == [2, 3, *LOST]
    assert "resumed from an older checkpoint" in report.states


def test_a_run_that_begins_afresh_beside_checkpoints_does_not_load_them():
    report = run(Double, BEHIND_TWO_STEPS + "restart afresh; drain", setup=SIZES)
    assert report.verdict == "lossless"


def test_a_save_that_dies_before_its_last_file_leaves_the_checkpoint_before_it():
    script = "hand_out; finish all; save; crash in save at 1; restart; drain"
    report = run(Repaired, script, setup=SIZES)
    assert (report.verdict, report.unreached) == ("lossless", None)


def test_a_torn_file_with_the_newest_name_is_refused_loudly():
    script = "hand_out; finish all; save; crash in save torn each; restart; drain"
    report = run(Repaired, script, setup=SIZES)
    assert (report.verdict, report.unreached) == ("refused", None)


def test_a_failed_generation_ends_the_run_loudly():
    report = run(Double, "hand_out; fail 3; drain", setup=SIZES)
    assert report.verdict == "error"
    assert "GenerationFailed" in str(report)


def test_in_a_process_of_its_own():
    script = BEHIND_TWO_STEPS + "restart; drain"
    assert run(Double, script, setup=SIZES, life="process").skipped == LOST


# -- sizes ---------------------------------------------------------------------------------------


def test_sizes_that_it_has_not_are_not_played():
    names = {timeline.name for timeline in timelines("smoke")}
    assert {"mid-flight", "end-of-pass", "uneven"} <= names
    assert not {"dropped", "gap-fill-tail"} & names
    assert lacks(Setup(drop_last=True)) is not None
    assert lacks(SIZES) is None


# -- OpenRLHF's modules --------------------------------------------------------------------------


def test_arguments_are_those_of_its_own_command_line():
    double = load("openrlhf_double")
    words = ["--rollout.vllm_generate_batch_size", "8", "--rollout.batch_size", "2"]
    before = list(sys.argv)
    args = double.arguments([*words, "--ckpt.load_enable"])
    assert (args.rollout.vllm_generate_batch_size, args.ckpt.load_enable) == (8, True)
    assert sys.argv == before
    with pytest.raises(AssertionError):
        double.arguments([*words[:3], "3"])
    assert sys.argv == before


def test_a_command_line_that_ends_otherwise_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "other.cli.train_ppo_ray", sys.modules[__name__])
    with pytest.raises(AttributeError, match=r"no longer ends in train\(args\)"):
        OpenRLHF("other").arguments([])


def test_a_name_that_is_gone_is_not_stood_in_for():
    with pytest.raises(AttributeError, match="trainer_async has no Pipe to be stood in for"):
        OpenRLHF("openrlhf_double").replace({"trainer.ppo_trainer_async": {"Pipe": None}})


def test_what_a_name_meant_is_found_after_it_was_replaced():
    run(Double, "drain", setup=Setup(prompts=4))
    kind = load("openrlhf_double").plain("trainer.ppo_trainer_async", "TrainingActor")
    assert kind.__name__ == "TrainingActor"


def test_modules_that_need_a_gpu_are_stood_in_for_only_while_others_are_imported():
    installed = {name for name in STAND_INS if name.partition(".")[0] in sys.modules}
    with openrlhf_parts._stood_in_for():
        from vllm import SamplingParams

        assert SamplingParams(temperature=0.5).temperature == 0.5
    assert {name for name in STAND_INS if name in sys.modules} <= installed


def test_what_is_missing_is_named(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert "without openrlhf, torch" in (why_missing() or "")
    load.cache_clear()
    with pytest.raises(OpenRLHFMissing, match="tox -e openrlhf"):
        load()


def test_another_release_is_named(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.12.0")
    assert "for OpenRLHF 0.11.2, and not for 0.12.0" in (why_missing() or "")


# -- what is said again --------------------------------------------------------------------------

ACTOR = ("trainer.ray.ppo_actor", "PolicyModelActor")
ENGINE = ("utils.deepspeed.deepspeed", "deepspeed.DeepSpeedEngine")


def test_what_has_not_changed_is_not_told():
    known = Restated(ACTOR, "save_checkpoint", "'_actor' save_ckpt", "policy")
    assert changes_in(OpenRLHF("openrlhf_double"), [known]) == []
    assert openrlhf_double.deepspeed.DeepSpeedEngine.__name__ == "_Engine"


def test_what_has_changed_is_told_and_by_what():
    known = Restated(ACTOR, "save_checkpoint", "save_ckpt '_actor' strategy=", "policy")
    (change,) = changes_in(OpenRLHF("openrlhf_double"), [known])
    assert "PolicyModelActor.save_checkpoint is not that of OpenRLHF 0.11.2" in change
    assert "- strategy=" in change
    assert "policy of the adapter" in change
