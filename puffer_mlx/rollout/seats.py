"""The policy that acts for each agent. NumPy only.

Some environments are *historical*: an opponent, a policy that isn't trained, plays some of their
seats. In the others the learner plays all of them. Agents keep the order of their environments,
whoever acts for them: agent = row, nothing is permuted.

| rules | historical are, of each buffer | the opponent's seats |
| --- | --- | --- |
| PufferLib 4.0's | the last blocks of environments, one block for each opponent | the second half |
| PufferLib 5.0's | the last environments | those that the environment says (``agents[i].policy``) |

A folder of 4.0's contract doesn't say it: by 5.0's rules its opponents have the second half of the
seats, and take turns from environment to environment.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from puffer_mlx.errors import UserError
from puffer_mlx.vec.base import KnowsSeats, VecEnv

MOST = 8  # opponents, of either release


class PerPolicy:
    """What a function makes of each policy's weights; kept while a policy has the same ones.

    Args:
        function: of a policy's weights.
    """

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function
        self._kept: list[tuple[Any, Any]] = []  # the last weights, and what was made of them

    def __call__(self, policies: Sequence[Any]) -> list[Any]:
        """The results for several policies' weights."""
        kept = self._kept
        self._kept = [
            next((pair for pair in kept if pair[0] is weights), None)
            or (weights, self._function(weights))
            for weights in policies
        ]
        return [result for _, result in self._kept]


class Seats(NamedTuple):
    """The policies of the N agents of E environments."""

    policy: np.ndarray
    """(N,) int32: 0 the learner, b > 0 opponent b."""
    environments: np.ndarray
    """(N,) int32: the number of the environment that each agent sits in; it never falls."""
    tags: np.ndarray
    """(E,) int32: the largest policy among an environment's seats; 0: the learner plays all."""

    @property
    def learners(self) -> np.ndarray:
        """(L,) int32: the learner's rows, ascending."""
        return self.rows(0)

    @property
    def opponents(self) -> int:
        """B: how many opponents there are; each has a seat."""
        return int(self.tags.max())

    def rows(self, policy: int) -> np.ndarray:
        """The rows of the learner (0) or of opponent b, ascending, int32."""
        return np.flatnonzero(self.policy == policy).astype(np.int32)


def seats_in_blocks(vec: VecEnv, opponents: int, part: float) -> Seats:
    """PufferLib 4.0's: each opponent has a block of environments, and half of the agents in it.

    Args:
        vec: N agents in E environments; all have the same even number of agents.
        opponents: B, ``vec.num_frozen_banks``.
        part: of a buffer's agents that each opponent acts for, ``vec.frozen_bank_pct``; rounded
            down to whole environments.

    Raises:
        UserError: the environments don't have two equal teams, or B such parts aren't at least one
            environment each and less than half of the agents.
    """
    environments, _ = _declared(vec)
    counts = _counts(vec, environments)
    team = _team(vec, counts)
    agents = vec.num_agents // vec.num_groups
    each = int(agents * part) // team  # environments of an opponent
    historical = each * opponents
    if not _number_fits(opponents) or each < 1 or historical * team * 2 >= agents:
        raise UserError(
            f"{opponents} opponents with {part:g} of a buffer's {agents} agents each play in"
            f" {historical} of {agents // (2 * team)} environments",
            f"1 to {MOST} opponents, each with {team} agents at least, and together with less than"
            " half of them: change vec.num_frozen_banks, vec.frozen_bank_pct or vec.total_agents",
        )
    tags = np.zeros((vec.num_groups, agents // (2 * team)), np.int32)
    tags[:, tags.shape[1] - historical :] = np.repeat(np.arange(1, opponents + 1), each)
    return _second_halves(environments, counts, tags.reshape(-1))


def seats_as_declared(vec: VecEnv, opponents: int, part: float) -> Seats:
    """PufferLib 5.0's: the last environments of each buffer are historical.

    Args:
        vec: N agents in E environments.
        opponents: B, ``vec.num_policies`` - 1.
        part: of a buffer's environments that are historical, ``vec.hist_policy_percent``; rounded
            down.

    Raises:
        UserError: an opponent or the learner has no seat, an environment gives a seat to an
            opponent that there isn't; or environments that don't say whose seats theirs are
            don't have two equal teams.
    """
    environments, policies = _declared(vec)
    counts = _counts(vec, environments)
    historical = _last_of_each_buffer(vec, counts, part)
    if policies is None:
        _team(vec, counts)
        tags = np.where(historical >= 0, 1 + historical % max(1, opponents), 0)
        seats = _second_halves(environments, counts, tags.astype(np.int32))
    else:
        policy = np.where(historical[environments] >= 0, policies, 0).astype(np.int32)
        seats = Seats(policy, environments, _largest(policy, counts))
    _refuse_empty(vec, seats, opponents, part)
    return seats


def set_tags(vec: VecEnv, seats: Seats) -> None:
    """Set the environments' tags, where they have any: before a reset, and after ``restore``.

    What was saved has the tags of that time.
    """
    if isinstance(vec, KnowsSeats):
        vec.set_tags(seats.tags)


def _declared(vec: VecEnv) -> tuple[np.ndarray, np.ndarray | None]:
    """Each agent's environment, and the policy that the environment declares for it, if it does."""
    if isinstance(vec, KnowsSeats):
        return vec.seats()
    each = vec.num_agents // vec.num_environments
    return np.arange(vec.num_agents, dtype=np.int32) // np.int32(each), None


def _counts(vec: VecEnv, environments: np.ndarray) -> np.ndarray:
    """(E,): the agents of each environment."""
    return np.bincount(environments, minlength=vec.num_environments)


def _team(vec: VecEnv, counts: np.ndarray) -> int:
    """Half of an environment's agents.

    Raises:
        UserError: that is no team.
    """
    sizes = sorted(set(counts.tolist()))
    if len(sizes) > 1 or sizes[0] % 2:
        several = " and ".join(map(str, sizes))
        raise UserError(
            f"{vec.spec.name} has {several} agents an environment",
            "self-play is between two equal teams: an even number of agents, the same in all"
            " environments; one of PufferLib 5.0's form may say whose seats its agents have",
        )
    return sizes[0] // 2


def _second_halves(environments: np.ndarray, counts: np.ndarray, tags: np.ndarray) -> Seats:
    """Seats where the opponents have the second half of their environments'."""
    firsts = np.cumsum(counts) - counts
    number = np.arange(len(environments)) - firsts[environments]  # of a seat in its environment
    second = number >= counts[environments] // 2
    policy = np.where(second, tags[environments], 0).astype(np.int32)
    return Seats(policy, environments, tags)


def _last_of_each_buffer(vec: VecEnv, counts: np.ndarray, part: float) -> np.ndarray:
    """(E,): a historical environment's number among those of its buffer, -1 of another."""
    buffers = (np.cumsum(counts) - counts) // (vec.num_agents // vec.num_groups)
    numbers = np.full(len(counts), -1)
    for buffer in range(vec.num_groups):
        members = np.flatnonzero(buffers == buffer)
        last = members[len(members) - int(part * len(members)) :]
        numbers[last] = np.arange(len(last))
    return numbers


def _largest(policy: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """(E,) int32: of each environment's agents, who are neighbours."""
    return np.maximum.reduceat(policy, np.cumsum(counts) - counts).astype(np.int32)


def _number_fits(opponents: int) -> bool:
    return 1 <= opponents <= MOST


def _refuse_empty(vec: VecEnv, seats: Seats, opponents: int, part: float) -> None:
    """Refuse policies without a seat, and seats of policies that don't exist."""
    if not _number_fits(opponents):
        raise UserError(
            f"vec.num_policies is {opponents + 1}",
            f"the learner and 1 to {MOST} opponents: 2 to {MOST + 1}",
        )
    policies = set(seats.policy.tolist())
    if strangers := sorted(policies - set(range(opponents + 1))):
        raise UserError(
            f"{vec.spec.name} gives seats to policy {strangers[0]}, and vec.num_policies is"
            f" {opponents + 1}",
            f"vec.num_policies {strangers[-1] + 1}, or other numbers in agents[i].policy",
        )
    if missing := sorted(set(range(opponents + 1)) - policies):
        who = "the learner" if missing[0] == 0 else f"opponent {missing[0]}"
        historical = np.count_nonzero(seats.tags)
        raise UserError(
            f"{who} has no seat in {vec.spec.name}: with vec.hist_policy_percent {part:g} others"
            f" play in {historical} of {vec.num_environments} environments",
            "change vec.hist_policy_percent, vec.num_policies or vec.total_agents; an environment"
            " of PufferLib 5.0's form says in agents[i].policy who has its seats",
        )
