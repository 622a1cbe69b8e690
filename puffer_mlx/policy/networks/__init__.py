"""Networks: from an encoder's features to a decoder's. A folder each, with all implementations.

Only the first file of a folder is required:

| file | content |
| --- | --- |
| ``__init__.py`` | ``NAME``; the class with this name, in plain MLX; and ``FACTS`` |
| ``cell.h`` | one step's equations and gradient, in C for CPUs and GPUs: see ``ops/portable.h`` |
| ``scan.h`` | C++ for training: T steps, forward and backward; see ``ops/cpu/binding.h`` |
| ``step.h`` | C++ for acting: one layer of one step; see ``ops/cpu/binding.h`` |
| ``layers.metal.h`` | the layers of a rollout's step on a GPU: see ``ops/gpu/acting`` |
| ``kernels.metal.h`` | GPU kernels, launched by ``__init__.py`` |
| ``walks.metal.h`` | a layer's passes in the minibatch kernels: see ``matrix_units`` |

The classes hold no arrays: weights and state are arguments. T calls of ``step`` equal one of
``scan``. Features are cast to the weights' dtype, which the outputs have; states are float32.

``NetworkFacts`` describes a network to other rooms. Each field is optional; where a missing one is
required, the user gets an error. To export a network to PyTorch and ONNX, add
``export/networks/NAME.py``. Tensors are named without ``network.``.
"""

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import mlx.core as mx

Shape = tuple[int, ...]
Weights = Any  # a tree of arrays, as ``Network.init`` returns it
State = Any  # a tree of arrays (n, ...), one row for each agent
NotDone = mx.array | None  # factors of the states, (T, S) or (n,): 0 after an episode's end, or 1


class Network(Protocol):
    """Maps features (n, H) to features (n, H). The constructor is ``Class(hidden, layers)``."""

    @property
    def hidden(self) -> int:
        """Width H of the features."""
        ...

    def init(self, key: mx.array) -> Weights:
        """Return initial weights."""
        ...

    def initial_state(self, n: int) -> State:
        """Return the state of n agents before their first step."""
        ...

    def scan(
        self, weights: Weights, h: mx.array, state: State, not_done: NotDone = None
    ) -> tuple[mx.array, State]:
        """Compute T steps of S segments.

        Args:
            weights: tree of arrays, see ``init``.
            h: features (T, S, H).
            state: state of S segments at the start.
            not_done: (T, S), factors that multiply the state at the start of each step: 0 after an
                episode's end, else 1. None means 1.

        Returns:
            Outputs (T, S, H), and the state after the last step, which has no gradient.
        """
        ...

    def step(
        self, weights: Weights, h: mx.array, state: State, not_done: NotDone = None
    ) -> tuple[mx.array, State]:
        """Compute one step of n agents. Returns outputs (n, H) and the next state."""
        ...


@dataclass(frozen=True)
class FusedCase:
    """A comparison of a fused recurrence with plain MLX, over T steps of S segments.

    Args:
        low: shapes of the inputs that may have 16 bits: activations and weights.
        states: shapes of the float32 inputs.
        run: (low inputs, states and not_done, output's gradient) -> the fused output, and the
            gradients of the inputs at ``gradient_inputs``.
        reference: (*inputs) -> the output in plain MLX.
        gradient_inputs: indices of the inputs whose gradients ``run`` returns.
    """

    low: list[Shape]
    states: list[Shape]
    run: Callable[..., list[mx.array]]
    reference: Callable[..., mx.array]
    gradient_inputs: tuple[int, ...]


@dataclass(frozen=True)
class GPUStep:
    """The network's layers in the GPU kernels that act: see ``ops/gpu/acting``.

    Args:
        layers: ``layers.metal.h``, included by the kernels of one step and of whole rollouts.
        weights: (weights) -> arrays in the kernel's order, matrices transposed.
        fits: (network) -> True if the text computes this network of the class.
        shared_arrays: arrays (H,) per agent in shared memory, besides a layer's input and output.
    """

    layers: Path
    weights: Callable[[Weights], list[mx.array]]
    fits: Callable[[Any], bool] = lambda network: True
    shared_arrays: int = 0

    @property
    def kernel(self) -> str:
        """Name of the kernel of one step."""
        return f"{self.layers.parent.name}_act"


@dataclass(frozen=True)
class NetworkFacts:
    """Facts about a network, and implementations besides plain MLX. All are optional.

    Args:
        with_activation: (network, activation) -> the network of the sb3 dialect, with its
            activation and initial weights; None when all dialects have the same network.
        add_c_layers: (step, network, weights) adds the layers to an actor, a
            ``rollout.acting_in_c.CActor``.
        gpu_step: the layers in the GPU kernels that act.
        matrix_units: folder of the C files for a GPU's matrix units. ``rows.metal.h`` has the
            layers of a rollout, ``walks.metal.h`` those of the minibatch kernels. A layer has one
            tensor, ``weight`` (3H, H), one state and a highway.
        puffer3: (hidden) -> the tensors of one layer and their sizes, in the order of PufferLib
            3.0's flat file; None when 3.0's wrapper has no such network.
        flat: (hidden, layers) -> the tensors and their sizes, in the order of PufferLib's flat
            file.
        layers: (tensors' names) -> number of layers; 0 for the names of another network.
        stacked_state: (state) -> its parts by name, each a list of the layers' arrays (n, H).
        fused_case: (T, S, H) -> a comparison of the fused recurrence with plain MLX.
        from_zeros: True if ``scan`` accepts None as a state of zeros, which saves allocating one.
        non_smooth: True if the function is not differentiable somewhere, so that rounding may
            flip a gradient (tests use a wider tolerance).
    """

    with_activation: Callable[[Any, str], Any] | None = None
    add_c_layers: Callable[[Any, Any, Weights], None] | None = None
    gpu_step: GPUStep | None = None
    matrix_units: Path | None = None
    puffer3: Callable[[int], dict[str, int]] | None = None
    flat: Callable[[int, int], dict[str, int]] | None = None
    layers: Callable[[Collection[str]], int] | None = None
    stacked_state: Callable[[Any], dict[str, list[mx.array]]] | None = None
    fused_case: Callable[[int, int, int], FusedCase] | None = None
    from_zeros: bool = False
    non_smooth: bool = False


NO_FACTS = NetworkFacts()  # for the user's networks


def count_matches(pattern: str, names: Collection[str]) -> int:
    """Return how many names match a pattern: the number of layers, if each layer has one."""
    return sum(re.fullmatch(pattern, name) is not None for name in names)
