"""Checks of an environment (``check_env``) and of this machine's GPU (``check_gpu``)."""
