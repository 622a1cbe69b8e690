"""The code in docs/ runs."""

import re
import subprocess
import sys

import pytest
from running import ROOT, TINY, only, records, run

TEXT = (ROOT / "docs" / "custom_policy.md").read_text()
FILE, NETWORK, COMPOSED = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
COMMANDS = re.findall(r"^python scripts/train\.py breakout (.*)$", TEXT, re.MULTILINE)


@pytest.fixture
def folder(here):
    (here / "blocks.py").write_text(FILE)
    (here / "leaky.py").write_text(NETWORK)
    return here


def test_a_custom_policy_takes_thirty_lines():
    assert len(FILE.splitlines()) <= 30 and len(NETWORK.splitlines()) <= 30


@pytest.mark.parametrize("words", COMMANDS)
def test_the_commands_of_custom_policy_train(folder, words):
    done = run("train", *TINY, *words.split(), "--checkpoint-interval", 2, cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    whole = records(folder)
    last = sorted(folder.glob("checkpoints/squared/*/0*"))[-2]
    done = run("train", "squared", "--resume", last, cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    losses = [[record.get("loss/total") for record in log] for log in (whole, records(folder))]
    assert losses[0] == losses[1] and len(losses[0]) > 4
    assert not (only(folder, "checkpoints/squared/*") / last.name / "weights.bin").exists()


def test_the_composition_in_custom_policy_trains(folder):
    code = COMPOSED.replace('"1_000_000"', '"2048", "--vec.total-agents", "16"').replace(
        '"--train.total-timesteps"', '"--train.minibatch-size", "512", "--train.total-timesteps"'
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["1024", "2048"]
