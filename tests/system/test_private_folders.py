"""Code is loaded only from folders that no other user may change."""

import os
import resource
import shutil
import stat
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

import mlx.core as mx
import pytest
from running import ROOT, TINY, run

from puffer_mlx.cli.exit_codes import with_exit_code
from puffer_mlx.errors import UserError
from puffer_mlx.system import devices, private_folders
from puffer_mlx.system.compiler import compile_shared
from puffer_mlx.system.private_folders import cache_directory

NOBODY = 65534
root = pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user for a while")


@pytest.fixture(autouse=True)
def forget():
    for function in private_folders.private_folder, private_folders.trusted_folder:
        function.cache_clear()
    yield
    for function in private_folders.private_folder, private_folders.trusted_folder:
        function.cache_clear()


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder that only the user can write to."""
    monkeypatch.setattr(private_folders, "_SHARED", ())
    folder = tmp_path / "mine"
    folder.mkdir(mode=0o755)
    if wrong := private_folders.untrusted_reason(folder):
        pytest.skip(f"pytest's own folder can't be trusted: {wrong}")
    return folder


def test_own_folder_is_trusted_and_made_for_the_user_alone(mine: Path):
    for folder in mine, mine / "not" / "there" / "yet", Path("/usr/lib"):  # that one is root's
        assert private_folders.untrusted_reason(folder) == ""
    private_folders.make_private_folder(mine / "one" / "two")
    modes = [stat.S_IMODE(p.stat().st_mode) for p in (mine / "one", mine / "one" / "two", mine)]
    assert modes == [0o700, 0o700, 0o755]


@pytest.mark.parametrize("mode", [0o777, 0o1777])
def test_folder_that_others_may_write_is_untrusted(mine: Path, mode: int):
    mine.chmod(mode)
    assert private_folders.untrusted_reason(mine) == f"others may write to {mine}"
    inside = mine / "inside"
    inside.mkdir(mode=0o755)
    expected = "" if mode & stat.S_ISVTX else f"others may write to {mine}"  # as in /tmp
    (mine.parent / "link").symlink_to(inside)
    for folder in inside, mine.parent / "link":
        assert private_folders.untrusted_reason(folder) == expected


@pytest.mark.parametrize("own", [True, False])
def test_group_that_may_write_is_trusted_if_it_is_the_users(mine: Path, monkeypatch, own):
    mine.chmod(0o775)
    monkeypatch.setattr(private_folders, "_is_private_group", lambda gid: own)
    expected = "" if own else f"others may write to {mine}"
    assert private_folders.untrusted_reason(mine) == expected


@root
def test_folder_or_link_of_another_user_is_untrusted(mine: Path):
    os.chown(mine, NOBODY, -1)
    reason = private_folders.untrusted_reason(mine / "cache")
    assert reason.startswith(f"{mine} belongs to another user (")
    os.chown(mine, 0, -1)
    link = mine.parent / "link"
    link.symlink_to(mine)
    os.chown(link, NOBODY, -1, follow_symlinks=False)  # who may change where it leads
    assert private_folders.untrusted_reason(link).startswith(f"{link} belongs to another user (")


# ---- the cache of compiled libraries ------------------------------------------------------------


@pytest.fixture
def temporary(mine: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a temporary directory that all users share, as /tmp is."""
    mine.chmod(0o1777)
    monkeypatch.setattr(tempfile, "tempdir", str(mine))
    monkeypatch.setattr(private_folders, "_SHARED", (str(mine),))
    for name in private_folders._TEMPORARY:
        monkeypatch.setenv(name, "")  # restored afterwards
        monkeypatch.delenv(name)
    return mine


def private(temporary: Path) -> Path:
    return temporary / f"puffer_mlx-{os.getuid()}"


def test_cache_that_others_may_write_is_replaced_by_a_private_one(
    temporary: Path, monkeypatch, capsys
):
    chosen = temporary.parent / "cache"
    chosen.mkdir()
    chosen.chmod(0o777)
    monkeypatch.setenv("PUFFER_MLX_CACHE", str(chosen))
    source = temporary.parent / "one.c"
    source.write_text("int one(void) { return 1; }\n")
    library = compile_shared("one", [source], [])
    assert library.parent == cache_directory() == private(temporary) / "cache"
    assert stat.S_IMODE(private(temporary).stat().st_mode) == 0o700
    assert not list(chosen.iterdir())
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "compiling" not in line]
    assert f"others may write to {chosen}, so compiled libraries are cached in" in line
    assert "hint: remove the others' write permission, or set PUFFER_MLX_CACHE" in line


def test_private_folder_of_another_user_is_replaced(temporary: Path, capsys):
    private(temporary).mkdir()
    private(temporary).chmod(0o777)
    other = private_folders.private_folder()
    assert other and other.parent == temporary and other != private(temporary)
    assert stat.S_IMODE(other.stat().st_mode) == 0o700
    assert f"hint: remove {private(temporary)}" in capsys.readouterr().err
    shutil.rmtree(other)
    temporary.chmod(0o777)  # without the sticky bit others can replace any folder
    private_folders.private_folder.cache_clear()
    assert private_folders.private_folder() is None


# ---- kernels of MLX ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variables", "name"),
    [
        ({}, "TEMPDIR"),
        ({"TMP": "{}", "TMPDIR": ""}, "TMPDIR"),
        ({"TMPDIR": "{}/file"}, "TMPDIR"),  # MLX stops at it; Python uses another one
    ],
    ids=["none", "TMP", "a file"],
)
def test_mlx_compiles_in_a_private_folder(temporary: Path, monkeypatch, variables, name):
    (temporary / "file").write_text("")
    for key, value in variables.items():
        monkeypatch.setenv(key, value.format(temporary))
    for _ in range(2):  # also in a process started by this one
        private_folders.make_mlx_cache_private()
        assert os.environ[name] == str(private(temporary))
        assert tempfile.gettempdir() == str(temporary)


def test_temporary_directory_of_the_user_stays(temporary: Path, monkeypatch):
    own = temporary / "own"
    own.mkdir(mode=0o700)
    monkeypatch.setenv("TMPDIR", str(own))
    private_folders.make_mlx_cache_private()
    assert os.environ["TMPDIR"] == str(own) and "TEMPDIR" not in os.environ


CANT_WRITE = "MLX can't write compiled kernels to {}: "


def test_full_disk_is_found_before_mlx_compiles(temporary: Path, monkeypatch):
    monkeypatch.setattr(private_folders, "KERNEL_SPACE", 100)
    private_folders.refuse_full_disk()
    assert not [*temporary.iterdir()]
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50, before[1]))  # a disk with 50 bytes
    try:
        with pytest.raises(UserError) as caught:
            private_folders.refuse_full_disk()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert caught.value.message == CANT_WRITE.format(temporary / "mlx") + "File too large"


@pytest.mark.skipif(sys.platform != "linux", reason="Metal's kernels come with MLX")
def test_run_without_room_for_kernels_is_one_message(mine: Path):
    (mine / "mlx").write_text("")
    done = run("train", *TINY, cwd=mine, env={**os.environ, "TMPDIR": str(mine)})
    assert done.returncode == 2
    assert done.stderr.startswith("error: " + CANT_WRITE.format(mine / "mlx"))
    assert done.stderr.count("\n") == 2


def test_mlxs_error_without_room_is_the_same_message(temporary: Path, capsys):
    (temporary / "mlx").write_text("")

    @with_exit_code
    def main(argv: list[str]) -> None:
        raise RuntimeError("[Compile::eval_cpu] Failed to compile function f with error code 256")

    assert main([]) == 2
    assert capsys.readouterr().err.startswith("error: MLX can't write compiled kernels")
    (temporary / "mlx").unlink()
    with pytest.raises(RuntimeError, match="error code 256"):
        main([])


def test_first_start_announces_what_mlx_compiles(temporary: Path, monkeypatch):
    monkeypatch.setenv("PUFFER_MLX_CACHE", str(temporary))
    monkeypatch.setattr(devices.mx.metal, "is_available", lambda: False)
    monkeypatch.setattr(devices.mx, "default_device", lambda: mx.cpu)
    monkeypatch.setattr(devices.shutil, "which", {"g++": "/usr/bin/g++"}.get)
    assert "compiling MLX's kernels for the first time, which takes" in devices.kernels_note()
    (temporary / "mlx" / version("mlx") / "cpu").mkdir(parents=True)
    assert devices.kernels_note() == ""
    monkeypatch.setattr(devices.mx, "default_device", lambda: mx.gpu)
    assert "a GPU's kernels for the first time" in devices.kernels_note()
    monkeypatch.setenv("MLX_PTX_CACHE_DIR", str(temporary))
    assert devices.kernels_note() == ""


COMPILES = """
import mlx.core as mx
import puffer_mlx

mx.set_default_device(mx.cpu)
print(mx.compile(lambda x: mx.exp(x) * 2 + 1)(mx.zeros(3)).tolist())
"""


@pytest.mark.skipif(sys.platform == "darwin", reason="macOS has a folder for each user")
def test_mlx_writes_kernels_to_the_private_folder_alone(mine: Path):
    mine.chmod(0o1777)
    (mine / "mlx").mkdir(mode=0o755)  # as a first user's MLX leaves it
    environment = {**os.environ, "TMPDIR": str(mine), "PYTHONPATH": str(ROOT)}
    words = [sys.executable, "-c", COMPILES]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout) == (0, "[3.0, 3.0, 3.0]\n"), done.stderr
    assert [*(private(mine) / "mlx").glob("*/cpu/*.so")] and not [*(mine / "mlx").iterdir()]
