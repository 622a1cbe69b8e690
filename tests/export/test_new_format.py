"""A new format is one file; both scripts offer it."""

import sys

import mlx.core as mx
import numpy as np
import pytest
from oracles import same
from running import errors

from puffer_mlx import checkpoint
from puffer_mlx.checkpoint.weight_files import load_weights
from puffer_mlx.config import Base, Config, Policy, Torch
from puffer_mlx.errors import UserError
from puffer_mlx.export import ExportFormat, export, formats, importing
from puffer_mlx.policy.policy import make_policy
from puffer_mlx.spec import ActionSpec, EnvSpec

SPEC = EnvSpec("cartpole", 4, np.dtype(np.float32), ActionSpec((2,)))
NPZ = '''
"""Weights under our names in an archive of NumPy's."""

import json
from dataclasses import dataclass

import numpy as np

from puffer_mlx.checkpoint import normalization
from puffer_mlx.errors import UserError
from puffer_mlx.export.file_format import FileFormat, Option
from puffer_mlx.export.metadata import policy_file_from_tensors, policy_metadata
from puffer_mlx.trees import named_arrays


@dataclass(frozen=True)
class Npz(FileFormat):
    bits: int = 32

    name = "npz"
    suffixes = (".npz",)
    layouts = ("native", "torch")
    tolerance = 1e-6
    purpose = "NumPy alone"
    supported = "what remembers something"
    content = "an archive of NumPy's"
    first_bytes = (b"PK\\x03\\x04",)  # as files of torch.save begin
    options = (
        Option("--npz-bits", "bits", "of a number", "of a number here", {"64": 64, "16": 16}),
    )

    def unsupported_reason(self, policy):
        if not policy.initial_state(1):
            return f"the network {type(policy.network).__name__} remembers nothing"

    def write(self, contents, path):
        weights = {name: np.asarray(w) for name, w in named_arrays(contents.weights)}
        weights |= normalization.statistics_tensors(contents.statistics)
        numbers = {name: w.astype(f"f{self.bits // 8}") for name, w in weights.items()}
        about = policy_metadata(contents.checkpoint, contents.policy)
        np.savez(path, __about__=json.dumps(about), **numbers)

    def read(self, path):
        try:
            with np.load(path) as file:
                tensors = dict(file)
            about = json.loads(str(tensors.pop("__about__")))
        except Exception as error:
            raise UserError(f"{path} can't be read as npz: {error}", "it is damaged") from None
        return policy_file_from_tensors(path, self, tensors, about)


FORMAT = Npz()
'''


@pytest.fixture(autouse=True)
def planted(tmp_path_factory, monkeypatch):
    """Add a file format from a folder outside the package, as if in ``export/formats``."""
    folder = tmp_path_factory.mktemp("formats")
    (folder / "npz.py").write_text(NPZ)
    monkeypatch.setattr(formats, "__path__", [*formats.__path__, str(folder)])
    yield
    sys.modules.pop("puffer_mlx.export.formats.npz", None)


def make(folder, network="MinGRU", dialect="native"):
    """Write a checkpoint of a policy for cartpole, and return it."""
    config = Config(
        "cartpole",
        base=Base(checkpoint_dir=str(folder / "checkpoints")),
        policy=Policy(16, 1, dialect),
        torch=Torch(network=network),
    )
    policy = make_policy(SPEC, config.policy, config.torch)
    weights = policy.init(mx.random.key(3))
    run = checkpoint.prepare_run_folder(config, "17")
    made = checkpoint.write_checkpoint(run, 640, config, SPEC, policy, weights)
    return checkpoint.load(made)


def test_the_scripts_export_and_import_a_new_format(here, scripts, capsys):
    made = make(here, "LSTM", "torch")
    assert scripts("export").main(["latest", "--to", "npz", "--npz-bits", "64"]) == 0
    printed = capsys.readouterr().out
    for line in (
        f"file                cartpole_{640:016d}.npz",
        "format              npz, weight layout torch",
        "largest difference  none (allowed: 1e-06)",
    ):
        assert line in printed
    with np.load(f"cartpole_{640:016d}.npz") as file:
        assert file["encoder.weight"].dtype == np.float64
    assert scripts("import").main([f"cartpole_{640:016d}.npz", "cartpole", "--out", "run"]) == 0
    assert f"file                cartpole_{640:016d}.npz (npz)" in capsys.readouterr().out
    again = checkpoint.load(here / "run" / f"{640:016d}")
    assert same(again.weights, made.weights) and again.step == 640
    assert (again.config.policy.dialect, again.config.torch.network) == ("torch", "LSTM")


def test_content_then_name_select_the_format(tmp_path):
    """npz and torch files both begin like a zip archive."""
    torch = pytest.importorskip("torch")
    made = make(tmp_path, dialect="torch")
    export(made, ExportFormat("npz"), tmp_path / "w.npz", None)
    export(made, ExportFormat("torch"), tmp_path / "w.pt", None)
    (tmp_path / "w.bin").write_bytes((tmp_path / "w.pt").read_bytes())
    for name, kind in (("w.npz", "npz"), ("w.pt", "torch"), ("w.bin", "torch")):
        assert importing.read_any_policy_file(tmp_path / name).kind == kind
    torch.save({}, tmp_path / "other.npz")
    with pytest.raises(UserError, match=r"other\.npz can't be read as npz"):
        importing.read_any_policy_file(tmp_path / "other.npz")
    (tmp_path / "w.txt").write_text("hello")
    message = r"neither an archive of NumPy's nor a file of torch\.save nor named"
    with pytest.raises(UserError, match=message) as caught:
        importing.read_any_policy_file(tmp_path / "w.txt")
    assert caught.value.hint


def test_a_new_formats_refusals_and_tolerance_are_used(tmp_path):
    made, path = make(tmp_path, "MLP"), tmp_path / "w.npz"
    with pytest.raises(UserError, match="the network MLP remembers nothing") as caught:
        export(made, ExportFormat("npz"), path, None)
    assert caught.value.hint == "this policy can be exported with --to onnx or safetensors"
    with pytest.raises(UserError, match="was not written"):
        export(make(tmp_path), ExportFormat("npz", bits=16), path, None)
    assert not path.exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["export", "latest", "--to", "bin", "--npz-bits", "64"], "has no effect without --to npz"),
        (
            ["import", "w.safetensors", "cartpole", "--bin-build", "float"],
            "--bin-build has no effect without a file of kind bin",
        ),
    ],
)
def test_an_option_of_another_format_is_refused(here, scripts, capsys, words, message):
    export(make(here), ExportFormat("safetensors"), here / "w.safetensors", None)
    before = sorted(here.glob("checkpoints/*/*"))
    assert scripts(words[0]).main(words[1:]) == 2
    error = errors(capsys.readouterr().err)
    assert error.startswith("error: ") and message in error and "hint: " in error
    assert sorted(here.glob("checkpoints/*/*")) == before


def test_unknown_formats_and_options_are_refused():
    with pytest.raises(UserError, match="there is no format 'zip'") as caught:
        ExportFormat("zip")
    assert caught.value.hint == "one of bin, npz, onnx, safetensors, torch"
    with pytest.raises(UserError, match="the format npz has no option lossy") as caught:
        ExportFormat("npz", lossy=True)
    assert caught.value.hint == "it has bits"


def test_loading_a_new_format_as_weights_suggests_an_import(tmp_path):
    export(make(tmp_path), ExportFormat("npz"), tmp_path / "w.npz", None)
    with pytest.raises(UserError, match=r"neither a \.safetensors nor a \.bin file") as caught:
        load_weights(tmp_path / "w.npz", {})
    assert caught.value.hint.startswith("import it: puffer-mlx import ")
