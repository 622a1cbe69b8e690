"""The configuration of a run: keys, .ini files, the command line, and trust in code of files."""

from puffer_mlx.config.command_line import ALLOW_CODE
from puffer_mlx.config.finding import all_env_names, find_config
from puffer_mlx.config.loading import load, load_saved, parse_command_line
from puffer_mlx.config.notes import take_notes, unused_keys_note
from puffer_mlx.config.schema import Base, Config, Policy, Selfplay, Torch, Train, Vec
from puffer_mlx.config.validation import validate
from puffer_mlx.config.writing import DEFAULT_HEADER, ini_text, to_dict, write_ini

__all__ = [
    "ALLOW_CODE",
    "DEFAULT_HEADER",
    "Base",
    "Config",
    "Policy",
    "Selfplay",
    "Torch",
    "Train",
    "Vec",
    "all_env_names",
    "find_config",
    "ini_text",
    "load",
    "load_saved",
    "parse_command_line",
    "take_notes",
    "to_dict",
    "unused_keys_note",
    "validate",
    "write_ini",
]
