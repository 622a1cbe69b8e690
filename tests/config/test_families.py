"""Families of environments in Python: their settings, and how the family is found."""

from dataclasses import replace

import pytest
from running import only

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

    def __init__(self, kind="image", moves="choices"):
        made.append(kind)
        if moves == "numbers":
            self.action_space = gymnasium.spaces.Box(-2, 2, (1,))
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
        reward = float((action > 0.5) == self.side) if np.ndim(action) == 0 else 0.0
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

PYTHON = ["default.ini", "python.ini"]


def test_files_say_the_family_of_their_environments():
    config = c.load("gym:ALE/Pong-v5")
    expected = {"frameskip": 4, "stack_num": 4, "img_height": 84, "img_width": 84}
    assert config.env.items() >= (expected | {"reward_clipping": False}).items()
    assert config.train.reward_clip == 1 and not config.vec.normalize_observations
    codes = c.load("gym:MiniGrid-DoorKey-5x5-v0", family="images")  # which its file contradicts
    assert names(codes) == [*PYTHON, "discrete.ini", "gym/MiniGrid.ini"]


@pytest.mark.parametrize(
    ("words", "files", "family"),
    [
        ([], [], "images"),
        (["--family", "auto"], [], "discrete"),  # the family of the spaces
        (["--family", "discrete"], ["more.ini"], "discrete"),
    ],
)
def test_the_command_line_wins_over_files_about_the_family(here, words, files, family):
    (here / "configs").mkdir()
    own = here / "configs" / "own.ini"
    own.write_text("[base]\nenv_name = m:E\nfamily = images\n")
    (here / "more.ini").write_text("[base]\nfamily = continuous\n")
    config = c.load("m:E", words, files, family="discrete")
    assert config.base.family == family
    assert names(config) == [*PYTHON, f"{family}.ini", str(own), *files]


def test_images_with_continuous_actions_take_only_action_settings_of_continuous(shipped_configs):
    text = "[vec]\nrescale_actions = True\n[train]\nent_coef = 0\nhorizon = 32\n"
    text += "minibatch_size = 256\n"
    (shipped_configs / "continuous.ini").write_text(text + "algorithm = puffer5\n")
    images, numbers = (c.load("m:E", family=f) for f in ("images", "continuous"))
    both = c.load("m:E", family="continuous_images")
    assert names(both) == [*PYTHON, "images.ini", "continuous.ini"]
    assert (numbers.train.horizon, numbers.train.algorithm) == (32, "puffer5")
    expected = replace(images.train, ent_coef=0.0)
    assert both.train == expected != images.train and both.policy == images.policy
    assert both.vec == replace(images.vec, rescale_actions=True) != images.vec


def test_images_with_a_memory_take_only_state_resets_of_recurrent():
    for family in "images", "continuous_images":
        plain = c.load("m:E", family=family)
        memory = c.load("m:E", ["--torch.network", "LSTM"], family=family)
        assert names(memory) == [*names(plain), "recurrent.ini"]
        assert memory.base == replace(plain.base, reset_state=False) != plain.base
        assert memory.policy == replace(plain.policy, reset_on_terminal=True) != plain.policy
        assert memory.train == plain.train and memory.vec == plain.vec


def test_a_saved_configuration_takes_nothing_from_families(here):
    config = c.load("gym:ALE/Pong-v5", ["--train.gamma", "0.5"])
    config.env.clear()
    c.write_ini(config, here / "config.ini")
    for family in "", "discrete", "continuous":
        assert c.load(str(here / "config.ini"), family=family) == config
    new = {"family", "rescale_actions", "image_channels"}
    lines = (here / "config.ini").read_text().splitlines()
    old = [line for line in lines if line.partition(" ")[0] not in new]
    assert len(lines) - len(old) == len(new)
    (here / "config.ini").write_text("\n".join(old))
    found = c.load(str(here / "config.ini"), family="continuous")
    assert names(found)[:-1] == ["default.ini"] and not found.vec.rescale_actions
    assert (config.vec.image_channels, found.vec.image_channels) == ("smallest", "up_to_4")
    assert found.train == config.train and found.family_reloader is None
    played = c.load("m:E", files=["config.ini"], family="continuous")  # as evaluate.py reads it
    assert not played.vec.rescale_actions and played.train == config.train
    (note,) = c.load(str(here / "config.ini"), ["--family", "continuous"]).notes
    assert note.startswith("base.family continuous has no effect: ")
    assert note.endswith("config.ini sets every key")


# ---- Found out -------------------------------------------------------------------------------


def fitting(*options: str) -> tuple[c.Config, list[str]]:
    """Load a configuration of screen:Screen and create its environments.

    Returns the configuration and the kinds of environments that were created.
    """
    import screen  # type: ignore

    screen.made.clear()
    config = c.load("screen:Screen", [*TINY[:2], "--vec.backend", "sync", *options])
    with vec.make(config, 1) as made:
        assert made.num_agents == config.vec.total_agents
        rows = made.spec.observation_size
    assert rows == 64
    return config, screen.made


@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("images", []),
        ("discrete", ["--env.kind", "numbers"]),
        ("continuous", ["--env.kind", "numbers", "--env.moves", "numbers"]),
        ("continuous_images", ["--env.moves", "numbers"]),
    ],
)
def test_the_family_is_found_from_the_spaces(screen, family, options):
    config, made = fitting(*options)
    words = [*TINY[:2], "--vec.backend", "sync", *options]
    expected = c.load("screen:Screen", words, family=family)
    assert config == expected and config.base.family == family
    assert config.files == expected.files and config.origins == expected.origins
    assert len(made) == 1 + config.vec.total_agents  # one to look at


def test_options_and_a_programs_changes_win_over_the_familys_settings(screen):
    images = c.load("screen:Screen", family="images")
    config = c.load("screen:Screen", ["--vec.backend", "sync", "--train.replay-ratio", "5"])
    config.train.gamma, config.vec.total_agents = 0.25, 4
    vec.settle_family(config)
    assert (config.train.gamma, config.vec.total_agents, config.train.replay_ratio) == (0.25, 4, 5)
    assert config.policy == images.policy != c.load("screen:Screen").policy
    config, made = fitting("--family", "discrete")
    assert names(config) == [*PYTHON, "discrete.ini"] and len(made) == 8  # none to look at


def test_a_familys_minibatch_is_lowered_to_few_agents(screen):
    config, _ = fitting("--vec.total-agents", "2", "--train.horizon", "16")
    assert (config.vec.total_agents, config.train.minibatch_size) == (2, 32)
    (note,) = [note for note in config.notes if "minibatch_size" in note]
    assert "images.ini" in note and note.endswith("is more than an epoch: lowered to 32")
    (screen / "own.ini").write_text("[base]\nenv_name = m:E\n[train]\nminibatch_size = 4096\n")
    for words in ["m:E", "--train.minibatch-size", "4096"], ["own.ini"]:
        with pytest.raises(UserError, match="4096 is more than an epoch"):
            c.load(words[0], [*words[1:], "--vec.total-agents", "2"])


@pytest.mark.parametrize("command", ["match", "evaluate", "a sweep's run"])
def test_commands_make_one_configuration_of_the_environments_family(screen, monkeypatch, command):
    """They don't make it of another family first, and fill in the right one afterwards."""
    pytest.importorskip("optuna")
    from puffer_mlx.cli import evaluate, match, sweep
    from puffer_mlx.sweep.engine.trainings import RunLauncher

    def take_family(*_):
        raise AssertionError("resolved twice")

    monkeypatch.setattr("puffer_mlx.vec.from_config.take_family", take_family)
    if command == "match":
        config, _ = match.parse_match(["screen:Screen", "random", "random"])
    elif command == "evaluate":
        config, _ = evaluate.parse_evaluate(["screen:Screen", "policy.bin"])
    else:
        name, words = "screen:Screen", ["--sweep.metric", "score"]
        config, swept = sweep.configure_sweep(name, words, c.load(name, words), "a sweep")
        shared = name, words, config, swept.space, swept.settings, screen, 1.0
        config = RunLauncher(*shared)._config({})
    assert config.base.family == "images" and "images.ini" in names(config)


def test_a_run_names_its_family_once_and_saves_it(screen, script, capsys):
    line = "screen:Screen: images (configs/python.ini, configs/images.ini)\n"
    assert script.main(["screen:Screen", *TINY]) == 0
    assert capsys.readouterr().out.count(line) == 1
    first = c.load(str(only(screen, "checkpoints/*/*/config.ini")))
    assert first.vec.total_agents == c.load("screen:Screen", family="images").vec.total_agents
    assert first.base.family == "images"
    more = "--resume", "latest", "--train.total-timesteps", str(256 * T)
    assert script.main(["screen:Screen", *more]) == 0
    assert "images.ini" not in capsys.readouterr().out  # its own configuration has every key
    assert c.load(str(only(screen, "checkpoints/*/*/config.ini"))).train == first.train


def test_the_family_is_unused_for_environments_in_c():
    config = c.load("squared", ["--family", "images", "--vec.rescale-actions", "1"])
    with vec.make(config, 1) as made:
        unused = vec.unused_env_keys(config, made)
    assert {"base.family (for Python)", "vec.rescale_actions (for Python)"} <= set(unused)
