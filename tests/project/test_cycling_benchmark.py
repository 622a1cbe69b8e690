"""benchmarks/cycling.py: what it computes is the game's, by hand and by playing; and it runs."""

import importlib
import json
import sys

import numpy as np
import pytest
from native_envs import Stepper, folder_of
from running import ROOT

from puffer_mlx.vec.native.vec import NativeVec

sys.path.append(str(ROOT / "benchmarks"))
cycling, game = (importlib.import_module(name) for name in ("cycling", "rounds_of_rps"))
behaviour, observations, turned = game.behaviour, game.observations, game.turned
exploitability, payoffs = game.exploitability, game.payoffs
Behaviour = list[np.ndarray]  # for each round the mixes (9^d, 3)

ROCK, PAPER, SCISSORS = np.eye(3)


def always(mix, rounds: int = 4) -> Behaviour:
    """The same mix of choices whatever was played."""
    return [np.tile(mix, (9**d, 1)) for d in range(rounds)]


def anything(seed: int, rounds: int) -> Behaviour:
    """Some mix after each past."""
    rng = np.random.default_rng(seed)
    return [rng.dirichlet(np.ones(3), 9**d) for d in range(rounds)]


def played(n: int, rounds: int) -> NativeVec:
    return NativeVec(folder_of("rock_paper_scissors"), total_agents=2 * n, env={"rounds": rounds})


def test_the_best_answer_by_hand():
    """To paper it is scissors, four times 0.5, and so on; to 1/3 each rock: (1 - 0.5) / 3."""
    assert exploitability([always([0.25, 0.5, 0.25])]) == pytest.approx(0)
    assert exploitability([always(ROCK)]) == pytest.approx(4 * 0.5)
    assert exploitability([always(PAPER)]) == pytest.approx(4 * 0.5)
    assert exploitability([always(SCISSORS)]) == pytest.approx(4 * 1)
    assert exploitability([always(np.ones(3) / 3)]) == pytest.approx(4 * 0.5 / 3)
    # One of three constant players is 1/3 each in the first round, and known after it.
    pure = [always(choice) for choice in (ROCK, PAPER, SCISSORS)]
    assert exploitability(pure) == pytest.approx(0.5 / 3 + 3 * (0.5 + 0.5 + 1) / 3)
    # Who answers rock with scissors, and else is the equilibrium, loses 1 by a rock that costs 0.
    habit = always([0.25, 0.5, 0.25], 2)
    habit[1][np.arange(9) % 3 == 0] = SCISSORS
    assert exploitability([habit]) == pytest.approx(1)


def test_payoffs_by_hand():
    assert payoffs(always(PAPER), [always(ROCK), always(SCISSORS)]) == pytest.approx([2, -2])
    mine, others = anything(0, 4), [anything(seed, 4) for seed in (1, 2)]
    back = [payoffs(other, [mine])[0] for other in others]
    np.testing.assert_allclose(payoffs(mine, others), -np.array(back))
    assert exploitability([mine]) > max(-payoffs(mine, others))


def test_what_is_seen_and_won_is_the_game_s():
    """Two behaviours play 4,000 episodes of three rounds, each by the number of its past."""
    n, rounds = 4000, 3
    players, rng = [anything(3, rounds), anything(4, rounds)], np.random.default_rng(5)
    pasts, won = np.zeros(n, int), np.zeros(n)
    with played(n, rounds) as vec:
        stepper = Stepper(vec)
        for d in range(rounds):
            views = pasts, turned(d)[pasts]
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


@pytest.mark.slow
def test_it_runs_and_keeps_what_it_has(tmp_path, capsys):
    path = tmp_path / "x.json"
    short = "--train.total-timesteps 100_000 --base.checkpoint-interval 1 --seeds 1"
    words = ["--json", str(path), *short.split()]

    def printed(*more: str) -> str:
        assert not cycling.main([*words, *more])
        return capsys.readouterr().out

    assert "alone, seed 1: policy " in printed("--forms", "alone")
    both = printed("--forms", "alone,puffer5,puffer4")
    assert "alone, seed 1" not in both and "puffer5, seed 1: policy " in both
    runs = json.loads(path.read_text())["runs"]
    assert list(runs) == ["alone", "puffer5", "puffer4"]
    for seeds in runs.values():
        curve = seeds["1"]
        assert curve["steps"][-1] == 3 * 32_768 and len(set(map(len, curve.values()))) == 1
        assert curve["policy"] != curve["mixture"] and min(curve["mixture"]) > 0
    assert runs["alone"] != runs["puffer5"], "opponents make a difference"
    assert "alone, seed 1: policy " in printed("--forms", "alone", "--again")
    assert json.loads(path.read_text())["runs"] == runs, "the same seed, the same run"
    assert cycling.main([*words, "--env.rounds", "2"]) == 2
    assert "x.json is of other options" in capsys.readouterr().err
