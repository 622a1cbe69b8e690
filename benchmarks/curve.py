"""Score against steps of finished runs: python benchmarks/curve.py OUT LOG.jsonl [LOG.jsonl ...].

Writes OUT.csv (steps, then each run's score, averaged over 40 parts of the run and weighted by
episodes) and OUT.png. Needs matplotlib (``pip install 'puffer-mlx[plot]'``).
"""

import argparse
import csv
import json
from pathlib import Path

import matplotlib
import numpy as np

PARTS = 40


def curve(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Steps at the end of each part of a run, and the mean score of its episodes."""
    records = [json.loads(line) for line in path.read_text().splitlines()]
    training = [r for r in records if "loss/total" in r]
    edges = np.linspace(0, training[-1]["agent_steps"], PARTS + 1)[1:]
    total, episodes = np.zeros(PARTS), np.zeros(PARTS)
    for record in training:
        if "env/n" in record:
            part = int(np.searchsorted(edges, record["agent_steps"]))
            total[part] += record["env/score"] * record["env/n"]
            episodes[part] += record["env/n"]
    return edges, np.divide(total, episodes, out=np.full(PARTS, np.nan), where=episodes > 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("logs", type=Path, nargs="+")
    options = parser.parse_args()
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    curves = [curve(path) for path in options.logs]
    steps = curves[0][0]
    with open(options.out.with_suffix(".csv"), "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["steps", *(path.stem for path in options.logs)])
        for i, step in enumerate(steps):
            writer.writerow([int(step), *(f"{scores[i]:.2f}" for _, scores in curves)])
    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    for path, (x, scores) in zip(options.logs, curves, strict=True):
        axes.plot(x / 1e6, scores, label=path.stem)
    axes.axhline(864, color="grey", linestyle=":", label="maximum, 864")
    axes.set(xlabel="million steps", ylabel="score of finished episodes", title="Breakout")
    axes.legend()
    figure.savefig(options.out.with_suffix(".png"), dpi=120)


if __name__ == "__main__":
    main()
