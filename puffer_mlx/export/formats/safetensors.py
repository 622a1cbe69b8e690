"""Safetensors files with weights under our names and metadata about the policy."""

from dataclasses import dataclass
from pathlib import Path

from puffer_mlx.checkpoint import tensor_files, weight_files
from puffer_mlx.export.file_format import ExportInput, FileFormat, PolicyFile
from puffer_mlx.export.metadata import policy_file_from_tensors, policy_metadata


@dataclass(frozen=True)
class SafetensorsFormat(FileFormat):
    """Format of safetensors files, which can hold every policy, including custom classes."""

    name = "safetensors"
    suffixes = (".safetensors",)
    layouts = ("native", "torch", "puffer3", "sb3")
    tolerance = 0.0
    purpose = "puffer_mlx itself"
    supported = "all policies, also with custom classes, and a description of the policy"

    def write(self, contents: ExportInput, path: Path) -> None:
        """Write a policy to a safetensors file, with a checksum."""
        properties = policy_metadata(contents.checkpoint, contents.policy)
        weight_files.save_safetensors(
            contents.weights, path, properties, contents.statistics, contents.bounds
        )

    def read(self, path: Path) -> PolicyFile:
        """Read a policy from a safetensors file, also one of another program with our names."""
        return policy_file_from_tensors(path, self, *tensor_files.read_tensors(path))


FORMAT = SafetensorsFormat()
