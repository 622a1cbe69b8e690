"""What ``--help`` shows: a page, of the keys that most people set. ``--help all`` shows all."""

import argparse
import shutil
import textwrap
from collections.abc import Mapping
from copy import copy
from typing import Any

from puffer_mlx.config.schema import DECLARED
from puffer_mlx.config.values import parse_number

COMMON = {  # the page's keys in its order, each in a few words
    "train.total_timesteps": "steps of the run, of all agents",
    "base.seed": "of weights and of actions",
    "base.device": "where MLX computes",
    "train.algorithm": "PufferLib 4.0's, 5.0's, or PPO",
    "train.optimizer": "of Muon's rates a tenth suits Adam",
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
    "torch.encoder": "what sees",
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
        text = parser.format_help() if values == ALL else page(parser, self.texts)
        print(text, end="")
        parser.exit()


def add_help(parser: argparse.ArgumentParser, texts: Mapping[str, str]) -> None:
    """Give a parser, made without help, the page and the whole."""
    parser.add_argument(
        "-h", "--help", action=Help, texts=texts, help=f"this page; {ALL}: every key and option"
    )


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
            if own := [name for name in options if name.startswith("--env.")]:
                formatter.add_text(_environment(own, texts))
        own = [each for each in group._group_actions if _shown(each)]
        _section(formatter, group.title, group.description, own)
    return formatter.format_help()


def _section(
    formatter: argparse.HelpFormatter, title: str | None, about: str | None, actions: list[Any]
) -> None:
    if actions:
        formatter.start_section(title)
        formatter.add_text(about)
        formatter.add_arguments(actions)
        formatter.end_section()


def _shown(action: argparse.Action) -> bool:
    """Whether the page shows an option of a script, or what stands without one."""
    key = "." in action.dest
    return not key and action.help != argparse.SUPPRESS and not RARE & {*action.option_strings}


def _common(options: Mapping[str, argparse.Action], texts: Mapping[str, str]) -> list[Any]:
    """The common keys that a script obeys, as options with few words."""
    by_key = {action.dest: action for action in options.values()}
    found = []
    for name, words in COMMON.items():
        if (action := by_key.get(name)) and action.help != argparse.SUPPRESS:
            declared = DECLARED[name]
            few = copy(action)
            value = texts.get(name, str(declared.default))
            few.help = f"{words} ({_brief(value)})".replace("%", "%%")
            few.nargs = None
            if declared.choices and len("|".join(declared.choices)) < 16:
                few.metavar = "|".join(declared.choices)
            found.append(few)
    return found


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
