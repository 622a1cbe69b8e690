#!/usr/bin/env python
"""Carry a policy to other programs: python scripts/export.py latest --to torch [options]."""

import sys

from puffer_mlx.cli.export import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
