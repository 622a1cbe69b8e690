"""What isn't a finite number is null in JSON, at any depth."""

import json
import math

import numpy as np
import pytest

from puffer_mlx.system.json_text import json_text


def strictly(text: str):
    """JSON as a reader that takes neither NaN nor infinities reads it."""
    return json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} isn't JSON"))


@pytest.mark.parametrize("indent", [None, 2])
def test_numbers_that_are_not_finite_are_null(indent):
    value = {"a": math.nan, "b": [1.5, -math.inf, {"c": (math.inf, 2)}], "d": "NaN", "e": None}
    found = strictly(json_text(value, indent))
    assert found == {"a": None, "b": [1.5, None, {"c": [None, 2]}], "d": "NaN", "e": None}


def test_numpy_floats_are_floats():
    assert strictly(json_text({"a": np.float64("nan"), "b": np.float64(0.1)})) == {
        "a": None,
        "b": 0.1,
    }


def test_what_is_finite_stays_as_json_writes_it():
    value = {"a": [0.1, 1e300, -0.0, True, 3], "b": {"c": "ü"}}
    assert json_text(value, 1) == json.dumps(value, indent=1)
