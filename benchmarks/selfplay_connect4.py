#!/usr/bin/env python
"""Compare opponents in connect4: python benchmarks/selfplay_connect4.py DIR [--help].

For each seed trains, each in a process on a separate core,

    connect4_two-openings   the policy plays only against itself
    connect4                the opponent is the scripted player

and stores both in DIR. Runs in DIR aren't trained again. Then, with `puffer-mlx match`, the first
policy plays against the scripted player (bot:1 wins if it can, blocks if it must, and is
random otherwise) and against the second policy. Matches begin with the empty board unless their
name says otherwise, and each player has each side in half of the games. Policies sample their moves
("drawn") or take the most probable ones ("greedy"). Further options are passed to the first
policy's `puffer-mlx train`.
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
OPENINGS = ["--env.opening-stones", "8"]  # otherwise two greedy policies play only two games
MATCHES = {  # options of `puffer-mlx match`, and the opponent of the self-play policy
    "bot:1, drawn": (EMPTY, "bot:1"),
    "bot:1, greedy": ([*EMPTY, "--greedy"], "bot:1"),
    "connect4, drawn": (EMPTY, SCRIPTED),
    "connect4, greedy, to 8 stones": ([*OPENINGS, "--greedy"], SCRIPTED),
}


def train_policy(
    name: str, env: str, seed: int, arguments: list[str], folder: Path, cores: set[int]
) -> str:
    """Train a policy unless it is stored already. Returns the folder of its run."""
    run_folder = folder / f"{name}-{seed}"
    if not (run_folder / "done.json").exists():
        seed_options = ["--seed", str(seed), "--vec.seed", str(1000 * seed), "--eval-episodes", "0"]
        folders = ["--checkpoint-dir", str(run_folder), "--log-dir", str(run_folder / "logs")]
        spent = process([*PROGRAM, "train", name, *seed_options, *folders, "-q", *arguments], cores)
        write_json({"cpu": spent.cpu, "wall": spent.wall}, run_folder / "done.json", indent=None)
    return str(max((run_folder / env).iterdir()))  # the newest, if an earlier one was interrupted


def play_match(
    player: str, opponent: str, options: list[str], games: int, file: Path
) -> dict[str, Any]:
    """Play a match of two players. Returns its result."""
    arguments = [*options, "--games", str(games), "--json", str(file), "-q"]
    process([*PROGRAM, "match", GAME, player, opponent, *arguments], set())
    results = json.loads(file.read_text())["pairs"][0]
    return {k: results[k] for k in ("wins", "draws", "losses", "score", "low", "high", "sides")}


def of_seed(seed: int, options: argparse.Namespace, arguments: list[str], cores: set[int]) -> Any:
    """Train both Connect 4 policies of a seed and play their matches. Returns the results."""
    folder = options.folder
    alone = train_policy(ALONE, GAME, seed, arguments, folder, cores)
    scripted = train_policy(SCRIPTED, SCRIPTED, seed, options.scripted, folder, cores)
    matches = {}
    for name, (match, opponent) in MATCHES.items():
        against = scripted if opponent == SCRIPTED else opponent
        matches[name] = play_match(
            alone, against, match, options.games, folder / f"match-{seed}.json"
        )
        print(f"seed {seed}, {name:36} {format_result(matches[name])}", flush=True)
    spent = json.loads((folder / f"{ALONE}-{seed}" / "done.json").read_text())
    return {"spent": spent, "matches": matches}


def format_result(result: dict[str, Any]) -> str:
    """Format a match result: wins, draws, losses, score, and the fraction won on each side."""
    sides = [side["wins"] / sum(side.values()) for side in result["sides"]]
    counts = f"{result['wins']:5} {result['draws']:4} {result['losses']:5}"
    return f"{counts}  score {result['score']:.4f}, won {sides[0]:.4f} and {sides[1]:.4f}"


@with_exit_code
def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, metavar="DIR", help="folder of runs")
    parser.add_argument("--seeds", default="1,2,3,4,5", help="seeds of the runs (1,2,3,4,5)")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time (1)")
    parser.add_argument("--threads", type=int, default=1, help="cores per run (1)")
    parser.add_argument("--games", type=int, default=65536, help="games per match (65536)")
    parser.add_argument(
        "--scripted", type=shlex.split, default=[], help="options of connect4's training"
    )
    parser.add_argument("--json", type=Path, help="write the results to a file")
    options, arguments = parser.parse_known_args(argv)
    options.folder.mkdir(parents=True, exist_ok=True)

    def run(seed: str, cores: set[int]) -> Any:
        return of_seed(int(seed), options, arguments, cores)

    seeds = options.seeds.split(",")
    results = side_by_side(run, seeds, options.jobs, options.threads)
    results = dict(zip(seeds, results, strict=True))
    if options.json:
        record = {"version": version_text(), "options": arguments, "connect4": options.scripted}
        write_json({**record, "seeds": results}, options.json)


if __name__ == "__main__":
    main(sys.argv[1:])
