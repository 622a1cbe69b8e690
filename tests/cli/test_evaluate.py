"""Evaluation: whole episodes, each environment's first ones, acted as the policy was trained."""

import json
import math
import statistics
from dataclasses import replace
from typing import Any

import mlx.core as mx
import native_envs
import numpy as np
import pytest
from films import gif_pages, read_video
from mlx.utils import tree_map

from puffer_mlx import checkpoint, config, vec
from puffer_mlx.evaluation import frames as frame_files
from puffer_mlx.evaluation.episodes import AgentStepper, Scores, Spread, frames_of, score
from puffer_mlx.library import evaluating
from puffer_mlx.policy.policy import make_policy
from puffer_mlx.spec import ActionSpec, EnvSpec


class Scripted:
    """Environments of one agent whose episodes are written down: (length, score) one by one.

    The observation is (environment, step since the reset), the reward step + environment / 100.
    After the last one written down, episodes of one step with score 99 follow.
    """

    finals, unread, description = False, [], "scripted"

    def __init__(self, scripts, groups=1, masked=False, per_record=1) -> None:
        self.scripts, self.per_record = scripts, per_record
        self.num_agents = self.num_environments = len(scripts)
        self.num_groups = groups
        mask = 3 if masked else 0
        self.spec = EnvSpec("scripted", 2, np.dtype(np.float32), ActionSpec((3,)), mask)
        self.sent = []

    def reset(self, out):
        self.tick, self.ended = 0, []
        self.place = [(0, 0) for _ in self.scripts]  # episode, step in it
        for rows in out:
            if rows is not None:
                rows[:] = 0
        out.observations[:, 0] = np.arange(self.num_agents)
        if out.masks is not None:
            out.masks[:] = 1

    def send(self, group, actions, out):
        n = self.num_agents // self.num_groups
        self.tick += group == 0
        if group == 0:
            self.sent.append([])
        self.sent[-1] += actions[:, 0].tolist()
        for i, env in enumerate(range(group * n, (group + 1) * n)):
            episode, step = self.place[env]
            plan = self.scripts[env]
            length, points = plan[episode] if episode < len(plan) else (1, 99.0)
            over = step + 1 == length
            self.place[env] = (episode + 1, 0) if over else (episode, step + 1)
            out.observations[i] = env, self.tick
            out.rewards[i] = self.tick + env / 100
            out.terminals[i] = over
            if out.masks is not None:
                out.masks[i] = (np.arange(3) != self.tick % 3) * 1
            if over:
                self.ended.append({"score": points, "length": float(length), "env": float(env)})

    def wait(self, group):
        pass

    def episodes(self):
        ended, self.ended = sorted(self.ended, key=lambda record: record["env"]), []
        return [{**record, "n": float(self.per_record)} for record in ended]

    def log(self):
        return {}

    def state(self):
        return None

    def restore(self, state):
        raise NotImplementedError

    def busy_seconds(self):
        return 0.0

    def close(self):
        pass


class Spy:
    """In a policy's place: its state counts steps, and is its action; keeps what it was given."""

    def __init__(self, reset_on_terminal=False) -> None:
        self.reset_on_terminal = reset_on_terminal
        self.distribution = self
        self.seen = []

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


def spy() -> Any:
    return Spy()


def run(policy: Any, vec, episodes, seed=0, greedy=False, **how) -> Scores:
    return score(AgentStepper(policy, "the weights", vec, seed, greedy), episodes, **how)


# ---- counting ------------------------------------------------------------------------------------


def test_short_episodes_do_not_outvote_long_ones():
    """Of ten episodes that end first nine would be short: the mean would be 0.9."""
    vec, seen = Scripted([[(1, 1.0)] * 50, [(9, 0.0)] * 5]), []
    result = run(Spy(), vec, 10, progress=lambda *now: seen.append(now))
    assert (result.environments, result.each, result.count) == (2, 5, 10)
    assert result.values("score").tolist() == [1.0] * 5 + [0.0] * 5
    assert result.summary()["score"].mean == 0.5
    assert result.steps == 45 and result.unfinished == 0
    assert seen[0] == (1, 10) and seen[-1] == (10, 10) and seen == sorted(seen)


def test_every_environment_contributes_its_first_episodes_in_order():
    vec = Scripted([[(2, 1.0), (3, 2.0), (1, 3.0)], [(4, 4.0), (1, 5.0)], [(1, 6.0), (1, 7.0)]])
    result = run(Spy(), vec, 5)  # rounded up: two of each
    assert [(r["env"], r["score"], r["length"]) for r in result.episodes] == [
        (0, 1.0, 2),
        (0, 2.0, 3),
        (1, 4.0, 4),
        (1, 5.0, 1),
        (2, 6.0, 1),
        (2, 7.0, 1),
    ]
    assert (result.each, result.count, result.steps) == (2, 6, 5)


def test_spread_is_statistics():
    """Of numbers that all episodes have."""
    points = [3.0, -1.0, 4.0, 1.5, 9.0, 2.0]
    result = run(Spy(), Scripted([[(1, p)] for p in points]), 6)
    assert set(result.summary()) == {"score", "length"}
    spread = result.summary()["score"]
    assert spread.mean == pytest.approx(statistics.mean(points))
    assert spread.std == pytest.approx(statistics.stdev(points))
    assert spread[2:] == (statistics.median(points), -1.0, 9.0)
    assert result.summary()["length"] == Spread(1, 0, 1, 1, 1)
    assert run(Spy(), Scripted([[(3, 2.5)]]), 1).summary()["score"] == Spread(2.5, 0, 2.5, 2.5, 2.5)
    some = [{"score": 1.0, "won": 1.0, "env": 0.0, "n": 1.0}, {"score": 3.0, "env": 1.0, "n": 1.0}]
    for episodes in (some, some[::-1]):
        summary = Scores(episodes, 2, 1, 0, 1, 0.0).summary()
        assert set(summary) == {"score"} and summary["score"].mean == 2


def test_a_record_of_several_episodes_counts_as_many():
    """Agents of one environment may end together; what is too many isn't counted."""
    result = run(Spy(), Scripted([[(1, 1.0), (1, 4.0)]], per_record=3), 5)
    assert result.values("score").tolist() == [1.0, 1.0, 1.0, 4.0, 4.0]
    assert [record["n"] for record in result.episodes] == [3.0, 2.0]
    assert result.summary()["score"].mean == pytest.approx(11 / 5)


def test_what_does_not_end_in_time_is_counted():
    vec = Scripted([[(2, 1.0), (2, 2.0)], [(3, 3.0), (30, 4.0)]])
    result = run(Spy(), vec, 4, max_steps=7)
    assert (result.unfinished, result.count, result.steps) == (1, 3, 7)
    assert result.values("score").tolist() == [1.0, 2.0, 3.0]
    nothing = run(Spy(), vec, 4, max_steps=1)
    assert (nothing.unfinished, nothing.count, nothing.summary()) == (2, 0, {})


def test_episodes_from_before_do_not_count():
    vec = Scripted([[(1, 5.0)]])
    run(Spy(), vec, 1)
    real = vec.reset

    def reset(out):
        real(out)
        vec.ended = [{"score": 77.0, "length": 1.0, "env": 0.0}]

    vec.reset = reset
    assert run(Spy(), vec, 1).values("score").tolist() == [5.0]


# ---- acting --------------------------------------------------------------------------------------


@pytest.mark.parametrize("groups", [1, 2])
def test_state_goes_through_episodes_unless_the_policy_resets_it(groups):
    """The state counts steps, and is what is sent. A terminal comes with the next observation."""
    for resets, sent in (
        (False, [[1, 1], [2, 2], [3, 3], [4, 4], [5, 5]]),
        (True, [[1, 1], [2, 2], [1, 3], [2, 4], [3, 1]]),
    ):
        vec = Scripted([[(2, 1.0), (3, 1.0)], [(4, 1.0), (1, 1.0)]], groups)
        run(Spy(reset_on_terminal=resets), vec, 4)
        assert vec.sent == sent


def test_the_policy_sees_what_arrived():
    spy = Spy()
    run(spy, Scripted([[(4, 1.0)], [(4, 1.0)]], masked=True), 2)
    for t, (observations, _, mask, weights) in enumerate(spy.seen):
        assert weights == "the weights"
        assert np.array(observations).tolist() == [[0, t], [1, t]]
        legal = [True] * 3 if t == 0 else [k != t % 3 for k in range(3)]
        assert np.array(mask).tolist() == [legal, legal]
    unmasked = Spy()
    run(unmasked, Scripted([[(4, 1.0)]]), 1)
    assert unmasked.seen[0][2] is None


def test_noise_comes_from_the_seed_and_greedy_needs_none():
    def noises(**how):
        spy = Spy()
        run(spy, Scripted([[(3, 1.0)], [(3, 1.0)]]), 2, **how)
        return [None if noise is None else np.array(noise).tolist() for _, noise, _, _ in spy.seen]

    first = noises(seed=1)
    assert first == noises(seed=1) != noises(seed=2)
    assert len({json.dumps(noise) for noise in first}) == 3  # of every step its own
    assert noises(greedy=True, seed=1) == [None] * 3


def squared(**how):
    vec = native_envs.make("squared", total_agents=40, env={"size": 3}, seed=5, **how)
    settings = config.load("squared", ["--policy.hidden-size", "8"])
    policy = make_policy(vec.spec, settings.policy, settings.torch)
    return vec, policy, policy.init(mx.random.key(3))


def test_evaluations_repeat_bit_for_bit():
    """Whatever the groups and threads; a greedy one whatever the seed."""
    for greedy in False, True:
        results = []
        for buffers, workers, seed in ((1, 1, 7), (4, 2, 7), (1, 1, 8)):
            vec, policy, weights = squared(num_buffers=buffers, num_threads=workers)
            with vec:
                scores = score(AgentStepper(policy, weights, vec, seed, greedy), 120)
            results.append((scores.episodes, scores.steps))
        assert results[0] == results[1]
        assert (results[0] == results[2]) == greedy


# ---- frames --------------------------------------------------------------------------------------


def test_play_shows_agent_0_and_what_happened():
    vec = Scripted([[(2, 1.0), (3, 1.0)], [(1, 1.0)]])

    def draw(observation):
        assert observation.shape == (2,)
        return np.full((1, 1, 3), observation[1], np.uint8)

    frames = list(frames_of(AgentStepper(spy(), None, vec), draw, 7))
    assert [frame.image.max() for frame in frames] == list(range(7))
    assert [frame[1:] for frame in frames] == [
        (0, 0, 0.0, 0.0, False),
        (1, 0, 1.0, 1.0, False),
        (2, 1, 2.0, 3.0, True),
        (3, 1, 3.0, 3.0, False),
        (4, 1, 4.0, 7.0, False),
        (5, 2, 5.0, 12.0, True),
        (6, 3, 6.0, 6.0, True),
    ]
    assert len(vec.sent) == 6  # nothing is played that isn't shown
    vec = Scripted([[(9, 1.0)]])
    endless = frames_of(AgentStepper(spy(), None, vec), lambda observation: observation)
    kept = [next(endless) for _ in range(4)]  # pictures stay, though the environment goes on
    assert [frame.image.tolist() for frame in kept] == [[0, t] for t in range(4)]
    assert len(vec.sent) == 3


# ---- scripts/evaluate.py -------------------------------------------------------------------------

STEP = 64


@pytest.fixture
def evaluate(monkeypatch, here, scripts):
    """Runs scripts/evaluate.py here with a command line, of which more words may follow."""
    monkeypatch.setattr(evaluating, "threads", lambda: 2)
    return lambda line, *more: scripts("evaluate").main([*line.split(), *more])


def save(env="squared", run="17", zero=True, words=()) -> str:
    """A checkpoint of a small policy; zeros stay where they are when greedy."""
    words = ["--policy.hidden-size", "8", "--policy.num-layers", "1", "--device", "cpu", *words]
    settings = config.load(env, words)
    with native_envs.make(env, total_agents=8, env=settings.env) as vec:
        spec = vec.spec
    policy = make_policy(spec, settings.policy, settings.torch)
    weights = policy.init(mx.random.key(1))
    if zero:
        weights = tree_map(mx.zeros_like, weights)
    folder = checkpoint.run_folder(settings, run)
    return str(checkpoint.write_checkpoint(folder, STEP, settings, spec, policy, weights))


SMALL = ("--env.size", "3", "--seed", "4")


def test_script_prints_the_spread(evaluate, here, capsys):
    save(words=SMALL)
    assert evaluate("squared --load-model-path latest --greedy --json out/x.json") == 0
    output = capsys.readouterr()
    assert output.err == ""
    first, header, *rows = output.out.splitlines()
    assert first.startswith(
        "squared: 1,000 episodes, 1 from each of 1,000 environments; deterministic, seed 4;"
        " 10 steps, "
    )
    assert header.split() == ["mean", "std", "median", "min", "max"]
    table = {row.split()[0]: row.split()[1:] for row in rows}
    assert list(table) == ["perf", "score", "episode_return", "episode_length"]
    assert table["score"] == ["-1.000", "0.000", "-1.000", "-1.000", "-1.000"]
    assert table["episode_length"] == ["10.000", "0.000", "10.000", "10.000", "10.000"]
    record = json.loads((here / "out" / "x.json").read_text())
    assert len(record["episodes"]) == 1000 and record["episodes"][999]["env"] == 999
    assert record["summary"]["score"] == Spread(-1, 0, -1, -1, -1)._asdict()
    assert (record["environment"], record["deterministic"], record["seed"]) == ("squared", True, 4)


def test_script_writes_null_for_what_is_not_finite(evaluate, here, monkeypatch):
    """A score of an environment's own may be anything; JSON has no NaN."""
    real = evaluating.score

    def score(*arguments, **how):
        scores = real(*arguments, **how)
        scores.episodes[0]["score"] = math.nan
        return scores

    monkeypatch.setattr(evaluating, "score", score)
    save(words=SMALL)
    assert evaluate("squared --load-model-path latest --episodes 2 --json x.json") == 0
    text = (here / "x.json").read_text()
    record = json.loads(text, parse_constant=lambda word: pytest.fail(word))
    assert record["episodes"][0]["score"] is None and record["summary"]["score"]["mean"] is None
    assert record["summary"]["perf"]["mean"] is not None


def test_script_environments_and_seeds_are_the_checkpoints_and_options_win(evaluate, here):
    """Another seed is another evaluation, of other environments too."""
    save(zero=False, words=SMALL)

    def episodes(*words):
        line = "squared --load-model-path 17 --episodes 50 --json x.json"
        assert evaluate(line, *words) == 0
        return json.loads((here / "x.json").read_text())["episodes"]

    assert episodes() == episodes("--seed", "4") != episodes("--seed", "5")
    greedy = [episodes("--greedy", "--seed", seed) for seed in "445"]
    assert greedy[0] == greedy[1] != greedy[2]
    assert greedy[0] != episodes("--greedy", "--vec.seed", "1")
    save(run="18", words=SMALL)
    for size, length in ("3", 10), ("5", 16):  # 3 * size, and one more
        more = "--load-model-path", "18", "--greedy", "--env.size", size
        assert episodes(*more)[0]["episode_length"] == length


def test_script_plays_and_scores_alike(evaluate, monkeypatch, capsys):
    given: list[tuple] = []
    real = evaluating.AgentStepper
    monkeypatch.setattr(
        evaluating, "AgentStepper", lambda *parts: given.append(parts[3:]) or real(*parts)
    )
    save(words=SMALL)
    for words in "", "--greedy", "--seed 9":
        line = "squared --load-model-path 17 --episodes 2 --gif x.gif --steps 2"
        assert evaluate(f"{line} {words}") == 0
        output = capsys.readouterr().out
        assert "squared: 2 episodes" in output and "wrote x.gif" in output
        assert given == [(9 if "9" in words else 4, "--greedy" in words)] * 2
        given.clear()


def test_script_takes_everything_that_names_a_policy(evaluate, here, capsys):
    """As an option or, PufferLib 5.0's way, as the second word; --headless changes nothing."""
    made = save(zero=False, words=SMALL)
    save(run="18", words=SMALL)  # the latest: zeros
    outputs = {}
    bare = ["--policy.hidden-size", "8", "--policy.num-layers", "1", *SMALL]
    for words in (
        *(["--load-model-path", made], ["--load-model-path", "checkpoints/squared/17"], ["17"]),
        *(["--load-model-path", f"{made}/weights.safetensors", *bare], [made, "--headless"]),
        *([f"{made}/weights.bin", *bare], ["latest"], ["--load-model-path", "latest"]),
    ):
        line = ["squared", *words, "--eval-episodes=20", "--greedy", "--device=cpu"]
        assert evaluate(" ".join(line)) == 0
        outputs.setdefault(tuple(capsys.readouterr().out.splitlines()[1:]), []).append(words)
    assert [len(words) for words in outputs.values()] == [6, 2]


def test_script_resets_states_as_the_trainer_did(evaluate, here, monkeypatch, capsys):
    """PufferLib 5.0's trainer does; a flat file of its weights doesn't say so."""
    made, seen = save(words=SMALL), []
    real = evaluating.configured_policy
    keep = lambda spec, config: seen.append(real(spec, config)) or seen[-1]  # noqa: E731
    monkeypatch.setattr(evaluating, "configured_policy", keep)
    words = ["--policy.hidden-size=8", "--policy.num-layers=1", *SMALL, "--episodes=2"]
    for more in [], ["--train.algorithm", "puffer5"]:
        assert evaluate("squared", f"{made}/weights.bin", *words, *more) == 0
        assert "unused" not in capsys.readouterr().out
    assert [policy.reset_on_terminal for policy in seen] == [False, True]


def test_script_needs_nothing_that_only_training_needs(evaluate, here, capsys):
    """Minibatches, buffers and epochs that don't fit, typed or in the checkpoint."""
    made = save(words=SMALL)
    words = "--vec.total-agents 9 --vec.num-buffers 2 --train.minibatch-size 40 --log-dir x"
    line = "squared --load-model-path latest --greedy --episodes 7"
    assert evaluate(f"{line} {words} --max-steps 9") == 0
    first, second, third, last = capsys.readouterr().out.splitlines()
    names = "vec.num_buffers, train.minibatch_size, base.log_dir"
    assert first == f"unused here: {names} (--help all shows what is used)"
    assert second == "unused here: vec.total_agents (for Python)"
    assert "0 episodes, 1 from each of 7" in third  # as each takes 10 steps
    assert last.startswith("7 of 7 environments had not ended their episodes after 9 steps")
    path = here / made / "config.ini"
    text = path.read_text()
    path.write_text(text.replace("horizon = 64", "horizon = 48").replace("= 32768", "= 40"))
    assert path.read_text() != text
    assert evaluate(line) == 0
    assert capsys.readouterr().out.startswith("squared: 7 episodes, ")
    save("target")  # of whose eight agents the quick ones would be the first
    assert evaluate("target --load-model-path latest --episodes 200 --max-steps 300") == 0
    assert " 67 from each of 3 environments" in capsys.readouterr().out


def test_script_writes_pictures(evaluate, here, capsys):
    save(zero=False, words=SMALL)
    line = "squared --load-model-path latest --gif a/x.gif --mp4 x.mp4 --scale 2 --fps 10"
    assert evaluate(f"{line} --seconds 1.2") == 0
    output = capsys.readouterr().out.splitlines()
    assert [line.split(",")[0] for line in output] == ["wrote a/x.gif", "wrote x.mp4"]
    pages = gif_pages((here / "a" / "x.gif").read_bytes())
    assert {image.shape for image, _ in pages} == {(396, 396, 3)}
    assert sum(delay for _, delay in pages) == 1200
    video = read_video(here / "x.mp4")
    assert video.images.shape == (12, 396, 396, 3) and video.fps == 10


def test_script_without_a_draw_function_still_scores(evaluate, here, monkeypatch, capsys):
    save(words=SMALL)
    find = frame_files.find_draw
    monkeypatch.setattr(frame_files, "find_draw", lambda folder: find(here / folder.name))
    line = "squared --load-model-path 17 --episodes 5"
    assert evaluate(f"{line} --gif x.gif") == 2
    assert "squared has no pictures" in capsys.readouterr().err
    assert evaluate(line) == 0

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(evaluating, "score", interrupted)
    assert evaluate(line) == 130
    assert capsys.readouterr().err == "stopped\n"


def test_several_continuous_actions():
    """Rows that are handed over are contiguous, whatever the layout of the policy's actions."""
    for name, groups in (("native", 2), ("python sync", 2), ("python async", 1)):
        kind, _, backend = name.partition(" ")
        words = ["--vec.num-buffers", str(groups), "--vec.total-agents", "4", "--device", "cpu"]
        words += ["--vec.backend", backend] if backend else []
        words += ["--policy.hidden-size", "8", "--policy.num-layers", "1"]
        words += ["--train.horizon", "8", "--train.minibatch-size", "32"]
        settings = config.load(native_envs.DRIFT[kind], words)
        with vec.make(settings, 2) as envs:
            policy = make_policy(envs.spec, settings.policy, settings.torch)
            weights = policy.init(mx.random.key(0))
            scores = score(AgentStepper(policy, weights, envs), 8)
            assert envs.spec.action.sizes == (1, 1) and scores.count == 8 and not scores.unfinished
            frames = list(frames_of(AgentStepper(policy, weights, envs), np.copy, 8))
        assert sum(frame.terminal for frame in frames) == 1


class Windowed(Scripted):
    """Environments that draw in a window, until it is closed, or that make pictures."""

    def __init__(self, scripts, shows: Any) -> None:
        super().__init__(scripts)
        self.draws, self.shows = 0, shows

    def render(self):
        self.draws += 1
        return self.draws < 5 and self.shows

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


@pytest.mark.parametrize(
    ("words", "shows", "draws", "said"),
    [
        ("--window", True, 5, ""),  # it is closed when the fifth picture is due
        ("--window --steps 3", True, 3, ""),
        ("--window", np.zeros((2, 2, 3), np.uint8), 1, "scripted draws pictures, no window"),
        ("--gif a.gif", True, 1, "module:one draws in a window of its own"),
    ],
)
def test_script_windows(evaluate, monkeypatch, capsys, words, shows, draws, said):
    save()
    made = Windowed([[(3, 1.0)]], shows)
    monkeypatch.setattr(evaluating, "make_environments", lambda *_, **__: made)
    stepper = AgentStepper(spy(), None, made)
    monkeypatch.setattr(evaluating, "_stepper", lambda *_: stepper)
    draw = evaluating.drawing  # of one in Python, which draws itself
    other = {"env_name": "module:one"}
    monkeypatch.setattr(evaluating, "drawing", lambda c, envs: draw(replace(c, **other), envs))
    code = evaluate(f"squared --load-model-path latest {words}")
    assert (code, made.draws) == (2 if said else 0, draws)
    assert said in capsys.readouterr().err
