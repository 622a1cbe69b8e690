#!/usr/bin/env python
"""Compare training speed with other trainers: python benchmarks/gym_peers.py --peers PYTHON.

Trains Gymnasium's CartPole-v1 (acting, stepping and training) with one thread on one core. Each
trainer runs in a separate process; the trainers alternate several times. `--peers` is a Python with
stable-baselines3, sb3-contrib and sbx-rl; without it only puffer_mlx runs.

Equal for all: N environments, rollouts of 128 steps, 4 passes over them in 4 minibatches each, clip
0.2, gamma 0.99, lambda 0.95. With an MLP: Stable-Baselines3 and SBX have two networks of two layers
of 64 with tanh, one for actions and one for values; puffer_mlx has one network of a linear layer
and two layers of 64 with GELU, with about as many products (8,900 and 8,600 per step). With an LSTM
of 128: sb3-contrib has one for actions and one for values, each followed by two layers of 64;
puffer_mlx has a linear layer followed by one LSTM. The others train with Adam on shuffled steps,
puffer_mlx with Muon on segments sampled with replacement. `sync` steps the environments one after
the other, like the other trainers; otherwise Gymnasium's vectorized CartPole is used.
"""

import argparse
import datetime
import json
import os
import platform
import resource
import statistics
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

ENVIRONMENT = "CartPole-v1"
HORIZON = 128  # steps of a rollout
PASSES = 4  # over a rollout
MINIBATCHES = 4  # per pass
WARM_UP = 2  # iterations that compile and aren't counted
Mark = Callable[[], bool]  # called when an iteration begins; returns False to stop


# ---- in a separate process -----------------------------------------------------------------------


def common(agents: int) -> dict[str, Any]:
    """Return PPO's arguments for the trainers that have Stable-Baselines3's interface."""
    return {
        "n_steps": HORIZON,
        "batch_size": agents * HORIZON // MINIBATCHES,
        "n_epochs": PASSES,
        "learning_rate": 2.5e-4,
        "gamma": 0.99,
        "gae_lambda": 0.95,
        "clip_range": 0.2,
        "ent_coef": 0.01,
        "max_grad_norm": 0.5,
        "seed": 1,
    }


def learn(algorithm: type, policy: str, agents: int, mark: Mark, **more: Any) -> None:
    """Train with an algorithm that has Stable-Baselines3's interface, until ``mark`` stops it."""
    import torch
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env

    class Marks(BaseCallback):
        going = True

        def _on_rollout_start(self) -> None:
            self.going = mark()

        def _on_step(self) -> bool:
            return self.going

    torch.set_num_threads(1)
    environments = make_vec_env(ENVIRONMENT, n_envs=agents, seed=1)
    trainer = algorithm(policy, environments, **common(agents), **more)
    trainer.learn(10**12, callback=Marks())


def sb3(agents: int, mark: Mark) -> None:
    from stable_baselines3 import PPO

    learn(PPO, "MlpPolicy", agents, mark, device="cpu", clip_range_vf=0.2)


def sbx(agents: int, mark: Mark) -> None:
    from sbx import PPO

    learn(PPO, "MlpPolicy", agents, mark)


def recurrent(agents: int, mark: Mark) -> None:
    from sb3_contrib import RecurrentPPO

    sizes = {"lstm_hidden_size": 128}
    learn(RecurrentPPO, "MlpLstmPolicy", agents, mark, device="cpu", policy_kwargs=sizes)


def command_line(agents: int, network: str, backend: str) -> list[str]:
    """Return puffer_mlx's settings of the speed comparison as options of `scripts/train.py`."""
    layers, hidden = (2, 64) if network == "MLP" else (1, 128)
    settings = {
        "device": "cpu",
        "profile": 0,
        "vec.total-agents": agents,
        "vec.num-buffers": 1,
        "vec.num-threads": 1,
        "vec.backend": backend,
        "vec.normalize-observations": 0,
        "vec.normalize-rewards": 0,
        "torch.network": network,
        "policy.hidden-size": hidden,
        "policy.num-layers": layers,
        "policy.dialect": "native",
        "train.horizon": HORIZON,
        "train.minibatch-size": agents * HORIZON // MINIBATCHES,
        "train.replay-ratio": PASSES,
        "train.gamma": 0.99,
        "train.gae-lambda": 0.95,
        "train.clip-coef": 0.2,
        "train.total-timesteps": 10**12,
    }
    return [word for name, value in settings.items() for word in (f"--{name}", str(value))]


def ours(network: str, backend: str) -> Callable[[int, Mark], None]:
    def run(agents: int, mark: Mark) -> None:
        import puffer_mlx  # noqa: F401  first: it chooses MLX's BLAS, before MLX loads
        from puffer_mlx import config, vec
        from puffer_mlx.system.devices import select_device
        from puffer_mlx.training.trainer import Trainer

        select_device("cpu")
        settings = config.load(f"gym:{ENVIRONMENT}", command_line(agents, network, backend))
        with vec.make(settings, 1) as environments:
            trainer = Trainer(settings, environments)
            while mark():
                trainer.step()

    return run


class Trainer(NamedTuple):
    """A trainer whose speed is compared: its function, packages, and options of puffer_mlx."""

    run: Callable[[int, Mark], None]
    packages: tuple[str, ...]  # whose versions matter
    options: tuple[str, str] | None = None  # ours: network and backend


def _ours(network: str, backend: str) -> Trainer:
    return Trainer(ours(network, backend), ("mlx", "gymnasium", "numpy"), (network, backend))


TRAINERS = {
    "puffer_mlx": _ours("MLP", "auto"),
    "puffer_mlx, sync": _ours("MLP", "sync"),
    "stable-baselines3": Trainer(sb3, ("stable-baselines3", "torch", "gymnasium")),
    "sbx": Trainer(sbx, ("sbx-rl", "jax", "gymnasium")),
    "puffer_mlx LSTM": _ours("LSTM", "auto"),
    "sb3-contrib LSTM": Trainer(recurrent, ("sb3-contrib", "torch", "gymnasium")),
}
RATIOS = (  # ours, theirs
    ("puffer_mlx", "stable-baselines3"),
    ("puffer_mlx", "sbx"),
    ("puffer_mlx, sync", "stable-baselines3"),
    ("puffer_mlx, sync", "sbx"),
    ("puffer_mlx LSTM", "sb3-contrib LSTM"),
)


def child(name: str, agents: int, seconds: float) -> None:
    """Run one trainer for some seconds after a warm-up, and print its measurements as JSON."""
    marks: list[tuple[float, float]] = []

    def mark() -> bool:
        marks.append((time.perf_counter(), time.process_time()))
        counted = len(marks) - 1 - WARM_UP
        return counted < 2 or marks[-1][0] - marks[WARM_UP][0] < seconds

    trainer = TRAINERS[name]
    trainer.run(agents, mark)
    (began, cpu), (ended, cpu_ended) = marks[WARM_UP], marks[-1]
    iterations = len(marks) - 1 - WARM_UP
    steps = iterations * agents * HORIZON
    unit = 2**20 if platform.system() == "Darwin" else 2**10
    results = {
        "iterations": iterations,
        "steps/s": steps / (ended - began),
        "steps/CPU-s": steps / (cpu_ended - cpu),
        "peak MiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit,
        "python": platform.python_version(),
        "versions": {package: version(package) for package in trainer.packages},
    }
    print("measured " + json.dumps(results))


# ---- all of them ---------------------------------------------------------------------------------


def measure(name: str, agents: int, options: argparse.Namespace) -> dict[str, Any]:
    """Run one trainer in a separate process. Returns its measurements, such as steps per second."""
    from learning_processes import measured  # not at the top: the peers' Python hasn't puffer_mlx

    python = sys.executable if TRAINERS[name].options else options.peers
    arguments = [__file__, "--child", name, "--envs", agents, "--seconds", options.seconds]
    cores = {options.core} if options.core >= 0 else set()
    load = os.getloadavg()[0]
    results, _ = measured([python, *arguments], cores)
    return {**results, "load": round(load, 2)}


def summary(runs: dict[str, dict[str, list[dict]]]) -> dict[str, dict[str, Any]]:
    """Return the medians of the trainers' speeds and their ratios, by number of environments."""
    results: dict[str, dict[str, Any]] = {}
    for agents, trainers in runs.items():
        medians = {
            name: {
                key: statistics.median(run[key] for run in passes)
                for key in ("steps/s", "steps/CPU-s", "peak MiB")
            }
            for name, passes in trainers.items()
        }
        ratios = {
            f"{our_name} / {peer}": {
                key: statistics.median(
                    a[key] / b[key] for a, b in zip(trainers[our_name], trainers[peer], strict=True)
                )
                for key in ("steps/s", "steps/CPU-s")
            }
            for our_name, peer in RATIOS
            if our_name in trainers and peer in trainers
        }
        results[agents] = {"medians": medians, "ratios": ratios}
    return results


def show(results: dict[str, dict[str, Any]]) -> None:
    for agents, tables in results.items():
        print(f"\n{agents} environments         steps/s  steps/CPU-s  peak MiB")
        for name, row in tables["medians"].items():
            print(f"{name:22}" + "".join(f"{row[key]:12,.0f}" for key in row))
        for name, row in tables["ratios"].items():
            print(f"{name:42} {row['steps/s']:6.2f} {row['steps/CPU-s']:6.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peers", metavar="PYTHON", help="Python with the other trainers")
    parser.add_argument("--envs", default="8,64", help="numbers of environments (8,64)")
    parser.add_argument("--trainers", help=f"of {'; '.join(TRAINERS)}, separated by semicolons")
    parser.add_argument("--passes", type=int, default=3, help="runs per trainer (3)")
    parser.add_argument("--seconds", type=float, default=6.0, help="measured seconds per run (6)")
    parser.add_argument("--core", type=int, default=-1, help="the core that all run on")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the record")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.child, int(options.envs), options.seconds)
        return
    wanted = options.trainers.split(";") if options.trainers else list(TRAINERS)
    if unknown := [name for name in wanted if name not in TRAINERS]:
        parser.error(f"no trainer {unknown[0]!r}; there are {'; '.join(TRAINERS)}")
    if options.core >= 0:
        cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
        if options.core not in cores:
            parser.error(f"--core: this process may not use core {options.core}")
    if not options.peers:
        wanted = [name for name in wanted if TRAINERS[name].options]

    runs: dict[str, dict[str, list[dict]]] = {
        agents: {name: [] for name in wanted} for agents in options.envs.split(",")
    }
    for number in range(options.passes):
        for agents, trainers in runs.items():
            for name, passes in trainers.items():
                passes.append(measure(name, int(agents), options))
                rate = passes[-1]["steps/s"]
                print(f"pass {number + 1}, {agents} environments, {name}: {rate:,.0f}", flush=True)
    results = summary(runs)
    show(results)
    if options.json:
        from puffer_mlx.system.json_text import write_json  # the peers' Python hasn't it

        settings = {key: getattr(options, key) for key in ("envs", "trainers", "passes", "seconds")}
        arguments = [f"--{key} '{value}'" for key, value in settings.items() if value is not None]
        peers = ["--peers PYTHON"] if options.peers else []
        first = int(options.envs.split(",")[0])
        record = {
            "command": " ".join(["python benchmarks/gym_peers.py", *peers, *arguments]),
            "date": datetime.date.today().isoformat(),
            "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
            "one core": options.core >= 0,
            f"ours, {first} environments": {
                name: " ".join(["gym:CartPole-v1", *command_line(first, *trainer.options)])
                for name in wanted
                if (trainer := TRAINERS[name]).options
            },
            "results": results,
            "runs": runs,
        }
        write_json(record, options.json)


if __name__ == "__main__":
    main()
