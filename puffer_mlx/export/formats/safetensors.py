"""Safetensors files with weights under our names and metadata about the policy."""

from dataclasses import dataclass
from pathlib import Path

from puffer_mlx.checkpoint import tensor_files, weight_files
from puffer_mlx.export.file_format import ExportInput, FileFormat, PolicyFile
from puffer_mlx.export.metadata import metadata, with_metadata


@dataclass(frozen=True)
class SafetensorsFormat(FileFormat):
    """Safetensors file. It can hold every policy, including custom classes."""

    name = "safetensors"
    suffixes = (".safetensors",)
    dialects = ("native", "torch", "puffer3", "sb3")
    tolerance = 0.0
    use = "our own names"
    holds = "everything, classes of your own too, and what it is a policy of"

    def write(self, contents: ExportInput, path: Path) -> None:
        """Write a file with a checksum."""
        properties = metadata(contents.checkpoint, contents.policy)
        weight_files.save_safetensors(
            contents.weights, path, properties, contents.statistics, contents.bounds
        )

    def read(self, path: Path) -> PolicyFile:
        """Read a file, also one of another program if it uses our names."""
        return with_metadata(path, self, *tensor_files.read_tensors(path))


FORMAT = SafetensorsFormat()
