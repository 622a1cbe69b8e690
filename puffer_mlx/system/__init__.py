"""What the machine gives: its compilers, BLAS and devices, files, signals and standard output."""
