"""Build hooks of the package: absolute links in the README, and compiled libraries in a wheel.

PyPI shows the README outside the repository, where relative links and pictures don't work. So the
package's README has absolute links, to the version's tag in the repository.

With ``PUFFER_MLX_PREBUILT=1``, a wheel is built for one platform, Python and MLX, and contains the
libraries that are otherwise compiled on first use (``puffer_mlx/system/prebuilt.py``).
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK = re.compile(r"(!?)\[([^]]*)\]\((?!\w+:|#)([^)\s]+)\)")


def with_absolute_links(text: str, repository: str, tag: str) -> str:
    """Replace relative links in a Markdown text by links to the files of a tag.

    Args:
        text: Markdown.
        repository: URL of the repository.
        tag: Tag in the repository.
    """

    def absolute(match: re.Match[str]) -> str:
        picture, words, path = match.groups()
        return f"{picture}[{words}]({repository}/{'raw' if picture else 'blob'}/{tag}/{path})"

    return LINK.sub(absolute, text)


class Hook(MetadataHookInterface):
    """Hatchling's hook that adds the README to the package's metadata."""

    def update(self, metadata: dict) -> None:
        """Add the README with absolute links to the metadata."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        text = with_absolute_links(text, metadata["urls"]["Source"], f"v{metadata['version']}")
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


class Libraries(BuildHookInterface):
    """Hatchling's hook that compiles libraries for a wheel if ``PUFFER_MLX_PREBUILT`` is set."""

    def is_requested(self) -> bool:
        """Return True if the wheel must contain compiled libraries."""
        return os.environ.get("PUFFER_MLX_PREBUILT", "0") not in ("", "0")

    def dependencies(self) -> list[str]:
        """Return the packages needed to compile: the package's dependencies, such as MLX."""
        return self.metadata.core.dependencies if self.is_requested() else []

    def initialize(self, version: str, build_data: dict) -> None:
        """Compile the libraries and add them to the wheel. Editable installations have none."""
        if not self.is_requested() or version == "editable":
            return
        self.temporary = tempfile.TemporaryDirectory()
        folder = Path(self.temporary.name) / "prebuilt"
        folder.mkdir()
        variables = {"PYTHONPATH": self.root, "PUFFER_MLX_CACHE": self.temporary.name}
        build = [sys.executable, "-m", "puffer_mlx.ops.prebuilding", str(folder)]
        subprocess.run(build, cwd=self.root, check=True, env={**os.environ, **variables})
        build_data["force_include"][str(folder)] = "puffer_mlx/prebuilt"
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict, artifact_path: str) -> None:
        """Remove the temporary folder with the compiled libraries."""
        if hasattr(self, "temporary"):
            self.temporary.cleanup()
