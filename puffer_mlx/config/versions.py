"""Which PufferLib a file is of, told by its keys: how it is to be read, and whose trainer it wants.

A file may also say it: ``algorithm`` in its [train]. Such a file is one of puffer_mlx's own, a
run's ``config.ini`` say, and is read by 4.0's rules unless keys are in it that only 5.0 has.
"""

from collections.abc import Set
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

from puffer_mlx.config.algorithms import of_release
from puffer_mlx.config.ini_files import CONTROL
from puffer_mlx.config.ini_files_5 import uncommented
from puffer_mlx.config.values import unquoted
from puffer_mlx.system.files import read_text

VTRACE, ALGORITHM = "train.vtrace", "train.algorithm"
SHARED = VTRACE, "vec.num_policies", "vec.hist_policy_*", "selfplay.eval_*"  # 5.0's, and ours
NEW = (  # keys that 4.0 doesn't have
    *SHARED,
    *("train.momentum", "base.async", "base.reset_every_horizon"),
)
OLD = (  # and that 5.0 doesn't have
    *("train.beta1", "train.beta2", "train.eps", "train.prio_alpha", "train.prio_beta0"),
    *("torch.*", "base.reset_state", "vec.num_frozen_banks", "vec.frozen_bank_*"),
    "policy.expansion_factor",
)
PRIORITIES = "train.prio_*"  # 5.0 lost them last: a file with NEW keys may have them, too


class FileVersion(NamedTuple):
    """What a file's keys tell; all of it is empty where they tell nothing."""

    rules: str = ""  # by which it is read: "4.0" or "5.0"
    algorithm: str = ""  # whose trainer it wants
    why: str = ""  # for people, after the file's name
    says: bool = False  # it says so itself
    faithful: bool = True  # that trainer has all that the file's keys mean
    source: str = ""  # the folder of C sources that it names

    def is_for(self, algorithm: str) -> bool:
        """Whether the file means this trainer, or doesn't tell."""
        return self.faithful and self.algorithm in ("", algorithm)


_OF_4 = FileVersion("4.0", of_release("4.0"), "is a 4.0 file")
_OF_5 = FileVersion("5.0", of_release("5.0"), "is a 5.0 file")
_BEFORE_5 = FileVersion("5.0", of_release("4.0"), "is from before 5.0's release", faithful=False)


def file_version(path: Path) -> FileVersion:
    """Which PufferLib a file is of; empty if its keys don't tell, or it can't be read."""
    try:
        found = file_texts(read_text(path, "replace"))
    except OSError:  # reading its settings will say what is wrong
        return FileVersion()
    says = ALGORITHM in found
    told = _told_by({name for name in found if not (says and _any({name}, SHARED))})
    if says:
        told = FileVersion(told.rules or "4.0", found[ALGORITHM], f"says {ALGORITHM}", says=True)
    source = found.get("env.source", "")
    return told._replace(source=str((path.parent / source).resolve()) if source else "")


def _told_by(names: Set[str]) -> FileVersion:
    """Which PufferLib has keys of these names.

    Where keys of both are, those of 5.0 count: files keep old keys that nothing reads anymore. But
    before it had a switch for V-trace it still drew segments by priority, as 4.0.
    """
    if not _any(names, NEW):
        return _OF_4 if _any(names, OLD) else FileVersion()
    return _BEFORE_5 if VTRACE not in names and _any(names, (PRIORITIES,)) else _OF_5


def _any(names: Set[str], patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for name in names for pattern in patterns)


def file_texts(text: str) -> dict[str, str]:
    """Keys with their sections, in lower case, and their texts; [torch] counts without keys."""
    found: dict[str, str] = {}
    section = ""
    for line in map(uncommented, CONTROL.sub(" ", text).split("\n")):
        if line.startswith("[") and line.endswith("]"):
            section = line[1:-1].strip()
            found[f"{section}."] = ""
        elif at := min((line.find(sign) for sign in "=:" if sign in line), default=0):
            found[f"{section}.{line[:at].strip().lower()}"] = unquoted(line[at + 1 :].strip())
    return found
