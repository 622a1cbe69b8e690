"""``list``: every shipped environment with a true description."""

import io
import shutil
import sys

import pytest
from native_envs import SHIPPED, make
from rich.console import Console

from puffer_mlx.cli import list_environments
from puffer_mlx.config.finding import all_env_names, variants
from puffer_mlx.vec.gym import installed
from puffer_mlx.vec.native.sources import environments_folder


def printed(width: int = 120) -> str:
    out = io.StringIO()
    list_environments.print_catalog(Console(file=out, width=width, highlight=False))
    return out.getvalue()


def test_descriptions_equal_the_compiled_environments():
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


def test_structured_comments_are_read(tmp_path):
    path = tmp_path / "x.ini"
    path.write_text(
        "; description: sail home: by night. \n# description: prose\n; other: 3\n"
        "; observation: 4 x 4 bytes\n[base]\nseed = 1 ; action: none\n"
    )
    known = {"description": "sail home: by night.", "observation": "4 x 4 bytes"}
    assert list_environments.comments(path) == known


def test_the_catalog_names_every_environment_and_fits_the_width():
    text = printed()
    for name in SHIPPED:
        assert f"\n{name} " in text
    for word in ("gym:ID", "module:factory", "path/ocean/NAME", "whose [base] env_name"):
        assert word in text
    rows = [line.split() for line in text.splitlines()]
    assert ["breakout-a", "8,192", "puffer5", "Breakout"] in [row[:4] for row in rows]
    assert ["puffer5/breakout-a.ini"] in [row[:1] for row in rows]
    assert "puffer-mlx train breakout-cpu" in text
    assert ["gym:CartPole-v1", "8", "installed", "gym/CartPole-v1.ini"] in rows
    assert max(map(len, text.splitlines())) <= 120
    narrow = printed(80)
    assert max(map(len, narrow.splitlines())) <= 80
    assert all(name in narrow for name in all_env_names())
    commands = [line for line in narrow.splitlines() if "pip install" in line]
    assert all(line.count("'") == 2 for line in commands)


def test_a_file_of_the_working_directory_is_listed_as_a_variant(here):
    before = list_environments.native_environments()
    (here / "configs").mkdir()
    text = "; description: twice as far\n[base]\nenv_name = squared\n"
    for name in "walk", "squared-far":
        (here / "configs" / f"{name}.ini").write_text(text)
    assert list_environments.native_environments() == before
    assert "squared-far" in printed() and "twice as far" in printed()


def test_gymnasiums_environments_are_listed_by_group(monkeypatch):
    pytest.importorskip("gymnasium")
    groups = list_environments.gymnasium_environments()
    assert "CartPole-v1" in groups["classic_control"] and "Taxi-v4" in groups["toy_text"]
    everything = [name for names in groups.values() for name in names]
    assert not {"CartPole-v0", "Ant-v2"} & {*everything} and "Ant-v5" in everything
    assert "gym: classic_control  Acrobot-v1, CartPole-v1" in printed()
    for name in [n for n in sys.modules if n.partition(".")[0] == "gymnasium"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    assert list_environments.gymnasium_environments() == {}


NEEDED = {
    "gym:HalfCheetah-v5": ("gymnasium[mujoco]", "gymnasium mujoco"),
    "pettingzoo:mpe2.simple_spread_v*": ("mpe2", "pettingzoo mpe2"),
}


@pytest.mark.parametrize("name", NEEDED)
def test_one_package_is_named_while_any_module_is_missing(monkeypatch, name):
    package, modules = NEEDED[name]
    whole = {*modules.split()}
    there: set[str] = set()
    monkeypatch.setattr(installed, "find_spec", lambda module: module in there or None)
    for there in set(), *(whole - {module} for module in whole):
        assert installed.missing_package(name) == package, there
    there = whole
    assert installed.missing_package(name) == ""


def test_listing_compiles_nothing(monkeypatch, tmp_path):
    monkeypatch.setenv("CC", "/no/compiler")
    monkeypatch.setenv("PUFFER_MLX_CACHE", str(tmp_path / "cache"))
    envs = tmp_path / "envs"
    shutil.copytree(environments_folder() / "squared", envs / "squared")
    monkeypatch.setattr(list_environments, "environments_folder", lambda: envs)
    assert [entry.name for entry in list_environments.native_environments()] == ["squared"]
    assert "one of 5" in printed() and not (tmp_path / "cache").exists()
