"""All encoders, found by listing the files of this package."""

from importlib import import_module
from typing import Any

from puffer_mlx.config.components import encoder_files
from puffer_mlx.policy import custom
from puffer_mlx.policy.encoders import NO_FACTS, Encoder, EncoderFacts
from puffer_mlx.policy.encoders.default import Affine, AffineGelu, Linear
from puffer_mlx.policy.encoders.nature import MIN_IMAGE_SIDE
from puffer_mlx.spec import EnvSpec

# Descriptions of PufferLib 4.0's special encoders, by environment. They aren't implemented here.
SPECIAL_ENCODERS = {"nmmo3": "two convolutions and an embedding"}
PACKAGE = "puffer_mlx.policy.encoders"
MODULES = {name: import_module(f"{PACKAGE}.{file.stem}") for name, file in encoder_files().items()}
ENCODER_FACTS: dict[type, EncoderFacts] = {
    cls: facts for module in MODULES.values() for cls, facts in module.FACTS.items()
}


def encoder_facts(encoder: Any) -> EncoderFacts:
    """Return the ``EncoderFacts`` of an encoder; ``NO_FACTS`` for a custom class."""
    return ENCODER_FACTS.get(type(encoder), NO_FACTS)


def encoder_activation(encoder: Any) -> str | None:
    """Return the name of the activation after a linear encoder.

    Returns "" for a linear encoder without activation, and None for an encoder that isn't linear.
    """
    activation = encoder_facts(encoder).activation
    return None if activation is None else activation(encoder)


def make_encoder(
    spec: EnvSpec, hidden: int, weight_layout: str, name: str, activation: str = "gelu"
) -> Encoder:
    """Create an encoder for an environment.

    Args:
        spec: Observations and actions of the environment.
        hidden: Number H of features.
        weight_layout: Value of ``policy.dialect``.
        name: Value of ``torch.encoder``.
        activation: Activation after a linear encoder; used if ``weight_layout`` is "sb3".

    Raises:
        UserError: If the encoder doesn't fit the environment, or is an unusable custom class.
    """
    if ":" in name:
        return custom.make_custom_encoder(name, spec.observation_size, hidden)
    shape = spec.observation_shape
    if name == "auto":
        if spec.image_parts:
            name = "CombinedEncoder"
        elif not shape:
            name = "DefaultEncoder"
        elif min(shape[:2]) >= MIN_IMAGE_SIDE:
            name = "NatureEncoder"
        else:
            name = "ImpalaEncoder"
    return MODULES[name].make(spec, hidden, weight_layout, activation)


def missing_encoder_note(name: str, encoder: object, has_special_network: bool = False) -> str:
    """Return a note if PufferLib uses a special encoder or network that is missing here, else "".

    There is no note about an encoder if the user chose one that isn't linear.

    Args:
        name: Name of the environment.
        encoder: The encoder in use here.
        has_special_network: True if PufferLib 5.0 has a special network for the environment.
    """
    if has_special_network:
        return (
            f"{name}: PufferLib 5.0 has a special CUDA network for it. Here it gets"
            f" {type(encoder).__name__} and the usual layers, which can't load that one's weights"
        )
    if name not in SPECIAL_ENCODERS or not isinstance(encoder, Linear | Affine | AffineGelu):
        return ""
    return (
        f"{name}: PufferLib has a special encoder for it, {SPECIAL_ENCODERS[name]}. Here it gets a"
        " linear one, unless --torch.encoder module:Class names another"
    )
