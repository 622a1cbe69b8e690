"""Configurations out of files and a command line, checked.

Later sources win: the declared defaults, `configs/default.ini`, the environment's file, further
files, the command line. Files are PufferLib's `.ini` files, unchanged: those of 4.0 and of 5.0,
each read by its own rules. `configs/default.ini` is written from the declarations:
`python -m puffer_mlx.config > configs/default.ini`.
"""

import argparse
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from puffer_mlx.config.command_line import (
    Extra,
    Typed,
    build_parser,
    key_options,
    obeys,
    option,
    own_parser,
    parse_options,
    typed_options,
    typed_texts,
)
from puffer_mlx.config.compatibility import (
    BOT_EVAL,
    ELSEWHERE,
    NOTHING,
    ONLY,
    RENAMES,
    UNUSED,
    closest,
)
from puffer_mlx.config.dialects import ALGORITHM, SCRIPT
from puffer_mlx.config.families import AUTO
from puffer_mlx.config.fit import EVAL_EPISODES, fit_buffers, fit_evaluations, fit_minibatch, typed
from puffer_mlx.config.ini_files import relative_path
from puffer_mlx.config.key import ARGUMENT, EVERY_KEY, Setting
from puffer_mlx.config.resolve import (
    FAMILY,
    NETWORK,
    FamilyChoice,
    FileSettings,
    NamedEnvironment,
    find,
    is_complete,
    last_text,
    plain_path,
    read_files,
    resolve_file,
    shadow_note,
    words_hint,
)
from puffer_mlx.config.schema import COMMAND_LINE, DECLARED, KEYS, Config
from puffer_mlx.config.trust import Allowed, code_names
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
from puffer_mlx.system.files import reading, shipped
from puffer_mlx.system.import_string import note_folder

FindFamily = Callable[[Config], str]


def load(
    name: str,
    argv: Sequence[str] = (),
    files: Sequence[str | Path] = (),
    family: str = "",
    allow_code: bool = False,
    training: bool = True,
    keywords: Mapping[str, Any] | None = None,
    factory: Callable[..., Any] | None = None,
    find_family: FindFamily | None = None,
) -> Config:
    """Return the checked configuration of an environment.

    Args:
        name: an environment, or the path of an .ini file.
        argv: options, as on the command line.
        files: further .ini files; they win over the environment's, options win over them.
        family: the family of an environment in Python (`families.py`). Empty: the one that its
            files name, else `vec.make` finds it out and adapts the configuration.
        allow_code: allow all code that files name. Code that ``name``, ``argv`` and ``keywords``
            name is always allowed: see ``puffer_mlx.config.trust``.
        training: False if the configuration won't be trained with: what only training needs isn't
            checked.
        keywords: a program's values by ``section.key``; they win over everything. None: no program
            calls, and messages are for a command line.
        factory: makes the environment in Python that ``name`` names; None: the name says where it
            is found.
        find_family: returns the family of a configuration's environment, by making it. It is called
            if no file names the family. None: `vec.make` finds it out, as above.

    Raises:
        UserError: anything wrong, all of it in one message.
    """
    if not name or name.startswith("-"):
        raise UserError(f"the first word must be an environment ({COMMAND_LINE})", words_hint())
    typed = typed_options(argv)
    settings = [_from_program(key, value) for key, value in (keywords or {}).items()]
    early = typed_texts(typed) | {setting.name: unquoted(setting.text) for setting in settings}
    request = Request(
        name,
        early,
        tuple(map(Path, files)),
        training=training,
        program=keywords is not None,
        allow_code=allow_code or "--allow-code" in early,
        factory=factory,
    )
    scanned = scan(request, family)
    keys = _key_options(scanned, typed)
    arguments, _ = parse_options(own_parser(), typed, keys)
    if not scanned.named.python:
        _refuse_unknown(settings, keys.values())
    arguments = [*arguments, *settings]
    return resolve(with_family(scanned, arguments, find_family), arguments)


def _from_program(name: str, value: Any) -> Setting:
    """Return a program's value as a setting."""
    section, _, key = name.partition(".")
    return Setting(section, key, parameter_text(value, True), ARGUMENT, value)


def _refuse_unknown(settings: Iterable[Setting], names: Collection[str]) -> None:
    """Refuse a program's keys that don't exist.

    Raises:
        UserError: with the closest one.
    """
    for setting in settings:
        if setting.name not in names:
            near = closest(setting.name, [*names])
            hint = f"did you mean {near}?" if near else EVERY_KEY
            raise UserError(f"there is no setting {setting} ({ARGUMENT})", hint)


def load_saved(path: Path, allow_code: Allowed = False) -> Config:
    """Return a saved run's configuration, which may be a stranger's; not for training.

    Args:
        path: the file.
        allow_code: compile and import what it names, or what of it is named here.

    Raises:
        UserError: anything wrong, all of it in one message.
    """
    named = resolve_file(path)
    read = read_files(named)
    config = _fitted(_placed(named, read), training=False)
    _note_code(config, read.settings, frozenset() if isinstance(allow_code, bool) else allow_code)
    config.allow_code = allow_code is True
    return config


def parse_command_line(
    argv: Sequence[str],
    extra: Extra | None = None,
    files: Sequence[str | Path] = (),
    family: str = "",
    run: Path | None = None,
    obeyed: Sequence[str] | None = None,
    training: bool = True,
) -> tuple[Config, argparse.Namespace]:
    """Read a script's command line, `ENV [options]`; `--help` prints and exits.

    Args:
        argv: the words after the script's name.
        extra: called with the parser to add the script's own options.
        files: as in `load`.
        family: as in `load`.
        run: a run's own configuration, which takes the place of ENV's.
        obeyed: sections and keys that have an effect in the script, besides [env]; None for all. A
            note names others that are typed.
        training: as in `load`.

    Returns:
        The checked configuration, and the values of the script's own options.

    Raises:
        UserError: anything wrong, all of it in one message.
    """
    name, words = (argv[0], argv[1:]) if argv and not argv[0].startswith("-") else ("", argv)
    typed = typed_options(words)
    early = typed_texts(typed)
    help_asked = not early.keys().isdisjoint(("-h", "--help"))
    if not name and not help_asked:
        message = f"the first word must be an environment ({COMMAND_LINE})"
        raise UserError(message, words_hint())
    allow_code = "--allow-code" in early
    request = Request(name, early, tuple(map(Path, files)), run, training, allow_code=allow_code)
    scanned = scan(request, family)
    settings = scanned.read.settings
    parser = build_parser(settings, extra, obeyed) if help_asked else own_parser(extra)
    arguments, options = parse_options(
        parser, typed, _key_options(scanned, typed, parser.keys), obeyed
    )
    config = resolve(scanned, arguments)
    vars(options).pop("allow_code")  # the configuration has it
    idle = [setting.name for setting in arguments if not obeys(obeyed, setting.name)]
    if idle and obeyed is not None:
        config.notes.append(f"unused here: {', '.join(idle)} (--help all shows what is used)")
    return config, options


def _key_options(
    scanned: "Scanned", typed: Iterable[Typed], further: Iterable[str] = ()
) -> dict[str, str]:
    """Return the options that set keys of an environment, and the names of these keys.

    Args:
        scanned: what its files say.
        typed: a command line. Environments in Python take any key of [env].
        further: names of keys that a script adds.
    """
    others = [f"env.{key}" for key in scanned.read.dialect.env]
    if scanned.named.python:
        words = (each.option.removeprefix("--env.") for each in typed)
        others += (f"env.{key.replace('-', '_')}" for key in words if not key.startswith("-"))
    return key_options(scanned.read.settings, [*others, *further])


# ---- from names to settings, from settings to a configuration ------------------------------------


class Request(NamedTuple):
    """What a person or a program asks for.

    Args:
        name: the environment, or the path of an .ini file; empty for none.
        early: texts of what was typed, by ``section.key``: some choose files.
        files: further .ini files.
        run: a run's own configuration, which takes the place of the environment's.
        training: as in `load`.
        program: whether a program asks: messages name no options then.
        allow_code: as in `load`.
        factory: as in `load`.
    """

    name: str
    early: Mapping[str, str | None]
    files: tuple[Path, ...] = ()
    run: Path | None = None
    training: bool = True
    program: bool = False
    allow_code: bool = False
    factory: Callable[..., Any] | None = None


class Scanned(NamedTuple):
    """What the files of a request say.

    Args:
        request: the request.
        named: its environment and files.
        read: their settings.
        typed_names: code that the person named: the environment, or a folder of sources.
        shadowed: a note about files of the working directory that aren't used; may be empty.
    """

    request: Request
    named: NamedEnvironment
    read: FileSettings
    typed_names: Collection[str]
    shadowed: str = ""

    @property
    def undecided(self) -> bool:
        """Whether the environment's spaces decide which family's settings count."""
        return self.named.layered and not self.named.family


class Again(NamedTuple):
    """A request that is resolved again when the environment's family is known.

    Args:
        request: the request.
        arguments: settings that were typed.
        values: those of the configuration before, by section.
        notes: those of the configuration before.
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
        further = [_from_program(name, value) for name, value in values.items()]
        request = self.request._replace(training=training)
        return self._replace(request=request, arguments=(*self.arguments, *further))


def scan(request: Request, family: str = "") -> Scanned:
    """Find the files of a request and read them.

    Args:
        request: the request.
        family: as in `load`.

    Raises:
        UserError: there is no such environment, or a file can't be read.
    """
    name, early = request.name, request.early
    choice = FamilyChoice(
        family,
        typed=early.get(FAMILY) or last_text(FAMILY, request.files),
        network=early.get(NETWORK) or last_text(NETWORK, request.files),
        complete=any(map(is_complete, request.files)),
    )
    with reading(name, "name an environment, a folder or an .ini file that you may read"):
        named = find(name, choice) if name else NamedEnvironment("", "", [])
    shadowed = shadow_note(name, named)
    typed_names = {named.source} if name.endswith(".ini") else {named.env_name, named.source}
    named = named if request.run is None else resolve_file(request.run, choice)
    files = request.files if name else ()
    read = read_files(named, files, early.get("env.source") or "", early.get(ALGORITHM) or "")
    return Scanned(request, named, read, typed_names, shadowed)


def with_family(
    scanned: Scanned, arguments: Sequence[Setting], find_family: FindFamily | None
) -> Scanned:
    """Return what files say with the settings of the family that the environment's spaces decide.

    Args:
        scanned: what they say without knowing the family.
        arguments: settings that were typed.
        find_family: makes the environment to see its spaces; None leaves the family open.

    Raises:
        UserError: a setting is wrong, or the environment can't be made, or isn't trusted.
    """
    if find_family is None or not scanned.undecided:
        return scanned
    request = scanned.request
    config = _placed(scanned.named, scanned.read, arguments, request.program).config
    validate(config, training=False)
    _note_code(config, [*scanned.read.settings, *arguments], scanned.typed_names)
    config.allow_code = request.allow_code
    config.factory = request.factory
    return scan(request, find_family(config))


def resolve(scanned: Scanned, arguments: Sequence[Setting] = ()) -> Config:
    """Return the checked configuration that files and typed settings describe.

    Args:
        scanned: what the files say.
        arguments: settings that were typed; they win.

    Raises:
        UserError: anything wrong, all of it in one message.
    """
    request, named, read = scanned.request, scanned.named, scanned.read
    config = _fitted(_placed(named, read, arguments, request.program), request.training)
    config.factory = request.factory
    config.allow_code = request.allow_code
    config.files = [plain_path(path) for path in read.files]
    config.notes += [scanned.shadowed] * bool(scanned.shadowed)
    _note_code(config, [*read.settings, *arguments], scanned.typed_names)
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


def _note_code(config: Config, settings: Iterable[Setting], typed: Collection[str]) -> None:
    """Note which code only a file names, and the working directory for relative names of code.

    Args:
        config: made of the settings.
        settings: in the order in which they win.
        typed: code that the person named, as the configuration names it.
    """
    given = {setting.name: setting for setting in settings}
    for key, name in code_names(config).items():
        note_folder(name)
        if key in given and not given[key].typed and name not in typed:
            config.named_by[name] = given[key].origin


class Placed(NamedTuple):
    """A configuration with all settings in place, before its numbers are fitted and checked.

    Args:
        config: the configuration.
        chosen: the settings that count, by name.
        passed: settings of the other release's files that the trainer doesn't take.
    """

    config: Config
    chosen: Mapping[str, Setting]
    passed: Mapping[str, Setting]


def _placed(
    named: NamedEnvironment,
    read: FileSettings,
    arguments: Sequence[Setting] = (),
    program: bool = False,
) -> Placed:
    """Put settings into a configuration, the last one for a key.

    Args:
        named: the environment.
        read: settings of files.
        arguments: settings that win over the files'.
        program: as in `Request`.

    Raises:
        UserError: unknown keys and values of a wrong type, all in one message.
    """
    config = Config(env_name=named.env_name, source=named.source, chosen_by=read.why)
    config.env = dict(read.dialect.env)
    config.rate_for = _rate_for(filter(read.takes, read.settings))
    texts = read.dialect.texts
    problems: list[UserError] = []
    chosen: dict[str, Setting] = {}
    passed: dict[str, Setting] = {}
    for setting in [*read.settings, *arguments]:
        try:
            plain = _under_our_name(setting)
            (chosen if read.takes(plain) else passed)[plain.name] = plain
        except UserError as problem:
            problems.append(problem)
    for setting in chosen.values():
        try:
            # A suggestion takes a millisecond; a file may have any number of unknown keys.
            suggest = len(problems) < MAX_PROBLEMS
            _place(config, setting, texts or config.python, suggest, program)
        except UserError as problem:
            problems.append(problem)
    raise_problems(problems)
    if config.bot_eval and not (texts or _scripted(config)):
        config.unused += [f"{BOT_EVAL}.{key}" for key in config.bot_eval]
        config.bot_eval = {}
    if config.python and config.base.family == AUTO:
        config.base.family = named.family or AUTO
    return Placed(config, chosen, passed)


def _fitted(placed: Placed, training: bool) -> Config:
    """Return a configuration with its numbers fitted to one another, and checked.

    Args:
        placed: the configuration, and where its settings are from.
        training: as in `load`.

    Raises:
        UserError: what doesn't fit, all in one message.
    """
    config = placed.config
    _note_passed(config, placed.passed.values())
    if typed(config, "vec.num_threads") and not typed(config, "vec.max_threads"):
        config.vec.max_threads = max(1, config.vec.num_threads)  # a file's number is no limit
    fit_buffers(config)
    fit_minibatch(config)
    if not (episodes := placed.chosen.get(EVAL_EPISODES)) or _of_defaults(episodes):
        fit_evaluations(config)
    if not training:  # and nothing else depends on these numbers
        config.notes.clear()
    validate(config, training)
    return config


def _rate_for(settings: Iterable[Setting]) -> str:
    """The optimizer that the learning rate was chosen for: what its file or one before it says."""
    found = now = str(DECLARED["train.optimizer"].default)
    for _, group in groupby(settings, lambda setting: setting.origin.rpartition(":")[0]):
        said = {setting.name: unquoted(setting.text) for setting in group}
        now = said.get("train.optimizer", now)
        found = now if "train.learning_rate" in said else found
    return found


def _scripted(config: Config) -> bool:
    """Whether an environment of C has a scripted player in Python."""
    folder = config.source or shipped("envs") / config.env_name
    return (Path(folder) / SCRIPT).is_file()


def _of_defaults(setting: Setting) -> bool:
    """Whether a setting is of our default.ini, which says what nobody else does."""
    return setting.origin.rpartition(":")[0] == relative_path(shipped("configs") / "default.ini")


def _note_passed(config: Config, settings: Iterable[Setting]) -> None:
    """Note what a file of the other release says of its trainer, and this one has otherwise."""
    for setting in settings:
        value = config.value(setting.name)
        if read_value(setting, DECLARED[setting.name]) != value and not typed(config, setting.name):
            trainer, name = config.train.algorithm, option(setting.section, setting.key)
            config.notes.append(
                f"{setting} ({setting.origin}) is not for {trainer}, which has {value};"
                f" hint: {name} sets it"
            )


def _under_our_name(setting: Setting) -> Setting:
    """A setting under another name as the setting it means; any other as it is."""
    if (new := RENAMES.get(setting.name)) is None:
        return setting
    plain = setting._replace(section=new.section, key=new.key)
    if not new.off:
        return plain
    if (word := without_comment(setting.text).lower()) not in BOOLS:
        raise UserError(f"{setting} is neither true nor false ({setting.origin})", "true or false")
    on = new.typed_on if setting.typed and new.typed_on else new.on
    return plain._replace(text=on if BOOLS[word] else new.off)


def _place(config: Config, setting: Setting, texts: bool, suggest: bool, program: bool) -> None:
    """Put one setting into a configuration.

    Args:
        config: is changed.
        setting: to put there.
        texts: whether the environment takes more than numbers.
        suggest: whether the error for an unknown key names the most similar key.
        program: as in `Request`.

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
        with reading(text):
            config.source = str((beside / unquoted(text)).resolve())
            Path(config.source).is_dir()  # an error if it may not be looked at
    elif section == "env" and texts:
        config.env[key] = _parameter(setting, config.python)
        if config.python and not setting.typed and parse_argument(text, True) != config.env[key]:
            note = f"{setting} is a text ({origin}); Python's own is {key} := {text}"
            config.notes.append(note)
        if not config.python and text.startswith("= ") and config.env[key] == text:
            message = f"{name} is {text[2:]}, and environments in C take numbers and texts"
            raise UserError(f"{message} ({origin})", "a list of numbers as a text: '1, 2'")
    elif section == "env" and parse_number(text) is None and not setting.typed:
        config.unused.append(f"{name} ({text!r} is not a number)")  # upstream skips it silently
    elif section == "env":
        config.env[key] = float(read_number(setting, 1.0))
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
    elif name in UNUSED:
        if name in ONLY and ONLY[name] not in (unquoted(text), parse_number(text)):
            legal = f"{ONLY[name]}" if ONLY[name] != NOTHING else "leave it out"
            raise UserError(f"{setting} is not supported: {UNUSED[name]} ({origin})", legal)
        config.unused.append(name)
    elif name != "base.env_name":
        near = closest(name, [*DECLARED, *RENAMES]) if suggest else ""
        every = EVERY_KEY if program else "--help all explains every key"
        hint = f"did you mean {near}?" if near else every
        hint = f"here it is {ELSEWHERE[key]}" if key in ELSEWHERE else hint
        raise UserError(f"unknown key {setting} ({origin})", hint)


def _parameter(setting: Setting, python: bool) -> Any:
    """Return an environment's parameter; of a program its value as it is."""
    if not python:
        return parse_parameter(setting.text)
    return parse_argument(setting.text, setting.typed) if setting.value is ... else setting.value


def undecided(config: Config) -> bool:
    """Return True if the environment's spaces decide which family's settings count."""
    return config.python and config.base.family == AUTO and config.again is not None


def take_family(config: Config, family: str) -> None:
    """Change a configuration to what its files and options say with a family's settings.

    Args:
        config: is changed in place, except for keys that were set by hand since it was read.
        family: one of ``FAMILIES``.

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
        setattr(config, section, replace(now, **changed))  # whoever shares the old one keeps it
    still = [note for note in config.notes if note in after.notes]
    new = [note for note in after.notes if note not in before.notes]
    config.notes = list(dict.fromkeys([*still, *new]))
    config.unused = list(dict.fromkeys([*config.unused, *after.unused]))
    config.origins, config.files = after.origins, after.files
    config.chosen_by, config.rate_for = after.chosen_by, after.rate_for
