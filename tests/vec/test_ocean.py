"""PufferLib 3's environments by name: with an imitated package, and with the real one.

``make test-oldest`` installs the real one.
"""

import sys

import numpy as np
import pytest
import stepping

from puffer_mlx import config as c
from puffer_mlx import vec
from puffer_mlx.errors import UserError
from puffer_mlx.vec import puffer
from puffer_mlx.vec.puffer import is_puffer_env

FILES = {
    "__init__.py": "",
    "ocean/__init__.py": "",
    "ocean/environment.py": """
import pufferlib
def make_spaces(buf=None, **keywords): ...
MAKE_FUNCTIONS = {'breakout': 'Breakout', 'go': 'Go', 'pong': 'Pong', 'spaces': make_spaces}
""",
    "ocean/breakout/breakout.py": """
class Breakout:
    def __init__(self, num_envs=1, buf=None, seed=0): ...
""",
    "ocean/go/go.py": "from pufferlib.ocean.go import binding",
}


@pytest.fixture
def imitated(tmp_path, monkeypatch):
    """Imitate the installed package PufferLib by some files, and hide a real one."""
    for name in [n for n in sys.modules if n.partition(".")[0] == "pufferlib"]:
        monkeypatch.delitem(sys.modules, name)
    for file, text in FILES.items():
        path = tmp_path / "pufferlib" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    for name in [n for n in sys.modules if n.partition(".")[0] == "pufferlib"]:
        del sys.modules[name]


def test_names_are_classes_or_functions_and_read_without_an_import(imitated):
    assert puffer.ocean_names() == ["puffer_breakout", "puffer_go", "puffer_pong", "puffer_spaces"]
    assert "pufferlib" not in sys.modules
    made = [vec.python_factory(c.load(f"pufferlib:puffer_{n}", [])) for n in ("breakout", "spaces")]
    assert [each.__name__ for each in made] == ["Breakout", "make_spaces"]
    assert all(map(is_puffer_env, made))


@pytest.mark.parametrize(
    ("name", "said", "hint"),
    [
        ("puffer_brekout", "PufferLib has no such environment", "pufferlib:puffer_breakout"),
        ("puffer_go", "can't be imported: ImportError: cannot import name 'binding'", "its C "),
    ],
)
def test_name_that_can_not_be_imported_is_reported(imitated, name: str, said: str, hint: str):
    with pytest.raises(UserError, match=f"pufferlib:{name}:? {said}") as caught:
        puffer.find_ocean(name)
    assert caught.value.hint.startswith(hint)


def test_missing_pufferlib_is_reported(monkeypatch):
    monkeypatch.setattr(puffer.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="pufferlib:puffer_go: PufferLib 3 isn't inst") as caught:
        puffer.find_ocean("puffer_go")
    assert caught.value.hint.startswith("pip install 'puffer-mlx[pufferlib]'")
    assert puffer.ocean_names() == []


# ---- The real package ----------------------------------------------------------------------------


@pytest.mark.filterwarnings("default")
def test_environment_of_pufferlib_is_stepped(here):
    pytest.importorskip("pufferlib")
    words = ["--vec.total-agents", "4", "--vec.num-buffers", "1", "--vec.backend", "sync"]
    config = c.load("pufferlib:puffer_multiagent", [*words, "--family", "discrete"])
    with vec.make(config, 1) as made:
        rows = stepping.played(made, 40)[1:]
    seen, paid = [row.observations for row in rows], [row.rewards for row in rows]
    assert np.isfinite(seen).all() and (np.std(paid) > 0 or np.std(seen, axis=0).any())
