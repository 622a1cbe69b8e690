"""Imports of upstream's files, of ours, and of unsuitable ones; scripts/import.py."""

import os
import shlex
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from mlx.utils import tree_map
from native_envs import DRIFT
from oracles import assert_close, named, same
from policy_files import configuration_of
from running import errors

from puffer_mlx import checkpoint, config
from puffer_mlx.checkpoint import flat_files, weight_files
from puffer_mlx.cli import evaluate, train
from puffer_mlx.config import Policy, Torch
from puffer_mlx.errors import UserError
from puffer_mlx.export import exporting, formats, importing
from puffer_mlx.export.formats.bin import infer_sizes
from puffer_mlx.export.formats.onnx import run_onnx, save_onnx
from puffer_mlx.export.weight_layouts import layout_of, stacked_state, to_torch
from puffer_mlx.policy.policy import make_policy
from puffer_mlx.spec import ActionSpec, EnvSpec

BREAKOUT = EnvSpec("breakout", 118, np.dtype(np.float32), ActionSpec((3,)))
SPEC = EnvSpec("x", 13, np.dtype(np.float32), ActionSpec((3,)))
CARTPOLE = EnvSpec("cartpole", 4, np.dtype(np.float32), ActionSpec((2,)))
FIXTURES = {"4.0": "puffer4_breakout_mingru.bin", "3.0": "puffer3_breakout_lstm.pt"}


def policy_of(dialect="torch", network="MinGRU", layers=1, spec=SPEC):
    return make_policy(spec, Policy(16, layers, dialect), Torch(network=network))


def state_dict(policy, seed=0):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(seed)
    weights = tree_map(
        lambda w: mx.array(rng.normal(size=w.shape).astype(np.float32)),
        policy.init(mx.random.key(0)),
    )
    return weights, {key: torch.from_numpy(w) for key, w in to_torch(policy, weights).items()}


# ---- upstream's own files and outputs ------------------------------------------------------------


def imported(fixtures, version):
    pytest.importorskip("torch")
    found = importing.read_any_policy_file(fixtures / FIXTURES[version])
    assert (found.kind, found.step) == ("torch", 0)
    return importing.convert_weights(found, BREAKOUT, configuration_of(found.settings))


def check_sequence(policy, weights, data, kind):
    """Compare a policy's results for a sequence with upstream's recorded arrays (S, T, ...)."""
    observations = mx.array(data["seq_obs"].transpose(1, 0, 2))
    T, S = observations.shape[:2]
    logits, values, state = policy.scan(weights, observations, policy.initial_state(S))
    found = np.array(logits).T.reshape(T, S, 3)
    assert_close(found, data[f"seq_{kind}_logits"].transpose(1, 0, 2))
    assert_close(np.array(values).reshape(T, S), data[f"seq_{kind}_values"].T)
    actions = data["seq_actions"].reshape(S, T).T.reshape(T * S, 1).astype(np.float32)
    logprob, entropy = policy.distribution.log_prob_entropy(logits, mx.array(actions))
    for found, name in ((logprob, "seq_logprob"), (entropy, "seq_entropy")):
        assert_close(np.array(found).reshape(T, S).T.ravel(), data[name])
    return stacked_state(policy, state)


@pytest.mark.parametrize("version", FIXTURES)
def test_an_imported_policy_has_upstreams_outputs(path, fixtures, version):
    policy, weights = imported(fixtures, version)
    data = np.load(fixtures / f"{Path(FIXTURES[version]).stem}_forward.npz")
    if version == "4.0":
        state = [mx.array(layer) for layer in data["state0"]]
        expected = {"state": (data["state1"], data["seq_eval_final_state"])}
    else:
        state = [{"h": mx.array(data["h0"]), "c": mx.array(data["c0"])}]
        expected = {part: (data[f"{part}1"], data[f"seq_train_final_{part}"]) for part in "hc"}
    logits, values, after = policy.step(weights, mx.array(data["obs"]), state)
    assert_close(np.array(logits).T, data["logits"])
    assert_close(values, data["value"][:, 0])
    for part, (stepped, _) in expected.items():
        assert_close(stacked_state(policy, after)[part].reshape(stepped.shape), stepped)
    for kind in "train", "eval":
        last = check_sequence(policy, weights, data, kind)
        for part, (_, final) in expected.items():
            assert_close(last[part], final)


# ---- state_dicts ---------------------------------------------------------------------------------


def saved(path, contents):
    import torch

    torch.save(contents, path)
    return path


def read(path, spec=SPEC, /, **settings: Any):
    found = importing.read_any_policy_file(path)
    return importing.convert_weights(found, spec, configuration_of(found.settings, **settings))


def test_prefixes_are_removed_and_other_dtypes_become_float32(tmp_path):
    weights, tensors = state_dict(policy_of())
    inside = {key.replace(".", ".module._orig_mod.", 1): w for key, w in tensors.items()}
    path = saved(tmp_path / "w.pt", {f"module.{key}": w.double() for key, w in inside.items()})
    assert same(read(path)[1], weights)
    halves = saved(path, {key: w.bfloat16() for key, w in tensors.items()})
    assert same(read(halves)[1], tree_map(lambda w: w.astype(mx.bfloat16).astype(w.dtype), weights))


def test_an_early_3_0_file_without_a_cell_is_imported(tmp_path):
    weights, tensors = state_dict(policy_of("puffer3", "LSTM"))
    early = {key.removeprefix("lstm."): w for key, w in tensors.items() if "cell" not in key}
    policy, loaded = read(saved(tmp_path / "w.pt", early))
    assert same(loaded, weights) and layout_of(policy) == "puffer3"
    found = importing.read_any_policy_file(tmp_path / "w.pt")
    assert importing.compare_with_file(found, policy, loaded, SPEC)[0] <= 1e-5  # type: ignore


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda d: d | {"encoder.encoder.weight": d["encoder.encoder.weight"][:, :-1]},
            r"encoder\.encoder\.weight: \(16, 12\), expected \(16, 13\)",
        ),
        (
            lambda d: {k.replace("encoder.encoder", "encoder.conv1"): w for k, w in d.items()},
            "fits no policy class of PufferLib 4.0.*encoder.conv1",
        ),
        (
            lambda d: d | {"network.cell.0.bias_hh": d["network.cell.0.bias_hh"] + 1},
            r"cell\.0\.bias_hh: differs from network\.lstm\.bias_hh_l0",
        ),
    ],
    ids=["shape", "other class", "two names of a tensor"],
)
def test_a_state_dict_that_is_no_policy_is_refused(tmp_path, change, message):
    _, tensors = state_dict(policy_of(network="LSTM"))
    with pytest.raises(UserError, match=message) as caught:
        read(saved(tmp_path / "w.pt", change(tensors)))
    assert caught.value.hint


def test_a_torch_file_never_runs_code(tmp_path):
    import torch

    path = tmp_path / "w.pt"
    torch.save(torch.nn.Linear(2, 2), path)  # a module, which would run code
    with pytest.raises(UserError, match="can't be read by PyTorch") as caught:
        importing.read_any_policy_file(path)
    assert "state_dict()" in caught.value.hint
    torch.save(state_dict(policy_of())[1], path, _use_new_zipfile_serialization=False)
    assert importing.read_any_policy_file(path).kind == "torch"


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("policy.hidden_size", 32, "the tensors are those of another policy"),
        ("policy.dialect", "native", r"encoder\.bias is not 0"),
        ("policy.dialect", "puffer3", "only the weight layout puffer3 has a GELU"),
    ],
)
def test_options_of_another_policy_are_refused(tmp_path, key, value, message):
    path = saved(tmp_path / "w.pt", state_dict(policy_of())[1])
    with pytest.raises(UserError, match=message):
        read(path, **{key: value})


# ---- files of other kinds ------------------------------------------------------------------------


def test_an_onnx_file_of_another_program_is_refused(tmp_path):
    onnx = pytest.importorskip("onnx")
    graph = onnx.helper.make_graph([], "empty", [], [])
    onnx.save(onnx.helper.make_model(graph), tmp_path / "w.onnx")
    with pytest.raises(UserError, match="wasn't exported by puffer_mlx"):
        importing.read_any_policy_file(tmp_path / "w.onnx")


def external(tensor):
    """Let a tensor of an ONNX file refer to the external file ``secret.bin``."""
    tensor.ClearField("raw_data")
    tensor.data_location = 1
    entry = tensor.external_data.add()
    entry.key, entry.value = "location", "secret.bin"


@pytest.mark.parametrize("where", ["initialiser", "constant", "inner graph"])
def test_an_onnx_file_cannot_read_other_files(here, where):
    onnx = pytest.importorskip("onnx")
    policy = policy_of("native")
    weights = policy.init(mx.random.key(0))
    (here / "theirs").mkdir()
    path = here / "theirs" / "w.onnx"
    save_onnx(policy, weights, path, {"puffer_mlx": "1"}, {})
    for folder in here, path.parent:
        (folder / "secret.bin").write_bytes(np.zeros(10_000, np.float32).tobytes())
    model = onnx.load(path)
    graph = model.graph
    tensor = onnx.numpy_helper.from_array(np.zeros(4, np.float32), "hidden")
    if where == "initialiser":
        tensor = graph.initializer[0]
    elif where == "constant":
        tensor = next(n for n in graph.node if n.op_type == "Constant").attribute[0].t
    else:
        inner = onnx.helper.make_graph([], "inner", [], [], [tensor])
        graph.node.append(onnx.helper.make_node("If", [], [], then_branch=inner))
        tensor = graph.node[-1].attribute[0].g.initializer[0]
    external(tensor)
    path.write_bytes(model.SerializeToString())
    with pytest.raises(UserError, match="in another file, which isn't read"):
        importing.read_any_policy_file(path)
    with pytest.raises(UserError, match="in another file, which isn't read"):
        run_onnx(path, np.zeros((1, 2, 13), np.float32), {"state": np.zeros((1, 2, 16), "f4")})


def test_a_file_without_metadata_needs_its_dialect_if_names_do_not_show_it(tmp_path):
    policy = policy_of("puffer3", "LSTM")
    weights, path = policy.init(mx.random.key(0)), tmp_path / "w.safetensors"
    weight_files.save_safetensors(weights, path)
    with pytest.raises(UserError, match="doesn't record its weight layout") as caught:
        read(path)
    assert "--policy.dialect puffer3" in caught.value.hint
    found, loaded = read(path, **{"policy.dialect": "puffer3"})
    assert found == policy and same(loaded, weights)


@pytest.mark.parametrize("network", ["MinGRU", "LSTM", "GRU", "MLP"])
def test_names_show_network_layers_and_size(tmp_path, network):
    policy = policy_of("native", network, layers=2)
    weights, path = policy.init(mx.random.key(0)), tmp_path / "w.safetensors"
    weight_files.save_safetensors(weights, path)
    found, loaded = read(path)
    assert found == policy and same(loaded, weights)


def test_a_policy_of_other_actions_is_refused(tmp_path):
    policy = policy_of(spec=EnvSpec("y", 13, SPEC.observation_dtype, ActionSpec((3, 2))))
    weights, path = policy.init(mx.random.key(0)), tmp_path / "w.safetensors"
    metadata = {"puffer_mlx": "1", "env": "y", "actions": "[3, 2]", "policy.dialect": "torch"}
    metadata |= {"policy.hidden_size": "16", "policy.num_layers": "1"}
    weight_files.save_safetensors(weights, path, metadata)
    five = EnvSpec("x", 13, SPEC.observation_dtype, ActionSpec((5,)))
    with pytest.raises(UserError, match=r"a policy for y: actions \[3, 2\], but x has \[5\]"):
        read(path, five)


# ---- flat files ----------------------------------------------------------------------------------


def flat_file(tmp_path, spec, H, L, dialect="native", network="MinGRU", **how):
    policy = make_policy(spec, Policy(H, L, dialect), Torch(network=network))
    weights = tree_map(lambda w: w + 0.01, policy.init(mx.random.key(0)))
    if dialect == "native":
        flat_files.save_bin(policy, weights, tmp_path / "w.bin", **how)
    else:
        parts = [np.array(w, "<f4").ravel() for _, w in named(weights)]
        np.concatenate(parts).tofile(tmp_path / "w.bin")
    return weights, tmp_path / "w.bin"


def read_flat(path, spec, **settings):
    settled = configuration_of(settings)
    found = importing.read_any_policy_file(path)
    found.settings = infer_sizes(path, spec, settled)
    settled = configuration_of({**settings, **found.settings})
    return importing.convert_weights(found, spec, settled)


@settings(max_examples=12)
@given(
    H=st.sampled_from([8, 16, 64, 128]),
    L=st.integers(1, 4),
    sizes=st.sampled_from([(3,), (2, 4, 9), (1, 1, 1)]),
)
@example(H=128, L=4, sizes=(1, 1, 1))  # the defaults
def test_a_flat_files_size_gives_hidden_size_and_layers(tmp_path_factory, H, L, sizes):
    spec = EnvSpec("x", 118, np.dtype(np.float32), ActionSpec(sizes))
    folder = tmp_path_factory.getbasetemp()
    weights, path = flat_file(folder, spec, H, L, whole=spec.action.continuous)
    assert same(read_flat(path, spec)[1], weights)
    expected = {"policy.hidden_size": str(H), "policy.num_layers": str(L)}
    found = infer_sizes(path, spec, configuration_of({}))
    assert found == ({} if (H, L) == (128, 4) else expected)


def test_a_flat_file_that_lacks_its_last_numbers_is_imported_with_a_warning(tmp_path):
    """The configuration must give the sizes."""
    spec = EnvSpec("x", 118, np.dtype(np.float32), ActionSpec((1, 1, 1)))
    weights, path = flat_file(tmp_path, spec, 64, 2, whole=True)
    path.write_bytes(path.read_bytes()[:-20])
    sizes = {"policy.hidden_size": "64", "policy.num_layers": "2"}
    with pytest.warns(UserWarning, match="lacks the last 5 of"):
        _, loaded = read_flat(path, spec, **sizes)
    first, last = (np.array(w["network"][1]["weight"]).ravel() for w in (weights, loaded))
    np.testing.assert_array_equal(first[:-5], last[:-5])


def test_of_several_possible_sizes_the_configurations_or_a_power_of_two_is_chosen(tmp_path):
    """16 x 1 and 10 x 5 are both 2720 numbers."""
    weights, path = flat_file(tmp_path, BREAKOUT, 16, 1)
    assert same(read_flat(path, BREAKOUT)[1], weights)
    settings = {"policy.hidden_size": "10", "policy.num_layers": "5"}
    assert infer_sizes(path, BREAKOUT, configuration_of(settings)) == {}
    weights, path = flat_file(tmp_path, SPEC, 24, 3)  # no power of two, and the only ones
    assert same(read_flat(path, SPEC)[1], weights)


@pytest.mark.parametrize("size", [0, 129536 - 4])
def test_a_flat_file_of_no_policys_size_is_refused(tmp_path, size):
    (tmp_path / "w.bin").write_bytes(b"\0" * size)
    with pytest.raises(UserError, match=f"has {size} bytes; for breakout") as caught:
        read_flat(tmp_path / "w.bin", BREAKOUT)
    assert caught.value.hint


# ---- steps ---------------------------------------------------------------------------------------


def test_the_step_is_that_of_the_metadata_or_the_files_name(tmp_path):
    flat, onnx = formats.make_format("bin"), formats.make_format("onnx")
    names = ["0000000093847552.bin", "breakout_0000000000001234.pt", "model_breakout_000300.pt"]
    steps = [importing.PolicyFile(tmp_path / name, flat).step for name in names]
    assert steps == [93847552, 1234, 0]
    path = tmp_path / "0000000093847552.x"
    assert importing.PolicyFile(path, onnx, metadata={"step": "5"}).step == 5


# ---- the script ----------------------------------------------------------------------------------


@pytest.fixture
def script(scripts):
    return scripts("import")


@pytest.mark.parametrize("version", FIXTURES)
def test_an_imported_and_exported_file_is_upstreams_number_for_number(
    here, fixtures, script, capsys, version
):
    torch = pytest.importorskip("torch")
    file = fixtures / FIXTURES[version]
    assert script.main([str(file), "breakout", "--out", "run"]) == 0
    printed = capsys.readouterr().out
    folder = here / "run" / "0000000000000000"
    made = checkpoint.load(folder)
    for words in (
        f"puffer-mlx evaluate breakout --load-model-path run/{folder.name}",
        f"puffer-mlx train run/{folder.name}/config.ini --load-model-path run/{folder.name}",
        "largest difference  ",
    ):
        assert words in printed
    assert made.spec.observation_size == 118 and made.config.env_name == "breakout"
    assert made.config.policy.dialect == {"4.0": "torch", "3.0": "puffer3"}[version]
    assert made.config.train.learning_rate == 0.1  # the environment's file
    exporting.export(made, exporting.ExportFormat("torch"), here / "again.pt", None)
    again = torch.load(here / "again.pt", weights_only=True)
    expected = torch.load(file, weights_only=True)
    assert list(again) == list(expected)
    assert all(torch.equal(again[key], expected[key]) for key in expected)


def test_an_import_is_a_run_of_the_files_step(here, script):
    spec = EnvSpec("squared", 121, np.dtype(np.uint8), ActionSpec((5,)))
    weights, path = flat_file(here, spec, 64, 2)
    path = path.rename(here / f"{4096:016d}.bin")
    assert script.main([str(path), "squared", "--seed", "5"]) == 0
    (made,) = here.glob("checkpoints/squared/*/0000000000004096")
    assert made.parent.name.isdigit() and (made.parent / "config.ini").is_file()
    found = checkpoint.load(made)
    assert same(found.weights, weights) and found.step == 4096 and found.config.base.seed == 5
    assert (made / "weights.bin").read_bytes() == path.read_bytes()


@pytest.mark.parametrize(
    ("words", "hidden", "noted"),
    [
        ("breakout-a", 1, False),
        ("breakout", 0, True),
    ],
)
def test_a_flat_file_of_breakout_may_be_one_of_5_0(here, script, capsys, words, hidden, noted):
    """Breakout of 5.0 sets two observations to 0, and the file doesn't contain its release."""
    _, path = flat_file(here, BREAKOUT, 64, 2)
    assert script.main([str(path), *words.split(), "--out", "run"]) == 0
    (made,) = (here / "run").glob("0*")
    assert checkpoint.load(made).config.env["hide_balls_and_width"] == hidden
    assert ("--env.hide-balls-and-width 1" in capsys.readouterr().out) == noted


def test_a_flat_file_of_3_0_is_imported_and_is_not_one_of_5_0(here, script, capsys):
    weights, path = flat_file(here, BREAKOUT, 128, 1, "puffer3", "LSTM")
    of_3 = ["--policy.dialect", "puffer3", "--torch.network", "LSTM"]
    assert script.main([str(path), "breakout", "--out", "run", *of_3]) == 0
    assert "hide" not in capsys.readouterr().out
    made = checkpoint.load(here / "run" / f"{0:016d}")
    assert same(made.weights, weights) and layout_of(made.policy) == "puffer3"


SMALL = """--device cpu --vec.total-agents 4 --vec.num-buffers 1 --train.horizon 4
    --train.minibatch-size 16 --train.total-timesteps 32 --eval-episodes 0
    --train.replay-ratio 1"""


@pytest.fixture
def commands(script, monkeypatch):
    """Return a function that runs a command that the import command printed."""
    modules = {"evaluate": evaluate, "train": train}

    def obey(printed, which, *more):
        (line,) = [line for line in printed.splitlines() if line.startswith(which)]
        program, name, *words = shlex.split(line.removeprefix(which))
        assert program == "puffer-mlx"
        return modules[name].main([*words, *more])

    return obey


DRIFTING = EnvSpec("drift", 3, np.dtype(np.float32), ActionSpec((1, 1)))


@pytest.mark.parametrize(
    ("word", "spec"), [("gym:CartPole-v1", CARTPOLE), (DRIFT["native"], DRIFTING)]
)
def test_the_printed_commands_work_for_any_environment(here, script, commands, capsys, word, spec):
    weights, path = flat_file(here, spec, 8, 1, whole=True)
    assert script.main([str(path), word, "--out", "a run", *SMALL.split()]) == 0
    printed = capsys.readouterr().out
    made = checkpoint.load(here / "a run" / "0000000000000000")
    assert same(made.weights, weights) and made.spec.observation_size == spec.observation_size
    assert made.config.torch.network == "MinGRU" and not made.config.vec.normalize_observations
    episodes = "--episodes", "4", "--max-steps", "20"
    assert commands(printed, "score it", *episodes) == 0
    assert commands(printed, "train further") == 0
    assert "saved " in capsys.readouterr().out


ABOUT = {"puffer_mlx": "1", "policy.dialect": "torch", "policy.hidden_size": "16"}
ABOUT |= {"policy.num_layers": "1"}


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"torch.network": "evil:Net"}, "names a custom class, torch.network evil:Net"),
        ({"torch.encoder": "\x1b[2Jevil:Net"}, r"torch.encoder '\x1b[2Jevil:Net'"),
        ({"policy.hidden_size": "1000000000"}, "its tensors have policy.hidden_size 16"),
    ],
)
def test_a_files_metadata_can_import_and_write_nothing(here, script, capsys, metadata, message):
    (here / "evil.py").write_text("raise SystemExit('evil ran')")
    weights = policy_of(spec=CARTPOLE).init(mx.random.key(0))
    weight_files.save_safetensors(weights, here / "w.safetensors", ABOUT | metadata)
    assert script.main(["w.safetensors", "cartpole"]) == 2
    error = errors(capsys.readouterr().err)
    assert error.startswith("error: ") and message in error and "hint: " in error
    assert "\x1b" not in error and not (here / "checkpoints").exists()


def test_a_files_metadata_sets_only_its_policy(here, script):
    policy = policy_of(spec=CARTPOLE)
    metadata = {**ABOUT, "base.checkpoint_dir": str(here / "elsewhere")}
    metadata |= {"train.learning_rate": "9", "vec.normalize_observations": "True", "base.seed": "5"}
    weight_files.save_safetensors(policy.init(mx.random.key(0)), here / "w.safetensors", metadata)
    assert script.main(["w.safetensors", "cartpole"]) == 0
    assert not (here / "elsewhere").exists()
    (made,) = here.glob("checkpoints/cartpole/*/0000000000000000")
    found, usual = checkpoint.load(made).config, config.load("cartpole")
    assert (found.train, found.vec, found.base) == (usual.train, usual.vec, usual.base)


@pytest.mark.parametrize("has", [True, False])
def test_options_must_agree_with_a_files_statistics(here, script, capsys, has):
    policy = policy_of("native", spec=CARTPOLE)
    mean = {"mean": np.zeros(4), "variance": np.ones(4), "count": np.array(9.0)}
    memory = {f"observations.{part}": array for part, array in mean.items() if has}
    weights = policy.init(mx.random.key(0))
    weight_files.save_safetensors(weights, here / "w.safetensors", statistics=memory)
    words = ["w.safetensors", "cartpole", "--vec.normalize-observations"]
    assert script.main([*words, str(int(not has))]) == 2
    error = errors(capsys.readouterr().err)
    assert ("contains statistics" if has else "contain statistics") in error and "hint: " in error
    assert script.main([*words, str(int(has))]) == 0
    (made,) = here.glob("checkpoints/cartpole/*/0000000000000000")
    assert bool(checkpoint.load(made).statistics) == has
    printed = capsys.readouterr().out
    assert f"observations        {'normalized by' if has else 'not normalized'}" in printed


def test_a_files_class_is_imported_if_the_user_names_it(here, script):
    (here / "my_own_net.py").write_text("from puffer_mlx.policy.networks.gru import GRU as Net\n")
    policy = policy_of("native", "GRU", spec=CARTPOLE)
    metadata = ABOUT | {"policy.dialect": "native", "torch.network": "my_own_net:Net"}
    weights = policy.init(mx.random.key(0))
    weight_files.save_safetensors(weights, here / "w.safetensors", metadata)
    assert script.main(["w.safetensors", "cartpole"]) == 2
    assert script.main(["w.safetensors", "cartpole", "--torch.network", "my_own_net:Net"]) == 0
    (made,) = here.glob("checkpoints/cartpole/*/0000000000000000")
    assert checkpoint.load(made, True).config.torch.network == "my_own_net:Net"


def test_missing_files_folders_pipes_and_huge_files_are_refused(tmp_path):
    path = tmp_path / "a.onnx"
    with pytest.raises(UserError, match=r"can't read .*a\.onnx: No such file"):
        importing.read_any_policy_file(path)
    os.mkfifo(path)
    with pytest.raises(UserError, match="not a file, but a pipe or a device"):
        importing.read_any_policy_file(path)
    path.unlink()
    path.mkdir()
    with pytest.raises(UserError, match=r"a\.onnx"):
        importing.read_any_policy_file(path)
    path.rmdir()
    path.touch()
    os.truncate(path, 10**13)
    with pytest.raises(UserError, match=r"has 10000\.0 GB, more than this machine's free mem"):
        importing.read_any_policy_file(path)
