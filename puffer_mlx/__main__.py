"""Run the ``puffer-mlx`` command when Python starts the package: ``python -m puffer_mlx``."""

import sys

from puffer_mlx.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
