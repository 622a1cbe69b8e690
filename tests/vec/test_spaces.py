"""Spaces as rows and heads, compared with Gymnasium's flatten, batches and membership."""

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector.utils import batch_space, iterate
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from puffer_mlx.config.families import family_of
from puffer_mlx.errors import UserError
from puffer_mlx.spec import MAX_LOGITS, EnvSpec
from puffer_mlx.vec.env_failures import EnvFailure
from puffer_mlx.vec.layout import SpaceLayout, saved_layout
from puffer_mlx.vec.spaces import kind_of, to_text

N = 7
SIGN = spaces.Discrete(2)
SHAPES = st.lists(st.integers(1, 3), max_size=2).map(tuple)


@st.composite
def boxes(draw):
    kind = draw(st.sampled_from(["float32", "float64", "float16", "int16", "int32", "uint8"]))
    low, high = (0, 255) if kind == "uint8" else (-4, 9)
    return spaces.Box(low, high, draw(SHAPES), np.dtype(kind).type)


@st.composite
def choices(draw):
    start = draw(st.integers(-3, 7))
    kind = draw(st.sampled_from(["Discrete", "MultiDiscrete", "MultiBinary"]))
    if kind == "Discrete":
        return spaces.Discrete(draw(st.integers(1, 5)), start=start)
    shape = draw(SHAPES) or (2,)
    if kind == "MultiBinary":
        return spaces.MultiBinary(shape)
    sizes = np.random.default_rng(draw(st.integers(0, 9))).integers(1, 5, shape)
    return spaces.MultiDiscrete(sizes, start=np.full(shape, start))


def nested_spaces(leaves):
    """Return a Hypothesis strategy for nested Gymnasium spaces with given leaves."""
    names = st.sampled_from("abc")
    return st.recursive(
        leaves,
        lambda inner: (
            st.lists(inner, min_size=1, max_size=3).map(spaces.Tuple)
            | st.dictionaries(names, inner, min_size=1).map(spaces.Dict)
        ),
        max_leaves=4,
    )


def leaves_of(space) -> list[Any]:
    if not isinstance(space, spaces.Dict | spaces.Tuple):
        return [space]
    parts = space.values() if isinstance(space, spaces.Dict) else space
    return [leaf for part in parts for leaf in leaves_of(part)]


def sampled(space):
    """Return a batch of random samples of a space, as a vector environment returns it."""
    batch = batch_space(space, N)
    batch.seed(0)
    return batch.sample()


def written(layout, batch):
    spec = layout.spec
    rows = np.full((N, spec.observation_size), 77, spec.observation_dtype)  # all of it is written
    layout.write(batch, rows)
    return rows


def nested(value, kind=None):
    """Convert nested dicts and tuples of arrays to lists, to compare them.

    ``kind`` is the dtype to which arrays are converted first, if given.
    """
    if isinstance(value, dict):
        return {key: nested(part, kind) for key, part in value.items()}
    if isinstance(value, tuple):
        return tuple(nested(part, kind) for part in value)
    return np.asarray(value, kind).tolist()


# ---- observations --------------------------------------------------------------------------------


@settings(max_examples=30)
@given(nested_spaces(boxes() | choices()))
@example(spaces.Dict(x=spaces.Box(0, 255, (2, 2), np.uint8), y=spaces.Box(0, 9, (3,), np.uint8)))
def test_rows_are_those_of_gymnasiums_flatten(space):
    """Rows are written as a batch and one by one. A layout that is read from a file is equal."""
    layout, batch = SpaceLayout("toy", space, SIGN), sampled(space)
    rows, each = written(layout, batch), list(iterate(batch_space(space, N), batch))
    flat = np.array([spaces.flatten(space, one) for one in each])
    bytes_only = all(leaf.dtype == np.uint8 for leaf in leaves_of(space))
    assert rows.dtype == (np.uint8 if bytes_only else np.float32)
    assert layout.spec.observation_shape == ()
    np.testing.assert_array_equal(rows, flat.astype(rows.dtype))
    one_by_one = np.full_like(rows, 77)
    for observation, row in zip(each, one_by_one, strict=True):
        layout.writer(row)(observation)
    np.testing.assert_array_equal(one_by_one, rows)
    saved = saved_layout(EnvSpec.from_json(layout.spec.to_json()))
    assert saved is not None and saved.spec == layout.spec
    np.testing.assert_array_equal(written(saved, batch), rows)
    if all(kind_of(leaf) in ("Box", "MultiBinary") for leaf in leaves_of(space)):
        for array in np.array, mx.array:
            assert nested(layout.restore(array(rows))) == nested(batch, np.float32)


@pytest.mark.parametrize(("shape", "turned"), [((12, 84, 84), True), ((3, 3, 3), False)])
def test_channels_first_become_channels_last(shape, turned):
    space = spaces.Box(0, 255, shape, np.uint8)
    layout, batch = SpaceLayout("toy", space, SIGN), sampled(space)
    images = batch.transpose(0, 2, 3, 1) if turned else batch
    assert layout.spec.observation_shape == images.shape[1:]
    rows = written(layout, batch)
    np.testing.assert_array_equal(rows, images.reshape(N, -1))
    np.testing.assert_array_equal(layout.restore(rows), batch)
    layout = SpaceLayout("toy", spaces.Dict(x=space), SIGN)  # a part stays as it is
    np.testing.assert_array_equal(written(layout, {"x": batch}), batch.reshape(N, -1))


@pytest.mark.parametrize(
    ("channels", "said"),
    [
        ("up_to_4", "12 x 84, 84 channels (channels last)"),  # as older runs did
        ("smallest", "84 x 84, 12 channels (channels first)"),
    ],
)
def test_images_are_read_as_saved(channels, said):
    space = spaces.Dict(x=spaces.Box(0, 255, (12, 84, 84), np.uint8))
    layout = SpaceLayout("toy", space, SIGN, channels=channels)
    saved = saved_layout(EnvSpec.from_json(layout.spec.to_json()))
    assert saved is not None and saved.spec == layout.spec
    assert saved.images() == layout.images() and saved.images()[0].endswith(said)


def test_images_of_a_dict_are_found_and_damaged_ones_refused():
    small = spaces.Box(0, 255, (3, 8, 6), np.uint8)
    space = spaces.Dict(
        a=spaces.Discrete(2),
        b=spaces.Tuple([small, spaces.Box(0, 255, (5,), np.uint8)]),
        c=spaces.Box(0, 255, (8, 6, 3), np.uint8),
        d=spaces.Box(0, 1, (8, 6, 3), np.float32),  # no bytes: numbers like others
    )
    spec = SpaceLayout("toy", space, SIGN).spec
    assert spec.image_parts == ((2, (8, 6, 3), True), (2 + 144 + 5, (8, 6, 3), False))
    assert EnvSpec.from_json(spec.to_json()).image_parts == spec.image_parts
    assert family_of(spec) == "images" and replace(spec, image_parts=()) == spec
    fields = json.loads(spec.to_json())
    with pytest.raises(ValueError, match="image"):
        EnvSpec.from_json(json.dumps(fields | {"image_parts": [[9999, [8, 6, 3], True]]}))


def test_observation_that_does_not_fit_the_space_is_reported():
    layout = SpaceLayout("toy", spaces.Discrete(5, start=-2), SIGN)
    with pytest.raises(UserError, match=r"toy: observations don't fit the space Discrete"):
        layout.write(np.full(N, 3), np.zeros((N, 5), np.float32))
    with pytest.raises(EnvFailure, match=r"an observation -3 isn't in Discrete"):
        layout.writer(np.zeros(5, np.float32))(-3)
    bytes_of = spaces.Box(0, 255, (2,), np.uint8)
    layout = SpaceLayout("toy", spaces.Dict(x=bytes_of, y=bytes_of), SIGN)
    two = np.zeros((N, 2), np.uint8)
    with pytest.raises(UserError, match=r"of y don't fit"):
        written(layout, {"x": two})
    with pytest.raises(UserError, match=r"of x .* uint8 \(7, 5\)"):
        written(layout, {"x": np.zeros((N, 5), np.uint8), "y": two})
    with pytest.raises(UserError, match=r"of x .* float64"):
        written(layout, {"x": two.astype(float), "y": two})
    with pytest.raises(EnvFailure, match=r"an observation at x .* its space"):
        layout.writer(np.zeros(4, np.uint8))({"x": np.zeros(5, np.uint8), "y": two[0]})


def test_discrete_parts_are_restored_one_hot():
    space = spaces.Dict(b=spaces.Discrete(3), c=spaces.Tuple([spaces.MultiBinary(2)]))
    restored = SpaceLayout("toy", space, SIGN).restore(mx.array([[0.0, 0, 1, 0, 1]]))
    assert nested(restored) == {"b": [[0, 0, 1]], "c": ([[0, 1]],)}


# ---- actions -------------------------------------------------------------------------------------


def heads_of(space) -> tuple[int, ...]:
    sizes = {
        "Box": lambda it: (1,) * int(np.prod(it.shape)),
        "Discrete": lambda it: (int(it.n),),
        "MultiDiscrete": lambda it: tuple(it.nvec.reshape(-1).tolist()),
        "MultiBinary": lambda it: (2,) * int(np.prod(it.shape)),
    }
    found = [size for leaf in leaves_of(space) for size in sizes[kind_of(leaf)](leaf)]
    continuous = kind_of(leaves_of(space)[0]) == "Box"
    return tuple(size for size in found if continuous or size > 1)


@settings(max_examples=30)
@given(nested_spaces(boxes()) | nested_spaces(choices()), st.booleans())
def test_actions_are_in_the_batched_space(space, rescale: bool):
    """A layout read from a file is equal; each agent's action is a part of the batch."""
    heads, rng = heads_of(space), np.random.default_rng(0)
    assume(heads)
    layout = SpaceLayout("toy", SIGN, space, rescale=rescale)
    assert layout.spec.action.sizes == heads
    saved = saved_layout(EnvSpec.from_json(layout.spec.to_json()))
    assert saved is not None
    rows = 300 * rng.standard_normal((N, len(heads)))  # beyond all bounds
    if not layout.spec.action.continuous:
        rows = rng.integers(0, heads, (N, len(heads)))
    rows = rows.astype(np.float32)
    actions = layout.actions(rows)
    assert actions in batch_space(space, N), actions
    assert nested(saved.actions(rows)) == nested(actions)
    each = list(iterate(batch_space(space, N), actions))
    assert [nested(one) for one in layout.each_action(rows)] == list(map(nested, each))


@pytest.mark.parametrize(
    ("space", "row", "action"),
    [
        (spaces.MultiDiscrete([1, 3, 1, 2], start=[5, 0, 6, 1]), [2, 1], [[5, 2, 6, 2]]),
        (spaces.Box(-3, 250, (2,), np.int16), [2.6, 900], [[3, 250]]),
        (spaces.Box(np.array([-np.inf, -1], "f4"), np.inf), [-1e9, -1e9], [[-1e9, -1]]),
        (
            spaces.Dict(b=spaces.Discrete(3), a=spaces.Tuple((SIGN, spaces.MultiBinary(2)))),
            *([2, 1, 0, 1], {"b": [2], "a": ([1], [[0, 1]])}),
        ),
        (spaces.Discrete(MAX_LOGITS), [MAX_LOGITS - 1], [MAX_LOGITS - 1]),
    ],
)
def test_actions_are_those_computed_by_hand(space, row, action):
    rows = np.array([row], np.float32)
    assert nested(SpaceLayout("toy", SIGN, space).actions(rows)) == action
    np.testing.assert_array_equal(rows, np.array([row], np.float32))  # they are left alone


def test_mask_has_a_byte_for_each_choice():
    two = spaces.MultiDiscrete([3, 4])
    assert SpaceLayout("toy", SIGN, two, mask=True).spec.mask_size == 7
    assert SpaceLayout("toy", SIGN, two).spec.mask_size == 0
    with pytest.raises(UserError, match="continuous"):
        SpaceLayout("toy", SIGN, spaces.Box(0, 1, (2,)), mask=True)


# ---- unsupported spaces --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seen", "taken", "text"),
    [
        (spaces.Dict(a=spaces.Tuple((spaces.Sequence(SIGN),))), SIGN, r"space at a\.0 is Sequence"),
        (spaces.Box(0, 1, (0,)), SIGN, "contains no number"),
        (SIGN, spaces.Tuple((SIGN, spaces.Box(0, 1, (2,)))), "partly discrete and partly cont"),
        (SIGN, spaces.Discrete(1), "nothing to choose"),
    ],
)
def test_unsupported_space_is_refused(seen, taken, text):
    with pytest.raises(UserError, match=rf"toy: .*{text}") as found:
        SpaceLayout("toy", seen, taken)
    assert found.value.hint


# A space without Gymnasium's bounds, which would need its size in memory: beyond 64 bits.
VAST = type("Box", (SimpleNamespace,), {})(shape=(2**32, 2**32), dtype=np.dtype(np.float32))


@pytest.mark.parametrize("taken", [spaces.MultiDiscrete([MAX_LOGITS, 2]), VAST])
def test_more_choices_than_float32_can_number_are_refused(taken):
    """Actions are float32, whole numbers up to 2^24; nothing of the space's size is allocated."""
    with pytest.raises(UserError, match=r"toy: its action space .* action logits.*16,777,216"):
        SpaceLayout("toy", SIGN, taken)


def test_observation_size_may_exceed_64_bits():
    """memory_needs refuses it."""
    half = spaces.Discrete(2**62)
    assert SpaceLayout("toy", spaces.Tuple([half] * 2), SIGN).spec.observation_size == 2**63


def test_spaces_of_other_packages_are_recognized_by_name():
    class Discrete:
        n, dtype, shape = 3, np.dtype(np.int64), ()

    mine = type("Mine", (Discrete,), {})()
    assert kind_of(mine) == "Discrete" and kind_of(3) == ""
    actions = SpaceLayout("toy", mine, mine).actions(np.array([[2.0]], np.float32))
    assert actions.tolist() == [2]


# ---- spaces in files -----------------------------------------------------------------------------


def test_spec_without_spaces_has_no_layout():
    spec = SpaceLayout("toy", SIGN, SIGN).spec
    assert saved_layout(replace(spec, spaces="")) is None
    assert "spaces" not in replace(spec, spaces="").to_json()
    keyed: Any = {(1, 2): SIGN}
    assert SpaceLayout("toy", spaces.Dict(keyed), SIGN).spec.spaces == ""


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '[{"kind": "Graph"}, {"kind": "Dict", "parts": []}]',
        to_text(SIGN, SIGN).replace("int64", "object"),
        to_text(SIGN, SIGN).replace("[2]", f"[{10**30}]"),
    ],
)
def test_damaged_spaces_of_a_file_are_refused(text: str):
    spec = replace(SpaceLayout("toy", SIGN, SIGN).spec, spaces=text)
    with pytest.raises(UserError, match=r"checkpoint's spaces of toy are invalid"):
        saved_layout(spec)
