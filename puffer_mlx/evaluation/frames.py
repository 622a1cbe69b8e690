"""Draw environments with their ``draw.py``, and write GIF and MP4 files.

A picture is an array (h, w, 3) uint8. Pillow and imageio-ffmpeg are imported only when needed.
"""

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from puffer_mlx.errors import UserError
from puffer_mlx.evaluation.environment_scripts import load_script_function
from puffer_mlx.system.files import publish

DrawFunction = Callable[[np.ndarray], np.ndarray]  # one agent's flat observation -> picture

MAX_COLOURS = 255  # of a GIF, because one of 256 palette indices marks unchanged pixels
GIF_TICK = 0.01  # seconds; delays are multiples of it, and viewers slow down below two ticks
FONT_SIZE = 12  # of a caption, in pixels
LINE_HEIGHT = 16
PALETTE_SAMPLES = 2**18  # pixels from which a palette is computed if there are too many colours


class Frame(NamedTuple):
    """A picture of an agent at one step, with its reward and the state of its episode."""

    image: np.ndarray  # (h, w, 3) uint8
    step: int  # steps since the first reset, which is 0
    episode: int  # index of the episode, from 0
    reward: float  # reward received with this picture
    total: float  # return of the episode so far, or of the one that just ended
    terminal: bool  # True at the first picture after the end of an episode


def find_draw(folder: Path) -> DrawFunction:
    """Return an environment's drawing function from its ``draw.py``; its results are checked.

    Args:
        folder: Folder of the environment.

    Raises:
        UserError: If ``draw.py`` or its function ``draw`` is missing. The returned function raises
            the error if ``draw`` doesn't return a picture.
    """
    path = folder / "draw.py"
    needed = "draw(observation) -> picture (h, w, 3) uint8, observation: one agent's, flat"
    missing = UserError(
        f"{folder.name} has no pictures: {path} doesn't exist",
        f"pictures need draw.py with {needed}",
    )
    draw = load_script_function(path, "draw", missing, needed)

    def checked(observation: np.ndarray) -> np.ndarray:
        image: Any = draw(observation)
        kind = type(image).__name__
        if isinstance(image, np.ndarray):
            if image.dtype == np.uint8 and image.ndim == 3 and image.shape[2] == 3 and image.size:
                return image
            kind = f"{image.dtype} {image.shape}"
        raise UserError(f"{path}: draw returned {kind}", f"expected {needed}")

    return checked


def fit_picture(image: np.ndarray, height: int, width: int) -> np.ndarray:
    """Resize a picture to fit into a height and width, with its proportions.

    Small pictures are enlarged by an integer factor, large ones are reduced by averaging pixels.
    """
    h, w = image.shape[:2]
    factor = min(height / h, width / w)
    if factor >= 1:
        return enlarge(image, int(factor))
    height, width = max(1, int(h * factor)), max(1, int(w * factor))
    for axis, size in ((0, height), (1, width)):
        edges = np.arange(size + 1) * image.shape[axis] // size
        counts = np.diff(edges).reshape(-1, *[1] * (2 - axis))
        image = np.add.reduceat(image, edges[:-1], axis=axis, dtype=np.float64) / counts
    return np.rint(image).astype(np.uint8)


def add_caption(
    image: np.ndarray, lines: Sequence[str], other_lines: Sequence[str] = ()
) -> np.ndarray:
    """Return a picture with lines of text above it, padded with black to the width of the text.

    Args:
        image: Picture, (h, w, 3) uint8.
        lines: Lines of text.
        other_lines: Lines of further pictures that should get the same width.

    Raises:
        UserError: If Pillow is missing.
    """
    image_class = _pillow()
    from PIL import ImageDraw, ImageFont

    font = ImageFont.load_default(FONT_SIZE)
    needed = max(int(font.getlength(line)) for line in (*lines, *other_lines)) + FONT_SIZE
    width = max(image.shape[1], needed)
    text_image = image_class.new("RGB", (width, LINE_HEIGHT * len(lines)))
    for row, line in enumerate(lines):
        ImageDraw.Draw(text_image).text(
            (FONT_SIZE // 2, LINE_HEIGHT * row), line, (230, 230, 230), font
        )
    below = np.pad(image, ((0, 0), (0, width - image.shape[1]), (0, 0)))
    return np.concatenate([np.asarray(text_image), below])


def enlarge(image: np.ndarray, factor: int) -> np.ndarray:
    """Return a picture enlarged by an integer factor: each pixel becomes a square."""
    return image.repeat(factor, axis=0).repeat(factor, axis=1)


def gif_bytes(frames: Iterable[Frame], fps: float, scale: int = 1) -> bytes:
    """Encode frames as a GIF that repeats forever. Returns the file's bytes.

    To keep the file small, equal successive pictures are merged, unchanged pixels aren't stored
    again, and all pictures share one palette. Up to 255 colours are exact.

    Args:
        frames: One or more frames of equal size. All are held in memory.
        fps: Pictures per second, at most 50. Delays are rounded to 10 ms without drift.
        scale: Width and height of each pixel in the output, in pixels.

    Raises:
        UserError: If Pillow is missing, there is no frame, sizes differ, or fps is out of range.
    """
    import io

    image_class = _pillow()
    if not 0 < fps <= 0.5 / GIF_TICK:
        raise UserError(
            f"a GIF can't show {fps:g} pictures per second",
            f"more than 0, at most {0.5 / GIF_TICK:g}; an MP4 can show more",
        )
    images = list(_equal_sized_images(frames))
    ticks = np.diff(np.rint(np.arange(len(images) + 1) / (fps * GIF_TICK))).astype(int)
    palette, indices = _palette_and_indices(image_class, images)
    pages = []
    for page in indices:
        pages.append(image_class.fromarray(enlarge(page[..., None], scale)[..., 0], mode="P"))
        pages[-1].putpalette(palette)
    file = io.BytesIO()
    pages[0].save(
        file,
        format="GIF",
        save_all=True,
        append_images=pages[1:],
        duration=[int(t) * 10 for t in ticks],  # milliseconds
        loop=0,
        disposal=1,
        optimize=False,  # optimizing would give every picture a separate palette
    )
    return file.getvalue()


def write_gif(frames: Iterable[Frame], path: Path, fps: float, scale: int = 1) -> None:
    """Write frames to an animated GIF file, which appears when it is complete.

    ``gif_bytes`` encodes the frames.

    Raises:
        UserError: If ``gif_bytes`` raises it or the file can't be written.
    """
    data = gif_bytes(frames, fps, scale)
    with publish(path, user_named=True) as temporary:
        temporary.write_bytes(data)


def require_pillow() -> None:
    """Check that Pillow is installed, the package that writes GIFs.

    Raises:
        UserError: If Pillow is missing.
    """
    _pillow()


def write_mp4(frames: Iterable[Frame], path: Path, fps: float, scale: int = 1) -> None:
    """Write frames to an MP4 file (H.264), one by one.

    The format needs an even width and height. If one is odd, the last column or row is repeated.

    Args:
        frames: One or more frames of equal size.
        path: Path of the file, which appears when it is complete.
        fps: Pictures per second.
        scale: Width and height of each pixel in the output, in pixels.

    Raises:
        UserError: If imageio-ffmpeg is missing, there is no frame, sizes differ, or the file can't
            be written.
    """
    with optional_package("video"):
        from imageio_ffmpeg import write_frames
    images = _equal_sized_images(frames)
    first_image = next(images)
    h, w = (side * scale for side in first_image.shape[:2])
    writer_options: Any = {"fps": fps, "codec": "libx264", "quality": 8, "macro_block_size": 1}
    with publish(path, user_named=True) as temporary:
        writer = write_frames(str(temporary), (w + w % 2, h + h % 2), **writer_options)
        with contextlib.closing(writer):
            next(writer)  # starts ffmpeg
            for image in itertools.chain([first_image], images):
                image = enlarge(image, scale)
                writer.send(np.pad(image, ((0, h % 2), (0, w % 2), (0, 0)), mode="edge"))


def _equal_sized_images(frames: Iterable[Frame]) -> Iterator[np.ndarray]:
    """Yield the pictures of frames, and raise an error if there is none or their sizes differ."""
    first_shape: tuple[int, ...] | None = None
    for frame in frames:
        first_shape = first_shape or frame.image.shape
        if frame.image.shape != first_shape:
            raise UserError(
                f"picture {frame.step} is {frame.image.shape}, the first was {first_shape}",
                "the environment must draw all pictures in one size",
            )
        yield frame.image
    if first_shape is None:
        raise UserError("no frame was drawn", "use --steps 1 or more")


def _palette_and_indices(
    image_class: Any, images: list[np.ndarray]
) -> tuple[bytes, list[np.ndarray]]:
    """Return a colour palette for images, and each image as indices (h, w) into the palette."""
    codes = [
        image.astype(np.uint32) @ np.array([1 << 16, 1 << 8, 1], np.uint32) for image in images
    ]
    colours = np.unique(np.concatenate([np.unique(code) for code in codes]))
    if len(colours) <= MAX_COLOURS:
        table = np.stack([colours >> 16, colours >> 8 & 255, colours & 255], axis=1)
        indices = [np.searchsorted(colours, code).astype(np.uint8) for code in codes]
        return table.astype(np.uint8).tobytes(), indices
    pixels = np.concatenate([image.reshape(-1, 3) for image in images])
    sample = pixels[:: -(-len(pixels) // PALETTE_SAMPLES)]
    quantised = image_class.fromarray(sample[None]).quantize(MAX_COLOURS)
    table = bytes(quantised.getpalette()[: 3 * MAX_COLOURS])
    return table, [
        np.asarray(image_class.fromarray(image).quantize(palette=quantised, dither=0))
        for image in images
    ]


@contextlib.contextmanager
def optional_package(extra: str, purpose: str = "pictures need") -> Iterator[None]:
    """Import optional packages in a ``with`` block. A failed import raises an error with a hint.

    Args:
        extra: Name of the extra that installs the package: ``pip install 'puffer-mlx[EXTRA]'``.
        purpose: Beginning of the message, such as ``pictures need``.

    Raises:
        UserError: If a package isn't installed.
    """
    try:
        yield
    except ImportError as error:
        message = f"{purpose} {error.name}, which isn't installed"
        raise UserError(message, f"pip install 'puffer-mlx[{extra}]'") from None


def _pillow() -> Any:
    with optional_package("gif"):
        from PIL import Image
    return Image
