"""``puffer-mlx evaluate``: its options reach the library, and its output is complete.

tests/evaluation has the episodes and the pictures, ``messages.txt`` the refusals.
"""

import json
from types import SimpleNamespace

import mlx.core as mx
import native_envs
import numpy as np
import pytest
from films import gif_pages, read_video
from mlx.utils import tree_map

from puffer_mlx import checkpoint, config
from puffer_mlx.cli.evaluate import WindowClosed, draw_in_window
from puffer_mlx.errors import UserError
from puffer_mlx.evaluation import frames as frame_files
from puffer_mlx.evaluation.episode_videos import draw_function
from puffer_mlx.evaluation.episodes import Spread
from puffer_mlx.library import evaluating
from puffer_mlx.policy.policy import make_policy

STEP = 64
SMALL = ("--env.size", "3", "--seed", "4")


@pytest.fixture
def evaluate(monkeypatch, here, scripts):
    """Return a function that runs the evaluate command in this process with a command line."""
    monkeypatch.setattr(evaluating, "count_cores", lambda: 2)
    return lambda line, *more: scripts("evaluate").main([*line.split(), *more])


def save(env="squared", run="17", zero=True, words=SMALL) -> str:
    """Save a checkpoint of a small policy without training, and return its path.

    Zero weights: deterministic actions don't move.
    """
    words = ["--policy.hidden-size", "8", "--policy.num-layers", "1", "--device", "cpu", *words]
    settings = config.load(env, words)
    with native_envs.make(env, total_agents=8, env=settings.env) as environments:
        spec = environments.spec
    policy = make_policy(spec, settings.policy, settings.torch)
    weights = policy.init(mx.random.key(1))
    if zero:
        weights = tree_map(mx.zeros_like, weights)
    folder = checkpoint.run_folder(settings, run)
    return str(checkpoint.write_checkpoint(folder, STEP, settings, spec, policy, weights))


def test_the_spread_is_printed_and_written(evaluate, here, capsys):
    save()
    assert evaluate("squared --load-model-path latest --greedy --json out/x.json") == 0
    output = capsys.readouterr()
    assert output.err == ""
    first, how, header, *rows, watch, export = output.out.splitlines()
    assert first == "squared: 1,000 episodes, 1 from each of 1,000 environments"
    assert how.startswith("deterministic, seed 4; ")
    assert max(map(len, output.out.splitlines())) <= 80
    assert watch.startswith("next  puffer-mlx evaluate squared latest --terminal")
    assert "puffer-mlx export latest --env squared --to onnx" in export
    assert header.split() == ["mean", "std", "median", "min", "max"]
    table = {row.split()[0]: row.split()[1:] for row in rows}
    assert list(table) == ["perf", "score", "episode_return", "episode_length"]
    assert table["score"] == ["-1.000", "0.000", "-1.000", "-1.000", "-1.000"]
    record = json.loads((here / "out" / "x.json").read_text())
    assert len(record["episodes"]) == 1000 and record["episodes"][999]["env"] == 999
    assert record["summary"]["score"] == Spread(-1, 0, -1, -1, -1)._asdict()
    assert (record["environment"], record["deterministic"], record["seed"]) == ("squared", True, 4)


def test_environments_and_seeds_are_the_checkpoints_and_options_win(evaluate, here):
    save(zero=False)

    def episodes(*words):
        line = "squared --load-model-path 17 --episodes 50 --json x.json"
        assert evaluate(line, *words) == 0
        return json.loads((here / "x.json").read_text())["episodes"]

    assert episodes() == episodes("--seed", "4") != episodes("--seed", "5")
    greedy = episodes("--greedy")
    assert greedy == episodes("--greedy") != episodes("--greedy", "--vec.seed", "1")
    save(run="18")
    larger = episodes("--load-model-path", "18", "--greedy", "--env.size", "5")
    assert larger[0]["episode_length"] == 3 * 5 + 1


def test_scores_and_pictures_have_the_same_seed_and_actions(evaluate, monkeypatch, capsys):
    given: list[tuple] = []
    real = evaluating.AgentStepper
    monkeypatch.setattr(
        evaluating, "AgentStepper", lambda *parts: given.append(parts[3:]) or real(*parts)
    )
    save()
    assert evaluate("squared 17 --episodes 2 --gif x.gif --steps 2 --seed 9 --greedy") == 0
    output = capsys.readouterr().out
    assert "squared: 2 episodes" in output and "wrote x.gif" in output
    assert given == [(9, True)] * 2


def test_runs_checkpoints_and_files_name_a_policy(evaluate, here, capsys):
    """As an option or, PufferLib 5.0's way, as the second word; --headless changes nothing."""
    made = save(zero=False)
    save(run="18")  # the latest: zeros
    bare = ["--policy.hidden-size", "8", "--policy.num-layers", "1", *SMALL]
    outputs: dict[str, list] = {}
    for words in (
        ["--load-model-path", made],
        ["--load-model-path", "checkpoints/squared/17"],
        ["17", "--headless"],
        ["--load-model-path", f"{made}/weights.safetensors", *bare],
        [f"{made}/weights.bin", *bare],
        ["latest"],
    ):
        line = ["squared", *words, "--eval-episodes=20", "--greedy", "--device=cpu"]
        assert evaluate(" ".join(line)) == 0
        table = capsys.readouterr().out.partition("mean")[2].partition("next")[0]
        outputs.setdefault(table, []).append(words)
    assert [len(words) for words in outputs.values()] == [5, 1]


def test_a_flat_file_is_played_with_the_state_resets_of_its_trainer(evaluate, here, monkeypatch):
    made = save()
    seen = []
    real = evaluating.configured_policy
    keep = lambda spec, config: seen.append(real(spec, config)) or seen[-1]  # noqa: E731
    monkeypatch.setattr(evaluating, "configured_policy", keep)
    words = ["--policy.hidden-size=8", "--policy.num-layers=1", *SMALL, "--episodes=2"]
    for more in [], ["--train.algorithm", "puffer5"]:
        assert evaluate("squared", f"{made}/weights.bin", *words, *more) == 0
    assert [policy.reset_on_terminal for policy in seen] == [False, True]


def test_settings_of_training_alone_are_named_and_may_not_fit(evaluate, here, capsys):
    made = save()
    path = here / made / "config.ini"
    text = path.read_text()
    path.write_text(text.replace("horizon = 64", "horizon = 48").replace("= 32768", "= 40"))
    assert path.read_text() != text
    words = "--vec.total-agents 9 --vec.num-buffers 2 --train.minibatch-size 40 --log-dir x"
    line = "squared --load-model-path latest --greedy --episodes 7"
    assert evaluate(f"{line} {words} --max-steps 9") == 0
    first, second, third, _, last, *_ = capsys.readouterr().out.splitlines()
    names = "vec.num_buffers, train.minibatch_size, base.log_dir"
    assert first == f"unused here: {names} (--help all shows the used keys)"
    assert second == "unused here: vec.total_agents (for Python)"
    assert "0 episodes, 1 from each of 7" in third  # as each takes 10 steps
    assert last.startswith("7 of 7 environments had not finished their episodes after 9 steps")


def test_pictures_have_the_scale_rate_and_duration_of_the_options(evaluate, here, capsys):
    save(zero=False)
    line = "squared --load-model-path latest --gif a/x.gif --mp4 x.mp4 --scale 2 --fps 10"
    assert evaluate(f"{line} --seconds 1.2") == 0
    output = capsys.readouterr().out.splitlines()
    assert [line.split(",")[0] for line in output] == ["wrote a/x.gif", "wrote x.mp4"]
    pages = gif_pages((here / "a" / "x.gif").read_bytes())
    assert {image.shape for image, _ in pages} == {(396, 396, 3)}
    assert sum(delay for _, delay in pages) == 1200
    video = read_video(here / "x.mp4")
    assert video.images.shape == (12, 396, 396, 3) and video.fps == 10


def test_an_environment_without_pictures_is_refused_only_for_pictures(
    evaluate, here, monkeypatch, capsys
):
    save()
    find = frame_files.find_draw
    monkeypatch.setattr(frame_files, "find_draw", lambda folder: find(here / folder.name))
    assert evaluate("squared --load-model-path 17 --episodes 5 --gif x.gif") == 2
    assert "squared has no pictures" in capsys.readouterr().err
    assert evaluate("squared --load-model-path 17 --episodes 5") == 0


def test_the_window_option_plays_until_the_window_is_closed(evaluate, monkeypatch):
    drawn = []

    def draw(observation):
        drawn.append(observation)
        if len(drawn) == 3:
            raise WindowClosed
        return np.zeros((1, 1, 3), np.uint8)

    monkeypatch.setattr("puffer_mlx.cli.evaluate.draw_in_window", lambda *_: draw)
    save()
    assert evaluate("squared 17 --window") == 0 and len(drawn) == 3


def test_pictures_and_windows_are_distinguished():
    shown = iter([True, True, False, np.zeros((2, 2, 3), np.uint8), True])
    environments = SimpleNamespace(render=lambda: next(shown), spec=SimpleNamespace(name="toy"))
    draw = draw_in_window(config.Config("toy"), environments)  # pyright: ignore
    seen = np.zeros(1)
    assert draw(seen).shape == draw(seen).shape == (1, 1, 3)
    with pytest.raises(WindowClosed):
        draw(seen)
    with pytest.raises(UserError, match="toy draws pictures and has no window"):
        draw(seen)
    draw = draw_function(config.Config("module:one"), environments)  # pyright: ignore
    with pytest.raises(UserError, match="module:one draws in a separate window"):
        draw(seen)
