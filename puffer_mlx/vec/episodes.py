"""Metrics of the episodes of Python environments: returns, lengths, and reported numbers.

| metric | of an episode |
| --- | --- |
| ``episode_return`` | sum of its rewards, neither clipped nor discounted |
| ``episode_length`` | number of its steps |
| ``score`` | the environment's score, else the return |

Any other number that the environment reports at the end of an episode is a metric too. A reported
number replaces a computed one of the same name.
"""

import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from puffer_mlx.vec.base import TERMINATED, TRUNCATED, Rows

_RESERVED_NAMES = ("n", "env")  # keys of records that aren't metrics


class EpisodeTracker:
    """Tracker of the agents of one group: records whose episode ended in the last step.

    Args:
        n: Number of agents.
        final_observations: True if an episode's last observation has a separate row (``VecEnv``).
            The next row is then the first of the next episode, and that step only resets.

    Attributes:
        over: (n,) bool, True where an episode ended in the last step.
        any_over: True if any episode ended in the last step.
    """

    def __init__(self, n: int, final_observations: bool) -> None:
        self._final_observations = final_observations
        self.reset(np.zeros(n, bool))

    def reset(self, absent: np.ndarray) -> None:
        """Mark every present agent as being in a new episode, after its environment was reset.

        Args:
            absent: (n,) bool, True for agents that join later.
        """
        self.over = absent
        self.any_over = bool(absent.any())

    def write(
        self, terminated: np.ndarray, truncated: np.ndarray, out: Rows
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Record which agents' episodes a step ended, and write the ``terminals`` of its rows.

        Also writes their ``final_observations``, if last observations have rows.

        Args:
            terminated: (n,) bool.
            truncated: (n,) bool.
            out: Rows of the step.

        Returns:
            (n,) bool, True where an episode ended; and (n,) bool, True where the step only reset
            the environment, or None when it reset none.
        """
        previous_over = self.over
        any_previous = self.any_over
        over = self.over = np.logical_or(terminated, truncated)
        self.any_over = b"\1" in over.tobytes()  # a fifth of the time of any()
        if not self._final_observations:
            out.terminals[:] = over
            return over, None
        if any_previous:
            out.terminals[:] = previous_over
        else:
            out.terminals.fill(0)
        if out.final_observations is not None:
            out.final_observations.fill(0)
            if self.any_over:
                out.final_observations[truncated] = TRUNCATED
                out.final_observations[terminated] = TERMINATED
        return over, previous_over if any_previous else None


class _EndedEpisodes(NamedTuple):
    """Agents, returns, lengths and reported numbers of k episodes that ended in the same step."""

    agents: np.ndarray  # (k,) indices
    returns: np.ndarray  # (k,) float64
    lengths: np.ndarray  # (k,)
    infos: list[dict[str, float]]  # k dicts of reported numbers; [] if none were reported
    step: int  # number of the step, counted by group


class Episodes:
    """Metrics of N agents' episodes: accumulates returns, lengths, and reported numbers.

    Steps of different groups may be added from different threads. Other methods may be called from
    any thread.

    Args:
        num_agents: Number of agents N.
        per_environment: Number of agents in an environment; they have consecutive indices.
    """

    def __init__(self, num_agents: int, per_environment: int = 1) -> None:
        self._per_environment = per_environment
        self._returns = np.zeros(num_agents)
        self._lengths = np.zeros(num_agents, np.int64)
        self._lock = threading.Lock()
        self._ended: list[_EndedEpisodes] = []
        self._reports: list[tuple[dict[str, float], float]] = []  # means, number of episodes
        self._steps: dict[int, int] = {}  # first agent of a group -> number of steps
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
        """Add one step's rewards of n agents to the returns and lengths of their episodes.

        Args:
            rewards: (n,) rewards of the step.
            ended: (n,) bool, or 0 and 1: True where the step was the last of an episode.
            first: Index of the first of the n agents.
            resets: (n,) bool, True where the environment was only reset.
            infos: Reported numbers of the episodes that ended, by index in ``ended``.
        """
        agents = slice(first, first + len(rewards))
        returns, lengths = self._returns[agents], self._lengths[agents]
        returns += rewards
        lengths += 1 if resets is None else ~resets
        step = self._steps[first] = self._steps.get(first, 0) + 1
        if not np.count_nonzero(ended):  # a fifth of the time of any()
            return
        indices = np.flatnonzero(ended)
        reported: list[dict[str, float]] = []
        if infos:
            reported = [_without_reserved(infos.get(i, {})) for i in indices.tolist()]
        over = _EndedEpisodes(indices + first, returns[indices], lengths[indices], reported, step)
        returns[indices] = 0
        lengths[indices] = 0
        with self._lock:
            self._ended.append(over)

    def add_report(self, info: Mapping[str, float]) -> None:
        """Add metrics that an environment reported as means over several episodes, for ``log``.

        Args:
            info: Means by name; ``n`` is the number of episodes.
        """
        with self._lock:
            self._reports.append((_without_reserved(info), info.get("n", 1.0)))

    def restart(self) -> None:
        """Discard the returns and lengths of all agents' unfinished episodes, after a reset."""
        self._returns[:] = 0
        self._lengths[:] = 0

    def log(self) -> dict[str, float]:
        """Return mean metrics of the episodes that ended since the last ``log`` or ``take``.

        Returns:
            Means by name, and the number of episodes ``n``; {} if no episode ended. A metric that
            only some episodes have is averaged over these.
        """
        ended, reports = self._drain()
        self._scores = _scores(ended, reports)
        means = _means(sums for over in ended for sums in _sums(over))
        means |= _means(
            ({key: count * x for key, x in report.items()}, count) for report, count in reports
        )
        if ended:
            means["n"] = float(sum(len(over.agents) for over in ended))
        elif reports:
            means["n"] = sum(count for _, count in reports)
        return means

    def scores(self) -> np.ndarray:
        """Return the scores of the episodes that the last ``log`` averaged, by time and agent.

        Returns:
            (k, 2) float64: a mean score and its number of episodes.
        """
        return self._scores

    def take(self) -> list[dict[str, float]]:
        """Return the metrics of each single episode that ended since the last ``take`` or ``log``.

        Returns:
            One record per episode, ordered by environment and time: the metrics, the index of the
            environment ``env``, and ``n`` = 1.
        """
        ended, _ = self._drain()
        records = [
            {**record, "env": float(agent // self._per_environment), "n": 1.0}
            for over in ended
            for agent, record in zip(over.agents.tolist(), _records(over), strict=True)
        ]
        return sorted(records, key=lambda record: record["env"])

    def _drain(self) -> tuple[list[_EndedEpisodes], list[tuple[dict[str, float], float]]]:
        with self._lock:
            ended, self._ended = self._ended, []
            reports, self._reports = self._reports, []
        return ended, reports


def _means(partial_sums: Iterable[tuple[dict[str, float], float]]) -> dict[str, float]:
    """Return the mean of each metric over episodes, computed from partial sums.

    Args:
        partial_sums: (sums of metrics over some episodes, number of these episodes) pairs.
    """
    sums: dict[str, float] = {}
    counts: dict[str, float] = {}
    for metrics, count in partial_sums:
        for key, x in metrics.items():
            sums[key] = sums.get(key, 0.0) + x
            counts[key] = counts.get(key, 0.0) + count
    return {key: x / counts[key] for key, x in sums.items() if counts[key]}


def _sums(over: _EndedEpisodes) -> Iterator[tuple[dict[str, float], float]]:
    """Yield pairs for a mean: (sums of ended episodes' metrics, number of these episodes).

    There is one pair per episode if any reported numbers, else one pair in all.
    """
    if any(over.infos):
        yield from ((record, 1.0) for record in _records(over))
    else:
        total = float(over.returns.sum())
        steps = float(over.lengths.sum())
        yield _record(total, steps, {}), len(over.agents)


def scalar_metrics(info: Mapping[str, Any]) -> dict[str, float]:
    """Return the single numbers in an environment's info as floats; nested keys: ``outer/inner``.

    Truth values are 0 and 1. Arrays of several elements, texts and other objects are ignored, and
    so are the reserved keys ``n`` and ``env``.
    """
    return _without_reserved(
        {key: float(np.asarray(x).item()) for key, x in _flat(info) if _is_number(x)}
    )


def mean_metrics(info: Any) -> dict[str, float]:
    """Return the numbers in an environment's info as floats; arrays and lists give their mean.

    The result is {} if ``info`` isn't a dict.
    """
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


def _without_reserved(metrics: Mapping[str, float]) -> dict[str, float]:
    return {key: x for key, x in metrics.items() if key not in _RESERVED_NAMES}


def _records(over: _EndedEpisodes) -> Iterator[dict[str, float]]:
    infos = over.infos or [{}] * len(over.agents)
    for total, steps, info in zip(over.returns.tolist(), over.lengths.tolist(), infos, strict=True):
        yield _record(total, float(steps), info)


def _scores(
    ended: list[_EndedEpisodes], reports: list[tuple[dict[str, float], float]]
) -> np.ndarray:
    """Return the scores of ended episodes as (score, number of episodes) pairs, ordered by time.

    Means that environments reported replace computed scores.
    """
    if reported := [(means["score"], count) for means, count in reports if "score" in means]:
        return np.array(reported)
    # Groups may end their steps in any order.
    ordered = sorted(ended, key=lambda over: (over.step, over.agents[0]))
    by_step = [
        [record["score"] for record in _records(over)] if any(over.infos) else over.returns
        for over in ordered
    ]
    scores = np.concatenate(by_step) if by_step else np.zeros(0)
    return np.stack([scores, np.ones_like(scores)], axis=1)


def _record(total: float, steps: float, info: dict[str, float]) -> dict[str, float]:
    score = info.get("episode_return", total)
    return {"episode_return": total, "episode_length": steps, "score": score, **info}
