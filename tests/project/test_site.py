"""The site builds without a warning, its links work, and it documents every name and key."""

import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from running import ROOT

import puffer_mlx

pytest.importorskip("furo", reason="pip install 'puffer-mlx[docs]'")
SOURCE = "https://github.com/puffer-mlx/puffer_mlx/blob/main/"


class Page(HTMLParser):
    """Parses an HTML page, and collects its links and anchors."""

    def __init__(self, path: Path):
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        self.links += [named[key] or "" for key in ("href", "src") if key in named]
        self.anchors |= {named["id"] or ""} if "id" in named else set()


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    words = ["-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", ROOT / "docs", folder]
    done = subprocess.run(
        [sys.executable, *map(str, words)], capture_output=True, text=True, timeout=300
    )
    assert (done.returncode, done.stderr) == (0, "")
    return folder


def test_links_lead_to_files_and_anchors_that_exist(site):
    pages = {path: Page(path) for path in site.rglob("*.html")}
    lost = []
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc or link in ("", "#"):
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            anchored = target in pages and parts.fragment
            if not (parts.fragment in pages[target].anchors if anchored else target.exists()):
                lost.append(f"{path.name}: {link}")
    links = {link for page in pages.values() for link in page.links if link.startswith(SOURCE)}
    paths = {unquote(urlsplit(link.removeprefix(SOURCE)).path) for link in links}
    assert len(paths) > 20
    assert lost + [path for path in paths if not (ROOT / path).exists()] == []


def test_reference_has_every_public_name(site):
    text = (site / "reference.html").read_text()
    names = set(re.findall(r'<dt class="sig[^"]*" id="([^"]+)">', text))
    assert {f"puffer_mlx.{name}" for name in puffer_mlx.__all__} <= names | {
        "puffer_mlx.__version__"
    }


SEARCH = """
const fs = require("fs"), vm = require("vm"), [folder, query] = process.argv.slice(1);
const window = {location: {search: "?q=" + encodeURIComponent(query)}, addEventListener() {}};
const element = () => ({dataset: {}, addEventListener() {}});
const document = {...element(), documentElement: element(), getElementById() {}};
document.readyState = "loading";
const found = {window, document, URLSearchParams, localStorage: {setItem() {}}, console};
const names = ["language_data.js", "doctools.js", "sphinx_highlight.js", "searchtools.js"];
const scripts = names.map((name) => fs.readFileSync(`${folder}/_static/${name}`, "utf8"));
const index = fs.readFileSync(`${folder}/searchindex.js`, "utf8");
const results = "Search._performSearch(...Search._parseQuery(query))";
found._removeChildren = () => {};
found.query = query;
vm.createContext(found);
const code = [scripts[0], "var Stemmer = window.Stemmer;", ...scripts.slice(1), index].join(";\\n");
console.log(vm.runInContext(code + `;${results}.map((item) => item[0]).pop()`, found));
"""


@pytest.mark.parametrize(
    ("query", "page"),
    [
        ("hyperparameters", "sweeps"),
        ("tune", "sweeps"),
        ("lunarlander", "environments"),
        ("entropy schedule", "library"),
        ("faq", "troubleshooting"),
        ("troubleshooting", "troubleshooting"),
        ("docker", "troubleshooting"),
        ("resume", "training"),
        ("tensorboard", "tracking"),
        ("gif", "evaluation"),
        ("custom environment", "gymnasium"),
    ],
)
def test_search_finds_the_page_first(site, query, page):
    node = shutil.which("node")
    if not node:
        pytest.skip("needs Node.js")
    done = subprocess.run([node, "-e", SEARCH, site, query], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == page
