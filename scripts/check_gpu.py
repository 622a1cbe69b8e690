#!/usr/bin/env python
"""Check a machine: python scripts/check_gpu.py [--quick] [--json FILE] [--help]."""

import sys

from puffer_mlx.cli.check_gpu import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
