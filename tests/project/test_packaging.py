"""The wheel: everything a checkout has that runs must be in it, and nothing that doesn't."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import numpy as np
import pytest
from packaging.requirements import Requirement
from running import BATCH, EPOCHS, TINY, only

import puffer_mlx
from puffer_mlx.ops import cpu_extension
from puffer_mlx.system import blas, prebuilt

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
COMPILERS = {"nvidia-cuda-nvrtc", "ziglang"}
SHIPPED = {".py", ".json", ".c", ".cpp", ".h", ".ini", ".txt", ".typed"}


def built(kind: str, directory: Path, **told: str) -> Path:
    """The one file that hatchling writes."""
    build = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(directory)]
    environment = {**os.environ, "PUFFER_MLX_PREBUILT": "", **told}
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, env=environment)
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


def metadata(wheel: Path) -> str:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return archive.read(name).decode()


def test_links_and_pictures_of_readme_lead_to_the_version_in_its_repository(wheel):
    """PyPI shows it outside of the repository."""
    text = metadata(wheel)
    (source,) = re.findall(r"^Project-URL: Source, (https://\S+[^/])$", text, re.MULTILINE)
    links = re.findall(r"\]\(([^)\s]+)\)", text)
    assert len(links) > 10 and [link for link in links if not re.match("https?://|#", link)] == []
    version = f"v{puffer_mlx.__version__}"
    assert f"]({source}/blob/{version}/docs/architecture.md)" in text
    assert re.search(rf"!\[[^]]+\]\({source}/raw/{version}/docs/images/", text)
    for link in links:
        path = link.partition(f"/{version}/")[2].partition("#")[0]
        assert (ROOT / path).exists(), link


# ---- what is installed for what ------------------------------------------------------------------


def needed(extra: str) -> set[str]:
    """The packages of an extra and of those that it names, with their own extras."""
    found = set()
    for text in PROJECT["optional-dependencies"][extra]:
        requirement = Requirement(text)
        if requirement.name == PROJECT["name"]:
            found = found.union(*map(needed, requirement.extras))
        else:
            found |= {requirement.name, *(f"{requirement.name}[{e}]" for e in requirement.extras)}
    return found


def installed_by(target: str, folder: Path) -> set[str]:
    """The packages that a target of the Makefile installs into a new environment."""
    command = ["make", "--dry-run", "--silent", target, f"VENV={folder / 'new'}"]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    found = set()
    for line in re.findall(r"pip install .*", done.stdout):
        for name, extra in re.findall(r"'([\w.-]+)(?:\[([\w-]+)\])?[^']*'", line):
            found |= needed(extra) if name == "." else {name}
    return found


def test_extras_have_no_more_than_they_need():
    assert needed("gif") == {"pillow"}
    assert needed("video") == {"pillow", "imageio-ffmpeg"}
    assert needed("gym") == {"gymnasium"}  # pygame is for pictures: gymnasium[classic-control]
    assert not needed("test") & COMPILERS and needed("compilers") == COMPILERS


@pytest.mark.skipif(not shutil.which("make"), reason="make isn't installed")
def test_make_installs_what_a_target_needs(tmp_path):
    """PyTorch is 200 MB to 3 GB, and the compilers are 160 MB."""
    assert {"torch", "pytest", *COMPILERS} <= installed_by("test", tmp_path)
    for target, tool in (("lint", "pyright"), ("format", "ruff"), ("site", "sphinx")):
        found = installed_by(target, tmp_path)
        assert tool in found and not found & {"torch", *COMPILERS}


COMPILER = """#!/bin/sh
while [ $# -gt 0 ]; do [ "$1" = -o ] && echo 'machine code' > "$2"; shift; done
"""


def test_a_wheel_of_one_platform_brings_what_is_compiled(wheel, tmp_path):
    """Its list says for what; a compiler that only writes files is enough to see that."""
    compiler = tmp_path / "c++"
    compiler.write_text(COMPILER)
    compiler.chmod(0o755)
    told = {"PUFFER_MLX_PREBUILT": "1", "CXX": str(compiler), "CC": str(compiler)}
    special = built("wheel", tmp_path / "out", **told)
    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    assert f"-{python}-{python}-" in special.name and "none-any" not in special.name
    with zipfile.ZipFile(special) as archive:
        entries = json.loads(archive.read(f"puffer_mlx/prebuilt/{prebuilt.LIST}"))
        files = {f"puffer_mlx/prebuilt/{entry['file']}" for entry in entries}
        for entry in entries:
            content = archive.read(f"puffer_mlx/prebuilt/{entry['file']}")
            assert hashlib.sha256(content).hexdigest() == entry["sha256"]
    operations = [entry for entry in entries if entry["name"] == cpu_extension.NAME]
    assert {entry["level"] for entry in operations} == set(prebuilt.levels())
    assert all(entry["made_for"] == cpu_extension.made_for() for entry in operations)
    shims = [entry for entry in entries if entry["name"] == blas.SHIM]
    assert len(shims) == (sys.platform == "linux")
    assert names(special) - names(wheel) == {*files, f"puffer_mlx/prebuilt/{prebuilt.LIST}"}


# ---- installed -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """puffer-mlx from the wheel alone: an environment of its own, which borrows what it needs."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder, symlinks=True)  # without pip: the present one installs into it
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), "install"]
    quick = ["--quiet", "--no-deps", "--no-index", "--no-compile"]
    subprocess.run([*pip, *quick, str(wheel)], check=True, capture_output=True)
    packages = next(folder.glob("lib/python*/site-packages"))
    (packages / "borrowed.pth").write_text(str(Path(np.__file__).parents[1]) + "\n")
    return folder / "bin" / "puffer-mlx"


def test_from_the_wheel_alone_in_an_empty_folder(installed, tmp_path):
    """Train, evaluate, export, import, resume, by the command; the checkout isn't there."""
    told = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}

    def said(*words: str) -> str:
        done = subprocess.run(
            [installed, *words], cwd=tmp_path, env=told, capture_output=True, text=True, timeout=240
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    place = installed.parents[1].resolve()
    trained = said("train", *TINY, "--stop-at", str(2 * BATCH), "-v")
    assert f"{ROOT}/" not in trained and "configs/squared.ini" in trained
    assert said("evaluate", "squared", "latest", "--episodes", "8").startswith("squared: ")
    said("export", "latest", "--to", "safetensors", "--out", "w.safetensors")
    run = only(tmp_path, "checkpoints/squared/*").name
    imported = said("import", "w.safetensors", "squared", "--env.size", "3")
    assert "puffer-mlx evaluate squared --load-model-path checkpoints/squared/" in imported
    resumed = said("train", "squared", "--resume", run)
    assert f"going on with checkpoints/squared/{run}/" in resumed
    assert (tmp_path / f"checkpoints/squared/{run}/{EPOCHS * BATCH:016d}").is_dir()
    assert {path.name for path in tmp_path.iterdir()} == {"checkpoints", "logs", "w.safetensors"}
    python = installed.with_name("python")
    code = "import puffer_mlx; print(puffer_mlx.__file__)"
    found = subprocess.run([python, "-c", code], cwd=tmp_path, env=told, capture_output=True)
    assert Path(found.stdout.decode().strip()).resolve().is_relative_to(place)
