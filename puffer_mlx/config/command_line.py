"""Parse command lines: options for keys become a list of `Setting`, argparse parses the others."""

import argparse
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import NamedTuple, NoReturn

from puffer_mlx.config.compatibility import OTHER_LIBRARY_KEYS, OTHER_LIBRARY_OPTIONS, closest
from puffer_mlx.config.help import RARE_OPTIONS, HelpParser
from puffer_mlx.config.key import Setting
from puffer_mlx.config.option_names import KEY_OPTIONS, is_used, may_be_bare, option
from puffer_mlx.config.schema import COMMAND_LINE, DECLARED
from puffer_mlx.errors import UserError
from puffer_mlx.system import program

ENV_HELP = f"""\
ENV: a name from `{program.COMMAND} list`; gym:ID for Gymnasium;
module:factory for Python; a folder in PufferLib's layout; or the path of an
.ini file."""
ALLOW_CODE = """\
compile and import code that only a file names, for example a checkpoint's config.ini; the code can
do anything that you can"""
AddOptions = Callable[["Parser"], object]  # adds a command's options to its parser
ALL_HINT = "--help all explains every option"
OPTION_HINT = "write options as --train.gamma 0.99, after ENV"
NEGATIVE_NUMBER = re.compile(r"-\d+|-\d*\.\d+")


class Parser(HelpParser):
    """An argument parser that reports problems as UserErrors."""

    def error(self, message: str) -> NoReturn:
        """Raise argparse's message about a wrong command line as a UserError."""
        raise UserError(f"{message} ({COMMAND_LINE})", ALL_HINT)

    def parse(self, argv: Sequence[str]) -> argparse.Namespace:
        """Parse the command line of a command without a configuration.

        Raises:
            UserError: If an option is wrong; for an unknown one, the hint is the closest option.
        """
        namespace, rest = self.parse_known_args(argv)
        if rest and rest[0].startswith("--"):
            raise _unknown_option(self, typed_options(rest)[0], {}, None)
        if rest:
            raise _unexpected_word(rest[0], "--help shows all options")
        return namespace


def build_parser(
    add_options: AddOptions | None = None,
    used: Sequence[str] | None = None,
    files: Iterable[Setting] = (),
) -> Parser:
    """Return the parser of a command whose help also shows configuration keys.

    Args:
        add_options: Function that adds the command's other options to the parser.
        used: Sections and keys in the help, besides [env]; None for all.
        files: Settings of an environment's files; help shows them as defaults.
    """
    parser = Parser(usage="%(prog)s ENV [options]", description=ENV_HELP)
    parser.values = {setting.name: setting.text for setting in files}
    if add_options is not None:
        add_options(parser)
    groups = {group.title: group for group in parser._action_groups}
    group = groups.get(RARE_OPTIONS) or parser.add_argument_group(RARE_OPTIONS)
    group.add_argument("--allow-code", action="store_true", help=ALLOW_CODE)
    other_options = parser._option_string_actions
    parser.help_keys = [
        name
        for name in DECLARED
        if is_used(used, name) and option(*name.split(".", 1)) not in other_options
    ]
    return parser


class TypedOption(NamedTuple):
    """One option of a command line, such as ``--seed``, with the values typed after it.

    Args:
        option: Normalized name: ``-`` for ``_``, and ``--seed`` for ``--base.seed``; empty for
            words before the first option.
        words: Values: the text after ``=``, if any, then the words up to the next option.
        argv: The option and its values as words of a command line.
    """

    option: str
    words: list[str]
    argv: list[str]

    @property
    def with_section(self) -> str:
        """Full form of a typed option: ``--train.gamma`` for ``--gamma``."""
        name = KEY_OPTIONS.get(self.option)
        return option(*name.split(".", 1)) if name else self.option

    @property
    def text(self) -> str | None:
        """First value typed for an option, without white space around it; None without a value."""
        return self.words[0].strip() if self.words else None


def typed_options(argv: Sequence[str]) -> list[TypedOption]:
    """Split a command line, after its environment, into a list of its options with their values."""
    options: list[TypedOption] = []
    for word in normalize_options(argv):
        if re.fullmatch(r"-[^\s=]+(=.*)?", word, re.DOTALL) and not NEGATIVE_NUMBER.fullmatch(word):
            name, equals, value = word.partition("=")
            options.append(TypedOption(name, [value] if equals else [], [word]))
        else:
            if not options:
                options.append(TypedOption("", [], []))
            options[-1].words.append(word)
            options[-1].argv.append(word)
    return options


def options_that_set_keys(files: Iterable[Setting], further: Iterable[str] = ()) -> dict[str, str]:
    """Return a dict from each option that sets a configuration key to the key's name.

    Args:
        files: Settings of an environment's files; their keys of [env] and [sweep] are options.
        further: Further names of keys.
    """
    names = [s.name for s in files if s.section.partition(".")[0] in ("env", "sweep")]
    return {option(*name.split(".", 1)): name for name in [*further, *names]} | KEY_OPTIONS


def typed_values(typed: Iterable[TypedOption]) -> dict[str, str | None]:
    """Return the typed value of each command-line option, by ``section.key`` or option name."""
    return {KEY_OPTIONS.get(each.option, each.option): each.text for each in typed}


def parse_options(
    parser: argparse.ArgumentParser,
    typed: Sequence[TypedOption],
    keys: Mapping[str, str],
    used: Sequence[str] | None = None,
) -> tuple[list[Setting], argparse.Namespace]:
    """Split a command line into settings of keys and the values of the command's other options.

    An option of the command wins over a key with the same name. The last option for a key wins.

    Args:
        parser: Parser of the command's other options.
        typed: Options on the command line.
        keys: Names (``section.key``) of the keys that options set, by option.
        used: Sections and keys that hints may name; None for all.

    Raises:
        UserError: If an option is unknown (the hint is the closest one), or a value is missing or
            empty.
    """
    _refuse_empty_values(parser, typed)
    other_words: list[str] = []
    settings: dict[str, Setting] = {}
    problems: list[UserError] = []
    for each in typed:
        name = keys.get(each.option)
        if each.option in parser._option_string_actions or not each.option.startswith("--"):
            other_words += each.argv
        elif name is None:
            problems.append(_unknown_option(parser, each, keys, used))
        elif each.text is None and not may_be_bare(name):
            text = f"argument {each.option}: expected one argument ({COMMAND_LINE})"
            problems.append(UserError(text, ALL_HINT))
        else:
            section, _, key = name.rpartition(".")
            settings.pop(name, None)
            settings[name] = Setting(section, key, each.text or "", COMMAND_LINE)
            if each.text is None:
                settings[name] = settings[name]._replace(text="true")
            problems += [_unexpected_word(word) for word in each.words[1:2]]
    options, rest = parser.parse_known_args(other_words)
    if rest:
        problems.append(_unexpected_word(rest[0]))
    if problems:
        raise problems[0]
    return list(settings.values()), options


def normalize_options(argv: Sequence[str]) -> list[str]:
    """Return a command line with normalized options: `--seed` for `--base.seed`, no underscores.

    A negative number (`-1e-3`) is joined to its option by ``=``.
    """
    words: list[str] = []
    for word in argv:
        name, equals, value = word.partition("=")
        if words and re.fullmatch("--[^=]+", words[-1]) and re.match(r"-[\d.]", word):
            words[-1] += f"={word}"
        elif word.startswith("--"):
            name = name.replace("_", "-")
            without_base = re.sub("^--base[.]", "--", name)
            # ``--base.gamma`` stays unknown: ``--gamma`` would set train.gamma.
            key = KEY_OPTIONS.get(without_base, "base.")
            words.append((without_base if key.startswith("base.") else name) + equals + value)
        else:
            words.append(word)
    return words


def _refuse_empty_values(parser: argparse.ArgumentParser, typed: Iterable[TypedOption]) -> None:
    """Raise a UserError if an option that sets no configuration key has an empty value."""
    for each in typed:
        action = parser._option_string_actions.get(each.option)
        if action and action.help != argparse.SUPPRESS and each.text == "":
            hint = "add a value, or leave the option out; is a shell variable unset?"
            raise UserError(f"the value of {each.option} is empty ({COMMAND_LINE})", hint)


def _unexpected_word(word: str, hint: str = OPTION_HINT) -> UserError:
    """Return the error for a word on the command line that belongs to no option."""
    return UserError(f"unexpected {word!r} ({COMMAND_LINE})", hint)


def _unknown_option(
    parser: argparse.ArgumentParser,
    typed: TypedOption,
    keys: Mapping[str, str],
    used: Sequence[str] | None,
) -> UserError:
    """Return the error for an unknown option. Its hint names only options with an effect.

    Args:
        parser: Parser of the command's other options.
        typed: The unknown option.
        keys: Names (``section.key``) of the keys that options set, by option.
        used: Sections and keys that the hint may name; None for all.
    """
    name = typed.option
    key = name.rpartition(".")[2].lstrip("-").replace("-", "_")
    options = [
        key_option.removeprefix("--")
        for key_option, key_name in keys.items()
        if key_option == option(*key_name.split(".", 1)) and is_used(used, key_name)
    ]
    options += [word[2:] for word in parser._option_string_actions if word.startswith("--")]
    hint = ALL_HINT
    if name.startswith("--sweep."):  # min and max at its end are not names of keys
        similar = "".join(get_close_matches(name[2:], options, n=1, cutoff=0.8))
        hint = "use a key from a [sweep] section of the environment's file, or one of PufferLib's"
    else:
        similar = closest(name[2:], options)
    has_no_section = name == "--" + key.replace("_", "-")
    if has_no_section and key in OTHER_LIBRARY_OPTIONS:
        hint = OTHER_LIBRARY_OPTIONS[key]
    elif (our_key := OTHER_LIBRARY_KEYS.get(key)) and is_used(used, our_key):
        hint = f"use {option(*our_key.split('.'))}"
    elif similar:
        hint = f"did you mean --{similar}?"
    text = f"unknown option {name} {typed.text or ''}".rstrip()
    return UserError(f"{text} ({COMMAND_LINE})", hint)
