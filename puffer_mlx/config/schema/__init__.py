"""The declaration of every key of a run: type, default, unit, range and help.

Each section has a file, and `config.py` combines them. They are the only declaration:
configuration files, command line, `--help` and `configs/default.ini` derive from them. Sections,
names and defaults are PufferLib 4.0's; a key that is neither 4.0's nor 5.0's says "puffer_mlx
only". 5.0's other defaults are in `configs/puffer5.ini`, its other names in `compatibility.py`.

| symbol | meaning | key or property |
| --- | --- | --- |
| N | agents | `vec.total_agents` |
| Q | buffers the agents are split into | `vec.num_buffers` |
| T | horizon: steps of one rollout, and the length of a training segment | `train.horizon` |
| M | environment steps of one minibatch | `train.minibatch_size` |
| S | segments (T steps of one agent each) of a minibatch, M / T | `Config.segments` |
| K | minibatches of an epoch | `Config.minibatches` |
| E | epochs of the run | `Config.epochs` |
| B | opponents at the same time in self-play | `Config.opponents` |
"""

# ruff: noqa: F401

from puffer_mlx.config.key import ARGUMENT, COMMAND_LINE
from puffer_mlx.config.schema.base import NO_TRACKER, Base
from puffer_mlx.config.schema.config import (
    DECLARED,
    GOALS,
    KEYS,
    OLD_METRIC,
    SECTIONS,
    Config,
    minibatches,
)
from puffer_mlx.config.schema.policy import Policy, Torch, says_memory
from puffer_mlx.config.schema.selfplay import Selfplay
from puffer_mlx.config.schema.train import OPTIMIZERS, Train
from puffer_mlx.config.schema.vec import Vec, Wrap
