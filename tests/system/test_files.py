"""Files and folders that a user named: links, streams, and what must not be replaced."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from puffer_mlx.playing.frames import Frame, write_gif
from puffer_mlx.system.files import publish
from puffer_mlx.system.json_text import write_json


def gif(path):
    pytest.importorskip("PIL")
    images = [np.full((4, 4, 3), shade, np.uint8) for shade in (0, 255)]
    frames = [Frame(image, 0, 0, 0.0, 0.0, False) for image in images]
    write_gif(frames, path, 10)


@pytest.mark.parametrize("write", [gif, lambda path: write_json({"score": 1}, path)])
def test_a_named_link_is_written_through(tmp_path, write):
    (tmp_path / "kept").mkdir()
    target, link = tmp_path / "kept" / "target", tmp_path / "link"
    target.write_text("old")
    link.symlink_to(Path("kept") / "target")
    write(link)
    assert link.is_symlink() and target.read_bytes() not in (b"old", b"")
    assert os.listdir(tmp_path / "kept") == ["target"]


def test_a_link_to_a_file_that_is_not_there_yet_is_written_through(tmp_path):
    (tmp_path / "link").symlink_to("later")
    write_json(1, tmp_path / "link")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "later").read_text() == "1\n"


def test_a_link_in_a_folder_of_ours_is_replaced(tmp_path):
    """A run's folder may be a stranger's, and its links may lead anywhere."""
    target, link = tmp_path / "target", tmp_path / "config.ini"
    target.write_text("old")
    link.symlink_to("target")
    with publish(link) as temporary:
        temporary.write_text("new")
    assert not link.is_symlink() and link.read_text() == "new" and target.read_text() == "old"


def test_a_pipe_is_written_to(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()), daemon=True)
    reader.start()
    write_json({"score": 1}, pipe)
    reader.join(60)
    assert json.loads(read[0]) == {"score": 1} and pipe.is_fifo()


def test_standard_output_is_written_to(tmp_path):
    """Through a link: a defect must not replace the machine's /dev/stdout."""
    (tmp_path / "link").symlink_to("/dev/stdout")
    code = (
        "from pathlib import Path; from puffer_mlx.system.json_text import write_json;"
        "print('before'); write_json(1, Path('link')); print('after')"
    )
    with open(tmp_path / "out", "w") as out:
        words = [sys.executable, "-c", code]
        subprocess.run(words, stdout=out, cwd=tmp_path, check=True, timeout=120)
    assert (tmp_path / "out").read_text() == "before\n1\nafter\n"
    assert (tmp_path / "link").is_symlink()
