"""What ``match.py`` and ``evaluate.py --against`` share: games with progress, tables, a picture."""

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

from puffer_mlx import vec
from puffer_mlx.config import Config
from puffer_mlx.ops.cpu_extension import threads
from puffer_mlx.playing.episode_videos import drawing
from puffer_mlx.playing.episodes import MAX_STEPS, arena
from puffer_mlx.playing.frames import Frame, captioned, write_gif
from puffer_mlx.playing.games import watch
from puffer_mlx.playing.matches import Games, Pair, Results, play_pairs
from puffer_mlx.playing.players import Player
from puffer_mlx.system import voice
from puffer_mlx.system.files import publish
from puffer_mlx.system.json_text import json_text
from puffer_mlx.vec.base import Environments

RESULT = 2.0  # seconds that a GIF shows it


def games_of(config: Config, agents: int, games: int, max_steps: int = MAX_STEPS) -> Games:
    """So many games of a pair, in environments of so many agents."""
    return Games(
        config, agents, games, lambda own: vec.make(own, threads()), config.base.seed, max_steps
    )


def play_all(players: Sequence[Player], pairs: Sequence[Pair], games: Games) -> Results:
    """Have pairs play each other, with progress on a terminal."""
    with progress_bar() as show:
        return play_pairs(players, pairs, games, show)


@contextlib.contextmanager
def progress_bar() -> Iterator[Callable[[int, int], None]]:
    """What shows how many games are over, on a terminal; it is gone when all are."""
    console = Console(stderr=True)
    with Progress(
        *("games", *Progress.get_default_columns()[1:2]),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=voice.is_quiet() or not console.is_terminal,
    ) as bar:
        task = bar.add_task("games", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def record_pairs(
    players: Sequence[Player], results: Results, config: Config, greedy: bool
) -> dict[str, Any]:
    """Results as JSON, of which the tables are made, too."""
    pairs = []
    for (i, j), result in results.items():
        low, high = result.interval or (None, None)
        pairs.append(
            {
                "first": players[i].name,
                "second": players[j].name,
                "games": result.total.games,
                **result.total._asdict(),
                "score": result.total.score,
                "low": low,
                "high": high,
                "sides": [tally._asdict() for tally in result.sides],
                "steps": result.steps,
                "distinct": result.distinct,
            }
        )
    return {
        "environment": config.env_name,
        "seed": config.base.seed,
        "greedy": greedy,
        "pairs": pairs,
    }


def pair_table(told: dict[str, Any], games: str = "games of each pair") -> list[str]:
    """What was played, and below each player whom it played against: lines."""
    pairs = told["pairs"]
    how = "greedy" if told["greedy"] else "stochastic"
    width = max(20, *(len(pair["second"]) for pair in pairs))
    lines = [
        f"{told['environment']}: {pairs[0]['games']:,} {games}, half on either side;"
        f" {how}, seed {told['seed']}",
        f"  {'':{width}}{'wins':>8}{'draws':>8}{'losses':>8}{'score':>8}  95 %",
    ]
    for first, own in itertools.groupby(pairs, lambda pair: pair["first"]):
        lines.append(f"{first} against")
        for pair in own:
            numbers = "".join(f"{pair[key]:8,}" for key in ("wins", "draws", "losses"))
            lines.append(
                f"  {pair['second']:{width}}{numbers}{pair['score']:8.3f}  {_interval(pair)}"
            )
    return lines


def _interval(pair: dict[str, Any]) -> str:
    if pair["low"] is None:
        return f"{pair['distinct']} distinct games"
    return f"{pair['low']:.3f} to {pair['high']:.3f}"


def repeated_notes(told: dict[str, Any], config: Config) -> list[str]:
    """Lines about pairs that played the same games again and again, and what makes others."""
    opening = next((key for key in config.env if key.startswith("opening")), None)
    hint = "without --greedy they differ"
    if opening and config.env[opening]:
        hint = "the interval is of these"
    elif opening:
        option = f"--env.{opening.replace('_', '-')} 8"
        hint = f"{option} begins each with stones put down at random"
    return [
        f"{pair['first']} against {pair['second']}: {pair['distinct']:,} distinct games in"
        f" {pair['games']:,}, as neither player draws: {hint}"
        for pair in told["pairs"]
        if pair["distinct"] is not None and pair["distinct"] < pair["games"]
    ]


def write_json(told: dict[str, Any], path: Path) -> None:
    """Write a record to a file."""
    with publish(path) as temporary:
        temporary.write_text(json_text(told, indent=1) + "\n")


def write_game(
    players: Sequence[Player], config: Config, agents: int, path: Path, fps: float, scale: int = 1
) -> None:
    """Write a GIF of a game of the first two players."""
    one_environment = arena(config, 1, agents, config.base.seed)
    with vec.make(one_environment, threads(), render=True) as one:
        hold = max(1, round(RESULT * fps))
        write_gif(frames_of(players[0], players[1], one, config, hold), path, fps, scale)
    print(f"wrote {path}, {path.stat().st_size / 1000:,.0f} kB")


def frames_of(
    first: Player, second: Player, one: Environments, config: Config, hold: int
) -> Iterator[Frame]:
    """A game as agent 0 sees it, or as the environment draws itself, and ``hold`` times its end.

    Above it are the players' names, at the end the result.
    """
    draw, names = drawing(config, one), [first.name, f"against {second.name}"]
    results = [f"{first.name} won", f"{second.name} won", "a draw"]
    game, image, step = watch(first, second, one, config.base.seed), np.zeros((1, 1, 3)), 0
    while True:
        try:
            image = draw(next(game))
        except StopIteration as end:
            won = end.value
            break
        yield Frame(captioned(image, [*names, ""], results), step, 0, 0.0, 0.0, False)
        step += 1
    result = results[0 if won > 0 else 1 if won < 0 else 2]
    for _ in range(hold):
        yield Frame(captioned(image, [*names, result], results), step, 0, 0.0, won, True)
