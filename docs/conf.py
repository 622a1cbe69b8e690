"""The site of these pages, by Sphinx: make site, then open build/site/index.html."""

import json
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
source_suffix = {".md": "markdown", ".ipynb": "markdown"}
exclude_patterns = ["examples"]

html_theme = "furo"
html_title = "puffer_mlx"
html_static_path = html_css_files = ["site.css"]
html_favicon = "images/icon.svg"
html_search_scorer = str(HERE / "search_scorer.js")
html_theme_options = {
    "source_repository": PROJECT["urls"]["Source"],
    "source_branch": "main",
    "source_directory": "docs/",
}
pygments_style, pygments_dark_style = "tango", "github-dark"

myst_heading_anchors = 3
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented_params"
autodoc_class_signature = "mixed"
napoleon_numpy_docstring = False

LINK = re.compile(r"(\]\()([^)#\s:]+)(#[^)\s]*)?(\))")
PICTURES = {".png", ".gif", ".svg"}
SCORER = (HERE / "search_scorer.js").read_text()
ANSWERS = json.loads(SCORER.partition("ANSWERS = ")[2].partition(";")[0])


def elsewhere(target: str, page: Path) -> str | None:
    """Return the address of a repository file, or None for a page of the site."""
    path = (page.parent / target).resolve()
    if path.suffix in PICTURES or (path.suffix in source_suffix and path.is_relative_to(HERE)):
        return None
    if path == HERE / "decisions":
        return None
    return SOURCE + path.relative_to(ROOT).as_posix()


def markdown_of(notebook: str) -> str:
    """Return the cells of a notebook, which has no outputs, as Markdown."""
    cells = [(cell["cell_type"], "".join(cell["source"])) for cell in json.loads(notebook)["cells"]]
    return "\n\n".join(f"```python\n{s}\n```" if kind == "code" else s for kind, s in cells)


def keys(ini: str) -> str:
    """Return an entry for each key of configs/default.ini, with an anchor and its comment."""
    entries, section, comment = [], "", ""
    for line in ini.partition("\n\n")[2].partition("[env]")[0].splitlines():
        if line.startswith("["):
            section = line.strip("[]")
            entries.append(f"## [{section}]")
        elif line.startswith("# "):
            comment = re.sub(r"([\\`*_<>{}\[\]])", r"\\\1", line[2:])
            comment = re.sub(r"--[\w.-]*\w", r"`\g<0>`", comment)  # text has its dashes joined
        elif line:
            key, value = line.split(" = ")
            text = f"{comment}\n\nDefault: `{value}`"
            entries.append(f"```{{confval}} {section}.{key}\n{text}\n```")
    return "\n\n".join(entries)


def prepare_page(app: Any, name: str, source: list[str]) -> None:
    """Lead links that leave docs/ to the repository, and add keywords for the search."""
    page = Path(app.env.doc2path(name))
    if page.suffix == ".ipynb":
        source[0] = markdown_of(source[0])
    if name == "keys":
        source[0] += keys((ROOT / "configs" / "default.ini").read_text())

    def replaced(found: re.Match[str]) -> str:
        opening, target, anchor, closing = found.groups()
        address = elsewhere(target, page)
        return f"{opening}{address}{anchor or ''}{closing}" if address else found.group()

    source[0] = LINK.sub(replaced, source[0])
    if name in ANSWERS:
        words = ", ".join(ANSWERS[name].split())
        source[0] = f"---\nmyst:\n  html_meta:\n    keywords: {words}\n---\n\n{source[0]}"


def setup(app: Any) -> None:
    app.connect("source-read", prepare_page)
