"""Building and loading the CPU extension."""

import itertools
import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import mlx.core as mx
import pytest
from packaging.requirements import Requirement
from running import BATCH, EPOCHS, TINY, only

from puffer_mlx.errors import UserError
from puffer_mlx.ops import cpu_extension
from puffer_mlx.system import prebuilt

ROOT = Path(__file__).parents[2]
KIND = re.compile(rb"nanobind_\w+_a\d+_v\d+\w*")  # a compiler's kind, and nanobind's internals


def required(name: str) -> list[Requirement]:
    """Return what pyproject.toml requires of a package, on all systems and in all extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    texts = itertools.chain(project["dependencies"], *project["optional-dependencies"].values())
    return [each for each in map(Requirement, texts) if each.name == name]


ANOTHER_MLX = """
import importlib.metadata, sys
from types import SimpleNamespace

installed = importlib.metadata.version
importlib.metadata.version = lambda name: sys.argv[1] if name == "mlx" else installed(name)
from puffer_mlx.ops import cpu_extension

def refuse(*_):
    raise TypeError("gelu_forward(): incompatible function arguments. The following ...")

cpu_extension._find_or_compile = lambda: SimpleNamespace(gelu_forward=refuse)
from puffer_mlx.cli import main

sys.exit(main.main(["train", *sys.argv[2:]]))
"""


@pytest.mark.processes
@pytest.mark.parametrize(
    ("mlx", "hint"),
    [
        ("0.32.4", "pip install 'nanobind>=3.0.1,<3.2'"),
        ("0.33.0.dev20270101", "pip install 'mlx<0.33', or a newer puffer_mlx"),
        ("1.0", "pip install 'mlx<0.33', or a newer puffer_mlx"),
    ],
)
def test_mlx_that_does_not_fit_trains_without_the_extension(tmp_path, mlx, hint):
    """nanobind's internals differ: the extension loads, but refuses MLX's arrays."""
    environment = {name: text for name, text in os.environ.items() if "NO_CPU_OPS" not in name}
    words = [sys.executable, "-c", ANOTHER_MLX, mlx, *TINY]
    done = subprocess.run(
        words,
        cwd=tmp_path,
        env=environment | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stderr.splitlines() if "compiling" not in line]
    assert lines == [
        "puffer_mlx: training on the CPU will be several times slower:"
        f" nanobind {version('nanobind')} doesn't fit MLX {mlx}; hint: {hint}"
    ]
    only(tmp_path, f"checkpoints/squared/*/{EPOCHS * BATCH:016d}/state.safetensors")


def test_requirements_allow_any_newer_mlx_and_the_tested_nanobind():
    assert required("nanobind") == [Requirement(cpu_extension.NANOBIND_REQUIREMENT)]
    assert "<" in cpu_extension.NANOBIND_REQUIREMENT
    operators = [[each.operator for each in mlx.specifier] for mlx in required("mlx")]
    assert operators == [[">="]] * 3


def test_extension_has_the_nanobind_abi_of_mlx(extension):
    ours, mlxs = (
        set(KIND.findall(Path(str(module.__file__)).read_bytes())) for module in (extension, mx)
    )
    assert ours == mlxs and len(ours) == 1


# ---- of the wheel --------------------------------------------------------------------------------

OURS = SimpleNamespace(gelu_forward=lambda array: array)


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    """Return a function that adds a prebuilt CPU extension to the package's folder."""
    monkeypatch.setattr(prebuilt, "FOLDER", tmp_path)
    monkeypatch.delenv("PUFFER_MLX_NO_PREBUILT", raising=False)
    monkeypatch.delenv("PUFFER_MLX_NO_CPU_OPS", raising=False)
    monkeypatch.setattr(cpu_extension, "_import_library", lambda path: OURS)

    def bring(**built_for: str) -> None:
        library = tmp_path / "compiled"
        library.write_bytes(b"machine code")
        prebuilt.add_library(
            tmp_path, "cpu_ops", "", cpu_extension.built_for() | built_for, library
        )

    return bring


def no_compiler(again: bool = False, because: str = ""):
    raise UserError("the compiler 'c++' can't be run", f"because {because}")


def test_extension_of_the_wheel_needs_no_compiler(wheel, monkeypatch):
    monkeypatch.setattr(cpu_extension, "compile_extension", no_compiler)
    wheel()
    assert cpu_extension._find_or_compile() is OURS


@pytest.mark.parametrize("fault", ["for MLX 0.1.2, not", "no such symbol"])
def test_unusable_extension_of_the_wheel_is_replaced(wheel, monkeypatch, fault):
    asked, loaded = [], []
    errors = {"no such symbol": ImportError("no such symbol\n...")}

    def make(again: bool = False, because: str = "") -> Path:
        asked.append(because)
        return Path("/nowhere/compiled here.so")

    def load(path: Path) -> SimpleNamespace:
        loaded.append(path.name)
        if path.name != "compiled here.so":
            raise errors[fault]
        return OURS

    monkeypatch.setattr(cpu_extension, "compile_extension", make)
    monkeypatch.setattr(cpu_extension, "_import_library", load)
    wheel(**({} if fault in errors else {"MLX": "0.1.2"}))
    assert cpu_extension._find_or_compile() is OURS
    assert loaded[-1] == "compiled here.so" and len(loaded) == 1 + (fault in errors)
    assert len(asked) == 1 and fault in asked[0]


@pytest.mark.parametrize("built_for", [{"MLX": "0.1.2"}, None])
def test_missing_compiler_and_library_print_one_line(wheel, monkeypatch, capfd, built_for):
    monkeypatch.setattr(cpu_extension, "compile_extension", no_compiler)
    if built_for:
        wheel(**built_for)
    assert cpu_extension._load.__wrapped__() is None
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("puffer_mlx: training on the CPU will be several times slower: the comp")
    assert "install a C++20 compiler" in line
    assert ("pip install 'mlx==0.1.2'" in line) == (built_for == {"MLX": "0.1.2"})


def test_failed_compilation_with_a_newer_mlx_names_the_mlx_that_fits(wheel, monkeypatch, capfd):
    monkeypatch.setattr(cpu_extension, "version", lambda name: "0.33.1")
    monkeypatch.setattr(cpu_extension, "compile_extension", no_compiler)
    assert cpu_extension._load.__wrapped__() is None
    (line,) = capfd.readouterr().err.splitlines()
    assert line.endswith("; or pip install 'mlx<0.33', or a newer puffer_mlx")
