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
    find_configured_environment,
    is_complete,
    last_value,
    plain_path,
    refuse_missing_version,
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
    """The settings read from an environment's .ini files, and the trainer chosen for them.

    Args:
        algorithm: Trainer.
        reason: Reason for this trainer, for messages.
        release: Release of the environment's sources; 4.0 without sources.
        files: All files that were read; later ones win.
        settings: Settings in the order of the files.
        other_trainer_origins: Origins (file and line) of the settings in files for another trainer.
    """

    algorithm: str
    reason: str
    release: Release
    files: list[Path]
    settings: list[Setting]
    other_trainer_origins: frozenset[str]

    def applies(self, setting: Setting) -> bool:
        """Return True if the chosen trainer uses a setting from a file."""
        return (
            setting.name not in TRAINER_DEFINING_KEYS
            or setting.origin not in self.other_trainer_origins
        )


class Request(NamedTuple):
    """A user's request for a configuration: an environment, further files, and typed values.

    Args:
        name: Environment, or path of an .ini file; may be empty for ``--help``.
        typed_texts: Typed values by ``section.key``, not parsed yet: some of them choose files.
        files: Further .ini files.
        run: A saved run's configuration file, used instead of the environment's files.
        training: False to check only the keys that evaluations need.
        allow_code: True to allow all code that files name.
        factory: Constructor of a Python environment; None to import it by its name.
    """

    name: str
    typed_texts: Mapping[str, str | None]
    files: tuple[Path, ...] = ()
    run: Path | None = None
    training: bool = True
    allow_code: bool = False
    factory: Callable[..., Any] | None = None


class ScannedFiles(NamedTuple):
    """The .ini files needed for a requested configuration, and the settings read from them.

    Args:
        request: The user's request.
        environment: The environment and its files.
        file_settings: Settings of these files, and the trainer.
        typed_code: Names of code that the user typed: the environment, or a folder of sources.
        shadowed_note: Note about an environment in the working directory that isn't used because
            a shipped one has its name; may be empty.
    """

    request: Request
    environment: ConfiguredEnvironment
    file_settings: FileSettings
    typed_code: Collection[str]
    shadowed_note: str = ""

    @property
    def needs_family(self) -> bool:
        """True if the environment must be made to find out its family of default settings."""
        return self.environment.has_family_files and not self.environment.family


def scan_files(request: Request, family: str = "") -> ScannedFiles:
    """Find and read the .ini files for a requested configuration. Returns files and settings.

    Args:
        request: The user's request.
        family: Family of a Python environment; empty if unknown.

    Raises:
        UserError: If the environment doesn't exist, or a file can't be read.
    """
    name = request.name
    typed_texts = request.typed_texts
    choice = FamilyChoice(
        family,
        typed_family=typed_texts.get(FAMILY) or last_value(FAMILY, request.files),
        typed_network=typed_texts.get(NETWORK) or last_value(NETWORK, request.files),
        has_complete_file=any(map(is_complete, request.files)),
    )
    if request.training and request.run is None and request.factory is None:
        refuse_missing_version(name)
    with report_read_errors(
        name, "name an environment, a folder or an .ini file that you may read"
    ):
        environment = (
            find_configured_environment(name, choice) if name else ConfiguredEnvironment("", "", [])
        )
    shadowed_note = shadow_note(name, environment)
    source = environment.source
    typed_code = {source, str(Path(source).resolve())} if source else {""}
    if not name.endswith(".ini"):
        typed_code.add(environment.env_name)
    if request.run is not None:
        environment = resolve_file(request.run, choice)
    files = request.files if name else ()
    typed_source = typed_texts.get("env.source") or ""
    typed_algorithm = typed_texts.get(ALGORITHM) or ""
    file_settings = read_files(environment, files, typed_source, typed_algorithm)
    return ScannedFiles(request, environment, file_settings, typed_code, shadowed_note)


def read_files(
    environment: ConfiguredEnvironment,
    files: Iterable[Path] = (),
    source: str = "",
    algorithm: str = "",
) -> FileSettings:
    """Read .ini files by the rules of the right PufferLib release. Returns settings and trainer.

    Args:
        environment: Environment with its files.
        files: Further files, which win.
        source: Typed folder of C sources; may be empty.
        algorithm: Typed ``train.algorithm``; may be empty.

    Raises:
        UserError: If a file can't be read, or isn't an .ini file.
    """
    paths = [*environment.files, *files]
    partial = environment.partial_files
    file_releases = {path: file_release(path) for path in paths}
    for path in partial:  # the few keys that are read from such a file choose no trainer
        file_releases[path] = FileRelease()
    sources = (each.source for each in reversed(file_releases.values()) if each.source)
    source = source or environment.source or next(sources, "")
    with report_read_errors(source):
        source_release = folder_release(source) if source and main_source(source) else ""
    release = RELEASES[source_release or "4.0"]
    reason = f"--{ALGORITHM}"
    if not algorithm:
        algorithm, reason = _choose_algorithm(file_releases, source, source_release)
    if algorithm in algorithms():  # otherwise validate() refuses it
        # after default.ini
        paths = [*paths[:1], *shipped_file(facts(algorithm).settings_file), *paths[1:]]
    settings: list[Setting] = []
    other_trainer_origins: set[str] = set()
    for path in paths:
        shown_release = file_releases.get(path) or file_release(path)
        rules = RELEASES[shown_release.rules] if shown_release.rules else release
        lines = rules.read(path, release.keep_capitals)
        if path in partial:
            lines = [setting for setting in lines if setting.name in PARTIAL_FILE_KEYS[path.name]]
        # A file's other trainer isn't a setting: the origin of train.algorithm is what chose it.
        settings += [s for s in lines if s.name != ALGORITHM or unquoted(s.text) == algorithm]
        is_default_ini = path == paths[0]
        if not is_default_ini and not shown_release.is_for(algorithm):
            other_trainer_origins |= {setting.origin for setting in lines}
    return FileSettings(
        algorithm, reason, release, paths, settings, frozenset(other_trainer_origins)
    )


def _choose_algorithm(
    file_releases: dict[Path, FileRelease], source: str, release: str
) -> tuple[str, str]:
    """Return the trainer that .ini files or C sources select, and the reason as text for messages.

    Args:
        file_releases: Releases of the files, default.ini first.
        source: Folder of the environment's C sources; may be empty.
        release: Release of these sources; may be empty.
    """
    default_release, *_ = file_releases.values() or [FileRelease()]
    candidates = [path for path in list(file_releases)[1:] if file_releases[path].algorithm]
    explicit = [path for path in candidates if file_releases[path].sets_algorithm]
    if candidates:
        path = (explicit or candidates)[-1]
        chosen = file_releases[path]
        return chosen.algorithm, f"{relative_path(Path(plain_path(path)))} {chosen.reason}"
    if release:
        return trainer_of_release(release), f"{relative_path(Path(source))} is a {release} folder"
    return default_release.algorithm or str(DECLARED[ALGORITHM].default), "the default"
