"""Write the hashes of all files of plain functions: ``make fingerprints``.

If the code of a file changed, the tests that compare the implementations run first, with all
implementations in use; ``puffer_mlx/ops/plain_files.txt`` is written if they pass.
"""

import os
import pkgutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

from puffer_mlx.ops import implementation
from puffer_mlx.ops.implementation import COMPARING_VARIABLE, HASHES, Hashes
from puffer_mlx.system.plain_functions import recorded
from puffer_mlx.system.prebuilt import text_hash

ROOT = Path(__file__).parents[1]
TESTS = (
    "tests/ops/test_ops.py",
    "tests/ops/test_pack.py",
    "tests/policy/test_acting_on_gpu.py",
    "tests/policy/test_choosing_on_gpu.py",
    "tests/policy/test_networks.py",
    "tests/ppo/test_adam.py",
    "tests/ppo/test_advantage.py",
    "tests/ppo/test_closed_form.py",
    "tests/ppo/test_minibatch.py",
    "tests/ppo/test_minibatch_kernels.py",
    "tests/ppo/test_muon.py",
    "tests/ppo/test_priority.py",
    "tests/ppo/test_small_networks.py",
    "tests/rollout/test_compiled_step.py",
)


def current() -> dict[str, Hashes]:
    """Compute the hashes of the package's files whose code decides results, by path."""
    for room in ("ops", "policy", "ppo"):
        package = import_module(f"puffer_mlx.{room}")
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if "torch" not in module.name.rpartition(".")[2]:
                import_module(module.name)
    found = {}
    for module in recorded:
        file = Path(str(sys.modules[module].__file__))
        source = file.read_bytes()
        path = file.relative_to(implementation.PACKAGE).as_posix()
        hashes = text_hash(source), implementation.code_hash(source)
        found[path] = Hashes(*hashes)
    return dict(sorted(found.items()))


def stale() -> list[str]:
    """Return the paths of files whose code differs from the stored hashes.

    Stored files that are gone are included.
    """
    stored = implementation.released_hashes()
    found = current()
    paths = sorted({*stored, *found})
    return [
        p for p in paths if p not in stored or p not in found or stored[p].code != found[p].code
    ]


def refresh() -> int:
    """Compare implementations if their code changed, and store the new hashes.

    Returns the exit status.
    """
    if edited := stale():
        print(f"edited: {', '.join(edited)}", flush=True)
        command = [sys.executable, "-m", "pytest", "-q", "-x", *TESTS]
        if subprocess.run(command, cwd=ROOT, env=os.environ | {COMPARING_VARIABLE: "1"}).returncode:
            print("an implementation doesn't compute the plain functions: no hash is written")
            return 1
    lines = [" ".join([path, *hashes]) for path, hashes in current().items()]
    HASHES.write_text("\n".join(lines) + "\n")
    print(f"wrote {HASHES.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(refresh())
