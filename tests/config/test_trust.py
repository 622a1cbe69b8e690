"""Code that only a file names doesn't run without --allow-code; code that the user named does."""

import os
import re
import shutil
import sys
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from running import ROOT, TINY, cli, errors

import puffer_mlx
from puffer_mlx import checkpoint, config, vec
from puffer_mlx.checkpoint import SavedState, branches
from puffer_mlx.checkpoint.weight_files import save_safetensors
from puffer_mlx.config import trust
from puffer_mlx.config.finding import SHARED_FILES, env_names
from puffer_mlx.errors import UserError
from puffer_mlx.export.importing import read_any_policy_file
from puffer_mlx.policy.policy import configured_policy, make_policy
from puffer_mlx.spec import ActionSpec, EnvSpec
from puffer_mlx.system.files import lock_folder
from puffer_mlx.tracking.json_lines import LogFile

SPEC = EnvSpec("squared", 9, np.dtype(np.uint8), ActionSpec((5,)))
EVIL = 'open("ran", "w").close()\n'
NETWORK = "[torch]\nnetwork = evil:Net\n[base]\nenv_name = squared\n[env]\nsize = 3\n"
FACTORY = "[base]\nenv_name = evil:make\n"
SOURCE = "[env]\nsource = {here}/evil\n"
GYM = "[base]\nenv_name = gym:evil:Env-v0\n"
TRAIN, EVALUATE = "squared --resume {run}", "squared --device cpu --load-model-path {run}"
HUB = "{run} --to hub --episodes 1 --out card"
REFUSED = [  # a script, the text of a checkpoint or of a.ini, the words, the code that is named
    ("evaluate", NETWORK, EVALUATE, "evil:Net"),
    ("train", "[train]\nloss = evil:function\n", TRAIN, "evil:function"),
    ("evaluate", SOURCE, EVALUATE, "C sources that would be compiled and run: {here}/evil"),
    ("export", FACTORY, HUB, "evil:make"),
    ("evaluate", GYM, "a.ini w.safetensors --device cpu", "gym:evil:Env-v0"),
    ("import_", FACTORY, "w.safetensors a.ini", "evil:make"),
    ("train", SOURCE, "kite --device cpu", "{here}/evil"),  # the file is in the folder configs
]


@pytest.fixture(autouse=True)
def fresh(here, monkeypatch):
    """Change to an empty working directory, and forget modules imported from it afterwards."""
    monkeypatch.setenv("PUFFER_MLX_DATA", str(here / "data"))  # where older versions kept trust
    monkeypatch.setattr(sys, "path", [*sys.path])
    modules = set(sys.modules)
    device = mx.default_device()
    yield
    mx.set_default_device(device)
    for name in set(sys.modules) - modules:
        if name in ("evil", "mine") or name.startswith("mine."):
            del sys.modules[name]


@pytest.fixture
def evil(here):
    """Write an untrusted Python module and an untrusted C environment that must not run."""
    (here / "evil.py").write_text(EVIL)
    (here / "evil").mkdir()
    (here / "evil" / "binding.c").write_text('#error "compiled"\n')
    return here


def stranger(folder: Path, text: str, env: str = "squared") -> Path:
    """Save a checkpoint with added lines in its configuration, as a stranger might send one."""
    settings = config.load(env, [*TINY[1:], "--checkpoint-dir", str(folder / "checkpoints")])
    policy = make_policy(SPEC, settings.policy)
    run = checkpoint.run_folder(settings, "1")
    state = SavedState({"x": mx.zeros(1)}, {})
    weights = policy.init(mx.random.key(0))
    made = checkpoint.write_checkpoint(run, 64, settings, SPEC, policy, weights, state)
    path = made / checkpoint.CONFIG
    sections = path.read_text()
    for line in text.splitlines():
        if line.startswith("["):
            header = line
        else:
            key = line.partition(" ")[0]
            old = [own for own in sections.splitlines() if own.startswith(f"{key} =")]
            sections = sections.replace(old[0] + "\n", "", 1) if old else sections
            sections = sections.replace(header, f"{header}\n{line}", 1)
    path.write_text(sections)
    return made


def call(name: str, *argv: object) -> int:
    return cli(name).main([str(word) for word in argv])


def test_code_that_a_files_own_name_names_is_refused(evil, capsys):
    """No setting names it: a file without env_name is about the environment of its name."""
    (evil / "evil:make.ini").write_text("")
    assert call("train", "evil:make.ini", "--device", "cpu") == 2
    message = errors(capsys.readouterr().err)
    assert "error: evil:make.ini" in message and "evil:make, " in message
    assert "--allow-code" in message
    assert not (evil / "ran").exists()


@pytest.mark.parametrize(("script", "text", "line", "named"), REFUSED)
def test_code_that_a_file_names_is_refused(evil, capsys, script, text, line, named):
    policy = make_policy(SPEC, config.Policy(8, 1))
    save_safetensors(policy.init(mx.random.key(0)), Path("w.safetensors"), {})
    Path("configs").mkdir()
    text = text.format(here=evil)
    if "{run}" in line:
        made = stranger(Path("runs"), text)
        path = made / "config.ini"
    else:
        made = evil
        path = Path("configs/kite.ini" if "kite" in line else "a.ini")
        path.write_text(text)
    assert call(script, *line.format(run=made).split()) == 2
    lines = enumerate(path.read_text().splitlines(), 1)
    number = next(n for n, each in lines if "evil" in each.partition("=")[2])
    message = errors(capsys.readouterr().err)
    assert message.startswith("error: ") and "hint: it can do anything" in message, message
    where = f"{path}:{number} names"
    for part in (where, named.format(here=evil), str(evil / "evil"), "--allow-code"):
        assert part in message, message
    assert not Path("card").exists() and not Path("ran").exists()


def test_code_is_refused_only_where_it_would_run(evil, capsys):
    """A stranger's loss: where one trains. An environment: where one plays, also for a card."""
    made = stranger(evil, "[train]\nloss = evil:function\n")
    with pytest.raises(UserError, match=r"evil:function, of .*evil\.py"):
        puffer_mlx.Trainer.load(made)
    puffer_mlx.Policy.load(made)
    assert not Path("ran").exists()
    shutil.rmtree("checkpoints")
    made = stranger(evil, FACTORY)
    assert call("export", *HUB.format(run=made).split(), "--allow-code") == 2  # is no environment
    assert "--allow-code" not in capsys.readouterr().err
    assert Path("ran").exists()


def test_check_env_refuses_code_of_a_file(evil, capsys):
    Path("a.ini").write_text(FACTORY)
    assert call("check_env", "a.ini", "--device", "cpu", "--only", "loads") == 1
    said = " ".join(capsys.readouterr().out.split())
    assert "FAIL loads a.ini:2 names Python code" in said and "--allow-code" in said
    assert not Path("ran").exists()


def test_a_file_leads_only_to_sources_in_upstreams_layout(evil):
    """REPO/config/a.ini leads to REPO/ocean/NAME, whatever path the file writes for NAME."""
    for folder in ("repo/config", "repo/ocean"):
        Path(folder).mkdir(parents=True)
    Path("repo/binding.c").write_text("")
    for name in f"{evil}/evil", "../../evil", "..", "evil":
        if name == "evil":
            shutil.move("evil", "repo/ocean/evil")  # then that's what the person named
        Path("repo/config/a.ini").write_text(f"[base]\nenv_name = {name}\n")
        expected = str(evil / "repo/ocean/evil") if name == "evil" else ""
        assert config.load("repo/config/a.ini").source == expected


def test_a_runs_own_configuration_leads_to_no_sources(evil, capsys):
    made = stranger(Path("config").absolute(), "")
    shutil.move("evil", "ocean/squared")
    assert config.load(str(made / "config.ini")).source == str(evil / "ocean" / "squared")
    assert checkpoint.load(made).config.source == ""
    mine = config.parse_command_line(["catch"], run=made / "config.ini")[0]
    assert (mine.env_name, mine.source) == ("squared", "")


def test_texts_of_a_factorys_arguments_may_name_code(evil):
    pytest.importorskip("gymnasium")
    Path("a.ini").write_text("[base]\nenv_name = gymnasium:make\n[env]\nid = evil:Env-v0\n")
    typed = config.load("gymnasium:make", files=["a.ini"])
    with pytest.raises(UserError, match=r"a\.ini:4 names Python code .*: evil:Env-v0, of "):
        vec.make(typed, 1)
    given = config.load("gymnasium:make", ["--env.id", "evil:Env-v0", "--env.at=12:30"])
    trust.refuse_untrusted_code(given, "base", "env")
    assert not Path("ran").exists()


def test_allow_code_counts_for_one_command(evil):
    Path("a.ini").write_text(NETWORK)
    trust.refuse_untrusted_code(config.load("a.ini", ["--allow-code"]), "base", "env", "torch")
    trust.refuse_untrusted_code(config.load("a.ini", allow_code=True), "base", "env", "torch")
    with pytest.raises(UserError, match=r"a\.ini:2 names"):
        trust.refuse_untrusted_code(config.load("a.ini"), "base", "env", "torch")


def test_code_of_a_checkpoint_runs_with_permission(evil, capsys):
    made = stranger(evil, NETWORK)
    for allowed in True, frozenset({"evil:Net"}):
        with pytest.raises(UserError, match="evil has no Net"):
            checkpoint.load(made, allow_code=allowed)
    assert Path("ran").exists()
    assert call("train", "squared", "--resume", made, "--torch.network", "evil:Net") == 2
    assert "evil has no Net" in capsys.readouterr().err
    assert call("train", "squared", "--resume", made) == 2
    assert "if you trust it: --allow-code" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("gym:mine:Env-v0", "[base]\nenv_name = gym:mine:Env-v0\n"),
        ("./folder", "[env]\nsource = folder\n"),
    ],
)
def test_typed_code_is_allowed_and_the_same_code_in_a_file_is_refused(here, word, text):
    Path("folder").mkdir()
    Path("folder/binding.c").write_text("")
    Path("mine.py").write_text("")
    Path("a.ini").write_text(text)
    trust.refuse_untrusted_code(config.load(word), "base", "env", "torch")
    with pytest.raises(UserError, match=r"a\.ini:2 names"):
        trust.refuse_untrusted_code(config.load("a.ini"), "base", "env", "torch")


def test_code_that_a_program_names_is_allowed(here):
    Path("mine.py").write_text("from mlx.nn import Linear as Net\n")
    Path("a.ini").write_text("[base]\nenv_name = mine:make\n[torch]\nencoder = mine:Net\n")
    changed = config.load("a.ini")
    changed.torch.encoder, changed.env_name = "mine:Other", "mine:other"
    trust.refuse_untrusted_code(changed, "base", "env", "torch")
    make_policy(SPEC, config.Policy(), config.Torch(encoder="mine:Net"))
    with pytest.raises(UserError, match="mine:Net"):
        configured_policy(SPEC, config.load("a.ini"))


def test_code_is_located_without_an_import(here):
    for folder in ("mine", "mine/deep"):
        Path(folder).mkdir()
        Path(folder, "__init__.py").write_text(EVIL)
    Path("mine/deep/envs.py").write_text(EVIL)
    Path("a.ini").write_text("[base]\nenv_name = mine.deep.envs:make\n")
    with pytest.raises(UserError, match=r"mine\.deep\.envs:make, of .*/mine/__init__\.py"):
        trust.refuse_untrusted_code(config.load("a.ini"), "base")
    assert not Path("ran").exists() and "mine" not in sys.modules


def test_shipped_environments_need_no_permission(here):
    for path in (ROOT / "configs").rglob("*.ini"):
        if "*" in env_names(path)[0] or path.name in SHARED_FILES:
            continue  # of several environments
        made = config.load(str(path))
        trust.refuse_untrusted_code(made, "base", "env", "torch")
    Path("a.ini").write_text(f"[env]\nsource = {ROOT / 'envs' / 'squared'}\n")
    assert vec.source_folder(config.load("a.ini")) == ROOT / "envs" / "squared"


# ---- other requests of a stranger's file ---------------------------------------------------------


def test_a_checkpoint_alone_sends_the_log_nowhere(evil, tmp_path_factory, capsys):
    away = tmp_path_factory.mktemp("away")
    made = stranger(evil, f"[base]\nlog_dir = {away}\n")
    (away / "squared").mkdir()
    log = away / "squared" / "1.jsonl"
    log.write_text("mine\n")
    assert call("train", "squared", "--resume", made) == 2
    message = capsys.readouterr().err
    assert f"would write the log to {away}" in message and f"--log-dir {away}" in message
    assert log.read_text() == "mine\n"
    for words in ["--log-dir", "/elsewhere"], [], ["--log-dir", str(away)]:
        trust.refuse_untrusted_log_dir(config.load("squared", words))
    trust.refuse_untrusted_log_dir(config.load(str(made / "config.ini"), ["--allow-code"]))


def test_logs_and_locks_are_not_written_through_links(here):
    Path("mine").write_text("mine\n")
    Path("log.jsonl").symlink_to("mine")
    with pytest.raises(UserError, match=r"log\.jsonl is a link to .*/mine"):
        LogFile(Path("log.jsonl"), 0)
    Path("run").mkdir()
    Path("run/.lock").symlink_to("../mine")
    with lock_folder(Path("run"), "the run"):
        assert not Path("run/.lock").is_symlink()
    assert Path("mine").read_text() == "mine\n"


def test_a_file_alone_writes_no_timeline(here, capsys):
    Path("mine.json").write_text("mine\n")
    made = stranger(here, "[base]\nprofile = mine.json\n")
    for words in (["squared", "--resume", made], [made / "config.ini"]):
        assert call("train", *words) == 2
        assert "--profile mine.json" in capsys.readouterr().err
    assert Path("mine.json").read_text() == "mine\n"


def test_a_runs_links_stay_in_it(here):
    """``best`` may be a link, a checkpoint may not."""
    made = stranger(here, "")
    settings = config.load("squared")
    made.with_name("0000000000000128").symlink_to(made)
    assert [one.folder for one in branches.list_checkpoints(made.parent)] == [made]
    for name, target in (("best", made.name), ("other", made)):
        made.with_name(name).symlink_to(target)
        assert checkpoint.find_checkpoint(str(made.with_name(name)), settings) == made
    Path("away").symlink_to(made)
    with pytest.raises(UserError, match=f"away is a link to {made}, outside its folder\n.*{made}"):
        checkpoint.find_checkpoint("away", settings)
    os.chdir(made)
    assert checkpoint.find_checkpoint(".", settings) == made


def test_control_characters_of_a_file_do_not_reach_the_terminal(here, capsys):
    Path("evil.py").write_text(EVIL)
    Path("a.ini").write_text("[base]\nenv_name = evil:\x1b[2J\x9b1A\u202e\n")
    assert call("train", "a.ini") == 2
    message = capsys.readouterr().err
    assert "control character" in message and "a.ini:2" in message
    said = str(UserError("a\x1b[2J\u202e\udc80ä", "b\tc\n  d"))
    assert said == "a\\x1b[2J\\u202e\\udc80ä\n  hint: b\tc\n  d"


def test_an_unsafe_torch_reads_no_file(here, monkeypatch):
    torch = pytest.importorskip("torch")
    torch.save({"encoder.weight": torch.zeros(2)}, "a.pt")
    monkeypatch.setattr(torch, "__version__", "2.5.1+cpu")
    with pytest.raises(UserError, match=r"PyTorch 2\.5\.1\+cpu may run code"):
        read_any_policy_file(Path("a.pt"))


# ---- the rule ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "places"),
    [
        (
            r"load_object\(",  # vec/from_config calls vec/zoo; config/loading: what was typed
            "system/import_string vec/from_config policy/custom ppo/custom vec/zoo config/loading",
        ),
        (r"make_policy\(", "policy/policy check/gpu/kernels check/trajectories"),
        (
            r"config\.source\b",  # cli/ prints it, config/notes reads a comment there
            "cli/runs cli/train_output config/notes config/resolving config/trust"
            " config/validation config/writing vec/from_config",
        ),
    ],
)
def test_code_of_configurations_is_imported_in_few_places(word, places):
    """``trust.refuse_untrusted_code`` guards each of them."""
    package = ROOT / "puffer_mlx"
    paths = (path for path in package.rglob("*.py") if re.search(word, path.read_text()))
    names = {path.relative_to(package).with_suffix("").as_posix() for path in paths}
    assert names == {*places.split()}
