"""Reading a checkpoint back: the policy, and the state that a run goes on from."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import mlx.core as mx

from puffer_mlx.checkpoint import branches, tensor_files
from puffer_mlx.checkpoint.environment_statistics import read_statistics
from puffer_mlx.checkpoint.folder import CONFIG, STATE, WEIGHTS, Checkpoint, State
from puffer_mlx.checkpoint.weight_files import fit, weights_in
from puffer_mlx.config import Config, load_saved
from puffer_mlx.config.trust import Allowed
from puffer_mlx.errors import UserError
from puffer_mlx.policy.policy import Policy, configured_policy
from puffer_mlx.spec import EnvSpec
from puffer_mlx.system.files import reading


def load(
    folder: Path,
    allow_code: Allowed = False,
    policy_of: Callable[[EnvSpec, Config], Policy] = configured_policy,
) -> Checkpoint:
    """Read a checkpoint; its environment need not be there.

    Args:
        folder: the checkpoint's.
        allow_code: import what its configuration names, whatever it is, or what is named here;
            else only what the person named before on this machine (``puffer_mlx.config.trust``).
        policy_of: of an environment's spec and the configuration: what the weights are of.

    Raises:
        UserError: it isn't a checkpoint, is damaged, or names code that nobody allowed.
    """
    path = folder / CONFIG
    with reading(folder):
        if not path.is_file():
            raise UserError(f"{folder} has no {CONFIG}", "name a checkpoint's folder")
    config = load_saved(path, allow_code)
    path = folder / WEIGHTS
    tensors, metadata = _read(path)
    if "spec" not in metadata:
        raise UserError(f"{path} doesn't say what it is for", "import it first")
    try:
        spec = EnvSpec.from_json(metadata["spec"])
    except ValueError as error:
        raise UserError(
            f"{path} can't be read: what it says of its environment makes no sense ({error})",
            "the file is damaged",
        ) from None
    policy = policy_of(spec, config)
    weights = fit(path, weights_in(path, tensors), policy.init(mx.random.key(0)))
    label = branches.label(folder)
    step = label.step if label else 0
    return Checkpoint(folder, config, spec, policy, weights, step, read_statistics(folder))


def encoder_as_trained(config: Config, saved: EnvSpec, spec: EnvSpec) -> Config:
    """A run's configuration, whose encoder ``auto`` goes on being the one that it began with.

    Args:
        config: of the run that goes on.
        saved: its checkpoint's; an older one knows of no images among other parts.
        spec: its environments'.
    """
    if config.torch.encoder != "auto" or saved.image_parts == spec.image_parts:
        return config
    return replace(config, torch=replace(config.torch, encoder="DefaultEncoder"))


def load_state(folder: Path) -> State:
    """What a run needs to go on.

    Raises:
        UserError: the checkpoint has none, or it is damaged.
    """
    path = folder / STATE
    with reading(folder):
        if not path.is_file():
            raise UserError(
                f"{folder} has no {STATE}: it holds only weights",
                f"start a new run from them: --load-model-path {folder}",
            )
    arrays, metadata = _read(path)
    try:
        numbers = json.loads(metadata.get("numbers", ""))
    except (ValueError, RecursionError):
        numbers = None
    if not isinstance(numbers, dict):
        raise UserError(f"{path} can't be read: its numbers are missing", "the file is damaged")
    return State(arrays, numbers)


def recorded(folder: Path) -> mx.array | None:
    """Observations (T, S, D) that the run saw before this checkpoint, or None."""
    path = folder / STATE
    with reading(folder):
        return _read(path)[0].get("recorded") if path.is_file() else None


def _read(path: Path) -> tuple[dict[str, mx.array], dict[str, str]]:
    with reading(path):
        return tensor_files.read(path)
