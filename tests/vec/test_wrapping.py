"""Section [wrap]: Gymnasium's wrappers, Atari's games and MiniGrid."""

import importlib.util
import re
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import wrappers
from gymnasium.spaces import Box, Discrete
from stepping import alike, gym_vec, played, started, step

from puffer_mlx import config as c
from puffer_mlx import vec
from puffer_mlx.cli.train_output import images_note
from puffer_mlx.config.schema import Wrap
from puffer_mlx.errors import UserError
from puffer_mlx.library.settings import with_settings
from puffer_mlx.vec.base import TRUNCATED
from puffer_mlx.vec.gym.installed import has_vectorised_versions
from puffer_mlx.vec.gym.make import GymFactory

HEIGHT, WIDTH = 6, 8
pytestmark = pytest.mark.skipif(not has_vectorised_versions(), reason="needs Gymnasium 1.1")


class Film(gymnasium.Env):
    """Environment that observes pictures: each pixel shows its step and its place."""

    action_space = Discrete(2)

    def __init__(self, first: bool = False, flat: bool = False) -> None:
        self.first, self.flat = first, flat  # channels first; no picture at all
        shape = (3, HEIGHT, WIDTH) if first else (HEIGHT, WIDTH, 3)
        self.observation_space = Box(0, 255, (3,) if flat else shape, np.uint8)
        self.actions: list[int] = []

    def see(self):
        rows, columns = np.indices((HEIGHT, WIDTH))
        picture = np.stack([self.t + rows, self.t + columns, np.full_like(rows, self.t)], -1)
        picture = picture.astype(np.uint8)
        return picture[0, 0] if self.flat else picture.transpose(2, 0, 1) if self.first else picture

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 10
        return self.see(), {}

    def step(self, action):
        self.actions.append(int(action))
        self.t += 10
        return self.see(), 10.0 * (1 if action else -1), False, False, {}


def one(env: dict | None = None, **wrap: Any) -> Any:
    return GymFactory("film", Film, env or {}, wrap=Wrap(**wrap)).single()


def picture(t: int) -> np.ndarray:
    film = Film()
    film.t = t
    return film.see()


def test_frames_are_stacked_as_channels_oldest_first():
    env, first = one(frame_stack=3), one(frame_stack=3, env={"first": True})
    assert env.observation_space == Box(0, 255, (HEIGHT, WIDTH, 9), np.uint8)
    assert np.array_equal(env.reset()[0], np.concatenate([picture(10)] * 3, -1))
    first.reset()
    for made in env, first:
        made.step(0)
        seen = made.step(0)[0]
        assert np.array_equal(seen, np.concatenate([picture(10), picture(20), picture(30)], -1))
    env = one(frame_stack=5, env={"flat": True})  # vectors are stacked unchanged
    env.reset()
    assert env.step(0)[0].tolist() == [[10] * 3] * 4 + [[20] * 3]


def test_stacked_frames_are_channels_of_the_image():
    stack = Wrap(frame_stack=3)
    with gym_vec(Film, name="film", total_agents=1, backend="sync", wrap=stack) as env:
        assert env.spec.observation_shape == (HEIGHT, WIDTH, 9)
        assert images_note(env) == "images: 6 x 8, 9 channels (channels last)"


def test_grayscale_resize_and_stack_equal_gymnasiums_wrappers():
    env = one(grayscale=True, resize_height=3, resize_width=4, frame_stack=4)
    env.reset()
    seen = env.step(1)[0]
    assert seen.shape == (3, 4, 4) and seen.dtype == np.uint8
    oracle = wrappers.GrayscaleObservation(Film())
    oracle = wrappers.FrameStackObservation(wrappers.ResizeObservation(oracle, (3, 4)), 4)
    oracle.reset()
    assert np.array_equal(seen, oracle.step(1)[0].transpose(1, 2, 0))
    assert one(grayscale=True).observation_space.shape == (HEIGHT, WIDTH, 1)
    assert one(grayscale=True, resize_width=5).observation_space.shape == (5, 5, 1)


def test_rewards_are_clipped_and_episodes_limited():
    env = one(clip_rewards=2.5, max_episode_steps=2)
    env.reset()
    assert env.step(0)[1:4] == (-2.5, False, False)
    assert env.step(1)[1:4] == (2.5, False, True)


def test_sticky_actions_repeat_with_their_probability():
    """Actions alternate, so about p of them differ."""
    env, taken = one(sticky_actions=0.25), []
    for _ in range(2):
        env.reset(seed=3)
        for t in range(400):
            env.step(t % 2)
        taken.append(env.unwrapped.actions[-400:])
    assert 0.15 < (np.array(taken[0]) != np.arange(400) % 2).mean() < 0.35
    assert taken[0] == taken[1]


# ---- Backends, and the names that they go by -----------------------------------------------------

CARTPOLE = "gym:CartPole-v1"
PONG = "ALE/Pong-v5"


WORDS = ["--vec.total-agents", "2", "--wrap.frame-stack", "3", "--wrap.max-episode-steps", "4"]
WORDS += ["--vec.normalize-observations", "0", "--vec.normalize-rewards", "0"]


def shown(backend: str) -> tuple[list, str]:
    settings = c.load(CARTPOLE, [*WORDS, "--vec.backend", backend])
    with vec.make(settings, 1) as env:
        return played(env, 7), env.description


def test_wrapped_backends_give_equal_rows():
    sync, _ = shown("sync")
    assert alike(sync, shown("async")[0])
    assert sync[1].observations.shape == (2, 12)
    final_observations = [np.array(row.final_observations).tolist() for row in sync]
    # instead of the 500 steps of the ID:
    assert final_observations[:5] == [[0, 0]] * 4 + [[TRUNCATED] * 2]


def test_wrappers_exclude_the_vectorized_form():
    said = r"its vectorised version can't be wrapped \(wrap\.max_episode_steps, wrap\.frame_stack\)"
    assert re.search(said, shown("auto")[1])
    with pytest.raises(UserError, match=r"backend is vector, but its vectorised version can't"):
        shown("vector")


# ---- What doesn't fit ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "env", "wrap", "said"),
    [
        (CARTPOLE, {}, Wrap(grayscale=True), r"wrap\.grayscale doesn't fit it: .*3 channels"),
        (CARTPOLE, {}, Wrap(preset="atari"), r"preset doesn't fit it: the preset is for ALE's"),
        (CARTPOLE, {"max_episode_steps": 9}, Wrap(max_episode_steps=8), "are both given"),
        (Film, {"first": True}, Wrap(resize_width=8), r"\(3, 6, 8\), with channels first"),
        (Film, {}, Wrap("atari", frame_stack=2), r"wrap\.preset atari sets wrap\.frame_stack"),
    ],
)
def test_wrapper_that_does_not_fit_is_reported(make, env: dict, wrap: Wrap, said: str):
    make = make.removeprefix("gym:") if make is CARTPOLE else make
    with pytest.raises(UserError, match=said):
        GymFactory("x", make, env, wrap=wrap).single()


def test_typed_default_contradicts_the_preset():
    with pytest.raises(UserError, match=r"wrap\.preset atari sets wrap\.frame_stack"):
        c.load(CARTPOLE, ["--wrap.preset=atari", "--wrap.frame-stack=1"])
    with pytest.raises(UserError, match=r"wrap\.grayscale doesn't work with Atari"):
        c.load(f"gym:{PONG}", ["--wrap.grayscale=0"])
    with pytest.raises(UserError, match=r"wrap\.preset atari sets wrap\.clip_rewards"):
        with_settings(c.load(CARTPOLE), {"wrap.preset": "atari", "wrap.clip_rewards": 0})


# ---- Atari and MiniGrid --------------------------------------------------------------------------

BREAKOUT = "ALE/Breakout-v5"


@pytest.fixture
def atari():
    pytest.importorskip("ale_py")
    pytest.importorskip("cv2")


def single(env=None, wrap=None) -> Any:
    return GymFactory(f"gym:{BREAKOUT}", BREAKOUT, env or {}, wrap=wrap or Wrap()).single()


def test_preset_becomes_arguments_of_the_vectorized_form(atari):
    words = ["--wrap.preset", "atari", "--vec.total-agents", "2"]
    settings = c.load(f"gym:{PONG}", words)
    with vec.make(settings, 1) as made:
        assert made.description.startswith("vector: ")
        assert made.spec.observation_shape == (84, 84, 4)
        said = [
            f"env.{key} (wrap.preset atari: True)" for key in ("episodic_life", "reward_clipping")
        ]
        assert vec.unused_env_keys(settings, made)[:2] == said
    with pytest.raises(
        UserError, match=r"wrap\.frame_stack doesn't work with Atari.*env\.stack_num"
    ):
        single(wrap=Wrap(frame_stack=2))


def test_game_of_a_factory_equals_game_of_an_id(atari):
    """The game begins without chance."""
    import ale_py

    def game():
        gymnasium.register_envs(ale_py)
        return gymnasium.make(BREAKOUT, frameskip=1, repeat_action_probability=0.0)

    preset = Wrap(preset="atari")
    by_id = single({"repeat_action_probability": 0.0}, preset)
    made = GymFactory("x", game, wrap=preset).single()
    assert by_id.observation_space == made.observation_space
    ours, theirs = made.reset(seed=5)[0], by_id.reset(seed=5)[0]
    for action in np.random.default_rng(0).integers(0, 4, 60):
        assert np.array_equal(ours, theirs)
        ours, theirs = made.step(action)[0], by_id.step(action)[0]
    assert np.unique(ours).size > 3
    made.close()
    by_id.close()


@pytest.mark.parametrize("fire", [True, False])
def test_single_game_equals_the_vectorized_form(atari, fire):
    env = {"noop_max": 0, "repeat_action_probability": 0.0, "reward_clipping": False}
    factory = GymFactory(f"gym:{BREAKOUT}", BREAKOUT, {**env, "use_fire_reset": fire})
    many, one = factory.vector(1), factory.single()
    assert many.single_observation_space == one.observation_space
    assert many.single_action_space.n == one.action_space.n
    seen, expected = one.reset(seed=5)[0], many.reset(seed=5)[0][0]
    total = 0.0
    for action in np.random.default_rng(1).integers(0, 4, 120):
        assert np.array_equal(seen, expected)
        seen, reward, over, *_ = one.step(int(action))
        (expected,), rewards, ends, *_ = many.step(np.array([action]))
        assert (float(rewards[0]), bool(ends[0])) == (reward, over)
        total += float(reward)
    assert seen.shape == (4, 84, 84) and total > 0
    one.close()
    many.close()


def test_single_game_begins_at_random_and_may_be_unwrapped(atari):
    game = single({"noop_max": 30})
    starts = {game.reset(seed=seed)[1]["frame_number"] for seed in range(6)}
    assert len(starts) > 2 and max(starts) <= 31
    game.close()
    with pytest.raises(UserError, match=r"env\.life_loss_info True needs the vectorised env"):
        single({"life_loss_info": True})
    assert single().observation_space.shape == (210, 160, 3)


def test_shipped_settings_of_atari_make_and_render_it(atari):
    config = c.load(f"gym:{BREAKOUT}", ["--vec.total-agents", "1", "--wrap.max-episode-steps", "3"])
    with vec.make(config, 1, render=True) as made:
        assert made.spec.observation_shape == (84, 84, 4)
        assert np.shape(made.render()) == (210, 160, 3)
        rows = started(made)
        assert [float(np.array(step(made, rows).final_observations)[0]) for _ in range(3)] == [
            0,
            0,
            TRUNCATED,
        ]


def test_minigrid_shows_its_image():
    if importlib.util.find_spec("minigrid") is None:
        with pytest.raises(UserError, match="pip install minigrid"):
            GymFactory("", "MiniGrid-Empty-5x5-v0")
        return
    words = ["--vec.backend", "sync", "--vec.total-agents", "8"]
    with vec.make(c.load("gym:MiniGrid-Empty-5x5-v0", words), 1, render=True) as made:
        assert made.spec.observation_shape == (7, 7, 3)
        assert np.ndim(made.render()) == 3
