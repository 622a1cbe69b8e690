"""The command ``completion``: print a completion script for bash, zsh or fish, made by shtab.

The script contains all names, so that Tab doesn't start Python. Generate it again after an update
or after adding an environment's file.
"""

import argparse
import re
import textwrap
from typing import Any

from puffer_mlx.cli.commands import COMMANDS, add_common_options
from puffer_mlx.cli.exit_codes import with_exit_code
from puffer_mlx.cli.list_environments import gymnasium_environments
from puffer_mlx.config.command_line import Parser
from puffer_mlx.config.finding import selectable_names
from puffer_mlx.config.help import key_actions
from puffer_mlx.config.schema import DECLARED
from puffer_mlx.errors import UserError
from puffer_mlx.system import program

SCRIPT_PATHS = {  # shell -> usual path of the completion script
    "bash": "~/.local/share/bash-completion/completions/puffer-mlx",
    "zsh": "FOLDER/_puffer-mlx",
    "fish": "~/.config/fish/completions/puffer-mlx.fish",
}
FILE_METAVARS = ("FILE", "FILE.gputrace", "PATH")  # metavars of options that take a file
FOLDER_METAVARS = ("FOLDER", "DIR")
MAX_HELP_LENGTH = 70  # characters of an option's help


def option_parser() -> Parser:
    # one command for each shell, with the path in a second line
    lines = [f"%(prog)s {shell} > \\\n         {path}" for shell, path in SCRIPT_PATHS.items()]
    parser = Parser(usage="\n       ".join(lines))
    add_common_options(parser, "completion")
    text = "the shell; FOLDER must be in zsh's fpath"
    parser.add_argument("shell", choices=list(SCRIPT_PATHS), metavar="SHELL", help=text)
    return parser


def offered_environments() -> list[str]:
    """Return the names of environments that the shell offers when completing a command line."""
    ids = [name for group in gymnasium_environments().values() for name in group]
    names = [name for name in selectable_names() if "*" not in name]
    return sorted({*names, *(f"gym:{name}" for name in ids)})


def completion_parser() -> argparse.ArgumentParser:
    """Return an argument parser with all commands and options, for shell completion scripts."""
    import shtab  # type: ignore

    top = argparse.ArgumentParser(prog=program.COMMAND)
    top.add_argument("--version", action="store_true", help="versions, device and BLAS")
    commands = top.add_subparsers(metavar="COMMAND")
    environments = offered_environments()
    for name, command in COMMANDS.items():
        parser = command.load().option_parser()
        if command.takes_env:
            parser.add_argument("ENV", choices=environments)
        for action in key_actions(parser):
            parser._add_action(action)
        for action in parser._actions:
            if not action.option_strings and action.metavar in ("ENV", "RUN"):
                action.choices = environments
            _complete(action, shtab)
        commands.add_parser(name, help=command.summary, parents=[parser], add_help=False)
    return top


def _complete(action: argparse.Action, shtab: Any) -> None:
    """Prepare one option for shell completion: set its choices, short help, and file or folder."""
    declared = DECLARED.get(action.dest)
    if action.help and action.help != argparse.SUPPRESS:
        first_clause = re.split(r"[.;:] ", action.help)[0]
        text = declared.brief if declared and declared.brief else first_clause
        action.help = textwrap.shorten(text, MAX_HELP_LENGTH, placeholder=" …")
    if declared:
        action.choices = declared.choices or None
    if action.metavar in FILE_METAVARS:
        action.complete = shtab.FILE  # type: ignore
    elif action.metavar in FOLDER_METAVARS:
        action.complete = shtab.DIRECTORY  # type: ignore


@with_exit_code
def main(argv: list[str]) -> None:
    options = option_parser().parse(argv)
    try:
        import shtab  # type: ignore
    except ImportError:
        raise UserError("completion needs shtab", "pip install 'puffer-mlx[completion]'") from None
    print(shtab.complete(completion_parser(), options.shell))
