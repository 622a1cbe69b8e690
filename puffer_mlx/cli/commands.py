"""The table of commands of ``puffer-mlx``. A command's module is imported only when it runs."""

import argparse
import importlib
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import NamedTuple

from puffer_mlx.system import program


class Command(NamedTuple):
    """A command.

    Args:
        module: Name of a module in this folder with ``main(argv)`` and ``option_parser()``.
        words: Positional arguments, for help.
        about: One sentence for help.
        takes_env: True if the first word is an environment.
    """

    module: str
    words: str
    about: str
    takes_env: bool = True

    def load(self) -> ModuleType:
        """Import the command's module."""
        return importlib.import_module(f"puffer_mlx.cli.{self.module}")

    @property
    def main(self) -> Callable[[Sequence[str]], int]:
        """Function that runs the command: it takes the words and returns the exit code."""
        return self.load().main


COMMANDS = {
    "train": Command("train", "ENV", "Train a policy."),
    "sweep": Command("sweep", "ENV", "Search for a good configuration with many runs."),
    "evaluate": Command("evaluate", "ENV PATH", "Score a trained policy, or watch it play."),
    "runs": Command("runs", "[ENV]", "List what was trained here, and how it ended.", False),
    "plot": Command("plot", "RUN ...", "Draw the learning curves of runs.", False),
    "match": Command("match", "ENV A B ...", "Have policies play against each other."),
    "export": Command(
        "export", "PATH --to KIND", "Carry a policy to PyTorch, ONNX or PufferLib.", False
    ),
    "import": Command("import_", "FILE ENV", "Make a checkpoint of another program's file.", False),
    "bench": Command("bench", "ENV", "Measure how fast this machine trains."),
    "check-env": Command("check_env", "ENV", "Say what is wrong with an environment."),
    "check-gpu": Command("check_gpu", "", "Check that this machine's GPU computes rightly.", False),
    "list": Command("list_environments", "", "Show what environments there are.", False),
    "completion": Command(
        "completion", "SHELL", "Print what completes words in bash, zsh or fish.", False
    ),
}


def introduce(parser: argparse.ArgumentParser, name: str) -> None:
    """Set a parser's program name and description, and add ``-q`` and ``-v``.

    ``exit_codes.reported`` handles ``-q`` and ``-v``.
    """
    parser.prog = program.command(name)
    parser.description = "\n\n".join(filter(None, (COMMANDS[name].about, parser.description)))
    quiet = "say only what is wrong, and the result"
    parser.add_argument("-q", "--quiet", action="store_true", help=quiet)
    verbose = "say what was chosen, and which file says so"
    parser.add_argument("-v", "--verbose", action="store_true", help=verbose)
