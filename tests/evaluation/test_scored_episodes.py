"""Evaluation in whole episodes: each environment's first ones, acted as the policy was trained."""

import statistics
from typing import Any

import mlx.core as mx
import native_envs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from puffer_mlx import config, vec
from puffer_mlx.evaluation.episodes import (
    AgentStepper,
    Scores,
    Spread,
    agent_frames,
    score_episodes,
)
from puffer_mlx.policy.policy import make_policy
from puffer_mlx.spec import ActionSpec, EnvSpec


class Scripted:
    """Stub environments of one agent with planned episodes: (length, score) of each.

    The observation is (environment, step since the reset), the reward step + environment / 100.
    Episodes of one step with score 99 follow the planned ones.
    """

    final_observations = False
    unused: list[str] = []

    def __init__(self, plans: Any, groups: int = 1, masked: bool = False, per_record: int = 1):
        self.plans = plans
        self.per_record = per_record
        self.num_agents = self.num_environments = len(plans)
        self.num_groups = groups
        mask = 3 if masked else 0
        self.spec = EnvSpec("scripted", 2, np.dtype(np.float32), ActionSpec((3,)), mask)
        self.sent: list[list[float]] = []

    def reset(self, out: Any) -> None:
        self.tick = 0
        self.ended: list[dict[str, float]] = []
        self.place = [(0, 0) for _ in self.plans]  # episode, step in it
        for rows in out:
            if rows is not None:
                rows[:] = 0
        out.observations[:, 0] = np.arange(self.num_agents)
        if out.masks is not None:
            out.masks[:] = 1

    def send(self, group: int, actions: Any, out: Any) -> None:
        n = self.num_agents // self.num_groups
        if group == 0:
            self.tick += 1
            self.sent.append([])
        self.sent[-1] += actions[:, 0].tolist()
        for i, env in enumerate(range(group * n, (group + 1) * n)):
            episode, step = self.place[env]
            plan = self.plans[env]
            length, points = plan[episode] if episode < len(plan) else (1, 99.0)
            over = step + 1 == length
            self.place[env] = (episode + 1, 0) if over else (episode, step + 1)
            out.observations[i] = env, self.tick
            out.rewards[i] = self.tick + env / 100
            out.terminals[i] = over
            if out.masks is not None:
                out.masks[i] = np.arange(3) != self.tick % 3
            if over:
                self.ended.append({"score": points, "length": float(length), "env": float(env)})

    def wait(self, group: int) -> None:
        pass

    def episodes(self) -> list[dict[str, float]]:
        ended = sorted(self.ended, key=lambda record: record["env"])
        self.ended = []
        return [{**record, "n": float(self.per_record)} for record in ended]


class Spy:
    """Stub of a policy whose state and action count steps; records the arguments of ``act``."""

    def __init__(self, reset_on_terminal: bool = False) -> None:
        self.reset_on_terminal = reset_on_terminal
        self.distribution = self
        self.seen: list[Any] = []

    def noise(self, key, shape):
        return mx.random.uniform(shape=(*shape, 1), key=key)

    def initial_state(self, n):
        return mx.zeros((n,))

    def not_done(self, terminals):
        return 1 - terminals if self.reset_on_terminal else None

    def act(self, weights, observations, state, noise, mask=None, not_done=None):
        state = (state if not_done is None else state * not_done) + 1
        self.seen.append((observations, noise, mask, weights))
        return state[:, None], state, state, state


def run(policy: Any, environments: Any, episodes: int, seed=0, greedy=False, **how) -> Scores:
    stepper = AgentStepper(policy, "the weights", environments, seed, greedy)  # pyright: ignore
    return score_episodes(stepper, episodes, **how)


# ---- counting ------------------------------------------------------------------------------------


COUNTS = st.integers(0, 3)
PLANS = st.lists(st.tuples(st.integers(1, 5), st.integers(0, 9).map(float)), min_size=6, max_size=6)


@given(
    plans=st.lists(PLANS, min_size=1, max_size=4), each=st.integers(1, 5), less=st.integers(0, 3)
)
def test_every_environment_contributes_its_first_episodes_in_order(plans, each, less):
    """Short episodes end more often but don't outvote long ones."""
    environments, progress = Scripted(plans), []
    planned = len(plans) * each
    episodes = planned - min(less, len(plans) - 1)  # rounded up to whole environments
    run(Spy(), environments, 1)  # the episodes of an earlier evaluation don't count
    result = run(Spy(), environments, episodes, progress=lambda *now: progress.append(now))
    expected = [(e, points) for e, plan in enumerate(plans) for _, points in plan[:each]]
    assert [(record["env"], record["score"]) for record in result.episodes] == expected
    assert (result.each, result.count, result.unfinished) == (each, planned, 0)
    assert result.steps == max(sum(length for length, _ in plan[:each]) for plan in plans)
    assert progress[-1] == (planned, planned) and progress == sorted(progress)


def test_a_summary_is_the_statistics_of_numbers_that_all_episodes_have():
    points = [3.0, -1.0, 4.0, 1.5, 9.0, 2.0]
    summary = run(Spy(), Scripted([[(1, p)] for p in points]), 6).summary()
    assert set(summary) == {"score", "length"}
    mean, std, *rest = summary["score"]
    assert mean == pytest.approx(statistics.mean(points))
    assert std == pytest.approx(statistics.stdev(points))
    assert rest == [statistics.median(points), -1.0, 9.0]
    one = run(Spy(), Scripted([[(3, 2.5)]]), 1).summary()
    assert one["score"] == Spread(2.5, 0, 2.5, 2.5, 2.5)
    some = [{"score": 1.0, "won": 1.0, "env": 0.0, "n": 1.0}, {"score": 3.0, "env": 1.0, "n": 1.0}]
    assert set(Scores(some, 2, 1, 0, 1, 0.0).summary()) == {"score"}


def test_a_record_of_several_episodes_counts_as_several():
    """Agents of one environment may end together; surplus episodes aren't counted."""
    result = run(Spy(), Scripted([[(1, 1.0), (1, 4.0)]], per_record=3), 5)
    assert result.values("score").tolist() == [1.0, 1.0, 1.0, 4.0, 4.0]
    assert [record["n"] for record in result.episodes] == [3.0, 2.0]
    assert result.summary()["score"].mean == pytest.approx(11 / 5)


def test_environments_that_do_not_end_in_time_are_counted_as_unfinished():
    environments = Scripted([[(2, 1.0), (2, 2.0)], [(3, 3.0), (30, 4.0)]])
    result = run(Spy(), environments, 4, max_steps=7)
    assert (result.unfinished, result.count, result.steps) == (1, 3, 7)
    assert result.values("score").tolist() == [1.0, 2.0, 3.0]
    nothing = run(Spy(), environments, 4, max_steps=1)
    assert (nothing.unfinished, nothing.count, nothing.summary()) == (2, 0, {})


# ---- acting --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("groups", "resets", "sent"),
    [
        (1, False, [[1, 1], [2, 2], [3, 3], [4, 4], [5, 5]]),
        (2, True, [[1, 1], [2, 2], [1, 3], [2, 4], [3, 1]]),
    ],
)
def test_a_policys_state_is_reset_at_terminals_if_the_policy_says_so(groups, resets, sent):
    environments = Scripted([[(2, 1.0), (3, 1.0)], [(4, 1.0), (1, 1.0)]], groups)
    run(Spy(reset_on_terminal=resets), environments, 4)
    assert environments.sent == sent


@pytest.mark.parametrize("masked", [False, True])
def test_the_policy_gets_the_latest_observations_masks_and_weights(masked):
    spy = Spy()
    run(spy, Scripted([[(4, 1.0)], [(4, 1.0)]], masked=masked), 2)
    assert len({str(noise) for _, noise, _, _ in spy.seen}) == 4  # another one in every step
    for t, (observations, _, mask, weights) in enumerate(spy.seen):
        assert weights == "the weights"
        assert np.array(observations).tolist() == [[0, t], [1, t]]
        legal = [True] * 3 if t == 0 else [k != t % 3 for k in range(3)]
        assert (mask is not None) == masked
        if masked:
            assert np.array(mask).tolist() == [legal, legal]


@pytest.mark.parametrize("greedy", [False, True])
def test_evaluations_repeat_to_the_bit_with_other_groups_and_threads(greedy):
    results = []
    for buffers, workers, seed in ((1, 1, 7), (4, 2, 7), (1, 1, 8)):
        sizes = {"num_buffers": buffers, "num_threads": workers, "total_agents": 40}
        with native_envs.make("squared", env={"size": 3}, seed=5, **sizes) as environments:
            settings = config.load("squared", ["--policy.hidden-size", "8"])
            policy = make_policy(environments.spec, settings.policy, settings.torch)
            weights = policy.init(mx.random.key(3))
            found = score_episodes(AgentStepper(policy, weights, environments, seed, greedy), 120)
        results.append((found.episodes, found.steps))
    assert results[0] == results[1]
    assert (results[0] == results[2]) == greedy


@pytest.mark.parametrize(("kind", "backend"), [("native", "auto"), ("python", "async")])
def test_several_continuous_actions_are_sent_contiguously(kind, backend):
    words = f"""
        --vec.num-buffers 2 --vec.total-agents 4 --device cpu --vec.backend {backend}
        --policy.hidden-size 8 --train.horizon 8 --train.minibatch-size 32
    """
    settings = config.load(native_envs.DRIFT[kind], words.split())
    with vec.make(settings, 2) as envs:
        policy = make_policy(envs.spec, settings.policy, settings.torch)
        weights = policy.init(mx.random.key(0))
        scores = score_episodes(AgentStepper(policy, weights, envs), 8)
        assert envs.spec.action.sizes == (1, 1) and scores.count == 8 and not scores.unfinished


# ---- frames --------------------------------------------------------------------------------------


def test_frames_show_agent_0_with_its_episode_reward_and_return():
    environments = Scripted([[(2, 1.0), (3, 1.0)], [(1, 1.0)]])
    stepper = AgentStepper(Spy(), None, environments)  # pyright: ignore
    frames = list(agent_frames(stepper, lambda observation: observation, 7))
    assert [frame.image.tolist() for frame in frames] == [[0, t] for t in range(7)]
    assert [frame[1:] for frame in frames] == [
        (0, 0, 0.0, 0.0, False),
        (1, 0, 1.0, 1.0, False),
        (2, 1, 2.0, 3.0, True),
        (3, 1, 3.0, 3.0, False),
        (4, 1, 4.0, 7.0, False),
        (5, 2, 5.0, 12.0, True),
        (6, 3, 6.0, 6.0, True),
    ]
    assert len(environments.sent) == 6  # no step without a frame
