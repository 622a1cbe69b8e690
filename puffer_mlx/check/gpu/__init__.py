"""What ``scripts/check_gpu.py`` checks on a machine: items, each a function that says a number."""
