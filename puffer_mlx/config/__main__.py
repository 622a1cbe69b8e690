"""Print the text of configs/default.ini: every key with its help and default."""

import sys

from puffer_mlx.config.schema import Config
from puffer_mlx.config.writing import DEFAULT_HEADER, ini_text

sys.stdout.write(DEFAULT_HEADER + ini_text(Config(), comments=True))
