"""Declare every configuration key: type, default, unit, range and help.

Each section has a file, and `config.py` combines them. All other places derive from these
declarations: configuration files, command line, `--help` and `configs/default.ini`. Sections, names
and defaults are PufferLib 4.0's. The help of a key that neither 4.0 nor 5.0 has says "puffer_mlx
only". 5.0's different defaults are in `configs/puffer5.ini`, its different names in
`compatibility.py`.

| symbol | meaning | key or property |
| --- | --- | --- |
| N | agents | `vec.total_agents` |
| Q | buffers, equal groups of agents | `vec.num_buffers` |
| T | horizon: steps of one rollout, and the length of a training segment | `train.horizon` |
| M | environment steps of one minibatch | `train.minibatch_size` |
| S | segments (T steps of one agent each) in a minibatch, M / T | `Config.segments` |
| K | minibatches in an epoch | `Config.minibatches` |
| E | epochs of the run | `Config.epochs` |
| B | opponents at the same time in self-play | `Config.opponents` |
"""

# ruff: noqa: F401

from puffer_mlx.config.key import ARGUMENT, COMMAND_LINE
from puffer_mlx.config.schema.base import NO_TRACKER, Base
from puffer_mlx.config.schema.config import (
    DECLARED,
    GOAL_SIGNS,
    KEYS,
    METRIC_SECTION_OF_3,
    SECTIONS,
    Config,
    minibatches,
)
from puffer_mlx.config.schema.policy import Policy, Torch, may_be_recurrent
from puffer_mlx.config.schema.selfplay import Selfplay
from puffer_mlx.config.schema.train import OPTIMIZERS, Train
from puffer_mlx.config.schema.vec import Vec, Wrap
