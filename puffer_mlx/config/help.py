"""Format the help of commands from the declared keys and the command's other options.

``--help`` shows the common keys, ``--help all`` shows every key.
"""

import argparse
import shutil
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from puffer_mlx.config.compatibility import RENAMES, UNUSED
from puffer_mlx.config.option_names import may_be_bare, option
from puffer_mlx.config.schema import DECLARED, KEYS, SECTIONS
from puffer_mlx.config.values import parse_number

ALL_KEYS = "all"  # argument of --help
COMMON_KEYS = "common keys, with their values; sections may be left out (--gamma)"
RARE_OPTIONS = "rarely needed"  # title of the options that only --help all shows
WIDTH = 80
METAVARS = {bool: "BOOL", int: "INT", float: "FLOAT", str: "TEXT"}
Section = tuple[str | None, str | None, list[argparse.Action]]  # title, description, options


class HelpAction(argparse.Action):
    """The argparse action that prints a command's help for ``--help`` and ``--help all``."""

    def __init__(self, option_strings, dest, **how: Any) -> None:
        how |= {"default": argparse.SUPPRESS, "nargs": "?", "metavar": ALL_KEYS}
        super().__init__(option_strings, argparse.SUPPRESS, **how)

    def __call__(self, parser: Any, namespace, values, option_string=None) -> None:
        """Print the help of a command and exit the process. ``--help all`` prints all keys."""
        print(page(parser, values == ALL_KEYS), end="")
        parser.exit()


class HelpParser(argparse.ArgumentParser):
    """An argument parser whose help also shows configuration keys. Options can't be abbreviated.

    Attributes:
        help_keys: Names of the keys in the help; empty for a command without a configuration.
        values: Texts of keys in an environment's files, shown as defaults.
        keys: Help of further keys that a command adds, by name.
    """

    def __init__(self, **how: Any) -> None:
        super().__init__(allow_abbrev=False, add_help=False, **how)
        text = f"show this help; {ALL_KEYS}: every key and option"
        self.add_argument("-h", "--help", action=HelpAction, help=text)
        self.help_keys: list[str] = []
        self.values: dict[str, str] = {}
        self.keys: dict[str, str] = {}


class _Formatter(argparse.HelpFormatter):
    """An argparse help formatter that doesn't break lines at the hyphens in options."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        text = " ".join(text.split())
        return textwrap.fill(
            text, width, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False
        )


def page(parser: HelpParser, everything: bool) -> str:
    """Return the complete text that a command prints for ``--help``.

    Args:
        parser: Parser of the command.
        everything: True to show all keys, False to show the common ones.
    """
    width = min(WIDTH, shutil.get_terminal_size().columns) - 2
    column = 24 if everything else 34  # of the explanations
    formatter = _Formatter(parser.prog, max_help_position=column, width=width)
    formatter.add_usage(parser.usage, parser._actions, [])
    for paragraph in (parser.description or "").split("\n\n"):
        formatter.add_text(paragraph)
    for title, text, actions in _all_sections(parser) if everything else _sections(parser):
        visible_actions = [each for each in actions if each.help != argparse.SUPPRESS]
        if visible_actions or (text and not title):
            formatter.start_section(title)
            formatter.add_text(text)
            formatter.add_arguments(visible_actions)
            formatter.end_section()
    text = formatter.format_help()
    return f"{text}\n{_other_names()}" if everything and parser.help_keys else text


def _sections(parser: HelpParser) -> Iterator[Section]:
    """Yield the sections of the short help of a command: its options and the common keys."""
    *groups, general = _option_groups(parser)
    yield from (section for section in groups if section[0] != RARE_OPTIONS)
    common = [name for name in parser.help_keys if DECLARED[name].brief]
    yield COMMON_KEYS, None, [_common_option(name, parser.values) for name in common]
    parameters = (name for name in parser.values if name.startswith("env."))
    texts = [f"{option(*name.split('.', 1))} {parser.values[name]}" for name in parameters]
    if texts and parser.help_keys:
        yield None, f"environment parameters: {', '.join(texts)}".replace("%", "%%"), []
    yield general


def _all_sections(parser: HelpParser) -> Iterator[Section]:
    """Yield the sections of the long help (``--help all``): a command's options and all keys."""
    yield from _option_groups(parser)
    if not parser.help_keys:
        return
    options = {action.dest: action for action in key_actions(parser)}
    for section in KEYS:
        text = SECTIONS[section].__doc__
        yield f"[{section}]", text, [options[n] for n in parser.help_keys if _in(n, section)]
    text = "Parameters of the environment; type ENV to see them."
    yield "[env]", text, [each for name, each in options.items() if _in(name, "env")]
    yield "[sweep]", None, [options[name] for name in parser.keys]


def _in(name: str, section: str) -> bool:
    return name.partition(".")[0] == section


def _option_groups(parser: HelpParser) -> list[Section]:
    """Return the groups of a command's options in its help, without configuration keys.

    The general group is the last one.
    """
    last = parser._optionals
    groups = [each for each in parser._action_groups if each is not last]
    return [(each.title, each.description, each._group_actions) for each in (*groups, last)]


def key_actions(parser: HelpParser) -> list[argparse.Action]:
    """Return an argparse action for each configuration key that a command's help shows."""
    actions = []
    for name in parser.help_keys:
        declared = DECLARED[name]
        default = f"default {parser.values.get(name, declared.default)}"
        facts = "; ".join(filter(None, (declared.unit, declared.bounds, default)))
        actions.append(_key_option(name, METAVARS[declared.kind], f"{declared.help} ({facts})"))
    texts = {name: f"default {text}" for name, text in parser.values.items() if _in(name, "env")}
    texts.setdefault("env.source", "a folder of C sources in PufferLib's layout")
    for name, text in texts.items():
        actions.append(_key_option(name, "PATH" if name == "env.source" else "FLOAT", text))
    return [*actions, *(_key_option(name, "VALUE", text) for name, text in parser.keys.items())]


def _key_option(name: str, metavar: str, text: str) -> argparse.Action:
    """Return the argparse action that shows a configuration key in help, not used for parsing."""
    bare = not _in(name, "sweep") and may_be_bare(name)
    return argparse.Action(
        [option(*name.split(".", 1))],
        name,
        nargs="?" if bare else None,
        metavar=metavar,
        help=text if text == argparse.SUPPRESS else text.replace("%", "%%"),
    )


def _common_option(name: str, values: Mapping[str, str]) -> argparse.Action:
    """Return the argparse action that shows a common configuration key in the short help."""
    declared = DECLARED[name]
    text = f"{declared.brief} ({_brief(values.get(name, str(declared.default)))})"
    action = _key_option(name, METAVARS[declared.kind], text)
    action.nargs = None
    if declared.choices and len("|".join(declared.choices)) < 16:
        action.metavar = "|".join(declared.choices)
    return action


def _brief(text: str) -> str:
    """Return a value's text shortened for help: 0.9721246 to 0.9721, 10000000 to 10_000_000."""
    number = parse_number(text)
    if isinstance(number, float):
        return f"{number:.4g}"
    return f"{number:_}" if isinstance(number, int) and number >= 1_000_000 else text


def _other_names() -> str:
    """Return the last section of ``--help all``: keys without effect, and old names of keys."""
    by_reason: dict[str, list[str]] = {}
    for name, reason in UNUSED.items():
        by_reason.setdefault(reason, []).append(name)
    unused = (f"{reason}: {', '.join(names)}" for reason, names in by_reason.items())
    renamed = (f"{name}: {new}" for name, new in RENAMES.items())
    lines = ["Accepted but unused here:", *unused, "Accepted under another name:", *renamed]
    options: Any = {"break_on_hyphens": False, "break_long_words": False}
    text = ""
    for line in lines:
        first = "" if line.startswith("Accepted") else "  "
        text += textwrap.fill(
            line, WIDTH, initial_indent=first, subsequent_indent=" " * 6, **options
        )
        text += "\n"
    return text
