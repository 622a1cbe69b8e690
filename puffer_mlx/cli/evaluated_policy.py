"""The policy that ``evaluate.py`` is to play, and the environments it plays in."""

from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx

from puffer_mlx import checkpoint, vec
from puffer_mlx.checkpoint.environment_statistics import (
    as_trained,
    refuse_other_units,
    restore_statistics,
)
from puffer_mlx.checkpoint.weight_files import load_weights
from puffer_mlx.cli.evaluate_options import parse
from puffer_mlx.config import Config
from puffer_mlx.config.trust import known
from puffer_mlx.errors import UserError
from puffer_mlx.ops.cpu_extension import threads
from puffer_mlx.playing.episodes import arena
from puffer_mlx.policy.policy import Policy, configured_policy
from puffer_mlx.spec import EnvSpec
from puffer_mlx.vec.base import Environments

FILES = (".safetensors", ".bin", ".pt", ".pth", ".onnx")  # the last three are to be imported


class Player(NamedTuple):
    """Who plays where."""

    config: Config
    policy: Policy
    weights: Any
    agents: int  # of one environment
    source: Path  # the checkpoint's folder, or the file


def probe(config: Config) -> Environments:
    """Environments to be asked what they are, as many of them as go into one group."""
    one_group = replace(config.vec, num_buffers=1)
    return vec.make(replace(config, vec=one_group, origins={}, notes=[]), 1)


def load(argv: list[str], config: Config, path: str) -> Player:
    """What ``--load-model-path`` names, and the configuration to evaluate it with."""
    if Path(path).suffix in FILES and not Path(path).is_dir():
        vec.settle_family(config)
        config = as_trained(config, Path(path))
        with probe(config) as made:
            spec, agents = made.spec, made.num_agents // made.num_environments
        policy = configured_policy(spec, config)
        weights = load_weights(path, policy.init(mx.random.key(0)))
        return Player(config, policy, weights, agents, Path(path))
    found = checkpoint.load(checkpoint.find(path, config), known(config))
    config, _ = parse(argv, [found.folder / "config.ini"])
    config = as_trained(config, found.folder)
    for section in ("policy", "torch"):
        own, asked = getattr(found.config, section), getattr(config, section)
        if own != asked:
            key = next(k for k, v in vars(own).items() if v != getattr(asked, k))
            raise UserError(
                f"{section}.{key} {getattr(asked, key)} contradicts the checkpoint's"
                f" {getattr(own, key)}",
                "leave it out: the policy is the checkpoint's",
            )
    with probe(config) as made:
        if replace(made.spec, name="") != replace(found.spec, name=""):
            raise UserError(
                f"{found.folder} is a policy for {described(found.spec)},"
                f" but {config.env_name} has {described(made.spec)}",
                f"evaluate it on {found.config.env_name}",
            )
        agents = made.num_agents // made.num_environments
    return Player(config, found.policy, found.weights, agents, found.folder)


def described(spec: EnvSpec) -> str:
    """What an environment shows and takes, in words."""
    shape = f" of shape {spec.observation_shape}" if spec.observation_shape else ""
    mask = ", masked" if spec.mask_size else ""
    if spec.action.bounds:
        mask += f", -1 to 1 rescaled to {spec.action.bounds}"
    return (
        f"{spec.observation_size} {spec.observation_dtype} observations{shape}"
        f" and action sizes {spec.action.sizes}{mask}"
    )


def environments(player: Player, count: int, render: bool = False) -> Environments:
    """So many environments, whose seeds no other --seed shares; ``render``: to be drawn."""
    config = arena(player.config, count, player.agents, player.config.base.seed)
    return ready(config, player.source, render)


def ready(config: Config, source: Path, render: bool = False) -> Environments:
    """Environments that show and take what the policy of a checkpoint or a file knows."""
    made = vec.make(config, threads(), render=render)
    restore_statistics(made, source, frozen=True)
    refuse_other_units(made, source)
    return made
