"""Networks: what is between encoder and decoder, and remembers. A folder each, with all its forms.

A folder's files, of which only the first must be there:

| file | what |
| --- | --- |
| ``__init__.py`` | ``NAME``; the class of that name, equations in MLX; and ``FORMS`` |
| ``cell.h`` | a step's equations and gradient, in C for CPUs and GPUs: see ``ops/words.h`` |
| ``scan.h`` | C++ for training: all steps, forward and backward; see ``ops/cpu/binding.h`` |
| ``step.h`` | a layer of the compiled step, likewise |
| ``layers.metal.h`` | the layers in a rollout's step, for Metal and CUDA: see ``ops/gpu/acting`` |
| ``kernels.metal.h`` | the kernels' text, for Metal and CUDA; ``__init__.py`` launches them |
| ``minibatch.metal.h`` | for a minibatch in one launch: see ``BlockLayer`` |

Weights and state are arguments; nothing here holds arrays. ``T`` times ``step`` equals ``scan``.
Features may be of another dtype than the weights; they are cast. Outputs have the weights' dtype,
states are float32.

``Forms`` are what a network is besides its equations, for the rest of puffer_mlx. Each is optional;
a network without one can't go where that is needed, and is told so there. Names of tensors are
those below ``network.``. Builders of graphs and of compiled steps are given as arguments, so a
network knows none of the rooms above it.
"""

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import mlx.core as mx

Shape = tuple[int, ...]
Weights = Any  # a tree of arrays, as the network's ``init`` makes them
State = Any  # a tree of arrays (n, ...), each agent's part along the first axis


class Network(Protocol):
    """From features to features, both H wide. Made as ``Class(hidden, layers)``."""

    @property
    def hidden(self) -> int:
        """H."""
        ...

    def init(self, key: mx.array) -> Weights:
        """Fresh weights."""
        ...

    def initial_state(self, n: int) -> State:
        """The state of n agents before their first step."""
        ...

    def scan(
        self, weights: Weights, h: mx.array, state: State, keep: mx.array | None = None
    ) -> tuple[mx.array, State]:
        """T steps of S segments.

        Args:
            weights: as ``init`` makes them.
            h: (T, S, H).
            state: of S segments, before the first step.
            keep: (T, S), what the state is multiplied by before each step: 0 forgets; None is ones.

        Returns:
            Outputs (T, S, H) and the state after the last step, which carries no gradient.
        """
        ...

    def step(
        self, weights: Weights, h: mx.array, state: State, keep: mx.array | None = None
    ) -> tuple[mx.array, State]:
        """One step of n agents: h (n, H), keep (n,) -> outputs (n, H) and their next state."""
        ...


@dataclass(frozen=True)
class FusedCase:
    """Inputs of a fused recurrence over T steps of S segments, to compare it with plain MLX.

    Args:
        low: shapes of what may be of 16 bits: activations and weights.
        states: shapes of what is float32.
        run: of (low inputs, states and keep, gradient by the output): the fused form's output, and
            gradients by the inputs at ``places``.
        reference: the output, of all inputs.
        places: among all inputs.
    """

    low: list[Shape]
    states: list[Shape]
    run: Callable[..., list[mx.array]]
    reference: Callable[..., mx.array]
    places: tuple[int, ...]


@dataclass(frozen=True)
class GPUStep:
    """The kernel of a rollout's whole step with the network: see ``ops/gpu/acting``."""

    layers: Path
    """The text of the layers, ``layers.metal.h``: a part of the step, and of whole rollouts."""
    weights: Callable[[Weights], list[mx.array]]
    """Of weights: arrays in the order in which the kernel finds them, products transposed."""
    fits: Callable[[Any], bool] = lambda network: True
    """Whether it computes what a network of the class does."""
    memory: int = 0
    """How many H numbers of each agent threads share beside a layer's input and output."""

    @property
    def kernel(self) -> str:
        """Its name."""
        return f"{self.layers.parent.name}_act"


@dataclass(frozen=True)
class BlockLayer:
    """A layer whose training a block of a GPU's threads does in its shared memory.

    ``minibatch.kernel.h`` of ``ppo/minibatch`` says of its template's numbers what these are.
    """

    text: Path
    """``minibatch.metal.h``, what the kernel in ``ppo/minibatch`` needs before it; beside it are
    ``forward.metal.h`` and ``back.metal.h``, a layer's passes, which the kernel includes."""
    tensors: tuple[str, ...]
    """Of a layer: matrices (rows H, H), then biases (rows H,)."""
    rows: int
    gates: int
    held: int = 0
    states: int = 0
    recurrent: bool = False
    highway: bool = False
    norm: bool = False
    """Whether weights are ``layers`` and a ``norm`` behind them; else they are the layers."""
    fits: Callable[[Any], bool] = lambda network: True
    """Whether it computes what a network of the class does."""
    faster: tuple[str, ...] = ()
    """Of ``train.precision``: in which on CUDA it was measured to be faster than many launches, and
    to learn as well."""

    @property
    def kernel(self) -> str:
        """Its name."""
        return f"{self.text.parent.name}_minibatch"

    @property
    def biases(self) -> int:
        """How many of its tensors are biases."""
        return sum(name.startswith("bias") for name in self.tensors)

    @property
    def matrices(self) -> int:
        """And matrices."""
        return len(self.tensors) - self.biases


@dataclass(frozen=True)
class Forms:
    """All of a network's forms."""

    with_activation: Callable[[Any, str], Any] | None = None
    """(network, activation) -> the network of the sb3 dialect, with its activation and initial
    weights; None if all dialects have the same network."""
    pack: Callable[[Any, Any, Weights], None] | None = None
    """Of (step, network, weights): adds the layers to a compiled step:
    ``rollout.acting_in_c.Layers``."""
    gpu_step: GPUStep | None = None
    matrix_units: Path | None = None
    """The folder of its texts for a GPU's matrix units, None if it has none. ``rows.metal.h`` has
    the layers of a rollout, ``walks.metal.h`` the recurrence in a minibatch of wide layers. A layer
    has one tensor, ``weight``, and one state."""
    block_layer: BlockLayer | None = None
    puffer3: Callable[[int], dict[str, int]] | None = None
    """(hidden) -> the tensors of one layer and their sizes, in the order of PufferLib 3.0's flat
    file; None if 3.0's wrapper has no such network."""
    flat: Callable[[int, int], dict[str, int]] | None = None
    """Of (hidden, layers): each tensor, and how many numbers it has, in PufferLib's flat file."""
    layers: Callable[[Collection[str]], int] | None = None
    """Of tensors' names: the layers that they are of; 0 if they are another network's."""
    stacks: Callable[[Any], dict[str, list[mx.array]]] | None = None
    """Of a state: what torch and ONNX stack of it, by name: each layer's part (n, H)."""
    fused_case: Callable[[int, int, int], FusedCase] | None = None
    """Of (T, S, H)."""
    from_zeros: bool = False
    """Whether ``scan`` takes None for a state of zeros, which then nobody fills."""
    kink: bool = False
    """Whether its function has a kink, across which rounding changes a gradient."""


NONE = Forms()  # of a network of the user's own


def count(pattern: str, names: Collection[str]) -> int:
    """How many names are of a pattern: layers, if each has one."""
    return sum(re.fullmatch(pattern, name) is not None for name in names)
