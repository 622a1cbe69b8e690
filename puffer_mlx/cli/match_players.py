"""The players that a person names: checkpoints, files of policies, ``random`` and ``bot``."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from puffer_mlx import checkpoint
from puffer_mlx.checkpoint.environment_statistics import read_statistics
from puffer_mlx.cli.evaluated_policy import described
from puffer_mlx.config import Config
from puffer_mlx.config.command_line import option
from puffer_mlx.config.trust import known
from puffer_mlx.errors import UserError
from puffer_mlx.export.importing import inspect, weights_of
from puffer_mlx.playing.players import Player, player_without_policy, policy_player
from puffer_mlx.spec import EnvSpec


class About(NamedTuple):
    """What players are found by.

    Args:
        config: of the environment.
        spec: of the environment.
        greedy: whether policies take their most probable action.
        again: the command line's configuration with further words before its own, by which a file
            of a policy tells what is in it.
    """

    config: Config
    spec: EnvSpec
    greedy: bool
    again: Callable[[list[str]], Config]


def find_players(words: Sequence[str], about: About) -> list[Player]:
    """The players of a match, in order: see ``find_player``."""
    return [find_player(word, about) for word in words]


def numbered(players: Sequence[Player]) -> list[Player]:
    """Players of different names: one that is there again has a number behind its name."""
    found: list[Player] = []
    times: Counter[str] = Counter()
    for player in players:
        times[player.name] += 1
        again = f" ({times[player.name]})" if times[player.name] > 1 else ""
        found.append(player._replace(name=player.name + again))
    return found


def find_player(word: str, about: About) -> Player:
    """One that a person names.

    Raises:
        UserError: there is no such player, or it is one of another environment.
    """
    config, spec = about.config, about.spec
    if player := player_without_policy(word, config, spec):
        return player
    path = Path(word)
    if path.suffix and path.is_file():
        return policy_of_file(path, about)
    found = checkpoint.load(checkpoint.find(word, config), known(config))
    if replace(found.spec, name="") != replace(spec, name=""):
        raise UserError(
            f"{found.folder} is a policy for {described(found.spec)},"
            f" but {spec.name} has {described(spec)}",
            f"one that was trained on {spec.name}, or on what shows and takes the same",
        )
    name = name_of(word, found.folder, config)
    memory = read_statistics(found.folder)
    return policy_player(name, found.policy, found.weights, about.greedy, memory)


def name_of(word: str, folder: Path, config: Config) -> str:
    """A checkpoint's name: as a person wrote it, or RUN_ID/STEP of those where they usually are."""
    home = (Path(config.base.checkpoint_dir) / config.slug).resolve()
    inside = folder.resolve().is_relative_to(home)
    return str(folder.resolve().relative_to(home)) if inside else word


def policy_of_file(path: Path, about: About) -> Player:
    """A policy in a file, of any format that ``puffer-mlx import`` reads; the file tells its size.

    Raises:
        UserError: as ``export.importing``.
    """
    found = inspect(path)
    told = found.settings | found.file.sizes_for(found, about.spec, about.again([]))
    config = about.again([f"{option(*key.split('.'))}={text}" for key, text in told.items()])
    policy, weights = weights_of(found, about.spec, config)
    return policy_player(str(path), policy, weights, about.greedy, found.memory)
