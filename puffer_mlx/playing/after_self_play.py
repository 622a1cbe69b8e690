"""Evaluation of a run with self-play after training, as PufferLib 5.0 does it.

What such a run reports of its own games says little: both sides are learners, or were. So the last
weights play others, the first of these that is asked for: the environment's scripted opponents
(``selfplay.eval_bot_games``), or the pool's oldest entries (``selfplay.eval_games``). It replaces
the evaluation after training, and its mean score is the run's.
"""

from collections.abc import Callable
from dataclasses import replace

from puffer_mlx.checkpoint.environment_statistics import gathered_statistics, share
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

RUNGS = "env/ladder/"  # before the names of rungs in a record


def is_asked(config: Config) -> bool:
    """Whether a run's last weights play others after training."""
    play = config.selfplay
    pool = play.eval_games > 0 and play.eval_pool_size > 0
    return play.enabled and (play.eval_bot_games > 0 or pool)


def prepare(config: Config, spec: EnvSpec) -> str:
    """Refuse games that can't be played, before a run is trained for them.

    Args:
        config: of the run.
        spec: of its environments.

    Returns:
        The line that names keys which do nothing; empty without any.

    Raises:
        UserError: the environment has no scripted opponents, or can't play them.
    """
    if not (is_asked(config) and config.selfplay.eval_bot_games):
        return ""
    if plays_bots_itself(config):
        refuse_unplayable(against_bots(config), spec)
    return idle_note(config)


def climb(trainer: Trainer, make: Make, alive: Callable[[], object] = lambda: None) -> Ladder:
    """Have a trainer's weights play the others that its configuration asks for.

    Args:
        trainer: with self-play, after its last epoch.
        make: new environments of a configuration, which are closed here.
        alive: called after each step.

    Raises:
        UserError: see ``match.ladder``.
    """
    config, spec = trainer.config, trainer.vec.spec
    play, seed = config.selfplay, config.base.seed

    def progress(done: int, total: int) -> None:
        alive()

    if play.eval_bot_games and plays_bots_itself(config):

        def ready(config: Config) -> Environments:
            environments = make(config)
            share(trainer.vec, environments)
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
    """The record of a run's end: its score is the ladder's, and each rung's is beside it."""
    rungs = {RUNGS + key_of(rung.name): rung.score for rung in ladder.rungs}
    games = float(sum(rung.games for rung in ladder.rungs))
    score = {trainer.config.metric: ladder.score}
    return {"agent_steps": trainer.global_step, **score, "env/n": games, **rungs}


def key_of(name: str) -> str:
    """A rung's name as part of a key: ``bot_0.5``, ``pool_3``."""
    return name.partition(" (")[0].replace(" ", "_").replace(":", "_")


def _player(name: str, trainer: Trainer, weights: object) -> Player:
    return policy_player(name, trainer.policy, weights, False, gathered_statistics(trainer.vec))


def _games(config: Config, make: Make, games: int) -> Games:
    """Games of the run's environments, which show all players plain observations."""
    plain = without_statistics(config)
    plain = replace(plain, selfplay=replace(config.selfplay, enabled=False))
    return Games(plain, agents_of(plain), games, make, config.base.seed)
