"""Check an environment (``check_env``) or the GPU of this machine (``check_gpu``)."""
