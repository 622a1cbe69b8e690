"""All encoders and their forms, found by listing the files."""

from importlib import import_module
from typing import Any

from puffer_mlx.config.components import encoder_files
from puffer_mlx.policy import custom
from puffer_mlx.policy.encoders import NONE, Encoder, EncoderFacts
from puffer_mlx.policy.encoders.default import Affine, AffineGelu, Linear
from puffer_mlx.policy.encoders.nature import SMALLEST
from puffer_mlx.spec import EnvSpec

# Environments for which PufferLib 4.0 has a special encoder.
CHOSEN_BY_NAME = {"nmmo3": "two convolutions and an embedding"}
MODULES = {
    name: import_module(f"{__name__.rpartition('.')[0]}.{file.stem}")
    for name, file in encoder_files().items()
}
FORMS: dict[type, EncoderFacts] = {
    cls: forms for module in MODULES.values() for cls, forms in module.FORMS.items()
}


def forms_of(encoder: Any) -> EncoderFacts:
    """Return an encoder's forms. A user's class has none."""
    return FORMS.get(type(encoder), NONE)


def encoder_activation(encoder: Any) -> str | None:
    """Return a linear encoder's activation, "" for no activation. Other encoders return None."""
    activation = forms_of(encoder).activation
    return None if activation is None else activation(encoder)


def make_encoder(
    spec: EnvSpec, hidden: int, dialect: str, name: str, activation: str = "gelu"
) -> Encoder:
    """Create an encoder for an environment.

    Args:
        spec: observations and actions of the environment.
        hidden: number H of features.
        dialect: value of ``policy.dialect``.
        name: value of ``torch.encoder``.
        activation: activation after a linear encoder; used by the sb3 dialect alone.

    Raises:
        UserError: The encoder doesn't fit the environment, or is a user's class that isn't usable.
    """
    if ":" in name:
        return custom.make_encoder(name, spec.observation_size, hidden)
    shape = spec.observation_shape
    if name == "auto":
        large = bool(shape) and min(shape[:2]) >= SMALLEST
        name = "NatureEncoder" if large else "ImpalaEncoder" if shape else "DefaultEncoder"
        name = "CombinedEncoder" if spec.image_parts else name
    return MODULES[name].make(spec, hidden, dialect, activation)


def plainer_note(name: str, encoder: object, own_network: bool = False) -> str:
    """Return a note if PufferLib has a special network for this environment, else "".

    Args:
        name: the environment's name.
        encoder: the encoder in use.
        own_network: True if PufferLib 5.0 has a special network (``vec.has_cuda_network``).
    """
    if own_network:
        return (
            f"{name}: PufferLib 5.0 has a special CUDA network for it. Here it gets"
            f" {type(encoder).__name__} and the usual layers, which can't load that one's weights"
        )
    if name not in CHOSEN_BY_NAME or not isinstance(encoder, Linear | Affine | AffineGelu):
        return ""
    return (
        f"{name}: PufferLib has a special encoder for it, {CHOSEN_BY_NAME[name]}. Here it gets a"
        " linear one, unless --torch.encoder module:Class names another"
    )
