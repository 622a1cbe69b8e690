"""train.py --list: every environment that comes with puffer_mlx, described as it is."""

import io
import shutil
import sys

import pytest
from native_envs import SHIPPED, folder_of, make
from rich.console import Console

from puffer_mlx.cli import list_environments
from puffer_mlx.vec.native.sources import environments_folder


def printed(width: int = 120) -> str:
    out = io.StringIO()
    list_environments.print_catalog(Console(file=out, width=width, highlight=False))
    return out.getvalue()


def test_all_that_are_shipped():
    assert [entry.name for entry in list_environments.native_environments()] == SHIPPED


@pytest.mark.parametrize("name", SHIPPED)
def test_they_are_as_described(name):
    """What is read from the sources is what the compiled environment says."""
    (entry,) = (entry for entry in list_environments.native_environments() if entry.name == name)
    with make(name, total_agents=48) as vec:
        spec = vec.spec
    shape = spec.observation_shape or (spec.observation_size,)
    kind = "byte" if spec.observation_dtype == "uint8" else "float"
    many = "" if shape == (1,) else "s"
    assert entry.sees == f"{' x '.join(map(str, shape))} {kind}{many}"
    sizes = spec.action.sizes
    does = f"{len(sizes)} continuous" if spec.action.continuous else ""
    does = does or "one of " + " and of ".join(map(str, sizes))
    assert entry.does == does + (", masked" if spec.mask_size else "")
    assert len(entry.about) > 15 and not entry.about.endswith(".")


def test_macros_of_macros(tmp_path):
    (tmp_path / "table.h").write_text("#define SIDE 4 // cells\n  #  define KINDS (SIDE + 1)\n")
    (tmp_path / "binding.c").write_text(
        '#include "table.h"\n#define OBS_SIZE SIDE * SIDE*KINDS\n'
        "#define ACT_SIZES { KINDS, 3 }   // two\n#define OBS_TENSOR_T ByteTensor\n"
    )
    assert list_environments.spaces(tmp_path) == ("80 bytes", "one of 5 and of 3")
    (tmp_path / "table.h").write_text("#define SIDE KINDS\n#define KINDS sizeof(float)\n")
    assert list_environments.spaces(tmp_path) == ("?", "?")
    (tmp_path / "table.h").write_text("#define SIDE KINDS\n#define KINDS SIDE\n")
    assert list_environments.spaces(tmp_path) == ("?", "?")


def test_the_first_comment(tmp_path):
    path = tmp_path / "x.ini"
    for text, expected in (
        ("# Sea: sail home. Numbers: mine.\n", "sail home"),
        ("# Sail home\n# by night.\n\n# Not this.\n[base]\n", "Sail home by night"),
        ("# By day: sail home.\n", "By day: sail home"),
        ("[base]\n", ""),
    ):
        path.write_text(text)
        assert list_environments.about(path, "sea") == expected


def test_what_is_printed():
    text = printed()
    for name in SHIPPED:
        assert f"\n{name} " in text
    for word in ("gym:ID", "module:factory", "path/ocean/NAME", "whose [base] env_name"):
        assert word in text
    rows = [line.split() for line in text.splitlines()]
    assert ["breakout-a", "puffer5", "8,192", "puffer5/breakout-a.ini"] in rows
    assert ["gym:HalfCheetah-v5", "1", "gym/HalfCheetah.ini"] in [row[:3] for row in rows]
    assert ["catch", "256", "36", "x", "36"] in [row[:5] for row in rows]
    assert max(map(len, text.splitlines())) <= 120
    assert max(map(len, printed(80).splitlines())) <= 80


def test_an_environment_of_the_working_directory(here):
    """Its file makes it known; it is listed where its sources come with puffer_mlx."""
    (here / "configs").mkdir()
    text = "# Walk: to the target, twice as far.\n[base]\nenv_name = squared\n"
    (here / "configs" / "walk.ini").write_text(text)
    (entry,) = (e for e in list_environments.native_environments() if e.name == "squared")
    assert entry.about == "Walk: to the target, twice as far"


def test_gymnasium_by_group():
    pytest.importorskip("gymnasium")
    groups = list_environments.gymnasium_environments()
    assert "CartPole-v1" in groups["classic_control"] and "Taxi-v4" in groups["toy_text"]
    everything = [name for names in groups.values() for name in names]
    assert "CartPole-v0" not in everything and "Ant-v2" not in everything and "Ant-v5" in everything
    assert not any(name.startswith("GymV") for name in everything)
    text = printed()
    assert "gym: classic_control  Acrobot-v1, CartPole-v1" in text


def test_many_ids_are_cut(monkeypatch):
    ids = [f"Sea{i}-v0" for i in range(list_environments.MOST + 3)]
    monkeypatch.setattr(list_environments, "gymnasium_environments", lambda: {"box2d": ids})
    monkeypatch.setattr(list_environments, "EXTRAS", {"box2d": ("no_such_module", "box2d")})
    text = " ".join(printed(200).split())
    assert f"Sea{list_environments.MOST - 1}-v0, … 3 more pip install 'gymnasium[box2d]'" in text
    assert f"Sea{list_environments.MOST}-v0" not in text


def test_without_gymnasium(monkeypatch):
    for name in [n for n in sys.modules if n.partition(".")[0] == "gymnasium"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    assert list_environments.gymnasium_environments() == {}
    assert "pip install 'puffer-mlx[gym]'" in printed()


def test_nothing_is_compiled(monkeypatch, tmp_path):
    """Not even where there is no compiler; and what has no sources is left out."""
    monkeypatch.setenv("CC", "/no/compiler")
    monkeypatch.setenv("PUFFER_MLX_CACHE", str(tmp_path / "cache"))
    envs = tmp_path / "envs"
    shutil.copytree(environments_folder() / "squared", envs / "squared")
    monkeypatch.setattr(list_environments, "environments_folder", lambda: envs)
    assert [entry.name for entry in list_environments.native_environments()] == ["squared"]
    assert "one of 5" in printed() and not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    ("name", "spaces"),
    [
        ("glider", ("7 floats", "2 continuous")),
        ("locks", ("13 floats", "one of 4 and of 3, masked")),
        ("peloton", ("9 bytes", "one of 3")),
    ],
)
def test_folders_of_5_0(name, spaces):
    assert list_environments.spaces(folder_of(name)) == spaces
