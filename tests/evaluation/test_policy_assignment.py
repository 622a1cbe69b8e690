"""The assignment of policies to agents, in the layouts of both releases."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kept import edit, kept_copy
from native_envs import edited, folder_of, make, parameters

from puffer_mlx.errors import UserError
from puffer_mlx.rollout.policy_assignment import (
    PolicyAssignment,
    assign_as_declared,
    assign_in_blocks,
    set_tags,
)
from puffer_mlx.vec.native.vec import NativeVec
from puffer_mlx.vec.normalize import Normalized
from puffer_mlx.vec.rows import allocate_rows


def python_vec(agents: int, each: int, groups: int = 1) -> Any:
    """Return a stub of environments that don't declare which policy plays which agent."""
    spec = SimpleNamespace(name="fake")
    return SimpleNamespace(
        spec=spec, num_agents=agents, num_groups=groups, num_environments=agents // each
    )


def test_blocks_of_two_players_are_the_last_environments_of_each_buffer():
    """32 agents of a buffer, 2 banks of 25 %: 8 self-play environments, then 4 and 4."""
    assignment = assign_in_blocks(python_vec(64, 2, groups=2), 2, 0.125)
    buffer = [0] * 8 + [1] * 4 + [2] * 4
    assert assignment.tags.tolist() == buffer * 2
    assert assignment.policy.tolist() == [policy for tag in buffer * 2 for policy in (0, tag)]
    assert assignment.environments.tolist() == [agent // 2 for agent in range(64)]
    assert assignment.opponents == 2
    assert assignment.rows(1).tolist() == [17, 19, 21, 23, 49, 51, 53, 55]
    assert sorted([*assignment.learners, *assignment.rows(1), *assignment.rows(2)]) == [*range(64)]


def test_a_block_has_entire_teams():
    """36 agents, teams of 3: 20 % are 7.2 agents, 2 whole teams; slots 0 to 2 are the learner's."""
    assignment = assign_in_blocks(python_vec(36, 6), 1, 0.2)
    assert assignment.tags.tolist() == [0, 0, 0, 0, 1, 1]
    assert assignment.rows(1).tolist() == [27, 28, 29, 33, 34, 35]


@pytest.mark.parametrize(
    ("agents", "opponents", "part", "message"),
    [
        (2, 1, 0.01, "play in 0 of 16"),  # less than a team
        (2, 2, 0.25, "play in 16 of 16"),  # half of the agents: 4.0 wants less
        (2, 0, 0.25, "0 opponents"),
        (1, 1, 0.3, "fake has 1 agent"),
    ],
)
def test_a_block_of_no_or_all_environments_is_refused(agents, opponents, part, message):
    with pytest.raises(UserError, match=message):
        assign_in_blocks(python_vec(32, agents), opponents, part)


def test_environments_of_several_sizes_are_refused():
    with (
        make("relay", total_agents=12) as vec,
        pytest.raises(UserError, match="relay has 1 and 2 and 3 agents per environment"),
    ):
        assign_in_blocks(vec, 1, 0.4)


def test_opponents_alternate_in_environments_without_declared_policies():
    """10 environments of a buffer, 45 %: the last 4 have opponents."""
    assignment = assign_as_declared(python_vec(40, 2, groups=2), 3, 0.45)
    assert assignment.tags.tolist() == [0, 0, 0, 0, 0, 0, 1, 2, 3, 1] * 2
    assert assignment.policy.tolist() == [policy for tag in assignment.tags for policy in (0, tag)]


def test_policies_follow_an_environment_of_release_5():
    """Each peloton's first rider is policy 0's, the others are policy 1's."""
    with make("peloton", total_agents=24, num_buffers=2) as vec:
        assignment = assign_as_declared(vec, 1, 0.5)
        assert assignment.tags.tolist() == [0, 0, 1, 1] * 2
        assert assignment.policy.tolist() == ([0] * 6 + [0, 1, 1] * 2) * 2


def test_opponents_without_an_agent_are_refused():
    with make("peloton", total_agents=24) as vec:
        with pytest.raises(UserError, match="opponent 2 plays no agent of peloton"):
            assign_as_declared(vec, 2, 0.5)
        with pytest.raises(UserError, match="num_policies is 1"):
            assign_as_declared(vec, 0, 0.5)
    folder = edited("peloton", ("env->agents[i].policy = i > 0;", "env->agents[i].policy = 2 * i;"))
    with (
        NativeVec(folder, total_agents=24, env=parameters("peloton")) as vec,
        pytest.raises(UserError, match="assigns agents to policy 2"),
    ):
        assign_as_declared(vec, 1, 0.5)


def tags_seen(vec: Any, assignment: PolicyAssignment) -> list[int]:
    """Set an assignment's policy tags, and return those that environments show."""
    set_tags(vec, assignment)
    rows = allocate_rows(vec, vec.num_agents)
    vec.reset(rows)
    return rows.observations[:, 0].astype(int).tolist()


def test_environments_of_release_5_know_their_tag_also_after_a_restore():
    folder = edited("peloton", ("obs[k] = (obs_t)env->strength[k];", "obs[k] = (obs_t)env->tag;"))
    with NativeVec(folder, total_agents=24, env=parameters("peloton")) as vec:
        assignment = assign_as_declared(vec, 1, 0.5)
        assert tags_seen(vec, assignment) == [0] * 12 + [1] * 12
        state = vec.state()
        assert state is not None
        with NativeVec(folder, total_agents=24, env=parameters("peloton")) as other:
            other.restore(state)
            assert tags_seen(other, assignment) == [0] * 12 + [1] * 12


def test_environments_of_release_4_know_their_tag_if_they_ask_for_it():
    def change(folder: Path) -> None:
        header = folder / "connect4_two.h"
        edit(header, "    int mover;", "    int tag, boundary_reached;\n    int mover;")
        shown = "    show_turn(env);\n}\n\n// End a game"
        edit(header, shown, "    env->observations[0] = env->observations[126] = env->tag;" + shown)
        edit(folder / "binding.c", "#define Env", "#define MY_USES_TAGS\n#define Env")

    folder = kept_copy(folder_of("connect4_two"), change)
    with NativeVec(folder, total_agents=16, env={}) as vec:
        behind = Normalized(vec, False, True, 0.99)
        assert tags_seen(behind, assign_in_blocks(behind, 1, 0.25)) == [0] * 8 + [1] * 8
