"""``train`` with self-play: after training, the final weights play a ladder of opponents."""

import json
import shutil
from unittest.mock import Mock

import pytest
from native_envs import OURS, folder_of
from running import records

from puffer_mlx import config, vec
from puffer_mlx.cli import evaluate
from puffer_mlx.evaluation import ladder
from puffer_mlx.evaluation.episodes import seeded_eval_config
from puffer_mlx.evaluation.games import play_pair
from puffer_mlx.evaluation.players import policy_player
from puffer_mlx.training.trainer import Trainer

AGENTS, T, EPOCHS = 32, 4, 4
SMALL = f"""
    --device cpu --policy.hidden-size 8 --policy.num-layers 1 --vec.total-agents {AGENTS}
    --vec.num-buffers 2 --train.horizon {T} --train.minibatch-size 64 --train.learning-rate 0.05
    --train.total-timesteps {EPOCHS * AGENTS * T} --train.algorithm puffer4
    --selfplay.enabled 1 --vec.num-frozen-banks 1 --vec.frozen-bank-pct 0.25
    --selfplay.snapshot-interval {AGENTS * T}
""".split()


def test_a_run_ends_with_the_same_ladder_as_evaluate(script, here, capsys):
    """The ladder's games begin with the empty board; the training run's games don't."""
    line = "--selfplay.eval-bot-games 20 --selfplay.eval-bots 1"
    assert script.main(["connect4_two-openings", *SMALL, *line.split()]) == 0
    *epochs, last = records(here)
    levels = [f"env/ladder/bot_{skill}" for skill in ("0", "0.25", "0.5", "0.75", "1")]
    assert list(last) == ["agent_steps", "env/score", "env/n", *levels]
    assert last["env/score"] == pytest.approx(sum(last[name] for name in levels) / 5)
    assert (last["agent_steps"], last["env/n"]) == (EPOCHS * AGENTS * T, 5 * 20)
    assert len(epochs) == EPOCHS and "env/elo" in epochs[-1]
    lines = capsys.readouterr().out.splitlines()
    assert "unused with bot.py: selfplay.eval_bots" in lines
    first = lines.index("ladder of connect4_two, 20 games per opponent; sampled actions")
    names = [line.split()[0] for line in lines[first + 2 : first + 8]]
    assert names == ["bot:0", "bot:0.25", "bot:0.5", "bot:0.75", "bot:1", "mean"]
    assert not any("evaluation of the final weights" in line for line in lines)
    words = ["connect4_two", "latest", "--ladder", "--games", "20", "--json", "x.json"]
    assert evaluate.main(words) == 0
    played = json.loads((here / "x.json").read_text())["rungs"]
    assert [level["score"] for level in played] == [last[name] for name in levels]


def test_ladder_without_bots_plays_against_earlier_weights_of_the_pool():
    words = "--selfplay.eval-games 40 --selfplay.eval-pool-size 2 --vec.seed 5"
    settings = config.load("rock_paper_scissors", [*SMALL, *words.split()])
    with vec.make(settings, 1) as environments:
        trainer = Trainer(settings, environments)
        for _ in trainer:
            pass
        heartbeat = Mock()
        found = ladder.play_configured_ladder(trainer, lambda keys: vec.make(keys, 1), heartbeat)
        assert trainer.self_play is not None
        pool = trainer.self_play.league.table.pool
        assert len(pool) == EPOCHS and heartbeat.call_count > 2  # once per step
        players = [
            policy_player("", trainer.policy, weights, False)
            for weights in (trainer.weights, pool[0].weights, pool[1].weights)
        ]
        seed = settings.base.seed
        for level, opponent in zip(found.results, players[1:], strict=True):
            game_settings = seeded_eval_config(settings, 40, 2, seed)
            with vec.make(game_settings, 1) as games:
                result = play_pair(players[0], opponent, games, 1, seed)
            assert level.tally == result.total and level.games == 40


def test_missing_bots_are_refused_before_training(script, here, capsys):
    shutil.copy(OURS / "python" / "zoo_duel.py", here / "zoo_duel.py")
    for env, name in (str(folder_of("locks")), "locks"), ("pettingzoo:zoo_duel", "zoo_duel"):
        assert script.main([env, *SMALL, "--selfplay.eval-bot-games", "20"]) == 2
        assert f"{name} has no scripted opponents" in capsys.readouterr().err
    assert not list(here.glob("checkpoints/*/*"))
