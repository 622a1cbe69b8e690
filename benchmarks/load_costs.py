#!/usr/bin/env python
"""Count the work of loading a configuration: python benchmarks/load_costs.py [ENV ...].

Prints for each environment, each in a new process: the number of opened `.ini` files, of calls of
`argparse.add_argument`, and of resolved configurations. The numbers don't depend on the machine's
load. Run it in an empty folder and in a clone.
"""

import subprocess
import sys
from types import FrameType
from typing import Any


def count(name: str) -> dict[str, int]:
    """Load an environment's configuration, and count the work: opened files, options, configs.

    Returns the counts by name.
    """
    import puffer_mlx  # noqa: F401 (its imports aren't counted)
    from puffer_mlx import config, vec
    from puffer_mlx.config import resolving

    counts = {".ini files opened": 0, "add_argument": 0, "configurations": 0}

    def opened(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and str(arguments[0]).endswith(".ini"):
            counts[".ini files opened"] += 1

    def called(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            if frame.f_code.co_name == "add_argument":
                counts["add_argument"] += 1
            elif frame.f_code is resolving.resolve.__code__:
                counts["configurations"] += 1

    sys.addaudithook(opened)
    sys.setprofile(called)
    with vec.make(config.load(name), 1):
        sys.setprofile(None)
    return counts


if __name__ == "__main__":
    names = sys.argv[1:] or ["breakout", "gym:CartPole-v1"]
    if len(names) == 1:
        print(names[0], *(f"{key}: {n}" for key, n in count(names[0]).items()), sep="\n  ")
    else:
        for name in names:
            subprocess.run([sys.executable, __file__, name], check=True)
