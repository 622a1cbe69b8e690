"""A new folder in a copy of the package adds a network or an operation with all implementations.

One more file exports the network to PyTorch and ONNX.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from running import BATCH, EPOCHS, ROOT, TINY, copied_package, only

from puffer_mlx.config.components import network_folders

PLANTED = ROOT / "tests" / "planted"
CLOSE = 2e-5  # float32, sums in another order


@pytest.fixture(scope="module")
def planted(tmp_path_factory) -> Path:
    """Return a folder with a copy of the package and two planted parts: a network and an op."""
    folder = tmp_path_factory.mktemp("planted")
    copy = copied_package(folder)
    shutil.copytree(PLANTED / "leaky", copy / "policy" / "networks" / "leaky")
    shutil.copy(PLANTED / "leaky_export.py", copy / "export" / "networks" / "leaky.py")
    shutil.copytree(PLANTED / "halve", copy / "ops" / "halve")
    return folder


def run(planted: Path, *command: str, **variables: str) -> str:
    path = os.pathsep.join(map(str, (planted, ROOT / "tests")))
    done = subprocess.run(
        [sys.executable, *command],
        cwd=planted,
        env={**os.environ, "PYTHONPATH": path, **variables},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


@pytest.fixture(scope="module")
def found(planted, tmp_path_factory) -> dict:
    folder = tmp_path_factory.mktemp("forms")
    return json.loads(run(planted, str(PLANTED / "every_form.py"), str(folder)).splitlines()[-1])


def test_configuration_offers_the_network(planted, found):
    assert found["package"] == str(planted / "puffer_mlx")
    assert "Leaky" in found["choices"] and set(network_folders()) < set(found["choices"])


def test_every_implementation_computes_what_mlx_does(found):
    names = ("compiled step", "cell on a CPU", "Metal's text", "CUDA's text", "ONNX", "torch")
    assert {name: found[name] for name in names if not found[name] < CLOSE} == {}


def test_tensor_names_reveal_the_network_and_its_sizes(found):
    settings = {"torch.network": "Leaky", "policy.num_layers": "2", "policy.hidden_size": "12"}
    for names, layout in ("torch's keys", "torch"), ("our names", "native"):
        expected = {**settings, "policy.dialect": layout}
        assert found[f"settings by {names}"].items() >= expected.items()


@pytest.mark.parametrize("variables", [{}, {"PUFFER_MLX_NO_CPU_OPS": "1"}], ids=["c++", "mlx"])
def test_network_trains_and_saves_its_tensors(planted, tmp_path, variables):
    folders = ["--checkpoint-dir", tmp_path / "checkpoints", "--log-dir", tmp_path / "logs"]
    words = [*TINY, "--torch.network", "Leaky", "--eval-episodes", "0", *map(str, folders)]
    run(planted, "-m", "puffer_mlx", "train", *words, **variables)
    weights = only(tmp_path, f"checkpoints/squared/*/{EPOCHS * BATCH:016d}/weights.safetensors")
    assert b"network.0.gate" in weights.read_bytes()


HALVES = """
import puffer_mlx
import mlx.core as mx
from puffer_mlx.ops.gpu import text
from puffer_mlx.ops.halve import TEXT, halve
from puffer_mlx.system.backend import building_for

x = mx.arange(-3.0, 4.0)
assert mx.array_equal(halve(x), 0.5 * x)
print("C++" if halve.choose() else "plain MLX")
calls = []
with building_for("cuda", lambda name, **given: calls.append((name, given)) or [mx.zeros(7)]):
    halve(x)
((name, given),) = calls
assert name == "halve" and given["template"] == [("Low", mx.float32), ("N", 7)]
assert "y[i] = (Low)(0.5f * (float)x[i]);" in text.read_kernels(TEXT, "cuda")["halve"].body
"""


def test_operation_chooses_its_implementation(planted):
    expected = "plain MLX" if "PUFFER_MLX_NO_CPU_OPS" in os.environ else "C++"
    assert run(planted, "-c", HALVES) == f"{expected}\n"
