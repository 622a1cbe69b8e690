"""A helper of the tests of exports and imports."""

from typing import Any

from puffer_mlx.config import Config


def configuration_of(settings: dict[str, str], **more: Any) -> Config:
    """Return a configuration with the settings that are stored in an exported policy file."""
    config = Config("x")
    for key, text in {**settings, **more}.items():
        section, _, name = key.partition(".")
        part = getattr(config, section)
        setattr(part, name, type(getattr(part, name))(text))
    return config
