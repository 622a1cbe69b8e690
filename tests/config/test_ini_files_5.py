"""`.ini` files by PufferLib 5.0's rules, and by 4.0's where the two differ."""

import pytest

from puffer_mlx import config as c
from puffer_mlx.config.ini_files import read_ini
from puffer_mlx.config.ini_files_5 import read_ini_5, uncommented
from puffer_mlx.errors import UserError


@pytest.fixture
def ini(here):
    def write(text: str):
        (here / "toy.ini").write_text(text, encoding="utf-8")
        return here / "toy.ini"

    return write


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("gamma = 0.9 # high", "gamma = 0.9"),
        ("  gamma = 0.9;high", "gamma = 0.9"),
        ("; gamma = 0.9", ""),
        ("name = 'a#b' # c", "name = 'a#b'"),
        ("name = \"a;'b\" ; 'c", 'name = "a;\'b"'),
        ("name = 'a # b", "name = 'a # b"),  # a quote that isn't closed goes on to the end
    ],
)
def test_comments_begin_anywhere_outside_of_quotes(line, expected):
    assert uncommented(line) == expected


def texts(path) -> dict[str, str]:
    return {setting.name: setting.text for setting in read_ini_5(path)}


def test_quotes_capitals_repeated_sections_and_lists(ini):
    text = """
        [env] ; no key is of any declared type
        name = 'a # b'   # no comment before
        Name = "it's"
        half = 'open
        empty =
        equal = a = b
        sizes = 1, 2.5,3
        [train]
        gamma = 0.5
        [env]
        empty = 3
        [train]
        gamma = 0.75
    """
    path = ini(text)
    assert texts(path) == {
        "env.name": "'a # b'",  # what wants a text takes the quotes away
        "env.Name": '"it\'s"',
        "env.half": "'open",
        "env.equal": "a = b",
        "env.sizes": "1, 2.5,3",
        "env.empty": "3",
        "train.gamma": "0.75",
    }
    assert [s.origin for s in read_ini_5(path) if s.key == "gamma"] == ["toy.ini:14"]
    with pytest.raises(UserError, match=r"env\.name is set twice"):  # by those of 4.0
        read_ini(path)


NUMBERS = [  # text, checkpoint_keep, gamma; None: refused
    ("1_000", 1000, None),
    ("1 000__0", 10000, None),
    ("0x10", 16, None),
    ("0X1p-1", 0, 0.5),
    ("4.97", 4, None),
    ("2.5e1", 25, None),
    ("1e-1", 0, 0.1),
    ("TRUE", 1, 1.0),
    ("false", 0, 0.0),
    ("inf", None, None),
    ("nan", None, None),
    ("None", None, None),
    ("1, 2", None, None),
    ("'1_0'", 10, None),
    ('"0.5"', 0, 0.5),
]


@pytest.mark.parametrize(("text", "whole", "real"), NUMBERS)
def test_numbers(ini, text, whole, real):
    """Whole numbers are cut off; what is no number is refused, where upstream would read 0."""
    for section, key, expected in (("base", "checkpoint_keep", whole), ("train", "gamma", real)):
        path = str(ini(f"[{section}]\n{key} = {text}\n[train]\nvtrace = 0\n"))
        if expected is None:
            with pytest.raises(UserError, match=rf"{section}\.{key} "):
                c.load(path)
        else:
            assert getattr(getattr(c.load(path), section), key) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1", True),
        ("0", False),
        ("True", True),
        ("fALSE", False),
        ("1.0", True),
        ("0.9", False),
        ("'true'", True),
    ],
)
def test_switches(ini, text, expected):
    assert c.load(str(ini(f"[train]\nmomentum = 0.9\nanneal_lr = {text}\n"))).train.anneal_lr is (
        expected
    )
    on = c.load(str(ini(f"[base]\nasync = {text}\n"))).train.overlap
    assert on == ("auto" if expected else False)
    assert c.load(str(ini(f"[base]\nreset_every_horizon = {text}\n"))).base.reset_state is expected


def test_texts_stay_as_they_are(ini):
    text = "[base]\nasync = 1\nlog_dir = 2024_01 # logs\ncheckpoint_dir = '0x10'\n"
    config = c.load(str(ini(text)))
    assert (config.base.log_dir, config.base.checkpoint_dir) == ("2024_01", "0x10")


WRONG = [  # text, the message, the line it names, the hint
    ("[train]\nvtrace = yes", "train.vtrace yes is neither true nor false", 2, "would read 0"),
    ("[base]\nasync = no", "base.async no is neither true nor false", 2, "would read 0"),
    ("vtrace = 1\n[train]\nmomentum = 1", "'vtrace = 1' is before any section", 1, "[train]"),
    ("[train]\nvtrace = 1\ngamma 3 # x", "'gamma 3' has no value", 3, "key = value"),
    ("[train]\nvtrace = 1\n= 3", "'= 3' has no value", 3, "key = value"),
    ("[train]\nvtrace = 1\n[trian]\na = 1", "unknown section [trian]", 3, "[train]"),
    ("[train]\nvtrace = 1\nGamma = 1", "unknown key train.Gamma 1", 3, "train.gamma?"),
    ("[train]\nvtrace = 1\ngamma = '1\x07'", "there is a control character", 3, "remove it"),
    ("[train]\nvtrace = 1\nverb_eps = 0.5", "train.verb_eps 0.5 is not supported", 3, "hint: 0"),
    ("[vec]\nnum_policies = 12", "vec.num_policies 12 is out of range", 2, "at most 9"),
    ("[vec]\nhist_policy_percent = 1.5", "vec.hist_policy_percent 1.5 is", 2, "at most 1"),
    ("[train]\nvtrace = 0\ngpus = 0", "train.gpus 0 is out of range", 3, "at least 1"),
    ("[train]\nvtrace=0\n[selfplay]\nenabled=True", "selfplay.enabled 1 needs", 4, "-policies 2"),
    (
        "[base]\nasync=1\nload_model_path=a.bin",
        "base.load_model_path a.bin is not",
        3,
        "leave it out",
    ),
]


@pytest.mark.parametrize(("text", "message", "line", "hint"), WRONG)
def test_what_is_wrong_is_one_clear_message(ini, text, message, line, hint):
    with pytest.raises(UserError) as caught:
        c.load(str(ini(text)))
    assert message in caught.value.message and "\n" not in caught.value.message
    assert f"(toy.ini:{line})" in caught.value.message
    assert hint in str(caught.value)
