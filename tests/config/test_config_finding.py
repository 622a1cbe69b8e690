"""Which environment a word names where files and folders lie as in PufferLib's repository."""

from pathlib import Path

import pytest

from puffer_mlx import config as c
from puffer_mlx.config.finding import resolve
from puffer_mlx.errors import UserError


@pytest.fixture
def repository(here) -> Path:
    """The working directory, laid out so, with two environments; ours has one of the names."""
    for name, gamma in ("breakout", 0.25), ("kite", 0.5):
        folder = here / "ocean" / name
        folder.mkdir(parents=True)
        (folder / "binding.c").write_text("")
        place = here / "config" / ("deeper" if name == "kite" else "")
        place.mkdir(parents=True, exist_ok=True)
        text = f"[base]\nenv_name = {name} {name}_hard\n[train]\ngamma = {gamma}\n"
        (place / f"{name}.ini").write_text(text)
    (here / "config" / "default.ini").write_text("[train]\ngamma = 0.75\nvf_coef = 0.75\n")
    return here


@pytest.mark.parametrize("name", ["breakout", "kite"])
@pytest.mark.parametrize("form", ["file", "bare name", "folder", "file from elsewhere"])
def test_the_folder_and_the_file_find_each_other(repository, monkeypatch, name, form):
    file = "config/breakout.ini" if name == "breakout" else "config/deeper/kite.ini"
    word = {"file": file, "bare name": name, "folder": f"ocean/{name}"}.get(form)
    if word is None:
        (repository / "else").mkdir()
        monkeypatch.chdir(repository / "else")
        word = f"../{file}"
    config = c.load(word)
    assert (config.env_name, config.source) == (name, str(repository / "ocean" / name))
    assert config.train.gamma == (0.25 if name == "breakout" else 0.5)
    assert config.train.vf_coef == 0.75
    (note,) = c.take_notes(config)
    told = str(repository / "ocean" / name) if "else" in form else f"ocean/{name}"
    assert note.startswith(f"{name}: sources in {told}, settings in ") and note.endswith(".ini")


def test_other_words_mean_what_they_meant(repository, monkeypatch):
    assert c.load("squared").source == ""  # there is none in ./ocean
    ours = c.find_config("squared")
    (repository / "config" / "mine.ini").write_text(ours.read_text())
    mine = c.load("config/mine.ini")  # of an environment that isn't beside it
    assert (mine.env_name, mine.source, mine.notes) == ("squared", "", [])
    (repository / "config" / "pole.ini").write_text("[base]\nenv_name = gym:CartPole-v1\n")
    assert c.load("config/pole.ini").source == ""
    (repository / "elsewhere").mkdir()
    monkeypatch.chdir(repository / "elsewhere")
    assert c.load("breakout").source == ""  # ours
    assert resolve("breakout").files[-1].parent.name == "configs"


def test_a_file_with_another_name_finds_the_folder_of_its_own(repository):
    (repository / "config" / "kite.ini").write_text("[base]\nenv_name = string\n")
    config = c.load("config/kite.ini")
    assert (config.env_name, config.source) == ("kite", str(repository / "ocean" / "kite"))


def test_what_a_file_says_of_its_sources_counts(repository):
    (repository / "config" / "breakout.ini").write_text("[env]\nsource = ../elsewhere\n")
    assert c.load("config/breakout.ini").source == str(repository / "elsewhere")


def test_a_run_begins_with_the_folder_that_it_took(repository, script, capsys, monkeypatch):
    """The folder's binding.c is empty, so that nothing can be made of it."""

    def none(*_: object):
        raise UserError("nothing is made", "no hint")

    monkeypatch.setattr(script.vec, "make", none)
    assert script.main(["breakout"]) == 2
    said = capsys.readouterr()
    first = "breakout: sources in ocean/breakout, settings in config/breakout.ini"
    assert said.out.splitlines()[0] == first
