"""A checkpoint with a damaged file loads, or one message reports the damage."""

from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from running import TINY, loaded

from puffer_mlx import checkpoint, config, vec
from puffer_mlx.checkpoint import branches
from puffer_mlx.checkpoint.weight_files import load_weights
from puffer_mlx.errors import UserError
from puffer_mlx.training.trainer import Trainer

FLIPS = 30  # of each file; half of them in its first quarter, where headers are
SAFETENSORS = "weights.safetensors", "state.safetensors", "normalization.safetensors"


@pytest.fixture(scope="module")
def trainer():
    """Yield a trainer of a small policy in small environments, without MLX's compiler."""
    mx.disable_compile()
    settings = config.load("squared", [*TINY[1:], "--policy.num-layers", "1"])
    with vec.make(settings, 1) as made:
        yield Trainer(settings, made)
    mx.enable_compile()


@pytest.fixture
def folder(trainer, tmp_path):
    """Return the folder of a trainer's checkpoint with observation statistics."""
    about = trainer.config, trainer.vec.spec, trainer.policy, trainer.weights, trainer.state(), 0.5
    size = trainer.vec.spec.observation_size
    known = {"mean": np.arange(size) / 7, "variance": np.ones(size), "count": np.array(3.0)}
    memory = {f"observations.{part}": array for part, array in known.items()}
    return checkpoint.write_checkpoint(tmp_path, 64, *about, memory)


def read_everything(folder: Path, trainer: Trainer) -> None:
    found = checkpoint.load(checkpoint.find_checkpoint(str(folder), trainer.config))
    state = checkpoint.load_state(folder)
    assert branches.checkpoint_info(folder) is not None
    load_weights(folder / "weights.bin", trainer.weights)
    checkpoint.read_statistics(folder)
    trainer.restore(found.weights, state)


@pytest.mark.parametrize("name", SAFETENSORS)
def test_a_changed_number_is_refused(trainer, folder, name):
    data = bytearray((folder / name).read_bytes())
    data[-1] ^= 1
    (folder / name).write_bytes(data)
    with pytest.raises(UserError, match="the file is damaged"):
        read_everything(folder, trainer)


@pytest.mark.parametrize("name", ["config.ini", "weights.bin", *SAFETENSORS])
def test_a_damaged_file_without_checksums_loads_or_is_refused(trainer, folder, name):
    if name in SAFETENSORS:  # as older versions wrote it
        arrays, metadata = loaded(folder / name)
        recorded = "crc32", "line", "saved", "step"
        metadata = {key: text for key, text in metadata.items() if key not in recorded}
        mx.save_safetensors(str(folder / name), arrays, metadata)
    path, rng, refused = folder / name, np.random.default_rng(len(name)), 0
    whole = path.read_bytes()
    header = int.from_bytes(whole[:8], "little") + 8 if name in SAFETENSORS else len(whole) // 4
    for i in range(FLIPS):
        data = bytearray(whole)
        data[rng.integers(header if i % 2 else len(whole))] ^= rng.integers(1, 256)
        path.unlink()  # a new file for the cache of records
        path.write_bytes(data)
        try:
            read_everything(folder, trainer)
        except UserError as error:
            refused += 1
            assert error.hint
    assert refused > 0 or name == "weights.bin"
