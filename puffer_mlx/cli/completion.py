"""Shell completion with shtab: ``puffer-mlx completion bash``, ``zsh`` or ``fish``.

A script is generated once and holds every name, so that Tab doesn't start Python. Generate it again
after an update or after adding an environment's file.
"""

import argparse
import re
import textwrap
from typing import Any

from puffer_mlx.cli.commands import COMMANDS, introduce
from puffer_mlx.cli.exit_codes import reported
from puffer_mlx.cli.list_environments import gymnasium_environments
from puffer_mlx.config.command_line import Parser
from puffer_mlx.config.finding import selectable_names
from puffer_mlx.config.help import key_help
from puffer_mlx.config.schema import DECLARED
from puffer_mlx.errors import UserError
from puffer_mlx.system import program

PLACES = {  # shell -> usual path of its script
    "bash": "~/.local/share/bash-completion/completions/puffer-mlx",
    "zsh": "FOLDER/_puffer-mlx",
    "fish": "~/.config/fish/completions/puffer-mlx.fish",
}
FILES = ("FILE", "FILE.gputrace", "PATH")  # metavars of options that take a file
FOLDERS = ("FOLDER", "DIR")
SHOWN = 70  # maximum length of an option's help in characters


def option_parser() -> Parser:
    lines = [f"%(prog)s {shell} > \\\n         {place}" for shell, place in PLACES.items()]
    parser = Parser(usage="\n       ".join(lines))
    introduce(parser, "completion")
    about = "whose words are to be completed; FOLDER is one of zsh's fpath"
    parser.add_argument("shell", choices=list(PLACES), metavar="SHELL", help=about)
    return parser


def names() -> list[str]:
    """Return the environment names that completion offers."""
    ids = [name for group in gymnasium_environments().values() for name in group]
    words = [word for word in selectable_names() if "*" not in word]
    return sorted({*words, *(f"gym:{name}" for name in ids)})


def whole_parser() -> argparse.ArgumentParser:
    """Return a parser of all commands and options, used only for completion."""
    import shtab  # type: ignore

    top = argparse.ArgumentParser(prog=program.COMMAND)
    top.add_argument("--version", action="store_true", help="versions, device and BLAS")
    commands = top.add_subparsers(metavar="COMMAND")
    environments = names()
    for name, command in COMMANDS.items():
        parser = command.load().option_parser()
        if command.takes_env:
            parser.add_argument("ENV", choices=environments)
        for action in key_help(parser):
            parser._add_action(action)
        for action in parser._actions:
            if not action.option_strings and action.metavar in ("ENV", "RUN"):
                action.choices = environments
            _complete(action, shtab)
        commands.add_parser(name, help=command.about, parents=[parser], add_help=False)
    return top


def _complete(action: argparse.Action, shtab: Any) -> None:
    """Add an option's choices, a short help and the kind of path it takes, for shtab."""
    if action.help and action.help != argparse.SUPPRESS:
        declared = DECLARED.get(action.dest)
        words = (declared and declared.brief) or re.split(r"[.;:] ", action.help)[0]
        action.help = textwrap.shorten(words, SHOWN, placeholder=" …")
    if declared := DECLARED.get(action.dest):
        action.choices = declared.choices or None
    if action.metavar in FILES:
        action.complete = shtab.FILE  # type: ignore
    elif action.metavar in FOLDERS:
        action.complete = shtab.DIRECTORY  # type: ignore


@reported
def main(argv: list[str]) -> None:
    options = option_parser().parse(argv)
    try:
        import shtab  # type: ignore
    except ImportError:
        raise UserError("completion needs shtab", "pip install 'puffer-mlx[completion]'") from None
    print(shtab.complete(whole_parser(), options.shell))
