"""Policies out of files that other programs, or puffer_mlx elsewhere, wrote.

| kind | what tells the policy |
| --- | --- |
| ``torch`` | keys and shapes of the state_dict: dialect, encoder, network, sizes |
| ``safetensors``, ``onnx`` | metadata (``export.metadata``), else names and shapes |
| ``bin`` | nothing but its size: the environment, and sizes that make that many numbers |

What a file tells are options of the configuration (``policy.dialect``, ...), and those of the
command line win: one may ask for another dialect, and a wrong one doesn't fit the shapes.
"""

import json
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from puffer_mlx import weights_io
from puffer_mlx.config import Config
from puffer_mlx.config_schema import KEYS
from puffer_mlx.detect import detect, detect_torch
from puffer_mlx.dialects import Tensors, from_torch, stacked_state, to_dialect
from puffer_mlx.errors import UserError
from puffer_mlx.onnx_export import read_onnx, run_onnx
from puffer_mlx.parity import compare, need, random_observations, run, run_torch
from puffer_mlx.policy.policy import Policy, configured_policy
from puffer_mlx.spec import EnvSpec

Weights = Any
STEP = re.compile(r"(?:^|_)(\d{16})$")  # how the names of PufferLib's checkpoints and ours end
OLD_TORCH = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46"  # how files of torch.save before 1.6 begin


@dataclass
class Found:
    """What a file holds.

    Args:
        path: the file.
        kind: ``bin``, ``torch``, ``safetensors`` or ``onnx``.
        tensors: by the file's names; none of ``bin``.
        settings: what it tells of the configuration, by key: ``policy.hidden_size``, ...
        metadata: what else it says.
    """

    path: Path
    kind: str
    tensors: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)
    metadata: dict[str, str] = field(default_factory=dict)

    @property
    def step(self) -> int:
        """Environment steps of the run so far: the metadata's, or the file's name, or 0."""
        named, told = STEP.search(self.path.stem), self.metadata.get("step", "")
        return int(told) if told.isdecimal() else int(named[1]) if named else 0


def inspect(path: Path) -> Found:
    """Read a file, of whatever kind its content is.

    Raises:
        UserError: it can't be read, or holds no policy that puffer_mlx has.
    """
    try:
        with open(path, "rb") as file:
            head = file.read(64)
        if path.suffix == ".onnx":
            need("onnx")
            tensors, metadata = read_onnx(path)
            return Found(path, "onnx", tensors, _told(metadata), metadata)
        if head.startswith((weights_io.ZIP, OLD_TORCH)):
            tensors = _read_torch(path)
            return Found(path, "torch", tensors, detect_torch(path, tensors))
        if path.suffix == ".safetensors":
            tensors, metadata = weights_io.read_tensors(path)
            settings = _told(metadata) or detect(tensors)
            return Found(path, "safetensors", tensors, settings, metadata)
    except OSError as error:
        raise UserError(f"can't read {path}: {error.strerror or error}", "check the path") from None
    if path.suffix != ".bin":
        raise UserError(
            f"{path} is neither a file of torch.save nor named .safetensors, .onnx or .bin",
            "name the file after what it is",
        )
    return Found(path, "bin")


def weights_of(
    found: Found, spec: EnvSpec, config: Config, alignment: int = weights_io.BF16
) -> tuple[Policy, Weights]:
    """A file's policy, in the dialect that the configuration asks for.

    Args:
        found: the file.
        spec: of the environment that it is to play.
        config: the effective one, the file's settings among its sources.
        alignment: as of ``weights_io.load_weights``.

    Raises:
        UserError: it is the policy of another environment or configuration, or the dialect asked
            for can't express it.
    """
    _check_spec(found, spec)
    if "policy.dialect" not in found.settings and "decoder.actions.weight" in found.tensors:
        _refuse_guess(found, config)
    dialect = found.settings.get("policy.dialect", config.policy.dialect)
    if found.kind == "bin" and dialect != "puffer3":
        dialect = "native"
    sizes = replace(config.policy, dialect=dialect)
    policy = configured_policy(spec, replace(config, policy=sizes))
    if found.kind == "torch":
        weights = from_torch(policy, found.tensors)
    else:
        like = policy.init(mx.random.key(0))
        if found.kind == "bin":
            weights = weights_io.read_bin(found.path, like, alignment)
        else:
            tensors = {name: mx.array(w) for name, w in found.tensors.items()}
            weights = weights_io.fit(found.path, tensors, like)
    return to_dialect(policy, weights, config.policy.dialect)


def _refuse_guess(found: Found, config: Config) -> None:
    """Names of tensors don't tell the torch dialect from puffer3."""
    if config.policy.dialect == "native":
        raise UserError(
            f"{found.path} doesn't tell its dialect: the encoder may have a GELU or none",
            "--policy.dialect torch (none), or --policy.dialect puffer3",
        )


def difference(
    found: Found, policy: Policy, weights: Weights, spec: EnvSpec
) -> tuple[float, str] | None:
    """The largest difference between an imported policy's outputs and the file's own.

    Of a torch file those of the torch classes, of an ONNX file those of onnxruntime, on random
    observations; see ``parity.compare``. None of other files, which no other program runs here.
    """
    observations = random_observations(spec)
    if found.kind == "torch":
        source, _ = to_dialect(policy, weights, found.settings["policy.dialect"])
        theirs = run_torch(source, found.tensors, observations)
    elif found.kind == "onnx":
        need("onnxruntime")
        state = stacked_state(policy.network, policy.initial_state(observations.shape[1]))
        theirs = run_onnx(found.path, observations, state)
    else:
        return None
    return compare(run(policy, weights, observations), theirs)


def _check_spec(found: Found, spec: EnvSpec) -> None:
    """Compare what metadata tells of the environment with this one."""
    for key, expected in (
        ("observation_size", spec.observation_size),
        ("observation_shape", list(spec.observation_shape)),
        ("actions", list(spec.action.sizes)),
    ):
        if found.metadata.get(key, json.dumps(expected)) != json.dumps(expected):
            raise UserError(
                f"{found.path} is a policy for {found.metadata.get('env', 'another environment')}:"
                f" {key} {found.metadata[key]}, but {spec.name} has {expected}",
                "name the environment that it was trained for",
            )


def _told(metadata: dict[str, str]) -> dict[str, str]:
    """The settings among the metadata of a file of ours."""
    keys = {f"{section}.{key}" for section in KEYS for key in KEYS[section]}
    return {key: metadata[key] for key in metadata if key in keys and "puffer_mlx" in metadata}


def _read_torch(path: Path) -> Tensors:
    """A state_dict as float32 arrays, keys as PufferLib's loader takes them.

    Raises:
        UserError: it isn't one, or PyTorch is missing.
    """
    need("torch")
    import torch

    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file fails anywhere
        first = str(error).strip().partition("\n")[0]
        raise UserError(
            f"{path} can't be read as a state_dict: {first}",
            "save module.state_dict(), not the module; a damaged file can't be helped",
        ) from None
    if not isinstance(loaded, dict) or not all(
        isinstance(w, torch.Tensor) for w in loaded.values()
    ):
        raise UserError(
            f"{path} is not a state_dict of tensors",
            "name the model's file (model_*.pt), not a trainer's state",
        )
    tensors = {}
    for key, w in loaded.items():
        key = key.replace("module.", "").replace("_orig_mod.", "")  # of DDP and torch.compile
        if re.fullmatch(r"(weight|bias)_(ih|hh)_l0", key):
            key = f"lstm.{key}"  # early 3.0: the wrapper is the LSTM
        tensors[key] = w.detach().float().numpy()
        if not np.isfinite(tensors[key]).all():
            raise UserError(f"{path}: {key} holds numbers that aren't finite", "it is damaged")
    return tensors
