"""The picture of connect4_two is connect4's: a player's own stones are cyan, the other's red."""

import runpy
from pathlib import Path

draw = runpy.run_path(str(Path(__file__).parents[1] / "connect4" / "draw.py"))["draw"]
