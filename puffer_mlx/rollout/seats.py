"""Assign policies to agents, for self-play. NumPy only.

In *historical* environments an opponent, which is a policy that isn't trained, plays some of the
agents. In all other environments the learner plays all agents. The order of agents is the order of
environments, whichever policy acts for them.

| rules | historical environments in each buffer | the opponent's agents |
| --- | --- | --- |
| PufferLib 4.0's | the last blocks of environments, one block per opponent | the second half |
| PufferLib 5.0's | the last environments | declared by the environment (``agents[i].policy``) |

Environments in 4.0's format can't declare the opponent's agents. With 5.0's rules their opponents
play the second half of the agents, and alternate from environment to environment.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from puffer_mlx.errors import UserError
from puffer_mlx.vec.base import HasSeats, VecEnv

MOST = 8  # most opponents, in both releases


class WeightCache:
    """Cache a function of policy weights, one entry per policy.

    Args:
        function: Maps a policy's weights to the cached value.
    """

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function
        self._kept: list[tuple[Any, Any]] = []  # (weights, value) of the previous call

    def __call__(self, policies: Sequence[Any]) -> list[Any]:
        """Return the values for several policies. Only new weights are computed."""
        kept = self._kept
        self._kept = [
            next((pair for pair in kept if pair[0] is weights), None)
            or (weights, self._function(weights))
            for weights in policies
        ]
        return [result for _, result in self._kept]


class Seats(NamedTuple):
    """Assignment of policies to the N agents of E environments."""

    policy: np.ndarray
    """(N,) int32, policy of each agent: 0 is the learner, b > 0 is opponent b."""
    environments: np.ndarray
    """(N,) int32, environment of each agent, ascending."""
    tags: np.ndarray
    """(E,) int32, largest policy number in each environment; 0 if the learner plays all agents."""

    @property
    def learners(self) -> np.ndarray:
        """The learner's agents, (L,) int32 ascending."""
        return self.rows(0)

    @property
    def opponents(self) -> int:
        """Number of opponents B. Each plays at least one agent."""
        return int(self.tags.max())

    def rows(self, policy: int) -> np.ndarray:
        """Return the agents of the learner (0) or of opponent b, int32 ascending."""
        return np.flatnonzero(self.policy == policy).astype(np.int32)


def seats_in_blocks(vec: VecEnv, opponents: int, part: float) -> Seats:
    """Assign opponents to blocks of environments, as PufferLib 4.0 does.

    Each opponent gets one block in every buffer and plays half of the agents in it.

    Args:
        vec: Environments, each with the same even number of agents.
        opponents: Number of opponents B (``vec.num_frozen_banks``).
        part: Fraction of a buffer's agents per opponent (``vec.frozen_bank_pct``), rounded down to
            whole environments.

    Raises:
        UserError: If environments lack two equal teams, or if an opponent would play no
            environment or all opponents together half of the agents or more.
    """
    environments, _ = _declared(vec)
    counts = _counts(vec, environments)
    team = _team(vec, counts)
    agents = vec.num_agents // vec.num_groups
    each = int(agents * part) // team  # environments per opponent
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
    """Assign opponents to the agents that environments declare, as PufferLib 5.0 does.

    The last environments of each buffer are historical.

    Args:
        vec: Environments with N agents.
        opponents: Number of opponents B (``vec.num_policies`` - 1).
        part: Fraction of a buffer's environments that are historical
            (``vec.hist_policy_percent``), rounded down.

    Raises:
        UserError: If a policy plays no agent, an environment declares an unknown policy, or
            environments without a declaration lack two equal teams.
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
        tags = np.maximum.reduceat(policy, np.cumsum(counts) - counts)
        seats = Seats(policy, environments, tags.astype(np.int32))
    _refuse_empty(vec, seats, opponents, part)
    return seats


def set_tags(vec: VecEnv, seats: Seats) -> None:
    """Set the environments' tags, if they support tags.

    Call this before a reset, and after ``restore``, because saved states contain older tags.
    """
    if isinstance(vec, HasSeats):
        vec.set_tags(seats.tags)


def _declared(vec: VecEnv) -> tuple[np.ndarray, np.ndarray | None]:
    """Return the environment of each agent, and its declared policy or None."""
    if isinstance(vec, HasSeats):
        return vec.seats()
    each = vec.num_agents // vec.num_environments
    return np.arange(vec.num_agents, dtype=np.int32) // np.int32(each), None


def _counts(vec: VecEnv, environments: np.ndarray) -> np.ndarray:
    """Return the number of agents of each environment, (E,)."""
    return np.bincount(environments, minlength=vec.num_environments)


def _team(vec: VecEnv, counts: np.ndarray) -> int:
    """Return the number of agents of a team: half of an environment's.

    Raises:
        UserError: If environments differ, or have an odd number of agents.
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
    """Assign the second half of the agents of each environment to the opponent in ``tags``."""
    firsts = np.cumsum(counts) - counts
    number = np.arange(len(environments)) - firsts[environments]  # agent index in its environment
    second = number >= counts[environments] // 2
    policy = np.where(second, tags[environments], 0).astype(np.int32)
    return Seats(policy, environments, tags)


def _last_of_each_buffer(vec: VecEnv, counts: np.ndarray, part: float) -> np.ndarray:
    """Return the index of each historical environment in its buffer, and -1 for others, (E,)."""
    buffers = (np.cumsum(counts) - counts) // (vec.num_agents // vec.num_groups)
    numbers = np.full(len(counts), -1)
    for buffer in range(vec.num_groups):
        members = np.flatnonzero(buffers == buffer)
        last = members[len(members) - int(part * len(members)) :]
        numbers[last] = np.arange(len(last))
    return numbers


def _number_fits(opponents: int) -> bool:
    return 1 <= opponents <= MOST


def _refuse_empty(vec: VecEnv, seats: Seats, opponents: int, part: float) -> None:
    """Raise UserError if a policy plays no agent, or an agent has an unknown policy."""
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
