"""Spaces as rows and heads; Gymnasium's own flatten, batches and membership are the oracles."""

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector.utils import batch_space, iterate

from puffer_mlx.config.families import family_of
from puffer_mlx.errors import UserError
from puffer_mlx.spec import MAX_LOGITS, EnvSpec
from puffer_mlx.vec.layout import SpaceLayout, saved_layout
from puffer_mlx.vec.python_faults import Fault
from puffer_mlx.vec.spaces import kind_of, to_text

N = 7
SIGN = spaces.Discrete(2)
ROWS = spaces.MultiDiscrete(np.array([[2, 3], [4, 5]]), start=np.array([[1, 0], [-3, 7]]))
SEEN = {
    "Box": spaces.Box(-np.inf, np.inf, (4,), np.float32),
    "Box of doubles": spaces.Box(-4, 4, (2, 3), np.float64),
    "Box of one number": spaces.Box(0, 9, (), np.int32),
    "Box of bytes": spaces.Box(0, 255, (5,), np.uint8),
    "Box of halves": spaces.Box(-1, 1, (3,), np.float16),
    "image": spaces.Box(0, 255, (8, 6, 3), np.uint8),
    "Discrete": spaces.Discrete(5, start=-2),
    "MultiDiscrete": spaces.MultiDiscrete([3, 1, 4]),
    "MultiDiscrete in rows": ROWS,
    "MultiBinary": spaces.MultiBinary((2, 3)),
    "Dict": spaces.Dict(
        b=spaces.Discrete(3),
        a=spaces.Box(0.0, 1.0, (2,)),
        c=spaces.Tuple((spaces.MultiBinary(2), spaces.Dict(z=spaces.Box(0, 9, (2,), np.int16)))),
    ),
    "Dict of bytes": spaces.Dict(
        x=spaces.Box(0, 255, (2, 2, 3), np.uint8), y=spaces.Box(0, 9, (3,), np.uint8)
    ),
}
TAKEN = {
    "Discrete": spaces.Discrete(5, start=-2),
    "Discrete of numpy": spaces.Discrete(np.int8(4), start=np.int64(3)),
    "MultiDiscrete": spaces.MultiDiscrete([3, 4]),
    "some without choice": spaces.MultiDiscrete([1, 3, 1, 2], start=[5, 0, 6, 1]),
    "MultiDiscrete in rows": ROWS,
    "MultiBinary": spaces.MultiBinary((2, 3)),
    "Box": spaces.Box(-1.0, 2.0, (3,)),
    "Box of doubles": spaces.Box(-0.1, 0.1, (2, 2), np.float64),
    "Box of ints": spaces.Box(-3, 250, (2,), np.int16),
    "Box of one number": spaces.Box(0.0, 1.0, ()),
    "Dict": spaces.Dict(b=spaces.Discrete(3), a=spaces.Tuple((SIGN, spaces.MultiBinary(2)))),
    "Tuple of Boxes": spaces.Tuple((spaces.Box(0, 1, (2,)), spaces.Box(-9, 9, (1, 2)))),
}


def sampled(space):
    """A batch as a vector environment returns it."""
    batch = batch_space(space, N)
    batch.seed(0)
    return batch.sample()


def written(layout, batch):
    spec = layout.spec
    rows = np.full((N, spec.observation_size), 77, spec.observation_dtype)  # all of it is written
    layout.write(batch, rows)
    return rows


def chosen(layout, rng):
    """Actions as a policy has them, some of each choice, and continuous ones beyond bounds."""
    action = layout.spec.action
    if action.continuous:
        return (300 * rng.standard_normal((N, action.heads))).astype(np.float32)
    return rng.integers(0, action.sizes, (N, action.heads)).astype(np.float32)


def nested(value):
    """Whether arrays in dicts and tuples equal others."""
    if isinstance(value, dict):
        return {key: nested(part) for key, part in value.items()}
    return tuple(map(nested, value)) if isinstance(value, tuple) else np.asarray(value).tolist()


# ---- observations --------------------------------------------------------------------------------


BYTES = "Box of bytes", "image", "Dict of bytes"


@pytest.mark.parametrize("name", SEEN)
def test_rows_are_flat_as_gymnasium_flattens(name: str):
    """All at once and one by one, and by the spaces that a file has; parts come back as they were.

    Rows are bytes only if all parts are.
    """
    space = SEEN[name]
    layout, batch = SpaceLayout("toy", space, SIGN), sampled(space)
    rows, each = written(layout, batch), list(iterate(batch_space(space, N), batch))
    flat = np.array([spaces.flatten(space, one) for one in each])
    assert layout.spec.name == "toy" and rows.dtype == (np.uint8 if name in BYTES else np.float32)
    np.testing.assert_array_equal(rows, flat.astype(rows.dtype))
    one_by_one = np.full_like(rows, 77)
    for observation, row in zip(each, one_by_one, strict=True):
        layout.writer(row)(observation)
    np.testing.assert_array_equal(one_by_one, rows)
    spec = EnvSpec.from_json(layout.spec.to_json())
    saved = saved_layout(spec)
    assert saved is not None and saved.spec == spec == layout.spec
    np.testing.assert_array_equal(written(saved, batch), rows)
    if "Discrete" not in name and name != "Dict":
        batch = batch.astype(np.float32) if name == "Box of doubles" else batch
        for array in np.array, mx.array:
            assert nested(layout.restore(array(rows))) == nested(batch)


def test_only_a_single_box_of_bytes_is_an_image():
    shapes = {
        name: SpaceLayout("toy", space, SIGN).spec.observation_shape for name, space in SEEN.items()
    }
    assert {name: shape for name, shape in shapes.items() if shape} == {"image": (8, 6, 3)}


FIRST = (4, 8, 6), (1, 2, 3), (5, 8, 6), (12, 84, 84)


@pytest.mark.parametrize("shape", [*FIRST, (3, 3, 3), (4, 8, 3), (84, 84, 12), (5, 5, 16)])
def test_channels_that_come_first_are_turned(shape):
    space, turned = spaces.Box(0, 255, shape, np.uint8), shape in FIRST
    layout, batch = SpaceLayout("toy", space, SIGN), sampled(space)
    images = batch.transpose(0, 2, 3, 1) if turned else batch
    assert layout.spec.observation_shape == images.shape[1:]
    rows = written(layout, batch)
    np.testing.assert_array_equal(rows, images.reshape(N, -1))
    np.testing.assert_array_equal(layout.restore(rows), batch)
    layout = SpaceLayout("toy", spaces.Dict(x=space), SIGN)  # a part stays as it is
    assert layout.spec.observation_shape == ()
    np.testing.assert_array_equal(written(layout, {"x": batch}), batch.reshape(N, -1))


@pytest.mark.parametrize("form", [lambda box: box, lambda box: spaces.Dict(x=box)])
def test_up_to_4_reads_images_as_older_runs_did(form):
    """And a checkpoint's layout is the one that it was trained with."""
    space = form(spaces.Box(0, 255, (12, 84, 84), np.uint8))
    old, new = (SpaceLayout("toy", space, SIGN, channels=each) for each in ("up_to_4", "smallest"))
    assert old.images()[0].endswith("12 x 84, 84 channels (channels last)")
    assert new.images()[0].endswith("84 x 84, 12 channels (channels first)")
    for layout in old, new:
        saved = saved_layout(EnvSpec.from_json(layout.spec.to_json()))
        assert saved is not None and saved.spec == layout.spec
        assert saved.images() == layout.images()


def test_where_the_images_of_a_dict_are():
    space = spaces.Dict(
        a=spaces.Discrete(2),
        b=spaces.Tuple([spaces.Box(0, 255, (3, 8, 6), np.uint8), SEEN["Box of bytes"]]),
        c=SEEN["image"],
        d=spaces.Box(0, 1, (8, 6, 3), np.float32),  # no bytes: numbers like others
    )
    spec = SpaceLayout("toy", space, SIGN).spec
    assert spec.image_parts == ((2, (8, 6, 3), True), (2 + 144 + 5, (8, 6, 3), False))
    assert EnvSpec.from_json(spec.to_json()).image_parts == spec.image_parts
    assert SpaceLayout("toy", SEEN["image"], SIGN).spec.image_parts == ()
    assert family_of(spec) == "images" and replace(spec, image_parts=()) == spec
    fields = json.loads(spec.to_json())
    image = [2, [8, 6, 3], True]
    wrong = [3], [[2, [8, 6], True]], [[2, [8, 6, 0], True]], [["2", *image[1:]]]
    for parts in (*wrong, [[400, *image[1:]]], [[9, *image[1:]], image]):
        with pytest.raises(ValueError, match=r"image|not iterable|numbers?|unpack|positive|text"):
            EnvSpec.from_json(json.dumps(fields | {"image_parts": parts}))


def test_discrete_parts_are_restored_one_hot():
    batch = {"a": np.ones((2, 2), np.float32), "b": np.array([2, 0])}
    batch["c"] = (np.zeros((2, 2), np.int8), {"z": np.full((2, 2), 3, np.int16)})
    layout = SpaceLayout("toy", SEEN["Dict"], SIGN)
    rows = np.zeros((2, layout.spec.observation_size), np.float32)
    layout.write(batch, rows)
    restored = layout.restore(mx.array(rows))
    assert restored["b"].tolist() == [[0, 0, 1], [1, 0, 0]]
    assert restored["c"][1]["z"].tolist() == [[3, 3], [3, 3]]
    restored = SpaceLayout("toy", SEEN["MultiDiscrete"], SIGN).restore(np.eye(8))
    np.testing.assert_array_equal(restored, np.eye(8))


def test_a_choice_outside_of_its_space_is_refused():
    layout = SpaceLayout("toy", SEEN["Discrete"], SIGN)  # -2 to 2
    for value in -3, 3:
        with pytest.raises(UserError, match=r"toy: observations don't fit the space Discrete"):
            layout.write(np.full(N, value), np.zeros((N, 5), np.float32))
        with pytest.raises(Fault, match=rf"an observation {value} isn't in Discrete"):
            layout.writer(np.zeros(5, np.float32))(value)


BYTES_X, BYTES_Y = np.zeros((N, 2, 2, 3), np.uint8), np.zeros((N, 3), np.uint8)
MISFITS = {  # observations, what is said of them
    "a part is missing": ({"x": BYTES_X}, r"of y don't fit"),
    "another shape": ({"x": np.zeros((N, 5), np.uint8), "y": BYTES_Y}, r"of x .* uint8 \(7, 5\)"),
    "another kind": ({"x": BYTES_X.astype(float), "y": BYTES_Y}, r"of x .* float64"),
}


@pytest.mark.parametrize("what", MISFITS)
def test_what_does_not_fit_the_space_is_named(what):
    layout, (batch, text) = SpaceLayout("toy", SEEN["Dict of bytes"], SIGN), MISFITS[what]
    with pytest.raises(UserError, match=text):
        written(layout, batch)
    one = {key: part[0] for key, part in batch.items()}
    with pytest.raises(Fault, match=r"an observation( at x)? .* (its space|isn't in)"):
        layout.writer(np.zeros(15, np.uint8))(one)


# ---- actions -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TAKEN)
def test_actions_are_in_the_batched_space(name: str, rng):
    """Also by the spaces that a file has; each agent's are what Gymnasium makes of the batch."""
    space = TAKEN[name]
    for rescale in False, True:
        layout = SpaceLayout("toy", SIGN, space, rescale=rescale)
        assert layout.spec.action.sizes == HEADS[name]
        saved = saved_layout(EnvSpec.from_json(layout.spec.to_json()))
        assert saved is not None
        for _ in range(10):
            rows = chosen(layout, rng)
            actions = layout.actions(rows)
            assert actions in batch_space(space, N), actions
            assert nested(saved.actions(rows)) == nested(actions)
            each = list(iterate(batch_space(space, N), actions))
            assert [nested(one) for one in layout.each_action(rows)] == list(map(nested, each))


@pytest.fixture
def rng():
    return np.random.default_rng(0)


HEADS = {
    "Discrete": (5,),
    "Discrete of numpy": (4,),
    "MultiDiscrete": (3, 4),
    "some without choice": (3, 2),
    "MultiDiscrete in rows": (2, 3, 4, 5),
    "MultiBinary": (2,) * 6,
    "Box": (1,) * 3,
    "Box of doubles": (1,) * 4,
    "Box of ints": (1,) * 2,
    "Box of one number": (1,),
    "Dict": (3, 2, 2, 2),
    "Tuple of Boxes": (1,) * 4,
}


def test_choices_by_hand():
    def actions(name, row):
        return nested(
            SpaceLayout("toy", SEEN["Box"], TAKEN[name]).actions(np.array([row], np.float32))
        )

    assert actions("Discrete", [4]) == [2]
    assert actions("some without choice", [2, 1]) == [[5, 2, 6, 2]]
    assert actions("MultiDiscrete in rows", [1, 2, 3, 4]) == [[[2, 2], [0, 11]]]
    assert actions("Box", [-3, 0.5, 3]) == [[-1, 0.5, 2]]
    assert actions("Box of ints", [2.6, 900]) == [[3, 250]]
    assert actions("Dict", [2, 1, 0, 1]) == {"b": [2], "a": ([1], [[0, 1]])}
    assert actions("Tuple of Boxes", [2, 0, 4, -11]) == ([[1, 0]], [[[4, -9]]])


def test_actions_without_bounds_pass_and_those_with_one_are_clipped_there():
    space = spaces.Box(np.array([-np.inf, -1], np.float32), np.inf)
    layout = SpaceLayout("toy", SEEN["Box"], space)
    rows = np.array([[-1e9, -1e9], [1e9, 1e9]], np.float32)
    np.testing.assert_array_equal(layout.actions(rows), [[-1e9, -1], [1e9, 1e9]])
    assert rows[0, 1] == np.float32(-1e9)  # the policy's own are left alone


def test_a_mask_has_a_byte_for_each_choice():
    assert SpaceLayout("toy", SEEN["Box"], TAKEN["MultiDiscrete"], mask=True).spec.mask_size == 7
    assert SpaceLayout("toy", SEEN["Box"], TAKEN["MultiDiscrete"]).spec.mask_size == 0
    with pytest.raises(UserError, match="continuous"):
        SpaceLayout("toy", SEEN["Box"], TAKEN["Box"], mask=True)


# ---- what there is no layout for -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("seen", "taken", "text"),
    [
        (spaces.Text(5), SIGN, r"its observation space is Text, which has no fixed size"),
        (spaces.Dict(a=spaces.Tuple((spaces.Sequence(SIGN),))), SIGN, r"space at a\.0 is Sequence"),
        (spaces.Box(0, 1, (0,)), SIGN, "holds no number"),
        (spaces.Dict({}), SIGN, "is empty"),
        (SIGN, spaces.Graph(SIGN, None), "its action space is Graph"),
        (SIGN, spaces.Tuple((SIGN, spaces.Box(0, 1, (2,)))), "partly discrete and partly cont"),
        (SIGN, spaces.Discrete(1), "nothing to choose"),
    ],
)
def test_a_space_without_layout_is_refused(seen, taken, text):
    with pytest.raises(UserError, match=rf"toy: .*{text}") as found:
        SpaceLayout("toy", seen, taken)
    assert found.value.hint


def shaped(kind: str, *shape: int) -> SimpleNamespace:
    """A space without Gymnasium's bounds, which would take its size in memory."""
    return type(kind, (SimpleNamespace,), {})(shape=shape, dtype=np.dtype(np.float32), n=shape)


@pytest.mark.parametrize(
    "taken",
    [
        spaces.Discrete(MAX_LOGITS + 1),
        spaces.Discrete(2**62),
        spaces.MultiDiscrete([MAX_LOGITS, 2]),
        spaces.MultiBinary(MAX_LOGITS // 2 + 1),
        shaped("MultiBinary", 2**31, 2**31),
        shaped("Box", MAX_LOGITS + 1),
        shaped("Box", 2**32, 2**32),  # a product beyond 64 bits
        spaces.Tuple([spaces.Discrete(MAX_LOGITS // 2 + 1)] * 2),
    ],
)
def test_more_choices_than_an_action_can_name_are_refused(taken):
    """Actions are float32, whole numbers up to 2^24; nothing of the space's size is allocated."""
    with pytest.raises(UserError, match=r"toy: its action space .* action logits.*16,777,216"):
        SpaceLayout("toy", SIGN, taken)


def test_as_many_choices_as_an_action_can_name():
    layout = SpaceLayout("toy", SIGN, spaces.Discrete(MAX_LOGITS))
    last = np.array([[MAX_LOGITS - 1]], np.float32)
    assert layout.actions(last).tolist() == [MAX_LOGITS - 1]


def test_observations_are_counted_in_whole_numbers():
    layout = SpaceLayout(
        "toy", spaces.Dict(a=spaces.Discrete(2**62), b=spaces.Discrete(2**62)), SIGN
    )
    assert layout.spec.observation_size == 2**63  # beyond 64 bits; memory_needs refuses it


def test_spaces_are_told_apart_by_name():
    class Discrete:  # of another package
        n, dtype, shape = 3, np.dtype(np.int64), ()

    class Mine(Discrete):
        pass

    assert kind_of(Mine()) == "Discrete"
    assert kind_of(3) == ""
    layout = SpaceLayout("toy", Mine(), Mine())
    assert layout.actions(np.array([[2.0]], np.float32)).tolist() == [2]


# ---- spaces in files -----------------------------------------------------------------------------


def test_what_brings_no_spaces_along():
    spec = SpaceLayout("toy", SIGN, SIGN).spec
    assert saved_layout(replace(spec, spaces="")) is None
    assert "spaces" not in replace(spec, spaces="").to_json()
    keyed: Any = {(1, 2): SIGN}
    assert SpaceLayout("toy", spaces.Dict(keyed), SIGN).spec.spaces == ""


DAMAGED = [
    "[",
    "3",
    "[]",
    "[" * 100_000,
    '[{"kind": "Graph"}, {"kind": "Dict", "parts": []}]',
    '[{"kind": "Dict", "parts": [[[], {}]]}, 3]',
    to_text(SIGN),
    to_text(SIGN, SEEN["Discrete"]),  # another's
    to_text(SEEN["Box"], SIGN),
    to_text(SIGN, SIGN).replace("int64", "object"),
    to_text(SIGN, SIGN).replace("[2]", '["many"]'),
    to_text(SIGN, SIGN).replace("[2]", f"[{10**30}]"),
    to_text(SIGN, TAKEN["MultiBinary"]).replace("[2, 3]", "[1000000, 1000000]"),
    to_text(SIGN, TAKEN["Box"]).replace("[3]", "[-3]"),
    to_text(SIGN, TAKEN["Box"]).replace("[3]", '"3"'),
]


def test_a_file_whose_spaces_make_no_sense():
    for text in DAMAGED:
        spec = replace(SpaceLayout("toy", SIGN, SIGN).spec, spaces=text)
        with pytest.raises(UserError, match=r"checkpoint's spaces of toy make no sense"):
            saved_layout(spec)
