"""Rollouts on a GPU in a few launches a step: the policy through MLX, then all environments.

For policies that one kernel can't hold, and large environments of several agents. A step is the
policy's compiled one, with the products of MLX and the arithmetic of training, and one kernel that
steps all environments (``ops/gpu/acting/environments.kernel.h``). The host submits steps and waits
for none: everything that passes from one to the next stays in the GPU's memory.
"""

from functools import partial
from typing import Any

import mlx.core as mx

from puffer_mlx.ops.gpu.launch import FEWEST, launch, nothing, numbers
from puffer_mlx.ops.gpu.text import ENVIRONMENTS
from puffer_mlx.policy.rollout_on_gpu import MOST_NUMBERS, DeviceEnv, DeviceRollout, EnvOutputs
from puffer_mlx.rollout.act_functions import ActFunctions
from puffer_mlx.rollout.acting_in_mlx import joined, step_by_seats
from puffer_mlx.rollout.buffer import State
from puffer_mlx.rollout.seats import Seats
from puffer_mlx.spec import EnvSpec

THREADS = 64  # of a block
WARPS = 512  # of 32 threads, as many as a large GPU runs at once; each thread of few steps alone


class RolloutInSteps:
    """A policy's and an environment's rollouts; has the methods of ``RolloutOnGPU``.

    Args:
        run: the policy's compiled functions.
        spec: what an agent sees and does.
        game: the environment.
        precision: what the policy's weights are in, as they are in training.
        seats: of self-play, who acts for which agents; then weights are a list of each policy's.
    """

    form = "in a few launches a step"

    def __init__(
        self,
        run: ActFunctions,
        spec: EnvSpec,
        game: DeviceEnv,
        precision: str = "",
        seats: Seats | None = None,
    ) -> None:
        self.game, self._spec = game, spec
        self.acting_precision = precision or "fp32"
        act = run.act if seats is None else step_by_seats(run.act_by_seats, seats.policy)
        self._step = mx.compile(partial(self._step_once, act))

    def precision(self, n: int) -> str:
        """What n agents act in."""
        return self.acting_precision

    def weights(self, weights: Any, n: int) -> Any:
        """What ``launch`` takes of the policy's weights, for n agents."""
        return weights

    def state(self, *groups: State) -> State:
        """What ``launch`` takes of the network's states of groups of agents."""
        return joined([*groups], range(len(groups)))

    def state_after(self, states: State) -> State:
        """The network's state of what ``launch`` returned."""
        return states

    def nbytes(self, horizon: int, agents: int) -> int:
        """Bytes of a rollout at least: each step's rows, and those of all steps; structs twice."""
        spec, numbers_of_row = self._spec, 2 * self._spec.action.heads + 6
        row = spec.observation_size * spec.observation_dtype.itemsize + spec.mask_size
        structs = agents // self.game.agents * self.game.words
        return 2 * (horizon + 1) * agents * row + 4 * (
            horizon * agents * numbers_of_row + 2 * structs
        )

    def fits(self, horizon: int, agents: int) -> bool:
        """Whether the kernel can count a step's numbers, and Metal can write them."""
        environments = agents // self.game.agents
        row = max(self._spec.observation_size, self._spec.mask_size)
        most = max(agents * row, environments * self.game.words)
        return environments >= FEWEST and most < MOST_NUMBERS

    def launch(
        self,
        horizon: int,
        weights: Any,
        states: State,
        noise: mx.array,
        structs: mx.array,
        arrived: EnvOutputs,
    ) -> DeviceRollout:
        """T steps of N agents: see ``RolloutOnGPU.launch``; structs are (E, words)."""
        log, end = self.game.log, self.game.log + self.game.logs
        emptied = [structs[:, :log], mx.zeros_like(structs[:, log:end]), structs[:, end:]]
        games = mx.contiguous(mx.concatenate(emptied, axis=1).T)
        seen, chosen, last = [], [], arrived
        rewards, terminals, masks = [arrived.rewards], [arrived.terminals], [arrived.masks]
        for t in range(horizon):
            drawn = mx.take(noise, t, 0)  # an index would copy it
            seen.append(last.observations)
            choice, states, games, moved = self._step(weights, states, drawn, games, last)
            mx.async_eval(choice, states, games, moved)  # the GPU begins while the host goes on
            last = EnvOutputs(*moved, *([None] if arrived.masks is None else []))
            chosen.append(choice)
            rewards.append(last.rewards)
            terminals.append(last.terminals)
            masks.append(last.masks)
        choices = mx.stack(chosen)  # (T, heads + 2, N)
        return DeviceRollout(
            observations=mx.stack(seen),
            last_observations=last.observations,
            rewards=mx.stack(rewards),
            terminals=mx.stack(terminals),
            masks=None if arrived.masks is None else mx.stack(masks),  # type: ignore
            actions=mx.contiguous(choices[:, :-2].swapaxes(1, 2)),
            logprobs=mx.contiguous(choices[:, -2]),
            values=mx.contiguous(choices[:, -1]),
            structs=mx.contiguous(games.T),
            states=states,
        )

    def _step_once(
        self, act: Any, weights: Any, states: State, noise: mx.array, games: mx.array, last: Any
    ) -> Any:
        """What is chosen (heads + 2, N), the states, the environments, and arrays that arrive."""
        observations, _, terminals, mask = last
        chosen, states = act(weights, observations, states, noise, mask, terminals)
        games, *moved = self._move(chosen[:-2].T, games, observations, mask)
        return chosen, states, games, moved

    def _move(
        self, actions: mx.array, games: mx.array, observations: mx.array, mask: mx.array | None
    ) -> list[mx.array]:
        """Step all environments: actions (N, heads), structs (words, E)."""
        spec = self._spec
        words, E = games.shape
        N, D, legal = len(actions), spec.observation_size, max(1, spec.mask_size)
        apart = 1
        while 2 * apart <= 32 and 2 * apart * E <= 32 * WARPS:
            apart *= 2
        inputs = {
            "observations_before": observations,
            "masks_before": nothing(mx.uint8) if mask is None else mask,
            "actions": actions,
            "games": games,
            "count": numbers(*[E] * FEWEST),
        }
        outputs = {
            "observations": (N, D),
            "rewards": (N,),
            "terminals": (N,),
            "masks": (FEWEST,) if mask is None else (N, legal),
            "games_after": games.shape,
        }
        *rows, masks, games = launch(
            *(ENVIRONMENTS, self.game.rules, inputs, outputs),
            threads=-(-E * apart // THREADS) * THREADS,
            block=THREADS,
            APART=apart,
            SEATS=self.game.agents,
            SEEN=D,
            HEADS=spec.action.heads,
            LEGAL=legal,
            WORDS=words,
            LARGE=int(self.game.large),
            THREADS=THREADS,
        )
        return [games, *rows, *([] if mask is None else [masks])]
