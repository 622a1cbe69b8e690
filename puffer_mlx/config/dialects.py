"""Differences between the files and folders of PufferLib 4.0 and 5.0, in one table.

A file's keys show its release, which sets the rules of reading and the trainer. A file with
``algorithm`` in [train] is puffer_mlx's own, for example a run's ``config.ini``; it is read by
4.0's rules unless it has keys that only 5.0 knows. A folder of C sources shows its release by its
main source file.
"""

import re
from collections.abc import Callable, Mapping, Set
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal, NamedTuple

from puffer_mlx.config.compatibility import ENV_OF_5
from puffer_mlx.config.ini_files import (
    file_texts,
    ini_file,
    lines_of_4,
    read_ini,
    read_ini_5,
    uncommented,
)
from puffer_mlx.config.key import Setting
from puffer_mlx.config.parts import of_release
from puffer_mlx.config.values import unquoted
from puffer_mlx.errors import UserError

Version = Literal["4.0", "5.0"]
VTRACE, ALGORITHM = "train.vtrace", "train.algorithm"
SHARED = VTRACE, "vec.num_policies", "vec.hist_policy_*", "selfplay.eval_*"  # 5.0's, and ours
PRIORITIES = "train.prio_*"  # 5.0 lost them last: its files may have them, too


class Dialect(NamedTuple):
    """The differences of a release.

    Args:
        trainer: the algorithm that is the release's trainer.
        keys: patterns of the keys that the other release doesn't have.
        read: reads the settings of a file; its second argument is ``capitals``.
        env: default parameters of environments.
        texts: True if environments accept text parameters, besides numbers.
        capitals: True if parameters of environments keep their capitals, in files of any release.
        names_itself: True if an environment's file names the environment and may lie in a folder
            below ``config``; else it is ``config/NAME.ini``.
    """

    trainer: str
    keys: tuple[str, ...]
    read: Callable[[Path, bool], list[Setting]]
    env: Mapping[str, float] = {}
    texts: bool = False
    capitals: bool = False
    names_itself: bool = True


DIALECTS = {
    "4.0": Dialect(
        of_release("4.0"),
        (
            *("train.beta1", "train.beta2", "train.eps", "train.prio_alpha", "train.prio_beta0"),
            *("torch.*", "base.reset_state", "vec.num_frozen_banks", "vec.frozen_bank_*"),
            "policy.expansion_factor",
        ),
        read_ini,
    ),
    "5.0": Dialect(
        of_release("5.0"),
        (*SHARED, "train.momentum", "base.async", "base.reset_every_horizon"),
        lambda path, _: read_ini_5(path),
        ENV_OF_5,
        texts=True,
        capitals=True,
        names_itself=False,
    ),
}

# ---- files ---------------------------------------------------------------------------------------


class FileVersion(NamedTuple):
    """The release that a file's keys show. All fields are empty if they show none."""

    rules: str = ""  # the release whose rules of reading apply
    algorithm: str = ""  # the trainer that the file is for
    why: str = ""  # the reason for messages, after the file's name
    says: bool = False  # True if the file sets the algorithm
    faithful: bool = True  # False if the trainer lacks something that the file's keys mean
    source: str = ""  # the folder of C sources that the file names

    def is_for(self, algorithm: str) -> bool:
        """Return True unless the file is for another trainer."""
        return self.faithful and self.algorithm in ("", algorithm)


def file_version(path: Path) -> FileVersion:
    """Return a file's release; all fields are empty if it is unknown or the file can't be read."""
    texts = file_texts(path)
    says = ALGORITHM in texts
    version = _told_by({name for name in texts if not (says and _any({name}, SHARED))})
    if says:
        why = f"says {ALGORITHM}"
        version = FileVersion(version.rules or "4.0", texts[ALGORITHM], why, says=True)
    source = texts.get("env.source", "")
    return version._replace(source=str((path.parent / source).resolve()) if source else "")


def listed_names(path: Path) -> list[str]:
    """Return the environments that a file's [base] env_name lists; [] if it is absent or None.

    It is read by the rules of the file's release, as the settings are. A literal,
    ``env_name := 'my envs/boat.py:Boat'``, is one name.

    Raises:
        OSError: the file can't be read.
    """
    file = ini_file(path)
    text = file.raw.get("base.env_name", "")
    if file.is_indented and file_version(path).rules != "5.0":
        with suppress(UserError):  # reading the settings reports what is wrong
            pairs = {f"{s}.{key.lower()}": value for _, s, key, value in lines_of_4(file.text, "")}
            value = pairs.get("base.env_name") or ""
            text = "\n".join(map(uncommented, value.split("\n")))
    if text.startswith("=") and (name := unquoted(text)) != text:
        return [name]
    words = [word.strip("'\"") for word in text.split()]
    return [] if words == ["None"] else words


def _told_by(names: Set[str]) -> FileVersion:
    """Return the release that has keys with these names.

    If keys of both are there, 5.0's count: files keep old keys that nothing reads anymore. But
    before 5.0 had a switch for V-trace it still drew segments by priority, as 4.0.
    """
    for release in ("5.0", "4.0"):
        if _any(names, DIALECTS[release].keys):
            break
    else:
        return FileVersion()
    if release == "5.0" and VTRACE not in names and _any(names, (PRIORITIES,)):
        why = "is from before 5.0's release"
        return FileVersion("5.0", DIALECTS["4.0"].trainer, why, faithful=False)
    return FileVersion(release, DIALECTS[release].trainer, f"is a {release} file")


def _any(names: Set[str], patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for name in names for pattern in patterns)


# ---- folders -------------------------------------------------------------------------------------

# Its build.sh refuses a NAME.h without the typedef.
_OF_5 = re.compile(
    rb"^[ \t]*typedef\b[^;]*\bobs_t\s*;|\bpufferenv\.h\b|\bpuf_step\s*\(", re.MULTILINE
)
SCRIPT = "bot.py"  # beside the sources: a player whom everybody else may meet, in Python

# Environments for which 5.0 has special networks, in CUDA.
_OWN_NETWORKS = {"asteroids", "craftax", "minimal", "nethack", "nmmo3"}
_OWN_NETWORKS |= {f"osrs_{name}" for name in ("colosseum", "inferno", "pvp", "zulrah")}


def main_source(folder: Path | str) -> Path | None:
    """Return the file that makes a folder an environment; it may be one for CUDA only.

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
    """Return the release of PufferLib that an environment's folder was written for.

    Raises:
        UserError: it is no environment's folder, or one whose environments step on a GPU only.
    """
    source = main_source(folder)
    if source is None:
        there = Path(folder).is_dir()
        header = f"{Path(folder).resolve().name}.h"
        what = f"has no binding.c, and no {header} of PufferLib 5.0" if there else "doesn't exist"
        if (ini := Path(folder) / "config.ini").is_file():
            raise UserError(
                f"{folder} is the folder of a run, and the first word is its environment",
                f"its name, or {ini}; then the folder",
            )
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
    """Return True if PufferLib 5.0 trains a folder's environment with a special CUDA network."""
    folder = Path(folder).resolve()
    source = main_source(folder)
    if source is None or source.suffix != ".h":
        return False
    policies = [path for path in folder.glob("*.cu") if b"PUF_GPU" not in path.read_bytes()]
    return folder.name in _OWN_NETWORKS or bool(policies)
