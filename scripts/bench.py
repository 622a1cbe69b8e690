#!/usr/bin/env python
"""Measure speed: python scripts/bench.py breakout [--env-only] [--json FILE] [--help]."""

import sys

from puffer_mlx.cli.bench import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
