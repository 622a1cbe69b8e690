"""Options of the command ``sweep``, and the command lines of its runs."""

import argparse
from collections.abc import Sequence

from puffer_mlx.cli.commands import add_common_options
from puffer_mlx.cli.options import add_option_table, number_type
from puffer_mlx.config import Config
from puffer_mlx.config.command_line import Parser, normalize_options
from puffer_mlx.config.fit import is_explicit
from puffer_mlx.config.schema import COMMAND_LINE, KEYS
from puffer_mlx.errors import UserError
from puffer_mlx.sweep import settings
from puffer_mlx.sweep.reading import RANGE_KEYS, find_method

HANG_TIMEOUT = 600.0  # seconds
TYPES = {"--hang": number_type(float, 1), "--start-from": str}
LATEST_SWEEP = "latest"
SWEEPS_FOLDER = "sweeps"
SWEEP_HELP = """\
Keys of [sweep] and ranges are also options: --sweep.method TPE,
--sweep.max-runs 50, --sweep.sweep-only gamma,learning_rate,
--sweep.train.gamma.min 0.9. --help all explains the keys of [sweep]. A typed key, such
as --train.gamma 0.99, isn't searched unless its range is typed too."""
SWEEP_RUN_KEYS = (  # keys and sections with an effect
    "vec",
    "wrap",
    "policy",
    "torch",
    "train",
    "selfplay",
    "sweep",
    *(f"base.{key}" for key in KEYS["base"] if key not in ("checkpoint_dir", "log_dir")),
)
RUN_FOLDER_OPTIONS = "--checkpoint-dir", "--log-dir"


OPTIONS = f"""
--name NAME  name of the sweep; an existing sweep is resumed
--resume [NAME]  resume the sweep of that name, or the latest one
--storage URL  storage of the trials: a file, or a URL for Optuna (default: a file in the sweep's
    folder)
--parallel N  number of simultaneous runs, which share the cores (default: one, or one per GPU)
--hang SECONDS  time without a log record after which a run is stopped (default {HANG_TIMEOUT:g})
--start-from FILE*  also try a file's values of the searched keys; may be repeated
--dir DIR  folder of sweeps: DIR/ENV/NAME (default {SWEEPS_FOLDER})
"""


def add_options(parser: Parser) -> None:
    add_common_options(parser, "sweep")
    _add_table_options(parser)
    for key, declared in settings.KEYS.items():
        default = f" (default {declared.default})" if declared.default != "" else ""
        text = f"{declared.help}{default}" if declared.help else argparse.SUPPRESS
        parser.keys[f"sweep.{key}"] = text
    searched_keys = dict.fromkeys([*settings.RANGES_4, *settings.RANGES_5])  # each one once
    for name in searched_keys:
        for key in RANGE_KEYS:
            parser.keys[f"sweep.{name}.{key}"] = argparse.SUPPRESS


def _add_table_options(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    parser.set_defaults(parallel=0, hang=HANG_TIMEOUT, dir=SWEEPS_FOLDER)
    return add_option_table(parser, "this sweep", OPTIONS, SWEEP_HELP, TYPES)


def refuse_unknown_method(config: Config) -> None:
    """Raise a UserError if the user typed a method of searching hyperparameters that doesn't exist.

    A method from a file is checked in ``sweep.reading``.
    """
    text = config.sweep.get("sweep", {}).get("method", "")
    if is_explicit(config, "sweep.method") and find_method(text) is None:
        methods = ", ".join(settings.METHODS)
        raise UserError(f"sweep.method {text!r} is not among {methods} ({COMMAND_LINE})", methods)


def split_sweep_options(words: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Split the command line of ``sweep`` into the options of ``sweep`` and those of its runs.

    Raises:
        UserError: If options contradict each other, or a folder for runs is typed.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    _add_table_options(parser)
    options, remaining = parser.parse_known_args(normalize_options(words))
    options.resume = LATEST_SWEEP if options.resume == "" else options.resume
    if options.name and options.resume:
        raise UserError("--name and --resume exclude each other", "use one of them")
    for name in RUN_FOLDER_OPTIONS:
        if any(word.partition("=")[0] == name for word in remaining):
            raise UserError(
                f"{name} has no effect on a sweep, which writes its runs into its folder",
                "use --dir FOLDER",
            )
    return options, remaining


def without_sweep_options(words: Sequence[str]) -> list[str]:
    """Return a command line without the options that set keys of section [sweep]."""
    result: list[str] = []
    is_value = False  # of a [sweep] option: its value is the next word
    for word in words:
        is_option = word.startswith("--")
        is_sweep_option = word.startswith("--sweep.")
        if not (is_sweep_option or (is_value and not is_option)):
            result.append(word)
        is_value = is_sweep_option and "=" not in word
    return result
