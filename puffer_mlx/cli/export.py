"""Export a policy to other programs: puffer-mlx export latest --to torch [options].

The file is read back and compared with the checkpoint before it is published. docs/export.md shows
the way to PufferLib on CUDA and back.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

from puffer_mlx import checkpoint
from puffer_mlx.cli.commands import introduce
from puffer_mlx.cli.exit_codes import reported
from puffer_mlx.cli.options import add_table, reject_unused
from puffer_mlx.config import ALLOW_CODE, Base, Config
from puffer_mlx.config.command_line import Parser
from puffer_mlx.errors import UserError
from puffer_mlx.export import ExportFormat, ExportReport, export, formats
from puffer_mlx.export.file_format import Option
from puffer_mlx.system import verbosity
from puffer_mlx.system.devices import select_device
from puffer_mlx.system.files import check_writable, relative

HUB = "hub"
EPISODES = 100  # default number of episodes that score a policy for the Hub
OPTIONS = """
--out FILE  default ENV_STEP with the kind's suffix, here; with --to hub a folder, which is refused
    if it holds files that this command didn't write
--env NAME  look only for checkpoints of this one
--checkpoint-dir DIR  where to look
"""
TO_HUB = f"""
--episodes N  to score it by (default {EPISODES})
--gif  play for a GIF, too
--push USER/NAME  upload it, with your own login
"""


def option_parser() -> Parser:
    known = formats.by_name()
    parser = Parser(usage="%(prog)s CHECKPOINT --to KIND [options]")
    introduce(parser, "export")
    where = "a checkpoint's folder, a run's folder, a RUN_ID, latest or best"
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help=where)
    kinds = "; ".join(f"{name}: {file.purpose}" for name, file in known.items())
    kinds += f"; {HUB}: a folder with a model card, for the Hugging Face Hub"
    parser.add_argument("--to", required=True, choices=[*known, HUB], help=kinds)
    layouts = dict.fromkeys(each for file in known.values() for each in file.layouts)
    text = "of the policy in the file (default: its own, where that kind of file has it)"
    parser.add_argument("--dialect", choices=list(layouts), help=text)
    parser.add_argument("--allow-code", action="store_true", help=ALLOW_CODE)
    parser.set_defaults(checkpoint_dir=Base().checkpoint_dir)
    add_table(parser, "this export", OPTIONS, types={"--out": Path})
    add_table(parser, f"--to {HUB}", TO_HUB)
    for name, file in known.items():
        group = parser.add_argument_group(f"--to {name}")  # argparse hides empty groups
        for option in file.options:
            add_option(group, option, option.export_help)
    return parser


def add_option(group: Any, option: Option, text: str) -> None:
    """Add a format's option to a group of argparse.

    Args:
        group: Argument group.
        option: Option to add.
        text: Text for --help.
    """
    how = {"choices": option.values} if option.values else {"action": "store_true"}
    group.add_argument(option.flag, help=text, **how)


def chosen_options(options: argparse.Namespace, kind: str, what: str) -> dict[str, Any]:
    """Return the given options of a format as keyword arguments.

    Args:
        options: Parsed options.
        kind: Name of the format.
        what: Template for the message about another format's option: "--to {}".

    Raises:
        UserError: An option of another format was given.
    """
    chosen = {}
    for name, file in formats.by_name().items():
        for option in file.options:
            typed = getattr(options, option.flag.lstrip("-").replace("-", "_"), None)
            if typed and name != kind:
                raise UserError(
                    f"{option.flag} does nothing without {what.format(name)}", "leave it out"
                )
            if typed:
                chosen[option.argument] = option.values.get(typed, typed)
    return chosen


def to_hub(saved: checkpoint.Checkpoint, folder: Path, options: argparse.Namespace) -> None:
    """Write the folder for the Hub, and upload it if requested."""
    from puffer_mlx.library import hub  # not for --help, which it would delay

    out = options.out or Path(f"{saved.config.slug}_{saved.step:016d}_{HUB}").absolute()
    episodes = options.episodes or EPISODES
    score = hub.write_hub_folder(saved, folder, out, episodes, options.gif, options.allow_code)
    if verbosity.is_quiet():
        print(relative(out))
    verbosity.note(f"{'folder':<20}{relative(out)}")
    verbosity.note(f"{score.name:<20}{score.text} over {score.episodes:,} episodes")
    if options.push:
        print(f"{'pushed':<20}{hub.push(out, options.push)}")


def refuse_without_hub(options: argparse.Namespace) -> None:
    """Refuse options that have no effect on the chosen format."""
    if options.to != HUB:
        reject_unused(options, ["episodes", "gif", "push"], f"without --to {HUB}")
    else:
        reject_unused(options, ["dialect"], f"with --to {HUB}")


def show(report: ExportReport, kind: str) -> None:
    """Print the facts of a written file."""
    size = (
        f"{report.difference:.2g} of the scale of {report.worst}" if report.difference else "none"
    )
    lines = {
        "file": relative(report.path),
        "format": f"{kind}, dialect {report.layout}",
        "bytes": f"{report.path.stat().st_size:,}",
        "tensors": f"{report.tensors:,}",
        "parameters": f"{report.parameters:,}",
        "compared on": report.observations,
        "largest difference": f"{size} (allowed: {report.tolerance:.2g})",
    }
    for name, value in lines.items():
        print(f"{name:<20}{value}")
    for note in report.notes:
        line = f"note: {note}"
        print(verbosity.wrap(line) if sys.stdout.isatty() else line)
    print(f"{'next':<20}load it: docs/export.md shows how")


def say_use(config: Config, path: Path) -> None:
    """Print the commands that play a flat file with PufferLib on CUDA."""
    env, width, layers = config.env_name, config.policy.hidden_size, config.policy.num_layers
    verbosity.note(
        f"on the CUDA machine, where PufferLib is built for {env}:",
        f"  puffer eval {env} --load-model-path {path.name} \\",
        f"      --policy.hidden-size {width} --policy.num-layers {layers}",
        "or with PufferLib 5.0:",
        f"  ./puffer eval {path.name} \\",
        f"      --policy.hidden_size={width} --policy.num_layers={layers}",
    )


@reported
def main(argv: list[str]) -> None:
    options = option_parser().parse(argv)
    refuse_without_hub(options)
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
    form = ExportFormat(options.to, options.dialect, **chosen)
    name = f"{saved.config.slug}_{saved.step:016d}{form.file.suffixes[0]}"
    verbosity.note(f"{'environment':<20}{saved.config.env_name}", f"{'checkpoint':<20}{folder}")
    report = export(saved, form, options.out or Path(name), checkpoint.recorded(folder))
    if verbosity.is_quiet():
        print(relative(report.path))
    else:
        show(report, options.to)
        if options.to == "bin" and not saved.config.python:
            say_use(saved.config, report.path)
