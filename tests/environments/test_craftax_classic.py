"""craftax_classic compared with recordings of the original, and in small test worlds.

The recording contains the original's random choices, and checksums of its states.
benchmarks/craftax_original.py wrote it; that program compares 100,000 steps with the original.
"""

import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
from native_envs import Stepper, make

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "benchmarks"))

import craftax_original as original  # type: ignore # noqa: E402

RECORDING = ROOT / "tests" / "data" / "craftax_classic.npz"
NOOP, RIGHT, DO = 0, 2, 5
NEVER = 2**31 - 256  # random choice for which no random event happens
ITEM = {name: number for number, name in enumerate(original.ITEMS)}
BLOCK = {name: number for number, name in enumerate(original.BLOCKS)}


@pytest.fixture(scope="module")
def rules(tmp_path_factory):
    return original.Rules(tmp_path_factory.mktemp("rules"))


def test_recording_of_the_original_is_reproduced(rules):
    """All states, rewards, terminals and observations of 2,880 steps are equal."""
    recorded = np.load(RECORDING, allow_pickle=False)
    states = recorded["first"].view(original.STATE).copy()
    new_states = recorded["begun"].view(original.STATE)  # of the episodes that begin later
    ended = 0
    for step, (choices, actions) in enumerate(
        zip(recorded["choices"], recorded["actions"], strict=True)
    ):
        rewards, over, observations = rules.play(states, choices, actions)
        np.testing.assert_allclose(rewards, recorded["rewards"][step], rtol=0, atol=1e-6)
        np.testing.assert_array_equal(over, recorded["terminals"][step])
        assert [original.digest(state) for state in states] == recorded["states"][step].tolist()
        seen = [zlib.crc32(np.delete(row, original.LIGHT).tobytes()) for row in observations]
        assert seen == recorded["observations"][step].tolist()
        np.testing.assert_array_equal(observations[:, original.LIGHT], states["light"])
        is_new = recorded["begun_step"] == step
        states[recorded["begun_slot"][is_new]] = new_states[is_new]
        ended += over.sum()
    assert ended > 20


def test_recorded_world_is_reproduced(rules):
    recorded = np.load(RECORDING, allow_pickle=False)
    expected = recorded["world"].view(original.STATE)
    world = rules.begin(recorded["world_choices"])
    differences = original.differences(world, expected)
    assert not any(different.any() for different in differences.values()), differences
    assert abs(float(world["light"][0]) - float(expected["light"][0])) < original.LIGHT_BOUND


def test_worlds_differ_and_begin_on_grass():
    """First observations of 4,096 worlds: grass under the player, no water or stone nearby."""
    with make("craftax_classic", total_agents=4096, num_threads=2) as vec:
        first = Stepper(vec).rows.observations
    cells = first[:, : 63 * 21].reshape(-1, 7, 9, 21)  # 7 rows, 9 columns
    blocks = cells[..., :17].argmax(-1)  # one-hot; mobs follow
    assert (blocks[:, 3, 4] == BLOCK["grass"]).all()
    assert set(np.unique(blocks[:, 2:5, 3:6])) <= {BLOCK["grass"], BLOCK["tree"]}
    assert len({zlib.crc32(row.tobytes()) for row in blocks}) > 3000


class World:
    """A Craftax world whose random numbers are chosen such that no random event happens."""

    def __init__(self, rules) -> None:
        self.rules = rules
        choices = np.full((1, rules.world_choices), NEVER, np.int32)
        choices[0, :636] = np.arange(636) * 12345 % 2**31  # gradient angles of the terrain
        self.states = rules.begin(choices)
        self.state = self.states[0]
        self.choices = np.full((1, rules.step_choices), NEVER, np.int32)

    def play(self, action: int) -> float:
        actions = np.array([action], np.int32)
        rewards, over, _ = self.rules.play(self.states, self.choices, actions)
        self.over = bool(over[0])
        return float(rewards[0])


def test_diamond_is_mined_with_an_iron_pickaxe(rules):
    world = World(rules)
    cells, inventory = world.state["cells"], world.state["inventory"]
    ahead = (world.state["row"] - 1) * 64 + world.state["column"]
    cells[ahead] = BLOCK["diamond"]
    inventory[ITEM["stone_pickaxe"]] = 1
    assert world.play(DO) == 0
    inventory[ITEM["iron_pickaxe"]] = 1
    assert world.play(DO) == 1
    assert (inventory[ITEM["diamond"]], cells[ahead]) == (1, BLOCK["path"])


def test_lava_ends_the_episode(rules):
    world = World(rules)
    world.state["cells"][world.state["row"] * 64 + world.state["column"] + 1] = BLOCK["lava"]
    assert world.play(RIGHT) == pytest.approx(-0.9)
    assert (world.state["health"], world.state["column"], world.over) == (0, 33, True)


def test_log_of_random_play_is_consistent():
    with make("craftax_classic", total_agents=64, num_threads=2) as vec:
        stepper, rng = Stepper(vec), np.random.default_rng(1)
        for _ in range(600):
            stepper.step(rng.integers(0, 17, 64))
        log = vec.log()
    assert log["score"] == log["episode_return"] == pytest.approx(22 * log["perf"], rel=1e-5)
    assert (
        log["achievements"] == pytest.approx(sum(list(log.values())[5:27]), rel=1e-5)
        and log["collect_wood"] > 0.2
    )
