"""Objects of user modules: errors name what is missing, and files find their neighbours."""

import sys

import pytest

from puffer_mlx.errors import UserError
from puffer_mlx.system.import_string import load_object, record_folder, search_folder


@pytest.mark.parametrize(
    ("text", "name", "said", "hint"),
    [
        ("import nowhere_at_all", "mine_a:E", "nowhere_at_all", "pip install nowhere_at_all"),
        ("from gym.spaces import Box", "mine_c.py:E", "gym", "import gymnasium as gym"),
        ("", "mine_d:E", "mine_d has no E", "module:Class"),
        ("", "other_d:E", "No module named 'other_d'", "is other_d.py in this folder"),
        (
            "raise SystemExit(3)",
            "mine_g:E",
            "ended the program: SystemExit: 3",
            'if __name__ == "__main__"',
        ),
        ("class E(\n", "mine_h:E", "'(' was never closed (ROOT/mine_h.py:1)", "error there"),
        ("from mine_e import gone", "mine_f:E", "mine_e", "is mine_f.py in this folder"),
    ],
)
def test_missing_object_is_named_with_a_hint(here, monkeypatch, text, name, said, hint):
    monkeypatch.syspath_prepend(str(here))
    monkeypatch.setitem(sys.modules, "gym", None)  # whether it is installed or not
    (here / "mine_e.py").write_text("")
    if name.startswith("mine"):
        (here / f"{name.partition(':')[0].removesuffix('.py')}.py").write_text(text)
    with pytest.raises(UserError) as caught:
        load_object(name)
    message, _, advice = str(caught.value).partition("hint: ")
    assert said.replace("ROOT", str(here)) in message and hint in advice


@pytest.mark.parametrize(
    ("text", "name", "package"),
    [
        ("from .sizes import SIZE\n", "my_pkg.env", True),
        ("from my_pkg.sizes import SIZE\n", "env", True),
        ("from sizes import SIZE\n", "env", False),
    ],
    ids=["relative", "of the package", "by its folder"],
)
def test_file_may_import_its_neighbours(here, monkeypatch, text, name, package):
    monkeypatch.setattr(sys, "path", [*sys.path])
    folder = here / "here" / "my_pkg"
    folder.mkdir(parents=True)
    (folder / "sizes.py").write_text("SIZE = 3\n")
    (folder / "env.py").write_text(text)
    if package:
        (folder / "__init__.py").touch()
    monkeypatch.chdir(here / "here")
    before = set(sys.modules)
    try:
        assert load_object("my_pkg/env.py:SIZE") == 3
        assert name in sys.modules
    finally:
        for new in set(sys.modules) - before:
            del sys.modules[new]


def test_module_is_searched_in_the_folder_where_its_name_was_read(here, monkeypatch):
    """If an environment changed the folder since, and the new one lacks the module."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    (here / "first").mkdir()
    (here / "second").mkdir()
    (here / "first" / "here_m.py").write_text("X = 1\n")
    monkeypatch.chdir(here / "first")
    record_folder("here_m:X")
    monkeypatch.chdir(here / "second")
    assert search_folder("here_m:X") == here / "first"
    assert load_object("here_m:X") == 1
    (here / "second" / "here_m.py").write_text("X = 3\n")
    assert search_folder("here_m:X") == here / "second"
    del sys.modules["here_m"]
