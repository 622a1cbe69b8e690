#!/usr/bin/env python
"""Compare exports with PyTorch on a GPU: python benchmarks/export_parity.py [CHECKPOINT ...].

Exports policies of every network, weight layout and encoder, with random weights and inputs, and
the given checkpoints, with their recorded observations. The exported state_dicts are loaded into
PufferLib's torch classes on CUDA and run on entire sequences, without TF32 on both sides. Prints
the largest difference of any output and of the last state, relative to the output's largest value.
The exit code is 1 if a difference is above the bound.
"""

# ruff: noqa: I001
import argparse
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

os.environ["MLX_ENABLE_TF32"] = "0"  # read when MLX starts

import puffer_mlx  # noqa: F401  first: it chooses MLX's BLAS, before MLX loads
import mlx.core as mx
import numpy as np
import torch
from mlx.utils import tree_map

from puffer_mlx import checkpoint
from puffer_mlx.config import Policy, Torch
from puffer_mlx.export.weight_layouts import layout_of, to_layout
from puffer_mlx.export.formats.torch import run_torch, save_torch
from puffer_mlx.system.json_text import write_json
from puffer_mlx.export.parity import largest_difference, policy_outputs
from puffer_mlx.policy.policy import make_policy
from puffer_mlx.spec import ActionSpec, EnvSpec
from puffer_mlx.system.devices import select_device
from puffer_mlx.system.version import version_text

BOUND = 1e-4
DISCRETE, MULTI, CONTINUOUS = (4,), (3, 5, 2), (1, 1, 1)
SHAPES = {"NatureEncoder": (84, 84, 4), "ImpalaEncoder": (36, 36, 1)}
POLICIES = [  # weight layout, network, layers, actions, encoder
    *(("native", network, 2, DISCRETE, "DefaultEncoder") for network in ("MinGRU", "MLP")),
    *(
        ("torch", network, 2, sizes, "DefaultEncoder")
        for network in ("MinGRU", "LSTM", "GRU", "MLP")
        for sizes in (DISCRETE, MULTI, CONTINUOUS)
    ),
    *(("torch", "MinGRU", 1, DISCRETE, encoder) for encoder in SHAPES),
    *(("puffer3", "LSTM", 1, sizes, "DefaultEncoder") for sizes in (DISCRETE, CONTINUOUS)),
]


class Case(NamedTuple):
    """A policy whose export to PyTorch is tested, and the observations to run it on."""

    name: str
    policy: Any
    weights: Any
    observations: np.ndarray  # (T, S, D)


def random_cases(options: argparse.Namespace) -> Iterator[Case]:
    """Yield policies to export, of all kinds in ``POLICIES``, with random weights and inputs."""
    rng = np.random.default_rng(0)
    for layout, network, layers, sizes, encoder in POLICIES:
        shape = SHAPES.get(encoder, ())
        D = int(np.prod(shape)) if shape else 118
        dtype = np.dtype(np.uint8 if shape else np.float32)
        spec = EnvSpec("random", D, dtype, ActionSpec(sizes), 0, shape)
        settings = Policy(options.hidden, layers, layout)
        policy = make_policy(spec, settings, Torch(network=network, encoder=encoder))
        weights = tree_map(
            lambda w: w + mx.array(rng.uniform(-0.02, 0.02, w.shape).astype(np.float32)),
            policy.init(mx.random.key(0)),
        )
        S = options.sequences if not shape else max(1, options.sequences // 16)
        if shape:
            observations = rng.integers(0, 256, (options.steps, S, D)).astype(np.uint8)
        else:
            observations = rng.normal(size=(options.steps, S, D)).astype(np.float32)
        name_parts = layout, network, f"{layers} layers", f"actions {list(sizes)}", encoder
        yield Case(" ".join(name_parts), policy, weights, observations)


def checkpoint_cases(paths: list[Path]) -> Iterator[Case]:
    """Yield the policies of checkpoints, to export, with their recorded observations."""
    for path in paths:
        loaded = checkpoint.load(path)
        recorded = checkpoint.recorded(path)
        assert recorded is not None, f"{path} has no recorded observations"
        yield Case(str(path), loaded.policy, loaded.weights, np.array(recorded))


def difference(case: Case, folder: Path, device: str) -> float:
    """Export a policy, run the export with PyTorch, and return the largest difference."""
    policy, weights = case.policy, case.weights
    if layout_of(policy) == "native":
        policy, weights = to_layout(policy, weights, "torch")
    path = folder / "policy.pt"
    save_torch(policy, weights, path)
    tensors = torch.load(path, map_location=device, weights_only=True)
    torch_outputs = run_torch(policy, tensors, case.observations, device)
    ours = policy_outputs(case.policy, case.weights, case.observations)
    return largest_difference(ours, torch_outputs)[0]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("checkpoints", nargs="*", type=Path, metavar="CHECKPOINT")
    parser.add_argument("--torch-device", default="cuda")
    parser.add_argument("--device", choices=("auto", "cpu", "gpu"), default="auto", help="MLX's")
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--sequences", type=int, default=256)
    parser.add_argument("--json", metavar="FILE", type=Path)
    options = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    select_device(options.device)
    on = options.torch_device
    name = torch.cuda.get_device_name() if on.startswith("cuda") else on
    print(f"{version_text()}\ntorch {torch.__version__} on {name}\n")
    differences = {}
    with tempfile.TemporaryDirectory() as folder:
        for case in (*random_cases(options), *checkpoint_cases(options.checkpoints)):
            differences[case.name] = difference(case, Path(folder), on)
            print(f"{differences[case.name]:9.2e}  {case.name}", flush=True)
    failed = [name for name, value in differences.items() if not value <= BOUND]
    print(
        f"\nlargest {max(differences.values()):.2e}, bound {BOUND:g}: {'FAIL' if failed else 'ok'}"
    )
    if options.json:
        settings = {key: str(value) for key, value in vars(options).items() if key != "json"}
        record = {"torch": torch.__version__, "device": name, "settings": settings}
        write_json({**record, "differences": differences}, options.json)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
