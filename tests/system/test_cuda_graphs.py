"""MLX submits kernels one by one unless the environment says otherwise."""

import os
import subprocess
import sys

import pytest

from puffer_mlx.system.cuda_graphs import VARIABLE, submit_directly


@pytest.mark.parametrize(("given", "expected"), [({}, "0"), ({VARIABLE: "1"}, "1")])
def test_what_the_environment_says_stays(given, expected):
    submit_directly(given)
    assert given == {VARIABLE: expected}


def test_it_is_said_before_mlx_loads():
    code = f"import os, sys, puffer_mlx\nprint(os.environ['{VARIABLE}'], 'mlx.core' in sys.modules)"
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["0", "False"]
