#!/usr/bin/env python
"""Train a policy: python scripts/train.py breakout [options]; --help explains every option."""

import sys

from puffer_mlx.cli.train import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
