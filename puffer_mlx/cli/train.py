"""Train a policy: puffer-mlx train breakout [options]; --help shows the usual ones."""

import argparse
import contextlib
import sys

from rich.console import Console

from puffer_mlx import checkpoint, vec
from puffer_mlx.cli.exit_codes import reported
from puffer_mlx.cli.list_environments import print_catalog
from puffer_mlx.cli.train_options import add_options, configured, find_resumed
from puffer_mlx.cli.train_output import rate_note
from puffer_mlx.cli.train_run import train
from puffer_mlx.cli.verbosity import detail_config
from puffer_mlx.config import Config, take_notes, unused_note
from puffer_mlx.config.command_line import build_parser
from puffer_mlx.config.trainer_choice import trainer_note, unread
from puffer_mlx.errors import UserError
from puffer_mlx.machines import starting
from puffer_mlx.machines.launched import rank_said, started
from puffer_mlx.machines.share import share
from puffer_mlx.ppo import optimizers
from puffer_mlx.system import program, voice
from puffer_mlx.system.version import version_text
from puffer_mlx.tracking.tracked_run import refuse_missing


def option_parser() -> argparse.ArgumentParser:
    return build_parser(extra=add_options)


@reported
def main(argv: list[str]) -> int | None:
    if "--version" in argv:
        print(version_text())
        return
    if "--list" in argv:
        print_catalog(Console())
        return
    with contextlib.ExitStack() as stack:
        if rank_said():
            stack.enter_context(voice.speaking(voice.QUIET))
        return start(argv, find_resumed(argv, stack), stack)


def start(
    argv: list[str], resumed: checkpoint.Checkpoint | None, held: contextlib.ExitStack
) -> int:
    """Train as a command line says, from a checkpoint on or from the beginning; the exit code.

    Args:
        argv: the words.
        resumed: the checkpoint to go on from.
        held: holds its run.
    """
    own = resumed.folder / checkpoint.CONFIG if resumed else None
    config, options = configured(argv, own)
    if config.train.gpus > 1 and not started():
        held.close()  # the first rank holds it
        return start_here(config, argv)
    if resumed and options.load_model_path is not None:
        raise UserError("--resume and --load-model-path are given", "one of them")
    refuse_missing(config)
    vec.settle_family(config)
    voice.note(trainer_note(config), *take_notes(config))
    config.unused += [*optimizers.unread(config), *unread(config)]
    voice.note(unused_note(config), "" if resumed else rate_note(config))
    detail_config(config)
    return train(config, options, resumed)


def start_here(config: Config, argv: list[str]) -> int:
    """Start ``train.gpus`` ranks of this command on this machine; the exit code."""
    share(config, 0, config.train.gpus)  # it can be divided: said once, not by each
    loud = {voice.QUIET: ["-q"], voice.VERBOSE: ["-v"]}.get(voice.level(), [])
    on_gpus = starting.uses_gpus(config.base.device)
    words = program.of_package("train", *argv, *loud)
    return starting.start_ranks(config.train.gpus, words, on_gpus)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
