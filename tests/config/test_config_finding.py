"""Which environment a word names, beside PufferLib's repository and other people's files.

``settings.txt`` has what such a repository's files say.
"""

import configparser
import os
import sys
from pathlib import Path

import pytest

from puffer_mlx import config as c
from puffer_mlx.config import ini_files
from puffer_mlx.config.dialects import folder_version
from puffer_mlx.config.finding import env_names
from puffer_mlx.config.ini_files import read_ini
from puffer_mlx.errors import UserError
from puffer_mlx.vec.native.make import find_environment

ROOT = Path(__file__).parents[2]


def test_from_elsewhere(here, monkeypatch, script, capsys):
    """A folder finds its file and a file its folder, from other folders, too."""
    for path in "ocean/breakout/binding.c", "config/breakout.ini", "away/x":
        (here / path).parent.mkdir(parents=True)
        (here / path).touch()
    assert script.main(["ocean/breakout"]) == 2  # an empty binding.c doesn't compile
    assert capsys.readouterr().out.splitlines()[:2] == [
        "breakout: PufferLib 4.0's trainer (ocean/breakout is a 4.0 folder)",
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


@pytest.mark.parametrize("place", ["./ocean/squared", "./squared", "./configs/squared.ini"])
def test_a_note_names_what_a_shipped_name_hides(here, place):
    assert c.load("squared").notes == []
    path = here / place / "binding.c" if not place.endswith(".ini") else here / place
    path.parent.mkdir(parents=True)
    path.touch()
    note = f"squared is puffer_mlx's own; to use {place}, type that path"
    assert c.load("squared").notes == [note]


def test_no_note_in_a_checkout(monkeypatch):
    for folder in ROOT, ROOT / "envs":
        monkeypatch.chdir(folder)
        assert c.load("squared").notes == []


@pytest.mark.parametrize("place", ["kite", "ocean/kite"])
def test_the_error_for_a_folders_bare_name_is_its_path(here, place):
    (here / place).mkdir(parents=True)
    (here / place / "binding.c").touch()
    with pytest.raises(UserError) as caught:
        c.load("kite")
    assert caught.value.message == "unknown environment 'kite'"
    assert caught.value.hint == f"to use the folder of that name, type its path: ./{place}"
    assert c.load(f"./{place}").source == str(here / place)


def test_only_upstreams_config_folder_leads_to_ocean(here):
    for folder in "config", "configs":
        (here / folder).mkdir()
        (here / folder / "squared.ini").touch()
    (here / "ocean/squared").mkdir(parents=True)
    (here / "ocean/squared/binding.c").touch()
    assert c.load("config/squared.ini").source == str(here / "ocean/squared")
    assert c.load("configs/squared.ini").source == ""


# ---- how often files are read --------------------------------------------------------------------


@pytest.fixture
def opened_files():
    """The .ini files that this process opens during a test, in order."""
    files: list[str] = []
    counting = [True]

    def count(event: str, args: tuple) -> None:
        if counting and event == "open" and str(args[0]).endswith(".ini"):
            files.append(str(args[0]))

    sys.addaudithook(count)  # a hook can't be removed again
    yield files
    counting.clear()


@pytest.mark.parametrize(
    ("name", "most"), [("breakout", 2), ("gym:CartPole-v1", 15), ("my.envs:Maze", 3)]
)
@pytest.mark.parametrize("folder", ["an empty folder", "the clone"])
def test_few_files_are_opened_and_each_once(here, monkeypatch, opened_files, name, most, folder):
    if folder == "the clone":
        monkeypatch.chdir(ROOT)
    monkeypatch.setattr(ini_files, "RECENT", 0)  # a checkout may be a second old
    ini_files._cached.cache_clear()
    c.load(name)
    assert len(opened_files) == len({*opened_files}) <= most
    del opened_files[:]
    c.load(name)
    assert opened_files == []


def test_a_changed_file_is_read_again(here):
    path = here / "toy.ini"
    for number in range(9):  # of the same size, within a tick of the file system's clock
        path.write_text(f"[train]\ngamma = 0.{number}\n")
        os.utime(path, (1e9, 1e9))  # as a copy that preserves times does
        assert c.load("squared", files=["toy.ini"]).train.gamma == number / 10


def test_files_about_a_library_are_in_a_folder_of_its_name():
    for path in (ROOT / "configs").rglob("*.ini"):
        for name in env_names(path):
            kind, colon, _ = name.partition(":")
            assert not colon or path.parent.name == kind, path


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
def test_an_environments_names_are_read_as_settings_are(here, text, names):
    """4.0 reads an indented line as part of a value, 5.0 as a setting."""
    (here / "toy.ini").write_text(text)
    assert env_names(here / "toy.ini") == names


INI = [
    "[train]\ngamma = 1\n  2\n\n# comment\n  3\nother : 4 = 5\n[env]\nkey := [1]\n",
    "[train]\n  gamma = 1\n    more\n  horizon=\n\n\nkey = 'x' # y ; z\n",
    "\n; first\n[a]]\nb=c\n[env] rest\n = 3\n",
]


@pytest.mark.parametrize("text", INI)
def test_files_of_4_are_read_as_configparser_reads_them(here, text):
    (here / "toy.ini").write_text(text.replace("[a]]", "[train]"))
    parser = configparser.ConfigParser(interpolation=None, default_section="")
    try:
        parser.read("toy.ini")
        expected = [(s, k, v) for s in parser.sections() for k, v in parser[s].items()]
    except configparser.ParsingError as error:
        with pytest.raises(UserError, match=rf"\(toy.ini:{error.errors[0][0]}\)"):
            read_ini(Path("toy.ini"))
        return
    assert [s[:3] for s in read_ini(Path("toy.ini"))] == expected


def test_the_version_of_a_folder(here):
    kelp = here / "kelp"
    kelp.mkdir()
    assert folder_version(find_environment("squared")) == "4.0"
    for text in (
        "typedef unsigned char obs_t;\nvoid puf_step(Env* env) {}\n",
        '#include "../kelp/kelp.h"\n#include <pufferenv.h>\n',
        "void puf_step (Env* env);",
    ):
        (kelp / "kelp.h").write_text(text)
        assert folder_version(kelp) == folder_version("kelp") == "5.0"
    (kelp / "kelp.cu").write_text("")
    assert folder_version(kelp) == "5.0"  # the header is there: for the CPU
    (kelp / "binding.c").write_text("")
    assert folder_version(kelp) == "4.0"
