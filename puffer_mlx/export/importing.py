"""Policies out of files that other programs, or puffer_mlx elsewhere, wrote.

| kind | what tells the policy |
| --- | --- |
| ``torch`` | keys and shapes of the state_dict: dialect, encoder, network, sizes |
| ``safetensors``, ``onnx`` | metadata (``export.metadata``), else names and shapes |
| ``bin`` | its kind: a linear encoder and MinGRU; its size: sizes that make that many numbers |

What a file tells are options of the configuration (``policy.dialect``, ...), and those of the
command line win: one may ask for another dialect, and a wrong one doesn't fit the shapes. Nothing
else of the configuration is a file's to say, and no class that it names is imported for it.
"""

import json
import os
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from puffer_mlx.checkpoint import environment_statistics, normalization, weight_files
from puffer_mlx.config import Config
from puffer_mlx.config.memory_needs import refuse_file
from puffer_mlx.config.schema import KEYS
from puffer_mlx.errors import UserError
from puffer_mlx.export.dialects import Tensors, from_torch, stacked_state, to_dialect
from puffer_mlx.export.formats.onnx import read_onnx, run_onnx
from puffer_mlx.export.infer import detect, detect_normalised, detect_torch
from puffer_mlx.export.parity import Compared, judge, need, random_observations, run_torch
from puffer_mlx.policy.policy import Policy, configured_policy
from puffer_mlx.spec import EnvSpec
from puffer_mlx.system.files import open_file, shown

Weights = Any
LINEAR = "DefaultEncoder"
TOLERANCE = 1e-5  # of an output's scale, as ``export.TOLERANCE``
STEP = re.compile(r"(?:^|_)(\d{16})$")  # how the names of PufferLib's checkpoints and ours end
OWN = ("torch.network", "torch.encoder")  # keys that may name classes of the user's own
SAFE_TORCH = (2, 6)  # before, weights_only=True didn't keep its promise: CVE-2025-32434
OLD_TORCH = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46"  # how files of torch.save before 1.6 begin


@dataclass
class Found:
    """What a file holds.

    Args:
        path: the file.
        kind: ``bin``, ``torch``, ``safetensors`` or ``onnx``.
        tensors: by the file's names; none of ``bin``.
        settings: what it tells of the configuration, by key: ``policy.hidden_size``, ...
        classes: those that it names beyond ours, by key: ``torch.encoder``, ``torch.network``.
        metadata: what else it says.
        memory: the statistics that the policy's observations are normalised by; none if they
            aren't.
        inside: whether the statistics are the file's own, and not beside it.
    """

    path: Path
    kind: str
    tensors: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)
    metadata: dict[str, str] = field(default_factory=dict)
    classes: dict[str, str] = field(default_factory=dict)
    memory: dict[str, Any] = field(default_factory=dict)
    inside: bool = False

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
    found = _read(path)
    found.tensors, memory = normalization.take(path, found.tensors)
    found.memory, found.inside = memory or environment_statistics.memory(path), bool(memory)
    found.settings |= detect_normalised(found.memory)
    return found


def _read(path: Path) -> Found:
    try:
        with open_file(path) as file:
            head = file.read(64)
            refuse_file(path, os.fstat(file.fileno()).st_size)
        if path.suffix == ".onnx":
            need("onnx")
            return _told(path, "onnx", *read_onnx(path))
        if head.startswith((weight_files.ZIP, OLD_TORCH)):
            tensors = _read_torch(path)
            return Found(path, "torch", tensors, detect_torch(path, tensors))
        if path.suffix == ".safetensors":
            found = _told(path, "safetensors", *weight_files.read_tensors(path))
            found.settings = found.settings or detect(found.tensors)
            return found
    except OSError as error:
        raise UserError(
            f"can't read {shown(path)}: {error.strerror or error}", "check the path"
        ) from None
    if path.suffix != ".bin":
        raise UserError(
            f"{path} is neither a file of torch.save nor named .safetensors, .onnx or .bin",
            "name the file after what it is",
        )
    return Found(path, "bin", settings={"torch.network": "MinGRU", "torch.encoder": LINEAR})


def weights_of(
    found: Found, spec: EnvSpec, config: Config, alignment: int = weight_files.BF16
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
    _refuse_classes(found, config)
    _check_spec(found, spec)
    _check_sizes(found, config)
    normalization.check_size(found.path, found.memory, spec)
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
            weights = weight_files.read_bin(found.path, like, alignment)
        else:
            tensors = {name: mx.array(w) for name, w in found.tensors.items()}
            weights = weight_files.fit(found.path, tensors, like)
    return to_dialect(policy, weights, config.policy.dialect)


def _refuse_guess(found: Found, config: Config) -> None:
    """Names of tensors don't tell the torch dialect from puffer3."""
    if config.policy.dialect == "native":
        raise UserError(
            f"{found.path} doesn't tell its dialect: the encoder may have a GELU or none",
            "--policy.dialect torch (none), or --policy.dialect puffer3",
        )


def difference(found: Found, policy: Policy, weights: Weights, spec: EnvSpec) -> Compared | None:
    """The largest difference between an imported policy's outputs and the file's own.

    Of a torch file those of the torch classes, of an ONNX file those of onnxruntime, on random
    observations; see ``parity.judge``. None of other files, which no other program runs here.
    """
    memory = found.memory if found.inside else {}
    observations = random_observations(spec, memory)
    if found.kind == "torch":
        source, _ = to_dialect(policy, weights, found.settings["policy.dialect"])
        tensors = {**found.tensors, **normalization.tensors_of(memory)}
        theirs = run_torch(source, tensors, observations)
    elif found.kind == "onnx":
        need("onnxruntime")
        state = stacked_state(policy.network, policy.initial_state(observations.shape[1]))
        theirs = run_onnx(found.path, observations, state)
    else:
        return None
    return judge(policy, weights, observations, memory, theirs, TOLERANCE)


def _check_spec(found: Found, spec: EnvSpec) -> None:
    """Compare what metadata tells of the environment with this one."""
    for key, expected in (
        ("observation_size", spec.observation_size),
        ("observation_shape", list(spec.observation_shape)),
        ("actions", list(spec.action.sizes)),
    ):
        if found.metadata.get(key, json.dumps(expected)) != json.dumps(expected):
            raise UserError(
                f"{found.path} is a policy for"
                f" {_plain(found.metadata.get('env', 'another environment'))}:"
                f" {key} {_plain(found.metadata[key])}, but {spec.name} has {expected}",
                "name the environment that it was trained for",
            )


def _check_sizes(found: Found, config: Config) -> None:
    """Compare the sizes asked for with the tensors', before a policy of them is made."""
    told = {} if found.classes or found.kind == "torch" else detect(found.tensors)
    for key in ("hidden_size", "num_layers"):
        asked, own = str(getattr(config.policy, key)), told.get(f"policy.{key}")
        if own not in (None, asked):
            raise UserError(
                f"{found.path}: its tensors are of policy.{key} {own}, not {asked}",
                f"leave policy.{key} out; if the file says so itself, it is damaged",
            )


def _told(path: Path, kind: str, tensors: dict[str, Any], metadata: dict[str, str]) -> Found:
    """A file with what its metadata tells, if it is one of ours: of the policy, and nothing else.

    Classes that don't come with puffer_mlx are only named: whoever they belong to asks for them.
    """
    keys = [f"policy.{key}" for key in KEYS["policy"]] + [f"torch.{key}" for key in KEYS["torch"]]
    told = {key: metadata[key] for key in keys if key in metadata and "puffer_mlx" in metadata}
    classes = {key: name for key, name in told.items() if key in OWN and ":" in name}
    settings = {key: text for key, text in told.items() if key not in classes}
    return Found(path, kind, tensors, settings, metadata, classes)


def _plain(text: str) -> str:
    """A stranger's text for a message: short, and nothing that a terminal obeys."""
    return text if text.isprintable() and len(text) < 80 else repr(text[:80])


def _refuse_classes(found: Found, config: Config) -> None:
    """A class that a file names is code of a stranger's choice, until a person asks for one."""
    for key, name in found.classes.items():
        section, _, part = key.partition(".")
        if ":" not in str(getattr(getattr(config, section), part)):
            shown = _plain(name)
            raise UserError(
                f"{found.path} names a class of its own, {key} {shown}, which isn't imported only"
                " because a file says so",
                f"if it is yours: --{section}.{part} MODULE:CLASS",
            )


def _read_torch(path: Path) -> Tensors:
    """A state_dict as float32 arrays, keys as PufferLib's loader takes them.

    Raises:
        UserError: it isn't one, or PyTorch is missing.
    """
    need("torch")
    import torch

    version = tuple(map(int, re.findall(r"\d+", torch.__version__)[:2]))
    if version < SAFE_TORCH:
        raise UserError(
            f"PyTorch {torch.__version__} can be made to run code by the file that it loads",
            "pip install 'torch>=2.6'",
        )
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
