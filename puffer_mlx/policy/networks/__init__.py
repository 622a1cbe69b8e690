"""Networks: compute the features for the decoder from the encoder's features.

Each network has a folder with all its implementations. Only the first file is required:

| file | content |
| --- | --- |
| ``__init__.py`` | ``NAME``; the class with this name, in plain MLX; and ``FACTS`` |
| ``cell.h`` | one step's equations and gradient, in C for CPUs and GPUs: see ``ops/portable.h`` |
| ``scan.h`` | C++ for training: T steps, forward and backward; see ``ops/cpu/binding.h`` |
| ``step.h`` | C++ for acting: one layer of one step; see ``ops/cpu/binding.h`` |
| ``layers.metal.h`` | the layers in GPU kernels that act: see ``ops/gpu/acting`` |
| ``kernels.metal.h`` | GPU kernels for training, launched by ``__init__.py`` |
| ``walks.metal.h`` | a layer in the minibatch kernels: see ``NetworkFacts.matrix_units`` |

The classes contain no arrays: weights and state are arguments. T calls of ``step`` compute the same
as one call of ``scan``. Features are cast to the weights' dtype, which outputs have too; states are
float32.

``NetworkFacts`` describes a network to other packages. Its fields are optional; a command that
needs a missing one reports an error. To export a network to PyTorch and ONNX, add
``export/networks/NAME.py``. The files list names of tensors without the prefix ``network.``.
"""

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import mlx.core as mx

Shape = tuple[int, ...]
Weights = Any  # tree of arrays, as ``Network.init`` returns it
State = Any  # tree of arrays (n, ...), one row per agent
NotDone = mx.array | None  # factors of the states, (T, S) or (n,); 0 after an episode's end


class Network(Protocol):
    """Interface of a policy's middle part, the network: features (n, H) to features (n, H).

    A network may have a recurrent state.

    The constructor is ``Class(hidden, layers)``.
    """

    @property
    def hidden(self) -> int:
        """Number H of a network's input and output features."""
        ...

    def init(self, key: mx.array) -> Weights:
        """Return the network's initial weights."""
        ...

    def initial_state(self, n: int) -> State:
        """Return the recurrent state of n agents before their first step."""
        ...

    def scan(
        self, weights: Weights, h: mx.array, state: State, not_done: NotDone = None
    ) -> tuple[mx.array, State]:
        """Evaluate the network for T steps of S segments.

        Args:
            weights: Tree of arrays with the structure of ``init``.
            h: Features (T, S, H).
            state: Recurrent state of the S segments at the start.
            not_done: (T, S), factors that multiply the state at the start of each step: 0 after an
                episode's end, else 1. None means 1.

        Returns:
            Outputs (T, S, H), and the state after the last step, which has no gradient.
        """
        ...

    def step(
        self, weights: Weights, h: mx.array, state: State, not_done: NotDone = None
    ) -> tuple[mx.array, State]:
        """Evaluate the network for one step of n agents.

        Returns:
            Outputs (n, H), and the next state.
        """
        ...


@dataclass(frozen=True)
class FusedCase:
    """Test case that compares a fused recurrence with plain MLX, for T steps of S segments.

    Args:
        low: Shapes of the inputs that may have 16 bits: activations and weights.
        states: Shapes of the float32 inputs.
        run: (low inputs, states and not_done, gradient of the output) -> the fused output, and the
            gradients of the inputs at ``gradient_inputs``.
        reference: (*inputs) -> the output in plain MLX.
        gradient_inputs: Indices of the inputs whose gradients ``run`` returns.
    """

    low: list[Shape]
    states: list[Shape]
    run: Callable[..., list[mx.array]]
    reference: Callable[..., mx.array]
    gradient_inputs: tuple[int, ...]


@dataclass(frozen=True)
class GPULayers:
    """A network's layers in the GPU kernels that act: see ``ops/gpu/acting``.

    Args:
        file: ``layers.metal.h``, which the kernels of one step and of a rollout include.
        weights: Maps weights to arrays in the kernel's order, with matrices transposed.
        fits: Maps a network of the class to True if the file computes it.
        shared_arrays: Arrays (H,) per agent in shared memory, besides a layer's input and output.
    """

    file: Path
    weights: Callable[[Weights], list[mx.array]]
    fits: Callable[[Any], bool] = lambda network: True
    shared_arrays: int = 0

    @property
    def kernel(self) -> str:
        """Name of the GPU kernel that computes one acting step with this network."""
        return f"{self.file.parent.name}_act"


@dataclass(frozen=True)
class NetworkFacts:
    """Facts about a network class for fused implementations, import and export.

    All are optional.

    Args:
        with_activation: (network, activation) -> the network for ``policy.dialect`` sb3, which has
            another activation and other initial weights. None when it is always the same network.
        add_c_layers: (actor, network, weights) adds the layers to a ``rollout.acting_in_c.CActor``.
        gpu_layers: The layers in the GPU kernels that act.
        matrix_units: Folder of the files for a GPU's matrix units: ``rows.metal.h`` for rollouts,
            ``walks.metal.h`` for the minibatch kernels. A layer must have one tensor, ``weight``
            (3H, H), one state, and a highway connection.
        puffer3: Maps H to the sizes of one layer's tensors by name, in the order of PufferLib 3.0's
            flat file. None when 3.0's wrapper has no such network.
        flat: (hidden, layers) -> sizes of the tensors by name, in the order of PufferLib's flat
            file.
        layers: Maps names of tensors to the number of layers; 0 if another network has such names.
        stacked_state: Maps a state to lists of the layers' arrays (n, H), by name.
        fused_case: (T, S, H) -> a test case for the fused recurrence.
        from_zeros: True if ``scan`` accepts None for a state of zeros, which saves an array.
        non_smooth: True if the function isn't differentiable somewhere, so that rounding may change
            a gradient. Tests then have a wider tolerance.
    """

    with_activation: Callable[[Any, str], Any] | None = None
    add_c_layers: Callable[[Any, Any, Weights], None] | None = None
    gpu_layers: GPULayers | None = None
    matrix_units: Path | None = None
    puffer3: Callable[[int], dict[str, int]] | None = None
    flat: Callable[[int, int], dict[str, int]] | None = None
    layers: Callable[[Collection[str]], int] | None = None
    stacked_state: Callable[[Any], dict[str, list[mx.array]]] | None = None
    fused_case: Callable[[int, int, int], FusedCase] | None = None
    from_zeros: bool = False
    non_smooth: bool = False


NO_FACTS = NetworkFacts()  # of custom networks


def count_matches(pattern: str, names: Collection[str]) -> int:
    """Return how many of some names match a regular expression completely."""
    return sum(re.fullmatch(pattern, name) is not None for name in names)
