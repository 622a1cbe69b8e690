"""Games of two players: their seats, what counts as a win, and that players share nothing."""

from pathlib import Path
from typing import Any, cast

import mlx.core as mx
import numpy as np
import pytest
import zoo_duel
from native_envs import edited, folder_of, make, parameters
from small_policies import weights_of
from stepping import zoo_vec

from puffer_mlx import config
from puffer_mlx.errors import UserError
from puffer_mlx.evaluation.games import play_pair
from puffer_mlx.evaluation.players import Player, policy_player, random_player, scripted_player
from puffer_mlx.evaluation.results import PairResult, Tally
from puffer_mlx.policy.policy import make_policy
from puffer_mlx.spec import ActionSpec, EnvSpec
from puffer_mlx.vec.base import Environments
from puffer_mlx.vec.native.vec import NativeVec

pytest.importorskip("gymnasium")
Zoo = zoo_duel.Duel

SPEC = EnvSpec("duel", 2, np.dtype(np.float32), ActionSpec((9,)))


class Duel:
    """Environment e has games of e + 1 steps; the larger choices of the last step win.

    The reward is the difference of the choices. An agent sees its seat and the step of its game.
    ``lone``: an episode ends for agent 0 alone.
    """

    spec, finals, num_groups = SPEC, False, 1

    def __init__(self, count: int, agents: int = 2, lone: bool = False) -> None:
        self.num_environments, self.num_agents, self.lone = count, agents * count, lone
        self.agents = agents

    def reset(self, out) -> None:
        self.step = np.zeros(self.num_environments, int)
        self._show(out)

    def _show(self, out) -> None:
        out.observations[:, 0] = np.arange(self.num_agents) % self.agents
        out.observations[:, 1] = self.step.repeat(self.agents)

    def send(self, group, actions, out) -> None:
        choices = actions.reshape(-1, 2, self.agents // 2)
        self.step += 1
        over = self.step > np.arange(self.num_environments)
        won = (choices[:, 0] - choices[:, 1]) * over[:, None]
        out.rewards[:] = np.stack([won, -won], 1).ravel()
        out.terminals[:] = over.repeat(self.agents)
        if self.lone:
            out.terminals[1 :: self.agents] = 0
        self.step[over] = 0
        self._show(out)

    def wait(self, group) -> None:
        pass


def duel(first: Player, second: Player, count=4, each=3, seed=0, **how: Any) -> PairResult:
    keywords = {key: how.pop(key) for key in ("agents", "lone") if key in how}
    vec = cast(Environments, Duel(count, **keywords))
    return play_pair(first, second, vec, each, seed, **how)


def constant(choice: float) -> Player:
    return Player(f"{choice}", lambda n, _: lambda rows: np.full((n, 1), choice, np.float32))


SEAT = Player("its seat", lambda n, _: lambda rows: rows.observations[:, :1])


def count_up() -> Player:
    """Return a player whose choice is the number of its earlier choices in this match."""

    def start(n, seed):
        asked = iter(range(10**6))
        return lambda rows: np.full((n, 1), next(asked), np.float32)

    return Player("count", start)


def test_each_environment_plays_the_same_number_of_games():
    seen = []
    found = duel(constant(2), constant(1), progress=seen.append)
    assert found.sides == (Tally(6, 0, 0), Tally(6, 0, 0)) and found.total == Tally(12, 0, 0)
    assert found.steps == len(seen) == 12  # the slowest: three games of four steps
    assert seen[-1] == 12 and seen == sorted(seen) and seen[0] == 1


def test_deterministic_players_play_few_distinct_games():
    """Environment e has games of e + 1 steps, so four environments have four."""
    fixed = [constant(choice)._replace(deterministic=True) for choice in (2, 1)]
    found = duel(fixed[0], fixed[1])
    assert (found.total, found.distinct) == (Tally(12, 0, 0), 4)
    assert found.independent == Tally(4, 0, 0) and found.interval is None
    assert str(found) == "12 wins, 0 draws, 0 losses: score 1.000 (4 distinct games), deterministic"
    ups = count_up()._replace(deterministic=True)  # each of its games is another one
    found = duel(ups, fixed[1])
    assert (found.distinct, found.interval) == (12, found.total.interval)


@pytest.mark.parametrize("stochastic", [0, 1])
def test_games_with_a_stochastic_player_are_all_distinct(stochastic):
    players = [constant(choice)._replace(deterministic=True) for choice in (2, 1)]
    players[stochastic] = players[stochastic]._replace(deterministic=False)
    found = duel(players[0], players[1])
    assert found.distinct is None and found.independent == found.total == Tally(12, 0, 0)


def test_choices_at_last_observations_belong_to_no_game():
    fixed = [constant(choice)._replace(deterministic=True) for choice in (2.0, 1.0)]
    found = zoo(fixed[0], fixed[1])
    assert (found.total, found.distinct) == (Tally(12, 0, 0), 2)


def test_the_larger_reward_wins_and_equal_ones_are_a_draw():
    assert duel(constant(1), constant(2)).total == Tally(0, 0, 12)
    assert duel(constant(2), constant(2)).total == Tally(0, 12, 0)
    player = count_up()  # which shares nothing with itself
    assert duel(player, player).total == duel(player, player).total == Tally(0, 12, 0)


def test_both_players_play_half_of_the_games_in_each_seat():
    """The choice of the seat's number beats 0.5 in seat 1 and loses in seat 0."""
    half = constant(0.5)
    for players in (SEAT, half), (half, SEAT), (SEAT, SEAT):
        assert duel(*players).sides == (Tally(0, 0, 6), Tally(6, 0, 0))


def test_a_player_acts_for_half_of_the_seats_and_sees_them_alone():
    sat: list[tuple[int, ...]] = []

    def start(n, _):
        def choose(rows):
            sat.append(tuple(rows.observations[:, 0].astype(int)))
            return np.full((n, 1), 0.5, np.float32)

        return choose

    quiet = Player("", start)
    found = duel(SEAT, quiet, agents=6)  # of 0 1 2 and 3 4 5, against halves
    assert found.sides == (Tally(6, 0, 0), Tally(6, 0, 0)) and found.total.games == 12
    assert set(sat) == {(3, 4, 5, 0, 1, 2, 3, 4, 5, 0, 1, 2)}


def test_the_rewards_of_a_team_are_added():
    """Four agents: 0 + 1 against 2 + 3."""

    def chooses(*choices: float) -> Player:
        """Return a player whose agents choose by their seats."""
        table = np.array(choices, np.float32)
        look = lambda rows: table[rows.observations[:, :1].astype(int)]  # noqa: E731
        return Player("", lambda n, _: look)

    one = chooses(2, 2, 2, 2)
    assert duel(one, chooses(3, 0, 3, 0), agents=4).total == Tally(12, 0, 0)
    assert duel(one, chooses(4, 1, 0, 3), agents=4).sides == (Tally(6, 0, 0), Tally(0, 0, 6))
    assert duel(one, chooses(4, 0, 0, 4), agents=4).total == Tally(0, 12, 0)


def test_rewards_of_all_steps_of_a_game_count():
    class Early(Duel):
        """Pays 1 to agent 0 at the start of each game, and 0.5 to agent 1 at its end."""

        def send(self, group, actions, out) -> None:
            begins = self.step == 0
            super().send(group, actions, out)
            out.rewards[0::2] = begins
            out.rewards[1::2] = 0.5 * out.terminals[1::2]

    vec = cast(Environments, Early(4))
    found = play_pair(constant(0), constant(0), vec, 3, 0)
    assert found.sides == (Tally(6, 0, 0), Tally(0, 0, 6))


def test_rewards_of_the_game_before_do_not_count():
    """Environment 0 has games of one step, whose choices are 0, 1 and 2."""
    assert duel(count_up(), constant(0.5)).total == Tally(11, 0, 1)


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
        ({"lone": True}, "ended for some of an environment's 2 agents alone"),
        ({"max_steps": 5}, r"3 of 4 environments .* 3 games after 5 steps"),
    ],
)
def test_an_environment_that_is_no_game_of_two_is_refused(how, message):
    with pytest.raises(UserError, match=message):
        duel(constant(1), constant(1), **how)


# ---- PufferLib 5.0's, which say whose seats theirs are -------------------------------------------


def peloton(folder: Path, first: Player, second: Player) -> PairResult:
    """Three riders: the first against the two others, says the environment."""
    with NativeVec(folder, total_agents=12, env=parameters("peloton")) as vec:
        return play_pair(first, second, vec, 1, 0)


def test_seats_are_those_that_the_environment_declares():
    """In peloton the first seat is the learner's; two agents get more than one does."""
    sat: list[int] = []

    def start(n, _):
        sat.append(n)
        return lambda rows: np.full((n, 1), 2, np.float32)

    found = peloton(folder_of("peloton"), Player("", start), constant(2))
    assert found.sides == (Tally(0, 0, 2), Tally(2, 0, 0))
    assert sat == [2 * 1 + 2 * 2]  # in two environments the one, in two the other two


def test_the_environment_knows_its_tag():
    tagged = "env->agents[i].rewards[0] = env->agents[i].policy == (env->tag == 1);"
    folder = edited("peloton", ("env->agents[i].rewards[0] = 0.1f * (float)speed;", tagged))
    assert peloton(folder, constant(0), constant(0)).sides == (Tally(0, 0, 2), Tally(2, 0, 0))


def test_seats_of_one_side_are_refused():
    own = ("env->agents[i].policy = i > 0;", "env->agents[i].policy = 0;")
    with pytest.raises(UserError, match="peloton has 3 agents an environment, and a match"):
        peloton(edited("peloton", own), constant(0), constant(0))


# ---- PettingZoo --------------------------------------------------------------------------------


def zoo(first: Player, second: Player, count: int = 4, each: int = 3, **env) -> PairResult:
    agents = count * env.get("agents", 2)
    with zoo_vec(Zoo, name="duel", total_agents=agents, backend="sync", env=env) as vec:
        return play_pair(first, second, vec, each, 0)


def choosing(n: int) -> Player:
    return constant(float(n))


@pytest.mark.parametrize("agents", [2, 4])
def test_last_observations_of_python_environments_are_counted_once(agents):
    found = zoo(choosing(2), choosing(1), agents=agents)
    assert found.sides == (Tally(6, 0, 0), Tally(6, 0, 0))
    assert found.steps == 3 * 3 + 2  # three games, and the first rows of two
    assert zoo(choosing(0), choosing(1), agents=agents).total == Tally(0, 0, 12)


def test_an_agent_that_leaves_early_counts_until_then():
    """Agent 1's choices count once then: 3 + 1 against 3 + 3, and 6 + 2 of who chooses twice it."""
    one, two = choosing(1), choosing(2)
    found = zoo(one, one, agents=4, leaves=True)
    assert found.sides == (Tally(0, 0, 6), Tally(6, 0, 0))
    assert zoo(two, one, agents=4, leaves=True).total == Tally(12, 0, 0)


def test_each_policy_normalises_by_its_own_statistics():
    seen = []

    class Plain:
        """In a policy's place."""

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
        ("", "defines no function choose"),
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
