"""Options of ``train.py``: which there are, what they need, and the run that ``--resume`` names."""

import argparse
import contextlib
from pathlib import Path

from puffer_mlx import checkpoint
from puffer_mlx.checkpoint import Checkpoint
from puffer_mlx.checkpoint.folder import held
from puffer_mlx.cli.commands import introduce
from puffer_mlx.cli.verbosity import add_verbosity
from puffer_mlx.config import Config, parse_command_line, trust
from puffer_mlx.config.command_line import spelled
from puffer_mlx.errors import UserError
from puffer_mlx.machines.launched import rank_said
from puffer_mlx.profiling import metal_capture
from puffer_mlx.system import program

PROFILED = 3  # epochs of a timeline


def step_number(text: str) -> int:
    """A positive number of steps: 64, 1_000_000 or 1e6."""
    try:
        step = int(float(text))
    except (ValueError, OverflowError):
        step = 0
    if step < 1:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a number of steps, for example 1_000_000"
        )
    return step


def epochs_number(text: str) -> int:
    """A positive whole number."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of epochs, for example 3")
    return int(text)


def add_options(parser: argparse.ArgumentParser) -> None:
    introduce(parser, "train")
    group = parser.add_argument_group("this run")
    group.add_argument(
        "--load-model-path",
        metavar="PATH",
        help="start a new run from weights: a .safetensors or .bin file, or what --resume takes",
    )
    group.add_argument(
        "--resume",
        metavar="RUN",
        help="go on with a run exactly where it was saved: latest, a RUN_ID, a run's folder or a"
        " checkpoint's; its own configuration, changed by the other options given here",
    )
    group.add_argument(
        "--stop-at",
        metavar="STEP",
        type=step_number,
        help="end after the epoch that reaches this step, schedules unchanged",
    )
    group.add_argument(
        "--profile-epochs",
        metavar="N",
        type=epochs_number,
        help="epochs in the timeline of --profile FILE.json, from the third of this start on"
        f" (default {PROFILED})",
    )
    group.add_argument(
        "--gpu-capture",
        metavar="FILE.gputrace",
        type=Path,
        help="Macs only: record what the GPU does, for Xcode; needs MTL_CAPTURE_ENABLED=1",
    )
    group.add_argument(
        "--gpu-capture-epochs",
        metavar="N",
        type=epochs_number,
        help=f"epochs in it, at most {metal_capture.MOST}: each may take gigabytes (default 1)",
    )
    group.add_argument("--list", action="store_true", help="say which environments there are")
    group.add_argument(
        "--version", action="store_true", help="print versions, device and BLAS, and exit"
    )
    add_verbosity(parser)


def configured(argv: list[str], run: Path | None) -> tuple[Config, argparse.Namespace]:
    """The configuration and this script's own options, ``trace`` among them.

    Args:
        argv: the words.
        run: the configuration of the run that goes on, if one does.
    """
    config, options = parse_command_line(argv, add_options, run=run)
    options.trace = None
    trust.permit_log_dir(config, new=run is None)
    if isinstance(config.base.profile, str):  # a file of this start, not of the run
        trust.permit_profile(config)
        options.trace, config.base.profile = Path(config.base.profile), True
    for epochs, file, words in (
        (options.profile_epochs, options.trace, ("--profile-epochs", "--profile FILE.json")),
        (
            options.gpu_capture_epochs,
            options.gpu_capture,
            ("--gpu-capture-epochs", "--gpu-capture"),
        ),
    ):
        if epochs and not file:
            raise UserError(f"{words[0]} does nothing without {words[1]}", "add it")
    return config, options


def find_resumed(argv: list[str], stack: contextlib.ExitStack) -> Checkpoint | None:
    """The checkpoint that --resume names; its own configuration is what other options change.

    Its run is held until the stack is closed.
    """
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for name in ("--resume", "--checkpoint-dir", "--torch.network", "--torch.encoder"):
        first.add_argument(name, dest=name, nargs="?")
    first.add_argument("--allow-code", action="store_true")
    given, _ = first.parse_known_args(spelled(argv[1:]))
    words = vars(given)
    if (which := words.pop("--resume")) is None:
        return None
    allow = ["--allow-code"] * words.pop("allow_code")
    options = [word for pair in words.items() if pair[1] for word in pair]
    config, _ = parse_command_line([argv[0], *options, *allow], training=False)
    found = checkpoint.find(which, config, checkpoint.STATE)
    if not rank_said():  # the first rank holds it for all of them
        stack.enter_context(held(found.parent))
    found = checkpoint.find(which, config, checkpoint.STATE)  # it may have ended meanwhile
    made = checkpoint.load(found, trust.known(config))
    if made.config.env_name != config.env_name:
        raise UserError(
            f"{made.folder} is a run of {made.config.env_name}, not of {config.env_name}",
            f"{program.command('train')} {made.config.env_name} --resume {which}",
        )
    return made
