"""Notes about encoders that differ from PufferLib's."""

import shutil

import pytest
from native_envs import UPSTREAM_5_ROOT
from running import TINY

from puffer_mlx.config.releases import folder_has_cuda_network
from puffer_mlx.policy.encoders.catalog import missing_encoder_note
from puffer_mlx.policy.encoders.default import Linear


def test_linear_encoder_in_place_of_a_special_one_is_reported():
    note = missing_encoder_note("nmmo3", Linear(1707, 8))
    assert "PufferLib has a special encoder for it" in note and "a linear one" in note
    assert missing_encoder_note("breakout", Linear(118, 8)) == ""
    chosen_by_user = object()  # an encoder that isn't linear
    assert missing_encoder_note("nmmo3", chosen_by_user) == ""


@pytest.mark.parametrize("why", ["its name", "a file in CUDA"])
def test_missing_special_network_of_5_0_is_reported(script, here, capsys, monkeypatch, why):
    monkeypatch.setenv("RAYLIB_PATH", "none")
    name = "craftax" if why == "its name" else "glider"
    ocean = here / "ocean" / name
    shutil.copytree(UPSTREAM_5_ROOT / "ocean" / "glider", ocean)
    (ocean / "glider.h").rename(ocean / f"{name}.h")
    shutil.copytree(UPSTREAM_5_ROOT / "config", here / "config")
    (here / "config" / "glider.ini").rename(here / "config" / f"{name}.ini")
    (ocean / "gpu.cu").write_text("#define PUF_BACKEND PUF_GPU\n")  # an environment, not a network
    assert folder_has_cuda_network(ocean) == (name == "craftax")
    if why != "its name":
        (ocean / "glider_policy.cu").write_text("")
    without_env = [*TINY[1:3], *TINY[5:]]  # neither the environment's name nor --env.size 3
    assert script.main([str(ocean), *without_env, "--eval-episodes", "0"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if "special CUDA" in line]
    assert len(lines) == 1 and lines[0].startswith(f"{name}: PufferLib 5.0 has a special")
