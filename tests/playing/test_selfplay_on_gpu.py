"""Self-play as a GPU computes it, whose kernels run as C++: a run goes on to the bit."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from emulated_run import emulated_gpu
from oracles import named
from running import learned

from puffer_mlx import checkpoint, config, vec
from puffer_mlx.rollout import acting
from puffer_mlx.rollout.acting_in_kernel import ActingInKernel
from puffer_mlx.training.trainer import Trainer

AGENTS, T, EPOCHS = 32, 5, 5
SMALL = f"""
    --device cpu --policy.hidden-size 8 --policy.num-layers 1 --vec.total-agents {AGENTS}
    --vec.num-buffers 2 --train.horizon {T} --train.minibatch-size 40 --train.replay-ratio 1
    --train.total-timesteps {EPOCHS * AGENTS * T} --train.learning-rate 0.05 --reset-state 0
    --selfplay.enabled 1 --selfplay.max-size 4 --torch.network LSTM
    --selfplay.rules puffer5 --checkpoint-interval 1
    --vec.num-policies 3 --vec.hist-policy-percent 0.5 --selfplay.opp-timeout-steps {2 * AGENTS * T}
""".split()


def outcome(trainer: Trainer) -> dict[str, bytes]:
    arrays = {**dict(named(trainer.weights)), **trainer.state().arrays}
    return {name: np.array(array).tobytes() for name, array in arrays.items()}


def test_from_the_middle_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(acting, "make_actor", lambda *_: None)  # who act in C on a CPU
    settings = config.load("connect4_two", SMALL)
    config.validate(settings)
    made: list[Path] = []
    logs: list[Any] = []
    with emulated_gpu() as gpu:
        with vec.make(settings, 1) as environments:
            trainer = Trainer(settings, environments)
            assert isinstance(trainer.collector.acting, ActingInKernel)
            for epoch, record in enumerate(trainer):
                logs.append(learned(record))
                about = settings, environments.spec, trainer.policy, trainer.weights
                made.append(checkpoint.write_weights(tmp_path, epoch, *about, trainer.state()))
            end = outcome(trainer)
        swaps = [record["pool/swaps"] for record in logs]
        middle = next(epoch for epoch, count in enumerate(swaps) if count)  # some state is anew
        with vec.make(settings, 1) as environments:
            trainer = Trainer(settings, environments)
            found = checkpoint.load(made[middle])
            assert trainer.restore(found.weights, checkpoint.load_state(made[middle]))
            assert [learned(record) for record in trainer] == logs[middle + 1 :]
            assert outcome(trainer) == end
    assert 0 < middle < EPOCHS - 1
    assert "lstm_act" in gpu.names
