"""Every draw.py: pictures of what an agent sees, and of the right thing."""

import ast
import sys

import numpy as np
import pytest
from native_envs import Stepper, draw_of, folder_of, make

from puffer_mlx.vec.native.sources import environments_folder
from puffer_mlx.vec.rows import random_actions

DRAWN = sorted(path.parent.name for path in environments_folder().glob("*/draw.py"))
LARGEST = 300  # pixels a side


@pytest.mark.parametrize("name", DRAWN)
def test_pictures_of_random_play(name):
    """Small, all of one size, made of the observation alone, and not all the same."""
    rng = np.random.default_rng(0)
    draw = draw_of(name)
    with make(name, total_agents=48) as vec:  # 48 is a multiple of every number of agents
        stepper = Stepper(vec)
        pictures = []
        for _ in range(30):
            stepper.step(random_actions(vec, vec.num_agents, rng))
            observation = stepper.rows.observations[0].copy()
            pictures.append(draw(observation))
            np.testing.assert_array_equal(observation, stepper.rows.observations[0])
            np.testing.assert_array_equal(draw(observation), pictures[-1])
    assert {(picture.dtype, picture.shape) for picture in pictures} == {
        (np.dtype(np.uint8), pictures[0].shape)
    }
    assert pictures[0].ndim == 3 and pictures[0].shape[2] == 3
    assert 40 <= max(pictures[0].shape[:2]) <= LARGEST
    assert any((picture != pictures[0]).any() for picture in pictures)


def test_they_need_numpy_alone():
    for name in DRAWN:
        tree = ast.parse((folder_of(name) / "draw.py").read_text())
        found = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
        assert {name.split(".")[0] for name in found} - sys.stdlib_module_names <= {"numpy"}


def where(picture: np.ndarray, colour: tuple[int, int, int]) -> tuple[int, int, int, int]:
    """Top, left, bottom and right (the last two exclusive) of the pixels of a colour."""
    rows, columns = np.nonzero((picture == colour).all(axis=-1))
    return rows.min(), columns.min(), rows.max() + 1, columns.max() + 1


CYAN, RED, GOLD, WHITE = (0, 187, 187), (187, 0, 0), (204, 173, 17), (241, 241, 241)


def test_breakout():
    """First observation: paddle (257, 312) 62 x 8, ball (272, 135) 32 x 32, at half scale."""
    draw = draw_of("breakout")
    with make("breakout", total_agents=1) as vec:
        first = Stepper(vec).rows.observations[0]
    picture = draw(first)
    assert picture.shape == (165, 288, 3)
    assert where(picture, CYAN) == (156, 128, 160, 128 + 31)
    assert where(picture[20:], WHITE) == (67 - 20, 136, 67 + 16 - 20, 136 + 16)
    assert where(picture, RED) == (25, 0, 36, 287)
    assert where(picture, GOLD)[0] == 37
    later = first.copy()
    later[10 + 18 + 2] = 1  # the third brick of the second row is gone
    later[8], later[9] = 0, 0.5  # no balls in reserve; a short paddle
    rows, columns = np.nonzero((draw(later) != picture).any(axis=-1))
    brick = (rows >= 31) & (rows < 37) & (columns >= 32) & (columns < 48)
    paddle, reserve = rows >= 156, rows < 12
    assert brick.sum() == 15 * 5 and (brick | paddle | reserve).all()
    assert where(draw(later), CYAN)[3] == 128 + 16
    assert where(draw(later), WHITE)[0] == 67
    later[8:10] = 0  # hidden
    assert where(draw(later), CYAN) == where(picture, CYAN)


def test_breakout_outside():
    """Things that leave the picture, as a lost ball does, are cut off."""
    observation = np.zeros(118, np.float32)
    observation[[2, 3]] = -0.01, 0.98
    picture = draw_of("breakout")(observation)
    assert picture.shape == (165, 288, 3)
    assert where(picture, WHITE) == (162, 0, 165, 13)


SMALL = {  # environment, shape -> places and what is set there, and where colours are
    "squared": (
        (11, 11),
        [((2, 3), 1), ((9, 10), 2)],
        {CYAN: (37, 55, 54, 72), RED: (163, 181, 180, 198)},
    ),
    "connect4": (
        (3, 6, 7),
        [((0, 5, 2), 1), ((1, 4, 6), 1), (2, 1)],  # where stones would land isn't drawn
        {CYAN: (142, 58, 166, 82), RED: (114, 170, 138, 194)},
    ),
    "catch": (
        (36, 36),
        [(np.s_[10:13, 4:7], 255), (np.s_[34:, 20:27], 128)],
        {WHITE: (60, 24, 78, 42), CYAN: (204, 120, 216, 162)},
    ),
}


@pytest.mark.parametrize("name", SMALL)
def test_small_ones(name):
    shape, values, colours = SMALL[name]
    observation = np.zeros(shape, np.uint8)
    for place, value in values:
        observation[place] = value
    picture = draw_of(name)(observation.ravel())
    assert {colour: where(picture, colour) for colour in colours} == colours
