"""docs/selfplay.md names every key, and its commands are accepted."""

import re
from pathlib import Path

from puffer_mlx import config
from puffer_mlx.config.schema import KEYS

PAGE = (Path(__file__).parents[2] / "docs" / "selfplay.md").read_text()


def test_the_page_names_each_key():
    keys = {key for key in KEYS["selfplay"] if not key.startswith("eval_")} - {"enabled"}
    assert [key for key in keys if not re.search(rf"`(selfplay\.)?{key}( 1)?`", PAGE)] == []


def test_the_pages_commands_have_known_keys():
    opponents = []
    for line in re.findall(r"^puffer-mlx train (.*?) *(?:#.*)?$", PAGE, re.M):
        name, *words = [word for word in line.split() if word not in ("--resume", "latest")]
        opponents.append((config.load(name, words).opponents, "selfplay" in line))
    assert set(opponents) == {(2, True), (0, False)}  # the others meet only themselves
