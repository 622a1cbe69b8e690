"""Opponents of self-play: the pool of earlier weights, ratings and counters, and saving them.

A pool is a list of earlier weights, the oldest first. Its entries refer to the learner's arrays as
they were: training replaces arrays and never writes into them, so nothing is copied.

Saved are weights as arrays, and everything else as what JSON holds. Weights that several parts
have are saved once, those of opponents whose entry has left the pool too: ``entries`` has each by
its number, and the other parts name that.
"""

from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_unflatten

from puffer_mlx.errors import UserError
from puffer_mlx.system.json_text import is_count, is_finite
from puffer_mlx.training.game_results import Results
from puffer_mlx.trees import leaves, named

NEWEST = 5  # entries that aren't drawn, where there are more
SPREAD = 400  # points of Elo that make the odds 10 to 1
COUNTED = "started", "score", "games", "waited", "winrate_at_swap", "epochs_to_align"


@dataclass(eq=False)
class Entry:
    """Earlier weights.

    Attributes:
        weights: a tree of arrays, which nobody changes.
        step: environment steps that they were trained with.
        elo: their rating, in points.
    """

    weights: Any
    step: int
    elo: float


def thinned(entries: list[Entry], most: int) -> list[Entry]:
    """A pool with at most so many entries: without every second one of its older half.

    Args:
        entries: at most one more than fits.
        most: how many fit.
    """
    if len(entries) <= most:
        return entries
    half = len(entries) // 2
    return [*entries[1:half:2], *entries[half:]]


def draw_by_age(entries: list[Entry], rng: np.random.Generator) -> Entry:
    """One of the entries without the newest 5, if there are more: newer ones rather than older.

    The i-th, from 0, has the weight sqrt(i + 1).
    """
    candidates = entries[:-NEWEST] if len(entries) > NEWEST else entries
    weights = np.sqrt(np.arange(1, len(candidates) + 1))
    return candidates[rng.choice(len(candidates), p=weights / weights.sum())]


def draw_any(entries: list[Entry], rng: np.random.Generator) -> Entry:
    """One of the entries, each as likely as the others."""
    return entries[rng.integers(len(entries))]


def expected(rating: float, other: float) -> float:
    """The expected mean score, 0 to 1, of one rating against another."""
    return 1 / (1 + 10 ** ((other - rating) / SPREAD))


def moved(rating: float, other: float, score: float, k: float) -> tuple[float, float]:
    """Both ratings after games; what one gains the other loses.

    Args:
        rating: of one, in points.
        other: its opponent's.
        score: mean of the games for the first one: 1 a win, 0.5 a draw, 0 a loss.
        k: points that a rating moves at most.
    """
    gain = k * (score - expected(rating, other))
    return rating + gain, other - gain


@dataclass
class Opponent:
    """One of the B opponents: its weights, and the results against it since they came.

    Attributes:
        entry: the weights that it acts by.
        started: steps trained when they came.
        score: of the games since: 1 for each that the learner won, 0.5 for a draw.
        games: how many there were.
        pending: its replacement, once all its games have ended; None: none yet.
        waited: rollouts since that was decided.
        winrate_at_swap: the learner's mean score against the last one that was replaced, when that
            was decided; None before the first.
        epochs_to_align: rollouts that its replacement waited for; None before the first.
    """

    entry: Entry
    started: int = 0
    score: float = 0.0
    games: int = 0
    pending: Entry | None = None
    waited: int = 0
    winrate_at_swap: float | None = None
    epochs_to_align: int | None = None

    @property
    def winrate(self) -> float | None:
        """The learner's mean score, 0 to 1, since these weights came; None without a game."""
        return self.score / self.games if self.games else None


@dataclass
class Table:
    """Everything that a checkpoint needs of a league.

    Attributes:
        pool: the oldest first; never empty.
        opponents: B of them.
        elo: the learner's rating, in points.
        rng: what is drawn, is drawn by this.
        aligned: (E,) bool: environments where a game has ended since their opponent's replacement
            was decided.
        stepped: steps trained when the pool last took weights (puffer4's), or opponents were last
            drawn (puffer5's).
        swaps: opponents replaced so far.
        fresh: numbers, from 1, of the opponents whose weights changed after the last rollout.
    """

    pool: list[Entry]
    opponents: list[Opponent]
    elo: float
    rng: np.random.Generator
    aligned: np.ndarray
    stepped: int = 0
    swaps: int = 0
    fresh: frozenset[int] = frozenset()

    def count(self, results: Results, k: float) -> None:
        """Add a rollout's games, and update all ratings, one opponent after the other."""
        self.aligned |= results.ended
        counts = zip(self.opponents, results.score.tolist(), results.games.tolist(), strict=True)
        for opponent, score, games in counts:
            if games:
                opponent.score += score
                opponent.games += games
                rated = moved(self.elo, opponent.entry.elo, score / games, k)
                self.elo, opponent.entry.elo = rated

    def replace(self, b: int, entry: Entry, step: int) -> None:
        """Have opponent ``b``, from 0, act by other weights, with counters that begin anew."""
        opponent = self.opponents[b]
        if entry is not opponent.entry:
            self.fresh |= {b + 1}
        opponent.entry, opponent.started = entry, step
        opponent.score, opponent.games = 0.0, 0
        opponent.pending, opponent.waited = None, 0
        self.swaps += 1


def saved(table: Table) -> tuple[dict[str, mx.array], dict[str, Any]]:
    """A table as arrays by name and as numbers."""
    entries = _entries(table)
    number = {id(entry): i for i, entry in enumerate(entries)}
    arrays = {
        f"{i}.{name}": array
        for i, entry in enumerate(entries)
        for name, array in named(entry.weights)
    }
    arrays["aligned"] = mx.array(table.aligned.astype(np.uint8))
    opponents = [
        {
            "entry": number[id(one.entry)],
            "pending": None if one.pending is None else number[id(one.pending)],
            **{name: getattr(one, name) for name in COUNTED},
        }
        for one in table.opponents
    ]
    return arrays, {
        "entries": [{"step": entry.step, "elo": entry.elo} for entry in entries],
        "pool": [number[id(entry)] for entry in table.pool],
        "opponents": opponents,
        "elo": table.elo,
        "rng": table.rng.bit_generator.state,
        "stepped": table.stepped,
        "swaps": table.swaps,
        "fresh": sorted(table.fresh),
    }


def restored(arrays: dict[str, mx.array], numbers: dict[str, Any], now: Table, rules: str) -> Table:
    """The table that ``saved`` was given.

    Args:
        arrays: what it returned.
        numbers: likewise, with the name of the ``rules`` that it was of.
        now: a table of this run, whose opponents, environments and weights have the same shapes.
        rules: this run's.

    Raises:
        UserError: it is of another run, or makes no sense.
    """
    try:
        _refuse_another(arrays, numbers, now, rules)
        _check_numbers(numbers)
        for name, array in arrays.items():
            if not mx.isfinite(array).all().item():
                raise ValueError(f"{name} isn't finite")
        like = [name for name, _ in named(now.pool[0].weights)]
        entries = [
            Entry(tree_unflatten([(name, arrays[f"{i}.{name}"]) for name in like]), **fields)
            for i, fields in enumerate(numbers["entries"])
        ]
        mx.eval([leaves(entry.weights) for entry in entries])  # files may go
        rng = np.random.default_rng()
        rng.bit_generator.state = numbers["rng"]
        return Table(
            pool=[entries[i] for i in numbers["pool"]],
            opponents=[_opponent(entries, one) for one in numbers["opponents"]],
            elo=numbers["elo"],
            rng=rng,
            aligned=np.array(arrays["aligned"]).astype(bool),
            stepped=numbers["stepped"],
            swaps=numbers["swaps"],
            fresh=frozenset(numbers["fresh"]),
        )
    except (KeyError, IndexError, TypeError, ValueError, OverflowError) as error:
        message = f"the saved pool of opponents makes no sense ({type(error).__name__}: {error})"
        raise UserError(message, "the file is damaged; go on from another checkpoint") from None


def _entries(table: Table) -> list[Entry]:
    """Every entry once: those of the pool, of opponents, and of opponents to come."""
    every = [*table.pool]
    for one in table.opponents:
        every += [one.entry] if one.pending is None else [one.entry, one.pending]
    return list({id(entry): entry for entry in every}.values())


def _check_numbers(numbers: dict[str, Any]) -> None:
    """Refuse numbers that no table has.

    Raises:
        ValueError: one is out of its range; and as their reading, if they are something else.
    """
    last, opponents = len(numbers["entries"]) - 1, numbers["opponents"]
    used = [*numbers["pool"], *(one["entry"] for one in opponents)]
    used += [one["pending"] for one in opponents if one["pending"] is not None]
    ratings = [numbers["elo"], *(entry["elo"] for entry in numbers["entries"])]
    ratings += [one["winrate_at_swap"] or 0 for one in opponents]
    counters = [numbers["stepped"], numbers["swaps"], *(e["step"] for e in numbers["entries"])]
    counters += [one[name] for one in opponents for name in ("started", "games", "waited")]
    counters += [one["epochs_to_align"] or 0 for one in opponents]
    for right, what in (
        (numbers["pool"], "it is empty"),
        (all(is_count(i, last) for i in used), "it names entries that it doesn't have"),
        (all(map(is_finite, ratings)), "a rating isn't a finite number"),
        (all(map(is_count, counters)), "a counter isn't a whole number from 0"),
        (all(is_finite(one["score"]) for one in opponents), "a score isn't a finite number"),
        (all(b - 1 in range(len(opponents)) for b in numbers["fresh"]), "others are fresh"),
    ):
        if not right:
            raise ValueError(what)


def _opponent(entries: list[Entry], fields: dict[str, Any]) -> Opponent:
    pending = None if fields["pending"] is None else entries[fields["pending"]]
    counted = {name: fields[name] for name in COUNTED}
    return Opponent(entries[fields["entry"]], pending=pending, **counted)


def _refuse_another(
    arrays: dict[str, mx.array], numbers: dict[str, Any], now: Table, rules: str
) -> None:
    """Refuse a saved table that doesn't fit a run's."""
    weights = named(now.pool[0].weights)
    expected = {f"{i}.{n}": a for i in range(len(numbers["entries"])) for n, a in weights}
    wrong = [
        f"{name} is {arrays[name].shape if name in arrays else 'missing'}, expected {array.shape}"
        for name, array in expected.items()
        if name not in arrays
        or (arrays[name].shape, arrays[name].dtype) != (array.shape, array.dtype)
    ]
    for what, was, is_now in (
        ("selfplay.rules", numbers["rules"], rules),
        ("opponents", len(numbers["opponents"]), len(now.opponents)),
        ("environments", arrays["aligned"].shape[0], len(now.aligned)),
    ):
        if was != is_now:
            wrong.insert(0, f"{what} {was}, expected {is_now}")
    if wrong:
        raise UserError(
            f"the saved pool of opponents is of another run: {'; '.join(wrong[:3])}",
            "go on with the run's own policy, [vec] and [selfplay]",
        )
