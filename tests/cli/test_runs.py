"""``runs`` and ``plot``: from logs and checkpoints as they are on disk."""

import json
import shutil

import mlx.core as mx
import numpy as np
import pytest
from running import ROOT
from test_main import said

import puffer_mlx
from puffer_mlx import checkpoint, config
from puffer_mlx.checkpoint.folder import lock_run
from puffer_mlx.cli.runs import best_text
from puffer_mlx.errors import UserError
from puffer_mlx.policy.policy import make_policy
from puffer_mlx.spec import ActionSpec, EnvSpec

SPEC = EnvSpec("squared", 121, np.dtype(np.uint8), ActionSpec((5,)))
SIZES = ["--vec.total-agents=8", "--train.horizon=8", "--train.minibatch-size=64"]
SIZES += ["--policy.hidden-size=8", "--policy.num-layers=1", "--train.total-timesteps=260"]
EPOCHS, BATCH = 4, 64


def write_run(
    run: str, epochs: int, saved: int = 0, whole: bool = True, *words: str, env: str = "squared"
) -> None:
    """Write the log of an imitated training run, and checkpoints if ``saved``."""
    settings = config.load(env, [*SIZES, *words])
    folder = checkpoint.prepare_run_folder(settings, run)
    log = folder.parents[2] / "logs" / "squared" / f"{run}.jsonl"
    log.parent.mkdir(parents=True, exist_ok=True)
    lines = ["[1, 2]", "no JSON"]
    for epoch in range(1, epochs + 1):
        score = 0.5 if epoch == 2 else -epoch / 10
        record = {"agent_steps": BATCH * epoch, "uptime": epoch, "epoch": epoch, "loss/kl": 0.1}
        lines.append(json.dumps(record | {"env/score": score if epoch > 1 else None}))
    log.write_text("\n".join([*lines, '{"agent_steps": 9999, "epo']))
    if saved:
        policy = make_policy(SPEC, settings.policy)
        state = checkpoint.SavedState({}, {}) if whole else None
        weights = policy.init(mx.random.key(0))
        checkpoint.write_checkpoint(folder, BATCH * saved, settings, SPEC, policy, weights, state)


@pytest.mark.parametrize(
    ("epochs", "saved", "whole", "ended"),
    [
        (4, 0, True, "finished"),
        (3, 3, True, "stopped"),
        (3, 2, True, "resumable"),
        (3, 2, False, "failed"),
        (3, 0, False, "failed"),
    ],
)
def test_runs_names_how_a_run_ended(here, epochs, saved, whole, ended):
    write_run("1795886394884", epochs, saved, whole)
    (run,) = json.loads(said("runs", "--json", "-")[1])
    assert (run["ended"], run["steps"], run["wanted"]) == (ended, BATCH * epochs, 260)
    assert (run["best"], run["metric"]) == (0.5, "env/score")
    with lock_run(here / "checkpoints/squared/1795886394884"):
        assert json.loads(said("runs", "--json", "-")[1])[0]["ended"] == "running"


def test_runs_lists_the_newest_first_among_other_files(here):
    for run in "1795886394884", "1795886394999", "1695886394884":
        write_run(run, 3, 3)
    (here / "checkpoints/notes/a/config.ini").mkdir(parents=True)
    (here / "checkpoints/squared/1795886394999/config.ini").write_text("[base\n\0")
    (here / "logs/squared/mine.jsonl").write_text("{}\n")
    (here / "logs/squared/folder.jsonl").mkdir()
    code, out, err = said("runs")
    rows = [line.split() for line in out.splitlines()]
    assert (code, err) == (0, "")
    assert [row[0] for row in rows[1:4]] == ["1795886394999", "1795886394884", "1695886394884"]
    assert rows[2][3:] == ["192", "of", "260", "0.5", "stopped", "squared"]
    assert max(map(len, out.splitlines())) <= 80
    assert "puffer-mlx train squared --resume 1795886394999" in out
    assert "there are runs of squared" in said("runs", "breakout")[1]


def test_an_environment_of_a_folder_is_named_by_its_path_in_commands(here):
    shutil.copytree(ROOT / "envs" / "squared", here / "squared")
    shutil.copy(ROOT / "configs" / "squared.ini", here / "squared")
    write_run("1795886394884", 3, 3, env="./squared")
    out = said("runs", "./squared")[1]
    assert "next  puffer-mlx evaluate ./squared 1795886394884 --terminal" in out


@pytest.mark.parametrize(("score", "more"), [(0.3, ""), (0.5, "--stop-at-score none")])
def test_a_run_that_reached_its_score_is_resumed_without_the_bound(here, score, more):
    write_run("7", 3, 3, True, "--stop-at-score=0.4", "--eval-interval=64", "--eval-episodes=1")
    with (here / "logs/squared/7.jsonl").open("a") as log:
        record = {"agent_steps": 3 * BATCH, "epoch": 3, "eval/score": score}
        log.write("\n" + json.dumps(record) + "\n")
    assert said("runs")[1].partition("--resume 7")[2].partition("#")[0].strip() == more


def test_runs_of_an_empty_folder_names_the_way_to_one(here):
    assert said("runs") == (0, said("runs")[1], "") and "puffer-mlx train" in said("runs")[1]
    assert said("runs", "--json", "-")[1] == "[]\n"


def test_plot_draws_seeds_as_one_line_and_other_settings_as_another(here):
    pytest.importorskip("matplotlib")
    write_run("1", 4, 0, True, "--seed=1")
    write_run("2", 3, 0, True, "--seed=2")
    write_run("3", 4, 0, True, "--train.gamma=0.5")
    figure = puffer_mlx.plot("squared", x="seconds")
    (axes,) = figure.axes
    seeds, other = axes.lines
    assert seeds.get_xdata().tolist() == [2, 3, 4] and seeds.get_ydata()[0] == 0.5
    assert seeds.get_label().endswith("median and range of 2 runs")
    assert other.get_label() == "gamma 0.5, run 3"
    assert len(axes.collections) == 1 and axes.get_xlabel() == "seconds of training"
    assert figure._repr_png_().startswith(b"\x89PNG")
    (axes,) = puffer_mlx.plot("checkpoints/squared/1", "logs/squared/1.jsonl", key="kl").axes
    assert axes.lines[0].get_xdata().tolist() == [64, 128, 192, 256]
    with pytest.raises(UserError, match="the logs have no entropy"):
        puffer_mlx.plot("latest", key="entropy")
    with pytest.raises(UserError, match="there is no run breakout"):
        puffer_mlx.plot("breakout")


def test_plot_writes_a_file(here):
    pytest.importorskip("matplotlib")
    write_run("1795886394884", 4)
    assert said("plot", "latest") == (0, "wrote squared.png: 1 run\n", "")
    assert (here / "squared.png").read_bytes().startswith(b"\x89PNG")
    code, _, err = said("plot", "latest", "--out", "a.gif")
    assert code == 2 and ".png, .pdf or .svg" in err


def test_runs_marks_best_scores_of_evaluations():
    run = {"best": 0.5, "metric": "env/score"}
    assert best_text(run) == "0.5" and best_text({**run, "metric": "eval/score"}) == "0.5 e"
