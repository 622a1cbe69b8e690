"""Whose trainer a run gets, PufferLib 4.0's or 5.0's, and what of the files counts for it.

What says so, the first of these: ``--train.algorithm``; ``algorithm`` in the last file that has it;
the keys of the last file that tells (``versions.py``); the folder of the environment's sources;
default.ini.

With 5.0's trainer ``configs/puffer5.ini`` counts after default.ini: its defaults, and what it is.
A file of the other release still says how large everything is, and its values win over
puffer5.ini. But ``ESSENCE``, what makes the two trainers what they are, is taken only from files of
the trainer that was chosen, and from the command line.
"""

from collections.abc import Sequence, Set
from pathlib import Path
from typing import NamedTuple

from puffer_mlx.config.algorithms import facts, of_release
from puffer_mlx.config.families import OF_ACTIONS
from puffer_mlx.config.folders import folder_version, main_source
from puffer_mlx.config.ini_files import Setting, read_ini, relative_path
from puffer_mlx.config.ini_files_5 import read_ini_5
from puffer_mlx.config.known_files import layer, plain_path
from puffer_mlx.config.parts import algorithms
from puffer_mlx.config.schema import KEYS, Config
from puffer_mlx.config.schema.selfplay import OF_4, OF_5, RELEASES
from puffer_mlx.config.values import unquoted
from puffer_mlx.config.versions import ALGORITHM, FileVersion, file_version
from puffer_mlx.system.files import reading

DEFAULT = str(KEYS["train"]["algorithm"].default)
ESSENCE = "base.reset_state", "policy.reset_on_terminal", "train.vtrace", "train.overlap"
_BANKS = "vec.num_frozen_banks", "vec.frozen_bank_pct"
_POLICIES = "vec.num_policies", "vec.hist_policy_percent"
_OF_GAMES = "selfplay.swap_winrate", "selfplay.min_games"  # and of pools that take snapshots:
_OF_POOLS = *_OF_GAMES, "selfplay.snapshot_interval"
UNREAD_RULES = {OF_4: _POLICIES, OF_5: (*_BANKS, *_OF_POOLS)}  # keys that rules don't obey
_OF_ALL = "rules", "max_size", "elo_init", "elo_k", "seed", "opp_timeout_steps"
_AFTER = tuple(f"selfplay.{key}" for key in KEYS["selfplay"] if key.startswith("eval_"))
WITHOUT_OPPONENTS = (
    *(*_BANKS, *_POLICIES, *_OF_POOLS, "selfplay.train_on_opponents"),
    *(f"selfplay.{key}" for key in _OF_ALL),
    *_AFTER,
)


class Choice(NamedTuple):
    """A trainer, and why it is that one."""

    algorithm: str
    why: str


class Read(NamedTuple):
    """What files say."""

    choice: Choice
    folder: str  # the release that the environment's sources are of, "4.0" or "5.0"; else empty
    files: list[Path]  # with puffer5.ini, if it counts
    settings: list[Setting]  # in their order
    foreign: frozenset[str]  # origins of files that aren't of the trainer


def read_files(
    files: Sequence[Path], source: str, algorithm: str, partly: Set[Path] = frozenset()
) -> Read:
    """Read files, each by the rules of its release, and choose a trainer.

    Args:
        files: default.ini, then others, of which the later ones win.
        source: the folder of the environment's C sources; empty if only a file may say it.
        algorithm: ``train.algorithm`` on the command line; empty if it isn't there.
        partly: files of which only ``OF_ACTIONS`` count.

    Raises:
        UserError: a file can't be read, or isn't an .ini file.
    """
    files = list(files)
    told = {path: file_version(path) if path not in partly else FileVersion() for path in files}
    source = source or next((v.source for v in reversed(told.values()) if v.source), "")
    with reading(source):
        folder = folder_version(source) if source and main_source(source) else ""
    choice = Choice(algorithm, f"--{ALGORITHM}")
    if not algorithm:
        choice = _chosen(told, f"{relative_path(Path(source))} is a {folder} folder", folder)
    if choice.algorithm in algorithms():  # else checking the configuration says that it isn't
        files[1:1] = layer(facts(choice.algorithm).layer)
    settings: list[Setting] = []
    foreign: set[str] = set()
    for path in files:
        version = told.get(path) or file_version(path)
        by_5 = (version.rules or folder) == "5.0"
        found = read_ini_5(path) if by_5 else read_ini(path, capitals=folder == "5.0")
        if path in partly:
            found = [setting for setting in found if setting.name in OF_ACTIONS]
        settings += [
            s for s in found if s.name != ALGORITHM or unquoted(s.text) == choice.algorithm
        ]
        if path != files[0] and not version.is_for(choice.algorithm):
            foreign |= {setting.origin for setting in found}
    return Read(choice, folder, files, settings, frozenset(foreign))


def _chosen(told: dict[Path, FileVersion], of_folder: str, folder: str) -> Choice:
    """The trainer, as the module's docstring says, where the command line doesn't name one.

    Args:
        told: what the files tell, default.ini the first one.
        of_folder: what the folder tells, in words.
        folder: its release; empty if there is none.
    """
    default, *others = told.items() or [(Path(), FileVersion())]
    if telling := [other for other in reversed(others) if other[1].algorithm]:
        path, version = min(telling, key=lambda other: not other[1].says)  # of equals the first
        shown = relative_path(Path(plain_path(path)))
        return Choice(version.algorithm, f"{shown} {version.why}")
    if folder:
        return Choice(of_release(folder), of_folder)
    return Choice(default[1].algorithm or DEFAULT, "the default")


def taken_over(read: Read, setting: Setting) -> bool:
    """Whether a setting under our name counts, where it comes from considered."""
    return setting.name not in ESSENCE or setting.origin not in read.foreign


def trainer_note(config: Config) -> str:
    """The first line of a run: whose trainer it has, and why; and whose rules for opponents.

    Args:
        config: a valid one, made by whatever means.
    """
    why = f" ({config.chosen_by})" if config.chosen_by else ""
    return f"{config.env_name}: {config.facts.title}{why}{_opponents(config)}"


def _opponents(config: Config) -> str:
    """A run's opponents in words; empty if it has none."""
    if not (number := config.opponents):
        return ""
    several = "an opponent" if number == 1 else f"{number} opponents"
    return f"; {several} by {RELEASES[config.selfplay_rules]}'s rules"


def unread(config: Config) -> list[str]:
    """Keys that were given and that the run's trainer, or its self-play, doesn't obey."""
    names = config.facts.unread
    on = config.selfplay.enabled
    names += UNREAD_RULES[config.selfplay_rules] if on else WITHOUT_OPPONENTS
    adaptive = config.train.lr_schedule == "adaptive"
    names = *names, "train.min_lr_ratio" if adaptive else "train.desired_kl"
    if not (config.facts.evaluates_apart or config.base.eval_interval):
        names = "base.eval_agents", *names
    if ":" in config.train.advantage:  # a function of the user's own, for any trainer
        names = tuple(name for name in names if name != "train.advantage")
    return [key for key in names if key in config.origins]
