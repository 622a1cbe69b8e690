"""Files of PufferLib 4.0 and 5.0 are read as `configparser` reads them."""

import configparser
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from puffer_mlx import config as c
from puffer_mlx.config.ini_files import read_ini, read_ini_5
from puffer_mlx.config.schema import DECLARED
from puffer_mlx.config.values import read_value
from puffer_mlx.errors import UserError

properties = settings(max_examples=60)

HEADERS = st.sampled_from(["[train]", "[env]", "[env] rest", " [vec]"])
INDENTS = st.sampled_from(["", "", "", "  ", "    "])
KEYS = st.sampled_from(["gamma", "Gamma", "size", "a b"])
WORDS = st.sampled_from(["x", "'y'", '"z"', "None", "[1]", "a = b", "a: b", "", "half 'open"])
COMMENTS = st.sampled_from(["", "", " # x", " ; y", "#z"])


def lines(separators: list[str]) -> st.SearchStrategy[str]:
    pair = st.tuples(INDENTS, KEYS, st.sampled_from(separators), WORDS, COMMENTS).map("".join)
    odd = st.sampled_from(["", "# comment", "  ; comment", "  continued", "no separator"])
    return st.one_of(HEADERS, pair, pair, pair, odd)


@properties
@given(text=st.lists(lines([" = ", "=", ": ", " :="]), max_size=8).map("\n".join))
def test_files_of_4_are_read_as_configparser_reads_them(tmp_path_factory, text):
    path = tmp_path_factory.getbasetemp() / "toy.ini"
    path.write_text(text)
    parser = configparser.ConfigParser(interpolation=None, default_section="")
    try:
        parser.read_string(text)
    except configparser.Error:
        with pytest.raises(UserError, match=r"toy\.ini:\d"):
            read_ini(path)
        return
    expected = [(s, k, v) for s in parser.sections() for k, v in parser[s].items()]
    assert [setting[:3] for setting in read_ini(path)] == expected


@properties
@given(text=st.lists(lines([" = ", "="]), max_size=8).map("\n".join))
def test_files_of_5_are_read_as_a_lenient_configparser_reads_them(tmp_path_factory, text):
    """Later values win, sections may begin again, and no line continues another one."""
    path = tmp_path_factory.getbasetemp() / "toy.ini"
    path.write_text(text)
    signs = ("#", ";")
    parser = configparser.RawConfigParser(
        strict=False,
        delimiters=("=",),
        comment_prefixes=signs,
        inline_comment_prefixes=signs,
        empty_lines_in_values=False,
        default_section="",
    )
    parser.optionxform = str  # pyright: ignore
    rows = [line.strip().replace("#z", " #z") for line in text.split("\n")]
    try:
        parser.read_string("\n".join(row for row in rows if not row.startswith("[env] rest")))
    except configparser.Error:
        with pytest.raises(UserError, match=r"toy\.ini:\d"):
            read_ini_5(path)
        return
    if "[env] rest" in rows:
        return
    expected = {f"{s}.{k}": v for s in parser.sections() for k, v in parser[s].items()}
    assert {setting.name: setting.text for setting in read_ini_5(path)} == expected


SPELLINGS = [repr, float.hex, lambda x: f"'{x!r}'", lambda x: f'"{x!r}"', lambda x: f"{x!r}; y"]


@properties
@given(number=st.floats(-1e6, 1e6), spell=st.sampled_from(SPELLINGS))
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("train.gamma", float),
        ("base.checkpoint_keep", int),  # cut off towards zero
        ("train.anneal_lr", lambda number: int(number) != 0),
        ("base.async", lambda number: "auto" if int(number) else "False"),
    ],
)
def test_numbers_of_5_are_read_as_c_reads_them(tmp_path_factory, name, expected, number, spell):
    path = tmp_path_factory.getbasetemp() / "numbers.ini"
    section, _, key = name.partition(".")
    path.write_text(f"[{section}]\n{key} = {spell(number)}\n")
    (setting,) = read_ini_5(path)
    if name in DECLARED:
        assert read_value(setting, DECLARED[name]) == expected(number)
    else:
        assert {"1": "auto", "0": "False"}[setting.text] == expected(number)


@pytest.mark.parametrize(("text", "value"), [("1 000__0", 10000), ("TRUE", 1)])
def test_numbers_of_5_may_have_spaces_and_words(tmp_path, text, value):
    (tmp_path / "numbers.ini").write_text(f"[base]\ncheckpoint_keep = {text}\n")
    (setting,) = read_ini_5(tmp_path / "numbers.ini")
    assert read_value(setting, DECLARED["base.checkpoint_keep"]) == value


OF_4 = {
    "train.beta1": "0.9",
    "train.eps": "1e-5",
    "train.prio_alpha": "0",
    "torch.network": "MLP",
    "base.reset_state": "1",
    "vec.frozen_bank_pct": "0",
    "policy.expansion_factor": "1",
}
OF_5 = {
    "train.momentum": "0.9",
    "train.vtrace": "0",
    "base.async": "1",
    "base.reset_every_horizon": "0",
    "vec.num_policies": "1",
    "selfplay.eval_games": "0",
}
SOME = st.lists(st.sampled_from([*OF_4, *OF_5, "train.gamma", "train.horizon"]), max_size=5)


@settings(properties, max_examples=60)
@given(names=SOME, algorithm=st.sampled_from(["", "", "puffer4", "puffer5"]))
def test_the_keys_of_a_file_choose_the_trainer(tmp_path_factory, names, algorithm):
    values = {**OF_4, **OF_5, "train.gamma": "0.5", "train.horizon": "64"}
    sections: dict[str, list[str]] = {}
    if algorithm:
        values["train.algorithm"] = algorithm
    for name in dict.fromkeys([*names, *values.keys() & {"train.algorithm"}]):
        section, _, key = name.partition(".")
        sections.setdefault(section, []).append(f"{key} = {values[name]}")
    path = tmp_path_factory.getbasetemp() / "chosen.ini"
    path.write_text("".join(f"[{s}]\n" + "\n".join(rows) + "\n" for s, rows in sections.items()))
    config = c.load(str(path))
    four, five = OF_4.keys() & {*names}, OF_5.keys() & {*names}
    early = "train.prio_alpha" in names and "train.vtrace" not in names  # before 5.0's release
    chosen = algorithm or ("puffer5" if five and not early else "puffer4")
    assert config.train.algorithm == chosen
    if algorithm:
        reason = "says train.algorithm"
    elif five:
        reason = "is from before 5.0's release" if early else "is a 5.0 file"
    else:
        reason = "is a 4.0 file" if four else "the default"
    assert config.trainer_reason.endswith(reason)


# ---- changed files -------------------------------------------------------------------------------


def test_a_changed_file_is_read_again(here):
    path = Path("toy.ini")
    for number in range(9):  # of the same size, within a tick of the file system's clock
        path.write_text(f"[train]\ngamma = 0.{number}\n")
        os.utime(path, (1e9, 1e9))  # as a copy that preserves times does
        assert c.load("squared", files=["toy.ini"]).train.gamma == number / 10
