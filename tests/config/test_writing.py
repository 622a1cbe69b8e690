"""Written values are read back as the same; files of earlier versions are read as before."""

import os
import string
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, reject, settings
from hypothesis import strategies as st

from puffer_mlx import config as c
from puffer_mlx.config.ini_files import read_ini, read_ini_5
from puffer_mlx.config.key import COMMAND_LINE, INT_MAX, Key, Setting
from puffer_mlx.config.schema import DECLARED
from puffer_mlx.config.values import parse_argument, parse_parameter, read_value
from puffer_mlx.config.writing import parameter_text
from puffer_mlx.errors import UserError
from puffer_mlx.library.settings import build_config

through_a_file = settings(max_examples=25)  # each is written and loaded

GLIDER = Path(__file__).parents[1] / "envs" / "upstream_5" / "ocean" / "glider"  # 5.0's: texts, too
AWKWARD = [
    *("#", ";", "=", ":", "'", '"', "\\", ",", "[", "]", "{", "}", "(", ")", "%"),
    *(" ", "\n", "\r", "\t", "\x01", "\x85", "\u2028", "None", "True", "1", "a", "-"),
]
TEXT = st.one_of(
    st.text(max_size=12),
    st.lists(st.sampled_from(AWKWARD), max_size=6).map("".join),
    st.text(st.characters(codec=None, categories=["Cc", "Zs", "Zl", "Po"]), max_size=6),
)
NUMBERS = st.one_of(
    st.booleans(), st.integers(), st.floats(allow_nan=False), st.sampled_from([10**30, 1e300, -0.0])
)
VALUES = st.recursive(
    st.one_of(st.none(), NUMBERS, TEXT),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.one_of(TEXT, st.integers()), inner, max_size=3),
    ).filter(lambda value: "inf" not in repr(value)),
    max_leaves=6,
)
KEYS = st.text(string.ascii_letters + "_", min_size=1, max_size=8).filter(
    lambda key: key not in ("source", "env_name")
)


def exact(value: Any) -> str:
    """Return a value's repr, which also distinguishes types and the signs of zeros."""
    return repr(value)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Return a function that saves a configuration to a file and loads it again."""
    path = tmp_path_factory.mktemp("saved") / "config.ini"

    def again(config):
        c.write_ini(config, path)
        return c.load_saved(path)

    return again


@pytest.fixture(scope="module")
def python():
    return c.load("module:make", ["--family", "discrete"])


@pytest.fixture(scope="module")
def native():
    return c.load("squared")


@through_a_file
@given(env=st.dictionaries(KEYS, VALUES, max_size=3))
def test_arguments_of_python_are_read_back(saved, python, env):
    python.env = env
    assert exact(saved(python).env) == exact(env)


@given(value=VALUES)
def test_an_arguments_text_is_read_back(value):
    """From a file, and as typed: a program's arguments go that way."""
    text = parameter_text(value, True)
    assert exact(parse_argument(text)) == exact(parse_argument(text, typed=True)) == exact(value)


@given(value=st.one_of(TEXT, st.floats(allow_nan=False)))
def test_parameters_of_c_are_read_back(value):
    read = parse_parameter(parameter_text(value, False))
    assert read == value and type(read) is type(value)


@through_a_file
@given(name=TEXT)
def test_names_of_environments_are_read_back(saved, python, name):
    python.env_name = f"{name}/boat.py:Boat"
    assume("*" not in name and "\0" not in name)
    python.env = {}
    assert saved(python).env_name == python.env_name


@through_a_file
@given(name=TEXT)
def test_folders_of_sources_are_read_back(saved, native, name):
    assume(not {"/", "\0"} & {*name} and name not in ("", ".", ".."))
    try:
        os.fsencode(name)
    except UnicodeEncodeError:  # it is no file's name
        reject()
    native.source = f"/nowhere/{name}"
    assert saved(native).source == native.source


def values_of(key: Key) -> st.SearchStrategy[Any]:
    """Return a Hypothesis strategy for the legal values of a declared configuration key."""
    if key.kind is bool:
        values = st.booleans()
    elif key.choices:
        values = st.sampled_from(key.choices)
    elif key.kind is str:
        values = TEXT
    elif key.kind is int:
        least = -INT_MAX if key.minimum is None else int(key.minimum)
        values = st.integers(least, INT_MAX if key.maximum is None else int(key.maximum))
    else:
        values = st.floats(key.minimum, key.maximum, allow_nan=False)
    words = [*key.special_values, *([f"trace{key.suffix}"] if key.suffix else [])]
    if words:
        values = st.one_of(values, st.sampled_from(words))
    return values.filter(lambda value: key.problem(value) is None)


@settings(max_examples=100)
@given(data=st.data(), name=st.sampled_from([*DECLARED]))
def test_every_keys_value_is_read_back(tmp_path_factory, data, name):
    """From a file of 4.0's rules; numbers also by 5.0's, and texts of one line as typed."""
    key = DECLARED[name]
    value = data.draw(values_of(key))
    section, _, own = name.partition(".")
    config = c.Config("toy")
    setattr(getattr(config, section), own, value)
    path = tmp_path_factory.getbasetemp() / "values.ini"
    path.write_text(c.ini_text(config), encoding="utf-8")
    found = {setting.name: setting for setting in read_ini(path)}[name]
    assert exact(read_value(found, key)) == exact(value)
    assert exact(read_value(found._replace(origin=COMMAND_LINE), key)) == exact(value)
    if not isinstance(value, str):
        path.write_text(f"[{section}]\n{own} = {found.text} # a comment\n")
        assert exact(read_value(read_ini_5(path)[0], key)) == exact(value)


ALIASES = [
    (name, spelling, choice)
    for name, key in DECLARED.items()
    for spelling, choice in key.aliases.items()
]


@given(alias=st.sampled_from(ALIASES))
def test_other_spellings_of_choices_are_read(alias):
    name, spelling, choice = alias
    section, key = name.split(".")
    setting = Setting(section, key, spelling, COMMAND_LINE)
    assert read_value(setting, DECLARED[name]) == choice


@pytest.mark.parametrize(
    ("typed", "value"),
    [
        ("None", None),
        ("[1, 'a', None]", [1, "a", None]),
        ("{1, 2}", "{1, 2}"),  # a set: nothing that a file of settings holds
        ("= 'a\\nb'", "a\nb"),
    ],
)
def test_typed_arguments_are_pythons(typed, value):
    config = c.load("module:make", ["--env.key", typed])
    assert exact(config.env["key"]) == exact(value)


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("key := 'S.\\n.G'", "S.\n.G"),
        ("key = None", "None"),
    ],
)
def test_a_file_says_other_values_with_a_colon(tmp_path, line, value):
    (tmp_path / "mine.ini").write_text(f"[env]\n{line}\n")
    config = c.load("module:make", files=[tmp_path / "mine.ini"])
    assert exact(config.env["key"]) == exact(value)


# ---- files of earlier versions -------------------------------------------------------------------


def read_before(text: str) -> int | float | bool | str:
    """Parse a command-line value's text as version 0.1 did."""
    word = text.partition("#")[0].strip()
    if word.lower() in ("true", "false"):
        return word.lower() == "true"
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            pass
    quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "'\""
    return text[1:-1] if quoted else text


@given(text=st.one_of(TEXT, VALUES.map(repr), NUMBERS.map(str)))
def test_a_files_arguments_are_read_as_before(text):
    text = text.strip()
    assume(not text.startswith("="))
    now, before = parse_argument(text), read_before(text)
    assert type(now) is type(before)
    assert exact(now) == exact(before)  # NaN isn't equal to itself


def test_environments_in_c_take_no_lists():
    with pytest.raises(UserError, match=r"env\.max_steps.*\[1, 2\].* number"):
        build_config({"env.max_steps": [1, 2]}, str(GLIDER), {})
