"""``train`` as users meet it: files, lines, options, signals and the dashboard."""

import json
import os
import re
import shutil
import signal
import time
from pathlib import Path

import pytest
from oracles import named
from running import BATCH, EPOCHS, TINY, command, files, learned, only, records, run, started

from puffer_mlx import checkpoint, config
from puffer_mlx.cli.stopping import NOTHING_SAVED, NOTHING_TO_TRAIN
from puffer_mlx.cli.train_output import evaluation_note, rate_note
from puffer_mlx.config.notes import best_score
from puffer_mlx.display.run_view import PHASES, format_count, format_duration
from puffer_mlx.ppo.loss import METRICS
from puffer_mlx.system.signals import STOPPING_MESSAGE

COEFFICIENTS = "learning_rate", "ent_coef"
LOSSES = {
    f"loss/{name}" for name in (*METRICS, "skipped_steps", "first_ratio_error", *COEFFICIENTS)
}
LAST = f"{EPOCHS * BATCH:016d}"
ESCAPE = "\x1b["
CONTENTS = ("config.ini", "weights.safetensors", "weights.bin", "state.safetensors")


def test_an_evaluation_without_a_finished_episode_is_one_line(script, here, capsys):
    words = ["--train.algorithm", "puffer5", "--env.size", "11"]  # far away
    assert script.main([*TINY, *words, "--train.total-timesteps", str(BATCH + 1)]) == 0
    out = capsys.readouterr().out
    lines = [line for line in out.splitlines() if "evaluation" in line]
    assert len(lines) == 1 and lines[0].startswith("the evaluation ended after 0 of ")
    assert f"{BATCH} of {BATCH} steps | no episode has ended yet | " in out
    assert f"s, rounded down from {BATCH + 1} (whole epochs)\nscore none: no episode ended\n" in out


def test_a_run_without_a_finite_minibatch_says_so_after_its_first_epoch(script, here, capsys):
    (here / "mine.py").write_text(
        "from puffer_mlx.ppo.loss import ppo_loss\n"
        "def loss(now, batch, **numbers):\n"
        "    forward = now.logprob, now.entropy, now.value\n"
        "    total, statistics = ppo_loss(*forward, batch, **numbers)\n"
        "    return total * float('nan'), statistics\n"
    )
    assert script.main([*TINY, "--train.loss", "mine:loss"]) == 2
    out, error = capsys.readouterr()
    first = out.index("after the first epoch: nothing was learned: not one minibatch was finite")
    assert first < out.index(f"{BATCH} of ")
    assert "hint: check the loss mine:loss;" in out and "hint: check the loss mine:loss;" in error


def test_the_best_possible_score_is_for_the_files_bricks():
    assert best_score(config.load("breakout-cpu", [])) == 864
    assert best_score(config.load("breakout", ["--env.brick-rows", "5"])) is None
    assert best_score(config.load("squared", [])) is None


def test_options_that_change_nothing_are_named(script, here, capsys):
    words = [*TINY, "--tag", "night", "--policy.log-std-init", "-1"]
    assert script.main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "unused here: base.tag (needs a tracker, see base.track) (--help all says why)" in lines
    assert "unused here: policy.log_std_init (actions are discrete)" in lines
    assert script.main(["squared", "--resume", "latest", "--seed", "9"]) == 0
    out = capsys.readouterr().out
    assert "base.seed (a resumed run continues its random keys)" in out
    assert NOTHING_TO_TRAIN in out and NOTHING_SAVED not in out


ADAM = ["--train.optimizer", "adam"]


def test_a_run_says_how_it_evaluates():
    words = ["--eval-interval=4000", "--eval-episodes=3", "--eval-greedy=1"]
    note = evaluation_note(config.load("squared", words))
    assert note and "every 4,000 steps: 3 " in note and "most probable actions" in note
    assert evaluation_note(config.load("squared")) is None


@pytest.mark.parametrize(
    ("env", "words", "said"),
    [
        ("squared", ADAM, True),
        ("squared", [*ADAM, "--train.learning-rate", "0.001"], False),
        ("gym:CartPole-v1", ["--train.optimizer", "muon"], True),  # its files say adam
    ],
)
def test_a_run_says_of_its_settings_that_the_rate_was_chosen_for_another_optimizer(
    env, words, said
):
    note = rate_note(config.load(env, words, family="discrete"))
    assert bool(note) == said
    if note:
        other = "adam" if "muon" in words else "muon"
        assert f"was chosen for {other}: --train.learning-rate sets one for {words[1]}" in note


# ---- a whole run ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Return the folder and the finished process of a complete training run."""
    folder = tmp_path_factory.mktemp("whole")
    return folder, run("train", *TINY, "--checkpoint-interval", 4, cwd=folder)


def test_a_run_leaves_checkpoints_a_log_and_nothing_else(whole):
    folder, done = whole
    assert (done.returncode, done.stderr) == (0, "")
    run_folder = only(folder, "checkpoints/squared/*")
    run_id = run_folder.name
    assert 0 <= time.time() - int(run_id) / 1000 < 600  # milliseconds since 1970
    # After epochs 0 and 4 counted from 0, and after the last: upstream's rhythm.
    steps = [f"{epochs * BATCH:016d}" for epochs in (1, 5, EPOCHS)]
    assert os.readlink(run_folder / "best") in steps
    assert files(folder) == {
        f"logs/squared/{run_id}.jsonl",
        f"checkpoints/squared/{run_id}/config.ini",
        *(f"checkpoints/squared/{run_id}/{step}/{name}" for step in steps for name in CONTENTS),
    }


def test_the_log_has_upstreams_keys_and_adds_up(whole):
    *epochs, evaluation = records(whole[0])
    steps = [(record["epoch"], record["agent_steps"]) for record in epochs]
    assert steps == [(epoch, BATCH * epoch) for epoch in range(1, EPOCHS + 1)]
    known = {"perf/epoch", *(f"perf/{name}" for name, _, _ in PHASES)}
    played = {f"env/{name}" for name in ("perf", "score", "episode_return", "episode_length", "n")}
    for record in epochs:
        assert {"SPS", "uptime", "perf/rollout", "perf/train", "util/cpu_mem_gb"} <= set(record)
        assert {name for name in record if name.startswith("loss/")} == LOSSES
        assert {name for name in record if name.startswith("env/")} in (set(), played)
        assert {name for name in record if name.startswith("perf/")} <= known
        assert record["perf/epoch"] == pytest.approx(BATCH / record["SPS"])
        phases = [record[f"perf/{name}"] for name in ("rollout", "train")]
        assert min(phases) > 0 and sum(phases) <= record["perf/epoch"] * (1 + 1e-9)
    assert any("env/score" in record for record in epochs)
    # The evaluation of the final weights: half as many rollouts as epochs, nothing trained.
    assert evaluation["agent_steps"] == BATCH * (EPOCHS + EPOCHS // 2)
    assert {"env/score", "env/n"} <= set(evaluation) and not LOSSES & set(evaluation)


def test_without_a_terminal_there_are_plain_lines(whole):
    done = whole[1]
    assert ESCAPE not in done.stdout and "\r" not in done.stdout
    trainer, first, *lines = done.stdout.splitlines()
    assert trainer == "squared: trainer puffer4, PufferLib 4.0's (the default)"
    assert re.match(r"Environment squared, Parameters 1\.2K, Agents 8, ", first)
    progress = [line for line in lines if " steps | " in line]
    assert progress[0].startswith(f"{BATCH} of {EPOCHS * BATCH} steps | ")
    assert " SPS | " not in progress[0]  # it compiles
    assert progress[-1].startswith(f"{EPOCHS * BATCH} of {EPOCHS * BATCH} steps | ")
    assert " SPS | 0s left | " in progress[-1] and "entropy 1." in progress[-1]
    evaluation = next(line for line in lines if line.startswith("evaluation"))
    assert evaluation.startswith("evaluation of the final weights: perf 0.")
    steps, score, saved, log, _, watch, resume, own = lines[-8:]
    assert steps.startswith(f"steps {EPOCHS * BATCH} in ") and "rounded" not in steps
    assert re.fullmatch(r"score -?[\d.]+ \(\d+ episodes\)", score)
    assert re.fullmatch(rf"saved checkpoints/squared/\d+/{LAST}", saved)
    assert re.fullmatch(r"log   logs/squared/\d+\.jsonl", log)
    assert watch.endswith(" squared latest --terminal") and own.endswith("docs/writing_envs.md")
    assert resume.endswith(f" squared --resume latest --train.total-timesteps {2 * EPOCHS * BATCH}")


def test_the_saved_configuration_loads_back_and_repeats_the_run(script, whole, here):
    """Same seed, same files: the weights' bytes and all that is learned; another seed, others."""
    folder = whole[0]
    ini = only(folder, "checkpoints/squared/*/config.ini")
    given = config.load("squared", [*TINY[1:], "--checkpoint-interval", "4"])
    assert config.load(str(ini)) == given
    assert given.base.seed == 73 and given.env == {"size": 3.0}  # not just empty

    assert script.main([str(ini)]) == 0
    assert list(map(learned, records(here))) == list(map(learned, records(folder)))
    paths = list(folder.glob("checkpoints/squared/*/0*/weights.*"))
    assert len(paths) == 6
    for first in paths:
        second = only(here, f"checkpoints/squared/*/{first.parent.name}/{first.name}")
        assert first.read_bytes() == second.read_bytes()
    (here / "other").mkdir()
    os.chdir(here / "other")
    assert script.main([*TINY, "--seed", "74", "--stop-at", "1"]) == 0
    assert learned(records(here / "other")[0]) != learned(records(folder)[0])


# ---- options -------------------------------------------------------------------------------------


def test_files_folders_and_latest_are_the_same_start(script, here, whole, capsys):
    source = only(whole[0], "checkpoints/squared/*")
    store = here / "store"
    shutil.copytree(source, store / "squared" / source.name, symlinks=True)
    runs = []
    for number, path in enumerate([source / LAST / "weights.bin", source, Path("latest")]):
        shutil.copytree(store, here / str(number) / "store", symlinks=True)
        os.chdir(here / str(number))
        words = ["--checkpoint-dir", "store", "--load-model-path", str(path)]
        assert script.main([*TINY, *words]) == 0
        (saved,) = re.findall("^saved (.*)$", capsys.readouterr().out, re.MULTILINE)
        log = [learned(record) for record in records(Path())]
        runs.append((log, (Path(saved) / "weights.bin").read_bytes()))
    assert all(run == runs[0] for run in runs)
    assert runs[0][0][0]["loss/total"] != learned(records(whole[0])[0])["loss/total"]


def test_stop_at_ends_after_the_epoch_that_reaches_the_step(script, here, whole, capsys):
    assert script.main([*TINY, "--stop-at", str(BATCH + 1)]) == 0
    output = capsys.readouterr().out
    assert f"{2 * BATCH} of {2 * BATCH} steps" in output and "evaluation" not in output
    assert f"stopped before {EPOCHS * BATCH}\n" in output
    assert output.splitlines()[-6].endswith(f"{2 * BATCH:016d}")
    assert output.splitlines()[-2].endswith(" squared --resume latest")
    assert list(map(learned, records(here))) == list(map(learned, records(whole[0])))[:2]
    names = sorted(path.name for path in here.glob("checkpoints/*/*/0*"))
    assert names == [f"{n * BATCH:016d}" for n in (1, 2)]
    assert script.main(["squared", "--resume", "latest", "--stop-at", str(4 * BATCH)]) == 0
    # it advises nothing while it compiles: the fourth epoch is its second
    assert not any(x.startswith("why slow?") for x in capsys.readouterr().out.splitlines()[-4:])
    assert script.main(["squared", "--resume", "latest", "--stop-at", "1"]) == 0  # one more
    assert f"{5 * BATCH} of {5 * BATCH} steps" in capsys.readouterr().out


def test_a_resumed_finished_run_draws_its_curve(script, here, whole, monkeypatch, capsys):
    shutil.copytree(whole[0], here, dirs_exist_ok=True, symlinks=True)
    monkeypatch.setenv("FORCE_COLOR", "1")  # a terminal
    assert script.main(["squared", "--resume", "latest"]) == 0
    out = capsys.readouterr().out
    assert "Training score over" in out and NOTHING_TO_TRAIN in out


def test_a_resumed_run_refuses_fewer_steps_than_it_has(script, here, whole, capsys):
    shutil.copytree(whole[0], here, dirs_exist_ok=True, symlinks=True)
    words = ["squared", "--resume", "latest", "--train.total-timesteps", str(BATCH)]
    assert script.main(words) == 2
    error = capsys.readouterr().err
    assert f"{BATCH} is less than the {EPOCHS * BATCH:,} steps done" in error
    assert f"hint: --train.total-timesteps {2 * EPOCHS * BATCH:_}" in error


def test_a_quiet_run_prints_its_scores_and_its_checkpoint(tmp_path):
    words = [*TINY, "--eval-interval", str(BATCH), "--eval-episodes", "8", "-q"]
    out = run("train", *words, cwd=tmp_path).stdout
    assert [line.split()[0] for line in out.splitlines()] == ["score", "best", "saved"]


# ---- signals -------------------------------------------------------------------------------------


def check_whole_files(folder: Path) -> list[int]:
    """Assert that every file of a run is complete. Returns the steps of its checkpoints."""
    steps = []
    for name in files(folder):
        path = folder / name
        if path.name == "config.ini":
            config.load(str(path))
        elif path.suffix == ".jsonl":
            assert all(json.loads(line) for line in path.read_text().splitlines())
        elif path.name != "best":
            assert path.name in CONTENTS and re.fullmatch(r"\d{16}", path.parent.name), path
            steps.append(int(path.parent.name))
    for made in folder.glob("checkpoints/*/*/0*"):
        assert {path.name for path in made.iterdir()} == set(CONTENTS)
        like = checkpoint.load(made).weights
        assert (made / "weights.bin").stat().st_size == sum(w.nbytes for _, w in named(like))
        assert checkpoint.load_state(made).values["epoch"] * BATCH == int(made.name)
    return sorted(set(steps))


def test_a_signal_stops_at_the_end_of_an_epoch_and_saves(tmp_path):
    words = command("train", *TINY, "--train.total-timesteps", 10**9)
    with started(words, tmp_path) as process:
        process.wait_for(f"{BATCH} of ")
        process.wait_for(" steps | ")
        process.popen.send_signal(signal.SIGTERM)
        code, out, err = process.end()
    assert code == 0
    assert err.strip() == STOPPING_MESSAGE
    epochs = records(tmp_path)
    assert [record["epoch"] for record in epochs] == list(range(1, len(epochs) + 1))
    last = epochs[-1]["agent_steps"]
    assert check_whole_files(tmp_path)[-1] == last == len(epochs) * BATCH > BATCH
    saved, log = out.splitlines()[-6:-4]
    assert saved == f"saved {only(tmp_path, f'checkpoints/*/*/{last:016d}').relative_to(tmp_path)}"
    assert log.startswith("log   ")


def test_numbers_and_times_are_short():
    numbers = {7: "7", 999.4: "999", 999.6: "1.0K", 999_949: "999.9K", 999_951: "1.0M"}
    numbers |= {10**9: "1.0B", 5e15: "5000.0T", -1500: "-1.5K"}
    assert {number: format_count(number) for number in numbers} == numbers
    times = {0.99: "0s", 59.9: "59s", 60: "1m 0s", 3723: "1h 2m 3s", 1e7: "115d 17h 46m 40s"}
    assert {seconds: format_duration(seconds) for seconds in times} == times
