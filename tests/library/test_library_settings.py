"""Configurations out of keywords and dictionaries."""

import numpy as np
import pytest

from puffer_mlx import config, vec
from puffer_mlx.config.fit import typed
from puffer_mlx.errors import UserError
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
    for wrong in {"track": ["wandb", 3]}, {"device": ["cpu"]}:
        with pytest.raises(UserError, match="of type list"):
            collected(wrong)


def test_what_is_wrong_with_settings():
    for given, message in [
        ({"learnin_rate": 1}, "no setting learnin_rate\n  hint: did you mean learning_rate"),
        ({"train.gama": 1}, "no setting train.gama\n  hint: did you mean train.gamma"),
        ({"train": {"hidden_size": 1}}, "did you mean policy.hidden_size"),
        ({"n_steps": 128}, "no setting n_steps\n  hint: here it is horizon"),
        ({"train.lr": 128}, "no setting train.lr\n  hint: here it is learning_rate"),
        ({"lam": 0.9}, "no setting lam\n  hint: here it is gae_lambda"),
        (
            {"policy_kwargs": {"net_arch": 64}},
            "no setting policy_kwargs.net_arch\n  hint: here it is hidden_size",
        ),
        ({"learning_rate": float}, r"of type type\n.*lr_schedule says: cosine, linear, adaptive"),
        ({"zzzzzz": 1}, r"prints every key; the environment's own are env\.NAME"),
        ({"gamma": None}, "gamma is None, of type NoneType\n  hint: a number"),
        ({"env": {"sizes": [1, 2]}}, r"env.sizes is \[1, 2\], .*\n.*lambda: MyEnv"),
    ]:
        with pytest.raises(UserError, match=message):
            collected(given)


def test_settings_win_over_files_and_count_as_typed():
    found = configured({"train.gamma": 0.5, "total_timesteps": 1e6}, "squared", {"gamma": 0.25})
    plain = config.load("squared", ["--train.gamma", "0.25", "--train.total-timesteps", "1e6"])
    assert found == plain and typed(found, "train.gamma")


def made_of(given):
    found = configured(given, "connect4_two", {"minibatch_size": 448})
    with vec.make(found, 1):
        pass


def test_errors_speak_of_arguments_and_of_no_command_line():
    for make, said in [
        (lambda: configured(None, "squared", {"gamma": 2}), "train.gamma 2.0 is out of range ("),
        (
            lambda: configured(config.Config("squared"), None, {"gamma": 2}),
            "train.gamma 2 is out of range (",
        ),
        # beside a file, which says the other number
        (lambda: configured(None, "squared", {"total_agents": 16}), "configs/squared.ini:19; "),
        (lambda: configured({"env.foo": 1}, "squared", {}), "there is no setting env.foo 1 ("),
        (lambda: configured({"env.siz": 1}, "squared", {}), "there is no setting env.siz 1 ("),
        # after it was read
        (lambda: made_of({"total_agents": 7}), "7 is not a multiple of vec.num_buffers 1 times"),
    ]:
        with pytest.raises(UserError) as caught:
            make()
        text = str(caught.value)
        assert said in text and "keyword or dictionary)\n" in text
        assert "command line" not in text and "--" not in text


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


def test_dataclasses_refuse_names_that_they_have_not():
    settings = config.Config()
    for make, message in (
        (lambda: config.Train(learning_rat=1), "Train has no learning_rat\n.*learning_rate"),  # type: ignore
        (lambda: setattr(settings.train, "gama", 1), "Train has no gama\n.* gamma"),
        (lambda: setattr(settings, "gamma", 1), "Config has no gamma\n.* train.gamma"),
        (lambda: config.Config(environment="x"), "Config has no environment"),  # type: ignore
    ):
        with pytest.raises(UserError, match=message):
            make()
