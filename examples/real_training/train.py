"""A real asynchronous RL training, small enough for a laptop: REINFORCE on a task of digits.

    python train.py --checkpoints DIRECTORY --way new

A prompt is a row of digits, and the task is to say after each of them the sum of it and the one
before, modulo ten. Most prompts are short and a few are long, so that a few generations take many
times as long as the others: at any moment most of what is in flight is long.

Threads generate, with whatever weights there are when they begin; finished groups wait in a replay
buffer; the trainer takes whichever came first, and saves every few steps. Killed and started again,
it goes on from its newest checkpoint:

- ``--way old`` saves the loader's place as it is, with the buffer. What is in flight is lost.
- ``--way new`` remembers the loader's place before every batch, saves that of the oldest batch that
  is not all trained, and which of what comes round again is trained or in the buffer already.

What it does to its prompts it reports through ``pytest_resume_audit.recorder``, in lines that do
nothing when nobody listens; and it counts in its weights what they were trained on. Run with
``RESUME_AUDIT_LEDGER=ledgers``, and after some kills ask::

    resume-audit ledger ledgers
    resume-audit coverage DIRECTORY/step-16.pt
"""

from __future__ import annotations

import argparse
import itertools
import queue
import random
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Categorical
from torch.utils.data import Dataset
from torchdata.stateful_dataloader import StatefulDataLoader

from pytest_resume_audit import recorder
from pytest_resume_audit.real_runs.coverage import PromptCoverage

DIGITS = 10


class Sums(Dataset[dict[str, Any]]):
    """Prompts of random digits; the length of a few is many times that of most.

    Args:
        rows: how many.
        longest: digits of the longest.
    """

    def __init__(self, rows: int, longest: int) -> None:
        dice = random.Random(0)
        self.prompts: list[dict[str, Any]] = []
        for row in range(rows):
            length = min(longest, 2 + int(dice.paretovariate(1.2)))
            digits = [dice.randrange(DIGITS) for _ in range(length)]
            self.prompts.append({"row": row, "digits": digits})

    def __len__(self) -> int:
        return len(self.prompts)

    def __getitem__(self, row: int) -> dict[str, Any]:
        return self.prompts[row]


class Policy(nn.Module):
    """Says a digit for two: logits over the ten answers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Embedding(DIGITS, 32)
        self.second = nn.Embedding(DIGITS, 32)
        self.head = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, DIGITS))

    def forward(self, before: Tensor, now: Tensor) -> Tensor:
        logits: Tensor = self.head(self.first(before) * self.second(now))
        return logits


@dataclass
class Group:
    """A prompt on its way through the training.

    Args:
        ordinal: its place in the stream of prompts, from 0.
        row: in the data set.
        digits: of the prompt.
        actions: a row of answers for each of the group's generations, once there.
        step: of the weights that began to answer it.
    """

    ordinal: int
    row: int
    digits: list[int]
    actions: list[list[int]] = field(default_factory=list)
    step: int = 0


class Training:
    """Loader, rollout threads, replay buffer and trainer, in one process.

    Args:
        options: of the command line.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        torch.manual_seed(options.seed)
        torch.set_num_threads(1)
        order = torch.Generator().manual_seed(options.seed)
        self.loader = StatefulDataLoader(
            Sums(options.prompts, options.longest),
            batch_size=options.batch_size,
            shuffle=True,
            generator=order,
            num_workers=options.workers,
            collate_fn=list,
        )
        self.policy = Policy()
        self.optimizer = torch.optim.Adam(self.policy.parameters(), lr=options.rate)
        recorder.attach(self.policy)
        self.coverage = PromptCoverage(options.prompts)
        self.coverage.attach(self.policy)
        self.weights = threading.Lock()
        self.step = 0
        self.out: dict[int, Group] = {}  # handed out and not trained
        self.asked: queue.Queue[Group] = queue.Queue()
        self.buffer: queue.Queue[Group] = queue.Queue()
        # Of the new way: the loader's place before each batch, and what needs no second answer.
        self.places: dict[int, Any] = {}
        self.ordinal = 0
        self.settled: set[int] = set()
        self.more = True

    # -- loader --------------------------------------------------------------------------------

    def hand_out(self) -> None:
        """Take batches from the loader until enough prompts are out."""
        while self.more and len(self.out) < self.options.ahead:
            self.places[self.ordinal] = self.loader.state_dict()
            batch = next(self.batches, None)
            if batch is None:
                self.more = False
                return
            recorder.handed_out(prompt["row"] for prompt in batch)
            for prompt in batch:
                group = Group(self.ordinal, prompt["row"], prompt["digits"])
                self.ordinal += 1
                if group.ordinal not in self.settled:
                    self.out[group.ordinal] = group
                    self.asked.put(group)

    # -- rollouts ------------------------------------------------------------------------------

    def generate(self) -> None:
        """Answer what is asked, for ever; what a thread of the rollout engine does."""
        while True:
            group = self.asked.get()
            group.step = self.step
            for generation in range(self.options.group_size):
                said = self.answer(group.digits)
                group.actions.append(said)
                recorder.finished(group.row, generation=generation, length=len(said))
            self.put_into_buffer(group)

    @torch.no_grad()
    def answer(self, digits: list[int]) -> list[int]:
        """One generation, a token after the other, each of which takes its time."""
        said = []
        for before, now in itertools.pairwise(digits):
            with self.weights:
                logits = self.policy(torch.tensor(before), torch.tensor(now))
            said.append(int(Categorical(logits=logits).sample()))
            time.sleep(self.options.token)
        return said

    def put_into_buffer(self, group: Group) -> None:
        for generation in range(self.options.group_size):
            recorder.buffered(group.row, generation=generation)
        self.buffer.put(group)

    # -- trainer -------------------------------------------------------------------------------

    def train(self) -> float:
        """One step of REINFORCE, with each group's mean for a baseline; returns the reward."""
        many = min(self.options.prompts_per_step, len(self.out))
        groups = [self.buffer.get() for _ in range(many)]
        recorder.trained([group.row for group in groups], step=self.step + 1)
        losses, rewards = [], []
        with self.weights:
            for group in groups:
                digits = torch.tensor(group.digits)
                actions = torch.tensor(group.actions)
                right = ((digits[:-1] + digits[1:]) % DIGITS).expand_as(actions)
                reward = (actions == right).float()
                advantage = reward - reward.mean(0)
                logits = self.policy(digits[:-1], digits[1:]).expand(*actions.shape, DIGITS)
                losses.append(-(Categorical(logits=logits).log_prob(actions) * advantage).mean())
                rewards.append(reward.mean())
            self.optimizer.zero_grad()
            torch.stack(losses).mean().backward()
            self.optimizer.step()
        self.coverage.add([group.ordinal for group in groups])
        self.step += 1
        for group in groups:
            del self.out[group.ordinal]
            self.settled.add(group.ordinal)
        return float(torch.stack(rewards).mean())

    # -- checkpoints ---------------------------------------------------------------------------

    def save(self) -> None:
        checkpoint = self.options.checkpoints / f"step-{self.step}.pt"
        recorder.saving(checkpoint)
        waiting = {group.ordinal: group for group in list(self.buffer.queue)}
        if self.options.way == "old":
            # At the end of the data the loader's own state is that of a new pass.
            there = self.loader.state_dict() if self.more else None
            place, settled = self.ordinal, []
        else:
            frontier = min(self.out, default=self.ordinal)
            place = max(place for place in self.places if place <= frontier)
            # What lies below the place of this checkpoint no later one will go back to.
            self.places = {since: kept for since, kept in self.places.items() if since >= place}
            self.settled = {ordinal for ordinal in self.settled if ordinal >= place}
            there, settled = self.places[place], sorted(self.settled | waiting.keys())
        self.coverage.mark(place, waiting)
        state = {
            "policy": self.policy.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "step": self.step,
            "buffer": [vars(group) for group in waiting.values()],
            "loader": there,
            "ordinal": place,
            "settled": settled,
        }
        staged = checkpoint.with_suffix(".tmp")
        torch.save(state, staged)
        staged.replace(checkpoint)
        recorder.saved(checkpoint)

    def restore(self) -> None:
        """Go back to the newest checkpoint, if there is one."""
        found = self.options.checkpoints.glob("step-*.pt")
        newest = max(found, default=None, key=lambda path: int(path.stem[5:]))
        if newest is None:
            return
        state = torch.load(newest)
        self.policy.load_state_dict(state["policy"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step, self.ordinal = state["step"], state["ordinal"]
        self.settled = set(state["settled"])
        if state["loader"] is None:
            self.more = False
        else:
            self.loader.load_state_dict(state["loader"])
        recorder.restored(newest)
        if self.options.load_buffer:
            for saved in state["buffer"]:
                group = Group(**saved)
                self.out[group.ordinal] = group
                self.put_into_buffer(group)
        else:
            self.settled -= {saved["ordinal"] for saved in state["buffer"]}

    def run(self) -> None:
        self.restore()
        self.batches = iter(self.loader)
        for _ in range(self.options.threads):
            threading.Thread(target=self.generate, daemon=True).start()
        while True:
            self.hand_out()
            if not self.out:
                break
            reward = self.train()
            print(f"step {self.step} reward {reward:.3f}", flush=True)
            if self.step % self.options.save_every == 0:
                self.save()
        if self.step % self.options.save_every:
            self.save()
        recorder.ended()


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--checkpoints", type=Path, required=True)
    parser.add_argument("--way", choices=("old", "new"), default="new")
    parser.add_argument("--no-load-buffer", dest="load_buffer", action="store_false")
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--longest", type=int, default=64, help="digits of the longest prompt")
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--prompts-per-step", type=int, default=4)
    parser.add_argument("--group-size", type=int, default=4, help="generations of a prompt")
    parser.add_argument("--ahead", type=int, default=16, help="prompts that are out at once")
    parser.add_argument("--threads", type=int, default=4, help="that generate")
    parser.add_argument("--workers", type=int, default=1, help="processes of the loader")
    parser.add_argument("--token", type=float, default=0.0005, help="seconds that a token takes")
    parser.add_argument("--rate", type=float, default=0.02, help="learning rate")
    parser.add_argument("--save-every", type=int, default=2, help="steps")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    Training(options()).run()
