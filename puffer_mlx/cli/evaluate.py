"""Score or watch a policy: puffer-mlx evaluate breakout latest [options].

Environments, policy and seed are the checkpoint's; options win over them.
"""

import argparse

from puffer_mlx.cli.evaluate_options import OBEYED, OBEYED_IN_PYTHON, add_options, parse, settle
from puffer_mlx.cli.exit_codes import reported
from puffer_mlx.cli.options import detail_config
from puffer_mlx.config import take_notes
from puffer_mlx.config.command_line import build_parser
from puffer_mlx.system import voice


def evaluate(argv: list[str]) -> None:
    config, options = parse(argv)
    voice.note(*take_notes(config))
    detail_config(config)
    settle(options, config)
    from puffer_mlx.cli.evaluate_run import run

    run(argv, config, options)


def option_parser() -> argparse.ArgumentParser:
    return build_parser(extra=add_options, obeyed=(*OBEYED, *OBEYED_IN_PYTHON))


@reported
def main(argv: list[str]) -> None:
    evaluate(argv)
