"""The command ``export``: write a policy in another program's format.

The file is read back and compared with the checkpoint before it is published. docs/export.md
explains how to move a policy to PufferLib on CUDA and back.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

from puffer_mlx import checkpoint
from puffer_mlx.cli.commands import add_common_options
from puffer_mlx.cli.exit_codes import with_exit_code
from puffer_mlx.cli.options import add_option_table, reject_unused
from puffer_mlx.config import ALLOW_CODE, Base, Config
from puffer_mlx.config.command_line import Parser
from puffer_mlx.errors import UserError
from puffer_mlx.export import ExportFormat, ExportReport, export, formats
from puffer_mlx.export.file_format import Option
from puffer_mlx.system import verbosity
from puffer_mlx.system.devices import select_device
from puffer_mlx.system.files import check_writable, relative

HUB = "hub"
HUB_EPISODES = 100  # default number of episodes that score a policy for the Hub
OPTIONS = """
--out FILE  file to write (default: ENV_STEP with the suffix of KIND); with --to hub a folder, which
    must not contain files of other programs
--env NAME  search only for checkpoints of this environment
--checkpoint-dir DIR  folder of checkpoints
"""
HUB_OPTIONS = f"""
--episodes N  episodes to score the policy (default {HUB_EPISODES})
--gif  also record a GIF
--push USER/NAME  upload the folder, with your login
"""


def option_parser() -> Parser:
    file_formats = formats.all_formats()
    parser = Parser(usage="%(prog)s CHECKPOINT --to KIND [options]")
    add_common_options(parser, "export")
    text = "checkpoint folder, run folder, RUN_ID, latest or best"
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help=text)
    kinds = "; ".join(f"{name}: {file.purpose}" for name, file in file_formats.items())
    kinds += f"; {HUB}: a folder with a model card, for the Hugging Face Hub"
    parser.add_argument("--to", required=True, choices=[*file_formats, HUB], help=kinds)
    layouts = dict.fromkeys(each for file in file_formats.values() for each in file.layouts)
    text = "weight layout in the file (default: the policy's, if KIND supports it)"
    parser.add_argument("--dialect", choices=list(layouts), help=text)
    parser.add_argument("--allow-code", action="store_true", help=ALLOW_CODE)
    parser.set_defaults(checkpoint_dir=Base().checkpoint_dir)
    add_option_table(parser, "this export", OPTIONS, types={"--out": Path})
    add_option_table(parser, f"--to {HUB}", HUB_OPTIONS)
    for name, file in file_formats.items():
        group = parser.add_argument_group(f"--to {name}")  # argparse hides empty groups
        for option in file.options:
            add_option(group, option, option.export_help)
    return parser


def add_option(group: Any, option: Option, text: str) -> None:
    """Add the command-line option that a file format of exported policies has to an argparse group.

    Args:
        group: Argument group.
        option: Option to add.
        text: Text for --help.
    """
    arguments = {"choices": option.values} if option.values else {"action": "store_true"}
    group.add_argument(option.flag, help=text, **arguments)


def chosen_options(options: argparse.Namespace, kind: str, template: str) -> dict[str, Any]:
    """Return the typed options of an exported file's format as a dict of keyword arguments.

    Args:
        options: Parsed options.
        kind: Name of the file format.
        template: Text for the message about another format's option: "--to {}".

    Raises:
        UserError: If an option of another format was typed.
    """
    chosen = {}
    for name, file in formats.all_formats().items():
        for option in file.options:
            typed = getattr(options, option.flag.lstrip("-").replace("-", "_"), None)
            if typed and name != kind:
                raise UserError(
                    f"{option.flag} has no effect without {template.format(name)}", "leave it out"
                )
            if typed:
                chosen[option.argument] = option.values.get(typed, typed)
    return chosen


def to_hub(saved: checkpoint.Checkpoint, folder: Path, options: argparse.Namespace) -> None:
    """Write a policy's folder for the Hugging Face Hub, print its score, upload it if requested."""
    from puffer_mlx.library import hub  # imported late because it would delay --help

    out = options.out or Path(f"{saved.config.slug}_{saved.step:016d}_{HUB}").absolute()
    episodes = options.episodes or HUB_EPISODES
    score = hub.write_hub_folder(saved, folder, out, episodes, options.gif, options.allow_code)
    if verbosity.is_quiet():
        print(relative(out))
    verbosity.note(f"{'folder':<20}{relative(out)}")
    verbosity.note(f"{score.name:<20}{score.text} over {score.episodes:,} episodes")
    if options.push:
        print(f"{'pushed':<20}{hub.push(out, options.push)}")


def refuse_unused_options(options: argparse.Namespace) -> None:
    """Raise a UserError if a typed option of ``export`` has no effect on the chosen format."""
    if options.to != HUB:
        reject_unused(options, ["episodes", "gif", "push"], f"without --to {HUB}")
    else:
        reject_unused(options, ["dialect"], f"with --to {HUB}")


def print_export(report: ExportReport, kind: str) -> None:
    """Print an exported file's size and how far its outputs differ from the checkpoint's."""
    difference = "none"
    if report.difference:
        difference = f"{report.difference:.2g} of the scale of {report.worst}"
    lines = {
        "file": relative(report.path),
        "format": f"{kind}, weight layout {report.layout}",
        "bytes": f"{report.path.stat().st_size:,}",
        "tensors": f"{report.tensors:,}",
        "parameters": f"{report.parameters:,}",
        "compared on": report.observations,
        "largest difference": f"{difference} (allowed: {report.tolerance:.2g})",
    }
    for name, value in lines.items():
        print(f"{name:<20}{value}")
    for note in report.notes:
        line = f"note: {note}"
        print(verbosity.wrap(line) if sys.stdout.isatty() else line)
    print(f"{'next':<20}docs/export.md explains how to load it")


def print_pufferlib_commands(config: Config, path: Path) -> None:
    """Print the commands with which PufferLib on CUDA plays an exported policy file."""
    env, width, layers = config.env_name, config.policy.hidden_size, config.policy.num_layers
    verbosity.note(
        f"on a CUDA machine with PufferLib built for {env}:",
        f"  puffer eval {env} --load-model-path {path.name} \\",
        f"      --policy.hidden-size {width} --policy.num-layers {layers}",
        "or with PufferLib 5.0:",
        f"  ./puffer eval {path.name} \\",
        f"      --policy.hidden_size={width} --policy.num_layers={layers}",
    )


@with_exit_code
def main(argv: list[str]) -> None:
    options = option_parser().parse(argv)
    refuse_unused_options(options)
    if options.out:
        options.out = options.out.absolute() if options.to == HUB else check_writable(options.out)
    chosen = chosen_options(options, options.to, "--to {}")
    select_device("cpu")  # exact, and fast enough
    folder = checkpoint.find_any_checkpoint(
        options.checkpoint, Path(options.checkpoint_dir), options.env
    )
    saved = checkpoint.load(folder, options.allow_code)
    if options.to == HUB:
        return to_hub(saved, folder, options)
    file_format = ExportFormat(options.to, options.dialect, **chosen)
    name = f"{saved.config.slug}_{saved.step:016d}{file_format.file.suffixes[0]}"
    verbosity.note(f"{'environment':<20}{saved.config.env_name}", f"{'checkpoint':<20}{folder}")
    report = export(saved, file_format, options.out or Path(name), checkpoint.recorded(folder))
    if verbosity.is_quiet():
        print(relative(report.path))
    else:
        print_export(report, options.to)
        if options.to == "bin" and not saved.config.python:
            print_pufferlib_commands(saved.config, report.path)
