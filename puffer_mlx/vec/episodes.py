"""Episodes of agents that step in Python: where they end, their returns and lengths.

| number | of an episode |
| --- | --- |
| ``episode_return`` | sum of its rewards, neither clipped nor discounted |
| ``episode_length`` | number of its steps |
| ``score`` | the environment's score, else the return |

and every other number that the environment reports at the end. Reported numbers replace those
computed here.
"""

import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from puffer_mlx.vec.base import TERMINATED, TRUNCATED, Rows

_RESERVED = ("n", "env")  # names that records use


class EpisodeTracker:
    """Track where the episodes of one group of agents end.

    Args:
        n: Number of agents.
        finals: True if an episode's last observation has a separate row (``VecEnv.finals``). The
            next row is then the first of the next episode, and that step only resets.

    Attributes:
        over: (n,) bool, True where an episode ended in the last step.
        any_over: True if any episode ended in the last step.
    """

    def __init__(self, n: int, finals: bool) -> None:
        self._finals = finals
        self.reset(np.zeros(n, bool))

    def reset(self, absent: np.ndarray) -> None:
        """Start a new episode for every agent that is present.

        Args:
            absent: (n,) bool, True for agents that join later.
        """
        self.over = absent
        self.any_over = bool(absent.any())

    def write(
        self, terminated: np.ndarray, truncated: np.ndarray, out: Rows
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Add the episode ends of a step, and write ``terminals`` and ``finals`` of its rows.

        Args:
            terminated: (n,) bool.
            truncated: (n,) bool.
            out: Rows of the step.

        Returns:
            (n,) bool, True where an episode ended; and (n,) bool, True where the step only reset,
            or None for a step without resets.
        """
        before = self.over
        any_before = self.any_over
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
    infos: list[dict[str, float]]  # (k,) reported numbers; empty without any
    step: int  # of these agents' group


class Episodes:
    """Accumulates returns and lengths of N agents in E = N / per_environment environments.

    Different groups may be added from different threads; other methods may be called from any.

    Args:
        num_agents: Number of agents N.
        per_environment: Number of agents in an environment; they have consecutive indices.
    """

    def __init__(self, num_agents: int, per_environment: int = 1) -> None:
        self._per_environment = per_environment
        self._returns = np.zeros(num_agents)
        self._lengths = np.zeros(num_agents, np.int64)
        self._lock = threading.Lock()
        self._ended: list[_Ended] = []
        self._notes: list[tuple[dict[str, float], float]] = []  # means, number of episodes
        self._steps: dict[int, int] = {}  # counted, by the first agent of a group
        self._scores = np.zeros((0, 2))

    def add(
        self,
        rewards: np.ndarray,
        ended: np.ndarray,
        *,
        first: int = 0,
        resets: np.ndarray | None = None,
        infos: Mapping[int, Mapping[str, float]] | None = None,
    ) -> None:
        """Add one step of n agents.

        Args:
            rewards: (n,) rewards of the step.
            ended: (n,) bool, or 0 and 1: whether the step was the last of an episode.
            first: Index of the first of these agents.
            resets: (n,) bool, True where the environment only reset.
            infos: Reported numbers of the episodes that ended, by index in ``ended``.
        """
        agents = slice(first, first + len(rewards))
        returns, lengths = self._returns[agents], self._lengths[agents]
        returns += rewards
        lengths += 1 if resets is None else ~resets
        step = self._steps[first] = self._steps.get(first, 0) + 1
        if not np.count_nonzero(ended):  # a fifth of the time of any()
            return
        places = np.flatnonzero(ended)
        numbers: list[dict[str, float]] = []
        if infos:
            numbers = [_without_reserved(infos.get(place, {})) for place in places.tolist()]
        over = _Ended(places + first, returns[places], lengths[places], numbers, step)
        returns[places] = 0
        lengths[places] = 0
        with self._lock:
            self._ended.append(over)

    def add_report(self, info: Mapping[str, float]) -> None:
        """Add numbers that an environment reported for several episodes, for ``log``.

        Args:
            info: The numbers; ``n`` is the number of episodes that the others are means of.
        """
        with self._lock:
            self._notes.append((_without_reserved(info), info.get("n", 1.0)))

    def restart(self) -> None:
        """Discard the unfinished episodes of all agents."""
        self._returns[:] = 0
        self._lengths[:] = 0

    def log(self) -> dict[str, float]:
        """Return means over the episodes since the last call of this method or of ``take``.

        Returns:
            The numbers of the table, reported numbers, and the number of episodes ``n``; {} without
            any. A number that only some episodes have is the mean over those.
        """
        ended, notes = self._drain()
        self._scores = _scores(ended, notes)
        means = _means(part for over in ended for part in _sums(over))
        means |= _means(
            ({key: count * x for key, x in numbers.items()}, count) for numbers, count in notes
        )
        if ended:
            means["n"] = float(sum(len(over.agents) for over in ended))
        elif notes:
            means["n"] = sum(count for _, count in notes)
        return means

    def scores(self) -> np.ndarray:
        """Return the scores that the last ``log`` averaged, ordered by time and then by agent.

        Returns:
            (k, 2) float64: a mean score and its number of episodes.
        """
        return self._scores

    def take(self) -> list[dict[str, float]]:
        """Return each episode that ended since the last call of this method or of ``log``.

        Returns:
            Records ordered by environment and then by time: the episode's numbers, the index of its
            environment ``env``, and ``n`` 1.
        """
        ended, _ = self._drain()
        records = [
            {**record, "env": float(agent // self._per_environment), "n": 1.0}
            for over in ended
            for agent, record in zip(over.agents.tolist(), _records(over), strict=True)
        ]
        return sorted(records, key=lambda record: record["env"])

    def _drain(self) -> tuple[list[_Ended], list[tuple[dict[str, float], float]]]:
        with self._lock:
            ended, self._ended = self._ended, []
            notes, self._notes = self._notes, []
        return ended, notes


def _means(parts: Iterable[tuple[dict[str, float], float]]) -> dict[str, float]:
    """Return the mean of each number from sums over some episodes and the number of these."""
    sums: dict[str, float] = {}
    counts: dict[str, float] = {}
    for part, count in parts:
        for key, x in part.items():
            sums[key] = sums.get(key, 0.0) + x
            counts[key] = counts.get(key, 0.0) + count
    return {key: x / counts[key] for key, x in sums.items() if counts[key]}


def _sums(over: _Ended) -> Iterator[tuple[dict[str, float], float]]:
    """Yield sums of numbers and the number of episodes: each episode apart if any reported some."""
    if any(over.infos):
        yield from ((record, 1.0) for record in _records(over))
    else:
        total = float(over.returns.sum())
        steps = float(over.lengths.sum())
        yield _record(total, steps, {}), len(over.agents)


def scalar_metrics(info: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers in an info; those of nested dicts as ``outer/inner``.

    Truth values are 0 and 1. Arrays of several elements, texts and other objects are ignored, and
    so are ``n`` and ``env``, which records use.
    """
    return _without_reserved(
        {key: float(np.asarray(x).item()) for key, x in _flat(info) if _is_number(x)}
    )


def mean_metrics(info: Any) -> dict[str, float]:
    """Return the numbers of a dict, and means of arrays and lists; {} for another object."""
    means = {}
    for key, value in _flat(info) if isinstance(info, Mapping) else ():
        try:
            array = np.asarray(value, np.float64)
        except (TypeError, ValueError):  # a text or another object
            continue
        if array.size and not isinstance(value, str | bytes):
            means[key] = float(array.mean())
    return means


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


def _without_reserved(numbers: Mapping[str, float]) -> dict[str, float]:
    return {key: x for key, x in numbers.items() if key not in _RESERVED}


def _records(over: _Ended) -> Iterator[dict[str, float]]:
    infos = over.infos or [{}] * len(over.agents)
    for total, steps, info in zip(over.returns.tolist(), over.lengths.tolist(), infos, strict=True):
        yield _record(total, float(steps), info)


def _scores(ended: list[_Ended], notes: list[tuple[dict[str, float], float]]) -> np.ndarray:
    """Return ``Episodes.scores``; reported means replace computed ones, as in ``log``."""
    if reports := [(means["score"], count) for means, count in notes if "score" in means]:
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
