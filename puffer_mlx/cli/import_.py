"""Convert another program's policy file to a checkpoint: puffer-mlx import FILE ENV [options].

FILE: PufferLib's .bin (of its CUDA or its torch backend), a state_dict (.pt; also 3.0's), or a file
that puffer-mlx export wrote. ENV: an environment as for puffer-mlx train: a name, gym:ID,
module:factory, a folder in PufferLib's form, or an .ini file. The policy's description in the file
becomes the configuration.
"""

import argparse
import shlex
import time
from pathlib import Path

from puffer_mlx import checkpoint, vec
from puffer_mlx.checkpoint import normalization
from puffer_mlx.checkpoint.environment_statistics import KEY, RESCALE
from puffer_mlx.cli.commands import introduce
from puffer_mlx.cli.exit_codes import reported
from puffer_mlx.cli.export import add_option, chosen_options
from puffer_mlx.cli.options import add_table, detail_config, find_family
from puffer_mlx.config import Config, parse_command_line, write_ini
from puffer_mlx.config.command_line import build_parser
from puffer_mlx.config.compatibility import ZERO_OBSERVATIONS_OF_5
from puffer_mlx.config.option_names import option
from puffer_mlx.config.trust import code_names
from puffer_mlx.errors import UserError
from puffer_mlx.export import formats
from puffer_mlx.export.file_format import PolicyFile
from puffer_mlx.export.importing import convert_weights, difference, inspect
from puffer_mlx.export.parity import Comparison
from puffer_mlx.spec import EnvSpec
from puffer_mlx.system import program, voice
from puffer_mlx.system.devices import select_device
from puffer_mlx.trees import named

# Defaults for settings that a file doesn't hold; they override the environment's own:
# no normalization, and a policy like PufferLib's.
UNTOLD = {KEY: "False", "policy.separate_value": "False", "policy.activation": "auto"}

OPTIONS = """
--out FOLDER  the run's folder (default CHECKPOINT_DIR/ENV/RUN, RUN the time in milliseconds)
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    introduce(parser, "import")
    parser.usage = "%(prog)s FILE ENV [options]"
    known = formats.by_name().values()
    kinds = "; ".join(f"{', '.join(file.suffixes)}: {file.use}" for file in known)
    group = add_table(parser, "this import", OPTIONS, f"FILE: {kinds}")
    for each in (each for file in known for each in file.options if each.reading):
        add_option(group, each, each.reading)


def option_parser() -> argparse.ArgumentParser:
    return build_parser(add_options)


def configure(source: PolicyFile, argv: list[str]) -> tuple[Config, EnvSpec, argparse.Namespace]:
    """Return the configuration, the environment's spec and the parsed options.

    The command line overrides the settings in the file.

    Args:
        source: Policy file.
        argv: The environment and further words of the command line.

    Raises:
        UserError: Normalization is set differently than in the file.
    """
    config, _ = parse_command_line(argv, add_options, find_family=find_family)
    source.settings |= source.file.sizes_for(source, vec.look_up_spec(config), config)
    texts = {**UNTOLD, **source.settings}
    if config.policy.dialect == "sb3":
        texts.setdefault("policy.dialect", "native")
    if config.python:
        texts = {
            RESCALE: "False",
            **texts,
        }  # actions without bounds use the environment's units
    words = [f"{option(*key.split('.'))}={text}" for key, text in texts.items()]
    line = [argv[0], *words, *argv[1:]]
    config, options = parse_command_line(line, add_options, family=config.base.family)
    spec = vec.look_up_spec(config)
    if config.vec.normalize_observations != normalization.normalises(source.statistics):
        has = "has" if source.statistics else "has no"
        raise UserError(
            f"{source.path} {has} statistics that observations are normalised by",
            "leave vec.normalize_observations out: the file tells",
        )
    return config, spec, options


def convert(argv: list[str]) -> None:
    if program.asks_for_help(argv):
        parse_command_line(["--help", *argv[-1:]], add_options)
    if len(argv) < 2 or argv[0].startswith("-") or argv[1].startswith("-"):
        raise UserError("the first two words must be a file and an environment", "FILE ENV")
    source = inspect(Path(argv[0]))
    config, spec, options = configure(source, argv[1:])
    chosen = chosen_options(options, source.kind, "a file of kind {}")
    source.file = formats.make_format(source.kind, **chosen)
    policy, weights = convert_weights(source, spec, config)
    compared = difference(source, policy, weights, spec)
    if compared and not compared.same:
        raise UserError(
            f"{source.path}: {compared.worst} differs from what the file's own program computes by"
            f" {compared.difference:.2g} of its scale, more than {compared.tolerance:.2g}",
            "the file is damaged; if it isn't, this is a defect of puffer_mlx: report it",
        )
    run = options.out or checkpoint.run_folder(config, str(time.time_ns() // 1_000_000))
    write_ini(config, run / checkpoint.CONFIG)
    folder = checkpoint.write_checkpoint(
        run, source.step, config, spec, policy, weights, statistics=source.statistics
    )
    if voice.is_quiet():
        print(folder)
        return
    detail_config(config)
    show(source, argv[1], config, folder, sum(w.size for _, w in named(weights)), compared)


def left_at_0(source: PolicyFile, config: Config) -> str:
    """Return a note if PufferLib 5.0's policy may have seen fewer observations than ours does.

    Flat files of 4.0 and 5.0 with discrete actions are identical, so the release is unknown.
    """
    key, numbers = ZERO_OBSERVATIONS_OF_5.get(config.env_name, ("", ()))
    of_5 = source.kind == "bin" and config.policy.dialect == "native"
    if not key or not of_5 or config.env.get(key):
        return ""
    left = " and ".join(map(str, numbers))
    flag = option("env", key)
    return f"PufferLib 5.0's GPU leaves observations {left} at 0; for its files: {flag} 1"


def show(
    source: PolicyFile,
    env: str,
    config: Config,
    folder: Path,
    parameters: int,
    compared: Comparison | None,
) -> None:
    parts = config.torch
    policy = f"{parts.encoder}, {parts.network} {config.policy.hidden_size}x"
    lines = {
        "file": f"{source.path} ({source.kind})",
        "policy": f"{policy}{config.policy.num_layers}, dialect {config.policy.dialect}",
        "observations": (
            "normalised by the file's statistics" if source.statistics else "as they are"
        ),
        "parameters": f"{parameters:,}",
        "checkpoint": folder,
    }
    if note := left_at_0(source, config):
        lines["note"] = note
    if compared:
        size = f"{compared.difference:.2g} of the scale of {compared.worst}"
        lines["largest difference"] = f"{size} (allowed: {compared.tolerance:.2g})"
    for name, value in lines.items():
        print(f"{name:<20}{value}")
    place, settings = (shlex.quote(str(path)) for path in (folder, folder / checkpoint.CONFIG))
    env = shlex.quote(env)
    print(f"score it            {program.command('evaluate')} {env} --load-model-path {place}")
    allow = " --allow-code" if code_names(config) else ""  # then only the file names it
    train = program.command("train")
    print(f"train on            {train} {settings} --load-model-path {place}{allow}")


@reported
def main(argv: list[str]) -> None:
    select_device("cpu")
    convert(argv)
