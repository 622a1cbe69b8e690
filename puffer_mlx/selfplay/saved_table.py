"""A league in a checkpoint: weights as arrays, everything else as what JSON holds.

Weights that several parts have are saved once, those of opponents whose entry has left the pool
too: ``entries`` has each by its number, and the other parts name that.
"""

from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_unflatten

from puffer_mlx.errors import UserError
from puffer_mlx.selfplay.pool import Entry
from puffer_mlx.selfplay.table import Opponent, Table
from puffer_mlx.trees import leaves, named

COUNTED = "started", "score", "games", "waited", "winrate_at_swap", "epochs_to_align"


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
        UserError: it is of another run.
    """
    try:
        _refuse_another(arrays, numbers, now, rules)
        like = [name for name, _ in named(now.pool[0].weights)]
        entries = [
            Entry(tree_unflatten([(name, arrays[f"{i}.{name}"]) for name in like]), **about)
            for i, about in enumerate(numbers["entries"])
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
    except (KeyError, IndexError, TypeError, ValueError) as error:
        message = f"the saved pool of opponents makes no sense ({type(error).__name__}: {error})"
        raise UserError(message, "the file is damaged; go on from another checkpoint") from None


def _entries(table: Table) -> list[Entry]:
    """Every entry once: those of the pool, of opponents, and of opponents to come."""
    every = [*table.pool]
    for one in table.opponents:
        every += [one.entry] if one.pending is None else [one.entry, one.pending]
    return list({id(entry): entry for entry in every}.values())


def _opponent(entries: list[Entry], about: dict[str, Any]) -> Opponent:
    pending = None if about["pending"] is None else entries[about["pending"]]
    counted = {name: about[name] for name in COUNTED}
    return Opponent(entries[about["entry"]], pending=pending, **counted)


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
    for what, was, own in (
        ("selfplay.rules", numbers["rules"], rules),
        ("opponents", len(numbers["opponents"]), len(now.opponents)),
        ("environments", arrays["aligned"].shape[0], len(now.aligned)),
    ):
        if was != own:
            wrong.insert(0, f"{what} {was}, expected {own}")
    if wrong:
        raise UserError(
            f"the saved pool of opponents is of another run: {'; '.join(wrong[:3])}",
            "go on with the run's own policy, [vec] and [selfplay]",
        )
