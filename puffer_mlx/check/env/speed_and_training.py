"""Measure how fast an environment steps, and check that training on it works."""

import math
import time
from dataclasses import replace
from itertools import islice

from puffer_mlx import vec
from puffer_mlx.check.env.environment import EnvUnderTest
from puffer_mlx.check.items import OK, Finding, Findings, fail, format_number, format_percent
from puffer_mlx.config import Config
from puffer_mlx.config.fit import rollout_threads
from puffer_mlx.training.epoch_logs import Logs
from puffer_mlx.training.run import Run
from puffer_mlx.vec.processes import ROUND_TRIP_SECONDS
from puffer_mlx.vec.rollout_loop import measure_stepping

TRAINED_EPOCHS = 4  # the first one compiles
TRAINING_TIME_FACTOR = 3  # time limit of the epochs, as a multiple of ``--seconds``
SLOW_FRACTION = 0.5  # an environment that takes at least this fraction of an epoch is slow


def check_speed(env: EnvUnderTest) -> str:
    """Measure an environment's speed with random actions and as many agents as in training."""
    with vec.make(env.config, env.cores) as environments:
        speeds = measure_stepping(environments, min(env.seconds, 2.0))
        description = f" ({environments.description})" if environments.description else ""
    microseconds = format_number(speeds["busy_ns_per_step"] / 1000)
    steps_per_second = format_number(speeds["steps_per_second"])
    return f"{steps_per_second} steps/s without training, {microseconds} us each{description}"


def check_training(env: EnvUnderTest) -> Findings:
    """Train on the checked environment for a few epochs, and check that losses are finite.

    The finding contains the training speed and the fraction of time that the environment takes.
    """
    config = short_config(env.small_config() if env.native else env.config)
    records = train_briefly(config, env)
    full = short_config(env.config)
    duration_ratio = (
        full.batch_size / config.batch_size
    )  # relative duration of an epoch with all agents
    if (
        duration_ratio > 1
        and duration_ratio * TRAINED_EPOCHS * records[-1]["perf/epoch"]
        < TRAINING_TIME_FACTOR * env.seconds
    ):
        records = train_briefly(full, env)
    losses = {k: v for r in records for k, v in r.items() if k.startswith("loss/")}
    invalid = [name for name, value in losses.items() if not math.isfinite(value)]
    skipped = sum(r.get("loss/skipped_steps", 0.0) for r in records)
    if invalid or skipped:
        reason = ", ".join(invalid) or f"{skipped:g} updates were skipped"
        hint = "check the scale of observations and rewards, or lower --train.learning-rate"
        return [fail(f"losses are not finite: {reason}", hint)]
    last = records[-1]
    fraction = last.get("perf/eval_env", 0.0) / last["perf/epoch"]
    speed = f"{format_number(last['SPS'])} steps/s"
    text = f"{speed}; the environment takes {format_percent(fraction)} of the time"
    hint = speed_advice(env) if fraction >= SLOW_FRACTION else ""
    return [Finding(OK, text, hint)]  # never WARN, because the machine may be busy


def train_briefly(config: Config, env: EnvUnderTest) -> list[Logs]:
    """Train for up to ``TRAINED_EPOCHS`` epochs. Returns the epochs' records (metrics by name).

    Args:
        config: Configuration of the run.
        env: Environment to check. Its ``seconds`` limit the duration.
    """
    records: list[Logs] = []
    began = time.perf_counter()
    with vec.make(config, env.cores) as environments, Run.open(config, environments) as run:
        for logs in islice(run.trainer, TRAINED_EPOCHS):
            records.append(logs)
            if (
                len(records) > 1
                and time.perf_counter() - began > TRAINING_TIME_FACTOR * env.seconds
            ):
                break
    return records


def short_config(config: Config) -> Config:
    """Return a run's configuration, shortened to ``TRAINED_EPOCHS`` epochs.

    Minibatches are reduced to the batch if they are larger.
    """
    settings = config.train
    train_settings = replace(
        settings,
        minibatch_size=min(settings.minibatch_size, config.batch_size),
        replay_ratio=max(1.0, settings.replay_ratio),
        total_timesteps=TRAINED_EPOCHS * config.batch_size,
    )
    return replace(config, train=train_settings)


def speed_advice(env: EnvUnderTest) -> str:
    """Return advice for the user on how to speed up the checked environment, which is slow."""
    if env.native and rollout_threads(env.config, env.cores) < env.cores:
        return f"--vec.num-threads {env.cores}: this machine has {env.cores} cores"
    if env.native:
        return "more cores, or less work in c_step; the policy waits for the environment"
    if env.full.description.startswith("async"):
        return "less work in step, or more cores; the policy waits for the environment"
    round_trip = format_number(1e6 * ROUND_TRIP_SECONDS)
    return (
        f"if a step takes more than about {round_trip} us, --vec.backend async, which uses one"
        " process per environment, is faster; else do less work in step, or write it in C"
    )
