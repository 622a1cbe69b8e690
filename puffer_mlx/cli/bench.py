"""Measure speed: puffer-mlx bench breakout [--env-only] [--json FILE] [--help]."""

import argparse

from puffer_mlx.cli.commands import introduce
from puffer_mlx.cli.exit_codes import reported
from puffer_mlx.cli.options import add_table, find_family, number, reject_unused
from puffer_mlx.config import Config, parse_command_line
from puffer_mlx.config.command_line import build_parser
from puffer_mlx.errors import UserError
from puffer_mlx.system import program

TRAINING = (  # keys that the training of a benchmark uses
    *("base.seed", "base.device", "base.reset_state", "base.profile"),
    *("vec", "wrap", "policy", "torch", "train", "selfplay"),
)
STEPPING = "vec", "wrap", "train.bootstrap_truncated"  # keys that --env-only uses
EPOCHS = {"epochs": 20, "warm_up": 3}  # defaults of the training options
PLAYS = {"seconds": 5.0, "repeat": 3}  # defaults of the --env-only options
OPTIONS = f"""
--epochs EPOCHS  epochs measured (default {EPOCHS["epochs"]})
--warm-up WARM_UP  epochs before that (default {EPOCHS["warm_up"]})
--env-only  step the environments without a policy
--seconds SECONDS  of each --env-only measurement (default {PLAYS["seconds"]:g})
--repeat REPEAT  --env-only measurements (default {PLAYS["repeat"]})
--placements  train a few epochs with each placement (train.rollout_device, train.overlap)
--json FILE  write the record to a file; - is stdout
"""
TYPES = {"--epochs": number(int, 1), "--warm-up": number(int, 0), "--repeat": number(int, 1)}


def add_options(parser: argparse.ArgumentParser) -> None:
    introduce(parser, "bench")
    add_table(parser, "this benchmark", OPTIONS, types=TYPES)


def option_parser() -> argparse.ArgumentParser:
    return build_parser(add_options, used=(*TRAINING, "base.family"))


def parse(argv: list[str]) -> tuple[Config, argparse.Namespace]:
    """Return the configuration to measure and this script's own options."""
    trains = "--env-only" not in argv
    used = *(TRAINING if trains else STEPPING), "base.family", "base.device"
    return parse_command_line(
        argv, add_options, used=used, training=trains, find_family=find_family
    )


def settle(options: argparse.Namespace, config: Config) -> None:
    """Refuse options without effect and fill in the defaults of the others.

    Raises:
        UserError: An option has no effect here.
    """
    if isinstance(config.base.profile, str):
        raise UserError(
            f"a benchmark writes no timeline (--profile {config.base.profile})",
            f"{program.command('train')} {config.env_name} --profile {config.base.profile}",
        )
    if options.env_only and options.placements:
        raise UserError(
            "--placements does nothing with --env-only: no policy acts", "leave out one of them"
        )
    if options.env_only:
        reject_unused(options, EPOCHS, "with --env-only")
    else:
        reject_unused(options, PLAYS, "without --env-only")
    for name, default in (EPOCHS | PLAYS).items():
        if getattr(options, name) is None:
            setattr(options, name, default)


@reported
def main(argv: list[str]) -> None:
    config, options = parse(argv)
    settle(options, config)
    from puffer_mlx.cli.bench_run import bench

    bench(config, options)
