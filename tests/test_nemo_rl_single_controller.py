"""The adapter to NeMo RL's SingleController, on a double of it."""

from __future__ import annotations

import sys

import pytest

pytest.importorskip("torch", reason="the adapter reads and writes torch's files")
pytest.importorskip("torchdata", reason="NeMo RL's loader is torchdata's")
if sys.version_info < (3, 11):
    pytest.skip("the controller runs in an asyncio.TaskGroup", allow_module_level=True)

import nemo_controller_double

from pytest_resume_audit import Rig, Rollout, Setup, run
from pytest_resume_audit.adapters.nemo_rl_single_controller import (
    SingleControllerCollector,
    _Ignores,
    _rollouts,
    _Rows,
)


class Controller(SingleControllerCollector):
    package = "nemo_double_before"


SIZES = Setup(prompts=32)
# The loader is read one hand-out ahead of what may be sent off. ``train`` and ``save`` let a step
# through each: 0 to 7 are trained then. 8 and 10 are in the buffer, 9 and 11 to 15 in flight, and
# 16 to 19 wait to be sent off. Of the hand-out that fills the gap of 8 to 11 two are left over.
LOST = [9, *range(11, 20), 22, 23]
MID_FLIGHT = "hand_out; finish all; train; finish every 2; save; crash; restart; drain"


def test_an_uninterrupted_run_trains_all():
    report = run(Controller, "drain", setup=Setup(prompts=16, passes=2, shuffle=True))
    assert (report.verdict, report.structural) == ("lossless", [])


def test_what_is_in_flight_and_what_waits_is_lost():
    report = run(Controller, MID_FLIGHT, setup=SIZES)
    assert report.verdict == "lossy"
    assert {"saved with prompts in flight", "resumed"} <= report.states
    # Nothing is held at the loader: it would hold the loop, and with it all else.
    assert not report.gated
    assert (report.skipped, report.duplicated) == (LOST, [])


def test_groups_stay_whole():
    report = run(Controller, MID_FLIGHT, setup=Setup(prompts=32, group_size=2))
    assert (report.skipped, report.partial) == (LOST, [])


def test_without_the_buffer_it_begins_empty():
    report = run(Controller, MID_FLIGHT.replace("restart", "restart no_buffer"), setup=SIZES)
    assert report.history.lives[1].start_buffer == frozenset()


def test_rows_are_found_by_their_tokens():
    import torch

    rig = Rig(Setup(prompts=4, group_size=2))
    rows = _Rows()
    fields = nemo_controller_double.Fields(input_ids=torch.tensor([[3, 0, 7], [3, 1, 8]]))
    rows.put_samples(sample_ids=["a", "b"], partition_id="train", fields=fields)
    (rollout,) = _rollouts(rig, rows, ["b"])
    assert (rollout, rollout.ticket) == (Rollout(rig.prompts[3], 1, 0), 8)
    kept = rows.get_samples(sample_ids=["a", "b"], partition_id="", select_fields=["input_ids"])
    assert list(kept) == ["input_ids"]
    rows.clear_samples(sample_ids=["a"], partition_id="train")
    assert rows.tokens("b") == [3, 1, 8]
    with pytest.raises(KeyError):
        rows.tokens("a")


def test_what_ignores_is_no_other_object():
    assert _Ignores().log_metrics({}, step=1) is None
    with pytest.raises(AttributeError):
        _Ignores().__array__  # noqa: B018
