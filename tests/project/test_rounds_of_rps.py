"""benchmarks/rounds_of_rps.py: exploitability by hand, and payoffs by playing the game."""

import importlib
import sys

import numpy as np
import pytest
from native_envs import Stepper, folder_of
from running import ROOT

from puffer_mlx.vec.native.vec import NativeVec

sys.path.append(str(ROOT / "benchmarks"))
game = importlib.import_module("rounds_of_rps")
observations, opponent_histories = game.observations, game.opponent_histories
exploitability, payoffs = game.exploitability, game.payoffs
Behaviour = list[np.ndarray]  # for each round the mixes (9^d, 3)

ROCK, PAPER, SCISSORS = np.eye(3)


def always(mix, rounds: int = 4) -> Behaviour:
    """Return rock-paper-scissors behaviour that always uses the same mix of choices."""
    return [np.tile(mix, (9**d, 1)) for d in range(rounds)]


def anything(seed: int, rounds: int) -> Behaviour:
    """Return random rock-paper-scissors behaviour: a random mix after each history."""
    rng = np.random.default_rng(seed)
    return [rng.dirichlet(np.ones(3), 9**d) for d in range(rounds)]


def test_exploitability_is_the_best_answers_gain():
    assert exploitability([always([0.25, 0.5, 0.25])]) == pytest.approx(0)
    assert exploitability([always(ROCK)]) == pytest.approx(4 * 0.5)
    assert exploitability([always(PAPER)]) == pytest.approx(4 * 0.5)
    assert exploitability([always(SCISSORS)]) == pytest.approx(4 * 1)
    assert exploitability([always(np.ones(3) / 3)]) == pytest.approx(4 * 0.5 / 3)
    # One of three pure players: 1/3 each in the first round, known afterwards.
    pure = [always(choice) for choice in (ROCK, PAPER, SCISSORS)]
    assert exploitability(pure) == pytest.approx(0.5 / 3 + 3 * (0.5 + 0.5 + 1) / 3)
    # The equilibrium, but scissors after a rock: loses 1 by a rock that costs 0.
    habit = always([0.25, 0.5, 0.25], 2)
    habit[1][np.arange(9) % 3 == 0] = SCISSORS
    assert exploitability([habit]) == pytest.approx(1)


def test_payoffs_and_observations_are_those_of_played_episodes():
    n, rounds = 4000, 3
    players = [anything(3, rounds), anything(4, rounds)]
    rng = np.random.default_rng(5)
    pasts = np.zeros(n, int)
    won = np.zeros(n)
    folder = folder_of("rock_paper_scissors")
    with NativeVec(folder, total_agents=2 * n, env={"rounds": rounds}) as vec:
        stepper = Stepper(vec)
        for d in range(rounds):
            views = pasts, opponent_histories(d)[pasts]
            choices = np.zeros((n, 2), np.float32)
            for seat, (player, view) in enumerate(zip(players, views, strict=True)):
                seen = stepper.rows.observations[seat::2]
                np.testing.assert_array_equal(seen, observations(d)[view])
                choices[:, seat] = (rng.random((n, 1)) > player[d][view].cumsum(1)[:, :2]).sum(1)
            rows = stepper.step(choices.reshape(-1, 1))
            won += rows.rewards[0::2]
            pasts = 9 * pasts + (3 * choices[:, 0] + choices[:, 1]).astype(int)
        assert rows.terminals.all()
    assert payoffs(players[0], [players[1]]) == pytest.approx(won.mean(), abs=0.08)
