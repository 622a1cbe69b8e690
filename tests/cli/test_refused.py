"""Messages of commands that refuse their words: ``messages.txt`` (``golden.py``).

The working directory has run 17, a policy of squared. The exit code is 2, and no file is left.
"""

import contextlib
import io
import re
import shlex
from pathlib import Path

import mlx.core as mx
import numpy as np
from golden import entries, placed, write_toy, written
from running import errors, files

from puffer_mlx import checkpoint, config
from puffer_mlx.cli.main import main
from puffer_mlx.policy.policy import make_policy
from puffer_mlx.spec import ActionSpec, EnvSpec

SPEC = EnvSpec("squared", 121, np.dtype(np.uint8), ActionSpec((5,)))


def prepare() -> None:
    """Save a checkpoint of run 17, which the refused command lines name."""
    settings = config.load("squared", ["--policy.hidden-size=8", "--policy.num-layers=1"])
    policy = make_policy(SPEC, settings.policy)
    folder = checkpoint.run_folder(settings, "17")
    weights = policy.init(mx.random.key(0))
    checkpoint.write_checkpoint(folder, 64, settings, SPEC, policy, weights)


def outcome(given: str) -> str:
    """Run a command line in this process; return its standard output and error."""
    write_toy(given)
    before = files(Path())
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(shlex.split(written(given)))
    text = re.sub(r"this machine has [\d,]+ GB", "this machine has N GB", errors(err.getvalue()))
    if code != 2:
        text += f"exit code {code}\n"
    if new := files(Path()) - before:
        text += f"files {new}\n"
    return placed((out.getvalue() + text).rstrip("\n"))


def test_commands_refuse_wrong_words_with_these_messages(here, monkeypatch):
    def begin(*_, **__):
        raise AssertionError("training began")

    monkeypatch.setattr("puffer_mlx.training.rollout_queue.RolloutQueue.start_next", begin)
    prepare()
    expected = entries("$")
    assert {given: outcome(given) for given in expected} == expected


def test_every_message_is_one_error_with_a_hint():
    for given, said in entries("$").items():
        assert said.count("error: ") == 1 and "hint: " in said, given
