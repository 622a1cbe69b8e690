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
from puffer_mlx.tracking.formats import further_log
from puffer_mlx.tracking.json_lines import JsonLines
from puffer_mlx.tracking.run_log import RunLog

FORMS = "puffer5", "puffer4"


def number(text):
    """As C's strtod reads it, which stops where the number ends."""
    match = re.match(r"[+-]?(nan|inf|\d+\.?\d*(e[+-]?\d+)?)", text, re.IGNORECASE)
    return float(match[0]) if match else 0.0


def read_v1(text):
    """PufferLib 5.0's rules: # and ; begin a comment outside quotes; a comma makes a list."""
    first, *lines = text.splitlines()
    assert first == "# PufferLib log v1"
    sections, section = {}, None
    for line in lines:
        line = re.sub(r"""^((?:"[^"]*"|'[^']*'|[^#;"'])*).*""", r"\1", line).strip()
        if line.startswith("["):
            section = sections.setdefault(line.strip("[]"), {})
        elif line:
            key, equals, value = (part.strip() for part in line.partition("="))
            assert equals and section is not None and len(key) < 128 and key not in section
            if value[:1] in ("'", '"') and value[-1] == value[0]:
                value = value[1:-1]
            section[key] = [number(x) for x in value.split(",")] if "," in value else value
    return sections


def read(text, form):
    return read_v1(text) if form == "puffer5" else json.loads(text)


def read_back(run, form):
    """A run's log in a form, as that form's readers have it."""
    return read(formats.find(form).text(run), form)


def run_of(tmp_path, records, *words, overlap=False, **sweep):
    """A run whose log these are; further words are keys of [sweep]."""
    settings = c.load("squared", words)
    settings.sweep |= {"sweep": sweep} if sweep else {}
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


# ---- curves --------------------------------------------------------------------------------------


def test_parts_of_a_run(tmp_path):
    """800 steps in 4 parts: they end with the records that reach 200, 400, 600 and 800."""
    scores = [None, 1, 2, 6, None, 3, 4, 8]  # of epochs 1 to 8, 100 steps each
    records = [epoch(i + 1, 100 * (i + 1), score) for i, score in enumerate(scores)]
    evaluation = {"agent_steps": 900, "env/score": 5.0, "env/n": 50.0}
    run = run_of(tmp_path, [*records, evaluation])
    # 5.0's: epoch 1 has no score and doesn't count; epoch 5 brings epoch 4's record to step 500 and
    # second 50. So: (2) | (3, 4 at 500) | (6) | (7, 8), and the evaluation, but for its steps.
    newer = read_back(run, "puffer5")["metrics"]
    assert newer["agent_steps"] == [200, (300 + 500) / 2, 600, (700 + 800) / 2, 800]
    assert newer["uptime"] == [20, (30 + 50) / 2, 60, 75, 80]
    assert newer["env/score"] == [1, (2 + 6) / 2, 3, (4 + 8) / 2, 5]
    assert newer["env/n"] == [4, (6 + 8) / 2, 12, (14 + 16) / 2, 50]
    assert newer["epoch"] == [2, 3.5, 6, 7.5, 8]
    assert set(newer) == {"SPS", "agent_steps", "uptime", "epoch", "env/score", "env/n"}
    # 4.0's: records take over what they lack: (2) | (3, 4) | (5 with 4's score, 6) | (7, 8) | it
    older = read_back(run, "puffer4")["metrics"]
    assert older["env/score"] == [1, 4, (6 + 3) / 2, 6, 5]
    assert older["agent_steps"] == [200, 350, 550, 750, 800]
    assert older["uptime"] == [20, 35, 55, 75, 80]
    assert older["loss/total"] == [1] * 5


def test_a_run_that_is_shorter_than_its_parts(tmp_path):
    """Parts of 50 steps: a record ends one at most; 5.0 repeats what is missing. Digits stay."""
    run = run_of(tmp_path, [epoch(1, 100, 0.1 + 0.2), epoch(2, 200, 1 / 3)])
    newer, older = (read_back(run, form)["metrics"] for form in FORMS)
    assert newer["env/score"] == [0.1 + 0.2, *[1 / 3] * 4]
    assert newer["agent_steps"] == [100, 200, 200, 200, 200]
    assert older["env/score"] == [0.1 + 0.2, *[1 / 3] * 3]


@pytest.mark.parametrize("form", FORMS)
def test_as_many_points_as_the_sweep_says(tmp_path, form):
    run = run_of(tmp_path, [epoch(i, 100 * i, i) for i in range(1, 7)], downsample="3")
    assert read_back(run, form)["metrics"]["SPS"] == [2, 5, 6]
    run.config.sweep["sweep"] = {"downsample": "1"}
    assert read_back(run, form)["metrics"]["SPS"] == ("6" if form == "puffer5" else [6])
    run.config.sweep["sweep"] = {"downsample": "none"}
    with pytest.raises(UserError, match="downsample is 'none'"):
        assert run.points


@pytest.mark.parametrize("form", FORMS)
def test_columns_have_no_gaps(tmp_path, form):
    """Also of what only some records have, what is there late, and what isn't finite."""
    rated = {"env/elo": 3.0, "pool/size": 2, "perf/forward": 4.0}
    later = {"env/elo": 5.0, "pool/size": 2, "pool/winrate_bank_0": 0.75}
    records = [
        epoch(1, 100, 1, **rated),
        epoch(2, 200, 1, **rated | {"perf/forward": 5.0}),
        epoch(3, 300, 3, **later),
        epoch(4, 400, 3, **later | {"perf/forward": math.nan}),
        {"agent_steps": 400, "env/score": 0.5, "env/n": 40.0, "env/ladder/bot_0.5": 0.5},
    ]
    columns = read_back(run_of(tmp_path, records, downsample="5"), form)["metrics"]
    assert columns["env/elo"] == [3, 3, 5, 5, 5] and columns["pool/size"] == [2] * 5
    assert columns["pool/winrate_bank_0"] == [0.75] * 5
    assert columns["env/score"] == [1, 1, 3, 3, 0.5] and columns["env/ladder/bot_0.5"] == [0.5] * 5
    assert columns["perf/forward"] == pytest.approx([4, 5, 5, math.nan, math.nan], nan_ok=True)
    assert {len(column) for column in columns.values()} == {5}


def test_keys_that_the_reader_could_not_find_are_left_out(tmp_path):
    names = ("env/a=b", "env/a;b", "env/a#b", "env/" + "x" * 124)
    run = run_of(tmp_path, [epoch(1, 100, 1, **dict.fromkeys(names, 1.0))])
    assert set(read_back(run, "puffer5")["metrics"]) == {
        *("SPS", "agent_steps", "uptime", "epoch", "env/score", "env/n")
    }


# ---- configurations ------------------------------------------------------------------------------


def test_the_configuration_of_a_v1_log(tmp_path):
    words = ("--train.algorithm", "puffer5", "--train.beta1", "0.8", "--train.overlap", "auto")
    run = run_of(tmp_path, [epoch(1, 100, 1)], *words, overlap=True)
    run.config.sweep["sweep.train.beta1"] = {"min": "0.5", "max": "0.999"}
    run.config.base.checkpoint_dir = "runs #1; old"
    log = read_back(run, "puffer5")
    assert log["train"]["momentum"] == "0.8" and log["sweep.train.momentum"]["min"] == "0.5"
    expected = {
        "async": "1",  # what auto came to
        "reset_every_horizon": str(int(run.config.base.reset_state)),
        **{"env_name": "squared", "run_id": "7", "checkpoint_dir": "runs #1; old"},
    }
    assert {key: log["base"][key] for key in expected} == expected
    assert log["env"] == {"size": "11"}
    assert log["sweep"] == {"metric": "score", "downsample": "5"}
    gone = {"beta1", "beta2", "eps", "prio_alpha", "prio_beta0", "overlap"}
    assert not log["train"].keys() & gone
    ours = {key for keys in (vars(run.config.train), vars(run.config.policy)) for key in keys}
    assert ours - gone <= {*log["train"], *log["policy"]}
    run.config.train.algorithm = "puffer4"  # whose keys are told
    assert read_back(run, "puffer5")["train"]["prio_alpha"] == "0.8"


@pytest.mark.parametrize("name", ["breakout", "configs/puffer5/breakout-a.ini"])
def test_the_configuration_of_a_v1_log_is_read_as_the_run_s_own(tmp_path, name):
    """By our own reader of 5.0's files, which gives 5.0's names back."""
    settings = c.load(str(ROOT / name) if "/" in name else name, ["--train.algorithm", "puffer5"])
    run = replace(run_of(tmp_path, [epoch(1, 100, 1)]), config=settings, overlap=True)
    text, _, _ = formats.find("puffer5").text(run).partition("[metrics]")
    (tmp_path / "run.ini").write_text(text)
    again = c.load("breakout", files=[tmp_path / "run.ini"])
    for section in ("base", "vec", "policy", "torch", "env"):
        assert getattr(again, section) == getattr(settings, section)
    assert again.train.overlap == "auto"  # which a file's 1 means
    gone = {"beta2", "eps", "prio_alpha", "prio_beta0", "overlap"}
    ours, theirs = ({**vars(one.train), **dict.fromkeys(gone)} for one in (settings, again))
    assert theirs == ours


def test_the_configuration_of_a_4_0_log(tmp_path):
    run = run_of(tmp_path, [epoch(1, 100, 1)], "--train.beta1", "0.8", "--seed", "3")
    run.config.sweep["sweep.train.beta1"] = {"distribution": "uniform", "min": "5e-1"}
    log = read_back(run, "puffer4")
    assert (log["env_name"], log["seed"], log["reset_state"]) == ("squared", 3, True)
    assert log["train"]["beta1"] == 0.8 and log["train"]["overlap"] is False
    assert log["env"] == {"size": 11.0}
    assert log["sweep"]["train"]["beta1"] == {"distribution": "uniform", "min": 0.5}
    assert log["sweep"]["metric"] == "score" and log["sweep"]["downsample"] == 5


# ---- files ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("form", "metric"), [("puffer4", "a/b"), ("puffer5", '"a/b"'), ("puffer5", "env/a/b")]
)
def test_the_number_that_the_sweep_is_about(tmp_path, form, metric):
    """5.0's files may have it in quotes, and an environment's numbers a slash."""
    records = [epoch(1, 100, 1), epoch(2, 200, **{"env/a/b": 7.0}), epoch(3, 300, 2)]
    run = run_of(tmp_path, records, "--log-format", form, metric=metric, downsample='"3"')
    assert (run.metric, run.points) == ("env/a/b", 3)
    with further_log(run):
        pass
    (path,) = {*run.path.parent.iterdir()} - {run.path}
    columns = read(path.read_text(), form)["metrics"]
    assert columns["env/a/b"] == [7, 7, 7] and columns["agent_steps"][-1] == 300


@pytest.mark.parametrize(
    "line", ["[]", "7", "null", '{"epoch": 1}', '{"epoch": 1, "SPS": "x"}', "[" * 10**5, "\udcff"]
)
def test_a_damaged_log_is_named(tmp_path, line):
    run = run_of(tmp_path, [epoch(1, 100, 1)], "--log-format", "puffer5")
    with run.path.open("ab") as file:
        file.write(line.encode(errors="surrogateescape") + b"\n")
    with pytest.raises(UserError, match=r"7\.jsonl: .* is no record"):
        list(run.epochs())


def test_a_log_that_can_not_be_written(tmp_path, capsys, monkeypatch):
    """Without the metric there is none; an error is not hidden by a full disk."""
    run = run_of(tmp_path / "a", [epoch(1, 100)], "--log-format", "puffer5")
    with further_log(run):
        pass
    assert [path.name for path in run.path.parent.iterdir()] == ["7.jsonl"]
    assert "7.ini is not written: no record has env/score" in capsys.readouterr().out

    def full(_):
        raise UserError("no space left")

    monkeypatch.setattr(formats, "publish", full)
    run = run_of(tmp_path / "b", [epoch(1, 100, 1)], "--log-format", "puffer4")
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
        assert len(list(here.glob("logs/squared/*"))) == 2  # ours, and this one; nothing half
        values = read(path.read_text(), form)["metrics"][name]
        return float(values[-1]), len(values)

    settings = [*TINY, "--eval-episodes", "1", "--train.algorithm", form, "--train.overlap", "1"]
    script.main([*settings, "--stop-at", str(2 * BATCH), "--log-format", form])
    assert last("agent_steps")[0] == 2 * BATCH
    script.main(["squared", "--resume", "latest"])
    assert last("agent_steps") == (EPOCHS * BATCH, 5)
    lines = next(here.glob("logs/squared/*.jsonl")).read_text().splitlines()
    evaluation = json.loads(lines[-1])
    assert last("env/score")[0] == evaluation["env/score"] and "epoch" not in evaluation
    assert (evaluation["agent_steps"] == EPOCHS * BATCH) == (form == "puffer5")
