"""Policies in other programs' files: export and import, with outputs compared each time."""

from puffer_mlx.export.exporting import ExportFormat, ExportReport, export

__all__ = ["ExportFormat", "ExportReport", "export"]
