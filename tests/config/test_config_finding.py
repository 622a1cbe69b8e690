"""The environment that a word names, also in PufferLib's repository and beside other files."""

from pathlib import Path

import pytest

from puffer_mlx import config as c
from puffer_mlx.config.finding import env_names
from puffer_mlx.config.releases import folder_release
from puffer_mlx.vec.native.make import find_environment

ROOT = Path(__file__).parents[2]


def test_a_folder_finds_its_file_and_a_file_its_folder(here, monkeypatch, script, capsys):
    for path in "ocean/breakout/binding.c", "config/breakout.ini", "away/x":
        (here / path).parent.mkdir(parents=True)
        (here / path).touch()
    assert script.main(["ocean/breakout"]) == 2  # an empty binding.c doesn't compile
    assert capsys.readouterr().out.splitlines()[:2] == [
        "breakout: trainer puffer4, PufferLib 4.0's (ocean/breakout is a 4.0 folder)",
        "breakout: sources in ocean/breakout, settings in config/breakout.ini",
    ]
    monkeypatch.chdir(here / "away")
    config = c.load("../config/breakout.ini")
    assert config.source == str(here / "ocean/breakout")
    assert config.notes[0].startswith(f"breakout: sources in {here}/ocean/breakout, settings in ")


SHIPPED = "squared", "breakout-a", "connect4_two-selfplay", "gym:CartPole-v1", "gym:ALE/Pong-v5"


def test_the_working_directory_does_not_change_shipped_names(here):
    """Not a repository's folder, nor a file about the name, about all, or of another program."""
    before = [c.load(name) for name in SHIPPED]
    foreign = "[train]\nmax_grad_norm = 0.001\n"
    (here / "configs").mkdir()
    for number, name in enumerate(SHIPPED):
        plain = name.partition("-")[0] if ":" not in name else name
        for folder in "ocean", "envs", ".":
            (here / folder / name).mkdir(parents=True)
            (here / folder / name / "binding.c").touch()
        (here / "configs" / f"{name}.ini").parent.mkdir(exist_ok=True, parents=True)
        (here / "configs" / f"{name}.ini").write_text(f"[base]\nenv_name = {plain}\n{foreign}")
        (here / "configs" / f"a{number}.ini").write_text(f"[base]\nenv_name = gym:* *\n{foreign}")
    for name in "default", "python", "discrete", "puffer5", "images":
        (here / "configs" / f"{name}.ini").write_text(f"{foreign}[logging]\nlevel = 3\n")
    (here / "configs/gym:ALE/Pong-v5.ini").unlink()  # only all of ALE are shipped
    assert [c.load(name) for name in SHIPPED] == before


@pytest.mark.parametrize("place", ["./ocean/squared", "./configs/squared.ini"])
def test_a_note_names_what_a_shipped_name_hides(here, place):
    assert c.load("squared").notes == []
    path = here / place / "binding.c" if not place.endswith(".ini") else here / place
    path.parent.mkdir(parents=True)
    path.touch()
    note = f"using puffer_mlx's squared; to use {place}, type that path"
    assert c.load("squared").notes == [note]


def test_a_checkout_hides_nothing(monkeypatch):
    for folder in ROOT, ROOT / "envs":
        monkeypatch.chdir(folder)
        assert c.load("squared").notes == []


def test_only_upstreams_config_folder_leads_to_ocean(here):
    for folder in "config", "configs":
        (here / folder).mkdir()
        (here / folder / "squared.ini").touch()
    (here / "ocean/squared").mkdir(parents=True)
    (here / "ocean/squared/binding.c").touch()
    assert c.load("config/squared.ini").source == str(here / "ocean/squared")
    assert c.load("configs/squared.ini").source == ""


INDENTED = (
    "[base]\nenv_name = one\n  two:x  # ours\n[sweep]\nseeds = 2\n  [base]\n  env_name = three\n"
)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (INDENTED, ["one", "two:x"]),
        (INDENTED + "[selfplay]\neval_bots = a\n", ["three"]),  # a file of 5.0
        (INDENTED.replace("= one", ""), ["three"]),  # refused as a file of 4.0
    ],
)
def test_names_of_environments_are_read_by_the_rules_of_settings(here, text, names):
    """4.0 reads an indented line as part of a value, 5.0 as a setting."""
    (here / "toy.ini").write_text(text)
    assert env_names(here / "toy.ini") == names


def test_a_folders_sources_show_its_version(here):
    kelp = here / "kelp"
    kelp.mkdir()
    assert folder_release(find_environment("squared")) == "4.0"
    for text in (
        "typedef unsigned char obs_t;\nvoid puf_step(Env* env) {}\n",
        '#include "../kelp/kelp.h"\n#include <pufferenv.h>\n',
        "void puf_step (Env* env);",
    ):
        (kelp / "kelp.h").write_text(text)
        assert folder_release(kelp) == folder_release("kelp") == "5.0"
    (kelp / "kelp.cu").write_text("")
    assert folder_release(kelp) == "5.0"  # the header is there: for the CPU
    (kelp / "binding.c").write_text("")
    assert folder_release(kelp) == "4.0"
