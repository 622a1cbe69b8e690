"""Items that make short runs: equal on both devices, resumed exactly, learning, fast."""

import statistics
import time
from typing import Any

import mlx.core as mx
import numpy as np

from puffer_mlx import config, vec
from puffer_mlx.check.gpu.tools import (
    Worst,
    at_most,
    determinism_tolerance,
    flat,
    max_loss_difference,
    need_gpu,
    need_time,
    on,
    require,
    trainer,
    unit,
)
from puffer_mlx.check.items import Failed, Skipped
from puffer_mlx.check.trajectories import compare
from puffer_mlx.checkpoint import State
from puffer_mlx.policy.networks.catalog import NETWORKS
from puffer_mlx.ppo.precision import DTYPES
from puffer_mlx.profiling.phases import WAIT_PHASES
from puffer_mlx.rollout.on_gpu import RolloutsOnGPU
from puffer_mlx.system.backend import backend
from puffer_mlx.training.trainer import Logs, Trainer

EXACT = ("squared", "connect4", "g2048")  # environments with integer arithmetic
PLAYED = (*EXACT, "connect4_two", "soccer")  # the last two have several agents
AGENTS, ROLLOUTS = 512, 8
ROUNDING = 1e-3  # tolerance for the sines and cosines of Breakout
LOSSES = 1e-2  # relative to max(1, loss): TF32, and minibatches may differ by a row
# Tolerance for the first minibatch's probability ratios, in units of ``unit``; at least 1e-5.
RATIOS = 8
OVERLAP, SERIAL = ("--train.overlap", "1"), ("--train.overlap", "0")

COMPILING = 3  # epochs that may compile
MINUTE = 60.0
# Breakout's default configuration has a schedule of 94 million steps. After STEPS, four runs scored
# 17 to 53; an untrained policy stays below 5.
STEPS, SCORE = 20_000_000, 10.0

TIMED = ("--device", "gpu", "--train.total-timesteps", "1e12")
IN_ONE_LAUNCH = ("--train.rollout-device", "gpu-kernel", *SERIAL)
ROUNDS = 7  # measured epochs


# ---- right ---------------------------------------------------------------------------------------


def one_launch(quick: bool) -> str:
    """Check that environments on the GPU match the host's, and that training with them works."""
    need_gpu()
    rates = [_compared(env) for env in (*PLAYED, "breakout")]
    steps = [_compared(env, in_steps=True) for env in PLAYED]
    with trainer("--train.rollout-device", "gpu-kernel", "--device", "gpu") as run:
        for _ in range(2):
            losses = [value for name, value in run.step().items() if name.startswith("loss/")]
            require(bool(np.isfinite(losses).all()), "a loss isn't finite")
    rates = f"{AGENTS} agents: {', '.join(rates)}"
    return f"{rates}; in a few launches a step {', '.join(steps)}"


def _compared(env: str, in_steps: bool = False) -> str:
    sizes = ["--vec.total-agents", str(AGENTS), "--vec.num-buffers", "1"]
    settings = config.load(env, [*sizes, "--train.minibatch-size", str(AGENTS * 64)])

    def make() -> Any:
        return vec.make(settings, 1)

    compared = compare(make, ROLLOUTS, in_steps)
    if compared is None:
        raise Failed(f"{env}'s rules compile for a CPU alone")
    exact = compared.equal == compared.agents
    require(exact or env not in EXACT, f"{env}: other rows from step {compared.first} on")
    require(compared.difference <= ROUNDING, f"{env}: rows {compared.difference:.2g} apart")
    return f"{env} {compared.agents / compared.seconds / 1e6:.1f} M steps/s"


def same_epoch(quick: bool) -> str:
    """Check that an epoch on the GPU has the CPU's losses, from the same weights and rollout."""
    need_gpu()
    with on(mx.Device(mx.cpu)), trainer() as run:
        weights = run.weights
        expected = [run.step()]
        buffer = run.last_buffer
        seen = np.array(buffer.observations), np.array(buffer.actions)
        after = flat(run.weights)
    with trainer(weights=weights) as run:
        ours = [run.step()]
        buffer = run.last_buffer
        for name, one in zip(("observations", "actions"), seen, strict=True):
            require(np.array_equal(np.array(getattr(buffer, name)), one), f"other {name}")
        moved = float(np.abs(flat(run.weights) - after).max())
    losses = at_most("losses", max_loss_difference(ours, expected), LOSSES)
    return f"{losses}; weights differ by {moved:.1g}"


def first_ratios(quick: bool) -> str:
    """Check that acting and training give equal log-probabilities before the first update."""
    on_cpu = mx.default_device() == mx.cpu
    worst = Worst()
    for place in ("cpu",) if on_cpu else ("cpu", "gpu", "gpu-kernel"):
        for precision in DTYPES:
            for network in NETWORKS if precision == "fp32" else (config.Torch().network,):
                logs: Logs = {}
                options = "--train.precision", precision, "--torch.network", network
                with trainer("--train.rollout-device", place, *options) as run:
                    for _ in range(2):
                        logs = run.step()
                error = logs.get("loss/first_ratio_error", float("nan"))
                what = f"ratios of {network} in {precision}, acting on the {place.upper()}"
                worst.add(what, error, max(RATIOS * unit(precision), 1e-5))
    return worst.text


def undisturbed(epochs: int) -> list[Logs]:
    """Return the records of an overlapped run."""
    with trainer(*OVERLAP) as run:
        return [run.step() for _ in range(epochs)]


def resume(quick: bool) -> str:
    """Check that a run resumes exactly, including a rollout not yet trained on."""
    expected = undisturbed(5)
    with trainer(*OVERLAP) as run:
        logs = [run.step() for _ in range(3)]
        weights = run.weights
        state = run.state()
        arrays = {name: mx.array(np.array(a)) for name, a in state.arrays.items()}
    with trainer(*OVERLAP) as run:
        require(run.restore(weights, State(arrays, state.numbers)), "environments didn't go on")
        logs += [run.step() for _ in range(2)]
    return at_most("losses apart by", max_loss_difference(logs, expected), determinism_tolerance())


# ---- learning ------------------------------------------------------------------------------------


def learns(quick: bool) -> str:
    """Check that a minute of Breakout with the default configuration learns."""
    need_time(quick)
    scores: list[float] = []
    with trainer("--vec.num-buffers", "2", env="breakout", base=()) as run:
        speed = learned_in_a_minute(run, scores)
        steps = run.global_step
    reached = f"{steps / 1e6:.1f} million steps, {speed / 1e6:.2f} million a second"
    if steps < STEPS:
        raise Skipped(f"{reached}: a minute is too short here to learn in")
    require(bool(scores), f"no episode ended in {reached}")
    score = statistics.mean(scores[-5:])
    text = f"score {score:.1f} after {reached} (at least {SCORE:g})"
    require(score >= SCORE, text)
    return text


def learned_in_a_minute(run: Trainer, scores: list[float]) -> float:
    """Train for a minute or ``STEPS``, not counting the epochs that compile.

    Args:
        run: Trainer of the run.
        scores: List to which the scores of the epochs are added.

    Returns:
        Median steps per second.
    """
    speeds = []
    began = 0.0
    for logs in run:
        speeds.append(logs["SPS"])
        if "env/score" in logs:
            scores.append(logs["env/score"])
        if run.epoch == COMPILING:
            began = time.perf_counter()
        late = run.epoch > COMPILING and time.perf_counter() - began > MINUTE
        if run.global_step >= STEPS or late:
            break
    return statistics.median(speeds[COMPILING:] or speeds)


# ---- speed ---------------------------------------------------------------------------------------


def speeds(quick: bool) -> str:
    """Measure rollouts, training and epochs in ms: one launch, several launches, overlapped.

    Minibatches are also measured in one launch and in many. ``train.one_launch`` is on by default
    with CUDA only, where it is known to be faster.

    Raises:
        Failed: If a measurement fails. The text contains the others.
    """
    need_gpu()
    need_time(quick)
    pieces = "0" if backend() == "metal" else "4"  # 0: measured
    in_pieces = *IN_ONE_LAUNCH, "--train.launch-steps", pieces
    ways = {
        "one launch": (*IN_ONE_LAUNCH, "--train.launch-steps", "1000"),
        "in pieces": in_pieces,
        "in pieces, a minibatch in one launch": (*in_pieces, "--train.one-launch", "1"),
        "in pieces, a minibatch in many": (*in_pieces, "--train.one-launch", "0"),
        "overlapped, rollouts on the CPU": ("--train.rollout-device", "cpu", *OVERLAP),
    }
    lines = []
    failed = False
    for name, options in ways.items():
        try:
            lines.append(f"{name}: {_measured(*options)}")
        except Exception as error:  # report the other measurements anyway
            lines.append(f"{name}: {type(error).__name__}: {error}")
            failed = True
    text = "\n".join(lines)
    if failed:
        raise Failed(text)
    return text


def _measured(*options: str) -> str:
    with trainer(*options, env="breakout", base=TIMED) as run:
        logs = [run.step() for _ in range(COMPILING + ROUNDS)][COMPILING:]
        acting = run.collector.acting
        settings = run.config
    launches = ""
    if isinstance(acting, RolloutsOnGPU):
        launches = f" ({min(acting.steps, settings.train.horizon)} steps a launch)"
    rollout, training = (_work(logs, lane) for lane in ("perf/eval_", "perf/train_"))
    epoch = 1000 * statistics.median(record["perf/epoch"] for record in logs)
    return (
        f"rollout {rollout:.1f} ms{launches}, training {training:.1f} ms,"
        f" epoch {epoch:.1f} ms: {settings.batch_size / epoch / 1000:.2f} M steps/s"
    )


def _work(logs: list[Logs], lane: str) -> float:
    """Return the median milliseconds of a lane's phases, without waits."""
    waits = {f"perf/{name}" for name in WAIT_PHASES}
    names = [name for name in logs[0] if name.startswith(lane) and name not in waits]
    return 1000 * statistics.median(sum(record[name] for name in names) for record in logs)
