"""Policies to files that other programs read, each compared with ours before it is published.

| kind | what | dialect |
| --- | --- | --- |
| ``bin`` | upstream's flat file, of its CUDA backend (``checkpoint/weight_files.py``) | native |
| ``torch`` | a state_dict for upstream's torch classes (``torch_modules.py``) | torch, puffer3 |
| ``safetensors`` | our weights under our names, and what they are of | any |
| ``onnx`` | the graph of one step (``formats/onnx.py``) | any |

A policy of normalised observations takes their statistics along: buffers of the state_dict, tensors
of safetensors, the first nodes of the graph. The flat file can't hold them.

A file is read back from the disk and run by the other side: PyTorch, onnxruntime, or our own
reader, on observations as the environment shows them. Where its outputs over a sequence of them, or
the state after it, differ from ours by more than ``TOLERANCE``, or what float32 tells apart where
that is more (``parity.judge``), nothing is published. Exporting
needs no GPU; the comparison is of whatever MLX's default device computes, and exact tolerances hold
on a CPU.
"""

import io
import json
import math
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np

from puffer_mlx.checkpoint import (
    WEIGHTS,
    Checkpoint,
    environment_statistics,
    normalization,
    weight_files,
)
from puffer_mlx.errors import UserError
from puffer_mlx.export.dialects import dialect_of, stacked_state, to_dialect, to_torch, torch_fault
from puffer_mlx.export.formats.onnx import onnx_fault, run_onnx, save_onnx
from puffer_mlx.export.parity import (
    NOTHING,
    Outputs,
    judge,
    need,
    random_observations,
    run,
    run_torch,
)
from puffer_mlx.policy.policy import Policy
from puffer_mlx.system.files import publish
from puffer_mlx.trees import named

Weights = Any

SUFFIXES = {
    "bin": (".bin",),
    "torch": (".pt", ".pth", ".bin"),  # upstream's torch backend names its files .bin
    "safetensors": (".safetensors",),
    "onnx": (".onnx",),
}
DIALECTS = {
    "bin": ("native",),
    "torch": ("torch", "puffer3"),
    "safetensors": ("native", "torch", "puffer3"),
    "onnx": ("native", "torch", "puffer3"),
}
TOLERANCE = {"bin": 0.0, "torch": 1e-5, "safetensors": 0.0, "onnx": 1e-5}  # of an output's scale


@dataclass(frozen=True)
class Format:
    """What kind of file.

    Args:
        kind: ``bin``, ``torch``, ``safetensors`` or ``onnx``.
        dialect: of the policy in the file; None keeps its own where the kind has it.
        alignment: of a flat file, see ``weights_io.save_bin``; ``whole`` likewise.
        lossy: write a flat file even if it lacks numbers, or what observations are normalised by.
    """

    kind: str
    dialect: str | None = None
    alignment: int = weight_files.BF16
    whole: bool = False
    lossy: bool = False


class Report(NamedTuple):
    """What was written.

    Args:
        path: the file.
        dialect: of the policy in it.
        tensors: how many.
        parameters: numbers in them.
        difference: the largest of any output, relative to that output's largest number, or to 1 if
            that is less.
        worst: the output that has it.
        tolerance: what ``difference`` may be; infinite for a file that lacks something.
        observations: what it was measured on.
        notes: what whoever uses the file must know.
    """

    path: Path
    dialect: str
    tensors: int
    parameters: int
    difference: float
    worst: str
    tolerance: float
    observations: str
    notes: list[str]


def export(made: Checkpoint, form: Format, path: Path, recorded: mx.array | None) -> Report:
    """Write a checkpoint's policy as another kind of file, and compare the two.

    Args:
        made: the checkpoint.
        form: what to write.
        path: where; what is there is replaced.
        recorded: observations (T, S, D), as the policy saw them, to compare on; None draws some.

    Raises:
        UserError: the kind can't hold the policy (the message names the part), a package is
            missing, the file's outputs differ, or it can't be written.
    """
    _check_path(form.kind, path)
    dialect = _choose_dialect(made.policy, form)
    policy, weights = to_dialect(made.policy, made.weights, dialect)
    _check_kind(policy, form.kind)
    raw = form.kind == "bin" and normalization.normalises(made.memory)
    if raw and not form.lossy:
        raise UserError(
            "the flat file can't hold what this policy's observations are normalised by: PufferLib"
            " would show it raw ones",
            "--to torch, onnx or safetensors hold it; --lossy writes the weights alone",
        )
    if recorded is None:
        observations = random_observations(made.spec, made.memory)
    else:
        observations = normalization.undo(made.memory, np.array(recorded))
    ours = made.policy, made.weights, observations, made.memory
    lacking = not form.whole and weight_files.bin_fault(policy, form.alignment) is not None
    lossy = form.kind == "bin" and form.lossy and lacking
    with publish(path) as temporary:
        _write(made, form, policy, weights, temporary)
        found = _run_file(form, policy, weights, temporary, observations)
        least = math.inf if lossy or raw else TOLERANCE[form.kind]
        difference, worst, tolerance = compared = judge(*ours, found, least)
        if not compared.same:
            raise UserError(
                f"{path} would not be the same policy: its {worst} differs from ours by"
                f" {difference:.2g} of its scale, more than {tolerance:g}; nothing was written",
                "are the weights finite? If they are, this is a defect of puffer_mlx: report it",
            )
    T, S = observations.shape[:2]
    kind = "random (seed 0)" if recorded is None else "recorded"
    return Report(
        path=path,
        dialect=dialect,
        tensors=len(named(weights)),
        parameters=sum(w.size for _, w in named(weights)),
        difference=difference,
        worst=worst,
        tolerance=tolerance,
        observations=f"{S} sequences of {T} {kind} observations",
        notes=_notes(made, form.kind, lossy, raw),
    )


def _check_path(kind: str, path: Path) -> None:
    if path.suffix not in SUFFIXES[kind]:
        raise UserError(
            f"{path}: a file of kind {kind} is named {' or '.join(SUFFIXES[kind])}",
            f"{path.with_suffix(SUFFIXES[kind][0])}",
        )
    if (path.parent / WEIGHTS).is_file():
        raise UserError(
            f"{path.parent} is a checkpoint, whose files are its own", "--out FILE elsewhere"
        )


def _check_kind(policy: Policy, kind: str) -> None:
    """Refuse what a kind of file can't hold, and a missing package."""
    faults = {"bin": weight_files.part_fault, "torch": torch_fault, "onnx": onnx_fault}
    if kind in faults and (fault := faults[kind](policy)):
        others = [other for other in SUFFIXES if other not in faults or not faults[other](policy)]
        raise UserError(fault, f"this policy can be exported with --to {' or '.join(others)}")
    need(*{"torch": ("torch",), "onnx": ("onnx", "onnxruntime")}.get(kind, ()))


def _choose_dialect(policy: Policy, form: Format) -> str:
    own, possible = dialect_of(policy), DIALECTS[form.kind]
    dialect = form.dialect or (own if own in possible else possible[0])
    if dialect not in possible:
        raise UserError(
            f"files of kind {form.kind} hold the {' or the '.join(possible)} dialect,"
            f" not {dialect}",
            f"--dialect {possible[0]}",
        )
    return dialect


def metadata(made: Checkpoint, policy: Policy) -> dict[str, str]:
    """What a file says about its policy: keys of the configuration with a dot, and facts."""
    spec, config = made.spec, made.config
    return {
        "puffer_mlx": "1",
        "env": spec.name,
        "step": str(made.step),
        "observation_size": str(spec.observation_size),
        "observation_shape": json.dumps(spec.observation_shape),
        "actions": json.dumps(spec.action.sizes),
        "policy.dialect": dialect_of(policy),
        "policy.hidden_size": str(config.policy.hidden_size),
        "policy.num_layers": str(config.policy.num_layers),
        "policy.reset_on_terminal": str(config.policy.reset_on_terminal),
        "torch.network": config.torch.network,
        "torch.encoder": config.torch.encoder,
    }


def _notes(made: Checkpoint, kind: str, lossy: bool, raw: bool) -> list[str]:
    """What the file doesn't do by itself."""
    notes = []
    layers = getattr(made.policy.network, "layers", 1)
    if made.policy.reset_on_terminal and kind != "safetensors":
        notes.append("trained with policy.reset_on_terminal: zero the state where an episode ends")
    if made.spec.mask_size and kind in ("torch", "onnx"):
        notes.append("action masks are the caller's: set the logits of illegal actions to -1e4")
    if type(made.policy.network).__name__ == "GRU" and layers > 1 and kind == "torch":
        notes.append("PufferLib's GRU of several layers acts differently from how it trains")
    if raw:
        notes.append("the policy wants normalised observations, and the flat file can't say so")
    elif normalization.normalises(made.memory):
        notes.append("observations are normalised inside: give it the environment's own")
    if lossy:
        notes.append("PufferLib 4.0 goes on with numbers of its own where the file has none")
    return notes


# ---- writing, and running what was written -------------------------------------------------------


def _write(made: Checkpoint, form: Format, policy: Policy, weights: Weights, path: Path) -> None:
    if form.kind == "bin":
        weight_files.save_bin(
            policy, weights, path, form.alignment, whole=form.whole, lossy=form.lossy
        )
    elif form.kind == "safetensors":
        weight_files.save_safetensors(weights, path, metadata(made, policy), made.memory)
    elif form.kind == "onnx":
        save_onnx(policy, weights, path, metadata(made, policy), made.memory)
    else:
        save_torch(policy, weights, path, made.memory)


def save_torch(
    policy: Policy, weights: Weights, path: Path, memory: normalization.Memory = NOTHING
) -> None:
    """Write a state_dict for upstream's classes; the policy's dialect is torch or puffer3.

    With the statistics of observations there are keys that upstream's loader refuses, since it
    wouldn't apply them; ``torch_modules.make_module``'s do.
    """
    import torch

    from puffer_mlx.export.torch_modules import make_module

    module = make_module(policy)
    seen = normalization.tensors_of(
        {name: memory[name] for name in normalization.OBSERVATIONS if name in memory}
    )
    arrays = {**to_torch(policy, weights), **seen}
    tensors = {name: torch.as_tensor(w) for name, w in arrays.items()}
    module.load_state_dict(tensors)
    buffer = io.BytesIO()  # torch's own failures to write a file aren't OSErrors
    torch.save(module.state_dict(), buffer)
    path.write_bytes(buffer.getvalue())


def _run_file(
    form: Format, policy: Policy, weights: Weights, path: Path, observations: np.ndarray
) -> Outputs:
    """A file's outputs, by whoever it is for."""
    if form.kind == "torch":
        import torch

        return run_torch(policy, torch.load(path, weights_only=True), observations)
    if form.kind == "onnx":
        state = policy.initial_state(observations.shape[1])
        return run_onnx(path, observations, stacked_state(policy.network, state))
    if form.kind == "safetensors":
        memory = environment_statistics.memory(path)
        return run(policy, weight_files.read_safetensors(path, weights), observations, memory)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that numbers are missing, which was asked for
        return run(policy, weight_files.read_bin(path, weights, form.alignment), observations)
