"""Values of [env] outside their range, and actions that no environment knows."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from native_envs import AGENTS_OF, Stepper, make, parameters

from puffer_mlx.errors import UserError

WHOLE = [  # environment, key, least and most
    ("breakout", "hide_balls_and_width", 0, 1),
    ("catch", "balls", 1, 1000),
    ("catch", "paddle_width", 1, 36),
    ("catch", "paddle_speed", 0, 36),
    ("catch", "ball_speed", 1, 32),
    ("catch", "max_drift", 0, 33),
    ("connect4_two", "opening_stones", 0, 24),
    ("rock_paper_scissors", "rounds", 1, 4),
]
REAL = [
    ("cartpole", "cart_mass", 1e-30, math.inf),
    ("cartpole", "dt", 1e-30, math.inf),
    ("cartpole", "force_mag", 1e-30, math.inf),
    ("cartpole", "pole_length", 1e-30, math.inf),
    ("cartpole", "pole_mass", 0, math.inf),
    ("connect4", "opponent_skill", 0, 1),
    ("g2048", "scaffolding_ratio", 0, 1),
    ("memory", "length", 1, math.inf),  # 1.5 is taken as 1
]


@st.composite
def wrong_values(draw):
    """Draw an environment, a key of its section [env], and a value that it refuses."""
    name, key, least, most = draw(st.sampled_from(WHOLE + REAL))
    values = [least - draw(st.integers(1, 100)), math.nan]
    if most < math.inf:
        values.append(most + draw(st.integers(1, 100)))
    if (name, key, least, most) in WHOLE:
        values.append(least + 0.5)
    return name, key, draw(st.sampled_from(values))


@settings(max_examples=40)
@given(wrong_values())
def test_value_outside_its_range_is_refused(wrong):
    name, key, value = wrong
    with pytest.raises(UserError, match=f"env.{key} is .*, expected"):
        make(name, total_agents=AGENTS_OF.get(name, 1), env={**parameters(name), key: value})


def test_kind_of_actions_suggests_the_other_environment():
    env = {**parameters("cartpole"), "continuous": 1}
    with pytest.raises(UserError, match=r"expected 0 .*is cartpole_continuous"):
        make("cartpole", total_agents=1, env=env)


@pytest.mark.parametrize(
    ("name", "unknown", "action"),
    [
        ("cartpole", math.nan, 0),
        ("cartpole_continuous", -math.inf, 0),
        ("catch", math.nan, 1),
        ("soccer", 6, 0),
    ],
)
def test_unknown_action_has_the_effect_of_another(name: str, unknown: float, action: int):
    with make(name, total_agents=8) as vec, make(name, total_agents=8) as twin:
        found, expected = Stepper(vec).step(unknown), Stepper(twin).step(action)
        np.testing.assert_array_equal(found.observations, expected.observations)
