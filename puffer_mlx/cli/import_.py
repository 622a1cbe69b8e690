"""The command ``import``: convert another program's policy file to a checkpoint.

FILE: PufferLib's .bin (of its CUDA or its torch backend), a state_dict (.pt; also 3.0's), or a file
that puffer-mlx export wrote. ENV: an environment as for puffer-mlx train: a name, gym:ID,
module:factory, a folder in PufferLib's layout, or an .ini file. The file's settings of the policy
become the configuration.
"""

import argparse
import shlex
import time
from pathlib import Path

from puffer_mlx import checkpoint, vec
from puffer_mlx.checkpoint import normalization
from puffer_mlx.checkpoint.environment_statistics import NORMALIZE_KEY, RESCALE_KEY
from puffer_mlx.cli.commands import add_common_options
from puffer_mlx.cli.exit_codes import with_exit_code
from puffer_mlx.cli.export import add_option, chosen_options
from puffer_mlx.cli.options import add_option_table, make_and_find_family, print_origins
from puffer_mlx.config import Config, parse_command_line, write_ini
from puffer_mlx.config.command_line import build_parser
from puffer_mlx.config.compatibility import ZERO_OBSERVATIONS_OF_5
from puffer_mlx.config.option_names import option
from puffer_mlx.config.trust import code_names
from puffer_mlx.errors import UserError
from puffer_mlx.export import formats
from puffer_mlx.export.file_format import PolicyFile
from puffer_mlx.export.importing import compare_with_file, convert_weights, read_any_policy_file
from puffer_mlx.export.parity import Comparison
from puffer_mlx.spec import EnvSpec
from puffer_mlx.system import program, verbosity
from puffer_mlx.system.devices import select_device
from puffer_mlx.trees import named_arrays

# Defaults for settings that a policy file doesn't contain: no normalization, and a policy like
# PufferLib's. They override the environment's files.
DEFAULT_SETTINGS = {
    NORMALIZE_KEY: "False",
    "policy.separate_value": "False",
    "policy.activation": "auto",
}

OPTIONS = """
--out FOLDER  run folder to write (default: CHECKPOINT_DIR/ENV/TIME)
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    add_common_options(parser, "import")
    parser.usage = "%(prog)s FILE ENV [options]"
    file_formats = formats.all_formats().values()
    kinds = "; ".join(f"{', '.join(file.suffixes)}: {file.purpose}" for file in file_formats)
    group = add_option_table(parser, "this import", OPTIONS, f"FILE: {kinds}")
    for each in (each for file in file_formats for each in file.options if each.import_help):
        add_option(group, each, each.import_help)


def option_parser() -> argparse.ArgumentParser:
    return build_parser(add_options)


def configure_import(
    source: PolicyFile, argv: list[str]
) -> tuple[Config, EnvSpec, argparse.Namespace]:
    """Parse the command line of ``import``. Returns configuration, environment's spec and options.

    The command line overrides the settings in the file.

    Args:
        source: Policy file.
        argv: Command line without the policy file: environment and options.

    Raises:
        UserError: If the command line sets normalization differently than the file.
    """
    config, _ = parse_command_line(argv, add_options, find_family=make_and_find_family)
    source.settings |= source.file.sizes_for(source, vec.look_up_spec(config), config)
    texts = {**DEFAULT_SETTINGS, **source.settings}
    if config.policy.dialect == "sb3":
        texts.setdefault("policy.dialect", "native")
    if config.python:
        texts = {
            RESCALE_KEY: "False",
            **texts,
        }  # without bounds in the file, actions have the environment's units
    words = [f"{option(*key.split('.'))}={text}" for key, text in texts.items()]
    line = [argv[0], *words, *argv[1:]]
    config, options = parse_command_line(line, add_options, family=config.base.family)
    spec = vec.look_up_spec(config)
    if config.vec.normalize_observations != normalization.normalises(source.statistics):
        verb = "contains" if source.statistics else "doesn't contain"
        raise UserError(
            f"{source.path} {verb} statistics to normalize observations",
            "leave out vec.normalize_observations: the file decides",
        )
    return config, spec, options


def import_file(argv: list[str]) -> None:
    if program.asks_for_help(argv):
        parse_command_line(["--help", *argv[-1:]], add_options)
    if len(argv) < 2 or argv[0].startswith("-") or argv[1].startswith("-"):
        raise UserError("the first two arguments must be a file and an environment", "FILE ENV")
    source = read_any_policy_file(Path(argv[0]))
    config, spec, options = configure_import(source, argv[1:])
    chosen = chosen_options(options, source.kind, "a file of kind {}")
    source.file = formats.make_format(source.kind, **chosen)
    policy, weights = convert_weights(source, spec, config)
    comparison = compare_with_file(source, policy, weights, spec)
    if comparison and not comparison.matches:
        raise UserError(
            f"{source.path}: {comparison.worst} differs from the output of the file's program by"
            f" {comparison.difference:.2g} of its scale, more than {comparison.tolerance:.2g}",
            "the file is probably damaged; if it isn't, please report this as a bug of puffer_mlx",
        )
    run = options.out or checkpoint.run_folder(config, str(time.time_ns() // 1_000_000))
    write_ini(config, run / checkpoint.CONFIG)
    folder = checkpoint.write_checkpoint(
        run, source.step, config, spec, policy, weights, statistics=source.statistics
    )
    if verbosity.is_quiet():
        print(folder)
        return
    print_origins(config)
    parameters = sum(w.size for _, w in named_arrays(weights))
    print_import(source, argv[1], config, folder, parameters, comparison)


def zero_observations_note(source: PolicyFile, config: Config) -> str:
    """Return a note if an imported policy may have been trained with some observations at 0, or "".

    PufferLib 5.0's version of some environments never sets certain observations, so its policies
    have never seen them. The note is for all flat files that may be from 5.0: files of 4.0 and 5.0
    with discrete actions are identical.

    Args:
        source: The imported policy file.
        config: Configuration of the imported policy.
    """
    key, indices = ZERO_OBSERVATIONS_OF_5.get(config.env_name, ("", ()))
    may_be_from_5 = source.kind == "bin" and config.policy.dialect == "native"
    if not key or not may_be_from_5 or config.env.get(key):
        return ""
    observations = " and ".join(map(str, indices))
    flag = option("env", key)
    return f"PufferLib 5.0 leaves observations {observations} at 0; for its files: {flag} 1"


def print_import(
    source: PolicyFile,
    env: str,
    config: Config,
    folder: Path,
    parameters: int,
    comparison: Comparison | None,
) -> None:
    """Print a description of an imported policy, and commands that the user may type next."""
    classes = config.torch
    policy = f"{classes.encoder}, {classes.network} {config.policy.hidden_size}x"
    lines = {
        "file": f"{source.path} ({source.kind})",
        "policy": f"{policy}{config.policy.num_layers}, weight layout {config.policy.dialect}",
        "observations": (
            "normalized by the file's statistics" if source.statistics else "not normalized"
        ),
        "parameters": f"{parameters:,}",
        "checkpoint": folder,
    }
    if note := zero_observations_note(source, config):
        lines["note"] = note
    if comparison:
        size = f"{comparison.difference:.2g} of the scale of {comparison.worst}"
        lines["largest difference"] = f"{size} (allowed: {comparison.tolerance:.2g})"
    for name, value in lines.items():
        print(f"{name:<20}{value}")
    path, settings = (shlex.quote(str(path)) for path in (folder, folder / checkpoint.CONFIG))
    env = shlex.quote(env)
    print(f"score it            {program.command('evaluate')} {env} --load-model-path {path}")
    allow = " --allow-code" if code_names(config) else ""
    train = program.command("train")
    print(f"train further       {train} {settings} --load-model-path {path}{allow}")


@with_exit_code
def main(argv: list[str]) -> None:
    select_device("cpu")
    import_file(argv)
