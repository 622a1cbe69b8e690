"""Only regular files that a user names are written; links in a run's folder are replaced."""

import os

import numpy as np
import pytest

from puffer_mlx.errors import UserError
from puffer_mlx.evaluation.frames import Frame, write_gif
from puffer_mlx.system.files import check_writable, publish
from puffer_mlx.system.json_text import write_json


def gif(path):
    pytest.importorskip("PIL")
    images = [np.full((4, 4, 3), shade, np.uint8) for shade in (0, 255)]
    frames = [Frame(image, 0, 0, 0.0, 0.0, False) for image in images]
    write_gif(frames, path, 10)


LINK = (lambda path: path.symlink_to("target"), "a link to target")
SPECIAL = [
    (lambda path: path.symlink_to("nothing"), "a link to nothing"),
    (lambda path: path.symlink_to("/dev/stdout"), "a link to /dev/stdout"),
    (lambda path: path.mkdir(), "a folder"),
    (os.mkfifo, "a device or a pipe"),
]


@pytest.mark.parametrize(
    ("write", "make", "kind"),
    [
        (gif, *LINK),
        (lambda path: write_json({"score": 1}, path), *LINK),
        *((lambda path: check_writable(str(path)), *special) for special in SPECIAL),
    ],
)
def test_named_output_that_is_no_regular_file_is_refused(tmp_path, make, kind, write):
    (tmp_path / "target").write_text("old")
    path = tmp_path / "path"
    make(path)
    before = path.lstat().st_ino
    with pytest.raises(UserError, match=f"can't write .*path: it is {kind}, not a regular file\n"):
        write(path)
    assert path.lstat().st_ino == before and (tmp_path / "target").read_text() == "old"
    assert sorted(os.listdir(tmp_path)) == ["path", "target"]


def test_regular_file_is_replaced(tmp_path):
    path = tmp_path / "path"
    path.write_text("old")
    write_json(1, check_writable(str(path)))
    assert path.read_text() == "1\n" and os.listdir(tmp_path) == ["path"]


def test_link_in_a_run_folder_is_replaced(tmp_path):
    """Another user may have made it."""
    target, link = tmp_path / "target", tmp_path / "config.ini"
    target.write_text("old")
    link.symlink_to("target")
    with publish(link) as temporary:
        temporary.write_text("new")
    assert not link.is_symlink() and link.read_text() == "new" and target.read_text() == "old"
