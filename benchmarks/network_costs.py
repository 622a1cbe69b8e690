#!/usr/bin/env python
"""Compare networks with the MLP: python benchmarks/network_costs.py [--json FILE] [--help].

Trainers of Breakout with 4096 agents and one layer of 128 alternate epoch by epoch, so that a noisy
machine disturbs all networks equally. Prints medians of acting (the policy in a rollout), training
(K minibatches: gather, advantages, gradients, Muon) and the complete epoch, ratios to the MLP, and
acting over training, per sample.
"""

# ruff: noqa: I001
import argparse
import os
import statistics
from pathlib import Path

import puffer_mlx  # noqa: F401  first: it chooses MLX's BLAS, before MLX loads
import mlx.core as mx

from puffer_mlx import config, vec
from puffer_mlx.ops.cpu_extension import count_cores
from puffer_mlx.system.json_text import write_json
from puffer_mlx.policy.networks.catalog import NETWORKS
from puffer_mlx.system.devices import select_device
from puffer_mlx.training.trainer import Trainer
from puffer_mlx.system.version import version_text


def make(network: str, options: argparse.Namespace) -> Trainer:
    settings = config.load(
        "breakout",
        [
            *("--torch.network", network),
            *("--policy.hidden-size", str(options.hidden)),
            *("--policy.num-layers", "1"),
            *("--policy.dialect", options.dialect),
            *("--vec.num-buffers", str(options.buffers)),
        ],
    )
    return Trainer(settings, vec.make(settings, count_cores()))


def measure(trainers: dict[str, Trainer], options: argparse.Namespace) -> dict[str, dict]:
    """Train with all networks. Returns each one's milliseconds of acting and training per epoch.

    These are medians over the epochs.
    """
    times: dict[str, dict[str, list[float]]] = {
        name: {"acting": [], "training": [], "gradients": [], "epoch": []} for name in trainers
    }
    for epoch in range(options.warm_up + options.epochs):
        for name, trainer in trainers.items():
            logs = trainer.step()
            if epoch >= options.warm_up:
                times[name]["acting"].append(1000 * logs["perf/eval_gpu"])
                times[name]["training"].append(1000 * logs["perf/train"])
                times[name]["gradients"].append(1000 * logs["perf/train_forward"])
                times[name]["epoch"].append(1000 * (logs["perf/rollout"] + logs["perf/train"]))
    medians = {
        name: {phase: statistics.median(values) for phase, values in phases.items()}
        for name, phases in times.items()
    }
    settings = next(iter(trainers.values())).config
    trained = settings.minibatches * settings.train.minibatch_size / settings.batch_size
    for results in medians.values():
        for phase in ("acting", "training", "gradients", "epoch"):
            results[f"{phase} / MLP"] = results[phase] / medians.get("MLP", results)[phase]
        results["acting / training, per sample"] = results["acting"] / (
            results["training"] / trained
        )
    return medians


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--networks", default=",".join(NETWORKS))
    parser.add_argument("--epochs", type=int, default=15, help="measured epochs per network")
    parser.add_argument("--warm-up", type=int, default=2)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--buffers", type=int, default=2)
    parser.add_argument("--dialect", default="native")
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "gpu"))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    select_device(options.device)
    load = os.getloadavg()
    trainers = {name: make(name, options) for name in options.networks.split(",")}
    results = measure(trainers, options)
    columns = list(next(iter(results.values())))
    print(f"{mx.default_device()}, {count_cores()} cores, load before {load[0]:.2f}")
    print(f"{'':32}" + "".join(f"{name:>10}" for name in results))
    for column in columns:
        print(f"{column:32}" + "".join(f"{values[column]:10.2f}" for values in results.values()))
    for trainer in trainers.values():
        trainer.vec.close()
    if options.json:
        record = {
            "command": f"python benchmarks/network_costs.py --epochs {options.epochs}"
            f" --buffers {options.buffers} --dialect {options.dialect}",
            "device": str(mx.default_device()),
            "cores": count_cores(),
            "load_before": load,
            "versions": version_text().splitlines(),
            "milliseconds of an epoch, medians": results,
        }
        write_json(record, options.json)


if __name__ == "__main__":
    main()
