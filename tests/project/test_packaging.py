"""The wheel has every source, and runs without the checkout."""

import hashlib
import json
import os
import re
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import numpy as np
import pytest
from running import BATCH, EPOCHS, TINY, only

import puffer_mlx
from puffer_mlx.ops import cpu_extension
from puffer_mlx.system import blas, prebuilt

ROOT = Path(__file__).parents[2]
SHIPPED = {".py", ".json", ".c", ".cpp", ".h", ".ini", ".txt", ".typed"}


def built(kind: str, directory: Path, **variables: str) -> Path:
    """Build the package's wheel or source distribution; return its file."""
    build = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(directory)]
    environment = {**os.environ, "PUFFER_MLX_PREBUILT": "", **variables}
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, env=environment)
    (path,) = directory.iterdir()
    return path


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return built("wheel", tmp_path_factory.mktemp("wheel"))


def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def test_wheel_has_every_source_and_configuration(wheel):
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


def metadata(wheel: Path, name: str) -> str:
    with zipfile.ZipFile(wheel) as archive:
        return archive.read(f"puffer_mlx-{puffer_mlx.__version__}.dist-info/{name}").decode()


def test_source_archive_has_the_wheels_sources_and_no_tests(wheel, tmp_path):
    with tarfile.open(built("sdist", tmp_path)) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    sources = {re.sub("^puffer_mlx/(envs|configs)/", r"\1/", name) for name in names(wheel)}
    assert packed >= sources | {"pyproject.toml", "README.md", "LICENSE"}
    assert not [name for name in packed if name.startswith("tests")]


def test_readme_of_the_wheel_links_to_files_of_its_version(wheel):
    """PyPI shows it outside of the repository."""
    links = re.findall(r"\]\(([^)\s]+)\)", metadata(wheel, "METADATA"))
    assert len(links) > 10 and [link for link in links if not re.match("https?://|#", link)] == []
    paths = [link.partition(f"/v{puffer_mlx.__version__}/")[2].partition("#")[0] for link in links]
    assert "docs/architecture.md" in paths
    assert [path for path in paths if not (ROOT / path).exists()] == []


COMPILER = """#!/bin/sh
while [ $# -gt 0 ]; do [ "$1" = -o ] && echo 'machine code' > "$2"; shift; done
"""


def test_wheel_of_one_platform_lists_its_compiled_libraries(wheel, tmp_path):
    """With a compiler that only writes files."""
    compiler = tmp_path / "c++"
    compiler.write_text(COMPILER)
    compiler.chmod(0o755)
    variables = {"PUFFER_MLX_PREBUILT": "1", "CXX": str(compiler), "CC": str(compiler)}
    special = built("wheel", tmp_path / "out", **variables)
    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    assert f"-{python}-{python}-" in special.name and "none-any" not in special.name
    with zipfile.ZipFile(special) as archive:
        entries = json.loads(archive.read(f"puffer_mlx/prebuilt/{prebuilt.LIST_FILE}"))
        files = {f"puffer_mlx/prebuilt/{entry['file']}" for entry in entries}
        for entry in entries:
            content = archive.read(f"puffer_mlx/prebuilt/{entry['file']}")
            assert hashlib.sha256(content).hexdigest() == entry["sha256"]
    operations = [entry for entry in entries if entry["name"] == cpu_extension.NAME]
    assert {entry["level"] for entry in operations} == set(prebuilt.levels())
    assert all(entry["built_for"] == cpu_extension.built_for() for entry in operations)
    shims = [entry for entry in entries if entry["name"] == blas.SHIM]
    assert len(shims) == (sys.platform == "linux")
    assert names(special) - names(wheel) == {*files, f"puffer_mlx/prebuilt/{prebuilt.LIST_FILE}"}


# ---- installed -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """Return the path of ``puffer-mlx`` in a new environment with the installed wheel.

    Dependencies are links to the present ones.
    """
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder, symlinks=True)
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), "install"]
    quick = ["--quiet", "--no-deps", "--no-index", "--no-compile"]
    subprocess.run([*pip, *quick, str(wheel)], check=True, capture_output=True)
    packages = next(folder.glob("lib/python*/site-packages"))
    (packages / "borrowed.pth").write_text(str(Path(np.__file__).parents[1]) + "\n")
    return folder / "bin" / "puffer-mlx"


def test_commands_run_from_the_wheel_alone(installed, tmp_path):
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}

    def output(*words: str) -> str:
        done = subprocess.run(
            [installed, *words],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=240,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    place = installed.parents[1].resolve()
    trained = output("train", *TINY, "--stop-at", str(2 * BATCH), "-v")
    assert f"{ROOT}/" not in trained and "configs/squared.ini" in trained
    assert output("evaluate", "squared", "latest", "--episodes", "8").startswith("squared: ")
    output("export", "latest", "--to", "safetensors", "--out", "w.safetensors")
    run = only(tmp_path, "checkpoints/squared/*").name
    output("import", "w.safetensors", "squared", "--env.size", "3")
    resumed = output("train", "squared", "--resume", run)
    assert f"resuming checkpoints/squared/{run}/" in resumed
    assert (tmp_path / f"checkpoints/squared/{run}/{EPOCHS * BATCH:016d}").is_dir()
    assert {path.name for path in tmp_path.iterdir()} == {"checkpoints", "logs", "w.safetensors"}
    python = installed.with_name("python")
    code = "import puffer_mlx; print(puffer_mlx.__file__)"
    found = subprocess.run([python, "-c", code], cwd=tmp_path, env=environment, capture_output=True)
    assert Path(found.stdout.decode().strip()).resolve().is_relative_to(place)
