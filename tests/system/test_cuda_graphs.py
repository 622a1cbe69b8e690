"""MLX submits kernels one by one unless the environment says otherwise."""

import os
import subprocess
import sys

VARIABLE = "MLX_USE_CUDA_GRAPHS"
CODE = f"""
import importlib, os, sys
import puffer_mlx
print(os.environ["{VARIABLE}"], "mlx.core" in sys.modules)
os.environ["{VARIABLE}"] = "1"
importlib.reload(puffer_mlx)
print(os.environ["{VARIABLE}"])
"""


def test_it_is_said_before_mlx_loads_and_what_the_environment_says_stays():
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    python = [sys.executable, "-c", CODE]
    done = subprocess.run(python, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0", "False", "1"]
