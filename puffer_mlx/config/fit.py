"""Fit a configuration's sizes to each other, to the environments and to the machine.

PufferLib's files contain results of hyperparameter searches, some of them fractions, and PufferLib
doesn't check that they fit. So a size from a file is lowered to the next valid one, with a note. A
typed size is never changed: if it doesn't fit, it is refused.
"""

import math
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

from puffer_mlx.config.families import FAMILY_FILES
from puffer_mlx.config.finding import PYTHON_FILE
from puffer_mlx.config.option_names import how_to_set
from puffer_mlx.config.schema import ARGUMENT, COMMAND_LINE, Config
from puffer_mlx.config.validation import find_problems, multiples, raise_problems
from puffer_mlx.errors import UserError

AGENTS = "vec.total_agents"
BUFFERS = "vec.num_buffers"
MINIBATCH = "train.minibatch_size"
EVAL_EPISODES = "base.eval_episodes"
MAX_STEPS = 100_000  # steps per agent, usually enough for the episodes of an evaluation
EPISODES_WHILE_TRAINING = 100  # per evaluation, as in python.ini


class Misfit(UserError):
    """Error: the agents can't be divided into groups without splitting an environment's agents.

    Args:
        counts: Number of agents of each environment, in order.
    """

    def __init__(self, message: str, hint: str, counts: Sequence[int]) -> None:
        super().__init__(message, hint)
        self.counts = counts


def is_explicit(config: Config, name: str) -> bool:
    """Return True if a key was set on the command line or in a program, not in a file."""
    return config.origins.get(name) in (COMMAND_LINE, ARGUMENT)


def fit_buffers(config: Config) -> None:
    """Lower ``vec.num_buffers``, if a file set it, to a divisor of the number of agents."""
    agents, buffers = config.vec.total_agents, config.vec.num_buffers
    if agents < 1 or buffers < 1 or agents % buffers == 0 or is_explicit(config, BUFFERS):
        return
    lower = next(q for q in range(min(buffers, agents), 0, -1) if agents % q == 0)
    text = f"{_setting(config, BUFFERS, buffers)} doesn't divide {AGENTS} {agents}"
    config.vec.num_buffers = lower
    config.notes.append(f"{text}: lowered to {lower}")


def fit_minibatch(config: Config) -> None:
    """Fit ``train.minibatch_size`` to the epoch's size, with a note, if a family's file set it.

    It is lowered to the size of an epoch, or raised to a multiple of the segment length if
    minibatches consist of segments. A size from another file isn't changed.
    """
    size, horizon = config.train.minibatch_size, config.train.horizon
    epoch_steps = config.batch_size
    file = config.origins.get(MINIBATCH, "").rpartition(":")[0]
    if Path(file).name not in (PYTHON_FILE, *FAMILY_FILES) or size < 1 or epoch_steps < 1:
        return
    text = _setting(config, MINIBATCH, size)
    if epoch_steps < size:
        config.train.minibatch_size = epoch_steps
        config.notes.append(f"{text} is more than an epoch: lowered to {epoch_steps}")
    elif not config.shuffles_samples and size % horizon:
        raised = min(epoch_steps, math.ceil(size / horizon) * horizon)
        config.train.minibatch_size = raised
        config.notes.append(
            f"{text} isn't a multiple of train.horizon {horizon}: raised to {raised}"
        )


def fit_evaluations(config: Config) -> None:
    """Reduce the default number of episodes per evaluation for evaluations during training.

    PufferLib's default of 10,000 episodes after training would interrupt the run for too long.
    """
    if config.base.eval_interval and config.base.eval_episodes > EPISODES_WHILE_TRAINING:
        default = config.base.eval_episodes
        config.base.eval_episodes = EPISODES_WHILE_TRAINING
        text = f"each evaluation while training plays {EPISODES_WHILE_TRAINING:,} episodes"
        text += f", not {default:,}: {how_to_set(EVAL_EPISODES)} sets another number"
        config.notes.append(text)


def fit_agents(config: Config, counts: Sequence[int]) -> None:
    """Lower ``vec.num_buffers`` or ``vec.total_agents``, unless typed, so that all groups are full.

    The agents are divided into ``vec.num_buffers`` groups of equal size. All agents of an
    environment must be in one group. Fewer groups are tried first, then fewer agents.

    Args:
        config: Configuration, changed with a note.
        counts: Number of agents of each environment, in order.

    Raises:
        UserError: If a typed value would have to change, nothing fits, or training needs more
            agents than fit.
    """
    vec = config.vec
    agents, groups = vec.total_agents, vec.num_buffers
    group_numbers = [groups] if is_explicit(config, BUFFERS) else range(groups, 0, -1)
    ends = set(accumulate(counts))
    fitting = [(agents, number) for number in group_numbers if _fills(ends, agents, number)]
    trains = not find_problems(config)  # False for an evaluation with sizes that can't train
    if not fitting and not is_explicit(config, AGENTS):
        fitting = [
            (size * number, number)
            for number in group_numbers
            for size in range(agents // number, 0, -1)
            if _fills(ends, size * number, number)
        ]
        if (
            trains and config.facts.in_order
        ):  # a minibatch must be a fraction of the agents' segments
            preferred = [fit for fit in fitting if fit[0] % config.segments == 0]
            fitting = preferred or fitting
    if not fitting:
        raise _misfit_error(config, counts)
    each = f"{counts[0]} agents" if len(set(counts)) == 1 else "different numbers of agents"
    problem = f"doesn't fit environments of {each}"
    new_agents, new_groups = fitting[0]
    if new_agents != agents:
        text = f"{_setting(config, AGENTS, agents)} {problem} in {new_groups} groups"
        config.notes.append(f"{text}: lowered to {new_agents}")
    if new_groups != groups:
        text = f"{_setting(config, BUFFERS, groups)} {problem}, {new_agents} in all"
        config.notes.append(f"{text}: lowered to {new_groups}")
    vec.total_agents, vec.num_buffers = new_agents, new_groups
    if trains:
        raise_problems(find_problems(config))


def rollout_threads(config: Config, cores: int) -> int:
    """Return the number of CPU threads for rollouts.

    PufferLib steps each buffer with num_threads / num_buffers threads, at least one, and acts on
    a GPU. If C code here acts in the same threads, one thread per core is used. The results don't
    depend on the number.
    """
    vec = config.vec
    classes = config.torch
    if vec.max_threads:
        return min(vec.max_threads, cores)
    # C code computes neither convolutions nor custom networks (module:Class).
    acts_in_c = classes.encoder in ("DefaultEncoder", "auto") and ":" not in classes.network
    if acts_in_c and config.train.rollout_device != "gpu":
        return cores
    return min(vec.num_buffers * max(1, vec.num_threads // vec.num_buffers), cores)


def _fills(ends: set[int], agents: int, groups: int) -> bool:
    """Return True if groups of equal size can hold all agents without splitting an environment's.

    Args:
        ends: Total number of agents after each environment.
        agents: Number of agents.
        groups: Number of groups of equal size.
    """
    size, rest = divmod(agents, groups)
    return not rest and all(g * size in ends for g in range(1, groups + 1))


def _misfit_error(config: Config, counts: Sequence[int]) -> UserError:
    """Return the error for environments whose agents don't fill equal groups, with valid sizes."""
    agents, groups = config.vec.total_agents, config.vec.num_buffers
    set_keys = [key for key in (AGENTS, BUFFERS) if key in config.origins]
    origins = dict.fromkeys(config.origins[key] for key in set_keys)  # each one once
    origin = f" ({'; '.join(origins)})" if origins else ""
    if len(set(counts)) == 1:
        each = f"the {counts[0]} agents of an environment"
        message = f"{AGENTS} {agents} is not a multiple of {BUFFERS} {groups} times {each}{origin}"
        return UserError(message, how_to_set(AGENTS, multiples(agents, groups * counts[0])))
    ends = set(accumulate(counts))
    sizes = (n * groups for n in range(agents // groups, 0, -1))
    lower = next((N for N in sizes if _fills(ends, N, groups)), 0)
    message = f"environments of {min(counts)} to {max(counts)} agents don't fill {AGENTS} {agents}"
    hint = how_to_set(AGENTS, lower)
    if not lower:
        hint = f"another {how_to_set(AGENTS)}, or {how_to_set(BUFFERS, 1)}"
    return UserError(f"{message} in {BUFFERS} {groups} groups{origin}", hint)


def _setting(config: Config, name: str, value: int) -> str:
    """Return a configuration key with its value and its origin as text for an error message."""
    return f"{name} {value}" + (f" ({config.origins[name]})" if name in config.origins else "")
