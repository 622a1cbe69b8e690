"""The program ``puffer-mlx``: run a command, or print help and versions."""

import sys
from collections.abc import Sequence

from puffer_mlx.cli.commands import COMMANDS
from puffer_mlx.cli.exit_codes import VERBOSITY_OPTIONS, with_exit_code
from puffer_mlx.errors import UserError
from puffer_mlx.system import program

HELP = ("-h", "--help", "help")
ALIASES = {"eval": "evaluate"}  # PufferLib's name


USAGE = """\
usage: {COMMAND}

Reinforcement learning on MLX: the trainers of PufferLib 4.0 and 5.0, and PPO.

{COMMANDS}

for example
  {train} breakout
  {train} gym:CartPole-v1
  {evaluate} breakout latest --terminal

  COMMAND --help           help of a command; --help all: all options
  -q, -v                   print only results and errors; or also the settings
  --version                print versions, device and BLAS"""


def usage() -> str:
    """Return the help text of ``puffer-mlx``, which lists all commands."""
    lines = (f"  {f'{name} {each.arguments}':<24}{each.summary}" for name, each in COMMANDS.items())
    return USAGE.format(
        COMMAND=program.command("COMMAND [options]"),
        COMMANDS="\n".join(lines),
        train=program.command("train"),
        evaluate=program.command("evaluate"),
    )


def unknown_command(word: str) -> UserError:
    """Return the UserError for an unknown command of ``puffer-mlx``, with a similar one as hint."""
    from puffer_mlx.config.compatibility import closest
    from puffer_mlx.config.finding import selectable_names

    if word in selectable_names() or word.endswith(".ini") or ":" in word or "/" in word:
        hint = f"{program.command('train')} {word}"
    elif similar := closest(word.replace("_", "-"), [*COMMANDS]):
        hint = f"did you mean {program.command(similar)}?"
    else:
        hint = f"one of {', '.join(COMMANDS)}"
    return UserError(f"there is no command {word!r}", hint)


@with_exit_code
def without_command(argv: list[str]) -> int:
    """Handle a ``puffer-mlx`` command line without a command: print help, versions or an error."""
    if not argv:
        print(usage(), file=sys.stderr)
        return 2
    if argv[0] in HELP:
        print(usage())
    elif argv[0] == "--version":
        from puffer_mlx.system.version import version_text  # imports MLX, so not at the top

        print(version_text())
    else:
        raise unknown_command(argv[0])
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command named by the first word of a command line. Returns the exit code.

    Args:
        argv: Command line after ``puffer-mlx``; None for this process's command line.
    """
    words = sys.argv[1:] if argv is None else list(argv)
    start = next((i for i, word in enumerate(words) if word not in VERBOSITY_OPTIONS), len(words))
    verbosity, words = words[:start], words[start:]
    if words[:1] == ["help"] and len(words) > 1 and words[1] in {*COMMANDS, *ALIASES}:
        words = [words[1], "--help", *words[2:]]
    name = ALIASES.get(words[0], words[0]) if words else ""
    if name in COMMANDS:
        return COMMANDS[name].main([*words[1:], *verbosity])
    return without_command(words[:1])
