#!/usr/bin/env python
"""Make a checkpoint of another program's file: python scripts/import.py FILE ENV [options]."""

import sys

from puffer_mlx.cli.import_ import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
