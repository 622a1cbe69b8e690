"""Checkpoints of a run: what is written, what is kept, what is found again."""

import os

import mlx.core as mx
import numpy as np
import pytest
from oracles import named
from running import loaded

from puffer_mlx import checkpoint
from puffer_mlx.checkpoint import BEST, CheckpointManager, State, branches
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
    return checkpoint.write_checkpoint(folder, step, config, spec, policy, weights, state)


def as_older_versions_wrote(made, at=None):
    """A checkpoint without records of branches, times, steps and checksums."""
    kept = {"weights": ("puffer_mlx", "spec", "score"), "state": ["numbers"]}
    for name, keys in ((f"{part}.safetensors", keys) for part, keys in kept.items()):
        arrays, metadata = loaded(made / name)
        mx.save_safetensors(str(made / name), arrays, {key: metadata[key] for key in keys})
        if at is not None:
            os.utime(made / name, ns=(10**18, at))
    return made


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
        (Policy(4, 2, "native", True), Torch(network="LSTM"), SPEC),
        (Policy(4, 2), Torch(network="GRU"), SPEC),
        (Policy(4, 1, "sb3", activation="relu"), Torch(network="MLP"), SPEC),
        (Policy(4, 2, separate_value=True), Torch(), SPEC),
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


def test_a_state_of_another_configuration():
    counters = {"epoch": 1, "global_step": 8, "uptime": 0.0}
    of_int = {"network.0": mx.zeros(2, mx.int32)}
    for arrays, said in (
        ({}, r"network\.0: missing, expected \(2,\)"),
        ({"network.0": mx.zeros(3)}, r"network\.0: \(3,\), expected \(2,\)"),
        (of_int, r"network\.0: mlx\.core\.int32, expected mlx\.core\.float32"),
    ):
        with pytest.raises(UserError, match=said):
            State(arrays, counters).taken({"network": [mx.zeros(2)]})


def test_writing_again_replaces(config):
    first = write(config, "1", 5, seed=0)
    (first / "left behind").write_text("by something else")
    again = write(config, "1", 5, None, seed=1)
    assert first == again and names(again.parent) == ["0000000000000005", "config.ini"]
    assert "left behind" not in names(again) and "state.safetensors" not in names(again)
    found = dict(named(checkpoint.load(again).weights))["encoder.weight"]
    expected = dict(named(weights_of(config, 1)))["encoder.weight"]
    np.testing.assert_array_equal(np.array(found), np.array(expected))


@pytest.mark.parametrize("at", ["weights.safetensors", "state.safetensors"])
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
    due = lambda: [e for e in range(10) if checkpoint.is_due(config, e)]  # noqa: E731
    assert due() == [0, 4, 8, 9]  # 4.0 counts from 0
    config.train.algorithm = "puffer5"
    assert due() == [3, 7, 9]  # 5.0 from 1
    config.base.checkpoint_interval = 0
    assert due() == [9]
    config.train.algorithm = "puffer4"
    assert due() == [9]


def keep(config, scores):
    """Save one checkpoint after each list of (score, episodes) records; the folder."""
    policy = make_policy(SPEC, config.policy)
    folder = checkpoint.prepare(config, "1")
    keeper = CheckpointManager(folder, config)
    for step, records in enumerate(scores, 1):
        for score, episodes in records:
            keeper.observe({"env/score": score, "env/perf": -score, "env/n": episodes})
        keeper.observe({"loss/total": 1.0})  # an epoch in which no episode ended
        keeper.save(step, SPEC, policy, policy.init(mx.random.key(step)), STATE)
    return folder


def save(keeper, config, step, score=None, state: State | None = STATE):
    """Another checkpoint, of the score that an epoch had."""
    policy = make_policy(SPEC, config.policy)
    if score is not None:
        keeper.observe({"env/score": score, "env/n": 1.0})
    return keeper.save(step, SPEC, policy, policy.init(mx.random.key(step)), state)


def kept(folder):
    return [int(one.folder.name) for one in branches.checkpoints(folder)]


def test_a_rating_is_told_in_epochs_without_an_episode_too(config):
    """(1 x 3 + 4) / (3 + 1) = 1.75: such an epoch counts as one episode."""
    config.sweep = {"sweep": {"metric": "elo"}}
    policy = make_policy(SPEC, config.policy)
    keeper = CheckpointManager(checkpoint.prepare(config, "1"), config)
    keeper.observe({"env/elo": 1.0, "env/n": 3.0})
    keeper.observe({"env/elo": 4.0})
    made = keeper.save(1, SPEC, policy, policy.init(mx.random.key(1)), STATE)
    label = branches.checkpoint_info(made)
    assert label is not None and label.score == 1.75


def test_the_newest_and_the_best_are_kept(config):
    # means: 1, (2 * 1 + 8 * 3) / 4 = 6.5, 5, 6, none
    folder = keep(config, [[(1, 9)], [(2, 1), (8, 3)], [(5, 1)], [(6, 1)], []])
    assert kept(folder) == [2, 4, 5]
    assert os.readlink(folder / BEST) == "0000000000000002"
    assert [path for path in names(folder) if path.startswith(".")] == []


def test_the_metric_and_its_direction_are_those_of_sweep(config):
    config.sweep = {"sweep": {"metric": '"env/perf"', "goal": "'minimize'"}}  # perf = -score
    folder = keep(config, [[(7, 1)], [(7, 1)], [(5, 1)], [(6, 1)]])  # of equal ones the newer
    assert os.readlink(folder / BEST) == "0000000000000002"


@pytest.mark.parametrize("interval", [0, 8])
def test_the_best_is_chosen_by_a_number_of_training(config, interval):
    """Evaluations don't report it."""
    config.sweep = {"sweep": {"metric": "loss/total", "goal": "minimize"}}
    config.base.eval_interval = interval
    keeper, policy = (
        CheckpointManager(checkpoint.prepare(config, "1"), config),
        make_policy(SPEC, config.policy),
    )
    for step, loss in (1, 3.0), (2, 1.0), (3, 2.0):
        keeper.observe({"agent_steps": step, "loss/total": loss, "env/score": 0.0})
        keeper.save(step, SPEC, policy, policy.init(mx.random.key(step)), STATE)
    assert os.readlink(keeper.folder / BEST) == "0000000000000002"


def test_the_best_is_chosen_by_the_name_that_PufferLib_3_has(config):
    config.sweep = {"sweep": {"metric": "environment/perf"}}  # perf = -score
    folder = keep(config, [[(7, 1)], [(5, 1)], [(6, 1)]])
    assert os.readlink(folder / BEST) == "0000000000000002"


def test_a_resumed_run_knows_the_best(config):
    folder = keep(config, [[(5, 1)]])
    keeper, policy = CheckpointManager(folder, config), make_policy(SPEC, config.policy)
    for step, score in (2, 3.0), (3, 4.0), (4, 2.0):
        keeper.observe({"env/score": score, "env/n": 1.0})
        keeper.save(step, SPEC, policy, policy.init(mx.random.key(step)), STATE)
    assert kept(folder) == [1, 3, 4]


def test_a_score_that_is_no_number_is_none(config):
    folder = keep(config, [[(1, 1)], [(np.nan, 1)], [(0.5, 1)], [(-np.inf, 1), (9, 1)]])
    assert os.readlink(folder / BEST) == "0000000000000001"
    for made, *_ in branches.checkpoints(folder):
        metadata = loaded(made / "weights.safetensors")[1]
        assert metadata["score"] in ("1.0", "0.5", "null")


def test_a_best_that_is_no_number_goes(config):
    """One that an older version made, in a run that goes on."""
    folder = checkpoint.prepare(config, "1")
    made = save(CheckpointManager(folder, config), config, 1)
    arrays, metadata = loaded(made / "weights.safetensors")
    metadata = {"spec": metadata["spec"], "score": "NaN"}
    mx.save_safetensors(str(made / "weights.safetensors"), arrays, metadata)
    (folder / BEST).symlink_to(made.name)
    keeper = CheckpointManager(folder, config, made)
    save(keeper, config, 2)
    assert not (folder / BEST).is_symlink()
    save(keeper, config, 3, score=-5.0)
    assert os.readlink(folder / BEST) == "0000000000000003"


# ---- branches ------------------------------------------------------------------------------------


def test_what_is_abandoned_goes_first(config):
    config.base.checkpoint_keep = 4
    folder = keep(config, [[(s, 1)] for s in (1, 2, 3, 4)])
    keeper = CheckpointManager(folder, config, folder / f"{2:016d}")
    made = save(keeper, config, 3, score=0.0)  # in the place of the abandoned one
    assert kept(folder) == [4, 1, 2, 3]
    assert checkpoint.find("1", config) == checkpoint.find("latest", config) == made
    assert os.readlink(folder / BEST) == f"{2:016d}"
    for step, expected in (7, [1, 2, 3, 7]), (8, [2, 3, 7, 8]):
        save(keeper, config, step)
        assert kept(folder) == expected


def test_back_to_an_abandoned_branch(config):
    config.base.checkpoint_keep = 0
    folder = keep(config, [[(s, 1)] for s in (1, 2, 3)])
    save(CheckpointManager(folder, config, folder / f"{1:016d}"), config, 9, score=0.0)
    assert kept(folder) == [2, 3, 1, 9] and os.readlink(folder / BEST) == f"{1:016d}"
    save(CheckpointManager(folder, config, folder / f"{3:016d}"), config, 4)
    assert kept(folder) == [9, 1, 2, 3, 4] and os.readlink(folder / BEST) == f"{3:016d}"


def test_weights_that_no_run_can_go_on_from_are_abandoned_by_going_on(config):
    """What a failed run leaves last: the run goes on from the checkpoint before."""
    config.base.checkpoint_keep = 0
    folder = keep(config, [[(1, 1)], [(2, 1)]])
    save(CheckpointManager(folder, config), config, 3, state=None)
    assert checkpoint.find("1", config).name == f"{3:016d}"
    found = checkpoint.find("1", config, checkpoint.STATE)
    assert found.name == f"{2:016d}"
    made = save(CheckpointManager(folder, config, found), config, 5)
    assert kept(folder) == [3, 1, 2, 5] and checkpoint.find("1", config) == made


def test_saved_without_saying_what_it_goes_on_from(config):
    """From Python: fewer steps than there are begin a branch at the last checkpoint before."""
    for steps in 10, 20, 30, 15, 40:
        write(config, "1", steps)
    folder = checkpoint.run_folder(config, "1")
    assert kept(folder) == [20, 30, 10, 15, 40]
    write(config, "1", 5)
    assert kept(folder)[-1] == 5 and len(kept(folder)) == 6


def test_a_damaged_checkpoint_is_no_obstacle_to_saving(config):
    folder = keep(config, [[(1, 1)], [(2, 1)]])
    for name in "weights.safetensors", "state.safetensors":
        (folder / f"{1:016d}" / name).write_bytes(b"damaged")
    save(CheckpointManager(folder, config), config, 3)
    assert kept(folder) == [2, 3]


# ---- links --------------------------------------------------------------------------------------


def move(folder, to):
    """Move a folder elsewhere, and link it back."""
    to.mkdir(exist_ok=True)
    moved = folder.rename(to / folder.name)
    folder.symlink_to(moved)
    return moved


def test_a_checkpoint_that_was_moved_and_linked_back_is_one(config, tmp_path):
    folder = keep(config, [[(s, 1)] for s in (1, 2)])
    newest = folder / f"{2:016d}"
    move(newest, tmp_path / "disk")
    assert kept(folder) == [1, 2]
    for name in ("latest", "1", str(folder), str(newest), str(folder / BEST)):
        assert checkpoint.find(name, config, checkpoint.STATE) == newest
    assert checkpoint.load(newest).step == 2
    made = save(CheckpointManager(folder, config, newest), config, 3, score=9.0)
    assert checkpoint.find("latest", config) == made and kept(folder) == [2, 3]


def test_of_a_linked_checkpoint_only_the_link_is_removed(config, tmp_path):
    folder = keep(config, [[(s, 1)] for s in (1, 2)])
    moved = move(folder / f"{1:016d}", tmp_path / "disk")
    save(CheckpointManager(folder, config), config, 3, score=9.0)
    assert kept(folder) == [2, 3] and len(names(moved)) == 4


def test_a_checkpoint_is_written_in_the_place_of_a_link(config, tmp_path):
    folder = keep(config, [[(s, 1)] for s in (1, 2)])
    moved = move(folder / f"{2:016d}", tmp_path / "disk")
    made = save(CheckpointManager(folder, config, folder / f"{1:016d}"), config, 2)
    assert not made.is_symlink() and len(names(moved)) == 4
    assert checkpoint.find("latest", config) == made


@pytest.mark.parametrize("levels", [0, 1, 2])
def test_folders_above_may_be_links(config, tmp_path, levels):
    """The run's, the environment's and all of them."""
    folder = keep(config, [[(1, 1)]])
    move([folder, *folder.parents][levels], tmp_path / "disk")
    made = folder / f"{1:016d}"
    assert checkpoint.find("latest", config, checkpoint.STATE) == made
    save(CheckpointManager(folder, config, made), config, 2)
    assert kept(folder) == [1, 2]


def test_a_newest_checkpoint_that_cannot_be_reached_is_named(config, tmp_path):
    folder = keep(config, [[(s, 1)] for s in (1, 2)])
    moved = move(folder / f"{2:016d}", tmp_path / "disk")
    moved.rename(tmp_path / "not mounted")
    for name in ("latest", "1"):
        with pytest.raises(UserError, match=rf"{2:016d} is a link to {moved}, which isn't there"):
            checkpoint.find(name, config)
    assert checkpoint.find(str(folder / f"{1:016d}"), config) == folder / f"{1:016d}"


def test_an_older_checkpoint_that_cannot_be_reached_is_no_obstacle(config, tmp_path):
    folder = keep(config, [[(s, 1)] for s in (1, 2)])
    move(folder / f"{1:016d}", tmp_path / "disk").rename(tmp_path / "not mounted")
    made = save(CheckpointManager(folder, config), config, 3, score=9.0)
    assert checkpoint.find("latest", config) == made


def test_a_run_that_cannot_be_reached_may_be_the_newest(config, tmp_path):
    write(config, "1", 5)
    moved = move(write(config, "2", 5).parent, tmp_path / "disk")
    moved.rename(tmp_path / "not mounted")
    with pytest.raises(UserError, match=rf"2 is a link to {moved}, which isn't there"):
        checkpoint.find("latest", config)
    assert checkpoint.find("1", config).name == f"{5:016d}"


def test_a_best_that_is_a_copy_is_named_before_training(config):
    """``cp -L`` and some archives make folders of links."""
    folder = keep(config, [[(s, 1)] for s in (1, 2)])
    (folder / BEST).unlink()
    (folder / f"{1:016d}").rename(folder / BEST)
    with pytest.raises(UserError, match="best is a folder, expected a link") as caught:
        CheckpointManager(folder, config)
    assert f"rename it to {1:016d}" in caught.value.hint


def test_a_checkpoint_dir_on_a_disk_that_is_not_mounted(config, tmp_path):
    (tmp_path / "checkpoints").symlink_to("disk")
    with pytest.raises(UserError, match=r"can't write .*: File exists") as caught:
        checkpoint.prepare(config, "1")
    assert "checkpoints is a link to disk, which isn't there" in caught.value.hint
    with pytest.raises(UserError, match=r"checkpoints is a link to .*disk, which isn't there"):
        checkpoint.find("latest", config)


# ---- finding -------------------------------------------------------------------------------------


def test_finding(config, tmp_path):
    with pytest.raises(UserError, match="no checkpoint") as caught:
        checkpoint.find("latest", config)
    assert str(tmp_path / "checkpoints" / "squared") in str(caught.value)

    made = [write(config, run, steps) for run, steps in (("1", 900), ("2", 1000), ("1", 1100))]
    one, two = made[0].parent, made[1].parent
    assert checkpoint.find("latest", config) == made[2]
    assert checkpoint.find("1", config) == checkpoint.find(str(one), config) == made[2]
    assert checkpoint.find(str(two), config) == made[1]
    assert checkpoint.find(str(made[0]), config) == made[0]
    assert checkpoint.find_weights("latest", config) == made[2] / "weights.safetensors"
    assert checkpoint.find_weights(str(made[0] / "weights.bin"), config) == made[0] / "weights.bin"

    (one / BEST).symlink_to(made[0].name)
    assert checkpoint.find(str(one / BEST), config) == made[0]

    with pytest.raises(UserError, match="no checkpoint in 3") as caught:
        checkpoint.find("3", config)
    home = tmp_path / "checkpoints" / "squared"
    assert f"no checkpoint in 3: neither 3 nor {home / '3'} is a folder" in str(caught.value)
    assert "runs there are: 1, 2" in str(caught.value)
    with pytest.raises(UserError, match="no run yet; of others there are squared/1, squared/2"):
        checkpoint.find("3", Config("breakout", base=config.base))
    with pytest.raises(UserError, match="no checkpoint"):
        checkpoint.find("latest", Config("breakout", base=config.base))


def test_times_of_files_do_not_say_which_is_the_latest(config, tmp_path):
    """``cp -r`` gives every file the time of copying, in any order."""
    made = [write(config, run, steps) for run, steps in (("2", 900), ("1", 64), ("1", 128))]
    for age, path in enumerate(made):
        for name in "weights.safetensors", "state.safetensors":
            os.utime(path / name, ns=(10**18, 10**18 - age))  # the first one is the newest
    assert checkpoint.find("latest", config) == made[2]
    assert checkpoint.find("latest", config, checkpoint.STATE) == made[2]


def test_of_older_versions_the_times_of_files_say_which_run_is_the_newest(config):
    made = [write(config, run, steps) for run, steps in (("1", 64), ("1", 128), ("2", 900))]
    for age, path in enumerate(made):
        as_older_versions_wrote(path, 10**18 - age)
    assert checkpoint.find("latest", config) == made[1]  # the furthest of the run
    assert checkpoint.find("latest", config, checkpoint.STATE) == made[1]
    found = checkpoint.load(made[1])
    assert found.step == 128 and checkpoint.load_state(made[1]).numbers == STATE.numbers
    newer = write(config, "1", 192)
    assert checkpoint.find("latest", config) == newer


def test_names_that_can_not_be_looked_at(config):
    (write(config, "1", 5) / "config.ini").unlink()
    for path in "", " ":
        with pytest.raises(UserError, match="the text is empty"):
            checkpoint.find(path, config)
    for find in checkpoint.find, checkpoint.find_weights:
        with pytest.raises(UserError, match="File name too long") as caught:
            find("x" * 5000, config)
        assert len(str(caught.value)) < 500
    with pytest.raises(UserError, match=r"has no config\.ini"):
        checkpoint.load(checkpoint.find("1", config))


@pytest.mark.skipif(not hasattr(os, "seteuid"), reason="no users")
@pytest.mark.parametrize(
    ("path", "locked"), [("latest", "."), ("latest", "1/0000000000000005"), ("1", "1")]
)
def test_a_folder_that_may_not_be_read(config, path, locked):
    """As another user, if this is root, who may read everything."""
    write(config, "1", 5)
    runs = checkpoint.run_folder(config, "1").parent
    folder = runs / locked
    folder.chmod(0)
    before = os.geteuid()
    shut = [above for above in folder.parents if above.stat().st_mode & 0o111 != 0o111]
    modes = [above.stat().st_mode for above in shut]
    try:
        if before == 0:
            for above, mode in zip(shut, modes, strict=True):
                above.chmod(mode | 0o111)
            os.seteuid(65534)
        with pytest.raises(UserError, match=r"can't read .*Permission denied"):
            checkpoint.load(checkpoint.find(path, config))
    finally:
        os.seteuid(before)
        folder.chmod(0o755)
        for above, mode in zip(shut, modes, strict=True):
            above.chmod(mode)


def test_what_a_killed_run_left_is_no_checkpoint(config):
    made = write(config, "1", 5)
    half = made.parent / f".{made.name}-abc"
    half.mkdir()
    (half / "weights.safetensors").write_bytes(b"half")
    empty = made.parent / "0000000000000009"
    empty.mkdir()
    assert checkpoint.find("latest", config) == checkpoint.find("1", config) == made
