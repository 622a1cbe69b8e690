"""Episodes of agents that step in Python: where they end, their returns and lengths.

| number | of an episode |
| --- | --- |
| ``episode_return`` | the sum of its rewards, neither clipped nor discounted |
| ``episode_length`` | its steps |
| ``score`` | what the environment says it is, else the return |

and every other number that the environment tells at the end. What it tells goes before what is
counted here.
"""

import threading
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from puffer_mlx.vec.base import TERMINATED, TRUNCATED, Rows

_RESERVED = ("n", "env")  # what records say themselves


class EpisodeEnds:
    """Those of one group's agents, step by step.

    Args:
        n: agents of the group.
        finals: whether an episode's last observation has a row of its own (``VecEnv.finals``). The
            row after it is then the first of the next episode, and that step only began it.

    Attributes:
        over: (n,) bool: where an episode ended in the last step.
        any_over: whether one did anywhere.
    """

    def __init__(self, n: int, finals: bool) -> None:
        self._finals = finals
        self.restart(np.zeros(n, bool))

    def restart(self, away: np.ndarray) -> None:
        """All agents begin anew, but for those that aren't there yet, (n,) bool."""
        self.over, self.any_over = away, bool(away.any())

    def write(
        self, terminated: np.ndarray, truncated: np.ndarray, out: Rows
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Take a step's ends, and write ``terminals`` and ``finals`` of its rows.

        Args:
            terminated: (n,) bool.
            truncated: (n,) bool.
            out: the step's rows.

        Returns:
            (n,) bool: where an episode ended; and where the step only began the next one, or None
            if it did so nowhere.
        """
        before, any_before = self.over, self.any_over
        over = self.over = np.logical_or(terminated, truncated)
        self.any_over = b"\1" in over.tobytes()  # a fifth of the time of any()
        if not self._finals:
            out.terminals[:] = over
            return over, None
        if any_before:
            out.terminals[:] = before
        else:
            out.terminals.fill(0)
        if out.finals is not None:
            out.finals.fill(0)
            if self.any_over:
                out.finals[truncated] = TRUNCATED
                out.finals[terminated] = TERMINATED
        return over, before if any_before else None


class _Ended(NamedTuple):
    """k episodes that ended in the same step."""

    agents: np.ndarray  # (k,)
    returns: np.ndarray  # (k,) float64
    lengths: np.ndarray  # (k,)
    infos: list[dict[str, float]]  # (k,) what environments told; empty if nothing
    step: int  # of these agents' group


class Episodes:
    """Of N agents, E = N / per_environment environments.

    Rows of different groups may be added from different threads; the rest from any thread.

    Args:
        num_agents: N.
        per_environment: agents that share an environment; they are counted through in this order.
    """

    def __init__(self, num_agents: int, per_environment: int = 1) -> None:
        self._per_environment = per_environment
        self._returns = np.zeros(num_agents)
        self._lengths = np.zeros(num_agents, np.int64)
        self._lock = threading.Lock()
        self._ended: list[_Ended] = []
        self._notes: list[dict[str, float]] = []
        self._steps: dict[int, int] = {}  # counted, by the first agent of a group
        self._scores = np.zeros((0, 2))

    def add(
        self,
        rewards: np.ndarray,
        ended: np.ndarray,
        *,
        first: int = 0,
        resets: np.ndarray | None = None,
        infos: Mapping[int, Mapping[str, Any]] | None = None,
    ) -> None:
        """Count one step of n agents.

        Args:
            rewards: (n,) of the step.
            ended: (n,) bool, or 0 and 1: where it was the last of an episode.
            first: number of the first of these agents.
            resets: (n,) bool: where it was no step, the environment only began anew.
            infos: what environments told of the episodes that ended here, by place in ``ended``;
                what isn't a number is left out.
        """
        agents = slice(first, first + len(rewards))
        returns, lengths = self._returns[agents], self._lengths[agents]
        returns += rewards
        lengths += 1 if resets is None else ~resets
        step = self._steps[first] = self._steps.get(first, 0) + 1
        if not np.count_nonzero(ended):  # a fifth of the time of any()
            return
        places = np.flatnonzero(ended)
        numbers = [numbers_of(infos.get(place, {})) for place in places.tolist()] if infos else []
        over = _Ended(places + first, returns[places], lengths[places], numbers, step)
        returns[places] = 0
        lengths[places] = 0
        with self._lock:
            self._ended.append(over)

    def note(self, info: Mapping[str, Any]) -> None:
        """Keep what an environment tells of no episode in particular, for ``log``.

        A number ``n`` in it says over how many episodes the others are means.
        """
        if numbers := _numbers(info):
            with self._lock:
                self._notes.append(numbers)

    def restart(self) -> None:
        """All agents begin anew: episodes under way are forgotten."""
        self._returns[:] = 0
        self._lengths[:] = 0

    def log(self) -> dict[str, float]:
        """Means over the episodes that ended since the last call of this or of ``take``.

        Returns:
            The numbers of the table, what environments told, and ``n``, how many episodes; empty if
            there was nothing. A number that only some episodes have is the mean over those.
        """
        ended, notes = self._drain()
        episodes, reports = _Means(), _Means()
        for over in ended:
            if any(over.infos):
                for record in _records(over):
                    episodes.add(record, 1.0)
            else:
                total, steps = float(over.returns.sum()), float(over.lengths.sum())
                episodes.add_sums(_record(total, steps, {}), len(over.agents))
        for note in notes:
            reports.add(_without_reserved(note), note.get("n", 1.0))
        self._scores = _scores(ended, notes)
        means = episodes.means() | reports.means()
        if ended:
            means["n"] = float(sum(len(over.agents) for over in ended))
        elif notes:
            means["n"] = sum(note.get("n", 1.0) for note in notes)
        return means

    def scores(self) -> np.ndarray:
        """What ``log``'s last ``score`` is the mean of, in order of time and then of agents.

        Returns:
            (k, 2) float64: scores, and over how many episodes each is a mean.
        """
        return self._scores

    def take(self) -> list[dict[str, float]]:
        """Each episode that ended since the last call of this or of ``log``.

        Returns:
            Records in order of environments, one's in order of time: its numbers, ``env`` the
            number of its environment, and ``n`` 1.
        """
        ended, _ = self._drain()
        records = [
            {**record, "env": float(agent // self._per_environment), "n": 1.0}
            for over in ended
            for agent, record in zip(over.agents.tolist(), _records(over), strict=True)
        ]
        return sorted(records, key=lambda record: record["env"])

    def _drain(self) -> tuple[list[_Ended], list[dict[str, float]]]:
        with self._lock:
            ended, self._ended = self._ended, []
            notes, self._notes = self._notes, []
        return ended, notes


class _Means:
    """Means of each number over the records that have it; weights of 0 don't count."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}
        self._weights: dict[str, float] = {}

    def add(self, record: dict[str, float], weight: float) -> None:
        """A record that stands for as many as its weight."""
        self.add_sums({key: weight * x for key, x in record.items()}, weight)

    def add_sums(self, sums: dict[str, float], weight: float) -> None:
        """The sums over records with this weight together."""
        for key, x in sums.items():
            self._sums[key] = self._sums.get(key, 0.0) + x
            self._weights[key] = self._weights.get(key, 0.0) + weight

    def means(self) -> dict[str, float]:
        """By name."""
        return {key: x / self._weights[key] for key, x in self._sums.items() if self._weights[key]}


def numbers_of(info: Mapping[str, Any]) -> dict[str, float]:
    """The numbers that an environment tells; those of nested dicts as ``outer/inner``.

    Truth values count as 0 and 1. Arrays of more than one element, texts and other objects aren't
    numbers, and ``n`` and ``env`` are names that records need themselves.
    """
    return _without_reserved(_numbers(info))


def means_of(info: Any) -> dict[str, float]:
    """The numbers of a dict, and means of arrays and lists; {} of what is no dict."""
    means = {}
    for key, value in _flat(info) if isinstance(info, Mapping) else ():
        try:
            array = np.asarray(value, np.float64)
        except (TypeError, ValueError):  # a text, or something else that is no number
            continue
        if array.size and not isinstance(value, str | bytes):
            means[key] = float(array.mean())
    return means


def _numbers(info: Mapping[str, Any]) -> dict[str, float]:
    return {key: float(np.asarray(x).item()) for key, x in _flat(info) if _is_number(x)}


def _flat(info: Mapping[str, Any], outer: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in info.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{outer}{key}/")
        else:
            yield f"{outer}{key}", value


def _is_number(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return value.size == 1 and value.dtype.kind in "biuf"
    return isinstance(value, bool | int | float | np.bool_ | np.integer | np.floating)


def _without_reserved(numbers: dict[str, float]) -> dict[str, float]:
    return {key: x for key, x in numbers.items() if key not in _RESERVED}


def _records(over: _Ended) -> Iterator[dict[str, float]]:
    infos = over.infos or [{}] * len(over.agents)
    for total, steps, info in zip(over.returns.tolist(), over.lengths.tolist(), infos, strict=True):
        yield _record(total, float(steps), info)


def _scores(ended: list[_Ended], notes: list[dict[str, float]]) -> np.ndarray:
    """See ``Episodes.scores``; as in ``log``, notes go before what was counted."""
    if reports := [(note["score"], note.get("n", 1.0)) for note in notes if "score" in note]:
        return np.array(reports)
    # Groups may end their steps in any order.
    inorder = sorted(ended, key=lambda over: (over.step, over.agents[0]))
    parts = [
        [record["score"] for record in _records(over)] if any(over.infos) else over.returns
        for over in inorder
    ]
    scores = np.concatenate(parts) if parts else np.zeros(0)
    return np.stack([scores, np.ones_like(scores)], axis=1)


def _record(total: float, steps: float, info: dict[str, float]) -> dict[str, float]:
    score = info.get("episode_return", total)
    return {"episode_return": total, "episode_length": steps, "score": score, **info}
