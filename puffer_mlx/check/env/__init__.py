"""What may be wrong with an environment, found by playing it: ``scripts/check_env.py``."""
