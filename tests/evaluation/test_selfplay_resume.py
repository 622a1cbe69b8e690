"""A run with opponents resumes to the bit: weights, pending swaps, unfinished games."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from emulated_run import emulated_gpu
from running import learned
from watching import everything, functions, replace_functions

from puffer_mlx import checkpoint, config, vec
from puffer_mlx.errors import UserError
from puffer_mlx.rollout import acting
from puffer_mlx.rollout.acting_in_c import ActingInC
from puffer_mlx.rollout.acting_in_kernel import ActingInKernel
from puffer_mlx.training.trainer import Trainer

AGENTS, T, EPOCHS = 64, 5, 12
SMALL = f"""
    --device cpu --policy.hidden-size 8 --policy.num-layers 1 --vec.total-agents {AGENTS}
    --vec.num-buffers 2 --train.horizon {T} --train.minibatch-size 80 --train.replay-ratio 1
    --train.total-timesteps {EPOCHS * AGENTS * T} --train.learning-rate 0.05
    --selfplay.enabled 1 --selfplay.max-size 4
""".split()

RULES = {  # opponents change often: beaten after a few games, or after four rollouts
    "puffer4": f"""
        --selfplay.rules puffer4 --vec.num-frozen-banks 2 --vec.frozen-bank-pct 0.125
        --selfplay.min-games 4 --selfplay.swap-winrate 0.3 --selfplay.snapshot-interval
        {3 * AGENTS * T}
    """.split(),
    "puffer5": f"""
        --selfplay.rules puffer5 --vec.num-policies 3 --vec.hist-policy-percent 0.5
        --checkpoint-interval 2 --selfplay.opp-timeout-steps {4 * AGENTS * T} --reset-state 0
    """.split(),
}

pytestmark = pytest.mark.usefixtures("uncompiled")


def configure(*more: str, name: str = "connect4_two") -> config.Config:
    return config.load(name, [*SMALL, *more])


def outcome(trainer: Trainer) -> dict[str, bytes]:
    numbers = {name: n for name, n in trainer.state().values.items() if name != "uptime"}
    return {**everything(trainer), "numbers": repr(numbers).encode()}


def whole(settings: config.Config, folder: Path) -> tuple[list[Path], list[Any], Any]:
    """Train a self-play run to its end, with a checkpoint after each epoch.

    Returns the checkpoints, the records, and the final state.
    """
    made, logs = [], []
    with vec.make(settings, 2) as environments:
        trainer = Trainer(settings, environments)
        for epoch, record in enumerate(trainer):
            logs.append(learned(record))
            about = settings, environments.spec, trainer.policy, trainer.weights, trainer.state()
            made.append(checkpoint.write_checkpoint(folder, epoch, *about))
        return made, logs, outcome(trainer)


def test_each_epoch_of_puffer4_resumes_to_the_bit(tmp_path: Path):
    settings = configure(*RULES["puffer4"], "--train.overlap", "1")
    states = check_resumes(settings, tmp_path, ActingInC)
    opponents = [one for state in states for one in state.values["selfplay"]["opponents"]]
    assert any(one["pending"] is not None for one in opponents)  # waits for its games to end


def test_each_epoch_of_puffer5_in_the_kernel_resumes_to_the_bit(monkeypatch, tmp_path: Path):
    words = "--torch.network", "LSTM", "--train.total-timesteps", str(5 * AGENTS * T)
    settings = configure(*RULES["puffer5"], *words, name="rock_paper_scissors")
    monkeypatch.setattr(acting, "make_actor", lambda *_: None)  # which acts in C on a CPU
    with emulated_gpu():
        states = check_resumes(settings, tmp_path, ActingInKernel)
    assert any(np.array(state.arrays["selfplay.under_way"]).any() for state in states)


def check_resumes(settings: config.Config, folder: Path, way: type) -> list[checkpoint.SavedState]:
    """Check that a run resumed from each epoch's checkpoint ends the same; return the states."""
    made, logs, end = whole(settings, folder)
    assert logs[-1]["pool/swaps"] >= 1
    states = [checkpoint.load_state(folder) for folder in made]
    for epoch, folder in enumerate(made[:-1]):
        with vec.make(settings, 1) as environments:
            trainer = Trainer(settings, environments)
            assert isinstance(trainer.collector.acting, way)
            assert trainer.restore(checkpoint.load(folder).weights, states[epoch])
            assert [learned(record) for record in trainer] == logs[epoch + 1 :]
            assert outcome(trainer) == end
    return states


def test_a_failed_update_is_repeated(tmp_path: Path):
    settings = configure(*RULES["puffer4"], "--train.overlap", "1")
    _, logs, end = whole(settings, tmp_path)
    with vec.make(settings, 1) as environments, vec.make(settings, 1) as others:
        trainer, other = Trainer(settings, environments), Trainer(settings, others)
        found = [learned(trainer.step()) for _ in range(5)]
        real = functions(trainer).optimise

        def fails(*_: Any) -> Any:
            raise OSError("once")

        replace_functions(trainer, optimise=fails)
        with pytest.raises(OSError, match="once"):
            trainer.step()
        assert trainer.queue.rollout is not None
        given = trainer.weights, trainer.state()
        replace_functions(trainer, optimise=real)
        assert found + [learned(record) for record in trainer] == logs
        assert outcome(trainer) == end
        other.restore(*given)
        assert found + [learned(record) for record in other] == logs
        assert outcome(other) == end


def test_self_play_cannot_resume_a_run_without_opponents():
    settings = configure(*RULES["puffer4"])
    alone = configure("--selfplay.enabled", "0")
    with vec.make(alone, 1) as environments:
        trainer = Trainer(alone, environments)
        trainer.step()
        state = trainer.state()
        assert not any(name.startswith("selfplay") for name in state.arrays)
        with pytest.raises(UserError, match="the saved state has no opponents"):
            Trainer(settings, environments).restore(trainer.weights, state)
