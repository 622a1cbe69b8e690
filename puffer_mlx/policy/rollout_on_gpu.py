"""Whole rollouts on a GPU as one kernel: the steps of a policy, and of the environments between.

A block of threads takes some agents through all T steps: their observations stay in the memory
that the block shares, and their environments in its threads'. So a rollout is one launch and one
wait instead of one for each half of the agents and step. ``ops/gpu/acting/rollout.kernel.h`` is the
text; the network's part of it is that of ``acting_on_gpu.py``, whose arithmetic this has. Where
environments have several agents, several policies may act, as there.

On CUDA, where a block has room for it, some policies step by matrix units, many agents at a
time, with the roundings of training (``acting/rows.kernel.h``, ``ppo/minibatch``).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import mlx.core as mx

from puffer_mlx.ops.gpu.launch import (
    FEWEST,
    SHARED_ON_CUDA,
    backend,
    exact_products,
    launch,
    nothing,
    numbers,
    pool_block,
    tiles_side_by_side,
)
from puffer_mlx.ops.gpu.text import ROWS, Rules
from puffer_mlx.ops.pack import launch_cast, pack
from puffer_mlx.policy.acting_on_gpu import (
    Layout,
    PolicyBlocks,
    StepOnGPU,
    choose_layout,
    step_on_gpu,
)
from puffer_mlx.policy.decoders import Fused
from puffer_mlx.policy.encoders.default import Linear
from puffer_mlx.policy.networks.catalog import forms_of
from puffer_mlx.policy.policy import Policy
from puffer_mlx.spec import EnvSpec

LAYERS = 4  # at most, of what steps by matrix units: the kernel has so many arrays of weights
ROWS_OF_A_BLOCK = (64, 32, 16)  # agents to choose from, by matrix units
TILE = 64  # columns of the layers' weights that come from memory at a time, if they must
ENOUGH_BLOCKS = 128  # for the cores of an H200
BLOCKS = (8, 4)  # agents of a block to choose from: for all networks within a tenth of the best
REGISTERS = 255  # of a thread, 4 bytes each; a larger struct lies in memory in any case
# Threads that a core of CUDA has at a time, by few enough registers each. With more they spill,
# with fewer they wait; a large struct is in memory in any case, and its threads mostly wait.
RESIDENT, RESIDENT_LARGE = 512, 1024
MOST_NUMBERS = 2**31  # of an array that the kernel writes: it counts in 32 bits


@dataclass(frozen=True)
class DeviceEnv:
    """Environment that a GPU steps: see ``vec/native/gpu_rules.py``.

    Attributes:
        rules: C text of the environment.
        words: Size of its struct, in words of 4 bytes.
        log: Offset of the log in the struct, in words.
        logs: Size of the log, in words.
        agents: Agents per environment.
    """

    rules: Rules
    words: int
    log: int
    logs: int
    agents: int = 1

    @property
    def large(self) -> bool:
        """True if the struct exceeds the registers of a thread."""
        return self.words > REGISTERS


class EnvOutputs(NamedTuple):
    """Environment outputs of N agents before one action."""

    observations: mx.array  # (N, D)
    rewards: mx.array  # (N,)
    terminals: mx.array  # (N,)
    masks: mx.array | None  # (N, A) uint8


class DeviceRollout(NamedTuple):
    """T steps of a rollout, in the layout of ``rollout/buffer.py``."""

    observations: mx.array  # (T, N, D): without the last ones
    last_observations: mx.array  # (N, D)
    rewards: mx.array  # (T + 1, N)
    terminals: mx.array  # (T + 1, N)
    masks: mx.array | None  # (T + 1, N, A)
    actions: mx.array  # (T, N, heads)
    logprobs: mx.array  # (T, N)
    values: mx.array  # (T, N)
    structs: mx.array  # (E, words) int32
    states: Any  # the network's, as ``state`` joined them


def joined(launches: Sequence[DeviceRollout]) -> DeviceRollout:
    """Join consecutive rollouts; each starts with the last outputs of the previous one."""
    if len(launches) == 1:
        return launches[0]
    *before, last = launches
    shared = "rewards", "terminals", "masks"  # of T + 1 times: the last is the next one's first
    fields: dict[str, mx.array | None] = last._asdict()
    for name in (*shared, "observations", "actions", "logprobs", "values"):
        if (end := fields[name]) is not None:
            rows = [getattr(each, name) for each in before]
            fields[name] = mx.concatenate([*(r[:-1] if name in shared else r for r in rows), end])
    return DeviceRollout(**fields)  # type: ignore


def rollout_on_gpu(
    policy: Policy,
    spec: EnvSpec,
    game: DeviceEnv,
    precision: str = "",
    environments: int = 1,
    crews: Callable[[int], PolicyBlocks] | None = None,
) -> "RolloutOnGPU | None":
    """Rollouts of a policy and an environment as one kernel.

    None where the policy has a part that no kernel knows (``step_on_gpu``), an environment of
    several agents is large, or not even few fit into a block's shared memory.

    Args:
        policy: what acts; in self-play what each of those is that do.
        spec: what an agent sees and does.
        game: the environment.
        precision: what the policy is trained in; then the kernel may have that arithmetic, else it
            is float32's.
        environments: E.
        crews: where they have several agents: who acts for which, in blocks of so many of them.
    """
    step = step_on_gpu(policy)
    if step is None or (game.agents > 1 and (game.large or crews is None)):
        return None
    layout = choose_rollout_layout(policy, spec, environments, game.agents)
    if layout is None:
        return None
    return RolloutOnGPU(policy, step, spec, game, precision, crews and crews(layout.agents))


def has_linear_encoder_and_decoder(policy: Policy) -> bool:
    """Whether encoder and decoder are a product each, around a few layers for matrix units."""
    return (
        type(policy.encoder) is Linear
        and policy.network.hidden % 32 == 0
        and policy.network.layers <= LAYERS  # type: ignore
        and type(policy.decoder) is Fused
        and not policy.separate_value
    )


def by_layer(name: str, arrays: Sequence[mx.array]) -> dict[str, mx.array]:
    """A kernel's arrays of all LAYERS layers, ``name0`` and so on; zeros of those that aren't."""
    zeros = [nothing(mx.float32)] * (LAYERS - len(arrays))
    return {f"{name}{n}": array for n, array in enumerate([*arrays, *zeros])}


def choose_rows(policy: Policy, spec: EnvSpec, n: int, low: bool) -> dict[str, int] | None:
    """The numbers of the template of acting/rows.kernel.h, for n agents; None where nothing fits.

    As many agents to a block as leave no core idle, with all weights beside them, or the layers';
    in bf16 all, or the decoder's alone: the layers' come from memory then, in each step.
    """
    if forms_of(policy.network).matrix_units is None or not has_linear_encoder_and_decoder(policy):
        return None
    D, H, L = spec.observation_size, policy.network.hidden, policy.network.layers  # type: ignore
    A, heads, legal = spec.action.logits, spec.action.heads, max(1, spec.mask_size)
    wide, out = -(-D // 32) * 32, -(-(A + 1) // 16) * 16
    threads, room = pool_block()
    for rows in ROWS_OF_A_BLOCK:
        if rows > ROWS_OF_A_BLOCK[-1] and -(-n // rows) < ENOUGH_BLOCKS:
            continue
        seen = -(-rows * D * spec.observation_dtype.itemsize // 4)
        floats = -(-(seen + rows * (out + 1 + L * H + 1 + heads + 2)) // 32) * 32
        for kept in (2, 1, 0):
            lows = rows * 5 * H + out * H
            if kept:
                lows += rows * wide + L * 3 * H * H + (H * wide if kept > 1 else 0)
                possible = kept > 1 or not low
            else:  # both places of tiles have the encoder's weight between them
                lows += 2 * H * TILE
                possible = low and H % 128 == 0 and rows <= 32 and wide <= 2 * TILE
            pool = floats + (-(-lows // 2) if low else lows)
            if possible and 4 * pool + rows * legal <= room:
                sizes = {"M": rows, "THREADS": threads, "KEPT": kept, "POOL": pool}
                columns = tiles_side_by_side(H, rows, threads)
                return {**sizes, "HIDDEN_C": columns, "H": H, "L": L, "A": A}
    return None


def choose_rollout_layout(policy: Policy, spec: EnvSpec, n: int, each: int = 1) -> Layout | None:
    """``choose_layout``, for a block that has a row of each agent's arrays, too.

    Of n environments, ``each`` of so many agents: a block acts for one agent of each at a time.
    """
    step = forms_of(policy.network).gpu_step
    assert step is not None
    row = spec.observation_size * spec.observation_dtype.itemsize
    row += 4 * (spec.action.heads + 2) + max(1, spec.mask_size)
    # each of five arrays at its own alignment
    further = lambda layout: layout.agents * each * row + 64  # noqa: E731
    chosen = choose_layout(policy, step, n, BLOCKS, further)
    if chosen is None and backend() == "cuda":
        chosen = choose_layout(policy, step, n, BLOCKS, further, SHARED_ON_CUDA)
    return chosen


class RolloutOnGPU:
    """A policy's and an environment's rollouts.

    Args:
        policy: one that ``rollout_on_gpu`` takes.
        step: its step, which packs weights and states.
        spec: what an agent sees and does.
        game: the environment.
        precision: see ``rollout_on_gpu``.
        crews: of environments of several agents. Of self-play, weights are a list of each policy's.
    """

    form = "in one launch"
    acting_precision = "fp32"  # of the weights that it is given

    def __init__(
        self,
        policy: Policy,
        step: StepOnGPU,
        spec: EnvSpec,
        game: DeviceEnv,
        precision: str = "",
        crews: PolicyBlocks | None = None,
    ) -> None:
        self.step, self.game = step, game
        self._policy, self._spec, self._precision, self._crews = policy, spec, precision, crews
        self._rows: dict[int, dict[str, int] | None] = {}  # by n: it is asked in every epoch

    def rows(self, n: int) -> dict[str, int] | None:
        """How matrix units step n agents; None where they don't."""
        if self._precision not in ("fp32", "bf16") or self._crews:
            return None
        if n not in self._rows:
            low = self._precision == "bf16"
            self._rows[n] = choose_rows(self._policy, self._spec, n, low)
        return self._rows[n]

    def precision(self, n: int) -> str:
        """What n agents act in."""
        return "fp32" if self.rows(n) is None else self._precision

    def weights(self, weights: Any, n: int) -> Any:
        """What ``launch`` takes of the policy's weights, for n agents."""
        if self.rows(n) is not None:
            return weights
        if not isinstance(weights, list):
            return self.step.weights(weights)
        each = [self.step.weights(of_one) for of_one in weights]
        return pack(each)[0].reshape(len(each), -1)

    def state(self, *groups: Any) -> mx.array:
        """What ``launch`` takes of the network's states of groups of agents."""
        return self.step.in_blocks(self.step.state(*groups), self._crews)

    def state_after(self, states: mx.array) -> Any:
        """The network's state of what ``launch`` returned."""
        return self.step.state_after(self.step.by_rows(states, self._crews))

    def fits(self, horizon: int, agents: int) -> bool:
        """Whether the kernel can count the numbers of such a rollout, and Metal can write them."""
        row = max(self._spec.observation_size, self._spec.mask_size)
        return agents >= FEWEST and (horizon + 1) * agents * row < MOST_NUMBERS

    def launch(
        self,
        horizon: int,
        weights: Any,
        states: mx.array,
        noise: mx.array,
        structs: mx.array,
        arrived: EnvOutputs,
    ) -> DeviceRollout:
        """T steps of N agents.

        Args:
            horizon: T.
            weights: as the method of that name gives them.
            states: as the method ``state`` gives them.
            noise: (T, N, heads) float32, from ``distribution.noise``.
            structs: (E, words) int32, the environments.
            arrived: before the first step.
        """
        spec, game, E, N, T = self._spec, self.game, len(structs), len(arrived.rewards), horizon
        masked, legal = arrived.masks is not None, max(1, spec.mask_size)
        heads, D = spec.action.heads, spec.observation_size
        inputs = {
            "first_observations": arrived.observations,
            "first_rewards": arrived.rewards,
            "first_terminals": arrived.terminals,
            "first_masks": nothing(mx.uint8) if arrived.masks is None else arrived.masks,
            "games": structs,
            "states_before": states,
            "all_noise": noise,
            "horizon": numbers(T, N, *[0] * (FEWEST - 2)),
        }
        outputs = {
            "all_observations": (T, N, D),
            "last_observations": (N, D),
            "all_rewards": (T + 1, N),
            "all_terminals": (T + 1, N),
            "all_masks": (T + 1, N, legal) if masked else (FEWEST,),
            "all_actions": (T, N, heads),
            "all_logprobs": (T, N),
            "all_values": (T, N),
            "games_after": structs.shape,
            "after": states.shape,
        }
        sizes = {"SEEN": D, "HEADS": heads, "LEGAL": legal}
        sizes |= {"WORDS": game.words, "LARGE": int(game.large)}
        sizes |= {"LOG": game.log, "LOGS": game.logs}
        gpu_step, rows = forms_of(self._policy.network).gpu_step, self.rows(N)
        assert gpu_step is not None
        if rows is None:
            layout = choose_rollout_layout(self._policy, spec, E, game.agents)
            assert layout is not None
            seats = self._crews.seats if self._crews else nothing(mx.int32)
            slots = len(seats) * layout.agents if self._crews else N
            size = weights.shape[-1]
            inputs |= {"weights": weights, "seats": seats}
            inputs["sizes"] = self.step.sizes(layout, slots, size, masked, copied=True)
            sizes |= {"SEATS": game.agents if self._crews else 0}
            sizes |= {"RESIDENT": RESIDENT_LARGE if game.large else RESIDENT}
            places = layout.launch(slots // game.agents)
            made = launch(gpu_step.layers, game.rules, inputs, outputs, **places, **sizes)
        else:
            made = self._launch_rows(rows, N, weights, masked, inputs, outputs, sizes)
        observations, last, rewards, terminals, masks, *others = made
        return DeviceRollout(
            observations, last, rewards, terminals, masks if masked else None, *others
        )

    def _launch_rows(
        self,
        rows: dict[str, int],
        N: int,
        weights: Any,
        masked: bool,
        inputs: dict[str, mx.array],
        outputs: dict[str, tuple[int, ...]],
        sizes: dict[str, int],
    ) -> list[mx.array]:
        """The launch by matrix units, with further inputs, and numbers of its template."""
        logstd = self._policy.decoder.logstd(weights["decoder"])
        zeros, layout = nothing(mx.float32), choose_rollout_layout(self._policy, self._spec, N)
        assert layout is not None
        gpu_step = forms_of(self._policy.network).gpu_step
        assert gpu_step is not None
        layers = [layer["weight"] for layer in weights["network"]]
        low = mx.bfloat16 if self._precision == "bf16" else mx.float32
        inputs = {
            **inputs,
            "encoder": weights["encoder"]["weight"],
            "decoder": weights["decoder"]["weight"],
            "logstd": zeros if logstd is None else logstd,
            **by_layer("layer", layers),
            "layers": nothing(low) if rows["KEPT"] else launch_cast(layers, low, whole=True)[0],
            "sizes": self.step.sizes(layout, N, 0, masked, copied=True),
        }
        return launch(
            *(gpu_step.layers.with_name(ROWS), self.game.rules, inputs, outputs),
            threads=-(-N // rows["M"]) * rows["THREADS"],
            block=rows["THREADS"],
            shared=4 * rows["POOL"],
            Low=low,
            Observed=inputs["first_observations"].dtype,
            EXACT=exact_products(),
            **rows,
            **sizes,
        )
