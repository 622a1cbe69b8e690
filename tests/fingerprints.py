"""Fingerprints of the plain functions that fused forms compute: ``make fingerprints``.

Of what was edited since, the tests that compare a fused form with it run first, with all fused
forms in use; ``puffer_mlx/ops/fingerprints.json`` is written if they pass.
"""

import json
import os
import pkgutil
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from puffer_mlx.ops import fingerprints
from puffer_mlx.ops.fingerprints import COMPARING, FILE, REFERENCES, Reference
from puffer_mlx.policy import choosing_on_gpu
from puffer_mlx.policy import policy as equations
from puffer_mlx.policy.decoders import Fused, Separate
from puffer_mlx.policy.distributions import Categorical, Gaussian
from puffer_mlx.policy.encoders.catalog import FORMS as ENCODERS
from puffer_mlx.policy.networks.catalog import NETWORKS
from puffer_mlx.policy.policy import Policy
from puffer_mlx.ppo import closed_form, optimizers, small_networks

ROOT = Path(__file__).parents[1]


def references() -> list[Reference]:
    """All of the package's, once its mathematics and what launches it are imported."""
    for room in ("ops", "policy", "ppo", "rollout"):
        package = import_module(f"puffer_mlx.{room}")
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if "torch" not in module.name.rpartition(".")[2]:
                import_module(module.name)
    return [each for each in REFERENCES if each.test]


def functions_of(reference: Reference) -> tuple[str, ...]:
    """All that it may stand for, of whatever policy and optimizer."""
    decoders, spaces = (Fused, Separate), (Categorical, Gaussian)
    given: list[Callable[..., Any]] = []
    if reference in (equations.IN_C, equations.ON_GPU, small_networks.REFERENCE):
        given += [Policy.act, Policy.product, Policy.keep]
        given += [cls.__call__ for cls, forms in ENCODERS.items() if forms.activation]
        given += [method for cls in NETWORKS.values() for method in (cls.scan, cls.step)]
        given += [cls.sample for cls in spaces]
        given += [m for cls in decoders for m in (cls.product, cls.split, cls.logstd)]
    if reference is choosing_on_gpu.REFERENCE:
        given += [Policy.act, *(cls.sample for cls in spaces)]
    if reference is small_networks.REFERENCE:
        given += [optimizers.find("adam").step]
    if reference in (closed_form.LOSS, closed_form.LOGPROBS, small_networks.REFERENCE):
        given += [Fused.split, *(cls.log_prob_entropy for cls in spaces)]
    return reference.functions + tuple(map(fingerprints.name_of, given))


def now() -> dict[str, str]:
    """The fingerprints of the sources as they are."""
    found = [fingerprints.fingerprints(functions_of(each)) for each in references()]
    return dict(sorted((name, value) for each in found for name, value in each.items()))


def stale() -> list[str]:
    """Functions whose stored fingerprint isn't theirs, or that nothing computes any more."""
    known, found = fingerprints.stored() if FILE.exists() else {}, now()
    return sorted(name for name in {*known, *found} if known.get(name) != found.get(name))


def refresh() -> int:
    """Compare what was edited, and write the file; the exit status."""
    if not (edited := {*stale()}):
        print("all fingerprints are of the functions as they are")
        return 0
    print(f"edited: {', '.join(sorted(edited))}", flush=True)
    concerned = [
        each for each in references() if edited & {*fingerprints.fingerprints(functions_of(each))}
    ]
    tests = sorted({each.test for each in concerned})
    command = [sys.executable, "-m", "pytest", "-q", "-x", *tests]
    if subprocess.run(command, cwd=ROOT, env=os.environ | {COMPARING: "1"}).returncode:
        print("a fused form doesn't compute what it stands for any more: no fingerprint is written")
        return 1
    FILE.write_text(json.dumps(now(), indent=1) + "\n")
    print(f"wrote {FILE.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(refresh())
