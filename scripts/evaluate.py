#!/usr/bin/env python
"""Score or watch a policy: python scripts/evaluate.py ENV --load-model-path latest [options]."""

import sys

from puffer_mlx.cli.evaluate import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
