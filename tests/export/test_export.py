"""Exported files contain the same policy, or the export is refused; scripts/export.py."""

import json
import sys
from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_map
from oracles import assert_close, named, same

from puffer_mlx import checkpoint
from puffer_mlx.checkpoint import SavedState, flat_files, weight_files
from puffer_mlx.config import Base, Config, Policy, Torch
from puffer_mlx.errors import UserError
from puffer_mlx.export import exporting, formats, importing, networks, parity
from puffer_mlx.export.exporting import ExportFormat
from puffer_mlx.export.weight_layouts import layout_of, to_layout, to_torch
from puffer_mlx.policy.policy import make_policy
from puffer_mlx.spec import ActionSpec, EnvSpec

SUFFIXES = {name: file.suffixes for name, file in formats.all_formats().items()}
DISCRETE, MULTI, CONTINUOUS = (3,), (3, 2), (1, 1, 1)

# dialect, network, layers, actions, encoder, other settings
SEPARATE = {"separate_value": True}
POLICIES = {
    "native": ("native", "MinGRU", 2, DISCRETE, "DefaultEncoder"),
    "native-continuous": ("native", "MinGRU", 1, CONTINUOUS, "DefaultEncoder"),
    "native-lstm": ("native", "LSTM", 2, MULTI, "DefaultEncoder"),
    "native-impala": ("native", "MinGRU", 1, DISCRETE, "ImpalaEncoder"),
    "torch": ("torch", "MinGRU", 2, MULTI, "DefaultEncoder"),
    "torch-lstm": ("torch", "LSTM", 2, DISCRETE, "DefaultEncoder"),
    "torch-gru": ("torch", "GRU", 2, CONTINUOUS, "DefaultEncoder"),
    "torch-mlp": ("torch", "MLP", 2, DISCRETE, "DefaultEncoder"),
    "torch-nature": ("torch", "LSTM", 1, DISCRETE, "NatureEncoder"),
    "torch-impala": ("torch", "GRU", 1, MULTI, "ImpalaEncoder"),
    "puffer3": ("puffer3", "LSTM", 1, DISCRETE, "DefaultEncoder"),
    "puffer3-continuous": ("puffer3", "LSTM", 1, CONTINUOUS, "DefaultEncoder"),
    "puffer3-gru": ("puffer3", "GRU", 1, DISCRETE, "DefaultEncoder"),
    "sb3": ("sb3", "MLP", 2, CONTINUOUS, "DefaultEncoder"),
    "sb3-separate": ("sb3", "MLP", 1, MULTI, "DefaultEncoder", SEPARATE | {"activation": "relu"}),
    "sb3-lstm": ("sb3", "LSTM", 2, DISCRETE, "DefaultEncoder", SEPARATE),
    "native-separate": ("native", "MinGRU", 2, DISCRETE, "DefaultEncoder", SEPARATE),
}
REFUSED = (  # format, policies, and the part that the message names
    ("bin", "native-lstm", "LSTM: the flat file holds the network MinGRU"),
    ("bin", "native-impala", "Impala: the flat file holds a linear encoder"),
    ("bin", "native-continuous", "lacks the last 5 of"),
    ("bin", "native-separate", "a separate value network .policy.separate_value.: the"),
    ("bin", "puffer3 puffer3-continuous puffer3-gru", "AffineGelu can't be converted to Linear"),
    ("bin", "torch torch-lstm torch-gru torch-mlp", r"encoder\.bias is not 0"),
    ("bin", "torch-nature torch-impala", r"decoder\.actions\.bias is not 0"),
    ("bin", "sb3 sb3-separate sb3-lstm", "from weight layout sb3 to native"),
    ("torch", "puffer3-gru", "the network GRU, layers 1: PufferLib 3.0's wrapper"),
    ("torch", "sb3-lstm", "LSTM: Stable-Baselines3's policy only has linear layers"),
    ("torch", "native-separate", "policy.separate_value: PufferLib has no"),
)
IMPOSSIBLE = {(name, kind): words for kind, names, words in REFUSED for name in names.split()}


KEYS = {  # some of upstream's torch classes
    "torch-mlp": ["network.net.0.weight", "network.net.0.bias", "network.net.2.weight"],
    "torch-gru": ["network.gru.weight_ih_l1", "network.norm.weight", "decoder.decoder_mean.weight"],
    "torch-lstm": ["network.lstm.bias_hh_l0", "network.cell.0.weight_ih"],
    "torch-nature": ["encoder.network.4.bias", "encoder.network.7.weight"],
    "torch-impala": ["encoder.network.2.res_block1.conv0.weight", "encoder.network.5.bias"],
    "puffer3-continuous": ["policy.decoder_logstd", "policy.decoder_mean.bias"],
}


def others_of(policy, kind):
    """Return the settings in an exported file that PufferLib lacks, for a policy and format.

    SB3's keys don't contain the activation.
    """
    others = {"policy.separate_value": "True"} if policy.separate_value else {}
    own = "tanh" if policy.activation == "auto" else policy.activation
    is_stored = policy.dialect == "sb3" and kind != "torch"
    return {**others, "policy.activation": own} if is_stored else others


def spec_of(sizes, encoder):
    shape = {"NatureEncoder": (36, 40, 2), "ImpalaEncoder": (9, 7, 3)}.get(encoder, ())
    D = int(np.prod(shape)) if shape else 13
    dtype = np.dtype(np.uint8 if shape else np.float32)
    return EnvSpec("x", D, dtype, ActionSpec(sizes), 0, shape)


def make(name, folder, run="17", step=1234, spec=None, encoder="", reset=False, **more):
    """Write a checkpoint of one of POLICIES with random weights, and return it."""
    dialect, network, layers, sizes, own, *others = POLICIES[name]
    config = Config(
        "x",
        base=Base(checkpoint_dir=str(folder / "checkpoints")),
        policy=Policy(16, layers, dialect, reset, **(others[0] if others else {})),
        torch=Torch(network=network, encoder=encoder or own),
    )
    config.vec.normalize_observations = "statistics" in more
    spec = spec or spec_of(sizes, own)
    policy = make_policy(spec, config.policy, config.torch)
    rng = np.random.default_rng(len(name))
    weights = tree_map(
        lambda w: w + 0.1 * mx.array(rng.normal(size=w.shape).astype(np.float32)),
        policy.init(mx.random.key(0)),
    )
    made = checkpoint.write_checkpoint(
        checkpoint.prepare_run_folder(config, run), step, config, spec, policy, weights, **more
    )
    return checkpoint.load(made, allow_code=bool(encoder))


def files(folder):
    return sorted(path.name for path in folder.iterdir() if path.is_file())


def suffix(kind):
    return SUFFIXES[kind][0]


BYTES = EnvSpec("x", 400, np.dtype(np.uint8), ActionSpec((5,)))


def statistics():
    """Return normalization statistics of observations on odd scales, and of rewards."""
    rng = np.random.default_rng(1)
    return {
        "observations.count": np.array(4096.0),
        "observations.mean": 1000 * rng.normal(size=13),
        "observations.variance": 10.0 ** rng.uniform(-6, 6, 13),
        "return.count": np.array(4096.0),
        "return.mean": np.array([3.0]),
        "return.variance": np.array([7.0]),
    }


# ---- there and back ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", POLICIES)
def test_each_format_holds_the_same_weights_or_names_the_part_that_it_cannot(tmp_path, name):
    made = make(name, tmp_path)
    if name in KEYS:
        assert set(KEYS[name]) <= set(to_torch(made.policy, made.weights))
    for kind in SUFFIXES:
        path = tmp_path / kind / f"w{suffix(kind)}"
        if (name, kind) in IMPOSSIBLE:
            with pytest.raises(UserError, match=IMPOSSIBLE[name, kind]) as caught:
                exporting.export(made, ExportFormat(kind), path, None)
            assert caught.value.hint and not path.parent.exists()
        else:
            there_and_back(made, kind, path)


def there_and_back(made, kind, path):
    report = exporting.export(made, ExportFormat(kind), path, None)
    assert files(path.parent) == [path.name] and report.path == path
    assert report.tolerance == formats.all_formats()[kind].tolerance <= 1e-5
    assert 0 <= report.difference <= report.tolerance
    expected, weights = to_layout(made.policy, made.weights, report.layout)
    assert report.parameters == sum(w.size for _, w in named(weights))
    assert report.tensors == len(named(weights))

    found = importing.read_any_policy_file(path)
    assert found.kind == kind
    config = replace(made.config, policy=replace(made.config.policy))
    if kind != "bin":  # a flat file has no settings
        settings = {key: found.settings[key] for key in found.settings if "reset" not in key}
        assert settings == {
            "policy.dialect": report.layout,
            "policy.hidden_size": "16",
            "policy.num_layers": str(config.policy.num_layers),
            "torch.network": config.torch.network,
            "torch.encoder": config.torch.encoder,
            **others_of(config.policy, kind),
        }
    if kind in ("onnx", "safetensors"):
        about = {"env": "x", "step": "1234", "actions": json.dumps(made.spec.action.sizes)}
        assert about.items() <= found.metadata.items()
    config.policy.dialect = report.layout
    policy, loaded = importing.convert_weights(found, made.spec, config)
    assert policy == expected and same(loaded, weights)
    difference = importing.compare_with_file(found, policy, loaded, made.spec)
    assert (difference is None) == (kind in ("bin", "safetensors"))
    assert difference is None or difference[0] <= 1e-5

    if layout_of(made.policy) == "native":  # and back to the dialect it came from
        config.policy.dialect = "native"
        policy, loaded = importing.convert_weights(found, made.spec, config)
        assert policy == made.policy and same(loaded, made.weights)


# ---- what is compared ----------------------------------------------------------------------------


def one_number(contents):
    """Change one number of the weights by 1e-3, to simulate a fault of a file's writer."""
    weights = tree_map(lambda w: w + 0, contents.weights)
    weights["network"][0]["weight"][3, 3] += 1e-3
    return contents._replace(weights=weights)


def swapped_rows(contents):
    weights = tree_map(lambda w: w + 0, contents.weights)
    weights["encoder"]["weight"][mx.array([3, 4])] = weights["encoder"]["weight"][mx.array([4, 3])]
    return contents._replace(weights=weights)


def wrong_statistics(part):
    def wrong(contents):
        name = f"observations.{part}"
        worse = {**contents.statistics, name: 1.01 * contents.statistics[name]}
        return contents._replace(checkpoint=contents.checkpoint._replace(statistics=worse))

    return wrong


@pytest.mark.parametrize(
    ("policy", "kind", "wrong"),
    [
        ({}, "bin", one_number),
        ({"spec": BYTES}, "torch", swapped_rows),
        ({"statistics": statistics()}, "torch", wrong_statistics("mean")),
        ({"statistics": statistics()}, "onnx", wrong_statistics("variance")),
    ],
)
def test_a_file_with_other_outputs_is_not_published(tmp_path, monkeypatch, policy, kind, wrong):
    made = make("native", tmp_path, **policy)
    path = tmp_path / f"w{suffix(kind)}"
    path.write_text("an earlier file")
    with monkeypatch.context() as patch:
        write_instead(patch, kind, wrong)
        with pytest.raises(UserError, match="was not written"):
            exporting.export(made, ExportFormat(kind), path, None)
    assert files(tmp_path) == [path.name] and path.read_text() == "an earlier file"
    exporting.export(made, ExportFormat(kind), path, None)
    assert path.read_bytes() != b"an earlier file"


def write_instead(patch, kind, change):
    """Let an export format write changed contents, to simulate a fault."""
    file = type(formats.all_formats()[kind])
    write = file.write
    patch.setattr(file, "write", lambda self, contents, to: write(self, change(contents), to))


def test_weights_that_are_not_finite_are_not_exported(tmp_path):
    made = make("native", tmp_path)
    made.weights["network"][0]["weight"][3, 3] = mx.nan
    with pytest.raises(UserError):
        exporting.export(made, ExportFormat("torch"), tmp_path / "w.pt", None)
    assert files(tmp_path) == []


def test_the_largest_relative_difference_is_reported_and_nan_is_the_worst():
    one = {"a": np.array([1.0, -4.0]), "b": np.array([[0.1, 0.2]])}
    two = {"a": np.array([1.0, -4.2]), "b": np.array([[0.1, 0.23]])}
    difference, worst = parity.largest_difference(one, two)  # .2 of 4; .03 of 1
    assert worst == "a" and abs(difference - 0.05) < 1e-12
    assert parity.largest_difference(one, one)[0] == 0
    difference, worst = parity.largest_difference(one, {**one, "b": np.array([[0.1, np.nan]])})
    assert worst == "b" and np.isnan(difference)


def test_a_lossy_flat_file_reports_its_loss_and_a_whole_one_has_none(tmp_path):
    made, path = make("native-continuous", tmp_path), tmp_path / "w.bin"
    report = exporting.export(made, ExportFormat("bin", lossy=True), path, None)
    assert report.difference > 1e-4 and report.tolerance == np.inf
    assert any("for missing values" in note for note in report.notes)
    report = exporting.export(made, ExportFormat("bin", whole=True, lossy=True), path, None)
    assert report.difference == 0 == report.tolerance and not report.notes
    # 3 dimensions, float build: 16 * 13, 4 * 16, 3 and 1 empty, 48 * 16
    report = exporting.export(
        made, ExportFormat("bin", alignment=flat_files.FLOAT, whole=True), path, None
    )
    assert path.stat().st_size == 4 * (208 + 64 + 4 + 768) and report.difference == 0


ZERO = "trained with policy.reset_on_terminal: set the state to 0 where an episode ends"


@pytest.mark.parametrize(
    ("name", "kind", "reset", "note"),
    [
        ("torch-mlp", "onnx", False, "masks"),
        ("torch-gru", "torch", False, "GRU of several layers"),
        ("native", "bin", True, f"{ZERO}; PufferLib 5.0 does this, 4.0 doesn't"),
    ],
)
def test_notes_say_what_users_of_a_file_must_do(tmp_path, name, kind, reset, note):
    spec = EnvSpec("x", 13, np.dtype(np.uint8), ActionSpec((3,)), 3) if note == "masks" else None
    made = make(name, tmp_path, spec=spec, reset=reset)
    notes = exporting.export(made, ExportFormat(kind), tmp_path / f"w{suffix(kind)}", None).notes
    assert any(note in each for each in notes)


# ---- observations of bytes -----------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["torch", "onnx"])
def test_observations_of_bytes_get_a_wider_tolerance(tmp_path, kind):
    """Both sides differ from float64 by more than 1e-5; neither is wrong."""
    made, path = make("native", tmp_path, spec=BYTES), tmp_path / f"w{suffix(kind)}"
    report = exporting.export(made, ExportFormat(kind), path, None)
    assert 1e-5 < report.difference <= report.tolerance < 5e-3
    found = importing.read_any_policy_file(path)
    made.config.policy.dialect = report.layout
    policy, weights = importing.convert_weights(found, made.spec, made.config)
    again = importing.compare_with_file(found, policy, weights, made.spec)
    assert again is not None and again.matches


# ---- normalised observations ---------------------------------------------------------------------


def environments_own(memory, n=7):
    """Return random observations for given statistics, some of them far from the mean."""
    z = 5 * np.random.default_rng(2).normal(size=(n, len(memory["observations.mean"])))
    assert (abs(z) > 10).any()
    raw = memory["observations.mean"] + np.sqrt(memory["observations.variance"]) * z
    return raw.astype(np.float32)


def test_an_exported_file_normalises_raw_observations_by_the_definition(tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    made, path = make("torch-lstm", tmp_path, statistics=statistics()), tmp_path / "w.onnx"
    report = exporting.export(made, ExportFormat("onnx"), path, None)
    assert report.difference <= 1e-5 and any(
        "the file normalizes observations" in note for note in report.notes
    )
    raw = environments_own(statistics())
    states = {state: np.zeros((2, len(raw), 16), np.float32) for state in "hc"}
    session = onnxruntime.InferenceSession(path)
    found = session.run(["logits", "value"], {**states, "observation": raw})

    memory = {name: np.float32(w).astype(np.float64) for name, w in statistics().items()}
    deviation = np.sqrt(memory["observations.variance"] + 1e-8)
    seen = np.clip((raw - memory["observations.mean"]) / deviation, -10, 10).astype(np.float32)
    state = made.policy.initial_state(len(raw))
    logits, values, _ = made.policy.step(made.weights, mx.array(seen), state)
    assert_close(found[0], np.array(logits).T)
    assert_close(found[1], values)


@pytest.mark.parametrize(("name", "kind"), [("native", "torch"), ("torch-lstm", "safetensors")])
def test_statistics_survive_an_export_and_an_import(tmp_path, name, kind):
    made, path = make(name, tmp_path, statistics=statistics()), tmp_path / f"w{suffix(kind)}"
    exporting.export(made, ExportFormat(kind), path, None)
    assert files(tmp_path) == [path.name]
    found = importing.read_any_policy_file(path)
    assert found.settings["vec.normalize_observations"] == "True"
    part = "" if kind == "safetensors" else "observations."  # rewards are for training on
    expected = {name: w for name, w in statistics().items() if name.startswith(part)}
    assert set(found.statistics) == set(expected)
    for key, w in expected.items():
        np.testing.assert_array_equal(found.statistics[key], np.float32(w))
    made.config.policy.dialect = found.settings["policy.dialect"]
    policy, weights = importing.convert_weights(found, made.spec, made.config)
    difference = importing.compare_with_file(found, policy, weights, made.spec)
    assert difference is None or difference[0] <= 1e-5
    other = EnvSpec("y", 12, made.spec.observation_dtype, made.spec.action)
    found.metadata = {}
    with pytest.raises(UserError, match="of 13 numbers, but those of y have 12"):
        importing.convert_weights(found, other, made.config)


def test_a_flat_file_refuses_statistics_unless_lossy(tmp_path):
    made, path = make("native", tmp_path, statistics=statistics()), tmp_path / "w.bin"
    with pytest.raises(
        UserError, match="can't hold this policy's normalization statistics"
    ) as caught:
        exporting.export(made, ExportFormat("bin"), path, None)
    assert "--lossy" in caught.value.hint and files(tmp_path) == []
    report = exporting.export(made, ExportFormat("bin", lossy=True), path, None)
    assert report.tolerance == np.inf and report.difference > 0.01
    assert any("needs normalized observations" in note for note in report.notes)
    assert same(flat_files.read_bin(path, made.weights), made.weights)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("observations.mean", np.zeros(12)),
        ("observations.variance", np.full(13, -1.0)),
        ("observations.variance", None),
    ],
)
def test_damaged_statistics_are_refused(tmp_path, name, value):
    made, path = make("native", tmp_path), tmp_path / "w.safetensors"
    memory = {key: w for key, w in (statistics() | {name: value}).items() if w is not None}
    weight_files.save_safetensors(made.weights, path, statistics=memory)
    with pytest.raises(UserError, match=r"statistics observations.* are missing or") as caught:
        importing.read_any_policy_file(path)
    assert caught.value.hint
    with pytest.raises(UserError, match="are missing or damaged"):
        weight_files.load_weights(path, made.weights)


# ---- what is refused -----------------------------------------------------------------------------


def test_an_export_to_an_unsuitable_path_is_refused(tmp_path):
    made = make("native", tmp_path)
    (tmp_path / "file").write_text("not a folder")
    for path, message in (
        (tmp_path / "w.txt", r"w\.txt: the name of a torch file ends with"),
        (made.folder / "weights.pt", "is a checkpoint, and can't contain other files"),
        (tmp_path / "file" / "w.pt", "can't write"),
    ):
        with pytest.raises(UserError, match=message):
            exporting.export(made, ExportFormat("torch"), path, None)


def test_a_network_without_a_file_for_export_is_exported_as_safetensors(tmp_path, monkeypatch):
    monkeypatch.setattr(networks, "network_exports", dict)
    made = make("torch-mlp", tmp_path)
    with pytest.raises(UserError) as caught:
        exporting.export(made, ExportFormat("onnx"), tmp_path / "w.onnx", None)
    assert caught.value.message == "the network MLP has no ONNX graph in puffer_mlx/export/networks"
    assert caught.value.hint == "this policy can be exported with --to safetensors"
    report = exporting.export(made, ExportFormat("safetensors"), tmp_path / "w.safetensors", None)
    assert report.difference == 0


@pytest.mark.parametrize(
    ("name", "kind", "dialect", "message"),
    [
        ("native", "bin", "torch", "bin files can't have the weight layout torch, only native"),
        (
            "native",
            "torch",
            "native",
            "torch files can't have the weight layout native, only torch or puffer3",
        ),
        (
            "torch-impala",
            "torch",
            "puffer3",
            "the encoder Impala: PufferLib 3.0 only has AffineGelu",
        ),
    ],
)
def test_an_impossible_dialect_is_refused(tmp_path, name, kind, dialect, message):
    path = tmp_path / f"w{suffix(kind)}"
    with pytest.raises(UserError, match=message):
        exporting.export(make(name, tmp_path), ExportFormat(kind, dialect), path, None)


def test_a_format_whose_package_is_missing_is_refused(tmp_path, monkeypatch):
    made = make("native", tmp_path)
    monkeypatch.setitem(sys.modules, "torch", None)  # import raises ModuleNotFoundError
    with pytest.raises(UserError, match="torch is not installed") as caught:
        exporting.export(made, ExportFormat("torch"), tmp_path / "w.pt", None)
    assert caught.value.hint == "pip install 'puffer-mlx[torch]'"
    exporting.export(made, ExportFormat("safetensors"), tmp_path / "w.safetensors", None)


def test_only_safetensors_holds_a_users_class_and_names_it(here):
    (here / "users_own_encoder.py").write_text("from mlx.nn import Linear as Encoder\n")
    made = make("torch-lstm", here, encoder="users_own_encoder:Encoder")
    for kind in "torch", "onnx", "bin":
        with pytest.raises(UserError, match=r"Module|is not 0"):
            exporting.export(made, ExportFormat(kind), here / f"w{suffix(kind)}", None)
    exporting.export(made, ExportFormat("safetensors"), here / "w.safetensors", None)
    found = importing.read_any_policy_file(here / "w.safetensors")
    assert found.classes == {"torch.encoder": "users_own_encoder:Encoder"}
    assert "torch.encoder" not in found.settings
    assert same(importing.convert_weights(found, made.spec, made.config)[1], made.weights)


# ---- ONNX ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["torch-lstm", "torch-mlp"])
def test_an_onnx_file_has_named_inputs_and_outputs_for_any_number_of_agents(tmp_path, name):
    onnx = pytest.importorskip("onnx")
    onnxruntime = pytest.importorskip("onnxruntime")
    made, path = make(name, tmp_path), tmp_path / "w.onnx"
    exporting.export(made, ExportFormat("onnx"), path, None)
    model = onnx.load(path)
    assert [(each.domain, each.version) for each in model.opset_import] == [("", 17)]
    weights = {each.name: tuple(each.dims) for each in model.graph.initializer}
    assert weights == {key: w.shape for key, w in named(made.weights)}

    session = onnxruntime.InferenceSession(path)
    states = {"LSTM": ["h", "c"], "MLP": []}[made.config.torch.network]
    assert [each.name for each in session.get_inputs()] == ["observation", *states]
    outputs = [each.name for each in session.get_outputs()]
    assert outputs == ["logits", "value", *(f"next_{state}" for state in states)]
    for n in 1, 5:
        zeros = {state: np.zeros((2, n, 16), np.float32) for state in states}
        row = np.zeros((n, 13), np.float32)
        logits, value, *after = session.run(None, {"observation": row, **zeros})
        assert (logits.shape, value.shape) == ((n, 3), (n,))
        assert all(state.shape == (2, n, 16) for state in after)


# ---- the script ----------------------------------------------------------------------------------


def test_the_command_exports_the_named_checkpoint_or_the_latest(here, scripts, capsys):
    """Compared on the observations that the checkpoint recorded."""
    script = scripts("export")
    make("native", here, "17", 100, state=SavedState({"recorded": mx.zeros((5, 4, 13))}, {}))
    make("torch-lstm", here, "18", 200)
    for which, step, compared in (
        ("17", 100, "4 sequences of 5 recorded"),
        ("latest", 200, "16 sequences of 32 random"),
    ):
        assert script.main([which, "--to", "safetensors"]) == 0
        printed = capsys.readouterr().out
        assert f"x_{step:016d}.safetensors" in printed and compared in printed
        assert (here / f"x_{step:016d}.safetensors").is_file()


def test_latest_is_the_checkpoint_saved_last_of_any_environment(here):
    for env, step in (("x", 100), ("z", 900), ("y", 50)):
        made = make("native", here, "17", step)
        moved = here / "checkpoints" / env / "17" / made.folder.name
        moved.parent.mkdir(parents=True, exist_ok=True)
        made.folder.rename(moved)
    root = here / "checkpoints"
    found = [checkpoint.find_any_checkpoint("latest", root, env).parts[-3] for env in (None, "x")]
    assert found == ["y", "x"]
