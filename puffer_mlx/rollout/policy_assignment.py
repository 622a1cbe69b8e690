"""Assign policies to agents in self-play. Needs NumPy only.

The *learner* is the policy in training; an *opponent* is an earlier policy, which isn't trained. In
*historical* environments opponents play some of the agents. In all other environments the learner
plays all agents. The assignment doesn't change the order of the agents.

| rules | historical environments in each buffer | the opponent's agents |
| --- | --- | --- |
| PufferLib 4.0's | one block of environments per opponent, at the buffer's end | the second half |
| PufferLib 5.0's | the last environments | declared by the environment (``agents[i].policy``) |

Environments written for 4.0 can't declare policies. With 5.0's rules, opponents then play the
second half of the agents, and consecutive historical environments have different opponents.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from puffer_mlx.errors import UserError
from puffer_mlx.vec.base import DeclaresPolicies, VecEnv

MAX_OPPONENTS = 8  # in PufferLib 4.0 and 5.0


class WeightCache:
    """Caches the results of a function of policy weights, one entry per policy.

    The function is called again when a policy has new weights.

    Args:
        function: Maps a policy's weights to the cached value.
    """

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function
        self._entries: list[tuple[Any, Any]] = []  # (weights, value) of the previous call

    def __call__(self, policies: Sequence[Any]) -> list[Any]:
        """Return the cached function's value for each policy. Calls it only for new weights."""
        entries = []
        for weights in policies:
            entry = next((entry for entry in self._entries if entry[0] is weights), None)
            entries.append(entry or (weights, self._function(weights)))
        self._entries = entries
        return [value for _, value in entries]


class PolicyAssignment(NamedTuple):
    """Assignment in self-play: which policy plays each of the N agents of E environments."""

    policy: np.ndarray
    """(N,) int32, policy of each agent: 0 is the learner, b > 0 is opponent b."""
    environments: np.ndarray
    """(N,) int32, environment of each agent, ascending."""
    tags: np.ndarray
    """(E,) int32, largest policy index in each environment; 0 if the learner plays all agents."""

    @property
    def learners(self) -> np.ndarray:
        """Indices of the L agents that the learner plays in self-play, (L,) int32 ascending."""
        return self.rows(0)

    @property
    def opponents(self) -> int:
        """Number B of opponents in self-play. Each plays at least one agent."""
        return int(self.tags.max())

    def rows(self, policy: int) -> np.ndarray:
        """Return the indices of the agents that a policy plays, int32 ascending.

        Args:
            policy: 0 for the learner, b > 0 for opponent b.
        """
        return np.flatnonzero(self.policy == policy).astype(np.int32)


def assign_in_blocks(vec: VecEnv, opponents: int, fraction: float) -> PolicyAssignment:
    """Assign opponents to agents in self-play, by blocks of environments, as PufferLib 4.0 does.

    Each opponent gets one block in every buffer and plays half of the agents in it. The learner
    plays all other agents.

    Args:
        vec: Environments, each with the same even number of agents.
        opponents: Number of opponents B (``vec.num_frozen_banks``).
        fraction: Fraction of a buffer's agents that each opponent plays
            (``vec.frozen_bank_pct``), rounded down to whole environments.

    Raises:
        UserError: If environments lack two equal teams, an opponent would play no agent, or all
            opponents together would play half of the agents or more.
    """
    environments, _ = _declared_policies(vec)
    counts = _agent_counts(vec, environments)
    team = _team_size(vec, counts)
    agents = vec.num_agents // vec.num_groups  # of a buffer
    per_opponent = int(agents * fraction) // team  # environments of a buffer
    historical = per_opponent * opponents
    if not _is_valid_count(opponents) or per_opponent < 1 or historical * team * 2 >= agents:
        raise UserError(
            f"{opponents} opponents with {fraction:g} of a buffer's {agents} agents each play in"
            f" {historical} of {agents // (2 * team)} environments",
            f"expected 1 to {MAX_OPPONENTS} opponents, each with at least {team} agents, and all"
            " together with less than half of the agents: change vec.num_frozen_banks,"
            " vec.frozen_bank_pct or vec.total_agents",
        )
    tags = np.zeros((vec.num_groups, agents // (2 * team)), np.int32)
    tags[:, tags.shape[1] - historical :] = np.repeat(np.arange(1, opponents + 1), per_opponent)
    return _second_halves(environments, counts, tags.reshape(-1))


def assign_as_declared(vec: VecEnv, opponents: int, fraction: float) -> PolicyAssignment:
    """Assign opponents to agents in self-play, as the environments declare: PufferLib 5.0's way.

    The last environments of each buffer are historical.

    Args:
        vec: Environments with N agents.
        opponents: Number of opponents B (``vec.num_policies`` - 1).
        fraction: Fraction of a buffer's environments that are historical
            (``vec.hist_policy_percent``), rounded down.

    Raises:
        UserError: If a policy plays no agent, an environment declares an unknown policy, or
            environments that declare no policies lack two equal teams.
    """
    environments, policies = _declared_policies(vec)
    counts = _agent_counts(vec, environments)
    indices = _historical_indices(vec, counts, fraction)
    is_historical = indices >= 0
    if policies is None:
        _team_size(vec, counts)
        tags = np.where(is_historical, 1 + indices % max(1, opponents), 0)
        assignment = _second_halves(environments, counts, tags.astype(np.int32))
    else:
        policy = np.where(is_historical[environments], policies, 0).astype(np.int32)
        tags = np.maximum.reduceat(policy, np.cumsum(counts) - counts)
        assignment = PolicyAssignment(policy, environments, tags.astype(np.int32))
    _check_policies(vec, assignment, opponents, fraction)
    return assignment


def set_tags(vec: VecEnv, assignment: PolicyAssignment) -> None:
    """Tell each environment the largest index of the policies that play in it, if it supports tags.

    Call this before a reset, and after ``restore``, because saved states contain older tags.
    """
    if isinstance(vec, DeclaresPolicies):
        vec.set_tags(assignment.tags)


def _declared_policies(vec: VecEnv) -> tuple[np.ndarray, np.ndarray | None]:
    """Return each agent's environment and the policy that the environment declares, (N,) each.

    The second array is None when the environments declare no policies.
    """
    if isinstance(vec, DeclaresPolicies):
        return vec.declared_policies()
    each = vec.num_agents // vec.num_environments
    return np.arange(vec.num_agents, dtype=np.int32) // np.int32(each), None


def _agent_counts(vec: VecEnv, environments: np.ndarray) -> np.ndarray:
    """Return the number of agents of each environment, (E,)."""
    return np.bincount(environments, minlength=vec.num_environments)


def _team_size(vec: VecEnv, counts: np.ndarray) -> int:
    """Return the number of agents of a team: half of the agents of an environment.

    Raises:
        UserError: If environments have an odd number of agents, or different numbers.
    """
    sizes = sorted(set(counts.tolist()))
    if len(sizes) > 1 or sizes[0] % 2:
        several = " and ".join(map(str, sizes))
        raise UserError(
            f"{vec.spec.name} has {several} agents per environment",
            "self-play needs two equal teams: an even number of agents, the same in all"
            " environments; or an environment for PufferLib 5.0, which can declare in"
            " agents[i].policy which policy plays an agent",
        )
    return sizes[0] // 2


def _second_halves(
    environments: np.ndarray, counts: np.ndarray, tags: np.ndarray
) -> PolicyAssignment:
    """Let opponents play the second half of the agents of each environment, in self-play.

    Returns the policy of each agent.

    Args:
        environments: (N,), environment of each agent.
        counts: (E,), number of agents of each environment.
        tags: (E,), opponent of each environment; 0 for none.
    """
    first_agents = np.cumsum(counts) - counts
    index_in_environment = np.arange(len(environments)) - first_agents[environments]
    in_second_half = index_in_environment >= counts[environments] // 2
    policy = np.where(in_second_half, tags[environments], 0).astype(np.int32)
    return PolicyAssignment(policy, environments, tags)


def _historical_indices(vec: VecEnv, counts: np.ndarray, fraction: float) -> np.ndarray:
    """Return the number of each historical environment among those of its buffer, (E,).

    Opponents play in historical environments only.

    Historical are the last environments of each buffer. Other environments have the index -1.

    Args:
        vec: E environments.
        counts: (E,), number of agents of each environment.
        fraction: Fraction of a buffer's environments that are historical.
    """
    buffers = (np.cumsum(counts) - counts) // (vec.num_agents // vec.num_groups)
    indices = np.full(len(counts), -1)
    for buffer in range(vec.num_groups):
        members = np.flatnonzero(buffers == buffer)
        last = members[len(members) - int(fraction * len(members)) :]
        indices[last] = np.arange(len(last))
    return indices


def _is_valid_count(opponents: int) -> bool:
    return 1 <= opponents <= MAX_OPPONENTS


def _check_policies(
    vec: VecEnv, assignment: PolicyAssignment, opponents: int, fraction: float
) -> None:
    """Raise UserError if a self-play policy plays no agent, or an agent has an unknown policy."""
    if not _is_valid_count(opponents):
        raise UserError(
            f"vec.num_policies is {opponents + 1}",
            f"expected 2 to {MAX_OPPONENTS + 1}: the learner and 1 to {MAX_OPPONENTS} opponents",
        )
    policies = set(assignment.policy.tolist())
    if unknown := sorted(policies - set(range(opponents + 1))):
        raise UserError(
            f"{vec.spec.name} assigns agents to policy {unknown[0]}, and vec.num_policies is"
            f" {opponents + 1}",
            f"vec.num_policies {unknown[-1] + 1}, or other numbers in agents[i].policy",
        )
    if missing := sorted(set(range(opponents + 1)) - policies):
        policy = "the learner" if missing[0] == 0 else f"opponent {missing[0]}"
        historical = np.count_nonzero(assignment.tags)
        raise UserError(
            f"{policy} plays no agent of {vec.spec.name}: with vec.hist_policy_percent"
            f" {fraction:g}, opponents play in {historical} of {vec.num_environments} environments",
            "change vec.hist_policy_percent, vec.num_policies or vec.total_agents; an environment"
            " for PufferLib 5.0 declares in agents[i].policy which policy plays an agent",
        )
