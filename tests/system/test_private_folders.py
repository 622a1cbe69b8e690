"""Whom folders belong to that code is loaded from; who may write to them."""

import os
import resource
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import mlx.core as mx
import pytest
from running import ROOT, TINY, run

from puffer_mlx.cli.exit_codes import reported
from puffer_mlx.errors import UserError
from puffer_mlx.system import devices, private_folders
from puffer_mlx.system.compiler import compile_shared
from puffer_mlx.system.private_folders import cache_directory

NOBODY = 65534
root = pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user for a while")


@pytest.fixture(autouse=True)
def forget():
    """What was decided for other folders."""
    for function in private_folders.private, private_folders.trusted:
        function.cache_clear()
    yield
    for function in private_folders.private, private_folders.trusted:
        function.cache_clear()


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose parents are no concern: pytest's may be anywhere."""
    monkeypatch.setattr(private_folders, "_SHARED", ())
    folder = tmp_path / "mine"
    folder.mkdir(mode=0o755)
    if wrong := private_folders.untrusted_reason(folder):
        pytest.skip(f"pytest's own folder can't be trusted: {wrong}")
    return folder


def test_a_folder_of_ones_own(mine: Path):
    for folder in mine, mine / "not" / "there" / "yet", Path("/usr/lib"):  # that one is root's
        assert private_folders.untrusted_reason(folder) == ""
    private_folders.make(mine / "one" / "two")
    modes = [stat.S_IMODE(p.stat().st_mode) for p in (mine / "one", mine / "one" / "two", mine)]
    assert modes == [0o700, 0o700, 0o755]


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o757])
def test_others_may_write(mine: Path, mode: int):
    mine.chmod(mode)
    assert private_folders.untrusted_reason(mine) == f"others may write to {mine}"
    inside = mine / "inside"
    inside.mkdir(mode=0o755)
    expected = "" if mode & stat.S_ISVTX else f"others may write to {mine}"  # as in /tmp
    (mine.parent / "link").symlink_to(inside)
    for folder in inside, mine.parent / "link":
        assert private_folders.untrusted_reason(folder) == expected


def test_a_group_may_write(mine: Path, monkeypatch: pytest.MonkeyPatch):
    mine.chmod(0o775)
    for own, expected in ((True, ""), (False, f"others may write to {mine}")):
        monkeypatch.setattr(private_folders, "_own_group", lambda gid, own=own: own)
        # Many systems give each user a group.
        assert private_folders.untrusted_reason(mine) == expected


@root
def test_another_user(mine: Path):
    os.chown(mine, NOBODY, -1)
    reason = private_folders.untrusted_reason(mine / "cache")
    assert reason.startswith(f"{mine} belongs to another user (")
    os.chown(mine, 0, -1)
    link = mine.parent / "link"
    link.symlink_to(mine)
    os.chown(link, NOBODY, -1, follow_symlinks=False)  # who may have it lead elsewhere later
    assert private_folders.untrusted_reason(link).startswith(f"{link} belongs to another user (")


# ---- The cache of compiled libraries ------------------------------------------------------------


@pytest.fixture
def temporary(mine: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The temporary directory: everybody's, as /tmp is."""
    mine.chmod(0o1777)
    monkeypatch.setattr(tempfile, "tempdir", str(mine))
    monkeypatch.setattr(private_folders, "_SHARED", (str(mine),))
    for name in private_folders._TEMPORARY:
        monkeypatch.setenv(name, "")  # put back afterwards
        monkeypatch.delenv(name)
    return mine


def private(temporary: Path) -> Path:
    return temporary / f"puffer_mlx-{os.getuid()}"


def test_a_cache_of_all_is_not_used(temporary: Path, monkeypatch, capsys):
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
    lines = [line for line in capsys.readouterr().err.splitlines() if "compiling" not in line]
    assert len(lines) == 1, lines  # once, not for each library
    assert f"others may write to {chosen}, so compiled libraries are kept in" in lines[0]
    assert "hint: let only yourself write there, or set PUFFER_MLX_CACHE" in lines[0]
    chosen.chmod(0o755)
    private_folders.trusted.cache_clear()
    assert cache_directory() == chosen


def test_where_the_private_folder_is_somebody_elses(temporary: Path, capsys):
    private(temporary).mkdir()
    private(temporary).chmod(0o777)
    other = private_folders.private()
    assert other and other.parent == temporary and other != private(temporary)
    assert stat.S_IMODE(other.stat().st_mode) == 0o700
    assert f"hint: remove {private(temporary)}" in capsys.readouterr().err
    shutil.rmtree(other)
    temporary.chmod(0o777)  # without the sticky bit everybody can take everything's place
    private_folders.private.cache_clear()
    assert private_folders.private() is None


# ---- MLX's own ----------------------------------------------------------------------------------


WHERE = {  # variables that name temporary directories, and which names MLX's then
    "none": ({}, "TEMPDIR"),
    "TMPDIR": ({"TMPDIR": "{}"}, "TMPDIR"),
    "TMP": ({"TMP": "{}", "TMPDIR": ""}, "TMPDIR"),
    "a file": ({"TMPDIR": "{}/file"}, "TMPDIR"),  # MLX stops at it; Python takes another one
}


@pytest.mark.parametrize("what", WHERE)
def test_mlx_is_sent_to_a_private_folder(temporary: Path, monkeypatch, what: str):
    (temporary / "file").write_text("")
    variables, name = WHERE[what]
    for key, value in variables.items():
        monkeypatch.setenv(key, value.format(temporary))
    for _ in range(2):  # also in a process started by this one
        private_folders.keep_mlx_private()
        assert os.environ[name] == str(private(temporary))
        assert tempfile.gettempdir() == str(temporary)
    if what == "none":
        assert "TMPDIR" not in os.environ


def test_a_temporary_directory_of_ones_own_stays(temporary: Path, monkeypatch):
    own = temporary / "own"
    own.mkdir(mode=0o700)
    monkeypatch.setenv("TMPDIR", str(own))
    private_folders.keep_mlx_private()
    assert os.environ["TMPDIR"] == str(own) and "TEMPDIR" not in os.environ


CANT_WRITE = "MLX can't write the kernels that it compiles to {}: "


def test_no_room_for_kernels(temporary: Path, monkeypatch):
    monkeypatch.setattr(private_folders, "ROOM", 100)
    private_folders.refuse_full()
    assert not [*temporary.iterdir()]
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50, before[1]))  # a disk with 50 bytes
    try:
        with pytest.raises(UserError) as caught:
            private_folders.refuse_full()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    folder = temporary / "mlx"
    assert caught.value.message == CANT_WRITE.format(folder) + "File too large"
    folder.write_text("")
    with pytest.raises(UserError, match=r"Not a directory\n.*set TMPDIR to another folder"):
        private_folders.refuse_full()


@pytest.mark.skipif(sys.platform != "linux", reason="Metal's kernels come with MLX")
def test_a_run_without_room_for_kernels_is_one_message(mine: Path):
    (mine / "mlx").write_text("")
    done = run("train", *TINY, cwd=mine, env={**os.environ, "TMPDIR": str(mine)})
    assert done.returncode == 2
    assert done.stderr.startswith("error: " + CANT_WRITE.format(mine / "mlx"))
    assert done.stderr.count("\n") == 2


def test_mlxs_own_error_without_room_is_that_message(temporary: Path, capsys):
    """It finds out later where an earlier run has made their folder."""
    (temporary / "mlx").write_text("")

    @reported
    def main(argv: list[str]) -> None:
        raise RuntimeError("[Compile::eval_cpu] Failed to compile function f with error code 256")

    assert main([]) == 2
    assert capsys.readouterr().err.startswith("error: MLX can't write the kernels that it compiles")
    (temporary / "mlx").unlink()
    with pytest.raises(RuntimeError, match="error code 256"):
        main([])


def test_a_first_start_says_what_mlx_compiles(temporary: Path, monkeypatch):
    """Into a folder that is there from then on; on a GPU there may be our own kernels alone."""
    cache = temporary / "cache"
    cache.mkdir(mode=0o700)
    monkeypatch.setenv("PUFFER_MLX_CACHE", str(cache))
    monkeypatch.setattr(devices.mx.metal, "is_available", lambda: False)
    monkeypatch.setattr(devices.mx, "default_device", lambda: mx.cpu)
    monkeypatch.setattr(devices.shutil, "which", {"g++": "/usr/bin/g++"}.get)
    assert "compiling MLX's kernels for the first time, which takes" in devices.kernels_note()
    (temporary / "mlx" / version("mlx") / "cpu").mkdir(parents=True)
    assert devices.kernels_note() == ""
    monkeypatch.setattr(devices.mx, "default_device", lambda: mx.gpu)
    assert devices.kernels_note().endswith(
        "a GPU's kernels for the first time, which takes a few seconds"
    )
    (cache / "pack-0.cubin").touch()
    assert devices.kernels_note() == ""
    (cache / "pack-0.cubin").unlink()
    monkeypatch.setenv("MLX_PTX_CACHE_DIR", str(temporary))
    assert devices.kernels_note() == ""


COMPILES = """
import os, sys, tempfile
import mlx.core as mx
import puffer_mlx
from puffer_mlx.system import private_folders

user, folder = int(sys.argv[1]), sys.argv[2]
os.setgroups([])
os.setgid(user)
os.setuid(user)  # only now: this Python may lie where others can't read
os.environ.pop("TEMPDIR", None)
os.environ["TMPDIR"] = tempfile.tempdir = folder
private_folders.private.cache_clear()
private_folders.keep_mlx_private()
mx.set_default_device(mx.cpu)
print(mx.compile(lambda x: mx.exp(x) * 2 + 1)(mx.zeros(3)).tolist())
"""


@pytest.fixture
def everybodys() -> Iterator[Path]:
    """A temporary directory that others can reach, too."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    folder.chmod(0o1777)
    yield folder
    shutil.rmtree(folder)


@root
@pytest.mark.skipif(sys.platform == "darwin", reason="macOS has a folder for each user")
def test_a_second_user_of_the_machine_can_train(everybodys: Path):
    headers = Path(mx.__file__).resolve().parent / "include"
    if not all(folder.stat().st_mode & stat.S_IXOTH for folder in (headers, *headers.parents)):
        pytest.skip(f"others can't read {headers}, which MLX compiles with")
    (everybodys / "mlx").mkdir(mode=0o755)  # as a first user's MLX leaves it
    for user in 0, NOBODY:
        done = subprocess.run(
            [sys.executable, "-c", COMPILES, str(user), str(everybodys)],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            cwd="/",
            capture_output=True,
            text=True,
            timeout=100,
        )
        assert (done.returncode, done.stdout) == (0, "[3.0, 3.0, 3.0]\n"), done.stderr
        assert list((everybodys / f"puffer_mlx-{user}" / "mlx").glob("*/cpu/*.so"))
    assert not list((everybodys / "mlx").iterdir())
