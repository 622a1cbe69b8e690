"""The site builds without a warning, and its links lead somewhere."""

import json
import os
import re
import shutil
import subprocess
import sys
from html import escape, unescape
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from running import ROOT

import puffer_mlx
from puffer_mlx.config.schema import KEYS

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
    """Those into the repository, too."""
    assert broken(site) == []
    source = "https://github.com/puffer-mlx/puffer_mlx/blob/main/"
    links = {link for path in site.rglob("*.html") for link in Page(path).links}
    ours = {link.removeprefix(source) for link in links if link.startswith(source)}
    names = {unquote(urlsplit(link).path) for link in ours}
    assert len(names) > 20 and [name for name in names if not (ROOT / name).exists()] == []


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


def text_of(html: str) -> str:
    return " ".join(unescape(re.sub(r"<[^>]+>", "", html)).split())


def test_the_reference_has_the_names_that_people_write(site):
    """Each has words of its own: a docstring that Sphinx can't read would be empty."""
    text = (site / "reference.html").read_text()
    names = re.findall(r'<dt class="sig[^"]*" id="([^"]+)">', text)
    public = {f"puffer_mlx.{name}" for name in puffer_mlx.__all__} - {"puffer_mlx.__version__"}
    assert public <= {*names} and len(names) > 30
    assert [n for n in names if re.match(r"puffer_mlx\.(library|training|policy)\.", n)] == [
        "puffer_mlx.library.policy.Prediction"  # which nobody makes
    ]


def test_the_reference_tells_what_is_returned(site):
    """A colon in a docstring's *Returns* would make a type of the words before it."""
    text = (site / "reference.html").read_text()
    fields = dict.fromkeys(re.findall(r'<dt class="sig[^"]*" id="([^"]+)">', text), "")
    field = r">Return type<[^\n]*\n<dd[^>]*>(.*?)</dd>"
    for part in re.split(r'(?=<dt class="sig)', text):
        name, found = re.search(r'id="([^"]+)"', part), re.search(field, part, re.DOTALL)
        if name and found:
            fields[name[1]] = text_of(found[1])
    assert fields["puffer_mlx.train"] == "Trainer"
    assert fields["puffer_mlx.evaluate"] == "Scores"
    assert fields["puffer_mlx.play"] == "Iterator[Frame]"
    assert fields["puffer_mlx.Policy.predict"] == "Prediction"
    assert [each for each in fields.values() if re.search(r"[a-z] [a-z]|[()]", each)] == []


def test_every_key_has_an_anchor_its_whole_comment_and_its_default(site):
    text = (site / "keys.html").read_text()
    found = dict(re.findall(r'id="confval-([\w.]+)">.*?<dd>(.*?)</dd>', text, re.DOTALL))
    assert [*found] == [f"{section}.{key}" for section, keys in KEYS.items() for key in keys]
    for name, entry in found.items():
        section, _, key = name.partition(".")
        words = KEYS[section][key].help.split()
        said = re.sub("[\u2018\u2019]", "'", text_of(entry)).split()
        assert said[: len(words)] == words and "Default:" in said, name


def test_the_front_page_begins_as_readme_and_shows_learning(site):
    page = (site / "index.html").read_text()
    text = (ROOT / "README.md").read_text()
    for code in re.findall(r"```\w+\n(.*?)```", text.partition("\n## ")[0], re.DOTALL):
        assert text_of(code) in text_of(page)
    assert "import puffer_mlx" in text_of(page) and "_images/learning-gym.png" in page


def test_the_notebook_is_a_page(site):
    page = text_of((site / "quickstart.html").read_text())
    cells = json.loads((ROOT / "docs" / "quickstart.ipynb").read_text())["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert len(code) > 2 and [each for each in code if text_of(escape(each)) not in page] == []
    assert "How good is it?" in page
    for name in ("index", "install"):
        assert 'href="quickstart.html"' in (site / f"{name}.html").read_text()


# ---- the search ----------------------------------------------------------------------------------

SCRIPT = re.compile(r'<script src="(_static/(?!scripts/|sphinx_highlight)[^"?]+|searchindex)[^"]*"')
SEARCH = """
const found = (query) => Search._performSearch(...Search._parseQuery(query)).reverse();
const pages = (results) => results.filter((each) => each[6] != "index").map((each) => each[0]);
JSON.stringify(QUERIES.map((query) => pages(found(query)))); // the index always comes last
"""
IN_NODE = """
const page = {readyState: "loading", addEventListener() {}, getElementById() { return null; }};
const names = {document: page, SPHINX_HIGHLIGHT_ENABLED: false, QUERIES: %s};
names.window = names;
const text = require("fs").readFileSync(0, "utf8");
process.stdout.write(require("vm").runInNewContext(text, names));
"""
FIRST = {  # what is searched, and the page that should come first
    "self-play": "selfplay",
    "sweep": "sweeps",
    "learning_rate": "keys",
    "export": "",
    "rollout": "",
    "checkpoint": "",
    "onnx": "",
}
NODE = shutil.which("node", path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}")


@pytest.mark.skipif(not NODE, reason="node isn't installed")
def test_the_search_finds_guides_before_decisions(site):
    assert NODE
    scripts = SCRIPT.findall((site / "search.html").read_text())
    code = [(site / name).with_suffix(".js").read_text() for name in scripts]
    done = subprocess.run(
        [NODE, "-e", IN_NODE % json.dumps([*FIRST])],
        input="\n".join([*code, SEARCH]),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    for (query, first), pages in zip(FIRST.items(), json.loads(done.stdout), strict=True):
        decisions = [page.startswith("decisions/") for page in pages]
        assert any(decisions) or first == "keys", query
        assert decisions == sorted(decisions), (query, pages)
        assert pages[0] == (first or pages[0]), (query, pages)
