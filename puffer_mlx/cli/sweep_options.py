"""Options of the command sweep, and the words that its runs get."""

import argparse
from collections.abc import Sequence

from puffer_mlx.cli.commands import introduce
from puffer_mlx.cli.options import add_table, number
from puffer_mlx.config import Config
from puffer_mlx.config.command_line import Parser, normalize_options
from puffer_mlx.config.fit import is_explicit
from puffer_mlx.config.schema import COMMAND_LINE, KEYS
from puffer_mlx.errors import UserError
from puffer_mlx.sweep import settings
from puffer_mlx.sweep.reading import OF_A_RANGE, method_named

HANG_TIMEOUT = 600.0  # seconds
TYPES = {"--hang": number(float, 1), "--start-from": str}
LATEST = "latest"
FOLDER = "sweeps"
ABOUT = """\
Keys of [sweep] and ranges are options, too: --sweep.method TPE,
--sweep.max-runs 50, --sweep.sweep-only gamma,learning_rate,
--sweep.train.gamma.min 0.9. --help all explains the keys of [sweep]. A key on the
command line, such as --train.gamma 0.99, stays fixed unless its range is given, too."""
USED = (  # keys and sections with an effect on a sweep's runs
    *("vec", "wrap", "policy", "torch", "train", "selfplay", "sweep"),
    *(f"base.{key}" for key in KEYS["base"] if key not in ("checkpoint_dir", "log_dir")),
)
KEEPS = "--checkpoint-dir", "--log-dir"


OPTIONS = f"""
--name NAME  name of the sweep; an existing sweep is resumed
--resume [NAME]  resume a sweep: its name, or the latest
--storage URL  storage of the trials: a file, or a URL for Optuna (default: a file in the sweep's
    folder)
--parallel N  number of simultaneous runs, which divide the cores (default: one, or one per GPU)
--hang SECONDS  time without a log record after which a run has failed (default {HANG_TIMEOUT:g})
--start-from FILE*  also run another configuration's values of the searched keys; may be repeated
--dir DIR  folder of sweeps: DIR/ENV/NAME (default {FOLDER})
"""


def add_options(parser: Parser) -> None:
    introduce(parser, "sweep")
    _add_options(parser)
    for key, declared in settings.KEYS.items():
        shown = f" (default {declared.default})" if declared.default != "" else ""
        text = f"{declared.help}{shown}" if declared.help else argparse.SUPPRESS
        parser.keys[f"sweep.{key}"] = text
    for name in dict.fromkeys([*settings.OF_4, *settings.OF_5]):
        for key in OF_A_RANGE:
            parser.keys[f"sweep.{name}.{key}"] = argparse.SUPPRESS


def _add_options(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    parser.set_defaults(parallel=0, hang=HANG_TIMEOUT, dir=FOLDER)
    return add_table(parser, "this sweep", OPTIONS, ABOUT, TYPES)


def refuse_unknown_method(config: Config) -> None:
    """Refuse a typed search method that doesn't exist. For a method from a file see ``reading``.

    Raises:
        UserError: The method doesn't exist.
    """
    text = config.sweep.get("sweep", {}).get("method", "")
    if is_explicit(config, "sweep.method") and method_named(text) is None:
        methods = ", ".join(settings.METHODS)
        raise UserError(f"sweep.method {text!r} is not among {methods} ({COMMAND_LINE})", methods)


def split(words: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Return the sweep's own options and the other words.

    Raises:
        UserError: Two options contradict each other, or a folder for runs is given.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    _add_options(parser)
    options, others = parser.parse_known_args(normalize_options(words))
    options.resume = LATEST if options.resume == "" else options.resume
    if options.name and options.resume:
        raise UserError("--name and --resume are given", "one of them")
    for name in KEEPS:
        if any(word.partition("=")[0] == name for word in others):
            raise UserError(
                f"{name} is given, and a sweep keeps its runs in its own folder", "--dir FOLDER"
            )
    return options, others


def without_sweep(words: Sequence[str]) -> list[str]:
    """Return the words of a configuration without options for [sweep]."""
    kept: list[str] = []
    option = ""  # the option that the next word may belong to
    for word in words:
        option = word if word.startswith("--") else option
        if not option.startswith("--sweep."):
            kept.append(word)
        if "=" in word or not word.startswith("--"):
            option = ""
    return kept
