"""Fit numbers of a configuration to each other, to the environments and to the machine.

PufferLib's files hold numbers from a hyperparameter search, some of them fractions, and PufferLib
doesn't check that they fit. A number from a file is lowered to the next one that fits, with a
note. A typed number is never changed: it fits or is refused.
"""

from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

from puffer_mlx.config.families import FILES
from puffer_mlx.config.finding import PYTHON
from puffer_mlx.config.option_names import how_to_set
from puffer_mlx.config.schema import ARGUMENT, COMMAND_LINE, Config
from puffer_mlx.config.validation import find_problems, multiples, raise_problems
from puffer_mlx.errors import UserError

AGENTS, BUFFERS = "vec.total_agents", "vec.num_buffers"
MINIBATCH, EVAL_EPISODES = "train.minibatch_size", "base.eval_episodes"
MAX_STEPS = 100_000  # steps per agent, usually enough for the episodes of an evaluation
WHILE_TRAINING = 100  # episodes of an evaluation; python.ini says the same


class Misfit(UserError):
    """Environments don't fill their groups exactly.

    Args:
        counts: agents of each environment there would be, in order.
    """

    def __init__(self, message: str, hint: str, counts: Sequence[int]) -> None:
        super().__init__(message, hint)
        self.counts = counts


def typed(config: Config, name: str) -> bool:
    """Return True if the user or a program set a key, not a file."""
    return config.origins.get(name) in (COMMAND_LINE, ARGUMENT)


def fit_buffers(config: Config) -> None:
    """Lower a file's ``vec.num_buffers`` to the next number that divides the agents."""
    agents, buffers = config.vec.total_agents, config.vec.num_buffers
    if agents < 1 or buffers < 1 or agents % buffers == 0 or typed(config, BUFFERS):
        return
    lower = next(q for q in range(min(buffers, agents), 0, -1) if agents % q == 0)
    text = f"{_setting(config, BUFFERS, buffers)} doesn't divide {AGENTS} {agents}"
    config.vec.num_buffers = lower
    config.notes.append(f"{text}: lowered to {lower}")


def fit_minibatch(config: Config) -> None:
    """Fit a family file's ``train.minibatch_size`` to the epoch, with a note.

    It is lowered to an epoch, or raised to a multiple of the segment length if minibatches
    consist of segments. Numbers from other files stay.
    """
    size, epoch, T = config.train.minibatch_size, config.batch_size, config.train.horizon
    file = config.origins.get(MINIBATCH, "").rpartition(":")[0]
    if Path(file).name not in (PYTHON, *FILES) or size < 1 or epoch < 1:
        return
    text = _setting(config, MINIBATCH, size)
    if epoch < size:
        config.train.minibatch_size = epoch
        config.notes.append(f"{text} is more than an epoch: lowered to {epoch}")
    elif not config.shuffles_samples and size % T:
        config.train.minibatch_size = raised = min(epoch, -(-size // T) * T)
        config.notes.append(f"{text} is no whole segment, train.horizon {T}: raised to {raised}")


def fit_evaluations(config: Config) -> None:
    """Reduce the default number of episodes for evaluations while training.

    PufferLib's default of 10,000 episodes after training would interrupt the run for too long.
    """
    if config.base.eval_interval and config.base.eval_episodes > WHILE_TRAINING:
        usual = config.base.eval_episodes
        config.base.eval_episodes = WHILE_TRAINING
        text = f"each evaluation while training plays {WHILE_TRAINING:,} episodes, not {usual:,}"
        config.notes.append(f"{text}: {how_to_set(EVAL_EPISODES)} sets another number")


def fit_agents(config: Config, counts: Sequence[int]) -> None:
    """Lower a file's ``vec.num_buffers`` or ``vec.total_agents`` so that all groups are full.

    Fewer groups are tried first, then fewer agents.

    Args:
        config: Configuration, changed with a note.
        counts: Agents of each environment made for these numbers, in order.

    Raises:
        UserError: A typed number would have to change, nothing fits, or training needs more
            agents than fit.
    """
    vec = config.vec
    agents, groups = vec.total_agents, vec.num_buffers
    fewer = [groups] if typed(config, BUFFERS) else range(groups, 0, -1)
    ends = set(accumulate(counts))
    fitting = [(agents, q) for q in fewer if _fills(ends, agents, q)]
    trains = not find_problems(config)  # an evaluation's needn't
    if not fitting and not typed(config, AGENTS):
        sizes = ((q, n * q) for q in fewer for n in range(agents // q, 0, -1))
        fits = [(N, q) for q, N in sizes if _fills(ends, N, q)]
        slices = config.segments if trains and config.facts.in_order else 1
        fitting = [fit for fit in fits if fit[0] % slices == 0][:1] or fits[:1]
    if not fitting:
        raise _refused(config, counts)
    each = f"{counts[0]} agents" if len(set(counts)) == 1 else "different numbers of agents"
    doesnt = f"doesn't fit environments of {each}"
    new_agents, new_groups = fitting[0]
    if new_agents != agents:
        text = f"{_setting(config, AGENTS, agents)} {doesnt} in {new_groups} groups"
        config.notes.append(f"{text}: lowered to {new_agents}")
    if new_groups != groups:
        text = f"{_setting(config, BUFFERS, groups)} {doesnt}, {new_agents} in all"
        config.notes.append(f"{text}: lowered to {new_groups}")
    vec.total_agents, vec.num_buffers = new_agents, new_groups
    if trains:
        raise_problems(find_problems(config))


def rollout_threads(config: Config, cores: int) -> int:
    """Return the number of threads that step environments, and act on a CPU.

    PufferLib steps each buffer with num_threads / num_buffers threads, at least one, and acts on
    a GPU. If C code acts in the same threads here, one thread per core is used. Results don't
    depend on the number.
    """
    vec = config.vec
    parts = config.torch
    if vec.max_threads:
        return min(vec.max_threads, cores)
    in_c = parts.encoder in ("DefaultEncoder", "auto") and ":" not in parts.network
    if in_c and config.train.rollout_device != "gpu":
        return cores
    return min(vec.num_buffers * max(1, vec.num_threads // vec.num_buffers), cores)


def _fills(ends: set[int], agents: int, groups: int) -> bool:
    """Return True if the environments fill all groups exactly.

    Args:
        ends: Total number of agents after each environment.
        agents: Number of agents.
        groups: Number of groups of equal size.
    """
    size, rest = divmod(agents, groups)
    return not rest and all(g * size in ends for g in range(1, groups + 1))


def _refused(config: Config, counts: Sequence[int]) -> UserError:
    agents, groups = config.vec.total_agents, config.vec.num_buffers
    origins = dict.fromkeys(config.origins[n] for n in (AGENTS, BUFFERS) if n in config.origins)
    where = f" ({'; '.join(origins)})" if origins else ""
    if len(set(counts)) == 1:
        each = f"the {counts[0]} agents of an environment"
        message = f"{AGENTS} {agents} is not a multiple of {BUFFERS} {groups} times {each}{where}"
        return UserError(message, how_to_set(AGENTS, multiples(agents, groups * counts[0])))
    ends = set(accumulate(counts))
    sizes = (n * groups for n in range(agents // groups, 0, -1))
    lower = next((N for N in sizes if _fills(ends, N, groups)), 0)
    message = f"environments of {min(counts)} to {max(counts)} agents don't fill {AGENTS} {agents}"
    hint = how_to_set(AGENTS, lower)
    if not lower:
        hint = f"another {how_to_set(AGENTS)}, or {how_to_set(BUFFERS, 1)}"
    return UserError(f"{message} in {BUFFERS} {groups} groups{where}", hint)


def _setting(config: Config, name: str, value: int) -> str:
    """Return a key with its value and its file."""
    return f"{name} {value}" + (f" ({config.origins[name]})" if name in config.origins else "")
