"""Show a training run: dashboard in a terminal, figure in a notebook, and hints on speed."""
