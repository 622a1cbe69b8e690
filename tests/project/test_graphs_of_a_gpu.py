"""benchmarks/graphs_of_a_gpu.py: views, copies, fused operations and kernels, without a GPU."""

import importlib
import sys
from pathlib import Path

import mlx.core as mx
import pytest
from running import ROOT

from puffer_mlx.system.backend import kernel_substitute

sys.path.append(str(ROOT / "benchmarks"))
counting = importlib.import_module("graphs_of_a_gpu")


@pytest.fixture(params=["metal", "cuda"])
def graphs(request):
    graphs = counting.Graphs(request.param)
    with graphs.building():
        yield graphs


x_square = mx.ones((3, 3))
mx.eval(x_square)
broadcast = {"Exp": 1, "copy for Reshape": 1}


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


def test_what_launches(graphs):
    for make, launches in [
        (lambda x: mx.concatenate([x, x, x]), {"Concatenate": 3}),
        (lambda x: mx.stack([x, x]), {"Concatenate": 2}),
        (lambda x: mx.zeros_like(x), {"Full": 1}),
        (lambda x: x.astype(mx.float32), {}),
        (lambda x: x.astype(mx.int32), {"AsType": 1}),
        (lambda x: mx.addmm(x, x, x_square), {"AddMM": 1}),
        (lambda x: x @ x.T, {"Matmul": 1}),
        (lambda x: x[1], {"Gather": 1}),
        (lambda x: x.at[mx.array([1])].add(1), {"Scatter Sum": 2}),
        (lambda x: x.at[1:2].add(1), {"SliceUpdate Sum": 2}),
        (lambda x: mx.put_along_axis(x, mx.array([[0]]), x[:1], 0), {"ScatterAxis": 2}),
        (lambda x: x + 1, {"Add": 1}),
        (lambda x: (x + 1) * 2, {"Add": 1, "Multiply": 1}),
        (mx.compile(lambda x: (x + 1) * 2), {"CompiledBroadcastAddBroadcastMultiply": 1}),
        (lambda x: x.T.reshape(-1), {"copy for Reshape": 1}),
        (lambda x: mx.broadcast_to(mx.exp(x), (2, 4, 3)).reshape(-1), broadcast),
    ]:
        found = graphs.launches(make(x_of(graphs)))
        assert dict(found.counted) == launches and found.total == sum(launches.values())


def test_names_are_those_of_primitives():
    header = (Path(mx.__file__).parent / "include" / "mlx" / "primitives.h").read_text()
    for name in (counting.VIEWS | counting.PER_INPUT | {*counting.SEVERAL}) - {"RMSNormVJP"}:
        assert f"class {name} :" in header or f"class MLX_API {name} :" in header, name


def test_what_may_be_copied(graphs):
    x = x_of(graphs)
    for view in (x[:, 1:], mx.broadcast_to(x, (2, 4, 3))):
        found = graphs.launches(view.reshape(-1))
        assert found.total == 0 and found.maybe == {"copy for Reshape": 1}


def kernel(x: mx.array, y: mx.array) -> mx.array:
    """Launches a kernel of two inputs and two outputs; the second."""
    launch = kernel_substitute()
    assert launch is not None
    shapes, dtypes = [(7,), x.shape], [mx.int32, x.dtype]
    return launch("pair", inputs=[x, y], output_shapes=shapes, output_dtypes=dtypes)[1]


def test_kernels_have_their_names(graphs):
    x = x_of(graphs)
    assert graphs.launches(kernel(x, x)).counted == {"kernel pair": 1}
    found = graphs.launches(kernel(x, mx.exp(x).T)).counted
    assert found == {"kernel pair": 1, "copy for kernel pair": 1, "Exp": 1}
    twice = mx.compile(lambda x: kernel(mx.exp(kernel(x, x)), x))(x)
    assert graphs.launches(twice).counted == {"kernel pair": 2, "Exp": 1}


def test_rms_norm_is_a_primitive_of_a_gpu(graphs):
    x, weight = x_of(graphs), x_of(graphs, 3)

    def loss(x, weight):
        return mx.fast.rms_norm(x, weight, 1e-5).sum()

    found = graphs.launches(mx.compile(mx.value_and_grad(loss, (0, 1)))(x, weight)).counted
    assert found["kernel RMSNorm"] == 1 and found["kernel RMSNormVJP"] == 2


def test_what_is_computed_is_in_no_graph(graphs):
    x = x_of(graphs)
    rows, columns = graphs.computed(x + 1), graphs.computed((x + 1).T)
    assert rows.shape == (4, 3) and columns.shape == (3, 4)
    assert graphs.computed(rows) is rows and graphs.computed(columns) is columns
    assert graphs.launches(rows, columns, rows.reshape(-1)).total == 0
    assert graphs.launches(columns.reshape(-1)).counted == {"copy for Reshape": 1}
    assert graphs.launches(columns[None].reshape(-1)).counted == {"copy for Reshape": 1}


def test_nothing_stays():
    before = mx.fast.rms_norm
    with pytest.raises(ZeroDivisionError), counting.Graphs("cuda").building():
        raise ZeroDivisionError
    assert mx.fast.rms_norm is before
