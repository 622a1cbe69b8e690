"""benchmarks/graphs_of_a_gpu.py: views, copies, fused operations and kernels, without a GPU."""

import importlib
import re
import sys
from pathlib import Path

import mlx.core as mx
import pytest
from running import ROOT

from puffer_mlx.system.backend import kernel_substitute

sys.path.append(str(ROOT / "benchmarks"))
counting = importlib.import_module("graphs_of_a_gpu")


@pytest.fixture
def graphs():
    graphs = counting.Graphs("cuda")
    with graphs.building():
        yield graphs


def x_of(graphs, *shape):
    return graphs.ones(shape or (4, 3), mx.float32)


def test_views_launch_nothing(graphs):
    x = x_of(graphs)
    views = [
        *(x.T, x[1:3], x.reshape(-1), x.reshape(2, 2, 3), x[None], x[None].squeeze(0)),
        *(mx.flatten(x), mx.unflatten(x, 0, (2, 2)), mx.split(x, 2), mx.stop_gradient(x)),
        *(mx.broadcast_to(x, (2, 4, 3)), mx.as_strided(x, (3,), (1,)), x.view(mx.int32)),
        mx.depends(x, x),
    ]
    assert graphs.launches(views).total == 0
    names = {primitive.name.split(" ")[0] for primitive in graphs.primitives(views)}
    assert counting.VIEWS - names == {"BroadcastAxes", "Copy", "CustomTransforms"}


LAUNCHES = {  # an expression, and what it launches
    "mx.concatenate([x, x, x])": {"Concatenate": 3},
    "mx.zeros_like(x)": {"Full": 1},
    "x.astype(mx.float32)": {},
    "x.astype(mx.int32)": {"AsType": 1},
    "mx.addmm(x, x, square)": {"AddMM": 1},
    "x @ x.T": {"Matmul": 1},
    "x[1]": {"Gather": 1},
    "x.at[mx.array([1])].add(1)": {"Scatter Sum": 2},
    "x.at[1:2].add(1)": {"SliceUpdate Sum": 2},
    "mx.put_along_axis(x, mx.array([[0]]), x[:1], 0)": {"ScatterAxis": 2},
    "(x + 1) * 2": {"Add": 1, "Multiply": 1},
    "mx.compile(lambda x: (x + 1) * 2)(x)": {"CompiledBroadcastAddBroadcastMultiply": 1},
    "x.T.reshape(-1)": {"copy for Reshape": 1},
    "mx.broadcast_to(mx.exp(x), (2, 4, 3)).reshape(-1)": {"Exp": 1, "copy for Reshape": 1},
}


def test_primitives_launch_what_mlx_launches(graphs):
    names = {"mx": mx, "square": mx.ones((3, 3))}
    mx.eval(names["square"])
    found = {text: graphs.launches(eval(text, names, {"x": x_of(graphs)})) for text in LAUNCHES}
    assert {text: dict(each.counted) for text, each in found.items()} == LAUNCHES
    assert all(each.total == sum(each.counted.values()) for each in found.values())


def test_names_are_those_of_mlxs_primitives():
    header = (Path(mx.__file__).parent / "include" / "mlx" / "primitives.h").read_text()
    names = (counting.VIEWS | counting.PER_INPUT | {*counting.SEVERAL}) - {"RMSNormVJP"}
    declared = set(re.findall(r"class (?:MLX_API )?(\w+) :", header))
    assert names <= declared


def kernel(x: mx.array, y: mx.array) -> mx.array:
    """Launch a kernel with two outputs. Returns the second."""
    launch = kernel_substitute()
    assert launch is not None
    shapes, dtypes = [(7,), x.shape], [mx.int32, x.dtype]
    return launch("pair", inputs=[x, y], output_shapes=shapes, output_dtypes=dtypes)[1]


def test_custom_kernels_and_rms_norm_are_counted_by_name(graphs):
    x = x_of(graphs)
    found = graphs.launches(kernel(x, mx.exp(x).T)).counted
    assert found == {"kernel pair": 1, "copy for kernel pair": 1, "Exp": 1}
    twice = mx.compile(lambda x: kernel(mx.exp(kernel(x, x)), x))(x)
    assert graphs.launches(twice).counted == {"kernel pair": 2, "Exp": 1}

    def loss(x, weight):
        return mx.fast.rms_norm(x, weight, 1e-5).sum()

    gradients = mx.compile(mx.value_and_grad(loss, (0, 1)))(x, x_of(graphs, 3))
    found = graphs.launches(gradients).counted
    assert found["kernel RMSNorm"] == 1 and found["kernel RMSNormVJP"] == 2
