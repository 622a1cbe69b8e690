"""Options: every key of a configuration, and those that a script adds, into a list of `Setting`.

``--help`` shows a page, of the keys that most people set; ``--help all`` shows all.
"""

import argparse
import re
import shutil
import textwrap
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from difflib import get_close_matches
from typing import Any, NoReturn

from puffer_mlx.config.compatibility import ELSEWHERE, REMOVED, RENAMES, SWEEP, UNUSED, closest
from puffer_mlx.config.key import Setting
from puffer_mlx.config.schema import COMMAND_LINE, DECLARED, KEYS, SECTIONS
from puffer_mlx.config.values import parse_number
from puffer_mlx.errors import UserError
from puffer_mlx.system import program

ENVIRONMENT = f"""\
ENV: a name that `{program.COMMAND} list` shows; gym:ID, one of Gymnasium's;
module:factory, Python; a folder in PufferLib's form; or the path of an .ini
file."""
WORDS = {bool: "BOOL", int: "INT", float: "FLOAT", str: "TEXT"}  # how help shows an option's value


class _Last(argparse.Action):
    """Stores a value, and puts it behind those of all options before: the last spelling wins."""

    def __call__(self, parser, namespace, values, option_string=None) -> None:
        vars(namespace).pop(self.dest, None)
        setattr(namespace, self.dest, values)


class Parser(argparse.ArgumentParser):
    """An ArgumentParser whose errors are UserErrors, and that guesses at no option.

    Args:
        texts: of keys, what an environment's files say, for ``--help``.
        how: ArgumentParser's own arguments.
    """

    def __init__(self, texts: Mapping[str, str] | None = None, **how: Any) -> None:
        form = argparse.RawDescriptionHelpFormatter
        super().__init__(formatter_class=form, allow_abbrev=False, add_help=False, **how)
        words = f"this page; {ALL}: every key and option"
        self.add_argument("-h", "--help", action=Help, texts=texts or {}, help=words)

    def add_argument_group(self, title: str, description: str | None = None) -> Any:
        """Argparse's, with lines that fit a terminal."""
        return super().add_argument_group(title, _filled(description or "") or None)

    def error(self, message: str) -> NoReturn:
        """Refuse a command line."""
        raise UserError(f"{message} ({COMMAND_LINE})", "--help all explains every option")

    def parse(self, argv: Sequence[str]) -> argparse.Namespace:
        """The options of a program that has no configuration.

        Raises:
            UserError: anything wrong; of an unknown option with the closest one.
        """
        namespace, rest = self.parse_known_args(argv)
        if rest:
            raise _unknown(self, rest, None, "--help shows what there is")
        return namespace


def _epilog() -> str:
    """What PufferLib's files may say besides: keys that do nothing here, by reason; other names."""
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
    """The option that sets a key: `--train.learning-rate`; for [base] `--seed`."""
    return "--" + f"{section}.{key}".removeprefix("base.").replace("_", "-")


def env_options(argv: Sequence[str]) -> list[str]:
    """The names of the [env] keys that a command line gives, whatever they are."""
    names = (word.partition("=")[0] for word in spelled(argv) if word.startswith("--env."))
    return [f"env.{name.removeprefix('--env.').replace('-', '_')}" for name in names]


def first_look(argv: Sequence[str], *names: str) -> dict[str, str | None]:
    """What a command line gives some options, before there is a configuration to parse it by.

    Args:
        argv: the words.
        names: options, as ``--resume``, or keys, as ``train.algorithm``.

    Returns:
        Of those that are given the text; None where there is no value.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for name in names:
        word = name if name.startswith("--") else option(*name.split("."))
        parser.add_argument(word, dest=name, nargs="?", default=argparse.SUPPRESS)
    texts = vars(parser.parse_known_args(spelled(argv))[0])
    return {name: text if text is None else text.strip() for name, text in texts.items()}


def obeys(obeyed: Sequence[str] | None, name: str) -> bool:
    """Whether a script that obeys these sections and keys, None for all, obeys a key."""
    if name in UNUSED:
        return False
    if name in RENAMES:
        name = RENAMES[name].name
    return obeyed is None or name in obeyed or name.partition(".")[0] in ("env", *obeyed)


def build_parser(
    files: Sequence[Setting] = (),
    others: Sequence[str] = (),
    extra: Callable[[argparse.ArgumentParser], object] | None = None,
    obeyed: Sequence[str] | None = None,
) -> argparse.ArgumentParser:
    """A parser with an option for every declared key, every unused one and every [env] key.

    Args:
        files: what the files say: the defaults that help shows; its [env] keys become options.
        others: further [env] keys: a Python environment takes what its function takes.
        extra: called with the parser to add the script's own options.
        obeyed: sections and keys that the script obeys, besides [env]; None for all. The others
            are accepted, so that a command line of another script is, and help doesn't show them.
    """
    texts = {setting.name: setting.text for setting in files}
    usage = "%(prog)s ENV [options]"
    parser = Parser(texts, usage=usage, description=ENVIRONMENT, epilog=_epilog())
    for section, keys in KEYS.items():
        shown_keys = {key: k for key, k in keys.items() if obeys(obeyed, f"{section}.{key}")}
        if not shown_keys:
            continue
        group = parser.add_argument_group(f"[{section}]", SECTIONS[section].__doc__)
        for key, declared in shown_keys.items():
            name = f"{section}.{key}"
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
    if extra is not None:
        extra(parser)
    ignored = [name for name in DECLARED if not obeys(obeyed, name)]
    swept = [s.name for s in files if s.section.partition(".")[0] == "sweep"]
    names = [*UNUSED, *REMOVED, *RENAMES, *SWEEP, *swept, *ignored, *others]
    for name, help in (dict.fromkeys(names, argparse.SUPPRESS) | helps).items():
        if option(*name.split(".", 1)) not in parser._option_string_actions:  # the script's own
            metavar = "PATH" if name == "env.source" else "FLOAT"
            _add(group, name, metavar=metavar, bare=_may_be_bare(name), help=help)
    return parser


def _add(group: argparse._ArgumentGroup, name: str, metavar: str, bare: bool, help: str) -> None:
    """Add the option of a key; ``bare``: without a value it is true, as in PufferLib 5.0."""
    group.add_argument(
        option(*name.split(".", 1)),
        action=_Last,
        dest=name,
        default=argparse.SUPPRESS,  # leaves no trace where it isn't given
        metavar=metavar,
        help=help,
        nargs="?" if bare else None,
        const="true",
    )


def _may_be_bare(name: str) -> bool:
    """Whether a key that isn't shown, or the environment's, may be true."""
    if name in RENAMES and not RENAMES[name].off:
        name = RENAMES[name].name
    declared = DECLARED.get(name)
    return isinstance(declared.default, bool) if declared else name != "env.source"


def parse_options(
    parser: argparse.ArgumentParser, argv: Sequence[str], obeyed: Sequence[str] | None = None
) -> tuple[list[Setting], argparse.Namespace]:
    """Split a command line (without ENV) into settings and the options that a script has added.

    Raises:
        UserError: an unknown option, with the closest one; a missing or an empty value.
    """
    words = spelled(argv)
    _refuse_empty(parser, words)
    namespace, rest = parser.parse_known_args(words)
    if rest:
        raise _unknown(parser, rest, obeyed)
    settings: list[Setting] = []
    options = argparse.Namespace()
    for name, value in vars(namespace).items():
        section, dot, key = name.rpartition(".")
        if dot:
            settings.append(Setting(section, key, value.strip(), COMMAND_LINE))
        else:
            setattr(options, name, value)
    return settings, options


def spelled(argv: Sequence[str]) -> list[str]:
    """Options as they are declared: `--seed` for `--base.seed`, dashes for underscores.

    A negative number (`-1e-3`) is joined to its option.
    """
    words: list[str] = []
    for word in argv:
        name, equals, value = word.partition("=")
        if words and re.fullmatch("--[^=]+", words[-1]) and re.match(r"-[\d.]", word):
            words[-1] += f"={word}"
        elif word.startswith("--"):
            name = re.sub(r"^--base\.", "--", name).replace("_", "-")
            words.append(name + equals + value)
        else:
            words.append(word)
    return words


def _refuse_empty(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    """Refuse a script's own options with an empty value; settings are checked by their keys."""
    for option, word in zip(["", *words], words, strict=False):
        name, equals, value = word.partition("=")
        if not (word.startswith("--") and equals):
            name, value = option, word
        action = parser._option_string_actions.get(name)
        shown = action and action.help != argparse.SUPPRESS  # others are a script's to itself
        if action and shown and "." not in action.dest and not value.strip():
            hint = "give it a value, or leave it out; is a variable of your shell not set?"
            raise UserError(f"the value of {name} is empty ({COMMAND_LINE})", hint)


def _unknown(
    parser: argparse.ArgumentParser,
    rest: list[str],
    obeyed: Sequence[str] | None,
    form: str = "write options as --train.gamma 0.99, after ENV",
) -> UserError:
    """The error for words that no option takes; the hint names only options that do something.

    Args:
        parser: that refused them.
        rest: the words.
        obeyed: see ``obeys``.
        form: the hint of a word that isn't an option.
    """
    name, _, value = rest[0].partition("=")
    if not name.startswith("--"):
        return UserError(f"unexpected {rest[0]!r} ({COMMAND_LINE})", form)
    if not value and len(rest) > 1 and not rest[1].startswith("--"):
        value = rest[1]
    options = [
        word[2:]
        for word, action in parser._option_string_actions.items()
        if word.startswith("--") and ("." not in action.dest or obeys(obeyed, action.dest))
    ]
    hint = "--help all explains every option"
    if name.startswith("--sweep."):  # whose last words, min and max, are no keys' names
        near = "".join(get_close_matches(name[2:], options, n=1, cutoff=0.8))
        hint = "name a key that the environment's file has in a [sweep] section, or PufferLib's own"
    else:
        near = closest(name[2:], options)
    if ours := ELSEWHERE.get(name.rpartition(".")[2].lstrip("-").replace("-", "_")):
        hint = f"here it is {option(*ours.split('.'))}"
    elif near:
        hint = f"did you mean --{near}?"
    return UserError(f"unknown option {name} {value}".rstrip() + f" ({COMMAND_LINE})", hint)


# ---- help ---------------------------------------------------------------------------------------

COMMON = {  # the page's keys in its order, each in a few words
    "train.total_timesteps": "steps of the run, of all agents",
    "base.seed": "of weights and of actions",
    "base.device": "where MLX computes",
    "train.algorithm": "puffer4, puffer5 or ppo",
    "train.optimizer": "adam wants a tenth of muon's rate",
    "train.learning_rate": "at the beginning; see lr_schedule",
    "train.gamma": "discount of a step",
    "train.gae_lambda": "decay of advantages",
    "train.ent_coef": "weight of the entropy bonus",
    "train.clip_coef": "limit of a policy's change",
    "train.horizon": "steps of a rollout",
    "train.minibatch_size": "steps of a minibatch",
    "train.replay_ratio": "how often a step is trained on",
    "vec.total_agents": "agents of all environments together",
    "vec.num_threads": "CPU threads that step environments",
    "vec.backend": "how environments in Python are stepped",
    "policy.hidden_size": "width of the policy",
    "policy.num_layers": "layers of its network",
    "torch.network": "with memory, or without",
    "torch.encoder": "of observations",
    "base.track": "tensorboard, wandb, trackio",
    "base.eval_interval": "steps between two evaluations; 0 is none",
    "base.checkpoint_interval": "epochs between two checkpoints",
    "base.checkpoint_dir": "where checkpoints are kept",
    "base.log_dir": "where logs are kept",
}
RARE = {  # scripts' own options that the page leaves out
    *("--profile-epochs", "--gpu-capture", "--gpu-capture-epochs"),
    *("--allow-code", "--max-steps", "--headless", "--timeout"),
    *("--list", "--version"),
}
ALL = "all"
WIDTH, HELP_COLUMN = 80, 34


def _filled(text: str) -> str:
    """Paragraphs with lines that fit a terminal, indented as argparse does."""
    each = (" ".join(paragraph.split()) for paragraph in text.split("\n\n"))
    return "\n\n".join(textwrap.fill(words, WIDTH - 4) for words in each)


class _Formatter(argparse.HelpFormatter):
    """Argparse's, which breaks lines at hyphens and so options in two."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        text = " ".join(text.split())
        return textwrap.fill(
            text, width, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False
        )


class Help(argparse.Action):
    """``--help`` and ``--help all``.

    Args:
        texts: of keys, what an environment's files say.
    """

    def __init__(self, option_strings, dest, texts: Mapping[str, str], **how: Any) -> None:
        how |= {"default": argparse.SUPPRESS, "nargs": "?", "metavar": ALL}
        super().__init__(option_strings, argparse.SUPPRESS, **how)
        self.texts = texts

    def __call__(self, parser, namespace, values, option_string=None) -> None:
        """Print, and end the program."""
        text = page(parser, self.texts)
        if values == ALL:
            parser.description = _filled(parser.description or "")
            text = parser.format_help()
        print(text, end="")
        parser.exit()


def page(parser: argparse.ArgumentParser, texts: Mapping[str, str]) -> str:
    """Usage, a script's own options, and the common keys.

    Args:
        parser: with everything.
        texts: of keys, what an environment's files say.
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
            _section(formatter, "the usual keys, with their values", None, keys)
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
    """Whether the page shows an option of a script, or what stands without one."""
    key = "." in action.dest
    return not key and action.help != argparse.SUPPRESS and not RARE & {*action.option_strings}


def _common(options: Mapping[str, argparse.Action], texts: Mapping[str, str]) -> list[Any]:
    """The common keys that a script obeys, as options with few words."""
    by_key = {action.dest: action for action in options.values()}
    common = []
    for name, words in COMMON.items():
        if (action := by_key.get(name)) and action.help != argparse.SUPPRESS:
            declared = DECLARED[name]
            few = copy(action)
            value = texts.get(name, str(declared.default))
            few.help = f"{words} ({_brief(value)})".replace("%", "%%")
            few.nargs = None
            if declared.choices and len("|".join(declared.choices)) < 16:
                few.metavar = "|".join(declared.choices)
            common.append(few)
    return common


def _brief(text: str) -> str:
    """A value in a few characters: 0.9721246598992744 is 0.9721, 10000000 is 10_000_000."""
    number = parse_number(text)
    if isinstance(number, float):
        return f"{number:.4g}"
    return f"{number:_}" if isinstance(number, int) and number >= 1_000_000 else text


def _environment(options: list[str], texts: Mapping[str, str]) -> str:
    """The keys of an environment in a paragraph."""
    values = {name: texts.get(name.lstrip("-").replace("-", "_")) for name in options}
    known = [f"{name} {text}" for name, text in values.items() if text is not None]
    return f"its own: {', '.join(known)}".replace("%", "%%") if known else ""
