"""Resolve settings to a checked configuration.

Later settings win. Each value is converted to its key's type and stored in the configuration; then
numbers from files are fitted to each other (``fit.py``), and the configuration is checked
(``validation.py``).
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from puffer_mlx.config.compatibility import (
    ALLOWED_VALUES,
    BOT_EVAL,
    NO_PATH,
    OTHER_LIBRARY_KEYS,
    REMOVED,
    RENAMES,
    UNUSED,
    closest,
)
from puffer_mlx.config.families import AUTO
from puffer_mlx.config.finding import FAMILY, plain_path
from puffer_mlx.config.fit import (
    EVAL_EPISODES,
    fit_buffers,
    fit_evaluations,
    fit_minibatch,
    is_explicit,
)
from puffer_mlx.config.ini_files import relative_path
from puffer_mlx.config.key import ARGUMENT, Setting
from puffer_mlx.config.option_names import every_key, how_to_set, option
from puffer_mlx.config.releases import BOT_SCRIPT
from puffer_mlx.config.scanning import Request, ScannedFiles, scan_files
from puffer_mlx.config.schema import COMMAND_LINE, DECLARED, KEYS, Config
from puffer_mlx.config.trust import code_names
from puffer_mlx.config.validation import MAX_PROBLEMS, raise_problems, validate
from puffer_mlx.config.values import (
    BOOLS,
    parse_argument,
    parse_number,
    parse_parameter,
    read_number,
    read_value,
    unquoted,
    without_comment,
)
from puffer_mlx.config.writing import parameter_text
from puffer_mlx.errors import UserError
from puffer_mlx.system.files import report_read_errors, shipped_folder
from puffer_mlx.system.import_string import record_folder

FindFamily = Callable[[Config], str]


class FamilyReloader(NamedTuple):
    """Function object that loads a configuration again once the environment's family is known.

    A family is a group of Python environments with the same defaults. The object stores the user's
    request.

    Args:
        request: The user's request.
        arguments: Typed settings.
        values: Sections of the first configuration, by name.
        notes: Notes of the first configuration.
    """

    request: Request
    arguments: tuple[Setting, ...]
    values: Mapping[str, Any]
    notes: tuple[str, ...]

    def __call__(self, family: str) -> Config:
        """Return the configuration loaded again, with an environment family's defaults."""
        return resolve(scan_files(self.request, family), self.arguments)

    def changed(self, values: Mapping[str, Any], training: bool) -> "FamilyReloader":
        """Return a copy of this reloader that also applies a program's further settings."""
        further = [setting_of_program(name, value) for name, value in values.items()]
        request = self.request._replace(training=training)
        return self._replace(request=request, arguments=(*self.arguments, *further))


def setting_of_program(name: str, value: Any) -> Setting:
    """Return a `Setting` for a value that a Python program assigned to a key (``section.key``)."""
    section, _, key = name.partition(".")
    return Setting(section, key, parameter_text(value, True), ARGUMENT, value)


def resolve(
    scanned: ScannedFiles, arguments: Sequence[Setting] = (), find_family: FindFamily | None = None
) -> Config:
    """Return the checked configuration that results from .ini files and typed settings.

    Args:
        scanned: Files with their settings.
        arguments: Typed settings, which win.
        find_family: Function that makes the environment to find out its family. It is called if
            the files name no family. None leaves the family open.

    Raises:
        UserError: All problems in one message; or the environment can't be made.
    """
    request = scanned.request
    if find_family and scanned.needs_family:
        config = apply_settings(scanned, arguments).config
        validate(config, training=False)
        scanned = scan_files(request, find_family(config))
    environment = scanned.environment
    config = fit_and_validate(apply_settings(scanned, arguments), request.training)
    config.files = [plain_path(path) for path in scanned.file_settings.files]
    if scanned.shadowed_note:
        config.notes.append(scanned.shadowed_note)
    if not environment.has_family_files and config.python and is_explicit(config, FAMILY):
        config.notes.append(
            f"{FAMILY} {config.base.family} has no effect: {config.files[-1]} sets every key"
        )
    if config.source:
        folder = relative_path(Path(config.source))
        file = relative_path([*environment.files, *request.files][-1])
        config.notes.insert(0, f"{config.env_name}: sources in {folder}, settings in {file}")
    if environment.has_family_files:
        values = {section: replace(getattr(config, section)) for section in KEYS}
        config.family_reloader = FamilyReloader(
            request, tuple(arguments), values, tuple(config.notes)
        )
    return config


def _note_code(
    config: Config, settings: Iterable[Setting], typed: Collection[str], origin: str
) -> None:
    """Record in a configuration the code that only files name, so that it isn't trusted.

    Also record the working directory for relative names of code.

    Args:
        config: Configuration with these settings; is changed.
        settings: All settings; the last one for a key counts.
        typed: Code that the user named.
        origin: Origin of code that no setting names: without env_name, a file's name is its
            environment's.
    """
    last_settings = {setting.name: setting for setting in settings}
    for key, name in code_names(config).items():
        record_folder(name)
        setting = last_settings.get(key)
        if name not in typed and not (setting and setting.typed):
            config.untrusted_code[name] = setting.origin if setting else origin


class AppliedSettings(NamedTuple):
    """A configuration into which all settings were stored, but whose values aren't checked yet.

    Args:
        config: The configuration.
        chosen: The settings that were stored, by name.
        skipped: Settings from the other release's files that the trainer doesn't use, by name.
    """

    config: Config
    chosen: Mapping[str, Setting]
    skipped: Mapping[str, Setting]


def apply_settings(scanned: ScannedFiles, arguments: Sequence[Setting] = ()) -> AppliedSettings:
    """Store all settings in a new configuration. Returns the configuration and the settings.

    The last setting for a key wins.

    Args:
        scanned: Environment with its files' settings.
        arguments: Settings that win over the files'.

    Raises:
        UserError: If keys are unknown or values have a wrong type; one message for all.
    """
    request = scanned.request
    environment = scanned.environment
    file_settings = scanned.file_settings
    config = Config(
        env_name=environment.env_name,
        source=environment.source,
        trainer_reason=file_settings.reason,
    )
    config.factory = request.factory
    config.allow_code = request.allow_code
    config.env = dict(file_settings.release.env)
    config.rate_optimizer = _rate_optimizer(filter(file_settings.applies, file_settings.settings))
    texts = file_settings.release.text_parameters
    problems: list[UserError] = []
    chosen: dict[str, Setting] = {}
    skipped: dict[str, Setting] = {}
    for setting in [*file_settings.settings, *arguments]:
        try:
            plain = _under_our_name(setting)
            (chosen if file_settings.applies(plain) else skipped)[plain.name] = plain
        except UserError as problem:
            problems.append(problem)
    for setting in chosen.values():
        try:
            # A suggestion takes a millisecond, too long for a file full of unknown keys.
            suggest = len(problems) < MAX_PROBLEMS
            _apply_setting(config, setting, texts or config.python, suggest)
        except UserError as problem:
            problems.append(problem)
    raise_problems(problems)
    if config.bot_eval and not (texts or _has_bot(config)):
        config.unused += [f"{BOT_EVAL}.{key}" for key in config.bot_eval]
        config.bot_eval = {}
    if config.python and config.base.family == AUTO:
        config.base.family = environment.family or AUTO
    origin = relative_path(file_settings.files[-1]) if file_settings.files else ""
    _note_code(config, [*file_settings.settings, *arguments], scanned.typed_code, origin)
    return AppliedSettings(config, chosen, skipped)


def fit_and_validate(applied: AppliedSettings, training: bool) -> Config:
    """Fit a configuration's sizes to each other, check every key, and return the configuration.

    Args:
        applied: Configuration, which is changed, and its settings.
        training: False to check only the keys that evaluations need.

    Raises:
        UserError: If values are invalid; one message for all.
    """
    config = applied.config
    _note_skipped(config, applied.skipped.values())
    if is_explicit(config, "vec.num_threads") and not is_explicit(config, "vec.max_threads"):
        # A typed num_threads may exceed a file's max_threads.
        config.vec.max_threads = max(1, config.vec.num_threads)
    fit_buffers(config)
    fit_minibatch(config)
    if not (episodes := applied.chosen.get(EVAL_EPISODES)) or _is_from_defaults(episodes):
        fit_evaluations(config)
    if not training:  # the notes are about sizes that only training uses
        config.notes.clear()
    validate(config, training)
    return config


def _rate_optimizer(settings: Iterable[Setting]) -> str:
    """Return the optimizer for which the configured learning rate was chosen.

    It is set in the same file as the learning rate, or in an earlier one.
    """
    optimizer = rate_optimizer = str(DECLARED["train.optimizer"].default)
    for _, group in groupby(settings, lambda setting: setting.origin.rpartition(":")[0]):
        texts = {setting.name: unquoted(setting.text) for setting in group}
        optimizer = texts.get("train.optimizer", optimizer)
        if "train.learning_rate" in texts:
            rate_optimizer = optimizer
    return rate_optimizer


def _has_bot(config: Config) -> bool:
    """Return True if a C environment comes with a scripted opponent written in Python (bot.py)."""
    folder = config.source or shipped_folder("envs") / config.env_name
    return (Path(folder) / BOT_SCRIPT).is_file()


def _is_from_defaults(setting: Setting) -> bool:
    """Return True if a setting was read from the default.ini that puffer_mlx ships."""
    return setting.origin.rpartition(":")[0] == relative_path(
        shipped_folder("configs") / "default.ini"
    )


def _note_skipped(config: Config, settings: Iterable[Setting]) -> None:
    """Add a note to a configuration for each skipped setting whose value differs from the used one.

    Skipped are settings from files for another PufferLib release.
    """
    for setting in settings:
        value = config.value(setting.name)
        if read_value(setting, DECLARED[setting.name]) != value and not is_explicit(
            config, setting.name
        ):
            config.notes.append(
                f"{setting} ({setting.origin}) is not for {config.train.algorithm}, which has"
                f" {value}; hint: {how_to_set(setting.name)} sets it"
            )


def _under_our_name(setting: Setting) -> Setting:
    """Return another release's setting with our name of the key and the value translated."""
    if (new := RENAMES.get(setting.name)) is None:
        return setting
    renamed = setting._replace(section=new.section, key=new.key)
    if not new.off:
        return renamed
    if (word := without_comment(setting.text).lower()) not in BOOLS:
        raise UserError(f"{setting} is neither true nor false ({setting.origin})", "true or false")
    on = new.typed_on if setting.typed and new.typed_on else new.on
    return renamed._replace(text=on if BOOLS[word] else new.off)


def _apply_setting(config: Config, setting: Setting, texts: bool, suggest: bool) -> None:
    """Store one setting in a configuration.

    Args:
        config: Configuration; is changed.
        setting: The setting.
        texts: True if the environment accepts other parameters than numbers.
        suggest: True if the error for an unknown key names the most similar key.

    Raises:
        UserError: If the key is unknown, or its value is invalid.
    """
    section, key, text, origin, _ = setting
    name = setting.name
    if setting.typed:
        config.origins[name] = origin
    if declared := DECLARED.get(name):
        value = read_value(setting, declared)
        setattr(getattr(config, section), key, value)
        if value != declared.default:
            config.origins[name] = origin
    elif name == "env.source":
        beside = Path() if setting.typed else Path(origin.rpartition(":")[0]).parent
        with report_read_errors(text):
            config.source = str((beside / unquoted(text)).resolve())
            Path(config.source).is_dir()  # fails if the folder isn't readable
    elif section == "env":
        _apply_parameter(config, setting, texts)
    elif section == "sweep" or section.startswith("sweep."):
        numeric = section != "sweep" and key in ("min", "max", "mean", "scale")
        if numeric and text not in ("auto", "time"):
            read_number(setting, 0.5)
        config.sweep.setdefault(section, {})[key] = text
        config.origins[name] = origin
        if setting.typed and name not in ("sweep.metric", "sweep.goal"):
            config.unused.append(f"{name} (this is not a sweep)")
    elif section == BOT_EVAL and not config.python and (texts or parse_number(text) is not None):
        config.bot_eval[key] = parse_parameter(text)
    elif section == BOT_EVAL:
        config.unused.append(name)
    elif name in REMOVED:
        if origin == COMMAND_LINE:
            raise UserError(f"{option(section, key)} was removed", REMOVED[name])
    elif name in UNUSED:
        if name in ALLOWED_VALUES and ALLOWED_VALUES[name] not in (
            unquoted(text),
            parse_number(text),
        ):
            legal = f"{ALLOWED_VALUES[name]}" if ALLOWED_VALUES[name] != NO_PATH else "leave it out"
            raise UserError(f"{setting} is not supported: {UNUSED[name]} ({origin})", legal)
        config.unused.append(name)
    elif name != "base.env_name":
        similar = closest(name, [*DECLARED, *RENAMES]) if suggest else ""
        hint = f"did you mean {similar}?" if similar else every_key()
        hint = f"use {OTHER_LIBRARY_KEYS[key]}" if key in OTHER_LIBRARY_KEYS else hint
        raise UserError(f"unknown key {setting} ({origin})", hint)


def _apply_parameter(config: Config, setting: Setting, texts: bool) -> None:
    """Store a parameter of the environment ([env]) in a configuration.

    Args:
        config: Configuration; is changed.
        setting: The parameter.
        texts: True if the environment accepts other parameters than numbers.

    Raises:
        UserError: If a C environment doesn't accept the value.
    """
    key, text, origin = setting.key, setting.text, setting.origin
    if config.python and setting.value is not ...:
        config.env[key] = setting.value
    elif config.python:
        config.env[key] = parse_argument(text, setting.typed)
        if not setting.typed and parse_argument(text, True) != config.env[key]:
            note = f"{setting} is a text ({origin}); for a Python value write {key} := {text}"
            config.notes.append(note)
    elif texts:
        config.env[key] = parse_parameter(text)
        if text.startswith("= ") and config.env[key] == text:
            message = f"{setting.name} is {text[2:]}, but C environments take numbers and texts"
            raise UserError(f"{message} ({origin})", "write a list of numbers as a text: '1, 2'")
    elif parse_number(text) is None and not setting.typed:
        config.unused.append(f"{setting.name} ({text!r} is not a number)")  # upstream skips it, too
    else:
        config.env[key] = float(read_number(setting, 1.0))


def needs_family(config: Config) -> bool:
    """Return True if only the environment's spaces can tell its family, which sets its defaults."""
    return config.python and config.base.family == AUTO and config.family_reloader is not None


def take_family(config: Config, family: str) -> None:
    """Set a configuration's keys to an environment family's defaults; typed settings still win.

    Args:
        config: Configuration; is changed, except for keys that a program has set meanwhile.
        family: Name of the family.

    Raises:
        UserError: If options contradict the family's settings.
    """
    if config.family_reloader is None:  # not read from files
        return
    original = config.family_reloader
    reloaded = original(family)
    for section, keys in KEYS.items():
        now, new = getattr(config, section), getattr(reloaded, section)
        was = original.values[section]
        changed = {key: getattr(new, key) for key in keys if getattr(now, key) == getattr(was, key)}
        setattr(config, section, replace(now, **changed))  # copies of config keep the old one
    still_valid = [note for note in config.notes if note in reloaded.notes]
    new_notes = [note for note in reloaded.notes if note not in original.notes]
    config.notes = list(dict.fromkeys([*still_valid, *new_notes]))
    config.unused = list(dict.fromkeys([*config.unused, *reloaded.unused]))
    config.origins, config.files = reloaded.origins, reloaded.files
    config.trainer_reason, config.rate_optimizer = reloaded.trainer_reason, reloaded.rate_optimizer
