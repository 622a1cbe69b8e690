"""Count the kernels that a graph launches on a GPU, on any machine, without evaluating the graph.

A small operation costs the host and a GPU's front end more than its arithmetic, so the number of
operations decides. MLX shows a graph before it is evaluated (``mx.export_to_dot``), with what
``mx.compile`` made of it; which of its primitives launch is read in MLX's sources.

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

# Launches of a primitive other than one, in mlx/backend/{metal,cuda,gpu} of MLX 0.32; a name stands
# for all that begin with it where another word follows ("Scatter Sum").
VIEWS = {  # nothing: gpu/primitives.cpp shares the buffer
    *("AsStrided", "Broadcast", "BroadcastAxes", "Copy", "CustomTransforms", "Depends"),
    *("ExpandDims", "Flatten", "Reshape", "Slice", "Split", "Squeeze", "StopGradient"),
    *("Transpose", "Unflatten", "View"),
}
SEVERAL = {
    "DynamicSlice": 2,  # gpu/primitives.cpp: where to begin is computed by a kernel, then a copy
    "DynamicSliceUpdate": 3,  # the same, and before that a copy of what is updated
    "MaskedScatter": 3,  # {metal,cuda}/indexing.*: a copy, a sum along the mask, the scatter
    "RMSNormVJP": 2,  # metal/normalization.cpp, cuda/rms_norm.cu: the rows; the weight's gradient
    "Scatter": 2,  # {metal,cuda}/indexing.*: a copy of the target, then the scatter
    "ScatterAxis": 2,  # likewise
    "SliceUpdate": 2,  # gpu/slicing.cpp: a copy of what is updated, then one of the slice
}
PER_INPUT = {"Concatenate"}  # gpu/slicing.cpp, concatenate_gpu: a copy of each

RESHAPES = {"Flatten", "Reshape", "Unflatten"}  # a copy where rows aren't where they have to be
KEEP_LAYOUT = {"Copy", "CustomTransforms", "ExpandDims", "Squeeze", "StopGradient"}
ROWS, APART, MAYBE = "in rows ", "not in rows ", "perhaps not in rows "
LAYOUTS = {
    **dict.fromkeys(("AsStrided", "Broadcast", "BroadcastAxes", "Transpose"), APART),
    **dict.fromkeys(("Slice", "Split"), MAYBE),  # along the first axis they are
}
KERNEL = "kernel "  # what the name of a custom kernel begins with
COPY = "copy for "

_NODE = re.compile(r'^\{ \d+ \[label ="([^"]*)"')
_INPUT = re.compile(r'^"([^"]*)" -> \d+$')
_OUTPUT = re.compile(r'^\d+ -> "([^"]*)"$')

Kind = tuple[tuple[int, ...], mx.Dtype]


class Primitive(NamedTuple):
    """A node of a graph."""

    name: str
    inputs: list[str]  # names of arrays
    outputs: list[str]

    @property
    def launches(self) -> int:
        """Number of launched kernels, without copies of inputs."""
        name = self.name.removeprefix(KERNEL).split(" ")[0]
        if name in VIEWS:
            return 0
        return len(self.inputs) if name in PER_INPUT else SEVERAL.get(name, 1)


class Launches(NamedTuple):
    """The launches of a graph, by names of primitives."""

    counted: Counter[str]
    maybe: Counter[str]  # copies that depend on the axis of a slice

    @property
    def total(self) -> int:
        """All that are counted."""
        return sum(self.counted.values())


class Graphs:
    """Graphs of a GPU's back-end.

    Args:
        backend: ``metal`` or ``cuda``.
    """

    def __init__(self, backend: str) -> None:
        self.backend = backend
        self._kernels: dict[str, mx.array] = {}  # an input that identifies each kernel in a graph
        self._ones: dict[Kind, mx.array] = {}
        self._outputs: dict[Kind, mx.array] = {}  # of kernels, no inputs of a compiled function
        self._apart: dict[str, mx.array] = {}

    @contextmanager
    def building(self) -> Iterator[None]:
        """Within, operations are built for the back-end: see ``building_for``."""
        before = mx.fast.rms_norm
        with building_for(self.backend, self._launch):
            mx.fast.rms_norm = lambda x, weight, eps: _rms_norm(x, weight)  # type: ignore
            try:
                yield
            finally:
                mx.fast.rms_norm = before

    def ones(self, shape: tuple[int, ...], dtype: mx.Dtype) -> mx.array:
        """An array that is in memory: it is in no graph, even while gradients are taken."""
        return _kept(self._ones, (tuple(shape), dtype))

    def computed(self, array: mx.array) -> mx.array:
        """One like it as if it had been evaluated: in memory, in no graph, of the same layout."""
        primitives = self.primitives(array, array=array)
        if not primitives:
            return array
        if _layout("array", _makers(primitives)) != APART:
            return self.ones(array.shape, array.dtype)
        name = f"{APART}{len(self._apart)}"
        self._apart[name] = _ones(array.shape, array.dtype)
        return self._apart[name]

    def launches(self, *trees: Any) -> Launches:
        """Return the launches that evaluate arrays; evaluated arrays need none."""
        primitives = self.primitives(*trees)
        makers = _makers(primitives)
        counted, maybe = Counter[str](), Counter[str]()
        for each in primitives:
            if each.launches:
                counted[each.name] += each.launches
            if each.name in RESHAPES or each.name.startswith(KERNEL):
                for name in each.inputs:
                    layout = _layout(name, makers)
                    if layout == APART:
                        counted[COPY + each.name] += 1
                    elif layout == MAYBE:
                        maybe[COPY + each.name] += 1
        return Launches(counted, maybe)

    def primitives(self, *trees: Any, **names: mx.array) -> list[Primitive]:
        """Return the nodes of the graph that computes arrays.

        Args:
            *trees: trees of lists and dictionaries of arrays.
            **names: arrays with their names in the graph.
        """
        leaves = [leaf for _, leaf in tree_flatten(trees)]  # type: ignore
        text = io.StringIO()
        kernels = {KERNEL + name: array for name, array in self._kernels.items()}
        arrays = [leaf for leaf in leaves if isinstance(leaf, mx.array)]
        mx.export_to_dot(text, *arrays, **kernels, **self._apart, **names)
        found: list[Primitive] = []
        for line in text.getvalue().splitlines():
            if node := _NODE.match(line):
                found.append(Primitive(node[1], [], []))
            elif edge := _INPUT.match(line):
                if edge[1] in kernels:
                    found[-1] = found[-1]._replace(name=edge[1])
                else:
                    found[-1].inputs.append(edge[1])
            elif edge := _OUTPUT.match(line):
                found[-1].outputs.append(edge[1])
        return found

    def _launch(
        self, name: str, *, inputs: Any, output_shapes: Any, output_dtypes: Any, **_: Any
    ) -> list[mx.array]:
        """Stand in for a kernel."""
        if name not in self._kernels:
            self._kernels[name] = _ones((1,), mx.float32)
        kinds = [
            (tuple(shape), dtype) for shape, dtype in zip(output_shapes, output_dtypes, strict=True)
        ]
        outputs = [_kept(self._outputs, kind) for kind in kinds]
        return mx.depends(outputs, [self._kernels[name], *inputs])  # type: ignore


def _kept(arrays: dict[Kind, mx.array], kind: Kind) -> mx.array:
    if kind not in arrays:
        arrays[kind] = _ones(*kind)
    return arrays[kind]


def _ones(shape: tuple[int, ...], dtype: mx.Dtype) -> mx.array:
    return mx.array(np.ones(shape, np.float32), dtype)  # mx.ones would stay a graph within mx.grad


def _layout(name: str, makers: dict[str, Primitive]) -> str:
    """``ROWS``, ``APART`` or ``MAYBE``: how an array lies in memory."""
    while name in makers and makers[name].name in KEEP_LAYOUT:
        made = makers[name]
        name = made.inputs[made.outputs.index(name)]
    if name not in makers:
        return APART if name.startswith(APART) else ROWS
    made = makers[name]
    if made.name == "Broadcast" and made.inputs[0] not in makers:
        return MAYBE  # of one number it needs no copy
    return LAYOUTS.get(made.name, ROWS)


def _makers(primitives: list[Primitive]) -> dict[str, Primitive]:
    return {output: each for each in primitives for output in each.outputs}


def _stand_in(name: str, inputs: list[mx.array], outputs: list[mx.array]) -> list[mx.array]:
    kernel: Kernel | None = kernel_substitute()
    assert kernel is not None
    shapes, dtypes = [a.shape for a in outputs], [a.dtype for a in outputs]
    return kernel(name, inputs=inputs, output_shapes=shapes, output_dtypes=dtypes)


@mx.custom_function
def _rms_norm(x: mx.array, weight: mx.array) -> Any:
    """``mx.fast.rms_norm`` of a GPU, where it is a primitive; on a CPU it is made of others."""
    return _stand_in("RMSNorm", [x, weight], [x])[0]


@_rms_norm.vjp
def _rms_norm_vjp(primals, cotangent, _):
    return _stand_in("RMSNormVJP", [*primals, cotangent], [*primals])
