"""Store a self-play league: pool of earlier weights, opponents, ratings; save and restore them.

The pool is a list of earlier weights, the oldest first. Entries refer to the learner's arrays
without a copy, because training replaces these arrays and never writes into them.

A checkpoint contains weights as arrays and everything else as JSON. Each entry is saved once, even
if only an opponent still uses it. ``entries`` lists all entries; pool and opponents refer to them
by index.
"""

from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_unflatten

from puffer_mlx.errors import UserError
from puffer_mlx.system.json_text import is_count, is_finite
from puffer_mlx.training.game_results import GameResults
from puffer_mlx.trees import leaves, named_arrays

EXCLUDED_NEWEST = 5  # number of newest entries that are never drawn if the pool has more
ODDS_SCALE = 400  # Elo difference for odds of 10 to 1
# Attributes of an ``Opponent`` that checkpoints contain unchanged.
SAVED_ATTRIBUTES = "started", "score", "games", "waited", "winrate_at_swap", "epochs_to_align"


@dataclass(eq=False)
class PoolEntry:
    """Earlier weights of the learner in the pool of opponents.

    Attributes:
        weights: Tree of arrays, never changed.
        step: Environment steps trained when the entry was added.
        elo: Elo rating in points.
    """

    weights: Any
    step: int
    elo: float


def thin_pool(entries: list[PoolEntry], max_size: int) -> list[PoolEntry]:
    """Drop every second entry of the older half of the pool of opponents, if it is too large.

    Args:
        entries: The pool, at most ``max_size + 1`` entries.
        max_size: Largest size of the pool.
    """
    if len(entries) <= max_size:
        return entries
    half = len(entries) // 2
    return [*entries[1:half:2], *entries[half:]]


def draw_by_age(entries: list[PoolEntry], rng: np.random.Generator) -> PoolEntry:
    """Draw an opponent from the pool, newer entries more often.

    Entry i has a probability proportional to sqrt(i + 1). The newest 5 entries are excluded, if
    there are more.
    """
    candidates = entries[:-EXCLUDED_NEWEST] if len(entries) > EXCLUDED_NEWEST else entries
    weights = np.sqrt(np.arange(1, len(candidates) + 1))
    return candidates[rng.choice(len(candidates), p=weights / weights.sum())]


def draw_uniform(entries: list[PoolEntry], rng: np.random.Generator) -> PoolEntry:
    """Draw an opponent from the pool, each entry with the same probability."""
    return entries[rng.integers(len(entries))]


def expected_score(rating: float, other: float) -> float:
    """Return a player's expected score (0 to 1) from the Elo ratings of both players."""
    return 1 / (1 + 10 ** ((other - rating) / ODDS_SCALE))


def updated_ratings(rating: float, other: float, score: float, k: float) -> tuple[float, float]:
    """Return both players' Elo ratings after games. One gains the points that the other loses.

    Args:
        rating: Rating of the first player, in points.
        other: Rating of the second player, in points.
        score: Mean score of the first player: 1 for a win, 0.5 for a draw, 0 for a loss.
        k: Largest change of a rating, in points.
    """
    gain = k * (score - expected_score(rating, other))
    return rating + gain, other - gain


@dataclass
class Opponent:
    """One of the B opponents in self-play: its weights, and the results of these weights.

    Attributes:
        entry: Pool entry with the opponent's weights.
        started: Environment steps trained when the opponent got these weights.
        score: The learner's summed score against these weights: 1 for a win, 0.5 for a draw.
        games: Number of games against these weights.
        pending: Entry that will replace the weights once a game has ended in each environment of
            the opponent. None if no replacement is decided.
        waited: Rollouts since the pending replacement was decided.
        winrate_at_swap: The learner's mean score against the previous weights when their
            replacement was decided; None before the first replacement.
        epochs_to_align: Rollouts between the decision and the replacement, for the latest one. None
            before the first replacement.
    """

    entry: PoolEntry
    started: int = 0
    score: float = 0.0
    games: int = 0
    pending: PoolEntry | None = None
    waited: int = 0
    winrate_at_swap: float | None = None
    epochs_to_align: int | None = None

    @property
    def winrate(self) -> float | None:
        """The learner's mean score (0 to 1) against this opponent, or None without a game."""
        return self.score / self.games if self.games else None


@dataclass
class LeagueTable:
    """State of a self-play league, as checkpoints contain it.

    Attributes:
        pool: Earlier weights, the oldest first; never empty.
        opponents: The B opponents.
        elo: The learner's Elo rating in points.
        rng: Random generator that draws replacements.
        aligned: (E,) bool, environments where a game has ended since the replacement of their
            opponent was decided.
        last_change_step: Environment steps trained when weights last joined the pool (4.0's rules)
            or when opponents were last drawn (5.0's rules). Named ``stepped`` in checkpoints.
        swaps: Number of replacements so far.
        replaced: Opponents, numbered from 1, whose weights changed after the last rollout. Named
            ``fresh`` in checkpoints.
    """

    pool: list[PoolEntry]
    opponents: list[Opponent]
    elo: float
    rng: np.random.Generator
    aligned: np.ndarray
    last_change_step: int = 0
    swaps: int = 0
    replaced: frozenset[int] = frozenset()

    def count(self, results: GameResults, k: float) -> None:
        """Count the games of a rollout, and update the Elo ratings, opponent by opponent."""
        self.aligned |= results.ended
        counts = zip(self.opponents, results.score.tolist(), results.games.tolist(), strict=True)
        for opponent, score, games in counts:
            if games:
                opponent.score += score
                opponent.games += games
                rated = updated_ratings(self.elo, opponent.entry.elo, score / games, k)
                self.elo, opponent.entry.elo = rated

    def replace(self, b: int, entry: PoolEntry, step: int) -> None:
        """Replace the weights of opponent ``b`` (from 0), and reset the opponent's counters."""
        opponent = self.opponents[b]
        if entry is not opponent.entry:
            self.replaced |= {b + 1}
        opponent.entry = entry
        opponent.started = step
        opponent.score = 0.0
        opponent.games = 0
        opponent.pending = None
        opponent.waited = 0
        self.swaps += 1


def save_table(table: LeagueTable) -> tuple[dict[str, mx.array], dict[str, Any]]:
    """Convert a league's state for a checkpoint. Returns arrays and JSON values, by name."""
    entries = _entries(table)
    indices = {id(entry): i for i, entry in enumerate(entries)}
    arrays = {
        f"{i}.{name}": array
        for i, entry in enumerate(entries)
        for name, array in named_arrays(entry.weights)
    }
    arrays["aligned"] = mx.array(table.aligned.astype(np.uint8))
    opponents = [
        {
            "entry": indices[id(opponent.entry)],
            "pending": None if opponent.pending is None else indices[id(opponent.pending)],
            **{name: getattr(opponent, name) for name in SAVED_ATTRIBUTES},
        }
        for opponent in table.opponents
    ]
    return arrays, {
        "entries": [{"step": entry.step, "elo": entry.elo} for entry in entries],
        "pool": [indices[id(entry)] for entry in table.pool],
        "opponents": opponents,
        "elo": table.elo,
        "rng": table.rng.bit_generator.state,
        "stepped": table.last_change_step,
        "swaps": table.swaps,
        "fresh": sorted(table.replaced),
    }


def restore_table(
    arrays: dict[str, mx.array], values: dict[str, Any], current: LeagueTable, rules: str
) -> LeagueTable:
    """Return a league's state from a checkpoint: the inverse of ``save_table``.

    Args:
        arrays: Arrays by name, from ``save_table``.
        values: JSON values by name, from ``save_table``, and the name of its ``rules``.
        current: Current state, with the expected opponents, environments and weight shapes.
        rules: Name of the current rules.

    Raises:
        UserError: If the saved state belongs to another run, or is damaged.
    """
    try:
        _refuse_other_run(arrays, values, current, rules)
        _check_values(values)
        for name, array in arrays.items():
            if not mx.isfinite(array).all().item():
                raise ValueError(f"{name} isn't finite")
        weight_names = [name for name, _ in named_arrays(current.pool[0].weights)]
        entries = []
        for i, fields in enumerate(values["entries"]):
            weights = tree_unflatten([(name, arrays[f"{i}.{name}"]) for name in weight_names])
            entries.append(PoolEntry(weights, **fields))
        mx.eval([leaves(entry.weights) for entry in entries])  # Read before files are deleted.
        rng = np.random.default_rng()
        rng.bit_generator.state = values["rng"]
        return LeagueTable(
            pool=[entries[i] for i in values["pool"]],
            opponents=[_restore_opponent(entries, one) for one in values["opponents"]],
            elo=values["elo"],
            rng=rng,
            aligned=np.array(arrays["aligned"]).astype(bool),
            last_change_step=values["stepped"],
            swaps=values["swaps"],
            replaced=frozenset(values["fresh"]),
        )
    except (KeyError, IndexError, TypeError, ValueError, OverflowError) as error:
        message = f"the saved pool of opponents is invalid ({type(error).__name__}: {error})"
        raise UserError(message, "the file is damaged; resume from another checkpoint") from None


def _entries(table: LeagueTable) -> list[PoolEntry]:
    """Return all entries that a league uses: the pool, the opponents and their replacements."""
    entries = [*table.pool]
    for opponent in table.opponents:
        entries.append(opponent.entry)
        if opponent.pending is not None:
            entries.append(opponent.pending)
    return list({id(entry): entry for entry in entries}.values())  # each entry once


def _check_values(values: dict[str, Any]) -> None:
    """Check that the values of a saved league are in range.

    Raises:
        ValueError: If a value is out of range. Missing values or wrong types raise KeyError or
            TypeError.
    """
    last = len(values["entries"]) - 1
    opponents = values["opponents"]
    indices = [*values["pool"], *(one["entry"] for one in opponents)]
    indices += [one["pending"] for one in opponents if one["pending"] is not None]
    ratings = [values["elo"], *(entry["elo"] for entry in values["entries"])]
    ratings += [one["winrate_at_swap"] or 0 for one in opponents]  # None before the first swap
    counters = [values["stepped"], values["swaps"], *(e["step"] for e in values["entries"])]
    counters += [one[name] for one in opponents for name in ("started", "games", "waited")]
    counters += [one["epochs_to_align"] or 0 for one in opponents]  # None before the first swap
    replaced_exist = all(b - 1 in range(len(opponents)) for b in values["fresh"])
    for is_valid, reason in (
        (values["pool"], "the pool is empty"),
        (all(is_count(i, last) for i in indices), "an entry that the pool refers to is missing"),
        (all(map(is_finite, ratings)), "a rating isn't a finite number"),
        (all(map(is_count, counters)), "a counter isn't a whole number from 0"),
        (all(is_finite(one["score"]) for one in opponents), "a score isn't a finite number"),
        (replaced_exist, "a replaced opponent doesn't exist"),
    ):
        if not is_valid:
            raise ValueError(reason)


def _restore_opponent(entries: list[PoolEntry], fields: dict[str, Any]) -> Opponent:
    """Return an opponent, made from the JSON values that a checkpoint contains.

    ``entries`` are all entries of the saved league.
    """
    pending = None if fields["pending"] is None else entries[fields["pending"]]
    attributes = {name: fields[name] for name in SAVED_ATTRIBUTES}
    return Opponent(entries[fields["entry"]], pending=pending, **attributes)


def _refuse_other_run(
    arrays: dict[str, mx.array], values: dict[str, Any], current: LeagueTable, rules: str
) -> None:
    """Raise UserError if a saved league doesn't fit the current run: see ``restore_table``."""
    weights = named_arrays(current.pool[0].weights)
    expected = {f"{i}.{n}": a for i in range(len(values["entries"])) for n, a in weights}
    differences = [
        f"{name} is {arrays[name].shape if name in arrays else 'missing'}, expected {array.shape}"
        for name, array in expected.items()
        if name not in arrays
        or (arrays[name].shape, arrays[name].dtype) != (array.shape, array.dtype)
    ]
    for what, saved_value, value in (
        ("selfplay.rules", values["rules"], rules),
        ("opponents", len(values["opponents"]), len(current.opponents)),
        ("environments", arrays["aligned"].shape[0], len(current.aligned)),
    ):
        if saved_value != value:
            differences.insert(0, f"{what} {saved_value}, expected {value}")
    if differences:
        raise UserError(
            f"the saved pool of opponents belongs to another run: {'; '.join(differences[:3])}",
            "resume with the saved policy, [vec] and [selfplay]",
        )
