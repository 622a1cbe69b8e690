"""PettingZoo's parallel environments: rows of agents, also of absent ones."""

import importlib
import sys
import types
from typing import Any

import numpy as np
import pytest
import zoo_relay
from stepping import alike, played, started, step, zoo_vec

from puffer_mlx import config as c
from puffer_mlx import vec
from puffer_mlx.errors import UserError
from puffer_mlx.training.trainer import Trainer
from puffer_mlx.vec.base import TERMINATED, TRUNCATED, Rows
from puffer_mlx.vec.normalize import Normalized
from puffer_mlx.vec.python_vec import PythonVec
from puffer_mlx.vec.zoo import find_parallel, missing_package, parallel_names

gymnasium = pytest.importorskip("gymnasium")


def make(factory: Any = zoo_relay.Relay, agents=3, **keywords) -> PythonVec:
    return zoo_vec(
        factory, **{"name": "relay", "total_agents": agents, "backend": "sync", **keywords}
    )


AWAY, T, L = TERMINATED, TERMINATED, TRUNCATED


def finals(seen: list[Rows]) -> list[list[float]]:
    return [np.array(rows.finals).tolist() for rows in seen]


def test_rows_of_agents_that_act_that_ended_and_of_the_next_episode():
    """The agents live for 2, 1 and 4 steps."""
    with make() as env:
        assert env.finals and env.num_environments == 1
        rows = started(env)
        assert rows.observations.tolist() == [[0, 0], [0, 1], [0, 2]]
        assert not rows.rewards.any() and not rows.terminals.any() and not np.any(rows.finals)
        seen = [step(env, rows, [0, 1, 2]) for _ in range(6)]
        assert [row.rewards.tolist() for row in seen] == [
            *([0, 11, 22], [0, 0, 22], [0, 0, 22], [0, 0, 22], [0, 0, 0], [0, 11, 22]),
        ]
        assert finals(seen) == [
            *([0, T, 0], [T, AWAY, 0], [AWAY, AWAY, 0], [AWAY, AWAY, L], [0, 0, 0], [0, T, 0]),
        ]
        assert [row.terminals.tolist() for row in seen] == [
            *([0, 0, 0], [0, 1, 0], [1, 1, 0], [1, 1, 0], [1, 1, 1], [0, 0, 0]),
        ]
        assert seen[0].observations.tolist() == [[1, 0], [1, 1], [1, 2]]
        assert seen[1].observations.tolist() == [[2, 0], [0, 0], [2, 2]]
        assert seen[4].observations.tolist() == [[0, 0], [0, 1], [0, 2]]


def test_results_of_agents_that_ended_are_ignored():
    class Stays(zoo_relay.Relay):
        def step(self, actions):
            self.agents = list(actions)
            seen, *rest = super().step(actions)
            self.agents = list(self.possible_agents)  # takes none out
            sevens = {agent: np.full(2, 7, np.float32) for agent in self.agents}
            return sevens | seen, *rest

    with make(Stays) as env:
        rows = started(env)
        seen = [step(env, rows) for _ in range(5)]
        assert finals(seen) == [
            *([0, T, 0], [T, AWAY, 0], [AWAY, AWAY, 0], [AWAY, AWAY, L], [0, 0, 0]),
        ]
        assert seen[2].observations.tolist() == [[0, 0], [0, 0], [3, 2]]


def test_only_present_agents_get_actions_and_only_outer_resets_have_seeds():
    instances = []

    def factory():
        instances.append(zoo_relay.Relay())
        return instances[-1]

    with make(factory, agents=6, seed=5) as env:
        rows = started(env)
        for _ in range(5):
            step(env, rows, [2, 1, 0] * 2)
        a, b, c = (f"runner_{i}" for i in range(3))
        assert instances[-1].took == [{a: 2, b: 1, c: 0}, {a: 2, c: 0}, *[{c: 0}] * 2]
        env.reset(rows)
        assert [each.seeds for each in instances[-2:]] == [[5, None, 7], [6, None, 8]]


def test_episodes_count_steps_of_present_agents():
    with make() as env:
        rows = started(env)
        for _ in range(10):
            step(env, rows, [0, 1, 2])
        records = env.episodes()
        assert sorted((e["episode_length"], e["episode_return"]) for e in records) == sorted(
            [(2, 0), (1, 11), (4, 88)] * 2
        )
        assert {e["env"] for e in records} == {0.0}
        assert sorted(e["goals"] for e in records) == [0.5, 0.5, 1.5, 1.5, 2.5, 2.5]


class Back(zoo_relay.Relay):
    """Runner 1 ends in step 1, returns in step ``at``, and runs until step 5."""

    def __init__(self, at: int, **keywords):
        super().__init__(lives="6 1 6", **keywords)
        self.at = at

    def reset(self, seed=None, options=None):
        self.lives[1] = 1
        return super().reset(seed, options)

    def step(self, actions):
        seen, rewards, ended, limit, infos = super().step(actions)
        if self.t == self.at:
            self.lives[1] = 5
            self.agents.insert(1, "runner_1")
            seen |= self.look(["runner_1"])
            rewards["runner_1"] = 0.0
            ended["runner_1"] = limit["runner_1"] = False
            infos.update(self.infos(["runner_1"]))
        return seen, rewards, ended, limit, infos


@pytest.mark.parametrize(("at", "masks"), [(2, "seen"), (3, "infos")])
def test_agent_that_returns_begins_a_new_episode(at: int, masks: str):
    """``Relay`` asserts that it gets actions again."""
    with make(Back, env={"at": at, "masks": masks}) as env:
        rows = started(env)
        seen = [step(env, rows, [0, 2, 0]) for _ in range(8)]
        middle = [row.observations[1].tolist() for row in seen[:7]]
        away = [[0, 0]] * (at - 2)
        assert middle == [[1, 1], *away, *([t, 1] for t in range(at, 6)), [0, 0], [0, 1]]
        assert [row[1] for row in finals(seen)] == [
            T,
            *[AWAY] * (at - 2),
            *[0] * (5 - at),
            T,
            AWAY,
            0,
            T,
        ]
        terminals = [row.terminals[1] for row in seen]
        assert terminals == [0, *[1] * (at - 1), *[0] * (5 - at), 1, 1, 0]
        assert [row.rewards[1] for row in seen[at:5]] == [12] * (5 - at)
        lengths = [e["episode_length"] for e in env.episodes()]
        assert sorted(lengths) == sorted([6, 6, 1, 5 - at, 1])


def without(key: str, where: int):
    """Return a relay whose dictionary number ``where``, of the five, lacks an agent."""

    class Lacks(zoo_relay.Relay):
        def step(self, actions):
            result: list[Any] = list(super().step(actions))
            result[where] = {a: each for a, each in result[where].items() if a != key}
            return tuple(result)

    return Lacks


@pytest.mark.parametrize("where", [1, 4], ids=["rewards", "infos"])
def test_missing_entries_of_an_agent_are_zero(where: int):
    with make(without("runner_2", where)) as env, make() as whole:
        ours, theirs = played(env, 3), played(whole, 3)
        for rows in theirs:
            rows.rewards[2] *= where != 1
        assert alike(ours, theirs)


class Bent(zoo_relay.Relay):
    """Returns ``bend`` of the results."""

    def __init__(self, bend, first=lambda *result: result):
        super().__init__(lives="4 4 4")
        self.bend, self.first = bend, first

    def reset(self, seed=None, options=None):
        return self.first(*super().reset(seed, options))

    def step(self, actions):
        return self.bend(*super().step(actions))


def arrays(seen, rewards, ended, limit, infos):
    shaped = [{a: np.array([x]) for a, x in each.items()} for each in (rewards, ended, limit)]
    return seen, *shaped, infos


class Stranger(zoo_relay.Relay):
    def step(self, actions):
        result = super().step(actions)
        self.agents.append("runner_7")
        return result


BENT = {
    "arrays of one": Bent(arrays),
    "infos None": Bent(
        lambda *all: (*all[:4], dict.fromkeys(all[0])), lambda seen, _: (seen, dict.fromkeys(seen))
    ),
    "no limits": Bent(
        lambda seen, rewards, ended, limit, infos: (seen, rewards, limit, None, infos)
    ),
}


@pytest.mark.parametrize("how", BENT)
def test_results_of_other_types_are_accepted(how: str):
    with make(lambda: BENT[how]) as env:
        rows = started(env)
        seen = [step(env, rows, [0, 1, 2]) for _ in range(4)]
        assert [row.rewards.tolist() for row in seen] == [[0, 11, 22]] * 4
        over = T if how == "no limits" else L
        assert finals(seen) == [[0, 0, 0]] * 3 + [[over] * 3]
        assert sorted(e["episode_length"] for e in env.episodes()) == [4] * 3


WRONG = {  # a factory, message
    "no observation": (without("runner_2", 0), "returned no observation for agent runner_2, whic"),
    "two rewards": (
        lambda: Bent(lambda seen, _, *rest: (seen, {"runner_1": [1, 2]}, *rest)),
        r"returned a reward for agent runner_1 of \[1, 2\], expected one number",
    ),
    "four": (lambda: Bent(lambda *all: all[:4]), "failed in step: it returned 4 values, expected"),
    "infos": (
        lambda: Bent(None, lambda seen, _: (seen, 7)),
        "returned infos of 7, expected a dict",
    ),
    "unknown agent": (Stranger, ".*agent runner_7 .* possible_agents"),
}


@pytest.mark.parametrize("how", WRONG)
def test_wrong_result_is_reported(how: str):
    factory, said = WRONG[how]
    with (
        pytest.raises(UserError, match=rf"relay: environment 0 \(seed 0\) {said}") as caught,
        make(factory) as env,
    ):
        step(env, started(env))
    assert "mend the environment" not in caught.value.hint


@pytest.mark.parametrize("told", ["seen", "infos"])
def test_masks_of_observations_or_infos(told: str):
    with make(env={"masks": told}) as env:
        assert env.spec.mask_size == 3 and env.spec.observation_size == 2
        rows = started(env)
        assert rows.masks is not None
        assert rows.masks.tolist() == [[0, 1, 1], [1, 0, 1], [1, 1, 0]]
        masks = step(env, rows, [1, 2, 0]).masks
        assert masks is not None and masks.tolist() == [[0, 1, 1], [1, 1, 1], [1, 1, 0]]
        assert "action_mask" not in env.log()


def test_async_backend_gives_equal_rows():
    """Two groups of two environments each."""
    keywords = {"agents": 12, "num_buffers": 2, "num_threads": 4, "seed": 3}
    with make(**keywords) as sync, make(backend="async", **keywords) as processes:
        assert processes.description.startswith("async: 4 instances in 4 processes")
        assert alike(played(sync, 12), played(processes, 12))
        assert sync.log() == processes.log() != {}


def test_statistics_ignore_absent_agents():
    with Normalized(make(), observations=True, rewards=True, gamma=0.5) as env:
        rows = started(env)
        for _ in range(4):
            step(env, rows)
        seen = [[0, i] for i in range(3)] + [[1, i] for i in range(3)]
        seen += [[2, 0], [2, 2], [3, 2], [4, 2]]
        found = env.memory()
        assert found["observations.count"] == len(seen)
        np.testing.assert_allclose(found["observations.mean"], np.mean(seen, 0))
        np.testing.assert_allclose(found["observations.variance"], np.var(seen, 0))
        assert found["return.count"] == 3 + 2 + 1 + 1


# ---- Names ---------------------------------------------------------------------------------------

WORDS = ["--vec.total-agents", "6", "--vec.num-buffers", "1"]


def test_environment_is_found_by_name():
    """Gymnasium's wrappers can't be used with it."""
    config = c.load("zoo_relay:relay", [*WORDS, "--wrap.frame-stack", "2"])
    with vec.make(config, 1) as env:
        assert (env.num_environments, env.spec.observation_size, env.finals) == (2, 2, True)
        assert vec.unused_keys(config, env) == ["wrap.frame_stack (for Gymnasium's)"]


def test_kind_of_environment_is_known_from_two():
    """One by Gymnasium's factory, one by PettingZoo's."""
    made = []
    config = c.load("zoo_relay:Relay", WORDS, factory=lambda: made.append(0) or zoo_relay.Relay())
    assert vec.look_up_spec(config).observation_size == 2 and len(made) == 2


def test_total_agents_is_lowered_to_a_multiple():
    config = c.load("zoo_relay:Relay", ["--family", "discrete"])
    with vec.make(config, 1) as env:
        assert (env.num_agents, config.vec.total_agents) == (6, 6)
    assert any("vec.total_agents 8" in note and "lowered to 6" in note for note in config.notes)


def test_render_shows_the_picture():
    with make(env={}, render=True) as env:
        started(env)
        assert np.shape(env.render()) == (4, 5, 3)


class Blind(zoo_relay.Relay):
    """As PettingZoo's own ParallelEnv, whose render is there and raises."""

    def render(self):
        raise NotImplementedError


@pytest.mark.parametrize(
    ("factory", "message"),
    [(Blind, r"it has no render\(\)"), (lambda: Blind(), "it takes no render_mode")],
)
def test_environment_without_render_is_reported(factory, message):
    with (
        pytest.raises(UserError, match=rf"relay: it can't be drawn: {message}\n  hint: take"),
        make(factory, render=True) as env,
    ):
        env.render()


@pytest.mark.parametrize(
    ("keywords", "said"),
    [
        ({"mixed": True}, r"agents differ: runner_0 sees Box.*\(2,\).*runner_1 Box.*\(3,\)"),
        ({"speed": 3}, r"it takes no env\.speed"),
        ({"backend": "vector"}, r"vec\.backend is vector, but it takes no num_envs"),
    ],
)
def test_arguments_that_do_not_fit_are_reported(keywords: dict, said: str):
    with pytest.raises(UserError, match=said) as caught:
        make(backend=keywords.pop("backend", "sync"), env=keywords)
    assert ("supersuit.pad_observations_v0" in caught.value.hint) == ("mixed" in keywords)


def test_agents_that_take_turns_are_refused(here):
    """Also as a name."""

    class Turns(zoo_relay.Relay):
        agent_selection = "runner_0"

    with pytest.raises(UserError, match=r"take turns \(AEC\), expected a parallel one") as caught:
        make(Turns)
    assert "returns pettingzoo.utils.aec_to_parallel(env)" in caught.value.hint
    (here / "in_turns.py").write_text(
        "from zoo_relay import Relay\n\nclass Turns(Relay):\n    agent_selection = 'runner_0'\n"
    )
    with pytest.raises(UserError, match=r"in_turns:Turns: its agents take turns \(AEC\)"):
        vec.make(c.load("in_turns:Turns", []), 1)


@pytest.mark.parametrize(
    ("name", "message", "hint"),
    [
        ("classic/rsp_v2", "PettingZoo has no such parallel", "pettingzoo:classic/rps-v2"),
        ("classic/chess_v6", "its agents take turns", "name a function of yours that returns "),
        ("quite/other_v1", "PettingZoo has no such parallel", "puffer-mlx list has what is "),
    ],
)
def test_unknown_name_suggests_another(name: str, message: str, hint: str, monkeypatch):
    """PettingZoo's message would list its registry."""
    pettingzoo = types.SimpleNamespace(
        parallel_registry={"classic/rps-v2": 0, "sisl/pursuit-v5": 0},
        aec_registry={"classic/rps-v2": 0, "classic/chess-v6": 0},
        make=None,
        spec=lambda kind, name: 1 / 0,
    )
    monkeypatch.setitem(sys.modules, "pettingzoo", pettingzoo)
    with pytest.raises(UserError, match=message) as caught:
        find_parallel(name)
    assert caught.value.hint.startswith(hint) and len(caught.value.message) < 150


def test_names_are_read_without_an_import(monkeypatch, tmp_path):
    package = tmp_path / "pettingzoo"
    (package / "sisl").mkdir(parents=True)
    (package / "__init__.py").write_text("1 / 0\n")
    (package / "sisl" / "pursuit_v5.py").write_text("from .pursuit import env, parallel_env\n")
    (package / "sisl" / "chess_v6.py").write_text("from .chess import env\n")
    (package / "sisl" / "parallel_env.py").write_text("parallel_env = 1 / 0\n")
    (tmp_path / "mpe2").mkdir()
    (tmp_path / "mpe2" / "simple_v3.py").write_text("def parallel_env(): ...\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "pettingzoo", raising=False)
    monkeypatch.delitem(sys.modules, "mpe2", raising=False)
    assert parallel_names() == {"mpe2": ["mpe2.simple_v3"], "sisl": ["sisl.pursuit_v5"]}
    assert missing_package("sisl") == "pettingzoo[sisl]" and missing_package("mpe2") == ""


def test_missing_pettingzoo_is_reported(monkeypatch):
    monkeypatch.setitem(sys.modules, "pettingzoo", None)
    with pytest.raises(UserError, match="PettingZoo can't be imported") as caught:
        find_parallel("mpe2.simple_spread_v3")
    assert caught.value.hint == "pip install 'puffer-mlx[pettingzoo]'"


# ---- Trained -------------------------------------------------------------------------------------


def test_policy_is_trained_while_an_agent_is_absent():
    """One of two agents ends early."""
    words = ["--vec.total-agents", "8", "--train.total-timesteps", "1024", "--device", "cpu"]
    words += ["--train.horizon", "32", "--train.minibatch-size", "64", "--train.replay-ratio", "1"]
    config = c.load("zoo_relay:Guess", [*words, "--family", "discrete"])
    with vec.make(config, 1) as env:
        records = list(Trainer(config, env))
    assert len(records) == 4 and records[-1]["loss/skipped_steps"] == 0
    assert 7 < records[-1]["env/episode_length"] < 20


# ---- The real package ----------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", ["classic/rps_v2", "classic.rps_v2"])
def test_environment_of_pettingzoo_is_stepped(name: str):
    package = pytest.importorskip("pettingzoo")
    if "/" in name and not hasattr(package, "make"):
        pytest.skip("this PettingZoo has no IDs")
    with vec.make(c.load(f"pettingzoo:{name}", ["--vec.total-agents", "4", *WORDS[2:]]), 1) as env:
        assert env.num_environments == 2 and env.spec.action.sizes == (3,)
        rows = started(env)
        ends = [np.array(step(env, rows).finals).tolist() for _ in range(20)]
        assert [L] * 4 in ends and env.log()["episode_length"] == 15


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("sisl.prsuit_v5", "No module named .*prsuit_v5'\n.*pettingzoo:sisl.pursuit_v"),
        ("nothing", "pettingzoo:nothing: there is no module nothing"),
        ("zoo_relay", "zoo_relay has no parallel_env"),
    ],
)
def test_module_without_a_parallel_environment_is_reported(name: str, message: str):
    pytest.importorskip("pettingzoo")
    with pytest.raises(UserError, match=message):
        find_parallel(name)


def test_error_while_a_process_imports_is_reported(tmp_path, monkeypatch):
    """An EOFError would otherwise look like the end of the program."""
    (tmp_path / "truncated.py").write_text(
        "import multiprocessing\n"
        "from zoo_relay import Relay as _Relay\n"
        "class Relay(_Relay): ...\n"
        "if multiprocessing.parent_process():\n"
        "    raise EOFError('Ran out of input')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    relay = importlib.import_module("truncated").Relay
    with pytest.raises(UserError, match=r"failed in its process: EOFError: Ran out of input\n"):
        make(relay, 6, backend="async", num_threads=2)
