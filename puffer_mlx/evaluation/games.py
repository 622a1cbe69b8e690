"""Play games between two players, who swap sides in half of the environments.

The agents of an environment form two sides: the first half is side 0 and the second half side 1,
unless the environment assigns them differently. A player acts for all agents of its side. The side
with the larger sum of rewards in an episode wins. With N = A E agents, agent A e + i is the i-th
agent of environment e.
"""

import zlib
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace

import numpy as np

from puffer_mlx.config import Config
from puffer_mlx.errors import UserError
from puffer_mlx.evaluation.episodes import MAX_STEPS, max_environments, seeded_eval_config
from puffer_mlx.evaluation.players import Player
from puffer_mlx.evaluation.results import PairResult, Tally
from puffer_mlx.vec.base import DeclaresPolicies, Environments, VecEnv
from puffer_mlx.vec.from_config import probe
from puffer_mlx.vec.rows import allocate_rows

SIDES = 2
Pair = tuple[int, int]  # indices of two players
PairResults = dict[Pair, PairResult]
GameProgress = Callable[[int, int], object]  # (finished games, expected games)


def agent_sides(vec: VecEnv) -> np.ndarray:
    """Return which side of a two-player game each agent plays, (E, A) bool: True for side 1.

    PufferLib 5.0 environments may assign their agents to self-play opponents
    (``agents[i].policy``); these agents are side 1. In all other environments side 1 is the second
    half of the agents.

    Args:
        vec: E environments with A agents each.

    Raises:
        UserError: If the agents don't form two sides.
    """
    E = vec.num_environments
    A, remainder = divmod(vec.num_agents, E)
    policies = None
    uneven = remainder > 0
    if isinstance(vec, DeclaresPolicies):
        environments, policies = vec.declared_policies()
        uneven = (np.bincount(environments, minlength=E) != A).any()
    if policies is not None and policies.any() and not uneven:
        sides = policies.reshape(E, A) > 0
        if sides.any(axis=1).all() and not sides.all(axis=1).any():
            return sides
    elif not uneven and A % SIDES == 0:
        return np.tile(np.arange(A) >= A // SIDES, (E, 1))
    raise UserError(
        f"{vec.spec.name} has {vec.num_agents / E:g} agents per environment; a match needs two"
        " equal sides",
        "use an environment with an even number of agents, such as connect4_two",
    )


class TwoPlayerGames:
    """Games of two players in several environments, which are stepped together.

    Args:
        vec: E environments with A agents each, in one group. They are reset here.
        players: First and second player.
        sides: Side of the first player in each environment, (E,).
        seed: Seed of the actions. Each player gets a separate seed derived from it.

    Attributes:
        rows: Latest rows of all agents.
        actions: Latest actions of all agents.
        shown_agent: Index of the first player's first agent.
        order: Agents of each environment, the first player's before the second's, (E, A).
    """

    def __init__(
        self, vec: Environments, players: tuple[Player, Player], sides: np.ndarray, seed: int
    ) -> None:
        E = vec.num_environments
        assert vec.num_groups == 1, "all agents of an environment must be in one step"
        self._vec = vec
        self._is_first = agent_sides(vec) == sides[:, None]  # (E, A)
        self._shape = E, A = self._is_first.shape
        if isinstance(vec, DeclaresPolicies):
            vec.set_tags(np.ones(E, np.int32))  # mark all as games against an opponent
        first_agents = A * np.arange(E)[:, None]  # first agent of each environment
        self.order = first_agents + np.argsort(~self._is_first, axis=1, kind="stable")
        self._agents = [np.flatnonzero(each) for each in (self._is_first, ~self._is_first)]
        self.shown_agent = int(self._agents[0][0])
        seeds = np.random.SeedSequence(seed).generate_state(SIDES)
        self._choose = [
            player.start(len(agents), int(each))
            for player, agents, each in zip(players, self._agents, seeds, strict=True)
        ]
        self.actions = np.zeros((vec.num_agents, vec.spec.action.heads), np.float32)
        self.rows = allocate_rows(vec, vec.num_agents)
        vec.reset(self.rows)

    def step(self) -> None:
        """Play one step of all games: both players choose actions, and environments are stepped."""
        for agents, choose in zip(self._agents, self._choose, strict=True):
            self.actions[agents] = choose(self.rows.select(agents))
        self._vec.send(0, self.actions, self.rows)
        self._vec.wait(0)

    def score_difference(self) -> np.ndarray:
        """Return the first player's rewards minus the second's in the latest step, (E,) float64."""
        rewards = self.rows.rewards.reshape(self._shape).astype(np.float64)
        return np.where(self._is_first, rewards, -rewards).sum(axis=1)

    def finished(self) -> np.ndarray:
        """Return the environments whose game ended in the latest step, (E,) bool.

        If last observations have separate rows, agents may leave at different times. The game
        then ends with the last agent.

        Raises:
            UserError: If an episode ended for only some agents of an environment.
        """
        final_flags = self.rows.final_observations
        flags = self.rows.terminals if final_flags is None else final_flags
        ended = flags.reshape(self._shape) != 0
        all_ended = ended.all(axis=1)
        if final_flags is None and (ended.any(axis=1) != all_ended).any():
            raise UserError(
                f"an episode of {self._vec.spec.name} ended for only some of an environment's"
                f" {self._shape[1]} agents",
                "a match needs an environment whose games end for all agents at once",
            )
        return all_ended


class DistinctGames:
    """Count the games of two players that differ in observations or actions.

    Args:
        order: Agents of each environment, the first player's before the second's, (E, A). Games
            that differ only by the players' sides count once.
    """

    def __init__(self, order: np.ndarray) -> None:
        self._order = order
        self._running_codes = [0] * len(order)  # checksums of the games in progress
        # Environments whose rows show the last observations of the game that has ended.
        self._showing_last = np.zeros(len(order), bool)
        self._game_codes: set[int] = set()

    @property
    def count(self) -> int:
        """Number of distinct games so far. Games with equal observations and actions count once."""
        return len(self._game_codes)

    def add(self, rows: np.ndarray) -> None:
        """Add a step's observations or actions, (N, ...), to checksums of the games in progress."""
        environment_rows = rows[self._order].reshape(len(self._running_codes), -1)
        pairs = zip(environment_rows, self._running_codes, strict=True)
        self._running_codes = [zlib.crc32(row.tobytes(), code) for row, code in pairs]

    def record_step(self, finished: np.ndarray, counted: np.ndarray, shows_last: bool) -> None:
        """Record the games that ended in a step, to count the distinct ones.

        Args:
            finished: Environments whose game has ended, (E,) bool.
            counted: Environments whose game counts, (E,) bool.
            shows_last: True if environments first show a game's last observations, so that another
                step only starts the new game.
        """
        for e in np.flatnonzero(counted).tolist():
            self._game_codes.add(self._running_codes[e])
        for e in np.flatnonzero(finished | self._showing_last).tolist():
            self._running_codes[e] = 0
        self._showing_last = finished if shows_last else self._showing_last


def play_pair(
    first: Player,
    second: Player,
    vec: Environments,
    games_each: int,
    seed: int,
    max_steps: int = MAX_STEPS,
    progress: Callable[[int], object] | None = None,
) -> PairResult:
    """Let two players play the same number of games in every environment.

    Counting the first games that end among all environments would favour short games.

    Args:
        first: Player whose wins are counted.
        second: Opponent of the first player.
        vec: E environments, E even. The players swap sides in every second one.
        games_each: Games per environment.
        seed: Seed of the players' actions.
        max_steps: Step limit per environment.
        progress: Called after each step with the number of finished games.

    Raises:
        UserError: If the environments don't have two sides, an episode doesn't end for all agents
            at once, or games don't end.
    """
    E = vec.num_environments
    assert E % SIDES == 0, "half of the environments for each side"
    sides = np.arange(E) % SIDES
    match = TwoPlayerGames(vec, (first, second), sides, seed)
    may_repeat = first.deterministic and second.deterministic
    distinct = DistinctGames(match.order) if may_repeat else None
    games_left = np.full(E, games_each)
    reward_difference = np.zeros(E)  # first player's rewards minus the second's, in current games
    outcomes = np.zeros((SIDES, 3), int)  # by the first player's side: wins, draws, losses
    steps = 0
    while games_left.any():
        if steps == max_steps:
            raise _unfinished_error(vec, int(np.count_nonzero(games_left)), games_each, steps)
        if distinct:
            distinct.add(match.rows.observations)
        match.step()
        if distinct:
            distinct.add(match.actions)
        steps += 1
        reward_difference += match.score_difference()
        game_over = match.finished()
        counted = game_over & (games_left > 0)
        if distinct:
            distinct.record_step(game_over, counted, match.rows.final_observations is not None)
        results = 1 - np.sign(reward_difference[counted]).astype(int)  # 0: win, 1: draw, 2: loss
        np.add.at(outcomes, (sides[counted], results), 1)
        reward_difference[game_over] = 0.0
        games_left[counted] -= 1
        if progress is not None:
            progress(games_each * E - int(games_left.sum()))
    side_0, side_1 = (Tally(*map(int, row)) for row in outcomes)
    distinct_count = distinct.count if distinct else None
    return PairResult((side_0, side_1), steps, distinct_count, first.deterministic)


def _unfinished_error(vec: Environments, left: int, games_each: int, steps: int) -> UserError:
    """Return an error about games that didn't end within the step limit."""
    return UserError(
        f"{left} of {vec.num_environments} environments of {vec.spec.name} had not finished"
        f" {games_each} games after {steps:,} steps",
        "a match needs an environment whose games end",
    )


def watch_game(
    first: Player, second: Player, vec: Environments, seed: int
) -> Generator[np.ndarray, None, float]:
    """Play one game and yield the observations (D,) of the first player's first agent.

    In C environments the last observation is the one before the final move, because the next row
    belongs to the next game.

    Args:
        first: Player on side 0.
        second: Player on side 1.
        vec: One environment.
        seed: Seed of the players' actions.

    Returns:
        The first player's rewards minus the second's.
    """
    match = TwoPlayerGames(vec, (first, second), np.zeros(1, int), seed)
    reward_difference = 0.0
    for _ in range(MAX_STEPS):
        yield match.rows.observations[match.shown_agent].copy()
        match.step()
        reward_difference += float(match.score_difference()[0])
        if match.finished()[0]:
            if match.rows.final_observations is not None:
                yield match.rows.observations[match.shown_agent].copy()
            break
    return reward_difference


# ---- matches of several players ------------------------------------------------------------------


def without_normalization(config: Config) -> Config:
    """Return a configuration whose environments don't normalize observations and rewards.

    A policy trained with normalization normalizes its observations itself.
    """
    plain = replace(config.vec, normalize_observations=False, normalize_rewards=False)
    return replace(config, vec=plain)


def agents_per_environment(config: Config) -> int:
    """Return the number of agents per environment, after a check that they form two sides.

    Raises:
        UserError: If the agents don't form two sides or the environment can't be created.
    """
    with probe(config) as environments:
        agent_sides(environments)
        return environments.num_agents // environments.num_environments


def play_pairs(
    players: Sequence[Player],
    pairs: Sequence[Pair],
    config: Config,
    agents: int,
    games: int,
    make: Callable[[Config], Environments],
    seed: int,
    max_steps: int = MAX_STEPS,
    progress: GameProgress = lambda finished, total: None,
) -> PairResults:
    """Let several pairs of players play each other, one pair after another.

    The result of a pair doesn't depend on the other pairs.

    Args:
        players: All players.
        pairs: Pairs of indices into ``players``.
        config: Configuration of the environments, without normalization.
        agents: Agents per environment.
        games: Minimum number of games of each pair.
        make: Creates environments from a configuration. They are closed here.
        seed: Seed of the environments and of the players' actions.
        max_steps: Step limit per environment.
        progress: Called after each step with the numbers of finished and of expected games.

    Raises:
        UserError: If a pair's games can't be played; see ``play_pair``.
    """
    limit = max_environments(config, agents)
    even_limit = limit - limit % SIDES
    even_games = games + games % SIDES
    count = max(SIDES, min(even_limit, even_games))
    games_each = -(-games // count)
    pair_config = seeded_eval_config(config, count, agents, seed)
    expected = len(pairs) * games_each * count
    results: PairResults = {}
    for number, (i, j) in enumerate(pairs):
        games_before = number * games_each * count
        with make(pair_config) as environments:
            results[i, j] = play_pair(
                players[i],
                players[j],
                environments,
                games_each,
                seed,
                max_steps,
                lambda finished, games_before=games_before: progress(
                    games_before + finished, expected
                ),
            )
    return results
