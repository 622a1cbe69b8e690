"""Train a policy: puffer-mlx train breakout [options]; --help shows the usual ones.

Words are understood before the trainer is imported: help and errors come at once.
"""

import argparse
import contextlib

from puffer_mlx.cli.exit_codes import reported
from puffer_mlx.cli.train_options import add_options, configured
from puffer_mlx.config.command_line import build_parser, first_look
from puffer_mlx.machines.launching import launched_rank
from puffer_mlx.system import voice

OF_RESUMED = "--checkpoint-dir", "--torch.network", "--torch.encoder", "--allow-code"


def option_parser() -> argparse.ArgumentParser:
    return build_parser(extra=add_options)


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
    resumed = own = None
    with contextlib.ExitStack() as held:
        if launched_rank():
            held.enter_context(voice.speaking(voice.QUIET))
        given = first_look(argv[1:], "--resume", *OF_RESUMED)
        if (which := given.pop("--resume", None)) is not None:
            from puffer_mlx.checkpoint import CONFIG
            from puffer_mlx.cli.resuming import find_resumed

            words = [name if text is None else f"{name}={text}" for name, text in given.items()]
            resumed = find_resumed(which, [argv[0], *words], held)
            own = resumed.folder / CONFIG
        config, options = configured(argv, own)
        from puffer_mlx.cli.train_run import start

        return start(argv, config, options, resumed, held)
