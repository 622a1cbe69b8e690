"""Every draw.py: pictures of observations."""

import numpy as np
import pytest
from native_envs import Stepper, draw_of, make

from puffer_mlx.vec.native.sources import environments_folder
from puffer_mlx.vec.rows import random_actions

DRAWN = sorted(path.parent.name for path in environments_folder().glob("*/draw.py"))
LARGEST = 300  # pixels a side


@pytest.mark.parametrize("name", DRAWN)
def test_picture_shows_only_the_observation(name):
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


def where(picture: np.ndarray, colour: object) -> tuple[int, int, int, int]:
    """Return top, left, bottom and right (the last two exclusive) of a colour's pixels."""
    rows, columns = np.nonzero((picture == colour).all(axis=-1))
    return rows.min(), columns.min(), rows.max() + 1, columns.max() + 1


CYAN, WHITE = (0, 187, 187), (241, 241, 241)


def test_breakout_shows_paddle_ball_and_bricks():
    """First observation: paddle (257, 312) 62 x 8, ball (272, 135) 32 x 32, at half scale."""
    draw = draw_of("breakout")
    with make("breakout", total_agents=1) as vec:
        first = Stepper(vec).rows.observations[0]
    picture = draw(first)
    assert picture.shape == (165, 288, 3)
    assert where(picture, CYAN) == (156, 128, 160, 128 + 31)
    assert where(picture[20:], WHITE) == (67 - 20, 136, 67 + 16 - 20, 136 + 16)
    later = first.copy()
    later[10 + 18 + 2] = 1  # the third brick of the second row is gone
    assert where((draw(later) != picture).any(axis=-1)[..., None], True) == (31, 32, 36, 47)
