"""Trains by a copy of the package whose plain functions are edited, one after the other.

``python edited_functions.py FOLDER``: the copy is ``FOLDER/puffer_mlx``. Prints a line of JSON for
each edit: a hash of the weights after a short run on the CPU, the kernels in a GPU's graph, and
what was said. Before each, all modules with equations are imported again, compiled only if they are
edited; the old ones are kept, as MLX may abort when a custom function goes that a compiled one
refers to.
"""

import contextlib
import hashlib
import io
import json
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

SMALL = {
    **{"vec.total_agents": 64, "vec.num_buffers": 2, "train.horizon": 8},
    **{"train.minibatch_size": 128, "policy.hidden_size": 16, "policy.num_layers": 1},
    **{"train.total_timesteps": 1024, "device": "cpu", "seed": 3},
}
MLP = {"torch.network": "MLP", "train.algorithm": "ppo", "train.optimizer": "adam"}


class Edit(NamedTuple):
    """One edit of a function of the package: the file, and the text before and after it."""

    file: str
    before: str
    after: str
    env: str = "squared"
    settings: dict = {}
    kernel: str = ""
    """Kernel of a GPU's graph that isn't used with the edit."""


ADVANTAGE = "delta = rho * (rewards[1:] + target) if"
MORE = "delta = 1.5 * rho * (rewards[1:] + target) if"
LOSS = "loss = pg + vf_coef * vl - ent_coef * ent\n"
WORSE = "loss = pg + vf_coef * vl - ent_coef * ent + 5.0 * mx.mean(mx.square(value))\n"
LSTM, GRU = {"torch.network": "LSTM"}, {"torch.network": "GRU", "train.algorithm": "puffer5"}
GAUSSIAN = "-0.5 * mx.square(distance)"
NETWORKS, DRAWN = "policy/networks", "cartpole_continuous"
EDITS = {
    "loss": Edit("ppo/loss.py", LOSS, WORSE, "cartpole", MLP, "loss"),
    "advantage": Edit("ppo/advantage.py", ADVANTAGE, MORE, kernel="advantages"),
    "discount": Edit("ops/advantages/__init__.py", "= d + k * adv", "= d + 0.5 * k * adv"),
    "mingru": Edit(
        f"{NETWORKS}/mingru/__init__.py", "hidden + 0.5,", "hidden + 0.7,", kernel="min"
    ),
    "lstm": Edit(
        f"{NETWORKS}/lstm/__init__.py", "= logistic(o) *", "= 0.5 *", "squared", LSTM, "ls"
    ),
    "gru": Edit(
        f"{NETWORKS}/gru/__init__.py", "h = n + u * (h", "h = n + u*u*(h", "squared", GRU, "gr"
    ),
    "muon": Edit("ppo/optimizers/muon/__init__.py", "u = g + beta * m", "u = g", kernel="muon"),
    "adam": Edit(
        "ppo/optimizers/adam/__init__.py", "- rate * m", "- 2 * rate * m", "cartpole", MLP
    ),
    "clip": Edit(
        "ppo/optimizers/__init__.py",
        "lambda g: g * scale",
        "lambda g: g * scale + 0.01",
        kernel="muon",
    ),
    "log-probability": Edit(
        "policy/distributions.py",
        "+ _pick(logp, actions",
        "+ 1.1 * _pick(logp, actions",
        kernel="loss",
    ),
    "gaussian": Edit(
        "policy/distributions.py", GAUSSIAN, "-0.4 * mx.square(distance)", DRAWN, {}, "loss"
    ),
    "priority": Edit(
        "ppo/priority.py", "probe - 1) < uniforms", "probe - 1) < 0.5 * uniforms", kernel="draw"
    ),
    "linear": Edit(
        "ops/linear/__init__.py",
        "    return x @ weight.T if",
        "    return 1.1 * (x @ weight.T) if",
        "squared",
        MLP,
    ),
}
# Modules without equations, which are imported once.
KEPT = "system errors spec trees config vec moved ops.cpu_extension"
old_modules = []


def imported_again() -> None:
    """Forget the package's imported modules that an edit may change, to import them again."""
    kept = tuple(f"puffer_mlx.{name}" for name in KEPT.split())
    for name in [name for name in sys.modules if name.startswith("puffer_mlx.")]:
        if not name.startswith(kept):
            old_modules.append(sys.modules.pop(name))


def trained(edit: Edit) -> tuple[str, list[str]]:
    """Train a small run; return a hash of its weights, and the kernels a GPU would launch."""
    import mlx.core as mx
    import numpy as np

    library = import_module("puffer_mlx.library.trainer")
    trees = import_module("puffer_mlx.trees")
    with library.Trainer(dict(SMALL), edit.env, **edit.settings) as trainer:
        for _ in trainer:
            pass
        digest = hashlib.sha256()
        for _, array in trees.named_arrays(trainer.weights):
            digest.update(np.array(array.astype(mx.float32)).tobytes())
        return digest.hexdigest()[:12], kernels(trainer.vec.spec, trainer.config)


def kernels(spec, config) -> list[str]:
    """Return the names of the kernels that a minibatch of puffer4 would launch."""
    import mlx.core as mx

    advantage, choose, loss, find, configured, Minibatch, Targets, Coefficients, building_for = (
        getattr(import_module(f"puffer_mlx.{module}"), name)
        for module, name in (
            *(("ppo.advantage", "advantages"), ("ppo.priority", "choose_segments")),
            *(("ppo.gradients", "minibatch_loss"), ("ppo.optimizers", "find_optimizer")),
            *(("policy.policy", "configured_policy"), ("ppo.sections", "Minibatch")),
            *(("ppo.loss", "Targets"), ("ppo.loss", "Coefficients")),
            ("system.backend", "building_for"),
        )
    )
    names = []

    def launch(name, **how):
        names.append(name)
        shapes = zip(how["output_shapes"], how["output_dtypes"], strict=True)
        return [mx.zeros(shape, dtype) for shape, dtype in shapes]

    T, S = 4, 8
    policy, optimizer = configured(spec, config), find(config.train.optimizer)
    weights, x = policy.init(mx.random.key(0)), mx.zeros((T, S))
    with building_for("metal", launch):
        numbers = {"gamma": 0.9, "gae_lambda": 0.9, "rho_clip": 1.0, "c_clip": 1.0}
        adv = advantage(x, x, x, mx.ones((T, S)), **numbers)
        choose(adv, mx.ones(S), mx.array(0.5), 0.8)
        observations = mx.zeros((T, S, spec.observation_size))
        actions = mx.zeros((T * S, spec.action.heads))
        targets = Targets(*(x.reshape(-1) for _ in range(4)))
        minibatch = Minibatch(observations, actions, targets=targets)
        settings = policy, "fp32", Coefficients(0.2, 0.5, 0.2), None, None
        loss(*settings, weights, minibatch, mx.array(0.01), mx.array(1.0))
        given = weights, weights, optimizer.init(weights), mx.array(0.0), mx.array(0.1)
        optimizer.step(*given, **optimizer.hyperparameters(config.train))
    return sorted({*names})


def run(edit: Edit) -> tuple[str, list[str], list[str]]:
    """Train with a freshly imported package. Returns ``trained``'s results and error lines."""
    imported_again()
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        digest, names = trained(edit)
    return digest, names, said.getvalue().splitlines()


def main(folder: Path) -> None:
    """Train with the package unchanged, then with each edit, and print the results."""
    sys.path.insert(0, str(folder))
    import_module("puffer_mlx")  # before MLX: then the extension multiplies matrices
    whole: dict[str, tuple] = {}
    for name, edit in EDITS.items():
        kind = repr((edit.env, edit.settings))
        sys.dont_write_bytecode = False
        whole[kind] = whole.get(kind) or run(edit)
        path = folder / "puffer_mlx" / edit.file
        text, times = path.read_text(), path.stat()
        assert text.count(edit.before) == 1, f"{edit.file} has not one {edit.before!r}"
        path.write_text(text.replace(edit.before, edit.after))
        sys.dont_write_bytecode = True
        changed = run(edit)
        path.write_text(text)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))  # so compiled files stay valid
        print(json.dumps([name, whole[kind], changed]), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
