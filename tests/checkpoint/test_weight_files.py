"""Weights are read back exactly; unsuitable files and disks are one message."""

import errno
import os

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_map
from oracles import named, same

from puffer_mlx.checkpoint import flat_files, weight_files
from puffer_mlx.checkpoint.flat_files import BF16, FLOAT, flat_layout, flat_unsupported_reason
from puffer_mlx.config import Policy, Torch
from puffer_mlx.errors import UserError
from puffer_mlx.policy.policy import make_policy
from puffer_mlx.spec import ActionSpec, EnvSpec


def policy_of(D=118, H=64, L=2, sizes=(3,), network="MinGRU", dialect="native"):
    spec = EnvSpec("x", D, np.dtype(np.float32), ActionSpec(sizes))
    return make_policy(spec, Policy(H, L, dialect), Torch(network=network))


def make(*shape, seed=0, **how):
    return policy_of(*shape, **how).init(mx.random.key(seed))


def small(seed=0):
    return make(5, 8, 1, seed=seed)


def save_bin(weights, path):
    flat_files.save_bin(policy_of(), weights, path)  # of the policy, only the parts are asked for


SAVE = {".bin": save_bin, ".safetensors": weight_files.save_safetensors}
KINDS = pytest.mark.parametrize("kind", SAVE)


def files(folder):
    return sorted(p.name for p in folder.iterdir())


# ---- round trips ---------------------------------------------------------------------------------


@KINDS
def test_weights_are_read_back_exactly(tmp_path, kind):
    weights, path = make(), tmp_path / "deep" / "folders" / f"w{kind}"
    not_contiguous = tree_map(lambda w: mx.contiguous(w.T).T, weights)
    mask = os.umask(0o027)
    SAVE[kind](not_contiguous, path)
    os.umask(mask)
    assert files(path.parent) == [path.name]
    assert path.stat().st_mode & 0o777 == 0o640
    assert same(weight_files.load_weights(path, make(seed=1)), weights)


def test_a_flat_file_has_upstreams_layout(tmp_path):
    """Table 5.3: encoder, decoder and layers at byte 0, 30208, 31232 and 80384; 129536 in all."""
    weights, path = make(), tmp_path / "w.bin"
    save_bin(weights, path)
    data = path.read_bytes()
    assert len(data) == 129536
    for at, w in (
        (0, weights["encoder"]["weight"]),
        (30208, weights["decoder"]["weight"]),
        (31232, weights["network"][0]["weight"]),
        (80384, weights["network"][1]["weight"]),
    ):
        found = np.frombuffer(data, "<f4", w.size, at).reshape(w.shape)  # rows one after the other
        np.testing.assert_array_equal(found, np.array(w))


# ---- flat files of continuous actions (5.2) ------------------------------------------------------

# a policy of 3 dimensions: encoder (8, 5), decoder (4, 8), logstd (1, 3), network (24, 8)
#   bf16 build:  0..40, 40..72, 72..75, 80..272; the file has 40 + 32 + 3 + 192 = 267 of 272 numbers
#   float build: 0..40, 40..72, 72..75, 76..268; the file has 267 of 268
FORMS = {BF16: (80, 5), FLOAT: (76, 1)}  # where the network begins, and how much is missing
THREE = (5, 8, 1, (1, 1, 1))


def drawn(*shape):
    """Return random weights of a policy of a given size, none of them 0."""
    rng = np.random.default_rng(sum(shape[:3]))
    return tree_map(lambda w: mx.array(rng.normal(size=w.shape).astype(np.float32)), make(*shape))


def flat(weights):
    return {name: np.array(w).ravel() for name, w in named(weights)}


@pytest.mark.parametrize("alignment", FORMS)
def test_a_file_of_continuous_actions_lacks_numbers_unless_whole(tmp_path, alignment):
    policy, weights, path = policy_of(*THREE), drawn(*THREE), tmp_path / "w.bin"
    network, missing = FORMS[alignment]
    with pytest.raises(UserError, match=f"lacks the last {missing} of {network + 192} numbers"):
        flat_files.save_bin(policy, weights, path, alignment)
    assert not path.exists()

    flat_files.save_bin(policy, weights, path, alignment, lossy=True)
    data, parts = np.fromfile(path, "<f4"), flat(weights)
    assert len(data) == 267
    np.testing.assert_array_equal(data[40:72], parts["decoder.weight"])
    np.testing.assert_array_equal(data[72:75], parts["decoder.logstd"])
    assert not data[75:network].any()
    np.testing.assert_array_equal(data[network:], parts["network.0.weight"][:-missing])
    with pytest.warns(UserWarning, match=r"network\.0\.weight's; they are 0 now"):
        loaded = flat(weight_files.load_weights(path, weights, alignment))
    np.testing.assert_array_equal(loaded["decoder.logstd"], parts["decoder.logstd"])
    found, expected = loaded["network.0.weight"], parts["network.0.weight"]
    np.testing.assert_array_equal(found[:-missing], expected[:-missing])
    assert not found[-missing:].any()

    flat_files.save_bin(policy, weights, path, alignment, whole=True)
    assert path.stat().st_size == 4 * (network + 192)
    for wrong in FORMS:  # the size tells
        assert same(weight_files.load_weights(path, weights, wrong), weights)


def test_a_file_padded_to_a_multiple_of_8_is_read(tmp_path):
    """H = 2: encoder 0..10, decoder 16..24, network 24..36, and 4 more."""
    shape = 5, 2, 1, (3,)
    policy, weights, path = policy_of(*shape), drawn(*shape), tmp_path / "w.bin"
    flat_files.save_bin(policy, weights, path, whole=True)
    assert path.stat().st_size == 4 * 36
    path.write_bytes(path.read_bytes() + bytes(16))
    assert same(weight_files.load_weights(path, weights), weights)
    path.write_bytes(path.read_bytes() + bytes(4))
    refused(path, "164 bytes, expected 120 or", like=weights)


def test_the_build_of_an_ambiguous_file_is_an_option(tmp_path):
    """4 dimensions: padding of 4 numbers in the bf16 build, none in the other; equal lengths."""
    shape = 5, 8, 1, (1,) * 4
    policy, weights, path = policy_of(*shape), drawn(*shape), tmp_path / "w.bin"
    flat_files.save_bin(policy, weights, path, FLOAT)
    assert same(weight_files.load_weights(path, weights, FLOAT), weights)
    with pytest.warns(UserWarning, match="lacks the last 4 of 280"):
        assert not same(weight_files.load_weights(path, weights), weights)


def test_a_flat_file_reports_the_numbers_that_it_lacks():
    assert flat_unsupported_reason(policy_of(5, 8, 1, (2, 3))) is None
    assert "lacks the last 5 of 272" in str(flat_unsupported_reason(policy_of(*THREE)))
    assert flat_unsupported_reason(policy_of(5, 8, 1, (1,) * 4), FLOAT) is None
    # H = 4: the decoder begins at 24 instead of 20, the network at 40 as it would
    assert "lacks the last 4 of 88" in str(flat_unsupported_reason(policy_of(5, 4, 1)))
    assert flat_layout([20, 16, 48]).ranges == ((0, 20), (24, 40), (40, 88))


@pytest.mark.parametrize(
    ("how", "part"), [({"dialect": "puffer3"}, "AffineGelu"), ({"network": "GRU"}, "GRU")]
)
def test_flat_files_of_unsuitable_policies_are_neither_written_nor_read(tmp_path, how, part):
    path = tmp_path / "w.bin"
    policy = policy_of(5, 8, 1, **how)
    assert part in str(flat_unsupported_reason(policy))
    like = policy.init(mx.random.key(0))
    with pytest.raises(UserError, match="the flat file holds"):
        flat_files.save_bin(policy, like, path)
    path.write_bytes(b"\0" * 4 * sum(w.size for _, w in named(like)))
    refused(path, "native dialect with MinGRU", like=like)


def test_a_flat_file_of_3_0_has_one_tensor_after_the_other(tmp_path):
    """Encoder, decoder and value with biases, LSTM (5.7)."""
    like = make(5, 8, 1, (3,), network="LSTM", dialect="puffer3")
    sizes = [40, 8, 24, 3, 8, 1, 256, 256, 32, 32]
    data = np.arange(sum(sizes), dtype="<f4")
    data.tofile(tmp_path / "w.bin")
    loaded = flat(weight_files.load_weights(tmp_path / "w.bin", like))
    names = "encoder.weight encoder.bias decoder.actions.weight decoder.actions.bias"
    names += " decoder.value.weight decoder.value.bias network.0.weight_ih network.0.weight_hh"
    names = [*names.split(), "network.0.bias_ih", "network.0.bias_hh"]
    for name, part in zip(names, np.split(data, np.cumsum(sizes)[:-1]), strict=True):
        np.testing.assert_array_equal(loaded[name], part, err_msg=name)


def test_a_torch_file_named_bin_suggests_an_import(fixtures):
    refused(fixtures / "puffer4_breakout_mingru.bin", "torch.save", "puffer-mlx import")


# ---- files that can't be read --------------------------------------------------------------------


def refused(path, *words, like=None):
    with pytest.raises(UserError) as caught:
        weight_files.load_weights(path, small() if like is None else like)
    message = str(caught.value)
    assert caught.value.hint
    for word in (os.path.basename(path), *words):
        assert str(word) in message, message
    return message


@KINDS
def test_missing_files_and_folders_are_refused(tmp_path, kind):
    refused(tmp_path / f"w{kind}", "No such file")
    (tmp_path / f"folder{kind}").mkdir()
    refused(tmp_path / f"folder{kind}")


def test_another_suffix_is_refused(tmp_path):
    (tmp_path / "w.BIN").write_bytes(b"x" * 336)
    refused(tmp_path / "w.BIN", ".safetensors", ".bin")


@pytest.mark.parametrize("size", [0, 1055])
def test_a_flat_file_of_another_size_is_refused(tmp_path, size):
    # (8 * 5 + 4 * 8 + 24 * 8) * 4 bytes = 1056
    (tmp_path / "w.bin").write_bytes(b"\0" * size)
    refused(tmp_path / "w.bin", f"{size} bytes", "expected 1056:", "(24, 8)")


@pytest.mark.parametrize(("kind", "bad"), [(".bin", np.nan), (".safetensors", -np.inf)])
def test_numbers_that_are_not_finite_are_refused(tmp_path, kind, bad):
    weights = small()
    weights["network"][0]["weight"][23, 7] = bad  # the last one
    SAVE[kind](weights, tmp_path / f"w{kind}")
    refused(tmp_path / f"w{kind}", "finite")


def test_weights_of_another_policy_are_refused_by_tensor(tmp_path):
    path = tmp_path / "w.safetensors"
    weight_files.save_safetensors(make(6, 8, 2), path)
    shape, extra = "encoder.weight: (8, 6), expected (8, 5)", "network.1.weight: not in this policy"
    refused(path, shape, extra)
    weight_files.save_safetensors(small(), path)
    refused(path, "network.1.weight: missing, expected (24, 8)", like=make(5, 8, 2))


# ---- disks that can't be written -----------------------------------------------------------------


def test_a_path_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "folder.bin").mkdir()
    with pytest.raises(UserError, match="can't write") as caught:
        save_bin(small(), tmp_path / "folder.bin")
    assert caught.value.hint
    assert files(tmp_path) == ["folder.bin"]


def test_a_failed_write_leaves_the_earlier_file(tmp_path, monkeypatch):
    path = tmp_path / "w.safetensors"
    weight_files.save_safetensors(small(1), path)
    before = path.read_bytes()

    def fail(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(UserError, match="No space left"):
        weight_files.save_safetensors(small(2), path)
    assert files(tmp_path) == [path.name]
    assert path.read_bytes() == before
