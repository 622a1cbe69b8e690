#!/usr/bin/env python
"""Is a seed slow by its weights or by chance: python benchmarks/nudged_seeds.py ENV [--help].

Trains an environment with a seed's own initial weights, each multiplied by 1 + 1e-6 normal noise:
what rounding does, too. If the runs of a slow seed stay slow, it is the weights; if they spread
like another seed's, it was chance. Prints the mean score of the last tenth of each run. Other
options are `scripts/train.py`'s.
"""
# ruff: noqa: I001

import argparse
import json
from pathlib import Path

import puffer_mlx  # noqa: F401  first: it chooses MLX's BLAS, before MLX loads
import mlx.core as mx
import numpy as np
from mlx.utils import tree_map

from puffer_mlx import config, vec
from puffer_mlx.config.fit import rollout_threads
from puffer_mlx.policy.policy import configured_policy
from puffer_mlx.system.devices import select_device
from puffer_mlx.training.placement import rollout_cores
from puffer_mlx.training.trainer import Trainer

SIZE = 1e-6  # of what weights are changed by, relatively


def tail(words: list[str], seed: int, nudge: int) -> float:
    """The mean score of the last tenth of a run whose weights are nudged."""
    seeds = ["--seed", str(seed), "--vec.seed", str(1000 * seed)]
    settings = config.load(words[0], [*words[1:], *seeds, "--profile", "0"])
    select_device(settings.base.device)
    numbers = np.random.default_rng(nudge)

    def changed(weight: mx.array) -> mx.array:
        return weight * mx.array(1 + SIZE * numbers.standard_normal(weight.shape), mx.float32)

    with vec.make(
        settings, threads=rollout_threads(settings, rollout_cores(settings))
    ) as environments:
        policy = configured_policy(environments.spec, settings)
        first, _ = mx.random.split(mx.random.key(seed))  # as of a trainer
        weights = tree_map(changed, policy.init(first))
        records = list(Trainer(settings, environments, weights=weights))
    late = [r for r in records if r["agent_steps"] > 0.9 * records[-1]["agent_steps"]]
    late = [r for r in late if r.get("env/n")]
    return sum(r["env/score"] * r["env/n"] for r in late) / sum(r["env/n"] for r in late)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("environment")
    parser.add_argument("--seeds", default="1,2", help="of the runs (1,2)")
    parser.add_argument("--nudges", type=int, default=4, help="runs of each (4)")
    parser.add_argument("--json", type=Path, help="write the scores here")
    options, words = parser.parse_known_args()
    found: dict[str, list[float]] = {}
    for seed in map(int, options.seeds.split(",")):
        for nudge in range(1, options.nudges + 1):
            score = tail([options.environment, *words], seed, nudge)
            found.setdefault(str(seed), []).append(score)
            print(f"seed {seed}, nudge {nudge}: {score:.1f}", flush=True)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
