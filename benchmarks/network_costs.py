#!/usr/bin/env python
"""Compare networks with the MLP: python benchmarks/network_costs.py [--json FILE] [--help].

Trainers of Breakout with 4096 agents and one layer of 128 alternate epoch by epoch, so that a noisy
machine disturbs all networks equally. Prints medians of acting (the policy in a rollout), training
(all minibatches of an epoch: gather, advantages, gradients, Muon), gradients alone and the complete
epoch; their ratios to the MLP's; and acting divided by training, per sample.
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

PHASES = "acting", "training", "gradients", "epoch"  # that are measured


def make_trainer(network: str, options: argparse.Namespace) -> Trainer:
    """Create a trainer of Breakout with one layer of a network. The caller closes its ``vec``."""
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
        name: {phase: [] for phase in PHASES} for name in trainers
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
    trained_samples = settings.minibatches * settings.train.minibatch_size
    trained_per_acted = trained_samples / settings.batch_size
    for results in medians.values():
        for phase in PHASES:
            results[f"{phase} / MLP"] = results[phase] / medians.get("MLP", results)[phase]
        training = results["training"] / trained_per_acted
        results["acting / training, per sample"] = results["acting"] / training
    return medians


def main() -> None:
    """Measure the networks, print a table, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--networks", default=",".join(NETWORKS), help="names, with commas")
    parser.add_argument("--epochs", type=int, default=15, help="measured epochs per network")
    parser.add_argument("--warm-up", type=int, default=2, help="epochs before the measurement (2)")
    parser.add_argument("--hidden", type=int, default=128, help="policy.hidden_size (128)")
    parser.add_argument("--buffers", type=int, default=2, help="vec.num_buffers (2)")
    parser.add_argument("--dialect", default="native", help="policy.dialect (native)")
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "gpu"))
    parser.add_argument("--json", type=Path, help="write the record to a file")
    options = parser.parse_args()
    select_device(options.device)
    load = os.getloadavg()
    trainers = {name: make_trainer(name, options) for name in options.networks.split(",")}
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
