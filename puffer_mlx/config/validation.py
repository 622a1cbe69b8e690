"""Check a configuration: the range of every key, and the relations between keys."""

import math
from collections.abc import Collection, Iterator, Sequence, Set

from puffer_mlx.config.components import algorithms, facts
from puffer_mlx.config.key import INT_MAX
from puffer_mlx.config.option_names import how_to_set
from puffer_mlx.config.schema import DECLARED, GOAL_SIGNS, Config, Wrap, minibatches
from puffer_mlx.config.schema.selfplay import OTHER_RULES, RULE_KEYS, RULES_OF_4
from puffer_mlx.errors import UserError

MAX_PROBLEMS = 20  # in one message
Problem = tuple[Sequence[str], str, str]  # keys that cause the problem, message, hint
ATARI_ARGUMENTS = {  # key of [wrap] -> argument of an Atari game selected by its id
    "sticky_actions": "repeat_action_probability",
    "grayscale": "grayscale",
    "resize_height": "img_height",
    "resize_width": "img_width",
    "clip_rewards": "reward_clipping",
    "frame_stack": "stack_num",
}


def validate(config: Config, training: bool = True) -> None:
    """Raise a UserError if a configuration's values are out of range or contradict each other.

    The error lists all problems, each with the key, its value, its origin and a legal value.

    Args:
        config: Configuration to check.
        training: False to skip the relations between keys, which only training depends on.
    """
    raise_problems(find_problems(config, training))


def find_problems(config: Config, training: bool = True) -> list[UserError]:
    """Return the problems of a configuration that ``validate`` would raise."""
    problems: list[Problem] = []
    invalid: set[str] = set()  # keys whose value is wrong, apart from other keys
    for name, declared in DECLARED.items():
        if problem := declared.problem(config.value(name)):
            invalid.add(name)
            problems.append(([name], f"{name} {problem[0]}", problem[1]))
    problems += _unicode_problems(config)
    wrap_keys = [key for key in ATARI_ARGUMENTS if f"wrap.{key}" in config.origins]
    is_atari_id = config.python and "ALE/" in config.env_name
    problems += wrapper_problems(config.wrap, wrap_keys, is_atari_id)
    if training:
        problems += _evaluation_problems(config, invalid)
        problems += _epoch_problems(config, invalid)
        problems += _training_problems(config, invalid)
    if training and config.selfplay.enabled and not invalid:
        problems += _selfplay_problems(config)
    return [_error(config, problem) for problem in problems]


def _error(config: Config, problem: Problem) -> UserError:
    """Return a UserError for a problem of a configuration, with the origins of its keys."""
    names, message, hint = problem
    origins = dict.fromkeys(config.origins[name] for name in names if name in config.origins)
    return UserError(message + (f" ({'; '.join(origins)})" if origins else ""), hint)


def _unicode_problems(config: Config) -> Iterator[Problem]:
    """Yield a problem for each text of a configuration that can't be written in UTF-8."""
    texts = {name: config.value(name) for name in DECLARED}
    texts |= {"base.env_name": config.env_name, "env.source": config.source}
    texts |= {f"env.{key}": value for key, value in config.env.items()}
    for name, text in texts.items():
        if isinstance(text, str) and not _is_unicode(text):
            yield [name], f"{name} is {text!r}, which is not UTF-8", "use a name in UTF-8"


def _evaluation_problems(config: Config, invalid: Set[str]) -> Iterator[Problem]:
    """Yield problems of a configuration's keys about evaluations.

    Args:
        config: Configuration to check.
        invalid: Keys whose value is out of range; their relations are skipped.
    """
    base, interval = config.base, config.base.eval_interval
    if base.eval_agents == 0:
        hint = "-1 for as many as in training"
        yield ["base.eval_agents"], "base.eval_agents must not be 0", hint
    names = ["base.eval_interval", "base.eval_episodes"]
    if invalid.isdisjoint(names) and interval and not base.eval_episodes:
        message = f"base.eval_interval {interval} needs base.eval_episodes, which is 0"
        yield names, message, f"{how_to_set('base.eval_episodes', 20)}, for example"
    for name, on in (
        ("base.eval_greedy", base.eval_greedy),
        ("base.eval_video_interval", base.eval_video_interval),
        ("base.stop_at_score", base.stop_at_score != "none"),
    ):
        names = [name, "base.eval_interval"]
        if on and not interval and invalid.isdisjoint(names):
            message = f"{name} {config.value(name)} needs evaluations during training"
            hint = f"{how_to_set('base.eval_interval', '100_000')}, for example"
            yield names, message, hint
    if config.goal not in GOAL_SIGNS:
        message = f"sweep.goal {config.goal} does not exist here"
        yield ["sweep.goal"], message, " or ".join(GOAL_SIGNS)
    if interval and base.stop_at_score != "none" and not config.evaluation_metric:
        message = f"base.stop_at_score needs {config.metric}, which evaluations don't report"
        names = ["base.stop_at_score", "sweep.metric"]
        yield names, message, how_to_set("sweep.metric", "score")


def _epoch_problems(config: Config, invalid: Set[str]) -> Iterator[Problem]:
    """Yield problems of a configuration's agents, buffers, horizon and minibatch size.

    Args:
        config: Configuration to check.
        invalid: Keys whose value is out of range; their relations are skipped.
    """
    train, agents, buffers = config.train, config.vec.total_agents, config.vec.num_buffers
    names = ["vec.total_agents", "vec.num_buffers"]
    if invalid.isdisjoint(names) and agents % buffers:
        message = f"vec.total_agents {agents} is not a multiple of vec.num_buffers {buffers}"
        fewer = how_to_set("vec.num_buffers", _divisors(agents, buffers))
        other = how_to_set("vec.total_agents", multiples(agents, buffers))
        yield names, message, f"{fewer}, or {other}"
    epoch = f"vec.total_agents {agents} x train.horizon {train.horizon}"
    names = ["train.total_timesteps", "vec.total_agents", "train.horizon"]
    if invalid.isdisjoint(names) and config.epochs < 1:
        message = f"train.total_timesteps {train.total_timesteps} is less than an epoch, {epoch}"
        yield names, message, f"{config.batch_size} or more"
    names = ["train.minibatch_size", "train.horizon", "vec.total_agents"]
    has_algorithm = "train.algorithm" not in invalid
    by_segments = not (has_algorithm and config.shuffles_samples)
    if invalid.isdisjoint(names) and train.minibatch_size > config.batch_size:
        message = f"train.minibatch_size {train.minibatch_size} is more than an epoch, {epoch}"
        yield names, message, f"{config.batch_size} or less"
    elif invalid.isdisjoint(names[:2]) and by_segments and train.minibatch_size % train.horizon:
        message = f"train.minibatch_size {train.minibatch_size} is not a multiple of train.horizon"
        legal = multiples(train.minibatch_size, train.horizon)
        yield names[:2], f"{message} {train.horizon}", legal
    elif invalid.isdisjoint([*names, "train.replay_ratio"]) and config.minibatches < 1:
        fraction = train.minibatch_size / config.batch_size
        min_ratio = round(fraction, 3)
        if minibatches(min_ratio, config.batch_size, train.minibatch_size) < 1:
            min_ratio += 0.001
        message = f"train.replay_ratio {train.replay_ratio} trains no minibatch in an epoch: "
        message += f"train.minibatch_size {train.minibatch_size} is {fraction:g} of {epoch}"
        yield ["train.replay_ratio", *names], message, f"{min_ratio:g} or more"
    elif (
        invalid.isdisjoint([*names, "train.algorithm"])
        and config.facts.in_order
        and agents % config.segments
    ):
        yield names, *_order_problem(config)


def _order_problem(config: Config) -> tuple[str, str]:
    """Return message and hint for a minibatch size whose segments don't divide the agents."""
    train, agents, segments = config.train, config.vec.total_agents, config.segments
    message = f"vec.total_agents {agents} is not a multiple of a minibatch's {segments} segments,"
    message += f" train.minibatch_size {train.minibatch_size} / train.horizon {train.horizon}:"
    message += f" {train.algorithm} trains on agents in order"
    sizes = _divisors(agents, segments, times=train.horizon)
    hint = how_to_set("train.minibatch_size", sizes)
    return message, f"{hint}, or {how_to_set('vec.total_agents', multiples(agents, segments))}"


def _training_problems(config: Config, invalid: Set[str]) -> Iterator[Problem]:
    """Yield problems of a configuration's learning rate schedule and algorithm.

    Args:
        config: Configuration to check.
        invalid: Keys whose value is out of range; their relations are skipped.
    """
    train = config.train
    if train.lr_schedule == "adaptive" and not train.anneal_lr:
        message = "train.lr_schedule is adaptive, but train.anneal_lr False keeps the learning rate"
        hint = f"{how_to_set('train.anneal_lr', True)}, or another schedule"
        yield ["train.lr_schedule", "train.anneal_lr"], message, hint
    names = ["train.target_kl", "train.algorithm"]
    if invalid.isdisjoint(names) and train.target_kl and not config.facts.stops_by_kl:
        supported = [name for name in algorithms() if facts(name).stops_by_kl]
        message = f"train.target_kl {train.target_kl} needs train.algorithm"
        message += f" {' or '.join(supported)}, not {train.algorithm}"
        hint = how_to_set("train.algorithm", supported[0])
        yield names, message, f"{hint}, or {how_to_set('train.target_kl', 0)}"


def wrapper_problems(wrap: Wrap, keys_set: Collection[str], by_id: bool) -> Iterator[Problem]:
    """Yield problems of [wrap] keys that a preset or an Atari game's arguments override.

    Args:
        wrap: Section [wrap].
        keys_set: Keys that were set, possibly to their defaults.
        by_id: True if the environment is an Atari game selected by its id.
    """
    for key, argument in ATARI_ARGUMENTS.items():
        if key not in keys_set:
            continue
        if by_id:
            message = f"wrap.{key} doesn't work with Atari's IDs, which have env.{argument}"
            hint = f"{how_to_set(f'env.{argument}')}; or {how_to_set('wrap.preset', 'atari')} for"
            yield (f"wrap.{key}",), message, f"{hint} the usual wrappers"
        elif wrap.preset != "none" and key != "sticky_actions":
            message = f"wrap.preset {wrap.preset} sets wrap.{key} itself"
            yield ("wrap.preset", f"wrap.{key}"), message, "leave one of them out"


def _is_unicode(text: str) -> bool:
    """Return True if a text can be encoded in UTF-8, which isn't the case for some file paths."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def multiples(value: int, step: int) -> str:
    """Return the multiples of ``step`` around ``value`` as text for hints: "64 or 128"."""
    lower = value // step * step
    return " or ".join(
        str(multiple) for multiple in (lower, lower + step) if 0 < multiple <= INT_MAX
    )


def _divisors(value: int, near: int, times: int = 1) -> str:
    """Return the divisors of ``value`` just below and above ``near`` as text for hints: "4 or 8".

    Each is multiplied by ``times``.
    """
    lower_divisors = [n for n in range(1, math.isqrt(value) + 1) if value % n == 0]
    divisors = sorted({*lower_divisors, *(value // n for n in lower_divisors)})
    below, above = [n for n in divisors if n < near], [n for n in divisors if n > near]
    return " or ".join(str(n * times) for n in below[-1:] + above[:1])


def raise_problems(problems: list[UserError]) -> None:
    """Raise all errors of a list as one UserError, numbered; do nothing for an empty list.

    At most ``MAX_PROBLEMS`` are shown.
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


# ---- self-play; the policy assignment is checked later, when the environments exist --------------


def _selfplay_problems(config: Config) -> Iterator[Problem]:
    """Yield problems of a configuration's keys about self-play that contradict each other."""
    rules = config.selfplay_rules
    keys, other = RULE_KEYS[rules], RULE_KEYS[OTHER_RULES[rules]]
    count = config.value(keys.count)
    fraction = config.value(keys.fraction)
    if count == keys.count_without:
        message = f"selfplay.enabled 1 needs opponents, and {keys.count} {count} means none"
        if config.value(other.count) != other.count_without:
            message += f" (selfplay.rules {rules} doesn't use {other.count})"
        hint = ", ".join(how_to_set(*each) for each in keys.example.items())
        yield ("selfplay.enabled", keys.count, "selfplay.rules"), message, hint
    elif not fraction:
        opponents = count - keys.count_without
        message = f"{keys.fraction} {fraction:g} leaves the {opponents} opponents no agents"
        hint = how_to_set(keys.fraction, keys.example[keys.fraction])
        yield ("selfplay.enabled", keys.count, keys.fraction), message, hint
    elif rules == RULES_OF_4:
        yield from _fraction_problems(config)
    for name, learner_key in zip(
        keys.sizes, ("policy.hidden_size", "policy.num_layers"), strict=True
    ):
        size, learner = config.value(name), config.value(learner_key)
        if count != keys.count_without and size not in (0, learner):
            message = f"{name} {size} must equal {learner_key} {learner}"
            reason = "opponents are earlier weights of the learner"
            yield (name, learner_key), f"{message}: {reason}", how_to_set(name, 0)
    if config.train.gpus > 1:
        message = (
            f"selfplay.enabled 1 with train.gpus {config.train.gpus}: self-play needs one rank"
        )
        yield ("selfplay.enabled", "train.gpus"), message, how_to_set("train.gpus", 1)
    bots = config.selfplay.eval_bots.replace(" ", "").split(",")
    if len(bots) > 16 or not all(bot.isdecimal() for bot in bots):
        message = (
            f"selfplay.eval_bots {config.selfplay.eval_bots} isn't a list of at most 16 integers"
        )
        yield ("selfplay.eval_bots",), message, "separate them by commas: 0, 1, 2"


def _fraction_problems(config: Config) -> Iterator[Problem]:
    """Yield problems of the fraction of agents per opponent in self-play (4.0's rules)."""
    vec = config.vec
    names = "vec.num_frozen_banks", "vec.frozen_bank_pct"
    setting = f"vec.frozen_bank_pct {vec.frozen_bank_pct:g}"
    group = max(1, vec.total_agents // vec.num_buffers)
    if group * vec.frozen_bank_pct < 1:
        message = f"{setting} of the {group} agents of a buffer is less than one agent"
        yield names, message, f"{1 / group:.3g} or more, or more agents"
    elif vec.num_frozen_banks * vec.frozen_bank_pct > 0.5:
        limit = 0.5 / vec.num_frozen_banks
        message = f"{setting} for each of {vec.num_frozen_banks} opponents is more than half"
        hint = f"less than {limit:g}, because the learner plays in every game of an opponent"
        yield names, message, hint
