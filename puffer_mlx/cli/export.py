"""Carry a policy to other programs: python scripts/export.py latest --to torch [options].

The file is read back and compared with the checkpoint before it is published; docs/export.md shows
the way to PufferLib on CUDA and back.
"""

import argparse
import shutil
import sys
from pathlib import Path

from puffer_mlx import checkpoint
from puffer_mlx.checkpoint import branches
from puffer_mlx.checkpoint.environment_statistics import MEMORY
from puffer_mlx.checkpoint.normalization import normalises
from puffer_mlx.checkpoint.weight_files import BF16, FLOAT
from puffer_mlx.cli.exit_codes import reported
from puffer_mlx.config import ALLOW_CODE, Base, Config
from puffer_mlx.errors import UserError
from puffer_mlx.export.exporting import DIALECTS, SUFFIXES, Format, Report, export
from puffer_mlx.system.devices import select_device
from puffer_mlx.system.files import publish, reading

ALIGNMENT = {"bf16": BF16, "float": FLOAT}


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Write a checkpoint's policy as another kind of file."
    )
    parser.add_argument(
        "checkpoint",
        metavar="CHECKPOINT",
        help="a checkpoint's folder, a run's folder, a RUN_ID, or latest",
    )
    parser.add_argument(
        "--to",
        required=True,
        choices=SUFFIXES,
        help="bin: PufferLib's CUDA backend; torch: its torch backend, or 3.0; safetensors: our"
        " own names; onnx: one step as a graph",
    )
    parser.add_argument(
        "--dialect",
        choices=DIALECTS["onnx"],
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
    group = parser.add_argument_group("--to bin")
    group.add_argument(
        "--bin-build",
        choices=ALIGNMENT,
        help="PufferLib's build that will read it: bf16 (the default) or float; with continuous"
        " actions they differ in how they align tensors",
    )
    group.add_argument(
        "--bin-whole", action="store_true", help="PufferLib 5.0's form, which 4.0 refuses"
    )
    group.add_argument(
        "--lossy",
        action="store_true",
        help="write a file even if it lacks numbers of the policy, or what its observations are"
        " normalised by",
    )
    options = parser.parse_args(argv)
    for name in "bin_build", "bin_whole", "lossy":
        if getattr(options, name) and options.to != "bin":
            raise UserError(
                f"--{name.replace('_', '-')} does nothing without --to bin", "leave it out"
            )
    return options


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


def carry_statistics(folder: Path, beside: Path) -> None:
    """Write what observations are normalised by beside a file that can't hold it, and say so."""
    made = beside.with_name(f"{beside.name}.{MEMORY}")
    with publish(made) as temporary:
        shutil.copyfile(folder / MEMORY, temporary)
    print(f"note: puffer_mlx reads their statistics from {made}")


@reported
def main(argv: list[str]) -> None:
    options = parse(argv)
    select_device("cpu")  # exact where it is compared with itself; plenty fast
    folder = find(options.checkpoint, Path(options.checkpoint_dir), options.env)
    made = checkpoint.load(folder, options.allow_code)
    form = Format(
        options.to,
        options.dialect,
        alignment=ALIGNMENT[options.bin_build or "bf16"],
        whole=options.bin_whole,
        lossy=options.lossy,
    )
    name = f"{made.config.slug}_{made.step:016d}{SUFFIXES[options.to][0]}"
    print(f"{'checkpoint':<20}{folder}")
    report = export(made, form, options.out or Path(name), checkpoint.recorded(folder))
    show(report, options.to)
    if options.to == "bin" and normalises(made.memory):
        carry_statistics(folder, report.path)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
