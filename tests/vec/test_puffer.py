"""PufferLib 3.x's Python environments: which they are, their rows, and what goes wrong with them.

``tests/envs/python`` has some that only look like PufferLib's. With PufferLib 3.0 installed, its
own are tested too.
"""

import functools
import importlib
import sys
from pathlib import Path

import numpy as np
import pytest

from puffer_mlx.config import Base, Config, Policy, Train, Vec, validate
from puffer_mlx.errors import UserError
from puffer_mlx.training.trainer import Trainer
from puffer_mlx.vec.puffer.make import is_puffer_env
from puffer_mlx.vec.puffer.vec import PufferVec
from puffer_mlx.vec.rows import allocate_rows, random_actions

sys.path.append(str(Path(__file__).parents[1] / "envs" / "python"))
emulated, pairs = map(importlib.import_module, ("emulated", "pairs"))
Counting, Duel, Pairs, single = emulated.Counting, emulated.Duel, pairs.Pairs, pairs.single


def make(factory=Pairs, agents=8, **keywords):
    return PufferVec(factory, **{"name": "pairs", "total_agents": agents, "seed": 5, **keywords})


class Played:
    """All agents of a PufferVec, stepped with given or random actions."""

    def __init__(self, vec, seed=0):
        self.vec, self.rng = vec, np.random.default_rng(seed)
        self.rows = allocate_rows(vec, vec.num_agents)
        self.n = vec.num_agents // vec.num_groups
        vec.reset(self.rows)

    def step(self, actions=None):
        N = self.vec.num_agents
        actions = random_actions(self.vec, N, self.rng) if actions is None else actions
        parts = [slice(g * self.n, (g + 1) * self.n) for g in range(self.vec.num_groups)]
        for group, agents in enumerate(parts):
            self.vec.send(group, actions[agents], self.rows.part(agents))
        for group in range(self.vec.num_groups):
            self.vec.wait(group)
        return self.rows

    def history(self, steps):
        """(observations, rewards, terminals) of each time, the first after the reset."""
        seen = [[array.copy() for array in self.rows[:3]]]
        return seen + [[array.copy() for array in self.step()[:3]] for _ in range(steps)]


def history(steps=20, **keywords):
    with make(**keywords) as vec:
        return Played(vec).history(steps)


def same(a, b):
    return all(
        np.array_equal(x, y) for s, t in zip(a, b, strict=True) for x, y in zip(s, t, strict=True)
    )


def right(rows, signs=3):
    """The actions that Pairs rewards, (n, 2)."""
    agent = rows.observations[:, signs:].argmax(1)
    return np.stack([(rows.observations[:, :signs].argmax(1) + agent) % signs, agent], 1).astype(
        np.float32
    )


# ---- which are ----------------------------------------------------------------------------------


def test_what_looks_like_one_is_one():
    class PufferEnv:
        pass

    class Inherits(PufferEnv):
        def __init__(self, **keywords):
            pass

    for found in (Pairs, single, Counting, Inherits, Pairs(), functools.partial(Pairs, signs=4)):
        assert is_puffer_env(found), found
    for found in (dict, PufferVec, lambda **keywords: None, 3, "buf", np.zeros(3)):
        assert not is_puffer_env(found), found


# ---- rows ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("backend", "groups"), [("vector", 1), ("sync", 2), ("async", 2)])
def test_rows_are_what_the_environment_writes(backend, groups):
    with make(agents=8, num_buffers=groups, backend=backend, num_threads=2) as vec:
        played = Played(vec)
        rows = played.rows
        assert not rows.rewards.any() and not rows.terminals.any()
        for t in range(1, 17):
            actions = right(rows)
            actions[0, 0] += 1  # wrong, unless 3 is taken for 0
            actions[0, 0] %= 3
            played.step(actions)
            assert rows.rewards.tolist() == [0.5] + 7 * [1]
            assert rows.terminals.tolist() == 8 * [t % 8 == 0]  # of both kinds
            assert (rows.observations.sum(1) == 2).all()


def test_neither_groups_nor_processes_change_rows():
    reference = history(factory=single, backend="sync")
    assert same(reference, history(factory=single, backend="sync", num_buffers=2))
    assert same(reference, history(factory=single, backend="async", num_buffers=2, num_threads=4))
    assert not same(reference, history(factory=single, backend="sync", seed=6))


def test_instances_have_seeds_of_their_own():
    first = history(factory=single, backend="sync", agents=4)
    with make(single, 2, backend="sync", seed=6) as vec:  # the second instance of seed 5
        second = Played(vec).rows.observations
    np.testing.assert_array_equal(first[0][0][2:], second)
    assert not np.array_equal(first[0][0][:2], second)


def test_later_resets_draw_others():
    with make(agents=32) as vec:
        played = Played(vec)
        before = played.rows.observations.copy()
        played.step()
        vec.reset(played.rows)
        assert not np.array_equal(played.rows.observations, before)
        assert not played.rows.rewards.any() and not played.rows.terminals.any()


def test_arrays_of_its_own_are_copied():
    assert same(history(), history(env={"fault": "own arrays"}))


# ---- how many, and where -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keywords", "description", "environments"),
    [
        ({}, "vector: 1 instance; it takes num_envs", 8),
        ({"num_buffers": 2}, "vector: 2 instances; it takes num_envs", 8),
        ({"backend": "sync"}, "sync: 8 instances; as", 8),
        ({"env": {"num_envs": 2}, "backend": "sync"}, "sync: 4 instances; as", 8),
        ({"backend": "async", "num_threads": 4, "num_buffers": 2}, "async: 4 instances in 4", 8),
        ({"backend": "async", "num_threads": 3}, "async: 2 instances in 2 processes; as", 8),
        ({"factory": single, "backend": "async", "num_threads": 2}, "async: 8 instances in 2", 8),
        ({"factory": single, "agents": 2}, "sync: 1 instance; there is only one", 1),
    ],
)  # fmt: skip
def test_instances(keywords, description, environments):
    with make(**{"agents": 16, **keywords}) as vec:
        assert vec.description.startswith(description)
        assert vec.num_environments == environments
        assert (vec.num_agents, vec.finals, vec.unread) == (keywords.get("agents", 16), False, [])


def test_slow_steps_are_worth_processes(monkeypatch):
    monkeypatch.setattr("puffer_mlx.vec.plan.cores", lambda: 2)
    monkeypatch.setattr("puffer_mlx.vec.plan.ROUND_TRIP", 0.0)
    with make(single, 8, num_threads=2) as vec:
        slow = vec.description
    monkeypatch.setattr("puffer_mlx.vec.plan.ROUND_TRIP", 10.0)
    with make(single, 8, num_threads=2) as vec:
        quick = vec.description
    assert slow.startswith("async: 4 instances in 2 processes; a step takes")
    assert quick.startswith("sync: 4 instances; a step takes")


@pytest.mark.parametrize(
    ("keywords", "text", "hint"),
    [
        ({"agents": 7}, "7 is not a multiple of vec.num_buffers 1 times the 2 agents", "6 or 8 is"),
        ({"agents": 6, "num_buffers": 2}, "not a multiple of vec.num_buffers 2", "4 or 8 is"),
        ({"agents": 8, "env": {"num_envs": 3}}, "times the 6 agents", "6 or 12 is"),
        ({"factory": single, "backend": "vector"}, "it takes no num_envs", "sync or async"),
        ({"env": {"num_envs": 1}, "backend": "vector"}, "env.num_envs is given", "leave"),
        ({"env": {"sings": 3}}, "takes no env.sings", "num_envs, signs, length"),
        ({"env": {"seed": 3}}, "env.seed can't be set", "vec.seed"),
        ({"factory": Pairs()}, "is an environment already", "class"),
        ({"env": {"fault": "attribute"}}, "Pairs it made has no truncations", "writing_envs.md"),
        ({"env": {"fault": "agents"}}, "made with num_envs=4 it has 9 agents, expected 8", "same"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(keywords, text, hint):
    with pytest.raises(UserError) as found:
        make(**keywords)
    assert text in found.value.message and hint in found.value.hint


# ---- episodes ------------------------------------------------------------------------------------


def test_episodes_are_counted():
    with make(agents=4, num_buffers=2, env={"length": 5}) as vec:
        played = Played(vec)
        for _ in range(12):
            played.step(right(played.rows))
        records = vec.episodes()
    assert [(r["env"], r["episode_return"], r["episode_length"]) for r in records] == (
        4 * [(0, 5, 5)] + 4 * [(1, 5, 5)]
    )


def test_what_the_environment_reports_goes_first():
    with make(agents=4, env={"report": 8}) as vec:
        played = Played(vec)
        for _ in range(8):
            played.step(right(played.rows))
        log = vec.log()
    assert log == {"episode_return": 8, "episode_length": 8, "score": 1, "n": 4}


def test_absent_agents_take_no_part():
    with make(agents=2, env={"leaves": True}) as vec:
        played = Played(vec)
        seen = [played.step(right(played.rows)) and played.rows.part(1) for _ in range(16)]
        ends = [float(rows.terminals) for rows in seen]
        records = vec.episodes()
    assert len(ends) == 16
    assert [(r["episode_return"], r["episode_length"]) for r in records] == [
        (4, 4), (8, 8), (4, 4), (8, 8)
    ]  # fmt: skip


def test_emulated_environments_are_reset_within_the_step():
    with make(Counting, 2, backend="sync") as vec:
        played = Played(vec)
        rows = played.rows
        spec = vec.spec
        assert (spec.observation_size, spec.observation_dtype, spec.action.sizes) == (
            8,
            np.float32,
            (2,),
        )
        assert rows.observations[0].tolist() == [1, 0, 0, 1, 0, 7, 8, 9]
        expected = [
            (1, 1, (2, 0)),
            (2, 0, (2, 1)),
            (2, 1, (3, 0)),
            (3, 0, (3, 1)),
            (3, 0, (3, 2)),
            (3, 1, (4, 0)),
        ]
        for reward, terminal, shown in expected:
            played.step()
            assert (rows.rewards[1], rows.terminals[1]) == (reward, terminal)
            assert tuple(rows.observations[1, :2]) == shown
        records = vec.episodes()
    of_one = [
        (r["episode_return"], r["episode_length"], r["score"]) for r in records if r["env"] == 1
    ]
    assert of_one == [(1, 1, 10), (4, 2, 20), (9, 3, 30)]


def test_agents_of_emulated_environments_end_one_by_one():
    with make(Duel, 4, backend="async", num_threads=2) as vec:
        played = Played(vec)
        terminals, rewards = [], []
        for _ in range(8):
            played.step()
            terminals.append(played.rows.terminals[2:].tolist())
            rewards.append(played.rows.rewards[2:].tolist())
        records = [r for r in vec.episodes() if r["env"] == 1]
    assert terminals == 2 * [[0, 0], [0, 1], [0, 1], [1, 1]]
    assert rewards == 2 * [[1, 10], [1, 10], [1, 0], [1, 0]]
    assert [(r["episode_return"], r["episode_length"], r["x"]) for r in records] == 2 * [
        (20, 2, 5),
        (4, 4, 1),
    ]


def test_an_agent_that_vanishes_has_ended_its_episode():
    with make(Duel, 2, backend="sync", env={"at_once": True}) as vec:
        played = Played(vec)
        for _ in range(8):
            played.step()
        records = vec.episodes()
    found = [(r["episode_return"], r["episode_length"]) for r in records]
    assert found == [(10, 2), (4, 4), (10, 2), (4, 4)]


# ---- what goes wrong ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("backend", "fault", "text"),
    [
        ("sync", "make", "failed when it was made: RuntimeError: it can't"),
        ("sync", "reset", "failed in reset: RuntimeError: it can't be reset"),
        ("sync", "step", "failed in step: RuntimeError: it broke"),
        ("async", "step", "failed in step: RuntimeError: it broke"),
        ("async", "exit", "failed in step: SystemExit: 0"),
        ("async", "nan", "agent 1, returned a reward of nan"),
    ],
)
def test_failures_are_told(backend, fault, text):
    with (
        pytest.raises(UserError) as found,
        make(single, 4, backend=backend, env={"fault": fault}) as vec,
    ):
        Played(vec).history(3)
    comma = "," if fault == "nan" else ""
    assert f"pairs: environment 0 (seed 5){comma} {text}" in found.value.message
    assert "pairs.py" in found.value.message or fault == "nan"


def test_the_instance_that_failed_is_named():
    def third(buf=None, seed=0):
        return Pairs(1, fault="step" if seed == 8 else "", buf=buf, seed=seed)

    with make(third, 8, num_buffers=2, backend="sync") as vec:
        played = Played(vec)
        with pytest.raises(UserError, match=r"environment 3 \(seed 8\) failed in step"):
            played.history(3)
        with pytest.raises(RuntimeError, match="closed"):
            played.step()


def test_environments_of_an_instance_share_its_seed():
    with make(agents=8, num_buffers=2, env={"fault": "nan"}) as vec:
        played = Played(vec)
        with pytest.raises(
            UserError, match=r"environment 1 \(seed 5\), agent 1, returned a reward"
        ):
            played.history(3)


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ("die", r"environment 1 \(seed 6\) died: its process ended with exit code 3"),
        ("hang", r"environment 1 \(seed 6\) hangs: .* 0.5 seconds .*; it was at\n.*pairs.py"),
    ],
)
def test_a_lost_process_is_noticed(fault, text, monkeypatch):
    monkeypatch.setattr("puffer_mlx.vec.pool._GRACE", 0.1)

    def second(buf=None, seed=0):
        return single(fault=fault if seed == 6 else "", buf=buf, seed=seed)

    with make(second, 6, backend="async", timeout=0.5) as vec:  # three in one process
        played = Played(vec)
        processes = vec._envs[0].processes  # type: ignore
        with pytest.raises(UserError, match=text):
            played.history(3)
        assert not any(process.is_alive() for process in processes)


def test_functions_of_the_main_script_reach_processes():
    def local(buf=None, seed=0):
        return Pairs(1, buf=buf, seed=seed)

    assert same(history(factory=local, backend="async"), history(factory=single, backend="sync"))


def test_what_cannot_be_sent_is_refused():
    lock = __import__("threading").Lock()

    def local(buf=None, seed=0):
        return lock and Pairs(1, buf=buf, seed=seed)

    with pytest.raises(UserError, match="can't be sent to another process"):
        make(local, backend="async")


@pytest.mark.parametrize("backend", ["sync", "async"])
def test_drawing_and_closing(backend):
    made = []

    def factory(buf=None, seed=0):
        made.append(Pairs(1, buf=buf, seed=seed))
        return made[-1]

    with make(factory if backend == "sync" else single, 4, backend=backend) as vec:
        played = Played(vec)
        played.step()
        np.testing.assert_array_equal(vec.render(), np.ones((2, 3, 3)))
        assert vec.busy_seconds() > 0
    assert all(env.closed for env in made)


# ---- training -----------------------------------------------------------------------------------


def test_pairs_are_learned():
    N, T = 64, 16
    config = Config(
        env_name="pairs:Pairs",
        base=Base(seed=0),
        vec=Vec(total_agents=N, num_buffers=2),
        policy=Policy(hidden_size=32, num_layers=1),
        train=Train(
            total_timesteps=20 * N * T,
            learning_rate=0.1,
            minibatch_size=256,
            horizon=T,
            gamma=0.5,
            gae_lambda=0.5,
        ),
    )
    validate(config)
    with make(agents=N, num_buffers=2) as vec:
        scores = [logs["env/score"] for logs in Trainer(config, vec)]
    assert scores[0] < 0.55  # guesses: 5 / 12
    assert sum(scores[-5:]) / 5 > 0.95


# ---- PufferLib's own ----------------------------------------------------------------------------


@pytest.fixture
def pufferlib(here):
    """PufferLib 3.0; it leaves a link ``resources`` in the working directory."""
    found = pytest.importorskip("pufferlib")
    importlib.import_module("pufferlib.emulation")
    return found


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("backend", ["vector", "async"])
def test_squared_of_pufferlib(pufferlib, backend):
    squared = pytest.importorskip("pufferlib.ocean.squared.squared", exc_type=ImportError)
    assert is_puffer_env(squared.Squared)
    with make(squared.Squared, 16, backend=backend, env={"size": 5}, timeout=120) as vec:
        played = Played(vec)
        seen = played.history(128)
        log = vec.log()
    assert vec.spec.observation_size == 25 and vec.spec.observation_dtype == np.uint8
    ends = sum(terminals.sum() for _, _, terminals in seen)
    assert log["n"] == ends > 16
    returns = sum(rewards[terminals == 1].sum() for _, rewards, terminals in seen)
    assert log["score"] == pytest.approx(returns / ends, abs=1e-5)  # it pays at the end only


@pytest.mark.filterwarnings("default")
def test_emulation_of_pufferlib(pufferlib):
    from gymnasium.envs.classic_control import CartPoleEnv

    def cartpole(buf=None, seed=0):
        env = pufferlib.EpisodeStats(CartPoleEnv())
        return pufferlib.emulation.GymnasiumPufferEnv(env=env, buf=buf, seed=seed)

    with make(cartpole, 4, backend="sync") as vec:
        played = Played(vec)
        seen = played.history(200)
        records = vec.episodes()
    assert len(records) == sum(terminals.sum() for _, _, terminals in seen) > 10
    for record in records:
        assert record["episode_return"] == record["episode_length"] == record["score"]
    for observations, rewards, terminals in seen[1:]:
        assert (rewards == 1).all()
        assert (np.abs(observations[terminals == 1]) <= 0.05).all()  # where episodes begin
