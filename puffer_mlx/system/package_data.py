"""Folders that come with puffer_mlx beside its code: ``configs`` and ``envs``."""

from pathlib import Path


def shipped(name: str) -> Path:
    """A folder's path: inside the installed package, or beside it in a checkout."""
    package = Path(__file__).resolve().parents[1]
    inside = package / name
    return inside if inside.is_dir() else package.parent / name
