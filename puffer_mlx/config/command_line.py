"""Command lines: options that set keys become a list of `Setting`, argparse parses the others."""

import argparse
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import NamedTuple, NoReturn

from puffer_mlx.config.compatibility import ELSEWHERE, OPTIONS_ELSEWHERE, closest
from puffer_mlx.config.help import RARELY, HelpParser
from puffer_mlx.config.key import Setting
from puffer_mlx.config.option_names import KEY_OPTIONS, is_used, may_be_bare, option
from puffer_mlx.config.schema import COMMAND_LINE, DECLARED
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


class Parser(HelpParser):
    """A parser that raises UserErrors."""

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


def build_parser(
    extra: Extra | None = None,
    used: Sequence[str] | None = None,
    files: Iterable[Setting] = (),
) -> Parser:
    """Return a parser of a script's own options; its help shows the keys, too.

    Args:
        extra: called with the parser to add the options.
        used: sections and keys that help shows, besides [env]; None for all.
        files: an environment's settings: the defaults that help shows, and its [env] keys.
    """
    parser = Parser(usage="%(prog)s ENV [options]", description=ENVIRONMENT)
    parser.values = {setting.name: setting.text for setting in files}
    if extra is not None:
        extra(parser)
    groups = {group.title: group for group in parser._action_groups}
    group = groups.get(RARELY) or parser.add_argument_group(RARELY)
    group.add_argument("--allow-code", action="store_true", help=ALLOW_CODE)
    own = parser._option_string_actions
    parser.shown = [
        name for name in DECLARED if is_used(used, name) and option(*name.split(".", 1)) not in own
    ]
    return parser


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
        elif each.text is None and not may_be_bare(name):
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
    name = typed.option
    key = typed.option.rpartition(".")[2].lstrip("-").replace("-", "_")
    full = (each for each, name in keys.items() if each == option(*name.split(".", 1)))
    options = [word[2:] for word in full if is_used(used, keys[word])]
    options += [word[2:] for word in parser._option_string_actions if word.startswith("--")]
    hint = ALL_HINT
    if name.startswith("--sweep."):  # its last words, min and max, name no key
        near = "".join(get_close_matches(name[2:], options, n=1, cutoff=0.8))
        hint = "name a key that the environment's file has in a [sweep] section, or PufferLib's own"
    else:
        near = closest(name[2:], options)
    if name.removeprefix("--") == key.replace("_", "-") and key in OPTIONS_ELSEWHERE:
        hint = OPTIONS_ELSEWHERE[key]
    elif (ours := ELSEWHERE.get(key)) and is_used(used, ours):
        hint = f"here it is {option(*ours.split('.'))}"
    elif near:
        hint = f"did you mean --{near}?"
    text = f"unknown option {name} {typed.text or ''}".rstrip()
    return UserError(f"{text} ({COMMAND_LINE})", hint)
