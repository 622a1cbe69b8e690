"""The ladder: matches against scripted opponents of both kinds, and its table."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from kept import edit, kept_copy
from native_envs import UPSTREAM_5_ROOT
from saved_policies import record_of, save

from puffer_mlx import config, vec
from puffer_mlx.errors import UserError
from puffer_mlx.evaluation import ladder
from puffer_mlx.evaluation.episodes import Scores
from puffer_mlx.evaluation.ladder import Ladder, OpponentResult
from puffer_mlx.policy.policy import configured_policy

# ---- A folder with a bot.py ----------------------------------------------------------------------


def test_each_skill_has_the_results_of_a_match(against, here):
    save("connect4_two")
    line = "--games 40 --json x.json --seed 3"
    assert against("connect4_two", "17", "--against", "bot:0.75", *line.split())[0] == 0
    pair = record_of(here)["pairs"][0]
    code, out, err = against("connect4_two", "17", "--ladder", *line.split())
    assert (code, err) == (0, "")
    record = record_of(here)
    levels = {level["name"]: level for level in record["rungs"]}
    found = levels["bot:0.75"]
    assert {**found["tally"], "score": found["score"], "low": found["low"]} == {
        key: pair[key] for key in ("wins", "draws", "losses", "score", "low")
    }
    assert record["score"] == pytest.approx(sum(level["score"] for level in levels.values()) / 5)
    assert (record["policy"], record["seed"], record["deterministic"]) == ("17", 3, False)
    _, _, *rows, last = out.splitlines()
    assert [row.split()[0] for row in rows] == list(levels)
    assert last.split() == ["mean", f"{record['score']:.3f}"]


def test_bot_eval_changes_the_environment_of_the_ladder(against, here):
    """connect4_two-openings begins with random stones, except against scripted players."""
    same = "--torch.network MLP --policy.dialect puffer3 --policy.num-layers 1"
    levels = []
    for env, line in (
        ("connect4_two-openings", ""),
        ("connect4_two", ""),
        ("connect4_two", "--env.opening-stones 24"),
    ):
        save(env, more=same)
        words = f"17 --ladder --games 60 --seed 3 --json x.json {line}".split()
        assert against("connect4_two", *words)[0] == 0
        levels.append(record_of(here)["rungs"])
    assert levels[0] == levels[1] != levels[2]


def test_unused_eval_bots_have_a_note(against):
    save("connect4_two")
    words = "--against", "random", "--games", "2", "--selfplay.eval-bots=1"
    code, out, _ = against("connect4_two", "17", *words)
    assert code == 0 and "unused here: selfplay.eval_bots (for --ladder)" in out


# ---- An environment that plays them itself -------------------------------------------------------


def peloton(*changes: tuple[str, str], bot_eval: str = "") -> str:
    """Return a changed copy of the environment peloton with a section [bot_eval]."""

    def change(root: Path) -> None:
        for old, new in changes:
            edit(root / "ocean" / "peloton" / "peloton.h", old, new)
        file = root / "config" / "peloton.ini"
        file.write_text(f"{file.read_text()}\n[bot_eval]\n{bot_eval}\n")

    return str(kept_copy(UPSTREAM_5_ROOT, change) / "ocean" / "peloton")


def played(settings: config.Config, games: int = 10, **more: Any) -> Ladder:
    spec = vec.look_up_spec(settings)
    policy = configured_policy(spec, settings)
    spec = replace(spec, **more.pop("spec", {}))
    weights = policy.init(mx.random.key(1))
    make = lambda own: vec.make(own, 1)  # noqa: E731
    return ladder.play_environment_bots(settings, spec, policy, weights, make, games, **more)


BOTS = "--selfplay.eval-bots=0,1", "--policy.hidden-size=8", "--selfplay.eval-bot-envs=8"
TELLS = "env->log.perf += score;", "env->log.perf += env->bot;"


def test_bots_inside_an_environment_have_their_mean_and_progress():
    """perf is the number of the bot here."""
    settings = config.load(peloton(TELLS, bot_eval="riders = 1"), BOTS)
    progress = []
    found = played(settings, 12, progress=lambda *now: progress.append(now))
    assert found.results == (
        OpponentResult("bot 0", 12, 0, 0, 0),
        OpponentResult("bot 1", 12, 1, 1, 1),
    )
    assert (found.score_name, found.score) == ("perf", 0.5)
    assert progress[-1] == (24, 24) and progress == sorted(progress)
    assert str(found).splitlines()[-1].split() == ["mean", "0.500"]


def test_env_changes_by_pufferlibs_keys_and_by_bot_eval_first():
    folder = peloton(
        (TELLS[0], "env->log.perf += env->most;"),
        ('dict_get(kwargs, "strength")', 'dict_get(kwargs, "num_bots") + env->num_agents'),
        bot_eval="riders = 2\nname = two, 2",
    )
    settings = config.load(folder, BOTS)
    assert settings.bot_eval == {"riders": 2.0, "name": "two, 2"} and settings.unused == []
    assert settings.env["riders"] != 2
    assert [level.score for level in played(settings).results] == [3, 3]
    own = ladder.environment_bot_config(settings).env
    assert (own["num_agents"], own["num_bots"], own["riders"]) == (1, 1, 2)
    settings.bot_eval["num_agents"] = 4.0
    assert ladder.environment_bot_config(settings).env["num_agents"] == 4


def test_the_interval_of_a_mean_narrows_with_the_number_of_games(monkeypatch):
    episodes = [{"perf": float(i > 1), "score": 9.0, "env": i, "n": 1.0} for i in range(4)]
    found = Scores(episodes, environments=4, each=1, unfinished=0, steps=32, seconds=0.0)
    monkeypatch.setattr(ladder, "score_episodes", lambda *_, **__: found)
    settings = config.load(peloton(bot_eval="riders = 1"), [*BOTS, "--selfplay.eval-bots=0"])
    (level,) = played(settings, 4).results
    half = 1.959964 * (1 / 3) ** 0.5 / 4**0.5  # the deviation of 0, 0, 1, 1 is sqrt(1/3)
    assert level[:3] == ("bot 0", 4, 0.5) and level.tally is None
    assert (level.low, level.high) == pytest.approx((0.5 - half, 0.5 + half), abs=1e-6)


def test_games_that_do_not_end_are_refused(monkeypatch):
    """An episode has 32 steps, and each environment plays two."""
    settings = config.load(peloton(bot_eval="riders = 1"), BOTS)
    monkeypatch.setattr(ladder, "MAX_STEPS", 40)
    with pytest.raises(UserError, match="had not ended their games after 40 steps"):
        played(settings)


def test_a_policy_of_other_observations_is_refused():
    settings = config.load(peloton(bot_eval="riders = 1"), BOTS)
    with pytest.raises(UserError, match=r"the policy was trained with 5 and \(3,\)"):
        played(settings, spec={"observation_size": 5})


def test_a_saved_configuration_keeps_bot_eval(here):
    settings = config.load(peloton(bot_eval="riders = 1\nname = two, 2"), BOTS)
    config.write_ini(settings, here / "config.ini")
    assert config.load(str(here / "config.ini")).bot_eval == {"riders": 1.0, "name": "two, 2"}
    assert "bot_eval" not in config.to_dict(config.load("connect4_two"))
