"""Define players of games: a policy, a random player, and an environment's ``bot.py``."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from puffer_mlx.checkpoint import normalization
from puffer_mlx.checkpoint.normalization import Statistics
from puffer_mlx.config import Config
from puffer_mlx.config.releases import BOT_SCRIPT
from puffer_mlx.errors import UserError
from puffer_mlx.evaluation.environment_scripts import load_script_function
from puffer_mlx.evaluation.episodes import Actor
from puffer_mlx.policy.policy import Policy
from puffer_mlx.spec import ActionSpec, EnvSpec
from puffer_mlx.vec.base import Rows
from puffer_mlx.vec.from_config import source_folder

ChooseFunction = Callable[[Rows], np.ndarray]  # rows of n agents -> actions (n, heads) float32
RANDOM_NAME, BOT_NAME = "random", "bot"  # names of players without a policy
# Of a bot.py's function, for messages.
SIGNATURE = "choose(observations (n, D), masks (n, A) or None, skill, rng) -> actions (n, heads)"


class Player(NamedTuple):
    """A player of games: a name, and a function that starts a game.

    Args:
        name: Name to show.
        start: Maps a number of agents n and a seed to a function that chooses their actions. Each
            call starts from new states, so two copies of a player are independent.
        deterministic: True if actions are never sampled.
    """

    name: str
    start: Callable[[int, int], ChooseFunction]
    deterministic: bool = False


def policy_player(
    name: str,
    policy: Policy,
    weights: Any,
    deterministic: bool,
    statistics: Statistics | None = None,
) -> Player:
    """Return a player whose actions a policy chooses.

    Args:
        name: Name to show.
        policy: Trained policy.
        weights: Weights of the policy.
        deterministic: Take the most probable action instead of sampling.
        statistics: Normalization statistics of the policy's observations. None or empty: the
            policy gets observations without normalization.
    """

    def start(n: int, seed: int) -> ChooseFunction:
        actor = Actor(policy, weights, n, seed, deterministic)

        def choose(rows: Rows) -> np.ndarray:
            observations = normalization.normalize_observations(statistics or {}, rows.observations)
            return actor.choose(rows._replace(observations=observations))

        return choose

    return Player(name, start, deterministic)


def random_player(action: ActionSpec) -> Player:
    """Return a player that samples legal actions uniformly, or continuous ones from N(0, 1)."""

    def start(n: int, seed: int) -> ChooseFunction:
        rng = np.random.default_rng(seed)

        def choose(rows: Rows) -> np.ndarray:
            if action.continuous:
                return rng.standard_normal((n, action.heads), np.float32)
            # The choice with the largest random number is a uniform sample.
            priorities = rng.random((n, action.logits))
            if rows.masks is not None:
                priorities[rows.masks == 0] = -1.0
            heads = np.split(priorities, np.cumsum(action.sizes)[:-1], axis=1)
            return np.stack([head.argmax(axis=1) for head in heads], axis=1).astype(np.float32)

        return choose

    return Player("random", start)


def scripted_player(name: str, folder: Path, skill: float, heads: int) -> Player:
    """Return a player whose actions an environment's ``bot.py`` chooses.

    Args:
        name: Name to show.
        folder: Folder of the environment.
        skill: Skill from 0 to 1, as the script defines it.
        heads: Heads per action.

    Raises:
        UserError: If ``bot.py`` or its ``choose`` is missing. The player raises it if the chosen
            actions have a wrong shape.
    """
    path = folder / BOT_SCRIPT
    missing = f"{folder.name} has no scripted player: {path} doesn't exist"
    scripted = load_script_function(path, "choose", UserError(missing, SIGNATURE), SIGNATURE)

    def start(n: int, seed: int) -> ChooseFunction:
        rng = np.random.default_rng(seed)

        def choose(rows: Rows) -> np.ndarray:
            actions = np.asarray(scripted(rows.observations, rows.masks, skill, rng), np.float32)
            if actions.shape != (n, heads):
                raise UserError(
                    f"{path}: choose returned {actions.shape}, not {(n, heads)}", SIGNATURE
                )
            return actions

        return choose

    return Player(name, start)


def player_without_policy(name: str, config: Config, spec: EnvSpec) -> Player | None:
    """Return the player ``random``, ``bot`` or ``bot:SKILL``, or None for any other name.

    Args:
        name: Name that the user typed.
        config: Configuration of the environment.
        spec: Spec of the environment.

    Raises:
        UserError: If the environment has no scripted player or the skill is invalid.
    """
    if name == RANDOM_NAME:
        return random_player(spec.action)
    kind, colon, skill = name.partition(":")
    if kind != BOT_NAME:
        return None
    if config.python:
        raise UserError(
            f"{name}: {config.env_name} is written in Python, and only C environments have"
            " scripted players",
            f"use {RANDOM_NAME}, or a policy",
        )
    skill_value = parse_skill(name, skill if colon else "1")
    return scripted_player(
        f"{BOT_NAME}:{skill_value:g}", source_folder(config), skill_value, spec.action.heads
    )


def parse_skill(name: str, text: str) -> float:
    """Convert the text SKILL in ``bot:SKILL`` to a number from 0 to 1.

    Raises:
        UserError: If the text isn't such a number.
    """
    try:
        skill = float(text)
    except ValueError:
        skill = -1.0
    if not 0 <= skill <= 1:
        raise UserError(f"{name}: {text!r} is not a skill from 0 to 1", "for example bot:0.5")
    return skill
