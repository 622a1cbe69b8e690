"""Differences between the files and folders of PufferLib 4.0 and 5.0, in one table.

The keys of a file show its release, which sets the rules of reading and the trainer. A file with
``algorithm`` in [train] is puffer_mlx's own, for example a run's ``config.ini``. It is read by
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
from puffer_mlx.config.components import trainer_of_release
from puffer_mlx.config.ini_files import (
    file_texts,
    ini_file,
    lines_of_4,
    read_ini,
    read_ini_5,
    uncommented,
)
from puffer_mlx.config.key import Setting
from puffer_mlx.config.values import unquoted
from puffer_mlx.errors import UserError

ReleaseName = Literal["4.0", "5.0"]
VTRACE = "train.vtrace"
ALGORITHM = "train.algorithm"
# Keys that 5.0 and puffer_mlx have, and 4.0 hasn't.
KEYS_SHARED_WITH_5 = VTRACE, "vec.num_policies", "vec.hist_policy_*", "selfplay.eval_*"
# 5.0 removed these keys shortly before its release, so its early files may have them.
PRIORITY_KEYS = "train.prio_*"


class Release(NamedTuple):
    """The properties in which PufferLib 4.0 and 5.0 differ, for one of these releases.

    Examples are the trainer, the keys, and the rules of reading files.

    Args:
        trainer: Algorithm that is the release's trainer.
        keys: Patterns of the keys that the other release doesn't have.
        read: Function (path, ``keep_capitals``) that reads the settings of a file.
        env: Default parameters of environments.
        text_parameters: True if environments accept text parameters, besides numbers.
        keep_capitals: True if keys of environments written for this release keep their capitals,
            also in a file that is read by the other release's rules.
        env_name_in_file: True if an environment's file is found by its [base] env_name, anywhere
            below ``config``. False if the file is always ``config/NAME.ini``.
    """

    trainer: str
    keys: tuple[str, ...]
    read: Callable[[Path, bool], list[Setting]]
    env: Mapping[str, float] = {}
    text_parameters: bool = False
    keep_capitals: bool = False
    env_name_in_file: bool = True


RELEASES = {
    "4.0": Release(
        trainer_of_release("4.0"),
        (
            "train.beta1",
            "train.beta2",
            "train.eps",
            "train.prio_alpha",
            "train.prio_beta0",
            "torch.*",
            "base.reset_state",
            "vec.num_frozen_banks",
            "vec.frozen_bank_*",
            "policy.expansion_factor",
        ),
        read_ini,
    ),
    "5.0": Release(
        trainer_of_release("5.0"),
        (*KEYS_SHARED_WITH_5, "train.momentum", "base.async", "base.reset_every_horizon"),
        lambda path, _: read_ini_5(path),  # by its rules, keys always keep their capitals
        ENV_OF_5,
        text_parameters=True,
        keep_capitals=True,
        env_name_in_file=False,
    ),
}

# ---- files ---------------------------------------------------------------------------------------


class FileRelease(NamedTuple):
    """The PufferLib release and the trainer that an .ini file was written for, judging by its keys.

    Args:
        rules: Name of the release by whose rules the file is read; empty if the keys show none.
        algorithm: Trainer that the file is for; empty if the keys show none.
        reason: Reason for this trainer, for messages: text after the file's name.
        sets_algorithm: True if the file sets ``train.algorithm``.
        faithful: False if no trainer does all that the file's keys mean, as for files from before
            5.0's release, which combine priorities with 5.0's other keys.
        source: Folder of C sources that the file names; may be empty.
    """

    rules: str = ""
    algorithm: str = ""
    reason: str = ""
    sets_algorithm: bool = False
    faithful: bool = True
    source: str = ""

    def is_for(self, algorithm: str) -> bool:
        """Return True unless the .ini file is for another trainer than the given algorithm."""
        return self.faithful and self.algorithm in ("", algorithm)


def file_release(path: Path) -> FileRelease:
    """Return the PufferLib release and the trainer that an .ini file was written for, by its keys.

    All fields are empty if the keys show neither, or the file can't be read.
    """
    texts = file_texts(path)
    sets_algorithm = ALGORITHM in texts
    names = set(texts)
    if sets_algorithm:
        # The file is puffer_mlx's: keys that puffer_mlx shares with 5.0 don't show 5.0's release.
        names = {name for name in texts if not _matches(name, KEYS_SHARED_WITH_5)}
    release = _release_of_keys(names)
    if sets_algorithm:
        reason = f"says {ALGORITHM}"
        release = FileRelease(release.rules or "4.0", texts[ALGORITHM], reason, True)
    if source := texts.get("env.source", ""):
        release = release._replace(source=str((path.parent / source).resolve()))
    return release


def listed_names(path: Path) -> list[str]:
    """Return the names of the environments in an .ini file's [base] env_name; [] if it has none.

    The key is read by the rules of the file's release. A literal,
    ``env_name := 'my envs/boat.py:Boat'``, is one name.

    Raises:
        OSError: If the file can't be read.
    """
    file = ini_file(path)
    text = file.raw.get("base.env_name", "")
    if file.has_indented_lines and file_release(path).rules != "5.0":
        # ``raw`` is by 5.0's rules. By 4.0's, the names may be on several indented lines.
        with suppress(UserError):  # of a wrong line: reading the settings reports it later
            lines = lines_of_4(file.text, "")
            values = {f"{line.section}.{line.key.lower()}": line.text for line in lines}
            value = values.get("base.env_name") or ""
            text = "\n".join(map(uncommented, value.split("\n")))
    literal = unquoted(text)
    if text.startswith("=") and literal != text:
        return [literal]
    words = [word.strip("'\"") for word in text.split()]
    return [] if words == ["None"] else words


def _release_of_keys(names: Set[str]) -> FileRelease:
    """Return the PufferLib release that a file was written for, judging by its keys' names.

    If a file has keys of both releases, it is 5.0's: files keep old keys that nothing reads
    anymore. Before 5.0 had a switch for V-trace, it sampled segments by priority, as 4.0 does.
    """
    for release in ("5.0", "4.0"):
        if _any_matches(names, RELEASES[release].keys):
            break
    else:
        return FileRelease()
    if release == "5.0" and VTRACE not in names and _any_matches(names, (PRIORITY_KEYS,)):
        reason = "is from before 5.0's release"
        return FileRelease("5.0", RELEASES["4.0"].trainer, reason, faithful=False)
    return FileRelease(release, RELEASES[release].trainer, f"is a {release} file")


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _any_matches(names: Set[str], patterns: tuple[str, ...]) -> bool:
    return any(_matches(name, patterns) for name in names)


# ---- folders -------------------------------------------------------------------------------------

# Text in NAME.h that shows that it is 5.0's: the type obs_t, without which 5.0's build.sh refuses
# the file, or the name of 5.0's header or step function.
_HEADER_OF_5 = re.compile(
    rb"^[ \t]*typedef\b[^;]*\bobs_t\s*;|\bpufferenv\.h\b|\bpuf_step\s*\(", re.MULTILINE
)
BOT_SCRIPT = "bot.py"  # beside the sources: a scripted opponent in Python

# Environments for which 5.0 has special networks, in CUDA.
_WITH_SPECIAL_NETWORK = {"asteroids", "craftax", "minimal", "nethack", "nmmo3"}
_WITH_SPECIAL_NETWORK |= {f"osrs_{name}" for name in ("colosseum", "inferno", "pvp", "zulrah")}


def main_source(folder: Path | str) -> Path | None:
    """Return the main source file of an environment's folder, or None for other folders.

    In PufferLib 4.0 it is ``binding.c``. In 5.0 it is ``NAME.h`` in a folder NAME, or ``NAME.cu``
    for an environment that only steps on a GPU.
    """
    folder = Path(folder).resolve()
    binding, header = folder / "binding.c", folder / f"{folder.name}.h"
    cuda = header.with_suffix(".cu")
    if binding.is_file():
        return binding
    if header.is_file() and _HEADER_OF_5.search(header.read_bytes()):
        return header
    return cuda if cuda.is_file() else None


def folder_release(folder: Path | str) -> ReleaseName:
    """Return the PufferLib release, 4.0 or 5.0, that an environment's folder of C code is for.

    Raises:
        UserError: If it isn't an environment's folder, or the environment only steps on a GPU.
    """
    source = main_source(folder)
    if source is None:
        header = f"{Path(folder).resolve().name}.h"
        problem = "doesn't exist"
        if Path(folder).is_dir():
            problem = f"has no binding.c, and no {header} of PufferLib 5.0"
        if (ini := Path(folder) / "config.ini").is_file():
            raise UserError(
                f"{folder} is a run's folder, and the first argument must be an environment",
                f"put the run's environment or {ini} before the folder",
            )
        raise UserError(
            f"the environment folder {folder} {problem}",
            "an environment is a folder with NAME.h and binding.c, or with PufferLib 5.0's NAME.h"
            " alone; start with a copy of envs/squared",
        )
    if source.suffix == ".cu":
        raise UserError(
            f"the environment {source.stem} has only {source.name}, which steps in CUDA;"
            " here environments step on the CPU",
            f"write {source.stem}.h, with the same functions for one environment",
        )
    return "4.0" if source.name == "binding.c" else "5.0"


def folder_has_cuda_network(folder: Path | str) -> bool:
    """Return True if PufferLib 5.0 trains a folder's environment with a special CUDA network."""
    folder = Path(folder).resolve()
    source = main_source(folder)
    if source is None or source.suffix != ".h":
        return False
    # A .cu file is a network, or with PUF_GPU the environment for GPUs.
    networks = [path for path in folder.glob("*.cu") if b"PUF_GPU" not in path.read_bytes()]
    return folder.name in _WITH_SPECIAL_NETWORK or bool(networks)
