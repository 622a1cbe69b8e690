"""Configurations out of files and a command line, checked.

Later sources win: the declared defaults, `configs/default.ini`, the environment's file, further
files, the command line. Files are PufferLib's `.ini` files, unchanged: those of 4.0 and of 5.0,
each read by its own rules. `configs/default.ini` is written from the declarations:
`python -m puffer_mlx.config > configs/default.ini`.
"""

import argparse
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from pathlib import Path

from puffer_mlx.config.command_line import (
    build_parser,
    env_options,
    first_look,
    obeys,
    option,
    parse_options,
)
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
from puffer_mlx.config.dialects import ALGORITHM, SCRIPT
from puffer_mlx.config.families import AUTO
from puffer_mlx.config.fit import EVAL_EPISODES, fit_buffers, fit_evaluations, fit_minibatch, typed
from puffer_mlx.config.ini_files import relative_path
from puffer_mlx.config.key import Setting
from puffer_mlx.config.resolve import (
    FAMILY,
    NETWORK,
    FamilyChoice,
    FileSettings,
    NamedEnvironment,
    is_complete,
    last_text,
    plain_path,
    read_files,
    resolve,
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
from puffer_mlx.errors import UserError
from puffer_mlx.system.files import reading, shipped
from puffer_mlx.system.import_string import note_folder

ALLOW_CODE = """\
compile and import what a file names, a checkpoint's config.ini say, even if you never named it on
this machine's command line: it may do anything that you may"""


def load(
    name: str,
    argv: Sequence[str] = (),
    files: Sequence[str | Path] = (),
    family: str = "",
    allow_code: bool = False,
    training: bool = True,
) -> Config:
    """The checked configuration of an environment.

    Args:
        name: an environment, or the path of an .ini file.
        argv: options, as on the command line.
        files: further .ini files; they win over the environment's, options win over them.
        family: of an environment in Python, as its spaces tell (`families.py`). Empty: what its
            files say of it, else `vec.make` finds out, and the configuration follows.
        allow_code: compile and import what the files name, whatever it is. What ``name`` and
            ``argv`` name needs no permission: see ``puffer_mlx.config.trust``.
        training: whether it is to train with it: what only training needs is checked.

    Raises:
        UserError: anything wrong, all of it in one message.
    """
    words = [name, *argv]
    config = parse_command_line(words, None, files, family, training=training)[0]
    config.allow_code = config.allow_code or allow_code
    return config


def load_saved(path: Path, allow_code: Allowed = False) -> Config:
    """The configuration that a run wrote, which may be a stranger's; not to train with.

    Args:
        path: the file.
        allow_code: compile and import what it names, or what of it is named here.

    Raises:
        UserError: anything wrong, all of it in one message.
    """
    named = resolve_file(path)
    read = read_files(named)
    config = _assemble(named, read, training=False)
    _note_code(config, read.settings, frozenset() if isinstance(allow_code, bool) else allow_code)
    config.allow_code = allow_code is True
    return config


def parse_command_line(
    argv: Sequence[str],
    extra: Callable[[argparse.ArgumentParser], object] | None = None,
    files: Sequence[str | Path] = (),
    family: str = "",
    run: Path | None = None,
    obeyed: Sequence[str] | None = None,
    training: bool = True,
) -> tuple[Config, argparse.Namespace]:
    """A script's whole command line, `ENV [options]`; `--help` prints and exits.

    Args:
        argv: the words after the script's name.
        extra: called with the parser to add the script's own options.
        files: as in `load`.
        family: as in `load`.
        run: a run's own configuration, which takes the place of ENV's.
        obeyed: sections and keys that the script obeys, besides [env]; None for all. A note names
            others that are typed.
        training: as in `load`.

    Returns:
        The checked configuration, and the values of the script's own options.

    Raises:
        UserError: anything wrong, all of it in one message.
    """
    name, words = (argv[0], argv[1:]) if argv and not argv[0].startswith("-") else ("", argv)
    further = [Path(file) for file in files]
    early = first_look(words, FAMILY, NETWORK, ALGORITHM, "env.source")
    choice = FamilyChoice(
        family,
        typed=early.get(FAMILY) or last_text(FAMILY, further),
        network=early.get(NETWORK) or last_text(NETWORK, further),
        complete=any(map(is_complete, further)),
    )
    with reading(name, "name an environment, a folder or an .ini file that you may read"):
        named = resolve(name, choice) if name else NamedEnvironment("", "", [])
    if not name and "-h" not in words and "--help" not in words:
        message = f"the first word must be an environment ({COMMAND_LINE})"
        raise UserError(message, words_hint())
    shadowed = shadow_note(name, named)
    typed_names = {named.source} if name.endswith(".ini") else {named.env_name, named.source}
    named = named if run is None else resolve_file(run, choice)
    read = read_files(
        named, further if name else [], early.get("env.source") or "", early.get(ALGORITHM) or ""
    )
    others = env_options(words) if ":" in named.env_name else []
    others += [f"env.{key}" for key in read.dialect.env]
    parser = build_parser(read.settings, others, extra, obeyed)
    parser.add_argument("--allow-code", action="store_true", help=ALLOW_CODE)
    arguments, options = parse_options(parser, words, obeyed)
    config = _assemble(named, read, training, arguments)
    config.files = [plain_path(path) for path in read.files]
    config.notes += [shadowed] * bool(shadowed)
    _note_code(config, [*read.settings, *arguments], typed_names)
    config.allow_code = vars(options).pop("allow_code")
    if named.layered:
        config.again = partial(_read_again, argv, extra, files, run, obeyed, training)
    elif config.python and typed(config, FAMILY):
        config.notes.append(
            f"{FAMILY} {config.base.family} changes nothing: {config.files[-1]} says every key"
        )
    if config.source:
        settings = relative_path([*named.files, *further][-1])
        where = f"{relative_path(Path(config.source))}, settings in {settings}"
        config.notes.insert(0, f"{config.env_name}: sources in {where}")
    idle = [setting.name for setting in arguments if not obeys(obeyed, setting.name)]
    if idle and obeyed is not None:
        config.notes.append(f"unused here: {', '.join(idle)} (--help all shows what is used)")
    return config, options


def _note_code(config: Config, settings: Iterable[Setting], typed: Collection[str]) -> None:
    """Note which code only a file names, and the working directory for relative names of code.

    Args:
        config: made of the settings.
        settings: in the order in which they win.
        typed: code that the person named, as the configuration names it.
    """
    origins = {setting.name: setting.origin for setting in settings}
    for key, name in code_names(config).items():
        note_folder(name)
        origin = origins.get(key, COMMAND_LINE)
        if origin != COMMAND_LINE and name not in typed:
            config.named_by[name] = origin


def _assemble(
    named: NamedEnvironment, read: FileSettings, training: bool, arguments: Sequence[Setting] = ()
) -> Config:
    """Understand settings, of which the last one for a key wins, and check the result."""
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
            _place(config, setting, texts or config.python, len(problems) < MAX_PROBLEMS)
        except UserError as problem:
            problems.append(problem)
    raise_problems(problems)
    if config.bot_eval and not (texts or _scripted(config)):
        config.unused += [f"{BOT_EVAL}.{key}" for key in config.bot_eval]
        config.bot_eval = {}
    if config.python and config.base.family == AUTO:
        config.base.family = named.family or AUTO
    _note_passed(config, passed.values())
    if typed(config, "vec.num_threads") and not typed(config, "vec.max_threads"):
        config.vec.max_threads = max(1, config.vec.num_threads)  # what a file says is no limit
    fit_buffers(config)
    fit_minibatch(config)
    if not (episodes := chosen.get(EVAL_EPISODES)) or _of_defaults(episodes):
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
    on = new.typed_on if setting.origin == COMMAND_LINE and new.typed_on else new.on
    return plain._replace(text=on if BOOLS[word] else new.off)


def _place(config: Config, setting: Setting, texts: bool, suggest: bool) -> None:
    """Put one setting into a configuration.

    Args:
        config: is changed.
        setting: to put there.
        texts: whether the environment takes more than numbers.
        suggest: whether the error for an unknown key names the most similar key.

    Raises:
        UserError: the key is unknown, or its value is wrong.
    """
    section, key, text, origin = setting
    name = setting.name
    if origin == COMMAND_LINE:
        config.origins[name] = origin
    if declared := DECLARED.get(name):
        value = read_value(setting, declared)
        setattr(getattr(config, section), key, value)
        if value != declared.default:
            config.origins[name] = origin
    elif name == "env.source":
        beside = Path() if origin == COMMAND_LINE else Path(origin.rpartition(":")[0]).parent
        with reading(text):
            config.source = str((beside / unquoted(text)).resolve())
            Path(config.source).is_dir()  # an error if it may not be looked at
    elif section == "env" and texts:
        was_typed = origin == COMMAND_LINE
        config.env[key] = (
            parse_argument(text, was_typed) if config.python else parse_parameter(text)
        )
        if config.python and not was_typed and parse_argument(text, True) != config.env[key]:
            note = f"{setting} is a text ({origin}); Python's own is {key} := {text}"
            config.notes.append(note)
        if not config.python and text.startswith("= ") and config.env[key] == text:
            message = f"{name} is {text[2:]}, and environments in C take numbers and texts"
            raise UserError(f"{message} ({origin})", "a list of numbers as a text: '1, 2'")
    elif section == "env" and parse_number(text) is None and origin != COMMAND_LINE:
        config.unused.append(f"{name} ({text!r} is not a number)")  # upstream skips it silently
    elif section == "env":
        config.env[key] = float(read_number(setting, 1.0))
    elif section == "sweep" or section.startswith("sweep."):
        numeric = section != "sweep" and key in ("min", "max", "mean", "scale")
        if numeric and text not in ("auto", "time"):
            read_number(setting, 0.5)
        config.sweep.setdefault(section, {})[key] = text
        config.origins[name] = origin
        if origin == COMMAND_LINE and name not in ("sweep.metric", "sweep.goal"):
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
        hint = f"did you mean {near}?" if near else "--help all explains every key"
        hint = f"here it is {ELSEWHERE[key]}" if key in ELSEWHERE else hint
        raise UserError(f"unknown key {setting} ({origin})", hint)


def _read_again(
    argv: Sequence[str],
    extra: Callable[[argparse.ArgumentParser], object] | None,
    files: Sequence[str | Path],
    run: Path | None,
    obeyed: Sequence[str] | None,
    training: bool,
    family: str,
) -> Config:
    """``parse_command_line`` with the family last; a partial of it can be pickled."""
    return parse_command_line(argv, extra, files, family, run, obeyed, training)[0]


def undecided(config: Config) -> bool:
    """Whether the environment's spaces will decide which family's settings count."""
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
    before, after = config.again(""), config.again(family)
    for section, keys in KEYS.items():
        now, was, new = (getattr(each, section) for each in (config, before, after))
        changed = {key: getattr(new, key) for key in keys if getattr(now, key) == getattr(was, key)}
        setattr(config, section, replace(now, **changed))  # whoever shares the old one keeps it
    still = [note for note in config.notes if note in after.notes]
    new = [note for note in after.notes if note not in before.notes]
    config.notes = list(dict.fromkeys([*still, *new]))
    config.unused = list(dict.fromkeys([*config.unused, *after.unused]))
    config.origins, config.files = after.origins, after.files
    config.chosen_by, config.rate_for = after.chosen_by, after.rate_for
