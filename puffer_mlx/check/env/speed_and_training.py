"""Items that measure stepping speed and check training."""

import math
import time
from dataclasses import replace
from itertools import islice

from puffer_mlx import vec
from puffer_mlx.check.env.findings import OK, Finding, Findings, fail, number, ok, percent
from puffer_mlx.check.env.subject import Subject
from puffer_mlx.config import Config
from puffer_mlx.config.fit import rollout_threads
from puffer_mlx.training.epoch_logs import Logs
from puffer_mlx.training.run import Run
from puffer_mlx.vec.rollout_loop import measure_stepping

EPOCHS = 4  # the first one compiles
LONGER = 3  # time limit of the epochs, in units of ``--seconds``
SLOW = 0.5  # fraction of an epoch's time from which the environment is called slow
ROUND_TRIP = 100e-6  # seconds per step above which processes are faster, roughly


def speed(subject: Subject) -> Findings:
    """Measure steps with random actions, with as many agents as in training."""
    with vec.make(subject.config, subject.cores) as environments:
        speeds = measure_stepping(environments, min(subject.seconds, 2.0))
        per_second, nanoseconds = speeds["steps_per_second"], speeds["busy_ns_per_step"]
        how = environments.description
    text = f"{number(per_second)} steps/s alone, {number(nanoseconds / 1000)} us each"
    yield ok(f"{text} ({how})" if how else text)


def training(subject: Subject) -> Findings:
    """Check that losses are finite, and report the environment's share of the time."""
    config = shortened(subject.few() if subject.native else subject.config)
    records = train(config, subject)
    whole = shortened(subject.config)
    slower = whole.batch_size / config.batch_size  # relative duration of an epoch with all agents
    if slower > 1 and slower * EPOCHS * records[-1]["perf/epoch"] < LONGER * subject.seconds:
        records = train(whole, subject)
    losses = {k: v for r in records for k, v in r.items() if k.startswith("loss/")}
    wrong = [name for name, value in losses.items() if not math.isfinite(value)]
    skipped = sum(r.get("loss/skipped_steps", 0.0) for r in records)
    if wrong or skipped:
        yield fail(
            f"losses are not finite: {', '.join(wrong) or f'{skipped:g} updates were skipped'}",
            "look at the scale of observations and rewards, or lower --train.learning-rate",
        )
        return
    last = records[-1]
    share = last.get("perf/eval_env", 0.0) / last["perf/epoch"]
    text = f"{number(last['SPS'])} steps/s, of whose time the environment takes {percent(share)}"
    yield Finding(OK, text, advice(subject) if share >= SLOW else "")  # OK: the machine may be busy


def train(config: Config, subject: Subject) -> list[Logs]:
    """Return the records of the first epochs, fewer than ``EPOCHS`` if they are slow."""
    records: list[Logs] = []
    began = time.perf_counter()
    with vec.make(config, subject.cores) as environments, Run.open(config, environments) as run:
        for logs in islice(run.trainer, EPOCHS):
            records.append(logs)
            if len(records) > 1 and time.perf_counter() - began > LONGER * subject.seconds:
                break
    return records


def shortened(config: Config) -> Config:
    """Return the configuration of a run of ``EPOCHS``, with minibatches that fit the batch."""
    settings = config.train
    changed = replace(
        settings,
        minibatch_size=min(settings.minibatch_size, config.batch_size),
        replay_ratio=max(1.0, settings.replay_ratio),
        total_timesteps=EPOCHS * config.batch_size,
    )
    return replace(config, train=changed)


def advice(subject: Subject) -> str:
    """Return a hint how to speed up a slow environment."""
    if subject.native:
        threads = rollout_threads(subject.config, subject.cores)
        if threads < subject.cores:
            return f"--vec.num-threads {subject.cores}: this machine has so many cores"
        return "more cores, or less work in c_step; the policy waits for it"
    if not subject.whole.description.startswith("async"):
        return (
            f"from about {number(1e6 * ROUND_TRIP)} us a step --vec.backend async, a process each,"
            " is faster; else do less in step, or write it in C"
        )
    return "do less in step, or take more cores; the policy waits for it"
