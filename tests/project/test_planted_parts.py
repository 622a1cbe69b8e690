"""A network and an operation have every form: each is a new folder in a copy of the package.

The network's PyTorch and ONNX forms are one more file, without which only safetensors hold it.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from running import ROOT, copied_package

from puffer_mlx.config.parts import network_folders

PACKAGE = ROOT / "puffer_mlx"
PLANTED = ROOT / "tests" / "planted"
CLOSE = 2e-5  # float32, sums in another order


@pytest.fixture(scope="module")
def planted(tmp_path_factory) -> Path:
    """A folder with a copy of the package and both, whose extension is compiled once: a minute."""
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


def test_the_configuration_knows_it(planted, found):
    assert found["package"] == str(planted / "puffer_mlx")
    assert "Leaky" in found["choices"] and set(network_folders()) < set(found["choices"])


@pytest.mark.parametrize(
    "form", ["compiled step", "cell on a CPU", "Metal's text", "CUDA's text", "ONNX", "torch"]
)
def test_a_form_computes_what_mlx_does(found, form):
    assert found[form] < CLOSE


@pytest.mark.parametrize(
    ("by", "dialect"), [("told by torch's keys", "torch"), ("told by our names", "native")]
)
def test_it_is_recognised(found, by, dialect):
    settings = {"torch.network": "Leaky", "policy.num_layers": "2", "policy.hidden_size": "12"}
    assert found[by].items() >= {**settings, "policy.dialect": dialect}.items()


@pytest.mark.parametrize("variables", [{}, {"PUFFER_MLX_NO_CPU_OPS": "1"}], ids=["c++", "mlx"])
def test_it_trains(planted, tmp_path, variables):
    sizes = {
        "vec.total-agents": 16,
        "train.horizon": 8,
        "train.minibatch-size": 64,
        "train.total-timesteps": 256,
        "policy.hidden-size": 8,
        "policy.num-layers": 1,
        "checkpoint-dir": tmp_path / "checkpoints",
        "log-dir": tmp_path / "logs",
        "eval-episodes": 0,
    }
    options = [part for key, value in sizes.items() for part in (f"--{key}", str(value))]
    command = ["squared", "--torch.network", "Leaky", "--device", "cpu", *options]
    run(planted, "-m", "puffer_mlx", "train", *command, **variables)
    (weights,) = (tmp_path / "checkpoints").rglob("0000000000000256/weights.safetensors")
    assert b"network.0.gate" in weights.read_bytes()


def test_no_file_outside_its_folder_names_a_network():
    """But for the configuration: a default, a help, a line about PufferLib's keys."""
    schema = {path.relative_to(PACKAGE).as_posix() for path in PACKAGE.glob("config/schema/*.py")}
    allowed = schema | {"config/compatibility.py"}
    for name, folder in network_folders().items():
        word = re.compile(rf"(?<![A-Za-z]){name}(?![a-z])|(?<![a-z]){folder.name}(?![a-z])", re.I)
        naming = {
            path.relative_to(PACKAGE).as_posix()
            for path in PACKAGE.rglob("*")
            if path.suffix in {".py", ".h", ".cpp", ".c"}
            and folder not in path.parents
            and path != PACKAGE / "export" / "networks" / f"{folder.name}.py"
            and word.search(path.read_text())
        }
        assert naming <= allowed, name


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
assert "y[i] = (Low)(0.5f * (float)x[i]);" in text.kernels(TEXT, "cuda")["halve"].body
"""


def test_an_operation_is_one_folder(planted):
    expected = "plain MLX" if "PUFFER_MLX_NO_CPU_OPS" in os.environ else "C++"
    assert run(planted, "-c", HALVES) == f"{expected}\n"
