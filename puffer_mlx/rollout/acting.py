"""The contract of filling a rollout buffer, whoever acts.

There are three ways: by the policy's step in C, a whole rollout in one call (``acting_in_c.py``);
by one kernel of a GPU for each half of the agents and step (``acting_in_kernel.py``); and through
MLX, step by step (``acting_in_mlx.py``). Which one a run takes is decided once, by
``training/acting.py``.
"""

from typing import Any, Protocol

import mlx.core as mx

from puffer_mlx.rollout.buffer import RolloutBuffer

State = Any  # a network's recurrent state, a tree of arrays


class Acting(Protocol):
    """A way of acting.

    Attributes:
        in_c: whether a rollout is one call of C, the policy's steps included.
    """

    in_c: bool

    def collect(
        self,
        buffer: RolloutBuffer,
        environments: Any,
        weights: Any,
        states: list[State],
        noise: mx.array,
    ) -> list[State]:
        """Fill a buffer with T steps of all agents.

        The result depends on the arguments only: not on threads, streams or what ran faster.

        Args:
            buffer: where to write; row 0 must be there (``RolloutBuffer.begin``).
            environments: a ``VecEnv``, none of them stepping.
            weights: the acting policy's, evaluated, where it acts.
            states: recurrent state of each group, evaluated.
            noise: (T, N, heads) float32, evaluated, from ``distribution.noise``.

        Returns:
            The groups' recurrent states after the last step, evaluated.
        """
        ...
