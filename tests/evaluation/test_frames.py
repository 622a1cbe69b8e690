"""Pictures: draw.py, GIF and MP4 files read back, and a terminal's characters."""

import io
import sys
import time

import numpy as np
import pytest
from films import gif_pages, read_video
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rich.console import Console
from running import files

from puffer_mlx.errors import UserError
from puffer_mlx.evaluation.frames import (
    Frame,
    enlarge,
    find_draw,
    fit_picture,
    gif_bytes,
    write_gif,
    write_mp4,
)
from puffer_mlx.evaluation.terminal_video import HalfBlocks, play_in_terminal


def frame(image, step=0, terminal=False, episode=0, total=0.0) -> Frame:
    return Frame(np.asarray(image, np.uint8), step, episode, 0.0, total, terminal)


def ball(t, height=20, width=30) -> Frame:
    """Return frame t of a film: a white square moves to the right on green."""
    image = np.full((height, width, 3), (0, 90, 0), np.uint8)
    image[5:9, t : t + 4] = 255
    return frame(image, t)


# ---- draw.py -------------------------------------------------------------------------------------


def drawer(folder, body: str):
    (folder / "draw.py").write_text(f"import numpy as np\n{body}\n")
    return find_draw(folder)


def test_draw_gets_the_observation_and_each_environment_has_its_own(tmp_path):
    draw = drawer(tmp_path, "def draw(x): return np.full((2, 3, 3), x[0], np.uint8)")
    other = tmp_path / "other"
    other.mkdir()
    second = drawer(other, "def draw(x): return np.zeros((1, 1, 3), np.uint8)")
    assert draw(np.array([7.0])).tolist() == [[[7] * 3] * 3] * 2
    assert second(np.array([7.0])).shape == (1, 1, 3)


def test_an_environment_without_a_draw_function_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"draw\.py doesn't exist\n  hint: pictures need draw"):
        find_draw(tmp_path)
    with pytest.raises(UserError, match=r"draw\.py defines no function draw"):
        drawer(tmp_path, "draw = 3")


@pytest.mark.parametrize(
    ("picture", "found"),
    [("None", "NoneType"), ("np.zeros((0, 3, 3), np.uint8)", r"uint8 \(0, 3, 3\)")],
)
def test_a_draw_function_that_returns_no_picture_is_refused(tmp_path, picture, found):
    draw = drawer(tmp_path, f"def draw(i): return {picture}")
    with pytest.raises(UserError, match=f"draw returned {found}\n  hint: expected draw"):
        draw(np.array([0]))


# ---- sizes ---------------------------------------------------------------------------------------


SIZES = st.integers(1, 60)


@settings(max_examples=60)
@given(size=st.tuples(SIZES, SIZES), room=st.tuples(SIZES, SIZES))
@example(size=(4, 6), room=(9, 100))
@example(size=(50, 1), room=(5, 5))
@example(size=(3, 500), room=(9, 9))
def test_a_picture_is_fitted_by_a_whole_factor_or_reduced_in_proportion(size, room):
    image = np.random.default_rng(0).integers(0, 256, (*size, 3)).astype(np.uint8)
    result = fit_picture(image, *room)
    factor = min(room[0] / size[0], room[1] / size[1])
    if factor >= 1:
        assert (result == image.repeat(int(factor), 0).repeat(int(factor), 1)).all()
    else:
        assert result.dtype == np.uint8
        gaps = [most - side for most, side in zip(room, result.shape[:2], strict=True)]
        assert 0 <= min(gaps) <= 1 and result.shape[2] == 3


def test_a_reduced_pixel_is_the_mean_of_its_pixels():
    image = np.zeros((4, 6, 3), np.uint8)
    image[:2, :3] = 200, 100, 0
    image[0, 0] = 255, 255, 255
    reduced = fit_picture(image, 2, 3)
    # Columns 0-1 and 2-3 of rows 0-1, then nothing below.
    assert reduced[0, 0].tolist() == [round((3 * 200 + 255) / 4), round((3 * 100 + 255) / 4), 64]
    assert reduced[0, 1].tolist() == [100, 50, 0]
    assert reduced[0, 2].tolist() == [0, 0, 0] and not reduced[1].any()


# ---- GIF -----------------------------------------------------------------------------------------


@settings(max_examples=30)
@given(
    order=st.lists(st.integers(0, 3), min_size=2, max_size=20),
    fps=st.sampled_from([4, 15, 50]),
    scale=st.integers(1, 3),
)
@example(order=[0, 0, 0, 1, 2, 2, 0], fps=10, scale=1)
def test_a_gif_shows_each_frame_at_its_time(order, fps, scale):
    pages = gif_pages(gif_bytes([ball(t) for t in order], fps, scale))
    ends = np.cumsum([delay for _, delay in pages])
    assert abs(ends[-1] - 1000 * len(order) / fps) <= 5
    for place, t in enumerate(order):
        now = 1000 * (place + 0.5) / fps
        image, _ = pages[int(np.searchsorted(ends, now))]
        assert (image == enlarge(ball(t).image, scale)).all()


@pytest.mark.parametrize("count", [255, 256])
def test_255_colours_are_exact_and_more_are_the_nearest(count):
    codes = np.arange(count) * 5000
    colours = np.stack([codes >> 16, codes >> 8 & 255, codes & 255], axis=1).astype(np.uint8)
    halves = np.array_split(colours, 2)
    width = len(halves[0])
    frames = [frame(np.resize(half, (2, width, 3)), t) for t, half in enumerate(halves)]
    read = gif_pages(gif_bytes(frames, 10))
    worst = max(
        int(np.abs(image.astype(int) - source.image).max())
        for (image, _), source in zip(read, frames, strict=True)
    )
    assert (worst == 0) == (count <= 255) and worst < 64


def test_a_gif_stores_what_changes_only():
    backdrop = np.random.default_rng(0).integers(0, 4, (120, 160, 3)) * 64
    frames = []
    for t in range(100):
        image = backdrop.copy()
        image[50:56, t : t + 6] = 255
        frames.append(frame(image, t))
    alone = len(gif_bytes(frames[:1], 10))
    assert len(gif_bytes(frames, 10)) < 100 * alone / 10


@pytest.mark.parametrize("fps", [0, 50.5])
def test_a_gif_refuses_impossible_speeds(fps):
    with pytest.raises(UserError, match="a GIF can't show"):
        gif_bytes([ball(0)], fps)


def test_a_gif_is_written_into_a_new_folder_or_refused(tmp_path):
    write_gif(iter([ball(0), ball(1)]), tmp_path / "new" / "x.gif", 10)
    assert len(gif_pages((tmp_path / "new" / "x.gif").read_bytes())) == 2
    (tmp_path / "taken").write_text("mine")
    with pytest.raises(UserError, match=r"can't write .*taken/x\.gif"):
        write_gif([ball(0)], tmp_path / "taken" / "x.gif", 10)
    assert files(tmp_path) == {"new/x.gif", "taken"}


# ---- MP4 -----------------------------------------------------------------------------------------


def test_a_video_has_the_frames_speed_and_even_size(tmp_path):
    frames = [ball(t, 33, 41) for t in range(25)]
    write_mp4(iter(frames), tmp_path / "x.mp4", 12.5)
    video = read_video(tmp_path / "x.mp4")
    assert (video.fps, video.codec) == (12.5, "h264")
    assert video.images.shape == (25, 34, 42, 3)
    for image, source in zip(video.images, frames, strict=True):
        # colours at half the resolution
        assert np.abs(image[:33, :41].astype(int) - source.image).mean() < 8


def test_frames_of_several_sizes_or_none_are_refused(tmp_path):
    with pytest.raises(UserError, match="no frame was drawn"):
        write_mp4(iter([]), tmp_path / "x.mp4", 10)
    with pytest.raises(
        UserError,
        match=r"picture 1 is \(3, 3, 3\), the first was \(20, 30, 3\)\n.*all pictures in one size",
    ):
        write_mp4(iter([ball(0), frame(np.zeros((3, 3, 3)), 1)]), tmp_path / "x.mp4", 10)
    assert files(tmp_path) == set()


@pytest.mark.parametrize(
    ("write", "missing", "extra"),
    [(write_gif, "PIL", "gif"), (write_mp4, "imageio_ffmpeg", "video")],
)
def test_a_missing_library_is_named(tmp_path, monkeypatch, write, missing, extra):
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(
        UserError, match=rf"need {missing}, .*\n  hint: pip install 'puffer-mlx\[{extra}\]"
    ):
        write([ball(0)], tmp_path / "x.mp4", 10)


# ---- the terminal --------------------------------------------------------------------------------


def terminal(width: int, height: int) -> tuple[Console, io.StringIO]:
    file = io.StringIO()
    how = {"force_terminal": True, "color_system": "truecolor"}
    return Console(file=file, width=width, height=height, **how), file


def test_a_picture_of_two_pixels_a_character_fills_the_window_below_its_caption():
    console, file = terminal(9, 4)
    image = np.array([[(255, 0, 0)], [(0, 0, 255)]], np.uint8)
    console.print(HalfBlocks(image, "hello, world"), end="")
    assert file.getvalue() == (
        "hello, wo\n"
        "\x1b[38;2;255;0;0;48;2;255;0;0m▀▀▀\x1b[0m\n"
        "\x1b[38;2;255;0;0;48;2;0;0;255m▀▀▀\x1b[0m\n"
        "\x1b[38;2;0;0;255;48;2;0;0;255m▀▀▀\x1b[0m"
    )


def test_frames_are_played_in_time_on_the_second_screen_until_ctrl_c():
    def frames():
        for t in range(3):
            yield ball(t)._replace(step=5 * t, total=t, episode=t, terminal=t > 0)
        raise KeyboardInterrupt

    console, file = terminal(60, 12)  # the picture gets 19 rows of pixels
    began = time.perf_counter()
    play_in_terminal(frames(), 50, console)
    assert time.perf_counter() - began >= 2 / 50
    steps = [f"return {t}   step {5 * (t > 0)}   Ctrl-C quits" for t in range(3)]
    parts = ["\x1b[?1049h", *steps, "\x1b[?1049l", "episodes 2, mean return 1.500"]
    places = [file.getvalue().index(part) for part in parts]
    assert places == sorted(places)
    assert "\x1b[?25h" in file.getvalue()  # the cursor is visible again


def test_playing_without_a_terminal_is_refused():
    taken = []
    with pytest.raises(UserError, match="not a terminal\n  hint: run it in one, or write a file"):
        play_in_terminal((taken.append(t) for t in range(3)), 10, Console(file=io.StringIO()))  # type: ignore
    assert taken == []
