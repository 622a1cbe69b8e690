"""The machine: compilers, BLAS, devices, files, signals and standard output."""
