"""Weights under our names, and what they are of: as a checkpoint's, but a file of its own."""

from dataclasses import dataclass
from pathlib import Path

from puffer_mlx.checkpoint import tensor_files, weight_files
from puffer_mlx.export.file_format import Contents, FileFormat, PolicyFile
from puffer_mlx.export.metadata import metadata, with_metadata


@dataclass(frozen=True)
class Safetensors(FileFormat):
    """Every policy, classes of the user's own too."""

    name = "safetensors"
    suffixes = (".safetensors",)
    dialects = ("native", "torch", "puffer3", "sb3")
    tolerance = 0.0
    use = "our own names"
    holds = "everything, classes of your own too, and what it is a policy of"

    def write(self, contents: Contents, path: Path) -> None:
        """With a checksum."""
        properties = metadata(contents.checkpoint, contents.policy)
        weight_files.save_safetensors(
            contents.weights, path, properties, contents.memory, contents.bounds
        )

    def read(self, path: Path) -> PolicyFile:
        """Of others' files, too, where the names are ours."""
        return with_metadata(path, self, *tensor_files.read(path))


FORMAT = Safetensors()
