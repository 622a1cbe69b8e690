#!/usr/bin/env python
"""A door to the command puffer-mlx match, with the same options."""

import sys

from puffer_mlx.cli.match import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
