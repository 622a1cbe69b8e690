"""Kernels of a GPU: their texts, files of their own language (``*.metal.h``), read and launched."""
