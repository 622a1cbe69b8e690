"""Normalise observations and rewards of environments by running statistics.

    observation = clip((observation - mean) / sqrt(variance + 1e-8), ±10)        for each column
    reward = reward / sqrt(variance of G + 1e-8),  G = reward + gamma * G        for each agent

Source: OpenAI Baselines' VecNormalize. Statistics are over all rows so far, with every group's step
as one batch (Chan's parallel update). Rewards aren't centred, so their sign stays.

The mean is subtracted before rows are rounded to float32, in which clock times of 1.7e9 and 1.7e9 +
1 seconds are equal.

Statistics skip non-finite observations and rewards, since one would spoil the entire run, and rows
of absent agents (``VecEnv.final_observations``).
"""

import io
import sys
from typing import Self

import numpy as np

from puffer_mlx.config import Config
from puffer_mlx.errors import UserError
from puffer_mlx.spec import EnvSpec
from puffer_mlx.vec import rollout_loop
from puffer_mlx.vec.base import (
    Collected,
    DeclaresPolicies,
    Environments,
    FinalObservations,
    HasExactObservations,
    ReportsFinalObservations,
    ReportsScores,
    Rows,
)
from puffer_mlx.vec.rows import non_finite_mask

MAX_DEVIATIONS = 10.0  # limit of a normalised observation, in standard deviations
VARIANCE_EPSILON = 1e-8


def deviation_inverse(variance: np.ndarray) -> np.ndarray:
    """Return the factor that scales values by a standard deviation: 1 / sqrt(variance + 1e-8)."""
    return 1 / np.sqrt(variance + VARIANCE_EPSILON)


def normalise_rows(
    rows: np.ndarray, mean: np.ndarray, scale: np.ndarray, exact: np.ndarray | None = None
) -> None:
    """Normalise and clip observations in place: ``(rows - mean) * scale``.

    Args:
        rows: (..., D) float32.
        mean: (D,) float64.
        scale: (D,) float64, 1 / standard deviation.
        exact: (..., D) float64, observations before rounding to float32; None when rounding changed
            nothing.
    """
    np.subtract(rows if exact is None else exact, mean, out=rows, casting="same_kind")
    np.multiply(rows, scale, out=rows, casting="same_kind")
    np.clip(rows, -MAX_DEVIATIONS, MAX_DEVIATIONS, out=rows)


def can_normalise(spec: EnvSpec) -> bool:
    """Return True if an environment's observations can be normalised (they aren't bytes)."""
    return spec.observation_dtype != np.uint8


def shows_normalised(config: Config, spec: EnvSpec) -> bool:
    """Return True if a configuration normalises the observations of its environment."""
    return config.vec.normalize_observations and can_normalise(spec)


class Moments:
    """Running mean and variance of each column of batches, in float64.

    Args:
        size: Number of columns.
    """

    def __init__(self, size: int) -> None:
        self.count = 0.0
        self.mean = np.zeros(size)
        self.variance = np.ones(size)  # before the first batch

    def add(self, rows: np.ndarray) -> None:
        """Update the running mean and variance of columns with a batch of rows, (n, size)."""
        n = len(rows)
        if not n:
            return
        mean = rows.mean(axis=0, dtype=np.float64)
        variance = rows.var(axis=0, dtype=np.float64)
        old_count = self.count
        total = old_count + n
        difference = mean - self.mean
        squares = variance * n + np.square(difference) * (old_count * n / total)
        if old_count:
            squares += self.variance * old_count
        self.mean = self.mean + difference * (n / total)
        self.variance = squares / total
        self.count = total

    @property
    def scale(self) -> np.ndarray:
        """Factor 1 / standard deviation by which each column is normalised, (size,)."""
        return deviation_inverse(self.variance)


class Normalized:
    """Wrapper of environments (a ``VecEnv``) that normalises their observations and rewards.

    Logs and episodes contain the original rewards.

    Args:
        inner: The environments; ``close`` closes them too.
        observations: Normalise observations.
        rewards: Normalise rewards.
        gamma: Discount of the return whose deviation rewards are divided by.
        threads: Number of threads that may act for the policy.

    Raises:
        ValueError: Observations to normalise are bytes.
    """

    def __init__(
        self, inner: Environments, observations: bool, rewards: bool, gamma: float, threads: int = 1
    ) -> None:
        spec = inner.spec
        if observations and not can_normalise(spec):
            raise ValueError(f"{spec.name} has observations of bytes, which can't be normalised")
        self.inner = inner
        self.spec = spec
        self.final_observations = inner.final_observations
        self.num_agents, self.num_groups = inner.num_agents, inner.num_groups
        self.num_environments = inner.num_environments
        self.unused = inner.unused
        self.backend = inner.backend
        self.layout = getattr(inner, "layout", None)  # Python environments only
        what = [word for word, on in (("observations", observations), ("rewards", rewards)) if on]
        self.description = f"{inner.description}; {' and '.join(what)} normalised"
        self.log = inner.log
        self.episodes = inner.episodes
        self.close = inner.close
        self.busy_seconds = inner.busy_seconds
        if isinstance(inner, ReportsScores):
            self.scores = inner.scores
        if isinstance(inner, DeclaresPolicies):
            self.declared_policies = inner.declared_policies
            self.set_tags = inner.set_tags
        self._exactly = (
            inner.exact_observations if isinstance(inner, HasExactObservations) else None
        )
        self._observation_moments = Moments(spec.observation_size) if observations else None
        self._return_moments = Moments(1) if rewards else None
        self._gamma = gamma
        self._threads = threads
        self._frozen = False
        self._returns = np.zeros(inner.num_agents)  # G of each agent
        self._n = inner.num_agents // inner.num_groups
        self._pending_rows: list[Rows | None] = [None] * inner.num_groups
        self._warned = False  # True after the warning about non-finite values

    def reset(self, out: Rows) -> None:
        """Start new episodes in all environments, and normalise their first observations."""
        self.inner.reset(out)
        self._returns[:] = 0
        self._normalise(out, slice(0, self.num_agents), rewarded=False)

    def send(self, group: int, actions: np.ndarray, out: Rows) -> None:
        """Begin one environment step of a group; its rows are normalised later, in ``wait``."""
        self.inner.send(group, actions, out)
        self._pending_rows[group] = out

    def wait(self, group: int) -> None:
        """Wait for a group's environment step, and normalise its observations and rewards."""
        self.inner.wait(group)
        out, self._pending_rows[group] = self._pending_rows[group], None
        if out is not None:
            self._normalise(out, slice(group * self._n, (group + 1) * self._n))

    def collect(
        self, steps: int, act: tuple[int, int], actions: np.ndarray, out: Rows, spans: int = 0
    ) -> Collected:
        """Collect a rollout step by step, with normalised observations and rewards."""
        return rollout_loop.collect(self, steps, act, actions, out, spans, self._threads)

    @property
    def reports_final_observations(self) -> bool:
        """True if the wrapped environments report the last observations of episodes separately."""
        return (
            isinstance(self.inner, ReportsFinalObservations)
            and self.inner.reports_final_observations
        )

    def take_final_observations(self) -> FinalObservations:
        """Return the last observations of episodes since the previous call, normalised."""
        assert isinstance(self.inner, ReportsFinalObservations)
        last = self.inner.take_final_observations()
        if self._observation_moments is None:
            return last
        rows = last.observations.astype(np.float32)
        exact = last.observations if last.observations.dtype == np.float64 else None
        normalise_rows(rows, self._observation_moments.mean, self._observation_moments.scale, exact)
        return last._replace(observations=rows)

    def statistics(self) -> dict[str, np.ndarray]:
        """Return copies of the statistics that normalise observations and rewards, by name."""
        return {
            f"{name}.{key}": np.array(getattr(moments, key), np.float64)
            for name, moments in self._moments().items()
            for key in ("count", "mean", "variance")
        }

    def _moments(self) -> dict[str, Moments]:
        both = {"observations": self._observation_moments, "return": self._return_moments}
        return {name: moments for name, moments in both.items() if moments}

    def restore_statistics(self, statistics: dict[str, np.ndarray], frozen: bool = False) -> None:
        """Restore the normalization statistics. ``frozen`` also ends normalization of rewards.

        Statistics of rewards may be missing, since a policy doesn't depend on them; they then start
        again.
        """
        moments = self._moments()
        if not any(name.startswith("return.") for name in statistics):
            moments.pop("return", None)
        self._restore_moments(moments, statistics)
        self._frozen = frozen

    def _restore_moments(
        self, moments_by_name: dict[str, Moments], statistics: dict[str, np.ndarray]
    ) -> None:
        """Set a running mean and variance (``Moments``) from statistics by name."""
        current = self.statistics()
        names = [
            f"{name}.{key}" for name in moments_by_name for key in ("count", "mean", "variance")
        ]
        shapes = {name: getattr(statistics.get(name), "shape", None) for name in names}
        if wrong := [name for name in names if shapes[name] != current[name].shape]:
            raise UserError(
                f"the statistics of {', '.join(wrong)} are missing or belong to other environments",
                "leave vec.normalize_observations and vec.normalize_rewards as they were",
            )
        if "observations.mean" in statistics and "observations" not in moments_by_name:
            raise UserError(
                "the policy needs normalised observations, but these aren't normalised",
                "--vec.normalize-observations 1",
            )
        for name, moments in moments_by_name.items():
            moments.count = float(statistics[f"{name}.count"])
            moments.mean = np.array(statistics[f"{name}.mean"], np.float64)
            moments.variance = np.array(statistics[f"{name}.variance"], np.float64)

    def raw(self, observations: np.ndarray) -> np.ndarray:
        """Convert normalised observations (..., D) back to the environments' original scale.

        Values that were clipped aren't restored.
        """
        if self._observation_moments is None:
            return observations
        return (
            observations / self._observation_moments.scale + self._observation_moments.mean
        ).astype(np.float32)

    def state(self) -> np.ndarray | None:
        """Return the state of the environments and the normalization statistics as bytes."""
        inner = self.inner.state()
        if inner is None:
            return None
        file = io.BytesIO()
        np.savez(file, inner=inner, returns=self._returns, **self.statistics())  # type: ignore
        return np.frombuffer(file.getvalue(), np.uint8)

    def restore(self, state: np.ndarray) -> None:
        """Restore environments and normalization statistics from a result of ``state``."""
        try:
            with np.load(io.BytesIO(state.tobytes()), allow_pickle=False) as file:
                saved = dict(file)
        except (ValueError, OSError, EOFError, KeyError) as error:
            raise UserError(
                f"the state doesn't belong to normalised environments: {error}",
                "resume with the run's vec.normalize_observations and vec.normalize_rewards",
            ) from None
        self._restore_moments(self._moments(), saved)
        self.inner.restore(saved["inner"])
        self._returns[:] = saved["returns"]

    def _normalise(self, out: Rows, agents: slice, rewarded: bool = True) -> None:
        """Update the statistics with the rows of some agents, then normalise the rows in place."""
        first = agents.start
        absent = _absent_mask(out)
        if self._observation_moments is not None:
            rows = out.observations
            exact = self._exactly(agents) if self._exactly else None
            if not self._frozen:
                observed = rows if exact is None else exact
                bad = _or_masks(self._warn_non_finite("an observation", rows, first), absent)
                self._observation_moments.add(observed if bad is None else observed[~bad])
            normalise_rows(
                rows, self._observation_moments.mean, self._observation_moments.scale, exact
            )
        if self._return_moments is not None and rewarded and not self._frozen:
            G, rewards = self._returns[agents], out.rewards
            bad = _or_masks(self._warn_non_finite("a reward", rewards[:, None], first), absent)
            G *= self._gamma
            G += rewards if bad is None else np.where(bad, 0, rewards)
            self._return_moments.add(G[:, None] if bad is None else G[~bad, None])
            np.multiply(rewards, self._return_moments.scale, out=rewards, casting="same_kind")
            G[out.terminals != 0] = 0

    def _warn_non_finite(self, what: str, rows: np.ndarray, first: int) -> np.ndarray | None:
        """Find observations or rewards that aren't finite, and warn once.

        Returns a mask of these rows, (n,), or None if all are finite.
        """
        bad = non_finite_mask(rows)
        if bad is None:
            return None
        if not self._warned:
            self._warned = True
            row, column = np.argwhere(bad)[0].tolist()
            print(
                f"puffer_mlx: {self.spec.name}: agent {first + row} got {what} of"
                f" {rows[row, column]} at position {column}; non-finite numbers are left out of the"
                " normalization statistics",
                file=sys.stderr,
            )
        return np.any(bad, axis=1)

    def render(self) -> np.ndarray | bool:
        """Render the first of the wrapped environments. Returns its picture or window's result."""
        return self.inner.render()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _absent_mask(out: Rows) -> np.ndarray | None:
    """Return which agents are absent from their environments, (n,) bool; None if all are there."""
    if out.final_observations is None or not out.final_observations.any():
        return None
    absent = (out.final_observations > 0) & (out.terminals > 0)
    return absent if absent.any() else None


def _or_masks(first: np.ndarray | None, second: np.ndarray | None) -> np.ndarray | None:
    """Return the elementwise OR of two (n,) bool masks. None means all False."""
    if first is None or second is None:
        return second if first is None else first
    return first | second
