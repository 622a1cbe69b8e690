"""train.py --list: every environment that comes with puffer_mlx, described as it is."""

import io
import re
import shutil
import sys

import pytest
from native_envs import SHIPPED, make
from rich.console import Console

from puffer_mlx.cli import list_environments
from puffer_mlx.config.finding import variants
from puffer_mlx.vec.native.sources import environments_folder


def printed(width: int = 120) -> str:
    out = io.StringIO()
    list_environments.print_catalog(Console(file=out, width=width, highlight=False))
    return out.getvalue()


def test_they_are_as_described():
    """The structured comments of its file say what the compiled environment says."""
    entries = list_environments.native_environments()
    assert [entry.name for entry in entries] == SHIPPED
    for entry in entries:
        with make(entry.name, total_agents=48) as vec:
            spec = vec.spec
        shape = spec.observation_shape or (spec.observation_size,)
        kind = "byte" if spec.observation_dtype == "uint8" else "float"
        many = "" if shape == (1,) else "s"
        assert entry.observation == f"{' x '.join(map(str, shape))} {kind}{many}"
        sizes = spec.action.sizes
        does = f"{len(sizes)} continuous" if spec.action.continuous else ""
        does = does or "one of " + " and of ".join(map(str, sizes))
        assert entry.action == does + (", masked" if spec.mask_size else "")
        assert len(entry.description) > 15 and not entry.description.endswith(".")
    for name, path in variants().items():
        assert len(list_environments.comments(path)["description"]) > 15, name


def test_structured_comments(tmp_path):
    path = tmp_path / "x.ini"
    path.write_text(
        "; description: sail home: by night. \n# description: prose\n; other: 3\n"
        "; observation: 4 x 4 bytes\n[base]\nseed = 1 ; action: none\n"
    )
    known = {"description": "sail home: by night.", "observation": "4 x 4 bytes"}
    assert list_environments.comments(path) == known


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
    """A file there is listed as a variant, and doesn't change what comes with puffer_mlx."""
    before = list_environments.native_environments()
    (here / "configs").mkdir()
    text = "; description: twice as far\n[base]\nenv_name = squared\n"
    for name in "walk", "squared-far":
        (here / "configs" / f"{name}.ini").write_text(text)
    assert list_environments.native_environments() == before
    assert "squared-far" in printed() and "twice as far" in printed()


def test_gymnasium_by_group(monkeypatch):
    """Its extras have the names of its groups of environments; without it there are none."""
    pytest.importorskip("gymnasium")
    groups = list_environments.gymnasium_environments()
    assert "CartPole-v1" in groups["classic_control"] and "Taxi-v4" in groups["toy_text"]
    everything = [name for names in groups.values() for name in names]
    assert not {"CartPole-v0", "Ant-v2"} & {*everything} and "Ant-v5" in everything
    assert not any(name.startswith("GymV") for name in everything)
    assert "gym: classic_control  Acrobot-v1, CartPole-v1" in printed()
    extras = {"box2d": "gymnasium[box2d]", "mujoco": "gymnasium[mujoco]"}
    extras |= dict.fromkeys(("classic_control", "toy_text"), "puffer-mlx[gym]")
    for group, extra in extras.items():
        for name in groups[group]:
            needed = (
                p for pattern, _, p in list_environments.NEEDED if re.match(pattern, f"gym:{name}")
            )
            assert next(needed) == extra, name
    for name in [n for n in sys.modules if n.partition(".")[0] == "gymnasium"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    assert list_environments.gymnasium_environments() == {}


def test_many_ids_are_cut(monkeypatch):
    ids = [f"Sea{i}-v0" for i in range(list_environments.MOST + 3)]
    monkeypatch.setattr(list_environments, "gymnasium_environments", lambda: {"box2d": ids})
    needed = (("gym:Sea", ("no_such_module",), "gymnasium[box2d]"),)
    monkeypatch.setattr(list_environments, "NEEDED", needed)
    text = " ".join(printed(200).split())
    assert f"Sea{list_environments.MOST - 1}-v0, … 3 more pip install 'gymnasium[box2d]'" in text
    assert f"Sea{list_environments.MOST}-v0" not in text


NEEDED = {
    "gym:CartPole-v1": ("puffer-mlx[gym]", "gymnasium"),
    "gym:HalfCheetah-v5": ("gymnasium[mujoco]", "gymnasium mujoco"),
    "gym:BipedalWalker-v3": ("gymnasium[box2d]", "gymnasium Box2D"),
    "gym:ALE/*": ("puffer-mlx[atari]", "gymnasium ale_py cv2"),
    "gym:MiniGrid-*": ("minigrid", "gymnasium minigrid"),
    "pettingzoo:mpe2.simple_spread_v*": ("mpe2", "pettingzoo mpe2"),
}


def test_what_is_to_be_installed(monkeypatch):
    """One package brings all of it, Gymnasium too, and is named as long as any of it is missing."""
    there: set[str] = set()
    monkeypatch.setattr(list_environments, "find_spec", lambda module: module in there or None)
    for name, (package, modules) in NEEDED.items():
        whole = {*modules.split()}
        for there in set(), *(whole - {module} for module in whole):
            assert list_environments.missing(name) == package, there
        there = whole
        assert list_environments.missing(name) == ""
    there = set()
    with (console := Console(width=200)).capture() as out:
        console.print(list_environments.python_table())
    rows = [line.split(maxsplit=3) for line in out.get().splitlines()]
    told = {row[0]: row[3].strip() for row in rows if len(row) == 4 and ":" in row[0]}
    for name in (
        "gym:ALE/*",
        "gym:CartPole-v1",
        "gym:MiniGrid-*",
        "pettingzoo:mpe2.simple_spread_v*",
    ):
        assert told[name] == f"pip install '{NEEDED[name][0]}'"


def test_nothing_is_compiled(monkeypatch, tmp_path):
    """Not even where there is no compiler; and what has no sources is left out."""
    monkeypatch.setenv("CC", "/no/compiler")
    monkeypatch.setenv("PUFFER_MLX_CACHE", str(tmp_path / "cache"))
    envs = tmp_path / "envs"
    shutil.copytree(environments_folder() / "squared", envs / "squared")
    monkeypatch.setattr(list_environments, "environments_folder", lambda: envs)
    assert [entry.name for entry in list_environments.native_environments()] == ["squared"]
    assert "one of 5" in printed() and not (tmp_path / "cache").exists()
