"""What is said of encoders that PufferLib would have chosen otherwise."""

import shutil

from running import TINY

from puffer_mlx.policy.encoders.catalog import plainer_note
from puffer_mlx.policy.encoders.default.encoder import Linear
from puffer_mlx.vec.native.make import find_environment


def test_a_linear_encoder_instead_of_ones_own_is_said():
    note = plainer_note("nmmo3", Linear(1707, 8))
    assert "PufferLib has an encoder of its own for it" in note and "a linear one" in note
    assert plainer_note("breakout", Linear(118, 8)) == ""
    assert plainer_note("nmmo3", object()) == ""  # somebody named another


def test_a_run_says_so_when_it_starts(script, here, capsys):
    folder = shutil.copytree(find_environment("squared"), here / "ocean" / "nmmo3")
    (folder / "nmmo3.ini").write_text("[base]\nenv_name = nmmo3\n[env]\nsize = 3\n")
    assert script.main([str(folder), *TINY[1:]]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if "encoder" in line]
    assert len(lines) == 1 and lines[0].startswith("nmmo3: PufferLib has an encoder of its own")
