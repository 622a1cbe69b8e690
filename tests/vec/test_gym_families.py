"""Atari: a single game shows what ale-py's vectorised form shows, to the bit. MiniGrid's image."""

import importlib.util

import numpy as np
import pytest

from puffer_mlx import config as c
from puffer_mlx import vec
from puffer_mlx.errors import UserError
from puffer_mlx.vec.gym.make import GymRecipe

pytest.importorskip("gymnasium")
GAME = "ALE/Breakout-v5"
ALIKE = {"noop_max": 0, "repeat_action_probability": 0.0, "reward_clipping": False}


@pytest.fixture
def atari():
    pytest.importorskip("ale_py")
    pytest.importorskip("cv2")


@pytest.mark.parametrize("fire", [True, False])
def test_one_game_is_as_the_vectorised_ones(atari, fire):
    recipe = GymRecipe("gym:" + GAME, GAME, {**ALIKE, "use_fire_reset": fire})
    many, one = recipe.vector(1), recipe()
    assert many.single_observation_space == one.observation_space
    assert many.single_action_space.n == one.action_space.n
    seen, expected = one.reset(seed=5)[0], many.reset(seed=5)[0][0]
    chance, total = np.random.default_rng(1), 0.0
    for _ in range(120):
        assert np.array_equal(seen, expected)
        action = int(chance.integers(4))
        seen, reward, over, *_ = one.step(action)
        found = many.step(np.array([action]))
        assert (float(found[1][0]), bool(found[2][0])) == (reward, over)
        expected = found[0][0]
        total += float(reward)
    assert seen.shape == (4, 84, 84) and total > 0
    one.close()
    many.close()


def test_one_game_otherwise(atari):
    """It begins by chance; and without arguments of the vectorised form it is as it always was."""
    game = GymRecipe("gym:" + GAME, GAME, {"noop_max": 30})()
    starts = {game.reset(seed=seed)[1]["frame_number"] for seed in range(6)}
    assert len(starts) > 2 and max(starts) <= 31
    game.close()
    with pytest.raises(UserError, match=r"env\.life_loss_info True is for its vectorised form"):
        GymRecipe("gym:" + GAME, GAME, {"life_loss_info": True})()
    assert GymRecipe("gym:" + GAME, GAME)().observation_space.shape == (210, 160, 3)


def test_the_shipped_settings_make_it_and_draw_it(atari):
    words = ["--vec.total-agents", "8"]
    config = c.load("gym:" + GAME, words)
    with vec.make(config, 1) as made:
        assert made.spec.observation_shape == (84, 84, 4) and made.finals
        assert made.description.startswith("vector: ")
    with vec.make(config, 1, render=True) as made:
        assert made.spec.observation_shape == (84, 84, 4)
        picture = made.render()
        assert isinstance(picture, np.ndarray) and picture.shape == (210, 160, 3)


def test_minigrids_image():
    if importlib.util.find_spec("minigrid") is None:
        with pytest.raises(UserError, match="pip install minigrid"):
            GymRecipe("", "MiniGrid-Empty-5x5-v0")
        return
    words = ["--vec.backend", "sync", "--vec.total-agents", "8"]
    with vec.make(c.load("gym:MiniGrid-Empty-5x5-v0", words), 1, render=True) as made:
        assert made.spec.observation_shape == (7, 7, 3)
        assert made.spec.observation_dtype == np.uint8
        assert np.asarray(made.render()).ndim == 3
