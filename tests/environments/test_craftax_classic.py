"""craftax_classic against what the original played, and its rules one by one.

benchmarks/craftax_original.py compares 100,000 steps with the package itself; it wrote the
recording that is played again here: the original's random choices, and checksums of its states.
"""

import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
from native_envs import Stepper, draw_of, make

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "benchmarks"))

import craftax_original as original  # type: ignore # noqa: E402

RECORDING = ROOT / "tests" / "data" / "craftax_classic.npz"
NOOP, LEFT, RIGHT, UP, DOWN, DO, SLEEP, STONE, TABLE, FURNACE, SAPLING, MAKE = range(12)
NEVER = 2**31 - 256  # of a chance: nothing happens
BLOCK = {name: number for number, name in enumerate(original.BLOCKS)}
ITEM = {name: number for number, name in enumerate(original.ITEMS)}


@pytest.fixture(scope="module")
def rules(tmp_path_factory):
    return original.Rules(tmp_path_factory.mktemp("rules"))


def test_recording_of_the_original_is_reproduced(rules):
    """2,880 steps of 24 episodes: every state, reward, end and observation."""
    recorded = np.load(RECORDING, allow_pickle=False)
    states = recorded["first"].view(original.STATE).copy()
    begun = recorded["begun"].view(original.STATE)
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
        new = recorded["begun_step"] == step
        states[recorded["begun_slot"][new]] = begun[new]
        ended += over.sum()
    assert ended > 20


def test_recorded_world_is_reproduced(rules):
    recorded = np.load(RECORDING, allow_pickle=False)
    expected = recorded["world"].view(original.STATE)
    made = rules.begin(recorded["world_choices"])
    which = original.differences(made, expected)
    assert not any(different.any() for different in which.values()), which
    assert abs(float(made["light"][0]) - float(expected["light"][0])) < original.LIGHT_BOUND


def test_worlds_differ_and_begin_on_grass():
    """First observations of 4,096 worlds: grass under the player, no water or stone nearby."""
    with make("craftax_classic", total_agents=4096, num_threads=2) as vec:
        first = Stepper(vec).rows.observations
    blocks = first[:, : 63 * 21].reshape(-1, 7, 9, 21)[..., :17].argmax(-1)
    assert (blocks[:, 3, 4] == BLOCK["grass"]).all()
    assert set(np.unique(blocks[:, 2:5, 3:6])) <= {BLOCK["grass"], BLOCK["tree"]}
    assert len({zlib.crc32(row.tobytes()) for row in blocks}) > 3000


# ---- The rules one by one ------------------------------------------------------------------------


class World:
    """One state on grass, in which nothing happens by chance."""

    def __init__(self, rules, **items: int) -> None:
        self.rules = rules
        choices = np.full((1, rules.world_choices), NEVER, np.int32)
        choices[0, :636] = np.arange(636) * 12345 % 2**31  # angles
        self.states = rules.begin(choices)
        self.state = self.states[0]
        self.state["cells"] = BLOCK["grass"]
        for name, count in items.items():
            self.state["inventory"][ITEM[name]] = count
        self.choices = np.full((1, rules.step_choices), NEVER, np.int32)

    def put(self, down: int, right: int, block: str) -> None:
        """Put a block at an offset from the player."""
        cell = (self.state["row"] + down) * 64 + self.state["column"] + right
        self.state["cells"][cell] = BLOCK[block]

    def ahead(self) -> str:
        cell = (self.state["row"] - 1) * 64 + self.state["column"]
        return original.BLOCKS[self.state["cells"][cell] & 31]

    def play(self, action: int) -> float:
        actions = np.array([action], np.int32)
        rewards, over, _ = self.rules.play(self.states, self.choices, actions)
        self.over = bool(over[0])
        return float(rewards[0])

    def has(self, **items: int) -> bool:
        return all(self.state["inventory"][ITEM[name]] == count for name, count in items.items())


@pytest.mark.parametrize(
    ("block", "tool", "item", "left"),
    [
        ("tree", None, "wood", "grass"),
        ("stone", "wood_pickaxe", "stone", "path"),
        ("diamond", "iron_pickaxe", "diamond", "path"),
    ],
)
def test_block_is_mined_with_its_tool(rules, block, tool, item, left):
    if tool is not None:
        bare = World(rules, **{name: 1 for name in ITEM if "pickaxe" in name and name != tool})
        bare.put(-1, 0, block)
        assert bare.play(DO) == 0 and bare.ahead() == block
    world = World(rules, **({tool: 1} if tool else {}))
    world.put(-1, 0, block)
    assert world.play(DO) == 1 and world.ahead() == left and world.has(**{item: 1})
    world.put(-1, 0, block)
    assert world.play(DO) == 0 and world.has(**{item: 2})  # a reward once an episode


COSTS = {
    "wood_pickaxe": {"wood": 1},
    "iron_pickaxe": {"wood": 1, "stone": 1, "coal": 1, "iron": 1},
    "stone_sword": {"wood": 1, "stone": 1},
}


@pytest.mark.parametrize(
    ("number", "tool"), [(0, "wood_pickaxe"), (2, "iron_pickaxe"), (4, "stone_sword")]
)
def test_crafting_needs_its_materials_and_places(rules, number, tool):
    costs = COSTS[tool]
    needs = ["table", "furnace"] if "iron" in tool else ["table"]
    for missing in [*costs, *needs, None]:
        world = World(rules, **{item: 1 for item in costs if item != missing})
        for place, block in enumerate(needs):
            if block != missing:
                world.put(1, 1 - 2 * place, block)
        assert world.play(MAKE + number) == (0 if missing else 1), missing
        assert world.has(**{tool: 0 if missing else 1})
        assert missing is not None or world.has(**dict.fromkeys(costs, 0))


def test_blocks_are_placed_and_plants_ripen(rules):
    world = World(rules, wood=3, stone=2, sapling=1)
    assert world.play(TABLE) == 1 and world.ahead() == "table" and world.has(wood=1)
    assert world.play(STONE) == 0 and world.ahead() == "table"
    world.put(-1, 0, "water")
    assert world.play(FURNACE) == 0 and world.play(STONE) == 1 and world.ahead() == "stone"
    world.put(-1, 0, "path")
    assert world.play(SAPLING) == 0 and world.play(FURNACE) == 1 and world.has(stone=0)
    world.put(-1, 0, "grass")
    assert world.play(SAPLING) == 1 and world.ahead() == "plant" and world.has(sapling=0)
    for _ in range(598):
        world.state["food"], world.state["drink"], world.state["energy"] = 8, 8, 8
        assert world.play(NOOP) == pytest.approx(0, abs=0.2)
    assert world.ahead() == "plant" and world.play(NOOP) < 0.2 and world.ahead() == "ripe plant"
    world.state["food"], world.state["hunger"] = 2, 3.0
    assert world.play(DO) == pytest.approx(1, abs=0.2) and world.ahead() == "plant"
    assert world.state["food"] == 6


def test_zombie_hits_and_a_sword_kills_it(rules):
    """It hits every six steps for 2, and a sleeper for 7."""
    world = World(rules)
    world.choices[0, 7:10] = 0  # zombies come nearer
    zombie = world.state["zombies"][0]
    zombie["row"], zombie["column"], zombie["health"], zombie["alive"] = 31, 32, 5, 1
    world.state["cells"][31 * 64 + 32] |= 128
    rewards = [world.play(NOOP) for _ in range(8)]
    assert rewards == pytest.approx([-0.2, 0, 0, 0, 0, 0, -0.2, 0])
    world.state["sleeping"], world.state["energy"], zombie["cooldown"] = 1, 3, 0
    world.state["health"] = 9
    assert world.play(NOOP) == pytest.approx(1 - 0.7)  # woken up
    assert world.state["sleeping"] == 0
    world.state["inventory"][ITEM["iron_sword"]] = 1
    assert world.play(DO) == 1 and not zombie["alive"]
    assert world.state["cells"][31 * 64 + 32] == BLOCK["grass"]


def test_lava_ends_the_episode(rules):
    world = World(rules)
    world.put(0, 1, "lava")
    assert world.play(RIGHT) == pytest.approx(-0.9)
    assert (world.state["health"], world.state["column"], world.over) == (0, 33, True)


def test_episode_ends_after_ten_thousand_steps(rules):
    world = World(rules)
    world.state["tick"] = 9998
    assert [(world.play(NOOP), world.over) for _ in range(2)] == [(0, False), (0, True)]


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


def test_picture_shows_blocks_health_and_night():
    draw = draw_of("craftax_classic")
    observation = np.zeros(1345, np.float32)
    cells = observation[: 63 * 21].reshape(7, 9, 21)
    cells[..., BLOCK["sand"]] = 1
    cells[2, 6, [BLOCK["sand"], BLOCK["water"]]] = 0, 1
    observation[63 * 21 + 12] = 0.4  # health
    observation[-2] = 1
    picture = draw(observation)
    assert picture.shape == (273, 270, 3)
    assert (picture[60:90, 180:210] == (40, 100, 190)).all()
    assert (picture[:60] == (214, 196, 140)).all()
    observation[-2] = 0
    assert draw(observation)[0, 0].sum() < picture[0, 0].sum() / 2
    observation[63 * 21 + 12] = 0.9
    assert (draw(observation)[210:] != picture[210:]).any()
