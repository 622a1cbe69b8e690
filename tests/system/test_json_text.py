"""JSON text is strict: numbers that aren't finite become null, at any depth."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from puffer_mlx.system.json_text import json_text

NUMBERS = st.floats() | st.sampled_from([math.inf, -math.inf, math.nan])
SCALARS = st.none() | st.integers() | NUMBERS | NUMBERS.map(np.float64) | st.just("NaN ü")
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner),
    max_leaves=6,
)


def finite(value):
    if isinstance(value, dict):
        return {key: finite(each) for key, each in value.items()}
    if isinstance(value, list):
        return [finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@given(VALUES, st.sampled_from([None, 1, 2]))
@settings(max_examples=50)
def test_numbers_that_are_not_finite_are_null(value, indent):
    text = json_text(value, indent)
    json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} isn't JSON"))
    assert text == json.dumps(finite(value), indent=indent)
