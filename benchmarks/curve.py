"""Draw Breakout's score against steps, from logs: python benchmarks/curve.py OUT [LOG.jsonl ...].

Writes OUT.csv (steps, then each run's score, averaged over 40 sections of the run and weighted by
episodes) and OUT.png. Without logs it draws OUT.png from the existing OUT.csv. Needs matplotlib
(``pip install -e '.[plot]'``).
"""

import argparse
import csv
import json
from pathlib import Path

import figures
import numpy as np
from learning_runs import section_scores
from learning_table import NATIVE

BEST_SCORE = 864
STEPS_PER_SECOND = 550_000  # on two CPU cores, from RESULTS.md


def write_table(path: Path, logs: list[Path]) -> None:
    texts = (log.read_text().splitlines() for log in logs)
    curves = [section_scores([json.loads(line) for line in lines], "env/score") for lines in texts]
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["steps", *(log.stem for log in logs)])
        for points in zip(*curves, strict=True):
            writer.writerow([int(points[0][0]), *(f"{score:.2f}" for _, score in points)])


def draw(table: Path, picture: Path) -> None:
    """Draw the median and range of our runs, and the final scores of PufferLib's trainer.

    Args:
        table: CSV file with a column of steps and a column of scores for each run.
        picture: PNG file to write.
    """
    runs = np.loadtxt(table, delimiter=",", skiprows=1, quotechar='"')
    steps, ends = runs[:, 0] / 1e6, NATIVE["breakout"]
    caption = (
        f"Median and range of {runs.shape[1] - 1} runs. Dots: PufferLib's own CUDA trainer,"
        f" {len(ends)} runs, the mean of the last tenth."
    )
    with figures.panels(1, picture, caption, size=(7, 3.6)) as (axis,):
        figures.seeds(
            axis, [np.stack([steps, run], axis=1) for run in runs.T[1:]], figures.OUR_COLOR
        )
        axis.plot([steps[-1] * 0.95] * len(ends), ends, "o", color=figures.PEER_COLOR, markersize=4)
        axis.axhline(BEST_SCORE, color=figures.STAR, linewidth=0.8, linestyle=":")
        figures.beside(axis, f"{BEST_SCORE}: all bricks, twice", (0, BEST_SCORE))
        axis.set(xlabel="million steps", ylabel="score of finished episodes", xlim=(0, None))
        figures.title(axis, "Breakout")
        minutes = STEPS_PER_SECOND * 60 / 1e6
        above = axis.secondary_xaxis("top", (lambda x: x / minutes, lambda x: x * minutes))
        above.set_xlabel("minutes on two CPU cores", fontsize=8)
        above.spines["top"].set_visible(False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("logs", type=Path, nargs="*")
    options = parser.parse_args()
    table = options.out.with_suffix(".csv")
    if options.logs:
        write_table(table, options.logs)
    draw(table, options.out.with_suffix(".png"))


if __name__ == "__main__":
    main()
