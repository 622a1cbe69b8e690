"""Runs that earlier versions saved can be resumed, and continue as in those versions.

``tests/data/runs/NAME.zip`` contains a checkpoint of a tiny run of each shipped environment, and
the results of the version that wrote it. ``PYTHONPATH=tests python
tests/training/test_saved_runs.py NAME`` writes this file for a new environment; never replace one.
"""

import sys
import tempfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from native_envs import AGENTS_OF, SAME_LIBM, SHIPPED, Stepper, make

from puffer_mlx import checkpoint, config
from puffer_mlx.config import Config
from puffer_mlx.training.run import Run
from puffer_mlx.trees import named_arrays
from puffer_mlx.vec.native.vec import NativeVec
from puffer_mlx.vec.rows import random_actions

RUNS = Path(__file__).parents[1] / "data" / "runs"
USE_LIBM = {"breakout", "cartpole", "cartpole_continuous", "craftax_classic", "target"}
HORIZON = 8
EPOCHS, SAVED_AFTER = 4, 2
PLAYED = 24  # steps with recorded actions, from the saved state on


def tiny(name: str) -> Config:
    """Return the configuration of a run of 4 epochs with few agents and weights."""
    agents = 2 * AGENTS_OF.get(name, 1)
    words = f"""
        --device cpu --torch.encoder DefaultEncoder --policy.hidden-size 4 --policy.num-layers 1
        --vec.total-agents {agents} --vec.num-buffers 2 --vec.num-threads 2
        --train.horizon {HORIZON} --train.replay-ratio 1 --train.learning-rate 0.01
        --train.minibatch-size {agents * HORIZON // 2}
        --train.total-timesteps {EPOCHS * agents * HORIZON}
    """
    return config.load(name, words.split())


def as_arrays(tree: object, prefix: str) -> dict[str, np.ndarray]:
    """Return the leaves of a tree as NumPy arrays, by their dotted names."""
    return {f"{prefix}.{name}": np.array(array) for name, array in named_arrays(tree)}


def play(vec: NativeVec, state: np.ndarray, actions: np.ndarray) -> dict[str, np.ndarray]:
    """Restore saved environments and play actions (PLAYED, N, heads); return all rows."""
    vec.restore(state)
    stepper = Stepper(vec, reset=False)
    seen = [[array.copy() for array in stepper.step(step) if array is not None] for step in actions]
    names = ("observations", "rewards", "terminals", "masks")
    return {
        name: np.stack(rows) for name, rows in zip(names, zip(*seen, strict=True), strict=False)
    }


def resume(folder: Path) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Resume a saved run to its end.

    Returns the arrays it begins with, and its weights at the end.
    """
    saved = checkpoint.load(folder)
    with Run.open(saved.config, resumed=saved) as run:
        assert run.continues_episodes, "the environments started new episodes"
        began = as_arrays(run.trainer.state().arrays, "state")
        began |= as_arrays(run.trainer.weights, "weights")
        for _ in run.trainer:
            pass
        return began, as_arrays(run.trainer.weights, "after")


def write(name: str) -> None:
    """Train a small run of an environment, and store its checkpoint in ``NAME.zip``."""
    with tempfile.TemporaryDirectory() as temporary:
        settings = tiny(name)
        with Run.open(settings) as run:
            for _ in range(SAVED_AFTER):
                run.trainer.step()
            folder = checkpoint.save(Path(temporary), run.trainer)
            for _ in run.trainer:
                pass
            after = as_arrays(run.trainer.weights, "after")
        state = np.array(checkpoint.load_state(folder).arrays["environments"])
        agents = settings.vec.total_agents
        with make(name, total_agents=agents, num_buffers=2, num_threads=2) as vec:
            rng = np.random.default_rng(0)
            actions = np.stack([random_actions(vec, agents, rng) for _ in range(PLAYED)])
            rows = play(vec, state, actions)
        expected = {"actions": actions, **rows, **after}
        np.savez(folder / "expected.npz", allow_pickle=False, **expected)
        RUNS.mkdir(exist_ok=True)
        with zipfile.ZipFile(RUNS / f"{name}.zip", "w", zipfile.ZIP_LZMA) as archive:
            for path in sorted(folder.iterdir()):
                archive.write(path, f"{folder.name}/{path.name}")


@pytest.mark.parametrize("name", SHIPPED)
def test_a_run_that_an_earlier_version_saved_resumes(uncompiled, tmp_path, name):
    """The saved state has its bits, and weights after two more epochs are equal up to rounding.

    Environments continue to the same bits, except where the C library has another sine or cosine.
    Matrix products are rounded differently by other CPUs. A step of the optimizer changes weights
    by about 0.01.
    """
    with zipfile.ZipFile(RUNS / f"{name}.zip") as archive:
        archive.extractall(tmp_path)
    (folder,) = tmp_path.iterdir()
    with np.load(folder / "expected.npz") as arrays:
        expected = dict(arrays)
    state = checkpoint.load_state(folder)
    settings = checkpoint.load(folder).config
    with make(name, total_agents=settings.vec.total_agents, env=settings.env) as vec:
        rows = play(vec, np.array(state.arrays["environments"]), expected["actions"])
    exact = SAME_LIBM or name not in USE_LIBM
    for key, found in rows.items():
        assert found.dtype == expected[key].dtype
        np.testing.assert_allclose(found, expected[key], rtol=0, atol=0 if exact else 1e-4)
    began, after = resume(folder)
    for key, array in state.arrays.items():
        if key not in ("environments", "recorded"):
            np.testing.assert_array_equal(began[f"state.{key}"], np.array(array), err_msg=key)
    for key, array in after.items():
        np.testing.assert_allclose(array, expected[key], rtol=0, atol=1e-4, err_msg=key)


if __name__ == "__main__":
    for name in sys.argv[1:] or SHIPPED:
        write(name)
