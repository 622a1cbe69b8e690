"""Logs in PufferLib's forms: read back by small readers of the forms as they are described."""

import json
import math
import re
import types
from dataclasses import replace

import pytest
from running import BATCH, EPOCHS, ROOT, TINY

from puffer_mlx import config as c
from puffer_mlx.errors import UserError
from puffer_mlx.tracking import formats
from puffer_mlx.tracking.further_log import further_log
from puffer_mlx.tracking.json_lines import JsonLines
from puffer_mlx.tracking.run_log import RunLog


def number(text):
    """As C's strtod reads it, which stops where the number ends."""
    found = re.match(r"[+-]?(nan|inf|\d+\.?\d*(e[+-]?\d+)?)", text, re.IGNORECASE)
    return float(found[0]) if found else 0.0


def read_v1(text):
    """PufferLib 5.0's rules: # and ; begin a comment outside quotes; a comma makes a list."""
    first, *lines = text.splitlines()
    assert first == "# PufferLib log v1"
    made, section = {}, None
    for line in lines:
        line = re.sub(r"""^((?:"[^"]*"|'[^']*'|[^#;"'])*).*""", r"\1", line).strip()
        if line.startswith("["):
            section = made.setdefault(line.strip("[]"), {})
        elif line:
            key, equals, value = (part.strip() for part in line.partition("="))
            assert equals and section is not None and len(key) < 128 and key not in section
            if value[:1] in ("'", '"') and value[-1] == value[0]:
                value = value[1:-1]
            section[key] = [number(x) for x in value.split(",")] if "," in value else value
    return made


def run_of(tmp_path, records, *words, overlap=False):
    """A run whose log these are."""
    settings = c.load("squared", words)
    log = JsonLines(tmp_path / "logs" / "7.jsonl")
    for record in records:
        log.write(record)
    log.close()
    return RunLog(settings, "7", log.path, overlap)


def epoch(i, steps, score=None, **more):
    """A record; its time is ten seconds for each epoch, its speed is i."""
    env = {} if score is None else {"env/score": score, "env/n": 2.0 * i}
    values = {"SPS": i, "agent_steps": steps, "uptime": 10.0 * i, "epoch": i, "loss/total": 1.0}
    return {**values, **env, **more}


# ---- PufferLib 5.0's -----------------------------------------------------------------------------


def test_bins_of_a_v1_log(tmp_path):
    """800 steps in 4 parts: they end with the records that reach 200, 400, 600 and 800."""
    scores = [None, 1, 2, 6, None, 3, 4, 8]  # of epochs 1 to 8, 100 steps each
    records = [epoch(i + 1, 100 * (i + 1), score) for i, score in enumerate(scores)]
    run = run_of(tmp_path, records, "--train.algorithm", "puffer5")
    found = read_v1(formats.find("puffer5").text(run))["metrics"]
    # Epoch 1 has no score and doesn't count; epoch 5 brings the record of epoch 4 to step 500 and
    # second 50. So: (2) | (3, 4 at 500) | (6) | (7, 8), and the last record again.
    assert found["agent_steps"] == [200, (300 + 500) / 2, 600, (700 + 800) / 2, 800]
    assert found["uptime"] == [20, (30 + 50) / 2, 60, 75, 80]
    assert found["env/score"] == [1, (2 + 6) / 2, 3, (4 + 8) / 2, 8]
    assert found["env/n"] == [4, (6 + 8) / 2, 12, (14 + 16) / 2, 16]
    assert found["epoch"] == [2, 3.5, 6, 7.5, 8]
    assert set(found) == {"SPS", "agent_steps", "uptime", "epoch", "env/score", "env/n"}


def test_the_evaluation_is_the_last_point_and_steps_stay(tmp_path):
    records = [epoch(1, 100, 1), epoch(2, 200, 3), {"agent_steps": 900, "env/score": 9.0}]
    run = run_of(tmp_path, records)
    text = formats.find("puffer5").text(run)
    found = read_v1(text)["metrics"]
    # Parts of 50 steps; a record ends one of them at most, and what is missing is repeated.
    assert found["env/score"] == [1, 3, 3, 3, 9]
    assert found["env/n"] == [2, 4, 4, 4, 4]
    assert found["agent_steps"] == [100, 200, 200, 200, 200]
    older = json.loads(formats.find("puffer4").text(run))["metrics"]
    assert older["env/score"] == [1, 3, 9, 9] and older["agent_steps"] == [100, 200, 200, 200]


def test_as_many_points_as_the_sweep_says(tmp_path):
    run = run_of(tmp_path, [epoch(i, 100 * i, i) for i in range(1, 7)])
    run.config.sweep["sweep"] = {"downsample": "3"}
    assert read_v1(formats.find("puffer5").text(run))["metrics"]["SPS"] == [2, 5, 6]
    assert json.loads(formats.find("puffer4").text(run))["metrics"]["SPS"] == [2, 5, 6]
    run.config.sweep["sweep"] = {"downsample": "1"}
    assert read_v1(formats.find("puffer5").text(run))["metrics"]["SPS"] == "6"
    assert json.loads(formats.find("puffer4").text(run))["metrics"]["SPS"] == [6]
    run.config.sweep["sweep"] = {"downsample": "none"}
    with pytest.raises(UserError, match="downsample is 'none'"):
        assert run.points


def test_numbers_of_some_records(tmp_path):
    """They are the mean of those that have them, else what they were before."""
    records = [
        epoch(1, 100, 1, **{"perf/forward": 4.0}),
        epoch(2, 200, 1, **{"perf/forward": 5.0}),
        epoch(3, 300, 1),
        epoch(4, 400, 1, **{"perf/forward": math.nan}),
    ]
    run = run_of(tmp_path, records)
    lines = formats.find("puffer5").text(run).splitlines()
    assert "perf/forward = 4,5,5,nan,nan" in lines
    assert '"perf/forward": [4.0, 5.0, 5.0, NaN, NaN]' in formats.find("puffer4").text(run)


def test_ratings_and_the_ladder_are_in_both_forms(tmp_path):
    """Columns of one length without gaps, also of what is there late, or only at the end."""
    rated = {"env/elo": 3.0, "pool/size": 2, "pool/num_banks": 1}
    later = {**rated, "env/elo": 5.0, "pool/winrate_bank_0": 0.75}
    last = {"agent_steps": 200, "env/score": 0.5, "env/n": 40.0, "env/ladder/bot_0.5": 0.5}
    run = run_of(tmp_path, [epoch(1, 100, 1, **rated), epoch(2, 200, 3, **later), last])
    run.config.sweep["sweep"] = {"downsample": "3"}
    for form in "puffer5", "puffer4":
        text = formats.find(form).text(run)
        found = (json.loads(text) if form == "puffer4" else read_v1(text))["metrics"]
        assert found["env/elo"] == [3, 5, 5] and found["pool/size"] == [2, 2, 2]
        assert found["pool/winrate_bank_0"] == [0.75] * 3
        assert found["env/score"] == [1, 3, 0.5] and found["env/ladder/bot_0.5"] == [0.5] * 3
        assert {len(column) for column in found.values()} == {3}


def test_numbers_keep_all_of_their_digits(tmp_path):
    run = run_of(tmp_path, [epoch(1, 100, 0.1 + 0.2), epoch(2, 300, 1 / 3)])
    text = formats.find("puffer5").text(run)
    assert read_v1(text)["metrics"]["env/score"][:2] == [0.1 + 0.2, 1 / 3]


def test_the_configuration_of_a_v1_log(tmp_path):
    words = ("--train.algorithm", "puffer5", "--train.beta1", "0.8", "--train.overlap", "auto")
    run = run_of(tmp_path, [epoch(1, 100, 1)], *words, overlap=True)
    run.config.sweep["sweep.train.beta1"] = {"min": "0.5", "max": "0.999"}
    run.config.base.checkpoint_dir = "runs #1; old"
    found = read_v1(formats.find("puffer5").text(run))
    assert found["train"]["momentum"] == "0.8" and found["sweep.train.momentum"]["min"] == "0.5"
    assert found["base"]["async"] == "1"  # what auto came to
    assert found["base"]["reset_every_horizon"] == str(int(run.config.base.reset_state))
    assert found["base"]["env_name"] == "squared" and found["base"]["run_id"] == "7"
    assert found["base"]["checkpoint_dir"] == "runs #1; old"
    assert found["train"]["total_timesteps"] == str(run.config.train.total_timesteps)
    assert found["env"] == {"size": "11"}
    assert found["sweep"] == {"metric": "score", "downsample": "5"}
    assert not found["train"].keys() & {"beta1", "overlap", "prio_alpha", "prio_beta0", "eps"}
    ours = {key for keys in (vars(run.config.train), vars(run.config.policy)) for key in keys}
    gone = {"beta1", "beta2", "eps", "prio_alpha", "prio_beta0", "overlap"}
    assert ours - gone <= {*found["train"], *found["policy"]}
    run.config.train.algorithm = "puffer4"  # whose keys are told
    assert read_v1(formats.find("puffer5").text(run))["train"]["prio_alpha"] == "0.8"


@pytest.mark.parametrize("name", ["breakout", "configs/puffer5/breakout-a.ini"])
def test_the_configuration_of_a_v1_log_is_read_as_the_run_s_own(tmp_path, name):
    """By our own reader of 5.0's files, which gives 5.0's names back."""
    settings = c.load(str(ROOT / name) if "/" in name else name, ["--train.algorithm", "puffer5"])
    run = replace(run_of(tmp_path, [epoch(1, 100, 1)]), config=settings, overlap=True)
    text, _, _ = formats.find("puffer5").text(run).partition("[metrics]")
    (tmp_path / "run.ini").write_text(text)
    found = c.load("breakout", files=[tmp_path / "run.ini"])
    for section in ("base", "vec", "policy", "torch", "env"):
        assert getattr(found, section) == getattr(settings, section)
    assert found.train.overlap == "auto"  # which a file's 1 means
    gone = {"beta2", "eps", "prio_alpha", "prio_beta0", "overlap"}
    ours, theirs = ({**vars(one.train), **dict.fromkeys(gone)} for one in (settings, found))
    assert theirs == ours


def test_keys_that_the_reader_could_not_find_are_left_out(tmp_path):
    names = ("env/a=b", "env/a;b", "env/a#b", "env/" + "x" * 124)
    run = run_of(tmp_path, [epoch(1, 100, 1, **dict.fromkeys(names, 1.0))])
    assert set(read_v1(formats.find("puffer5").text(run))["metrics"]) == {
        *("SPS", "agent_steps", "uptime", "epoch", "env/score", "env/n")
    }


# ---- PufferLib 4.0's -----------------------------------------------------------------------------


def test_bins_of_a_4_0_log(tmp_path):
    """Records take over what they lack; those before the first score don't count."""
    scores = [None, 1, 2, 6, None, 3, 4, 8]
    records = [epoch(i + 1, 100 * (i + 1), score) for i, score in enumerate(scores)]
    run = run_of(tmp_path, [*records, {"agent_steps": 900, "env/score": 5.0, "env/n": 50.0}])
    found = json.loads(formats.find("puffer4").text(run))
    # (2) | (3, 4) | (5 with 4's score, 6) | (7, 8) | the evaluation
    assert found["metrics"]["env/score"] == [1, 4, (6 + 3) / 2, 6, 5]
    assert found["metrics"]["agent_steps"] == [200, 350, 550, 750, 800]
    assert found["metrics"]["uptime"] == [20, 35, 55, 75, 80]
    assert found["metrics"]["loss/total"] == [1] * 5


def test_the_configuration_of_a_4_0_log(tmp_path):
    run = run_of(tmp_path, [epoch(1, 100, 1)], "--train.beta1", "0.8", "--seed", "3")
    run.config.sweep["sweep.train.beta1"] = {"distribution": "uniform", "min": "5e-1"}
    found = json.loads(formats.find("puffer4").text(run))
    assert (found["env_name"], found["seed"], found["reset_state"]) == ("squared", 3, True)
    assert found["train"]["beta1"] == 0.8 and found["train"]["overlap"] is False
    assert found["env"] == {"size": 11.0}
    assert found["sweep"]["train"]["beta1"] == {"distribution": "uniform", "min": 0.5}
    assert found["sweep"]["metric"] == "score" and found["sweep"]["downsample"] == 5


@pytest.mark.parametrize(
    ("form", "said"), [("puffer4", "a/b"), ("puffer5", '"a/b"'), ("puffer5", "env/a/b")]
)
def test_the_number_that_the_sweep_is_about(tmp_path, said, form):
    """5.0's files may have it in quotes, and an environment's numbers a slash."""
    records = [epoch(1, 100, 1), epoch(2, 200, **{"env/a/b": 7.0}), epoch(3, 300, 2)]
    run = run_of(tmp_path, records, "--log-format", form)
    run.config.sweep["sweep"] = {"metric": said, "downsample": '"3"'}
    assert (run.metric, run.points) == ("env/a/b", 3)
    with further_log(run):
        pass
    (path,) = {*run.path.parent.iterdir()} - {run.path}
    text = path.read_text()
    found = (read_v1(text) if form == "puffer5" else json.loads(text))["metrics"]
    assert found["env/a/b"] == [7, 7, 7] and found["agent_steps"][-1] == 300


# ---- files ---------------------------------------------------------------------------------------


def test_without_the_metric_nothing_is_written(tmp_path, capsys):
    run = run_of(tmp_path, [epoch(1, 100)], "--log-format", "puffer5")
    with further_log(run):
        pass
    assert [path.name for path in run.path.parent.iterdir()] == ["7.jsonl"]
    assert "7.ini is not written: no record has env/score" in capsys.readouterr().out


def test_an_error_is_not_hidden_by_a_full_disk(tmp_path, capsys, monkeypatch):
    run = run_of(tmp_path, [epoch(1, 100, 1)], "--log-format", "puffer4")

    def full(_):
        raise UserError("no space left")

    monkeypatch.setattr("puffer_mlx.tracking.further_log.publish", full)
    with pytest.raises(ZeroDivisionError), further_log(run):
        raise ZeroDivisionError
    assert "log   not written: no space left" in capsys.readouterr().out
    with pytest.raises(UserError, match="no space left"), further_log(run):
        pass


def test_a_form_is_one_file(tmp_path, monkeypatch):
    planted = types.ModuleType("puffer_mlx.tracking.formats.planted")
    planted.FORMAT = formats.LogFormat(".txt", lambda run: f"{run.run_id} {run.metric}\n")  # type: ignore
    monkeypatch.setitem(__import__("sys").modules, planted.__name__, planted)
    run = run_of(tmp_path, [epoch(1, 100, 1)])
    run.config.base.log_format = "planted"
    with further_log(run):
        pass
    assert (tmp_path / "logs" / "7.txt").read_text() == "7 env/score\n"


@pytest.mark.parametrize("form, suffix", [("puffer5", "ini"), ("puffer4", "json")])
def test_a_run_that_is_stopped_and_goes_on(script, here, form, suffix):
    """The file is of all that was trained, whoever trained it; a later start replaces it."""

    def last(name):
        (path,) = here.glob(f"logs/squared/*.{suffix}")
        text = path.read_text()
        found = read_v1(text) if suffix == "ini" else json.loads(text)
        assert len(list(here.glob("logs/squared/*"))) == 2  # ours, and this one; nothing half
        return float(found["metrics"][name][-1]), len(found["metrics"][name])

    settings = [*TINY, "--eval-episodes", "1", "--train.algorithm", form, "--train.overlap", "1"]
    script.main([*settings, "--stop-at", str(2 * BATCH), "--log-format", form])
    assert last("agent_steps")[0] == 2 * BATCH
    script.main(["squared", "--resume", "latest"])
    assert last("agent_steps") == (EPOCHS * BATCH, 5)
    lines = next(here.glob("logs/squared/*.jsonl")).read_text().splitlines()
    evaluation = json.loads(lines[-1])
    assert last("env/score")[0] == evaluation["env/score"] and "epoch" not in evaluation
    assert (evaluation["agent_steps"] == EPOCHS * BATCH) == (form == "puffer5")
