"""Which environment a word names where files and folders lie as in PufferLib's repository."""

from pathlib import Path

import pytest

from puffer_mlx import config as c
from puffer_mlx.config.dialects import folder_version
from puffer_mlx.config.resolve import resolve
from puffer_mlx.errors import UserError
from puffer_mlx.vec.native.make import find_environment


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


@pytest.mark.parametrize("text", ["", "[base]\nenv_name = breakout\n"])
def test_the_only_file_in_a_folder_is_about_it(repository, text):
    """Of a folder that was copied and renamed, say."""
    folder = repository / "mine"
    folder.mkdir()
    (folder / "binding.c").write_text("")
    (folder / "settings.ini").write_text(f"{text}[train]\ngamma = 0.125\n")
    config = c.load("./mine")
    assert (config.env_name, config.source) == ("mine", str(folder))
    assert config.train.gamma == 0.125
    (folder / "other.ini").write_text("")
    with pytest.raises(
        UserError, match=r"in \./mine is about mine: other\.ini, settings\.ini"
    ) as e:
        c.load("./mine")
    assert e.value.hint == "call one mine.ini, or give it [base] env_name = mine"
    (folder / "mine.ini").write_text("[train]\ngamma = 0.5\n")
    assert c.load("./mine").train.gamma == 0.5


def test_what_a_file_says_of_its_sources_counts(repository):
    (repository / "config" / "breakout.ini").write_text("[env]\nsource = ../elsewhere\n")
    assert c.load("config/breakout.ini").source == str(repository / "elsewhere")


def test_a_run_begins_with_the_folder_that_it_took(repository, script, capsys, monkeypatch):
    """The folder's binding.c is empty, so that nothing can be made of it."""

    def none(*_: object):
        raise UserError("nothing is made", "no hint")

    monkeypatch.setattr("puffer_mlx.vec.make", none)
    assert script.main(["breakout"]) == 2
    said = capsys.readouterr()
    assert said.out.splitlines()[:2] == [
        "breakout: PufferLib 4.0's trainer (ocean/breakout is a 4.0 folder)",
        "breakout: sources in ocean/breakout, settings in config/breakout.ini",
    ]


# ---- Folders of PufferLib 5.0 -------------------------------------------------------------------

HEADER = 'typedef unsigned char obs_t;\n#include "pufferenv.h"\nvoid puf_step(Env* env) {}\n'


@pytest.fixture
def kelp(here) -> Path:
    """A folder of 5.0 in ./ocean, its file, and one that only names it."""
    (here / "ocean" / "kelp").mkdir(parents=True)
    (here / "ocean" / "kelp" / "kelp.h").write_text(HEADER)
    (here / "config" / "deeper").mkdir(parents=True)
    (here / "config" / "a.ini").write_text("[base]\nenv_name = kelp\n[train]\ngamma = 0.25\n")
    (here / "config" / "deeper" / "kelp.ini").write_text("[train]\ngamma = 0.25\n")
    (here / "config" / "kelp.ini").write_text("[base]\nenv_name = other\n[train]\ngamma = 0.5\n")
    return here / "ocean" / "kelp"


def test_the_version_of_a_folder(kelp):
    assert folder_version(kelp) == folder_version("ocean/kelp") == "5.0"
    assert folder_version(find_environment("squared")) == "4.0"
    for text in (
        '#include "../kelp/kelp.h"\n#include <pufferenv.h>\n',
        "void puf_step (Env* env);",
    ):
        (kelp / "kelp.h").write_text(text)
        assert folder_version(kelp) == "5.0"
    (kelp / "kelp.cu").write_text("")
    assert folder_version(kelp) == "5.0"  # the header is there: for the CPU
    (kelp / "binding.c").write_text("")
    assert folder_version(kelp) == "4.0"


@pytest.mark.parametrize("word", ["ocean/kelp", "kelp", "config/kelp.ini", "config/../ocean/kelp"])
def test_a_folder_of_5_and_its_file_find_each_other_by_their_names(kelp, word):
    found = resolve(word)
    assert (found.env_name, found.source) == ("kelp", str(kelp))
    assert found.files[-1].resolve() == kelp.parents[1] / "config" / "kelp.ini"


def test_only_the_file_of_that_name_is_about_a_folder_of_5(kelp):
    assert resolve("config/a.ini").source == resolve("config/deeper/kelp.ini").source == ""
    (kelp.parents[1] / "config" / "kelp.ini").unlink()
    assert resolve("ocean/kelp").files[-1].name == "default.ini"
    (kelp / "kelp.ini").write_text("[train]\ngamma = 0.125\n")
    assert resolve("ocean/kelp").files[-1] == kelp / "kelp.ini"


@pytest.mark.parametrize("word", ["ocean/arm", "arm", "config/arm.ini"])
def test_an_environment_for_a_gpu_alone_is_refused(kelp, word):
    (kelp.parent / "arm").mkdir()
    (kelp.parent / "arm" / "arm.cu").write_text("#define PUF_BACKEND PUF_GPU\n")
    (kelp.parents[1] / "config" / "arm.ini").write_text("")
    with pytest.raises(UserError, match=r"only arm\.cu: it steps on a GPU") as caught:
        resolve(word)
    assert "\n" not in caught.value.message


def test_a_header_of_4_without_a_binding_is_no_folder(kelp):
    (kelp / "kelp.h").write_text("void c_step(Kelp* env);\n")
    with pytest.raises(UserError, match=r"has no binding\.c, and no kelp\.h of PufferLib 5\.0"):
        resolve("ocean/kelp")


def test_an_environment_may_have_several_files(here):
    (here / "configs" / "more").mkdir(parents=True)
    files = {"squared-tiny": "squared", "squared-odd": "catch", "plain": "squared", "a-b": "a-b"}
    for stem, name in files.items():
        text = f"[base]\nenv_name = '{name}' # {stem}\n[train]\nmomentum = 0.125\n"
        (here / "configs" / "more" / f"{stem}.ini").write_text(text)
    found = resolve("squared-tiny")
    assert (found.env_name, found.files[-1].name) == ("squared", "squared-tiny.ini")
    assert c.load("squared-tiny").train.beta1 == 0.125
    for name in ("squared-odd", "plain", "squared-big"):
        with pytest.raises(UserError, match=f"no configuration has the environment '{name}'"):
            resolve(name)
    assert resolve("a-b").env_name == "a-b"
    assert resolve("breakout-a").env_name == "breakout"  # those that are shipped
    assert c.find_config("breakout").name == "breakout.ini"
