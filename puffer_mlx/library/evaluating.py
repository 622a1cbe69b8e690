"""Evaluation, rendering and matches of policies in environments separate from training."""

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
    """Play complete episodes in new environments.

    ::

        scores = puffer_mlx.evaluate(policy, "gym:CartPole-v1", episodes=100)
        print(scores, scores.score.mean)

    The same arguments give the same scores, bit for bit on a CPU.

    Args:
        policy: Policy, or trainer whose newest weights play.
        env: Name, class, function or object; an object is the only environment. None for the
            policy's training environment.
        episodes: Minimum number of episodes, divided equally among the environments.
        deterministic: Take the most probable action. False samples, as in training and as
            ``puffer-mlx evaluate`` without ``--greedy``.
        seed: Seed of environments and actions; None for the run's ``seed``. The environments differ
            from those of training.
        max_steps: Maximum number of steps per agent. Unfinished episodes are left out and counted.

    Returns:
        All episodes; ``scores.score`` has their mean and standard deviation.

    Raises:
        UserError: If the environment can't be created, or doesn't match the policy.
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
    """Yield pictures of agent 0, the first one after the reset.

    ``playing.frames.write_gif`` and ``write_mp4`` write them to a file, ``display.notebook.show``
    shows them in a notebook.

    Args:
        policy: Policy, or trainer whose newest weights play.
        env: Environment as for ``evaluate``. An object needs ``render_mode="rgb_array"``.
        steps: Number of pictures.
        deterministic: Take the most probable action instead of sampling.
        seed: Seed of environments and actions; None for the run's ``seed``.

    Yields:
        Frames with a picture, (h, w, 3) uint8.

    Raises:
        UserError: If the environment can't be created or drawn, or doesn't match the policy.
    """
    acting, seed = player(policy, seed)
    with _environments(acting, env, 1, seed, render=True) as environments:
        draw = drawing(acting.config, environments)
        parts = acting.architecture, acting.weights, environments
        yield from frames_of(AgentStepper(*parts, seed, deterministic), draw, steps)


def _environments(
    acting: Policy, env: Any, episodes: int, seed: int, render: bool = False
) -> Environments:
    """Create environments for a number of episodes, and check that they match the policy."""
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
    """Return the policy's configuration with the environment to play in."""
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
    """Let two players play against each other, each with half of an environment's agents.

    ::

        result = puffer_mlx.play_match(policy, "random", games=1000)
        print(result, result.total.score, result.interval)

    The same arguments give the same result, exactly on a CPU.

    Args:
        policy: Policy, or trainer whose newest weights play. Its wins are counted.
        against: Another policy or trainer, ``random``, or the environment's scripted player ``bot``
            or ``bot:SKILL``.
        env: Name, class or function of an environment with an even number of agents; None for the
            policy's training environment.
        games: Minimum number of games, half of them on each side.
        deterministic: Take the most probable actions instead of sampling.
        seed: Seed of environments and actions; None for the run's ``seed``.
        max_steps: Maximum number of steps per environment.

    Returns:
        Wins, draws and losses of ``policy``; ``result.total.score`` is its winning fraction.

    Raises:
        UserError: If the environment can't be created, doesn't match a policy, lacks two sides, or
            has games without an end.
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
