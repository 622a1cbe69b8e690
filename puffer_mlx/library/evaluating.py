"""Scores, pictures and matches of policies in environments that they weren't trained in."""

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from puffer_mlx import vec
from puffer_mlx.checkpoint import normalization
from puffer_mlx.config import Config
from puffer_mlx.errors import UserError
from puffer_mlx.library.policy import Policy, player, refuse_other
from puffer_mlx.library.settings import EnvironmentSource, source_of, with_environment
from puffer_mlx.ops.cpu_extension import threads
from puffer_mlx.playing.episode_videos import drawing
from puffer_mlx.playing.episodes import (
    MAX_STEPS,
    AgentStepper,
    Scores,
    arena,
    environments_for,
    frames_of,
    most_environments,
    score,
)
from puffer_mlx.playing.frames import Frame
from puffer_mlx.playing.matches import Games, agents_of, play_pairs, without_statistics
from puffer_mlx.playing.players import Player, player_without_policy, policy_player
from puffer_mlx.playing.results import PairResult
from puffer_mlx.spec import EnvSpec
from puffer_mlx.training.trainer import Trains
from puffer_mlx.vec.base import Environments, Remembers

Opponent = Policy | Trains | str


def evaluate(
    policy: Policy | Trains,
    env: Any = None,
    episodes: int = 10,
    *,
    deterministic: bool = False,
    seed: int | None = None,
    max_steps: int = MAX_STEPS,
) -> Scores:
    """Play whole episodes in environments of their own.

    ::

        scores = puffer_mlx.evaluate(policy, "gym:CartPole-v1", episodes=100)
        print(scores, scores.score.mean)

    The same arguments give the same scores, bit for bit on a CPU.

    Args:
        policy: a policy, or a trainer, whose newest weights play.
        env: a name, a class, a function, or an object, which then plays alone; None: what the
            policy was trained in.
        episodes: at least so many; every environment plays the same number.
        deterministic: take the most probable action; False draws, as in training, and as
            ``puffer-mlx evaluate`` does without ``--greedy``.
        seed: of environments and actions; None: the run's ``seed``. Environments are others than
            those of training.
        max_steps: of every agent; what hasn't ended by then is left out and counted.

    Returns:
        All episodes; ``scores.score`` has their mean and spread.

    Raises:
        UserError: the environment can't be made, or is of another kind than the policy's.
    """
    if episodes < 1:
        raise UserError(f"episodes is {episodes}", "1 or more")
    acting, seed = player(policy, seed)
    with _environments(acting, env, episodes, seed) as environments:
        parts = acting.architecture, acting.weights, environments
        return score(AgentStepper(*parts, seed, deterministic), episodes, max_steps=max_steps)


def play(
    policy: Policy | Trains,
    env: Any = None,
    steps: int = 300,
    *,
    deterministic: bool = False,
    seed: int | None = None,
) -> Iterator[Frame]:
    """Pictures of agent 0, the first one after the reset.

    ``display.frames.write_gif`` and ``write_mp4`` make files of them, ``display.notebook.show``
    shows them in a notebook.

    Args:
        policy: a policy, or a trainer, whose newest weights play.
        env: as of ``evaluate``; an object must have been made with ``render_mode="rgb_array"``.
        steps: how many pictures.
        deterministic: as of ``evaluate``.
        seed: as of ``evaluate``.

    Yields:
        One frame after the other, with its picture (h, w, 3) uint8.

    Raises:
        UserError: as ``evaluate``, or the environment can't be drawn.
    """
    acting, seed = player(policy, seed)
    with _environments(acting, env, 1, seed, render=True) as environments:
        draw = drawing(acting.config, environments)
        parts = acting.architecture, acting.weights, environments
        yield from frames_of(AgentStepper(*parts, seed, deterministic), draw, steps)


def _environments(
    acting: Policy, env: Any, episodes: int, seed: int, render: bool = False
) -> Environments:
    """Environments for so many episodes, which show and take what the policy knows."""
    one = None if env is None else source_of(env)
    config = played(acting.config, one)
    count = agents = 1
    if one is None or not one.alone:
        with vec.probe(config) as probe:
            agents = probe.num_agents // probe.num_environments
        count = environments_for(episodes, most_environments(config, agents), agents)
    environments = vec.make(arena(config, count, agents, seed), threads(), render=render)
    with contextlib.ExitStack() as stack:
        stack.callback(environments.close)
        refuse_other(acting, environments.spec, config.env_name)
        if isinstance(environments, Remembers) and normalization.normalises(environments.memory()):
            environments.remember(dict(acting.memory), frozen=True)
        stack.pop_all()
    return environments


def played(config: Config, one: EnvironmentSource | None) -> Config:
    """The policy's configuration in the environment that it is to play in."""
    config = replace(config, notes=[], origins={}, again=None)
    if one is not None and one.factory is None and one.name != config.env_name:
        return replace(config, env_name=one.name, source="", env={}, factory=None, named_by={})
    return with_environment(config, one)


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
    match = Games(config, agents, games, lambda arena: vec.make(arena, threads()), seed, max_steps)
    return play_pairs(players, [(0, 1)], match)[0, 1]


def _player(who: Opponent, config: Config, spec: EnvSpec, greedy: bool) -> Player:
    if isinstance(who, str):
        if without := player_without_policy(who, config, spec):
            return without
        raise UserError(
            f"{who!r} is no player", "random, bot:SKILL, or a policy: puffer_mlx.Policy.load(path)"
        )
    policy, _ = player(who, None)
    name = policy.config.env_name
    refuse_other(policy, spec, config.env_name)
    return policy_player(name, policy.architecture, policy.weights, greedy, policy.memory)
