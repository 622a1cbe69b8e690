"""PufferLib 5.0's files, defaults and keys: what selects its trainer, and what that is told."""

import pytest

from puffer_mlx import config as c

PUBLISHED = {  # variant of Breakout -> agents, E, K, first agent of each minibatch, steps
    "a": (8192, 304, 6, [0, 2048, 4096, 6144, 0, 2048], 79_691_776),
    "b": (2048, 1205, 2, [0, 0], 78_970_880),
    "c": (2048, 1655, 5, [0, 1024, 0, 1024, 0], 108_462_080),
    "d": (2048, 958, 4, [0, 512, 1024, 1536], 62_783_488),
    "e": (4096, 498, 4, [0, 2048, 0, 2048], 65_273_856),
    "f": (4096, 357, 4, [0, 2048, 0, 2048], 46_792_704),
}


@pytest.mark.parametrize("variant", PUBLISHED)
def test_the_published_runs_have_their_published_lengths(variant):
    agents, epochs, minibatches, offsets, steps = PUBLISHED[variant]
    config = c.load(f"breakout-{variant}")
    assert (config.env_name, config.vec.total_agents) == ("breakout", agents)
    assert (config.epochs, config.minibatches) == (epochs, minibatches)
    assert [j * config.segments % agents for j in range(config.minibatches)] == offsets
    assert config.epochs * config.batch_size == steps
    assert config.train.algorithm == "puffer5" and config.unused == config.notes == []
    assert config.env == c.load("breakout").env | {"frameskip": 3}
