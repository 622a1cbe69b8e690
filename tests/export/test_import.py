"""What is imported: upstream's files, ours, and damaged ones; and scripts/import.py."""

import os
import shlex
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
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
from puffer_mlx.export.formats.bin import sizes_of
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
    found = importing.inspect(fixtures / FIXTURES[version])
    assert (found.kind, found.step) == ("torch", 0)
    return importing.convert_weights(found, BREAKOUT, configuration_of(found.settings))


def check_sequence(policy, weights, data, kind):
    """Against (S, T, ...) arrays of upstream, from the zero state."""
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


def test_outputs_of_4_0(path, fixtures):
    policy, weights = imported(fixtures, "4.0")
    data = np.load(fixtures / "puffer4_breakout_mingru_forward.npz")
    state = [mx.array(layer) for layer in data["state0"]]
    logits, values, after = policy.step(weights, mx.array(data["obs"]), state)
    assert_close(np.array(logits).T, data["logits"])
    assert_close(values, data["value"][:, 0])
    assert_close(np.stack([np.array(layer) for layer in after]), data["state1"])
    for kind in "train", "eval":
        last = check_sequence(policy, weights, data, kind)
        assert_close(last["state"], data["seq_eval_final_state"])


def test_outputs_of_3_0(path, fixtures):
    policy, weights = imported(fixtures, "3.0")
    data = np.load(fixtures / "puffer3_breakout_lstm_forward.npz")
    state = [{"h": mx.array(data["h0"]), "c": mx.array(data["c0"])}]
    logits, values, after = policy.step(weights, mx.array(data["obs"]), state)
    assert_close(np.array(logits).T, data["logits"])
    assert_close(values, data["value"][:, 0])
    for part in "h", "c":
        assert_close(after[0][part], data[f"{part}1"])
    for kind in "train", "eval":
        last = check_sequence(policy, weights, data, kind)
        for part in "h", "c":
            assert_close(last[part], data[f"seq_train_final_{part}"])


# ---- state_dicts of all sorts --------------------------------------------------------------------


def saved(path, contents):
    import torch

    torch.save(contents, path)
    return path


def read(path, spec=SPEC, /, **settings: Any):
    found = importing.inspect(path)
    return importing.convert_weights(found, spec, configuration_of(found.settings, **settings))


def test_keys_with_prefixes(tmp_path):
    """Of parallel training and torch.compile; at the front, or in the middle."""
    weights, tensors = state_dict(policy_of())
    for prefix in "module.", "_orig_mod.", "module._orig_mod.":
        path = saved(tmp_path / "w.pt", {prefix + key: w for key, w in tensors.items()})
        assert same(read(path)[1], weights)
        middle = {key.replace(".", f".{prefix}", 1): w for key, w in tensors.items()}
        assert same(read(saved(path, middle))[1], weights)


def test_an_early_3_0_file(tmp_path):
    """The wrapper was the LSTM itself, without a cell."""
    weights, tensors = state_dict(policy_of("puffer3", "LSTM"))
    early = {key.removeprefix("lstm."): w for key, w in tensors.items() if "cell" not in key}
    assert "weight_ih_l0" in early
    policy, loaded = read(saved(tmp_path / "w.pt", early))
    assert same(loaded, weights) and layout_of(policy) == "puffer3"
    found = importing.inspect(tmp_path / "w.pt")
    assert importing.difference(found, policy, loaded, SPEC)[0] <= 1e-5  # type: ignore


def test_other_dtypes(tmp_path):
    weights, tensors = state_dict(policy_of())
    path = saved(tmp_path / "w.pt", {key: w.double() for key, w in tensors.items()})
    assert same(read(path)[1], weights)
    halves = saved(path, {key: w.bfloat16() for key, w in tensors.items()})
    assert same(read(halves)[1], tree_map(lambda w: w.astype(mx.bfloat16).astype(w.dtype), weights))


def changed(tensors, name, make):
    tensors = dict(tensors)
    tensors[name] = make(tensors[name].clone())
    return tensors


def set_first(value):
    def change(w):
        w.view(-1)[0] = value
        return w

    return change


NO_POLICIES = (
    (
        lambda d: {k: w for k, w in d.items() if k != "encoder.encoder.bias"},
        r"encoder\.encoder\.bias: missing, expected \(16,\)",
    ),
    (
        lambda d: {**d, "norm.weight": d["encoder.encoder.bias"]},
        r"norm\.weight: not in this policy",
    ),
    (
        lambda d: changed(d, "encoder.encoder.weight", lambda w: w[:, :-1]),
        r"encoder\.encoder\.weight: \(16, 12\), expected \(16, 13\)",
    ),
    (
        lambda d: changed(d, "network.layers.1.weight", set_first(float("nan"))),
        r"network\.layers\.1\.weight holds numbers that aren't finite",
    ),
    (lambda d: {}, "isn't a policy of PufferLib 4.0's classes"),
    (
        lambda d: {k: w for k, w in d.items() if "value" not in k},
        "isn't a policy of PufferLib 4.0's classes",
    ),
    (
        lambda d: {k.replace("encoder.encoder", "encoder.conv1"): w for k, w in d.items()},
        "isn't a policy of PufferLib 4.0's classes.*encoder.conv1",
    ),
    (lambda d: {"optimizer_state_dict": d, "global_step": 7}, "is not a state_dict of tensors"),
    (lambda d: list(d.values()), "is not a state_dict of tensors"),
)


def test_state_dicts_that_are_no_policy(tmp_path):
    _, tensors = state_dict(policy_of(layers=2))
    fewer = {
        k: w for k, w in tensors.items() if "layers.1" not in k
    }  # is another policy, and whole
    assert len(read(saved(tmp_path / "w.pt", fewer))[1]["network"]) == 1
    for change, message in NO_POLICIES:
        path = saved(tmp_path / "w.pt", change(tensors))
        with pytest.raises(UserError, match=message) as caught:
            read(path)
        assert caught.value.hint


def test_second_names_that_disagree(tmp_path):
    _, tensors = state_dict(policy_of(network="LSTM"))
    wrong = changed(tensors, "network.cell.0.bias_hh", set_first(9.0))
    with pytest.raises(
        UserError, match=r"cell\.0\.bias_hh: differs from network\.lstm\.bias_hh_l0"
    ):
        read(saved(tmp_path / "w.pt", wrong))


def test_damaged_torch_files(tmp_path):
    import torch

    _, tensors = state_dict(policy_of())
    path = saved(tmp_path / "w.pt", tensors)
    whole = path.read_bytes()
    for size in (10, 100, len(whole) // 2, len(whole) - 10):
        path.write_bytes(whole[:size])
        with pytest.raises(UserError, match="can't be read by PyTorch"):
            importing.inspect(path)
    torch.save(torch.nn.Linear(2, 2), path)  # a module, which would run code
    with pytest.raises(UserError, match="can't be read by PyTorch") as caught:
        importing.inspect(path)
    assert "state_dict()" in caught.value.hint
    path.write_bytes(b"PK\x03\x04" + whole[4:2000][::-1])
    with pytest.raises(UserError, match="can't be read by PyTorch"):
        importing.inspect(path)
    torch.save(tensors, path, _use_new_zipfile_serialization=False)
    assert importing.inspect(path).kind == "torch"


def test_options_that_do_not_fit_the_file(tmp_path):
    _, tensors = state_dict(policy_of())
    path = saved(tmp_path / "w.pt", tensors)
    for key, value in (
        ("policy.hidden_size", 32),
        ("policy.num_layers", 2),
        ("torch.network", "GRU"),
    ):
        with pytest.raises(UserError, match="the tensors are of another policy"):
            read(path, **{key: value})
    with pytest.raises(UserError, match=r"encoder\.bias is not 0"):
        read(path, **{"policy.dialect": "native"})
    with pytest.raises(UserError, match="only the puffer3 dialect has a GELU"):
        read(path, **{"policy.dialect": "puffer3"})


# ---- files of other kinds ------------------------------------------------------------------------


def test_files_of_no_kind(tmp_path):
    for name, contents, message in (
        ("w.txt", b"hello", "is neither a file of torch.save nor named"),
        ("w.onnx", b"\x08\x00 not ONNX", "can't be read by onnx"),
        ("w.safetensors", b"garbage", "can't be read as safetensors"),
    ):
        (tmp_path / name).write_bytes(contents)
        with pytest.raises(UserError, match=message) as caught:
            importing.inspect(tmp_path / name)
        assert caught.value.hint
    for missing in ("missing.pt", "missing.onnx", "missing.safetensors", "missing.bin"):
        with pytest.raises(UserError, match=f"can't read .*{missing}: No such file"):
            importing.inspect(tmp_path / missing)


def test_onnx_files_of_others(tmp_path):
    onnx = pytest.importorskip("onnx")
    graph = onnx.helper.make_graph([], "empty", [], [])
    onnx.save(onnx.helper.make_model(graph), tmp_path / "w.onnx")
    with pytest.raises(UserError, match="isn't one of puffer_mlx's ONNX files"):
        importing.inspect(tmp_path / "w.onnx")


def external(tensor):
    """Turn a tensor into one whose numbers are in ``secret.bin``, wherever onnx looks for it."""
    tensor.ClearField("raw_data")
    tensor.data_location = 1
    entry = tensor.external_data.add()
    entry.key, entry.value = "location", "secret.bin"


@pytest.mark.parametrize("where", ["initialiser", "constant", "inner graph"])
def test_onnx_files_that_name_other_files(here, where):
    """Neither the working directory's nor the file's folder's are read, in no part of the graph."""
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
    with pytest.raises(UserError, match="in another file, which isn't read") as caught:
        importing.inspect(path)
    assert caught.value.hint
    with pytest.raises(UserError, match="in another file, which isn't read"):
        run_onnx(path, np.zeros((1, 2, 13), np.float32), {"state": np.zeros((1, 2, 16), "f4")})


def test_names_do_not_tell_a_gelu(tmp_path):
    """Without metadata (of a checkpoint, say) the dialect has to be asked for."""
    for dialect in ["torch", "puffer3"]:
        policy = policy_of(dialect, "LSTM")
        weights, path = policy.init(mx.random.key(0)), tmp_path / "w.safetensors"
        weight_files.save_safetensors(weights, path)
        with pytest.raises(UserError, match="doesn't tell its dialect") as caught:
            read(path)
        assert "--policy.dialect puffer3" in caught.value.hint
        found, loaded = read(path, **{"policy.dialect": dialect})
        assert found == policy and same(loaded, weights)


def test_names_tell_the_rest(tmp_path):
    for network in ("MinGRU", "LSTM", "GRU", "MLP"):
        policy = policy_of("native", network, layers=2)
        weights, path = policy.init(mx.random.key(0)), tmp_path / "w.safetensors"
        weight_files.save_safetensors(weights, path)
        found, loaded = read(path)
        assert found == policy and same(loaded, weights)


def test_a_policy_of_another_environment(tmp_path):
    """Five logits are (5,) or (3, 2): only metadata tells."""
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
    found = importing.inspect(path)
    found.settings = sizes_of(path, spec, settled)
    settled = configuration_of({**settings, **found.settings})
    return importing.convert_weights(found, spec, settled)


def test_sizes_of_flat_files(tmp_path):
    """A file's size tells hidden size and layers, whatever the configuration says."""
    for H, L, sizes in [(64, 2, (3,)), (128, 1, (2, 4, 9)), (128, 4, (1, 1, 1))]:
        spec = EnvSpec("x", 118, np.dtype(np.float32), ActionSpec(sizes))
        whole = spec.action.continuous
        weights, path = flat_file(tmp_path, spec, H, L, whole=whole)
        assert same(read_flat(path, spec)[1], weights)
        told = sizes_of(path, spec, configuration_of({}))
        expected = {"policy.hidden_size": str(H), "policy.num_layers": str(L)}
        assert told == ({} if (H, L) == (128, 4) else expected)  # the defaults


def test_a_file_that_is_a_little_short(tmp_path):
    """5.0's player of CPUs takes it; the configuration has to say the sizes."""
    spec = EnvSpec("x", 118, np.dtype(np.float32), ActionSpec((1, 1, 1)))
    weights, path = flat_file(tmp_path, spec, 64, 2, whole=True)
    whole = path.read_bytes()
    sizes = {"policy.hidden_size": "64", "policy.num_layers": "2"}
    for missing in 1, 5:
        path.write_bytes(whole[: -4 * missing])
        with pytest.warns(UserWarning, match=f"lacks the last {missing} of"):
            _, loaded = read_flat(path, spec, **sizes)
        first, last = (np.array(w["network"][1]["weight"]).ravel() for w in (weights, loaded))
        np.testing.assert_array_equal(first[:-missing], last[:-missing])


def test_sizes_that_make_as_many_numbers(tmp_path):
    """16 x 1 and 10 x 5 are both 2720: the power of two, unless the configuration fits."""
    weights, path = flat_file(tmp_path, BREAKOUT, 16, 1)
    assert same(read_flat(path, BREAKOUT)[1], weights)
    settings = {"policy.hidden_size": "10", "policy.num_layers": "5"}
    assert sizes_of(path, BREAKOUT, configuration_of(settings)) == {}
    weights, path = flat_file(tmp_path, SPEC, 24, 3)  # no power of two, and the only ones
    assert same(read_flat(path, SPEC)[1], weights)


def test_flat_files_of_3_0(tmp_path):
    weights, path = flat_file(tmp_path, SPEC, 32, 1, "puffer3", "LSTM")
    policy, loaded = read_flat(path, SPEC, **{"policy.dialect": "puffer3", "torch.network": "LSTM"})
    assert same(loaded, weights) and layout_of(policy) == "puffer3"


def test_a_flat_file_in_another_dialect(tmp_path):
    weights, path = flat_file(tmp_path, SPEC, 128, 4)
    policy, loaded = read_flat(path, SPEC, **{"policy.dialect": "torch"})
    assert layout_of(policy) == "torch" and not np.array(loaded["encoder"]["bias"]).any()
    assert same(loaded["network"], weights["network"])


def test_flat_files_of_no_size(tmp_path):
    for size in 0, 7, 129536 - 4, 129536 + 1:
        (tmp_path / "w.bin").write_bytes(b"\0" * size)
        with pytest.raises(UserError, match=f"has {size} bytes, which .* for breakout") as caught:
            read_flat(tmp_path / "w.bin", BREAKOUT)
        assert caught.value.hint


# ---- steps ---------------------------------------------------------------------------------------


def test_steps(tmp_path):
    """By a file's name, or its metadata."""
    flat, onnx = formats.make_format("bin"), formats.make_format("onnx")
    for name, step in (
        ("0000000093847552.bin", 93847552),
        ("breakout_0000000000001234.pt", 1234),
        ("puffer4_breakout_mingru.bin", 0),
        ("model_breakout_000300.pt", 0),
    ):
        assert importing.PolicyFile(tmp_path / name, flat).step == step
    named = importing.PolicyFile(tmp_path / "0000000093847552.x", onnx, metadata={"step": "5"})
    assert named.step == 5


# ---- the script ----------------------------------------------------------------------------------


@pytest.fixture
def script(scripts):
    return scripts("import")


@pytest.mark.parametrize("version", FIXTURES)
def test_upstreams_file_there_and_back(here, fixtures, script, capsys, version):
    """Imported, it is a checkpoint; exported again, it is upstream's file, number for number."""
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
    exporting.export(made, exporting.Format("torch"), here / "again.pt", None)
    again = torch.load(here / "again.pt", weights_only=True)
    expected = torch.load(file, weights_only=True)
    assert list(again) == list(expected)
    assert all(torch.equal(again[key], expected[key]) for key in expected)


def test_the_default_place(here, script):
    spec = EnvSpec("squared", 121, np.dtype(np.uint8), ActionSpec((5,)))
    weights, path = flat_file(here, spec, 64, 2)
    path = path.rename(here / f"{4096:016d}.bin")
    assert script.main([str(path), "squared", "--seed", "5"]) == 0
    (made,) = here.glob("checkpoints/squared/*/0000000000004096")
    assert made.parent.name.isdigit() and (made.parent / "config.ini").is_file()
    found = checkpoint.load(made)
    assert same(found.weights, weights) and found.step == 4096 and found.config.base.seed == 5
    assert (made / "weights.bin").read_bytes() == path.read_bytes()


HIDES = {  # words for import, whether observations 8 and 9 are 0 then, and whether a line says so
    "breakout-a": (1, False),
    "breakout-f": (1, False),
    "breakout": (0, True),
    "breakout-fast": (0, True),
    "breakout-fast --env.hide-balls-and-width 1": (1, False),
}


@pytest.mark.parametrize("words", HIDES)
def test_a_flat_file_of_breakout_may_be_one_of_5_0(here, script, capsys, words):
    """Its own Breakout leaves two observations at 0, and no file says whose trainer made it."""
    hidden, noted = HIDES[words]
    _, path = flat_file(here, BREAKOUT, 64, 2)
    assert script.main([str(path), *words.split(), "--out", "run"]) == 0
    (made,) = (here / "run").glob("0*")
    assert checkpoint.load(made).config.env["hide_balls_and_width"] == hidden
    lines = [line for line in capsys.readouterr().out.splitlines() if "hide-balls" in line]
    assert len(lines) == noted
    assert not noted or ("5.0" in lines[0] and "--env.hide-balls-and-width 1" in lines[0])


def test_other_files_are_not_of_5_0(here, script, capsys):
    """PufferLib 3.0's flat file, and other environments."""
    _, path = flat_file(here, BREAKOUT, 128, 1, "puffer3", "LSTM")
    of_3 = ["--policy.dialect", "puffer3", "--torch.network", "LSTM"]
    assert script.main([str(path), "breakout", "--out", "run", *of_3]) == 0
    spec = EnvSpec("squared", 121, np.dtype(np.uint8), ActionSpec((5,)))
    _, path = flat_file(here, spec, 64, 2)
    assert script.main([str(path), "squared", "--out", "other"]) == 0
    assert "hide" not in capsys.readouterr().out


SMALL = """--device cpu --vec.total-agents 4 --vec.num-buffers 1 --train.horizon 4
    --train.minibatch-size 16 --train.total-timesteps 32 --eval-episodes 0
    --train.replay-ratio 1"""


@pytest.fixture
def commands(script, monkeypatch):
    """Run what import.py printed, in this process."""
    modules = {"evaluate": evaluate, "train": train}

    def obey(printed, which, *more):
        (line,) = [line for line in printed.splitlines() if line.startswith(which)]
        program, name, *words = shlex.split(line.removeprefix(which))
        assert program == "puffer-mlx"
        return modules[name].main([*words, *more])

    return obey


def theirs(folder):
    """An environment in PufferLib's form that has a name of ours, and isn't it."""
    place = folder / "their repository" / "ocean" / "connect4"
    place.mkdir(parents=True)
    drift = Path(DRIFT["native"])
    (place / "connect4.h").write_text((drift / "drift.h").read_text())
    binding = (drift / "binding.c").read_text().replace("drift.h", "connect4.h")
    (place / "binding.c").write_text(binding)
    text = (drift / "drift.ini").read_text().replace("env_name = drift", "env_name = connect4")
    (place / "connect4.ini").write_text(text)
    return str(place)


@pytest.mark.parametrize("kind", ["folder", "gym:ID"])
def test_environments_are_found_as_train_finds_them(here, script, commands, capsys, kind):
    """And both commands that are printed work, from any folder's and file's name."""
    if kind == "gym:ID":
        pytest.importorskip("gymnasium")
        spec, word = CARTPOLE, "gym:CartPole-v1"
    else:
        spec = EnvSpec("drift", 3, np.dtype(np.float32), ActionSpec((1, 1)))
        word = theirs(here)
    weights, path = flat_file(here, spec, 8, 1, whole=True)
    assert script.main([str(path), word, "--out", "a run", *SMALL.split()]) == 0
    printed = capsys.readouterr().out
    made = checkpoint.load(here / "a run" / "0000000000000000")
    assert same(made.weights, weights) and made.spec.observation_size == spec.observation_size
    assert made.config.torch.network == "MinGRU" and not made.config.vec.normalize_observations
    episodes = "--episodes", "4", "--max-steps", "20"
    assert commands(printed, "score it", *episodes) == 0
    assert commands(printed, "train on") == 0
    assert "saved " in capsys.readouterr().out


ABOUT = {"puffer_mlx": "1", "policy.dialect": "torch", "policy.hidden_size": "16"}
ABOUT |= {"policy.num_layers": "1"}
STRANGERS = (
    ({"torch.network": "evil:Net"}, "names a class of its own, torch.network evil:Net"),
    ({"torch.encoder": "evil:Net"}, "names a class of its own, torch.encoder evil:Net"),
    ({"torch.encoder": "\x1b[2Jevil:Net"}, r"torch.encoder '\x1b[2Jevil:Net'"),
    ({"torch.network": "--base.seed=7"}, "torch.network --base.seed=7"),
    ({"policy.dialect": "evil"}, "policy.dialect evil"),
    ({"policy.hidden_size": "1e99"}, "policy.hidden_size"),
    ({"policy.hidden_size": "1000000000"}, "its tensors are of policy.hidden_size 16"),
    ({"policy.num_layers": "1000"}, "its tensors are of policy.num_layers 1"),
)


def test_what_a_strangers_file_says_of_its_policy(here, script, capsys):
    """Nothing is imported, made or written because a file says so."""
    (here / "evil.py").write_text("raise SystemExit('evil ran')")
    weights = policy_of(spec=CARTPOLE).init(mx.random.key(0))
    for metadata, message in STRANGERS:
        weight_files.save_safetensors(weights, here / "w.safetensors", ABOUT | metadata)
        assert script.main(["w.safetensors", "cartpole"]) == 2
        error = errors(capsys.readouterr().err)
        assert error.startswith("error: ") and message in error and "hint: " in error
        assert "\x1b" not in error and not (here / "checkpoints").exists()


def test_a_file_says_nothing_but_of_its_policy(here, script):
    policy = policy_of(spec=CARTPOLE)
    told = {**ABOUT, "base.checkpoint_dir": str(here / "elsewhere")}
    told |= {"train.learning_rate": "9", "vec.normalize_observations": "True", "base.seed": "5"}
    weight_files.save_safetensors(policy.init(mx.random.key(0)), here / "w.safetensors", told)
    assert script.main(["w.safetensors", "cartpole"]) == 0
    assert not (here / "elsewhere").exists()
    (made,) = here.glob("checkpoints/cartpole/*/0000000000000000")
    found, usual = checkpoint.load(made).config, config.load("cartpole")
    assert (found.train, found.vec, found.base) == (usual.train, usual.vec, usual.base)


@pytest.mark.parametrize("has", [True, False])
def test_options_that_contradict_the_statistics(here, script, capsys, has):
    policy = policy_of("native", spec=CARTPOLE)
    mean = {"mean": np.zeros(4), "variance": np.ones(4), "count": np.array(9.0)}
    memory = {f"observations.{part}": array for part, array in mean.items() if has}
    weights = policy.init(mx.random.key(0))
    weight_files.save_safetensors(weights, here / "w.safetensors", statistics=memory)
    words = ["w.safetensors", "cartpole", "--vec.normalize-observations"]
    assert script.main([*words, str(int(not has))]) == 2
    error = errors(capsys.readouterr().err)
    assert ("has statistics" if has else "has no statistics") in error and "hint: " in error
    assert script.main([*words, str(int(has))]) == 0
    (made,) = here.glob("checkpoints/cartpole/*/0000000000000000")
    assert bool(checkpoint.load(made).statistics) == has
    printed = capsys.readouterr().out
    assert f"observations        {'normalised by' if has else 'as they are'}" in printed


def test_a_class_that_a_person_asks_for(here, script):
    (here / "my_own_net.py").write_text("from puffer_mlx.policy.networks.gru import GRU as Net\n")
    policy = policy_of("native", "GRU", spec=CARTPOLE)
    told = ABOUT | {"policy.dialect": "native", "torch.network": "my_own_net:Net"}
    weights = policy.init(mx.random.key(0))
    weight_files.save_safetensors(weights, here / "w.safetensors", told)
    assert script.main(["w.safetensors", "cartpole"]) == 2
    assert script.main(["w.safetensors", "cartpole", "--torch.network", "my_own_net:Net"]) == 0
    (made,) = here.glob("checkpoints/cartpole/*/0000000000000000")
    assert checkpoint.load(made, True).config.torch.network == "my_own_net:Net"


def test_files_that_can_not_be_read_whole(tmp_path):
    """A pipe would have one wait, and 10 TB take the memory: neither is begun."""
    for name in "a.safetensors", "a.onnx", "a.pt", "a.bin":
        os.mkfifo(tmp_path / name)
        with pytest.raises(UserError, match="not a file, but a pipe or a device"):
            importing.inspect(tmp_path / name)
        (tmp_path / name).unlink()
        (tmp_path / name).touch()
        os.truncate(tmp_path / name, 10**13)
        with pytest.raises(UserError, match=r"has 10000\.0 GB, more than this machine's free mem"):
            importing.inspect(tmp_path / name)
