"""Policies in other programs' files: export and import, with outputs compared each time."""

from puffer_mlx.export.exporting import Format, Report, export

__all__ = ["Format", "Report", "export"]
