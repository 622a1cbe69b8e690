#!/usr/bin/env python
"""What is wrong with an environment? python scripts/check_env.py ENV [options]; --help."""

import sys

from puffer_mlx.cli.check_env import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
