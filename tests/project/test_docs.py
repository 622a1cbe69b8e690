"""The code in README.md and in docs/ runs, and shows what it is there for."""

import json
import re
import statistics
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from running import ROOT, TINY, only, records, run

TEXT = (ROOT / "docs" / "custom_policy.md").read_text()
FILE, NETWORK, COMPOSED, LOSS, ADVANTAGE, OPTIMIZER = re.findall(
    r"```python\n(.*?)```", TEXT, re.DOTALL
)
COMMANDS = re.findall(r"^puffer-mlx train breakout (.*)$", TEXT, re.MULTILINE)


@pytest.fixture
def folder(here):
    (here / "blocks.py").write_text(FILE)
    (here / "leaky.py").write_text(NETWORK)
    (here / "steady.py").write_text(LOSS)
    (here / "costly.py").write_text(ADVANTAGE)
    (here / "descent.py").write_text(OPTIMIZER)
    return here


def test_a_custom_policy_takes_thirty_lines():
    assert len(FILE.splitlines()) <= 30 and len(NETWORK.splitlines()) <= 30


@pytest.mark.parametrize("words", COMMANDS)
def test_the_commands_of_custom_policy_train(folder, words):
    done = run("train", *TINY, *words.split(), "--checkpoint-interval", 2, cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    whole = records(folder)
    last = sorted(folder.glob("checkpoints/squared/*/0*"))[-2]
    done = run("train", "squared", "--resume", last, "--allow-code", cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    losses = [[record.get("loss/total") for record in log] for log in (whole, records(folder))]
    assert losses[0] == losses[1] and len(losses[0]) > 4
    weights = only(folder, "checkpoints/squared/*") / last.name / "weights.bin"
    assert weights.exists() == ("--torch" not in words)  # which can't hold classes of one's own


def test_the_composition_in_custom_policy_trains(folder):
    code = COMPOSED.replace('"1_000_000"', '"2048", "--vec.total-agents", "16"').replace(
        '"--train.total-timesteps"', '"--train.minibatch-size", "512", "--train.total-timesteps"'
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["1024", "2048"]


README = (ROOT / "README.md").read_text()
SOURCE = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Source"]


def test_readme_begins_with_the_code_and_the_two_commands_that_set_it_up():
    top, _, rest = README.partition("```sh\n")
    assert len(top.splitlines()) < 10
    words = [line.partition("#")[0].split() for line in rest.partition("```")[0].splitlines()]
    clone, folder, *made = words
    assert (clone, folder) == (["git", "clone", SOURCE], ["cd", Path(SOURCE).name])
    assert made == [["make", "train"], ["make", "test"]]
    makefile = (ROOT / "Makefile").read_text()
    for _, target in made:
        assert re.search(rf"^{target}: \$\(VENV\)/", makefile, re.MULTILINE)
    assert "python scripts/train.py breakout" in README


def test_readme_tells_a_curves_end_from_an_evaluation():
    """Walker2d's: the picture's median is the mean of drawn actions, the table's of greedy ones."""
    record = json.loads((ROOT / "benchmarks" / "learning" / "Walker2d-v5.json").read_text())
    runs = list(record["seeds"].values())
    end, score = (statistics.median(each) for each in zip(*map(ends, runs), strict=True))
    text = " ".join(README.split())
    words = f"ends near {round(end, -1):,.0f} in the picture, where its five runs evaluate at"
    assert f"{words} {score:,.0f}" in text


def test_readme_goes_by_seeds_that_nothing_was_chosen_with():
    scores = json.loads((ROOT / "benchmarks/json/held-out-seeds.json").read_text())["scores"]
    for task in "HalfCheetah-v5", "Walker2d-v5":
        median = statistics.median(scores[task].values())
        assert re.search(rf"{task} {median:,.0f}\b", README)


def test_each_record_is_named_beside_the_numbers_or_the_notes():
    folder = ROOT / "benchmarks" / "json"
    pages = (ROOT / "benchmarks" / "RESULTS.md", folder / "README.md")
    named = set(re.findall(r"[\w-]+\.json", "".join(page.read_text() for page in pages)))
    assert named - {"TASK.json"} == {path.name for path in folder.glob("*.json")}


def ends(run: dict) -> tuple[float, float]:
    """The mean of the last 100 training episodes, and the evaluation."""
    return run["curve"][-1][1], run["score"]


def test_no_page_installs_from_an_index_that_has_it_not():
    """``puffer-mlx[gym]`` adds to what is installed; ``puffer-mlx`` alone would be looked for."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "docs").glob("*.ipynb")]
    pages += (ROOT / "puffer_mlx").rglob("*.py")
    plain = re.compile(r"pip install '?puffer-mlx(?!\[)")
    assert [path.name for path in pages if plain.search(path.read_text())] == []


def test_what_readme_shows_learns(here):
    """Its Python as it stands: the score rises from what chance reaches to what README says."""
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=here, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert [int(steps) for steps, _ in lines] == [131_072 * (n + 1) for n in range(len(lines))]
    scores = [float(score) for _, score in lines if score != "None"]
    (said,) = re.findall(r"print\(.*#.*?(\d+) at first, (\d+) at the end", code)
    low, high = map(int, said)
    assert abs(scores[0] - low) < 2 and abs(scores[-1] - high) < 0.1 * high
    thirds = [scores[: len(scores) // 3], scores[len(scores) // 3 :][-len(scores) // 3 :]]
    assert 5 * max(thirds[0]) < min(thirds[1])
