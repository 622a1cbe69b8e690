"""Prints the table of formats in docs/export.md."""

import sys

from puffer_mlx.export.formats import table

sys.stdout.write(table())
