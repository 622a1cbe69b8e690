"""The picture of cartpole_continuous is cartpole's."""

import runpy
from pathlib import Path

draw = runpy.run_path(str(Path(__file__).parents[1] / "cartpole" / "draw.py"))["draw"]
