"""Export policies to files of other programs and import them, comparing outputs each time."""

from puffer_mlx.export.exporting import Format, Report, export

__all__ = ["Format", "Report", "export"]
