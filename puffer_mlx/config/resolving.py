"""Resolve settings to a checked configuration.

Later settings win. Each is placed as its key's type; then numbers of files are fitted to one
another (``fit.py``), and the configuration is checked (``validation.py``).
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from puffer_mlx.config.compatibility import (
    BOT_EVAL,
    ELSEWHERE,
    NOTHING,
    ONLY,
    REMOVED,
    RENAMES,
    UNUSED,
    closest,
)
from puffer_mlx.config.dialects import SCRIPT
from puffer_mlx.config.families import AUTO
from puffer_mlx.config.finding import FAMILY, plain_path
from puffer_mlx.config.fit import EVAL_EPISODES, fit_buffers, fit_evaluations, fit_minibatch, typed
from puffer_mlx.config.ini_files import relative_path
from puffer_mlx.config.key import ARGUMENT, Setting
from puffer_mlx.config.option_names import every_key, how_to_set, option
from puffer_mlx.config.scanning import Request, Scanned, scan
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
from puffer_mlx.system.import_string import note_folder

FindFamily = Callable[[Config], str]


class Again(NamedTuple):
    """A request that is resolved again when the environment's family is known.

    Args:
        request: the request.
        arguments: typed settings.
        values: sections of the first configuration, by name.
        notes: notes of the first configuration.
    """

    request: Request
    arguments: tuple[Setting, ...]
    values: Mapping[str, Any]
    notes: tuple[str, ...]

    def __call__(self, family: str) -> Config:
        """Return the configuration with a family's settings."""
        return resolve(scan(self.request, family), self.arguments)

    def changed(self, values: Mapping[str, Any], training: bool) -> "Again":
        """Return the request with further values of a program, by ``section.key``."""
        further = [setting_of_program(name, value) for name, value in values.items()]
        request = self.request._replace(training=training)
        return self._replace(request=request, arguments=(*self.arguments, *further))


def setting_of_program(name: str, value: Any) -> Setting:
    """Return a program's value as a setting."""
    section, _, key = name.partition(".")
    return Setting(section, key, parameter_text(value, True), ARGUMENT, value)


def resolve(
    scanned: Scanned, arguments: Sequence[Setting] = (), find_family: FindFamily | None = None
) -> Config:
    """Return the checked configuration that files and typed settings describe.

    Args:
        scanned: the files.
        arguments: typed settings, which win.
        find_family: makes the environment to look up its family, if its files don't name one;
            None leaves the family open.

    Raises:
        UserError: anything wrong, all of it in one message; or the environment can't be made.
    """
    request = scanned.request
    if find_family and scanned.undecided:
        config = placed(scanned, arguments).config
        validate(config, training=False)
        scanned = scan(request, find_family(config))
    named, read = scanned.named, scanned.read
    config = fitted(placed(scanned, arguments), request.training)
    config.files = [plain_path(path) for path in read.files]
    config.notes += [scanned.shadowed] * bool(scanned.shadowed)
    if not named.layered and config.python and typed(config, FAMILY):
        config.notes.append(
            f"{FAMILY} {config.base.family} changes nothing: {config.files[-1]} says every key"
        )
    if config.source:
        settings = relative_path([*named.files, *request.files][-1])
        where = f"{relative_path(Path(config.source))}, settings in {settings}"
        config.notes.insert(0, f"{config.env_name}: sources in {where}")
    if named.layered:
        values = {section: replace(getattr(config, section)) for section in KEYS}
        config.again = Again(request, tuple(arguments), values, tuple(config.notes))
    return config


def _note_code(
    config: Config, settings: Iterable[Setting], typed: Collection[str], origin: str
) -> None:
    """Note which code only a file names, and the working directory for relative names of code.

    Args:
        config: the configuration of these settings; is changed.
        settings: all settings; the last one for a key counts.
        typed: code that the person named.
        origin: where code is named that no setting names: a file's own name is its environment's.
    """
    given = {setting.name: setting for setting in settings}
    for key, name in code_names(config).items():
        note_folder(name)
        setting = given.get(key)
        if name not in typed and not (setting and setting.typed):
            config.named_by[name] = setting.origin if setting else origin


class Placed(NamedTuple):
    """A configuration with all settings in place, before its numbers are fitted and checked.

    Args:
        config: the configuration.
        chosen: the settings that count, by name.
        skipped: settings of the other release's files that the trainer doesn't take.
    """

    config: Config
    chosen: Mapping[str, Setting]
    skipped: Mapping[str, Setting]


def placed(scanned: Scanned, arguments: Sequence[Setting] = ()) -> Placed:
    """Put settings into a configuration, the last one for a key.

    Args:
        scanned: the environment and the settings of its files.
        arguments: settings that win over these.

    Raises:
        UserError: unknown keys and values of a wrong type, all in one message.
    """
    request, named, read = scanned.request, scanned.named, scanned.read
    config = Config(env_name=named.env_name, source=named.source, chosen_by=read.why)
    config.factory = request.factory
    config.allow_code = request.allow_code
    config.env = dict(read.dialect.env)
    config.rate_for = _rate_for(filter(read.takes, read.settings))
    texts = read.dialect.texts
    problems: list[UserError] = []
    chosen: dict[str, Setting] = {}
    skipped: dict[str, Setting] = {}
    for setting in [*read.settings, *arguments]:
        try:
            plain = _under_our_name(setting)
            (chosen if read.takes(plain) else skipped)[plain.name] = plain
        except UserError as problem:
            problems.append(problem)
    for setting in chosen.values():
        try:
            # A suggestion takes a millisecond, too long for a file full of unknown keys.
            suggest = len(problems) < MAX_PROBLEMS
            _place(config, setting, texts or config.python, suggest)
        except UserError as problem:
            problems.append(problem)
    raise_problems(problems)
    if config.bot_eval and not (texts or _scripted(config)):
        config.unused += [f"{BOT_EVAL}.{key}" for key in config.bot_eval]
        config.bot_eval = {}
    if config.python and config.base.family == AUTO:
        config.base.family = named.family or AUTO
    origin = relative_path(read.files[-1]) if read.files else ""
    _note_code(config, [*read.settings, *arguments], scanned.typed_names, origin)
    return Placed(config, chosen, skipped)


def fitted(placed: Placed, training: bool) -> Config:
    """Fit the numbers of a configuration to one another and check them. Returns the configuration.

    Args:
        placed: Configuration, which is changed, and its settings.
        training: False to check only what evaluations need.

    Raises:
        UserError: Numbers don't fit; one message for all.
    """
    config = placed.config
    _note_skipped(config, placed.skipped.values())
    if typed(config, "vec.num_threads") and not typed(config, "vec.max_threads"):
        # A typed num_threads may exceed a file's max_threads.
        config.vec.max_threads = max(1, config.vec.num_threads)
    fit_buffers(config)
    fit_minibatch(config)
    if not (episodes := placed.chosen.get(EVAL_EPISODES)) or _of_defaults(episodes):
        fit_evaluations(config)
    if not training:  # only training depends on these numbers
        config.notes.clear()
    validate(config, training)
    return config


def _rate_for(settings: Iterable[Setting]) -> str:
    """Return the optimizer that the learning rate was chosen for: of its file or an earlier one."""
    found = now = str(DECLARED["train.optimizer"].default)
    for _, group in groupby(settings, lambda setting: setting.origin.rpartition(":")[0]):
        said = {setting.name: unquoted(setting.text) for setting in group}
        now = said.get("train.optimizer", now)
        found = now if "train.learning_rate" in said else found
    return found


def _scripted(config: Config) -> bool:
    """Return True if an environment in C has a scripted player in Python."""
    folder = config.source or shipped_folder("envs") / config.env_name
    return (Path(folder) / SCRIPT).is_file()


def _of_defaults(setting: Setting) -> bool:
    """Return True for a setting of our default.ini."""
    return setting.origin.rpartition(":")[0] == relative_path(
        shipped_folder("configs") / "default.ini"
    )


def _note_skipped(config: Config, settings: Iterable[Setting]) -> None:
    """Note settings of the other release's trainer that differ from this trainer's."""
    for setting in settings:
        value = config.value(setting.name)
        if read_value(setting, DECLARED[setting.name]) != value and not typed(config, setting.name):
            config.notes.append(
                f"{setting} ({setting.origin}) is not for {config.train.algorithm}, which has"
                f" {value}; hint: {how_to_set(setting.name)} sets it"
            )


def _under_our_name(setting: Setting) -> Setting:
    """Return a setting under our name for its key."""
    if (new := RENAMES.get(setting.name)) is None:
        return setting
    plain = setting._replace(section=new.section, key=new.key)
    if not new.off:
        return plain
    if (word := without_comment(setting.text).lower()) not in BOOLS:
        raise UserError(f"{setting} is neither true nor false ({setting.origin})", "true or false")
    on = new.typed_on if setting.typed and new.typed_on else new.on
    return plain._replace(text=on if BOOLS[word] else new.off)


def _place(config: Config, setting: Setting, texts: bool, suggest: bool) -> None:
    """Put one setting into a configuration.

    Args:
        config: the configuration; is changed.
        setting: the setting.
        texts: True if the environment takes more than numbers.
        suggest: True if the error for an unknown key names the most similar key.

    Raises:
        UserError: the key is unknown, or its value is wrong.
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
        _place_parameter(config, setting, texts)
    elif section == "sweep" or section.startswith("sweep."):
        numeric = section != "sweep" and key in ("min", "max", "mean", "scale")
        if numeric and text not in ("auto", "time"):
            read_number(setting, 0.5)
        config.sweep.setdefault(section, {})[key] = text
        config.origins[name] = origin
        if setting.typed and name not in ("sweep.metric", "sweep.goal"):
            config.unused.append(f"{name} (nothing is swept)")
    elif section == BOT_EVAL and not config.python and (texts or parse_number(text) is not None):
        config.bot_eval[key] = parse_parameter(text)
    elif section == BOT_EVAL:
        config.unused.append(name)
    elif name in REMOVED:
        if origin == COMMAND_LINE:
            raise UserError(f"{option(section, key)} was removed", REMOVED[name])
    elif name in UNUSED:
        if name in ONLY and ONLY[name] not in (unquoted(text), parse_number(text)):
            legal = f"{ONLY[name]}" if ONLY[name] != NOTHING else "leave it out"
            raise UserError(f"{setting} is not supported: {UNUSED[name]} ({origin})", legal)
        config.unused.append(name)
    elif name != "base.env_name":
        near = closest(name, [*DECLARED, *RENAMES]) if suggest else ""
        hint = f"did you mean {near}?" if near else every_key()
        hint = f"here it is {ELSEWHERE[key]}" if key in ELSEWHERE else hint
        raise UserError(f"unknown key {setting} ({origin})", hint)


def _place_parameter(config: Config, setting: Setting, texts: bool) -> None:
    """Put a parameter of the environment into a configuration.

    Args:
        config: the configuration; is changed.
        setting: the parameter.
        texts: True if the environment takes more than numbers.

    Raises:
        UserError: an environment in C doesn't take the value.
    """
    key, text, origin = setting.key, setting.text, setting.origin
    if config.python and setting.value is not ...:
        config.env[key] = setting.value
    elif config.python:
        config.env[key] = parse_argument(text, setting.typed)
        if not setting.typed and parse_argument(text, True) != config.env[key]:
            note = f"{setting} is a text ({origin}); Python's own is {key} := {text}"
            config.notes.append(note)
    elif texts:
        config.env[key] = parse_parameter(text)
        if text.startswith("= ") and config.env[key] == text:
            message = f"{setting.name} is {text[2:]}, and environments in C take numbers and texts"
            raise UserError(f"{message} ({origin})", "a list of numbers as a text: '1, 2'")
    elif parse_number(text) is None and not setting.typed:
        config.unused.append(f"{setting.name} ({text!r} is not a number)")  # upstream skips it, too
    else:
        config.env[key] = float(read_number(setting, 1.0))


def undecided(config: Config) -> bool:
    """Return True if the environment's spaces decide which family's settings count."""
    return config.python and config.base.family == AUTO and config.again is not None


def take_family(config: Config, family: str) -> None:
    """Give a configuration the settings of a family; typed settings still win.

    Args:
        config: the configuration; is changed, except for keys that a program has set since.
        family: the name of a family.

    Raises:
        UserError: options don't go with the family's settings.
    """
    if config.again is None:  # not read from files
        return
    before, after = config.again, config.again(family)
    for section, keys in KEYS.items():
        now, new = getattr(config, section), getattr(after, section)
        was = before.values[section]
        changed = {key: getattr(new, key) for key in keys if getattr(now, key) == getattr(was, key)}
        setattr(config, section, replace(now, **changed))  # copies of config keep the old one
    still = [note for note in config.notes if note in after.notes]
    new = [note for note in after.notes if note not in before.notes]
    config.notes = list(dict.fromkeys([*still, *new]))
    config.unused = list(dict.fromkeys([*config.unused, *after.unused]))
    config.origins, config.files = after.origins, after.files
    config.chosen_by, config.rate_for = after.chosen_by, after.rate_for
