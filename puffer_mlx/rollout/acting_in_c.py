"""Acting by the policy's step in C: a rollout is one call, in which every thread takes some agents.

Environments in C collect it without Python (``vec/native``); those in Python have a loop of their
own that calls the same step (``vec/rollout_loop.py``). Either is the environments' ``collect``.

Through MLX a step of a policy is some 25 nodes of a graph and 0.1 ms of Python for each group of
agents. An actor has no graph: a C function reads a rollout's rows, and writes choices and states,
for any range of agents. It computes what ``Policy.act`` does; an agent's results don't depend on
which others are acted for in the same call, to the last bit.
"""

from operator import itemgetter
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten, tree_map

from puffer_mlx.ops import cpu_extension
from puffer_mlx.ops.linear import CODES
from puffer_mlx.policy.decoders import Fused, Separate
from puffer_mlx.policy.distributions import UNBOUNDED
from puffer_mlx.policy.encoders.catalog import encoder_activation
from puffer_mlx.policy.networks.catalog import forms_of
from puffer_mlx.policy.policy import IN_C, Policy, acting_of
from puffer_mlx.profiling.phases import PhaseTimer
from puffer_mlx.profiling.timeline import ACTING
from puffer_mlx.rollout.buffer import RolloutBuffer, State
from puffer_mlx.rollout.seats import Seats
from puffer_mlx.trees import named
from puffer_mlx.vec.base import WholeRollouts

Shape = tuple[int, ...]
Weights = Any  # a tree of mx.array
Arrays = dict[str, np.ndarray]  # of a product: weight (M, K), perhaps bias (M,)
SPANS = 4096  # of threads, that a traced rollout notes at most


class ActingInC:
    """Acts and steps on the environments' threads; for weights in float32, on the CPU.

    Args:
        actor: the policy's step; or those of several, whose weights are a list then.
        timer: gets the phases of ``ActingInMLX``; acting and environments share the call's time as
            they shared the threads'.
    """

    in_c = True

    def __init__(self, actor: "Actor | Actors", timer: PhaseTimer) -> None:
        self.actor, self.timer = actor, timer

    def collect(
        self,
        buffer: RolloutBuffer,
        environments: WholeRollouts,
        weights: Any,
        states: list[State],
        noise: mx.array,
    ) -> list[State]:
        """See ``Sampler``."""
        actor, timer, trace = self.actor, self.timer, self.timer.trace
        whole = tree_map(lambda *groups: np.concatenate(groups), *states)
        actor.prepare(weights)
        address = actor.bind(buffer.views, np.asarray(noise), whole)
        timer.lap("eval_copy_in")
        spans = SPANS if trace else 0
        measured = environments.collect(
            buffer.horizon, address, buffer.views.actions, buffer.rows, spans
        )
        actor.unbind()
        timer.lap("eval_act")
        sampling = actor.seconds()["sample"]
        parts = {"eval_act": measured.acting - sampling, "eval_sample": sampling}
        timer.split("eval_act", {**parts, "eval_env": measured.stepping})
        for thread, first, begin, end in measured.spans:
            assert trace  # else there are none
            row = f"{ACTING} and stepping, thread {thread}"
            trace.span(row, "rollout", begin, end, agent=first)
        after = []
        for agents in buffer.groups:
            own = tree_map(itemgetter(agents), whole)
            after.append(tree_map(mx.array, own))
        mx.eval(after)
        timer.lap("eval_copy_out")
        return after


# ---- a policy's step in C ------------------------------------------------------------------------


def make_actor(policy: Policy, seats: Seats | None = None) -> "Actor | Actors | None":
    """The policy's actor; with ``seats`` of self-play, those of the learner and of each opponent.

    None where the policy has a part without a form in C (images, classes of the user's own), or
    where there is no extension.
    """
    known = (
        encoder_activation(policy.encoder) is not None
        and forms_of(policy.network).add_c_layers is not None
        and type(policy.decoder) in (Fused, Separate)
    )
    extension = cpu_extension.load() if known else None
    if extension is None or not IN_C.unchanged(*acting_of(policy)):
        return None
    if seats is None:
        return Actor(policy, extension)
    rows = [seats.rows(p) for p in range(1 + seats.opponents)]
    return Actors([Actor(policy, extension) for _ in rows], rows, extension)


class Actor:
    """Acts during a rollout: ``prepare`` takes weights, ``bind`` memory; then C calls.

    Args:
        policy: one that ``make_actor`` takes.
        extension: ``cpu_extension.load()``.
    """

    def __init__(self, policy: Policy, extension: Any) -> None:
        action = policy.decoder.action
        self._policy = policy
        self._inputs: int = policy.encoder.inputs  # type: ignore
        self._hidden = policy.network.hidden
        self._pack: Any = forms_of(policy.network).add_c_layers
        self._activation = CODES[encoder_activation(policy.encoder) or ""]
        self._state_names = [name for name, _ in named(policy.initial_state(1))]
        shape = self._inputs, self._hidden, list(action.sizes), action.continuous
        self.native = extension.Actor(*shape, policy.decoder.limits.action)
        self._ready = False
        self._held: list[np.ndarray | None] = []  # what the native actor has addresses of

    def prepare(self, weights: Weights) -> None:
        """Take a copy of the weights to act with. Nobody may be acting.

        Args:
            weights: as ``Policy.init`` makes them, float32, in memory that the host can read.

        Raises:
            ValueError: an array has another shape or dtype.
        """
        self._ready = False
        native, policy = self.native, self._policy
        native.clear()
        action, decoder = policy.decoder.action, weights["decoder"]
        heads = _heads(policy, decoder)
        self._features(weights)
        _add(native, heads)
        if policy.separate_value:  # what the critic gives replaces the last of the heads' outputs
            native.critic()
            self._features(weights["critic"], "critic.")
            _add(native, {part: array[-1:] for part, array in heads.items()})
        if action.continuous:
            logstd = _floats(decoder["logstd"], (1, action.heads), "decoder.logstd")
            if (limits := policy.decoder.limits) != UNBOUNDED:  # as `clamp`
                logstd = np.clip(np.nan_to_num(logstd), limits.lowest, limits.highest)
            native.logstd(_address(logstd))
        self._ready = True

    def _features(self, weights: Weights, prefix: str = "") -> None:
        """Add encoder and network.

        Args:
            weights: a tree with ``encoder`` and ``network``.
            prefix: precedes the weights' names in messages.
        """
        shape = self._hidden, self._inputs
        encoder = _affine(weights["encoder"], shape, f"{prefix}encoder")
        _add(self.native, encoder, self._activation)
        layers = Layers(self.native, f"{prefix}network")
        self._pack(layers, self._policy.network, weights["network"])

    def bind(
        self, views: Any, noise: np.ndarray, states: Any, rows: np.ndarray | None = None
    ) -> tuple[int, int]:
        """Say what memory to act on; it is kept alive until the next call.

        Args:
            views: ``Views``, C-contiguous, with T or more rows of N agents. Observations
                (float32 or uint8), terminals and masks are read, the others written.
            noise: (T, N, heads) float32, from ``distribution.noise``.
            states: the network's, a tree of (n, ...) float32 arrays; replaced in place.
            rows: (n,) int32, the agents that it acts for, ascending; all N if None.

        Returns:
            Addresses of ``void act(void* context, int t, int first, int count)``, which acts at
            step t for its agents [first, first + count) of n, and of its context. Several threads
            may call it at a time, each for other agents; it wants an agent's steps in order.

        Raises:
            ValueError: an array has another shape or dtype, isn't C-contiguous or can't be written.
            RuntimeError: there are no weights.
        """
        if not self._ready:
            raise RuntimeError("prepare(weights) comes before bind")
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
        state = self._states(states, N if rows is None else len(rows))
        if rows is not None:
            _check_rows(rows, N)

        ends = views.terminals if self._policy.reset_on_terminal else None
        read = [views.observations, ends, views.masks, noise]
        self._held = [rows, *read, views.actions, views.logprobs, views.values, *state]
        own, observed, *others = [_address(array) for array in self._held]
        rows_at, states_at = others[:6], others[6:]
        self.native.bind(N, own, observed, as_bytes, *rows_at, states_at)
        return self.native.function(), self.native.context()

    def unbind(self) -> None:
        """Forget the memory: nobody acts on it any more."""
        self._held = []

    def _states(self, states: Any, N: int) -> list[np.ndarray]:
        """Return the states' arrays in the order in which layers number them."""
        expected = self._state_names
        arrays: dict[str, np.ndarray] = dict(tree_flatten(states))  # type: ignore
        if sorted(arrays) != sorted(expected):
            raise ValueError(f"states: expected {expected}, found {list(arrays)}")
        for name, array in arrays.items():
            _check(array, (N, self._hidden), f"states.{name}", written=True, exact=True)
        return [arrays[name] for name in expected]

    def seconds(self) -> dict[str, float]:
        """Thread-seconds since ``bind``: the policy's (``act``), and choosing (``sample``)."""
        return {"act": self.native.acting(), "sample": self.native.sampling()}


class Actors:
    """Several policies act, each for agents of its own: all in the one call of a rollout.

    They act on the same memory. Only recurrent states are gathered, once a rollout, so that each
    policy has those of its agents side by side; and put back where they were.

    Args:
        actors: of each policy.
        rows: of each one the agents that it acts for, (n,) int32 ascending; together all N.
        extension: ``cpu_extension.load()``.
    """

    def __init__(self, actors: list[Actor], rows: list[np.ndarray], extension: Any) -> None:
        self._actors, self._rows, self._extension = actors, rows, extension
        self._prepared: list[Weights] = [None] * len(rows)
        self._bound: Any = None  # the native actors, the states of all, and each one's own

    def prepare(self, weights: Any) -> None:
        """Take copies of the weights to act with: see ``Actor.prepare``.

        Args:
            weights: a tree for each policy. One that is the same object as in the last call is
                known.
        """
        for p, (actor, own) in enumerate(zip(self._actors, weights, strict=True)):
            if own is not self._prepared[p]:
                self._prepared[p] = None
                actor.prepare(own)
                self._prepared[p] = own

    def bind(self, views: Any, noise: np.ndarray, states: Any) -> tuple[int, int]:
        """See ``Actor.bind``; the states, of all N agents, are replaced by ``unbind``."""
        native, own = self._extension.Actors(), []
        for actor, rows in zip(self._actors, self._rows, strict=True):
            own.append(tree_map(lambda array, rows=rows: array[rows], states))
            actor.bind(views, noise, own[-1], rows)
            native.add(actor.native, views.actions.shape[1], rows.ctypes.data, len(rows))
        self._bound = native, states, own
        return native.function(), native.context()

    def unbind(self) -> None:
        """Put the states back where ``bind`` took them from, and forget the memory."""
        _, states, own = self._bound
        for rows, each in zip(self._rows, own, strict=True):
            tree_map(lambda to, array, rows=rows: to.__setitem__(rows, array), states, each)
        self._bound = None
        for actor in self._actors:
            actor.unbind()

    def seconds(self) -> dict[str, float]:
        """The sum over all policies: see ``Actor.seconds``."""
        each = [actor.seconds() for actor in self._actors]
        return {name: sum(seconds[name] for seconds in each) for name in each[0]}


# ---- weights, in the order of the layers ---------------------------------------------------------


def _affine(own: Weights, shape: Shape, name: str) -> Arrays:
    """A product's weight (M, K), and its bias (M,) if the weights have one."""
    shapes = {"weight": shape, "bias": shape[:1]}
    return {
        part: _floats(own[part], expected, f"{name}.{part}")
        for part, expected in shapes.items()
        if part in own
    }


def _heads(policy: Policy, own: Weights) -> Arrays:
    """The decoder as one product, the value its last row; copies."""
    A, H = policy.decoder.action.logits, policy.network.hidden
    if type(policy.decoder) is Fused:
        parts = [_affine(own, (A + 1, H), "decoder")]
    else:
        rows = {"actions": A, "value": 1}
        parts = [_affine(own[name], (n, H), f"decoder.{name}") for name, n in rows.items()]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _add(native: Any, product: Arrays, activation: int = 0) -> None:
    """Add a product, and what follows it."""
    weight = product["weight"]
    bias = _address(product.get("bias"))
    native.dense(_address(weight), bias, *weight.shape, activation)


class Layers:
    """Where a network adds its layers, one after the other: ``networks.Forms.add_c_layers``'s step.

    Args:
        native: the extension's actor, which has a method for each kind of layer.
        prefix: what the names of the weights begin with, in messages.
    """

    def __init__(self, native: Any, prefix: str) -> None:
        self._native, self._prefix = native, prefix

    def add(
        self, kind: str, name: str, own: Weights, shapes: dict[str, Shape], *numbers: float
    ) -> None:
        """Add a layer.

        Args:
            kind: the method's name.
            name: the layer's, below the prefix, in messages.
            own: its weights.
            shapes: of those that the method takes, in its order.
            numbers: what it takes behind them.

        Raises:
            ValueError: a weight has another shape or dtype.
        """
        layer = f"{self._prefix}.{name}"
        arrays = [_floats(own[part], shape, f"{layer}.{part}") for part, shape in shapes.items()]
        getattr(self._native, kind)(*map(_address, arrays), *numbers)


# ---- memory --------------------------------------------------------------------------------------


def _floats(array: mx.array, shape: Shape, name: str) -> np.ndarray:
    """The numbers of a weight, C-contiguous."""
    if array.dtype != mx.float32 or array.shape != shape:
        dtype = str(array.dtype).removeprefix("mlx.core.")
        raise ValueError(f"weights: {name}: expected float32 {shape}, found {dtype} {array.shape}")
    return np.ascontiguousarray(array)


def _check(
    array: np.ndarray,
    shape: Shape,
    name: str,
    dtype: type = np.float32,
    written: bool = False,
    exact: bool = False,
) -> None:
    """Refuse memory of another shape or kind; unless ``exact``, it may have more rows."""
    rows = array.shape[:1] == shape[:1] if exact else array.shape[:1] >= shape[:1]
    if rows and array.shape[1:] == shape[1:] and array.dtype == dtype:
        flags = array.flags
        if flags.c_contiguous and (flags.writeable or not written):
            return
    kind = f"{array.dtype} {array.shape}"
    kind += "" if array.flags.c_contiguous else ", not C-contiguous"
    kind += "" if array.flags.writeable else ", read-only"
    wanted = "writable and C-contiguous" if written else "C-contiguous"
    raise ValueError(f"{name}: expected {np.dtype(dtype)} {shape}, {wanted}; found {kind}")


def _check_rows(rows: np.ndarray, N: int) -> None:
    """Refuse rows that an actor of N agents can't have."""
    _check(rows, rows.shape[:1], "rows", np.int32, exact=True)
    if len(rows) and (rows[0] < 0 or rows[-1] >= N or (rows[1:] <= rows[:-1]).any()):
        raise ValueError(f"rows: expected some of 0 to {N - 1}, ascending; found {rows}")


def _address(array: np.ndarray | None) -> int:
    """Where an array is; 0 if there is none."""
    return 0 if array is None else array.ctypes.data
