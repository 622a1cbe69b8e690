"""The check of names and docstrings in ``make lint``."""

import ast
from pathlib import Path

import pytest
import wording


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("patience = 1", "retired"),
        ("def of_crews(x): ...", "retired"),
        ("self.numbers = 1", "retired"),
        ("def f(part): ...", "retired"),
        ('def f():\n    """What f is."""', "opens with"),
        ('class F:\n    x: int\n    """Whether it is."""', "opens with"),
        ("before = room_number = x.told", ""),  # only definitions count
        ('def f():\n    """Return what is left."""', ""),
    ],
)
def test_retired_names_and_openings_are_found(source, found):
    errors = list(wording.errors_in(Path("puffer_mlx/x.py"), ast.parse(source)))
    assert len(errors) == bool(found) and all(found in error for error in errors)


def test_ordinary_words_name_variables_outside_of_the_package():
    assert not list(wording.errors_in(Path("tests/x.py"), ast.parse("numbers = part = 1")))


def test_public_names_have_one_definition():
    trees = {Path(f"puffer_mlx/{name}.py"): ast.parse("def f(): ...") for name in "ab"}
    (error,) = wording.duplicates(trees)
    assert "puffer_mlx/a.py:1, puffer_mlx/b.py:1" in error
