"""Notes of a run: trainer, family, keys without an effect, and the best possible score."""

import re

from puffer_mlx.config.families import FAMILIES
from puffer_mlx.config.finding import find_config
from puffer_mlx.config.fit import typed
from puffer_mlx.config.schema import KEYS, Config
from puffer_mlx.config.schema.base import NO_TRACKER
from puffer_mlx.config.schema.selfplay import OTHERS, RELEASES, RULES

WITHOUT_OPPONENTS = (  # keys that do nothing without self-play
    *(name for rules in RULES.values() for name in (rules.count, rules.part)),
    *(f"selfplay.{key}" for key in KEYS["selfplay"] if key != "enabled"),
)
BEST_SCORE = re.compile(r"^; best score: (\S+)((?: \w+=\S+)*)$", re.MULTILINE)
OF_TRACKERS = "base.wandb_project", "base.wandb_group", "base.tag"


def trainer_note(config: Config) -> str:
    """Return the first line of a run: its trainer, the reason for it, and the rules for opponents.

    Args:
        config: Valid configuration.
    """
    why = config.chosen_by.removesuffix(" says train.algorithm")
    why = f" ({why})" if why else ""
    trainer = f"trainer {config.train.algorithm}, {config.facts.title}"
    return f"{config.env_name}: {trainer}{why}{_opponents(config)}"


def _opponents(config: Config) -> str:
    """Return a text about the opponents of a run, or "" without any."""
    if not (number := config.opponents):
        return ""
    several = "an opponent" if number == 1 else f"{number} opponents"
    return f"; {several} by {RELEASES[config.selfplay_rules]}'s rules"


def unread(config: Config, goes_on: bool = False) -> list[str]:
    """Return the given keys that have no effect on this run.

    Args:
        config: Valid configuration.
        goes_on: True for a resumed run.
    """
    names = config.facts.unread
    if config.selfplay.enabled:
        other = RULES[OTHERS[config.selfplay_rules]]
        names += other.count, other.part, *other.further
    else:
        names += WITHOUT_OPPONENTS
    adaptive = config.train.lr_schedule == "adaptive"
    names = *names, "train.min_lr_ratio" if adaptive else "train.desired_kl"
    if not (config.facts.evaluates_apart or config.base.eval_interval):
        names = "base.eval_agents", *names
    if ":" in config.train.advantage:  # a function of the user's own, for any trainer
        names = tuple(name for name in names if name != "train.advantage")
    said = [key for key in names if key in config.origins]
    if goes_on and typed(config, "base.seed"):
        said.append("base.seed (a run that goes on has its random keys)")
    if config.base.track == NO_TRACKER and not config.base.wandb:
        why = "of trackers, and none is named"
        said += (f"{key} ({why})" for key in OF_TRACKERS if typed(config, key))
    return said


def family_note(config: Config) -> str | None:
    """Return the line about the family and its files, or None for environments in C."""
    if not config.python:
        return None
    family = FAMILIES.get(config.base.family)
    kind = family.kind if family else "Python"
    files = config.files[1:]  # default.ini goes without saying
    return f"{config.env_name}: {kind}" + (f" ({', '.join(files)})" if files else "")


def take_notes(config: Config) -> list[str]:
    """Remove and return the notes of a configuration."""
    notes, config.notes = config.notes, []
    return notes


def unused_note(config: Config) -> str | None:
    """Return the line about accepted keys without an effect here, or None."""
    return (
        f"unused here: {', '.join(config.unused)} (--help all says why)" if config.unused else None
    )


def missing_steps(config: Config, epoch: int) -> str:
    """Return why a run has fewer steps than requested, as the end of a line; "" if it has them.

    Args:
        config: Configuration of the run.
        epoch: Number of completed epochs.
    """
    asked = int(config.train.total_timesteps)
    if epoch < config.epochs:
        return f": stopped before {config.epochs * config.batch_size:,}"
    if epoch * config.batch_size < asked:
        return f", rounded down from {asked:,} (whole epochs)"
    return ""


def best_score(config: Config) -> float | None:
    """Return the highest possible score of an environment that comes with puffer_mlx, if known.

    The comment ``; best score: 864 brick_rows=6`` in its file says it, for these values of [env].
    """
    if config.python or config.source:
        return None
    match = BEST_SCORE.search(find_config(config.env_name).read_text(encoding="utf-8"))
    if not match:
        return None
    wanted = (each.partition("=") for each in match[2].split())
    same = all(config.env.get(key) == float(value) for key, _, value in wanted)
    return float(match[1]) if same else None
