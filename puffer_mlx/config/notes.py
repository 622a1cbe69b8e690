"""Lines that a run prints about its configuration: trainer, family, keys without an effect."""

import re

from puffer_mlx.config.families import FAMILIES
from puffer_mlx.config.finding import find_config
from puffer_mlx.config.fit import is_explicit
from puffer_mlx.config.schema import KEYS, Config
from puffer_mlx.config.schema.base import NO_TRACKER
from puffer_mlx.config.schema.selfplay import OTHER_RULES, RULE_KEYS, RULES_RELEASE

SELFPLAY_KEYS = (  # keys without an effect unless selfplay.enabled
    *(name for rules in RULE_KEYS.values() for name in (rules.count, rules.fraction)),
    *(f"selfplay.{key}" for key in KEYS["selfplay"] if key != "enabled"),
)
BEST_SCORE = re.compile(r"^; best score: (\S+)((?: \w+=\S+)*)$", re.MULTILINE)
TRACKER_KEYS = "base.wandb_project", "base.wandb_group", "base.tag"


def trainer_note(config: Config) -> str:
    """Return a line that names a run's trainer, why it was chosen, and the rules for opponents.

    Args:
        config: Valid configuration.
    """
    # Of the reason "FILE says train.algorithm", the file is enough beside the trainer's name.
    reason = config.trainer_reason.removesuffix(" says train.algorithm")
    reason = f" ({reason})" if reason else ""
    trainer = f"trainer {config.train.algorithm}, {config.facts.title}"
    return f"{config.env_name}: {trainer}{reason}{_opponents_text(config)}"


def _opponents_text(config: Config) -> str:
    """Return text about self-play's opponents for the line about a run's trainer; may be ""."""
    if not (count := config.opponents):
        return ""
    opponents = "an opponent" if count == 1 else f"{count} opponents"
    return f"; {opponents} by {RULES_RELEASE[config.selfplay_rules]}'s rules"


def keys_without_effect(config: Config, resumed: bool = False) -> list[str]:
    """Return the names of configuration keys that were set but have no effect on this run.

    Args:
        config: Valid configuration.
        resumed: True for a resumed run.
    """
    names = list(config.facts.unused)
    if config.selfplay.enabled:
        unused_rules = RULE_KEYS[OTHER_RULES[config.selfplay_rules]]
        names += [unused_rules.count, unused_rules.fraction, *unused_rules.further]
    else:
        names += SELFPLAY_KEYS
    adaptive = config.train.lr_schedule == "adaptive"
    names.append("train.min_lr_ratio" if adaptive else "train.desired_kl")
    if not (config.facts.evaluates_apart or config.base.eval_interval):
        names.insert(0, "base.eval_agents")
    if ":" in config.train.advantage:  # a custom function works with any trainer
        names = [name for name in names if name != "train.advantage"]
    keys = [key for key in names if key in config.origins]
    if resumed and is_explicit(config, "base.seed"):
        keys.append("base.seed (a resumed run continues its random keys)")
    if config.base.track == NO_TRACKER and not config.base.wandb:
        reason = "needs a tracker, see base.track"
        keys += (f"{key} ({reason})" for key in TRACKER_KEYS if is_explicit(config, key))
    return keys


def family_note(config: Config) -> str | None:
    """Return a line about a Python environment's family and settings files; None for one in C."""
    if not config.python:
        return None
    family = FAMILIES.get(config.base.family)
    kind = family.kind if family else "Python"
    files = config.files[1:]  # without default.ini, which is always read
    return f"{config.env_name}: {kind}" + (f" ({', '.join(files)})" if files else "")


def take_notes(config: Config) -> list[str]:
    """Return the notes stored in a configuration and remove them, to print them once."""
    notes, config.notes = config.notes, []
    return notes


def unused_keys_note(config: Config) -> str | None:
    """Return a line that lists a configuration's keys without effect, or None if there are none."""
    if not config.unused:
        return None
    return f"unused here: {', '.join(config.unused)} (--help all says why)"


def missing_steps_text(config: Config, epoch: int) -> str:
    """Return text that explains why a run has fewer steps than requested; "" if it has all of them.

    The text is appended to the number of steps: ", rounded down from 1,000 (whole epochs)".

    Args:
        config: Configuration of the run.
        epoch: Number of completed epochs.
    """
    requested = int(config.train.total_timesteps)
    if epoch < config.epochs:
        return f": stopped before {config.epochs * config.batch_size:,}"
    if epoch * config.batch_size < requested:
        return f", rounded down from {requested:,} (whole epochs)"
    return ""


def best_score(config: Config) -> float | None:
    """Return the highest possible score of a shipped environment, or None if unknown.

    A comment in the environment's file states the score, for certain values of [env]:
    ``; best score: 864 brick_rows=6``.
    """
    if config.python or config.source:
        return None
    match = BEST_SCORE.search(find_config(config.env_name).read_text(encoding="utf-8"))
    if not match:
        return None
    parameters = (each.partition("=") for each in match[2].split())
    same = all(config.env.get(key) == float(value) for key, _, value in parameters)
    return float(match[1]) if same else None
