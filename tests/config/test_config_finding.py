"""Which environment a word names beside PufferLib's repository; ``settings.txt`` has what in it."""

from puffer_mlx import config as c
from puffer_mlx.config.dialects import folder_version
from puffer_mlx.vec.native.make import find_environment


def test_from_elsewhere(here, monkeypatch, script, capsys):
    """A file that is named finds its folder; a bare name is ours."""
    for path in "ocean/breakout/binding.c", "config/breakout.ini", "away/x":
        (here / path).parent.mkdir(parents=True)
        (here / path).touch()
    assert script.main(["breakout"]) == 2  # of an empty binding.c nothing can be made
    assert capsys.readouterr().out.splitlines()[:2] == [
        "breakout: PufferLib 4.0's trainer (ocean/breakout is a 4.0 folder)",
        "breakout: sources in ocean/breakout, settings in config/breakout.ini",
    ]
    monkeypatch.chdir(here / "away")
    config = c.load("../config/breakout.ini")
    assert config.source == str(here / "ocean/breakout")
    assert config.notes[0].startswith(f"breakout: sources in {here}/ocean/breakout, settings in ")
    assert (
        c.load("breakout").source == "" and c.load("breakout").files[-1] == "configs/breakout.ini"
    )


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
