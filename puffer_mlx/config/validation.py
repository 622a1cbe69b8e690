"""Checks of a whole configuration: every key's range, and every relation between keys."""

import math
from collections.abc import Collection, Iterator, Sequence, Set

from puffer_mlx.config.key import INT_MAX
from puffer_mlx.config.option_names import how_to_set
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
    faults = {name: declared.fault(config.value(name)) for name, declared in DECLARED.items()}
    problems: list[Problem] = [
        ([name], f"{name} {fault[0]}", fault[1]) for name, fault in faults.items() if fault
    ]
    faulty = {name for name, fault in faults.items() if fault}
    problems += _text_problems(config)
    given = [key for key in OF_GAMES if f"wrap.{key}" in config.origins]
    problems += settled_wrappers(config.wrap, given, config.python and "ALE/" in config.env_name)
    if training:
        problems += _evaluation_problems(config, faulty)
        problems += _epoch_problems(config, faulty)
        problems += _training_problems(config, faulty)
    if training and config.selfplay.enabled and not faulty:
        problems += selfplay_faults(config)
    return [_error(config, problem) for problem in problems]


def _error(config: Config, problem: Problem) -> UserError:
    """Return a problem as an error that names the origins of its keys."""
    names, message, hint = problem
    origins = dict.fromkeys(config.origins[name] for name in names if name in config.origins)
    return UserError(message + (f" ({'; '.join(origins)})" if origins else ""), hint)


def _text_problems(config: Config) -> Iterator[Problem]:
    """Yield the texts that UTF-8 can't write."""
    texts = {name: config.value(name) for name in DECLARED}
    texts |= {"base.env_name": config.env_name, "env.source": config.source}
    texts |= {f"env.{key}": value for key, value in config.env.items()}
    for name, text in texts.items():
        if isinstance(text, str) and not _is_unicode(text):
            yield [name], f"{name} is {text!r}, which is not UTF-8", "use a name in UTF-8"


def _evaluation_problems(config: Config, faulty: Set[str]) -> Iterator[Problem]:
    """Yield the problems of evaluations during and after training.

    Args:
        config: Configuration to check.
        faulty: Keys whose own value is wrong.
    """
    base, interval = config.base, config.base.eval_interval
    if base.eval_agents == 0:
        hint = "-1, as many as are trained on"
        yield ["base.eval_agents"], "base.eval_agents 0 is none", hint
    names = ["base.eval_interval", "base.eval_episodes"]
    if faulty.isdisjoint(names) and interval and not base.eval_episodes:
        message = f"base.eval_interval {interval} evaluates base.eval_episodes 0, which is none"
        yield names, message, f"{how_to_set('base.eval_episodes', 20)}, for example"
    for name, on in (
        ("base.eval_greedy", base.eval_greedy),
        ("base.eval_video_interval", base.eval_video_interval),
        ("base.stop_at_score", base.stop_at_score != "none"),
    ):
        names = [name, "base.eval_interval"]
        if on and not interval and faulty.isdisjoint(names):
            message = f"{name} {config.value(name)} is of evaluations while training, and there"
            hint = f"{how_to_set('base.eval_interval', '100_000')}, for example"
            yield names, f"{message} are none", hint
    if config.goal not in GOALS:
        message = f"sweep.goal {config.goal} does not exist here"
        yield ["sweep.goal"], message, " or ".join(GOALS)
    if interval and base.stop_at_score != "none" and not config.evaluation_metric:
        message = "base.stop_at_score is of evaluations, and evaluations don't report"
        names = ["base.stop_at_score", "sweep.metric"]
        yield names, f"{message} {config.metric}", how_to_set("sweep.metric", "score")


def _epoch_problems(config: Config, faulty: Set[str]) -> Iterator[Problem]:
    """Yield the problems of agents, buffers, horizon and minibatches that don't fit together.

    Args:
        config: Configuration to check.
        faulty: Keys whose own value is wrong.
    """
    train, agents, buffers = config.train, config.vec.total_agents, config.vec.num_buffers
    names = ["vec.total_agents", "vec.num_buffers"]
    if faulty.isdisjoint(names) and agents % buffers:
        message = f"vec.total_agents {agents} is not a multiple of vec.num_buffers {buffers}"
        fewer = how_to_set("vec.num_buffers", _divisors(agents, buffers))
        other = how_to_set("vec.total_agents", multiples(agents, buffers))
        yield names, message, f"{fewer}, or {other}"
    epoch = f"vec.total_agents {agents} x train.horizon {train.horizon}"
    names = ["train.total_timesteps", "vec.total_agents", "train.horizon"]
    if faulty.isdisjoint(names) and config.epochs < 1:
        message = f"train.total_timesteps {train.total_timesteps} is less than an epoch, {epoch}"
        yield names, message, f"{config.batch_size} or more"
    names = ["train.minibatch_size", "train.horizon", "vec.total_agents"]
    known = "train.algorithm" not in faulty
    by_segments = not (known and config.shuffles_samples)
    if faulty.isdisjoint(names) and train.minibatch_size > config.batch_size:
        message = f"train.minibatch_size {train.minibatch_size} is more than an epoch, {epoch}"
        yield names, message, f"{config.batch_size} or less"
    elif faulty.isdisjoint(names[:2]) and by_segments and train.minibatch_size % train.horizon:
        message = f"train.minibatch_size {train.minibatch_size} is not a multiple of train.horizon"
        legal = multiples(train.minibatch_size, train.horizon)
        yield names[:2], f"{message} {train.horizon}", legal
    elif faulty.isdisjoint([*names, "train.replay_ratio"]) and config.minibatches < 1:
        part = train.minibatch_size / config.batch_size
        least = round(part, 3)
        if minibatches(least, config.batch_size, train.minibatch_size) < 1:
            least += 0.001
        message = f"train.replay_ratio {train.replay_ratio} trains no minibatch in an epoch: "
        message += f"train.minibatch_size {train.minibatch_size} is {part:g} of {epoch}"
        yield ["train.replay_ratio", *names], message, f"{least:g} or more"
    elif (
        faulty.isdisjoint([*names, "train.algorithm"])
        and config.facts.in_order
        and agents % config.segments
    ):
        yield names, *_order_problem(config)


def _order_problem(config: Config) -> tuple[str, str]:
    """Return message and hint for agents that don't fill minibatches of consecutive segments."""
    train, agents, segments = config.train, config.vec.total_agents, config.segments
    message = f"vec.total_agents {agents} is not a multiple of a minibatch's {segments} segments,"
    message += f" train.minibatch_size {train.minibatch_size} / train.horizon {train.horizon}:"
    message += f" {train.algorithm} takes them in their order"
    sizes = _divisors(agents, segments, times=train.horizon)
    hint = how_to_set("train.minibatch_size", sizes)
    return message, f"{hint}, or {how_to_set('vec.total_agents', multiples(agents, segments))}"


def _training_problems(config: Config, faulty: Set[str]) -> Iterator[Problem]:
    """Yield the problems of schedule and algorithm.

    Args:
        config: Configuration to check.
        faulty: Keys whose own value is wrong.
    """
    train = config.train
    if train.lr_schedule == "adaptive" and not train.anneal_lr:
        message = "train.lr_schedule is adaptive, and train.anneal_lr False keeps the learning rate"
        hint = f"{how_to_set('train.anneal_lr', True)}, or another schedule"
        yield ["train.lr_schedule", "train.anneal_lr"], message, hint
    names = ["train.target_kl", "train.algorithm"]
    if faulty.isdisjoint(names) and train.target_kl and not config.facts.stops_by_kl:
        able = [name for name in algorithms() if facts(name).stops_by_kl]
        message = f"train.target_kl {train.target_kl} is of {' or '.join(able)}'s passes over a"
        message += f" rollout, and train.algorithm is {train.algorithm}"
        hint = how_to_set("train.algorithm", able[0])
        yield names, message, f"{hint}, or {how_to_set('train.target_kl', 0)}"


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
            hint = f"{how_to_set(f'env.{argument}')}; or {how_to_set('wrap.preset', 'atari')} for"
            yield (f"wrap.{key}",), message, f"{hint} all that is usual"
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


# ---- self-play: how many agents an environment has is not known here yet ----


def selfplay_faults(config: Config) -> Iterator[Problem]:
    """Yield the problems of a self-play configuration whose keys are valid one by one."""
    rules = config.selfplay_rules
    keys, other = RULES[rules], RULES[OTHERS[rules]]
    count, part = (config.value(name) for name in (keys.count, keys.part))
    if count == keys.none:
        message = f"selfplay.enabled 1 needs opponents, and {keys.count} {count} is none"
        if config.value(other.count) != other.none:
            message += f" (selfplay.rules {rules} doesn't read {other.count})"
        hint = ", ".join(how_to_set(*each) for each in keys.example.items())
        yield ("selfplay.enabled", keys.count, "selfplay.rules"), message, hint
    elif not part:
        message = f"{keys.part} {part:g} leaves the {count - keys.none} opponents no agents"
        hint = how_to_set(keys.part, keys.example[keys.part])
        yield ("selfplay.enabled", keys.count, keys.part), message, hint
    elif rules == OF_4:
        yield from _shares(config)
    for name, ours in zip(keys.sizes, ("policy.hidden_size", "policy.num_layers"), strict=True):
        size, learner = config.value(name), config.value(ours)
        if count != keys.none and size not in (0, learner):
            message = f"{name} {size} isn't {ours} {learner}"
            why = "opponents are the learner's own weights"
            yield (name, ours), f"{message}: {why}", how_to_set(name, 0)
    if config.train.gpus > 1:
        message = f"selfplay.enabled 1 and train.gpus {config.train.gpus}: there is no self-play"
        yield (
            ("selfplay.enabled", "train.gpus"),
            f"{message} of several ranks",
            how_to_set("train.gpus", 1),
        )
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
