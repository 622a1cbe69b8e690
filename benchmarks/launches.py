#!/usr/bin/env python
"""What a GPU is told to launch: python benchmarks/launches.py [ENV [options]] [--json FILE].

The graphs that training and acting build for Metal and CUDA are built on whatever machine this is,
looked at and thrown away (`puffer_mlx/profiling/launches.py`): launches of each step for each
minibatch, and those that there are once an epoch, whatever the number of minibatches. Without ENV,
of several configurations; options go to all of them. `--primitives` names what is launched.

`--time` (a machine with a GPU, or `--device cpu` to try it) measures instead: `submission.py`.
"""

# ruff: noqa: I001
import argparse
import json
import os
import shlex
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from pathlib import Path
from functools import partial
from typing import Any, NamedTuple
from unittest import mock

import puffer_mlx  # noqa: F401  first: it chooses MLX's BLAS, before MLX loads
import mlx.core as mx

from puffer_mlx import vec
from puffer_mlx.cli.exit_codes import reported
from puffer_mlx.config import Config, parse_command_line
from puffer_mlx.errors import UserError
from puffer_mlx.ops.cpu_extension import threads
from puffer_mlx.policy.policy import configured_policy
from puffer_mlx.ppo import optimizers, precision
from puffer_mlx.ppo.update import compile_update
from puffer_mlx.profiling.launches import Graphs, Launches
from puffer_mlx.profiling.phases import PhaseTimer
from puffer_mlx.rollout.acting_in_kernel import ActingInKernel
from puffer_mlx.rollout.acting_in_mlx import few_parts
from puffer_mlx.rollout.buffer import RolloutBuffer
from puffer_mlx.spec import EnvSpec
from puffer_mlx.system.devices import has_gpu, select_device
from puffer_mlx.system.files import publish
from puffer_mlx.system.version import version_text
from puffer_mlx.training.acting import choose_acting
from puffer_mlx.training.collector import Rollout, RolloutStart
from puffer_mlx.training.learner import Learner
from puffer_mlx.training.observers import FirstRatios
from puffer_mlx.training.placement import Placement
from puffer_mlx.training.train_state import Scheduled, TrainState
from submission import measure, set_minibatches, timetable

CONFIGURATIONS = {
    "breakout": ["breakout"],
    "connect4-256": ["connect4", "--policy.hidden-size", "256"],
    "g2048": ["g2048"],
    "lstm-128": ["breakout", "--torch.network", "LSTM", "--policy.hidden-size", "128"],
    "continuous": ["cartpole_continuous"],
}
FIVE = ["--train.algorithm", "puffer5"]
CONFIGURATIONS |= {f"{name}-5": [*CONFIGURATIONS[name], *FIVE] for name in ("breakout", "lstm-128")}
MINIBATCHES = 3, 4  # more than are under way at once; what the second has more is a minibatch's
STEPS = 2  # of acting
ACTING = "a part and step"

evaluate = mx.eval  # what MLX's does, also while `Watch` stands in its place


# ---- counting ------------------------------------------------------------------------------------


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
    primitives: dict[str, float]  # of a unit; if there are none, of an epoch
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
    buffer = RolloutBuffer(environments.spec, T, N, Q, environments.finals)
    few, more = (_epoch(config, buffer, environments.spec, graphs, k) for k in MINIBATCHES)
    rows = {}
    for name in more:
        fewer, all_ = _sum(few[name]), _sum(more[name])
        each = all_ - fewer
        once = fewer.total() - MINIBATCHES[0] * each.total()
        maybe = _sum(more[name], "maybe") - _sum(few[name], "maybe")
        named = dict((each or all_).most_common())
        rows[name] = Row("minibatch", each.total(), once, named, dict(maybe))  # type: ignore
    return rows


def _sum(found: Sequence[Launches], kind: str = "counted") -> Counter[str]:
    return sum((getattr(each, kind) for each in found), Counter())


def _epoch(
    config: Config, buffer: RolloutBuffer, spec: EnvSpec, graphs: Graphs, minibatches: int
) -> dict[str, list[Launches]]:
    """Everything that an epoch of training launches after a rollout on the CPU."""
    set_minibatches(config, minibatches)
    policy = configured_policy(spec, config)
    weights = policy.init(mx.random.key(0))
    optimizer = optimizers.find(config.train.optimizer).init(weights)
    now = TrainState(weights, optimizer, precision.first_scaler(config.train.precision))
    n = config.vec.total_agents // config.vec.num_buffers
    states = [policy.initial_state(n) for _ in buffer.groups]
    now, states = replaced(now, graphs.computed), replaced(states, graphs.computed)
    start = RolloutStart(buffer, now.weights, states, mx.random.key(0), None)
    rollout = Rollout(buffer, start, {}, 0.0)

    away = Placement(mx.Device(mx.gpu), mx.Device(mx.cpu), precision=config.train.precision)
    learner = Learner(config, compile_update(policy, config.train), away, policy)
    watch, ratios = Watch(graphs), FirstRatios(learner.reader, True)
    ratios.begin(rollout, 0)
    draws = replaced(learner.draws(mx.random.key(0)), graphs.computed)
    scheduled = Scheduled(*(mx.array(0.5) for _ in fields(Scheduled)))
    with watch.evaluations():
        learner.train(rollout, now, draws, scheduled, [watch, ratios])
    return watch.found


def _acting(config: Config, environments: Any, graphs: Graphs) -> dict[str, Row]:
    """What acting launches for a part of the agents and a step, and once a rollout."""
    N, Q, spec = config.vec.total_agents, config.vec.num_buffers, environments.spec
    policy, watch = configured_policy(spec, config), Watch(graphs)
    weights = precision.lower(policy.init(mx.random.key(0)), config.train.precision)
    given = (
        weights,
        [policy.initial_state(N // Q) for _ in range(Q)],
        policy.distribution.noise(mx.random.key(0), (STEPS, N)),
    )
    run = compile_update(policy, config.train)

    streams, timer = lambda: [mx.default_stream(mx.cpu)], PhaseTimer("", enabled=False)
    still, gpu = Still(N, Q), mx.Device(mx.gpu)
    acting: Any = choose_acting(gpu, config.train.precision, policy, run, still, streams, timer)
    inner = acting if isinstance(acting, ActingInKernel) else acting.acting
    inner.act = partial(watch, "act", inner.act)
    buffer = RolloutBuffer(spec, STEPS, N, Q)
    with watch.evaluations():
        acting.collect(buffer, still, *replaced(given, graphs.computed))  # type: ignore
    rows = {}
    for name, found in watch.found.items():
        share = STEPS * few_parts(Q) if name == "act" else 1
        each = {key: n / share for key, n in _sum(found).most_common()}
        maybe = {key: n / share for key, n in _sum(found, "maybe").items()}
        if each:
            total = sum(each.values())
            numbers = (total, 0) if name == "act" else (0, total)
            rows[name] = Row(ACTING, *numbers, each, maybe)
    return rows


def table(name: str, counts: dict[str, dict[str, Row]], primitives: bool) -> str:
    """A configuration's rows, with a column for each back-end."""
    backends = list(counts)
    lines = [f"{name:24}" + "".join(f"{backend + ', each':>14}{'once':>8}" for backend in backends)]
    names = list(dict.fromkeys(step for rows in counts.values() for step in rows))
    empty = Row("", 0, 0, {}, {})
    for unit in ("minibatch", ACTING):
        total = [[0.0, 0.0] for _ in backends]
        for step in names:
            rows = [counts[backend].get(step, empty) for backend in backends]
            if unit not in {row.unit for row in rows}:
                continue
            lines.append(f"  {step:22}" + "".join(_cells(row.launches, row.once) for row in rows))
            for sums, row in zip(total, rows, strict=True):
                sums[0] += row.launches
                sums[1] += row.once
            if primitives:
                lines += _details(rows[0])
        lines.append(f"  {'= ' + unit:22}" + "".join(_cells(*sums) for sums in total))
    return "\n".join(lines)


def _cells(each: float, once: float) -> str:
    return f"{each:14g}{once:8g}"


def _details(row: Row) -> Iterator[str]:
    for name, n in row.primitives.items():
        yield f"      {n:4g} {name}"
    for name, n in row.maybe.items():
        yield f"     +{n:4g} {name} of a slice, if not along the first axis"


# ---- the command line ----------------------------------------------------------------------------


def add_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("this benchmark")
    group.add_argument("--only", metavar="A,B", help=f"without ENV: of {', '.join(CONFIGURATIONS)}")
    group.add_argument("--back-ends", default="metal,cuda", help="whose graphs (metal,cuda)")
    group.add_argument("--primitives", action="store_true", help="name what is launched")
    group.add_argument("--time", action="store_true", help="measure on the device, don't count")
    group.add_argument("--repeat", type=int, default=50, help="minibatches that are timed (50)")
    group.add_argument("--json", metavar="FILE", type=Path, help="write the record to a file")


def configurations(argv: list[str]) -> dict[str, list[str]]:
    """Command lines by name: the one that is given, or those without an environment."""
    named = bool(argv) and not argv[0].startswith("-")
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    add_options(parser)
    only = parser.parse_known_args(argv)[0].only
    if named and only:
        raise UserError(f"--only chooses configurations, and {argv[0]} is one", "one of the two")
    if named or {"-h", "--help"} & {*argv}:
        return {argv[0]: argv}
    chosen = only.split(",") if only else list(CONFIGURATIONS)
    if unknown := [name for name in chosen if name not in CONFIGURATIONS]:
        raise UserError(f"--only: there is no {unknown[0]}", ", ".join(CONFIGURATIONS))
    return {name: [*CONFIGURATIONS[name], *argv] for name in chosen}


def check(options: argparse.Namespace, config: Config) -> None:
    """Raise a UserError where the options can't be obeyed."""
    if unknown := [name for name in options.back_ends.split(",") if name not in ("metal", "cuda")]:
        raise UserError(f"--back-ends: there is no {unknown[0]}", "metal, cuda, or metal,cuda")
    if options.repeat < 1:
        raise UserError(f"--repeat is {options.repeat}", "at least 1")
    if options.time and not has_gpu() and config.base.device != "cpu":
        raise UserError(
            "--time: this build of MLX has no GPU to measure",
            "leave it out to count; --device cpu times the CPU",
        )


@reported
def main(argv: list[str]) -> None:
    results: dict[str, Any] = {}
    options, load = argparse.Namespace(), os.getloadavg()
    for name, words in configurations(argv).items():
        config, options = parse_command_line(words, add_options)
        check(options, config)
        select_device(config.base.device if options.time else "cpu")
        with vec.make(config, threads()) as environments:
            if options.time:
                results[name] = measure(config, environments, options.repeat)
                print(timetable(name, results[name]), flush=True)
                continue
            backends = options.back_ends.split(",")
            counts = {backend: count(config, environments, backend) for backend in backends}
        print(table(name, counts, options.primitives), flush=True)
        results[name] = {
            backend: {step: row._asdict() for step, row in rows.items()}
            for backend, rows in counts.items()
        }
    if options.json:
        record = {
            "command": shlex.join(["python", *sys.argv]),
            "device": str(mx.default_device()),
            "load_before": [round(x, 2) for x in load],
            "versions": version_text().splitlines(),
            "results": results,
        }
        with publish(options.json) as path:
            path.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
