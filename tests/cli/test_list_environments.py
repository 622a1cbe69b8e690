"""train.py --list: every environment that comes with puffer_mlx, described as it is."""

import io
import re
import shutil
import sys

import pytest
from native_envs import SHIPPED, make
from rich.console import Console

from puffer_mlx.cli import list_environments
from puffer_mlx.cli.list_environments import NEEDED
from puffer_mlx.config.resolve import variants
from puffer_mlx.vec.native.sources import environments_folder


def printed(width: int = 120) -> str:
    out = io.StringIO()
    list_environments.print_catalog(Console(file=out, width=width, highlight=False))
    return out.getvalue()


def test_all_that_are_shipped():
    assert [entry.name for entry in list_environments.native_environments()] == SHIPPED


@pytest.mark.parametrize("name", SHIPPED)
def test_they_are_as_described(name):
    """What its file's first comment says is what the compiled environment says."""
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


def test_the_first_comment(tmp_path):
    path = tmp_path / "x.ini"
    spaces = "# An agent sees 4 x 4 bytes\n# and does one of 3, masked.\n"
    for text, expected, sees in (
        ("# Sea: sail home. Numbers: mine.\n", "sail home", "?"),
        (
            f"# Sail home\n# by night.\n{spaces}\n# Not.\n[base]\n",
            "Sail home by night",
            "4 x 4 bytes",
        ),
        ("# By day: sail home.\n\n" + spaces, "By day: sail home", "?"),
        ("[base]\n", "", "?"),
    ):
        path.write_text(text)
        assert list_environments.about(path, "sea") == expected
        does = "?" if sees == "?" else "one of 3, masked"
        assert list_environments.spaces(path) == (sees, does)


def test_what_is_printed():
    text = printed()
    for name in SHIPPED:
        assert f"\n{name} " in text
    for word in ("gym:ID", "module:factory", "path/ocean/NAME", "whose [base] env_name"):
        assert word in text
    rows = [line.split() for line in text.splitlines()]
    assert ["breakout-a", "8,192", "puffer5", "Breakout"] in [row[:4] for row in rows]
    assert ["puffer5/breakout-a.ini"] in [row[:1] for row in rows]
    assert "puffer-mlx train breakout-cpu" in text
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
    needed = (("gym:Sea", ("no_such_module",), "gymnasium[box2d]"),)
    monkeypatch.setattr(list_environments, "NEEDED", needed)
    text = " ".join(printed(200).split())
    assert f"Sea{list_environments.MOST - 1}-v0, … 3 more pip install 'gymnasium[box2d]'" in text
    assert f"Sea{list_environments.MOST}-v0" not in text


def test_without_gymnasium(monkeypatch):
    for name in [n for n in sys.modules if n.partition(".")[0] == "gymnasium"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    assert list_environments.gymnasium_environments() == {}


@pytest.mark.parametrize(
    ("name", "modules", "package"),
    [
        ("gym:CartPole-v1", {"gymnasium"}, "puffer-mlx[gym]"),
        ("gym:HalfCheetah-v5", {"gymnasium", "mujoco"}, "gymnasium[mujoco]"),
        ("gym:BipedalWalker-v3", {"gymnasium", "Box2D"}, "gymnasium[box2d]"),
        ("gym:ALE/*", {"gymnasium", "ale_py", "cv2"}, "puffer-mlx[atari]"),
        ("gym:MiniGrid-*", {"gymnasium", "minigrid"}, "minigrid"),
        ("pettingzoo:mpe2.simple_spread_v*", {"pettingzoo", "mpe2"}, "mpe2"),
    ],
)
def test_what_is_to_be_installed(monkeypatch, name, modules, package):
    """One package brings all of it, Gymnasium too, and is named as long as any of it is missing."""
    there: set[str] = set()
    monkeypatch.setattr(list_environments, "find_spec", lambda module: module in there or None)
    assert list_environments.missing(name) == package
    for module in modules:
        there = modules - {module}
        assert list_environments.missing(name) == package, module
    there = modules
    assert list_environments.missing(name) == ""


def test_without_anything_each_family_names_its_package(monkeypatch):
    monkeypatch.setattr(list_environments, "find_spec", lambda module: None)
    with (console := Console(width=200)).capture() as out:
        console.print(list_environments.python_table())
    rows = [line.split(maxsplit=3) for line in out.get().splitlines()]
    told = {row[0]: row[3].strip() for row in rows if len(row) == 4 and ":" in row[0]}
    assert told["gym:ALE/*"] == "pip install 'puffer-mlx[atari]'"
    assert told["gym:CartPole-v1"] == "pip install 'puffer-mlx[gym]'"
    assert told["gym:Walker2d-v5"] == "pip install 'gymnasium[mujoco]'"
    assert told["gym:MiniGrid-*"] == "pip install 'minigrid'"
    assert told["pettingzoo:mpe2.simple_spread_v*"] == "pip install 'mpe2'"


def test_gymnasiums_groups_need_what_it_says():
    """Its extras have the names of its groups of environments."""
    pytest.importorskip("gymnasium")
    for group, names in list_environments.gymnasium_environments().items():
        for name in names:
            packages = [p for pattern, _, p in NEEDED if re.match(pattern, f"gym:{name}")]
            if group in ("box2d", "mujoco"):
                assert packages[0] == f"gymnasium[{group}]", name
            elif group in ("classic_control", "toy_text"):
                assert packages[0] == "puffer-mlx[gym]", name


def test_each_variant_says_what_it_is():
    for name, path in variants().items():
        assert len(list_environments.about(path, name)) > 15, name


def test_nothing_is_compiled(monkeypatch, tmp_path):
    """Not even where there is no compiler; and what has no sources is left out."""
    monkeypatch.setenv("CC", "/no/compiler")
    monkeypatch.setenv("PUFFER_MLX_CACHE", str(tmp_path / "cache"))
    envs = tmp_path / "envs"
    shutil.copytree(environments_folder() / "squared", envs / "squared")
    monkeypatch.setattr(list_environments, "environments_folder", lambda: envs)
    assert [entry.name for entry in list_environments.native_environments()] == ["squared"]
    assert "one of 5" in printed() and not (tmp_path / "cache").exists()
