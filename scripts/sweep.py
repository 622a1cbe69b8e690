#!/usr/bin/env python
"""Run the command `puffer-mlx sweep` from a checkout of the repository, with its options."""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from checkout import run

if __name__ == "__main__":
    run("sweep")
