"""What PufferLib's and PettingZoo's environments share: ``Here`` or ``Workers`` step each group."""

from collections.abc import Sequence

from puffer_mlx.vec.base import Rows
from puffer_mlx.vec.finite import check_finite
from puffer_mlx.vec.puffer.workers import Here, Workers
from puffer_mlx.vec.python_vec import PythonVec


class InWorkers(PythonVec[Here | Workers, Rows]):
    """The part of ``ScoredVec`` that ``PufferVec`` and ``ZooVec`` share; they set what is named."""

    _n: int  # agents of a group
    _per_environment: int  # agents
    _seeds: Sequence[int]  # of each environment

    def busy_seconds(self) -> float:
        """Seconds spent inside environment steps since creation, all processes together."""
        return sum(env.seconds for env in self._envs)

    def _agents(self, group: int) -> slice:
        return slice(group * self._n, (group + 1) * self._n)

    def _check_finite(self, group: int, out: Rows) -> None:
        first = group * self._n // self._per_environment
        check_finite(
            self._name, out.observations, out.rewards, first, self._seeds, self._per_environment
        )
