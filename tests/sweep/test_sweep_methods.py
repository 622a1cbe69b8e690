"""Methods suggest good values, none that cost too much or fail."""

from dataclasses import replace

import numpy as np
import pytest

from puffer_mlx.sweep.methods import Protein, make_method
from puffer_mlx.sweep.observations import Observations, pareto_front, prune_front
from puffer_mlx.sweep.settings import SweepSettings
from puffer_mlx.sweep.space import TIMESTEPS, Parameter, Space

SECTION, KEY = TIMESTEPS.split(".")
SPACE = Space(
    [
        Parameter(SECTION, KEY, "log_normal", 1e6, 1e8, integer=True),
        Parameter("train", "gamma", "uniform", 0.0, 1.0),
        Parameter("train", "clip_coef", "uniform", 0.0, 1.0),
    ]
)
SETTINGS = SweepSettings(max_suggestion_cost=1000.0, num_random_samples=4)


def outcome(vector):
    """Return the score and cost of a sweep's run by a simple formula.

    The score is best at gamma 0.65, and better if longer; 100,000 steps cost 1 s.
    """
    steps = SPACE.to_values(vector)[TIMESTEPS]
    return 1 - 4 * (vector[1] - 0.3) ** 2 + 0.3 * vector[0], steps / 1e5


def run(method, count, sign=1):
    vectors = []
    for _ in range(count):
        vectors.append(method.suggest())
        score, cost = outcome(vectors[-1])
        method.observe(vectors[-1], sign * score, cost)
    return np.array(vectors)


@pytest.mark.parametrize("goal", ["maximize", "minimize"])
def test_protein_finds_the_best_value(goal):
    settings = replace(SETTINGS, goal=goal)
    vectors = run(make_method(SPACE, settings, 5), 30, settings.sign)
    assert np.median(np.abs(vectors[-8:, 1] - 0.3)) < 0.15


def test_too_expensive_runs_are_not_suggested():
    method = make_method(SPACE, replace(SETTINGS, max_suggestion_cost=60.0), 5)
    costs = [outcome(vector)[1] for vector in run(method, 24)]
    assert max(costs[4:]) < 100 and max(costs) > 25


def protein(vectors, **more):
    """Return the sweep method Protein after it has observed runs with these parameters."""
    method = Protein(SPACE, replace(SETTINGS, **more), 5)
    for vector in vectors:
        method.observe(vector, *outcome(vector))
    return method


def drawn(seed, low, high, count):
    return np.random.default_rng(seed).uniform(low, high, (count, 3))


def test_region_of_failures_is_avoided():
    method = make_method(SPACE, SETTINGS, 5)
    for vector in drawn(1, -1, 1, 60):
        score, cost = outcome(vector)
        method.observe(vector, score + 2 * vector[2], cost, failed=bool(vector[2] > 0))
    suggested = np.array([method.suggest(number) for number in range(10, 30)])
    assert np.mean(suggested[:, 2] > 0.1) < 0.2 and suggested[:, 2].max() < 0.3


def test_length_of_runs_need_not_be_swept():
    method = make_method(Space(SPACE.parameters[1:]), SETTINGS, 5)
    for _ in range(25):
        vector = method.suggest()
        method.observe(vector, 1 - (vector[0] - 0.3) ** 2, 10.0)
    assert abs(vector[0] - 0.3) < 0.3


def test_exploration_prefers_unknown_candidates():
    near_and_far, ratings = np.array([[0.0, 0.3, 0.0], [0.0, 0.3, 1.0]]), []
    for more in (0.0, 1.0):
        method = protein(drawn(1, -0.3, 0.3, 20), exploration=more)
        models = method.models(np.random.default_rng(0))
        ratings.append(method.ratings(models, near_and_far, None))
    gains = ratings[1] - ratings[0]
    assert not gains[:, :2].any() and 0 < gains[0, 2] < gains[1, 2]


def test_suggestions_share_values_with_a_run_whose_score_stands_out():
    rest = [Parameter("env", f"p{i}", "uniform", 0.0, 1.0) for i in range(9)]
    space = Space([SPACE.parameters[0], *rest])
    alike = []
    for best in (100.0, 1.0):  # the other 29 scores are between 0 and 1
        method = Protein(space, SETTINGS, 5)
        draw = np.random.default_rng(3)
        seen = draw.uniform(-0.4, 0.4, (30, 10))
        for vector, score in zip(seen, [best, *draw.random(29)], strict=True):
            method.observe(vector, score, 10 ** (1 + vector[0]))
        made = np.array([method.suggest(number) for number in range(10, 16)])
        same = np.abs(made[:, None, 1:] - seen[None, :, 1:]) < 1e-9
        alike.append(same.sum(2).max(1))
    assert alike[0].max() >= 4 and not alike[1].any()


def test_sweep_whose_runs_all_fail_continues():
    method = make_method(SPACE, SETTINGS, 5)
    vectors = [method.suggest() for _ in range(3)]
    for _ in range(15):
        vectors.append(method.suggest())
        method.observe(vectors[-1], float("nan"), 0.0, failed=True)
    assert len({tuple(vector) for vector in vectors}) == 18


# ---- observations --------------------------------------------------------------------------------


def test_stored_scores_are_larger_if_better():
    seen = Observations(replace(SETTINGS, goal="minimize"))
    seen.add(np.zeros(3), 2.0, 1.0)
    assert seen.scores.tolist() == [-2.0]
    seen = Observations(replace(SETTINGS, metric_distribution="percentile"))
    for at, score in enumerate([0.5, 0.0, 0.9]):
        seen.add(np.full(3, float(at)), score, 1.0)
    assert seen.scores.tolist() == pytest.approx([0.0, -5.0, np.log(9)])


def test_repeated_vector_replaces_its_score_and_failures_are_separate():
    seen = Observations(SETTINGS)
    seen.add(np.zeros(3), 2.0, 1.0)
    seen.add(np.full(3, 1e-8), 3.0, 2.0)
    assert len(seen) == 1 and seen.scores[0] == 3.0 and seen.costs[0] == 2.0
    for score, cost in ((np.nan, 1.0), (1.0, 0.0), (1.0, np.inf)):
        seen.add(np.ones(3), score, cost)
    assert len(seen) == 1 and len(seen.failures) == 3


def test_pareto_front_has_no_run_that_is_beaten():
    scores, costs = np.array([1.0, 3, 2, 3, 5, 4]), np.array([1.0, 4, 5, 3, 9, 9])
    assert pareto_front(scores, costs).indices.tolist() == [0, 3, 4]


def test_front_is_pruned_where_it_is_flat():
    scores, costs = np.array([0.0, 0.985, 0.99, 1.0]), np.array([0.0, 10.0, 20.0, 100.0])
    front = pareto_front(scores, costs)
    assert prune_front(front).costs.tolist() == [0.0, 10.0]
    steep = pareto_front(np.array([0.0, 0.6, 1.0]), np.array([1.0, 2.0, 100.0]))
    assert prune_front(steep).costs.tolist() == [1.0, 2.0, 100.0]
