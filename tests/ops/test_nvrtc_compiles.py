"""GPU kernels compiled by NVRTC to the machine code of an H200, hardly optimized. Nothing is run.

The library is PyPI's `nvidia-cuda-nvrtc`, which needs no GPU and no driver.
"""

import ctypes
from importlib import metadata
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from test_gpu_front_ends import SIZES, STEPS, game, kernels, plans, rows_kernels

from puffer_mlx.ops.gpu import nvrtc, text

H200 = "sm_90"
ELF = b"\x7fELF"


def library() -> Any:
    """Load NVIDIA's compiler library NVRTC, or return None if it isn't installed."""
    try:
        files = metadata.files("nvidia-cuda-nvrtc") or []
    except metadata.PackageNotFoundError:
        return None
    names = [Path(str(file.locate())) for file in files if file.name in nvrtc.LIBRARY_NAMES]
    return ctypes.CDLL(str(names[0])) if names else None


NVRTC = library()
pytestmark = pytest.mark.skipif(NVRTC is None, reason="nvidia-cuda-nvrtc isn't installed")


def code(kernel: text.KernelSource, **template: Any) -> bytes:
    given = {name: template.get(name, SIZES.get(name, 3)) for name in kernel.template}
    program = nvrtc.cuda_program(kernel, given)
    quickly = program._replace(options=(*program.options, "--Ofast-compile=max"))
    return nvrtc.machine_code(NVRTC, quickly, H200)


@pytest.mark.parametrize(("low", "seats"), [(mx.float32, 0), (mx.bfloat16, 0), (mx.float32, 1)])
def test_kernels_without_a_pool_compile(low, seats):
    for kernel in (each for each in kernels("cuda", seats) if "POOL" not in each.template):
        given = {"Low": low, "PLAYERS": seats, "HEADS": 0 if seats else 3}
        for plan in plans(kernel, "cuda", low == mx.bfloat16):
            assert code(kernel, **given, **plan).startswith(ELF)


@pytest.mark.processes
@pytest.mark.parametrize("low", [mx.float32, mx.bfloat16])
def test_kernels_with_a_pool_compile(low):
    every = [kernel for kernel in kernels("cuda") if "POOL" in kernel.template]
    names = [
        "mingru_minibatch",
        "mingru_minibatch_wide",
        "mingru_wide_gradients",
        "muon_by_block",
    ]
    assert sorted(kernel.name for kernel in every) == names
    sixteen = low == mx.bfloat16
    cases = [(kernel, plan) for kernel in every for plan in plans(kernel, "cuda", sixteen)]
    cases += [(kernel, sizes) for kernel, its, sizes in rows_kernels("cuda") if its == sixteen]
    for kernel, plan in cases:
        assert code(kernel, Low=low, **plan).startswith(ELF), kernel.name


@pytest.mark.parametrize("environment", ["craftax_classic", "g2048", "memory", "soccer"])
def test_environment_steps_compile(environment):
    spec, rules, given = game(environment)
    low = mx.float32 if spec.observation_dtype == "float32" else mx.uint8
    kernel = text.environment_kernel(rules, "cuda")
    machine_code = code(kernel, Low=low, **STEPS, **given)
    assert machine_code.startswith(ELF)
    assert (b"step_out_of_line" in machine_code) == (environment == "craftax_classic")  # a function
