"""Statistics of episodes by hand arithmetic, and the check that numbers are finite."""

import threading

import numpy as np
import pytest

from puffer_mlx.errors import UserError
from puffer_mlx.vec.episodes import Episodes, scalar_metrics
from puffer_mlx.vec.rows import check_finite


def add(episodes, rewards, ended, **more):
    episodes.add(np.array(rewards, np.float32), np.array(ended, bool), **more)


@pytest.fixture
def three():
    """Return the recorded episodes of three agents, some of them ended.

    The first agent's returns are 3 and 4, the last one's 21.
    """
    episodes = Episodes(3)
    add(episodes, [1, 10, 5], [0, 0, 0])
    add(episodes, [2, 10, 7], [1, 0, 0])
    add(episodes, [4, 10, 9], [1, 0, 1])
    return episodes


def test_log_is_the_mean_of_ended_episodes(three):
    assert three.log() == {
        "episode_return": pytest.approx((3 + 4 + 21) / 3),
        "episode_length": 2.0,
        "score": pytest.approx((3 + 4 + 21) / 3),
        "n": 3.0,
    }
    assert three.log() == {}
    add(three, [0, 2, 0], [0, 1, 0])  # the middle one continued
    assert three.log() == {"episode_return": 32, "episode_length": 4, "score": 32, "n": 1}


def numbers(episodes, *keys):
    return [tuple(record[key] for key in keys) for record in episodes.take()]


def test_each_ended_episode_is_recorded_and_a_restart_drops_the_others(three):
    keys = "env", "n", "episode_return", "episode_length"
    assert numbers(three, *keys) == [(0, 1, 3, 2), (0, 1, 4, 1), (2, 1, 21, 3)]
    assert three.take() == [] and three.log() == {}
    three.restart()
    add(three, [1, 1, 1], [0, 1, 0])
    assert numbers(three, "env", "score") == [(1, 1)]


def test_agents_share_the_number_of_their_environment():
    episodes = Episodes(6, per_environment=2)
    add(episodes, [1, 2, 3], [1, 1, 1], first=3)
    assert numbers(episodes, "env", "score") == [(1, 1), (2, 2), (2, 3)]


def test_reset_is_no_step():
    episodes = Episodes(2)
    add(episodes, [1, 0], [0, 0], resets=np.array([False, True]))
    add(episodes, [2**24, 1], [0, 1], resets=np.array([False, False]))
    add(episodes, [1, 1], [1, 0])
    # and rewards are added in float64
    assert numbers(episodes, "episode_length", "score") == [(3, 2**24 + 2), (1, 1)]


# ---- what environments tell ----------------------------------------------------------------------


def test_reported_values_override_computed_ones():
    """A value that only some episodes report is averaged over these."""
    infos = {1: {"episode_return": 50, "x": 2}, 2: {"score": 0.25, "x": 6}}
    one, other = Episodes(4), Episodes(4)
    for episodes in one, other:
        add(episodes, [1, 2, 3], [1, 1, 1], first=1, infos=infos)
    first, second, third = one.take()
    assert "x" not in first and (first["env"], first["score"]) == (1, 1)
    assert (second["episode_return"], second["score"], second["x"]) == (50, 50, 2)
    assert (third["episode_return"], third["score"]) == (3, 0.25)
    assert other.log()["x"] == 4


def test_notes_are_averaged_by_their_n():
    episodes = Episodes(1)
    episodes.add_report({"score": 1.0, "n": 3})
    episodes.add_report({"score": 5.0, "n": 1, "speed": 2})
    assert episodes.log() == {"score": 2, "speed": pytest.approx(2), "n": 4}
    assert episodes.log() == {}
    add(episodes, [7], [1])
    episodes.add_report({"score": 1.0, "n": 3})
    assert episodes.log() == {"episode_return": 7, "episode_length": 1, "score": 1, "n": 1}
    episodes.add_report({"score": 1.0, "n": 0})
    assert "score" not in episodes.log()


def test_only_numbers_of_an_info_are_recorded():
    info = {"a": True, "b": np.float32(4), "c": np.array([[5]]), "d": {"e": {"f": 6}}}
    others = {"text": "x", "nothing": None, "many": np.zeros(2), "complex": 1j, "n": 3, "env": 4}
    assert scalar_metrics(info | others) == {"a": 1, "b": 4, "c": 5, "d/e/f": 6}


def test_no_episode_is_lost_between_threads_that_add_and_read():
    episodes, counted = Episodes(1), []
    writer = threading.Thread(target=lambda: [add(episodes, [1], [1]) for _ in range(4000)])
    writer.start()
    while writer.is_alive():
        counted.append(episodes.log().get("n", 0))
    counted.append(episodes.log().get("n", 0))
    assert sum(counted) == 4000


# ---- numbers that aren't finite ------------------------------------------------------------------


def test_environment_of_a_number_that_is_not_finite_is_named():
    def check(observations, per_environment=1):
        check_finite("toy", observations, rewards, 2, range(100, 110), per_environment)

    good, rewards = np.ones((4, 3), np.float32), np.ones(4, np.float32)
    check(good)
    worse = good.copy()
    worse[3, 1] = np.nan
    with pytest.raises(UserError, match=r"toy: environment 5 \(seed 105\) .*nan at position 1"):
        check(worse)
    with pytest.raises(UserError, match=r"environment 3 \(seed 103\), agent 1, returned obs"):
        check(worse, per_environment=2)
    rewards[0] = -np.inf
    with pytest.raises(UserError, match=r"environment 2 \(seed 102\) returned a reward of -inf"):
        check(good)
