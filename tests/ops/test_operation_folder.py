"""An operation with every form is one new folder: planted in a copy of the package, it works."""

import os
import subprocess
import sys

from running import planted_package

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
    planted_package(tmp_path)
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
