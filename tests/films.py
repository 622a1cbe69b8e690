"""Read GIF and MP4 files."""

import io
import re
import subprocess
from pathlib import Path
from typing import NamedTuple

import imageio_ffmpeg
import numpy as np
from PIL import Image


def gif_pages(data: bytes) -> list[tuple[np.ndarray, int]]:
    """Read a GIF: return its pictures (h, w, 3) and their durations in milliseconds."""
    pages = []
    with Image.open(io.BytesIO(data)) as gif:
        assert gif.info["loop"] == 0
        for page in range(getattr(gif, "n_frames", 1)):
            gif.seek(page)
            pages.append((np.asarray(gif.convert("RGB")), gif.info["duration"]))
    return pages


class Video(NamedTuple):
    images: np.ndarray  # (frames, h, w, 3) uint8
    codec: str
    fps: float


def read_video(path: Path) -> Video:
    """Read a video file: return its frames, codec and frame rate."""
    words = ["-i", path, "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    done = subprocess.run(
        [imageio_ffmpeg.get_ffmpeg_exe(), *words], capture_output=True, check=True
    )
    found = re.search(r"Video: (\w+).*?, (\d+)x(\d+).*?([\d.]+) fps", done.stderr.decode())
    assert found is not None
    w, h = int(found[2]), int(found[3])
    images = np.frombuffer(done.stdout, np.uint8).reshape(-1, h, w, 3)
    return Video(images, found[1], float(found[4]))
