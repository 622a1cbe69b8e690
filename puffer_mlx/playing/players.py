"""Players: a policy, random choices, and an environment's scripted player, its ``bot.py``."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from puffer_mlx.checkpoint import normalization
from puffer_mlx.checkpoint.normalization import Memory
from puffer_mlx.config import Config
from puffer_mlx.config.dialects import SCRIPT
from puffer_mlx.errors import UserError
from puffer_mlx.playing.environment_scripts import script_function
from puffer_mlx.playing.episodes import Actor
from puffer_mlx.policy.policy import Policy
from puffer_mlx.spec import ActionSpec, EnvSpec
from puffer_mlx.vec.base import Rows
from puffer_mlx.vec.from_config import source_folder

Choose = Callable[[Rows], np.ndarray]  # rows of n agents -> their actions (n, heads) float32


class Player(NamedTuple):
    """A player.

    Args:
        name: for people.
        sit_down: takes a number n of agents and a seed, and returns a function that chooses their
            actions; each call begins anew, so that two of the same player share nothing.
        draws: whether chance may decide what it chooses.
    """

    name: str
    sit_down: Callable[[int, int], Choose]
    draws: bool = True


def policy_player(
    name: str, policy: Policy, weights: Any, greedy: bool, memory: Memory | None = None
) -> Player:
    """A policy.

    Args:
        name: for people.
        policy: as it was trained.
        weights: its weights.
        greedy: take the most probable action instead of drawing one.
        memory: the statistics that its observations are normalised by; None or empty: they aren't.
    """

    def sit_down(n: int, seed: int) -> Choose:
        actor = Actor(policy, weights, n, seed, greedy)

        def choose(rows: Rows) -> np.ndarray:
            seen = normalization.apply(memory or {}, rows.observations)
            return actor.choose(rows._replace(observations=seen))

        return choose

    return Player(name, sit_down, draws=not greedy)


def random_player(action: ActionSpec) -> Player:
    """Draws among the legal choices, each as probable; N(0, 1) for continuous actions."""

    def sit_down(n: int, seed: int) -> Choose:
        rng = np.random.default_rng(seed)

        def choose(rows: Rows) -> np.ndarray:
            if action.continuous:
                return rng.standard_normal((n, action.heads), np.float32)
            wishes = rng.random((n, action.logits))
            if rows.masks is not None:
                wishes[rows.masks == 0] = -1.0
            heads = np.split(wishes, np.cumsum(action.sizes)[:-1], axis=1)
            return np.stack([head.argmax(axis=1) for head in heads], axis=1).astype(np.float32)

        return choose

    return Player("random", sit_down)


SCRIPTED = "choose(observations (n, D), masks (n, A) or None, skill, rng) -> actions (n, heads)"


def scripted_player(name: str, folder: Path, skill: float, heads: int) -> Player:
    """The function ``choose`` of an environment's ``bot.py``.

    Args:
        name: for people.
        folder: the environment's.
        skill: 0 to 1; what it means, the script says.
        heads: of an action.

    Raises:
        UserError: there is none; later, from the function itself: what it returned are no actions.
    """
    path = folder / SCRIPT
    missing = f"{folder.name} has no scripted player: {path} doesn't exist"
    scripted = script_function(path, "choose", UserError(missing, SCRIPTED), SCRIPTED)

    def sit_down(n: int, seed: int) -> Choose:
        rng = np.random.default_rng(seed)

        def choose(rows: Rows) -> np.ndarray:
            actions = np.asarray(scripted(rows.observations, rows.masks, skill, rng), np.float32)
            if actions.shape != (n, heads):
                raise UserError(
                    f"{path}: choose returned {actions.shape}, not {(n, heads)}", SCRIPTED
                )
            return actions

        return choose

    return Player(name, sit_down)


RANDOM, BOT = "random", "bot"


def player_without_policy(word: str, config: Config, spec: EnvSpec) -> Player | None:
    """``random``, or ``bot`` or ``bot:SKILL``, the environment's scripted player; else None.

    Args:
        word: as a person wrote it.
        config: of the environment.
        spec: of the environment.

    Raises:
        UserError: the environment has no scripted player, or there is no such skill.
    """
    if word == RANDOM:
        return random_player(spec.action)
    kind, colon, skill = word.partition(":")
    if kind != BOT:
        return None
    if config.python:
        raise UserError(
            f"{word}: {config.env_name} is an environment in Python, and those have no scripted"
            " players",
            f"{RANDOM}, or a policy",
        )
    how_good = skill_of(word, skill if colon else "1")
    return scripted_player(
        f"{BOT}:{how_good:g}", source_folder(config), how_good, spec.action.heads
    )


def skill_of(word: str, text: str) -> float:
    """The number behind ``bot:``."""
    try:
        skill = float(text)
    except ValueError:
        skill = -1.0
    if not 0 <= skill <= 1:
        raise UserError(f"{word}: {text!r} is no skill from 0 to 1", "bot:1, or bot:0.5")
    return skill
