"""`checkpoint.py`: what is written, what is kept, what is found again."""

import os

import mlx.core as mx
import numpy as np
import pytest
from oracles import named

from puffer_mlx import checkpoint
from puffer_mlx.checkpoint import BEST, Keeper, State
from puffer_mlx.config import Base, Config, Policy, Torch
from puffer_mlx.errors import UserError
from puffer_mlx.policy.policy import make_policy
from puffer_mlx.spec import ActionSpec, EnvSpec

SPEC = EnvSpec("squared", 5, np.dtype(np.uint8), ActionSpec((3, 2)), 5)
STATE = State({"key": mx.random.key(5), "recorded": mx.zeros((4, 2, 5), mx.uint8)}, {"epoch": 7})


@pytest.fixture
def config(tmp_path):
    """Of a small policy; checkpoints go to a temporary folder."""
    base = Base(checkpoint_dir=str(tmp_path / "checkpoints"), checkpoint_keep=2)
    return Config("squared", base=base, policy=Policy(hidden_size=8, num_layers=1))


def weights_of(config, seed=0):
    return make_policy(SPEC, config.policy, config.torch).init(mx.random.key(seed))


def write(config, run, step, state: State | None = STATE, spec=SPEC, seed=0):
    policy = make_policy(spec, config.policy, config.torch)
    weights = policy.init(mx.random.key(seed))
    folder = checkpoint.prepare(config, run)
    return checkpoint.write_weights(folder, step, config, spec, policy, weights, state)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


# ---- what is in it -------------------------------------------------------------------------------


def test_a_checkpoint_loads_back(config, tmp_path):
    made = write(config, "17", 262144)
    assert made == tmp_path / "checkpoints" / "squared" / "17" / "0000000000262144"
    assert names(made) == ["config.ini", "state.safetensors", "weights.bin", "weights.safetensors"]
    found = checkpoint.load(made)
    assert (found.config, found.spec, found.step) == (config, SPEC, 262144)
    assert found.policy == make_policy(SPEC, config.policy)
    for (name, w), (_, expected) in zip(
        named(found.weights), named(weights_of(config)), strict=True
    ):
        np.testing.assert_array_equal(np.array(w), np.array(expected), err_msg=name)
    state = checkpoint.load_state(made)
    assert state.numbers == STATE.numbers
    np.testing.assert_array_equal(np.array(state.arrays["key"]), np.array(mx.random.key(5)))
    recorded = checkpoint.recorded(made)
    assert recorded is not None and recorded.shape == (4, 2, 5) and recorded.dtype == mx.uint8


@pytest.mark.parametrize(
    ("policy", "parts", "spec"),
    [
        (Policy(4, 1, "torch"), Torch(), SPEC),
        (Policy(4, 2, "native", True), Torch(network="LSTM"), SPEC),
        (Policy(4, 2), Torch(network="GRU"), SPEC),
        (Policy(4, 1), Torch(network="MLP"), SPEC),
        (
            Policy(4, 1),
            Torch(encoder="ImpalaEncoder"),
            EnvSpec("x", 192, np.dtype(np.uint8), ActionSpec((2,)), 0, (8, 8, 3)),
        ),
    ],
)
def test_every_policy_loads_back_without_its_environment(config, policy, parts, spec):
    """Those that upstream's flat file can't hold have none."""
    config.policy, config.torch = policy, parts
    made = write(config, "1", 5, None, spec)
    assert names(made) == ["config.ini", "weights.safetensors"]
    found = checkpoint.load(made)
    assert found.policy == make_policy(spec, policy, parts) and found.spec == spec
    assert found.config.policy == policy and found.config.torch == parts


def test_weights_alone_are_no_state(config):
    made = write(config, "1", 5, None)
    assert checkpoint.recorded(made) is None
    with pytest.raises(UserError, match="holds only weights") as error:
        checkpoint.load_state(made)
    assert f"--load-model-path {made}" in str(error.value)


def test_a_damaged_checkpoint_is_said(config, tmp_path):
    made = write(config, "1", 5)
    for name in "weights.safetensors", "state.safetensors":
        whole = (made / name).read_bytes()
        (made / name).write_bytes(whole[:-3])
        with pytest.raises(UserError, match=f"{name} can't be read"):
            checkpoint.load(made)
            checkpoint.load_state(made)
        (made / name).write_bytes(whole)
    (made / "config.ini").unlink()
    with pytest.raises(UserError, match=r"has no config\.ini"):
        checkpoint.load(made)


def test_a_folder_that_can_not_be_written(config, tmp_path):
    (tmp_path / "checkpoints").write_text("a file")
    with pytest.raises(UserError, match="can't write"):
        checkpoint.prepare(config, "17")
    assert names(tmp_path) == ["checkpoints"]


def test_writing_again_replaces(config):
    first = write(config, "1", 5, seed=0)
    (first / "left behind").write_text("by something else")
    again = write(config, "1", 5, None, seed=1)
    assert first == again and names(again.parent) == ["0000000000000005", "config.ini"]
    assert "left behind" not in names(again) and "state.safetensors" not in names(again)
    found = dict(named(checkpoint.load(again).weights))["encoder.weight"]
    expected = dict(named(weights_of(config, 1)))["encoder.weight"]
    np.testing.assert_array_equal(np.array(found), np.array(expected))


@pytest.mark.parametrize("at", ["weights.safetensors", "weights.bin", "state.safetensors"])
def test_what_ends_in_the_middle_leaves_nothing(config, monkeypatch, at):
    """Neither half a checkpoint nor a temporary folder, and the one before is still there."""
    before = write(config, "1", 5, seed=0)
    real = os.replace

    def replace(source, target):
        if os.path.basename(target) == at:
            raise OSError(28, "No space left on device")
        real(source, target)

    monkeypatch.setattr(os, "replace", replace)
    for step in 5, 6:
        with pytest.raises(UserError, match="No space left"):
            write(config, "1", step, seed=1)
    monkeypatch.undo()
    assert names(before.parent) == ["0000000000000005", "config.ini"]
    assert len(names(before)) == 4 and checkpoint.load_state(before).numbers == STATE.numbers


# ---- when, and which are kept --------------------------------------------------------------------


def test_rhythm(config):
    config.base.checkpoint_interval, config.train.total_timesteps = 4, 10 * config.batch_size
    assert [e for e in range(10) if checkpoint.is_due(config, e)] == [0, 4, 8, 9]


def keep(config, scores):
    """Save one checkpoint after each list of (score, episodes) records; the folder."""
    policy = make_policy(SPEC, config.policy)
    folder = checkpoint.prepare(config, "1")
    keeper = Keeper(folder, config)
    for step, records in enumerate(scores, 1):
        for score, episodes in records:
            keeper.observe({"env/score": score, "env/perf": -score, "env/n": episodes})
        keeper.observe({"loss/total": 1.0})  # an epoch in which no episode ended
        keeper.save(step, SPEC, policy, policy.init(mx.random.key(step)), STATE)
    return folder


def kept(folder):
    return [int(path.name) for path in checkpoint.checkpoints(folder)]


def test_the_newest_and_the_best_are_kept(config):
    # means: 1, (2 * 1 + 8 * 3) / 4 = 6.5, 5, 6, none
    folder = keep(config, [[(1, 9)], [(2, 1), (8, 3)], [(5, 1)], [(6, 1)], []])
    assert kept(folder) == [2, 4, 5]
    assert os.readlink(folder / BEST) == "0000000000000002"
    assert [path for path in names(folder) if path.startswith(".")] == []


def test_of_equal_scores_the_newer_is_the_best(config):
    assert os.readlink(keep(config, [[(1, 1)], [(1, 1)]]) / BEST) == "0000000000000002"


def test_the_metric_and_its_direction_are_those_of_sweep(config):
    config.sweep = {"sweep": {"metric": "perf", "goal": "minimize"}}  # perf = -score
    folder = keep(config, [[(1, 1)], [(7, 1)], [(5, 1)], [(6, 1)]])
    assert os.readlink(folder / BEST) == "0000000000000002"


def test_0_keeps_all(config):
    config.base.checkpoint_keep = 0
    assert kept(keep(config, [[(s, 1)] for s in (5, 4, 3, 2)])) == [1, 2, 3, 4]


def test_a_resumed_run_knows_the_best(config):
    folder = keep(config, [[(5, 1)]])
    keeper, policy = Keeper(folder, config), make_policy(SPEC, config.policy)
    for step, score in (2, 3.0), (3, 4.0), (4, 2.0):
        keeper.observe({"env/score": score, "env/n": 1.0})
        keeper.save(step, SPEC, policy, policy.init(mx.random.key(step)), STATE)
    assert kept(folder) == [1, 3, 4]


# ---- finding -------------------------------------------------------------------------------------


def test_finding(config, tmp_path):
    with pytest.raises(UserError, match="no checkpoint") as caught:
        checkpoint.find("latest", config)
    assert str(tmp_path / "checkpoints" / "squared") in str(caught.value)

    made = [write(config, run, steps) for run, steps in (("1", 900), ("2", 1000), ("1", 1100))]
    for age, path in enumerate(made):
        for name in "weights.safetensors", "state.safetensors":
            os.utime(path / name, ns=(10**18, 10**18 - age))  # the first one is the newest
    one, two = made[0].parent, made[1].parent
    assert checkpoint.find("latest", config) == made[0]
    assert checkpoint.find("1", config) == checkpoint.find(str(one), config) == made[2]
    assert checkpoint.find(str(two), config) == made[1]
    assert checkpoint.find(str(made[0]), config) == made[0]
    assert checkpoint.find_weights("latest", config) == made[0] / "weights.safetensors"
    assert checkpoint.find_weights(str(made[0] / "weights.bin"), config) == made[0] / "weights.bin"

    (one / BEST).symlink_to(made[0].name)
    assert checkpoint.find(str(one / BEST), config) == made[0]

    with pytest.raises(UserError, match="no checkpoint in 3") as caught:
        checkpoint.find("3", config)
    assert "runs there are: 1, 2" in str(caught.value)
    with pytest.raises(UserError, match="no checkpoint"):
        checkpoint.find("latest", Config("breakout", base=config.base))


def test_only_a_checkpoint_with_state_is_found_for_going_on(config):
    whole = write(config, "1", 900)
    write(config, "1", 1000, None)
    assert checkpoint.find("1", config).name.endswith("1000")
    assert checkpoint.find("1", config, checkpoint.STATE) == whole
    assert checkpoint.find("latest", config, checkpoint.STATE) == whole


def test_what_a_killed_run_left_is_no_checkpoint(config):
    made = write(config, "1", 5)
    half = made.parent / f".{made.name}-abc"
    half.mkdir()
    (half / "weights.safetensors").write_bytes(b"half")
    empty = made.parent / "0000000000000009"
    empty.mkdir()
    assert checkpoint.find("latest", config) == checkpoint.find("1", config) == made
