"""What isn't a finite number is null in JSON, at any depth."""

import json
import math

import numpy as np
import pytest

from puffer_mlx.system.json_text import json_text


def strictly(text: str):
    """JSON as a reader that takes neither NaN nor infinities reads it."""
    return json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} isn't JSON"))


def test_numbers_that_are_not_finite_are_null():
    value = {"a": math.nan, "b": [1.5, -math.inf, {"c": (math.inf, 2)}], "d": "NaN", "e": None}
    value["f"] = np.float64("nan")
    for indent in None, 2:
        nulls = {"a": None, "b": [1.5, None, {"c": [None, 2]}], "d": "NaN", "e": None, "f": None}
        assert strictly(json_text(value, indent)) == nulls
    value = {"a": [0.1, 1e300, -0.0, True, 3], "b": {"c": "ü"}}
    assert json_text(value, 1) == json.dumps(value, indent=1)  # as it writes what is finite
