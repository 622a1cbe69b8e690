"""Environments made to be watched: each number says where it is from, or one of them is broken."""

import random
import time
from typing import Any

import numpy as np

from puffer_mlx.check.gpu.tools import require
from puffer_mlx.rollout.buffer import RolloutBuffer
from puffer_mlx.spec import ActionSpec, EnvSpec
from puffer_mlx.vec.base import Rows

LONGEST = 1e-3  # seconds of a pause


def pause(generator: random.Random) -> None:
    """Nothing, or a short sleep: threads meet in all orders."""
    if generator.random() < 0.3:
        time.sleep(LONGEST * generator.random())


class Coded:
    """Agents whose observation, reward, terminal and action of a step can be told from all others.

    Implements ``VecEnv``. What agent i sees after step k is (i, k); pauses are random.

    Args:
        agents: N.
        groups: Q.
        finite: if not, observations are NaN.
    """

    finals, description = False, "coded"

    def __init__(self, agents: int, groups: int, finite: bool = True) -> None:
        self.spec = EnvSpec("coded", 2, np.dtype(np.float32), ActionSpec((3,)), 0)
        self.num_agents = self.num_environments = agents
        self.num_groups, self.finite = groups, finite
        self.unread: list[str] = []
        self._n = agents // groups
        self._steps = [0] * groups
        self._out: list[Rows | None] = [None] * groups
        self._sent: dict[int, np.ndarray] = {}  # step -> what each agent was told
        self._random = random.Random(0)

    def _write(self, out: Rows, agents: np.ndarray, k: int) -> None:
        seen, rewards, terminals = self._made(agents, k)
        out.observations[:], out.rewards[:], out.terminals[:] = seen, rewards, terminals

    def _made(self, agents: np.ndarray, k: int) -> tuple[np.ndarray, ...]:
        seen = np.stack([agents, np.full_like(agents, k)], axis=1) * (
            1.0 if self.finite else np.nan
        )
        return seen, ((agents + 7 * k) % 101) / 101, (agents + k) % 3 == 0

    def reset(self, out: Rows) -> None:
        """Write the first rows."""
        self._write(out, np.arange(self.num_agents), 0)

    def send(self, group: int, actions: np.ndarray, out: Rows) -> None:
        """Note the actions; the step itself is taken by ``wait``."""
        sent = self._sent.setdefault(self._steps[group], np.zeros(self.num_agents, np.float32))
        sent[group * self._n : (group + 1) * self._n] = actions[:, 0]
        self._out[group] = out
        pause(self._random)

    def wait(self, group: int) -> None:
        """Step a group, if it was sent something."""
        out, self._out[group] = self._out[group], None
        if out is None:
            return
        pause(self._random)
        self._steps[group] += 1
        agents = np.arange(group * self._n, (group + 1) * self._n)
        self._write(out, agents, self._steps[group])

    def log(self) -> dict[str, float]:
        """No episode is ever reported."""
        return {}

    def state(self) -> None:
        """None: it isn't to be saved."""
        return None

    def restore(self, state: np.ndarray) -> None:
        """Never asked for."""
        raise NotImplementedError("there is no state")

    def busy_seconds(self) -> float:
        """Not measured."""
        return 0.0

    def close(self) -> None:
        """Nothing to free."""

    def check(self, buffer: RolloutBuffer) -> int:
        """Fail unless a buffer holds one rollout, of all agents and every field; its first step."""
        first = int(np.array(buffer.observations)[0, 0, 1])
        agents = np.arange(self.num_agents)
        for t in range(buffer.horizon + 1):
            made = self._made(agents, first + t)
            for name, expected in zip(("observations", "rewards", "terminals"), made, strict=True):
                found = np.array(getattr(buffer, name))[t]
                right = np.array_equal(found, expected.astype(np.float32))
                require(right, f"a torn slot: {name} of step {first + t} are of another one")
        for t in range(buffer.horizon):
            right = np.array_equal(np.array(buffer.actions)[t, :, 0], self._sent[first + t])
            require(right, f"a torn slot: actions of step {first + t} are of another one")
        self._sent = {k: actions for k, actions in self._sent.items() if k >= first}
        return first


class Faulty:
    """Environments that fail once, in the middle of a rollout.

    Args:
        environments: the real ones.
        rollouts: that go well before.
    """

    def __init__(self, environments: Any, rollouts: int) -> None:
        self._environments, self._left, self._waits = environments, rollouts, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._environments, name)

    def log(self) -> dict[str, float]:
        """At the end of every rollout."""
        self._left -= 1
        return self._environments.log()

    def collect(self, *arguments: Any, **more: Any) -> Any:
        """A rollout in one call: fails when it is done, which nobody can tell."""
        found = self._environments.collect(*arguments, **more)
        self._fail()
        return found

    def wait(self, group: int) -> None:
        """A step: fails in the middle of a rollout."""
        self._waits += self._left == 0
        if self._waits > 2 * self._environments.num_groups:
            self._fail()
        self._environments.wait(group)

    def _fail(self) -> None:
        if self._left == 0:
            self._left -= 1
            raise OSError("environments that were made to fail")
