"""The Python API: the public names of the package (docs/library.md)."""
