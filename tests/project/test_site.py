"""The site builds without a warning, and its links lead somewhere."""

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from running import ROOT

pytest.importorskip("furo", reason="pip install 'puffer-mlx[docs]'")


class Page(HTMLParser):
    """What a page links to, and what can be linked to in it."""

    def __init__(self, path: Path):
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        self.links += [named[key] or "" for key in ("href", "src") if key in named]
        self.anchors |= {named["id"] or ""} if "id" in named else set()


def build(source: Path, target: Path) -> subprocess.CompletedProcess[str]:
    words = ["-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", source, target]
    return subprocess.run(
        [sys.executable, *map(str, words)], capture_output=True, text=True, timeout=300
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = build(ROOT / "docs", folder)
    assert (done.returncode, done.stderr) == (0, "")
    return folder


def broken(site: Path) -> list[str]:
    """Links to files or anchors that aren't there."""
    pages = {path: Page(path) for path in site.rglob("*.html")}
    lost = []
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc or link in ("", "#"):
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            there = target in pages and parts.fragment in pages[target].anchors
            if not (there if parts.fragment and target in pages else target.exists()):
                lost.append(f"{path.name}: {link}")
    return lost


def test_links_lead_somewhere(site):
    assert broken(site) == []


def test_links_into_the_repository_are_files_there(site):
    source = "https://github.com/puffer-mlx/puffer_mlx/blob/main/"
    found = {
        unquote(urlsplit(link.removeprefix(source)).path)
        for path in site.rglob("*.html")
        for link in Page(path).links
        if link.startswith(source)
    }
    assert len(found) > 20 and [name for name in found if not (ROOT / name).exists()] == []


def test_every_page_is_reached_from_the_front(site):
    seen, todo = set(), [site / "index.html"]
    while todo:
        path = todo.pop()
        if path in seen:
            continue
        seen.add(path)
        links = (urlsplit(link).path for link in Page(path).links)
        todo += [(path.parent / link).resolve() for link in links if link.endswith(".html")]
    written = {site / f"{path.relative_to(ROOT / 'docs').with_suffix('')}.html" for path in PAGES}
    assert written <= {path for path in seen if path.exists()}


PAGES = [path for path in (ROOT / "docs").rglob("*.md") if "examples" not in path.parts]


def test_a_broken_link_is_found(tmp_path):
    (tmp_path / "a.html").write_text('<a href="b.html#x"></a><a href="c.html"></a><p id="here">')
    (tmp_path / "b.html").write_text('<a href="a.html#here"></a><a href="#no"></a>')
    assert sorted(broken(tmp_path)) == ["a.html: b.html#x", "a.html: c.html", "b.html: #no"]


def test_names_in_the_reference_are_told(site):
    """Each has words of its own: a docstring that Sphinx can't read would be empty."""
    text = (site / "reference.html").read_text()
    names = re.findall(r'<dt class="sig[^"]*" id="([^"]+)">', text)
    assert "puffer_mlx.training.trainer.Trainer" in names and len(names) > 30
