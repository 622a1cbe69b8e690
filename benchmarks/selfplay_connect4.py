#!/usr/bin/env python
"""Compare opponents in connect4: python benchmarks/selfplay_connect4.py DIR [--help].

For each seed trains, as a process on a separate core,

    connect4_two-openings   the policy plays only against itself
    connect4                the opponent is the scripted player

and stores both in DIR. Runs in DIR are not trained again. Then, by `puffer-mlx
match`, the first plays against the scripted player (bot:1: it wins where it can, blocks where it
must, and is random otherwise), and against the second. Matches begin with the empty board unless
their name says otherwise, half of one is on either side; policies draw their moves as in training,
or take the most probable one (greedy). Further words are options of the first's `puffer-mlx train`.
"""

import argparse
import json
import shlex
import sys
from pathlib import Path
from typing import Any

from puffer_mlx.cli.exit_codes import with_exit_code
from puffer_mlx.system.json_text import write_json
from puffer_mlx.system.version import version_text

sys.path.insert(0, str(Path(__file__).parent))
from learning_processes import process, side_by_side

PROGRAM = [sys.executable, "-m", "puffer_mlx"]
GAME, ALONE, SCRIPTED = "connect4_two", "connect4_two-openings", "connect4"
EMPTY = ["--env.opening-stones", "0"]
OPENINGS = ["--env.opening-stones", "8"]  # else two greedy policies have only two games
MATCHES = {  # options of `puffer-mlx match`, and whom the policy of self-play meets
    "bot:1, drawn": (EMPTY, "bot:1"),
    "bot:1, greedy": ([*EMPTY, "--greedy"], "bot:1"),
    "connect4, drawn": (EMPTY, SCRIPTED),
    "connect4, greedy, to 8 stones": ([*OPENINGS, "--greedy"], SCRIPTED),
}


def trained(name: str, env: str, seed: int, words: list[str], folder: Path, cores: set[int]) -> str:
    """The run's folder; it is trained unless it is there."""
    place = folder / f"{name}-{seed}"
    if not (place / "done.json").exists():
        own = ["--seed", str(seed), "--vec.seed", str(1000 * seed), "--eval-episodes", "0"]
        kept = ["--checkpoint-dir", str(place), "--log-dir", str(place / "logs")]
        spent = process([*PROGRAM, "train", name, *own, *kept, "-q", *words], cores)
        write_json({"cpu": spent.cpu, "wall": spent.wall}, place / "done.json", indent=None)
    return str(max((place / env).iterdir()))  # the newest, if one was broken off


def met(player: str, other: str, options: list[str], games: int, file: Path) -> dict[str, Any]:
    """The result of a match."""
    words = [*options, "--games", str(games), "--json", str(file), "-q"]
    process([*PROGRAM, "match", GAME, player, other, *words], set())
    found = json.loads(file.read_text())["pairs"][0]
    return {k: found[k] for k in ("wins", "draws", "losses", "score", "low", "high", "sides")}


def of_seed(seed: int, options: argparse.Namespace, words: list[str], cores: set[int]) -> Any:
    """Both policies of a seed, and their matches."""
    folder = options.folder
    alone = trained(ALONE, GAME, seed, words, folder, cores)
    scripted = trained(SCRIPTED, SCRIPTED, seed, options.scripted, folder, cores)
    matches = {}
    for name, (match, other) in MATCHES.items():
        against = scripted if other == SCRIPTED else other
        matches[name] = met(alone, against, match, options.games, folder / f"match-{seed}.json")
        print(f"seed {seed}, {name:36} {shown(matches[name])}", flush=True)
    spent = json.loads((folder / f"{ALONE}-{seed}" / "done.json").read_text())
    return {"spent": spent, "matches": matches}


def shown(result: dict[str, Any]) -> str:
    """Wins, draws, losses, and the part that was won on each side."""
    sides = [side["wins"] / sum(side.values()) for side in result["sides"]]
    counts = f"{result['wins']:5} {result['draws']:4} {result['losses']:5}"
    return f"{counts}  score {result['score']:.4f}, won {sides[0]:.4f} and {sides[1]:.4f}"


@with_exit_code
def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, metavar="DIR", help="where the runs are kept")
    parser.add_argument("--seeds", default="1,2,3,4,5", help="of the runs (1,2,3,4,5)")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time (1)")
    parser.add_argument("--threads", type=int, default=1, help="cores of each (1)")
    parser.add_argument("--games", type=int, default=65536, help="of a match (65536)")
    parser.add_argument("--scripted", type=shlex.split, default=[], help="connect4's options")
    parser.add_argument("--json", type=Path, help="where the results go")
    options, words = parser.parse_known_args(argv)
    options.folder.mkdir(parents=True, exist_ok=True)

    def run(seed: str, cores: set[int]) -> Any:
        return of_seed(int(seed), options, words, cores)

    seeds = options.seeds.split(",")
    found = side_by_side(run, seeds, options.jobs, options.threads)
    results = dict(zip(seeds, found, strict=True))
    if options.json:
        told = {"version": version_text(), "options": words, "connect4": options.scripted}
        write_json({**told, "seeds": results}, options.json)


if __name__ == "__main__":
    main(sys.argv[1:])
