"""``export --to hub``: a folder with a card about the policy's score, and its upload."""

import json
import sys
from types import ModuleType

import pytest
from running import TINY, errors, files, only

from puffer_mlx.errors import UserError
from puffer_mlx.library import hub

FILES = {"README.md", "config.ini", "policy.safetensors", "scores.json"}


@pytest.fixture
def run(scripts, here, capsys):
    """Return a function that runs a script here; returns its exit code and error output."""

    def called(name: str, *words: object) -> tuple[int, str]:
        code = scripts(name).main([str(word) for word in words])
        return code, errors(capsys.readouterr().err)

    return called


@pytest.fixture
def trained(here, run):
    assert run("train", *TINY, "--eval-episodes", 0) == (0, "")
    return here


def exported(run, *words: object) -> tuple[int, str]:
    return run("export", "latest", "--to", "hub", "--out", "card", "--episodes", 20, *words)


def test_the_card_has_the_score_of_an_evaluation(trained, run):
    assert exported(run) == (0, "")
    assert files(trained / "card") == FILES
    text = (trained / "card" / "README.md").read_text()
    _, head, body = text.split("---\n", 2)
    (result,) = json.loads(head)["model-index"][0]["results"]
    written = (trained / "card" / "scores.json").read_text()
    record = json.loads(written)
    shown = hub.headline_score(record).text
    assert result["metrics"][0]["value"] == shown and f"**{shown}** over 20 whole" in body
    assert result["dataset"]["name"] == "squared" and "replay.gif" not in body
    assert "checkpoints" not in text + written, "a path of this machine"
    words = "config.ini", "policy.safetensors"
    assert "puffer-mlx evaluate {} {} ".format(*words) in body
    words = [trained / "card" / word for word in words]
    assert run("evaluate", *words, "--episodes", 20, "--json", "again.json") == (0, "")
    found = json.loads((trained / "again.json").read_text())
    assert found["episodes"] == record["episodes"]


def test_a_card_has_a_picture_or_is_not_made(trained, run, monkeypatch):
    pytest.importorskip("PIL")
    assert exported(run, "--gif") == (0, "")
    assert (trained / "card" / "replay.gif").read_bytes()[:3] == b"GIF"
    assert "![The agent plays](replay.gif)" in (trained / "card" / "README.md").read_text()
    monkeypatch.setattr(hub, "main_score_name", lambda summary: None)  # no episode ended
    code, said = run("export", "latest", "--to", "hub", "--out", "other", "--episodes", 20)
    assert code == 2 and "so there is no score" in said
    assert not (trained / "other").exists() and only(trained, "checkpoints/squared/*").exists()


def test_only_a_folder_that_the_command_made_is_replaced(trained, run):
    (trained / "results").mkdir()
    (trained / "card").symlink_to("results")
    assert exported(run) == (0, "")
    first = (trained / "results" / "scores.json").read_text()
    assert exported(run) == (0, "")
    assert (trained / "card").is_symlink() and files(trained / "results") == FILES
    assert (trained / "results" / "scores.json").read_text() == first
    (trained / "results" / "notes.txt").write_text("mine")
    code, said = exported(run)
    assert code == 2 and "notes.txt" in said
    with pytest.raises(UserError, match=r"notes\.txt is a file"):
        hub.refuse_other_files(trained / "results" / "notes.txt")
    assert files(trained / "results") == {*FILES, "notes.txt"}


# ---- Uploading -----------------------------------------------------------------------------------


@pytest.fixture
def server(monkeypatch):
    """Replace the part of huggingface_hub that the package uses, and record its calls."""

    class Refused(Exception):
        pass

    class Hub:
        calls: list[tuple] = []
        refuses = ""

        def create_repo(self, name, exist_ok):
            if self.refuses:
                raise Refused(f"{self.refuses}\nand more")
            Hub.calls.append(("create", name, exist_ok))

        def upload_folder(self, folder_path, repo_id):
            Hub.calls.append(("upload", files(folder_path), repo_id))

    package, errors_of = ModuleType("huggingface_hub"), ModuleType("huggingface_hub.errors")
    package.HfApi, package.get_token = Hub, lambda: "a token"  # pyright: ignore
    errors_of.HfHubHTTPError = Refused  # pyright: ignore
    monkeypatch.setitem(sys.modules, "huggingface_hub", package)
    monkeypatch.setitem(sys.modules, "huggingface_hub.errors", errors_of)
    return package


def test_uploads_use_the_users_login_and_say_why_they_fail(server, tmp_path, monkeypatch):
    (tmp_path / "README.md").write_text("a card")
    assert hub.push(tmp_path, "me/agent") == "https://huggingface.co/me/agent"
    calls = [("create", "me/agent", True), ("upload", {"README.md"}, "me/agent")]
    assert server.HfApi.calls == calls
    for spoil, said in (
        (
            lambda: monkeypatch.setattr(server.HfApi, "refuses", "403: not yours"),
            r"upload to me/agent failed: 403: not yours\n",
        ),
        (
            lambda: monkeypatch.setattr(server, "get_token", lambda: None),
            r"not logged in.*\n.*hf auth login",
        ),
        (
            lambda: monkeypatch.setitem(sys.modules, "huggingface_hub", None),
            r"not installed\n.*puffer-mlx\[hub\]",
        ),
    ):
        spoil()
        with pytest.raises(UserError, match=said):
            hub.push(tmp_path, "me/agent")
    assert server.HfApi.calls == calls
