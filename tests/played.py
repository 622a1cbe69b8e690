"""Scores of a trained policy in complete episodes, from memory and from its files."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from puffer_mlx import checkpoint, vec
from puffer_mlx.checkpoint import environment_statistics
from puffer_mlx.config import Config
from puffer_mlx.evaluation.episodes import SEED_STRIDE, AgentStepper, score_episodes
from puffer_mlx.export.exporting import ExportFormat, export
from puffer_mlx.training.trainer import Trainer

POLICY = """--policy.hidden-size 8 --policy.num-layers 1 --torch.network MinGRU
    --policy.dialect native"""
EPISODES = 12
EVALUATION = f"--episodes {EPISODES} --greedy --device cpu --seed 3 --vec.total-agents 8"


@contextmanager
def trained(settings: Config) -> Iterator[tuple[Trainer, Path]]:
    """Train a run to its end. Yields the trainer and the path of its checkpoint."""
    with vec.make(settings, 1) as environments:
        trainer = Trainer(settings, environments)
        for _ in trainer:
            pass
        yield trainer, checkpoint.save(checkpoint.prepare_run_folder(settings, "17"), trainer)


def live(trainer: Trainer, **changed: Any) -> float:
    """Play with a trainer's current policy in the environments of ``EVALUATION``.

    Returns the mean score.

    Args:
        trainer: one that has trained with ``--seed 3``.
        changed: keys of ``[vec]`` that are other ones than in training.
    """
    settings = trainer.config
    own = {
        "num_buffers": 1,
        "seed": settings.vec.seed + SEED_STRIDE * settings.base.seed,
        "total_agents": 6 if settings.python else 12,
    }
    settings = replace(settings, vec=replace(settings.vec, **own, **changed))
    with vec.make(settings, 1) as env:
        environment_statistics.copy_statistics(trainer.vec, env)
        found = score_episodes(
            AgentStepper(trainer.policy, trainer.weights, env, 3, deterministic=True), EPISODES
        )
    return found.summary()["score"].mean


def by_file(script: Any, word: str, path: Path | str, *more: str) -> float:
    """Run the evaluate command with a policy file; return the mean score."""
    line = [word, "--load-model-path", str(path), *EVALUATION.split(), "--json", "x.json", *more]
    assert script.main(line) == 0
    return json.loads(Path("x.json").read_text())["summary"]["score"]["mean"]


def close(expected: float) -> Any:
    return pytest.approx(expected, rel=1e-4)  # statistics are float32 in files


def files_play(
    scripts: Callable[[str], Any],
    folder: Path,
    word: str,
    saved: Path,
    words: Sequence[str],
    expected: float,
) -> list[str]:
    """Check that a policy's checkpoint, exports and imports reach its score in memory.

    Args:
        scripts: The fixture.
        folder: Working directory.
        word: Name of the environment.
        saved: Path of the checkpoint.
        words: Words for files without settings.
        expected: Score of the policy in memory.

    Returns:
        Notes of each export. Imports are in ``torch``, ``safetensors`` and ``onnx``.
    """
    script, made, notes = scripts("evaluate"), checkpoint.load(saved), []
    assert by_file(script, word, saved) == close(expected)
    for kind, name in (("torch", "w.pt"), ("safetensors", "w.safetensors"), ("onnx", "w.onnx")):
        report = export(made, ExportFormat(kind), folder / name, checkpoint.recorded(saved))
        notes.append(" ".join(report.notes))
        assert scripts("import_").main([name, word, "--out", kind]) == 0
        assert by_file(script, word, kind) == close(expected)
    for path in (folder / "w.safetensors", saved / "weights.safetensors"):
        assert by_file(script, word, path, *words) == close(expected)
    return notes
