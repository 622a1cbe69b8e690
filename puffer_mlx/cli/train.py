"""Train a policy: puffer-mlx train breakout [options]; --help shows the common ones.

Words are parsed before the trainer is imported, so help and errors appear at once.
"""

import argparse
import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from puffer_mlx.cli.commands import introduce
from puffer_mlx.cli.exit_codes import reported
from puffer_mlx.cli.options import add_table, find_family, number, reject_unused
from puffer_mlx.config import Config, parse_command_line, trust
from puffer_mlx.config.command_line import build_parser, typed_options
from puffer_mlx.config.help import RARE_OPTIONS
from puffer_mlx.distributed.launching import launched_rank
from puffer_mlx.errors import UserError
from puffer_mlx.system import program, voice

if TYPE_CHECKING:  # imports MLX
    from puffer_mlx.checkpoint import Checkpoint

FINDS_THE_RUN = "--checkpoint-dir", "--torch.network", "--torch.encoder", "--allow-code"
PROFILED = 3  # default number of epochs in a timeline
OPTIONS = """
--load-model-path PATH  start a new run from weights: a .safetensors or .bin file, or what --resume
    takes
--resume RUN  go on with a run exactly where it was saved: latest, a RUN_ID, a run's folder or a
    checkpoint's; its own configuration, changed by the other options given here
--stop-at STEP  end after the epoch that reaches STEP; schedules run as if to the full length
"""
RARE = f"""
--profile-epochs N  epochs in the timeline of --profile FILE.json, beginning with the third epoch
    after this start (default {PROFILED})
--gpu-capture FILE.gputrace  Macs only: record what the GPU does, for Xcode; needs
    MTL_CAPTURE_ENABLED=1
--gpu-capture-epochs N  epochs in it, at most 5: each may take gigabytes (default 1)
--list  say which environments there are
--version  print versions, device and BLAS, and exit
"""
TYPES = {"--stop-at": number(int, 1), "--gpu-capture": Path}


def add_options(parser: argparse.ArgumentParser) -> None:
    introduce(parser, "train")
    add_table(parser, "this run", OPTIONS, types=TYPES)
    add_table(parser, RARE_OPTIONS, RARE, types=TYPES)


def configured(argv: list[str], run: Path | None) -> tuple[Config, argparse.Namespace]:
    """Return the configuration and this script's own options, with ``trace`` added to them.

    Args:
        argv: Words of the command line.
        run: Configuration file of the resumed run; None for a new run.
    """
    config, options = parse_command_line(argv, add_options, run=run, find_family=find_family)
    options.trace = None
    if run is not None:
        trust.refuse_untrusted_log_dir(config)
    if isinstance(config.base.profile, str):  # a file for this start only
        trust.refuse_untrusted_profile(config)
        options.trace = Path(config.base.profile).absolute()
        config.base.profile = True
    if not options.trace:
        reject_unused(options, ["profile_epochs"], "without --profile FILE.json", "add it")
    options.profile_epochs = options.profile_epochs or PROFILED
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
    """Load the checkpoint to resume and lock its run.

    Args:
        which: Value of ``--resume``.
        words: Environment, and the options for the folder of runs and for trusted code.
        stack: Holds the lock of the run until it is closed.

    Returns:
        The checkpoint, and its folder, or that of a newer checkpoint with weights only.

    Raises:
        UserError: No checkpoint is found, it is for another environment, or another process
            trains the run.
    """
    from puffer_mlx import checkpoint
    from puffer_mlx.checkpoint.folder import lock_run

    config, _ = parse_command_line(words, training=False)
    folder = checkpoint.find(which, config, checkpoint.STATE)
    if not launched_rank():  # the first rank holds it for all of them
        stack.enter_context(lock_run(folder.parent))
    run = str(folder.parent) if which == "latest" else which  # another run may be the latest now
    folder = checkpoint.find(run, config, checkpoint.STATE)  # may be newer now
    resumed = checkpoint.load(folder, trust.allowed_names(config))
    if resumed.config.env_name != config.env_name:
        raise UserError(
            f"{resumed.folder} is a run of {resumed.config.env_name}, not of {config.env_name}",
            f"{program.command('train')} {resumed.config.env_name} --resume {which}",
        )
    newest = checkpoint.find(which, config)
    has_state = (newest / checkpoint.STATE).is_file()
    return resumed, folder if has_state else newest


@reported
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
    with contextlib.ExitStack() as held:
        if launched_rank():
            held.enter_context(voice.speaking(voice.QUIET))
        typed = typed_options(argv[1:])
        which = next((each.text for each in reversed(typed) if each.option == "--resume"), None)
        if which is not None and not program.asks_for_help(argv):
            words = [word for each in typed if each.full in FINDS_THE_RUN for word in each.argv]
            resumed, newest = find_resumed(which, [argv[0], *words], held)
        config, options = configured(argv, resumed and resumed.folder / "config.ini")
        options.newest = newest
        from puffer_mlx.cli.train_run import start

        return start(argv, config, options, resumed, held)
