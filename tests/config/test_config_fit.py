"""Numbers that don't fit: those of files are lowered with a note, typed ones are refused."""

from dataclasses import replace
from pathlib import Path

import pytest
from native_envs import RELAY
from running import learned, only, records

from puffer_mlx import config as c
from puffer_mlx.cli import evaluate
from puffer_mlx.config.fit import fit_agents, rollout_threads
from puffer_mlx.errors import UserError

TYPED = "command line"


# ---- buffers and agents --------------------------------------------------------------------------


def sized(N: int, Q: int, typed: str = "") -> c.Config:
    config = c.Config("toy")
    config.vec.total_agents, config.vec.num_buffers = N, Q
    names = {"N": "vec.total_agents", "Q": "vec.num_buffers"}
    config.origins = {name: TYPED if key in typed else "toy.ini:3" for key, name in names.items()}
    return config


@pytest.mark.parametrize(
    ("counts", "N", "Q", "typed", "expected"),
    [
        ([5] * 409, 2048, 2, "", (2040, 2)),  # as in moba
        ([5] * 409, 2045, 2, "N", (2045, 1)),  # fewer groups are enough
        ([5] * 409, 2045, 2, "Q", (2040, 2)),
        ([1, 2, 3, 1, 2, 3], 12, 6, "", (12, 4)),
        ([1, 2, 3, 1, 2, 3], 11, 2, "", (6, 2)),
    ],
)
def test_agents_and_groups_of_a_file_are_lowered_to_whole_environments(
    counts, N, Q, typed, expected
):
    config = sized(N, Q, typed)
    config.train.total_timesteps = 10**6
    config.train.minibatch_size = 64
    config.train.horizon = 8
    fit_agents(config, counts)
    assert (config.vec.total_agents, config.vec.num_buffers) == expected
    assert len(config.notes) == (expected[0] != N) + (expected[1] != Q)
    assert all("(toy.ini:3)" in note and ": lowered to " in note for note in config.notes)


@pytest.mark.parametrize(("algorithm", "agents"), [("puffer4", 4092), ("puffer5", 3840)])
def test_puffer5s_agents_are_lowered_to_whole_minibatches(algorithm, agents):
    config = sized(4096, 2)  # of 3 agents each: in 2 groups a multiple of 6, and of 8192 / 64
    config.train.algorithm = algorithm
    fit_agents(config, [3] * 1366)
    assert (config.vec.total_agents, config.vec.num_buffers) == (agents, 2)
    assert [note.rpartition(": ")[2] for note in config.notes] == [f"lowered to {agents}"]


@pytest.mark.parametrize(
    ("counts", "N", "Q", "typed", "said", "hint"),
    [
        ([5] * 410, 2048, 2, "N", "(command line; toy.ini:3)", "2040 or 2050"),
        ([1, 2, 3], 11, 2, "N", "of 1 to 3 agents don't fill", "total_agents=6"),
    ],
)
def test_agents_that_do_not_fit_are_refused_with_numbers_that_do(counts, N, Q, typed, said, hint):
    config = sized(N, Q, typed)
    before = replace(config.vec)
    with pytest.raises(UserError) as caught:
        fit_agents(config, counts)
    assert said in caught.value.message and hint in caught.value.hint
    assert config.vec == before and config.notes == []


def test_fewer_agents_must_still_be_enough_to_train():
    config = sized(10, 1)
    config.train.minibatch_size = 10 * config.train.horizon
    with pytest.raises(UserError, match=r"train\.minibatch_size 640 is more than an epoch, .* 8 x"):
        fit_agents(config, [4, 4, 4])
    evaluated = sized(10, 1)  # not for an evaluation
    assert evaluated.batch_size < evaluated.train.minibatch_size
    fit_agents(evaluated, [4, 4, 4])
    assert evaluated.vec.total_agents == 8


# ---- environments of one to three agents ---------------------------------------------------------


@pytest.fixture
def relay(here) -> str:
    """Write a configuration file in PufferLib's layout for environments with 1 to 3 agents."""
    for folder in "ocean", "config":
        Path(folder).mkdir()
    Path("ocean/relay").symlink_to(RELAY)
    Path("config/relay.ini").write_text(
        "[base]\nenv_name = relay\ndevice = cpu\n[vec]\ntotal_agents = 46\nnum_buffers = 2.2\n"
        "[env]\nlength = 3\nsleep_ms = 0\n[policy]\nhidden_size = 8\nnum_layers = 1\n"
        "[train]\nhorizon = 8\nminibatch_size = 64\ntotal_timesteps = 2048\n"
    )
    return "config/relay.ini"


def test_a_run_with_lowered_agents_says_so_and_resumes_to_the_bit(relay, script, here, capsys):
    assert script.main([relay]) == 0
    said = "environments of different numbers of agents in 2 groups: lowered to 42\n"
    assert f"46 (config/relay.ini:5) doesn't fit {said}" in capsys.readouterr().out
    steps = [record["agent_steps"] for record in records(here) if "SPS" in record]
    assert steps == [336 * k for k in range(1, 7)]
    whole = [learned(record) for record in records(here)]
    assert "total_agents = 42\n" in only(here, "checkpoints/relay/*/config.ini").read_text()
    again = here / "again"
    again.mkdir()
    more = ["--checkpoint-dir", "again/checkpoints", "--log-dir", "again/logs"]
    assert script.main([relay, *more, "--stop-at", "900"]) == 0
    capsys.readouterr()
    assert script.main([relay, *more[:2], "--resume", "latest"]) == 0
    assert "lowered" not in capsys.readouterr().out
    assert [learned(record) for record in records(again)] == whole
    typed = ["--vec.total-agents", "46"]
    assert script.main([relay, *typed]) == 2
    assert "hint: --vec.total-agents 42" in capsys.readouterr().err
    words = ["--load-model-path", "latest", "--episodes", "6", "--device", "cpu", *typed]
    assert evaluate.main([relay, *words]) == 0  # an evaluation has its own
    assert " episodes, " in capsys.readouterr().out


# ---- threads -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "cores", "expected"),
    [
        ("--vec.num-buffers 8", 16, 16),  # the file's number doesn't count
        ("--vec.num-threads 9", 4, 4),
        # policies that don't act in C: num_threads / num_buffers for each buffer
        ("--train.rollout-device gpu", 16, 2),
        ("--torch.encoder NatureEncoder --vec.num-buffers 4", 16, 4),
    ],
)
def test_only_a_typed_number_of_threads_counts(here, words, cores, expected):
    (here / "toy.ini").write_text("[vec]\nnum_threads = 2\n")
    config = c.load("toy.ini", words.split())
    assert rollout_threads(config, cores) == expected
    c.write_ini(config, here / "again.ini")  # a resumed run has the typed number
    assert rollout_threads(c.load("again.ini"), cores) == expected
