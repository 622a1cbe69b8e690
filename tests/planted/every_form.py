"""Compare each implementation of the network Leaky with MLX's, in a package that contains it.

Prints a line of JSON: each implementation's largest error, or its result.
"""

import json
import sys
from pathlib import Path

import puffer_mlx

# isort: split
sys.path.insert(0, str(Path(__file__).parents[1] / "rollout"))
import mlx.core as mx
import numpy as np
from emulated_run import emulated_gpu
from mlx.utils import tree_flatten
from test_compiled_step import Case  # pyright: ignore[reportMissingImports]

from puffer_mlx import config
from puffer_mlx.check.gpu import kernels
from puffer_mlx.export.formats.onnx import run_onnx, save_onnx
from puffer_mlx.export.infer import infer_settings, infer_torch_settings
from puffer_mlx.export.weight_layouts import from_torch, stacked_state, to_torch
from puffer_mlx.policy.policy import make_policy
from puffer_mlx.spec import ActionSpec, EnvSpec
from puffer_mlx.trees import named_arrays

mx.set_default_device(mx.cpu)
T, N, D, H, L = 5, 21, 6, 12, 2
SPEC = EnvSpec("x", D, np.dtype(np.float32), ActionSpec((3,)))
rng = np.random.default_rng(0)


def normal(*shape):
    return rng.normal(size=shape).astype(np.float32)


def apart(found, expected):
    """Return the largest difference between the arrays of two trees."""
    pairs = zip(tree_flatten(found), tree_flatten(expected), strict=True)
    return max(float(np.abs(np.array(a) - np.array(b)).max()) for (_, a), (_, b) in pairs)


def policy_of(dialect):
    sizes = config.Policy(hidden_size=H, num_layers=L, dialect=dialect)
    return make_policy(SPEC, sizes, config.Torch(network="Leaky"))


def step_by_step(policy, weights, observations):
    """Evaluate a policy step by step in MLX: outputs, values and the last state."""
    state, outputs, values = policy.initial_state(N), [], []
    for row in observations:
        out, value, state = policy.step(weights, mx.array(row), state)
        outputs.append(out.T)
        values.append(value)
    return mx.stack(outputs), mx.stack(values), state


def compiled_step(policy):
    """Compare a policy's step in C with MLX; return the largest error."""
    case = Case(policy).run()
    return apart(case.found(), case.expected())


def cpu_cell():
    """Compare the planted network's C++ cell with its oracle, forward and backward.

    Returns the largest error.
    """
    case = kernels.operation_cases()["Leaky"]
    found = case.run(mx.Device(mx.cpu), mx.float32)
    assert found is not None, "there is no extension"
    return apart(found, case.expect(mx.float32))


def gpu_text(backend):
    """Compare the planted network's GPU kernels, compiled as C++, with its oracle.

    Returns the largest error.
    """
    from puffer_mlx.policy.networks.leaky import (  # pyright: ignore[reportMissingImports]
        leaky_backward,
        leaky_forward,
    )

    case = kernels.operation_cases()["Leaky"]
    inputs = [*case.low, *case.states, case.not_done]
    out, *gradients = case.expect(mx.float32)
    after = [*inputs, np.array(out), case.cotangent]
    with emulated_gpu(backend=backend, checked=True):
        found = [leaky_forward(*map(mx.array, inputs)), *leaky_backward(*map(mx.array, after))]
    return apart([np.array(array) for array in found], [out, *gradients])


def torch_module(policy, weights, expected, observations):
    import torch

    from puffer_mlx.export.torch_modules import make_module

    module = make_module(policy)
    tensors = to_torch(policy, weights)
    module.load_state_dict({key: torch.from_numpy(a.copy()) for key, a in tensors.items()})
    with torch.no_grad():
        outputs, values, state = module(torch.from_numpy(observations).transpose(0, 1))
    found = outputs.transpose(0, 1).numpy(), values.T.numpy(), [a.numpy() for a in state[0]]
    assert apart(from_torch(policy, tensors), weights) == 0
    return apart(found, expected), infer_torch_settings(Path("x.pt"), tensors)


def onnx_graph(policy, weights, expected, observations, folder):
    path = folder / "step.onnx"
    save_onnx(policy, weights, path, {"puffer_mlx": "1"}, {})
    state = stacked_state(policy, policy.initial_state(N))
    found = run_onnx(path, observations, state)
    return apart((found["logits"], found["value"], list(found["state"])), expected)


def main() -> None:
    folder = Path(sys.argv[1])
    policy, observations = policy_of("torch"), normal(T, N, D)
    weights = policy.init(mx.random.key(0))
    expected = step_by_step(policy, weights, observations)
    torch_apart, torch_settings = torch_module(policy, weights, expected, observations)
    native = policy_of("native")
    drawn = native.init(mx.random.key(1))
    print(
        json.dumps(
            {
                "package": str(Path(puffer_mlx.__file__).parent),
                "choices": config.Torch.__dataclass_fields__["network"].metadata["key"].choices,
                "compiled step": compiled_step(native),
                "cell on a CPU": cpu_cell(),
                "Metal's text": gpu_text("metal"),
                "CUDA's text": gpu_text("cuda"),
                "ONNX": onnx_graph(policy, weights, expected, observations, folder),
                "torch": torch_apart,
                "settings by torch's keys": torch_settings,
                "settings by our names": infer_settings(dict(named_arrays(drawn))),
            }
        )
    )


main()
