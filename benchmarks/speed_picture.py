#!/usr/bin/env python
"""Draw benchmarks/speed.png from benchmarks/json/speed.json: python benchmarks/speed_picture.py."""

import json
from pathlib import Path

from figures import GREY, OUR_COLOR, PEER_COLOR, panels

HERE = Path(__file__).parent
MAX_BARS = 4  # per panel
NOTE = "Steps per second of training; longer is faster. Commands: benchmarks/RESULTS.md"


def main() -> None:
    panel_data = json.loads((HERE / "json/speed.json").read_text())["panels"]
    with panels(len(panel_data), HERE / "speed.png", NOTE, size=(3.3, 1.7)) as axes:
        for axis, panel in zip(axes, panel_data, strict=True):
            names, speeds = zip(*panel["bars"], strict=True)
            rows = range(MAX_BARS, MAX_BARS - len(names), -1)
            colors = [OUR_COLOR if name.startswith("puffer_mlx") else PEER_COLOR for name in names]
            axis.barh(rows, speeds, color=colors, height=0.6)
            axis.set_yticks(rows, names)
            axis.set_title(panel["title"], fontsize=9)
            axis.set_xlabel(panel["unit"], color=GREY)
            axis.set_xlim(0, 1.2 * max(speeds))
            axis.set_ylim(0.5, MAX_BARS + 0.5)
            axis.grid(visible=False)
            for row, speed in zip(rows, speeds, strict=True):
                axis.annotate(
                    f"{speed:g}", (speed, row), (4, 0), textcoords="offset points", va="center"
                )


if __name__ == "__main__":
    main()
