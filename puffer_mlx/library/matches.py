"""Two policies against each other, in environments that neither was trained in."""

from typing import Any

from puffer_mlx import vec
from puffer_mlx.config import Config
from puffer_mlx.errors import UserError
from puffer_mlx.library.environments import source_of
from puffer_mlx.library.evaluating import played
from puffer_mlx.library.policy import Policy, player, refuse_other
from puffer_mlx.ops.cpu_extension import threads
from puffer_mlx.playing.episodes import MAX_STEPS
from puffer_mlx.playing.matches import (
    Games,
    agents_of,
    play_pairs,
    without_statistics,
)
from puffer_mlx.playing.players import Player, player_without_policy, policy_player
from puffer_mlx.playing.results import PairResult
from puffer_mlx.spec import EnvSpec
from puffer_mlx.training.trainer import Trains

Opponent = Policy | Trains | str


def play_match(
    policy: Policy | Trains,
    against: Opponent,
    env: Any = None,
    games: int = 256,
    *,
    deterministic: bool = False,
    seed: int | None = None,
    max_steps: int = MAX_STEPS,
) -> PairResult:
    """Have two players play against each other: half of an environment's agents each.

    ::

        result = puffer_mlx.play_match(policy, "random", games=1000)
        print(result, result.total.score, result.interval)

    The same arguments give the same result, on a CPU to the game.

    Args:
        policy: whose wins are counted: a policy, or a trainer, whose newest weights play.
        against: another one; ``random``; ``bot`` or ``bot:SKILL``, the environment's scripted
            player.
        env: an environment of 2, 4, 6 … agents: a name, a class or a function; None: what the
            policy was trained in.
        games: at least so many, half of them on either side.
        deterministic: take the most probable actions; False draws.
        seed: of environments and actions; None: the run's ``seed``.
        max_steps: of an environment.

    Returns:
        Wins, draws and losses of ``policy``; ``result.total.score`` is the part that it won.

    Raises:
        UserError: the environment can't be made, or is of another kind than a policy's; it has no
            two sides, or its games don't end.
    """
    if games < 2:
        raise UserError(f"games is {games}", "2 or more: half of them are played on either side")
    acting, seed = player(policy, seed)
    config = without_statistics(played(acting.config, None if env is None else source_of(env)))
    agents, spec = agents_of(config), vec.look_up_spec(config)
    players = [_player(each, config, spec, greedy=deterministic) for each in (acting, against)]
    every = Games(config, agents, games, lambda own: vec.make(own, threads()), seed, max_steps)
    return play_pairs(players, [(0, 1)], every)[0, 1]


def _player(who: Opponent, config: Config, spec: EnvSpec, greedy: bool) -> Player:
    if isinstance(who, str):
        if without := player_without_policy(who, config, spec):
            return without
        raise UserError(
            f"{who!r} is no player",
            "random, bot:SKILL, or a policy: puffer_mlx.Policy.load(path)",
        )
    policy, _ = player(who, None)
    name = policy.config.env_name
    refuse_other(policy, spec, config.env_name)
    return policy_player(name, policy.architecture, policy.weights, greedy, policy.memory)
