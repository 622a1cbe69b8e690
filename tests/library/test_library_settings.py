"""Configurations out of keywords and dictionaries."""

import numpy as np

from puffer_mlx import config
from puffer_mlx.config.fit import typed
from puffer_mlx.library.settings import changed, collected, configured


def test_short_and_full_names_and_sections_mean_the_same():
    full = {"train.learning_rate": 0.5, "base.seed": 3}
    assert collected({"learning_rate": 0.5, "seed": 3}) == full
    assert collected({"train": {"learning_rate": 0.5}, "base": {"seed": 3}}) == full
    assert collected({"train.learning_rate": 0.1}, {"learning_rate": 0.5}, {"seed": 3}) == full
    (value,) = collected({"horizon": np.int64(32)}).values()
    assert value == 32 and type(value) is int


def test_several_choices_are_a_list_too():
    assert collected({"track": ["wandb", "trackio"]}) == {"base.track": "wandb,trackio"}
    assert collected({"base": {"track": ()}}) == {"base.track": "none"}


def test_settings_win_over_files_and_count_as_typed():
    found = configured({"train.gamma": 0.5, "total_timesteps": 1e6}, "squared", {"gamma": 0.25})
    plain = config.load("squared", ["--train.gamma", "0.25", "--train.total-timesteps", "1e6"])
    assert found == plain and typed(found, "train.gamma")


def test_a_family_that_is_found_out_later_blames_no_command_line_either():
    found = configured({"gamma": 0.25}, "gym:CartPole-v1", {})
    assert found.again is not None
    again = found.again("discrete")
    assert typed(again, "train.gamma") and again.origins["train.gamma"] == "keyword or dictionary"


def test_a_whole_configuration_is_copied():
    before = config.load("squared", [])
    found = configured(before, None, {"gamma": 0.25, "env.x": 3})
    assert found.train.gamma == 0.25 and found.env["x"] == 3
    assert before.train.gamma != 0.25 and "x" not in before.env and not typed(before, "train.gamma")


def test_changes_stay_when_the_family_is_found_out():
    """Also those to what the files say of the family that is assumed before anyone looked."""
    before = config.load("gym:Pendulum-v1", [])
    found = changed(before, {"train.minibatch_size": before.train.minibatch_size, "train.gamma": 0})
    assert found.again is not None
    after = found.again("continuous")
    assert (after.train.gamma, after.base.family) == (0, "continuous")
    assert after.train.minibatch_size == before.train.minibatch_size


def test_numbers_and_texts_of_an_environment_keep_their_types():
    given = {"count": 3, "scale": 0.5, "name": "3", "fast": True}
    assert configured({"env": given}, "somewhere:Env", {}).env == given
