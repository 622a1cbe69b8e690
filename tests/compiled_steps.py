"""All compiled functions of a policy and of the algorithm that trains it, by their names."""

from typing import Any

from puffer_mlx.config import Config, Train
from puffer_mlx.policy.policy import Policy
from puffer_mlx.ppo import algorithms
from puffer_mlx.ppo.update import by_name, compile_steps, compile_update


def compiled(policy: Policy, train: Train) -> Any:
    """Those of a section [train], as a NamedTuple."""
    config = Config(train=train)
    steps = compile_steps(policy, config, algorithms.make(policy, config))
    return by_name(compile_update(policy, train.precision)._asdict() | steps._asdict())
