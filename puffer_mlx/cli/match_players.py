"""The players that a person names: checkpoints, files of policies, ``random`` and ``bot``."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from puffer_mlx import checkpoint, vec
from puffer_mlx.checkpoint import normalization
from puffer_mlx.checkpoint.environment_statistics import read_statistics
from puffer_mlx.cli.evaluated_policy import described
from puffer_mlx.cli.match_options import parse
from puffer_mlx.config import Config
from puffer_mlx.config.command_line import option
from puffer_mlx.config.trust import known
from puffer_mlx.errors import UserError
from puffer_mlx.export.importing import inspect, weights_of
from puffer_mlx.match.players import Player, policy_player, random_player, scripted_player
from puffer_mlx.spec import EnvSpec

RANDOM, BOT = "random", "bot"


def find_players(
    words: Sequence[str], argv: Sequence[str], config: Config, spec: EnvSpec, greedy: bool
) -> list[Player]:
    """The players of a match, in order; one that is named again has a number behind its name.

    Args:
        words: as they were named.
        argv: the whole command line, of which files are given options that they don't tell.
        config: of the environment.
        spec: of the environment.
        greedy: whether policies take their most probable action.

    Raises:
        UserError: there is no such player, or it is one of another environment.
    """
    found: list[Player] = []
    times: Counter[str] = Counter()
    for word in words:
        player = find_player(word, argv, config, spec, greedy)
        times[player.name] += 1
        again = f" ({times[player.name]})" if times[player.name] > 1 else ""
        found.append(player._replace(name=player.name + again))
    return found


def find_player(
    word: str, argv: Sequence[str], config: Config, spec: EnvSpec, greedy: bool
) -> Player:
    """One of them: see ``find_players``."""
    if word == RANDOM:
        return random_player(spec.action)
    kind, colon, skill = word.partition(":")
    if kind == BOT:
        how_good = skill_of(word, skill if colon else "1")
        folder = vec.source_folder(config)
        return scripted_player(f"{BOT}:{how_good:g}", folder, how_good, spec.action.heads)
    path = Path(word)
    if path.suffix and path.is_file():
        return policy_of_file(path, argv, spec, greedy)
    found = checkpoint.load(checkpoint.find(word, config), known(config))
    if replace(found.spec, name="") != replace(spec, name=""):
        raise UserError(
            f"{found.folder} is a policy for {described(found.spec)},"
            f" but {spec.name} has {described(spec)}",
            f"one that was trained on {spec.name}, or on what shows and takes the same",
        )
    refuse_statistics(found.folder, read_statistics(found.folder))
    return policy_player(name_of(word, found.folder, config), found.policy, found.weights, greedy)


def skill_of(word: str, text: str) -> float:
    """The number behind ``bot:``."""
    try:
        skill = float(text)
    except ValueError:
        skill = -1.0
    if not 0 <= skill <= 1:
        raise UserError(f"{word}: {text!r} is no skill from 0 to 1", "bot:1, or bot:0.5")
    return skill


def name_of(word: str, folder: Path, config: Config) -> str:
    """A checkpoint's name: as a person wrote it, or RUN_ID/STEP of those where they usually are."""
    home = (Path(config.base.checkpoint_dir) / config.slug).resolve()
    inside = folder.resolve().is_relative_to(home)
    return str(folder.resolve().relative_to(home)) if inside else word


def policy_of_file(path: Path, argv: Sequence[str], spec: EnvSpec, greedy: bool) -> Player:
    """A policy in a file, of any format that ``puffer-mlx import`` reads; the file tells its size.

    Raises:
        UserError: as ``export.importing``.
    """
    found = inspect(path)
    config, _ = parse(argv)
    told = found.settings | found.file.sizes_for(found, spec, config)
    words = [f"{option(*key.split('.'))}={text}" for key, text in told.items()]
    config, _ = parse([argv[0], *words, *argv[1:]])
    refuse_statistics(path, found.memory)
    policy, weights = weights_of(found, spec, config)
    return policy_player(str(path), policy, weights, greedy)


def refuse_statistics(path: Path, memory: dict) -> None:
    """Refuse a policy of normalised observations: an environment shows both players the same."""
    if normalization.normalises(memory):
        raise UserError(
            f"{path} is a policy of normalised observations, and a match shows plain ones",
            "train it with --vec.normalize-observations 0",
        )
