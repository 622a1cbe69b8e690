"""Have policies play against each other: puffer-mlx match connect4_two latest random [options]."""

import argparse

from puffer_mlx.cli.exit_codes import reported
from puffer_mlx.cli.match_options import OBEYED, OBEYED_IN_PYTHON, add_options, parse
from puffer_mlx.cli.options import detail_config
from puffer_mlx.config import take_notes
from puffer_mlx.config.command_line import build_parser
from puffer_mlx.system import voice


def option_parser() -> argparse.ArgumentParser:
    return build_parser(extra=add_options, obeyed=(*OBEYED, *OBEYED_IN_PYTHON))


@reported
def main(argv: list[str]) -> None:
    config, options = parse(argv)
    voice.note(*take_notes(config))
    detail_config(config)
    from puffer_mlx.cli.match_run import run

    run(argv, config, options)
