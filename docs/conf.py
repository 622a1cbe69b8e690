"""The site of these pages, by Sphinx: make site, then open build/site/index.html."""

import re
import tomllib
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SOURCE = PROJECT["urls"]["Source"] + "/blob/main/"

project, author = "puffer_mlx", PROJECT["authors"][0]["name"]
copyright = f"{author}, {PROJECT['license']} licence"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["examples", "quickstart.ipynb"]

html_theme = "furo"
html_title = "puffer_mlx"
html_theme_options = {"source_repository": PROJECT["urls"]["Source"], "source_directory": "docs/"}
pygments_style, pygments_dark_style = "tango", "github-dark"

myst_heading_anchors = 3
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_class_signature = "mixed"
napoleon_numpy_docstring = False

LINK = re.compile(r"(\]\()([^)#\s:]+)(#[^)\s]*)?(\))")
PICTURES = {".png", ".gif", ".svg"}


def elsewhere(target: str, page: Path) -> str | None:
    """The address of a file of the repository that isn't part of the site; None if it is."""
    path = (page.parent / target).resolve()
    if path.suffix in PICTURES or (path.suffix == ".md" and path.is_relative_to(HERE)):
        return None
    if path == HERE / "decisions":
        return None
    return SOURCE + path.relative_to(ROOT).as_posix()


def link_to_sources(_: Any, name: str, source: list[str]) -> None:
    """Links that leave docs/, as they work in a checkout, lead to the repository."""
    page = HERE / f"{name}.md"

    def replaced(found: re.Match[str]) -> str:
        opening, target, anchor, closing = found.groups()
        address = elsewhere(target, page)
        return f"{opening}{address}{anchor or ''}{closing}" if address else found.group()

    source[0] = LINK.sub(replaced, source[0])


def setup(app: Any) -> None:
    app.connect("source-read", link_to_sources)
