"""Command lines: options that set keys become a list of `Setting`, argparse parses the others.

``--help`` shows a page with the common keys, ``--help all`` shows every key.
"""

import argparse
import re
import shutil
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from difflib import get_close_matches
from typing import Any, NamedTuple, NoReturn

from puffer_mlx.config.compatibility import ELSEWHERE, REMOVED, RENAMES, SWEEP, UNUSED, closest
from puffer_mlx.config.key import EVERY_KEY, Setting
from puffer_mlx.config.schema import COMMAND_LINE, DECLARED, KEYS, SECTIONS
from puffer_mlx.config.values import parse_number
from puffer_mlx.errors import UserError
from puffer_mlx.system import program

ENVIRONMENT = f"""\
ENV: a name that `{program.COMMAND} list` shows; gym:ID, one of Gymnasium's;
module:factory, Python; a folder in PufferLib's form; or the path of an .ini
file."""
ALLOW_CODE = """\
compile and import what only a file names, a checkpoint's config.ini for example: it may do anything
that you may"""
Extra = Callable[["Parser"], object]  # adds a script's own options
ALL_HINT = "--help all explains every option"
FORM = "write options as --train.gamma 0.99, after ENV"
NEGATIVE = re.compile(r"-\d+|-\d*\.\d+")
WORDS = {bool: "BOOL", int: "INT", float: "FLOAT", str: "TEXT"}  # how help shows an option's value


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that raises UserErrors and accepts no abbreviated options.

    Args:
        texts: values of keys in an environment's files, for ``--help``.
        how: arguments of ArgumentParser.
    """

    def __init__(self, texts: Mapping[str, str] | None = None, **how: Any) -> None:
        form = argparse.RawDescriptionHelpFormatter
        super().__init__(formatter_class=form, allow_abbrev=False, add_help=False, **how)
        words = f"this page; {ALL}: every key and option"
        self.add_argument("-h", "--help", action=Help, texts=texts or {}, help=words)
        self.keys: dict[str, str] = {}  # a script's keys of other sections, and their help

    def add_argument_group(self, title: str, description: str | None = None) -> Any:
        """Add a group; lines of its description fit a terminal."""
        return super().add_argument_group(title, _filled(description or "") or None)

    def error(self, message: str) -> NoReturn:
        """Refuse a command line."""
        raise UserError(f"{message} ({COMMAND_LINE})", ALL_HINT)

    def parse(self, argv: Sequence[str]) -> argparse.Namespace:
        """Parse the options of a command that has no configuration.

        Raises:
            UserError: a wrong option; the hint for an unknown one is the closest name.
        """
        namespace, rest = self.parse_known_args(argv)
        if rest and rest[0].startswith("--"):
            raise _unknown(self, typed_options(rest)[0], {}, None)
        if rest:
            raise _unexpected(rest[0], "--help shows what there is")
        return namespace


def _epilog() -> str:
    """Return the end of ``--help all``: unused keys by reason, and other names of keys."""
    by_reason: dict[str, list[str]] = {}
    for name, reason in UNUSED.items():
        by_reason.setdefault(reason, []).append(name)
    unused = (f"{reason}: {', '.join(names)}" for reason, names in by_reason.items())
    renamed = (f"{name}: {new}" for name, new in RENAMES.items())
    lines = ["Accepted, and unused here:", *unused, "Accepted under another name:", *renamed]
    return "\n".join(
        textwrap.fill(
            line,
            80,
            initial_indent=" " * 2 * (not line.startswith("Accepted")),
            subsequent_indent=" " * 6,
            break_on_hyphens=False,
            break_long_words=False,
        )
        for line in lines
    )


def option(section: str, key: str) -> str:
    """Return the option that sets a key: `--train.learning-rate`; for [base] `--seed`."""
    return "--" + f"{section}.{key}".removeprefix("base.").replace("_", "-")


KEY_OPTIONS = {  # every option that sets a key, whatever the environment, and the key's name
    option(*name.split(".", 1)): name
    for name in [*DECLARED, *UNUSED, *REMOVED, *RENAMES, *SWEEP, "env.source"]
}
for _name in DECLARED:  # a key that only one section has needs no section
    _key = _name.partition(".")[2]
    if sum(_key in keys for keys in KEYS.values()) == 1:
        KEY_OPTIONS.setdefault(option("base", _key), _name)


def how_to_set(name: str, value: object = "") -> str:
    """Return what sets a key, for hints.

    In a command it is an option, ``--train.gamma 0.9``; in Python a keyword, ``gamma=0.9``.

    Args:
        name: the key with its section.
        value: a value, or text about several, such as ``"4 or 8"``; empty for the name alone.
    """
    if program.is_command():
        value = int(value) if isinstance(value, bool) else value
        return f"{option(*name.split('.', 1))} {value}".rstrip()
    section, _, key = name.partition(".")
    if section == "sweep":  # a program's settings have no such section
        return f"[sweep] {key} = {value} in an .ini file"
    if value != "" and name in DECLARED and DECLARED[name].kind is str:
        value = repr(value)
    if KEY_OPTIONS.get(option("base", key)) != name:  # a key of [env], or of several sections
        return f'{{"{name}": {value}}}' if value != "" else name
    return f"{key}={value}" if value != "" else key


def every_key() -> str:
    """Return what shows every key, for hints."""
    return "--help all explains every key" if program.is_command() else EVERY_KEY


def is_used(used: Sequence[str] | None, name: str) -> bool:
    """Return True if a key has an effect in a script.

    Args:
        used: the sections and keys that the script uses, besides [env]; None for all.
        name: the key with its section.
    """
    if name in UNUSED:
        return False
    if name in RENAMES:
        name = RENAMES[name].name
    return used is None or name in used or name.partition(".")[0] in ("env", *used)


def own_parser(extra: Extra | None = None, texts: Mapping[str, str] | None = None) -> Parser:
    """Return a parser of a script's own options.

    Args:
        extra: called with the parser to add them.
        texts: values of keys in an environment's files, for ``--help``.
    """
    usage = "%(prog)s ENV [options]"
    parser = Parser(texts, usage=usage, description=ENVIRONMENT, epilog=_epilog())
    if extra is not None:
        extra(parser)
    parser.add_argument("--allow-code", action="store_true", help=ALLOW_CODE)
    return parser


def build_parser(
    files: Sequence[Setting] = (),
    extra: Extra | None = None,
    used: Sequence[str] | None = None,
) -> Parser:
    """Return a parser with an option for every key, for help and completion.

    Args:
        files: an environment's settings: the defaults that help shows, and its [env] keys.
        extra: called with the parser to add the script's own options.
        used: sections and keys that help shows, besides [env]; None for all.
    """
    texts = {setting.name: setting.text for setting in files}
    parser = own_parser(extra, texts)
    own = parser._option_string_actions.keys() - {"-h", "--help"}
    for section, keys in KEYS.items():
        shown_keys = {key: k for key, k in keys.items() if is_used(used, f"{section}.{key}")}
        if not shown_keys:
            continue
        group = parser.add_argument_group(f"[{section}]", SECTIONS[section].__doc__)
        for key, declared in shown_keys.items():
            name = f"{section}.{key}"
            if option(section, key) in own:
                continue
            facts = (declared.unit, declared.bounds, f"default {texts.get(name, declared.default)}")
            _add(
                group,
                name,
                metavar=WORDS[declared.kind],
                bare=isinstance(declared.default, bool),
                help=f"{declared.help} ({'; '.join(filter(None, facts))})".replace("%", "%%"),
            )
    group = parser.add_argument_group("[env]", "The environment's own parameters; they need ENV.")
    parameters = {option("env", s.key): s for s in files if s.section == "env"}
    helps = {s.name: f"default {s.text}".replace("%", "%%") for s in parameters.values()}
    helps.setdefault("env.source", "a folder of C sources in PufferLib's form")
    for name, help in helps.items():
        metavar = "PATH" if name == "env.source" else "FLOAT"
        _add(group, name, metavar=metavar, bare=_may_be_bare(name), help=help)
    if parser.keys:
        group = parser.add_argument_group("[sweep]")
    for name, help in parser.keys.items():
        _add(group, name, metavar="VALUE", bare=False, help=help)
    return parser


def _add(group: argparse._ArgumentGroup, name: str, metavar: str, bare: bool, help: str) -> None:
    """Add a key's option; if ``bare``, it means true without a value, as in PufferLib 5.0."""
    group.add_argument(
        option(*name.split(".", 1)),
        dest=name,
        default=argparse.SUPPRESS,  # leaves no trace where it isn't given
        metavar=metavar,
        help=help,
        nargs="?" if bare else None,
        const="true" if bare else None,
    )


def _may_be_bare(name: str) -> bool:
    """Return True if a key's option without a value means true."""
    if name in RENAMES and not RENAMES[name].off:
        name = RENAMES[name].name
    declared = DECLARED.get(name)
    return isinstance(declared.default, bool) if declared else name != "env.source"


class Typed(NamedTuple):
    """An option as it was typed.

    Args:
        option: Name with dashes, ``-`` for ``_``, and ``--seed`` for ``--base.seed``; empty for
            words before the first option.
        words: Values: the text after ``=``, if any, then the words up to the next option.
        argv: The option and its values as words of a command line.
    """

    option: str
    words: list[str]
    argv: list[str]

    @property
    def full(self) -> str:
        """The option with the key's section."""
        name = KEY_OPTIONS.get(self.option)
        return option(*name.split(".", 1)) if name else self.option

    @property
    def text(self) -> str | None:
        """First value without outer white space, or None without a value."""
        return self.words[0].strip() if self.words else None


def typed_options(argv: Sequence[str]) -> list[Typed]:
    """Split the words of a command line, without ENV, into options and their values."""
    found: list[Typed] = []
    for word in spelled(argv):
        if re.fullmatch(r"-[^\s=]+(=.*)?", word, re.DOTALL) and not NEGATIVE.fullmatch(word):
            name, equals, value = word.partition("=")
            found.append(Typed(name, [value] if equals else [], [word]))
        else:
            if not found:
                found.append(Typed("", [], []))
            found[-1].words.append(word)
            found[-1].argv.append(word)
    return found


def key_options(files: Iterable[Setting], others: Iterable[str] = ()) -> dict[str, str]:
    """Return the options that set keys, and the names of these keys.

    Args:
        files: settings of an environment's files: their keys of [env] and [sweep] are options.
        others: further names.
    """
    names = [s.name for s in files if s.section.partition(".")[0] in ("env", "sweep")]
    found = {option(*name.split(".", 1)): name for name in [*others, *names]}
    return found | KEY_OPTIONS


def typed_texts(typed: Iterable[Typed]) -> dict[str, str | None]:
    """Return the texts of options by their names, those of keys by ``section.key``."""
    return {KEY_OPTIONS.get(each.option, each.option): each.text for each in typed}


def parse_options(
    parser: argparse.ArgumentParser,
    typed: Sequence[Typed],
    keys: Mapping[str, str],
    used: Sequence[str] | None = None,
) -> tuple[list[Setting], argparse.Namespace]:
    """Return the settings of a command line and the values of a script's own options.

    An option of the script wins over a key with the same name. The last option for a key counts.

    Args:
        parser: the parser of the script's own options.
        typed: the options of the command line.
        keys: options that set keys, and the names of these keys.
        used: sections and keys that hints may name; None for all.

    Raises:
        UserError: an unknown option, with the closest one; a missing or an empty value.
    """
    _refuse_empty(parser, typed)
    own: list[str] = []
    settings: dict[str, Setting] = {}
    problems: list[UserError] = []
    for each in typed:
        name = keys.get(each.option)
        if each.option in parser._option_string_actions or not each.option.startswith("--"):
            own += each.argv
        elif name is None:
            problems.append(_unknown(parser, each, keys, used))
        elif each.text is None and not _may_be_bare(name):
            text = f"argument {each.option}: expected one argument ({COMMAND_LINE})"
            problems.append(UserError(text, ALL_HINT))
        else:
            section, _, key = name.rpartition(".")
            settings.pop(name, None)
            settings[name] = Setting(section, key, each.text or "", COMMAND_LINE)
            if each.text is None:
                settings[name] = settings[name]._replace(text="true")
            problems += [_unexpected(word) for word in each.words[1:2]]
    options, rest = parser.parse_known_args(own)
    if rest:
        problems.append(_unexpected(rest[0]))
    if problems:
        raise problems[0]
    return list(settings.values()), options


def spelled(argv: Sequence[str]) -> list[str]:
    """Return words with options as they are declared: `--seed` for `--base.seed`, no underscores.

    A negative number (`-1e-3`) is joined to its option.
    """
    words: list[str] = []
    for word in argv:
        name, equals, value = word.partition("=")
        if words and re.fullmatch("--[^=]+", words[-1]) and re.match(r"-[\d.]", word):
            words[-1] += f"={word}"
        elif word.startswith("--"):
            name = name.replace("_", "-")
            plain = re.sub("^--base[.]", "--", name)
            other = KEY_OPTIONS.get(plain, "base.").partition(".")[0] != "base"
            words.append((name if other else plain) + equals + value)
        else:
            words.append(word)
    return words


def _refuse_empty(parser: argparse.ArgumentParser, typed: Iterable[Typed]) -> None:
    """Refuse a script's own options with an empty value; settings are checked by their keys."""
    for each in typed:
        action = parser._option_string_actions.get(each.option)
        if action and action.help != argparse.SUPPRESS and each.text == "":
            hint = "give it a value, or leave it out; is a variable of your shell not set?"
            raise UserError(f"the value of {each.option} is empty ({COMMAND_LINE})", hint)


def _unexpected(word: str, form: str = FORM) -> UserError:
    """Return the error for a word that no option takes, with a hint."""
    return UserError(f"unexpected {word!r} ({COMMAND_LINE})", form)


def _unknown(
    parser: argparse.ArgumentParser,
    typed: Typed,
    keys: Mapping[str, str],
    used: Sequence[str] | None,
) -> UserError:
    """Return the error for an unknown option. Its hint names only options with an effect.

    Args:
        parser: Parser of the script's own options.
        typed: The unknown option.
        keys: Names of keys by option.
        used: Sections and keys that the hint may name; None for all.
    """
    name, key = typed.option, typed.option.rpartition(".")[2].lstrip("-").replace("-", "_")
    full = (each for each, name in keys.items() if each == option(*name.split(".", 1)))
    options = [word[2:] for word in full if is_used(used, keys[word])]
    options += [word[2:] for word in parser._option_string_actions if word.startswith("--")]
    hint = ALL_HINT
    if name.startswith("--sweep."):  # its last words, min and max, name no key
        near = "".join(get_close_matches(name[2:], options, n=1, cutoff=0.8))
        hint = "name a key that the environment's file has in a [sweep] section, or PufferLib's own"
    else:
        near = closest(name[2:], options)
    if ours := ELSEWHERE.get(key):
        hint = f"here it is {option(*ours.split('.'))}"
    elif near:
        hint = f"did you mean --{near}?"
    text = f"unknown option {name} {typed.text or ''}".rstrip()
    return UserError(f"{text} ({COMMAND_LINE})", hint)


# ---- help ---------------------------------------------------------------------------------------

RARE = {  # scripts' own options that the page leaves out
    *("--profile-epochs", "--gpu-capture", "--gpu-capture-epochs"),
    *("--allow-code", "--max-steps", "--headless", "--timeout"),
    *("--list", "--version"),
}
ALL = "all"
USUAL = "the usual keys, with their values; sections may be left out (--gamma)"
WIDTH, HELP_COLUMN = 80, 34


def _filled(text: str) -> str:
    """Return paragraphs with lines that fit a terminal with argparse's indentation."""
    each = (" ".join(paragraph.split()) for paragraph in text.split("\n\n"))
    return "\n\n".join(textwrap.fill(words, WIDTH - 4) for words in each)


class _Formatter(argparse.HelpFormatter):
    """A formatter that doesn't break lines at hyphens: options stay whole."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        text = " ".join(text.split())
        return textwrap.fill(
            text, width, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False
        )


class Help(argparse.Action):
    """The actions of ``--help`` and ``--help all``.

    Args:
        texts: values of keys in an environment's files.
    """

    def __init__(self, option_strings, dest, texts: Mapping[str, str], **how: Any) -> None:
        how |= {"default": argparse.SUPPRESS, "nargs": "?", "metavar": ALL}
        super().__init__(option_strings, argparse.SUPPRESS, **how)
        self.texts = texts

    def __call__(self, parser, namespace, values, option_string=None) -> None:
        """Print the help and exit."""
        text = page(parser, self.texts)
        if values == ALL:
            parser.description = _filled(parser.description or "")
            text = parser.format_help()
        print(text, end="")
        parser.exit()


def page(parser: argparse.ArgumentParser, texts: Mapping[str, str]) -> str:
    """Return the page with usage, a script's own options and the common keys.

    Args:
        parser: the parser with an option for every key.
        texts: values of keys in an environment's files.
    """
    width = min(WIDTH, shutil.get_terminal_size().columns) - 2
    formatter = _Formatter(parser.prog, max_help_position=HELP_COLUMN, width=width)
    formatter.add_usage(parser.usage, parser._actions, [])
    for paragraph in (parser.description or "").split("\n\n"):
        formatter.add_text(paragraph)
    options = parser._option_string_actions
    last = parser._optionals
    for group in (*(each for each in parser._action_groups if each is not last), last):
        if group is last and (keys := _common(options, texts)):
            _section(formatter, USUAL, None, keys)
            if names := [name for name in options if name.startswith("--env.")]:
                formatter.add_text(_environment(names, texts))
        shown = [each for each in group._group_actions if _shown(each)]
        _section(formatter, group.title, group.description, shown)
    return formatter.format_help()


def _section(
    formatter: argparse.HelpFormatter, title: str | None, text: str | None, actions: list[Any]
) -> None:
    if actions:
        formatter.start_section(title)
        formatter.add_text(text)
        formatter.add_arguments(actions)
        formatter.end_section()


def _shown(action: argparse.Action) -> bool:
    """Return True for a script's option that the page shows."""
    key = "." in action.dest
    return not key and action.help != argparse.SUPPRESS and not RARE & {*action.option_strings}


def _common(options: Mapping[str, argparse.Action], texts: Mapping[str, str]) -> list[Any]:
    """Return the options of common keys, with a brief help."""
    by_key = {action.dest: action for action in options.values()}
    common = []
    for name, declared in DECLARED.items():
        if declared.brief and (action := by_key.get(name)):
            few = copy(action)
            value = texts.get(name, str(declared.default))
            few.help = f"{declared.brief} ({_brief(value)})".replace("%", "%%")
            few.nargs = None
            if declared.choices and len("|".join(declared.choices)) < 16:
                few.metavar = "|".join(declared.choices)
            common.append(few)
    return common


def _brief(text: str) -> str:
    """Return a short form of a value: 0.9721 for 0.9721246598992744, 10_000_000 for 10000000."""
    number = parse_number(text)
    if isinstance(number, float):
        return f"{number:.4g}"
    return f"{number:_}" if isinstance(number, int) and number >= 1_000_000 else text


def _environment(options: list[str], texts: Mapping[str, str]) -> str:
    """Return a paragraph with the keys of an environment."""
    values = {name: texts.get(name.lstrip("-").replace("-", "_")) for name in options}
    known = [f"{name} {text}" for name, text in values.items() if text is not None]
    return f"its own: {', '.join(known)}".replace("%", "%%") if known else ""
