"""Values of [env] that make no sense, and keys that are missing: one message names them."""

import pytest
from native_envs import AGENTS_OF, folder_of, make, parameters

from puffer_mlx.errors import UserError
from puffer_mlx.vec.native.vec import NativeVec

NAN = float("nan")
WHOLE = "{key}.*a whole number from"
ABOVE = "env.{key} is {value:g}, expected a number above 0"
SKILL = "opponent_skill.*0 to 1"
REFUSED = {  # what is said, and the values of keys that it is said of
    "breakout": {
        "{key} .*expected 0 or 1": [("hide_balls_and_width", n) for n in (-1, 0.5, 2, NAN)]
    },
    "cartpole": {
        "expected 0 .*action is cartpole_continuous": [("continuous", 1)],
        "env.continuous is 0.5, expected 0": [("continuous", 0.5)],
        ABOVE: [("dt", 0), ("cart_mass", -1), ("pole_length", 1e-60), ("force_mag", 0)],
        "env.pole_mass is -1, expected at least 0": [("pole_mass", -1)],
    },
    "cartpole_continuous": {"expected 1 .*two actions is cartpole": [("continuous", 0)]},
    "catch": {
        WHOLE: [
            *(("balls", 0), ("balls", 1001), ("paddle_width", 0), ("paddle_width", 37)),
            *(("paddle_speed", -1), ("ball_speed", 0), ("ball_speed", 33), ("ball_speed", 1.5)),
            *(("max_drift", 34), ("max_drift", NAN)),
        ]
    },
    "connect4": {SKILL: [("opponent_skill", value) for value in (-0.1, 1.1, NAN)]},
    "connect4_two": {
        "{key} .* a whole number, 0 to 24": [("opening_stones", n) for n in (-1, 1.5, 25, NAN)]
    },
    "g2048": {
        "{key} is {value:g}, expected 0 to 1": [("scaffolding_ratio", x) for x in (-0.1, 1.5)]
    },
    "memory": {"env.{key} is {value:g}, expected a whole number": [("length", 0), ("length", -3)]},
    "rock_paper_scissors": {
        "{key} .*a whole number from 1 to 4": [("rounds", n) for n in (0, 5, -1)]
    },
}


@pytest.mark.parametrize("name", REFUSED)
def test_values_that_make_no_sense(name: str):
    for said, values in REFUSED[name].items():
        for key, value in values:
            env = {**parameters(name), key: value}
            with pytest.raises(UserError, match=said.format(key=key, value=value)):
                make(name, total_agents=AGENTS_OF.get(name, 1), env=env)


@pytest.mark.parametrize(("name", "keys"), [("cartpole", "cart_mass, .*"), ("memory", "length")])
def test_a_missing_key_is_named(name: str, keys: str):
    with pytest.raises(UserError, match=rf"missing keys in \[env\]: {keys}"):
        NativeVec(folder_of(name), total_agents=1, env={})
