"""``-q`` and ``-v``, which every command takes, and what ``-v`` tells of a configuration."""

import argparse
from pathlib import Path

from puffer_mlx.config import Config
from puffer_mlx.config.known_files import plain_path
from puffer_mlx.config.schema import KEYS
from puffer_mlx.errors import UserError
from puffer_mlx.system import voice

WORDS = {"-q": voice.QUIET, "--quiet": voice.QUIET, "-v": voice.VERBOSE, "--verbose": voice.VERBOSE}


def add_verbosity(parser: argparse.ArgumentParser) -> None:
    """Have ``--help`` and completion show the two options; ``taken_out`` is who reads them."""
    parser.add_argument(
        "-q", "--quiet", action="store_true", help="say only what is wrong, and the result"
    )
    parser.add_argument(
        "-v", "--verbose", action="store_true", help="say what was chosen, and which file says so"
    )


def taken_out(argv: list[str]) -> tuple[int, list[str]]:
    """How much is to be said, and the other words.

    Raises:
        UserError: nothing but the result and everything.
    """
    levels = {WORDS[word] for word in argv if word in WORDS}
    if len(levels) > 1:
        raise UserError("--quiet and --verbose are given", "one of them")
    return levels.pop() if levels else voice.USUAL, [word for word in argv if word not in WORDS]


def _brief(origin: str) -> str:
    """Where a value is from, with the path of a file that comes with puffer_mlx cut short."""
    path, colon, line = origin.rpartition(":")
    return f"{plain_path(Path(path))}:{line}" if colon else origin


def detail_config(config: Config) -> None:
    """With ``-v``: the files that were read, and the values that some of them says."""
    if config.files:
        voice.detail(f"read, the later ones winning: {', '.join(config.files)}")
    for section, keys in KEYS.items():
        for key in keys:
            if origin := config.origins.get(f"{section}.{key}"):
                value = getattr(getattr(config, section), key)
                voice.detail(f"  {f'{section}.{key}':<28}{value!s:<16} {_brief(origin)}")
    for key, value in config.env.items():
        voice.detail(f"  {f'env.{key}':<28}{value}")
