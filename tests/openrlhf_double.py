"""A small double of OpenRLHF: classes of the same shape, for tests where it is not installed.

It has the places that the adapter touches, and a simple way of its own between them: what is
generated at a time waits in a list, and is trained a step at a time. All of its modules are this
one, under the names that the adapter knows. There are two of it: ``openrlhf_double`` saves the live
place of its loader; ``openrlhf_double_repaired`` the place of the oldest hand-out that is not
trained to its end, and how much of it is.
"""

from __future__ import annotations

import asyncio
import importlib.util
import itertools
import os
import sys
from types import SimpleNamespace
from typing import Any

import torch

MODULES = (
    "cli.train_ppo_ray",
    "trainer.ppo_trainer",
    "trainer.ppo_trainer_async",
    "trainer.ppo_utils.experience_maker",
    "trainer.ppo_utils.samples_generator",
    "trainer.ray.launcher",
    "trainer.ray.ppo_actor",
    "trainer.ray.vllm_engine",
    "utils.deepspeed",
    "utils.deepspeed.deepspeed",
)
REPAIRED = __name__.endswith("repaired")

# What only a cluster, a GPU or files give.
ray = Queue = create_vllm_engines = blending_datasets = get_tokenizer = None


def torch_dist_barrier_and_cuda_sync():
    raise RuntimeError("there is no GPU")


def remote(kind: type) -> Any:
    return SimpleNamespace(__ray_metadata__=SimpleNamespace(modified_class=kind))


# -- loader, engine, buffer ----------------------------------------------------------------------


class Loader:
    """Rows one by one; its state is its place."""

    def __init__(self, rows):
        self.rows, self.place = rows, 0

    def __iter__(self):
        while self.place < len(self.rows):
            self.place += 1
            row = self.rows[self.place - 1]
            yield ["source"], [row["text"]], [row["row"]], [None]
        self.place = 0

    def state_dict(self):
        return {"place": self.place}

    def load_state_dict(self, state):
        self.place = state["place"]


class SamplesGenerator:
    def __init__(self, args, engines):
        self.args, self.engines = args, engines

    def _generate_vllm(self, batch):
        size = self.args.rollout.n_samples_per_prompt
        refs = [
            self.engines[0].generate_responses.remote(
                prompt=prompts[0], label=labels[0], num_samples=size, images=None
            )
            for _, prompts, labels, _ in batch
        ]
        answers = []
        while refs:
            (ready,), refs = ray.wait(refs, num_returns=1, timeout=10.0)
            answers += ray.get(ready)
        found = [
            SimpleNamespace(sequences=torch.tensor([a["observation_tokens"]])) for a in answers
        ]
        return found, len(batch)


@remote
class VLLMLock:
    def __init__(self):
        self.lock = asyncio.Lock()

    async def acquire(self):
        await self.lock.acquire()

    async def release(self):
        self.lock.release()


@remote
class GenerateSamplesActor:
    def __init__(self, strategy, engines, queue, lock):
        self.args, self.queue, self.lock = strategy.args, queue, lock
        rows = blending_datasets(self.args.data.prompt_dataset)
        rows = rows.select(range(len(rows)))
        self.loader = strategy.setup_dataloader(rows, 1, True, True, None, num_workers=0)
        self.samples = SamplesGenerator(self.args, engines)
        self.trained = 0

    def load_state_dict(self, state):
        self.loader.load_state_dict(state["loader"])
        self.trained = state["trained"]

    def fit(self, episode):
        sizes = self.args.rollout
        for number in range(episode, self.args.train.num_episodes):
            source = iter(self.loader)
            while True:
                before = self.loader.state_dict()
                batch = list(itertools.islice(source, sizes.vllm_generate_batch_size))
                if not batch:
                    break
                done, self.trained = self.trained, 0
                ray.get(self.lock.acquire.remote())
                waiting, _ = self.samples._generate_vllm(batch[done:])
                ray.get(self.lock.release.remote())
                while waiting:
                    size = sizes.batch_size * sizes.n_samples_per_prompt
                    step, waiting = waiting[:size], waiting[size:]
                    done += len(step) // sizes.n_samples_per_prompt
                    live = {"loader": self.loader.state_dict(), "trained": 0}
                    oldest = {"loader": before, "trained": done}
                    state = oldest if REPAIRED and waiting else live
                    self.queue.put((step, {"episode": number, "data": state}), block=True)
        self.queue.put("done", block=True)


# -- training ------------------------------------------------------------------------------------


@remote
class PolicyModelActor:
    def __init__(self, *world):
        raise RuntimeError("there is no GPU")

    def execute_batch(self, method_name, data, start, end):
        names = list(data)
        rows = zip(*(data[name][start:end] for name in names), strict=True)
        return [getattr(self, method_name)(**dict(zip(names, row, strict=True))) for row in rows]

    def append(self, experience):
        self.trainer.replay_buffer.append(experience)

    def get_checkpoint_states(self):
        return self.checkpoint_states

    def save_checkpoint(self, tag, client_states=None):
        directory = os.path.join(self.strategy.args.ckpt.path, "_actor")
        self.strategy.save_ckpt(self.actor.model, directory, tag, client_states)
        torch_dist_barrier_and_cuda_sync()


class RayActorGroup:
    def __init__(self, kind):
        self.actors = [kind.options(num_gpus=1).remote(1, 0, None, None)]

    def run(self, name, *args, **kwargs):
        return [getattr(actor, name).remote(*args, **kwargs) for actor in self.actors]

    def run_batch(self, name, **kwargs):
        chunk = ray.put(kwargs)
        return [actor.execute_batch.remote(name, chunk, 0, None) for actor in self.actors]


@remote
class TrainingActor:
    def __init__(self, policy, queue, lock):
        self.policy, self.queue, self.lock = policy, queue, lock

    def get_states(self):
        return ray.get(self.policy.run("get_checkpoint_states"))[0]

    def fit(self, step):
        tokenizer = get_tokenizer("audited", None, "left", None, use_fast=True)
        while (item := self.queue.get(block=True)) != "done":
            experiences, states = item
            print("answer:", tokenizer.decode(experiences[0].sequences)[0])
            masks = [torch.ones(1, 2) for _ in experiences]
            ray.get(self.policy.run_batch("forward", action_mask=masks))
            ray.get(self.policy.run_batch("append", experience=experiences))
            ray.get(self.policy.run("fit", kl_ctl=0.0))
            ray.get(self.lock.acquire.remote())
            ray.get(self.policy.run("broadcast_to_vllm"))
            ray.get(self.lock.release.remote())
            step += 1
            states = {**states, "step": step}
            ray.get(self.policy.run("save_checkpoint", tag=f"step{step}", client_states=states))


@remote
class PPOTrainerAsync:
    def __init__(self, strategy, policy, engines):
        queue, lock = Queue(maxsize=1), VLLMLock.remote()
        self.generator = GenerateSamplesActor.remote(strategy, engines, queue=queue, lock=lock)
        self.trainer = TrainingActor.remote(policy, queue=queue, lock=lock)

    def fit(self):
        states = ray.get(self.trainer.get_states.remote())
        if states:
            ray.get(self.generator.load_state_dict.remote(states["data"]))
        began = self.generator.fit.remote(episode=states.get("episode", 0))
        ray.get([began, self.trainer.fit.remote(states.get("step", 0))])


class _Engine(torch.nn.Module):
    pass


deepspeed = SimpleNamespace(DeepSpeedEngine=_Engine)


class DeepspeedStrategy:
    def __init__(self, args):
        self.args = args

    def setup_dataloader(self, rows, size, pin_memory, shuffle, collate, num_workers=0):
        assert not pin_memory
        return Loader(rows)

    def save_ckpt(self, model, directory, tag, states):
        assert isinstance(model, deepspeed.DeepSpeedEngine)
        torch_dist_barrier_and_cuda_sync()
        model.save_checkpoint(directory, tag=tag, client_state=states, save_latest=True)

    def load_ckpt(self, model, directory):
        found, states = model.load_checkpoint(directory, None, load_module_strict=True)
        return (found, states) if found is not None else (None, {})


# -- the command line ----------------------------------------------------------------------------


def train(args):
    assert ray.is_initialized()
    strategy = DeepspeedStrategy(args)
    engines = create_vllm_engines(args.vllm.num_engines)
    ray.get(engines[0].pause_generation.remote())
    ray.get(engines[0].resume_generation.remote())
    assert ray.get(engines[0].get_num_unfinished_requests.remote()) == 0
    policy = RayActorGroup(PolicyModelActor)
    trainer = PPOTrainerAsync.remote(strategy, policy, engines)
    ray.get(policy.run("init_model_from_pretrained", strategy, "audited"))
    ray.get(trainer.fit.remote())
    ray.get(policy.run("save_model"))


def typed(words):
    """Options ``--part.name value``, or just ``--part.name``."""
    args = SimpleNamespace(
        ckpt=SimpleNamespace(load_enable=False, save_hf=False, disable_ds=False),
        **{name: SimpleNamespace() for name in ("actor", "algo", "data", "reward", "rollout")},
        **{name: SimpleNamespace() for name in ("train", "vllm")},
    )
    args.algo.advantage = args.algo.kl = SimpleNamespace()
    for word, value in itertools.pairwise([*words, "--"]):
        if word.startswith("--"):
            *path, name = word.removeprefix("--").split(".")
            part = args
            for step in path:
                part = getattr(part, step)
            number = int(value) if value.isdigit() else value
            setattr(part, name, True if value.startswith("--") else number)
    return args


for _name in MODULES:
    sys.modules[f"{__name__}.{_name}"] = sys.modules[__name__]

if not REPAIRED and __name__ == "openrlhf_double":
    _spec = importlib.util.spec_from_file_location(f"{__name__}_repaired", __file__)
    assert _spec is not None
    assert _spec.loader is not None
    _module = sys.modules[_spec.name] = importlib.util.module_from_spec(_spec)
    _spec.loader.exec_module(_module)

if __name__ == "__main__":
    args = typed(sys.argv[1:])
    assert args.rollout.vllm_generate_batch_size % args.rollout.batch_size == 0

    train(args)
