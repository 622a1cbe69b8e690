"""Training replaces arrays and never writes into earlier ones, which the pool keeps."""

import mlx.core as mx
import numpy as np
import pytest
from running import TINY

from puffer_mlx import config, vec
from puffer_mlx.ppo import small_networks
from puffer_mlx.training.trainer import Trainer
from puffer_mlx.trees import named_arrays

WAYS = {
    "puffer5, LSTM, bf16": (
        *("--train.algorithm", "puffer5", "--torch.network", "LSTM", "--train.precision", "bf16"),
    ),
    "Adam, beside rollouts": ("--train.optimizer", "adam", "--train.overlap", "1"),
    "ppo, all minibatches one operation": (
        *("--train.algorithm", "ppo", "--torch.network", "MLP", "--train.optimizer", "adam"),
        *("--policy.dialect", "sb3"),
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_training_does_not_write_into_earlier_weights(way):
    name, *words = TINY
    settings = config.load(name, [*words, *WAYS[way]])
    with vec.make(settings, threads=2) as environments:
        trainer = Trainer(settings, environments)
        assert small_networks.supports_epoch(trainer.policy, settings.train) == (
            "one operation" in way
        )
        kept = [(trainer.weights, copies(trainer.weights))]
        for _ in trainer:
            kept.append((trainer.weights, copies(trainer.weights)))
    assert len(kept) > 2
    for weights, before in kept:
        for (key, array), copy in zip(named_arrays(weights), before, strict=True):
            np.testing.assert_array_equal(np.array(array), copy, err_msg=key)
    assert any(not np.array_equal(*pair) for pair in zip(kept[0][1], kept[-1][1], strict=True))


def copies(weights: object) -> list[np.ndarray]:
    mx.eval([array for _, array in named_arrays(weights)])
    return [np.array(array, copy=True) for _, array in named_arrays(weights)]
