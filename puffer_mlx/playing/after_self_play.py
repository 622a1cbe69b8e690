"""Evaluate a self-play run after training, as PufferLib 5.0 does.

Scores from self-play mean little, because both sides are learners. The last weights therefore play
the environment's scripted opponents (``selfplay.eval_bot_games``) or, without those, the oldest
entries of the pool (``selfplay.eval_games``). This replaces the evaluation after training; the mean
score is the score of the run.
"""

from collections.abc import Callable
from dataclasses import replace

from puffer_mlx.checkpoint.environment_statistics import copy_statistics, current_statistics
from puffer_mlx.config import Config
from puffer_mlx.playing.ladder import (
    Ladder,
    against_bots,
    idle_note,
    in_bot_games,
    play_bots,
    play_each,
    play_skills,
    plays_bots_itself,
    refuse_unplayable,
)
from puffer_mlx.playing.matches import Games, agents_of, without_statistics
from puffer_mlx.playing.players import Player, policy_player
from puffer_mlx.spec import EnvSpec
from puffer_mlx.training.epoch_logs import Logs
from puffer_mlx.training.trainer import Trainer
from puffer_mlx.vec.base import Environments

Make = Callable[[Config], Environments]

RUNGS = "env/ladder/"  # key prefix of opponent levels in a record


def is_asked(config: Config) -> bool:
    """Return True if the last weights play opponents after training."""
    play = config.selfplay
    pool = play.eval_games > 0 and play.eval_pool_size > 0
    return play.enabled and (play.eval_bot_games > 0 or pool)


def prepare(config: Config, spec: EnvSpec) -> str:
    """Check, before training, that the configured games can be played.

    Args:
        config: Configuration of the run.
        spec: Spec of the training environments.

    Returns:
        A note that names unused keys, or an empty string.

    Raises:
        UserError: If the environment has no scripted opponents or can't play them.
    """
    if not (is_asked(config) and config.selfplay.eval_bot_games):
        return ""
    if plays_bots_itself(config):
        refuse_unplayable(against_bots(config), spec)
    return idle_note(config)


def climb(trainer: Trainer, make: Make, alive: Callable[[], object] = lambda: None) -> Ladder:
    """Play a trainer's weights against the configured opponents.

    Args:
        trainer: Self-play trainer after its last epoch.
        make: Creates environments from a configuration. They are closed here.
        alive: Called after each step.

    Raises:
        UserError: If the games can't be played; see ``playing.ladder``.
    """
    config, spec = trainer.config, trainer.vec.spec
    play, seed = config.selfplay, config.base.seed

    def progress(done: int, total: int) -> None:
        alive()

    if play.eval_bot_games and plays_bots_itself(config):

        def ready(config: Config) -> Environments:
            environments = make(config)
            copy_statistics(trainer.vec, environments)
            return environments

        return play_bots(
            config,
            spec,
            trainer.policy,
            trainer.weights,
            ready,
            play.eval_bot_games,
            seed,
            progress=progress,
        )
    player = _player("the last weights", trainer, trainer.weights)
    if play.eval_bot_games:
        games = _games(in_bot_games(config), make, play.eval_bot_games)
        return play_skills(player, config, spec, games, progress)
    assert trainer.self_play is not None, "is_asked"
    pool = trainer.self_play.league.table.pool[: play.eval_pool_size]
    others = [
        _player(f"pool {number} (step {entry.step:,})", trainer, entry.weights)
        for number, entry in enumerate(pool)
    ]
    return play_each(player, others, config, _games(config, make, play.eval_games), progress)


def logs_of(ladder: Ladder, trainer: Trainer) -> Logs:
    """Return the final record of a run: the ladder's score and the score of each level."""
    rungs = {RUNGS + key_of(rung.name): rung.score for rung in ladder.rungs}
    games = float(sum(rung.games for rung in ladder.rungs))
    score = {trainer.config.metric: ladder.score}
    return {"agent_steps": trainer.global_step, **score, "env/n": games, **rungs}


def key_of(name: str) -> str:
    """Return an opponent's name as part of a key, such as ``bot_0.5`` or ``pool_3``."""
    return name.partition(" (")[0].replace(" ", "_").replace(":", "_")


def _player(name: str, trainer: Trainer, weights: object) -> Player:
    return policy_player(name, trainer.policy, weights, False, current_statistics(trainer.vec))


def _games(config: Config, make: Make, games: int) -> Games:
    """Return games in the run's environments, with observations that aren't normalized."""
    plain = without_statistics(config)
    plain = replace(plain, selfplay=replace(config.selfplay, enabled=False))
    return Games(plain, agents_of(plain), games, make, config.base.seed)
