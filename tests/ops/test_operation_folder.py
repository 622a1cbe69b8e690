"""An operation with every form is one new folder: planted in a copy of the package, it works."""

import os
import subprocess
import sys

from running import copied_package

FOLDER = {
    "__init__.py": '''"""Half of each number."""

from pathlib import Path

import mlx.core as mx

from puffer_mlx.ops.choice import fused
from puffer_mlx.ops.gpu.launch import launch

TEXT = Path(__file__).with_name("halve.metal.h")


def launch_halve(x):
    return launch(TEXT, "halve", {"x": x}, {"y": x.shape}, x.size, N=x.size)[0]


@fused("one pass", test="", cost="", on_gpu=launch_halve, on_cpu="halve")
def halve(x: mx.array) -> mx.array:
    return x * 0.5
''',
    "halve.metal.h": """#pragma once

KERNEL halve<Low, N>: Low x -> Low y {
  if (i < (uint)N) y[i] = (Low)(0.5f * (float)x[i]);
}
""",
    "halve.h": """#pragma once

#include "ops/cpu/binding.h"
#include "ops/cpu/node.h"

namespace puffer {

inline Array halve(const Array& x) {
  expect_shapes("halve: x must be float32", {{x, x.shape()}});
  auto kernel = [size = x.size()](const Buffers& in, const Outputs& to) {
    for (size_t i = 0; i < size; ++i) floats(to, 0)[i] = 0.5f * floats(in, 0)[i];
  };
  return call("Halve", kernel, {x}, {x.shape()})[0];
}

OPERATION(halve);

}  // namespace puffer
""",
}
PROGRAM = """
import puffer_mlx
import mlx.core as mx
from puffer_mlx.ops.gpu import text
from puffer_mlx.ops.halve import TEXT, halve
from puffer_mlx.system.backend import building_for

x = mx.arange(-3.0, 4.0)
assert mx.array_equal(halve(x), 0.5 * x)
print("C++" if halve.form() else "plain MLX")
calls = []
with building_for("cuda", lambda name, **given: calls.append((name, given)) or [mx.zeros(7)]):
    halve(x)
((name, given),) = calls
assert name == "halve" and given["template"] == [("Low", mx.float32), ("N", 7)]
assert "y[i] = (Low)(0.5f * (float)x[i]);" in text.kernels(TEXT, "cuda")["halve"].body
"""


def test_an_operation_is_one_folder(tmp_path):
    folder = copied_package(tmp_path) / "ops" / "halve"
    folder.mkdir()
    for name, text in FOLDER.items():
        (folder / name).write_text(text)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    expected = "plain MLX" if "PUFFER_MLX_NO_CPU_OPS" in os.environ else "C++"
    assert done.stdout == f"{expected}\n"
