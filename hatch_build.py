"""README as PyPI shows it: outside of the repository, where its links and pictures lead nowhere.

So a package has it with links in full, to the repository of pyproject.toml and the version's tag.
"""

import re
from pathlib import Path

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
