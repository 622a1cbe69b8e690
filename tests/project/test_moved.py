"""Import paths that documentation showed before there were rooms."""

import importlib
import sys

import pytest

from puffer_mlx.moved import MOVED

SHOWN = {  # in README, docs and the notebook of the versions before
    "cpu_ops": ("threads",),
    "devices": ("select_device",),
    "evaluate": ("play", "score"),
    "export": ("Format", "export"),
    "notebook": ("show", "watch"),
    "pictures": ("find_draw",),
    "policy.custom": ("Module",),
    "policy.decoders": ("Fused",),
    "policy.networks": ("GRU", "LSTM", "MLP", "MinGRU"),
    "policy.policy": ("Policy",),
    "remembered": ("share",),
    "torch_modules": ("make_module",),
    "trainer": ("Trainer",),
    "vec.native": ("find_environment",),
}


@pytest.mark.parametrize("old", SHOWN)
def test_names_are_where_they_were(old):
    module = importlib.import_module(f"puffer_mlx.{old}")
    assert not [name for name in SHOWN[old] if not hasattr(module, name)]


@pytest.mark.parametrize("old", MOVED)
def test_both_names_are_one_module(old):
    sys.modules.pop(f"puffer_mlx.{old}", None)
    module = importlib.import_module(f"puffer_mlx.{old}")
    now = f"puffer_mlx.{MOVED[old]}"
    assert module is importlib.import_module(now)
    assert module.__name__ == now and module.__spec__ and module.__spec__.name == now


def test_what_never_was_is_still_missing():
    with pytest.raises(ModuleNotFoundError, match="training_room"):
        importlib.import_module("puffer_mlx.training_room")
