"""Count how many kernels each step of training and acting launches, with `graphs_of_a_gpu.py`.

A step's graph is built for a GPU's back-end, counted and discarded; arrays of ones replace its
results. Training is counted with three and with four minibatches: the difference is the number of
launches per minibatch, the rest the number per epoch.
"""

# ruff: noqa: I001
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from functools import partial
from typing import Any, NamedTuple
from unittest import mock

import puffer_mlx  # noqa: F401  first: it chooses MLX's BLAS, before MLX loads
import mlx.core as mx

from puffer_mlx.config import Config
from puffer_mlx.policy.policy import configured_policy
from puffer_mlx.ppo import optimizers, precision
from puffer_mlx.ppo.algorithms import Scheduled
from puffer_mlx.profiling.phases import PhaseTimer
from puffer_mlx.rollout.acting_in_mlx import shards_for_gpu
from puffer_mlx.rollout.buffer import RolloutBuffer
from puffer_mlx.spec import EnvSpec
from puffer_mlx.rollout.acting import choose_acting
from puffer_mlx.training.collector import Rollout
from puffer_mlx.training.learner import Learner
from puffer_mlx.training.placement import Placement
from puffer_mlx.ppo.update import TrainState
from graphs_of_a_gpu import Graphs, Launches

MINIBATCHES = 3, 4  # more than can be in progress at the same time
ACTING_STEPS = 2
PER_MINIBATCH, PER_STEP = UNITS = "minibatch", "a part and step"

evaluate = mx.eval  # MLX's function, also while `LaunchCounter` replaces it


class LaunchCounter:
    """Count the kernel launches of each step of training and acting, without computing anything.

    The results of a step are replaced by arrays of ones. Evaluations outside of steps are counted
    under the name of the function that calls ``mx.eval``.
    """

    def __init__(self, graphs: Graphs) -> None:
        self.launches_by_step: dict[str, list[Launches]] = defaultdict(list)
        self._graphs, self._inside = graphs, False

    def __call__(self, name: str, step: Callable[..., Any], *arguments: Any) -> Any:
        arguments = self._take("between the steps", arguments)
        self._inside = True
        result = step(*arguments)
        self._inside = False
        return result if result is arguments[0] else self._take(name, result)

    @contextmanager
    def evaluations(self) -> Iterator[None]:
        """Count the calls of ``mx.eval`` and ``mx.async_eval`` in a ``with`` block."""
        with mock.patch.multiple(mx, eval=self._evaluate, async_eval=self._evaluate):
            yield

    def _take(self, name: str, tree: Any) -> Any:
        launches = self._graphs.launches(lists(tree))
        if launches.counted or launches.maybe:
            self.launches_by_step[name].append(launches)
        return replaced(tree, self._graphs.computed)

    def _evaluate(self, *trees: Any) -> None:
        if not self._inside:  # within a step, the step's results include the array
            code = sys._getframe(1).f_code
            name = getattr(code, "co_qualname", code.co_name).split(".<locals>")[0]
            self.launches_by_step[name].append(self._graphs.launches(lists(trees)))
            evaluate(lists(trees))


def lists(tree: Any) -> Any:
    """Return a tree of arrays with its dataclasses and tuples converted to lists."""
    if is_dataclass(tree):
        return [lists(getattr(tree, field.name)) for field in fields(tree)]
    if isinstance(tree, dict):
        return {key: lists(each) for key, each in tree.items()}
    return [lists(each) for each in tree] if isinstance(tree, list | tuple) else tree


def replaced(tree: Any, by: Callable[[mx.array], mx.array]) -> Any:
    """Return a tree with each array replaced by the result of a function of the array."""
    if isinstance(tree, mx.array):
        return by(tree)
    if is_dataclass(tree):
        values = {field.name: replaced(getattr(tree, field.name), by) for field in fields(tree)}
        return type(tree)(**values)  # type: ignore
    if isinstance(tree, dict):
        return {key: replaced(each, by) for key, each in tree.items()}
    if isinstance(tree, list | tuple):
        items = [replaced(each, by) for each in tree]
        return type(tree)._make(items) if hasattr(tree, "_make") else type(tree)(items)  # type: ignore
    return tree


class Row(NamedTuple):
    """Kernel launches of one step of training or acting, per unit and per epoch, by primitive.

    A unit is a minibatch, or a group of agents and a step.
    """

    unit: str
    launches: float
    once: float  # an epoch, or a rollout
    primitives: dict[str, float]  # of a unit, or of an epoch if a unit has none
    maybe: dict[str, float]


class Still:
    """Environments that do nothing when stepped, to count the launches of acting alone."""

    def __init__(self, agents: int, groups: int) -> None:
        self.num_agents, self.num_groups = agents, groups

    def send(self, group: int, actions: Any, out: Any) -> None:
        pass

    def wait(self, group: int) -> None:
        pass


def count(config: Config, environments: Any, backend: str) -> dict[str, Row]:
    """Return the kernel launches of all steps of training and acting on a GPU back-end, by name."""
    graphs = Graphs(backend)
    with graphs.building():
        return {**_training(config, environments, graphs), **_acting(config, environments, graphs)}


def _training(config: Config, environments: Any, graphs: Graphs) -> dict[str, Row]:
    T, N, Q = config.train.horizon, config.vec.total_agents, config.vec.num_buffers
    buffer = RolloutBuffer(environments.spec, T, N, Q, environments.final_observations)
    fewer_launches, more = (
        _epoch(config, buffer, environments.spec, graphs, k) for k in MINIBATCHES
    )
    rows = {}
    for name in more:
        fewer, all_ = _sum(fewer_launches[name]), _sum(more[name])
        each = all_ - fewer
        once = fewer.total() - MINIBATCHES[0] * each.total()
        maybe = _sum(more[name], "maybe") - _sum(fewer_launches[name], "maybe")
        primitives = dict((each or all_).most_common())
        rows[name] = Row(PER_MINIBATCH, each.total(), once, primitives, dict(maybe))  # type: ignore
    return rows


def _set_minibatches(config: Config, minibatches: int) -> None:
    """Change a configuration so that an epoch has this number of minibatches."""
    fraction = config.train.minibatch_size / config.batch_size
    config.train.replay_ratio = (minibatches + 0.5) * fraction  # the half is rounded off
    assert config.minibatches == minibatches


def _sum(records: Sequence[Launches], kind: str = "counted") -> Counter[str]:
    return sum((getattr(each, kind) for each in records), Counter())


def _epoch(
    config: Config, buffer: RolloutBuffer, spec: EnvSpec, graphs: Graphs, minibatches: int
) -> dict[str, list[Launches]]:
    """Return the kernel launches of one epoch of training after a rollout on the CPU, by step."""
    _set_minibatches(config, minibatches)
    policy = configured_policy(spec, config)
    weights = policy.init(mx.random.key(0))
    optimizer = optimizers.from_config(config).init(weights)
    state = TrainState(weights, optimizer, precision.first_scaler(config.train.precision))
    n = config.vec.total_agents // config.vec.num_buffers
    states = [policy.initial_state(n) for _ in buffer.groups]
    state, states = replaced(state, graphs.computed), replaced(states, graphs.computed)
    rollout = Rollout(buffer, state.weights, mx.random.key(0), states)

    placement = Placement(mx.Device(mx.gpu), mx.Device(mx.cpu), precision=config.train.precision)
    learner: Any = Learner(config, policy, placement, PhaseTimer("", enabled=False))
    learner.first_ratios_are_one, learner.graph = True, None
    counter, functions, reader = LaunchCounter(graphs), learner.functions, learner.reader
    for owner, names in (functions, ("gradients", "optimise")), (reader, ("copy",)):
        for name in names:
            setattr(owner, name, partial(counter, name, getattr(owner, name)))
    reader.recompute = partial(counter, "recompute", reader.recompute)
    for name, step in functions.steps.items():
        functions.steps[name] = step._replace(function=partial(counter, name, step.function))
    update = learner.prepare(rollout, state, Scheduled(0.5, 0.5, 0.5), mx.random.key(0), epoch=0)
    update.draws = replaced(update.draws, graphs.computed)
    with counter.evaluations():
        update.submit()
        update.wait()
    return counter.launches_by_step


def _acting(config: Config, environments: Any, graphs: Graphs) -> dict[str, Row]:
    """Return the kernel launches of acting: per group of agents and step, and per rollout."""
    N, Q, spec = config.vec.total_agents, config.vec.num_buffers, environments.spec
    policy, counter = configured_policy(spec, config), LaunchCounter(graphs)
    weights = precision.cast_weights(policy.init(mx.random.key(0)), config.train.precision)
    inputs = (
        weights,
        [policy.initial_state(N // Q) for _ in range(Q)],
        policy.distribution.noise(mx.random.key(0), (ACTING_STEPS, N)),
    )

    streams, timer = lambda: [mx.default_stream(mx.cpu)], PhaseTimer("", enabled=False)
    still, gpu = Still(N, Q), mx.Device(mx.gpu)
    acting: Any = choose_acting(gpu, config.train.precision, policy, still, streams, timer)
    acting.act = partial(counter, "act", acting.act)
    buffer = RolloutBuffer(spec, ACTING_STEPS, N, Q)
    with counter.evaluations():
        acting.collect(buffer, still, *replaced(inputs, graphs.computed))  # type: ignore
    rows = {}
    for name, records in counter.launches_by_step.items():
        runs = ACTING_STEPS * shards_for_gpu(Q) if name == "act" else 1
        each = {key: n / runs for key, n in _sum(records).most_common()}
        maybe = {key: n / runs for key, n in _sum(records, "maybe").items()}
        if each:
            total = sum(each.values())
            counts = (total, 0) if name == "act" else (0, total)
            rows[name] = Row(PER_STEP, *counts, each, maybe)
    return rows
