"""The command ``train``: train a policy.

The command line is parsed before the trainer is imported, so that help and errors appear
immediately.
"""

import argparse
import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from puffer_mlx.cli.commands import add_common_options
from puffer_mlx.cli.exit_codes import with_exit_code
from puffer_mlx.cli.options import (
    add_option_table,
    make_and_find_family,
    number_type,
    reject_unused,
)
from puffer_mlx.config import Config, parse_command_line, trust
from puffer_mlx.config.command_line import build_parser, typed_options
from puffer_mlx.config.help import RARE_OPTIONS
from puffer_mlx.distributed.launching import launched_rank
from puffer_mlx.errors import UserError
from puffer_mlx.system import program, verbosity

if TYPE_CHECKING:  # imports MLX
    from puffer_mlx.checkpoint import Checkpoint

RESUME_LOOKUP_OPTIONS = "--checkpoint-dir", "--torch.network", "--torch.encoder", "--allow-code"
PROFILED_EPOCHS = 3  # default length of a timeline
OPTIONS = """
--load-model-path PATH  start a new run from the weights of a .safetensors or .bin file, or of a
    checkpoint: latest, a RUN_ID, or the folder of a run or checkpoint
--resume RUN  resume a run exactly where it was saved, with its configuration and the other options:
    latest, a RUN_ID, or the folder of a run or checkpoint
--stop-at STEP  end after the epoch that reaches STEP; schedules still use the full length
"""
RARE_TRAIN_OPTIONS = f"""
--profile-epochs N  epochs in the timeline of --profile FILE.json, from the third epoch after this
    start (default {PROFILED_EPOCHS})
--gpu-capture FILE.gputrace  Macs only: record the GPU's commands for Xcode; needs
    MTL_CAPTURE_ENABLED=1
--gpu-capture-epochs N  epochs to record, at most 5: each may need gigabytes (default 1)
--list  list the environments and exit
--version  print versions, device and BLAS, and exit
"""
TYPES = {"--stop-at": number_type(int, 1), "--gpu-capture": Path}


def add_options(parser: argparse.ArgumentParser) -> None:
    add_common_options(parser, "train")
    add_option_table(parser, "this run", OPTIONS, types=TYPES)
    add_option_table(parser, RARE_OPTIONS, RARE_TRAIN_OPTIONS, types=TYPES)


def configure_run(argv: list[str], run: Path | None) -> tuple[Config, argparse.Namespace]:
    """Parse the command line of ``train``. Returns the run's configuration and the options.

    The options also have ``trace``, the timeline's file or None.

    Args:
        argv: Command line.
        run: Configuration file of the resumed run; None for a new run.
    """
    config, options = parse_command_line(
        argv, add_options, run=run, find_family=make_and_find_family
    )
    options.trace = None
    if run is not None:
        trust.refuse_untrusted_log_dir(config)
    if isinstance(config.base.profile, str):  # a file name is for this start only
        trust.refuse_untrusted_profile(config)
        options.trace = Path(config.base.profile).absolute()
        config.base.profile = True
    if not options.trace:
        reject_unused(options, ["profile_epochs"], "without --profile FILE.json", "add it")
    options.profile_epochs = options.profile_epochs or PROFILED_EPOCHS
    if options.gpu_capture:
        options.gpu_capture = options.gpu_capture.absolute()
    else:
        reject_unused(options, ["gpu_capture_epochs"], "without --gpu-capture", "add it")
    return config, options


def option_parser() -> argparse.ArgumentParser:
    return build_parser(add_options)


def find_resumed(
    which: str, words: list[str], stack: contextlib.ExitStack
) -> tuple["Checkpoint", Path]:
    """Load the checkpoint that ``--resume`` names, and lock its run against other processes.

    Args:
        which: Value of ``--resume``.
        words: Command line with the environment and ``RESUME_LOOKUP_OPTIONS``.
        stack: Releases the lock of the run when it is closed.

    Returns:
        The checkpoint, and the folder of the run's newest checkpoint, which may have weights only.

    Raises:
        UserError: If no checkpoint is found, it is for another environment, or another process
            trains the run.
    """
    from puffer_mlx import checkpoint
    from puffer_mlx.checkpoint.folder import lock_run

    config, _ = parse_command_line(words, training=False)
    folder = checkpoint.find_checkpoint(which, config, checkpoint.STATE)
    if not launched_rank():  # the first rank holds the lock for all ranks
        stack.enter_context(lock_run(folder.parent))
    run = str(folder.parent) if which == "latest" else which  # another run may have started
    folder = checkpoint.find_checkpoint(run, config, checkpoint.STATE)  # a newer one may exist
    resumed = checkpoint.load(folder, trust.allowed_names(config))
    if resumed.config.env_name != config.env_name:
        raise UserError(
            f"{resumed.folder} was trained on {resumed.config.env_name}, not {config.env_name}",
            f"{program.command('train')} {resumed.config.env_name} --resume {which}",
        )
    newest = checkpoint.find_checkpoint(which, config)
    has_state = (newest / checkpoint.STATE).is_file()
    return resumed, folder if has_state else newest


@with_exit_code
def main(argv: list[str]) -> int | None:
    if "--version" in argv:
        from puffer_mlx.system.version import version_text

        print(version_text())
        return None
    if "--list" in argv:
        from puffer_mlx.cli.list_environments import print_catalog

        print_catalog()
        return None
    resumed = newest = None
    with contextlib.ExitStack() as lock:
        if launched_rank():
            lock.enter_context(verbosity.set_for_block(verbosity.QUIET))
        typed = typed_options(argv[1:])
        which = next((each.text for each in reversed(typed) if each.option == "--resume"), None)
        if which is not None and not program.asks_for_help(argv):
            words = [
                word
                for each in typed
                if each.with_section in RESUME_LOOKUP_OPTIONS
                for word in each.argv
            ]
            resumed, newest = find_resumed(which, [argv[0], *words], lock)
        config, options = configure_run(argv, resumed and resumed.folder / "config.ini")
        options.newest_checkpoint = newest
        from puffer_mlx.cli.train_run import start_run

        return start_run(argv, config, options, resumed, lock)
