"""Configurations from keywords and dictionaries."""

import pickle

import numpy as np
import pytest

from puffer_mlx import config
from puffer_mlx.config.fit import is_explicit
from puffer_mlx.errors import UserError
from puffer_mlx.library.settings import build_config, collect_settings, with_settings


def test_short_and_full_names_and_sections_mean_the_same():
    full = {"train.learning_rate": 0.5, "base.seed": 3}
    assert collect_settings({"learning_rate": 0.5, "seed": 3}) == full
    assert collect_settings({"train": {"learning_rate": 0.5}, "base": {"seed": 3}}) == full
    assert (
        collect_settings({"train.learning_rate": 0.1}, {"learning_rate": 0.5}, {"seed": 3}) == full
    )
    (value,) = collect_settings({"horizon": np.int64(32)}).values()
    assert value == 32 and type(value) is int


def test_several_choices_may_be_a_list():
    assert collect_settings({"track": ["wandb", "trackio"]}) == {"base.track": "wandb,trackio"}
    assert collect_settings({"base": {"track": ()}}) == {"base.track": "none"}


def test_settings_win_over_files_and_count_as_typed():
    found = build_config({"train.gamma": 0.5, "total_timesteps": 1e6}, "squared", {"gamma": 0.25})
    plain = config.load("squared", ["--train.gamma", "0.25", "--train.total-timesteps", "1e6"])
    assert found == plain and is_explicit(found, "train.gamma")


def test_wrong_settings_are_refused_before_an_environment_is_made():
    def find_family(_):
        raise AssertionError("an environment was made")

    for wrong in {"gamma": 2}, {"horizon": "long"}:
        with pytest.raises(UserError, match="keyword or dictionary"):
            build_config(wrong, "somewhere:Env", {}, find_family=find_family)
    for decided in ("gym:CartPole-v1", {}), ("somewhere:Env", {"family": "images"}):
        build_config(decided[1], decided[0], {}, find_family=find_family)


def test_a_configuration_object_is_copied():
    before = config.load("squared", [])
    found = build_config(before, None, {"gamma": 0.25, "env.x": 3})
    assert found.train.gamma == 0.25 and found.env["x"] == 3
    assert (
        before.train.gamma != 0.25
        and "x" not in before.env
        and not is_explicit(before, "train.gamma")
    )


def test_changes_stay_when_the_family_is_found():
    """Also a change to the value in the files of the assumed family."""
    before = config.load("gym:Pendulum-v1", [])
    found = with_settings(
        before, {"train.minibatch_size": before.train.minibatch_size, "train.gamma": 0}
    )
    assert found.family_reloader is not None
    after = found.family_reloader("continuous")
    assert (after.train.gamma, after.base.family) == (0, "continuous")
    assert after.train.minibatch_size == before.train.minibatch_size


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("train.gamma", 0.1 + 0.2, 0.1 + 0.2),
        ("train.horizon", 32.0, 32),
        ("base.tag", "'quoted' # text", "'quoted' # text"),
    ],
)
def test_a_value_becomes_its_keys_type(name, value, expected):
    found = build_config({name: value, "eval_interval": 512}, "squared", {}).value(name)
    assert (found, type(found)) == (expected, type(expected))


def test_an_environments_values_stay_the_same_objects():
    layout = {"walls": [(1, 2), (3, 4)], "name": "3", "none": None}
    assert build_config({"env": {"layout": layout}}, "somewhere:Env", {}).env["layout"] is layout


def test_a_configuration_that_is_read_again_can_be_pickled():
    found = build_config({"gamma": 0.25, "env.size": None}, "somewhere:Env", {})
    again = pickle.loads(pickle.dumps(found)).family_reloader("continuous")
    assert (again.train.gamma, again.env, again.base.family) == (0.25, {"size": None}, "continuous")
    assert (
        is_explicit(again, "train.gamma")
        and again.origins["train.gamma"] == "keyword or dictionary"
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"horizon": 1.5}, "train.horizon 1.5 is not a whole number"),
        ({"env.size": [1]}, "env.size = [1] is not a number"),
    ],
)
def test_a_value_of_another_type_is_refused(settings, message):
    with pytest.raises(UserError) as caught:
        build_config(settings, "squared", {})
    assert caught.value.message == f"{message} (keyword or dictionary)"
