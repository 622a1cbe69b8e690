"""Texts of GPU kernels, and the checks before a launch."""

import math
import re
from pathlib import Path

import mlx.core as mx
import pytest
from emulated_run import minibatch_texts
from test_gpu_front_ends import plans, rows_kernels

from puffer_mlx import ops
from puffer_mlx.errors import UserError
from puffer_mlx.ops import advantages, draw
from puffer_mlx.ops.gpu import launch, nvrtc, text
from puffer_mlx.system.backend import building_for


def test_kernel_names_differ_if_their_texts_do(monkeypatch, tmp_path):
    """MLX caches compiled kernels by name."""
    names = []

    def make(**given):
        names.append(given["name"])
        return None

    monkeypatch.setattr(mx.fast, "cuda_kernel", make)
    monkeypatch.setattr(nvrtc, "load_nvrtc", lambda: None)
    for number, comment in enumerate(("", "", "// another text\n")):
        path = tmp_path / f"{number}.metal.h"
        path.write_text(
            advantages.KERNEL_FILE.read_text().replace("    float a", f"{comment}    float a")
        )
        launch.compiled_kernel(path, "advantages", "cuda")
    launch.compiled_kernel.cache_clear()
    assert names[0] == names[1] != names[2]
    assert all(name.startswith("advantages_") for name in names)


# ---- texts ---------------------------------------------------------------------------------------


def test_text_of_a_kernel_is_parsed(tmp_path):
    (tmp_path / "part.metal.h").write_text("  y[i] = SCALE * x[i];\n#undef SCALE\n")
    (tmp_path / "twice.metal.h").write_text(
        '#pragma once\n#include "gpu/functions.metal.h"\n#include "twice.metal.h"\n'
        "template <int N>\nFUNCTION int one() { return N; }\n"
        "KERNEL twice<Low, N>: Low x, float keep\n  -> Low y {\n"
        '#define SCALE 2\n#include "part.metal.h"\n}\n'
    )
    for backend in ("metal", "cuda"):
        (kernel,) = text.read_kernels(tmp_path / "twice.metal.h", backend).values()
        assert kernel.name == "twice" and kernel.template == ("Low", "N")
        assert kernel.inputs == {"x": "Low", "keep": "float"} and kernel.outputs == {"y": "Low"}
        assert kernel.header.count("one()") == kernel.header.count("float logistic(") == 1
        assert kernel.body.endswith("#define SCALE 2\n  y[i] = SCALE * x[i];\n#undef SCALE\n")
        assert "uint i = " in kernel.body and "#include" not in kernel.header + kernel.body
        assert "KERNEL" not in kernel.header + kernel.body


# ---- what Metal has room for ---------------------------------------------------------------------

PACKAGE = Path(ops.__file__).parents[1]
SHARED = re.compile(r"\bSHARED (float|int|Rows<4>) \w+\[([\w *]+)\];")
BYTES = {"float": 4, "int": 4, "Rows<4>": 16}


def metal_kernels(tmp_path):
    """Yield the Metal sources of all kernels, and of the rollouts of every network."""
    for path in (*sorted(PACKAGE.rglob("*.metal.h")), *minibatch_texts()):
        yield from text.read_kernels(path, "metal").values()
    (tmp_path / "rules.h").write_text("struct None {};\n")
    for path in sorted(
        (*PACKAGE.rglob(text.LAYERS_FILE), *PACKAGE.rglob("networks/*/" + text.ROWS_FILE))
    ):
        yield text.rollout_kernel(path, text.EnvRules(tmp_path / "rules.h", "None", False), "metal")


def test_kernels_keep_metals_limits(tmp_path):
    given = {"THREADS": draw.BLOCK_THREADS["metal"]}
    shared: dict[str, int] = {}
    for kernel in metal_kernels(tmp_path):
        arrays = len(kernel.inputs) + len(kernel.outputs)
        launch.check_metal_limits(kernel.name, arrays, launch.MAX_LAUNCH_THREADS, launch.THREADS)
        for type_, size in SHARED.findall(kernel.body):
            sizes = [str(given.get(word, word)) for word in size.split(" * ")]
            if all(each.isdigit() for each in sizes):
                n = BYTES[type_] * math.prod(int(each) for each in sizes)
                shared[kernel.name] = shared.get(kernel.name, 0) + n
        if kernel.name.endswith("_minibatch"):
            asked = [plan for low in (False, True) for plan in plans(kernel, "metal", low)]
            assert all(plan["THREADS"] <= launch.THREADS for plan in asked)
            pool = 4 * max(plan["POOL"] for plan in asked)
            shared[kernel.name] = shared.get(kernel.name, 0) + pool
    for kernel, _, sizes in rows_kernels("metal"):
        assert "SHARED uint8_t allowed[M * LEGAL];" in kernel.body
        assert not SHARED.search(kernel.body) and sizes["THREADS"] <= launch.THREADS
        shared[kernel.name] = 4 * sizes["POOL"] + sizes["M"] * sizes["LEGAL"]
    assert {"draw_rows", "muon_by_cluster", "mingru_minibatch"} <= {*shared}
    assert max(shared.values()) <= launch.SHARED_BYTES


@pytest.mark.parametrize(
    ("arrays", "threads", "block", "message"),
    [
        (31, 32, 32, "many has 32 arrays; on a Mac 31 are the most"),
        (1, 257, 257, "many has 257 threads in a block; on a Mac 256 are the most"),
        (1, 2**31, 256, "many has 2147483648 threads; on a Mac 2147483647 are the most"),
    ],
)
def test_launch_beyond_metals_limits_is_refused(tmp_path, arrays, threads, block, message):
    path, names = tmp_path / "many.metal.h", [f"a{n}" for n in range(arrays)]
    path.write_text(f"KERNEL many: float {' '.join(names)} -> float y {{\n  y[i] = 0;\n}}\n")

    def kernel(name, output_shapes, output_dtypes, **_):
        return [mx.zeros(*each) for each in zip(output_shapes, output_dtypes, strict=True)]

    def launched():
        given = dict.fromkeys(names, mx.zeros(8))
        return launch.launch(path, "many", given, {"y": (8,)}, threads, block)

    with building_for("cuda", kernel):
        assert launched()[0].shape == (8,)
    with building_for("metal", kernel), pytest.raises(UserError, match=message):
        launched()
