#!/usr/bin/env python
"""What is learned: python benchmarks/learning.py [TASK ...] [--device gpu] [--seeds 3] [--help].

Each task is `scripts/train.py` with an environment's own file and a few options, over several
seeds. Writes learning/TASK.json (command, steps, each seed's score in the evaluation of the final
weights, seconds, and the curve: mean score of the episodes that ended in each of 40 parts of the
run) and draws learning.png from all there are. `--draw` only draws.
"""

import argparse
import datetime
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from puffer_mlx import config
from puffer_mlx.tracking import scores

HERE = Path(__file__).parent
PARTS = 40
BREAKOUTS = ("breakout", *(f"breakout-{name}" for name in ("a", "c", "f", "fast", "fast-gpu")))
TASKS = {  # name -> what follows `python scripts/train.py`
    **{name: name for name in BREAKOUTS},
    "cartpole": "cartpole",
    "cartpole_continuous": "cartpole_continuous",
    "connect4": "connect4",
    "catch": "catch",
    "g2048": "g2048 --policy.hidden-size 128 --policy.num-layers 2"
    " --train.total-timesteps 60_000_000",
    "target": "target --train.total-timesteps 20_000_000",
    **{
        f"memory-{network}": f"memory --torch.network {network} --train.total-timesteps 20_000_000"
        " --policy.num-layers 2"
        for network in ("MinGRU", "LSTM", "GRU", "MLP")
    },
}

PUBLISHED = {  # by PufferLib 5.0, of one run each: million steps, and the score
    "breakout-a": (79.69, 861.7),
    "breakout-c": (108.46, 864.0),
    "breakout-f": (46.8, 853.8),
}


def metric(environment: str) -> str:
    """What is a score: [sweep] metric of the environment's file."""
    return scores.metric(config.load(environment))


def curve(records: list[dict[str, float]], metric: str) -> list[list[float]]:
    """(Steps at the end of a part, mean score of the episodes that ended in it)."""
    training = [record for record in records if "loss/total" in record]
    edges = np.linspace(0, training[-1]["agent_steps"], PARTS + 1)[1:]
    total, episodes = np.zeros(PARTS), np.zeros(PARTS)
    for record in training:
        if record.get("env/n"):
            part = int(np.searchsorted(edges, record["agent_steps"]))
            total[part] += record[metric] * record["env/n"]
            episodes[part] += record["env/n"]
    return [
        [edge, score / n] for edge, score, n in zip(edges, total, episodes, strict=True) if n > 0
    ]


def train(words: list[str]) -> dict:
    """One run to its end; what it learned."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, HERE.parent / "scripts" / "train.py", *words]
        began = time.perf_counter()
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{' '.join(words)} failed:\n{done.stderr[-2000:]}")
        (log,) = Path(folder).glob("logs/*/*.jsonl")
        records = [json.loads(line) for line in log.read_text().splitlines()]
    last, measured = records[-1], metric(words[0])
    return {
        "score": last[measured],
        "episodes": last["env/n"],
        "steps": max(r["agent_steps"] for r in records if "loss/total" in r),
        "seconds": time.perf_counter() - began,
        "curve": curve(records, measured),
    }


def run_task(name: str, options: argparse.Namespace) -> None:
    """All seeds of a task; writes its file."""
    words = f"{TASKS[name]} --device {options.device} {' '.join(options.more)}".split()
    with ThreadPoolExecutor(options.jobs) as pool:
        seeds = range(1, options.seeds + 1)
        runs = list(
            pool.map(
                lambda n: train([*words, "--seed", str(n), "--vec.seed", str(1000 * n)]), seeds
            )
        )
    record = {
        "metric": metric(words[0]),
        "command": "python scripts/train.py " + " ".join(words) + " --seed N --vec.seed N000",
        "date": datetime.date.today().isoformat(),
        "cores": os.cpu_count(),
        "at a time": options.jobs,
        "seeds": {str(n): run for n, run in zip(seeds, runs, strict=True)},
    }
    path = options.out / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n")
    scores = ", ".join(f"{run['score']:.3f}" for run in runs)
    print(
        f"{name:20} {scores}   ({runs[0]['steps']:,.0f} steps, {runs[0]['seconds']:.0f} s)",
        flush=True,
    )


def draw(folder: Path, picture: Path) -> None:
    """One panel for each environment, one line for each network, the seeds' range behind it.

    A star is what PufferLib published.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    panels: dict[str, list[tuple[str, dict]]] = {}
    for name in TASKS:
        if (folder / f"{name}.json").is_file():
            environment, _, network = name.partition("-")
            record = json.loads((folder / f"{name}.json").read_text())
            panels.setdefault(environment, []).append((network, record))
    columns = 4
    rows = -(-len(panels) // columns)
    figure, axes = plt.subplots(
        rows, columns, figsize=(3.2 * columns, 2.6 * rows), layout="constrained", squeeze=False
    )
    for axis in axes.flat[len(panels) :]:
        axis.axis("off")
    for axis, (environment, lines) in zip(axes.flat, panels.items(), strict=False):
        for network, record in lines:
            task = f"{environment}-{network}"
            curves = [np.array(seed["curve"]) for seed in record["seeds"].values()]
            steps = np.unique(np.concatenate([c[:, 0] for c in curves]))
            scores = np.array([np.interp(steps, c[:, 0], c[:, 1]) for c in curves])
            (line,) = axis.plot(steps / 1e6, scores.mean(axis=0), label=network)
            low, high = scores.min(axis=0), scores.max(axis=0)
            axis.fill_between(steps / 1e6, low, high, alpha=0.25, color=line.get_color())
            if task in PUBLISHED:
                axis.plot(*PUBLISHED[task], "*", color=line.get_color(), clip_on=False)
        label = lines[0][1]["metric"].partition("/")[2]
        axis.set(title=environment, xlabel="million steps", ylabel=label)
        if any(network for network, _ in lines):
            axis.legend(fontsize="small")
    figure.savefig(picture, dpi=100)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tasks", nargs="*", metavar="TASK", help=", ".join(TASKS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "gpu"))
    parser.add_argument("--out", type=Path, default=HERE / "learning")
    parser.add_argument("--draw", action="store_true", help="only draw what is there")
    options, options.more = parser.parse_known_args()
    if unknown := set(options.tasks) - set(TASKS):
        parser.error(f"no task {', '.join(sorted(unknown))}; there are {', '.join(TASKS)}")
    if not options.draw:
        for name in options.tasks or TASKS:
            run_task(name, options)
    draw(options.out, options.out.with_suffix(".png"))


if __name__ == "__main__":
    main()
