"""What a run says at its start: whose trainer it has, its family, and which keys do nothing."""

from puffer_mlx.config.families import FAMILIES
from puffer_mlx.config.fit import typed
from puffer_mlx.config.schema import KEYS, Config
from puffer_mlx.config.schema.base import NO_TRACKER
from puffer_mlx.config.schema.selfplay import OTHERS, RELEASES, RULES

WITHOUT_OPPONENTS = (  # keys that do nothing without self-play
    *(name for rules in RULES.values() for name in (rules.count, rules.part)),
    *(f"selfplay.{key}" for key in KEYS["selfplay"] if key != "enabled"),
)
OF_TRACKERS = "base.wandb_project", "base.wandb_group", "base.tag"


def trainer_note(config: Config) -> str:
    """The first line of a run: whose trainer it has, and why; and whose rules for opponents.

    Args:
        config: a valid one, made by whatever means.
    """
    why = f" ({config.chosen_by})" if config.chosen_by else ""
    return f"{config.env_name}: {config.facts.title}{why}{_opponents(config)}"


def _opponents(config: Config) -> str:
    """A run's opponents in words; empty if it has none."""
    if not (number := config.opponents):
        return ""
    several = "an opponent" if number == 1 else f"{number} opponents"
    return f"; {several} by {RELEASES[config.selfplay_rules]}'s rules"


def unread(config: Config, goes_on: bool = False) -> list[str]:
    """Keys that were given and that the run's trainer, self-play or trackers don't obey.

    Args:
        config: a valid one.
        goes_on: whether the run goes on from a checkpoint.
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
    """The line at the start of training; None for environments in C."""
    if not config.python:
        return None
    family = FAMILIES.get(config.base.family)
    kind = family.kind if family else "Python"
    files = config.files[1:]  # default.ini goes without saying
    return f"{config.env_name}: {kind}" + (f" ({', '.join(files)})" if files else "")


def take_notes(config: Config) -> list[str]:
    """What a script says at its start, a line each; none of them twice."""
    notes, config.notes = config.notes, []
    return notes


def unused_note(config: Config) -> str | None:
    """The line to print once about accepted keys that do nothing here; None without one."""
    return (
        f"unused here: {', '.join(config.unused)} (--help all says why)" if config.unused else None
    )
