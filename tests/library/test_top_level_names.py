"""The names at the top of the package: there when they are asked for, and not before."""

import os
import subprocess
import sys

import pytest

import puffer_mlx


def test_public_names_exist_and_are_documented():
    assert dir(puffer_mlx) == sorted(puffer_mlx.__all__)
    assert {name for name in puffer_mlx.__all__ if not hasattr(puffer_mlx, name)} == set()
    assert set(puffer_mlx._MODULES) == {*puffer_mlx.__all__} - {"__version__"}
    for name in puffer_mlx._MODULES:
        assert (getattr(puffer_mlx, name).__doc__ or "").strip(), name


def test_vec_is_imported_on_first_access():
    code = "import puffer_mlx; puffer_mlx.vec.make"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="'puffer_mlx' has no attribute 'trian'"):
        puffer_mlx.trian  # type: ignore  # noqa: B018


IMPORTED = """
import importlib, os, sys
import puffer_mlx
dir(puffer_mlx)
assert not {"mlx.core", "numpy", "gymnasium"} & set(sys.modules)
assert os.environ["MLX_USE_CUDA_GRAPHS"] == "0"  # said before MLX loads
os.environ["MLX_USE_CUDA_GRAPHS"] = "1"
importlib.reload(puffer_mlx)
assert os.environ["MLX_USE_CUDA_GRAPHS"] == "1"  # what the environment says stays
"""


def test_importing_the_package_imports_nothing_large():
    environment = {k: value for k, value in os.environ.items() if k != "MLX_USE_CUDA_GRAPHS"}
    assert subprocess.run([sys.executable, "-c", IMPORTED], env=environment).returncode == 0
