"""puffer-mlx match and evaluate --against: players, tables, records, refusals."""

import shutil

import numpy as np
import pytest
from films import gif_pages
from native_envs import OURS
from saved_policies import record_of, save

from puffer_mlx import checkpoint, config
from puffer_mlx.checkpoint.flat_files import save_bin
from puffer_mlx.cli import match as module
from puffer_mlx.evaluation.games import without_normalization
from puffer_mlx.library import evaluating

PYTHON = OURS / "python"
DUEL = "--env.agents 4 --vec.total-agents 8"
BOARD = 168  # the height of connect4_two's picture


@pytest.fixture
def match(monkeypatch, here, capsys):
    """Return a function that runs the match command with a command line.

    It returns the exit code, standard output, standard error.
    """
    monkeypatch.setattr(evaluating, "count_cores", lambda: 1)

    def run(line: str) -> tuple[int, str, str]:
        capsys.readouterr()  # an environment may have been compiled before
        code = module.main(["connect4_two", *line.split()])
        output = capsys.readouterr()
        said = output.err.splitlines(keepends=True)
        return code, output.out, "".join(line for line in said if ": compiling " not in line)

    return run


def test_each_pair_has_a_row_and_a_record_and_each_player_a_rating(match, here):
    save()
    save(run="18", H=16)
    code, out, err = match("17 18 random bot:0.5 --games 40 --seed 3 --json x.json --greedy")
    assert (code, err) == (0, "")
    rows = out.splitlines()[2:]
    record = record_of(here)
    names = [player["name"] for player in record["players"]]
    assert names == ["17/0000000000000064", "18/0000000000000064", "random", "bot:0.5"]
    assert [(p["first"], p["second"]) for p in record["pairs"]] == [
        (one, other) for i, one in enumerate(names) for other in names[i + 1 :]
    ]
    played = [row for row in rows[: rows.index("")] if not row.endswith(" against")]
    assert [row.split()[:4] for row in played] == [
        [pair["second"], *(str(pair[key]) for key in ("wins", "draws", "losses"))]
        for pair in record["pairs"]
    ]
    best = max(record["players"], key=lambda player: player["elo"])
    table = rows[rows.index("") + 2 :]
    assert table[0].split() == [best["name"], f"{best['elo']:+.0f}"]
    assert (record["deterministic"], record["seed"]) == (True, 3)


def test_repeated_games_have_a_note_and_no_interval(match, here):
    save()
    save(run="18", H=16)
    line = "17 18 --games 40 --greedy --json x.json"
    _, out, _ = match(line)
    row = out.splitlines()[3]
    assert row.endswith("  2 distinct games") and " to " not in row
    assert "--env.opening-stones 8 starts each with random moves" in out
    (pair,) = record_of(here)["pairs"]
    assert (pair["distinct"], pair["low"], pair["high"]) == (2, None, None)
    assert abs(record_of(here)["players"][0]["elo"]) < 200  # of two games, not of 40


def test_a_player_may_be_named_twice_or_have_another_environment(match, here):
    save("connect4")
    line = "--players bot bot:1 checkpoints/connect4/17 --games 2 --json x.json"
    assert match(line)[0] == 0
    names = [player["name"] for player in record_of(here)["players"]]
    assert names[:2] == ["bot:1", "bot:1 (2)"]


def test_a_gif_shows_a_game_and_its_result_below_the_players_names(match, here):
    assert match("bot random --games 2 --gif x.gif --fps 4")[0] == 0
    pages = gif_pages((here / "x.gif").read_bytes())
    assert len(pages) > 6 and {delay for _, delay in pages[:-1]} == {250}
    strips = [page[:-BOARD] for page, _ in pages]  # above the board
    assert all(np.array_equal(strip, strips[0]) for strip in strips[:-1]) and strips[0].std() > 0
    assert not np.array_equal(strips[-1], strips[0])
    assert np.array_equal(pages[-1][0][-BOARD:], pages[-2][0][-BOARD:])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("random bot:2", "bot:2: '2' is not a skill from 0 to 1"),
        ("random nobody", "there is no checkpoint in"),
        ("random bot --games 8 --max-steps 3", "had not finished 1 games after 3 steps"),
        ("checkpoints/squared/17 random", "is a policy for 121"),
    ],
)
def test_a_player_or_limit_that_cannot_be_is_refused(match, line, message):
    save("squared")
    code, out, err = match(line)
    assert (code, out) == (2, "")
    assert err.startswith("error: ") and message in err and "\n  hint: " in err


# ---- PettingZoo's, and evaluate --against --------------------------------------------------------


@pytest.fixture
def duel(here) -> str:
    """Copy a Python game of four agents, two on each side, here; return its name."""
    shutil.copy(PYTHON / "zoo_duel.py", here / "zoo_duel.py")
    return "pettingzoo:zoo_duel"


def test_evaluate_against_uses_the_runs_parameters_and_statistics(against, here, duel):
    save(duel, more=f"{DUEL} --env.length 5 --vec.normalize-observations 1")
    line = "--against 17 random --games 4 --json x.json --gif x.gif --fps 5 --scale 2"
    assert against(duel, "17", *line.split())[0] == 0
    pairs = record_of(here)["pairs"]
    assert [pair["steps"] for pair in pairs] == [5 * 2 + 1] * 2  # two games on each of two
    assert [pair["second"] for pair in pairs] == ["17/0000000000000064 (2)", "random"]
    pages = gif_pages((here / "x.gif").read_bytes())
    assert len(pages) == 7 and {delay for _, delay in pages[:-1]} == {200}


def test_a_match_shows_plain_observations(here, duel):
    settings = config.load(duel, ["--vec.normalize-observations", "1", "--vec.normalize-rewards=1"])
    plain = without_normalization(settings).vec
    assert not plain.normalize_observations and not plain.normalize_rewards
    assert settings.vec.normalize_observations and settings.vec.normalize_rewards  # as it was


def test_evaluate_against_has_the_results_of_a_match_also_of_flat_files(match, against, here):
    for H in 8, 16:
        found = checkpoint.load(here / save(run=str(H), H=H), True)
        save_bin(found.policy, found.weights, here / f"{H}.bin")
    line = "--games 40 --seed 3 --json x.json"
    assert match(f"8 16 random {line}")[0] == 0
    pairs = record_of(here)["pairs"][:2]
    code, out, err = against("connect4_two", "8", "--against", "16", "random", *line.split())
    assert (code, err) == (0, "")
    assert record_of(here)["pairs"] == pairs and "players" not in record_of(here)
    assert [row.split()[0] for row in out.splitlines()[3:]] == ["16/0000000000000064", "random"]
    assert match(f"8.bin 16.bin {line}")[0] == 0
    assert record_of(here)["pairs"][0]["wins"] == pairs[0]["wins"]
