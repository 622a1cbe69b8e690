"""What environments in Python that show images are configured with, and how that is found out."""

import numpy as np
import pytest
from running import errors, only, run

from puffer_mlx import config as c
from puffer_mlx import vec
from puffer_mlx.errors import UserError

pytest.importorskip("gymnasium")

SCREEN = '''
import gymnasium
import numpy as np

made = []


class Screen(gymnasium.Env):
    """A bright square to the left or the right: say where."""

    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, kind="image"):
        made.append(kind)
        shape = (8, 8, 1) if kind == "image" else (64,)
        self.observation_space = gymnasium.spaces.Box(0, 255, shape, np.uint8)

    def see(self):
        self.side = int(self.np_random.integers(2))
        picture = np.zeros((8, 8, 1), np.uint8)
        picture[2:6, 4 * self.side : 4 * self.side + 4] = 255
        return picture.reshape(self.observation_space.shape)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.see(), {}

    def step(self, action):
        reward = float(action == self.side)
        return self.see(), reward, bool(self.np_random.integers(2)), False, {}
'''
T = 8
TINY = f"""--device cpu --vec.backend sync --train.horizon {T} --train.minibatch-size {8 * T}
    --policy.hidden-size 8 --train.total-timesteps {128 * T} --eval-episodes 0""".split()


@pytest.fixture
def screen(here, monkeypatch):
    (here / "screen.py").write_text(SCREEN)
    monkeypatch.syspath_prepend(str(here))
    return here


def names(config: c.Config) -> list[str]:
    return [file.removeprefix("configs/") for file in config.files]


# ---- Which files -----------------------------------------------------------------------------


def test_ataris_games_are_known():
    config = c.load("gym:ALE/Pong-v5")
    assert names(config) == ["default.ini", "python.ini", "images.ini", "gym/ALE.ini"]
    assert config.env_name == "gym:ALE/Pong-v5"
    assert config.train.replay_ratio <= 4 and config.vec.total_agents >= 32
    assert not (config.vec.normalize_rewards or config.vec.normalize_observations)
    # what everybody sees of Atari; the score is the game's, training clips
    expected = {"frameskip": 4, "stack_num": 4, "img_height": 84, "img_width": 84}
    assert config.env.items() >= (expected | {"reward_clipping": False}).items()
    assert config.train.reward_clip == 1
    codes = c.load("gym:MiniGrid-DoorKey-5x5-v0", images=True)  # which isn't what they are
    assert names(codes)[1:] == ["python.ini", "gym/MiniGrid.ini"]
    assert codes.torch.encoder == "DefaultEncoder" and codes.train.replay_ratio <= 4
    assert names(c.load("gym:CartPole-v1"))[1:] == ["python.ini", "gym/CartPole-v1.ini"]


def test_a_files_family_comes_before_its_own(here):
    (here / "configs").mkdir()
    (here / "configs" / "a.ini").write_text("[base]\nenv_name = m:A?x m:*\n[train]\ngamma = 0.5\n")
    (here / "configs" / "b.ini").write_text("[base]\nenv_name = m:B\n[train]\nvf_coef = 0.5\n")
    one, other = c.load("m:B"), c.load("m:C")
    assert (one.train.gamma, one.train.vf_coef) == (0.5, 0.5)
    assert (other.train.gamma, other.train.vf_coef) == (0.5, 2.0)
    assert names(one)[1:] == ["python.ini", "a.ini", "b.ini"]
    with pytest.raises(UserError, match=r"b\*\.ini is for all of gym:x\*\n.*name one: gym:xNAME"):
        (here / "b*.ini").write_text("[base]\nenv_name = gym:x*\n")
        c.load("b*.ini")


def test_the_family_of_images_is_no_environment():
    for name in "images", "gym:ALE/*":
        assert (name in c.known_envs()) == (name != "images")
    with pytest.raises(UserError, match="no configuration has the environment 'images'"):
        c.load("images")


def test_a_saved_configuration_is_what_it_was(here):
    """Files of families add nothing to a run's own: one from before they were there goes on."""
    config = c.load("gym:ALE/Pong-v5", ["--train.gamma", "0.5"])
    config.env.clear()
    c.write_ini(config, here / "config.ini")
    for images in False, True:
        assert c.load(str(here / "config.ini"), images=images) == config


# ---- Found out -------------------------------------------------------------------------------


def fitting(*options: str) -> tuple[c.Config, list[str]]:
    """The configuration that fits, and the kinds of environments that were made for it."""
    import screen  # type: ignore

    screen.made.clear()
    words = [*TINY[:2], "--vec.backend", "sync", *options]
    config, made = vec.make_fitting(
        c.load("screen:Screen", words),
        lambda config: 1,
        lambda: c.load("screen:Screen", words, images=True),
    )
    with made:
        assert made.num_agents == config.vec.total_agents
        rows = made.spec.observation_size
    assert rows == 64
    return config, screen.made


def test_images_are_seen(screen):
    config, made = fitting()
    expected = c.load("screen:Screen", [*TINY[:2], "--vec.backend", "sync"], images=True)
    assert config == expected and names(config) == ["default.ini", "python.ini", "images.ini"]
    assert config.train.replay_ratio < c.load("screen:Screen").train.replay_ratio
    assert len(made) == 8 + config.vec.total_agents


def test_numbers_are_no_images(screen):
    config, made = fitting("--env.kind", "numbers")
    assert names(config) == ["default.ini", "python.ini"] and len(made) == 8


def test_options_win(screen):
    config, _ = fitting("--train.replay-ratio", "5", "--vec.total-agents", "16")
    assert (config.train.replay_ratio, config.vec.total_agents) == (5, 16)
    assert config.policy.hidden_size == c.load("screen:Screen", images=True).policy.hidden_size


def test_few_environments_are_enough(screen):
    """A family's minibatch gives way to what a person asked for; a person's own doesn't."""
    config, _ = fitting("--vec.total-agents", "2", "--train.horizon", "16")
    assert (config.vec.total_agents, config.train.minibatch_size) == (2, 32)
    (note,) = [note for note in config.notes if "minibatch_size" in note]
    assert "images.ini" in note and note.endswith("is more than an epoch: lowered to 32")
    (screen / "own.ini").write_text("[base]\nenv_name = m:E\n[train]\nminibatch_size = 4096\n")
    for words in ["m:E", "--train.minibatch-size", "4096"], ["own.ini"]:
        with pytest.raises(UserError, match="4096 is more than an epoch"):
            c.load(words[0], [*words[1:], "--vec.total-agents", "2"])


def test_a_run_says_so_and_goes_on(screen):
    done = run("train", "screen:Screen", *TINY, cwd=screen)
    assert (done.returncode, errors(done.stderr)) == (0, "")
    assert "settings: configs/python.ini, configs/images.ini\n" in done.stdout
    found = c.load(str(only(screen, "checkpoints/*/*/config.ini")))
    assert found.vec.total_agents == c.load("screen:Screen", images=True).vec.total_agents
    more = "--resume", "latest", "--train.total-timesteps", 256 * T
    done = run("train", "screen:Screen", *more, cwd=screen)
    assert (done.returncode, errors(done.stderr)) == (0, "")
    assert "images.ini" not in done.stdout  # its own configuration has all of it
    assert c.load(str(only(screen, "checkpoints/*/*/config.ini"))).train == found.train


def test_a_file_of_weights_is_evaluated(screen):
    """One that says nothing of its policy is of what training would have made."""
    options = [*TINY[2:-2], "--eval-episodes", "0", "--policy.hidden-size", "16"]
    done = run("train", "screen:Screen", "--device", "cpu", *options, cwd=screen)
    assert (done.returncode, errors(done.stderr)) == (0, "")
    made = sorted(screen.glob("checkpoints/*/*/0*/weights.safetensors"))[-1]
    made.rename(screen / "mine.safetensors")
    words = "--load-model-path", "mine.safetensors", "--episodes", "8", "--policy.hidden-size", "16"
    done = run("evaluate", "screen:Screen", "--device", "cpu", *words, cwd=screen)
    assert (done.returncode, errors(done.stderr)) == (0, "") and "score" in done.stdout


def test_what_the_square_is_for():
    """The environment of these tests can be learned from its picture alone."""
    namespace: dict = {}
    exec(SCREEN, namespace)
    env = namespace["Screen"]()
    picture, _ = env.reset(seed=3)
    for _ in range(8):
        side = int(np.argmax(picture.sum((0, 2))) // 4)
        picture, reward, *_ = env.step(side)
        assert reward == 1
