"""Checkpoints of small policies that play, for the tests of commands."""

import json
from pathlib import Path
from typing import Any

import mlx.core as mx

from puffer_mlx import checkpoint, config, vec
from puffer_mlx.policy.policy import configured_policy


def save(env: str = "connect4_two", run: str = "17", H: int = 8, seed: int = 1, more="") -> str:
    """Write a checkpoint of an untrained policy and return its path.

    ``more``: words of its command line.
    """
    words = f"--policy.hidden-size {H} --device cpu {more}".split()
    settings = config.load(env, words)
    vec.settle_family(settings)
    with vec.make(settings, 1) as environments:
        spec = environments.spec
        statistics = getattr(environments, "statistics", dict)()
    policy = configured_policy(spec, settings)
    weights = policy.init(mx.random.key(seed))
    folder = checkpoint.run_folder(settings, run)
    about = settings, spec, policy, weights
    return str(checkpoint.write_checkpoint(folder, 64, *about, statistics=statistics))


def record_of(folder: Path) -> dict[str, Any]:
    """Return the JSON record that a command wrote to ``x.json`` in a folder."""
    return json.loads((folder / "x.json").read_text())
