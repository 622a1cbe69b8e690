"""Checks of a whole configuration: every key's range, and every relation between keys."""

import math
from collections.abc import Collection, Iterator, Sequence

from puffer_mlx.config.key import INT_MAX
from puffer_mlx.config.parts import algorithms, facts
from puffer_mlx.config.schema import DECLARED, GOALS, Config, Wrap, minibatches
from puffer_mlx.config.schema.selfplay import OF_4, OTHERS, RULES
from puffer_mlx.errors import UserError

MAX_PROBLEMS = 20  # in one message
Problem = tuple[Sequence[str], str, str]  # the keys that say so, what is wrong, a hint
OF_GAMES = {  # key of [wrap] -> argument of an Atari game named by its id
    "sticky_actions": "repeat_action_probability",
    "grayscale": "grayscale",
    "resize_height": "img_height",
    "resize_width": "img_width",
    "clip_rewards": "reward_clipping",
    "frame_stack": "stack_num",
}


def validate(config: Config, training: bool = True) -> None:
    """Check every key's type and range, then every relation between keys.

    Args:
        config: Configuration to check.
        training: False to skip the relations, which only training depends on.

    Raises:
        UserError: All problems, each with the key, its value, its origin and a legal value.
    """
    raise_problems(find_problems(config, training))


def find_problems(config: Config, training: bool = True) -> list[UserError]:
    """Return the problems that ``validate`` would raise."""
    problems: list[UserError] = []
    faulty: set[str] = set()

    def report(names: Sequence[str], message: str, hint: str) -> None:
        origins = dict.fromkeys(config.origins[name] for name in names if name in config.origins)
        problems.append(UserError(message + (f" ({'; '.join(origins)})" if origins else ""), hint))

    def sound(*names: str) -> bool:
        return faulty.isdisjoint(names)

    for name, declared in DECLARED.items():
        if fault := declared.fault(config.value(name)):
            faulty.add(name)
            report([name], f"{name} {fault[0]}", fault[1])

    texts = {name: config.value(name) for name in DECLARED}
    texts |= {"base.env_name": config.env_name, "env.source": config.source}
    texts |= {f"env.{key}": value for key, value in config.env.items()}
    for name, text in texts.items():
        if isinstance(text, str) and not _is_unicode(text):
            report([name], f"{name} is {text!r}, which is not UTF-8", "use a name in UTF-8")

    given = [key for key in OF_GAMES if f"wrap.{key}" in config.origins]
    by_id = config.python and "ALE/" in config.env_name
    for names, message, hint in settled_wrappers(config.wrap, given, by_id):
        report(names, message, hint)
    if not training:
        return problems
    if config.base.eval_agents == 0:
        report(["base.eval_agents"], "base.eval_agents 0 is none", "-1, as many as are trained on")
    interval, every = config.base.eval_interval, f"base.eval_interval {config.base.eval_interval}"
    if (
        sound("base.eval_interval", "base.eval_episodes")
        and interval
        and not config.base.eval_episodes
    ):
        names = "base.eval_interval", "base.eval_episodes"
        report(names, f"{every} evaluates base.eval_episodes 0, which is none", "20, say")
    for name, on in (
        ("base.eval_greedy", config.base.eval_greedy),
        ("base.eval_video_interval", config.base.eval_video_interval),
        ("base.stop_at_score", config.base.stop_at_score != "none"),
    ):
        if on and not interval and sound(name, "base.eval_interval"):
            value = getattr(config.base, name.partition(".")[2])
            message = f"{name} {value} is of evaluations while training, and there are none"
            report([name, "base.eval_interval"], message, "base.eval_interval 100_000, say")
    if config.goal not in GOALS:
        message = f"sweep.goal {config.goal} does not exist here"
        report(["sweep.goal"], message, " or ".join(GOALS))
    names = "base.stop_at_score", "sweep.metric"
    if interval and config.base.stop_at_score != "none" and not config.evaluation_metric:
        message = "base.stop_at_score is of evaluations, and evaluations don't report"
        report(names, f"{message} {config.metric}", "sweep.metric score, say")
    agents, buffers = config.vec.total_agents, config.vec.num_buffers
    names = ("vec.total_agents", "vec.num_buffers")
    if sound(*names) and agents % buffers:
        legal = f"{_divisors(agents, buffers)}, or vec.total_agents {multiples(agents, buffers)}"
        message = f"vec.total_agents {agents} is not a multiple of vec.num_buffers {buffers}"
        report(names, message, f"vec.num_buffers {legal}")

    train, known = config.train, sound("train.algorithm")
    by_samples = known and config.shuffles_samples
    epoch = f"vec.total_agents {agents} x train.horizon {train.horizon}"
    names = ("train.total_timesteps", "vec.total_agents", "train.horizon")
    if sound(*names) and config.epochs < 1:
        message = f"train.total_timesteps {train.total_timesteps} is less than an epoch, {epoch}"
        report(names, message, f"{config.batch_size} or more")

    names = ("train.minibatch_size", "train.horizon", "vec.total_agents")
    if sound(*names) and train.minibatch_size > config.batch_size:
        message = f"train.minibatch_size {train.minibatch_size} is more than an epoch, {epoch}"
        report(names, message, f"{config.batch_size} or less")
    elif sound(*names[:2]) and not by_samples and train.minibatch_size % train.horizon:
        message = f"train.minibatch_size {train.minibatch_size} is not a multiple of train.horizon"
        legal = multiples(train.minibatch_size, train.horizon)
        report(names[:2], f"{message} {train.horizon}", legal)
    elif sound(*names, "train.replay_ratio") and config.minibatches < 1:
        part = train.minibatch_size / config.batch_size
        least = round(part, 3)
        if minibatches(least, config.batch_size, train.minibatch_size) < 1:
            least += 0.001
        message = f"train.replay_ratio {train.replay_ratio} trains no minibatch in an epoch: "
        message += f"train.minibatch_size {train.minibatch_size} is {part:g} of {epoch}"
        report(("train.replay_ratio", *names), message, f"{least:g} or more")
    elif sound(*names) and known and config.facts.in_order and agents % (S := config.segments):
        message = f"vec.total_agents {agents} is not a multiple of a minibatch's {S} segments,"
        message += f" train.minibatch_size {train.minibatch_size} / train.horizon {train.horizon}:"
        message += f" {train.algorithm} takes them in their order"
        sizes = _divisors(agents, S, times=train.horizon)
        legal = f"train.minibatch_size {sizes}, or vec.total_agents {multiples(agents, S)}"
        report(names, message, legal)
    if train.lr_schedule == "adaptive" and not train.anneal_lr:
        names = "train.lr_schedule", "train.anneal_lr"
        message = "train.lr_schedule is adaptive, and train.anneal_lr False keeps the learning rate"
        report(names, message, "train.anneal_lr 1, or another schedule")
    if sound("train.target_kl") and train.target_kl and known and not config.facts.stops_by_kl:
        obey = " or ".join(name for name in algorithms() if facts(name).stops_by_kl)
        message = f"train.target_kl {train.target_kl} is of {obey}'s passes over a rollout, and"
        message += f" train.algorithm is {train.algorithm}"
        hint = f"train.algorithm {obey}, or train.target_kl 0"
        report(("train.target_kl", "train.algorithm"), message, hint)
    if config.selfplay.enabled and not faulty:
        for names, message, hint in selfplay_faults(config):
            report(names, message, hint)
    return problems


def settled_wrappers(wrap: Wrap, given: Collection[str], by_id: bool) -> Iterator[Problem]:
    """Yield problems of [wrap] keys that a preset or a game's own arguments override.

    Args:
        wrap: Section [wrap].
        given: Keys that were set, possibly to their defaults.
        by_id: True if the environment is an Atari game named by its id.
    """
    for key, argument in OF_GAMES.items():
        if key not in given:
            continue
        if by_id:
            message = f"wrap.{key} is not for Atari's games by their ID, which have env.{argument}"
            hint = f"env.{argument}; or wrap.preset atari for all that is"
            yield (f"wrap.{key}",), message, f"{hint} usual"
        elif wrap.preset != "none" and key != "sticky_actions":
            message = f"wrap.preset {wrap.preset} and wrap.{key}, which it settles itself"
            yield ("wrap.preset", f"wrap.{key}"), message, "leave one of them out"


def _is_unicode(text: str) -> bool:
    """Return True if a text can be written in UTF-8; a path that isn't UTF-8 can't."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def multiples(value: int, step: int) -> str:
    """Return the positive multiples of step on both sides of value, as text."""
    lower = value // step * step
    return " or ".join(
        str(multiple) for multiple in (lower, lower + step) if 0 < multiple <= INT_MAX
    )


def _divisors(value: int, near: int, times: int = 1) -> str:
    """Return the divisors of value on both sides of near, multiplied by ``times``, as text."""
    small = [n for n in range(1, math.isqrt(value) + 1) if value % n == 0]
    divisors = sorted({*small, *(value // n for n in small)})
    below, above = [n for n in divisors if n < near], [n for n in divisors if n > near]
    return " or ".join(str(n * times) for n in below[-1:] + above[:1])


def raise_problems(problems: list[UserError]) -> None:
    """Raise several problems as one numbered UserError, and a single one unchanged.

    Nothing is raised for an empty list. The first ``MAX_PROBLEMS`` are shown.
    """
    if len(problems) == 1:
        raise problems[0]
    if problems:
        lines = [f"{len(problems):,} problems in the configuration:"]
        for number, problem in enumerate(problems[:MAX_PROBLEMS], 1):
            lines.append(f"{number}. {problem}".replace("\n", "\n   "))
        if len(problems) > MAX_PROBLEMS:
            lines.append(f"and {len(problems) - MAX_PROBLEMS:,} more")
        raise UserError("\n  ".join(lines))


# ---- self-play: how many agents an environment has isn't known here; seats are checked later ----


def selfplay_faults(config: Config) -> Iterator[Problem]:
    """Yield the problems of a self-play configuration whose keys are valid one by one."""
    rules = config.selfplay_rules
    keys, other = RULES[rules], RULES[OTHERS[rules]]
    count, part = (config.value(name) for name in (keys.count, keys.part))
    if count == keys.none:
        message = f"selfplay.enabled 1 needs opponents, and {keys.count} {count} is none"
        if config.value(other.count) != other.none:
            message += f" (selfplay.rules {rules} doesn't read {other.count})"
        yield ("selfplay.enabled", keys.count, "selfplay.rules"), message, keys.example
    elif not part:
        message = f"{keys.part} {part:g} leaves the {count - keys.none} opponents no agents"
        yield (
            ("selfplay.enabled", keys.count, keys.part),
            message,
            keys.example.rpartition(", ")[2],
        )
    elif rules == OF_4:
        yield from _shares(config)
    for name, ours in zip(keys.sizes, ("policy.hidden_size", "policy.num_layers"), strict=True):
        size, learner = config.value(name), config.value(ours)
        if count != keys.none and size not in (0, learner):
            message = f"{name} {size} isn't {ours} {learner}"
            why = "opponents are the learner's own weights"
            yield (name, ours), f"{message}: {why}", f"{name} 0"
    if config.train.gpus > 1:
        message = f"selfplay.enabled 1 and train.gpus {config.train.gpus}: there is no self-play"
        yield ("selfplay.enabled", "train.gpus"), f"{message} of several ranks", "train.gpus 1"
    bots = config.selfplay.eval_bots.replace(" ", "").split(",")
    if len(bots) > 16 or not all(bot.isdecimal() for bot in bots):
        message = f"selfplay.eval_bots {config.selfplay.eval_bots} aren't at most 16 whole numbers"
        yield ("selfplay.eval_bots",), message, "with commas between them: 0, 1, 2"


def _shares(config: Config) -> Iterator[Problem]:
    """Yield problems with the fractions of agents per opponent by 4.0's rules."""
    vec = config.vec
    names = "vec.num_frozen_banks", "vec.frozen_bank_pct"
    share = f"vec.frozen_bank_pct {vec.frozen_bank_pct:g}"
    group = max(1, vec.total_agents // vec.num_buffers)
    if group * vec.frozen_bank_pct < 1:
        message = f"{share} of the {group} agents of a buffer is less than one agent"
        yield names, message, f"{1 / group:.3g} or more, or more agents"
    elif vec.num_frozen_banks * vec.frozen_bank_pct > 0.5:
        most = 0.5 / vec.num_frozen_banks
        message = f"{share} of each of {vec.num_frozen_banks} opponents is more than half"
        hint = f"less than {most:g}: in every game that an opponent plays the learner plays, too"
        yield names, message, hint
