"""The run that ``train --resume`` names."""

import contextlib

from puffer_mlx import checkpoint
from puffer_mlx.checkpoint.folder import held
from puffer_mlx.config import parse_command_line, trust
from puffer_mlx.errors import UserError
from puffer_mlx.machines.launching import launched_rank
from puffer_mlx.system import program


def find_resumed(
    which: str, words: list[str], stack: contextlib.ExitStack
) -> checkpoint.Checkpoint:
    """The checkpoint to go on from; its own configuration is what other options change.

    Args:
        which: what ``--resume`` says.
        words: the environment, and those options that say where its runs are and which code of
            theirs may run.
        stack: holds the run until it is closed.

    Raises:
        UserError: there is none, it is of another environment, or another process trains it.
    """
    config, _ = parse_command_line(words, training=False)
    found = checkpoint.find(which, config, checkpoint.STATE)
    if not launched_rank():  # the first rank holds it for all of them
        stack.enter_context(held(found.parent))
    found = checkpoint.find(which, config, checkpoint.STATE)  # it may have ended meanwhile
    resumed = checkpoint.load(found, trust.known(config))
    if resumed.config.env_name != config.env_name:
        raise UserError(
            f"{resumed.folder} is a run of {resumed.config.env_name}, not of {config.env_name}",
            f"{program.command('train')} {resumed.config.env_name} --resume {which}",
        )
    return resumed
