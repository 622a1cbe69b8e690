"""Policies to other programs' files and back, each compared with ours."""

from puffer_mlx.export.exporting import Format, Report, export

__all__ = ["Format", "Report", "export"]
