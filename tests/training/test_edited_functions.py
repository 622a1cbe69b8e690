"""An edit of a plain function changes a run, although a kernel would be faster."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from edited_functions import EDITS
from running import ROOT, copied_package

TESTS = ROOT / "tests"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Train with each edit of the package; return results without and with the edit."""
    folder: Path = tmp_path_factory.mktemp("copy")
    copied_package(folder)
    command = [sys.executable, TESTS / "edited_functions.py", folder]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return {name: found for name, *found in map(json.loads, done.stdout.splitlines())}


@pytest.mark.parametrize("name", EDITS)
def test_an_edited_function_replaces_its_kernel_and_is_reported(runs, name):
    (before, kernels, _), (after, others, said) = runs[name]
    assert after != before
    lines = [line for line in said if f"puffer_mlx: {EDITS[name].file} changed: " in line]
    assert lines and len({*lines}) == len(lines)
    assert all(line.endswith(" isn't used, slower") for line in lines)
    if wanted := EDITS[name].kernel:
        assert any(kernel.startswith(wanted) for kernel in kernels)
        assert not any(kernel.startswith(wanted) for kernel in others)
