"""What a run with self-play can't be: checks of keys alone, before any environment is made.

How many agents an environment has isn't known here: whether whole teams and whole environments are
left is checked where seats are given out.
"""

from collections.abc import Iterator
from typing import NamedTuple

from puffer_mlx.config.schema import Config
from puffer_mlx.config.schema.selfplay import OF_4, OTHERS, RULES

ON = "selfplay.enabled"


class Fault(NamedTuple):
    """What is wrong."""

    names: tuple[str, ...]  # of the keys that say so
    message: str
    hint: str


def selfplay_faults(config: Config) -> Iterator[Fault]:
    """What is wrong with a configuration of a run with self-play; each key is sound by itself."""
    rules = config.selfplay_rules
    keys, other = RULES[rules], RULES[OTHERS[rules]]
    count, part = (config.value(name) for name in (keys.count, keys.part))
    if count == keys.none:
        message = f"{ON} 1 needs opponents, and {keys.count} {count} is none"
        if config.value(other.count) != other.none:
            message += f" (selfplay.rules {rules} doesn't read {other.count})"
        yield Fault((ON, keys.count, "selfplay.rules"), message, keys.example)
    elif not part:
        message = f"{keys.part} {part:g} leaves the {count - keys.none} opponents no agents"
        yield Fault((ON, keys.count, keys.part), message, f"--{_option(keys.part)} 0.25")
    elif rules == OF_4:
        yield from _shares(config)
    for name, ours in zip(keys.sizes, ("policy.hidden_size", "policy.num_layers"), strict=True):
        size, own = config.value(name), config.value(ours)
        if count != keys.none and size not in (0, own):
            message = f"{name} {size} isn't {ours} {own}: opponents are the learner's own weights"
            yield Fault((name, ours), message, f"{name} 0")
    if config.train.gpus > 1:
        message = f"{ON} 1 and train.gpus {config.train.gpus}: there is no self-play of several"
        yield Fault((ON, "train.gpus"), f"{message} ranks", "--train.gpus 1")
    bots = config.selfplay.eval_bots.replace(" ", "").split(",")
    if len(bots) > 16 or not all(bot.isdecimal() for bot in bots):
        message = f"selfplay.eval_bots {config.selfplay.eval_bots} aren't at most 16 whole numbers"
        yield Fault(("selfplay.eval_bots",), message, "with commas between them: 0, 1, 2")


def _shares(config: Config) -> Iterator[Fault]:
    """What is wrong with the opponents' parts by 4.0's rules, whatever teams there are."""
    vec = config.vec
    names = "vec.num_frozen_banks", "vec.frozen_bank_pct"
    said = f"vec.frozen_bank_pct {vec.frozen_bank_pct:g}"
    group = max(1, vec.total_agents // vec.num_buffers)
    if group * vec.frozen_bank_pct < 1:
        message = f"{said} of the {group} agents of a buffer is less than one agent"
        yield Fault(names, message, f"{1 / group:.3g} or more, or more agents")
    elif vec.num_frozen_banks * vec.frozen_bank_pct > 0.5:
        most = 0.5 / vec.num_frozen_banks
        message = f"{said} of each of {vec.num_frozen_banks} opponents is more than half"
        hint = f"less than {most:g}: in every game that an opponent plays the learner plays, too"
        yield Fault(names, message, hint)


def _option(name: str) -> str:
    return name.replace("_", "-")
