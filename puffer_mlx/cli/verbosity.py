"""``-q`` and ``-v``, which every command takes."""

import argparse

from puffer_mlx.errors import UserError
from puffer_mlx.system import voice

WORDS = {"-q": voice.QUIET, "--quiet": voice.QUIET, "-v": voice.VERBOSE, "--verbose": voice.VERBOSE}


def add_verbosity(parser: argparse.ArgumentParser) -> None:
    """Have ``--help`` and completion show the two options; ``taken_out`` reads them."""
    quiet = "say only what is wrong, and the result"
    parser.add_argument("-q", "--quiet", action="store_true", help=quiet)
    verbose = "say what was chosen, and which file says so"
    parser.add_argument("-v", "--verbose", action="store_true", help=verbose)


def taken_out(argv: list[str]) -> tuple[int, list[str]]:
    """How much is to be said, and the other words.

    Raises:
        UserError: nothing but the result and everything.
    """
    levels = {WORDS[word] for word in argv if word in WORDS}
    if len(levels) > 1:
        raise UserError("--quiet and --verbose are given", "one of them")
    return levels.pop() if levels else voice.USUAL, [word for word in argv if word not in WORDS]
