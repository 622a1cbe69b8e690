"""The names at the top of the package: there when they are asked for, and not before."""

import subprocess
import sys

import pytest

import puffer_mlx


def test_the_names_are_few_and_seen():
    assert dir(puffer_mlx) == sorted(puffer_mlx.__all__)
    assert {name for name in puffer_mlx.__all__ if not hasattr(puffer_mlx, name)} == set()
    assert set(puffer_mlx._HOMES) == {*puffer_mlx.__all__} - {"__version__"}
    for name in puffer_mlx._HOMES:
        assert (getattr(puffer_mlx, name).__doc__ or "").strip(), name


def test_a_name_that_there_is_not():
    with pytest.raises(AttributeError, match="'puffer_mlx' has no attribute 'trian'"):
        puffer_mlx.trian  # type: ignore  # noqa: B018


def test_importing_the_package_imports_nothing_large():
    code = "import sys, puffer_mlx; dir(puffer_mlx)"
    code += "; sys.exit(bool({'mlx.core', 'numpy', 'gymnasium'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
