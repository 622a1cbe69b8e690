"""Read the files of an environment and choose its trainer: a request becomes settings.

The first of these chooses the trainer: ``--train.algorithm``; ``algorithm`` in the last file that
sets it; the keys of the last file that show a release (``dialects.py``); the folder of the
environment's sources; default.ini. With 5.0's trainer ``configs/puffer5.ini`` counts after
default.ini: it has 5.0's defaults. Files of the other release still set sizes, and win over
puffer5.ini. But ``TRAINER_DEFINING_KEYS``, which distinguish the two trainers, count only in files
for the chosen trainer and on the command line.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from puffer_mlx.config.dialects import (
    ALGORITHM,
    DIALECTS,
    Dialect,
    FileVersion,
    file_version,
    folder_version,
    main_source,
)
from puffer_mlx.config.families import PARTS
from puffer_mlx.config.finding import (
    FAMILY,
    NETWORK,
    FamilyChoice,
    NamedEnvironment,
    find,
    is_complete,
    last_text,
    layer,
    plain_path,
    refuse_without_version,
    resolve_file,
    shadow_note,
)
from puffer_mlx.config.ini_files import relative_path
from puffer_mlx.config.key import Setting
from puffer_mlx.config.parts import algorithms, facts, of_release
from puffer_mlx.config.schema import DECLARED
from puffer_mlx.config.values import unquoted
from puffer_mlx.system.files import report_read_errors

TRAINER_DEFINING_KEYS = (
    "base.reset_state",
    "policy.reset_on_terminal",
    "train.vtrace",
    "train.overlap",
)


class FileSettings(NamedTuple):
    """The settings of files, and the trainer that they choose."""

    algorithm: str  # the trainer
    why: str  # the reason for this trainer, for messages
    dialect: Dialect  # the release of the environment's sources; 4.0 without sources
    files: list[Path]  # all files, with puffer5.ini if it counts
    settings: list[Setting]  # in the files' order
    foreign: frozenset[str]  # origins of settings in files for another trainer

    def takes(self, setting: Setting) -> bool:
        """Return True if a setting counts for this trainer."""
        return setting.name not in TRAINER_DEFINING_KEYS or setting.origin not in self.foreign


class Request(NamedTuple):
    """A request for a configuration.

    Args:
        name: the environment, or the path of an .ini file; may be empty for ``--help``.
        early: typed texts by ``section.key``: some of them choose files.
        files: further .ini files.
        run: a saved run's configuration, used instead of the environment's.
        training: False if only what evaluations need is checked.
        allow_code: True allows all code that files name.
        factory: makes the environment in Python; None: its name says where it is found.
    """

    name: str
    early: Mapping[str, str | None]
    files: tuple[Path, ...] = ()
    run: Path | None = None
    training: bool = True
    allow_code: bool = False
    factory: Callable[..., Any] | None = None


class Scanned(NamedTuple):
    """The files of a request, read.

    Args:
        request: the request.
        named: the environment and its files.
        read: the settings of these files.
        typed_names: code that the person named: the environment, or a folder of sources.
        shadowed: a note about unused files of the working directory; may be empty.
    """

    request: Request
    named: NamedEnvironment
    read: FileSettings
    typed_names: Collection[str]
    shadowed: str = ""

    @property
    def undecided(self) -> bool:
        """True if the environment's spaces decide which family's settings count."""
        return self.named.layered and not self.named.family


def scan(request: Request, family: str = "") -> Scanned:
    """Find the files of a request and read them.

    Args:
        request: the request.
        family: the family of an environment in Python; empty if it isn't known.

    Raises:
        UserError: there is no such environment, or a file can't be read.
    """
    name = request.name
    early = request.early
    choice = FamilyChoice(
        family,
        typed=early.get(FAMILY) or last_text(FAMILY, request.files),
        network=early.get(NETWORK) or last_text(NETWORK, request.files),
        complete=any(map(is_complete, request.files)),
    )
    if request.training and request.run is None and request.factory is None:
        refuse_without_version(name)
    with report_read_errors(
        name, "name an environment, a folder or an .ini file that you may read"
    ):
        named = find(name, choice) if name else NamedEnvironment("", "", [])
    shadowed = shadow_note(name, named)
    typed_names = {named.source, named.source and str(Path(named.source).resolve())}
    if not name.endswith(".ini"):
        typed_names.add(named.env_name)
    named = named if request.run is None else resolve_file(request.run, choice)
    files = request.files if name else ()
    read = read_files(named, files, early.get("env.source") or "", early.get(ALGORITHM) or "")
    return Scanned(request, named, read, typed_names, shadowed)


def read_files(
    named: NamedEnvironment, files: Iterable[Path] = (), source: str = "", algorithm: str = ""
) -> FileSettings:
    """Read files, each by the rules of its release, and choose a trainer.

    Args:
        named: an environment with its files.
        files: further files, which win.
        source: the typed folder of C sources; may be empty.
        algorithm: the typed ``train.algorithm``; may be empty.

    Raises:
        UserError: a file can't be read, or isn't an .ini file.
    """
    paths = [*named.files, *files]
    none = FileVersion()
    versions = {path: none if path in named.partly else file_version(path) for path in paths}
    sources = (version.source for version in reversed(versions.values()) if version.source)
    source = source or named.source or next(sources, "")
    with report_read_errors(source):
        release = folder_version(source) if source and main_source(source) else ""
    dialect = DIALECTS[release or "4.0"]
    why = f"--{ALGORITHM}"
    if not algorithm:
        algorithm, why = _chosen(versions, source, release)
    if algorithm in algorithms():  # else checking the configuration says that it isn't
        paths[1:1] = layer(facts(algorithm).layer)
    settings: list[Setting] = []
    foreign: set[str] = set()
    for path in paths:
        version = versions.get(path) or file_version(path)
        rules = DIALECTS[version.rules] if version.rules else dialect
        lines = rules.read(path, dialect.capitals)
        if path in named.partly:
            lines = [setting for setting in lines if setting.name in PARTS[path.name]]
        settings += [s for s in lines if s.name != ALGORITHM or unquoted(s.text) == algorithm]
        if path != paths[0] and not version.is_for(algorithm):
            foreign |= {setting.origin for setting in lines}
    return FileSettings(algorithm, why, dialect, paths, settings, frozenset(foreign))


def _chosen(versions: dict[Path, FileVersion], source: str, release: str) -> tuple[str, str]:
    """Return the trainer if none is typed, and the reason for it.

    Args:
        versions: the releases of the files, default.ini first.
        source: the folder of the environment's C sources; may be empty.
        release: the release of these sources; may be empty.
    """
    default, *others = versions.items() or [(Path(), FileVersion())]
    if telling := [other for other in reversed(others) if other[1].algorithm]:
        path, version = min(
            telling, key=lambda other: not other[1].says
        )  # min keeps the first of equals, the last file
        return version.algorithm, f"{relative_path(Path(plain_path(path)))} {version.why}"
    if release:
        return of_release(release), f"{relative_path(Path(source))} is a {release} folder"
    return default[1].algorithm or str(DECLARED[ALGORITHM].default), "the default"
