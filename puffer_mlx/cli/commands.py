"""The table of commands of ``puffer-mlx``. The module of a command is imported only to run it."""

import argparse
import importlib
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import NamedTuple

from puffer_mlx.system import program


class Command(NamedTuple):
    """Description of one command of ``puffer-mlx``, such as ``train``: its module and help.

    Args:
        module: Name of a module in this folder with ``main(argv)`` and ``option_parser()``.
        arguments: Positional arguments, for help.
        summary: One sentence for help.
        takes_env: True if the first argument is an environment.
    """

    module: str
    arguments: str
    summary: str
    takes_env: bool = True

    def load(self) -> ModuleType:
        """Import and return the module that implements this command of ``puffer-mlx``."""
        return importlib.import_module(f"puffer_mlx.cli.{self.module}")

    @property
    def main(self) -> Callable[[Sequence[str]], int]:
        """The command's main function, which takes a command line and returns the exit code."""
        return self.load().main


COMMANDS = {
    "train": Command("train", "ENV", "Train a policy."),
    "sweep": Command("sweep", "ENV", "Search for good hyperparameters with many runs."),
    "evaluate": Command("evaluate", "ENV PATH", "Score a trained policy, or watch it play."),
    "runs": Command("runs", "[ENV]", "List the runs in this folder.", False),
    "plot": Command("plot", "RUN ...", "Draw the learning curves of runs.", False),
    "match": Command("match", "ENV A B ...", "Let policies play against each other."),
    "export": Command(
        "export", "PATH --to KIND", "Export a policy to PyTorch, ONNX or PufferLib.", False
    ),
    "import": Command(
        "import_", "FILE ENV", "Convert another program's policy file to a checkpoint.", False
    ),
    "bench": Command("bench", "ENV", "Measure the speed of training."),
    "check-env": Command("check_env", "ENV", "Check an environment for errors."),
    "check-gpu": Command(
        "check_gpu", "", "Check that this machine's GPU computes correctly.", False
    ),
    "list": Command("list_environments", "", "List the environments.", False),
    "completion": Command(
        "completion", "SHELL", "Print a completion script for bash, zsh or fish.", False
    ),
}


def add_common_options(parser: argparse.ArgumentParser, name: str) -> None:
    """Set the name and description of a command's parser, and add the options ``-q`` and ``-v``.

    ``exit_codes.reported`` handles ``-q`` and ``-v``.
    """
    parser.prog = program.command(name)
    parser.description = "\n\n".join(filter(None, (COMMANDS[name].summary, parser.description)))
    quiet = "print only errors and the result"
    parser.add_argument("-q", "--quiet", action="store_true", help=quiet)
    verbose = "also print settings and their origins"
    parser.add_argument("-v", "--verbose", action="store_true", help=verbose)
