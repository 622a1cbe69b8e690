"""Folders of C sources: which release of PufferLib one was written for, and what is compiled."""

import re
from pathlib import Path
from typing import Literal

from puffer_mlx.errors import UserError

Version = Literal["4.0", "5.0"]

# Its build.sh refuses a NAME.h without the typedef.
_OF_5 = re.compile(
    rb"^[ \t]*typedef\b[^;]*\bobs_t\s*;|\bpufferenv\.h\b|\bpuf_step\s*\(", re.MULTILINE
)
SCRIPT = "bot.py"  # beside the sources: a player whom everybody else may meet, in Python

# Environments for which 5.0 has networks of their own, in CUDA.
_OWN_NETWORKS = {"asteroids", "craftax", "minimal", "nethack", "nmmo3"}
_OWN_NETWORKS |= {f"osrs_{name}" for name in ("colosseum", "inferno", "pvp", "zulrah")}


def main_source(folder: Path | str) -> Path | None:
    """The file that makes a folder an environment, whether it can be compiled here or not.

    ``binding.c`` in PufferLib 4.0; in 5.0 ``NAME.h`` in a folder NAME, or ``NAME.cu`` for a GPU.
    """
    folder = Path(folder).resolve()
    binding, header = folder / "binding.c", folder / f"{folder.name}.h"
    cuda = header.with_suffix(".cu")
    if binding.is_file():
        return binding
    if header.is_file() and _OF_5.search(header.read_bytes()):
        return header
    return cuda if cuda.is_file() else None


def folder_version(folder: Path | str) -> Version:
    """Which release of PufferLib an environment's folder was written for.

    Raises:
        UserError: it is no environment's folder, or one whose environments step on a GPU only.
    """
    source = main_source(folder)
    if source is None:
        there = Path(folder).is_dir()
        header = f"{Path(folder).resolve().name}.h"
        what = f"has no binding.c, and no {header} of PufferLib 5.0" if there else "doesn't exist"
        raise UserError(
            f"the environment folder {folder} {what}",
            "an environment is a folder with NAME.h and binding.c, or with PufferLib 5.0's NAME.h"
            " alone; copy envs/squared to begin one",
        )
    if source.suffix == ".cu":
        raise UserError(
            f"the environment {source.stem} has only {source.name}: it steps on a GPU by CUDA,"
            " and environments step on the CPU here",
            f"what compiles here is {source.stem}.h, with the same functions for one environment",
        )
    return "4.0" if source.name == "binding.c" else "5.0"


def has_own_network(folder: Path | str) -> bool:
    """Whether PufferLib 5.0 trains a folder's environment with a network of its own, in CUDA."""
    folder = Path(folder).resolve()
    source = main_source(folder)
    if source is None or source.suffix != ".h":
        return False
    policies = [path for path in folder.glob("*.cu") if b"PUF_GPU" not in path.read_bytes()]
    return folder.name in _OWN_NETWORKS or bool(policies)
