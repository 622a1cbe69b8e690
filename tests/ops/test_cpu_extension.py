"""What the extension is built with: nanobind of MLX's kind, or one line and no extension."""

import re
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import mlx.core as mx
import pytest
from packaging.requirements import Requirement

from puffer_mlx.ops import cpu_extension

ROOT = Path(__file__).parents[2]
KIND = re.compile(rb"nanobind_\w+_a\d+_v\d+\w*")  # a compiler's kind, and nanobind's internals


def dependencies() -> dict[str, Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found = map(Requirement, project["dependencies"])
    return {requirement.name: requirement for requirement in found}


def refuse(*_):
    raise TypeError("gelu_forward(): incompatible function arguments. The following ...\n  1. ...")


def test_a_nanobind_of_another_kind_costs_one_line(monkeypatch, capfd):
    """What nanobind 2.15 does beside MLX 0.32.4: it loads, then refuses MLX's arrays."""
    monkeypatch.delenv("PUFFER_MLX_NO_CPU_OPS", raising=False)
    monkeypatch.setattr(cpu_extension, "_build", lambda: SimpleNamespace(gelu_forward=refuse))
    assert cpu_extension._load.__wrapped__() is None
    out, err = capfd.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    assert re.fullmatch(
        r"puffer_mlx: training on the CPU will be three times slower: nanobind [\d.]+ isn't of the"
        r" kind that MLX [\d.]+ uses; hint: pip install 'nanobind>=[^']+'.*",
        line,
    )


def test_the_hint_is_what_the_project_asks_for():
    assert Requirement(cpu_extension.NANOBIND) == dependencies()["nanobind"]


@pytest.mark.parametrize("name", ["nanobind", "mlx"])
def test_the_next_version_is_not_taken_unseen(name):
    """Its internals may be others; those between the bounds were looked at."""
    bounds = {specifier.operator for specifier in dependencies()[name].specifier}
    assert {">=", "<"} <= bounds


def test_the_extension_is_of_mlxs_kind(extension):
    ours, mlxs = (
        set(KIND.findall(Path(str(module.__file__)).read_bytes())) for module in (extension, mx)
    )
    assert ours == mlxs and len(ours) == 1


def test_without_a_compiler_the_hint_is_the_systems(monkeypatch, capfd):
    monkeypatch.delenv("PUFFER_MLX_NO_CPU_OPS", raising=False)
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert cpu_extension._load.__wrapped__() is None
    (line,) = capfd.readouterr().err.splitlines()
    assert "'no-such-compiler' can't be run" in line and "xcode-select --install" in line
    assert "Debian" not in line and "apt" not in line


def test_a_damaged_extension_is_compiled_again(monkeypatch):
    """What doesn't load from the cache; the hash of what was written is tested in test_build.py."""
    asked = []

    def make(again: bool = False) -> Path:
        asked.append(again)
        return Path("/nowhere") / ("whole.so" if again else "damaged.so")

    def load(path: Path) -> SimpleNamespace:
        if path.stem == "damaged":
            raise ImportError("file too short")
        return SimpleNamespace(path=path)

    monkeypatch.setattr(cpu_extension, "_compile", make)
    monkeypatch.setattr(cpu_extension, "_import", load)
    assert cpu_extension._build().__dict__ == {"path": Path("/nowhere/whole.so")}
    assert asked == [False, True]
