"""Games of two players: their agents, what counts as a win, and that players share nothing."""

import math
from typing import Any, cast

import mlx.core as mx
import numpy as np
import pytest
import zoo_duel
from hypothesis import given, settings
from hypothesis import strategies as st
from native_envs import edited, folder_of, make, parameters
from small_policies import weights_of
from stepping import zoo_vec

from puffer_mlx import config
from puffer_mlx.errors import UserError
from puffer_mlx.evaluation.games import play_pair
from puffer_mlx.evaluation.players import Player, policy_player, random_player, scripted_player
from puffer_mlx.evaluation.results import PairResult, Tally, elo_ratings, wilson_interval
from puffer_mlx.policy.policy import make_policy
from puffer_mlx.spec import ActionSpec, EnvSpec
from puffer_mlx.vec.base import Environments
from puffer_mlx.vec.native.vec import NativeVec

pytest.importorskip("gymnasium")

SPEC = EnvSpec("duel", 3, np.dtype(np.float32), ActionSpec((9,)))


class Duel:
    """Stub environments: number e has games of e + 1 steps; rewards are the agents' choices.

    An agent sees its index, the step of its game and the number of earlier games.
    ``lone``: an episode ends for agent 0 alone.
    """

    spec, final_observations, num_groups = SPEC, False, 1

    def __init__(self, count: int, agents: int = 2, lone: bool = False) -> None:
        self.num_environments, self.num_agents, self.lone = count, agents * count, lone
        self.agents = agents

    def reset(self, out) -> None:
        self.step, self.game = np.zeros((2, self.num_environments), int)
        self._show(out)

    def _show(self, out) -> None:
        out.observations[:, 0] = np.arange(self.num_agents) % self.agents
        out.observations[:, 1] = self.step.repeat(self.agents)
        out.observations[:, 2] = self.game.repeat(self.agents)

    def send(self, group, actions, out) -> None:
        self.step += 1
        over = self.step > np.arange(self.num_environments)
        out.rewards[:] = actions[:, 0]
        out.terminals[:] = over.repeat(self.agents)
        if self.lone:
            out.terminals[1 :: self.agents] = 0
        self.step[over] = 0
        self.game[over] += 1
        self._show(out)

    def wait(self, group) -> None:
        pass


def duel(first: Player, second: Player, count=4, each=3, seed=0, **how: Any) -> PairResult:
    keywords = {key: how.pop(key) for key in ("agents", "lone") if key in how}
    vec = cast(Environments, Duel(count, **keywords))
    return play_pair(first, second, vec, each, seed, **how)


def constant(choice: float) -> Player:
    return Player(f"{choice}", lambda n, _: lambda rows: np.full((n, 1), choice, np.float32))


def by_table(table: np.ndarray) -> Player:
    """Return a player whose choices are in a table, by agent, step and game."""
    find = lambda rows: table[tuple(rows.observations.astype(int).T)][:, None]  # noqa: E731
    return Player("by a table", lambda n, _: find)


def won(first: np.ndarray, second: np.ndarray, env: int, game: int) -> int:
    """Compute who won a game, from both players' choices: the sign of the sum of rewards."""
    side = env % 2
    agents = first.shape[0]
    total = 0.0
    for step in range(env + 1):
        for agent in range(agents):
            mine = (agent < agents // 2) == (side == 0)
            total += first[agent, step, game] if mine else -second[agent, step, game]
    return int(np.sign(total))


@settings(max_examples=40)
@given(
    seed=st.integers(0, 1000),
    agents=st.sampled_from([2, 4, 6]),
    count=st.sampled_from([2, 4]),
    each=st.integers(1, 3),
)
def test_results_are_those_of_a_loop_over_games_with_sides_swapped(seed, agents, count, each):
    rng = np.random.default_rng(seed)
    tables = rng.integers(0, 3, (2, agents, count, each + count * each)).astype(np.float32)
    counts = np.zeros((2, 3), int)
    for env in range(count):
        for game in range(each):
            counts[env % 2, 1 - won(tables[0], tables[1], env, game)] += 1
    seen = []
    first, second = map(by_table, tables)
    found = duel(first, second, count, each, agents=agents, progress=seen.append)
    assert found.sides == tuple(Tally(*row) for row in counts.tolist())
    assert found.steps == len(seen) == count * each  # games of the slowest
    assert seen == sorted(seen) and seen[-1] == count * each


def test_deterministic_players_play_few_distinct_games():
    """Environment e has games of e + 1 steps; each observation here shows the game's number."""
    two = constant(2)._replace(deterministic=True)
    one = constant(1)._replace(deterministic=True)
    found = duel(two, one)
    assert (found.distinct, found.interval) == (12, found.total.interval)
    found = zoo(two, one)  # a last observation belongs to no game
    assert (found.total, found.distinct) == (Tally(12, 0, 0), 2)
    assert found.independent == Tally(2, 0, 0) and found.interval is None
    assert str(found) == "12 wins, 0 draws, 0 losses: score 1.000 (2 distinct games), deterministic"
    found = zoo(two, constant(1))
    assert found.distinct is None and found.independent == found.total == Tally(12, 0, 0)


def test_each_player_has_its_own_seed():
    seeds = []

    def start(n, seed):
        seeds.append(seed)
        return constant(0).start(n, seed)

    player = Player("", start)
    for seed in 0, 0, 1:
        duel(player, player, seed=seed)
    assert seeds[:2] == seeds[2:4] and len(set(seeds)) == 4


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"agents": 3}, r"duel has 3 .*\n  hint: .*connect4_two"),
        ({"lone": True}, "ended for only some of an environment's 2 agents"),
        ({"max_steps": 5}, r"3 of 4 environments .* 3 games after 5 steps"),
    ],
)
def test_an_environment_that_is_no_game_of_two_is_refused(how, message):
    with pytest.raises(UserError, match=message):
        duel(constant(1), constant(1), **how)


def test_policies_and_tags_are_those_that_the_environment_declares():
    """In peloton the first agent is the learner's, and here policy 1 is paid in tagged games."""
    tagged = "env->agents[i].rewards[0] = env->agents[i].policy == (env->tag == 1);"
    folder = edited("peloton", ("env->agents[i].rewards[0] = 0.1f * (float)speed;", tagged))
    sat: list[int] = []

    def start(n, _):
        sat.append(n)
        return lambda rows: np.full((n, 1), 2, np.float32)

    with NativeVec(folder, total_agents=12, env=parameters("peloton")) as vec:
        found = play_pair(Player("", start), constant(2), vec, 1, 0)
    assert found.sides == (Tally(0, 0, 2), Tally(2, 0, 0))
    assert sat == [2 * 1 + 2 * 2]  # in two environments the one, in two the other two


# ---- PettingZoo --------------------------------------------------------------------------------


def zoo(first: Player, second: Player, count: int = 4, each: int = 3, **env) -> PairResult:
    agents = count * env.get("agents", 2)
    how = {"name": "duel", "total_agents": agents, "backend": "sync", "env": env}
    with zoo_vec(zoo_duel.Duel, **how) as vec:
        return play_pair(first, second, vec, each, 0)


def test_last_observations_of_python_environments_are_counted_once():
    found = zoo(constant(2), constant(1), agents=4)
    assert found.sides == (Tally(6, 0, 0), Tally(6, 0, 0))
    assert found.steps == 3 * 3 + 2  # three games, and the first rows of two


def test_an_agent_that_leaves_early_counts_until_then():
    """Agent 1's choices count once then: 3 + 1 against 3 + 3, and 6 + 2 of who chooses twice it."""
    one, two = constant(1), constant(2)
    found = zoo(one, one, agents=4, leaves=True)
    assert found.sides == (Tally(0, 0, 6), Tally(6, 0, 0))
    assert zoo(two, one, agents=4, leaves=True).total == Tally(12, 0, 0)


def test_each_policy_normalises_by_its_own_statistics():
    seen = []

    class Plain:
        """Stub of a policy that records observations and always chooses 0."""

        distribution, is_recurrent = None, False
        initial_state = not_done = staticmethod(lambda _: None)

        def act(self, weights, observations, *_):
            seen.append(np.array(observations))
            return mx.zeros((len(observations), 1)), 0, 0, mx.zeros(1)

    memory = {
        "observations.mean": np.array([1.0, 0.0]),
        "observations.variance": np.array([4.0, 1.0]),
        "observations.count": np.array(9.0),
    }
    one = policy_player("", cast(Any, Plain()), None, True, memory)
    other = policy_player("", cast(Any, Plain()), None, True)
    zoo(one, other, count=2, each=1)
    assert [rows[:, 0].tolist() for rows in seen[2:4]] == [[0.0, 0.0], [1.0, 1.0]]  # step 1
    np.testing.assert_allclose(seen[0][:, 0], -0.5, rtol=1e-6)


# ---- connect4_two --------------------------------------------------------------------------------


def play(first: Player, second: Player, games: int = 256, seed: int = 0) -> PairResult:
    with make("connect4_two", total_agents=2 * games) as vec:
        return play_pair(first, second, vec, 1, seed)


RANDOM = random_player(ActionSpec((7,)))


def bot(skill: float) -> Player:
    return scripted_player("bot", folder_of("connect4_two"), skill, 1)


def test_the_scripted_player_beats_random_choices():
    """0.961 of many games, as the opponent in C does; without skill it is random itself."""
    at_0, at_1 = play(bot(1), RANDOM).sides
    assert at_0.games == at_1.games == 128
    assert min(at_0.score, at_1.score) > 0.88
    assert 0.38 < play(bot(0), RANDOM).total.score < 0.62


def test_a_policy_against_itself_wins_half_and_repeats_by_seed():
    with make("connect4_two", total_agents=2) as vec:
        policy = make_policy(vec.spec, config.Policy(16, 1), config.Torch())
    player = policy_player("", policy, weights_of(policy, 3), False)
    result = play(player, player)
    assert 0.38 < result.total.score < 0.62
    assert result == play(player, player)
    assert result != play(player, player, seed=1)


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (None, "has no scripted player"),
        ("def choose(*_): return [1]", r"choose returned \(1,\), not \(256, 1\)"),
    ],
)
def test_a_bot_without_a_usable_script_is_refused(tmp_path, script, message):
    if script is not None:
        (tmp_path / "bot.py").write_text(script)
    with pytest.raises(UserError, match=message):
        play(scripted_player("bot", tmp_path, 1, 1), RANDOM)


def test_random_choices_are_legal_and_even():
    choose = random_player(ActionSpec((2, 3))).start(3000, 0)
    masks = np.tile(np.array([1, 1, 0, 1, 1], np.uint8), (3000, 1))
    rows = cast(Any, type("", (), {"masks": masks}))
    actions = choose(rows)
    assert actions.shape == (3000, 2) and actions.dtype == np.float32
    for head, legal in enumerate(([0, 1], [1, 2])):
        values, counts = np.unique(actions[:, head], return_counts=True)
        assert values.tolist() == legal and counts.min() > 1350
    continuous = random_player(ActionSpec((1, 1))).start(5, 0)(rows)
    assert continuous.shape == (5, 2) and continuous.dtype == np.float32


# ---- intervals and ratings, compared with numbers worked out by hand -----------------------------


def test_the_score_counts_draws_as_half():
    tally = Tally(wins=3, draws=4, losses=1)
    assert (tally.games, tally.score) == (8, 5 / 8)
    result = PairResult((tally, Tally(1, 1, 1)), 9)
    assert result.total == Tally(4, 5, 2)
    low, high = wilson_interval(result.total)
    assert (
        str(result)
        == f"4 wins, 5 draws, 2 losses: score 0.591 ({low:.3f} to {high:.3f}), sampled actions"
    )


def test_the_interval_is_wilsons():
    """For 0 of 10 it is 0 to z^2 / (10 + z^2); for a half it is symmetric."""
    low, high = wilson_interval(Tally(0, 0, 10))
    assert (low, high) == (0, pytest.approx(3.841459 / 13.841459, abs=1e-7))
    assert wilson_interval(Tally(10, 0, 0)) == (pytest.approx(1 - high), pytest.approx(1))
    low, high = wilson_interval(Tally(40, 20, 40))  # 0.5 ± z / 2 / sqrt(100 + z^2)
    assert (low, high) == pytest.approx((0.403832, 0.596168), abs=1e-6)
    low, high = wilson_interval(Tally(70, 0, 30))  # a table's: 0.6042, 0.7811
    assert (low, high) == pytest.approx((0.6042, 0.7811), abs=1e-4)


def test_two_ratings_are_the_odds_with_a_draw_added():
    """(90 + 1/2) to (9 + 1/2); each rating is half of the difference."""
    half = 200 * math.log10(90.5 / 9.5)
    assert elo_ratings({(0, 1): Tally(90, 0, 9)}, 2) == pytest.approx([half, -half])
    assert elo_ratings({(0, 1): Tally(9, 0, 90)}, 2) == pytest.approx([-half, half])
    assert elo_ratings({(0, 1): Tally(80, 20, 0)}, 2) == pytest.approx(  # draws are half a win
        [200 * math.log10(90.5 / 10.5), -200 * math.log10(90.5 / 10.5)]
    )
    assert elo_ratings({(0, 1): Tally(5, 7, 5)}, 2) == pytest.approx([0, 0])
    never_lost = elo_ratings({(0, 1): Tally(4096, 0, 0)}, 2)
    assert never_lost[0] == pytest.approx(200 * math.log10(4096.5 / 0.5))


def test_ratings_of_three_players_are_their_strengths():
    """Strengths 4 : 2 : 1 exactly: 2/3, 4/5 and 2/3 of the points, the added draw among them."""
    points = {(0, 1): (2, 1), (1, 2): (2, 1), (0, 2): (4, 1)}
    results = {}
    for pair, (mine, its) in points.items():
        games = 3 * 5 * 100
        won = games * mine // (mine + its)
        results[pair] = Tally(won - 1, 1, games - won - 1)  # and half of the added draw
    step = 400 * math.log10(2)
    assert elo_ratings(results, 3) == pytest.approx([step, 0, -step], abs=1e-4)
