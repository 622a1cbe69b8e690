"""Count the launches of the steps of training and acting, with `graphs_of_a_gpu.py`.

A step's graph is built for a GPU's back-end, counted and dropped; arrays of ones replace its
results. Training is counted with three and with four minibatches: the difference belongs to a
minibatch, the rest to an epoch.
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
from puffer_mlx.rollout.acting_in_mlx import few_shards
from puffer_mlx.rollout.buffer import RolloutBuffer
from puffer_mlx.spec import EnvSpec
from puffer_mlx.rollout.acting import choose_acting
from puffer_mlx.training.collector import Rollout
from puffer_mlx.training.learner import Learner
from puffer_mlx.training.placement import Placement
from puffer_mlx.ppo.update import TrainState
from graphs_of_a_gpu import Graphs, Launches

MINIBATCHES = 3, 4  # more than are in progress at once
STEPS = 2  # of acting
PER_MINIBATCH, PER_STEP = UNITS = "minibatch", "a part and step"

evaluate = mx.eval  # what MLX's does, also while `Watch` stands in its place


class Watch:
    """Observer that counts what each step launches, and computes nothing of it.

    What leaves a step is replaced by arrays of ones. What is evaluated outside of steps is counted
    under the name of the function that has it evaluated.
    """

    def __init__(self, graphs: Graphs) -> None:
        self.found: dict[str, list[Launches]] = defaultdict(list)
        self._graphs, self._inside = graphs, False

    def __call__(self, name: str, step: Callable[..., Any], *arguments: Any) -> Any:
        arguments = self._take("between the steps", arguments)
        self._inside = True
        result = step(*arguments)
        self._inside = False
        return result if result is arguments[0] else self._take(name, result)

    @contextmanager
    def evaluations(self) -> Iterator[None]:
        """Within, MLX's own evaluations are counted."""
        with mock.patch.multiple(mx, eval=self._evaluate, async_eval=self._evaluate):
            yield

    def _take(self, name: str, tree: Any) -> Any:
        launches = self._graphs.launches(lists(tree))
        if launches.counted or launches.maybe:
            self.found[name].append(launches)
        return replaced(tree, self._graphs.computed)

    def _evaluate(self, *trees: Any) -> None:
        if not self._inside:  # else it is in what the step returns
            code = sys._getframe(1).f_code
            name = getattr(code, "co_qualname", code.co_name).split(".<locals>")[0]
            self.found[name].append(self._graphs.launches(lists(trees)))
            evaluate(lists(trees))


def lists(tree: Any) -> Any:
    """A tree with lists in the place of dataclasses."""
    if is_dataclass(tree):
        return [lists(getattr(tree, field.name)) for field in fields(tree)]
    if isinstance(tree, dict):
        return {key: lists(each) for key, each in tree.items()}
    return [lists(each) for each in tree] if isinstance(tree, list | tuple) else tree


def replaced(tree: Any, by: Callable[[mx.array], mx.array]) -> Any:
    """A tree with others in the place of its arrays."""
    if isinstance(tree, mx.array):
        return by(tree)
    if is_dataclass(tree):
        made = {field.name: replaced(getattr(tree, field.name), by) for field in fields(tree)}
        return type(tree)(**made)  # type: ignore
    if isinstance(tree, dict):
        return {key: replaced(each, by) for key, each in tree.items()}
    if isinstance(tree, list | tuple):
        parts = [replaced(each, by) for each in tree]
        return type(tree)._make(parts) if hasattr(tree, "_make") else type(tree)(parts)  # type: ignore
    return tree


class Row(NamedTuple):
    """A step's launches: numbers of each unit, and primitives' names with their launches."""

    unit: str
    launches: float
    once: float  # an epoch, or a rollout
    primitives: dict[str, float]  # of a unit, or of an epoch if a unit has none
    maybe: dict[str, float]


class Still:
    """Environments that don't move."""

    def __init__(self, agents: int, groups: int) -> None:
        self.num_agents, self.num_groups = agents, groups

    def send(self, group: int, actions: Any, out: Any) -> None:
        pass

    def wait(self, group: int) -> None:
        pass


def count(config: Config, environments: Any, backend: str) -> dict[str, Row]:
    """The launches of training and acting, by step, for a back-end."""
    graphs = Graphs(backend)
    with graphs.building():
        return {**_training(config, environments, graphs), **_acting(config, environments, graphs)}


def _training(config: Config, environments: Any, graphs: Graphs) -> dict[str, Row]:
    T, N, Q = config.train.horizon, config.vec.total_agents, config.vec.num_buffers
    buffer = RolloutBuffer(environments.spec, T, N, Q, environments.final_observations)
    few, more = (_epoch(config, buffer, environments.spec, graphs, k) for k in MINIBATCHES)
    rows = {}
    for name in more:
        fewer, all_ = _sum(few[name]), _sum(more[name])
        each = all_ - fewer
        once = fewer.total() - MINIBATCHES[0] * each.total()
        maybe = _sum(more[name], "maybe") - _sum(few[name], "maybe")
        named = dict((each or all_).most_common())
        rows[name] = Row(PER_MINIBATCH, each.total(), once, named, dict(maybe))  # type: ignore
    return rows


def _set_minibatches(config: Config, minibatches: int) -> None:
    """Let an epoch have so many."""
    share = config.train.minibatch_size / config.batch_size
    config.train.replay_ratio = (minibatches + 0.5) * share  # the half is rounded off
    assert config.minibatches == minibatches


def _sum(found: Sequence[Launches], kind: str = "counted") -> Counter[str]:
    return sum((getattr(each, kind) for each in found), Counter())


def _epoch(
    config: Config, buffer: RolloutBuffer, spec: EnvSpec, graphs: Graphs, minibatches: int
) -> dict[str, list[Launches]]:
    """Everything that an epoch of training launches after a rollout on the CPU."""
    _set_minibatches(config, minibatches)
    policy = configured_policy(spec, config)
    weights = policy.init(mx.random.key(0))
    optimizer = optimizers.from_config(config).init(weights)
    now = TrainState(weights, optimizer, precision.first_scaler(config.train.precision))
    n = config.vec.total_agents // config.vec.num_buffers
    states = [policy.initial_state(n) for _ in buffer.groups]
    now, states = replaced(now, graphs.computed), replaced(states, graphs.computed)
    rollout = Rollout(buffer, now.weights, mx.random.key(0), states)

    away = Placement(mx.Device(mx.gpu), mx.Device(mx.cpu), precision=config.train.precision)
    learner: Any = Learner(config, policy, away, PhaseTimer("", enabled=False))
    learner.first_ratios_are_one, learner.graph = True, None
    watch, functions, reader = Watch(graphs), learner.functions, learner.reader
    for owner, names in (functions, ("gradients", "optimise")), (reader, ("copy",)):
        for name in names:
            setattr(owner, name, partial(watch, name, getattr(owner, name)))
    reader.recompute = partial(watch, "recompute", reader.recompute)
    for name, step in functions.steps.items():
        functions.steps[name] = step._replace(function=partial(watch, name, step.function))
    update = learner.prepare(rollout, now, Scheduled(0.5, 0.5, 0.5), mx.random.key(0), epoch=0)
    update.draws = replaced(update.draws, graphs.computed)
    with watch.evaluations():
        update.submit()
        update.wait()
    return watch.found


def _acting(config: Config, environments: Any, graphs: Graphs) -> dict[str, Row]:
    """Return the launches of acting, per part of the agents and step, and per rollout."""
    N, Q, spec = config.vec.total_agents, config.vec.num_buffers, environments.spec
    policy, watch = configured_policy(spec, config), Watch(graphs)
    weights = precision.lower(policy.init(mx.random.key(0)), config.train.precision)
    given = (
        weights,
        [policy.initial_state(N // Q) for _ in range(Q)],
        policy.distribution.noise(mx.random.key(0), (STEPS, N)),
    )

    streams, timer = lambda: [mx.default_stream(mx.cpu)], PhaseTimer("", enabled=False)
    still, gpu = Still(N, Q), mx.Device(mx.gpu)
    acting: Any = choose_acting(gpu, config.train.precision, policy, still, streams, timer)
    acting.act = partial(watch, "act", acting.act)
    buffer = RolloutBuffer(spec, STEPS, N, Q)
    with watch.evaluations():
        acting.collect(buffer, still, *replaced(given, graphs.computed))  # type: ignore
    rows = {}
    for name, found in watch.found.items():
        share = STEPS * few_shards(Q) if name == "act" else 1
        each = {key: n / share for key, n in _sum(found).most_common()}
        maybe = {key: n / share for key, n in _sum(found, "maybe").items()}
        if each:
            total = sum(each.values())
            numbers = (total, 0) if name == "act" else (0, total)
            rows[name] = Row(PER_STEP, *numbers, each, maybe)
    return rows
