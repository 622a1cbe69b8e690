"""Options of ``train``: which there are, and what they need."""

import argparse
from pathlib import Path

from puffer_mlx.cli.commands import introduce
from puffer_mlx.cli.options import add_table, number, refuse_idle
from puffer_mlx.cli.verbosity import add_verbosity
from puffer_mlx.config import Config, parse_command_line, trust

PROFILED = 3  # epochs of a timeline
OPTIONS = f"""
--load-model-path PATH  start a new run from weights: a .safetensors or .bin file, or what --resume
    takes
--resume RUN  go on with a run exactly where it was saved: latest, a RUN_ID, a run's folder or a
    checkpoint's; its own configuration, changed by the other options given here
--stop-at STEP  end after the epoch that reaches this step, schedules unchanged
--profile-epochs N  epochs in the timeline of --profile FILE.json, from the third of this start on
    (default {PROFILED})
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
    if not options.trace:
        refuse_idle(options, ["profile_epochs"], "without --profile FILE.json", "add it")
    if not options.gpu_capture:
        refuse_idle(options, ["gpu_capture_epochs"], "without --gpu-capture", "add it")
    return config, options
