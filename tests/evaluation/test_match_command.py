"""puffer-mlx match: who is named, what is said, and what is refused."""

import shutil

import numpy as np
import pytest
from films import gif_pages
from native_envs import OURS
from saved_policies import record_of, save

from puffer_mlx import checkpoint, config
from puffer_mlx.checkpoint.flat_files import save_bin
from puffer_mlx.cli import match as module
from puffer_mlx.evaluation.frames import captioned
from puffer_mlx.evaluation.games import without_statistics
from puffer_mlx.library import evaluating

PYTHON = OURS / "python"
DUEL = "--env.agents 4 --vec.total-agents 8"
BOARD = 168  # the height of connect4_two's picture


@pytest.fixture
def match(monkeypatch, here, capsys):
    """Runs it with a command line; the exit code, what was printed and what was said."""
    monkeypatch.setattr(evaluating, "threads", lambda: 1)

    def run(line: str) -> tuple[int, str, str]:
        capsys.readouterr()  # an environment may have been compiled before
        code = module.main(["connect4_two", *line.split()])
        output = capsys.readouterr()
        said = output.err.splitlines(keepends=True)
        return code, output.out, "".join(line for line in said if ": compiling " not in line)

    return run


def test_tables_and_the_record(match, here):
    save()
    save(run="18", H=16)
    code, out, err = match("17 18 random bot:0.5 --games 40 --seed 3 --json x.json --greedy")
    assert (code, err) == (0, "")
    first, header, *rows = out.splitlines()
    said = "connect4_two: 40 games of each pair, half on either side; deterministic, seed 3"
    assert first == said
    assert header.split() == ["wins", "draws", "losses", "score", "95", "%"]
    record = record_of(here)
    names = [player["name"] for player in record["players"]]
    assert names == ["17/0000000000000064", "18/0000000000000064", "random", "bot:0.5"]
    assert [(p["first"], p["second"]) for p in record["pairs"]] == [
        (one, other) for i, one in enumerate(names) for other in names[i + 1 :]
    ]
    played = rows[: rows.index("")]
    assert max(map(len, played)) < 80  # columns
    heads = [row for row in played if row.endswith(" against")]
    assert heads == [f"{name} against" for name in names[:-1]]
    lines = [row for row in played if row not in heads]
    for row, pair in zip(lines, record["pairs"], strict=True):
        assert row.split()[:4] == [
            pair["second"],
            *(str(pair[key]) for key in ("wins", "draws", "losses")),
        ]
        if pair["distinct"] is None:  # one of the two draws
            assert pair["low"] < pair["score"] <= pair["high"] <= 1
        assert [sum(side.values()) for side in pair["sides"]] == [20, 20]
    table = [row.split() for row in rows[len(played) + 2 : len(played) + 6]]
    ratings = [int(row[1]) for row in table]
    best = max(record["players"], key=lambda player: player["elo"])
    assert ratings == sorted(ratings, reverse=True) and len(ratings) == 4
    assert table[0] == [best["name"], f"{best['elo']:+.0f}"]
    assert sum(player["elo"] for player in record["players"]) == pytest.approx(0, abs=1e-6)
    assert (record["environment"], record["deterministic"], record["seed"]) == (
        "connect4_two",
        True,
        3,
    )


def test_games_that_repeat_have_no_interval(match, here):
    """Two greedy policies on an empty board; with stones put down at random there are more."""
    save()
    save(run="18", H=16)
    line = "17 18 --games 40 --greedy --json x.json"
    code, out, _ = match(line)
    assert code == 0
    row = out.splitlines()[3]
    assert row.endswith("  2 distinct games") and " to " not in row
    note = (
        "17/0000000000000064 against 18/0000000000000064: 2 distinct games in 40, as neither player"
        " draws: --env.opening-stones 8 begins each with stones put down at random"
    )
    assert note in out
    (pair,) = record_of(here)["pairs"]
    assert (pair["distinct"], pair["low"], pair["high"]) == (2, None, None)
    assert abs(record_of(here)["players"][0]["elo"]) < 200  # of two games, not of 40

    code, out, _ = match(f"{line} --env.opening-stones 8")
    (pair,) = record_of(here)["pairs"]
    assert 20 < pair["distinct"] <= 40 and pair["low"] < pair["score"] < pair["high"]
    assert "distinct" not in out or pair["distinct"] < 40

    match("17 18 --games 40 --json x.json")  # drawn
    assert record_of(here)["pairs"][0]["distinct"] is None


def test_other_players(match, here):
    """The same one twice; and a policy of connect4."""
    assert match("--players bot bot:1 --games 2 --json x.json")[0] == 0
    assert [player["name"] for player in record_of(here)["players"]] == ["bot:1", "bot:1 (2)"]
    save("connect4")
    assert match("checkpoints/connect4/17 random --games 2")[0] == 0


def test_a_picture(match, here):
    assert match("bot random --games 2 --gif x.gif --fps 4")[0] == 0
    pages = gif_pages((here / "x.gif").read_bytes())
    assert len(pages) > 6 and {delay for _, delay in pages[:-1]} == {250}
    assert pages[-1][1] == 2000  # the result
    strips = [page[:-BOARD] for page, _ in pages]  # above the board
    assert all(np.array_equal(strip, strips[0]) for strip in strips[:-1]) and strips[0].std() > 0
    assert not np.array_equal(strips[-1], strips[0])
    assert np.array_equal(pages[-1][0][-BOARD:], pages[-2][0][-BOARD:])
    assert match("random bot --games 2 --gif y.gif --fps 4")[0] == 0
    other = gif_pages((here / "y.gif").read_bytes())[0][0]
    assert not np.array_equal(other[:-BOARD], strips[0])  # other names


def test_a_caption_is_whole_above_small_pictures():
    image = np.full((8, 8, 3), 90, np.uint8)
    said = captioned(image, ["a long name of a player", "a", ""])
    assert (said[-8:] == 90).all(axis=2).sum() == 64 and said.shape[1] > 100
    text = np.asarray((said[:-8] > 150).any(axis=2))
    assert text.any() and not text[:, -1].any()
    assert text[: len(text) // 3].sum() > text[len(text) // 3 :].sum() > 0


def test_refused(match):
    for line, said in (
        ("random bot:2", "bot:2: '2' is no skill from 0 to 1"),
        ("random nobody", "there is no checkpoint in"),
        ("random missing.bin", "missing.bin"),
        ("random bot --games 8 --max-steps 3", "had not ended 1 games after 3 steps"),
    ):
        code, out, err = match(line)
        assert (code, out) == (2, "")
        assert err.startswith("error: ") and said in err and "\n  hint: " in err
    save("squared")
    code, _, err = match("checkpoints/squared/17 random")
    assert code == 2 and "is a policy for 121" in err and "but connect4_two has 126" in err


def test_environments_for_others(here, capsys):
    for env, said in (
        ("squared", "squared has 1 agents an environment, and a match is between two sides"),
        ("gym:CartPole-v1", "CartPole-v1 has 1 agents an environment"),
    ):
        assert module.main([env, "random", "random"]) == 2
        assert said in capsys.readouterr().err


# ---- PettingZoo's, and evaluate --against --------------------------------------------------------


@pytest.fixture
def duel(here) -> str:
    """The name of an environment of four agents in Python, two on either side."""
    shutil.copy(PYTHON / "zoo_duel.py", here / "zoo_duel.py")
    return "pettingzoo:zoo_duel"


def test_a_match_in_python(here, duel, capsys):
    save(duel, more=DUEL)
    line = "17 random --env.agents 4 --games 20 --json x.json --gif x.gif --vec.backend sync"
    assert module.main([duel, *line.split()]) == 0
    out = capsys.readouterr().out
    assert "pettingzoo:zoo_duel: 20 games of each pair" in out
    (pair,) = record_of(here)["pairs"]
    assert [sum(side.values()) for side in pair["sides"]] == [10, 10]
    assert len(gif_pages((here / "x.gif").read_bytes())) == 5  # the reset, three steps, the result
    assert module.main([duel, "random", "bot"]) == 2
    assert "have no scripted players" in capsys.readouterr().err


def test_a_run_against_others_has_the_results_of_a_match(match, against, here):
    save()
    save(run="18", H=16)
    line = "--games 40 --seed 3 --json x.json"
    assert match(f"17 18 random {line}")[0] == 0
    pairs = record_of(here)["pairs"][:2]
    code, out, err = against("connect4_two", "17", "--against", "18", "random", *line.split())
    assert (code, err) == (0, "")
    record = record_of(here)
    assert record["pairs"] == pairs and "players" not in record
    first, header, name, *rows = out.splitlines()
    assert first.startswith("connect4_two: 40 games against each, half on either side; stoch")
    assert name == "17/0000000000000064 against" and "score" in header
    assert [row.split()[0] for row in rows] == ["18/0000000000000064", "random"]


def test_a_run_plays_in_its_own_environment(against, here, duel):
    """With its own parameters, and observations normalised as it saw them."""
    save(duel, more=f"{DUEL} --env.length 5 --vec.normalize-observations 1")
    line = "--against 17 random --games 4 --json x.json --gif x.gif --fps 5 --scale 2"
    assert against(duel, "17", *line.split())[0] == 0
    pairs = record_of(here)["pairs"]
    assert [pair["steps"] for pair in pairs] == [5 * 2 + 1] * 2  # two games on each of two
    assert [pair["second"] for pair in pairs] == ["17/0000000000000064 (2)", "random"]
    pages = gif_pages((here / "x.gif").read_bytes())
    assert len(pages) == 7 and {delay for _, delay in pages[:-1]} == {200}
    height, width = pages[0][0].shape[:2]
    assert height % 2 == width % 2 == 0 and (pages[0][0][-16:] == 0).all(axis=2).any()


def test_environments_show_plain_observations(here, duel):
    settings = config.load(duel, ["--vec.normalize-observations", "1", "--vec.normalize-rewards=1"])
    plain = without_statistics(settings).vec
    assert not plain.normalize_observations and not plain.normalize_rewards
    assert settings.vec.normalize_observations and settings.vec.normalize_rewards  # as it was


def test_files_tell_their_sizes(match, against, here):
    """A .bin has no configuration: its policy plays as the checkpoint does, game by game."""
    for H in 8, 16:
        found = checkpoint.load(here / save(run=str(H), H=H), True)
        save_bin(found.policy, found.weights, here / f"{H}.bin")
    line, results = "--games 20 --json x.json", []
    for players in "8 16", "8.bin 16", "8.bin 16.bin":
        assert match(f"{players} {line}")[0] == 0
        results.append(record_of(here)["pairs"][0])
    assert against("connect4_two", "8", "--against", "16.bin", *line.split())[0] == 0
    results.append(record_of(here)["pairs"][0])
    for key in "wins", "losses":
        assert len({result[key] for result in results}) == 1
