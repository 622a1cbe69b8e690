#!/usr/bin/env python
"""Train a configuration with many seeds: python benchmarks/seeds.py breakout-a --seeds 96 [--help].

Runs with `--seed S --vec.seed 1000 x S` in parallel processes. Prints the distribution of the final
scores: median, lower decile, lowest, the fraction below each bound with its 95 % interval (Wilson),
and the step at which the training score first reached `--passes`. Use held-out seeds.

The score of a run is measured with its final weights: each of `--agents` agents plays one complete
episode in new environments, with sampled actions and zero initial states. An agent that doesn't
finish within `--limit` steps is counted (`unfinished`) and left out. `--upstream` uses PufferLib's
evaluation after training instead: all agents of the run play until a number of episodes have
*ended*, which favours short episodes.

`--weights-seed W` gives all runs the initial weights of seed W; `--nudge` multiplies the weights by
1 + 1e-6 normal noise, like rounding: both separate the effects of chance and of weights. Further
options are passed to `scripts/train.py`. Environment variables, such as MLX_ENABLE_TF32=0, apply to
all runs.

With `--fail-share P` the exit code is 1 if more than this fraction of the seeds is below the first
bound. `--draw` draws the curves of the worst runs.
"""
# ruff: noqa: I001

import argparse
import contextlib
import datetime
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import puffer_mlx  # noqa: F401  first: it chooses MLX's BLAS, before MLX loads
import mlx.core as mx
import numpy as np
from mlx.utils import tree_map

from puffer_mlx import config, vec
from puffer_mlx.cli.exit_codes import with_exit_code
from puffer_mlx.config import Config
from puffer_mlx.config.fit import rollout_threads
from puffer_mlx.errors import UserError
from puffer_mlx.evaluation.results import Tally
from puffer_mlx.policy.policy import configured_policy
from puffer_mlx.profiling.phases import Profiler
from puffer_mlx.system.devices import select_device
from puffer_mlx.system.json_text import write_json
from puffer_mlx.evaluation import evaluator
from puffer_mlx.training.collectors import make_collector
from puffer_mlx.training.placement import Acting, rollout_cores
from puffer_mlx.training.trainer import Trainer

from learning_processes import cores_of
from learning_runs import section_scores

NUDGE_SIZE = 1e-6  # relative noise of --nudge
SEED_OFFSET = 1_000_003  # between the environments of training and of the evaluation
RECORDED_LOSSES = "loss/entropy", "loss/kl", "loss/value"


# ---- one run -------------------------------------------------------------------------------------


class Separate:
    """Wrapper of environments that records each environment's episodes, not only their mean."""

    def __init__(self, environments: Any, native: Any) -> None:
        self._whole, self._native, self.records = environments, native, []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._whole, name)

    def log(self) -> dict[str, float]:
        """Store the episodes that have ended in ``records``, and return {} as the metrics.

        The records have the form of ``NativeVec.episodes``.
        """
        stepped = getattr(self._whole, "stepped", None)  # exists if a GPU steps them
        if stepped is None:
            self.records = self._native.episodes()
            return {}
        game = self._whole.kernel.game
        logs = np.array(stepped.structs[:, game.log : game.log + game.logs].view(mx.float32))
        self._whole.log()  # reset the sums
        self.records = []
        for env in np.flatnonzero(logs.any(axis=1)):
            self._native.gpu_side.add_log(np.ascontiguousarray(logs[env]))
            self.records.append({**self._native.log(), "env": float(env)})
        return {}


def whole_episodes(trainer: Trainer, agents: int, limit: int, name: str) -> dict[str, float]:
    """Play one complete episode per environment with a trainer's weights. Returns the scores.

    Args:
        trainer: Trainer after its last epoch.
        agents: Number of agents.
        limit: Maximum steps of an agent.
        name: Name of the score.
    """
    settings = trainer.config
    vec_settings = replace(
        settings.vec, total_agents=agents, num_buffers=1, seed=settings.vec.seed + SEED_OFFSET
    )
    base = replace(settings.base, reset_state=False)
    settings = replace(settings, vec=vec_settings, base=base, origins={}, notes=[])
    records_by_environment: dict[int, dict[str, float]] = {}
    placement, timer = replace(trainer.placement, overlap=False), Profiler(False).rollout
    with vec.make(settings, threads=rollout_cores(settings)) as environments:
        acting = Acting(settings, environments, trainer.policy)
        collector = make_collector(acting, placement, timer)
        collector.vec = separate = Separate(collector.vec, environments)
        count, key = environments.num_environments, mx.random.key(settings.base.seed + SEED_OFFSET)
        steps = 0
        while len(records_by_environment) < count and steps < limit:
            key = collector.begin(trainer.weights, key)
            collector.take()
            steps += settings.train.horizon
            for record in separate.records:  # the mean if several ended in one rollout
                records_by_environment.setdefault(int(record["env"]), record)
    if not records_by_environment:
        raise UserError(f"no episode ended within {limit:,} steps of each agent", "--limit")
    scores = np.array([record[name] for record in records_by_environment.values()])
    low, middle = np.quantile(scores, [0.1, 0.5])
    return {
        "score": float(scores.mean()),
        "median episode": float(middle),
        "lower decile of episodes": float(low),
        "episodes": len(scores),
        "unfinished": count - len(records_by_environment),
        "steps of an agent": steps,
    }


def passed(records: list[dict[str, float]], name: str, score: float) -> float | None:
    """Return the first step at which the mean score of an epoch's episodes reached a score.

    Returns None if it never did.
    """
    steps = (r["agent_steps"] for r in records if r.get("env/n") and r[name] >= score)
    return next(steps, None)


def perturbed(weights: Any, nudge: int) -> Any:
    """Return weights with a little relative noise, like rounding errors."""
    rng = np.random.default_rng(nudge)

    def perturb(weight: mx.array) -> mx.array:
        return weight * mx.array(1 + NUDGE_SIZE * rng.standard_normal(weight.shape), mx.float32)

    return tree_map(perturb, weights)


def run(options: argparse.Namespace, seed: int) -> dict[str, Any]:
    """Train a configuration with one seed, and score the final weights. Returns the results."""
    seeds = ["--seed", str(seed), "--vec.seed", str(1000 * seed), "--profile", "0"]
    settings = config.load(options.name, [*options.more, *seeds])
    select_device(settings.base.device)
    name = settings.metric
    with vec.make(
        settings, threads=rollout_threads(settings, rollout_cores(settings))
    ) as environments:
        policy, weights = configured_policy(environments.spec, settings), None
        if options.weights_seed is not None or options.nudge:
            source = seed if options.weights_seed is None else options.weights_seed
            weights = policy.init(mx.random.split(mx.random.key(source))[0])
            weights = perturbed(weights, seed) if options.nudge else weights
        trainer = Trainer(settings, environments, policy, weights)
        records = list(trainer)
        plain = name.removeprefix("env/")
        scored = whole_episodes(trainer, options.agents, options.limit, plain)
        if options.upstream:
            with contextlib.closing(
                evaluator.evaluate_after_training(trainer, all_cores)
            ) as rollouts:
                *_, last = rollouts
            scored = {**scored, "whole episodes": scored["score"], "score": last[name]}
    steps = records[-1]["agent_steps"]
    return {
        "seed": seed,
        **scored,
        "passed": passed(records, name, options.passes),
        "steps": steps,
        "seconds": records[-1]["uptime"],
        "skipped": sum(r.get("loss/skipped_steps", 0) for r in records),
        "curve": rounded(section_scores(records, name)),
        **{loss: rounded(section_scores(records, loss)) for loss in RECORDED_LOSSES},
    }


def all_cores(settings: Config) -> Any:
    return vec.make(settings, threads=rollout_cores(settings))


def rounded(curve: list[list[float]]) -> list[list[float]]:
    return [[round(step), float(f"{value:.4g}")] for step, value in curve]


# ---- all of them ---------------------------------------------------------------------------------


def side_by_side(options: argparse.Namespace, seeds: list[int]) -> list[dict[str, Any]]:
    """Train with all seeds, in several processes. Returns the results, sorted by seed."""
    results: list[dict[str, Any]] = []

    def work(job: int, cores: set[int]) -> None:
        seeds_of_job = ",".join(map(str, seeds[job :: options.jobs]))
        arguments = [sys.executable, __file__, *sys.argv[1:], "--these", seeds_of_job]
        child = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)
        if cores:
            os.sched_setaffinity(child.pid, cores)
        assert child.stdout is not None
        for line in child.stdout:
            results.append(json.loads(line))
            print(f"seed {results[-1]['seed']}: {results[-1]['score']:.1f}", flush=True)
            if options.json:
                keep(options, results)
        if child.wait():
            raise UserError(f"a process of seeds {seeds_of_job} failed", "see its message above")

    cores = cores_of(options.jobs, options.threads) if options.threads else [set()] * options.jobs
    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(work, range(options.jobs), cores))
    return sorted(results, key=lambda row: row["seed"])


def fraction_below(scores: np.ndarray, bound: float) -> tuple[int, float, float, float]:
    """Return how many scores are below a bound, their fraction, and its 95 % interval."""
    below = int((scores < bound).sum())
    return below, below / len(scores), *Tally(below, 0, len(scores) - below).interval


def summary(options: argparse.Namespace, runs: list[dict[str, Any]]) -> str:
    """Describe the distribution of the scores as text."""
    scores = np.array([run["score"] for run in runs])
    low, middle = np.quantile(scores, [0.1, 0.5])
    lines = [
        f"{' '.join([options.name, *options.more])}: {len(runs)} seeds,"
        f" median {middle:.1f}, lower decile {low:.1f}, lowest {scores.min():.1f}"
    ]
    for bound in options.bounds:
        below, fraction, low_end, high_end = fraction_below(scores, bound)
        lines.append(
            f"  below {bound:g}: {below} of {len(runs)}, {100 * fraction:.1f} %"
            f" ({100 * low_end:.1f} to {100 * high_end:.1f})"
        )
    steps = [run["passed"] for run in runs if run["passed"] is not None]
    if steps:
        early, half, late = np.quantile(steps, [0.1, 0.5, 0.9]) / 1e6
        lines.append(
            f"  {options.passes:g} first passed in training after {early:.1f}, {half:.1f},"
            f" {late:.1f} M steps (lower decile, median, upper), never by {len(runs) - len(steps)}"
        )
    worst = sorted(runs, key=lambda run: run["score"])[:5]
    lines.append(
        "  worst: " + ", ".join(f"{run['score']:.1f} (seed {run['seed']})" for run in worst)
    )
    seconds = np.median([run["seconds"] for run in runs])
    lines.append(f"  {seconds:.1f} s a run (median, {options.jobs} side by side)")
    return "\n".join(lines)


def keep(options: argparse.Namespace, runs: list[dict[str, Any]]) -> None:
    """Write the results of all seeds to a JSON file.

    With ``--entry`` the file has several records.
    """
    record = {
        "command": " ".join(["python benchmarks/seeds.py", *sys.argv[1:]]),
        "date": datetime.date.today().isoformat(),
        "variables": {name: text for name, text in os.environ.items() if name.startswith("MLX_")},
        "cores": os.cpu_count(),
        "runs": sorted(runs, key=lambda row: row["seed"]),
    }
    if options.entry:
        path = options.json
        earlier_records = json.loads(path.read_text())["of each"] if path.exists() else {}
        record = {"of each": {**earlier_records, options.entry: record}}
    write_json(record, options.json, indent=None)


def draw(options: argparse.Namespace, runs: list[dict[str, Any]]) -> None:
    """Draw the range and median of all runs, and the curves of the five worst runs."""
    import figures

    words = f"{options.name}: median and range of {len(runs)} seeds; grey: the five worst."
    with figures.panels(1, options.draw, words, size=(7, 3.6)) as (axis,):
        curves = [np.array(run["curve"]) / [1e6, 1] for run in runs]
        figures.seeds(axis, curves, figures.OUR_COLOR)
        for at in np.argsort([run["score"] for run in runs])[:5]:
            axis.plot(*curves[at].T, color=figures.PEER_COLOR, linewidth=0.9)
        axis.set(xlabel="million steps", ylabel="score of finished episodes", xlim=(0, None))


def parsed(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", metavar="NAME", help="as train.py's first word")
    parser.add_argument("--seeds", type=int, default=16, help="runs (16)")
    parser.add_argument("--first-seed", type=int, default=1001, help="(1001)")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time (1)")
    parser.add_argument("--threads", type=int, default=0, help="cores per run; 0: all (0)")
    parser.add_argument("--bounds", type=float, nargs="+", default=[600, 750], help="(600 750)")
    parser.add_argument("--passes", type=float, default=600, help="training score (600)")
    parser.add_argument("--agents", type=int, default=512, help="agents of the evaluation (512)")
    parser.add_argument("--limit", type=int, default=12_000, help="its maximum steps (12,000)")
    parser.add_argument("--upstream", action="store_true", help="use PufferLib 5.0's evaluation")
    parser.add_argument("--weights-seed", type=int, help="seed of all initial weights")
    parser.add_argument("--nudge", action="store_true", help="change weights by a millionth")
    parser.add_argument("--fail-share", type=float, default=1.0, metavar="P", help="(1)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the record to a file")
    parser.add_argument("--entry", metavar="WORDS", help="add the record to FILE by this name")
    parser.add_argument("--draw", type=Path, metavar="PNG")
    parser.add_argument("--these", help=argparse.SUPPRESS)
    options, options.more = parser.parse_known_args(argv)
    if min(options.seeds, options.jobs, options.agents) < 1:
        parser.error("--seeds, --jobs and --agents are at least 1")
    options.jobs = min(options.jobs, options.seeds)
    return options


@with_exit_code
def main(argv: list[str]) -> int:
    options = parsed(argv)
    if options.these:
        for seed in map(int, options.these.split(",")):
            print(json.dumps(run(options, seed)), flush=True)
        return 0
    seeds = list(range(options.first_seed, options.first_seed + options.seeds))
    runs = side_by_side(options, seeds)
    print(summary(options, runs))
    if options.draw:
        draw(options, runs)
    scores = np.array([run["score"] for run in runs])
    return int(fraction_below(scores, options.bounds[0])[1] > options.fail_share)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
