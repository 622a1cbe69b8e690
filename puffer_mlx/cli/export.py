"""Carry a policy to other programs: puffer-mlx export latest --to torch [options].

The file is read back and compared with the checkpoint before it is published; docs/export.md shows
the way to PufferLib on CUDA and back.
"""

import argparse
import sys
from pathlib import Path

from puffer_mlx import checkpoint
from puffer_mlx.checkpoint import branches
from puffer_mlx.cli import hub
from puffer_mlx.cli.commands import introduce
from puffer_mlx.cli.exit_codes import reported
from puffer_mlx.cli.format_options import add_option, chosen_options
from puffer_mlx.cli.option_types import number
from puffer_mlx.cli.verbosity import add_verbosity
from puffer_mlx.config import ALLOW_CODE, Base, Config
from puffer_mlx.config.command_line import Parser
from puffer_mlx.config.help_page import add_help
from puffer_mlx.errors import UserError
from puffer_mlx.export import Format, Report, export, formats
from puffer_mlx.system import voice
from puffer_mlx.system.devices import select_device
from puffer_mlx.system.files import reading

HUB = "hub"


def option_parser() -> Parser:
    known = formats.by_name()
    parser = Parser(usage="%(prog)s CHECKPOINT --to KIND [options]")
    add_help(parser, {})
    introduce(parser, "export")
    parser.add_argument(
        "checkpoint",
        metavar="CHECKPOINT",
        help="a checkpoint's folder, a run's folder, a RUN_ID, or latest",
    )
    parser.add_argument(
        "--to",
        required=True,
        choices=[*known, HUB],
        help="; ".join(f"{name}: {file.use}" for name, file in known.items())
        + f"; {HUB}: a folder with a model card, for the Hugging Face Hub",
    )
    parser.add_argument(
        "--dialect",
        choices=list(dict.fromkeys(each for file in known.values() for each in file.dialects)),
        help="of the policy in the file (default: its own, where that kind of file has it)",
    )
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="default ENV_STEP with the kind's suffix, here"
    )
    parser.add_argument("--env", metavar="NAME", help="look only for checkpoints of this one")
    parser.add_argument(
        "--checkpoint-dir", metavar="DIR", default=Base().checkpoint_dir, help="where to look"
    )
    parser.add_argument("--allow-code", action="store_true", help=ALLOW_CODE)
    group = parser.add_argument_group(f"--to {HUB}")
    group.add_argument(
        "--episodes", type=number(int, 1, 1e6), help=f"to score it by (default {hub.EPISODES})"
    )
    group.add_argument("--gif", action="store_true", help="play for a GIF, too")
    group.add_argument("--push", metavar="USER/NAME", help="upload it, with your own login")
    for name, file in known.items():
        group = parser.add_argument_group(f"--to {name}")  # argparse shows none that is empty
        for option in file.options:
            add_option(group, option, option.writing)
    add_verbosity(parser)
    return parser


def to_hub(made: checkpoint.Checkpoint, folder: Path, options: argparse.Namespace) -> None:
    """Write the folder for the Hub, and upload it if that is wanted."""
    out = options.out or Path(f"{made.config.slug}_{made.step:016d}_{HUB}")
    episodes = options.episodes or hub.EPISODES
    found = hub.write(made, folder, out, episodes, options.gif, options.allow_code)
    if voice.is_quiet():
        print(out)
    voice.note(f"{'folder':<20}{out}")
    voice.note(f"{found.name:<20}{found.text} over {found.episodes:,} episodes")
    if options.push:
        print(f"{'pushed':<20}{hub.push(out, options.push)}")


def refuse_without_hub(options: argparse.Namespace) -> None:
    """Options of one form do nothing for another."""
    typed = [name for name in ("episodes", "gif", "push") if getattr(options, name)]
    if options.to != HUB and typed:
        raise UserError(f"--{typed[0]} does nothing without --to {HUB}", "leave it out")
    if options.to == HUB and options.dialect:
        raise UserError(f"--dialect does nothing with --to {HUB}", "leave it out")


def find(which: str, folder: Path, env: str | None) -> Path:
    """The checkpoint that ``which`` names, of one environment or of any.

    Raises:
        UserError: there is none.
    """
    names = [env] if env else sorted(path.name for path in folder.glob("*") if path.is_dir())
    with reading(which):
        if (which != "latest" and Path(which).is_dir()) or not names:
            names = [env or ""]
    found, problem = [], None
    for name in names:
        config = Config(name, base=Base(checkpoint_dir=str(folder)))
        try:
            found.append(checkpoint.find(which, config))
        except UserError as error:
            problem = error
    if found:
        return max(found, key=branches.saved)
    if problem is not None and len(names) == 1:
        raise problem
    runs = sorted(f"{path.parent.name}/{path.name}" for path in folder.glob("*/*"))
    raise UserError(
        f"there is no checkpoint {which} in {folder}",
        f"runs there are: {', '.join(runs[-3:])}" if runs else "train first",
    )


def show(report: Report, kind: str) -> None:
    size = (
        f"{report.difference:.2g} of the scale of {report.worst}" if report.difference else "none"
    )
    lines = {
        "file": report.path,
        "format": f"{kind}, dialect {report.dialect}",
        "bytes": f"{report.path.stat().st_size:,}",
        "tensors": f"{report.tensors:,}",
        "parameters": f"{report.parameters:,}",
        "compared on": report.observations,
        "largest difference": f"{size} (allowed: {report.tolerance:.2g})",
    }
    for name, value in lines.items():
        print(f"{name:<20}{value}")
    for note in report.notes:
        print(f"note: {note}")


@reported
def main(argv: list[str]) -> None:
    options = option_parser().parse(argv)
    refuse_without_hub(options)
    chosen = chosen_options(options, options.to, "--to {}")
    select_device("cpu")  # exact where it is compared with itself; plenty fast
    folder = find(options.checkpoint, Path(options.checkpoint_dir), options.env)
    made = checkpoint.load(folder, options.allow_code)
    if options.to == HUB:
        return to_hub(made, folder, options)
    form = Format(options.to, options.dialect, **chosen)
    name = f"{made.config.slug}_{made.step:016d}{form.file.suffixes[0]}"
    voice.note(f"{'checkpoint':<20}{folder}")
    report = export(made, form, options.out or Path(name), checkpoint.recorded(folder))
    if voice.is_quiet():
        print(report.path)
    else:
        show(report, options.to)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
