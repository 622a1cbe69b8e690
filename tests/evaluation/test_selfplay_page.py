"""docs/selfplay.md names every key and every logged number."""

import re
from pathlib import Path

from test_league import NOBODY, QUICK, result
from test_league_parity import EACH, league, recorded, weights

from puffer_mlx import config
from puffer_mlx.config.schema import KEYS

PAGE = (Path(__file__).parents[2] / "docs" / "selfplay.md").read_text()


def test_the_page_names_each_key():
    keys = {key for key in KEYS["selfplay"] if not key.startswith("eval_")} - {"enabled"}
    assert [key for key in keys if not re.search(rf"`(selfplay\.)?{key}( 1)?`", PAGE)] == []
    assert "--selfplay.enabled 1" in PAGE and "`eval_*`" in PAGE


def test_the_page_names_each_logged_number():
    made, names = league(rules="puffer4", **QUICK), set()
    for call, each in enumerate(recorded(60, seed=1, skill=0.8)):
        names |= made.after(call * EACH, each, weights(call)).keys()
    names |= made.after(60 * EACH, result([0, 0, 0], [0, 0, 0], NOBODY), weights(60)).keys()
    words = {re.sub(r"_bank_\d+$", "_bank_0", name) for name in names}
    assert len(words) > 12
    missing = {name for name in words if f"`{name}`" not in PAGE}
    assert missing <= {"pool/opponent_elo", "pool/winrate_at_swap", "pool/epochs_to_align"}  # means


def test_the_pages_commands_have_known_keys():
    opponents = []
    for line in re.findall(r"^puffer-mlx train (.*?) *(?:#.*)?$", PAGE, re.M):
        name, *words = [word for word in line.split() if word not in ("--resume", "latest")]
        opponents.append((config.load(name, words).opponents, "selfplay" in line))
    assert set(opponents) == {(2, True), (0, False)}  # the others meet only themselves
