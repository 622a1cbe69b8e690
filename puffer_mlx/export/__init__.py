"""Policies to other programs' files and back, each compared with ours."""

from puffer_mlx.export.exporting import DIALECTS, SUFFIXES, Format, Report, export

__all__ = ["DIALECTS", "SUFFIXES", "Format", "Report", "export"]
