"""PettingZoo's parallel environments: rows of agents, also of absent ones."""

import importlib
import sys
import types
from typing import Any

import numpy as np
import pytest
import zoo_relay
from stepping import started, step, zoo_vec

from puffer_mlx import config as c
from puffer_mlx import vec
from puffer_mlx.errors import UserError
from puffer_mlx.vec.base import TERMINATED, TRUNCATED, Rows
from puffer_mlx.vec.normalize import Normalized
from puffer_mlx.vec.python_vec import PythonVec
from puffer_mlx.vec.zoo import find_parallel, missing_group_package, parallel_names

gymnasium = pytest.importorskip("gymnasium")


def make(factory: Any = zoo_relay.Relay, agents=3, **keywords) -> PythonVec:
    return zoo_vec(
        factory, **{"name": "relay", "total_agents": agents, "backend": "sync", **keywords}
    )


T, L = TERMINATED, TRUNCATED  # an absent agent's rows are those of one that ended


def final_observations(seen: list[Rows]) -> list[list[float]]:
    return [np.array(rows.final_observations).tolist() for rows in seen]


class Stays(zoo_relay.Relay):
    """Relay that never removes agents from its list; ended ones observe sevens."""

    def step(self, actions):
        self.agents = list(actions)
        seen, *rest = super().step(actions)
        self.agents = list(self.possible_agents)
        return {a: np.full(2, 7, np.float32) for a in self.agents} | seen, *rest


@pytest.mark.parametrize("factory", [zoo_relay.Relay, Stays])
def test_rows_of_agents_that_act_that_ended_and_of_the_next_episode(factory):
    """The agents live for 2, 1 and 4 steps."""
    with make(factory) as env:
        assert env.final_observations and env.num_environments == 1
        rows = started(env)
        assert rows.observations.tolist() == [[0, 0], [0, 1], [0, 2]]
        assert (
            not rows.rewards.any()
            and not rows.terminals.any()
            and not np.any(rows.final_observations)
        )
        seen = [step(env, rows, [0, 1, 2]) for _ in range(6)]
    expected = [  # rewards, final_observations and terminals of each step
        ([0, 11, 22], [0, T, 0], [0, 0, 0]),
        ([0, 0, 22], [T, T, 0], [0, 1, 0]),
        ([0, 0, 22], [T, T, 0], [1, 1, 0]),
        ([0, 0, 22], [T, T, L], [1, 1, 0]),
        ([0, 0, 0], [0, 0, 0], [1, 1, 1]),
        ([0, 11, 22], [0, T, 0], [0, 0, 0]),
    ]
    rewards, over, terminals = zip(*expected, strict=True)
    assert [row.rewards.tolist() for row in seen] == [*rewards]
    assert final_observations(seen) == [*over]
    assert [row.terminals.tolist() for row in seen] == [*terminals]
    assert seen[0].observations.tolist() == [[1, 0], [1, 1], [1, 2]]
    assert seen[1].observations.tolist() == [[2, 0], [0, 0], [2, 2]]
    assert seen[4].observations.tolist() == [[0, 0], [0, 1], [0, 2]]


def test_only_present_agents_get_actions_and_only_outer_resets_have_seeds():
    instances = []

    def factory():
        instances.append(zoo_relay.Relay())
        return instances[-1]

    with make(factory, agents=6, seed=5) as env:
        rows = started(env)
        for _ in range(5):
            step(env, rows, [2, 1, 0] * 2)
        took = [list(actions.values()) for actions in instances[-1].took]
        assert took == [[2, 1, 0], [2, 0], [0], [0]]
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
    """Relay whose runner 1 ends in step 1, returns in step 3, and runs until step 5."""

    def reset(self, seed=None, options=None):
        self.lives = [6, 1, 6]
        return super().reset(seed, options)

    def step(self, actions):
        seen, rewards, ended, limit, infos = super().step(actions)
        if self.t == 3:
            self.lives[1] = 5
            self.agents.insert(1, "runner_1")
            seen |= self.look(["runner_1"])
            rewards["runner_1"] = 0.0
            ended["runner_1"] = limit["runner_1"] = False
        return seen, rewards, ended, limit, infos


def test_agent_that_returns_begins_a_new_episode():
    """``Relay`` asserts that it gets actions again."""
    with make(Back) as env:
        rows = started(env)
        seen = [step(env, rows, [0, 2, 0]) for _ in range(8)]
        middle = [row.observations[1].tolist() for row in seen]
        assert middle == [[1, 1], [0, 0], [3, 1], [4, 1], [5, 1], [0, 0], [0, 1], [1, 1]]
        assert [row[1] for row in final_observations(seen)] == [T, T, 0, 0, T, T, 0, T]
        assert [row.terminals[1] for row in seen] == [0, 1, 1, 0, 0, 1, 1, 0]
        assert [row.rewards[1] for row in seen[3:5]] == [12, 12]
        assert sorted(e["episode_length"] for e in env.episodes()) == [1, 1, 2, 6, 6]


# ---- Results -------------------------------------------------------------------------------------


def bent(change: Any, reset: Any = None) -> Any:
    """Return a class of relays of 4 steps whose results are changed by functions."""

    class Bent(zoo_relay.Relay):
        def __init__(self):
            super().__init__(lives="4 4 4")

        def reset(self, seed=None, options=None):
            result = super().reset(seed, options)
            return reset(*result) if reset else result

        def step(self, actions):
            return change(*super().step(actions))

    return Bent


def arrays(seen, rewards, ended, limit, infos):
    shaped = [{a: np.array([x]) for a, x in each.items()} for each in (rewards, ended, limit)]
    return seen, *shaped, dict.fromkeys(infos)


def without(where: int):
    """Return a class of relays in whose results runner 2 is missing.

    ``where`` says in which of a step's five dictionaries.
    """

    def change(*result):
        result[where].pop("runner_2")
        return result

    return bent(change)


@pytest.mark.parametrize(
    ("factory", "last", "reward"),
    [
        (bent(arrays, lambda seen, _: (seen, dict.fromkeys(seen))), L, 22),
        (bent(lambda s, r, ended, limit, i: (s, r, limit, None, i)), T, 22),
        (without(1), L, 0),
        (without(4), L, 22),
    ],
    ids=["arrays, no infos", "no limits", "no reward", "no info"],
)
def test_results_of_other_types_are_accepted(factory, last: float, reward: float):
    with make(factory) as env:
        rows = started(env)
        seen = [step(env, rows, [0, 1, 2]) for _ in range(4)]
        assert [row.rewards.tolist() for row in seen] == [[0, 11, reward]] * 4
        assert final_observations(seen) == [[0, 0, 0]] * 3 + [[last] * 3]
        assert [e["episode_length"] for e in env.episodes()] == [4] * 3


class Stranger(zoo_relay.Relay):
    def step(self, actions):
        result = super().step(actions)
        self.agents.append("runner_7")
        return result


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        (without(0), "returned no observation for agent runner_2, whic"),
        (
            bent(lambda seen, _, *rest: (seen, {"runner_1": [1, 2]}, *rest)),
            r"returned a reward for agent runner_1 of \[1, 2\], expected one number",
        ),
        (bent(lambda *all: all[:4]), "failed in step: it returned 4 values, expected"),
        (bent(None, lambda seen, _: (seen, 7)), "returned infos of 7, expected a dict"),
        (Stranger, ".*agent runner_7 .* possible_agents"),
    ],
)
def test_wrong_result_is_reported(factory, message: str):
    said = rf"relay: environment 0 \(seed 0\) {message}"
    with pytest.raises(UserError, match=said), make(factory) as env:
        step(env, started(env))


@pytest.mark.parametrize("source", ["seen", "infos"])
def test_masks_of_observations_or_infos(source: str):
    with make(env={"masks": source}) as env:
        assert env.spec.mask_size == 3 and env.spec.observation_size == 2
        rows = started(env)
        assert np.array(rows.masks).tolist() == [[0, 1, 1], [1, 0, 1], [1, 1, 0]]
        masks = step(env, rows, [1, 2, 0]).masks
        assert np.array(masks).tolist() == [[0, 1, 1], [1, 1, 1], [1, 1, 0]]
        assert "action_mask" not in env.log()


# ---- Groups and statistics -----------------------------------------------------------------------


def test_statistics_ignore_absent_agents():
    with Normalized(make(), observations=True, rewards=True, gamma=0.5) as env:
        rows = started(env)
        for _ in range(4):
            step(env, rows)
        seen = [[0, i] for i in range(3)] + [[1, i] for i in range(3)]
        seen += [[2, 0], [2, 2], [3, 2], [4, 2]]
        found = env.statistics()
        assert found["observations.count"] == len(seen)
        np.testing.assert_allclose(found["observations.mean"], np.mean(seen, 0))
        np.testing.assert_allclose(found["observations.variance"], np.var(seen, 0))
        assert found["return.count"] == 3 + 2 + 1 + 1


# ---- Names ---------------------------------------------------------------------------------------


def test_environment_is_found_by_name_and_total_agents_lowered_to_a_multiple():
    """Gymnasium's wrappers can't be used with it."""
    words = ["--vec.num-buffers", "1", "--wrap.frame-stack", "2", "--family", "discrete"]
    config = c.load("zoo_relay:relay", words)
    with vec.make(config, 1) as env:
        assert (env.num_environments, env.spec.observation_size, env.final_observations) == (
            2,
            2,
            True,
        )
        assert (env.num_agents, config.vec.total_agents) == (6, 6)
        assert vec.unused_env_keys(config, env) == ["wrap.frame_stack (for Gymnasium's)"]
    assert any("vec.total_agents 8" in note and "lowered to 6" in note for note in config.notes)


def test_render_shows_the_picture_or_says_that_there_is_none():
    class Blind(zoo_relay.Relay):
        """Relay whose ``render`` raises, as that of PettingZoo's ParallelEnv does."""

        def render(self):
            raise NotImplementedError

    with make(render=True) as env:
        started(env)
        assert np.shape(env.render()) == (4, 5, 3)
    said = pytest.raises(UserError, match=r"it can't be drawn: it has no render\(\)\n  hint: take")
    with said, make(Blind, render=True) as env:
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


def test_agents_that_take_turns_are_refused():
    class Turns(zoo_relay.Relay):
        agent_selection = "runner_0"

    with pytest.raises(UserError, match=r"take turns \(AEC\), expected a parallel one") as caught:
        make(Turns)
    assert "returns pettingzoo.utils.aec_to_parallel(env)" in caught.value.hint


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("classic/rsp_v2", "PettingZoo has no such parallel.*\n.*pettingzoo:classic/rps-v2"),
        ("classic/chess_v6", "its agents take turns.*\n.*use a function that returns "),
        ("quite/other_v1", "PettingZoo has no such parallel.*\n.*puffer-mlx list has what is "),
    ],
)
def test_unknown_name_suggests_another(name: str, message: str, monkeypatch):
    pettingzoo = types.SimpleNamespace(
        parallel_registry={"classic/rps-v2": 0, "sisl/pursuit-v5": 0},
        aec_registry={"classic/rps-v2": 0, "classic/chess-v6": 0},
        make=None,
        spec=lambda kind, name: 1 / 0,
    )
    monkeypatch.setitem(sys.modules, "pettingzoo", pettingzoo)
    with pytest.raises(UserError, match=message):
        find_parallel(name)


def test_names_are_read_without_an_import(monkeypatch, tmp_path):
    package = tmp_path / "pettingzoo"
    (package / "sisl").mkdir(parents=True)
    (package / "__init__.py").write_text("1 / 0\n")
    (package / "sisl" / "pursuit_v5.py").write_text("from .pursuit import env, parallel_env\n")
    (package / "sisl" / "chess_v6.py").write_text("from .chess import env\n")
    (tmp_path / "mpe2").mkdir()
    (tmp_path / "mpe2" / "simple_v3.py").write_text("def parallel_env(): ...\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "pettingzoo", raising=False)
    monkeypatch.delitem(sys.modules, "mpe2", raising=False)
    assert parallel_names() == {"mpe2": ["mpe2.simple_v3"], "sisl": ["sisl.pursuit_v5"]}
    assert (
        missing_group_package("sisl") == "pettingzoo[sisl]" and missing_group_package("mpe2") == ""
    )


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("sisl.prsuit_v5", "No module named .*prsuit_v5'\n.*pettingzoo:sisl.pursuit_v"),
        ("nothing", "pettingzoo:nothing: there is no module nothing"),
        ("zoo_relay", "zoo_relay has no parallel_env"),
        ("", r"PettingZoo can't be imported.*\n.*pip install 'puffer-mlx\[pettingzoo\]'"),
    ],
)
def test_module_without_a_parallel_environment_is_reported(name: str, message: str, monkeypatch):
    pytest.importorskip("pettingzoo")
    if not name:
        monkeypatch.setitem(sys.modules, "pettingzoo", None)
    with pytest.raises(UserError, match=message):
        find_parallel(name or "mpe2.simple_spread_v3")


# ---- Trained -------------------------------------------------------------------------------------


# ---- The real package ----------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", ["classic/rps_v2", "classic.rps_v2"])
def test_environment_of_pettingzoo_is_stepped(name: str):
    package = pytest.importorskip("pettingzoo")
    if "/" in name and not hasattr(package, "make"):
        pytest.skip("this PettingZoo has no IDs")
    words = ["--vec.total-agents", "4", "--vec.num-buffers", "1"]
    with vec.make(c.load(f"pettingzoo:{name}", words), 1) as env:
        assert env.num_environments == 2 and env.spec.action.sizes == (3,)
        rows = started(env)
        ends = [np.array(step(env, rows).final_observations).tolist() for _ in range(20)]
        assert [L] * 4 in ends and env.log()["episode_length"] == 15


def test_error_while_a_process_imports_is_reported(tmp_path, monkeypatch):
    """An EOFError would otherwise look like the end of the program."""
    (tmp_path / "truncated.py").write_text(
        "import multiprocessing\n"
        "from zoo_relay import Relay\n"
        "Relay = type('Relay', (Relay,), {'__module__': __name__})\n"
        "if multiprocessing.parent_process():\n"
        "    raise EOFError('Ran out of input')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    relay = importlib.import_module("truncated").Relay
    with pytest.raises(UserError, match=r"failed in its process: EOFError: Ran out of input\n"):
        make(relay, 6, backend="async", num_threads=2)
