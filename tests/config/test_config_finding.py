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


def test_the_folder_and_the_file_find_each_other(repository, monkeypatch):
    (repository / "else").mkdir()
    for name, file, gamma in ("breakout", "", 0.25), ("kite", "deeper/", 0.5):
        ini, folder = f"config/{file}{name}.ini", repository / "ocean" / name
        for word in ini, name, f"ocean/{name}", f"../{ini}":
            away = word.startswith("..")
            monkeypatch.chdir(repository / "else" if away else repository)
            config = c.load(word)
            assert (config.env_name, config.source) == (name, str(folder))
            assert (config.train.gamma, config.train.vf_coef) == (gamma, 0.75)
            (note,) = c.take_notes(config)
            place = folder if away else f"ocean/{name}"
            assert note.startswith(f"{name}: sources in {place}, settings in "), word
            assert note.endswith(".ini")


def test_other_words_mean_what_they_meant(repository, monkeypatch):
    """And what a file says of its sources counts."""
    assert c.load("squared").source == ""  # there is none in ./ocean
    for name, text, env_name, source in (
        ("mine", c.find_config("squared").read_text(), "squared", ""),  # of none beside it
        ("pole", "[base]\nenv_name = gym:CartPole-v1\n", "gym:CartPole-v1", ""),
        ("kite", "[base]\nenv_name = string\n", "kite", repository / "ocean" / "kite"),
        ("breakout", "[env]\nsource = ../elsewhere\n", "breakout", repository / "elsewhere"),
    ):
        (repository / "config" / f"{name}.ini").write_text(text)
        config = c.load(f"config/{name}.ini")
        assert (config.env_name, config.source) == (env_name, str(source))
    (repository / "elsewhere").mkdir()
    monkeypatch.chdir(repository / "elsewhere")
    assert c.load("breakout").source == ""  # ours
    assert resolve("breakout").files[-1].parent.name == "configs"


def test_the_only_file_in_a_folder_is_about_it(repository):
    """Of a folder that was copied and renamed, say."""
    folder = repository / "mine"
    folder.mkdir()
    (folder / "binding.c").write_text("")
    for text in "", "[base]\nenv_name = breakout\n":
        (folder / "settings.ini").write_text(f"{text}[train]\ngamma = 0.125\n")
        config = c.load("./mine")
        assert (config.env_name, config.source) == ("mine", str(folder))
        assert config.train.gamma == 0.125
    (folder / "other.ini").write_text("")
    said = r"in \./mine is about mine: other\.ini, settings\.ini\n.*call one mine.ini, or give it"
    with pytest.raises(UserError, match=said):
        c.load("./mine")
    (folder / "mine.ini").write_text("[train]\ngamma = 0.5\n")
    assert c.load("./mine").train.gamma == 0.5


def test_a_run_begins_with_the_folder_that_it_took(repository, script, capsys):
    """The folder's binding.c is empty, so that nothing can be made of it."""
    assert script.main(["breakout"]) == 2
    assert capsys.readouterr().out.splitlines()[:2] == [
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


def test_a_folder_of_5_and_its_file_find_each_other_by_their_names(kelp):
    configs = kelp.parents[1] / "config"
    for word in "ocean/kelp", "kelp", "config/kelp.ini", "config/../ocean/kelp":
        named = resolve(word)
        assert (named.env_name, named.source) == ("kelp", str(kelp))
        assert named.files[-1].resolve() == configs / "kelp.ini"
    assert resolve("config/a.ini").source == resolve("config/deeper/kelp.ini").source == ""
    (configs / "kelp.ini").unlink()
    assert resolve("ocean/kelp").files[-1].name == "default.ini"
    (kelp / "kelp.ini").write_text("[train]\ngamma = 0.125\n")
    assert resolve("ocean/kelp").files[-1] == kelp / "kelp.ini"


def test_folders_that_are_refused(kelp):
    (kelp.parent / "arm").mkdir()
    (kelp.parent / "arm" / "arm.cu").write_text("#define PUF_BACKEND PUF_GPU\n")
    (kelp.parents[1] / "config" / "arm.ini").write_text("")
    (kelp / "kelp.h").write_text("void c_step(Kelp* env);\n")  # of 4.0, without a binding
    on_gpu = r"^the environment arm has only arm\.cu: it steps on a GPU.*\n.*hint"
    for word, said in (
        *((word, on_gpu) for word in ("ocean/arm", "arm", "config/arm.ini")),
        ("ocean/kelp", r"has no binding\.c, and no kelp\.h of PufferLib 5\.0"),
    ):
        with pytest.raises(UserError, match=said):
            resolve(word)


def test_an_environment_may_have_several_files(here):
    (here / "configs" / "more").mkdir(parents=True)
    files = {"squared-tiny": "squared", "squared-odd": "catch", "plain": "squared", "a-b": "a-b"}
    for stem, name in files.items():
        text = f"[base]\nenv_name = '{name}' # {stem}\n[train]\nmomentum = 0.125\n"
        (here / "configs" / "more" / f"{stem}.ini").write_text(text)
    named = resolve("squared-tiny")
    assert (named.env_name, named.files[-1].name) == ("squared", "squared-tiny.ini")
    assert c.load("squared-tiny").train.beta1 == 0.125
    for name in ("squared-odd", "plain", "squared-big"):
        with pytest.raises(UserError, match=f"no configuration has the environment '{name}'"):
            resolve(name)
    assert resolve("a-b").env_name == "a-b"
    assert resolve("breakout-a").env_name == "breakout"  # those that are shipped
    assert c.find_config("breakout").name == "breakout.ini"
