"""Access to the computer: compilers, BLAS, devices, files, signals and standard output."""
