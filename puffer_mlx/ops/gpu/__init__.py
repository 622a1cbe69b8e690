"""GPU kernels: read their sources (``*.metal.h``), compile and launch them."""
