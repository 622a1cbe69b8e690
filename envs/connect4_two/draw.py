"""Draw one agent's observation as ../connect4 does: its stones cyan, the opponent's red."""

import runpy
from pathlib import Path

draw = runpy.run_path(str(Path(__file__).parents[1] / "connect4" / "draw.py"))["draw"]
