"""Checkpoints of a run: their contents, which ones are kept, and how they are found."""

import itertools
import os
import tempfile
from typing import NamedTuple

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from oracles import same
from running import loaded

from puffer_mlx import checkpoint
from puffer_mlx.checkpoint import BEST, CheckpointManager, SavedState, branches
from puffer_mlx.config import Base, Config, Policy, Torch
from puffer_mlx.errors import UserError
from puffer_mlx.policy.policy import make_policy
from puffer_mlx.spec import ActionSpec, EnvSpec
from puffer_mlx.tracking.scores import MEAN_SCORE

SPEC = EnvSpec("squared", 5, np.dtype(np.uint8), ActionSpec((3, 2)), 5)
STATE = SavedState(
    {"key": mx.random.key(5), "recorded": mx.zeros((4, 2, 5), mx.uint8)}, {"epoch": 7}
)


@pytest.fixture
def config(tmp_path):
    """Return the configuration of a small policy, with a temporary folder for checkpoints."""
    base = Base(checkpoint_dir=str(tmp_path / "checkpoints"), checkpoint_keep=2)
    return Config("squared", base=base, policy=Policy(hidden_size=8, num_layers=1))


def weights_of(config, seed=0):
    return make_policy(SPEC, config.policy, config.torch).init(mx.random.key(seed))


def write(config, run, step, state: SavedState | None = STATE, spec=SPEC, seed=0):
    policy = make_policy(spec, config.policy, config.torch)
    weights = policy.init(mx.random.key(seed))
    folder = checkpoint.prepare_run_folder(config, run)
    return checkpoint.write_checkpoint(folder, step, config, spec, policy, weights, state)


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
    assert same(found.weights, weights_of(config))
    state = checkpoint.load_state(made)
    assert state.values == STATE.values
    np.testing.assert_array_equal(np.array(state.arrays["key"]), np.array(mx.random.key(5)))
    recorded = checkpoint.recorded(made)
    assert recorded is not None and recorded.shape == (4, 2, 5) and recorded.dtype == mx.uint8


@pytest.mark.parametrize(
    ("policy", "parts", "spec"),
    [
        (Policy(4, 2, "native", True), Torch(network="LSTM"), SPEC),
        (Policy(4, 1, "sb3", separate_value=True, activation="relu"), Torch(network="MLP"), SPEC),
        (
            Policy(4, 1),
            Torch(encoder="ImpalaEncoder"),
            EnvSpec("x", 192, np.dtype(np.uint8), ActionSpec((2,)), 0, (8, 8, 3)),
        ),
    ],
)
def test_every_policy_loads_back_without_its_environment(config, policy, parts, spec):
    config.policy, config.torch = policy, parts
    made = write(config, "1", 5, None, spec)
    assert names(made) == ["config.ini", "weights.safetensors"]  # no flat file can hold them
    found = checkpoint.load(made)
    assert found.policy == make_policy(spec, policy, parts) and found.spec == spec
    assert found.config.policy == policy and found.config.torch == parts


def test_a_checkpoint_of_weights_alone_cannot_be_resumed(config):
    made = write(config, "1", 5, None)
    assert checkpoint.recorded(made) is None
    with pytest.raises(UserError, match="holds only weights") as error:
        checkpoint.load_state(made)
    assert f"--load-model-path {made}" in str(error.value)


def test_a_state_of_another_configuration_is_refused():
    counters = {"epoch": 1, "global_step": 8, "uptime": 0.0}
    arrays = {"network.1": mx.zeros(3), "network.2": mx.zeros(2, mx.int32)}
    with pytest.raises(UserError) as caught:
        SavedState(arrays, counters).matching_trees({"network": [mx.zeros(2)] * 3})
    for message in (
        "network.0: missing, expected (2,)",
        "network.1: (3,), expected (2,)",
        "network.2: mlx.core.int32, expected mlx.core.float32",
    ):
        assert message in str(caught.value)


def test_writing_a_checkpoint_again_replaces_all_its_files(config):
    first = write(config, "1", 5, seed=0)
    (first / "left behind").write_text("by something else")
    again = write(config, "1", 5, None, seed=1)
    assert first == again and names(again.parent) == ["0000000000000005", "config.ini"]
    assert names(again) == ["config.ini", "weights.bin", "weights.safetensors"]
    assert same(checkpoint.load(again).weights, weights_of(config, 1))


def test_a_failed_write_leaves_the_earlier_checkpoint_and_nothing_else(config, monkeypatch):
    before = write(config, "1", 5, seed=0)
    real = os.replace

    def replace(source, target):
        if os.path.basename(target) == "state.safetensors":
            raise OSError(28, "No space left on device")
        real(source, target)

    monkeypatch.setattr(os, "replace", replace)
    for step in 5, 6:
        with pytest.raises(UserError, match="No space left"):
            write(config, "1", step, seed=1)
    monkeypatch.undo()
    assert names(before.parent) == ["0000000000000005", "config.ini"]
    assert len(names(before)) == 4 and checkpoint.load_state(before).values == STATE.values


# ---- when, and which are kept --------------------------------------------------------------------


def test_checkpoints_are_due_at_each_interval_and_at_the_end(config):
    config.train.total_timesteps = 10 * config.batch_size

    def due(algorithm: str, interval: int) -> list[int]:
        config.train.algorithm = algorithm
        config.base.checkpoint_interval = interval
        return [epoch for epoch in range(10) if checkpoint.is_checkpoint_due(config, epoch)]

    assert due("puffer4", 4) == [0, 4, 8, 9]  # 4.0 counts from 0
    assert due("puffer5", 4) == [3, 7, 9]  # 5.0 from 1
    assert due("puffer4", 0) == due("puffer5", 0) == [9]


def save(keeper, config, step, score=None, state: SavedState | None = STATE):
    """Save a checkpoint at a step after reporting an epoch's score; return its folder."""
    policy = make_policy(SPEC, config.policy)
    if score is not None:
        keeper.observe({"env/score": score, "env/n": 1.0})
    return keeper.save(step, SPEC, policy, policy.init(mx.random.key(step)), state)


def keep(config, scores):
    """Save a checkpoint after each epoch's scores or records; return the run's folder."""
    folder = checkpoint.prepare_run_folder(config, "1")
    keeper = CheckpointManager(folder, config)
    for step, records in enumerate(scores, 1):
        for record in records:
            keeper.observe(record if isinstance(record, dict) else of(record))
        keeper.observe({"agent_steps": 0, "loss/clipfrac": 1.0})  # no episode ended
        save(keeper, config, step)
    return folder


def of(score, episodes=1.0):
    """Return an epoch's record with a score and a number of episodes; perf is -score."""
    return {"agent_steps": 0, "env/score": score, "env/perf": -score, "env/n": episodes}


def kept(folder):
    return [int(one.folder.name) for one in branches.list_checkpoints(folder)]


LOSSES = [[{"agent_steps": 0, "loss/total": loss, "env/score": 0.0}] for loss in (3.0, 1.0, 2.0)]
BEST_OF = {  # [sweep], records before each checkpoint, the best checkpoint and its score
    "mean over episodes": ({}, [[of(1, 9)], [of(2, 1), of(8, 3)], [of(5)]], 2, 6.5),
    "goal, 3.0's name, two equal": (
        {"metric": "environment/perf", "goal": "minimize"},
        [[of(7)], [of(7)], [of(5)]],
        2,
        -7.0,
    ),
    "a training metric": ({"metric": "loss/total", "goal": "minimize"}, LOSSES, 2, 1.0),
    "the last 100 episodes": (
        {},
        [[of(1) | {MEAN_SCORE: 5.0}], [of(99) | {MEAN_SCORE: 4.0}], [of(0) | {MEAN_SCORE: 6.0}]],
        3,
        6.0,
    ),
    "not finite": ({}, [[of(1)], [of(np.nan)], [of(-np.inf), of(9)], [of(0.5)]], 1, 1.0),
}


@pytest.mark.parametrize("case", BEST_OF)
def test_best_links_to_the_checkpoint_with_the_best_score(config, case):
    sweep, records, best, score = BEST_OF[case]
    config.sweep = {"sweep": sweep}
    config.base.eval_interval = 8 if case == "a training metric" else 0
    folder = keep(config, records)
    assert os.readlink(folder / BEST) == f"{best:016d}"
    assert branches.score_of(folder / BEST) == score
    assert [path for path in names(folder) if path.startswith(".")] == []


# ---- branches ------------------------------------------------------------------------------------


class Saved(NamedTuple):
    """A checkpoint as the test's model stores it: the saves that led to it, and its score.

    ``path``: (step, count of saves) of each.
    """

    path: tuple[tuple[int, int], ...]
    score: int | None


class Run:
    """A run that saves checkpoints and resumes from any of them, compared with a simple model.

    The model stores entire paths.
    """

    def __init__(self, root: str, most: int) -> None:
        base = Base(checkpoint_dir=root, checkpoint_keep=most)
        self.config = Config("squared", base=base, policy=Policy(hidden_size=2, num_layers=1))
        self.folder = checkpoint.prepare_run_folder(self.config, "1")
        self.manager = CheckpointManager(self.folder, self.config)
        self.saved: dict[int, Saved] = {}  # by step, as folders are named
        self.path: tuple[tuple[int, int], ...] = ()
        self.count = 0

    def resume(self, index: int) -> None:
        steps = sorted(self.saved)
        step = steps[index % len(steps)]
        self.path = self.saved[step].path
        self.manager = CheckpointManager(self.folder, self.config, self.folder / f"{step:016d}")

    def save(self, steps: int, score: int | None) -> None:
        step = steps + (self.path[-1][0] if self.path else 0)
        self.count += 1
        self.path = (*self.path, (step, self.count))
        made = save(self.manager, self.config, step, score)
        self.saved[step] = Saved(self.path, score)
        ancestors = [s for s, one in self.saved.items() if self.path[: len(one.path)] == one.path]
        assert checkpoint.find_checkpoint("latest", self.config) == made
        self.check_best(ancestors)
        self.check_removed(ancestors)
        found = kept(self.folder)
        newer = [step for step in found if step in ancestors]
        assert found[-len(newer) :] == sorted(newer)  # abandoned ones come first

    def check_best(self, ancestors: list[int]) -> None:
        link = self.folder / BEST
        scores = [(self.saved[s].score, s) for s in ancestors if self.saved[s].score is not None]
        self.best = int(os.readlink(link)) if link.is_symlink() else None
        assert self.best == (max(scores)[1] if scores else None)

    def check_removed(self, ancestors: list[int]) -> None:
        most = self.config.base.checkpoint_keep
        left = set(kept(self.folder))
        removed = self.saved.keys() - left
        assert left <= self.saved.keys() and {self.path[-1][0], self.best} - {None} <= left
        assert not removed if most == 0 else min(most, len(self.saved)) <= len(left) <= most + 1
        if removed & {*ancestors}:  # only after all abandoned ones, and the old ones first
            assert left - {self.best} <= {*ancestors}
            assert max(removed & {*ancestors}) < min(left - {self.best})
        self.saved = {step: one for step, one in self.saved.items() if step in left}


SAVES = st.tuples(st.none() | st.integers(0, 5), st.integers(1, 3), st.none() | st.integers(-3, 3))


@settings(
    max_examples=25,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@example(most=0, saves=[(None, 1, None), (None, 1, 2), (0, 2, None)])  # the best is abandoned
@given(most=st.sampled_from([0, 2, 3]), saves=st.lists(SAVES, min_size=4, max_size=10))
def test_saves_and_resumes_keep_the_newest_and_the_best_of_the_lineage(monkeypatch, most, saves):
    monkeypatch.setattr(os, "fsync", lambda _: None)
    with tempfile.TemporaryDirectory() as root:
        run = Run(root, most)
        for resumed, steps, score in saves:
            if resumed is not None and run.saved:
                run.resume(resumed)
            run.save(steps, score)


def test_resuming_before_weights_without_a_state_abandons_them(config):
    """A failed run leaves such weights last."""
    config.base.checkpoint_keep = 0
    folder = keep(config, [[1], [2]])
    save(CheckpointManager(folder, config), config, 3, state=None)
    found = checkpoint.find_checkpoint("1", config, checkpoint.STATE)
    assert found.name == f"{2:016d}"
    made = save(CheckpointManager(folder, config, found), config, 5)
    assert kept(folder) == [3, 1, 2, 5] and checkpoint.find_checkpoint("1", config) == made


def test_a_save_with_fewer_steps_starts_a_branch(config):
    """From Python, without naming the checkpoint before."""
    for steps in 10, 20, 30, 15, 40:
        write(config, "1", steps)
    folder = checkpoint.run_folder(config, "1")
    assert kept(folder) == [20, 30, 10, 15, 40]
    write(config, "1", 5)
    assert kept(folder)[-1] == 5 and len(kept(folder)) == 6


def test_a_damaged_checkpoint_does_not_prevent_saving(config):
    folder = keep(config, [[1], [2]])
    for name in "weights.safetensors", "state.safetensors":
        (folder / f"{1:016d}" / name).write_bytes(b"damaged")
    save(CheckpointManager(folder, config), config, 3)
    assert kept(folder) == [2, 3]


# ---- links --------------------------------------------------------------------------------------


def move(folder, to):
    """Move a folder into another one, and leave a link at its old path."""
    to.mkdir(exist_ok=True)
    moved = folder.rename(to / folder.name)
    folder.symlink_to(moved)
    return moved


def test_a_link_to_a_moved_checkpoint_is_that_checkpoint(config, tmp_path):
    """Also in a folder of links."""
    folder = keep(config, [[1], [2]])
    newest = folder / f"{2:016d}"
    moved = move(newest, tmp_path / "disk")
    for each in folder, *folder.parents[:2]:
        move(each, tmp_path / "disk")
    for name in ("latest", "1", str(folder), str(newest), str(folder / BEST)):
        assert checkpoint.find_checkpoint(name, config, checkpoint.STATE) == newest
    assert checkpoint.load(newest).step == 2
    keeper = CheckpointManager(folder, config, newest)
    for step in 3, 4:
        save(keeper, config, step, score=9.0 + step)
    assert kept(folder) == [3, 4] and len(names(moved)) == 4  # only the link was removed


def test_a_new_checkpoint_replaces_a_link(config, tmp_path):
    folder = keep(config, [[1], [2]])
    moved = move(folder / f"{2:016d}", tmp_path / "disk")
    made = save(CheckpointManager(folder, config, folder / f"{1:016d}"), config, 2)
    assert not made.is_symlink() and len(names(moved)) == 4


def test_an_unreachable_checkpoint_is_refused_only_if_it_is_the_newest(config, tmp_path):
    folder = keep(config, [[1], [2]])
    moved = move(folder / f"{2:016d}", tmp_path / "disk")
    moved.rename(tmp_path / "not mounted")
    for name in ("latest", "1"):
        with pytest.raises(UserError, match=rf"{2:016d} is a link to {moved}, which isn't there"):
            checkpoint.find_checkpoint(name, config)
    older = folder / f"{1:016d}"
    assert checkpoint.find_checkpoint(str(older), config) == older
    made = save(CheckpointManager(folder, config, older), config, 3, score=9.0)
    assert checkpoint.find_checkpoint("latest", config) == made


def test_a_best_that_is_a_folder_is_refused(config):
    """``cp -L`` and some archives replace links by folders."""
    folder = keep(config, [[1], [2]])
    (folder / BEST).unlink()
    (folder / f"{1:016d}").rename(folder / BEST)
    with pytest.raises(UserError, match="best is a folder, expected a link") as caught:
        CheckpointManager(folder, config)
    assert f"rename it to {1:016d}" in caught.value.hint


def test_a_checkpoint_dir_on_an_unmounted_disk_is_refused(config, tmp_path):
    (tmp_path / "checkpoints").symlink_to("disk")
    with pytest.raises(UserError, match=r"can't write .*: File exists") as caught:
        checkpoint.prepare_run_folder(config, "1")
    assert "checkpoints is a link to disk, which isn't there" in caught.value.hint
    with pytest.raises(UserError, match=r"checkpoints is a link to .*disk, which isn't there"):
        checkpoint.find_checkpoint("latest", config)


# ---- finding -------------------------------------------------------------------------------------


def test_a_checkpoint_is_found_by_run_folder_or_latest(config, tmp_path):
    with pytest.raises(UserError, match="no checkpoint") as caught:
        checkpoint.find_checkpoint("latest", config)
    assert str(tmp_path / "checkpoints" / "squared") in str(caught.value)

    made = [write(config, run, steps) for run, steps in (("1", 900), ("2", 1000), ("1", 1100))]
    one, two = made[0].parent, made[1].parent
    assert checkpoint.find_checkpoint("latest", config) == made[2]
    assert (
        checkpoint.find_checkpoint("1", config)
        == checkpoint.find_checkpoint(str(one), config)
        == made[2]
    )
    assert checkpoint.find_checkpoint(str(two), config) == made[1]
    assert checkpoint.find_checkpoint(str(made[0]), config) == made[0]
    assert checkpoint.find_weights("latest", config) == made[2] / "weights.safetensors"
    assert checkpoint.find_weights(str(made[0] / "weights.bin"), config) == made[0] / "weights.bin"

    with pytest.raises(UserError, match="1 has no best checkpoint"):
        checkpoint.find_checkpoint("best", config)
    (one / BEST).symlink_to(made[0].name)
    for name in (str(one / BEST), "best", str(one.parent / BEST)):
        assert checkpoint.find_checkpoint(name, config) == made[0]
    assert checkpoint.find_checkpoint(str(one.parent / "latest"), config) == made[2]

    with pytest.raises(UserError, match="no checkpoint in 3") as caught:
        checkpoint.find_checkpoint("3", config)
    home = tmp_path / "checkpoints" / "squared"
    assert f"no checkpoint in 3: neither 3 nor {home / '3'} is a folder" in str(caught.value)
    assert "existing runs: 1, 2" in str(caught.value)
    with pytest.raises(UserError, match="no run yet; other runs: squared/1, squared/2"):
        checkpoint.find_checkpoint("3", Config("breakout", base=config.base))


@pytest.mark.parametrize(("version", "latest"), [("new", 2), ("old", 1)])
def test_latest_depends_on_file_times_only_in_files_of_older_versions(config, version, latest):
    """``cp -r`` gives every file the time of copying, in any order. Old files have no other."""
    recorded = {"weights.safetensors": ("puffer_mlx", "spec"), "state.safetensors": ["numbers"]}
    made = [write(config, run, steps) for run, steps in (("1", 64), ("1", 128), ("2", 900))]
    for (age, path), name in itertools.product(enumerate(made), recorded):
        if version == "old":
            arrays, metadata = loaded(path / name)
            metadata = {key: metadata[key] for key in recorded[name]}
            mx.save_safetensors(str(path / name), arrays, metadata)
        os.utime(path / name, ns=(10**18, 10**18 - age))  # the first one is the newest
    assert checkpoint.find_checkpoint("latest", config) == made[latest]  # the furthest of the run
    assert checkpoint.find_checkpoint("latest", config, checkpoint.STATE) == made[latest]
    newer = write(config, "1", 192)
    assert checkpoint.find_checkpoint("latest", config) == newer


def test_impossible_names_are_refused(config):
    (write(config, "1", 5) / "config.ini").unlink()
    with pytest.raises(UserError, match="name of the checkpoint is empty"):
        checkpoint.find_checkpoint(" ", config)
    with pytest.raises(UserError, match="File name too long") as caught:
        checkpoint.find_weights("x" * 5000, config)
    assert len(str(caught.value)) < 500
    with pytest.raises(UserError, match=r"has no config\.ini"):
        checkpoint.load(checkpoint.find_checkpoint("1", config))


def test_an_unreadable_folder_is_refused(permissions, config):
    folder = write(config, "1", 5)
    folder.chmod(0)
    try:
        with pytest.raises(UserError, match=r"can't read .*Permission denied"):
            checkpoint.load(checkpoint.find_checkpoint("latest", config))
    finally:
        folder.chmod(0o755)


def test_temporary_and_empty_folders_are_no_checkpoints(config):
    made = write(config, "1", 5)
    half = made.parent / f".{made.name}-abc"
    half.mkdir()
    (half / "weights.safetensors").write_bytes(b"half")
    empty = made.parent / "0000000000000009"
    empty.mkdir()
    assert (
        checkpoint.find_checkpoint("latest", config)
        == checkpoint.find_checkpoint("1", config)
        == made
    )
