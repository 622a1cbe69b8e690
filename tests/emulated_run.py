"""Whole runs as a GPU computes them, without one: every kernel that is launched runs as C++.

The graphs are those that are built for CUDA (`system/backend.py`); what isn't a kernel of ours is
computed by MLX on the CPU. A kernel is called when it is launched, not when its results are needed,
so nothing is compiled by MLX meanwhile.
"""

import contextlib
import ctypes
import functools
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from emulated_gpu import SHIM, Recorder, compiled, from_memory, to_memory

import puffer_mlx
from puffer_mlx.ops.gpu import launch, text
from puffer_mlx.policy.networks.catalog import FORMS
from puffer_mlx.ppo import minibatch
from puffer_mlx.rollout.on_gpu import rollouts_in_one_launch
from puffer_mlx.system.backend import building_for
from puffer_mlx.training.placement import Acting, Placement
from puffer_mlx.vec.native.gpu_rules import gpu_rules
from puffer_mlx.vec.native.make import find_environment, open_environment, read_spec

PACKAGE = Path(puffer_mlx.__file__).parent


def minibatch_texts() -> list[text.ComposedKernel]:
    """Return the texts of all minibatch kernels, each composed with a network's file."""
    folders = [forms.matrix_units for forms in FORMS.values() if forms.matrix_units]
    kernels = minibatch.KERNEL, minibatch.WIDE
    return [text.ComposedKernel(k, folder / text.WALKS) for k in kernels for folder in folders]


@functools.cache
def _texts() -> dict[str, text.Kernel]:
    """Every kernel by its name, of which there must be one."""
    paths = [*PACKAGE.rglob("*.metal.h"), *minibatch_texts()]
    found = [kernel for path in paths for kernel in text.kernels(path, "cuda").values()]
    named = {kernel.name: kernel for kernel in found}
    assert len(named) == len(found), sorted(kernel.name for kernel in found)
    return named


@functools.cache
def _text(name: str, folders: tuple[Path, ...]) -> text.Kernel:
    """A kernel's; that of a rollout is made of its network's and its environment's.

    ``folders`` are those of environments that don't come with puffer_mlx.
    """
    if not name.startswith(("rollout_", "rows_", "step_")):
        return _texts()[name]
    form, *network, environment = name.split("_", 1 if name.startswith("step_") else 2)
    beside = {folder.name: folder for folder in folders}
    folder = beside.get(environment) or find_environment(environment)
    library = open_environment(folder)
    rules = gpu_rules(folder, library, read_spec(folder, library))
    assert rules is not None
    game = text.EnvRules(*rules[:3])
    if form == "step":
        return text.environments(game, "cuda")
    file = text.ROWS if form == "rows" else text.LAYERS
    return text.rollout(PACKAGE / "policy" / "networks" / network[0] / file, game, "cuda")


def _written(kernel: text.Kernel) -> set[str]:
    """The inputs that a kernel writes to."""
    return set(re.findall(r"WRITTEN\(\w+, (\w+)\)", kernel.body)) & set(kernel.inputs)


class Emulator:
    """Calls kernels; `names` are those that were."""

    def __init__(self, folders: tuple[Path, ...]) -> None:
        self.names: set[str] = set()
        self._folders = folders
        self._functions: dict[tuple, Any] = {}

    def __call__(self, name: str, **given: Any) -> list[mx.array]:
        """A kernel's outputs, for the arguments by which MLX's own are called."""
        self.names.add(name)
        kernel = _text(name, self._folders)
        inputs, dtypes = given["inputs"], given["output_dtypes"]
        memory = [to_memory(np.array(_plain(a)).ravel(), a.dtype) for a in inputs]
        sizes = [int(np.prod(shape)) for shape in given["output_shapes"]]
        written = [to_memory(np.full(n, 7), d) for n, d in zip(sizes, dtypes, strict=True)]
        # one more number: an address even where there is none
        arrays = [np.concatenate([a, np.zeros(1, a.dtype)]) for a in (*memory, *written)]
        pointers = (ctypes.c_void_p * len(arrays))(*(a.ctypes.data for a in arrays))
        run = self._function(kernel, given)
        assert run(pointers, given["grid"][0], given["threadgroup"][0], 0)
        found = arrays[len(memory) :]
        for key, array, after in zip(kernel.inputs, inputs, arrays, strict=False):
            if key in _written(kernel):  # memory that MLX knows as an input
                np.asarray(array)[...] = after[:-1].reshape(array.shape)
        return [
            mx.array(from_memory(a[:-1], d)).astype(d).reshape(shape)
            for a, d, shape in zip(found, dtypes, given["output_shapes"], strict=True)
        ]

    def _function(self, kernel: text.Kernel, given: dict[str, Any]) -> Any:
        types = tuple(a.dtype for a in given["inputs"])
        key = (kernel.name, tuple(map(str, given["template"])), types)
        if key not in self._functions:
            self._functions[key] = compiled_kernel(kernel, given)
        return self._functions[key]


def _plain(array: mx.array) -> mx.array:
    """Something that NumPy knows: bfloat16 as float32."""
    return array.astype(mx.float32) if array.dtype == mx.bfloat16 else array


def compiled_kernel(kernel: text.Kernel, given: dict[str, Any]) -> Any:
    """The C++ function of a kernel."""
    name = kernel.name
    call = {
        **given,
        "input_names": list(kernel.inputs),
        "output_names": list(kernel.outputs),
        "header": kernel.before,
        "source": kernel.body,
    }
    code = SHIM + Recorder("cuda")._cuda(f"of_{name}", call, "")
    with tempfile.TemporaryDirectory() as folder:
        return getattr(compiled(name, code, Path(folder)), f"of_{name}_run")


@contextlib.contextmanager
def emulated_gpu(*folders: Path) -> Iterator[Emulator]:
    """Within, everything is computed as on a GPU; environments of these folders, too."""
    emulator = Emulator(folders)
    mx.disable_compile()
    try:
        with building_for("cuda", emulator), pytest.MonkeyPatch.context() as patch:
            patch.setattr(launch, "cluster_blocks", lambda: 1)  # blocks run one after the other
            yield emulator
    finally:
        mx.enable_compile()


def rolling_out_there(acting: Acting, *_: Any) -> Placement:
    """For ``trainer.place``: a GPU that is the CPU computes all, rollouts in one launch."""
    whole = rollouts_in_one_launch(acting.policy, acting.vec, acting.config.train.horizon)
    return Placement(mx.Device(mx.cpu), mx.Device(mx.cpu), gpu_rollouts=whole)


def stand_in(monkeypatch: pytest.MonkeyPatch, item: ModuleType) -> None:
    """What an item of check_gpu computes on a GPU is computed by kernels that run as C++."""

    def on(device: mx.Device) -> contextlib.AbstractContextManager[Any]:
        return emulated_gpu() if device.type == mx.gpu else contextlib.nullcontext()

    monkeypatch.setattr(item, "on", on)
    monkeypatch.setattr(item, "need_gpu", lambda: None)
