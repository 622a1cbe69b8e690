"""Read the .ini files of an environment and choose its trainer.

The trainer is chosen by the first of these that names one:

1. ``--train.algorithm``,
2. the last file that sets ``algorithm``,
3. the last file with keys of only one PufferLib release (``releases.py``),
4. the release of the environment's sources,
5. default.ini.

With 5.0's trainer, ``configs/puffer5.ini`` (5.0's defaults) is read after default.ini. Files of the
other release win over puffer5.ini, except for ``TRAINER_DEFINING_KEYS``: these are read only from
files for the chosen trainer and from the command line.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from puffer_mlx.config.components import algorithms, facts, trainer_of_release
from puffer_mlx.config.families import PARTIAL_FILE_KEYS
from puffer_mlx.config.finding import (
    FAMILY,
    NETWORK,
    ConfiguredEnvironment,
    FamilyChoice,
    find_files,
    is_complete,
    last_value,
    plain_path,
    refuse_without_version,
    resolve_file,
    shadow_note,
    shipped_file,
)
from puffer_mlx.config.ini_files import relative_path
from puffer_mlx.config.key import Setting
from puffer_mlx.config.releases import (
    ALGORITHM,
    RELEASES,
    FileRelease,
    Release,
    file_release,
    folder_release,
    main_source,
)
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
    """The settings in an environment's .ini files, and the trainer chosen for them.

    Args:
        algorithm: Trainer.
        reason: Reason for this trainer, for messages.
        release: Release of the environment's sources; 4.0 without sources.
        files: All files that were read; later ones win.
        settings: Settings in the order of the files.
        other_trainer: Origins of settings in files for another trainer.
    """

    algorithm: str
    reason: str
    release: Release
    files: list[Path]
    settings: list[Setting]
    other_trainer: frozenset[str]

    def applies(self, setting: Setting) -> bool:
        """Return True if a setting is used by the chosen trainer."""
        return setting.name not in TRAINER_DEFINING_KEYS or setting.origin not in self.other_trainer


class Request(NamedTuple):
    """A user's request for a configuration: the environment, further files and typed texts.

    Args:
        name: Environment, or path of an .ini file; may be empty for ``--help``.
        early: TypedOption texts by ``section.key``; some of them choose files.
        files: Further .ini files.
        run: A saved run's configuration file, used instead of the environment's files.
        training: False to check only the keys that evaluations need.
        allow_code: True to allow all code that files name.
        factory: Constructor of a Python environment; None to import it by its name.
    """

    name: str
    early: Mapping[str, str | None]
    files: tuple[Path, ...] = ()
    run: Path | None = None
    training: bool = True
    allow_code: bool = False
    factory: Callable[..., Any] | None = None


class ScannedFiles(NamedTuple):
    """The .ini files that a request needs, and their settings.

    Args:
        request: The user's request.
        environment: The environment and its files.
        read: Settings of these files.
        typed_names: Code that the user named: the environment, or a folder of sources.
        shadowed: Note about files in the working directory that aren't used; may be empty.
    """

    request: Request
    environment: ConfiguredEnvironment
    read: FileSettings
    typed_names: Collection[str]
    shadowed: str = ""

    @property
    def needs_family(self) -> bool:
        """True if the environment must be made before its family's files can be chosen."""
        return self.environment.has_family_files and not self.environment.family


def scan_files(request: Request, family: str = "") -> ScannedFiles:
    """Find the .ini files that a request needs, and read them.

    Args:
        request: The user's request.
        family: Family of a Python environment; empty if unknown.

    Raises:
        UserError: If the environment doesn't exist, or a file can't be read.
    """
    name = request.name
    early = request.early
    choice = FamilyChoice(
        family,
        typed=early.get(FAMILY) or last_value(FAMILY, request.files),
        network=early.get(NETWORK) or last_value(NETWORK, request.files),
        complete=any(map(is_complete, request.files)),
    )
    if request.training and request.run is None and request.factory is None:
        refuse_without_version(name)
    with report_read_errors(
        name, "name an environment, a folder or an .ini file that you may read"
    ):
        environment = find_files(name, choice) if name else ConfiguredEnvironment("", "", [])
    shadowed = shadow_note(name, environment)
    source = environment.source
    typed_names = {source, source and str(Path(source).resolve())}
    if not name.endswith(".ini"):
        typed_names.add(environment.env_name)
    if request.run is not None:
        environment = resolve_file(request.run, choice)
    files = request.files if name else ()
    typed_source = early.get("env.source") or ""
    read = read_files(environment, files, typed_source, early.get(ALGORITHM) or "")
    return ScannedFiles(request, environment, read, typed_names, shadowed)


def read_files(
    environment: ConfiguredEnvironment,
    files: Iterable[Path] = (),
    source: str = "",
    algorithm: str = "",
) -> FileSettings:
    """Read .ini files, each by the rules of its PufferLib release, and choose a trainer.

    Args:
        environment: Environment with its files.
        files: Further files, which win.
        source: TypedOption folder of C sources; may be empty.
        algorithm: TypedOption ``train.algorithm``; may be empty.

    Raises:
        UserError: If a file can't be read, or isn't an .ini file.
    """
    paths = [*environment.files, *files]
    partial = environment.partial_files
    file_releases = {
        path: FileRelease() if path in partial else file_release(path) for path in paths
    }
    sources = (each.source for each in reversed(file_releases.values()) if each.source)
    source = source or environment.source or next(sources, "")
    with report_read_errors(source):
        name = folder_release(source) if source and main_source(source) else ""
    release = RELEASES[name or "4.0"]
    reason = f"--{ALGORITHM}"
    if not algorithm:
        algorithm, reason = _choose_algorithm(file_releases, source, name)
    if algorithm in algorithms():  # otherwise validate() refuses it
        paths[1:1] = shipped_file(facts(algorithm).settings_file)
    settings: list[Setting] = []
    other_trainer: set[str] = set()
    for path in paths:
        of_file = file_releases.get(path) or file_release(path)
        rules = RELEASES[of_file.rules] if of_file.rules else release
        lines = rules.read(path, release.capitals)
        if path in partial:
            lines = [setting for setting in lines if setting.name in PARTIAL_FILE_KEYS[path.name]]
        settings += [s for s in lines if s.name != ALGORITHM or unquoted(s.text) == algorithm]
        if path != paths[0] and not of_file.is_for(algorithm):
            other_trainer |= {setting.origin for setting in lines}
    return FileSettings(algorithm, reason, release, paths, settings, frozenset(other_trainer))


def _choose_algorithm(
    file_releases: dict[Path, FileRelease], source: str, release: str
) -> tuple[str, str]:
    """Return the trainer that files or sources choose, and the reason for messages.

    Args:
        file_releases: Releases of the files, default.ini first.
        source: Folder of the environment's C sources; may be empty.
        release: Release of these sources; may be empty.
    """
    default, *other_files = file_releases.items() or [(Path(), FileRelease())]
    if candidates := [each for each in reversed(other_files) if each[1].algorithm]:
        # min() returns the first of equals, which is the last file.
        path, of_file = min(candidates, key=lambda other: not other[1].sets_algorithm)
        return of_file.algorithm, f"{relative_path(Path(plain_path(path)))} {of_file.reason}"
    if release:
        return trainer_of_release(release), f"{relative_path(Path(source))} is a {release} folder"
    return default[1].algorithm or str(DECLARED[ALGORITHM].default), "the default"
