"""Building and loading the CPU extension."""

import re
import tomllib
from pathlib import Path
from types import SimpleNamespace

import mlx.core as mx
import pytest
from packaging.requirements import Requirement

from puffer_mlx.errors import UserError
from puffer_mlx.ops import cpu_extension
from puffer_mlx.system import prebuilt

ROOT = Path(__file__).parents[2]
KIND = re.compile(rb"nanobind_\w+_a\d+_v\d+\w*")  # a compiler's kind, and nanobind's internals


def dependencies() -> dict[str, Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found = map(Requirement, project["dependencies"])
    return {requirement.name: requirement for requirement in found}


def refuse(*_):
    raise TypeError("gelu_forward(): incompatible function arguments. The following ...\n  1. ...")


def test_incompatible_nanobind_prints_one_line(monkeypatch, capfd):
    monkeypatch.delenv("PUFFER_MLX_NO_CPU_OPS", raising=False)
    monkeypatch.setattr(cpu_extension, "_build", lambda: SimpleNamespace(gelu_forward=refuse))
    assert cpu_extension._load.__wrapped__() is None
    out, err = capfd.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    assert re.fullmatch(
        r"puffer_mlx: training on the CPU will be several times slower: nanobind [\d.]+ isn't of"
        r" the kind that MLX [\d.]+ uses; hint: pip install 'nanobind>=[^']+'.*",
        line,
    )


def test_hint_names_the_version_in_pyproject():
    assert Requirement(cpu_extension.NANOBIND) == dependencies()["nanobind"]
    for name in ("nanobind", "mlx"):
        assert {">=", "<"} <= {each.operator for each in dependencies()[name].specifier}


def test_extension_has_the_nanobind_abi_of_mlx(extension):
    ours, mlxs = (
        set(KIND.findall(Path(str(module.__file__)).read_bytes())) for module in (extension, mx)
    )
    assert ours == mlxs and len(ours) == 1


# ---- of the wheel --------------------------------------------------------------------------------

OURS = SimpleNamespace(gelu_forward=lambda array: array)


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    """Return a function that adds a prebuilt extension to the package's folder."""
    monkeypatch.setattr(prebuilt, "FOLDER", tmp_path)
    monkeypatch.delenv("PUFFER_MLX_NO_PREBUILT", raising=False)
    monkeypatch.delenv("PUFFER_MLX_NO_CPU_OPS", raising=False)
    monkeypatch.setattr(cpu_extension, "_import", lambda path: OURS)

    def bring(**made_for: str) -> None:
        library = tmp_path / "compiled"
        library.write_bytes(b"machine code")
        prebuilt.add(tmp_path, "cpu_ops", "", cpu_extension.made_for() | made_for, library)

    return bring


def no_compiler(again: bool = False, because: str = ""):
    raise UserError("the compiler 'c++' can't be run", f"because {because}")


def test_extension_of_the_wheel_needs_no_compiler(wheel, monkeypatch):
    monkeypatch.setattr(cpu_extension, "compile_extension", no_compiler)
    wheel()
    assert cpu_extension._build() is OURS


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
    monkeypatch.setattr(cpu_extension, "_import", load)
    wheel(**({} if fault in errors else {"MLX": "0.1.2"}))
    assert cpu_extension._build() is OURS
    assert loaded[-1] == "compiled here.so" and len(loaded) == 1 + (fault in errors)
    assert len(asked) == 1 and fault in asked[0]


@pytest.mark.parametrize("made_for", [{"MLX": "0.1.2"}, None])
def test_missing_compiler_and_library_print_one_line(wheel, monkeypatch, capfd, made_for):
    monkeypatch.setattr(cpu_extension, "compile_extension", no_compiler)
    if made_for:
        wheel(**made_for)
    assert cpu_extension._load.__wrapped__() is None
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("puffer_mlx: training on the CPU will be several times slower: the comp")
    assert "install a C++20 compiler" in line
    assert ("pip install 'mlx==0.1.2'" in line) == (made_for == {"MLX": "0.1.2"})
