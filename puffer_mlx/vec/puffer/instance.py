"""An environment of PufferLib 3.x as an instance that the pool steps.

Two kinds differ in when an episode ends:

* native ones (``pufferlib.PufferEnv``) begin the next episode within the step that ends one, and
  never show the last observation;
* emulated ones (``pufferlib.emulation``) show it, set ``done`` and wait for a reset. Here they get
  it within the step too, so that both kinds give the same rows.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from puffer_mlx.vec.episodes import means_of
from puffer_mlx.vec.instances import Buffers, Fact
from puffer_mlx.vec.python_faults import RAISED, failed

__all__ = ["ARRAYS", "PufferInstance", "buffer_for"]

ARRAYS = ("observations", "rewards", "terminals", "truncations")


def buffer_for(buffers: Buffers) -> dict[str, np.ndarray]:
    """What an environment is given to write into."""
    arrays = {key: getattr(buffers, key) for key in (*ARRAYS, "actions")}
    return arrays | {"masks": buffers.present}


class PufferInstance:
    """An environment, or as many in one as it was made with.

    Args:
        env: the environment.
        buffers: of its agents.
        buf: what it was given to write into.
    """

    def __init__(self, env: Any, buffers: Buffers, buf: dict[str, np.ndarray]) -> None:
        self._env, self._buffers = env, buffers
        self._shown = [(name, buf[name]) for name in (*ARRAYS, "masks")]
        self._begun: list[np.ndarray] = []  # what a reset within the last step wrote, see ``step``
        self.num_agents = int(env.num_agents)

    def reset(self, seed: int | None = None) -> None:
        """Begin new episodes."""
        self._begun = []
        try:
            self._env.reset(**({} if seed is None else {"seed": seed}))
            self._collect()
        except RAISED as error:
            raise failed("failed in reset", error) from error

    def step(self, actions: np.ndarray) -> Sequence[Fact]:
        """A step of all agents, and the reset that an emulated one waits for.

        Of that only observations are shown now. The other arrays show the step, and get what the
        reset wrote before the next one: the environment may count on it.
        """
        if self._begun:
            for (_, target), begun in zip(self._shown[1:], self._begun, strict=True):
                target[:] = begun
            self._begun = []
        infos = self._env.step(actions)[4]
        self._collect()
        facts = list(self._facts(infos)) if infos else ()
        if getattr(self._env, "done", False):
            self._buffers.terminals[:] = True
            stepped = [target.copy() for _, target in self._shown[1:]]
            self.reset()
            self._begun = [target.copy() for _, target in self._shown[1:]]
            for (_, target), was in zip(self._shown[1:], stepped, strict=True):
                target[:] = was
        return facts

    def render(self) -> Any:
        """What it draws."""
        return self._env.render()

    def close(self) -> None:
        """Close it."""
        if hasattr(self._env, "close"):
            self._env.close()

    def _collect(self) -> None:
        """Copy what the environment wrote elsewhere than into its buffers."""
        for name, target in self._shown:
            written = getattr(self._env, name, None)
            if written is target or written is None:
                continue
            if np.shape(written) != target.shape:
                raise ValueError(f"{name}: expected {target.shape}, found {np.shape(written)}")
            target[:] = written

    def _facts(self, infos: Any) -> Iterable[Fact]:
        """What a step's ``infos`` say: a list of dicts, or what emulation passes on."""
        if not isinstance(infos, Mapping):
            told = [(-1, info) for info in infos]
        else:
            agents = getattr(self._env, "possible_agents", None)
            ended = self._buffers.terminals | self._buffers.truncations
            told = [
                (place, infos if agents is None else infos.get(agents[place], {}))
                for place in np.flatnonzero(ended).tolist()
            ]
        for place, info in told:
            if numbers := means_of(info):
                yield Fact(place, numbers)
