"""Count the kernels that a graph launches on a GPU, on any machine, without evaluating the graph.

The number of operations matters, because a small operation costs the host and the GPU's front end
more than its arithmetic. ``mx.export_to_dot`` lists the primitives of a graph, compiled or not,
before it is evaluated. The tables below say how many kernels each primitive launches, according to
MLX's sources.

``Graphs`` builds graphs for a GPU without needing one: see ``system/backend.py``. An ``mx.depends``
with the same inputs and outputs replaces each custom kernel; ``mx.compile`` fuses neither.

Not counted, because a graph has no shapes: the second pass of a sum over a large array, products
that MLX divides along K, and elementwise results with a transposed layout. Copies that depend on
the axis of a slice are listed, not counted.
"""

# ruff: noqa: I001
import io
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import puffer_mlx  # noqa: F401  first: it chooses MLX's BLAS, before MLX loads
import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten

from puffer_mlx.system.backend import Kernel, building_for, kernel_substitute

# Primitives that don't launch exactly one kernel, from mlx/backend/{metal,cuda,gpu} of MLX 0.32.
# A name includes primitives with a second word, such as "Scatter Sum".
VIEWS = {  # no launch: gpu/primitives.cpp shares the buffer
    *("AsStrided", "Broadcast", "BroadcastAxes", "Copy", "CustomTransforms", "Depends"),
    *("ExpandDims", "Flatten", "Reshape", "Slice", "Split", "Squeeze", "StopGradient"),
    *("Transpose", "Unflatten", "View"),
}
SEVERAL = {
    "DynamicSlice": 2,  # gpu/primitives.cpp: a kernel computes the offset, then a copy
    "DynamicSliceUpdate": 3,  # the same, after a copy of the updated array
    "MaskedScatter": 3,  # {metal,cuda}/indexing.*: a copy, a sum along the mask, the scatter
    "RMSNormVJP": 2,  # metal/normalization.cpp, cuda/rms_norm.cu: the rows; the weight's gradient
    "Scatter": 2,  # {metal,cuda}/indexing.*: a copy of the target, then the scatter
    "ScatterAxis": 2,  # the same
    "SliceUpdate": 2,  # gpu/slicing.cpp: a copy of the updated array, then one of the slice
}
PER_INPUT = {"Concatenate"}  # gpu/slicing.cpp, concatenate_gpu: a copy of each input

RESHAPES = {"Flatten", "Reshape", "Unflatten"}  # need a copy if the input isn't row-contiguous
KEEP_LAYOUT = {"Copy", "CustomTransforms", "ExpandDims", "Squeeze", "StopGradient"}
CONTIGUOUS, STRIDED, UNKNOWN = "contiguous ", "strided ", "perhaps strided "
LAYOUTS = {
    **dict.fromkeys(("AsStrided", "Broadcast", "BroadcastAxes", "Transpose"), STRIDED),
    **dict.fromkeys(("Slice", "Split"), UNKNOWN),  # contiguous along the first axis
}
KERNEL = "kernel "  # prefix of the names of custom kernels
COPY = "copy for "

_NODE = re.compile(r'^\{ \d+ \[label ="([^"]*)"')
_INPUT = re.compile(r'^"([^"]*)" -> \d+$')
_OUTPUT = re.compile(r'^\d+ -> "([^"]*)"$')

Kind = tuple[tuple[int, ...], mx.Dtype]


class Primitive(NamedTuple):
    """A node of MLX's graph: an operation with the names of its inputs and outputs."""

    name: str
    inputs: list[str]  # names of arrays
    outputs: list[str]

    @property
    def launches(self) -> int:
        """Number of kernels that this operation launches, without copies of its inputs."""
        name = self.name.removeprefix(KERNEL).split(" ")[0]
        if name in VIEWS:
            return 0
        return len(self.inputs) if name in PER_INPUT else SEVERAL.get(name, 1)


class Launches(NamedTuple):
    """Number of kernels that a graph launches, by names of primitives."""

    counted: Counter[str]
    maybe: Counter[str]  # copies that depend on the axis of a slice

    @property
    def total(self) -> int:
        """Number of all kernel launches that were counted in a graph."""
        return sum(self.counted.values())


class Graphs:
    """Build MLX graphs for a GPU's back-end and count their launches. Needs no GPU.

    Args:
        backend: ``metal`` or ``cuda``.
    """

    def __init__(self, backend: str) -> None:
        self.backend = backend
        self._kernels: dict[str, mx.array] = {}  # an input that identifies each kernel in a graph
        self._ones: dict[Kind, mx.array] = {}
        self._outputs: dict[Kind, mx.array] = {}  # of kernels, no inputs of a compiled function
        self._strided: dict[str, mx.array] = {}

    @contextmanager
    def building(self) -> Iterator[None]:
        """Build the operations of a ``with`` block as for this GPU back-end, without a GPU."""
        previous = mx.fast.rms_norm
        with building_for(self.backend, self._launch):
            mx.fast.rms_norm = lambda x, weight, eps: _rms_norm(x, weight)  # type: ignore
            try:
                yield
            finally:
                mx.fast.rms_norm = previous

    def ones(self, shape: tuple[int, ...], dtype: mx.Dtype) -> mx.array:
        """Return a cached array of ones, which belongs to no graph, even within gradients."""
        return _cached(self._ones, (tuple(shape), dtype))

    def computed(self, array: mx.array) -> mx.array:
        """Return an array with the same shape, type and layout that belongs to no graph.

        The graph then looks as if the array had been evaluated.
        """
        primitives = self.primitives(array, array=array)
        if not primitives:
            return array
        if _layout("array", _makers(primitives)) != STRIDED:
            return self.ones(array.shape, array.dtype)
        name = f"{STRIDED}{len(self._strided)}"
        self._strided[name] = _ones(array.shape, array.dtype)
        return self._strided[name]

    def launches(self, *trees: Any) -> Launches:
        """Return the launches that would evaluate arrays. Evaluated arrays need no launch."""
        primitives = self.primitives(*trees)
        makers = _makers(primitives)
        counted, maybe = Counter[str](), Counter[str]()
        for each in primitives:
            if each.launches:
                counted[each.name] += each.launches
            if each.name in RESHAPES or each.name.startswith(KERNEL):
                for name in each.inputs:
                    layout = _layout(name, makers)
                    if layout == STRIDED:
                        counted[COPY + each.name] += 1
                    elif layout == UNKNOWN:
                        maybe[COPY + each.name] += 1
        return Launches(counted, maybe)

    def primitives(self, *trees: Any, **names: mx.array) -> list[Primitive]:
        """Return the nodes of the graph that computes arrays.

        Args:
            *trees: Trees of lists and dictionaries of arrays.
            **names: Arrays with their names in the graph.
        """
        leaves = [leaf for _, leaf in tree_flatten(trees)]  # type: ignore
        dot = io.StringIO()
        kernels = {KERNEL + name: array for name, array in self._kernels.items()}
        arrays = [leaf for leaf in leaves if isinstance(leaf, mx.array)]
        mx.export_to_dot(dot, *arrays, **kernels, **self._strided, **names)
        nodes: list[Primitive] = []
        for line in dot.getvalue().splitlines():
            if node := _NODE.match(line):
                nodes.append(Primitive(node[1], [], []))
            elif edge := _INPUT.match(line):
                if edge[1] in kernels:
                    nodes[-1] = nodes[-1]._replace(name=edge[1])
                else:
                    nodes[-1].inputs.append(edge[1])
            elif edge := _OUTPUT.match(line):
                nodes[-1].outputs.append(edge[1])
        return nodes

    def _launch(
        self, name: str, *, inputs: Any, output_shapes: Any, output_dtypes: Any, **_: Any
    ) -> list[mx.array]:
        """Replace a custom kernel in a graph by an ``mx.depends`` with the same outputs."""
        if name not in self._kernels:
            self._kernels[name] = _ones((1,), mx.float32)
        kinds = [
            (tuple(shape), dtype) for shape, dtype in zip(output_shapes, output_dtypes, strict=True)
        ]
        outputs = [_cached(self._outputs, kind) for kind in kinds]
        return mx.depends(outputs, [self._kernels[name], *inputs])  # type: ignore


def _cached(arrays: dict[Kind, mx.array], kind: Kind) -> mx.array:
    if kind not in arrays:
        arrays[kind] = _ones(*kind)
    return arrays[kind]


def _ones(shape: tuple[int, ...], dtype: mx.Dtype) -> mx.array:
    return mx.array(np.ones(shape, np.float32), dtype)  # mx.ones would stay a graph within mx.grad


def _layout(name: str, makers: dict[str, Primitive]) -> str:
    """Return the memory layout of a graph's array: ``CONTIGUOUS``, ``STRIDED`` or ``UNKNOWN``."""
    while name in makers and makers[name].name in KEEP_LAYOUT:
        maker = makers[name]
        name = maker.inputs[maker.outputs.index(name)]
    if name not in makers:
        return STRIDED if name.startswith(STRIDED) else CONTIGUOUS
    maker = makers[name]
    if maker.name == "Broadcast" and maker.inputs[0] not in makers:
        return UNKNOWN  # a single number needs no copy
    return LAYOUTS.get(maker.name, CONTIGUOUS)


def _makers(primitives: list[Primitive]) -> dict[str, Primitive]:
    return {output: each for each in primitives for output in each.outputs}


def _stand_in(name: str, inputs: list[mx.array], outputs: list[mx.array]) -> list[mx.array]:
    kernel: Kernel | None = kernel_substitute()
    assert kernel is not None
    shapes, dtypes = [a.shape for a in outputs], [a.dtype for a in outputs]
    return kernel(name, inputs=inputs, output_shapes=shapes, output_dtypes=dtypes)


@mx.custom_function
def _rms_norm(x: mx.array, weight: mx.array) -> Any:
    """Add RMSNorm to a graph as one operation, as on a GPU.

    Replaces ``mx.fast.rms_norm``, which is several operations on a CPU.
    """
    return _stand_in("RMSNorm", [x, weight], [x])[0]


@_rms_norm.vjp
def _rms_norm_vjp(primals, cotangent, _):
    return _stand_in("RMSNormVJP", [*primals, cotangent], [*primals])
