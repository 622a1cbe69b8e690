"""What a package has besides the repository's files: README with whole links, compiled libraries.

PyPI shows README outside of the repository, where its links and pictures lead nowhere. So a package
has it with links in full, to the repository of pyproject.toml and the version's tag.

With ``PUFFER_MLX_PREBUILT=1`` a wheel is for one platform, Python and MLX, and brings what is
otherwise compiled on first use (``puffer_mlx/system/prebuilt.py``).
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


def with_whole_links(text: str, repository: str, tag: str) -> str:
    """Markdown with links to a tag's files instead of relative ones; pictures' to their bytes."""

    def whole(match: re.Match[str]) -> str:
        picture, words, path = match.groups()
        return f"{picture}[{words}]({repository}/{'raw' if picture else 'blob'}/{tag}/{path})"

    return LINK.sub(whole, text)


class Hook(MetadataHookInterface):
    """Hatchling's; it is found by being here."""

    def update(self, metadata: dict) -> None:
        """Add what pyproject.toml leaves to be found."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        text = with_whole_links(text, metadata["urls"]["Source"], f"v{metadata['version']}")
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


class Libraries(BuildHookInterface):
    """Hatchling's; asked for by ``PUFFER_MLX_PREBUILT``."""

    def asked(self) -> bool:
        """Whether the wheel is to have compiled libraries."""
        return os.environ.get("PUFFER_MLX_PREBUILT", "0") not in ("", "0")

    def dependencies(self) -> list[str]:
        """What compiling needs: the MLX that whoever installs the wheel today will have."""
        return self.metadata.core.dependencies if self.asked() else []

    def initialize(self, version: str, build_data: dict) -> None:
        """Compile, and add what was made; an editable installation compiles on first use."""
        if not self.asked() or version == "editable":
            return
        self.made = tempfile.TemporaryDirectory()
        folder = Path(self.made.name) / "prebuilt"
        folder.mkdir()
        told = {"PYTHONPATH": self.root, "PUFFER_MLX_CACHE": self.made.name}
        build = [sys.executable, "-m", "puffer_mlx.ops.prebuilding", str(folder)]
        subprocess.run(build, cwd=self.root, check=True, env={**os.environ, **told})
        build_data["force_include"][str(folder)] = "puffer_mlx/prebuilt"
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict, artifact_path: str) -> None:
        """Take away what was only made for the wheel."""
        if hasattr(self, "made"):
            self.made.cleanup()
