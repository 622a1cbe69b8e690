"""Objects of the user's own: what is missing is said, the module itself or what it imports."""

import pytest

from puffer_mlx.errors import UserError
from puffer_mlx.system.import_string import load_object


@pytest.mark.parametrize(
    ("text", "name", "said", "hint"),
    [
        ("import nowhere_at_all", "mine_a:E", "nowhere_at_all", "pip install nowhere_at_all"),
        ("import gym", "mine_b:E", "gym", "import gymnasium as gym"),
        ("from gym.spaces import Box", "mine_c.py:E", "gym", "import gymnasium as gym"),
        ("", "mine_d:E", "mine_d has no E", "module:Class"),
        ("", "other_d:E", "No module named 'other_d'", "is other_d.py in this folder"),
        ("", "other.deeper.down:E", "named 'other'", "is other.deeper.down.py in this folder"),
        ("raise SystemExit(3)", "mine_g:E", "imported: SystemExit: 3", 'if __name__ == "__main__"'),
        ("class E(\n", "mine_h:E", "'(' was never closed (ROOT/mine_h.py:1)", "it there"),
        ("\nx = y\n", "mine_i.py:E", "NameError: name 'y' is not defined (ROOT/mine_i.py:2)", ""),
        ("from mine_e import gone", "mine_f:E", "mine_e", "is mine_f.py in this folder"),
    ],
)
def test_what_is_missing(here, monkeypatch, text, name, said, hint):
    monkeypatch.syspath_prepend(str(here))
    monkeypatch.setitem(__import__("sys").modules, "gym", None)  # whether it is installed or not
    (here / "mine_e.py").write_text("")
    if name.startswith("mine"):
        (here / f"{name.partition(':')[0].removesuffix('.py')}.py").write_text(text)
    with pytest.raises(UserError) as caught:
        load_object(name)
    told, _, advice = str(caught.value).partition("hint: ")
    assert said.replace("ROOT", str(here)) in told and hint in advice
