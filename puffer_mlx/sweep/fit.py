"""Suggested sizes that give way to one another, so that a run with them can begin.

Methods choose each number on its own, and many of their first suggestions don't fit together: a
minibatch larger than an epoch, training that is shorter than one. What is swept is moved to where
it fits, as the configuration moves what its files say (``config/fit.py``), within its range.
"""

from collections.abc import Callable, Mapping

from puffer_mlx.config import Config
from puffer_mlx.sweep.space import COST, Space

Values = dict[str, int | float]
AGENTS, HORIZON = "vec.total_agents", "train.horizon"
MINIBATCH, REPLAY = "train.minibatch_size", "train.replay_ratio"


# What doesn't fit, by all sizes' names; and keys and what they are multiplied by until it does, of
# the first that is swept and not at the end of its range. A key only ever moves in one direction,
# so that this ends.
MOVES: tuple[tuple[Callable[[Mapping[str, float]], bool], tuple[tuple[str, float], ...]], ...] = (
    (
        lambda size: size[MINIBATCH] > size[AGENTS] * size[HORIZON],
        ((MINIBATCH, 1 / 2), (HORIZON, 2), (AGENTS, 2)),
    ),
    (
        lambda size: size[REPLAY] * size[AGENTS] * size[HORIZON] < size[MINIBATCH],
        ((MINIBATCH, 1 / 2), (REPLAY, 5 / 4), (HORIZON, 2), (AGENTS, 2)),
    ),
    (lambda size: size[COST] < size[AGENTS] * size[HORIZON], ((COST, 5 / 4),)),
)


def fit(values: Values, space: Space, config: Config) -> Values:
    """Values whose sizes fit one another, as far as their ranges allow.

    Args:
        values: of what is swept, by name.
        space: their ranges.
        config: what isn't swept.
    """
    fitted = dict(values)
    ranges = {p.name: p for p in space.parameters}

    def moved(name: str, factor: float) -> bool:
        if name not in fitted:
            return False
        value = ranges[name].to_value(ranges[name].to_unit(fitted[name] * factor))
        changed = value > fitted[name] if factor > 1 else value < fitted[name]
        fitted[name] = value if changed else fitted[name]
        return changed

    plain = {
        AGENTS: config.vec.total_agents,
        HORIZON: config.train.horizon,
        MINIBATCH: config.train.minibatch_size,
        REPLAY: config.train.replay_ratio,
        COST: config.train.total_timesteps,
    }
    while ways := [way for misfit, ways in MOVES if misfit({**plain, **fitted}) for way in ways]:
        if not any(moved(*way) for way in ways):
            break
    return fitted
