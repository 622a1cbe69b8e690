"""When a step is built, when it is submitted and when it is computed: `launches.py --time`.

Each step of training alone, whole minibatches alone, a group's step of acting, and minibatches in
a row, as they are trained; milliseconds, medians. Before that a first start: what the first call of
each step takes, and how many files of compiled kernels it left. For a start without any on CUDA:
`MLX_PTX_CACHE_DIR=$(mktemp -d) python benchmarks/launches.py breakout --time`.
"""

# ruff: noqa: I001
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from unittest import mock

import puffer_mlx  # noqa: F401  first: it chooses MLX's BLAS, before MLX loads
import mlx.core as mx
from mlx.utils import tree_flatten

from puffer_mlx.config import Config
from puffer_mlx.ppo.update import compile_update
from puffer_mlx.system.devices import building, kernels_folder
from puffer_mlx.training.collector import Rollout
from puffer_mlx.training.trainer import Trainer

IN_A_ROW = 3  # runs; the fastest counts
PARTS = "built", "submitted", "computed"
Times = Sequence[float]  # seconds from the beginning to the end of each part

evaluate, submit = mx.eval, mx.async_eval


def measure(config: Config, environments: Any, repeat: int) -> dict[str, Any]:
    """Milliseconds of a first start, of a rollout, and of training's steps.

    Args:
        config: of the run.
        environments: made by it.
        repeat: minibatches, of which the median counts.
    """
    config.train.overlap = False
    began, before = time.perf_counter(), _files()
    trainer = Trainer(config, environments)
    first = {"trainer made": milliseconds(time.perf_counter() - began)}
    _, first["rollout"] = _rollout(trainer)
    rollout, seconds = _rollout(trainer)
    steps = _steps(trainer, rollout, 1)
    first |= {name: milliseconds(times[0][-1]) for name, times in steps.items()}
    _train(trainer, rollout, 2)  # what only minibatches in a row compile
    first["everything"] = milliseconds(time.perf_counter() - began)
    first["files of kernels"] = _files() - before

    found = {name: _medians(times) for name, times in _steps(trainer, rollout, repeat).items()}
    found["act, a group"] = _medians(_acting(trainer, rollout, repeat))
    found["whole minibatch"] = _medians(_minibatches(trainer, rollout, repeat))
    runs = (_seconds(partial(_train, trainer, rollout, repeat)) for _ in range(IN_A_ROW))
    found[f"one of {repeat} in a row"] = {"computed": milliseconds(min(runs) / repeat)}
    return {"first start": first, "steps": found, "rollout": seconds}


def set_minibatches(config: Config, minibatches: int) -> None:
    """Let an epoch have so many."""
    share = config.train.minibatch_size / config.batch_size
    config.train.replay_ratio = (minibatches + 0.5) * share  # the half is rounded off
    assert config.minibatches == minibatches


def timetable(name: str, found: dict[str, Any]) -> str:
    """What `measure` found, to read."""
    lines = [f"{name}: a first start, ms"]
    lines += [f"  {part:22}{value:12,.1f}" for part, value in found["first start"].items()]
    lines.append(f"{name + ', ms until':24}" + "".join(f"{part:>12}" for part in PARTS))
    for step, times in found["steps"].items():
        cells = (f"{times[part]:12.3f}" if part in times else " " * 12 for part in PARTS)
        lines.append(f"  {step:22}" + "".join(cells))
    lines.append(f"  {'rollout':22}{found['rollout']:36.3f}")
    return "\n".join(lines)


def milliseconds(seconds: float) -> float:
    """Rounded to microseconds."""
    return round(1000 * seconds, 3)


def _medians(times: list[Times]) -> dict[str, float]:
    columns = list(zip(*times, strict=True))
    names = PARTS[-len(columns) :]
    return {n: milliseconds(statistics.median(c)) for n, c in zip(names, columns, strict=True)}


# ---- what is timed -------------------------------------------------------------------------------


def _rollout(trainer: Trainer) -> tuple[Rollout, float]:
    """A rollout, and its milliseconds."""
    began = time.perf_counter()
    trainer.begin_rollout()
    rollout = trainer.collector.take()
    return rollout, milliseconds(time.perf_counter() - began)


def _train(trainer: Trainer, rollout: Rollout, minibatches: int, *observers: Any) -> None:
    """Train, and forget what was learned."""
    set_minibatches(trainer.config, minibatches)
    with building:
        inputs = trainer.inputs(rollout, trainer.learner.draws(mx.random.key(0)))
    evaluate(inputs.draws)
    trainer.learner.train(inputs, observers)


def _steps(trainer: Trainer, rollout: Rollout, minibatches: int) -> dict[str, list[Times]]:
    """Times of each step, nothing else being under way."""
    found: dict[str, list[Times]] = defaultdict(list)

    def observer(name: str, step: Callable[..., Any], *arguments: Any) -> Any:
        result, times = _timed(partial(step, *arguments))
        if result is not arguments[0]:  # else there was nothing to do
            found[name].append(times)
        return result

    _train(trainer, rollout, minibatches, observer)
    return found


def _timed(work: Callable[[], Any]) -> tuple[Any, Times]:
    began = time.perf_counter()
    result = work()
    built = time.perf_counter()
    arrays = [leaf for _, leaf in tree_flatten(result) if isinstance(leaf, mx.array)]  # type: ignore
    submit(arrays)
    submitted = time.perf_counter()
    evaluate(arrays)
    return result, (built - began, submitted - began, time.perf_counter() - began)


def _minibatches(trainer: Trainer, rollout: Rollout, minibatches: int) -> list[Times]:
    """Until each minibatch is submitted and computed, the one before having been computed."""
    found: list[Times] = []
    began = time.perf_counter()

    def submit_and_wait(*trees: Any) -> None:
        nonlocal began
        submit(*trees)
        submitted = time.perf_counter()
        evaluate(*trees)
        found.append((submitted - began, time.perf_counter() - began))
        began = time.perf_counter()

    with mock.patch.object(mx, "async_eval", submit_and_wait):
        _train(trainer, rollout, minibatches + 1)
    return found[-minibatches:]  # the first one waits for what is done once a rollout


def _acting(trainer: Trainer, rollout: Rollout, repeat: int) -> list[Times]:
    """A group's step on the learner's device."""
    buffer, policy = rollout.buffer, trainer.policy
    act = compile_update(policy).act
    agents = trainer.vec.num_agents // trainer.vec.num_groups
    state, noise = (
        policy.initial_state(agents),
        policy.distribution.noise(mx.random.key(0), (agents,)),
    )
    evaluate(state, noise)
    observations, mask, terminals, *_ = buffer.parts(trainer.vec.num_groups)[0][0]
    step = observations, state, noise, mask, terminals
    times = [_timed(partial(act, trainer.weights, *step))[1] for _ in range(repeat + 1)]
    return times[1:]  # the first one compiles


def _seconds(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _files() -> int:
    """Those that MLX keeps compiled kernels in."""
    folder = kernels_folder()
    return sum(path.is_file() for path in folder.rglob("*")) if folder.is_dir() else 0
