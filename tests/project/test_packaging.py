"""The wheel: everything a checkout has that runs must be in it, and nothing that doesn't."""

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import puffer_mlx

ROOT = Path(__file__).parents[2]
SHIPPED = {".py", ".c", ".cpp", ".h", ".ini"}


def built(kind: str, directory: Path) -> Path:
    """The one file that hatchling writes."""
    build = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(directory)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (path,) = directory.iterdir()
    return path


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return built("wheel", tmp_path_factory.mktemp("wheel"))


def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def test_the_wheel_has_every_source_and_configuration(wheel):
    places = {
        "puffer_mlx": "puffer_mlx",
        "envs": "puffer_mlx/envs",
        "configs": "puffer_mlx/configs",
    }
    expected = {
        f"{inside}/{path.relative_to(ROOT / folder).as_posix()}"
        for folder, inside in places.items()
        for path in (ROOT / folder).rglob("*")
        if path.suffix in SHIPPED
    }
    assert names(wheel) == expected
    assert {"puffer_mlx/system/blas_shim.c", "puffer_mlx/configs/default.ini"} <= expected
    assert "puffer_mlx/envs/include/vecenv.h" in expected


def test_the_wheel_is_for_every_platform_and_carries_version_and_licence(wheel):
    assert wheel.name == f"puffer_mlx-{puffer_mlx.__version__}-py3-none-any.whl"
    info = f"puffer_mlx-{puffer_mlx.__version__}.dist-info"
    with zipfile.ZipFile(wheel) as archive:
        assert "MIT" in archive.read(f"{info}/licenses/LICENSE").decode()
        assert "Requires-Python: >=3.11" in archive.read(f"{info}/METADATA").decode()


def test_the_source_archive_has_what_the_wheel_is_built_of_and_no_tests(wheel, tmp_path):
    with tarfile.open(built("sdist", tmp_path)) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    sources = {name.replace("puffer_mlx/envs/", "envs/") for name in names(wheel)}
    sources = {name.replace("puffer_mlx/configs/", "configs/") for name in sources}
    assert packed >= sources | {"pyproject.toml", "README.md", "LICENSE"}
    assert not [name for name in packed if name.startswith("tests")]
