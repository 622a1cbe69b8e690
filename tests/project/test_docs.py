"""The code in README.md and docs/ runs, and README's numbers are those of the records."""

import json
import re
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
from running import ROOT, TINY, records, run

README = (ROOT / "README.md").read_text()
TEXT = (ROOT / "docs" / "custom_policy.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
FILES = dict(zip(("blocks", "leaky", "", "steady", "costly", "descent"), BLOCKS, strict=True))
COMMANDS = re.findall(r"^puffer-mlx train breakout (.*)$", TEXT, re.MULTILINE)
LONGEST = [words for words in COMMANDS if not any(words != w and words in w for w in COMMANDS)]


@pytest.fixture
def folder(here):
    for name, code in FILES.items():
        (here / f"{name or 'composition'}.py").write_text(code)
    return here


def output(*words: str, cwd: Path) -> list[list[str]]:
    """Run Python with arguments; return the words of each line that it prints."""
    done = subprocess.run(
        [sys.executable, *words], cwd=cwd, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return [line.split() for line in done.stdout.splitlines()]


@pytest.mark.parametrize("words", LONGEST)
def test_commands_of_custom_policy_train(folder, words):
    done = run("train", *TINY, *words.split(), cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(records(folder)) > 4


def test_composition_of_custom_policy_trains(folder):
    sizes = '"2048", "--vec.total-agents", "16", "--train.minibatch-size", "512"'
    code = FILES[""].replace('"1_000_000"', sizes)
    lines = output("-c", code, cwd=folder)
    assert [line[0] for line in lines] == ["1024", "2048"]


def test_results_show_medians_of_the_held_out_seeds():
    scores = json.loads((ROOT / "benchmarks/json/held-out-seeds.json").read_text())["scores"]
    results = (ROOT / "benchmarks" / "RESULTS.md").read_text()
    medians = dict(re.findall(r"^\| ([\w-]+) \| 10 \| \*\*([\d,]+)\*\*", results, re.MULTILINE))
    assert {"HalfCheetah-v5", "Walker2d-v5"} <= medians.keys() & scores.keys()
    for task in medians.keys() & scores.keys():
        assert medians[task] == f"{statistics.median(scores[task].values()):,.0f}"


def test_no_page_installs_from_an_index_that_lacks_the_package():
    """``puffer-mlx[gym]`` adds to an installation; pip would look for ``puffer-mlx`` alone."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "docs").glob("*.ipynb")]
    pages += (ROOT / "puffer_mlx").rglob("*.py")
    plain = re.compile(r"pip install '?puffer-mlx(?!\[)")
    assert [path.name for path in pages if plain.search(path.read_text())] == []


def test_messages_of_troubleshooting_exist():
    page = (ROOT / "docs" / "troubleshooting.md").read_text()
    messages = re.findall(r"^\| `([^`]+)`", page, re.MULTILINE)
    sources = [ROOT / "Makefile", *(ROOT / "puffer_mlx").rglob("*.py")]
    text = "".join(re.sub(r'"\s+f?"', "", path.read_text()) for path in sources)
    assert len(messages) > 8
    assert [part for words in messages for part in words.split("…") if part not in text] == []


def test_readme_python_learns_what_readme_says(here):
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    lines = output("-c", code, cwd=here)
    scores = [float(score) for _, score in lines if score != "None"]
    (said,) = re.findall(r"print\(.*#.*?(\d+) at first, (\d+) at the end", code)
    low, high = map(int, said)
    assert abs(scores[0] - low) < 2 and abs(scores[-1] - high) < 0.1 * high
