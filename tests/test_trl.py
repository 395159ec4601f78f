"""The adapter to TRL, as far as it can be tested without a whole run; those are in examples/trl."""

from __future__ import annotations

import pytest

pytest.importorskip("trl", reason="TRL is not installed: see the tox environment 'trl'")
pytest.importorskip("aiohttp", reason="TRL's rollout worker asks its server by aiohttp")
np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")

from pytest_resume_audit import Rig, Rollout, Setup  # noqa: E402
from pytest_resume_audit.adapters import trl  # noqa: E402
from pytest_resume_audit.adapters.trl_server import WORDS, tokens_of  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")


def test_trl_is_what_the_adapter_was_written_for():
    assert trl.change_in_trl() is None


def test_a_change_in_trl_is_told(monkeypatch):
    def get_other_rows(self):
        raise NotImplementedError

    loop = trl.async_rollout_worker._AsyncRolloutLoop
    monkeypatch.setattr(loop, "_repeat_iterator", get_other_rows)
    assert "_AsyncRolloutLoop._repeat_iterator changed" in (trl.change_in_trl() or "")


@pytest.mark.parametrize("heads", [1, 2])
def test_attention_is_that_of_torch(heads):
    torch.manual_seed(0)
    query = torch.randn(7, 2, 4)
    key, value = torch.randn(9, heads, 4), torch.randn(9, heads, 4)
    # Two segments: 4 queries behind 2 keys of their path, and 3 without any.
    out = trl._Attention.flash_attn_varlen_func(
        query,
        key,
        value,
        torch.tensor([0, 4, 7]),
        torch.tensor([0, 6, 9]),
        4,
        6,
        softmax_scale=0.5,
        causal=True,
        window_size=(-1, -1),
    )
    for q, k, ahead in (((0, 4), (0, 6), 2), ((4, 7), (6, 9), 0)):
        there = [x[k[0] : k[1]].transpose(0, 1) for x in (key, value)]
        mask = torch.ones(q[1] - q[0], k[1] - k[0], dtype=torch.bool).tril(ahead)
        wanted = torch.nn.functional.scaled_dot_product_attention(
            query[q[0] : q[1]].transpose(0, 1), *there, attn_mask=mask, scale=0.5, enable_gqa=True
        )
        torch.testing.assert_close(out[q[0] : q[1]], wanted.transpose(0, 1))


def test_what_is_trained_is_read_out_of_a_packed_batch():
    """Two generations of a group share their prompt, and the first word of their answers."""
    rig = Rig(Setup(prompts=8, group_size=2))
    rollouts = [Rollout(rig.prompts[5], n, 0, ticket=n + 1) for n in range(2)]
    rollouts.append(Rollout(rig.prompts[2], 0, 0, ticket=9))
    row = trl.packing.TreeRow()
    for rollout in rollouts:
        prompt, answer = WORDS.index(str(rollout.prompt.row)), tokens_of(rollout)
        row.add(
            {
                "input_ids": np.array([prompt, *answer]),
                "completion_mask": np.array([0, *(1 for _ in answer)]),
                "old_log_probs": np.zeros(1 + len(answer), dtype=np.float32),
                "advantage": 0.0,
                "group_id": rollout.prompt.row,
            }
        )
    packed = {name: tensor.unsqueeze(0) for name, tensor in row.pack().items()}
    assert packed["input_ids"].shape[1] < sum(1 + len(tokens_of(each)) for each in rollouts)
    found = trl.trained_in(rig, packed)
    assert [(each, each.ticket) for each in found] == [(each, each.ticket) for each in rollouts]
