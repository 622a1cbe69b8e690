"""Prints configs/default.ini: every key, its meaning and its default."""

import sys

from puffer_mlx.config.loading import DEFAULT_HEADER, Config, ini_text

sys.stdout.write(DEFAULT_HEADER + ini_text(Config(), comments=True))
