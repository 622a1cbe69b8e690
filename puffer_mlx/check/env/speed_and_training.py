"""Measure stepping speed and check training."""

import math
import time
from dataclasses import replace
from itertools import islice

from puffer_mlx import vec
from puffer_mlx.check.env.environment import EnvUnderTest
from puffer_mlx.check.items import OK, Finding, Findings, fail, number, percent
from puffer_mlx.config import Config
from puffer_mlx.config.fit import rollout_threads
from puffer_mlx.training.epoch_logs import Logs
from puffer_mlx.training.run import Run
from puffer_mlx.vec.processes import ROUND_TRIP_SECONDS
from puffer_mlx.vec.rollout_loop import measure_stepping

EPOCHS = 4  # the first one compiles
LONGER = 3  # time limit of the epochs, in units of ``--seconds``
SLOW = 0.5  # fraction of an epoch's time from which the environment is called slow


def check_speed(env: EnvUnderTest) -> str:
    """Measure steps with random actions, with as many agents as in training."""
    with vec.make(env.config, env.cores) as environments:
        speeds = measure_stepping(environments, min(env.seconds, 2.0))
        how = f" ({environments.description})" if environments.description else ""
    microseconds = number(speeds["busy_ns_per_step"] / 1000)
    return f"{number(speeds['steps_per_second'])} steps/s alone, {microseconds} us each{how}"


def check_training(env: EnvUnderTest) -> Findings:
    """Check that losses are finite, and report the environment's share of the time."""
    config = shorten(env.small_config() if env.native else env.config)
    records = train(config, env)
    full = shorten(env.config)
    slower = full.batch_size / config.batch_size  # relative duration of an epoch with all agents
    if slower > 1 and slower * EPOCHS * records[-1]["perf/epoch"] < LONGER * env.seconds:
        records = train(full, env)
    losses = {k: v for r in records for k, v in r.items() if k.startswith("loss/")}
    wrong = [name for name, value in losses.items() if not math.isfinite(value)]
    skipped = sum(r.get("loss/skipped_steps", 0.0) for r in records)
    if wrong or skipped:
        reason = ", ".join(wrong) or f"{skipped:g} updates were skipped"
        hint = "look at the scale of observations and rewards, or lower --train.learning-rate"
        return [fail(f"losses are not finite: {reason}", hint)]
    last = records[-1]
    share = last.get("perf/eval_env", 0.0) / last["perf/epoch"]
    text = f"{number(last['SPS'])} steps/s, of whose time the environment takes {percent(share)}"
    hint = speed_advice(env) if share >= SLOW else ""
    return [Finding(OK, text, hint)]  # OK: the machine may be busy


def train(config: Config, env: EnvUnderTest) -> list[Logs]:
    """Return the records of the first epochs, fewer than ``EPOCHS`` if they are slow."""
    records: list[Logs] = []
    began = time.perf_counter()
    with vec.make(config, env.cores) as environments, Run.open(config, environments) as run:
        for logs in islice(run.trainer, EPOCHS):
            records.append(logs)
            if len(records) > 1 and time.perf_counter() - began > LONGER * env.seconds:
                break
    return records


def shorten(config: Config) -> Config:
    """Return the configuration of a run of ``EPOCHS``, with minibatches that fit the batch."""
    settings = config.train
    changed = replace(
        settings,
        minibatch_size=min(settings.minibatch_size, config.batch_size),
        replay_ratio=max(1.0, settings.replay_ratio),
        total_timesteps=EPOCHS * config.batch_size,
    )
    return replace(config, train=changed)


def speed_advice(env: EnvUnderTest) -> str:
    """Return a hint how to speed up a slow environment."""
    if env.native and rollout_threads(env.config, env.cores) < env.cores:
        return f"--vec.num-threads {env.cores}: this machine has so many cores"
    if env.native:
        return "more cores, or less work in c_step; the policy waits for it"
    if env.full.description.startswith("async"):
        return "do less in step, or take more cores; the policy waits for it"
    return (
        f"from about {number(1e6 * ROUND_TRIP_SECONDS)} us a step --vec.backend async, a process"
        " each,"
        " is faster; else do less in step, or write it in C"
    )
