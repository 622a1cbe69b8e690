"""Act on a CPU in C: one call per rollout, with the agents divided among threads.

The C function reads rows of the rollout, and writes actions and states, for a range of agents. It
computes the same as ``Policy.act``. An agent's result doesn't depend on the other agents in the
range, not even in the last bit. With MLX instead, a step costs about 25 graph nodes and 0.1 ms of
Python per group.

The environments' ``collect`` makes the call. C environments collect without Python
(``vec/native``); Python environments call the C function from a loop (``vec/rollout_loop.py``).
"""

from operator import itemgetter
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten, tree_map

from puffer_mlx.ops import cpu_extension
from puffer_mlx.ops.linear import ACTIVATION_CODES
from puffer_mlx.policy.decoders import Fused, Separate
from puffer_mlx.policy.distributions import UNBOUNDED
from puffer_mlx.policy.encoders.catalog import encoder_activation
from puffer_mlx.policy.networks.catalog import network_facts
from puffer_mlx.policy.policy import IN_C, Policy, acting_functions
from puffer_mlx.profiling.phases import PhaseTimer
from puffer_mlx.profiling.timeline import ACTING
from puffer_mlx.rollout.buffer import RolloutBuffer, State
from puffer_mlx.rollout.policy_assignment import PolicyAssignment
from puffer_mlx.trees import leaves, named_arrays
from puffer_mlx.vec.base import CollectsRollouts

Shape = tuple[int, ...]
Weights = Any  # tree of mx.array
MAX_SPANS = 4096  # time spans of threads that a traced rollout records


class ActingInC:
    """Collects rollouts in C: a ``RolloutBackend`` for CPUs and float32 weights.

    The policy acts in the threads that step the environments.

    Args:
        actor: Actor of the policy. ``CActors`` in self-play, where weights are a list.
        timer: Measures the phases of ``ActingInMLX``. The duration of the call is divided between
            acting and stepping in proportion to their thread-seconds.
    """

    in_c = True

    def __init__(self, actor: "CActor | CActors", timer: PhaseTimer) -> None:
        self.actor = actor
        self.timer = timer

    def collect(
        self,
        buffer: RolloutBuffer,
        environments: CollectsRollouts,
        weights: Any,
        states: list[State],
        noise: mx.array,
    ) -> list[State]:
        """Collect a rollout in C: fill a buffer with T steps. See ``RolloutBackend.collect``."""
        actor = self.actor
        timer = self.timer
        timeline = timer.timeline
        all_states = tree_map(lambda *groups: np.concatenate(groups), *states)
        actor.prepare(weights)
        address = actor.bind(buffer.views, np.asarray(noise), all_states)
        timer.lap("eval_copy_in")
        spans = MAX_SPANS if timeline else 0
        measured = environments.collect(
            buffer.horizon, address, buffer.views.actions, buffer.rows, spans
        )
        actor.unbind()
        timer.lap("eval_act")
        sampling = actor.seconds()["sample"]
        acting = {"eval_act": measured.acting - sampling, "eval_sample": sampling}
        timer.split("eval_act", {**acting, "eval_env": measured.stepping})
        for thread, first, begin, end in measured.spans:
            assert timeline  # spans are recorded for timelines only
            row = f"{ACTING} and stepping, thread {thread}"
            timeline.span(row, "rollout", begin, end, agent=first)
        after = []
        for agents in buffer.groups:
            group_states = tree_map(itemgetter(agents), all_states)
            after.append(tree_map(mx.array, group_states))
        mx.eval(after)
        timer.lap("eval_copy_out")
        return after


# ---- a policy's step in C ------------------------------------------------------------------------


def make_actor(
    policy: Policy, assignment: PolicyAssignment | None = None
) -> "CActor | CActors | None":
    """Return an object that chooses a policy's actions in C, or None if unsupported.

    Unsupported are policies with a component that has no C implementation (image encoders, custom
    classes), and installations without the CPU extension. In self-play (``assignment``) the object
    contains an actor for each policy.
    """
    supported = (
        encoder_activation(policy.encoder) is not None
        and network_facts(policy.network).add_c_layers is not None
        and type(policy.decoder) in (Fused, Separate)
    )
    extension = cpu_extension.load_extension() if supported else None
    if extension is None or not IN_C.unchanged(*acting_functions(policy)):
        return None
    if assignment is None:
        return CActor(policy, extension)
    rows = [assignment.rows(p) for p in range(1 + assignment.opponents)]
    return CActors([CActor(policy, extension) for _ in rows], rows, extension)


class CActor:
    """One policy's acting step in C. Call ``prepare`` with weights, then ``bind`` with memory.

    Args:
        policy: A policy that ``make_actor`` supports.
        extension: The CPU extension, ``cpu_extension.load_extension()``.
    """

    def __init__(self, policy: Policy, extension: Any) -> None:
        action = policy.decoder.action
        self._policy = policy
        self._inputs: int = policy.encoder.inputs  # type: ignore
        self._hidden = policy.network.hidden
        self._add_network: Any = network_facts(policy.network).add_c_layers
        self._activation = ACTIVATION_CODES[encoder_activation(policy.encoder) or ""]
        self._state_names = [name for name, _ in named_arrays(policy.initial_state(1))]
        shape = self._inputs, self._hidden, list(action.sizes), action.continuous
        self.native = extension.Actor(*shape, policy.decoder.limits.action)
        self._ready = False
        self._prefix = ""  # start of the layers' names in error messages
        self._bound: list[np.ndarray | None] = []  # arrays that the C object points to

    def prepare(self, weights: Weights) -> None:
        """Copy a policy's weights into the C actor. No rollout may be in progress.

        Args:
            weights: Weights of the policy, float32, in memory that the host can read.

        Raises:
            ValueError: If an array has another shape or dtype.
        """
        self._ready = False
        native = self.native
        policy = self._policy
        native.clear()
        action = policy.decoder.action
        decoder = weights["decoder"]
        heads = _heads(policy, decoder)
        self._add_tower(weights, heads)
        if policy.separate_value:  # the critic's output replaces the last output of the heads
            native.critic()
            value = {name: array[-1:] for name, array in heads.items()}
            self._add_tower(weights["critic"], value, "critic.")
        if action.continuous:
            logstd = _floats(decoder["logstd"], (1, action.heads), "decoder.logstd")
            if (limits := policy.decoder.limits) != UNBOUNDED:  # as in MLX
                logstd = np.clip(np.nan_to_num(logstd), limits.lowest, limits.highest)
            native.logstd(_address(logstd))
        self._ready = True

    def _add_tower(self, weights: Weights, heads: dict[str, np.ndarray], prefix: str = "") -> None:
        """Add the actor's or critic's encoder, network and output heads to the C actor.

        Args:
            weights: Weights of the policy, or of its critic.
            heads: The decoder's ``weight`` and optional ``bias``: the result of ``_heads``.
            prefix: Start of the layers' names in error messages.
        """
        D, H = self._inputs, self._hidden
        self._prefix = prefix
        shapes = {"weight": (H, D), "bias": (H,)}
        self.add("dense", "encoder", weights["encoder"], shapes, H, D, self._activation)
        self._prefix = f"{prefix}network."
        self._add_network(self, self._policy.network, weights["network"])
        self._prefix = prefix
        outputs = len(heads["weight"])
        shapes = {"weight": (outputs, H), "bias": (outputs,)}
        self.add("dense", "decoder", heads, shapes, outputs, H, 0)

    def add(
        self, kind: str, name: str, weights: Weights, shapes: dict[str, Shape], *options: float
    ) -> None:
        """Add one layer with its weights to the C actor, after its other layers.

        ``NetworkFacts.add_c_layers`` calls this for a network's layers.

        Args:
            kind: Kind of layer: the C object's method that adds it.
            name: Name of the layer in error messages.
            weights: Weights of the layer, by name. ``bias`` may be missing.
            shapes: Shapes of the weights that the method takes, by name, in its order.
            options: Further arguments of the method.

        Raises:
            ValueError: If a weight has another shape or dtype.
        """
        arrays: list[np.ndarray | None] = []
        for key, shape in shapes.items():
            if key == "bias" and key not in weights:
                arrays.append(None)
            else:
                arrays.append(_floats(weights[key], shape, f"{self._prefix}{name}.{key}"))
        getattr(self.native, kind)(*map(_address, arrays), *options)

    def bind(
        self, views: Any, noise: np.ndarray, states: Any, rows: np.ndarray | None = None
    ) -> tuple[int, int]:
        """Give the C actor a rollout's memory, and return the address of its function that acts.

        The arrays stay alive until the next ``bind`` or ``unbind``.

        Args:
            views: ``Views``, C-contiguous, with T or more rows of N agents. Observations
                (float32 or uint8), terminals and masks are read, the others written.
            noise: (T, N, heads) float32 from ``distribution.noise``.
            states: Recurrent states, a tree of (n, ...) float32 arrays, changed in place.
            rows: (n,) int32, agents that the policy plays, ascending; None for all N.

        Returns:
            Addresses of ``void act(void* context, int t, int first, int count)`` and of its
            context. The function acts at step t for agents [first, first + count) of n. Several
            threads may call it at once for different agents. Steps of an agent must be in order.

        Raises:
            ValueError: If an array has another shape or dtype, isn't C-contiguous or is read-only.
            RuntimeError: If ``prepare`` wasn't called before.
        """
        if not self._ready:
            raise RuntimeError("call prepare(weights) before bind")
        action = self._policy.decoder.action
        T, N = views.actions.shape[:2]
        as_bytes = views.observations.dtype == np.uint8
        inputs = np.uint8 if as_bytes else np.float32
        _check(views.observations, (T, N, self._inputs), "observations", inputs)
        _check(views.terminals, (T, N), "terminals")
        if views.masks is not None:
            if action.continuous:
                raise ValueError("masks: expected None, as the actions are continuous")
            _check(views.masks, (T, N, action.logits), "masks", np.uint8)
        _check(noise, (T, N, action.heads), "noise")
        _check(views.actions, (T, N, action.heads), "actions", written=True)
        _check(views.logprobs, (T, N), "logprobs", written=True)
        _check(views.values, (T, N), "values", written=True)
        arrays: dict[str, np.ndarray] = dict(tree_flatten(states))  # type: ignore
        if sorted(arrays) != sorted(self._state_names):
            raise ValueError(f"states: expected {self._state_names}, found {[*arrays]}")
        state_shape = N if rows is None else len(rows), self._hidden
        state = []  # in the order of the layers
        for name in self._state_names:
            _check(arrays[name], state_shape, f"states.{name}", written=True)
            state.append(arrays[name])
        terminals = views.terminals if self._policy.reset_on_terminal else None
        written = [views.actions, views.logprobs, views.values]
        self._bound = [rows, views.observations, terminals, views.masks, noise, *written, *state]
        self.native.bind(
            N,
            _address(rows),
            _address(views.observations),
            as_bytes,
            *map(_address, [terminals, views.masks, noise, *written]),
            [_address(array) for array in state],
        )
        return self.native.function(), self.native.context()

    def unbind(self) -> None:
        """End a rollout: release the memory that ``bind`` gave to the C actor."""
        self._bound = []

    def seconds(self) -> dict[str, float]:
        """Return the thread-seconds that a policy's steps in C have taken since ``bind``.

        Keys are ``act`` (entire steps) and ``sample`` (the part that chooses actions).
        """
        return {"act": self.native.acting(), "sample": self.native.sampling()}


class CActors:
    """Acting steps in C of several policies, each for different agents, in one call per rollout.

    The policies share the rollout's memory. Only recurrent states are copied, once per rollout, so
    that the states of a policy's agents are contiguous. ``unbind`` copies them back.

    Args:
        actors: CActor of each policy.
        rows: Agents of each policy, (n,) int32 ascending. Each of the N agents is in one item.
        extension: The CPU extension, ``cpu_extension.load_extension()``.
    """

    def __init__(self, actors: list[CActor], rows: list[np.ndarray], extension: Any) -> None:
        self._actors = actors
        self._rows = rows
        self._extension = extension
        self._prepared: list[Weights] = [None] * len(rows)
        self._native: Any = None  # while bound: C object that calls all actors
        self._states: Any = None  # while bound: states of all agents, passed to ``bind``
        self._policy_states: list[Any] = []  # while bound: copy of each policy's states

    def prepare(self, weights: Any) -> None:
        """Copy the weights of all policies into their C actors: see ``CActor.prepare``.

        Args:
            weights: One tree per policy. Trees that are the same object as in the previous call are
                skipped.
        """
        for p, (actor, policy_weights) in enumerate(zip(self._actors, weights, strict=True)):
            if policy_weights is not self._prepared[p]:
                self._prepared[p] = None
                actor.prepare(policy_weights)
                self._prepared[p] = policy_weights

    def bind(self, views: Any, noise: np.ndarray, states: Any) -> tuple[int, int]:
        """Give a rollout's memory to the C actors of all policies, as ``CActor.bind`` does.

        ``states`` (of N agents) changes only in ``unbind``.
        """
        self._native = self._extension.Actors()
        self._states = states
        self._policy_states = []
        for actor, rows in zip(self._actors, self._rows, strict=True):
            policy_states = tree_map(lambda array, rows=rows: array[rows], states)
            actor.bind(views, noise, policy_states, rows)
            self._native.add(actor.native, views.actions.shape[1], rows.ctypes.data, len(rows))
            self._policy_states.append(policy_states)
        return self._native.function(), self._native.context()

    def unbind(self) -> None:
        """End a rollout of several C actors: copy recurrent states back, and release memory.

        The states go to the arrays that were passed to ``bind``.
        """
        targets: Any = leaves(self._states)
        for rows, policy_states in zip(self._rows, self._policy_states, strict=True):
            for target, array in zip(targets, leaves(policy_states), strict=True):
                target[rows] = array
        self._native = None
        self._states = None
        self._policy_states = []
        for actor in self._actors:
            actor.unbind()

    def seconds(self) -> dict[str, float]:
        """Return the thread-seconds of all policies' steps in C: the sums of ``CActor.seconds``."""
        by_policy = [actor.seconds() for actor in self._actors]
        return {name: sum(seconds[name] for seconds in by_policy) for name in by_policy[0]}


# ---- weights and memory ------------------------------------------------------------------------


def _heads(policy: Policy, weights: Weights) -> dict[str, np.ndarray]:
    """Return the decoder's weights as those of one linear layer, with the value in the last row."""
    A = policy.decoder.action.logits
    H = policy.network.hidden
    if type(policy.decoder) is Fused:
        return {"weight": _floats(weights["weight"], (A + 1, H), "decoder.weight")}
    heads = {}
    for name, columns in (("weight", (H,)), ("bias", ())):
        actions = _floats(weights["actions"][name], (A, *columns), f"decoder.actions.{name}")
        value = _floats(weights["value"][name], (1, *columns), f"decoder.value.{name}")
        heads[name] = np.concatenate([actions, value])
    return heads


def _floats(array: mx.array | np.ndarray, shape: Shape, name: str) -> np.ndarray:
    """Return a policy's weight as a C-contiguous float32 array. ValueError if its shape differs."""
    dtype = str(array.dtype).removeprefix("mlx.core.")
    if dtype != "float32" or array.shape != shape:
        raise ValueError(f"weights: {name}: expected float32 {shape}, found {dtype} {array.shape}")
    return np.ascontiguousarray(array)


def _check(
    array: np.ndarray,
    shape: Shape,
    name: str,
    dtype: type = np.float32,
    written: bool = False,
) -> None:
    """Raise ValueError if C code can't use an array.

    Args:
        array: Array to check. It must be C-contiguous.
        shape: Expected shape. The array may have more rows.
        name: Name of the array in the error message.
        dtype: Expected type of the elements.
        written: True if the array must be writable.
    """
    if array.shape[:1] >= shape[:1] and array.shape[1:] == shape[1:] and array.dtype == dtype:
        flags = array.flags
        if flags.c_contiguous and (flags.writeable or not written):
            return
    kind = f"{array.dtype} {array.shape}"
    kind += "" if array.flags.c_contiguous else ", not C-contiguous"
    kind += "" if array.flags.writeable else ", read-only"
    wanted = "writable and C-contiguous" if written else "C-contiguous"
    raise ValueError(f"{name}: expected {np.dtype(dtype)} {shape}, {wanted}; found {kind}")


def _address(array: np.ndarray | None) -> int:
    """Return the memory address of a NumPy array, or 0 for None."""
    return 0 if array is None else array.ctypes.data
