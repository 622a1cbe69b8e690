"""puffer-mlx match: who is named, what is said, and what is refused."""

import json

import mlx.core as mx
import pytest
from films import gif_pages
from native_envs import make, parameters

from puffer_mlx import checkpoint, config
from puffer_mlx.checkpoint.flat_files import save_bin
from puffer_mlx.cli import match as module
from puffer_mlx.policy.policy import make_policy


@pytest.fixture
def match(monkeypatch, here, capsys):
    """Runs it with a command line; the exit code, what was printed and what was said."""
    monkeypatch.setattr(module, "threads", lambda: 1)

    def run(line: str) -> tuple[int, str, str]:
        code = module.main(["connect4_two", *line.split()])
        output = capsys.readouterr()
        return code, output.out, output.err

    return run


def save(run: str, H: int = 8, env: str = "connect4_two", seed: int = 1) -> str:
    """A checkpoint of a small policy."""
    settings = config.load(env, ["--policy.hidden-size", str(H), "--device", "cpu"])
    agents = 2 if env == "connect4_two" else 8
    with make(env, total_agents=agents, env=parameters(env)) as vec:
        spec = vec.spec
    policy = make_policy(spec, settings.policy, settings.torch)
    weights = policy.init(mx.random.key(seed))
    folder = checkpoint.run_folder(settings, run)
    return str(checkpoint.write_weights(folder, 64, settings, spec, policy, weights))


def told(here) -> dict:
    return json.loads((here / "x.json").read_text())


def test_tables_and_the_record(match, here):
    save("17")
    save("18", H=16)
    code, out, err = match("17 18 random bot:0.5 --games 40 --seed 3 --json x.json --greedy")
    assert (code, err) == (0, "")
    first, header, *rows = out.splitlines()
    said = "connect4_two: 40 games of each pair, half in either seat; greedy, seed 3"
    assert first == said
    assert header.split() == ["against", "wins", "draws", "losses", "score", "95", "%"]
    record = told(here)
    names = [player["name"] for player in record["players"]]
    assert names == ["17/0000000000000064", "18/0000000000000064", "random", "bot:0.5"]
    assert [(p["first"], p["second"]) for p in record["pairs"]] == [
        (one, other) for i, one in enumerate(names) for other in names[i + 1 :]
    ]
    for row, pair in zip(rows, record["pairs"], strict=False):
        assert row.split()[:5] == [
            *(pair["first"], pair["second"]),
            *(str(pair[key]) for key in ("wins", "draws", "losses")),
        ]
        assert pair["low"] < pair["score"] <= pair["high"] <= 1
        assert [sum(seat.values()) for seat in pair["seats"]] == [20, 20]
    table = [row.split() for row in rows[len(record["pairs"]) + 2 :]]
    ratings = [int(row[1]) for row in table]
    best = max(record["players"], key=lambda player: player["elo"])
    assert ratings == sorted(ratings, reverse=True) and len(ratings) == 4
    assert table[0] == [best["name"], f"{best['elo']:+.0f}"]
    assert sum(player["elo"] for player in record["players"]) == pytest.approx(0, abs=1e-6)
    assert (record["environment"], record["greedy"], record["seed"]) == ("connect4_two", True, 3)


def test_same_seed_same_games_whoever_else_plays(match, here):
    save("17")
    found = []
    for line in "17 random", "17 random bot", "17 random --seed 1":
        assert match(f"{line} --games 100 --json x.json")[0] == 0
        found.append(told(here)["pairs"][0])
    assert found[0] == found[1] != found[2]


def test_the_same_player_twice(match, here):
    assert match("--players bot bot:1 --games 2 --json x.json")[0] == 0
    assert [player["name"] for player in told(here)["players"]] == ["bot:1", "bot:1 (2)"]


def test_files_tell_their_sizes(match, here):
    """A .bin has no configuration: its policy plays as the checkpoint does, game by game."""
    for H in 8, 16:
        folder = save("17", H)
        found = checkpoint.load(here / folder, True)
        save_bin(found.policy, found.weights, here / f"{H}.bin")
    results = []
    for line in "8.bin 16.bin", "8.bin 17":
        assert match(f"{line} --games 60 --json x.json")[0] == 0
        results.append(told(here)["pairs"][0])
    assert [results[0][key] for key in ("wins", "losses")] == [
        results[1][key] for key in ("wins", "losses")
    ]


def test_a_policy_of_connect4_plays_too(match):
    save("17", env="connect4")
    assert match("checkpoints/connect4/17 random --games 2")[0] == 0


def test_a_picture(match, here):
    assert match("bot random --games 2 --gif x.gif --fps 4")[0] == 0
    pages = gif_pages((here / "x.gif").read_bytes())
    assert len(pages) > 6 and {delay for _, delay in pages} == {250}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("random", "a match needs two players, and 1 were named"),
        ("", "a match needs two players, and 0 were named"),
        ("random bot:2", "bot:2: '2' is no skill from 0 to 1"),
        ("random bot:x", "bot:x: 'x' is no skill from 0 to 1"),
        ("random nobody", "there is no checkpoint in"),
        ("random latest", "there is no checkpoint in"),
        ("random missing.bin", "missing.bin"),
        ("random bot --players bot bot", "named behind ENV and with --players"),
        ("random bot --fps 3", "--fps does nothing without --gif"),
        ("random bot --games 1", "'1' is not a whole number from 2"),
        ("random bot --games 8 --max-steps 3", "had not ended 1 games after 3 steps"),
    ],
)
def test_refused(match, line, said):
    code, out, err = match(line)
    assert (code, out) == (2, "")
    assert err.startswith("error: ") and said in err and "\n  hint: " in err


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ("squared", "squared has 1 agents an environment, and a match is between two"),
        ("target", "target has 8 agents an environment, and a match is between two"),
        ("gym:CartPole-v1", "is an environment in Python"),
    ],
)
def test_environments_for_others(here, capsys, env, said):
    assert module.main([env, "random", "random"]) == 2
    assert said in capsys.readouterr().err


def test_a_policy_for_something_else(match):
    save("17", env="squared")
    code, _, err = match("checkpoints/squared/17 random")
    assert code == 2 and "is a policy for 121" in err and "but connect4_two has 126" in err
