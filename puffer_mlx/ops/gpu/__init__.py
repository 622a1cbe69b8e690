"""GPU kernels: reads their sources (``*.metal.h``), compiles and launches them."""
