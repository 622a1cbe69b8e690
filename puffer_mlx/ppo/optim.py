"""The names of this module before each optimizer was a file of ``optimizers``."""

from puffer_mlx.ppo.clip import clip_by_global_norm
from puffer_mlx.ppo.optimizers.muon import COEFFICIENTS, muon, muon_init, orthogonalise
from puffer_mlx.ppo.schedules import cosine

__all__ = [
    "COEFFICIENTS",
    "clip_by_global_norm",
    "cosine",
    "muon",
    "muon_init",
    "orthogonalise",
]
