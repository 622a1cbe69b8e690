"""The command ``bench``: measure the speed of training or of an environment."""

import argparse

from puffer_mlx.cli.commands import add_common_options
from puffer_mlx.cli.exit_codes import with_exit_code
from puffer_mlx.cli.options import (
    add_option_table,
    make_and_find_family,
    number_type,
    reject_unused,
)
from puffer_mlx.config import Config, parse_command_line
from puffer_mlx.config.command_line import build_parser
from puffer_mlx.errors import UserError
from puffer_mlx.system import program

TRAINING_KEYS = (  # keys that the training of a benchmark uses
    "base.seed",
    "base.device",
    "base.reset_state",
    "base.profile",
    "vec",
    "wrap",
    "policy",
    "torch",
    "train",
    "selfplay",
)
STEPPING_KEYS = "vec", "wrap", "train.bootstrap_truncated"  # keys that --env-only uses
# Defaults of the options for measuring training, and of those for --env-only
TRAINING_DEFAULTS = {"epochs": 20, "warm_up": 3}
STEPPING_DEFAULTS = {"seconds": 5.0, "repeat": 3}
OPTIONS = f"""
--epochs EPOCHS  epochs to measure (default {TRAINING_DEFAULTS["epochs"]})
--warm-up WARM_UP  epochs before the measurement (default {TRAINING_DEFAULTS["warm_up"]})
--env-only  only step the environments, without a policy
--seconds SECONDS  time of each --env-only measurement (default {STEPPING_DEFAULTS["seconds"]:g})
--repeat REPEAT  number of --env-only measurements (default {STEPPING_DEFAULTS["repeat"]})
--placements  compare train.rollout_device and train.overlap by a few epochs of each
--json FILE  write the record to a file; - is stdout
"""
TYPES = {
    "--epochs": number_type(int, 1),
    "--warm-up": number_type(int, 0),
    "--repeat": number_type(int, 1),
}


def add_options(parser: argparse.ArgumentParser) -> None:
    add_common_options(parser, "bench")
    add_option_table(parser, "this benchmark", OPTIONS, types=TYPES)


def option_parser() -> argparse.ArgumentParser:
    return build_parser(add_options, used=(*TRAINING_KEYS, "base.family"))


def parse_bench(argv: list[str]) -> tuple[Config, argparse.Namespace]:
    """Parse the command line of ``bench``. Returns the configuration to measure and the options."""
    measures_training = "--env-only" not in argv
    keys = TRAINING_KEYS if measures_training else STEPPING_KEYS
    return parse_command_line(
        argv,
        add_options,
        used=(*keys, "base.family", "base.device"),
        training=measures_training,
        find_family=make_and_find_family,
    )


def set_bench_defaults(options: argparse.Namespace, config: Config) -> None:
    """Set the options of ``bench`` that weren't typed to their defaults, after checking the others.

    Raises:
        UserError: If an option has no effect together with the others.
    """
    if isinstance(config.base.profile, str):
        raise UserError(
            f"a benchmark writes no timeline (--profile {config.base.profile})",
            f"{program.command('train')} {config.env_name} --profile {config.base.profile}",
        )
    if options.env_only and options.placements:
        raise UserError(
            "--placements has no effect with --env-only, which has no policy",
            "leave out one of them",
        )
    if options.env_only:
        reject_unused(options, TRAINING_DEFAULTS.keys(), "with --env-only")
    else:
        reject_unused(options, STEPPING_DEFAULTS.keys(), "without --env-only")
    for name, default in (TRAINING_DEFAULTS | STEPPING_DEFAULTS).items():
        if getattr(options, name) is None:
            setattr(options, name, default)


@with_exit_code
def main(argv: list[str]) -> None:
    config, options = parse_bench(argv)
    set_bench_defaults(options, config)
    from puffer_mlx.cli.bench_run import run_benchmark

    run_benchmark(config, options)
