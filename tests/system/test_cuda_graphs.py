"""MLX submits kernels one by one unless the environment says otherwise."""

import os
import subprocess
import sys

import pytest

VARIABLE = "MLX_USE_CUDA_GRAPHS"


@pytest.mark.parametrize(("given", "expected"), [({}, "0"), ({VARIABLE: "1"}, "1")])
def test_it_is_said_before_mlx_loads_and_what_the_environment_says_stays(given, expected):
    code = f"import os, sys, puffer_mlx\nprint(os.environ['{VARIABLE}'], 'mlx.core' in sys.modules)"
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    python = [sys.executable, "-c", code]
    done = subprocess.run(
        python, env=environment | given, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [expected, "False"]
