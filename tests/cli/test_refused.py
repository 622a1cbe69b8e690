"""What commands refuse, and with which words: ``refused.txt`` (``golden.py``).

Beside each lies run 17, a policy of squared. The exit code is 2, and no file is left.
"""

import contextlib
import io
import re
import shlex
from pathlib import Path

import mlx.core as mx
import numpy as np
from golden import entries, write_toy
from running import ROOT, errors, files

from puffer_mlx import checkpoint, config
from puffer_mlx.cli.main import main
from puffer_mlx.policy.policy import make_policy
from puffer_mlx.spec import ActionSpec, EnvSpec

NAME = "cli/refused.txt"
SPEC = EnvSpec("squared", 121, np.dtype(np.uint8), ActionSpec((5,)))


def prepare() -> None:
    """Run 17."""
    settings = config.load("squared", ["--policy.hidden-size=8", "--policy.num-layers=1"])
    policy = make_policy(SPEC, settings.policy)
    folder, weights = checkpoint.run_folder(settings, "17"), policy.init(mx.random.key(0))
    checkpoint.write_checkpoint(folder, 64, settings, SPEC, policy, weights)


def outcome(given: list[str]) -> str:
    """What is said now on standard output and error, but for what depends on the machine."""
    write_toy(given)
    out, err = io.StringIO(), io.StringIO()
    before = files(Path())
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(shlex.split(given[0][2:]))
    assert code == 2 and files(Path()) == before, (given, out.getvalue())
    text = re.sub(r"this machine has [\d,]+ GB", "this machine has N GB", errors(err.getvalue()))
    return (out.getvalue() + text).rstrip("\n").replace(str(ROOT), "ROOT")


def began(*_, **__):
    raise AssertionError("training began")


def test_each_is_refused_with_these_words(here, monkeypatch):
    monkeypatch.setattr("puffer_mlx.training.rollout_queue.RolloutQueue.start_next", began)
    prepare()
    for given, expected in entries(NAME):
        assert outcome(given) == expected, given


def test_each_is_one_error_with_a_hint():
    for given, expected in entries(NAME):
        assert expected.count("error: ") == 1 and "hint: " in expected, given
