"""Define players: a policy, a random player, and an environment's scripted ``bot.py``."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from puffer_mlx.checkpoint import normalization
from puffer_mlx.checkpoint.normalization import Statistics
from puffer_mlx.config import Config
from puffer_mlx.config.releases import BOT_SCRIPT
from puffer_mlx.errors import UserError
from puffer_mlx.evaluation.environment_scripts import script_function
from puffer_mlx.evaluation.episodes import Actor
from puffer_mlx.policy.policy import Policy
from puffer_mlx.spec import ActionSpec, EnvSpec
from puffer_mlx.vec.base import Rows
from puffer_mlx.vec.from_config import source_folder

Choose = Callable[[Rows], np.ndarray]  # rows of n agents -> their actions (n, heads) float32


class Player(NamedTuple):
    """A player of games.

    Args:
        name: Name to show.
        start: Maps a number of agents n and a seed to a function that chooses their actions.
            Each call starts from fresh states, so two copies of a player share nothing.
        deterministic: True if actions are never sampled.
    """

    name: str
    start: Callable[[int, int], Choose]
    deterministic: bool = False


def policy_player(
    name: str, policy: Policy, weights: Any, deterministic: bool, memory: Statistics | None = None
) -> Player:
    """Return a player that uses a policy.

    Args:
        name: Name to show.
        policy: Trained policy.
        weights: Weights of the policy.
        deterministic: Take the most probable action instead of sampling.
        memory: Normalization statistics of its observations. None or empty: not normalized.
    """

    def start(n: int, seed: int) -> Choose:
        actor = Actor(policy, weights, n, seed, deterministic)

        def choose(rows: Rows) -> np.ndarray:
            seen = normalization.apply(memory or {}, rows.observations)
            return actor.choose(rows._replace(observations=seen))

        return choose

    return Player(name, start, deterministic)


def random_player(action: ActionSpec) -> Player:
    """Return a player that samples legal actions uniformly, or continuous ones from N(0, 1)."""

    def start(n: int, seed: int) -> Choose:
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

    return Player("random", start)


SCRIPTED = "choose(observations (n, D), masks (n, A) or None, skill, rng) -> actions (n, heads)"


def scripted_player(name: str, folder: Path, skill: float, heads: int) -> Player:
    """Return a player that uses ``choose`` of an environment's ``bot.py``.

    Args:
        name: Name to show.
        folder: Folder of the environment.
        skill: Skill from 0 to 1, as the script defines it.
        heads: Heads per action.

    Raises:
        UserError: If there is no ``choose``. The player raises it if the result has a wrong shape.
    """
    path = folder / BOT_SCRIPT
    missing = f"{folder.name} has no scripted player: {path} doesn't exist"
    scripted = script_function(path, "choose", UserError(missing, SCRIPTED), SCRIPTED)

    def start(n: int, seed: int) -> Choose:
        rng = np.random.default_rng(seed)

        def choose(rows: Rows) -> np.ndarray:
            actions = np.asarray(scripted(rows.observations, rows.masks, skill, rng), np.float32)
            if actions.shape != (n, heads):
                raise UserError(
                    f"{path}: choose returned {actions.shape}, not {(n, heads)}", SCRIPTED
                )
            return actions

        return choose

    return Player(name, start)


RANDOM, BOT = "random", "bot"


def player_without_policy(word: str, config: Config, spec: EnvSpec) -> Player | None:
    """Return the player called ``random``, ``bot`` or ``bot:SKILL``, or None for other names.

    Args:
        word: Name that the user typed.
        config: Configuration of the environment.
        spec: Spec of the environment.

    Raises:
        UserError: If the environment has no scripted player or the skill is invalid.
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
    """Return the skill in ``bot:SKILL``."""
    try:
        skill = float(text)
    except ValueError:
        skill = -1.0
    if not 0 <= skill <= 1:
        raise UserError(f"{word}: {text!r} is no skill from 0 to 1", "bot:1, or bot:0.5")
    return skill
