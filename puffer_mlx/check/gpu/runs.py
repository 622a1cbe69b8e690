"""Checks that train for a short time: equal on CPU and GPU, resumed exactly, learning, speed."""

import statistics
import time
from typing import Any

import mlx.core as mx
import numpy as np

from puffer_mlx import config, vec
from puffer_mlx.check.gpu.tools import (
    WorstCase,
    at_most,
    determinism_tolerance,
    flatten_arrays,
    max_loss_difference,
    need_gpu,
    need_time,
    on,
    require,
    rounding_unit,
    trainer,
)
from puffer_mlx.check.items import Failed, Skipped
from puffer_mlx.check.trajectories import compare_trajectories
from puffer_mlx.checkpoint import SavedState
from puffer_mlx.policy.networks.catalog import NETWORKS
from puffer_mlx.ppo.precision import DTYPES
from puffer_mlx.profiling.phases import WAIT_PHASES
from puffer_mlx.rollout.on_gpu import RolloutsOnGPU
from puffer_mlx.system.backend import backend
from puffer_mlx.training.trainer import Logs, Trainer

INTEGER_ENVIRONMENTS = ("squared", "connect4", "g2048")  # environments with integer arithmetic
SEVERAL_AGENTS = ("connect4_two", "soccer")  # environments with several agents
CHECKED_ENVIRONMENTS = (*INTEGER_ENVIRONMENTS, *SEVERAL_AGENTS)
AGENTS = 512
ROLLOUTS = 8
ROUNDING_TOLERANCE = 1e-3  # for the sines and cosines of Breakout
# Relative to max(1, loss). Reasons for a difference: TF32, and minibatches may differ by a row.
LOSS_TOLERANCE = 1e-2
# Tolerance for probability ratios of the first minibatch: this many rounding units, at least 1e-5.
RATIO_TOLERANCE = 8
OVERLAP = ("--train.overlap", "1")
SERIAL = ("--train.overlap", "0")

COMPILING_EPOCHS = 3  # epochs that may compile
MINUTE = 60.0  # seconds
# Breakout is configured for 94 million steps. After MAX_LEARNING_STEPS of this schedule, four
# runs scored 17 to 53; an untrained policy stays below 5.
MAX_LEARNING_STEPS = 20_000_000
MIN_SCORE = 10.0

TIMED_OPTIONS = ("--device", "gpu", "--train.total-timesteps", "1e12")
IN_ONE_LAUNCH = ("--train.rollout-device", "gpu-kernel", *SERIAL)
MEASURED_EPOCHS = 7


# ---- equality ------------------------------------------------------------------------------------


def check_one_launch(quick: bool) -> str:
    """Check rollouts on the GPU, in one kernel launch per rollout or a few launches per step.

    Environments must behave as on the CPU, and training must give finite losses.
    """
    need_gpu()
    speeds = [_check_environment(env) for env in (*CHECKED_ENVIRONMENTS, "breakout")]
    speeds_in_steps = [_check_environment(env, in_steps=True) for env in CHECKED_ENVIRONMENTS]
    with trainer("--train.rollout-device", "gpu-kernel", "--device", "gpu") as run:
        for _ in range(2):
            losses = [value for name, value in run.step().items() if name.startswith("loss/")]
            require(bool(np.isfinite(losses).all()), "a loss isn't finite")
    return (
        f"{AGENTS} agents: {', '.join(speeds)};"
        f" in a few launches per step: {', '.join(speeds_in_steps)}"
    )


def _check_environment(env: str, in_steps: bool = False) -> str:
    """Check that one environment has the same trajectories on GPU and CPU. Returns its speed."""
    sizes = ["--vec.total-agents", str(AGENTS), "--vec.num-buffers", "1"]
    settings = config.load(env, [*sizes, "--train.minibatch-size", str(AGENTS * 64)])

    def make() -> Any:
        return vec.make(settings, 1)

    comparison = compare_trajectories(make, ROLLOUTS, in_steps)
    if comparison is None:
        raise Failed(f"the GPU can't step {env}")
    exact = comparison.equal == comparison.agents
    require(
        exact or env not in INTEGER_ENVIRONMENTS,
        f"{env}: rows differ from step {comparison.first_difference} on",
    )
    require(
        comparison.difference <= ROUNDING_TOLERANCE,
        f"{env}: rows differ by {comparison.difference:.2g}",
    )
    return f"{env} {comparison.agents / comparison.seconds / 1e6:.1f} M steps/s"


def check_same_epoch(quick: bool) -> str:
    """Check that training an epoch on the GPU gives the same losses as on the CPU.

    Both start from the same weights and rollout.
    """
    need_gpu()
    with on(mx.Device(mx.cpu)), trainer() as run:
        weights = run.weights
        expected = [run.step()]
        buffer = run.last_buffer
        expected_rollout = np.array(buffer.observations), np.array(buffer.actions)
        expected_weights = flatten_arrays(run.weights)
    with trainer(weights=weights) as run:
        records = [run.step()]
        buffer = run.last_buffer
        for name, expected_array in zip(("observations", "actions"), expected_rollout, strict=True):
            array = np.array(getattr(buffer, name))
            require(np.array_equal(array, expected_array), f"{name} differ")
        weight_difference = float(np.abs(flatten_arrays(run.weights) - expected_weights).max())
    losses = at_most("losses", max_loss_difference(records, expected), LOSS_TOLERANCE)
    return f"{losses}; weights differ by {weight_difference:.1g}"


def check_first_ratios(quick: bool) -> str:
    """Check that rollouts and training compute equal log-probabilities with the same weights."""
    on_cpu = mx.default_device() == mx.cpu
    worst = WorstCase()
    for device in ("cpu",) if on_cpu else ("cpu", "gpu", "gpu-kernel"):
        for precision in DTYPES:
            for network in NETWORKS if precision == "fp32" else (config.Torch().network,):
                logs: Logs = {}
                options = "--train.precision", precision, "--torch.network", network
                with trainer("--train.rollout-device", device, *options) as run:
                    for _ in range(2):
                        logs = run.step()
                error = logs.get("loss/first_ratio_error", float("nan"))
                name = f"ratios of {network} in {precision}, acting on the {device.upper()}"
                worst.add(name, error, max(RATIO_TOLERANCE * rounding_unit(precision), 1e-5))
    return worst.text


def uninterrupted_run(epochs: int) -> list[Logs]:
    """Train without interruption, with rollouts during training. Returns the epochs' records."""
    with trainer(*OVERLAP) as run:
        return [run.step() for _ in range(epochs)]


def check_resume(quick: bool) -> str:
    """Check that a run resumes exactly, even if a rollout was collected but not yet trained on."""
    expected = uninterrupted_run(5)
    with trainer(*OVERLAP) as run:
        logs = [run.step() for _ in range(3)]
        weights = run.weights
        state = run.state()
        arrays = {name: mx.array(np.array(a)) for name, a in state.arrays.items()}
    with trainer(*OVERLAP) as run:
        require(
            run.restore(weights, SavedState(arrays, state.values)), "environments weren't restored"
        )
        logs += [run.step() for _ in range(2)]
    return at_most("losses differ by", max_loss_difference(logs, expected), determinism_tolerance())


# ---- learning ------------------------------------------------------------------------------------


def check_learning(quick: bool) -> str:
    """Check that Breakout with its default configuration learns within a minute."""
    need_time(quick)
    scores: list[float] = []
    with trainer("--vec.num-buffers", "2", env="breakout", base=()) as run:
        speed = train_for_a_minute(run, scores)
        steps = run.global_step
    reached = f"{steps / 1e6:.1f} million steps, {speed / 1e6:.2f} million a second"
    if steps < MAX_LEARNING_STEPS:
        raise Skipped(f"{reached}: too few steps in a minute to learn")
    require(bool(scores), f"no episode ended in {reached}")
    score = statistics.mean(scores[-5:])
    text = f"score {score:.1f} after {reached} (at least {MIN_SCORE:g})"
    require(score >= MIN_SCORE, text)
    return text


def train_for_a_minute(run: Trainer, scores: list[float]) -> float:
    """Train for a minute or ``MAX_LEARNING_STEPS``. The epochs that compile don't count.

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
        if run.epoch == COMPILING_EPOCHS:
            began = time.perf_counter()
        timed_out = run.epoch > COMPILING_EPOCHS and time.perf_counter() - began > MINUTE
        if run.global_step >= MAX_LEARNING_STEPS or timed_out:
            break
    return statistics.median(speeds[COMPILING_EPOCHS:] or speeds)


# ---- speed ---------------------------------------------------------------------------------------


def measure_speeds(quick: bool) -> str:
    """Measure rollouts, training and epochs of Breakout with several options. Returns times in ms.

    The options: rollouts in one launch, in several launches, and overlapped on the CPU; minibatches
    in one launch and in many. ``train.one_launch`` is on by default only with CUDA, where it was
    measured to be faster.

    Raises:
        Failed: If a measurement fails. The text contains the other measurements.
    """
    need_gpu()
    need_time(quick)
    launch_steps = "0" if backend() == "metal" else "4"  # 0: chosen by timing
    in_launches = *IN_ONE_LAUNCH, "--train.launch-steps", launch_steps
    variants = {
        "one launch": (*IN_ONE_LAUNCH, "--train.launch-steps", "1000"),
        "several launches": in_launches,
        "several launches, minibatch in one": (*in_launches, "--train.one-launch", "1"),
        "several launches, minibatch in many": (*in_launches, "--train.one-launch", "0"),
        "overlapped, rollouts on the CPU": ("--train.rollout-device", "cpu", *OVERLAP),
    }
    lines = []
    failed = False
    for name, options in variants.items():
        try:
            lines.append(f"{name}: {_measure_times(*options)}")
        except Exception as error:  # report the other measurements anyway
            lines.append(f"{name}: {type(error).__name__}: {error}")
            failed = True
    text = "\n".join(lines)
    if failed:
        raise Failed(text)
    return text


def _measure_times(*options: str) -> str:
    """Train Breakout for some epochs with given options. Returns as text the median times."""
    with trainer(*options, env="breakout", base=TIMED_OPTIONS) as run:
        logs = [run.step() for _ in range(COMPILING_EPOCHS + MEASURED_EPOCHS)][COMPILING_EPOCHS:]
        acting = run.collector.acting
        settings = run.config
    launches = ""
    if isinstance(acting, RolloutsOnGPU):
        launches = f" ({min(acting.steps, settings.train.horizon)} steps a launch)"
    rollout, training = (
        _busy_milliseconds(logs, phase_prefix) for phase_prefix in ("perf/eval_", "perf/train_")
    )
    epoch = 1000 * statistics.median(record["perf/epoch"] for record in logs)
    return (
        f"rollout {rollout:.1f} ms{launches}, training {training:.1f} ms,"
        f" epoch {epoch:.1f} ms: {settings.batch_size / epoch / 1000:.2f} M steps/s"
    )


def _busy_milliseconds(logs: list[Logs], phase_prefix: str) -> float:
    """Return the median milliseconds per epoch of rollouts or of training, without waits.

    Args:
        logs: Records of the measured epochs.
        phase_prefix: Start of the phases' names: ``perf/eval_`` (rollout) or ``perf/train_``.
    """
    waits = {f"perf/{name}" for name in WAIT_PHASES}
    names = [name for name in logs[0] if name.startswith(phase_prefix) and name not in waits]
    return 1000 * statistics.median(sum(record[name] for name in names) for record in logs)
